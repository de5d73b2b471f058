"""Files below any object that has a Path's methods: `/`, `exists`, `open`, `glob`, `mkdir`, `name`."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterable, Iterator
from typing import Any

from flarecli.errors import BusyError, FormatError, MissingError, UnsafeError, UsageError
from flarecli.hashes import Sums
from flarecli.storage import Entry, Location, Part, Store, Written, locate
from flarecli.storage.local import LocalStore

__all__ = ["located"]


def located(directory: Any, writing: bool = False) -> Location:
    """Make a Location of a folder: a path, an address, or an object that has a Path's methods.

    writing  files are added to it, row by row, which do not each wait for the disk
    """
    if isinstance(directory, (str, os.PathLike)) and (
        isinstance(directory, (str, pathlib.PurePath))
    ):
        at = locate(f"{os.fspath(directory).rstrip('/') or '/'}/")
        if writing and isinstance(at.store, LocalStore):
            return Location(
                LocalStore(
                    at.store.root, at.store.shown, at.store.guard, maps=False, durable=False
                ),
                at.path,
            )
        return at
    return Location(PathStore(directory))


class PathStore(Store):
    """The files below a path-like object. Pickles if that does."""

    def __init__(self, root: Any) -> None:
        self._root = root

    def _at(self, path: str) -> Any:
        at = self._root
        for part in path.split("/") if path else ():
            at = at / part
        return at

    def _there(self, path: str) -> Any:
        at = self._at(path)
        if not at.exists():
            raise MissingError("no such file or folder", where=self.show(path))
        return at

    def show(self, path: str) -> str:
        return f"{self._root}/{path}" if path else str(self._root)

    def join(self, path: str, url: str) -> Location:
        if "://" in url or url.startswith("/") or ".." in url.split("/"):
            raise UnsafeError(f"the address {url!r:.60} leaves the folder", where=self.show(path))
        return Location(self, self.child(path, url))

    def size(self, path: str) -> int:
        with self._there(path).open("rb") as file:
            return int(file.seek(0, 2))

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        with self._there(path).open("rb") as file:
            file.seek(start)
            data: bytes = file.read() if stop is None else file.read(stop - start)
        if stop is not None and len(data) != stop - start:
            raise FormatError(
                f"ends at byte {start + len(data)}, {stop} are needed", where=self.show(path)
            )
        return data

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        at, sums = self._at(path), Sums(hashes)
        if not replace and at.exists():
            raise UsageError("a file is there", where=self.show(path))
        self._at(path.rpartition("/")[0]).mkdir(parents=True, exist_ok=True)
        with at.open("wb") as file:
            for part in parts:
                sums.update(part)
                file.write(part)
        return Written(sums.size, sums.hex())

    def cut(self, path: str, size: int) -> None:
        self.write(path, [self.read(path, 0, min(size, self.size(path)))])

    def extend(self, path: str, size: int, parts: Iterable[Part]) -> None:
        if (there := self.size(path)) != size:
            raise BusyError(
                f"is {there} bytes, it was left at {size}",
                where=self.show(path),
                hint="Another process writes there.",
            )
        with self._at(path).open("ab") as file:
            for part in parts:
                file.write(part)

    def list(self, path: str) -> Iterator[Entry]:
        def below(at: Any, name: str) -> Iterator[Entry]:
            for child in at.glob("*"):
                whole = f"{name}{child.name}"
                if child.is_dir() if hasattr(child, "is_dir") else child.isdir():
                    yield from below(child, f"{whole}/")
                else:
                    yield Entry(whole, self.size(self.child(path, whole)))

        return iter(sorted(below(self._there(path), ""), key=lambda one: os.fsencode(one.name)))

    def delete(self, path: str) -> None:
        at = self._at(path)
        if at.exists():
            at.unlink()
