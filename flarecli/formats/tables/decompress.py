"""Sequential reader of text tables, which decompresses `.gz`, `.bz2` and `.zst` files.

The reader keeps a few blocks in memory, and verifies checksums. It raises an error for a truncated
file, and for a file whose decompressed size exceeds the limits in `flarecli.expansion`.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import pyarrow as pa

from flarecli.errors import FlareError, FormatError
from flarecli.expansion import check_decoded
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = [
    "COMPRESSIONS",
    "Blocks",
    "TextFile",
    "compression_of",
    "decompressed",
    "split_compression",
]

# The first block is large, because types are inferred from it. Later blocks of local and compressed
# files are a quarter as large, because parsing a block needs 15 times its size in memory.
BLOCK_BYTES = 4 << 20
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".zstd": "zstd"}
_MAGIC = {b"\x1f\x8b\x08": "gzip", b"BZh": "bz2", b"\x28\xb5\x2f\xfd": "zstd"}


class Blocks(Protocol):
    """Byte source that can be read several times. `str(source)` returns its address.

    location  location of the file; None if the bytes are not in a file
    """

    @property
    def location(self) -> Location | None: ...
    def blocks(self) -> Iterator[bytes]: ...


def split_compression(name: str) -> tuple[str, str]:
    """Split a compression suffix from a file name; return the name and the compression, or ""."""
    for suffix, compression in COMPRESSIONS.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), compression
    return name, ""


def compression_of(head: bytes) -> str:
    """Return the compression that the first bytes of a file indicate, or an empty string."""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


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
    source = _BlockFile(blocks)
    size = 0
    file = pa.PythonFile(source, mode="r")
    with pa.CompressedInputStream(file, compression) as stream:
        while True:
            try:
                data = stream.read(BLOCK_BYTES // 4 if size else BLOCK_BYTES)
            except (pa.ArrowException, OSError) as error:
                if source.error is not None:
                    raise source.error from None
                raise _format_error(str(error), compression, where) from None
            if not data:
                return
            size += len(data)
            check_decoded(size, source.size, where)
            yield data


def _format_error(reason: str, compression: str, where: object) -> FormatError:
    if "runcated" in reason:
        return FormatError(
            f"the {compression} file is truncated",
            where=where,
            hint="The file was cut short; download it again.",
        )
    reason = reason.splitlines()[0].rpartition(": ")[2][:100].lower()
    return FormatError(f"not valid {compression}: {reason}", where=where)


class _BlockFile(io.RawIOBase):
    """File object through which the decompressor reads blocks from an iterator.

    size   number of bytes that were read
    error  FlareError that a read raised; Arrow's own error has only the message
    """

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest, self.size = blocks, memoryview(b""), 0
        self.error: FlareError | None = None

    def readable(self) -> bool:
        return True

    def read(self, size: int | None = -1) -> bytes:
        if not self._rest:
            try:
                self._rest = memoryview(next(self._blocks, b""))
            except FlareError as error:
                self.error = error
                raise
        stop = len(self._rest) if size is None or size < 0 else size
        data, self._rest = bytes(self._rest[:stop]), self._rest[stop:]
        self.size += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)
