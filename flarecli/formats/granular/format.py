"""Granular: a bag of records for each column, beside a spec.json; every generation is read, the newest is written.

    spec.json          which columns there are, and of which types: granular_spec.py
    KEY.bag, KEY.idx   the records of a column: bags.py; row i is record i of each
    refs.bag, KEY.bag  0.21 and before: which records a row takes, and lists of them: bag_refs.py

A bag alone, `x.bag`, is a dataset of one column, `record`. The format has no sums of its own: a playlist has them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

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
from flarecli.formats.bisect import wrong_rows
from flarecli.formats.granular import bags
from flarecli.formats.granular import read as granular_columns
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular import write as granular_write
from flarecli.formats.granular.read import REFS_TABLE
from flarecli.formats.granular.spec import (
    REFS,
    beside,
    columns_of,
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
_STEP, _STEP_BYTES = (
    8192,
    64 << 20,
)  # rows checked at once, and no more bytes than that, or a single row


class Granular(Format):
    """A folder with one bag per column, read in every generation and written in the newest."""

    name = "granular"
    suffixes: ClassVar[tuple[str, ...]] = (".bag",)
    index_files = ("spec.json", "000000/spec.json")
    is_multi_file = True
    shards_in = "shards"  # the original takes every folder beside a shard for another one
    sizes_are_exact = False  # rows are weighed over all files of a shard
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
        """Return the bag of a column and the bytes that a row takes of it."""
        names = [one.name for one in shard.columns]
        bag = next(
            (at for at in (shard.chunk.at, *shard.chunk.beside) if at.name == f"{column}.bag"), None
        )
        if bag is None or column not in names:
            return None
        starts = shard.layout[column]
        try:
            first, count = granular_columns.taken(shard, row, row + 1)[names.index(column)]
        except FlareError:  # which records the row takes is what is damaged
            return bag, None, None
        return bag, int(starts[first[0]]), int(starts[first[0] + count[0]])

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the spec and the tables, and touch none of the records.

        chunk    a spec.json, or a bag alone; companions that are not listed are looked for beside it
        columns  what a listing says they are: it counts where the stored bytes can be that
        raises   FormatError if a table does not fit its bag, or columns are of different lengths; UnsafeError for a column
                 that cannot name a file
        """
        chunk = chunk if chunk.files else replace(chunk, files=(File(chunk.at.name),))
        shard = (
            _of_bag(chunk, columns)
            if chunk.files[0].name.endswith(".bag")
            else _of_folder(chunk, columns)
        )
        if chunk.rows is not None and shard.rows != chunk.rows:
            raise FormatError(f"holds {shard.rows} rows, {chunk.rows} are listed", where=chunk.at)
        return shard

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Return the records of rows as they are stored; a list is a list of records, read together.

        ranges  list column -> (start, stop) within each list, cut where it ends: only those records are read
        raises  FormatError naming the row whose records are not there; UsageError for a range of what is no list
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
        """Give rows start..stop as typed columns, in the order of `columns`, over the mapped bags: nothing is copied, with `views` or without.

        raises  FormatError naming the row whose records are not there; ValueFitError for a record that its encoding cannot be
        """
        names = [one.name for one in shard.columns] if columns is None else columns
        return granular_columns.batch(shard, start, stop, names)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Sort columns by name, by code point; lists become MessagePack, numbers the types there are. See `granular_spec.arranged`."""
        return granular_spec.arranged(columns, self)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Weigh an empty shard and each row of a batch: its records, and 8 bytes of index for each; int64 [rows]."""
        return len(granular_spec.text(columns)), granular_write.weights(columns, batch, self.name)

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write all rows as one dataset: `000000/` and so on where settings cut, else the folder itself; its spec.json comes last.

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
        """Check the sizes of numbers and which records each row takes, and, if asked, that every record is what its encoding says."""
        if not values:
            yield from (
                Finding(str(at), "format", message, bags.DAMAGED)
                for at, message in granular_columns.unfit(shard)
            )
        names, stop = [one.name for one in shard.columns], 0
        behind: dict[str, int] = {}
        while (start := stop) < shard.rows:
            stop = min(shard.rows, start + _STEP)
            try:
                while (
                    granular_columns.weight(
                        shard, places := granular_columns.taken(shard, start, stop, behind)
                    )
                    > _STEP_BYTES
                    and stop > start + 1
                ):
                    stop = (start + stop) // 2
                behind |= {
                    name: int((first + count).max())
                    for name, (first, count) in zip(names, places, strict=True)
                    if count.any()
                }
            except FlareError as error:
                yield finding_of(error)
                continue
            if values:
                yield from wrong_rows(
                    [(start, stop)],
                    lambda first, last: granular_columns.batch(shard, first, last, names),
                )


def _of_bag(chunk: Chunk, columns: Columns | None) -> Shard:
    if columns is not None and len(columns) != 1:
        raise IntegrityError(f"a bag is one column, {len(columns)} are listed", where=chunk.at)
    if not chunk.beside and (chunk.at.folder / index_of(chunk.at.name)).exists():
        files, locations = beside(chunk, [index_of(chunk.at.name)])
        chunk = replace(chunk, files=(chunk.files[0], *files), beside=locations)
    bag = spans.of(chunk.at, chunk.files[0])
    starts = (
        bags.pair(bag, spans.of(chunk.beside[0], chunk.files[1]))
        if chunk.beside
        else bags.single(bag)
    )
    columns = columns or RECORD
    return Shard(chunk, columns, len(starts) - 1, {columns[0].name: starts})


def _of_folder(chunk: Chunk, columns: Columns | None) -> Shard:
    spec = columns_of(chunk.at, spans.stored_size(chunk))
    if not chunk.beside:
        refs = "refs" not in spec and (chunk.at.folder / REFS).exists()
        files, locations = beside(chunk, companions(spec, refs))
        chunk = replace(chunk, files=(chunk.files[0], *files), beside=locations)
    found = {
        at.name: spans.of(at, file) for at, file in zip(chunk.beside, chunk.files[1:], strict=True)
    }
    refs = has_refs(spec, found)
    for name in companions(spec, refs):
        if name not in found:
            raise FormatError(
                f"{name!r} is not listed beside it",
                where=chunk.at,
                hint="Find out what was lost from the listing.",
            )
    own = granular_spec.spec_of(spec, refs)
    columns = own if columns is None else granular_spec.agreed(own, columns, chunk.at)
    if refs:
        layout = {name: bags.single(found[f"{name}.bag"]) for name in (*spec, REFS_TABLE)}
        full = next((name for name, starts in layout.items() if len(starts) > 1), None)
        if (
            full is not None and len(layout[REFS_TABLE]) == 1
        ):  # an empty file is an empty bag: nothing else would tell
            raise FormatError(
                f"holds no rows, column {full!r} has {len(layout[full]) - 1} records",
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
