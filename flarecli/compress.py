"""Compression of whole files, in the five ways of MDS, and back: never past the size that was declared.

    name    levels  default  stored as
    br      0-11    11       a Brotli stream
    bz2     1-9     9        bzip2 streams
    gz      0-9     9        gzip members, written with no name and no time, so that the same bytes give the same file
    snappy  none             one block: the size as a varint, then the data; not the framed format
    zstd    1-22    3        Zstandard frames; written as one that carries the size, without a checksum

A name is spelt `zstd` or `zstd:LEVEL`, exactly as MDS spells it; the suffix of the file is the bare name. Brotli and Snappy are what
Arrow brings along: no other library is needed for them. Their writing takes the whole file at once, and so does reading Snappy. Streams
behind one another are one file, as the original reads them; it refuses a second Brotli stream, which is read here like any other.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from flarecli.errors import FlareError, FormatError, IntegrityError, MissingLibraryError, UsageError
from flarecli.expansion import BOMB_HINT, decompressed_limit
from flarecli.suggest import choose

__all__ = ["NAMES", "SUFFIXES", "compressed", "decompress", "stream", "suffix_of"]

_LEVELS = {
    "br": range(12),
    "bz2": range(1, 10),
    "gz": range(10),
    "snappy": range(0),
    "zstd": range(1, 23),
}
_DEFAULTS = {"br": 11, "bz2": 9, "gz": 9, "snappy": 0, "zstd": 3}
SUFFIXES = tuple(_LEVELS)
_MEANT = {
    "gzip": "gz",
    "zst": "zstd",
    "zstandard": "zstd",
    "brotli": "br",
    "bzip2": "bz2",
}  # what others call them
NAMES = tuple(
    name
    for kind, levels in _LEVELS.items()
    for name in (kind, *(f"{kind}:{level}" for level in levels))
)
_NAME = r"(?a)([a-z0-9]+)(?::(0|[1-9]\d?))?"
_WINDOW = (
    1 << 27
)  # what zstd itself takes without --long; more is a bomb's way to make a reader allocate
_STEP = 1 << 20  # bytes given out at once
_TAKEN = {
    "bz2": 1 << 16,
    "gz": 1 << 16,
    "zstd": 1 << 11,
}  # bytes taken at once: 4 of zstd may stand for 128 KiB, and come out together
_TOTAL = 1 << 32  # bytes that a file held in memory may decompress to, whatever its size
_SNAPPY_RATIO, _SNAPPY_MOST = 22, (1 << 32) - 1  # three bytes copy at most 64; the size is a uint32
_CUT_HINT = "It was cut short; fetch or pack it again."


def suffix_of(compression: str) -> str:
    """Give the file suffix of a compression, such as `zstd` for `zstd:7`.

    raises  UsageError for a name or level that is none
    """
    return _parsed(compression)[0]


def _parsed(compression: str) -> tuple[str, int]:
    match = re.fullmatch(_NAME, compression)
    if not match or match[1] not in _LEVELS:
        hint = choose(compression.partition(":")[0], _LEVELS, meant=_MEANT, more=", or NAME:LEVEL")
        raise UsageError(f"unknown compression {compression!r:.60}", hint=hint)
    kind, level = match[1], int(match[2]) if match[2] else _DEFAULTS[match[1]]
    if match[2] and level not in _LEVELS[kind]:
        levels = _LEVELS[kind]
        raise UsageError(
            f"{kind} has levels {levels[0]} to {levels[-1]}, not {level}"
            if levels
            else f"{kind} has no levels"
        )
    return kind, level


def compressed(compression: str, parts: Iterable[Any], size: int) -> Iterator[bytes]:
    """Compress parts of `size` bytes in all as one file of its kind. Raises UsageError for a name or level that is none."""
    kind, level = _parsed(compression)
    if kind in ("br", "snappy"):
        yield bytes(_codec(kind, level).compress(b"".join(parts)))
        return
    if kind == "gz":
        yield from _gz(parts, level)
        return
    if kind == "zstd":
        import zstandard

        packer: Any = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    else:
        import bz2

        packer = bz2.BZ2Compressor(level)
    for part in parts:
        if data := packer.compress(part):
            yield data
    yield packer.flush()


def _codec(kind: str, level: int = 0) -> Any:
    import pyarrow as pa

    name = {"br": "brotli"}.get(kind, kind)
    if not pa.Codec.is_available(name):
        raise MissingLibraryError(
            f"this build of pyarrow has no {name}",
            hint="Run: pip install --force-reinstall pyarrow",
        )
    return pa.Codec(name) if kind == "snappy" else pa.Codec(name, compression_level=level)


def _gz(parts: Iterable[Any], level: int) -> Iterator[bytes]:
    """One member, headed as Python's gzip heads it but for the time: that would make the same input another file."""
    import zlib

    from isal import isal_zlib

    yield struct.pack("<4BIBB", 0x1F, 0x8B, zlib.DEFLATED, 0, 0, {1: 4, 9: 2}.get(level, 0), 255)
    packer, crc, size = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS), 0, 0
    for part in parts:
        crc, size = isal_zlib.crc32(part, crc), size + len(part)
        if data := packer.compress(part):
            yield data
    yield packer.flush() + struct.pack("<II", crc, size & 0xFFFFFFFF)


