"""Parts of a pack: datasets in the folders `00000/`, `00001/`, …, and their join into one dataset.

Parts are packed independently and in any order. The joined dataset has one index and one playlist
that list the shards of all parts. No shard is read to join the parts.
"""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from flarecli import playlists
from flarecli.errors import FormatError, NoRowsError
from flarecli.formats import find
from flarecli.hashes import DEFAULT, digest
from flarecli.model import File, Playlist, Stream
from flarecli.storage import Location
from flarecli.storage.append_log import first_entry, format_line
from flarecli.storage.local import SCRATCH
from flarecli.write.failures import FAILED, count_failed, read_failed
from flarecli.write.target import check_streams

__all__ = ["join", "part_name", "recorded_parts", "rows_of_first", "span"]

_HEX = 32  # number of hexadecimal digits of the default checksum
_COUNTS = ("rows", "sizes", "raw_sizes")


def part_name(number: int) -> str:
    """Return the folder name of a part: its number with at least five digits."""
    return f"{number:05d}"


def span(number: int, part_rows: int, rows: int) -> tuple[int, int]:
    """Return the range of rows in a part: the first row, and the row after the last row."""
    return number * part_rows, min((number + 1) * part_rows, rows)


class _Files(Mapping[str, File]):
    """The files of many parts, name -> file. A file takes about 60 bytes of memory."""

    def __init__(self) -> None:
        self._names: list[str] = []  # distinct file names in the folders of the parts; usually few
        self._folders: list[str] = []
        self._name_indexes, self._folder_indexes = array("H"), array("q")
        self._sizes, self._sums = array("q"), bytearray()
        self._others: dict[str, File] = {}  # files that the arrays cannot represent

    def add(self, folder: str, file: File) -> None:
        """Add a file of a part. `file.name` is relative to `folder`, the folder of the part."""
        checksum = file.hashes.get(DEFAULT, "")
        if (
            set(file.hashes) != {DEFAULT}
            or len(checksum) != _HEX
            or file.size is None
            or file.raw_size is not None
            or len(self._names) > 1000
        ):
            self.put(replace(file, name=f"{folder}/{file.name}"))
            return
        if file.name not in self._names:
            self._names.append(file.name)
        if not self._folders or self._folders[-1] != folder:
            self._folders.append(folder)
        self._name_indexes.append(self._names.index(file.name))
        self._folder_indexes.append(len(self._folders) - 1)
        self._sizes.append(file.size)
        self._sums += checksum.encode("ascii")

    def put(self, file: File) -> None:
        """Add a file whose name is relative to the folder of the joined dataset."""
        self._others[file.name] = file

    def _at(self, i: int) -> File:
        name = f"{self._folders[self._folder_indexes[i]]}/{self._names[self._name_indexes[i]]}"
        return File(
            name, self._sizes[i], {DEFAULT: self._sums[i * _HEX : (i + 1) * _HEX].decode("ascii")}
        )

    def __getitem__(self, name: str) -> File:
        if name in self._others:
            return self._others[name]
        for i in range(len(self._name_indexes)):
            if (file := self._at(i)).name == name:
                return file
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (file.name for file in self.values())

    def __len__(self) -> int:
        return len(self._name_indexes) + len(self._others)

    def values(self) -> Any:
        """Return an iterator over the files."""
        return itertools.chain(map(self._at, range(len(self._name_indexes))), self._others.values())


