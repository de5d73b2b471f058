"""Compression and decompression of complete files, in the five formats that MDS supports.

Decompressed data never exceeds its declared size.

    name    levels  default  stored as
    br      0-11    11       a Brotli stream
    bz2     1-9     9        bzip2 streams
    gz      0-9     9        gzip members; no name or time is stored, so the bytes are reproducible
    snappy  none             one block (not the framed format): the size as a varint, then the data
    zstd    1-22    3        Zstandard frames; written as one frame with its size, no checksum

As in MDS, a compression is named `zstd` or `zstd:LEVEL`; the file suffix is the name without the
level. Arrow implements Brotli and Snappy. It compresses a complete file in one step, and
decompresses Snappy in one step too. As in the original MDS library, a bz2, gz or zstd file may
consist of several streams. flare reads all streams of a Brotli file, and the original reads only
the first.
"""

from __future__ import annotations

import io
import re
import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from flarecli.errors import FlareError, FormatError, IntegrityError, MissingLibraryError, UsageError
from flarecli.expansion import BOMB_HINT, decompressed_limit
from flarecli.progress import count_bytes
from flarecli.suggest import choose

__all__ = [
    "NAMES",
    "SUFFIXES",
    "BlockFile",
    "compressed",
    "decompress",
    "detect",
    "parse",
    "stream",
    "suffix_of",
]

_LEVELS = {
    "br": range(12),
    "bz2": range(1, 10),
    "gz": range(10),
    "snappy": range(0),
    "zstd": range(1, 23),
}
_DEFAULTS = {"br": 11, "bz2": 9, "gz": 9, "snappy": 0, "zstd": 3}
SUFFIXES = tuple(_LEVELS)
_ALIASES = {"gzip": "gz", "zst": "zstd", "zstandard": "zstd", "brotli": "br", "bzip2": "bz2"}
NAMES = tuple(
    name
    for kind, levels in _LEVELS.items()
    for name in (kind, *(f"{kind}:{level}" for level in levels))
)
_NAME = r"(?a)([a-z0-9]+)(?::(0|[1-9]\d?))?"
MAX_ZSTD_WINDOW = 1 << 27  # default limit of the zstd tool; larger windows take more memory
OUTPUT_BYTES = 1 << 20  # size of the blocks that are read or decompressed in one step
# Input bytes per step of bz2 and zstd. The step is small, because the output size of zstd is not
# limited: 4 bytes may decompress to 128 KiB.
INPUT_BYTES = 1 << 11
MAX_OUTPUT_BYTES = 1 << 32  # maximum decompressed size of a file
MAX_SNAPPY_RATIO = 22  # an element of three bytes produces at most 64 bytes of output
MAX_SNAPPY_BYTES = (1 << 32) - 1  # Snappy stores the size as a uint32
_MAGIC = {b"\x1f\x8b\x08": "gz", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}
_TRUNCATED_HINT = "The file was cut short; download or pack it again."


def detect(head: bytes) -> str:
    """Return the compression that the first 4 bytes of a file indicate, or an empty string."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


def suffix_of(compression: str) -> str:
    """Return the file suffix of a compression, such as `zstd` for `zstd:7`.

    raises  UsageError for an unknown name or level
    """
    return parse(compression)[0]


def parse(compression: str) -> tuple[str, int]:
    """Return the name and the level of a compression; the level of snappy is 0.

    raises  UsageError for an unknown name or level
    """
    match = re.fullmatch(_NAME, compression)
    if not match or match[1] not in _LEVELS:
        hint = choose(
            compression.partition(":")[0], _LEVELS, synonyms=_ALIASES, suffix=", or NAME:LEVEL"
        )
        raise UsageError(f"unknown compression {compression!r:.60}", hint=hint)
    kind, level = match[1], int(match[2]) if match[2] else _DEFAULTS[match[1]]
    if match[2] and level not in _LEVELS[kind]:
        levels = _LEVELS[kind]
        raise UsageError(
            f"invalid level {level} for {kind}: expected {levels[0]} to {levels[-1]}"
            if levels
            else f"{kind} has no compression levels"
        )
    return kind, level


def compressed(compression: str, parts: Iterable[Any], size: int) -> Iterator[bytes]:
    """Compress a file and yield the compressed bytes.

    After each part, `count_bytes` reports its size. With br and snappy, which compress a file in
    one step, nothing is reported.

    parts   consecutive parts of the file
    size    size of the file in bytes
    raises  UsageError for an unknown name or level
    """
    kind, level = parse(compression)
    if kind in ("br", "snappy"):
        yield bytes(_codec(kind, level).compress(b"".join(parts)))
        return
    if kind == "gz":
        yield from _compress_gz(parts, level)
        return
    if kind == "zstd":
        import zstandard

        compressor: Any = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    else:
        import bz2

        compressor = bz2.BZ2Compressor(level)
    for part in parts:
        if data := compressor.compress(part):
            yield data
        count_bytes(len(part))
    yield compressor.flush()


def _codec(kind: str, level: int = 0) -> Any:
    import pyarrow as pa

    name = {"br": "brotli"}.get(kind, kind)
    if not pa.Codec.is_available(name):
        raise MissingLibraryError(
            f"this build of pyarrow does not support {name}",
            hint="Run `pip install --force-reinstall pyarrow`.",
        )
    return pa.Codec(name) if kind == "snappy" else pa.Codec(name, compression_level=level)


def _compress_gz(parts: Iterable[Any], level: int) -> Iterator[bytes]:
    """Yield one gzip member, with the header of Python's gzip module but no modification time."""
    import zlib

    from isal import isal_zlib

    yield struct.pack("<4BIBB", 0x1F, 0x8B, zlib.DEFLATED, 0, 0, {1: 4, 9: 2}.get(level, 0), 255)
    compressor, crc, size = zlib.compressobj(level, zlib.DEFLATED, -zlib.MAX_WBITS), 0, 0
    for part in parts:
        crc, size = isal_zlib.crc32(part, crc), size + len(part)
        if data := compressor.compress(part):
            yield data
        count_bytes(len(part))
    yield compressor.flush() + struct.pack("<II", crc, size & 0xFFFFFFFF)


