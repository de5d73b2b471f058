"""ffrecord's FileWriter and FileReader, which write and read numbered byte records.

A packed folder is an FFRecord file with one record for each file of a folder. The last record
contains the file names as a pickle. flare parses this pickle without running code.
"""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from flarecli.compat import Closeable
from flarecli.errors import MissingError, ReachError, RowsError, UsageError
from flarecli.formats import find
from flarecli.formats.ffrecord import packed_folder
from flarecli.formats.ffrecord import table as ffrecord_table
from flarecli.model import ByteArray, Chunk, IntArray, Shard, UInt32Array
from flarecli.storage import Location, descriptors, locate

__all__ = ["FileReader", "FileWriter", "PackedFolder", "by_part", "pack_folder"]


class FileWriter(Closeable):
    """Writer of `n` records in one file. The file has a temporary name until it is complete.

    raises  UsageError for a name that does not end in `.ffr`, or for a negative `n`; ReachError if
            the file cannot be created
    """

    def __init__(self, fname: str | os.PathLike[str], n: int) -> None:
        self.fname, self.n = os.fspath(fname), n
        if not self.fname.endswith(".ffr") or n < 0:
            raise UsageError(
                f"n: expected at least 0, got {n}"
                if n < 0
                else "expected a file name that ends in .ffr",
                where=self.fname,
            )
        folder, name = os.path.split(self.fname)
        self._part = os.path.join(folder, f".{name}.part")
        self._sums, self._sizes = np.zeros(n, np.uint32), np.zeros(n, np.int64)
        self._count = 0
        try:
            self._file: BinaryIO | None = open(self._part, "wb")  # noqa: SIM115
        except OSError as error:
            raise ReachError(os.strerror(error.errno or 0), where=self.fname) from None
        self._file.seek(12 + 12 * n)

    def write_one(self, data: Any) -> None:
        """Write all bytes of a buffer as one record.

        raises  UsageError after `n` records, or if `data` is not a buffer
        """
        if self._file is None or self._count == self.n:
            raise UsageError(
                f"all {self.n} records were already written"
                if self._file
                else "the file is closed",
                where=self.fname,
            )
        try:
            view = memoryview(data)
            view = view.cast("B") if view.contiguous else memoryview(view.tobytes())
        except TypeError:
            raise UsageError(
                f"expected bytes, got {type(data).__name__}", where=self.fname, row=self._count
            ) from None
        self._file.write(view)
        self._sums[self._count], self._sizes[self._count] = crc32(view), len(view)
        self._count += 1

    def close(self) -> None:
        """Write the table and rename the file.

        raises  UsageError if fewer than `n` records were written; the file is then removed
        """
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            if self._count == self.n:
                file.seek(0)
                file.write(ffrecord_table.packed_table(self._sums, self._sizes))
                if not self._sizes.any():
                    file.truncate(12 + 12 * self.n)
                file.flush()
                descriptors.sync(file.fileno())
        if self._count < self.n:
            os.unlink(self._part)
            raise UsageError(f"expected {self.n} records, got {self._count}", where=self.fname)
        os.replace(self._part, self.fname)

    def abort(self) -> None:
        """Remove the incomplete file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            os.unlink(self._part)


class FileReader(Closeable):
    """Reader of records in one file, in several files, or in a folder's files sorted by name.

    n           number of records
    fnames      names of the files
    check_data  check the CRC-32 of each table and record
    raises      MissingError for a missing file; FormatError or IntegrityError for a damaged file;
                UsageError for a name that does not end in `.ffr`
    """

    def __init__(
        self,
        fname: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        check_data: bool = True,
    ) -> None:
        files = [fname] if isinstance(fname, (str, os.PathLike)) else fname
        names = [os.fspath(file) for file in files]
        if len(names) == 1 and os.path.isdir(names[0]):
            stream = find("ffrecord").open_dataset(locate(f"{names[0].rstrip('/')}/"))
            names = [os.path.join(names[0], url) for url in stream.urls]
        if not names:
            raise UsageError("no files")
        for name in names:
            if not name.endswith(".ffr"):
                raise UsageError("expected a name that ends in .ffr", where=name)
        self.fnames, self.check_data = names, check_data
        self._shards: list[Shard] = [_open_shard(name, check_data) for name in names]
        self._starts = [0, *accumulate(len(shard) for shard in self._shards)]

    def __reduce__(self) -> tuple[Any, ...]:
        return FileReader, (self.fnames, self.check_data)

    @property
    def n(self) -> int:
        """Number of records in all files."""
        return self._starts[-1]

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Sequence[int] | IntArray) -> list[ByteArray]:
        """Return the records at `indices`, in this order, as writable arrays: uint8 [bytes] each.

        If an index is repeated, its record is repeated. All records of one call share one buffer,
        so a reference to one record keeps all of them in memory.

        raises  UsageError if `indices` is not a list of integers; RowsError (an IndexError) for an
                index that is negative or too large; IntegrityError for a damaged record
        """
        if not self._shards:
            raise UsageError("the reader is closed")
        try:
            rows = [operator.index(index) for index in indices]
        except TypeError:
            raise UsageError("expected a list of integers", where=self.fnames[0]) from None
        for row in rows:
            if not 0 <= row < self.n:
                raise RowsError(f"record {row} is out of range; there are {self.n} records")
        out: list[ByteArray] = [np.empty(0, np.uint8)] * len(rows)
        for i, places in by_part(self._starts, rows).items():
            records = ffrecord_table.read_copies(
                self._shards[i], [rows[k] - self._starts[i] for k in places], self.check_data
            )
            for k, record in zip(places, records, strict=True):
                out[k] = np.frombuffer(record, np.uint8)
        return out

    def read_one(self, index: int) -> ByteArray:
        """Return one record."""
        return self.read([index])[0]

    def validate(self) -> None:
        """Check the CRC-32 of every table. Raises IntegrityError for a damaged table."""
        for name in self.fnames:
            _open_shard(name, check_data=True)

    def get_offsets(self, file_index: int) -> IntArray:
        """Return the start of each record in a file, then the file size: int64 [records + 1]."""
        return np.array(self._layout(file_index, "offsets"), np.int64)

    def get_checksums(self, file_index: int) -> UInt32Array:
        """Return the CRC-32 of each record in a file: uint32 [records]."""
        return np.array(self._layout(file_index, "sums"), np.uint32)

    def _layout(self, file_index: int, what: str) -> Any:
        if not 0 <= file_index < len(self._shards):
            raise RowsError(
                f"file {file_index} is out of range; there are {len(self._shards)} files"
            )
        return self._shards[file_index].layout[what]

    def close(self) -> None:
        """Close the reader."""
        self._shards = []


def _open_shard(name: str, check_data: bool) -> Shard:
    return ffrecord_table.open_shard(Chunk(locate(name)), None, check_data)


def by_part(starts: Sequence[int], rows: Sequence[int]) -> dict[int, list[int]]:
    """Group rows by the file that contains them: file number -> positions in `rows`.

    starts  the first row of each file, then the total number of rows
    """
    places: dict[int, list[int]] = {}
    for place, row in enumerate(rows):
        places.setdefault(bisect_right(starts, row) - 1, []).append(place)
    return places


def pack_folder(
    folder: str | os.PathLike[str], out_file: str | os.PathLike[str], verbose: bool = False
) -> None:
    """Write the files of a folder and its subfolders as one FFRecord file; follow symbolic links.

    verbose  ignored; accepted for compatibility
    raises   UsageError for a name that does not end in `.ffr`, or for a link cycle; MissingError
             for a dangling link, or for a special file such as a FIFO
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
    """Reader that finds the files in a packed folder by name.

    ffr_file    path of the packed folder, which is an FFRecord file
    check_data  check the CRC-32 of each table and record
    raises      FormatError if the file is not a packed folder; UnsafeError if the pickle of the
                file names would run code, or if a name refers to a file outside the folder
    """

    def __init__(self, ffr_file: str | os.PathLike[str], check_data: bool = True) -> None:
        self.fname, self.check_data = os.fspath(ffr_file), check_data
        self.reader = FileReader(self.fname, check_data)
        self._tree = packed_folder.directory(_open_shard(self.fname, check_data))

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
