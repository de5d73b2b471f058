"""Column statistics, computed when a dataset is read.

Statistics of columns with numbers or text are computed from all rows. Statistics of columns with
bytes or images are computed from a random sample, and the number of sampled rows is reported. The
size of an image is read from the image header.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from flarecli import encodings
from flarecli.commands.row_order import Order
from flarecli.commands.row_reader import ValueLimit
from flarecli.media import is_image, probe
from flarecli.progress import Progress
from flarecli.read import Dataset
from flarecli.units import format_count, format_size

__all__ = ["statistics", "stats_table"]

_MAX_DISTINCT, _MAX_DISTINCT_BYTES = 10_000, 64 << 20  # limits on distinct values per column
_MAX_ROWS, _MAX_BYTES = 10_000, 256 << 20  # limits on the sample for byte columns
_TABLE_COLUMNS = (
    "rows",
    "nulls",
    "unfit",
    "distinct",
    "min",
    "max",
    "total bytes",
    "images",
)
_NUMBER_CHARS = 40  # maximum length of a number in the table


def statistics(
    data: Dataset,
    order: Order,
    limit: ValueLimit,
    seed: int,
    progress: Progress,
) -> dict[str, dict[str, Any]]:
    """Return the statistics of each column: column -> name of the statistic -> value.

    The statistics are:

    - the numbers of rows, nulls and distinct values,
    - the minimum and the maximum of numbers, text lengths, byte lengths and list lengths,
    - `unfit`, for numbers that are stored as text: the number of values that are not numbers or
      have more than 64 bits,
    - the total size of text and bytes,
    - the number of images, and the widths and heights of the smallest, the median and the largest
      image by pixels.

    order      the rows whose values are read
    limit      maximum size of a value
    seed       random seed for the sample of rows whose bytes are read
    progress   receives the number of rows and bytes that were read
    raises     ReachError for a value above the limit; any error that reading a dataset raises
    """
    small = [field.name for field in data.schema if not encodings.is_binary(field.type)]
    large = [name for name in data.schema.names if name not in small]
    progress.start("inspect", len(order) if small else 0)
    facts = _stats_of_values(data, small, _read(small, order, limit, exact=True), progress)
    sample = order.sampled(max(1, min(_MAX_ROWS, _MAX_BYTES // limit.row_bytes)), seed)
    progress.start("inspect", len(sample) if large else 0)
    facts |= _stats_of_bytes(large, _read(large, sample, limit), progress)
    return {name: facts[name] for name in data.schema.names}


def _read(
    names: list[str], order: Order, limit: ValueLimit, exact: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the values of columns. Raises ReachError for a value above the limit."""
    pairs = limit.reader(names, exact).read(order, names) if names else iter(())
    return limit.checked(pairs)


def _stats_of_values(
    data: Dataset, small: list[str], batches: Iterator[pa.RecordBatch], progress: Progress
) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {name: {"rows": 0, "nulls": 0} for name in small}
    distinct: dict[str, pa.Array] = {}
    encoded = {column.name: column.encoding for column in data.columns}
    for batch in batches:
        progress.advance(batch.num_rows, batch.nbytes)
        for name in small:
            array, facts = batch.column(name), out[name]
            facts["rows"] += len(array)
            facts["nulls"] += array.null_count
            # convert the values of tables to the types that `pack` would store
            array, _ = encodings.coerce(
                array,
                encodings.lookup(encoded[name]),
                encodings.source_of(batch.schema.field(name)),
            )
            if not pa.types.is_large_list(array.type):
                array, _, failed = encodings.natural_of(array, encodings.lookup(encoded[name]))
                if failed:
                    facts["unfit"] = facts.get("unfit", 0) + len(failed)
            is_text = pa.types.is_large_string(array.type)
            if pa.types.is_float16(array.type):  # Arrow cannot compare float16 values
                array = array.cast(pa.float32())
            least, most = ("min_bytes", "max_bytes") if is_text else ("min", "max")
            if pa.types.is_large_list(array.type):
                array, least, most = pc.list_value_length(array), "min_items", "max_items"
            _update_range(facts, pc.binary_length(array) if is_text else array, least, most)
            if not pa.types.is_nested(batch.schema.field(name).type):
                _count_distinct(facts, distinct, name, array)
            if is_text:
                _update_range(facts, pc.utf8_length(array), "min_chars", "max_chars")
                facts["bytes"] = facts.get("bytes", 0) + int(
                    pc.sum(pc.binary_length(array)).as_py() or 0
                )
    return out


