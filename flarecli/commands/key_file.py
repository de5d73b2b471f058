"""The file of `--keys`: read its keys, and convert them to the type of the key column.

A table has a column with the name of the key column. Any other file contains one key per line, and
so does a stream. Empty keys are ignored: nulls, empty text and NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from flarecli import encodings, ingest
from flarecli.bisect import failing_values
from flarecli.errors import EmptyTableError, FormatError, Place, UsageError
from flarecli.redact import redact
from flarecli.storage import Guard, locate
from flarecli.suggest import choose
from flarecli.write import check_key_type, erasable_bytes, is_empty_key, key_bytes, key_text

__all__ = ["FileKeys", "read_keys"]

_BATCH_KEYS = 1 << 16  # number of lines that are converted together


@dataclass(frozen=True)
class FileKeys:
    """The keys in a file.

    kind     type of the key column
    values   the keys, in the type of the key column without storage variants
    written  the keys, in the type in which the file stores them
    """

    kind: pa.DataType
    values: pa.Array
    written: pa.Array

    def distinct(self) -> pa.Array:
        """Return the `erasable_bytes` of the distinct keys."""
        return erasable_bytes(self.values, self.kind).unique()

    def to_erase(self) -> list[pa.Array]:
        """Return the keys for `ErasedKeys.added`.

        The text in the file is included if it differs from the text of the value, such as `1e0` for
        1.0, because `failed.jsonl` may contain the text of the source.
        """
        is_other = pc.not_equal(key_bytes(self.written), erasable_bytes(self.values, self.kind))
        return [self.values, self.written.filter(is_other)]


def read_keys(address: str, guard: Guard, name: str, kind: pa.DataType) -> FileKeys:
    """Read the keys in a file.

    name    key column
    kind    type of the key column in the dataset
    raises  UsageError for a table without the key column; FormatError for an invalid file, and for
            the first key that the type of the key column cannot represent
    """
    target = encodings.value_type(encodings.without_variants(kind))
    values: list[pa.Array] = [pa.nulls(0, target)]
    written: list[pa.Array] = []
    is_table = ingest.is_named_table(address)
    first, where = 0, redact(address)
    found = _column(address, guard, name) if is_table else _lines(address, guard)
    for keys in found:
        is_empty = pa.array(is_empty_key(keys))
        keys = pc.if_else(is_empty, pa.scalar(None, keys.type), keys)
        try:
            converted = _converted(keys, target)
        except pa.ArrowNotImplementedError:
            raise FormatError(
                f"keys of type {keys.type} cannot be compared with column {name!r}, which has the "
                f"type {kind}",
                where=where,
                column=name,
                hint=f"Use a Parquet file whose column {name!r} has the type {kind}.",
            ) from None
        except pa.ArrowInvalid:
            at, _ = next(
                failing_values(keys, lambda some: _converted(some, target), pa.ArrowInvalid)
            )
            row = first + at
            place = Place(where, row) if is_table else Place(where, line=row + 1)
            raise FormatError(
                f"key {key_text(keys[at])!r} does not fit column {name!r}, which has the type "
                f"{kind}",
                where=place,
                column=name,
                hint=_hint(keys.type, target),
            ) from None
        values.append(converted.drop_null())
        written.append(keys.drop_null())
        first += len(keys)
    given = written[0].type if written else target
    return FileKeys(
        kind, pa.concat_arrays(values), pa.concat_arrays([pa.nulls(0, given), *written])
    )


def _column(address: str, guard: Guard, name: str) -> Iterator[pa.Array]:
    """Yield the key column of a table in batches; nothing for a table without rows."""
    try:
        index = ingest.open_index([address], guard=guard, text={name})
        if name not in index.schema.names:
            raise UsageError(
                f"--keys: no column {name!r}",
                where=redact(address),
                hint=choose(name, index.schema.names, "Choose from"),
            )
        check_key_type(name, index.schema.field(name).type, redact(address))
        for batch in index.batches([name]):
            yield batch.column(0)
    except EmptyTableError:
        return


def _lines(address: str, guard: Guard) -> Iterator[pa.Array]:
    """Yield the lines of a text file or a stream, such as standard input, in batches."""
    (stream,) = ingest.open_streams([address])
    lines = ingest.text_lines(
        ingest.text_file(locate(stream, guard)) if isinstance(stream, str) else stream
    )
    while batch := list(islice(lines, _BATCH_KEYS)):
        yield pa.array(batch, pa.large_string())


def _converted(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert keys to a type; nulls remain null.

    For a column of floats, a number is rounded to the nearest value of the type. All other
    conversions are exact. Timestamps without a zone are timestamps in UTC.

    raises  ArrowInvalid for a key that the type cannot represent; ArrowNotImplementedError if keys
            of this type cannot be compared with values of type `kind`
    """
    families = _family(keys.type), _family(kind)
    if "text" not in families and families[0] not in (families[1], "null"):
        raise pa.ArrowNotImplementedError(f"cannot compare {keys.type} with {kind}")
    if kinds.is_decimal(kind) and not kinds.is_decimal(keys.type):
        # Arrow rounds floats, and casts an int64 only to decimals of at least 19 digits. It
        # converts text exactly.
        keys = keys.cast(pa.large_string())
    out = keys.cast(kind)
    if families == ("date", "date") and not out.cast(keys.type).equals(keys):
        raise pa.ArrowInvalid("the type of the column has no time of day")
    return out


def _family(kind: pa.DataType) -> str:
    """Return the name of a set of types whose values can be compared with each other."""
    if encodings.is_text(kind) or encodings.is_binary(kind):
        return "text"
    if kinds.is_integer(kind) or kinds.is_floating(kind) or kinds.is_decimal(kind):
        return "number"
    if kinds.is_timestamp(kind) or kinds.is_date(kind):
        return "date"
    return "time" if kinds.is_time(kind) else str(kind)


def _hint(given: pa.DataType, kind: pa.DataType) -> str:
    """Return a hint for a key that the type of the column cannot represent."""
    if not kinds.is_timestamp(kind) or _family(given) != "text":
        return ""
    if kind.tz is None:
        return "Write timestamps without a zone, such as 2026-01-31 12:00:00."
    return "Write timestamps with a zone, such as 2026-01-31T12:00:00Z."
