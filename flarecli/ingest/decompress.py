"""The bytes of a text index in order: as they lie there, or decompressed on the way, a block at a time and never much more.

A compressed file is told by its name: `.gz`, `.zst` or `.zstd` behind the extension. Its sums are checked, a cut one
is an error, and so is one that grows by more than `expansion` allows.
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

__all__ = ["Blocks", "Text", "bare"]

BLOCK = 4 << 20  # bytes given at once
_SUFFIXES = {".gz": "gzip", ".zst": "zstd", ".zstd": "zstd"}


class Blocks(Protocol):
    """Bytes that can be read in order, again and again; as text it is where they lie."""

    def blocks(self) -> Iterator[bytes]: ...


def bare(name: str) -> tuple[str, str]:
    """Give a name without the suffix of its compression, and that compression; empty if there is none."""
    for suffix, compression in _SUFFIXES.items():
        if name.endswith(suffix):
            return name.removesuffix(suffix), compression
    return name, ""


@dataclass(frozen=True, slots=True)
class Text:
    """A file of text, whatever it is compressed with."""

    at: Location
    compression: str = ""

    def __str__(self) -> str:
        return str(self.at)

    def blocks(self) -> Iterator[bytes]:
        """Read it in order, up to 4 MB at a time; a file on a disk is one file from its first byte to its last.

        raises  FormatError for what is not whole gzip or zstd, fails its sum, or grows more than `expansion` allows
        """
        if self.compression:
            yield from self._decompressed()
            return
        store, path = self.at.store, self.at.path
        if isinstance(
            store, LocalStore
        ):  # held open: what takes the file's name meanwhile is another one
            with store.opened(path) as fd:
                size = store.status(fd, path).st_size
                for start in range(0, size, BLOCK):
                    now = store.status(fd, path).st_size
                    yield store.pread(fd, path, start, min(start + BLOCK, size), now)
            return
        size = self.at.size()
        for start in range(0, size, BLOCK):
            yield self.at.read(start, min(start + BLOCK, size))

    def _decompressed(self) -> Iterator[bytes]:
        source = _Source(self.at.blocks())
        name, size = self.compression, 0
        with pa.CompressedInputStream(pa.PythonFile(source, mode="r"), name) as stream:
            while True:
                try:
                    data = stream.read(BLOCK)
                except (pa.ArrowException, OSError) as error:
                    if source.error is not None:
                        raise source.error from None
                    raise self._refusal(str(error)) from None
                if not data:
                    return
                size += len(data)
                check_decoded(size, source.size, self.at)
                yield data

    def _refusal(self, reason: str) -> FormatError:
        if "runcated" in reason:
            return FormatError(
                f"the {self.compression} file ends in its middle",
                where=self.at,
                hint="The file was cut short; fetch it again.",
            )
        return FormatError(
            f"not valid {self.compression}: {reason.splitlines()[0].rpartition(': ')[2][:100].lower()}",
            where=self.at,
        )


class _Source(io.RawIOBase):
    """Blocks of bytes as the file that a decompressor reads; `error` is the first FlareError that reading met."""

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
