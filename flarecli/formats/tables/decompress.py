"""Sequential reader of text tables, which decompresses `.gz`, `.bz2` and `.zst` files.

The reader keeps a few blocks in memory, and verifies checksums. It raises an error for a truncated
file, and for a file whose decompressed size exceeds the limits in `flarecli.expansion`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from flarecli import compress
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = [
    "COMPRESSIONS",
    "Blocks",
    "TextFile",
    "decompressed",
    "split_compression",
]

# The first block is large, because types are inferred from it. Later blocks of local and compressed
# files are a quarter as large, because parsing a block needs 15 times its size in memory.
BLOCK_BYTES = 4 << 20
COMPRESSIONS = {".gz": "gz", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd"}


class Blocks(Protocol):
    """Byte source that can be read several times. `str(source)` returns its address.

    location  location of the file; None if the bytes are not in a file
    """

    @property
    def location(self) -> Location | None: ...
    def blocks(self) -> Iterator[bytes]: ...


def split_compression(name: str) -> tuple[str, str]:
    """Return a file name without its compression suffix, and the compression.

    The compression is empty if the name has no compression suffix.
    """
    for suffix, compression in COMPRESSIONS.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), compression
    return name, ""


@dataclass(frozen=True, slots=True)
class TextFile:
    """A text file, which may be compressed."""

    location: Location
    compression: str = ""

    def __str__(self) -> str:
        return str(self.location)

    def blocks(self, start: int = 0) -> Iterator[bytes]:
        """Yield the bytes in order, up to 4 MB at a time.

        start   offset of the first byte; must be 0 for a compressed file
        raises  FormatError for invalid or truncated compressed data, or a wrong checksum;
                IntegrityError for an excessive decompressed size
        """
        if self.compression:
            yield from decompressed(self.location.blocks(), self.compression, self.location)
            return
        store, path = self.location.store, self.location.path
        if isinstance(store, LocalStore):  # keep the file open, because its path may be replaced
            with store.opened(path) as fd:
                size = store.status(fd, path).st_size
                step = BLOCK_BYTES
                while start < size:
                    stop, now = min(start + step, size), store.status(fd, path).st_size
                    yield store.pread(fd, path, start, stop, now)
                    start, step = stop, BLOCK_BYTES // 4
            return
        size = self.location.size()
        for begin in range(start, size, BLOCK_BYTES):
            yield self.location.read(begin, min(begin + BLOCK_BYTES, size))


def decompressed(blocks: Iterator[bytes], compression: str, where: object) -> Iterator[bytes]:
    """Yield decompressed data, up to 4 MB at a time.

    raises  FormatError for invalid or truncated data, or a wrong checksum; IntegrityError for an
            excessive decompressed size; any error that `blocks` raises
    """
    parts = compress.BlockFile(compress.stream(compression, blocks, where))
    file, size = io.BufferedReader(parts), BLOCK_BYTES
    while data := file.read(size):
        yield data
        size = BLOCK_BYTES // 4
