"""What `--decode` does to a shard: every value but pickles, pictures with every pixel, video and sound by their headers."""

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

_ROWS = 64  # read at once
_PICKLES = ("pkl", "pkl[]")
_DOCUMENTS = ("json", "json_json", "msgpack", "tree")  # whose values become Python objects
_PICTURES = ("jpeg", "png")
_SEVERAL = ("jpeg_array", "jpegarray", "list[jpeg]", "list[png]")
_MOVING = {"mp4": ("mp4", "mov", "m4a"), "webm": ("webm", "mkv")}
HINT = "It was so before it was packed: mend it there and pack again, or leave its row out with `flare pack … --where`."


def decoded(
    form: formats.Format, shard: Shard, pictures: Sandbox, is_typed: bool = False
) -> Iterator[Finding]:
    """Decode every value but pickles; what cannot be read is a finding too, and the rows behind it are decoded all the same.

    is_typed  numbers and text were read as such already, every one of them
    """
    kinds = {
        column.name: encodings.lookup(column.encoding)
        for column in shard.columns
        if column.encoding not in _PICKLES
    }
    kinds = {name: kind for name, kind in kinds.items() if not (is_typed and _is_plain(kind))}
    chunk = shard.chunk
    # each item of a list takes some bytes of its own, unless rows take the same ones again and again
    left = sum(at.size() for at in (chunk.at, *chunk.beside))
    for start in range(0, shard.rows if kinds else 0, _ROWS):
        for i, row in _rows(form, shard, range(start, min(start + _ROWS, shard.rows)), list(kinds)):
            if isinstance(row, FlareError):
                yield finding_of(row if row.where else row.changed(row=i), shard.chunk.at)
                continue
            for name, data in row.items():
                parts = (
                    data if isinstance(data, list) else [] if data is None else [data]
                )  # None: a sample of a tar lacks it
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
    """Whether bytes that Arrow takes for a column of this kind are whole values."""
    return kind.name == "str" or (kind.size is not None and not kind.dtype and kind.item is None)


def _rows(
    form: formats.Format, shard: Shard, rows: Sequence[int], names: list[str]
) -> Iterator[tuple[int, Row | FlareError]]:
    """Read rows together, or one by one where one of them cannot be read."""
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
    """Say why a value is not what its column says; empty if it is.

    promised  what the extension of its name says that it is
    """
    name = encoding.name
    try:
        if name in _PICTURES:
            return _picture(name, data, pictures)
        if name in _SEVERAL:
            return next(
                filter(
                    None,
                    (_picture(name, part, pictures) for part in encodings.pictures_of(name, data)),
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
    except Exception as error:  # an encoding of the user's own may raise what it likes
        return f"not {name}: {str(error)[:80]}"
    return ""


def _picture(name: str, data: bytes, pictures: Sandbox) -> str:
    """Say why the bytes are no whole picture, whatever its container."""
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
    """Say why bytes that begin as a picture, video or sound are none; other bytes are what they are, unless a name promised more."""
    kind = sniff(data[:512])
    if not is_media(kind) or (
        kind == "mp3" and promised != "mp3" and not data.startswith(b"ID3")
    ):  # one in thousands begins like a frame of MP3
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
    """Name the pictures that the Pillow at hand cannot decode."""
    from PIL import features

    return frozenset({"heic"} if features.check("avif") else {"heic", "avif"})
