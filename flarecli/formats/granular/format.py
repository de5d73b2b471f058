"""Granular: one bag of records per column, and a spec.json.

    spec.json          names and types of the columns (`spec.py`)
    KEY.bag, KEY.idx   the records of a column; row i is record i of each bag (`bags.py`)
    refs.bag, KEY.bag  0.21 and older: refs.bag lists the record numbers of each row (`refs.py`)

flare reads the folders of all library versions and writes folders of the newest version. A single
bag, `x.bag`, is a dataset with one column, `record`. The format itself has no checksums, but a
playlist can list checksums of the files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar, TypeAlias

import numpy as np

from flarecli.bisect import findings_of
from flarecli.encodings import column, lookup
from flarecli.errors import FlareError, FormatError, IntegrityError, UsageError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.base import (
    EACH,
    FLOATS,
    LISTED_PICTURES,
    SMALL_INTEGERS,
    Format,
    LargeValue,
    OriginalValue,
    Ranges,
    Span,
    Substitutes,
)
from flarecli.formats.granular import bags
from flarecli.formats.granular import read as granular_read
from flarecli.formats.granular import refs as bag_refs
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular.read import REFS_TABLE
from flarecli.formats.granular.spec import (
    REFS,
    SPEC,
    columns_of,
    companion_files,
    companions,
    has_refs,
    index_of,
    shard_folder,
)
from flarecli.formats.granular.spec import (
    open_dataset as _open_dataset,
)
from flarecli.formats.shard_files import DAMAGED, check_row_count, count_parts
from flarecli.hashes import DEFAULT
from flarecli.lazy import pa, pc
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

__all__ = ["Granular", "GranularRefs"]

_NUMBER_BYTES = 5  # maximum size of a record number in a shard with fewer than 2^32 records
Parts: TypeAlias = Sequence["bytes | memoryview"]
RECORD: Columns = (column("record", "bytes"),)
MAX_STEP_ROWS, MAX_STEP_BYTES = 8192, 64 << 20  # limits for the rows of a verification step


class Granular(Format):
    """Granular datasets of all library versions; flare writes the layout of the newest version."""

    name = "granular"
    suffixes: ClassVar[tuple[str, ...]] = (".bag",)
    index_files = ("spec.json", "000000/spec.json")
    is_multi_file = True
    # The shards have their own folder, because granular reads every entry of the folder as a shard.
    shards_in = "shards"
    sizes_are_exact = False  # `row_sizes` counts all files of a shard, not only the main file
    readers = "Granular readers"
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
    layout = "granular 0.22 or later (inferred from the layout)"

    open_dataset = staticmethod(_open_dataset)

    def original_value(self, encoding: str) -> OriginalValue:
        """Return the kind of value that granular returns for an encoding.

        Encodings that store text, such as `json` and `str_int`, have the type `utf8` in granular.
        Their values are returned as text.
        """
        if encoding == "json":
            return "JSON text"
        return "text" if lookup(encoding).is_text else super().original_value(encoding)

    def written_by(self, listed_by: str) -> str | None:
        """Return the versions of granular that write folders with this layout."""
        return self.layout

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the bag of a column, and the byte range of a row's records in the bag.

        If the record numbers of the row are damaged, the byte range is (None, None). If the column
        has no bag, the result is None.
        """
        names = [one.name for one in shard.columns]
        bag = next(
            (at for at in (shard.chunk.at, *shard.chunk.companions) if at.name == f"{column}.bag"),
            None,
        )
        if bag is None or column not in names:
            return None
        starts = shard.layout[column]
        try:
            first, count = granular_read.record_runs(shard, row, row + 1)[names.index(column)]
        except FlareError:  # the record numbers of the row are damaged
            return bag, None, None
        return bag, int(starts[first[0]]), int(starts[first[0] + count[0]])

    def large_values(self, shard: Shard, max_bytes: int) -> list[LargeValue]:
        """Return the values larger than `max_bytes`. The tables of the bags contain the sizes."""
        return granular_read.large_values(shard, max_bytes)

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the spec and the tables, without the records.

        chunk    a spec.json or a single bag. If no index lists the other files of the shard, they
                 are read from the same folder
        columns  the columns that a playlist lists; they must match the spec
        raises   FormatError if a table does not match its bag, or if columns differ in row count;
                 UnsafeError for a column that is not a valid file name
        """
        chunk = chunk if chunk.files else replace(chunk, files=(File(chunk.at.name),))
        shard = (
            _open_bag(chunk, columns)
            if chunk.files[0].name.endswith(".bag")
            else _open_folder(chunk, columns)
        )
        check_row_count(chunk, shard.rows)
        return shard

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Read the stored records of rows. All records of one list are read together.

        ranges  name of a list column -> (start, stop): only these items of each list are read
        raises  FormatError for a row whose records do not exist; UsageError for a range of a
                column that is not a list
        """
        return granular_read.rows(shard, rows, columns, ranges)

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads one row from mapped bags."""
        plan = granular_read.mapped_records(shard, columns)
        if plan is None:
            return super().row_reader(shard, columns)
        return lambda row: {
            name: source[table[row] : table[row + 1]] for name, source, table in plan
        }

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop as typed columns, in the order of `columns`.

        Values of consecutive records in mapped bags are not copied.

        raises  FormatError for a row whose records do not exist; ValueFitError for an invalid
                record
        """
        names = [one.name for one in shard.columns] if columns is None else columns
        return granular_read.batch(shard, start, stop, names)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns as they are stored, sorted by name; see `spec.arranged`."""
        return granular_spec.arranged(columns, self)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of an empty shard, and the bytes that each row adds: int64 [rows].

        The bytes of a row are its records and its index entries.
        """
        return len(granular_spec.text(columns)), _weights(columns, batch, self.name)

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as shard `number` in a subfolder such as `000000/`, its spec.json last.

        Without a shard size, the only shard is written into the folder of the dataset.

        raises  ValueFitError for a null
        """
        files: dict[str, Parts] = {}
        for one in columns:
            parts, ends = bags.body(bags.records(one, batches)[0])
            files[f"{one.name}.bag"], files[f"{one.name}.idx"] = (
                parts,
                [ends.astype("<u8").tobytes()],
            )
        return _put(
            at,
            number,
            self.name,
            columns,
            files,
            batches,
            settings,
        )

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the record numbers of rows, and the sizes of records whose type has a fixed size.

        values  also check every record
        """
        if not values:
            yield from (
                Finding(str(at), "format", message, DAMAGED)
                for at, message in granular_read.unfit(shard)
            )
        names, stop = [one.name for one in shard.columns], 0
        next_records: dict[str, int] = {}
        while (start := stop) < shard.rows:
            stop = min(shard.rows, start + MAX_STEP_ROWS)
            try:
                while (
                    granular_read.weight(
                        shard, places := granular_read.record_runs(shard, start, stop, next_records)
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
                    lambda first, last: granular_read.batch(shard, first, last, names),
                )


class GranularRefs(Granular):
    """Folders of granular 0.21 and older: a refs.bag, and bags that end with their tables.

    The type of a list in spec.json is `TYPE[]`. Empty records are rejected, because the table of a
    bag whose first record is empty looks like a table of version 0.19. `Granular` can also read
    these folders.
    """

    name = "granular-refs"
    suffixes = ()
    substitutes: ClassVar[Substitutes] = {
        **Granular.substitutes,
        **{listed: name for name, listed in LISTED_PICTURES.items()},
        **{name: name for name in LISTED_PICTURES},
        **dict.fromkeys(("bytes[]", "ndarray[]", "*[]"), EACH),
    }
    layout = "granular 0.21 or earlier (inferred from the layout)"

    def sniff(self, name: str, head: bytes) -> bool:
        """Return False, because `Granular` opens the bags of all versions."""
        return False

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns as they are stored, sorted by name; see `spec.arranged`."""
        return granular_spec.arranged(columns, self, reserved=REFS_TABLE)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of an empty shard, and an upper bound for the size of each row.

        A row consists of its records, its table entries and its entry in refs.bag.

        return  size of an empty shard in bytes; bound for each row in bytes, int64 [rows]
        raises  ValueFitError with the number of the first row that has an empty record
        """
        numbers = (
            8
            + 3
            + sum(
                1 + 2 * _NUMBER_BYTES if one.encoding.endswith("[]") else _NUMBER_BYTES
                for one in columns
            )
        )
        return len(granular_spec.text(columns)), _weights(columns, batch, self.name) + numbers

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as shard `number` in a subfolder such as `000000/`, its spec.json last.

        Without a shard size, the only shard is written into the folder of the dataset.

        raises  ValueFitError with the row of a null or an empty record, before anything is written
        """
        files: dict[str, Parts] = {REFS: []}
        runs = []
        for one in columns:
            arrays, counts = bags.records(one, batches)
            parts, ends = bags.body(arrays)
            _check_lengths(one, np.diff(ends, prepend=0), counts, self.name)
            counts = np.ones(len(ends), np.int64) if counts is None else counts
            runs.append((np.cumsum(counts) - counts, counts))
            files[f"{one.name}.bag"] = [*parts, ends.astype("<u8").tobytes()]
        parts, ends = bag_refs.packed(runs, [one.encoding.endswith("[]") for one in columns])
        files[REFS] = [*parts, ends.astype("<u8").tobytes()]
        return _put(
            at,
            number,
            self.name,
            columns,
            files,
            batches,
            settings,
        )


# -- opening


def _open_bag(chunk: Chunk, columns: Columns | None) -> Shard:
    if columns is not None and len(columns) != 1:
        raise IntegrityError(
            f"the playlist lists {len(columns)} columns; a bag has one column", where=chunk.at
        )
    if not chunk.companions and (chunk.at.folder / index_of(chunk.at.name)).exists():
        files, locations = companion_files(chunk, [index_of(chunk.at.name)])
        chunk = replace(chunk, files=(chunk.files[0], *files), companions=locations)
    bag = byte_ranges.single_file_chunk(chunk.at, chunk.files[0])
    starts = (
        bags.pair(bag, byte_ranges.single_file_chunk(chunk.companions[0], chunk.files[1]))
        if chunk.companions
        else bags.single(bag)
    )
    columns = columns or RECORD
    return Shard(chunk, columns, len(starts) - 1, {columns[0].name: starts})


def _open_folder(chunk: Chunk, columns: Columns | None) -> Shard:
    spec = columns_of(chunk.at, byte_ranges.stored_size(chunk))
    if not chunk.companions:
        refs = "refs" not in spec and (chunk.at.folder / REFS).exists()
        files, locations = companion_files(chunk, companions(spec, refs))
        chunk = replace(chunk, files=(chunk.files[0], *files), companions=locations)
    by_name = {
        at.name: byte_ranges.single_file_chunk(at, file)
        for at, file in zip(chunk.companions, chunk.files[1:], strict=True)
    }
    refs = has_refs(spec, by_name)
    for name in companions(spec, refs):
        if name not in by_name:
            raise FormatError(
                f"the playlist does not list the file {name!r}",
                where=chunk.at,
                hint="Add the file to the playlist, or write the playlist again.",
            )
    own = granular_spec.spec_of(spec, refs)
    columns = own if columns is None else granular_spec.agreed(own, columns, chunk.at)
    if refs:
        layout = {name: bags.single(by_name[f"{name}.bag"]) for name in (*spec, REFS_TABLE)}
        full = next((name for name, starts in layout.items() if len(starts) > 1), None)
        if (
            full is not None and len(layout[REFS_TABLE]) == 1
        ):  # refs.bag is a valid bag without rows, but the records show that it is truncated
            raise FormatError(
                f"contains no rows, but column {full!r} has {len(layout[full]) - 1} records",
                where=by_name[REFS].at,
                hint=DAMAGED,
                column=full,
            )
        return Shard(chunk, columns, len(layout[REFS_TABLE]) - 1, layout)
    layout = {name: bags.pair(by_name[f"{name}.bag"], by_name[f"{name}.idx"]) for name in spec}
    rows = {name: len(starts) - 1 for name, starts in layout.items()}
    least, most = min(rows, key=rows.__getitem__), max(rows, key=rows.__getitem__)
    if rows[least] != rows[most]:
        raise FormatError(
            f"column {least!r} has {rows[least]} records; column {most!r} has {rows[most]}",
            where=chunk.at,
            hint=bags.TORN,
        )
    return Shard(chunk, columns, rows[least], layout)


# -- writing


def _weights(columns: Columns, batch: pa.RecordBatch, format: str) -> IntArray:
    """Return the size of each row: int64 [rows]. A row has a table entry of 8 bytes per record.

    raises  ValueFitError with the number of the first row that the format cannot store
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for one in columns:
        encoding = lookup(one.encoding.removesuffix("[]"))
        if encoding.size is not None and not one.encoding.endswith("[]"):
            sizes += encoding.size + 8
            continue
        (array,), counts = bags.records(one, [batch])
        lengths = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        _check_lengths(one, lengths, counts, format)
        lengths += 8
        if counts is not None:
            ends = np.concatenate(([0], np.cumsum(lengths)))
            offsets = np.concatenate(([0], np.cumsum(counts)))
            lengths = ends[offsets[1:]] - ends[offsets[:-1]]
        sizes += lengths
    return sizes


def _check_lengths(one: Column, lengths: IntArray, counts: IntArray | None, format: str) -> None:
    """Raise ValueFitError for the first row with an empty record if the format cannot store it."""
    empty = lengths == 0
    if format == "granular-refs" and empty.any():
        first = int(np.argmax(empty))
        row = first if counts is None else int(np.searchsorted(np.cumsum(counts), first, "right"))
        hint = "Use -f granular."
        raise ValueFitError(
            f"column {one.name!r} has an empty record, which {format} cannot store",
            row=row,
            hint=hint,
            column=one.name,
        )


def _put(
    at: Location,
    number: int,
    name: str,
    columns: Columns,
    files: Mapping[str, Parts],
    batches: Sequence[pa.RecordBatch],
    settings: Settings,
) -> Chunk:
    """Write the files of a shard. The spec.json is last, so a shard with a spec.json is complete.

    raises  UsageError if a compression is set, or for a second shard if no shard size is set
    """
    if settings.compression is not None:
        raise UsageError(
            "granular shards cannot be compressed",
            hint="Omit --compress, or choose another --format.",
        )
    whole = settings.shard_bytes is None and settings.shard_rows is None
    if whole and number:
        raise UsageError(
            "the rows do not fit in one shard",
            where=at,
            hint="Use --shard-size to write several shards.",
        )
    folder = "" if whole else f"{shard_folder(number)}/"
    names = {DEFAULT, *settings.hashes}
    written = {
        file: (at / f"{folder}{file}").write(count_parts(parts), names)
        for file, parts in files.items()
    }
    spec = (at / f"{folder}{SPEC}").write([granular_spec.text(columns)], names)
    listed = (
        File(f"{folder}{file}", one.size, one.hashes)
        for file, one in {SPEC: spec, **written}.items()
    )
    return Chunk(
        at / f"{folder}{SPEC}",
        sum(batch.num_rows for batch in batches),
        tuple(listed),
        name,
        tuple(at / f"{folder}{file}" for file in files),
    )
