"""Read the records in an open Granular shard, as bytes and as Arrow columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from flarecli import encodings
from flarecli.bisect import failing_rows
from flarecli.encodings import Encoding, lookup
from flarecli.errors import FlareError, FormatError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.base import LargeValue
from flarecli.formats.granular import bags
from flarecli.formats.granular import refs as bag_refs
from flarecli.formats.granular.bags import Bag
from flarecli.formats.granular.refs import RecordRuns
from flarecli.formats.shard_files import check_ranges
from flarecli.lazy import pa
from flarecli.model import Chunk, Column, Row, Shard
from flarecli.storage import Location

__all__ = ["REFS_TABLE", "batch", "large_values", "rows", "record_runs", "unfit", "weight"]

# Key of the table of refs.bag in a shard's layout. granular-refs allows no column of this name.
REFS_TABLE = "refs"
_STEP_RECORDS = 1 << 16  # number of records whose sizes are checked in one step
_STEP_ROWS = 1 << 13  # number of rows whose record numbers are parsed in one step
MAX_OPEN_BAGS = 64  # limited, because each open bag maps a file
_memos: list[dict[Any, Any]] = []  # for each open bag, the `Shard.memo` that contains it


def _has_refs(shard: Shard) -> bool:
    return len(shard.layout) > len(shard.columns)


def _bag(shard: Shard, name: str) -> Bag:
    """Return the bag of a column, or refs.bag if `name` is REFS_TABLE. Open it on first use."""
    bag: Bag | None = shard.memo.get(("bag", name))
    if bag is None:
        while len(_memos) >= MAX_OPEN_BAGS:
            _memos.pop(0).clear()
        bag = shard.memo["bag", name] = bags.opened(_file(shard.chunk, name), shard.layout[name])
        _memos.append(shard.memo)
    return bag


def _file(chunk: Chunk, name: str) -> Chunk:
    if chunk.files[0].name.endswith(".bag"):
        return byte_ranges.single_file_chunk(chunk.at, chunk.files[0])
    return next(
        byte_ranges.single_file_chunk(at, file)
        for at, file in zip(chunk.companions, chunk.files[1:], strict=True)
        if at.name == f"{name}.bag"
    )


# -- rows


def rows(
    shard: Shard,
    numbers: Sequence[int],
    names: Sequence[str] | None,
    ranges: Mapping[str, tuple[int, int]] | None,
) -> list[Row]:
    """Return the records of each row, in the requested order; see `Granular.read_rows`."""
    plan = mapped_records(shard, names)
    if plan is not None and not ranges:
        return [
            {name: source[table[row] : table[row + 1]] for name, source, table in plan}
            for row in numbers
        ]
    names = [one.name for one in shard.columns] if names is None else names
    if ranges:
        check_ranges(shard, ranges)
    if _has_refs(shard):
        return _rows_by_refs(shard, numbers, names, ranges or {})
    columns = [_bytes_of(_bag(shard, name), [(row, row + 1) for row in numbers]) for name in names]
    return [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]


def mapped_records(
    shard: Shard, names: Sequence[str] | None
) -> list[tuple[str, Any, memoryview]] | None:
    """Return (name, bytes, table) for each selected column whose bag is mapped.

    Record i of the column is `bytes[table[i] : table[i + 1]]`.

    return  None if one of the bags is not mapped, or if the shard has a refs.bag
    """
    key = "rows" if names is None else ("rows", *names)
    plan: list[tuple[str, Any, memoryview]] | None = shard.memo.get(key)
    if plan is not None or _has_refs(shard):
        return plan
    selected = [one.name for one in shard.columns] if names is None else names
    opened = [(name, _bag(shard, name)) for name in selected]
    if any(bag.source is None for _, bag in opened):
        return None
    plan = shard.memo[key] = [(name, bag.source, bag.table) for name, bag in opened]
    return plan


def _bytes_of(bag: Bag, runs: Sequence[tuple[int, int]]) -> list[bytes]:
    """Read runs of consecutive records; return one bytes object per run."""
    source, table = bag.source, bag.table
    if source is not None:
        return [source[table[first] : table[last]] for first, last in runs]
    return [
        bytes(part)
        for part in byte_ranges.read(
            bag.chunk, [(table[first], table[last]) for first, last in runs]
        )
    ]


def _rows_by_refs(
    shard: Shard,
    numbers: Sequence[int],
    names: Sequence[str],
    ranges: Mapping[str, tuple[int, int]],
) -> list[Row]:
    lists = [one.encoding.endswith("[]") for one in shard.columns]
    places = []
    for data, row in zip(
        _bytes_of(_bag(shard, REFS_TABLE), [(row, row + 1) for row in numbers]),
        numbers,
        strict=True,
    ):
        try:
            places.append(bag_refs.numbers_of_row(data, lists))
        except ValueError:
            raise FormatError(
                "record numbers in refs.bag do not match the columns", where=shard.chunk.at, row=row
            ) from None
    out: list[Row] = [{} for _ in numbers]
    for i, one in enumerate(shard.columns):
        if one.name not in names:
            continue
        bag, limit, runs = _bag(shard, one.name), ranges.get(one.name), []
        total = len(bag)
        for place, row in zip(places, numbers, strict=True):
            first, count = place[i]
            if first + count > total:
                raise FormatError(
                    _beyond(one.name, first, count, total),
                    where=shard.chunk.at,
                    row=row,
                    column=one.name,
                )
            runs.append(
                (first, first + count)
                if limit is None
                else (first + min(limit[0], count), first + min(limit[1], count))
            )
        if (
            sum(last - first for first, last in runs) > total
            or sum(bag.table[last] - bag.table[first] for first, last in runs) > bag.table[total]
        ):
            _raise_reused(shard, one.name, dict(zip(numbers, runs, strict=True)), bag)
        parts = _bytes_of(bag, runs)
        for values, part, run in zip(out, parts, runs, strict=True):
            values[one.name] = _cut(part, bag.table, *run) if lists[i] else part
    return (
        out
        if list(names) == [one.name for one in shard.columns]
        else [{name: row[name] for name in names} for row in out]
    )


def _raise_reused(shard: Shard, name: str, runs: Mapping[int, tuple[int, int]], bag: Bag) -> None:
    """Raise FormatError for the first row that refers to records of an earlier row."""
    size = records = 0
    for row, (first, last) in sorted(runs.items()):
        size, records = size + bag.table[last] - bag.table[first], records + last - first
        if size > bag.table[len(bag)] or records > len(bag):
            raise FormatError(
                f"column {name!r} refers to records of an earlier row",
                where=shard.chunk.at,
                row=row,
                column=name,
            )


def _cut(part: bytes, table: memoryview, first: int, last: int) -> list[bytes]:
    low = table[first]
    return [part[table[k] - low : table[k + 1] - low] for k in range(first, last)]


def _beyond(name: str, first: int, count: int, total: int) -> str:
    last = first + count - 1
    return f"column {name!r} refers to records {first} to {last}; its bag contains {total}"


# -- batches


def record_runs(
    shard: Shard, start: int, stop: int, next_records: Mapping[str, int] = MappingProxyType({})
) -> list[RecordRuns]:
    """Return, for each column, the first record number and the record count of each row.

    The rows are start..stop.

    next_records  column -> smallest record number that is not used by an earlier row; 0 for a
                  missing column
    raises        FormatError with the first row that refers to nonexistent records, or to records
                  of an earlier row
    """
    if not _has_refs(shard):
        return [(np.arange(start, stop), np.ones(stop - start, np.int64))] * len(shard.columns)
    refs = bags.array(_bag(shard, REFS_TABLE), start, stop)
    data, offsets = byte_ranges.value_bytes(refs), byte_ranges.value_offsets(refs)
    lists = [one.encoding.endswith("[]") for one in shard.columns]
    out = bag_refs.numbers(
        np.frombuffer(data, np.uint8), offsets - offsets[0], lists, shard.chunk.at, start
    )
    for one, (first, count) in zip(shard.columns, out, strict=True):
        total = len(shard.layout[one.name]) - 1
        beyond = (first > total) | (count > total) | (first + count > total)
        if beyond.any():
            row = int(np.argmax(beyond))
            raise FormatError(
                _beyond(one.name, int(first[row]), int(count[row]), total),
                where=shard.chunk.at,
                row=start + row,
                column=one.name,
            )
        full = np.flatnonzero(count)
        again = (
            first[full]
            < np.concatenate(([next_records.get(one.name, 0)], (first + count)[full[:-1]]))[
                : len(full)
            ]
        )
        if again.any():
            row = int(full[int(np.argmax(again))])
            raise FormatError(
                f"column {one.name!r} refers to records of an earlier row",
                where=shard.chunk.at,
                row=start + row,
                column=one.name,
            )
    return out


def weight(shard: Shard, places: Sequence[RecordRuns]) -> int:
    """Return the total size in bytes of the records in `places`."""
    out = 0
    for one, (first, count) in zip(shard.columns, places, strict=True):
        starts = shard.layout[one.name]
        out += int((starts[first + count] - starts[first]).sum())
    return out


def large_values(shard: Shard, max_bytes: int) -> list[LargeValue]:
    """Return the values larger than `max_bytes`. A list is a single value.

    Rows with damaged record numbers are omitted, because reading such a row raises an error.
    """
    out: list[LargeValue] = []
    names = [one.name for one in shard.columns]
    if all(int(shard.layout[name][-1]) <= max_bytes for name in names):
        return out

    def add(start: int, stop: int) -> FlareError | None:
        try:
            places = record_runs(shard, start, stop)
        except FlareError as error:
            return error
        for name, (first, count) in zip(names, places, strict=True):
            starts = shard.layout[name]
            sizes = starts[first + count] - starts[first]
            rows = np.flatnonzero(sizes > max_bytes).tolist()
            out.extend(LargeValue(start + row, name, int(sizes[row])) for row in rows)
        return None

    for start in range(0, shard.rows, _STEP_ROWS):
        for _ in failing_rows(start, min(start + _STEP_ROWS, shard.rows), add):
            pass  # `failing_rows` bisects the rows, so only damaged rows are omitted
    return out


def unfit(shard: Shard) -> Iterator[tuple[Location, str]]:
    """Yield (bag, message) for each bag with a record whose size does not fit the encoding."""
    for one in shard.columns:
        inner, starts = lookup(one.encoding.removesuffix("[]")), shard.layout[one.name]
        for low in range(0, len(starts) - 1 if inner.size is not None else 0, _STEP_RECORDS):
            sizes = np.diff(starts[low : low + _STEP_RECORDS + 1])
            wrong = np.flatnonzero(sizes != inner.size)
            if len(wrong):
                yield (
                    _file(shard.chunk, one.name).at,
                    f"record {low + wrong[0]} is {sizes[wrong[0]]} bytes;"
                    f" expected {inner.size} for {inner.name}",
                )
                break


def batch(shard: Shard, start: int, stop: int, names: Sequence[str]) -> pa.RecordBatch:
    """Return rows start..stop as typed columns; see `Granular.read_batch`."""
    places = dict(
        zip(
            (one.name for one in shard.columns),
            record_runs(shard, start, stop) if _has_refs(shard) else [None] * len(shard.columns),
            strict=True,
        )
    )
    columns = byte_ranges.selected_columns(shard, names)
    arrays = [_column(shard, one, places[one.name], start, stop) for one in columns]
    return byte_ranges.record_batch(columns, arrays, stop - start)


def _column(
    shard: Shard, one: Column, places: RecordRuns | None, start: int, stop: int
) -> pa.Array:
    bag, inner = _bag(shard, one.name), lookup(one.encoding.removesuffix("[]"))
    offsets = np.arange(stop - start + 1)
    if places is None:
        raw = bags.array(bag, start, stop)
    elif not one.encoding.endswith("[]"):
        raw = bags.gathered(bag, places[0])
    else:
        first, count = places
        offsets = np.zeros(stop - start + 1, np.int64)
        np.cumsum(count, out=offsets[1:])
        raw = bags.gathered(bag, np.repeat(first - offsets[:-1], count) + np.arange(offsets[-1]))
    try:
        values = _typed(raw, inner)
    except ValueFitError as error:
        row = start + int(np.searchsorted(offsets, error.row or 0, "right")) - 1
        raise error.changed(address=str(shard.chunk.at), row=row).of_column(one.name) from None
    if not one.encoding.endswith("[]"):
        return values
    return pa.LargeListArray.from_arrays(pa.array(offsets), values).cast(lookup(one.encoding).arrow)


def _typed(raw: pa.Array, encoding: Encoding) -> pa.Array:
    """Return records as typed values. The bytes of numbers are not copied.

    raises  ValueFitError for a number of the wrong size
    """
    if encoding.size is None:
        return encodings.typed(raw, encoding)
    offsets = byte_ranges.value_offsets(raw)
    lengths = np.diff(offsets)
    wrong = lengths != encoding.size
    if wrong.any():
        row = int(np.argmax(wrong))
        raise ValueFitError(
            f"expected {encoding.size} bytes for {encoding.name}, got {lengths[row]}", row=row
        )
    data = byte_ranges.value_bytes(raw)
    fixed = pa.Array.from_buffers(pa.binary(encoding.size), len(raw), [None, pa.py_buffer(data)])
    return encodings.typed(fixed, encoding)