class _Shards:
    """The shards of many parts, which `stream` returns as one stream."""

    def __init__(self, at: Location) -> None:
        self._at = at
        self._first: Stream | None = None
        self._urls: list[str] = []
        self._counts: dict[str, array[int]] = {name: array("q") for name in _COUNTS}
        self._hashes: dict[str, list[str]] = {}
        self._companions: list[tuple[File, ...]] = []
        self._schema: Any = None  # playlist header `schema`; None if it differs between parts
        self.format = ""

    def add(self, name: str, part: Stream) -> None:
        """Append the shards of a part.

        raises  FormatError if earlier parts have other columns, another format or other hash types
        """
        if self._first is None or not self._urls:
            self._first, self._hashes = part, {key: [] for key in part.hashes}
            self._schema = part.headers.get(playlists.SCHEMA)
            self.format = part.format or ""
        elif len(part):
            self._check_matches(part, self._first, self._at / name)
        if len(part) and self._schema != part.headers.get(playlists.SCHEMA):
            self._schema = None
        self._urls += [f"{name}/{url}" for url in part.urls]
        for key, counts in self._counts.items():
            counts.extend(
                (
                    np.full(len(part), -1) if getattr(part, key) is None else getattr(part, key)
                ).tolist()
            )
        for key, sums in self._hashes.items():
            sums += part.hashes[key]
        if self._companions or any(part.parts):
            self._companions += [()] * (len(self._urls) - len(part) - len(self._companions))
            self._companions += [
                tuple(replace(file, name=f"{name}/{file.name}") for file in one)
                for one in part.parts
            ]

    def _check_matches(self, part: Stream, first: Stream, where: Location) -> None:
        """Raise FormatError if two parts have different formats, columns or hash types."""
        if part.format != first.format:
            message = f"the format is {part.format}; earlier parts have the format {first.format}"
            hint = "Pack all parts with the same --format."
        elif part.columns != first.columns:
            message = "columns differ from the columns of earlier parts"
            hint = "Set the encodings of the differing columns with --encode."
        elif part.hashes.keys() != self._hashes.keys():
            names = ", ".join(part.hashes) or "none"
            message = (
                f"hash types differ: expected {', '.join(self._hashes) or 'none'}, got {names}"
            )
            hint = "Pack all parts with the same --hash."
        else:
            return
        raise FormatError(message, where=where, hint=hint)

    def stream(self, headers: Mapping[str, Any], files: Mapping[str, File]) -> Stream:
        """Return all shards as one stream."""
        first = self._first
        if first is None:
            raise NoRowsError("no part contains rows", where=self._at)
        rows, sizes, raw_sizes = (
            np.frombuffer(counts, np.int64) if len(counts) else np.zeros(0, np.int64)
            for counts in self._counts.values()
        )
        kept = {key: value for key, value in first.headers.items() if key not in headers}
        if self._schema is None:
            kept.pop(playlists.SCHEMA, None)
        zipped = raw_sizes if first.raw_sizes is not None else None
        return Stream(
            "data",
            self._at,
            first.format,
            self._urls,
            first.columns,
            rows,
            sizes,
            self._hashes,
            zipped,
            {},
            {**kept, **headers},
            files,
            self._companions,
        )


def join(at: Location, names: Iterable[str], headers: Mapping[str, Any]) -> Stream:
    """Join the parts in a folder: write an index, then a playlist; return the joined stream.

    names   folder names of the parts, in row order
    raises  FormatError for an invalid playlist, or if parts have different columns; NoRowsError if
            no part contains rows
    """
    shards, files, failures = _Shards(at), _Files(), _Failures(at)
    with_rows: list[str] = []
    for name in names:
        where = at / f"{name}/{playlists.PLAYLIST}"
        data = where.read(0, where.size())
        part = playlists.parse(data, where).streams[0]
        check_streams(
            at / name, [part], "Run the same command with --resume to pack the part again."
        )
        shards.add(name, part)
        for file in (
            *part.files.values(),
            File(playlists.PLAYLIST, len(data), {DEFAULT: digest(data)}),
        ):
            files.add(name, file)
        failures.add(name, part)
        if len(part):
            with_rows.append(name)
    if failures.parts:
        written = (at / FAILED).write(failures.lines(), {DEFAULT})
        files.put(File(FAILED, written.size, written.hashes))
    if with_rows:
        merged = find(shards.format).merge_indexes(at, [at / name for name in with_rows])
        for file in merged.values():
            files.put(file)
    stream = shards.stream(headers, files)
    playlists.write(at / playlists.PLAYLIST, Playlist((stream,)))
    return stream


def recorded_parts(at: Location) -> int | None:
    """Return N if a folder contains an unfinished pack with `--part K/N`; otherwise None."""
    count = first_entry(at / f"{SCRATCH}/journal").get("parts")
    return count if type(count) is int and count > 0 else None


def rows_of_first(at: Location, joined: Stream) -> int:
    """Return the number of source rows of the first part: packed rows and failed rows."""
    folder = f"{part_name(0)}/"
    rows = () if joined.rows is None else joined.rows.tolist()
    written: int = sum(
        count for url, count in zip(joined.urls, rows, strict=False) if url.startswith(folder)
    )
    failed = f"{folder}{FAILED}"
    return written + (count_failed(at / failed).total() if failed in joined.files else 0)


class _Failures:
    """The failed rows of all parts.

    A failed row without a source file is listed with its position: the `failed.jsonl` of a part
    contains the position in the part, and the `failed.jsonl` of the joined dataset contains the
    position in the whole selection.
    """

    def __init__(self, at: Location) -> None:
        self._at, self._before = at, 0
        # (folder name, number of source rows in earlier parts) of each part with failed rows
        self.parts: list[tuple[str, int]] = []

    def add(self, name: str, part: Stream) -> None:
        """Add a part. Its `failed.jsonl` lists its failed rows."""
        count = 0
        if FAILED in part.files:
            self.parts.append((name, self._before))
            count = count_failed(self._at / f"{name}/{FAILED}").total()
        self._before += count + (0 if part.rows is None else int(part.rows.sum()))

    def lines(self) -> Iterator[bytes]:
        """Yield the lines of `failed.jsonl` for the joined dataset."""
        for name, before in self.parts:
            for entry in read_failed(self._at / f"{name}/{FAILED}"):
                if entry["file"] is None:
                    entry["row"] += before
                yield format_line(entry)
