"""Print batches of rows: JSON lines, CSV, TSV, a table, an Arrow stream, Parquet, or the bytes of a
column.

The metadata of a field names its encoding, which selects the text form of its values. JSON is
strict: NaN and infinity are null, bytes are `{"bytes": n, "sha256": …}`, and pickles are not
decoded. Cells of CSV, TSV and tables contain the same, except that text has no quotes and numbers
may be `nan`, `inf` and `-inf`. JSON and tables escape control, C1 and bidi characters. CSV and TSV
escape them only on a terminal, so that programs read each value unchanged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from flarecli.cli.printer import (
    Printer,
    binary,
    compact,
    finish,
    is_terminal,
    json_text,
    plain,
    refuse_terminal,
    shows_pictures,
    write_text,
)
from flarecli.errors import FlareError, UsageError, ValueFitError
from flarecli.expansion import MAX_DECODED_VALUE, MAX_PARQUET_VALUE, MAX_TEXT_VALUE
from flarecli.model import ENCODING
from flarecli.names import escape, shell_quoted
from flarecli.suggest import choose
from flarecli.units import format_size

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BYTES", "FORMS", "Look", "cell", "check", "write"]

FORMS = ("jsonl", "csv", "tsv", "table", "arrow", "parquet")
BYTES = ("sha256", "base64")
_BINARY = ("arrow", "parquet")
_DELIMITERS = {"csv": ",", "tsv": "\t"}
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")  # and their full-width forms
# encodings whose values become Python objects
_DOCUMENTS = ("json", "json_json", "msgpack", "tree")
_TEXT_BYTES = 4 << 20  # of rows that are converted to text at once
_GROUP_BYTES = 64 << 20  # uncompressed bytes of a row group in Parquet
_SCREEN, _CELL = 500, 200  # rows of one table on a terminal; characters of one cell
_DIGITS = 4300  # digits that Python parses as an int by default; longer numbers stay text


@dataclass(frozen=True)
class Look:
    """Form of printed values.

    whole    print bytes as base64, else as size and SHA-256
    pickles  decode pickles, which runs code from the data
    safe     in CSV and TSV, put an apostrophe before text that looks like a formula
    """

    whole: bool = False
    pickles: bool = False
    safe: bool = False


def check(form: str, raw: str | None, bytes_as: str, csv_safe: bool = False) -> None:
    """Check the options of the output before anything is read.

    form      one of FORMS
    raw       column whose stored bytes are printed alone
    bytes_as  one of BYTES
    csv_safe  put an apostrophe before text that looks like a formula
    raises    UsageError for an unknown form, and for binary output to a terminal
    """
    if form not in FORMS:
        raise UsageError(
            f"unknown form {form!r}",
            hint=choose(form, FORMS, meant={"json": "jsonl", "ndjson": "jsonl"}),
        )
    if bytes_as not in BYTES:
        raise UsageError(f"unknown form of bytes {bytes_as!r}", hint=choose(bytes_as, BYTES))
    if csv_safe and form not in _DELIMITERS:
        raise UsageError(f"--csv-safe is for {' and '.join(_DELIMITERS)}", hint="Give --to csv.")
    if raw is not None:
        refuse_terminal(f"--raw {raw}")
    elif form in _BINARY:
        refuse_terminal(f"--to {form}")


def write(
    batches: Iterable[pa.RecordBatch],
    printer: Printer,
    form: str = "jsonl",
    raw: str | None = None,
    look: Look = Look(),
) -> None:
    """Write batches to stdout in a form that `check` accepted.

    look    form of bytes and pickles
    raises  ValueFitError for invalid values of a `json` column
    """
    if raw is not None:
        _write_raw(batches, raw)
        return
    if form not in _BINARY:
        batches = (part for batch in batches for part in _parts(batch, look))
    if form == "jsonl":
        _write_json(batches, look)
    elif form == "arrow":
        _write_arrow(batches)
    elif form == "parquet":
        _write_parquet(batches)
    elif form in _DELIMITERS:
        _write_separated(batches, _DELIMITERS[form], look)
    elif is_terminal():
        _write_table(batches, printer, look)
    else:
        _write_plain(batches, look)


def _parts(batch: pa.RecordBatch, look: Look) -> Iterator[pa.RecordBatch]:
    """Split a batch to bound the memory of its rows as Python objects and text.

    raises  ValueFitError for a single value that is too large
    """
    import numpy as np

    from flarecli.encodings import value_sizes

    sizes = np.zeros(batch.num_rows)
    for field, array in zip(batch.schema, batch.columns, strict=True):
        lengths = value_sizes(array)
        if lengths is None:
            continue
        encoding = (field.metadata or {}).get(ENCODING, b"").decode()
        is_document = encoding.removesuffix("[]") in _DOCUMENTS
        if not is_document and not look.whole and _is_binary(array.type):
            continue  # bytes are printed as a checksum
        most = MAX_DECODED_VALUE if is_document else MAX_TEXT_VALUE
        if len(lengths) and (largest := int(lengths.max())) > most:
            shown = f"{largest} bytes; at most {most} are printed as text"
            raise ValueFitError(
                f"a value of column {field.name!r}: {shown}",
                hint=f"Give --raw {shell_quoted(field.name)} to see its bytes, or -c without it.",
            )
        sizes += lengths
    ends, start = np.cumsum(sizes), 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _TEXT_BYTES, "right")))
        yield batch if stop - start == batch.num_rows else batch.slice(start, stop - start)
        start = stop


def _write_json(batches: Iterable[pa.RecordBatch], look: Look) -> None:
    for batch in batches:
        names = batch.schema.names
        lines = (json_text(dict(zip(names, row, strict=True))) for row in _rows(batch, look))
        write_text("".join(line + "\n" for line in lines))


def _write_separated(batches: Iterable[pa.RecordBatch], delimiter: str, look: Look) -> None:
    r"""Write CSV (RFC 4180) or TSV with the same rules; lines end with `\n`.

    Cells are quoted if Python's csv or pandas would read them differently without: if they contain
    a delimiter, a quote or a line end, begin or end with white space, begin with a byte order mark,
    or make an empty line.
    """
    fit = escape if is_terminal() else str
    quoted = re.compile(f'[{delimiter}"\r\n]|\\A[\\s\ufeff]|\\s\\Z')

    def line(cells: Iterable[str]) -> str:
        words = [
            f'"{text.replace(chr(34), chr(34) * 2)}"' if quoted.search(text) else text
            for text in cells
        ]
        return (delimiter.join(words) if words != [""] else '""') + "\n"

    header = False
    for batch in batches:
        lines = []
        if not header:
            header = True
            lines.append(
                line(fit(_safe(name) if look.safe else name) for name in batch.schema.names)
            )
        for row in _rows(batch, look, numbers=True):
            lines.append(line(fit(_cell_text(value, look.safe)) for value in row))
        write_text("".join(lines))


def _cell_text(value: Any, safe: bool) -> str:
    """Return the text of a cell; with `safe`, text that looks like a formula gets an apostrophe."""
    text = _text(value)
    return _safe(text) if safe and not isinstance(value, (int, float)) else text


def _safe(text: str) -> str:
    """Return text that no spreadsheet reads as a formula (OWASP, CSV injection)."""
    return f"'{text}" if text.startswith(_FORMULA) else text


def _write_plain(batches: Iterable[pa.RecordBatch], look: Look) -> None:
    """Write a table for a pipe: escaped cells, separated by tabs."""
    header = False
    for batch in batches:
        rows = [[cell(value) for value in row] for row in _rows(batch, look, numbers=True)]
        if not header:
            rows.insert(0, [escape(name) for name in batch.schema.names])
            header = True
        write_text("".join("\t".join(row) + "\n" for row in rows))


def _write_table(batches: Iterable[pa.RecordBatch], printer: Printer, look: Look) -> None:
    header: Sequence[str] = ()

    def cells() -> Iterator[list[Any]]:
        nonlocal header
        for batch in batches:
            header = batch.schema.names
            drawn = _pictures(batch) if shows_pictures() and not look.whole else {}
            for i, row in enumerate(_rows(batch, look, numbers=True)):
                texts = [
                    text if len(text) <= _CELL else text[: _CELL - 1] + "…"
                    for text in map(cell, row)
                ]
                yield [drawn.get((i, k), text) for k, text in enumerate(texts)]

    rows = cells()
    while screen := list(islice(rows, _SCREEN)):
        printer.table(header, screen)


def _pictures(batch: pa.RecordBatch) -> dict[tuple[int, int], Any]:
    """Draw the images of a batch: (row, column) -> drawing."""
    from flarecli.cli.images import half_blocks
    from flarecli.encodings import raw_values
    from flarecli.media import is_image, sniff

    out: dict[tuple[int, int], Any] = {}
    for k, column in enumerate(batch.columns):
        for i, value in enumerate(raw_values(column) if _is_binary(column.type) else ()):
            data = bytes(value) if value is not None and len(value) <= MAX_TEXT_VALUE else None
            kind = sniff(data[:512]) if data else None
            if data is None or not is_image(kind):
                continue
            drawing = half_blocks(data, f"{kind}, {format_size(len(data))}")
            if drawing is not None:
                out[i, k] = drawing
    return out


def _write_arrow(batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa

    first, batches = _begun(batches)
    with pa.PythonFile(binary(), mode="w") as sink, pa.ipc.new_stream(sink, first) as writer:
        for batch in batches:
            writer.write_batch(batch)
            finish()


def _write_parquet(batches: Iterable[pa.RecordBatch]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    first, batches = _begun(batches)
    held: list[pa.RecordBatch] = []
    plain = [field.name for field in first if not pa.types.is_large_binary(field.type)]
    with (
        pa.PythonFile(binary(), mode="w") as sink,
        # statistics and dictionaries are useless for bytes, and both copy the values
        pq.ParquetWriter(sink, first, use_dictionary=plain, write_statistics=plain) as writer,
    ):
        for batch in batches:
            _check_parquet(batch)
            held.append(batch)
            if sum(one.nbytes for one in held) >= _GROUP_BYTES:
                writer.write_table(pa.Table.from_batches(held))
                held.clear()
        if held:
            writer.write_table(pa.Table.from_batches(held))


def _check_parquet(batch: pa.RecordBatch) -> None:
    """Raise ValueFitError for a value that is too large for the Parquet writer, which copies it
    several times.
    """
    import pyarrow as pa

    from flarecli.encodings import value_sizes

    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        sizes = value_sizes(array)
        most = MAX_PARQUET_VALUE if pa.types.is_large_binary(array.type) else MAX_TEXT_VALUE
        if sizes is not None and len(sizes) and (largest := int(sizes.max())) > most:
            raise ValueFitError(
                f"a value of column {name!r}: {largest} bytes; at most {most} are written to Parquet",
                hint="Use --to arrow, or -c without it.",
            )


def _begun(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of the first batch, and all batches."""
    import pyarrow as pa

    rest = iter(batches)
    first = next(rest, None)
    if first is None:
        return pa.schema([]), rest
    return first.schema, (batch for part in ((first,), rest) for batch in part)


