"""Decoding of shard values: all pixels of images, headers of video and audio, no pickles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache

from flarecli import encodings, formats
from flarecli.encodings import Encoding
from flarecli.errors import FlareError
from flarecli.expansion import MAX_DECODED_VALUE
from flarecli.formats import LargeValue
from flarecli.media import Sandbox, check_header, is_image, is_media, kind_of, sniff
from flarecli.model import Finding, Row, Shard, finding_of
from flarecli.progress import count_bytes
from flarecli.storage import Location
from flarecli.units import format_size
from flarecli.write.failures import LARGE_HINT

__all__ = ["HINT", "decode_values"]

_ROWS = 64  # number of rows that are read together
# Number of decoded bytes after which the progress is updated. An update per value would be slow.
_REPORT_BYTES = 1 << 16
_PICKLES = ("pkl", "pkl[]")
# encodings whose values become Python objects
_DOCUMENTS = ("json", "json_json", "msgpack", "tree")
_IMAGES = ("jpeg", "png")
_IMAGE_LISTS = ("jpeg_array", "jpegarray", "list[jpeg]", "list[png]")
_VIDEOS = {"mp4": ("mp4", "mov", "m4a"), "webm": ("webm", "mkv")}  # encoding -> containers
HINT = "The source file was already damaged; repair it and pack again, or exclude the row with `flare pack … --where`."


def decode_values(
    form: formats.Format, shard: Shard, decoder: Sandbox, max_bytes: int, is_typed: bool = False
) -> Iterator[Finding]:
    """Decode all values except pickles; yield a finding for each invalid value or unreadable row.

    max_bytes  a larger value is a finding, and is not decoded
    is_typed   whether the structure check has already parsed numbers and text
    """
    decoded = {
        column.name: encodings.lookup(column.encoding)
        for column in shard.columns
        if column.encoding not in _PICKLES
    }
    chunk = shard.chunk
    large: dict[int, list[str]] = {}  # row -> columns whose values in this row are not read
    for value in form.large_values(shard, max_bytes) if decoded else ():
        if value.column in decoded:
            large.setdefault(value.row, []).append(value.column)
            yield _too_large(value, chunk.at, max_bytes)
    if is_typed:
        # The items of a list in an Arrow type may be null, which encodings cannot represent.
        decoded = {
            name: kind
            for name, kind in decoded.items()
            if not _is_plain((form.typed and kind.item) or kind)
        }
    # limit the total number of list items, because many hostile rows may refer to the same bytes
    items_left = sum(at.size() for at in (chunk.at, *chunk.companions))
    unreported = 0  # number of decoded bytes since the last update of the progress
    for start in range(0, shard.rows if decoded else 0, _ROWS):
        rows = range(start, min(start + _ROWS, shard.rows))
        for i, row in _read_rows(form, shard, rows, list(decoded), large):
            if isinstance(row, FlareError):
                yield finding_of(row if row.where else row.changed(row=i), chunk.at)
                continue
            for name, data in row.items():
                if data is None:  # the tar sample has no member for this column
                    continue
                if isinstance(data, list):
                    items_left -= len(data)
                if items_left < 0:
                    message = "list items overlap: rows have more items than the shard has bytes; later rows are not decoded"
                    yield Finding(f"{chunk.at}[{i}]", "format", message, HINT)
                    return
                size = sum(map(len, data)) if isinstance(data, list) else len(data)
                # `large` lacks this value if the format does not store sizes
                if size > max_bytes:
                    yield _too_large(LargeValue(i, name, size), chunk.at, max_bytes)
                    continue
                kind = decoded[name].item or decoded[name]
                named_kind = kind_of(f"a.{name}") if form.key_column else None
                for part in data if isinstance(data, list) else [data]:
                    if fault := _fault(kind, part, named_kind, decoder):
                        message = f"column {name!r}: {fault}"
                        yield Finding(str(chunk.at), "value", message, HINT, row=i, column=name)
                    unreported += len(part)
                    if unreported >= _REPORT_BYTES:
                        count_bytes(unreported)
                        unreported = 0
    count_bytes(unreported)


def _is_plain(kind: Encoding) -> bool:
    """Return whether Arrow stores values of this encoding without conversion."""
    return kind.name == "str" or (kind.size is not None and not kind.dtype and kind.item is None)


def _read_rows(
    form: formats.Format,
    shard: Shard,
    rows: Sequence[int],
    names: list[str],
    large: Mapping[int, Sequence[str]],
) -> Iterator[tuple[int, Row | FlareError]]:
    """Read rows together; if a row has a large value or cannot be read, read each row separately.

    large  row -> columns whose values in this row are not read
    """
    if len(rows) == 1:
        names = [name for name in names if name not in large.get(rows[0], ())]
        if not names:
            return
    if len(rows) == 1 or large.keys().isdisjoint(rows):
        try:
            yield from zip(rows, form.read_rows(shard, rows, names), strict=True)
            return
        except FlareError as error:
            if len(rows) == 1:
                yield rows[0], error
                return
    for row in rows:
        yield from _read_rows(form, shard, [row], names, large)


def _too_large(value: LargeValue, at: Location, max_bytes: int) -> Finding:
    message = f"column {value.column!r}: a value of {value.size} bytes, larger than the limit of {max_bytes} bytes"
    return Finding(str(at), "large", message, LARGE_HINT, row=value.row, column=value.column)


def _fault(encoding: Encoding, data: bytes, named_kind: str | None, decoder: Sandbox) -> str:
    """Return the reason why a value does not match its column; empty if it matches.

    named_kind  media kind of files whose extension is the column name; None if unknown
    """
    name = encoding.name
    try:
        if name in _IMAGES:
            return _image_fault(name, data, decoder)
        if name in _IMAGE_LISTS:
            faults = (
                _image_fault(name, one, decoder) for one in encodings.split_images(name, data)
            )
            return next(filter(None, faults), "")
        if name in _VIDEOS:
            kind = check_header(data).kind
            return "" if kind in _VIDEOS[name] else _other_kind(name, kind, data)
        if name == "bytes":
            return _bytes_fault(data, named_kind, decoder)
        if name in _DOCUMENTS and len(data) > MAX_DECODED_VALUE:
            return f"{name} value is {len(data)} bytes; the maximum is {MAX_DECODED_VALUE}"
        encodings.decode(encoding, data)
    except FlareError as error:
        return error.message
    except MemoryError:
        raise
    except Exception as error:  # third-party encodings may raise any exception
        return f"invalid {name}: {str(error)[:80]}"
    return ""


def _other_kind(expected: str, kind: str | None, data: bytes) -> str:
    return f"expected {expected}, got {kind or 'unknown bytes'} ({format_size(len(data))})"


def _image_fault(name: str, data: bytes, decoder: Sandbox) -> str:
    """Return the reason why bytes are not a complete image in any format, or an empty string."""
    kind = sniff(data[:512])
    if kind is not None and not is_image(kind):
        return _other_kind(name, kind, data)
    if kind is not None:
        check_header(data)
    if kind in _undecodable_images():
        return ""
    fault = decoder.check(data)
    return f"invalid {name}: {fault}" if fault else ""


def _bytes_fault(data: bytes, named_kind: str | None, decoder: Sandbox) -> str:
    """Return the reason why bytes are an invalid media file, or an empty string.

    Bytes that do not begin like a media file are invalid only if `named_kind` is a media kind.
    """
    kind = sniff(data[:512])
    # other data may begin like an MP3 frame by chance
    is_chance = kind == "mp3" and named_kind != "mp3" and not data.startswith(b"ID3")
    if not is_media(kind) or is_chance:
        return _other_kind(str(named_kind), kind, data) if is_media(named_kind) else ""
    if is_image(kind):
        return _image_fault(str(kind), data, decoder)
    check_header(data)
    return ""


@cache
def _undecodable_images() -> frozenset[str]:
    """Return the kinds of images that the installed Pillow cannot decode."""
    from PIL import features

    return frozenset({"heic"} if features.check("avif") else {"heic", "avif"})
