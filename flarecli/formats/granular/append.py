"""Rows added to a Granular dataset where it lies, in its newest form; whenever that is stopped, it can be gone on with.

Records reach the disk before the entries of the index that say where they end, a column at a time. So whatever an index
does not name was never added, and is cut off; an entry that is not whole, or that names bytes that are not there, too. A
column may then be ahead of the others: the next rows must be those that are there already, and are not written twice.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

import numpy as np

from flarecli.errors import IntegrityError, UsageError
from flarecli.formats.granular import bags
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular import write as granular_write
from flarecli.formats.granular.spec import REFS, SPEC, columns_of, companions, shard_folder
from flarecli.formats.registry import find
from flarecli.lazy import pa
from flarecli.model import Column, Columns, IntArray
from flarecli.storage import Location

__all__ = ["Appender", "mend_table"]

_PLAYLIST = "playlist.yaml"  # its sums would be those of the dataset as it was


class Appender:
    """Add rows to a dataset, or begin one.

        writer = Appender(at, columns, shard_rows=1000)
        writer.append(batch)  # of the rows from writer.rows on; it is on disk when this returns

    at          the dataset's folder, a local one
    columns     must be what its spec.json says; sorted by name they are `writer.columns`
    shard_rows  rows of a shard: shards are filled in order, the first that has room first; None: the folder is one dataset
    start, step of the shards' numbers, when several writers share a folder
    words       what spec.json calls the types, where that is more than the encodings say: column -> type
    replay      False: what a column has ahead of the others is cut off, instead of held against the next rows
    rows        whole rows in the shards of this writer
    raises      UsageError for a folder of another kind, or one with a playlist; IntegrityError if its columns are others
    """

    def __init__(
        self,
        at: Location,
        columns: Columns,
        *,
        shard_rows: int | None = None,
        start: int = 0,
        step: int = 1,
        replay: bool = True,
        words: Mapping[str, str] | None = None,
    ) -> None:
        self.columns = granular_spec.arranged(columns, find("granular"))
        self._at, self._shard_rows, self._replay = at.unmapped(), shard_rows, replay
        self._spec = (
            granular_spec.text(self.columns)
            if words is None
            else json.dumps(dict(sorted(words.items()))).encode()
        )
        if self.columns != tuple(sorted(columns, key=lambda one: one.name)):
            changed = next(one.name for one in columns if one not in self.columns)
            raise UsageError(
                f"column {changed!r} is of an encoding that granular does not hold", column=changed
            )
        if (self._at / _PLAYLIST).exists():
            raise UsageError(
                f"{_PLAYLIST} has the sums of what is there now",
                where=at,
                hint="Move it away, and make a new one in the end.",
            )
        if (self._at / (SPEC if shard_rows is not None else f"{shard_folder(0)}/{SPEC}")).exists():
            raise UsageError(
                "shards are wanted, one dataset is there"
                if shard_rows
                else "one dataset is wanted, shards are there",
                where=at,
            )
        self._folders = (
            [""] if shard_rows is None else map(shard_folder, itertools.count(start, step))
        )
        self.rows, self._failed = 0, False
        self._shards = self._with_room()
        self._shard = next(self._shards)

    def _with_room(self) -> Iterator[_Shard]:
        """Open one shard after the other, and give those that are not full."""
        for folder in self._folders:
            at = self._at / folder if folder else self._at
            if (
                self._shard_rows is not None
                and (rows := _whole(at, self.columns)) >= self._shard_rows
            ):
                self.rows += rows
                continue
            shard = _Shard(at, self.columns, self._spec, self._replay)
            self.rows += shard.rows
            if self._shard_rows is None or shard.rows < self._shard_rows:
                yield shard

    def begin(self) -> None:
        """Make the files of the first shard that has room, where they are not there yet."""
        self._shard.begin()

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows: typed columns, without nulls; all of them are on disk when this returns, or some if it fails.

        raises  IntegrityError naming a record that is there already and is another one; ValueFitError for a null
        """
        if self._failed:
            raise UsageError(
                "an append failed", where=self._at, hint="Open the dataset again: that mends it."
            )
        self._failed, done = True, 0
        while done < batch.num_rows:
            if self._shard_rows is not None and self._shard.rows >= self._shard_rows:
                self._shard = next(self._shards)
            room = (
                batch.num_rows if self._shard_rows is None else self._shard_rows - self._shard.rows
            )
            piece = batch.slice(done, room)
            self._shard.append(piece)
            done += piece.num_rows
            self.rows += piece.num_rows
        self._failed = False