def _update_range(facts: dict[str, Any], array: pa.Array, least: str, most: str) -> None:
    """Update the minimum and the maximum with the values in an array."""
    ends = pc.min_max(array).as_py()
    if ends["min"] is not None:
        facts[least] = min(facts.get(least, ends["min"]), ends["min"])
        facts[most] = max(facts.get(most, ends["max"]), ends["max"])


def _count_distinct(
    facts: dict[str, Any], distinct: dict[str, pa.Array], name: str, array: pa.Array
) -> None:
    """Count distinct values up to a limit."""
    if "distinct_over" in facts:
        return
    sizes = encodings.value_sizes(array)
    # do not hash very large values, because hashing copies them
    if sizes is not None and sizes.max(initial=0) > _MAX_DISTINCT_BYTES:
        facts.pop("distinct", None)
        facts["distinct_over"] = max(0, len(distinct.pop(name, ())) - 1)
        return
    values = pc.unique(array.drop_null())
    if name in distinct:
        values = pc.unique(pa.concat_arrays([distinct[name], values]))
    if len(values) > _MAX_DISTINCT or values.nbytes > _MAX_DISTINCT_BYTES:
        facts.pop("distinct", None)
        distinct.pop(name, None)
        facts["distinct_over"] = min(len(values) - 1, _MAX_DISTINCT)
        return
    distinct[name], facts["distinct"] = values, len(values)


def _stats_of_bytes(
    large: list[str], batches: Iterator[pa.RecordBatch], progress: Progress
) -> dict[str, dict[str, Any]]:
    out: dict[str, dict[str, Any]] = {name: {"rows": 0, "nulls": 0} for name in large}
    sizes: dict[str, list[tuple[int, int]]] = {name: [] for name in large}
    for batch in batches:
        progress.advance(batch.num_rows, batch.nbytes)
        for name in large:
            array, facts = batch.column(name), out[name]
            facts["rows"] += len(array)
            facts["nulls"] += array.null_count
            _update_range(facts, pc.binary_length(array), "min_bytes", "max_bytes")
            facts["bytes"] = facts.get("bytes", 0) + int(
                pc.sum(pc.binary_length(array)).as_py() or 0
            )
            sizes[name] += _image_sizes(array)
    for name in large:
        out[name] |= _image_stats(sizes[name])
    return out


def _image_sizes(array: pa.Array) -> list[tuple[int, int]]:
    """Return the width and height of each image in a column, according to the image header."""
    probed = (probe(bytes(value)) for value in encodings.raw_values(array) if value is not None)
    return [
        (one.width, one.height) for one in probed if is_image(one.kind) and one.width and one.height
    ]


def _image_stats(sizes: list[tuple[int, int]]) -> Mapping[str, Any]:
    if not sizes:
        return {}
    by_pixels = sorted(sizes, key=lambda size: (size[0] * size[1], size))
    shown = [
        f"{width}x{height}"
        for width, height in (by_pixels[0], by_pixels[(len(sizes) - 1) // 2], by_pixels[-1])
    ]
    return {
        "pictures": len(sizes),
        **dict(zip(("smallest", "median", "largest"), shown, strict=True)),
    }


def stats_table(stats: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Format statistics as a table with one row per dataset column; return its header and its rows.

    A statistic that has no value in any row is omitted.

    stats  return value of `statistics`
    """
    rows = [_table_row(facts) for facts in stats.values()]
    names = [name for name in _TABLE_COLUMNS if any(row.get(name) for row in rows)]
    return names, [[row.get(name, "") for name in names] for row in rows]


def _table_row(facts: Mapping[str, Any]) -> dict[str, str]:
    row = {name: f"{facts[name]:,}" for name in ("rows", "nulls", "unfit") if name in facts}
    if "distinct" in facts:
        row["distinct"] = f"{facts['distinct']:,}"
    elif "distinct_over" in facts:
        row["distinct"] = f"over {facts['distinct_over']:,}"
    for end in ("min", "max"):
        parts = []
        if end in facts:
            parts.append(_number(facts[end]))
        if f"{end}_chars" in facts:
            parts.append(format_count(facts[f"{end}_chars"], "char"))
        if f"{end}_bytes" in facts:
            parts.append(format_size(facts[f"{end}_bytes"]))
        if f"{end}_items" in facts:
            parts.append(format_count(facts[f"{end}_items"], "item"))
        row[end] = ", ".join(parts)
    if "bytes" in facts:
        row["total bytes"] = format_size(facts["bytes"])
    if "pictures" in facts:
        sizes = dict.fromkeys(facts[name] for name in ("smallest", "median", "largest"))
        row["images"] = f"{facts['pictures']:,} of {' / '.join(sizes)}"
    return row


def _number(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _NUMBER_CHARS else text[: _NUMBER_CHARS - 1] + "…"
