"""Append rows to a local Granular dataset, in the layout of granular 0.22 and later.

An interrupted append loses no complete rows. In each column, the records are written to disk first,
and then the index entries, which store the ends of the records.

The next append repairs the columns. It removes bytes without an index entry, incomplete index
entries, and index entries past the end of the bag. Some columns may then have extra records, which
belong to incomplete rows. The next appended rows must match the extra records, and the extra
records are not written again.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping

import numpy as np

from flarecli.errors import IntegrityError, UsageError
from flarecli.formats import byte_ranges
from flarecli.formats.granular import bags
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular.spec import REFS, SPEC, columns_of, companions, shard_folder
from flarecli.formats.registry import find
from flarecli.lazy import pa, pc
from flarecli.model import Column, Columns, IntArray
from flarecli.storage import Location

__all__ = ["Appender", "repair_table"]

_PLAYLIST = "playlist.yaml"  # appending invalidates the checksums in a playlist


class Appender:
    """Append rows to a dataset; create the dataset if it does not exist.

        writer = Appender(at, columns, shard_rows=1000)
        writer.append(batch)  # the rows are on disk when `append` returns

    at          the local folder of the dataset
    columns     columns of the dataset; they must match an existing spec.json
    shard_rows  rows per shard; shards are filled in order. None if the folder is a single dataset
    start, step  number of the first shard, and the difference to the next shard number. Writers
                that share a folder use the same step and different starts
    words       column -> type in spec.json; None to derive the types from the encodings
    replay      True: compare the records of incomplete rows with the next rows. False: remove the
                records of incomplete rows
    raises      UsageError if `shard_rows` does not match the structure of the folder, or if the
                folder has a playlist; IntegrityError if the columns differ from the columns of the
                dataset

    Attributes: `columns`, sorted by name, and `rows`, the number of complete rows in the shards.
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
                f"granular cannot store the encoding of column {changed!r}", column=changed
            )
        if (self._at / _PLAYLIST).exists():
            raise UsageError(
                f"appending would invalidate the checksums in {_PLAYLIST}",
                where=at,
                hint="Delete the playlist, and create a new playlist after appending.",
            )
        if (self._at / (SPEC if shard_rows is not None else f"{shard_folder(0)}/{SPEC}")).exists():
            raise UsageError(
                "expected a folder of shards, found a single dataset"
                if shard_rows
                else "expected a single dataset, found a folder of shards",
                where=at,
            )
        self._folders = (
            [""] if shard_rows is None else map(shard_folder, itertools.count(start, step))
        )
        self.rows, self._failed = 0, False
        self._shards = self._shards_to_fill()
        self._shard = next(self._shards)

    def _shards_to_fill(self) -> Iterator[_Shard]:
        """Open the shards in order, and yield each shard that is not full."""
        for folder in self._folders:
            at = self._at / folder if folder else self._at
            if (
                self._shard_rows is not None
                and (rows := _row_count(at, self.columns)) >= self._shard_rows
            ):
                self.rows += rows
                continue
            shard = _Shard(at, self.columns, self._spec, self._replay)
            self.rows += shard.rows
            if self._shard_rows is None or shard.rows < self._shard_rows:
                yield shard

    def begin(self) -> None:
        """Create the missing files of the first shard that is not full."""
        self._shard.begin()

    def append(self, batch: pa.RecordBatch) -> None:
        """Append rows of typed columns. After an error, some rows may already be on disk.

        raises  IntegrityError for a row that differs from a stored record; ValueFitError for a
                null; UsageError after an earlier append has failed
        """
        if self._failed:
            raise UsageError(
                "a previous append failed",
                where=self._at,
                hint="Open the dataset again to repair it.",
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


def _row_count(at: Location, columns: Columns) -> int:
    """Return the row count of a shard from its index files; 0 if the shard is incomplete."""
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
    """One shard, repaired when it is opened. `rows` is the number of complete rows."""

    def __init__(self, at: Location, columns: Columns, spec: bytes, replay: bool) -> None:
        self._at, self._columns, self._spec = at, columns, spec
        self._begun = any(
            (at / name).exists()
            for name in (SPEC, REFS, *companions([one.name for one in columns], refs=False))
        )
        if not self._begun:  # the files of a new shard are created with its first rows
            self.rows, self._ends = 0, {one.name: np.zeros(1, np.int64) for one in columns}
            return
        _begin(at, columns, spec)
        tables = {
            one.name: _repaired(at / f"{one.name}.bag", at / f"{one.name}.idx") for one in columns
        }
        self.rows = min(len(starts) for starts in tables.values()) - 1
        if not replay:
            tables = {
                name: _cut(at / f"{name}.bag", at / f"{name}.idx", starts, self.rows)
                for name, starts in tables.items()
            }
        self._ends = {
            name: starts[self.rows :] for name, starts in tables.items()
        }  # per column: the end of the last complete row, and the ends of later records

    def begin(self) -> None:
        """Create the missing files of the shard."""
        if not self._begun:
            _begin(self._at, self._columns, self._spec)
            self._begun = True

    def append(self, batch: pa.RecordBatch) -> None:
        """Append rows, column by column.

        If an earlier append was interrupted, some records of the first rows are already stored.
        Such a record must equal the new record, and is not written again.
        """
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
        """Return the records of a column that are not stored yet: their bytes and end offsets.

        raises  IntegrityError if a stored record differs from the new record
        """
        known = self._ends[one.name]
        same = min(len(known) - 1, batch.num_rows)
        (array,), _ = bags.records(one, [batch])
        if same:
            data = (self._at / f"{one.name}.bag").read(int(known[0]), int(known[same]))
            stored = byte_ranges.rows_by_offsets(data, known[: same + 1] - known[0])
            differing = pc.index(pc.equal(array.slice(0, same), stored), False).as_py()
            if differing >= 0:
                raise IntegrityError(
                    "the stored record of an incomplete row differs from the new record",
                    where=f"{self._at / one.name}.bag[{self.rows + differing}]",
                    hint="Append the same rows again, or pass replay=False to remove the incomplete rows.",
                )
        parts, ends = bags.body([array.slice(same)])
        return parts, ends + int(known[-1])


def _begin(at: Location, columns: Columns, expected: bytes) -> None:
    """Create the files of a new shard. If `spec.json` exists, only check its columns.

    `spec.json` is written last.

    raises  IntegrityError if spec.json has different columns; UsageError for a dataset of granular
            0.21 or older
    """
    if (at / REFS).exists() and all(one.name != "refs" for one in columns):
        raise UsageError(
            "cannot append to a dataset of granular 0.21 or older",
            where=at,
            hint="Convert the dataset with -f granular first.",
        )
    spec = at / SPEC
    if spec.exists():
        if columns_of(spec) != granular_spec.parse(expected, spec):
            raise IntegrityError("the columns differ from the columns of the new rows", where=spec)
        return
    for file in (at / name for name in companions([one.name for one in columns], refs=False)):
        if not file.exists():
            file.write([])
        elif file.size():
            raise IntegrityError(
                f"contains data, but {SPEC} is missing",
                where=file,
                hint="Fetch the dataset again, or delete its files.",
            )
    spec.write([expected])


def _repaired(bag: Location, idx: Location) -> IntArray:
    """Remove incomplete data from a bag and its index.

    return  int64 [records + 1]: the start of each record, and the end of the last record
    """
    starts = repair_table(bag, idx)
    if bag.size() != int(starts[-1]):
        bag.cut(int(starts[-1]))
    return starts


def repair_table(bag: Location, idx: Location) -> IntArray:
    """Remove incomplete index entries, and index entries past the end of the bag.

    return  int64 [records + 1]: the start of each record, and the end of the last record
    raises  FormatError if the ends decrease
    """
    size = idx.size()
    starts = bags.table(idx, 0, size - size % 8)
    whole = int(np.searchsorted(starts, bag.size(), "right")) - 1
    if size != 8 * whole:
        idx.cut(8 * whole)
    return starts[: whole + 1]


def _cut(bag: Location, idx: Location, starts: IntArray, rows: int) -> IntArray:
    """Remove the records after the last complete row from a bag and its index.

    return  the start of each remaining record, and the end of the last record: int64 [rows + 1]
    """
    if len(starts) > rows + 1:
        idx.cut(8 * rows)
        bag.cut(int(starts[rows]))
    return starts[: rows + 1]
