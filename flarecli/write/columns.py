"""Typed columns: encodings are chosen once, then every batch is converted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from flarecli import encodings
from flarecli.errors import UsageError, ValueFitError
from flarecli.model import Columns, IntArray
from flarecli.suggest import choose
from flarecli.write.failures import Failure, drop_rows
from flarecli.write.keys import is_unnamed, key_text

__all__ = ["Typed", "check_columns", "chosen_encodings", "fitted", "record_batches"]

_EMPTY = "is empty, and names the row"
_ADDRESS = "(?i)^(?:https?|s3|gs|az|hf|file)://"


def chosen_encodings(
    batch: pa.RecordBatch,
    names: Sequence[str],
    given: Mapping[str, str],
    extensions: Mapping[str, str],
    before: Mapping[str, str],
) -> dict[str, str]:
    """Return an encoding for each column: given, as stored before, or inferred.

    batch       only its first row is used for columns of bytes, so that the choice does not depend
                on the size of batches
    extensions  column -> extension of the first row's link
    before      column -> encoding in the source dataset
    raises      UsageError for an unknown encoding, or a type that has no encoding
    """
    out = {}
    for name in names:
        field = batch.schema.field(name)
        kept = encodings.source_of(field)  # None for a column that a query made
        own = given.get(name) or (before.get(name, kept.name) if kept else None)
        if own is None:
            column = batch.column(name)
            first = column[0].as_py() if batch.num_rows and _is_bytes(column.type) else None
            own = encodings.infer_encoding(field, first, extensions.get(name, ""))
        encodings.lookup(own)
        out[name] = own
    return out


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


class Typed:
    """Converts batches to the encodings of `columns`.

    Rows that do not fit are left out and reported. So are rows with nulls, unless `nulls` is set.
    """

    def __init__(self, columns: Columns, key: str | None, nulls: bool = False) -> None:
        self._columns, self._key, self._nulls = columns, key, nulls
        self._encodings = [encodings.lookup(column.encoding) for column in columns]
        self._schema = pa.schema([encodings.field(column) for column in columns])
        # Of the previous batch: usually the schema is the same.
        self._had: tuple[pa.Schema, list[encodings.Encoding | None]] | None = None

    def convert(
        self, batch: pa.RecordBatch, rows: IntArray
    ) -> tuple[pa.RecordBatch, IntArray, list[Failure]]:
        """Convert a batch.

        rows    int64 [rows of the batch]: the position of each row in the selection
        return  typed columns of the rows that fit, their positions, and the failures, in order
        """
        typed, reasons = self.cast(batch)
        if not reasons:
            return typed, rows, []
        keys = batch.column(self._key) if self._key is not None else None
        out = []
        for at, (name, reason) in sorted(reasons.items()):
            key = "" if keys is None else key_text(keys[at])
            kind = "null" if reason in ("is null", _EMPTY) else "value"
            out.append(Failure(int(rows[at]), key, name, kind, f"{name} {reason}"))
        return *drop_rows(typed, rows, reasons), out

    def cast(self, batch: pa.RecordBatch) -> tuple[pa.RecordBatch, dict[int, tuple[str, str]]]:
        """Return all rows as typed columns, and position -> (column, reason) for those that fail."""
        arrays, reasons = [], self._unnamed(batch)
        for column, encoding, had in zip(
            self._columns, self._encodings, self._encodings_of(batch.schema), strict=True
        ):
            array, failures = encodings.coerce(batch.column(column.name), encoding, had)
            arrays.append(array)
            for at, reason in (
                one for one in failures if not (self._nulls and one[1] == "is null")
            ):
                reasons.setdefault(at, (column.name, reason))
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema), reasons

    def _encodings_of(self, schema: pa.Schema) -> list[encodings.Encoding | None]:
        """Return the encodings that the columns of a batch have already."""
        if self._had is None or not self._had[0].equals(schema, check_metadata=True):
            found = [encodings.source_of(schema.field(column.name)) for column in self._columns]
            self._had = schema, found
        return self._had[1]

    def _unnamed(self, batch: pa.RecordBatch) -> dict[int, tuple[str, str]]:
        """Return position -> (column, reason) for rows with a null or empty key."""
        wrong = (
            ()
            if self._key is None
            else np.flatnonzero(is_unnamed(batch.column(self._key))).tolist()
        )
        return {
            at: (self._key or "", "is null" if not batch.column(self._key)[at].is_valid else _EMPTY)
            for at in wrong
        }


def record_batches(data: pa.RecordBatch | pa.Table) -> list[pa.RecordBatch]:
    """Return the batches of a batch or a table, with their buffers validated.

    raises  UsageError for anything else; ValueFitError for buffers that contradict their types:
            offsets outside the data, text that is not UTF-8, dictionary indices out of range
    """
    if not isinstance(data, (pa.RecordBatch, pa.Table)):
        raise UsageError(
            f"expected a pyarrow RecordBatch or Table, got {type(data).__name__}",
            hint="Make one with pyarrow.record_batch or pyarrow.table.",
        )
    batches = data.to_batches() if isinstance(data, pa.Table) else [data]
    try:
        for batch in batches:
            batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ValueFitError(f"invalid Arrow data: {error}") from None
    return batches


def fitted(typed: Typed, batch: pa.RecordBatch, rows: IntArray) -> pa.RecordBatch:
    """Return a batch as typed columns.

    raises  ValueFitError for the first row that does not fit: it names row, column and Arrow type
    """
    out, reasons = typed.cast(batch)
    if reasons:
        at = min(reasons)
        name, reason = reasons[at]
        kind = batch.schema.field(name).type
        raise ValueFitError(f"column {name!r} ({kind}): {reason}", row=rows[at], column=name)
    return out


def check_columns(found: Sequence[str], wanted: Sequence[str]) -> None:
    """Raise UsageError unless a batch has each column once and no others."""
    for name in found:
        if found.count(name) > 1:
            raise UsageError(
                f"column {name!r} occurs {found.count(name)} times in the batch", column=name
            )
    for name in sorted(set(found) ^ set(wanted)):
        what = "unknown" if name in found else "missing"
        raise UsageError(f"column {name!r} is {what} in the batch", column=name)


def looks_like_addresses(batch: pa.RecordBatch) -> list[str]:
    """Return the text columns whose first values are all addresses."""
    out = []
    for name in batch.schema.names:
        column = batch.column(name)
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            head = column[:16].drop_null()
            if len(head) and pc.all(pc.match_substring_regex(head, _ADDRESS)).as_py():
                out.append(name)
    return out


def check_names(schema: pa.Schema, wanted: Sequence[str], what: str) -> None:
    """Raise UsageError for the first name that is not a column; `what` is the option with it."""
    there = set(schema.names)
    for name in wanted:
        if name not in there:
            raise UsageError(
                f"no column {name!r}, which {what} names",
                hint=choose(name, schema.names, "Choose from"),
                column=name,
            )
