"""Write typed columns as the files of a Granular dataset, for both generations that are written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np

from flarecli import encodings
from flarecli.encodings import lookup
from flarecli.errors import UsageError, ValueFitError
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular.spec import SPEC, shard_folder
from flarecli.hashes import DEFAULT
from flarecli.lazy import pa, pc
from flarecli.model import Chunk, Column, Columns, File, IntArray, Settings
from flarecli.storage import Location

__all__ = ["Parts", "check_lengths", "put", "records", "weights"]

Parts: TypeAlias = Sequence["bytes | memoryview"]


def records(
    one: Column, batches: Sequence[pa.RecordBatch]
) -> tuple[list[pa.Array], IntArray | None]:
    """Return the records of a column of each batch.

    return  large_binary arrays; for a list also the number of records of each row, int64 [rows]
    raises  ValueFitError with the first row that is null
    """
    arrays, counts, first = [], [np.zeros(0, np.int64)], 0
    for batch in batches:
        array = batch.column(one.name)
        _raise_if_null(one, array, first + np.arange(len(array)))
        if one.encoding.endswith("[]"):
            offsets = array.offsets.to_numpy()
            counts.append(np.diff(offsets))
            array = array.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            _raise_if_null(one, array, first + np.repeat(np.arange(batch.num_rows), counts[-1]))
        arrays.append(encodings.stored(array, lookup(one.encoding.removesuffix("[]"))))
        first += batch.num_rows
    return arrays, np.concatenate(counts) if one.encoding.endswith("[]") else None


def _raise_if_null(one: Column, array: pa.Array, rows: IntArray) -> None:
    if array.null_count:
        row = int(rows[pc.index(array.is_null(), True).as_py()])
        raise ValueFitError(
            f"column {one.name!r} is null; granular cannot store nulls", row=row, column=one.name
        )


def weights(columns: Columns, batch: pa.RecordBatch, format: str) -> IntArray:
    """Return the bytes of each row: its records, and 8 bytes of table per record; int64 [rows].

    raises  ValueFitError with the first row that the format cannot store
    """
    sizes = np.zeros(batch.num_rows, np.int64)
    for one in columns:
        encoding = lookup(one.encoding.removesuffix("[]"))
        if encoding.size is not None and not one.encoding.endswith("[]"):
            sizes += encoding.size + 8
            continue
        (array,), counts = records(one, [batch])
        lengths = pc.binary_length(array).to_numpy(zero_copy_only=False).astype(np.int64)
        check_lengths(one, lengths, counts, format)
        lengths += 8
        if counts is not None:
            ends = np.concatenate(([0], np.cumsum(lengths)))
            offsets = np.concatenate(([0], np.cumsum(counts)))
            lengths = ends[offsets[1:]] - ends[offsets[:-1]]
        sizes += lengths
    return sizes


def check_lengths(one: Column, lengths: IntArray, counts: IntArray | None, format: str) -> None:
    """Raise ValueFitError with the first row that has an empty record, if the format cannot store
    it.
    """
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


def put(
    at: Location,
    number: int,
    name: str,
    columns: Columns,
    files: Mapping[str, Parts],
    rows: int,
    settings: Settings,
) -> Chunk:
    """Write the files of a shard, its spec.json last: a shard with a spec.json is complete.

    raises  UsageError for a second shard if the settings do not split, or for a compression
    """
    if settings.compression is not None:
        raise UsageError(
            "granular shards are not compressed",
            hint="Omit --compress, or choose another --format.",
        )
    whole = settings.shard_bytes is None and settings.shard_rows is None
    if whole and number:
        raise UsageError(
            "the rows need more than one shard",
            where=at,
            hint="Use --shard-size.",
        )
    folder = "" if whole else f"{shard_folder(number)}/"
    names = {DEFAULT, *settings.hashes}
    written = {file: (at / f"{folder}{file}").write(parts, names) for file, parts in files.items()}
    spec = (at / f"{folder}{SPEC}").write([granular_spec.text(columns)], names)
    listed = (
        File(f"{folder}{file}", one.size, one.hashes)
        for file, one in {SPEC: spec, **written}.items()
    )
    return Chunk(
        at / f"{folder}{SPEC}",
        rows,
        tuple(listed),
        name,
        tuple(at / f"{folder}{file}" for file in files),
    )