class _Blocks:
    """Blocks of bytes as the file that a decompressor wants to read from; `size` is what it has read."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest, self.size, self.closed = iter(blocks), memoryview(b""), 0, False

    def read(self, size: int) -> memoryview:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                break
            self._rest = memoryview(block)
        data, self._rest = self._rest[:size], self._rest[size:]
        self.size += len(data)
        return data

    def close(self) -> None:
        self.closed = True


class _Kind(NamedTuple):
    """How streams of one kind are read: `open` a reader of one stream, `rest` it did not take, what lies `between` streams."""

    open: Callable[[], Any]
    rest: Callable[[Any], bytes]
    between: Callable[[memoryview], memoryview | None]


def _zstd() -> Any:
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()


def _bz2() -> Any:
    import bz2

    return bz2.BZ2Decompressor()


def _gunzip() -> Any:
    from isal import isal_zlib

    return isal_zlib.decompressobj(31)


def _nothing(_: Any) -> bytes:
    return b""


_KINDS = {  # behind a gzip member zeros are padding; behind a bzip2 stream, what begins none is no part of it: both as the original has it
    "zstd": _Kind(_zstd, _nothing, lambda data: data),
    "gz": _Kind(
        _gunzip,
        lambda reader: bytes(reader.unconsumed_tail),
        lambda data: memoryview(bytes(data).lstrip(b"\0")),
    ),
    "bz2": _Kind(_bz2, _nothing, lambda data: data if b"BZh".startswith(data[:3]) else None),
}


def _streams(name: str, source: _Blocks) -> Iterator[bytes]:
    """Read streams of one kind behind one another. Raises EOFError where the last one has no end."""
    kind, reader, step, is_first = _KINDS[name], None, _TAKEN[name], True
    takes_limit = name != "zstd"
    while len(rest := source.read(step)):
        while len(rest):
            if reader is None:
                left = rest if is_first else kind.between(rest)
                if left is None:
                    return
                rest, is_first = left, False
                if not len(rest):
                    break
                reader = kind.open()
            data = reader.decompress(rest, _STEP) if takes_limit else reader.decompress(rest)
            while True:
                if data:
                    yield data
                rest = memoryview(kind.rest(reader))
                if reader.eof or not takes_limit or (not len(rest) and len(data) < _STEP):
                    break
                data = reader.decompress(rest, _STEP)
            if reader.eof:
                rest, reader = memoryview(reader.unused_data), None
    if reader is not None or is_first:
        raise EOFError


def _brotli(source: _Blocks) -> Iterator[bytes]:
    """Read Brotli streams: Arrow reads one behind the other, and refuses other bytes there."""
    import pyarrow as pa

    _codec("br")
    reader = pa.CompressedInputStream(pa.PythonFile(_Readable(source), "r"), "brotli")
    while data := reader.read(_STEP):
        yield data
    if not source.size:
        raise EOFError


class _Readable:
    """What Arrow reads from: it wants bytes, not views of them."""

    def __init__(self, source: _Blocks) -> None:
        self._source, self.closed = source, False

    def read(self, size: int) -> bytes:
        return bytes(self._source.read(size))

    def close(self) -> None:
        self.closed = True


def _snappy(source: _Blocks, limit: int, where: object) -> bytes | memoryview:
    """Read one block of Snappy: the size that it declares is held against the limit and against its length before anything is allocated."""
    head = b""
    while len(head) < 5 and (
        part := bytes(source.read(5 - len(head)))
    ):  # blocks may be of any length
        head += part
    size, at = 0, 0
    for at, byte in enumerate(head):
        size |= (byte & 127) << (7 * at)
        if byte < 128:
            break
    else:
        if len(head) < 5:
            raise EOFError
        size = _SNAPPY_MOST + 1
    if size > _SNAPPY_MOST:
        raise FormatError("not valid snappy: it declares more than 4 GiB", where=where)
    if size > limit:
        raise _too_much(limit, where)
    data, most = bytearray(head), 64 + size + size // 6  # no block of this size is longer
    while len(block := source.read(_STEP)):
        data += block
        if len(data) > most:
            raise FormatError(f"not valid snappy: more than {most} bytes for {size}", where=where)
    if size > _SNAPPY_RATIO * len(data):
        raise FormatError(
            f"not valid snappy: {len(data)} bytes cannot hold {size}", where=where, hint=_CUT_HINT
        )
    if not size and len(data) > at + 1:
        raise FormatError("not valid snappy: bytes follow its end", where=where)
    return memoryview(_codec("snappy").decompress(data, decompressed_size=size)) if size else b""


def decompress(
    suffix: str,
    blocks: Iterable[bytes],
    raw_size: int | None,
    where: object,
    stored: int | None = None,
) -> bytearray:
    """Decompress a whole file, all its streams, never past the declared size.

    Whoever made the file may have declared its size too: above `expansion.FREE_BYTES` of output, the ratio is bounded in any case.

    raw_size  bytes that must come out; None: not declared
    stored    size of the compressed file; None: not known, then the bytes read so far count
    raises    IntegrityError if another number of bytes comes out, or more than the ratio allows; FormatError if the bytes are not
              the format, or end too early
    """
    if suffix not in SUFFIXES:
        raise UsageError(
            f"unknown compression {suffix!r:.60}",
            where=where,
            hint=f"Choose one of {', '.join(SUFFIXES)}.",
        )
    if (
        raw_size is not None and raw_size > _TOTAL
    ):  # whoever made the file may have made the listing
        raise FormatError(
            f"{raw_size} bytes when decompressed are listed, {_TOTAL} is the most that is read",
            where=where,
        )
    if stored is not None and raw_size is not None and raw_size > decompressed_limit(stored):
        raise IntegrityError(
            f"{raw_size} bytes when decompressed are listed, at most {decompressed_limit(stored)} are read from {stored} bytes",
            where=where,
            hint=BOMB_HINT,
        )
    most = _TOTAL if raw_size is None else raw_size
    source, out = _Blocks(blocks), bytearray()
    try:
        for data in _pieces(suffix, source, most, where):
            limit = min(most, decompressed_limit(source.size if stored is None else stored))
            if len(out) + len(data) > limit:
                raise _too_much(limit, where)
            out += data
    except MemoryError:
        raise
    except Exception as error:  # each library has errors of its own
        raise _fault(error, suffix, where) from None
    if raw_size is not None and len(out) != raw_size:
        raise IntegrityError(
            f"decompresses to {len(out)} bytes, {raw_size} are wanted",
            where=where,
            hint="Fetch or pack it again.",
        )
    return out


def stream(suffix: str, blocks: Iterable[bytes], where: object) -> Iterator[bytes | memoryview]:
    """Decompress a file of any size as it comes, a megabyte or so at a time; nothing but the memory of a step is needed.

    raises  FormatError if the bytes are not the format, or end too early; IntegrityError if more comes out than the ratio allows
    """
    source, size = _Blocks(blocks), 0
    try:
        for data in _pieces(suffix, source, _TOTAL, where):
            size += len(data)
            if size > (limit := decompressed_limit(source.size)):
                raise _too_much(limit, where)
            yield data
    except MemoryError:
        raise
    except Exception as error:
        raise _fault(error, suffix, where) from None


def _fault(error: Exception, suffix: str, where: object) -> Exception:
    """Say what a library's error means."""
    if isinstance(error, FlareError):
        return error
    if isinstance(error, EOFError) or "truncated" in str(error).lower():
        return FormatError(f"the {suffix} file ends in its middle", where=where, hint=_CUT_HINT)
    reason = (str(error).splitlines() or [""])[0].rpartition(": ")[2][:80].lower().strip(" ._")
    return FormatError(f"not valid {suffix}: {reason}", where=where)


def _pieces(
    suffix: str, source: _Blocks, limit: int, where: object
) -> Iterator[bytes | memoryview]:
    if suffix == "snappy":
        yield _snappy(source, limit, where)
    elif suffix == "br":
        yield from _brotli(source)
    else:
        yield from _streams(suffix, source)


def _too_much(limit: int, where: object) -> IntegrityError:
    return IntegrityError(
        f"decompresses to more than {limit} bytes",
        where=where,
        hint=BOMB_HINT,
    )
