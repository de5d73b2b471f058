"""In-memory store, for bytes that were already read or decompressed, and for tests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from flarecli.errors import MissingError, UsageError
from flarecli.hashes import Sums
from flarecli.storage.base import Buffer, Entry, Store, Written, short_read

__all__ = ["MemoryStore"]


class MemoryStore(Store):
    """A store for files in a dict (path -> bytes).

    shown  prefix of all addresses in messages
    """

    is_local = True

    def __init__(
        self, files: dict[str, bytes | bytearray | memoryview] | None = None, shown: str = ""
    ) -> None:
        self.files = {} if files is None else files
        self.shown = shown

    def show(self, path: str) -> str:
        return "/".join(part for part in (self.shown, path) if part)

    def map(self, path: str) -> memoryview:
        try:
            return memoryview(self.files[path])
        except KeyError:
            raise MissingError("no such file or folder", where=self.show(path)) from None

    def size(self, path: str) -> int:
        return len(self.map(path))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        data = self.map(path)
        stop = len(data) if stop is None else stop
        if max(start, stop) > len(data):
            raise short_read(self.show(path), 0, max(start, stop), len(data))
        return bytes(data[start:stop])

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return [self.read(path, start, stop) for start, stop in ranges]

    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        if not replace and path in self.files:
            raise UsageError("already exists", where=self.show(path))
        data = b"".join(parts)
        sums = Sums(hashes)
        sums.update(data)
        self.files[path] = data
        return Written(sums.size, sums.hex())

    def list(self, path: str) -> Iterator[Entry]:
        prefix = f"{path}/" if path else ""
        found = [name for name in self.files if name.startswith(prefix)]
        if not found:
            raise MissingError("no such file or folder", where=self.show(path))
        yield from (Entry(name[len(prefix) :], len(self.files[name])) for name in sorted(found))

    def create(self, path: str, data: bytes) -> None:
        self.write(path, [data], replace=False)

    def delete(self, path: str) -> None:
        self.files.pop(path, None)
