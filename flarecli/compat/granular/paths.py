"""Conversion of a path, an address or a path-like object to the Location of a folder.

Like a pathlib.Path, a path-like object supports `/`, `exists`, `open`, `glob`, `mkdir` and `name`.
"""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from flarecli.errors import (
    BusyError,
    FormatError,
    MissingError,
    UnsafeError,
    UsageError,
)
from flarecli.hashes import Sums
from flarecli.storage import Buffer, Entry, Location, Store, Written, locate
from flarecli.storage.local import LocalStore

__all__ = ["located"]


def located(directory: Any, writing: bool = False) -> Location:
    """Return the Location of a folder: a path, an address, or a path-like object.

    writing  True if files are extended row by row; writes then do not wait for the disk
    """
    if isinstance(directory, (str, pathlib.PurePath)):
        at = locate(f"{os.fspath(directory).rstrip('/') or '/'}/")
        if writing and isinstance(at.store, LocalStore):
            old = at.store
            store = LocalStore(old.root, old.shown, old.guard, maps=False, durable=False)
            return Location(store, at.path)
        return at
    return Location(PathStore(directory))


class PathStore(Store):
    """Store for the files below a path-like object. It can be pickled if the object can."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def _at(self, path: str) -> Any:
        at = self._root
        for part in path.split("/") if path else ():
            at = at / part
        return at

    def _existing(self, path: str) -> Any:
        at = self._at(path)
        if not at.exists():
            raise MissingError("no such file or folder", where=self.show(path))
        return at

    def show(self, path: str) -> str:
        return f"{self._root}/{path}" if path else str(self._root)

    def join(self, path: str, url: str) -> Location:
        if "://" in url or url.startswith("/") or ".." in url.split("/"):
            raise UnsafeError(f"address {url!r:.60} is outside the folder", where=self.show(path))
        return Location(self, self.child(path, url))

    def size(self, path: str) -> int:
        with self._existing(path).open("rb") as file:
            return int(file.seek(0, 2))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._existing(path).open("rb") as file:
            file.seek(start)
            data: bytes = file.read() if stop is None else file.read(stop - start)
        if stop is not None and len(data) != stop - start:
            raise FormatError(
                f"file ends at byte {start + len(data)}; expected at least {stop}",
                where=self.show(path),
            )
        return data

    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        at, sums = self._at(path), Sums(hashes)
        if not replace and at.exists():
            raise UsageError("file already exists", where=self.show(path))
        self._at(path.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        with at.open("wb") as file:
            for part in parts:
                sums.update(part)
                file.write(part)
        return Written(sums.size, sums.hex())

    def cut(self, path: str, size: int) -> None:
        self.write(path, [self.read(path, 0, min(size, self.size(path)))])

    def extend(self, path: str, size: int, parts: Iterable[Buffer]) -> None:
        if (actual := self.size(path)) != size:
            raise BusyError(
                f"file is {actual} bytes; expected {size}",
                where=self.show(path),
                hint="Make sure that no other process writes to this file.",
            )
        with self._at(path).open("ab") as file:
            for part in parts:
                file.write(part)

    def list(self, path: str) -> Iterator[Entry]:
        def walk(at: Any, prefix: str) -> Iterator[Entry]:
            for child in at.glob("*"):
                name = f"{prefix}{child.name}"
                # `elements.Path`, often used with granular, has `isdir` instead of `is_dir`
                if child.is_dir() if hasattr(child, "is_dir") else child.isdir():
                    yield from walk(child, f"{name}/")
                else:
                    yield Entry(name, self.size(self.child(path, name)))

        return iter(
            sorted(walk(self._existing(path), ""), key=lambda entry: os.fsencode(entry.name))
        )

    def delete(self, path: str) -> None:
        at = self._at(path)
        if at.exists():
            at.unlink()
