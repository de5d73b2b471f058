"""ffrecord's packed folders: the files of a folder as records, and a last record of file names.

The names are pickled, and are parsed without running code.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from flarecli.compat.ffrecord.files import FileReader
from flarecli.errors import MissingError, UsageError
from flarecli.formats import byte_ranges
from flarecli.formats.ffrecord import packed_folder
from flarecli.formats.ffrecord.table import open_shard
from flarecli.model import ByteArray
from flarecli.storage import Location, locate

__all__ = ["PackedFolder", "pack_folder"]


def pack_folder(
    folder: str | os.PathLike[str], out_file: str | os.PathLike[str], verbose: bool = False
) -> None:
    """Write the files of a folder and its subfolders as one file. Symbolic links are followed.

    verbose  accepted without effect
    raises   UsageError for a name that does not end in `.ffr`, or for a link cycle; MissingError
             for a dangling link
    """
    root, name = os.fspath(folder), os.fspath(out_file)
    if not name.endswith(".ffr"):
        raise UsageError("expected a name that ends in .ffr", where=name)
    contents: dict[str, bytes | Location] = {}
    empty: list[str] = []
    _collect(root, "", contents, empty, ())
    at = locate(f"{os.path.dirname(os.path.abspath(name))}/")
    packed_folder.write_folder(at, os.path.basename(name), contents, empty)


def _collect(
    folder: str,
    above: str,
    contents: dict[str, bytes | Location],
    empty: list[str],
    seen: tuple[str, ...],
) -> None:
    real = os.path.realpath(folder)
    if real in seen:
        raise UsageError("symbolic links form a cycle", where=folder)
    for entry in os.scandir(folder):
        path = above + entry.name
        if entry.is_dir():
            empty.append(path)
            _collect(entry.path, f"{path}/", contents, empty, (*seen, real))
        elif entry.is_file():
            contents[path] = locate(entry.path)
        else:
            raise MissingError("dangling link, or not a regular file", where=entry.path)


class PackedFolder:
    """Reader of the files in a packed folder, by name.

    raises  FormatError if the file is not a packed folder; UnsafeError if the pickle of
            the names would run code, or if a name is outside the folder
    """

    def __init__(self, ffr_file: str | os.PathLike[str], check_data: bool = True) -> None:
        self.fname, self.check_data = os.fspath(ffr_file), check_data
        self.reader = FileReader(self.fname, check_data)
        self._tree = packed_folder.directory(
            open_shard(byte_ranges.single_file_chunk(locate(self.fname)), None, check_data)
        )

    def num_files(self) -> int:
        """Return the number of files in the packed folder."""
        return self.reader.n - 1

    def _find(self, path: str | os.PathLike[str]) -> Any:
        entry: Any = self._tree
        for part in PurePosixPath(path).parts:
            entry = entry.get(part) if isinstance(entry, dict) else None
            if entry is None:
                return None
        return entry

    def exists(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file or folder with this name exists."""
        return self._find(path) is not None

    def is_file(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a file with this name exists."""
        return isinstance(self._find(path), int)

    def is_dir(self, path: str | os.PathLike[str]) -> bool:
        """Return whether a folder with this name exists."""
        return isinstance(self._find(path), dict)

    def read(self, paths: Sequence[str | os.PathLike[str]]) -> list[ByteArray]:
        """Return the contents of files in the order of `paths`: uint8 [bytes] each.

        raises  MissingError if a file does not exist
        """
        rows = [self._find(path) for path in paths]
        for path, row in zip(paths, rows, strict=True):
            if not isinstance(row, int):
                raise MissingError(f"no file {os.fspath(path)!r:.80}", where=self.fname)
        return self.reader.read(rows)

    def read_one(self, path: str | os.PathLike[str]) -> ByteArray:
        """Return the contents of one file."""
        return self.read([path])[0]

    def list(
        self,
        path: str | os.PathLike[str] | None = None,
        list_file: bool = True,
        list_dir: bool = True,
        recursive: bool = False,
    ) -> list[str | Path]:
        """List the entries of a folder: direct entries as names, entries in subfolders as Paths.

        raises  MissingError if the folder does not exist
        """
        path = "" if path is None else path
        tree = self._find(path)
        if not isinstance(tree, dict):
            raise MissingError(f"no folder {os.fspath(path)!r:.80}", where=self.fname)
        out: list[str | Path] = []
        for name, entry in tree.items():
            if list_dir if isinstance(entry, dict) else list_file:
                out.append(name)
            if recursive and isinstance(entry, dict):
                below = self.list(PurePosixPath(path) / name, list_file, list_dir, True)
                out += [Path(name) / inner for inner in below]
        return out

    def close(self) -> None:
        """Close the reader."""
        self.reader.close()