class BlockFile(io.RawIOBase):
    """Binary file object over an iterator of blocks. `size` is the number of bytes read so far."""

    def __init__(self, blocks: Iterable[bytes | memoryview]) -> None:
        self._blocks, self._rest, self.size = iter(blocks), memoryview(b""), 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._rest = memoryview(block)
        data, self._rest = self._rest[: len(buffer)], self._rest[len(buffer) :]
        buffer[: len(data)] = data
        self.size += len(data)
        return len(data)


def _open(kind: str, source: BlockFile) -> Any:
    """Return a file object that decompresses the consecutive streams of a br or gz file.

    Zeros after a gzip member are padding, as in the original MDS library.
    """
    if kind == "gz":
        from isal import igzip

        return igzip.IGzipFile(fileobj=source)  # type: ignore[no-untyped-call]
    import pyarrow as pa

    _codec(kind)
    return pa.CompressedInputStream(pa.PythonFile(source, "r"), "brotli")


def _stream_opener(kind: str) -> Callable[[], Any]:
    """Return a function that opens a decompressor for one bz2 or zstd stream."""
    if kind == "bz2":
        import bz2

        return bz2.BZ2Decompressor
    import zstandard

    return zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW).decompressobj


def _decompress_streams(kind: str, source: BlockFile, allow_rest: bool) -> Iterator[bytes]:
    """Decompress the consecutive streams of a bz2 or zstd file.

    The file objects of the libraries are not used: zstandard accepts an incomplete last stream, and
    bz2 ignores all streams after a damaged stream.

    allow_rest  whether to ignore bytes after a bz2 stream that do not begin another stream, as the
                original MDS library does
    raises      EOFError if the last stream is incomplete; OSError for invalid bz2 data
    """
    open_stream, stream = _stream_opener(kind), None
    while rest := source.read(INPUT_BYTES):
        while rest:
            if stream is None:
                is_first = source.size == len(rest)
                is_rest = kind == "bz2" and not is_first and not b"BZh".startswith(rest[:3])
                if allow_rest and is_rest:
                    return
                stream = open_stream()
            yield from _decompress_step(kind, stream, rest)
            rest = stream.unused_data if stream.eof else b""
            stream = None if stream.eof else stream
    if stream is not None or not source.size:
        raise EOFError


def _decompress_step(kind: str, stream: Any, data: bytes) -> Iterator[bytes]:
    """Decompress the next bytes of a bz2 or zstd stream. Yield bz2 data in steps of OUTPUT_BYTES.

    Without a limit for each step, one call would decompress 2 KiB of bz2 to 2 GB.
    """
    if kind == "zstd":
        yield stream.decompress(data)
        return
    yield stream.decompress(data, OUTPUT_BYTES)
    while not stream.eof and not stream.needs_input:
        yield stream.decompress(b"", OUTPUT_BYTES)


def _decompress_snappy(source: BlockFile, limit: int, where: object) -> bytes | memoryview:
    """Decompress one Snappy block. Its declared size is checked before memory is allocated."""
    head = b""
    while len(head) < 5 and (part := source.read(5 - len(head))):
        head += part
    size, at = 0, 0
    for at, byte in enumerate(head):
        size |= (byte & 127) << (7 * at)
        if byte < 128:
            break
    else:
        if len(head) < 5:
            raise EOFError
        size = MAX_SNAPPY_BYTES + 1
    if size > MAX_SNAPPY_BYTES:
        raise FormatError("not valid snappy: declared size is more than 4 GiB", where=where)
    if size > limit:
        raise _limit_error(limit, where)
    data, max_bytes = bytearray(head), 64 + size + size // 6  # maximum length of a valid block
    while block := source.read(OUTPUT_BYTES):
        data += block
        if len(data) > max_bytes:
            raise FormatError(
                f"not valid snappy: more than {max_bytes} bytes of input for {size} bytes of output",
                where=where,
            )
    if size > MAX_SNAPPY_RATIO * len(data):
        raise FormatError(
            f"not valid snappy: {len(data)} bytes of input cannot decompress to {size} bytes",
            where=where,
            hint=_TRUNCATED_HINT,
        )
    if not size and len(data) > at + 1:
        raise FormatError("not valid snappy: bytes follow the end of the block", where=where)
    return memoryview(_codec("snappy").decompress(data, decompressed_size=size)) if size else b""


