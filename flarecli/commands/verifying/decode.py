"""Decode the values of a shard: images with all pixels, video and audio headers, no pickles."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cache

from flarecli import encodings, formats
from flarecli.encodings import Encoding
from flarecli.errors import FlareError
from flarecli.expansion import MAX_DECODED_VALUE
from flarecli.media import Sandbox, check_header, is_image, is_media, kind_of, sniff
from flarecli.model import Finding, Row, Shard, finding_of
from flarecli.units import format_size

__all__ = ["HINT", "decoded"]

_ROWS = 64  # read together
_PICKLES = ("pkl", "pkl[]")
# encodings whose values become Python objects
_DOCUMENTS = ("json", "json_json", "msgpack", "tree")
_PICTURES = ("jpeg", "png")
_SEVERAL = ("jpeg_array", "jpegarray", "list[jpeg]", "list[png]")
_MOVING = {"mp4": ("mp4", "mov", "m4a"), "webm": ("webm", "mkv")}
HINT = "It was so before it was packed: mend it there and pack again, or leave its row out with `flare pack … --where`."


def decoded(
    form: formats.Format, shard: Shard, pictures: Sandbox, is_typed: bool = False
) -> Iterator[Finding]:
    """Decode all values except pickles; an unreadable row is a finding, and later rows are decoded
    too.

    is_typed  the structure check has already parsed numbers and text
    """
    kinds = {
        column.name: encodings.lookup(column.encoding)
        for column in shard.columns
        if column.encoding not in _PICKLES
    }
    kinds = {name: kind for name, kind in kinds.items() if not (is_typed and _is_plain(kind))}
    chunk = shard.chunk
    # bounds items of lists, since hostile rows can share the same bytes
    left = sum(at.size() for at in (chunk.at, *chunk.beside))
    for start in range(0, shard.rows if kinds else 0, _ROWS):
        for i, row in _rows(form, shard, range(start, min(start + _ROWS, shard.rows)), list(kinds)):
            if isinstance(row, FlareError):
                yield finding_of(row if row.where else row.changed(row=i), shard.chunk.at)
                continue
            for name, data in row.items():
                parts = (
                    data if isinstance(data, list) else [] if data is None else [data]
                )  # None: missing in a sample of a tar
                if isinstance(data, list):
                    left -= len(data)
                if left < 0:
                    message = "its rows take more items than it has; the rest is not decoded"
                    yield Finding(f"{chunk.at}[{i}]", "format", message, HINT)
                    return
                promised = kind_of(f"a.{name}") if form.key_column else None
                for part in parts:
                    if said := _why_not(kinds[name].item or kinds[name], part, promised, pictures):
                        message = f"column {name!r}: {said}"
                        yield Finding(
                            str(shard.chunk.at), "value", message, HINT, row=i, column=name
                        )


def _is_plain(kind: Encoding) -> bool:
    """Return whether Arrow stores values of this encoding without conversion."""
    return kind.name == "str" or (kind.size is not None and not kind.dtype and kind.item is None)


def _rows(
    form: formats.Format, shard: Shard, rows: Sequence[int], names: list[str]
) -> Iterator[tuple[int, Row | FlareError]]:
    """Read rows together, or one at a time if one of them cannot be read."""
    try:
        yield from zip(rows, form.read_rows(shard, rows, names), strict=True)
        return
    except FlareError as error:
        if len(rows) == 1:
            yield rows[0], error
            return
    for row in rows:
        yield from _rows(form, shard, [row], names)


def _why_not(encoding: Encoding, data: bytes, promised: str | None, pictures: Sandbox) -> str:
    """Return why a value does not match its column; empty if it does.

    promised  kind by the extension of its name
    """
    name = encoding.name
    try:
        if name in _PICTURES:
            return _picture(name, data, pictures)
        if name in _SEVERAL:
            return next(
                filter(
                    None,
                    (_picture(name, part, pictures) for part in encodings.split_images(name, data)),
                ),
                "",
            )
        if name in _MOVING:
            found = check_header(data).kind
            return (
                ""
                if found in _MOVING[name]
                else f"{format_size(len(data))} are {found}, not {name}"
            )
        if name == "bytes":
            return _medium(data, promised, pictures)
        if name in _DOCUMENTS and len(data) > MAX_DECODED_VALUE:
            return f"{len(data)} bytes of {name}; at most {MAX_DECODED_VALUE} are decoded"
        encodings.decode(encoding, data)
    except FlareError as error:
        return error.message
    except MemoryError:
        raise
    except Exception as error:  # third-party encodings may raise any exception
        return f"not {name}: {str(error)[:80]}"
    return ""


def _picture(name: str, data: bytes, pictures: Sandbox) -> str:
    """Return why the bytes are not a complete image of any format."""
    kind = sniff(data[:512])
    if kind is not None and not is_image(kind):
        return f"{format_size(len(data))} are {kind}, not {name}"
    if kind is not None:
        check_header(data)
    if kind in _without_decoder():
        return ""
    said = pictures.check(data)
    return f"not {name}: {said}" if said else ""


def _medium(data: bytes, promised: str | None, pictures: Sandbox) -> str:
    """Return why bytes that begin as an image, video or audio are invalid; other bytes only if a
    name promises a kind.
    """
    kind = sniff(data[:512])
    if not is_media(kind) or (
        kind == "mp3" and promised != "mp3" and not data.startswith(b"ID3")
    ):  # random bytes sometimes begin like an MP3 frame
        return (
            f"{format_size(len(data))} are {kind or 'not'}{', not' * (kind is not None)} {promised}"
            if is_media(promised)
            else ""
        )
    if is_image(kind):
        return _picture(str(kind), data, pictures)
    check_header(data)
    return ""


@cache
def _without_decoder() -> frozenset[str]:
    """Return the kinds of images that the installed Pillow cannot decode."""
    from PIL import features

    return frozenset({"heic"} if features.check("avif") else {"heic", "avif"})