def _write_raw(batches: Iterable[pa.RecordBatch], name: str) -> None:
    import pyarrow as pa

    from flarecli import encodings

    out = binary()
    for batch in batches:
        if name not in batch.schema.names:
            raise UsageError(
                f"no column {name!r}",
                hint=choose(name, batch.schema.names, "The columns are"),
                column=name,
            )
        array, encoding = (
            batch.column(name).drop_null(),
            encodings.encoding_of(batch.schema.field(name)),
        )
        if encoding is not None:
            array = encodings.stored(array, encodings.lookup(encoding))
        elif not _is_binary(array.type):
            array = array.cast(pa.large_string()).view(pa.large_binary())
        for data in encodings.raw_values(array):
            out.write(b"" if data is None else data)
        finish()


def _rows(batch: pa.RecordBatch, look: Look, numbers: bool = False) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch as tuples of JSON values.

    numbers  keep NaN and infinity, which JSON cannot store
    """
    if not batch.num_columns:
        return iter([()] * batch.num_rows)
    columns = zip(batch.columns, batch.schema, strict=True)
    return zip(*(_values(array, field, look, numbers) for array, field in columns), strict=True)


def _values(array: pa.Array, field: pa.Field, look: Look, numbers: bool = False) -> list[Any]:
    import pyarrow as pa

    from flarecli.encodings import raw_values

    encoding, kind = (field.metadata or {}).get(ENCODING, b"").decode(), array.type
    if pa.types.is_large_list(kind) and encoding.endswith("[]"):
        return _lists(
            array, field.with_metadata({ENCODING: encoding.removesuffix("[]").encode()}), look
        )
    if _is_binary(kind) and not look.whole and encoding not in ("msgpack", "tree", "pkl"):
        return [None if one is None else compact(one) for one in raw_values(array)]
    if _is_binary(kind):
        values: list[Any] = [None if one is None else bytes(one) for one in raw_values(array)]
    else:
        values = array.to_pylist()
    if encoding in ("msgpack", "tree"):
        return [
            None if data is None else _unpacked(data, field.name, encoding, look) for data in values
        ]
    if _is_binary(kind):
        return [None if data is None else _bytes(data, encoding, look) for data in values]
    if encoding in _NUMBERS:
        read = float if numbers and encoding == "str_float" else _NUMBERS[encoding]
        return [None if text is None else _told(text, field.name, read) for text in values]
    if encoding in ("json", "json_str", "json_int", "json_float"):
        return [None if text is None else _parsed(text, field.name) for text in values]
    if encoding == "json_json":  # nested JSON text
        return [
            None if text is None else _parsed(str(_parsed(text, field.name)), field.name)
            for text in values
        ]
    if pa.types.is_floating(kind) and not numbers:
        return [value if value is None or math.isfinite(value) else None for value in values]
    if (
        pa.types.is_integer(kind)
        or pa.types.is_floating(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_string(kind)
        or pa.types.is_large_string(kind)
    ):
        return values
    return [plain(value) for value in values]


def _lists(array: pa.Array, field: pa.Field, look: Look) -> list[Any]:
    """Return lists of JSON values; `field` is the field of an element."""
    ends, flat = array.offsets.to_pylist(), _values(array.flatten(), field, look)
    first = ends[0] if ends else 0
    pairs = zip(ends, ends[1:], array.is_valid().to_pylist(), strict=False)
    return [
        flat[start - first : stop - first] if is_valid else None for start, stop, is_valid in pairs
    ]


def _is_binary(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
        or pa.types.is_binary_view(kind)
    )


def _bytes(data: bytes, encoding: str, look: Look) -> Any:
    if encoding == "pkl" and look.pickles:
        return _unpickled(data)
    if look.whole:
        import base64

        return base64.b64encode(data).decode()
    return (
        f"<pickle, {format_size(len(data))}, not decoded>" if encoding == "pkl" else compact(data)
    )


def _unpickled(data: bytes) -> Any:
    """Return the value of a pickle in a form that JSON can store.

    The code in it may raise any exception.
    """
    from flarecli import encodings

    try:
        return plain(encodings.decode(encodings.lookup("pkl"), data, allow_pickle=True))
    except Exception as error:
        told = (
            error.message if isinstance(error, FlareError) else f"{type(error).__name__}: {error}"
        )
        raise ValueFitError(
            f"a pickle cannot be read: {told}", hint="Omit --allow-pickle to print its size."
        ) from None


def _unpacked(data: bytes, name: str, encoding: str, look: Look) -> Any:
    """Return the value of MessagePack; bytes and arrays in it have the same form as columns of
    bytes.
    """
    from flarecli import encodings

    def told(value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)):
            return _bytes(bytes(value), "", look)
        if isinstance(value, dict):
            return {str(key): told(one) for key, one in value.items()}
        if isinstance(value, (list, tuple)):
            return [told(one) for one in value]
        return told(value.tolist()) if hasattr(value, "tolist") else plain(value)

    try:
        return told(encodings.decode(encodings.lookup(encoding), data))
    except ValueFitError as error:
        hint = f"Give --raw {shell_quoted(name)} to see its bytes, or -c without it."
        raise ValueFitError(
            f"a value of column {name!r}: {error.message}", hint=hint, column=name
        ) from None


def _parsed(text: str, name: str) -> Any:
    """Return the value of JSON text, with NaN and infinity as null."""
    try:
        return json.loads(
            text, parse_constant=lambda _: None, parse_float=_number, parse_int=_integer
        )
    except (ValueError, RecursionError) as error:
        shown = text if len(text) <= 40 else text[:40] + "…"
        what = (
            "is nested too deeply"
            if isinstance(error, RecursionError)
            else f"is not valid JSON: {shown!r}"
        )
        raise ValueFitError(
            f"a value of column {name!r} {what}",
            hint=f"Give --raw {shell_quoted(name)} to see its bytes, or -c without it.",
            column=name,
        ) from None


def _told(text: str, name: str, read: Callable[[str], Any]) -> Any:
    """Return the number in a text. Raises ValueFitError if it is not a number."""
    try:
        return read(text)
    except ValueError:
        shown = text if len(text) <= 40 else text[:40] + "…"
        raise ValueFitError(
            f"a value of column {name!r} is not a number: {shown!r}",
            hint=f"Give --raw {shell_quoted(name)} to see its bytes, or -c without it.",
            column=name,
        ) from None


def _number(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _DIGITS else text


_NUMBERS = {"str_int": _integer, "str_float": _number}


def cell(value: Any) -> str:
    """Return the escaped text of a value in a table."""
    return escape(_text(value))


def _text(value: Any) -> str:
    """Return the text of a value: JSON, but text without its quotes, nothing for null, and `nan`,
    `inf` or `-inf`.
    """
    if value is None:
        return ""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, str) else json_text(value)