def decompress(
    suffix: str,
    blocks: Iterable[bytes],
    raw_size: int | None,
    where: object,
    stored: int | None = None,
) -> bytearray:
    """Decompress a complete file, to at most the declared size.

    The declared size is not trusted, so the compression ratio is limited too, except for output
    below `expansion.FREE_BYTES`.

    raw_size  declared number of decompressed bytes; None if unknown
    stored    size of the compressed file in bytes; None if unknown
    raises    IntegrityError if the decompressed size differs from `raw_size` or the compression
              ratio is too high; FormatError if the bytes are invalid or truncated
    """
    if suffix not in SUFFIXES:
        raise UsageError(
            f"unknown compression {suffix!r:.60}",
            where=where,
            hint=f"Choose one of {', '.join(SUFFIXES)}.",
        )
    if raw_size is not None and raw_size > MAX_OUTPUT_BYTES:
        raise FormatError(
            f"listed decompressed size is {raw_size} bytes; the maximum is {MAX_OUTPUT_BYTES}",
            where=where,
        )
    if stored is not None and raw_size is not None and raw_size > decompressed_limit(stored):
        raise IntegrityError(
            f"listed decompressed size is {raw_size} bytes; the maximum for {stored} stored bytes is "
            f"{decompressed_limit(stored)}",
            where=where,
            hint=BOMB_HINT,
        )
    out = bytearray()
    max_bytes = MAX_OUTPUT_BYTES if raw_size is None else raw_size
    for data in stream(suffix, blocks, where, stored, max_bytes, allow_rest=True):
        out += data
    if raw_size is not None and len(out) != raw_size:
        raise IntegrityError(
            f"decompresses to {len(out)} bytes; expected {raw_size}",
            where=where,
            hint="Download or pack the file again.",
        )
    return out


def stream(
    suffix: str,
    blocks: Iterable[bytes],
    where: object,
    stored: int | None = None,
    max_bytes: int | None = None,
    *,
    allow_rest: bool = False,
) -> Iterator[bytes | memoryview]:
    """Decompress a file of any size in steps of about 1 MiB, with bounded memory.

    stored      size of the compressed file in bytes; None if unknown
    max_bytes   maximum decompressed size; None: limit only the compression ratio
    allow_rest  whether to ignore bytes after a bz2 stream that do not begin another stream. If the
                caller does not check where the data ends, use False: a damaged stream would
                otherwise hide all later streams
    raises      FormatError if the bytes are invalid or truncated; IntegrityError if the data or the
                compression ratio is too large
    """
    source, size = BlockFile(blocks), 0
    maximum = MAX_OUTPUT_BYTES if max_bytes is None else max_bytes
    try:
        for data in _decompress_blocks(suffix, source, maximum, where, allow_rest):
            size += len(data)
            limit = decompressed_limit(source.size if stored is None else stored)
            if max_bytes is not None:
                limit = min(limit, max_bytes)
            if size > limit:
                raise _limit_error(limit, where)
            yield data
    except MemoryError:
        raise
    except Exception as error:  # each library raises different errors
        raise _format_error(error, suffix, where) from None


def _format_error(error: Exception, suffix: str, where: object) -> Exception:
    """Convert an exception from a compression library to a FlareError."""
    if isinstance(error, FlareError):
        return error
    if isinstance(error, EOFError) or "truncated" in str(error).lower():
        return FormatError(f"the {suffix} file is truncated", where=where, hint=_TRUNCATED_HINT)
    reason = (str(error).splitlines() or [""])[0].rpartition(": ")[2][:80].lower().strip(" ._")
    return FormatError(f"not valid {suffix}: {reason}", where=where)


def _decompress_blocks(
    suffix: str, source: BlockFile, limit: int, where: object, allow_rest: bool
) -> Iterator[bytes | memoryview]:
    if suffix == "snappy":
        yield _decompress_snappy(source, limit, where)
    elif suffix in ("bz2", "zstd"):
        yield from _decompress_streams(suffix, source, allow_rest)
    else:
        reader = _open(suffix, source)
        while data := reader.read(OUTPUT_BYTES):
            yield data
        if not source.size:
            raise EOFError


def _limit_error(limit: int, where: object) -> IntegrityError:
    return IntegrityError(
        f"decompresses to more than {limit} bytes",
        where=where,
        hint=BOMB_HINT,
    )
