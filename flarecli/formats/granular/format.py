"""Granular: one bag of records per column and a spec.json. Reads every generation, writes the
newest.

    spec.json          names and types of the columns (`spec.py`)
    KEY.bag, KEY.idx   the records of a column; row i is record i of each bag (`bags.py`)
    refs.bag, KEY.bag  0.21 and older: record numbers of each row, and lists (`refs.py`)

A single bag, `x.bag`, is a dataset with one column, `record`. The format has no checksums of its
own: a playlist has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from flarecli.bisect import findings_of
from flarecli.encodings import column
from flarecli.errors import FlareError, FormatError, IntegrityError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import (
    FLOATS,
    LISTED_PICTURES,
    SMALL_INTEGERS,
    Format,
    Ranges,
    Span,
    Substitutes,
)
from flarecli.formats.granular import bags
from flarecli.formats.granular import read as granular_columns
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular import write as granular_write
from flarecli.formats.granular.read import REFS_TABLE
from flarecli.formats.granular.spec import (
    REFS,
    columns_of,
    companion_files,
    companions,
    has_refs,
    index_of,
)
from flarecli.formats.granular.spec import (
    open_dataset as _open_dataset,
)
from flarecli.lazy import pa
from flarecli.model import (
    Chunk,
    Column,
    Columns,
    File,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
    finding_of,
)
from flarecli.storage import Location

__all__ = ["Granular"]

RECORD: Columns = (column("record", "bytes"),)
MAX_STEP_ROWS, MAX_STEP_BYTES = 8192, 64 << 20  # per step of verify; a larger row is one step


class Granular(Format):
    """A folder with one bag per column, read in every generation and written in the newest."""

    name = "granular"
    suffixes: ClassVar[tuple[str, ...]] = (".bag",)
    index_files = ("spec.json", "000000/spec.json")
    is_multi_file = True
    shards_in = "shards"  # the original reads every sibling folder as a shard
    sizes_are_exact = False  # row sizes include all files of a shard
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys(SMALL_INTEGERS, "int"),
        **dict.fromkeys(FLOATS, "msgpack_float"),
        "ndarray": "array",
        "json_str": "str",
        "json_json": "json",
        "json_int": "int",
        "json_float": "msgpack_float",
        **LISTED_PICTURES,
        "bytes[]": "msgpack",
        "ndarray[]": "tree",
        "*[]": "msgpack",
    }
    layout = "granular 0.22 or later, by its layout"

    open_dataset = staticmethod(_open_dataset)

    def written_by(self, listed_by: str) -> str | None:
        """Return the generation of the library that has this layout."""
        return self.layout

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the bag of a column and the bytes of a row in it."""
        names = [one.name for one in shard.columns]
        bag = next(
            (at for at in (shard.chunk.at, *shard.chunk.beside) if at.name == f"{column}.bag"), None
        )
        if bag is None or column not in names:
            return None
        starts = shard.layout[column]
        try:
            first, count = granular_columns.taken(shard, row, row + 1)[names.index(column)]
        except FlareError:  # the record numbers of the row are damaged
            return bag, None, None
        return bag, int(starts[first[0]]), int(starts[first[0] + count[0]])

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the spec and the tables, but no records.

        chunk    a spec.json or a single bag; unlisted companions are searched in its folder
        columns  the listed columns: used if they fit the spec
        raises   FormatError if a table does not fit its bag, or columns differ in length;
                 UnsafeError for a column that is not a valid file name
        """
        chunk = chunk if chunk.files else replace(chunk, files=(File(chunk.at.name),))
        shard = (
            _open_bag(chunk, columns)
            if chunk.files[0].name.endswith(".bag")
            else _open_folder(chunk, columns)
        )
        if chunk.rows is not None and shard.rows != chunk.rows:
            raise FormatError(
                f"contains {shard.rows} rows; {chunk.rows} are listed", where=chunk.at
            )
        return shard

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Read the stored records of rows; the records of a list are read together.

        ranges  list column -> (start, stop) within each list: only those records are read
        raises  FormatError with the row whose records are missing; UsageError for a range of a
                column that is not a list
        """
        return granular_columns.rows(shard, rows, columns, ranges)

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads one record of each column."""
        plan = granular_columns.mapped_records(shard, columns)
        if plan is None:
            return super().row_reader(shard, columns)
        return lambda row: {name: held[table[row] : table[row + 1]] for name, held, table in plan}

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop as typed columns, in the order of `columns`; mapped bags are not
        copied.

        raises  FormatError with the row whose records are missing; ValueFitError for an invalid
                record
        """
        names = [one.name for one in shard.columns] if columns is None else columns
        return granular_columns.batch(shard, start, stop, names)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns as `spec.arranged` does."""
        return granular_spec.arranged(columns, self)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the bytes of an empty shard and of each row: records and index, int64 [rows]."""
        return len(granular_spec.text(columns)), granular_write.weights(columns, batch, self.name)

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as one dataset, in `000000/` and so on, or in the folder if there is one
        shard.

        The spec.json is written last.

        raises  ValueFitError for a null
        """
        files: dict[str, granular_write.Parts] = {}
        for one in columns:
            parts, ends = bags.body(granular_write.records(one, batches)[0])
            files[f"{one.name}.bag"], files[f"{one.name}.idx"] = (
                parts,
                [ends.astype("<u8").tobytes()],
            )
        return granular_write.put(
            at,
            number,
            self.name,
            columns,
            files,
            sum(batch.num_rows for batch in batches),
            settings,
        )

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check sizes of numbers and record numbers of rows and, with `values`, every record."""
        if not values:
            yield from (
                Finding(str(at), "format", message, bags.DAMAGED)
                for at, message in granular_columns.unfit(shard)
            )
        names, stop = [one.name for one in shard.columns], 0
        next_records: dict[str, int] = {}
        while (start := stop) < shard.rows:
            stop = min(shard.rows, start + MAX_STEP_ROWS)
            try:
                while (
                    granular_columns.weight(
                        shard, places := granular_columns.taken(shard, start, stop, next_records)
                    )
                    > MAX_STEP_BYTES
                    and stop > start + 1
                ):
                    stop = (start + stop) // 2
                next_records |= {
                    name: int((first + count).max())
                    for name, (first, count) in zip(names, places, strict=True)
                    if count.any()
                }
            except FlareError as error:
                yield finding_of(error)
                continue
            if values:
                yield from findings_of(
                    [(start, stop)],
                    lambda first, last: granular_columns.batch(shard, first, last, names),
                )


