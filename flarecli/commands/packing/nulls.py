"""Replacement of nulls, for formats that cannot store them: `--null COL=VALUE`, `--null fill`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import time
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from flarecli.arguments import check_pairs
from flarecli.encodings import is_binary, is_text
from flarecli.errors import UsageError
from flarecli.units import format_list

__all__ = ["NullValues"]

FAIL, FILL = "fail", "fill"
_FORMS = (  # (function that checks a type, example of a value as text)
    (kinds.is_date, "2024-01-31"),
    (kinds.is_timestamp, "2024-01-31T12:00:00"),
    (kinds.is_time, "12:00:00"),
    (kinds.is_duration, "0"),
    (kinds.is_struct, "{}"),
    (kinds.is_map, "[]"),
    (kinds.is_list, "[]"),
    (kinds.is_large_list, "[]"),
)


@dataclass(frozen=True)
class NullValues:
    """Values that replace nulls.

    values  column -> value as text
    fills   whether nulls in all other columns are replaced with a default for the type: empty text,
            empty bytes, an empty list, 0, NaN, false
    """

    values: Mapping[str, str] = field(default_factory=dict)
    fills: bool = False

    @classmethod
    def parse(cls, settings: Sequence[str]) -> NullValues:
        """Parse `fail`, `fill` and `COL=VALUE`. Raises UsageError for anything else."""
        values: dict[str, str] = {}
        check_pairs("--null", settings, 'null=["score=0", "fill"]')
        for text in settings:
            name, equals, value = text.partition("=")
            if not equals and text in (FAIL, FILL):
                continue
            if not (name and equals):
                raise UsageError(
                    f"--null: expected COL=VALUE, fill or fail, got {text!r:.60}",
                    hint="Use a form such as --null score=0, or -0 for addresses on stdin that end with NUL.",
                )
            if name in values:
                raise UsageError(f"--null: duplicate column {name!r:.60}")
            values[name] = value
        return cls(values, FILL in settings)

    def fill(self, batch: pa.RecordBatch, names: Collection[str]) -> pa.RecordBatch:
        """Replace the nulls in the columns `names` of a batch.

        raises  UsageError for a value that does not match the type of its column, and for a type
                without a default
        """
        if self == NullValues():
            return batch
        if self.fills:
            self._check_defaults(batch, names)
        for i, (at, array) in enumerate(zip(batch.schema, batch.columns, strict=True)):
            name = at.name
            if name not in names or not array.null_count:
                continue
            if not (self.fills or name in self.values):
                continue
            array = array.cast(pa.string()) if kinds.is_null(array.type) else array
            if name in self.values:
                value = _parsed(name, self.values[name], array.type)
            else:
                value = _default(array.type)
            try:
                filled = pc.if_else(array.is_valid(), array, value)
            except pa.ArrowNotImplementedError:
                raise UsageError(
                    f"--null {name}: cannot replace nulls in a column of type {array.type}"
                ) from None
            filled = filled.cast(array.type)  # `if_else` may widen a decimal
            new = pa.field(name, filled.type, metadata=at.metadata)
            batch = batch.set_column(i, new, filled)
        return batch

    def _check_defaults(self, batch: pa.RecordBatch, names: Collection[str]) -> None:
        """Raise one UsageError for all columns that contain nulls and have no default value."""
        missing = {
            at.name: at.type
            for at, array in zip(batch.schema, batch.columns, strict=True)
            if at.name in names
            and array.null_count
            and at.name not in self.values
            and not kinds.is_null(at.type)
            and _default(at.type) is None
        }
        if missing:
            texts = [f"column {name!r} has type {kind}" for name, kind in missing.items()]
            is_one = len(missing) == 1
            end = ", which has no default value" if is_one else "; these types have no default"
            settings = " ".join(f"--null {name}=VALUE" for name in missing)
            raise UsageError(
                f"--null fill: {format_list(texts, 'and')}{end}",
                hint=f"Choose {'a value' if is_one else 'values'} with {settings}.",
            )


def _default(kind: pa.DataType) -> pa.Scalar | None:
    """Return the value that `fill` stores in place of a null; None if the type has no default."""
    if is_text(kind):
        return pa.scalar("", kind)
    if is_binary(kind):
        size = kind.byte_width if kinds.is_fixed_size_binary(kind) else 0
        return pa.scalar(bytes(size), kind)
    if kinds.is_floating(kind):
        return pa.scalar(float("nan")).cast(kind)
    if kinds.is_decimal(kind):
        return pa.scalar(Decimal(0), kind)
    if kinds.is_boolean(kind) or kinds.is_integer(kind):
        return pa.scalar(0).cast(kind)
    if kinds.is_list(kind) or kinds.is_large_list(kind) or kinds.is_map(kind):
        return pa.scalar([], kind)
    return None


def _parsed(name: str, text: str, kind: pa.DataType) -> pa.Scalar:
    """Parse a replacement value: JSON for a nested type, unchanged for text and bytes.

    The value of a duration is a number in the unit of its type.
    """
    try:
        if is_binary(kind):
            return pa.scalar(text.encode(), kind)
        if kinds.is_nested(kind):
            value: Any = json.loads(text)
            return pa.scalar(value, kind)
        if kinds.is_time(kind):  # Arrow cannot cast text to these types
            return pa.scalar(time.fromisoformat(text), kind)
        if kinds.is_duration(kind):
            return pa.scalar(int(text), kind)
        return pa.scalar(text).cast(kind)
    except (pa.ArrowException, ValueError, TypeError):
        form = next((form for is_kind, form in _FORMS if is_kind(kind)), "")
        raise UsageError(
            f"--null {name}: expected {kind}, got {text!r:.60}",
            hint=f"Use a form such as --null {name}={form}." if form else "",
        ) from None