def _whole(at: Location, columns: Columns) -> int:
    """Count the rows of a shard by the sizes of its files, without reading its tables; 0 if it is not whole."""
    if not (at / SPEC).exists():
        return 0
    rows = set()
    for one in columns:
        idx, bag = at / f"{one.name}.idx", at / f"{one.name}.bag"
        size = idx.size() if idx.exists() and bag.exists() else 0
        if (
            size == 0
            or size % 8
            or int.from_bytes(idx.read(size - 8, size), "little") != bag.size()
        ):
            return 0
        rows.add(size // 8)
    return min(rows) if len(rows) == 1 else 0


class _Shard:
    """One dataset, mended. `rows` are the whole ones."""

    def __init__(self, at: Location, columns: Columns, spec: bytes, replay: bool) -> None:
        self._at, self._columns, self._spec = at, columns, spec
        self._begun = any(
            (at / name).exists()
            for name in (SPEC, REFS, *companions([one.name for one in columns], refs=False))
        )
        if not self._begun:  # its files are made with its first rows
            self.rows, self._ends = 0, {one.name: np.zeros(1, np.int64) for one in columns}
            return
        _begin(at, columns, spec)
        tables = {
            one.name: _mended(at / f"{one.name}.bag", at / f"{one.name}.idx") for one in columns
        }
        self.rows = min(len(starts) for starts in tables.values()) - 1
        if not replay:
            tables = {
                name: _cut(at / f"{name}.bag", at / f"{name}.idx", starts, self.rows)
                for name, starts in tables.items()
            }
        self._ends = {
            name: starts[self.rows :] for name, starts in tables.items()
        }  # from the last whole row on: what is ahead

    def begin(self) -> None:
        """Make its files, where they are not there yet."""
        if not self._begun:
            _begin(self._at, self._columns, self._spec)
            self._begun = True

    def append(self, batch: pa.RecordBatch) -> None:
        """Add rows, column after column; nothing is written before all that is ahead was found to be the same."""
        new = {one.name: self._new(one, batch) for one in self._columns}
        self.begin()
        for name, (parts, ends) in new.items():
            bag, idx = self._at / f"{name}.bag", self._at / f"{name}.idx"
            known = self._ends[name]
            if len(ends):
                bag.extend(int(known[-1]), parts)
                idx.extend(8 * (self.rows + len(known) - 1), [ends.astype("<u8").tobytes()])
            self._ends[name] = np.concatenate((known, ends))[batch.num_rows :]
        self.rows += batch.num_rows

    def _new(self, one: Column, batch: pa.RecordBatch) -> tuple[list[memoryview], IntArray]:
        """Give what a column has to add: bytes, and where each record ends; what is there already is compared and left out."""
        known = self._ends[one.name]
        same = min(len(known) - 1, batch.num_rows)
        (array,), _ = granular_write.records(one, [batch])
        if same:
            there = (self._at / f"{one.name}.bag").read(int(known[0]), int(known[same]))
            for i in range(same):
                if array[i].as_buffer() != pa.py_buffer(
                    there[int(known[i] - known[0]) : int(known[i + 1] - known[0])]
                ):
                    where, hint = (
                        f"{self._at / one.name}.bag[{self.rows + i}]",
                        "Append the rows that were begun then, or give replay=False.",
                    )
                    raise IntegrityError(
                        "another record is there, of a row that was not written whole",
                        where=where,
                        hint=hint,
                    )
        parts, ends = bags.body([array.slice(same)])
        return parts, ends + int(known[-1])


def _begin(at: Location, columns: Columns, wanted: bytes) -> None:
    """Make the files of a dataset that is not there yet, its spec.json last; or hold that against the columns."""
    if (at / REFS).exists() and all(one.name != "refs" for one in columns):
        raise UsageError(
            "a dataset by granular 0.21 or before, whose files are not added to",
            where=at,
            hint="Pack it with -f granular first.",
        )
    spec = at / SPEC
    if spec.exists():
        if columns_of(spec) != granular_spec.parse(wanted, spec):
            raise IntegrityError("its columns are others than those to be appended", where=spec)
        return
    for file in (at / name for name in companions([one.name for one in columns], refs=False)):
        if not file.exists():
            file.write([])
        elif file.size():
            raise IntegrityError(
                f"holds bytes, and no {SPEC} is beside it",
                where=file,
                hint="Fetch it again, or remove what is there.",
            )
    spec.write([wanted])


def _mended(bag: Location, idx: Location) -> IntArray:
    """Cut off what was not added whole: int64 [records + 1], where each record starts, and the end of the last."""
    starts = mend_table(bag, idx)
    if bag.size() != int(starts[-1]):
        bag.cut(int(starts[-1]))
    return starts


def mend_table(bag: Location, idx: Location) -> IntArray:
    """Cut off entries of a table that are incomplete, or that name bytes that the bag does not have.

    return  int64 [records + 1], where each record starts, and the end of the last
    raises  FormatError if the ends decrease
    """
    size = idx.size()
    starts = bags.table(idx, 0, size - size % 8)
    whole = int(np.searchsorted(starts, bag.size(), "right")) - 1
    if size != 8 * whole:
        idx.cut(8 * whole)
    return starts[: whole + 1]


def _cut(bag: Location, idx: Location, starts: IntArray, rows: int) -> IntArray:
    """Cut off records behind the last whole row."""
    if len(starts) > rows + 1:
        idx.cut(8 * rows)
        bag.cut(int(starts[rows]))
    return starts[: rows + 1]