def _open_bag(chunk: Chunk, columns: Columns | None) -> Shard:
    if columns is not None and len(columns) != 1:
        raise IntegrityError(f"a bag has one column, {len(columns)} are listed", where=chunk.at)
    if not chunk.beside and (chunk.at.folder / index_of(chunk.at.name)).exists():
        files, locations = companion_files(chunk, [index_of(chunk.at.name)])
        chunk = replace(chunk, files=(chunk.files[0], *files), beside=locations)
    bag = spans.of(chunk.at, chunk.files[0])
    starts = (
        bags.pair(bag, spans.of(chunk.beside[0], chunk.files[1]))
        if chunk.beside
        else bags.single(bag)
    )
    columns = columns or RECORD
    return Shard(chunk, columns, len(starts) - 1, {columns[0].name: starts})


def _open_folder(chunk: Chunk, columns: Columns | None) -> Shard:
    spec = columns_of(chunk.at, spans.stored_size(chunk))
    if not chunk.beside:
        refs = "refs" not in spec and (chunk.at.folder / REFS).exists()
        files, locations = companion_files(chunk, companions(spec, refs))
        chunk = replace(chunk, files=(chunk.files[0], *files), beside=locations)
    found = {
        at.name: spans.of(at, file) for at, file in zip(chunk.beside, chunk.files[1:], strict=True)
    }
    refs = has_refs(spec, found)
    for name in companions(spec, refs):
        if name not in found:
            raise FormatError(
                f"{name!r} is not listed",
                where=chunk.at,
                hint="Add it to the list, or create the list again.",
            )
    own = granular_spec.spec_of(spec, refs)
    columns = own if columns is None else granular_spec.agreed(own, columns, chunk.at)
    if refs:
        layout = {name: bags.single(found[f"{name}.bag"]) for name in (*spec, REFS_TABLE)}
        full = next((name for name, starts in layout.items() if len(starts) > 1), None)
        if (
            full is not None and len(layout[REFS_TABLE]) == 1
        ):  # an empty refs.bag is valid in itself
            raise FormatError(
                f"contains no rows, but column {full!r} has {len(layout[full]) - 1} records",
                where=found[REFS].at,
                hint=bags.DAMAGED,
                column=full,
            )
        return Shard(chunk, columns, len(layout[REFS_TABLE]) - 1, layout)
    layout = {name: bags.pair(found[f"{name}.bag"], found[f"{name}.idx"]) for name in spec}
    rows = {name: len(starts) - 1 for name, starts in layout.items()}
    least, most = min(rows, key=rows.__getitem__), max(rows, key=rows.__getitem__)
    if rows[least] != rows[most]:
        raise FormatError(
            f"column {least!r} has {rows[least]} records, column {most!r} has {rows[most]}",
            where=chunk.at,
            hint=bags.TORN,
        )
    return Shard(chunk, columns, rows[least], layout)
