"""Compression of whole files: streaming in both directions, and stopping at the size that was declared.

A name is spelt `zstd` or `zstd:LEVEL`, exactly as MDS spells it; the suffix of the file is the bare name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import IO, Any, cast

from flarecli.errors import FormatError, IntegrityError, UsageError

__all__ = ["SUFFIXES", "compressed", "decompress", "suffix_of"]

SUFFIXES = ("zstd",)
_LEVELS = {"zstd": (1, 22, 3)}  # name: lowest, highest, default
_NAME = re.compile(r"([a-z0-9]+)(?::([1-9]\d?))?", re.ASCII)
_WINDOW = 1 << 27  # what zstd itself takes without --long; more is a bomb's way to make a reader allocate
_STEP = 1 << 20
_RATIO, _TOTAL = 1000, 1 << 32  # the first bounds what declares no size, the second everything


def suffix_of(compression: str) -> str:
    """Give the file suffix of a compression, such as `zstd` for `zstd:7`.

    raises  UsageError for a name or level that is none
    """
    return _parsed(compression)[0]


def _parsed(compression: str) -> tuple[str, int]:
    match = _NAME.fullmatch(compression)
    if not match or match[1] not in _LEVELS:
        raise UsageError(f"unknown compression {compression!r}", hint=f"Choose one of {', '.join(_LEVELS)}, or NAME:LEVEL.")
    low, high, default = _LEVELS[match[1]]
    level = int(match[2]) if match[2] else default
    if not low <= level <= high:
        raise UsageError(f"{match[1]} has levels {low} to {high}, not {level}")
    return match[1], level


def compressed(compression: str, parts: Iterable[Any], size: int) -> Iterator[bytes]:
    """Compress parts of `size` bytes in all as one zstd frame that carries the size, without a checksum."""
    import zstandard

    _, level = _parsed(compression)
    packer = zstandard.ZstdCompressor(level=level).compressobj(size=size)
    for part in parts:
        if data := packer.compress(part):
            yield data
    yield packer.flush()


class _Blocks:
    """Blocks of bytes as the file that a decompressor wants to read from."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._rest, self.size = iter(blocks), b"", 0

    def read(self, size: int) -> bytes:
        data = self._rest or next(self._blocks, b"")
        data, self._rest = data[:size], data[size:]
        self.size += len(data)
        return data


def decompress(suffix: str, blocks: Iterable[bytes], raw_size: int | None, where: object) -> bytearray:
    """Decompress a whole file, all its frames, never past the declared size.

    raw_size  bytes that must come out; None: not declared, then growth is bounded by ratio and in all
    raises    IntegrityError if another number of bytes comes out; FormatError if the bytes are not the format
    """
    import zstandard

    if suffix != "zstd":
        raise UsageError(f"unknown compression {suffix!r}", where=where, hint=f"Choose one of {', '.join(SUFFIXES)}.")
    if raw_size is not None and raw_size > _TOTAL:  # whoever made the frame may have made the listing
        raise FormatError(f"{raw_size} bytes when decompressed are listed, {_TOTAL} is the most that is read", where=where)
    source, out = _Blocks(blocks), bytearray()
    reader = zstandard.ZstdDecompressor(max_window_size=_WINDOW).stream_reader(cast(IO[bytes], source), read_across_frames=True)
    try:
        while data := reader.read(_STEP):
            out += data
            limit = raw_size if raw_size is not None else min(_TOTAL, max(64 * _STEP, _RATIO * source.size))
            if len(out) > limit:
                raise IntegrityError(f"decompresses to more than {limit} bytes", where=where, hint="It may be a decompression bomb; do not trust it.")
    except zstandard.ZstdError as error:
        reason = str(error).removeprefix("zstd decompress error: ")[:80].lower()
        raise FormatError(f"not valid zstd: {reason}", where=where) from None
    if raw_size is not None and len(out) != raw_size:
        raise IntegrityError(f"decompresses to {len(out)} bytes, {raw_size} are wanted", where=where, hint="Fetch or pack it again.")
    return out
