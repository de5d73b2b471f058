"""Output of rows as JSON lines, CSV, TSV, a table, Arrow or Parquet, and of a column's bytes.

A field's metadata names the encoding, which determines how values are printed. JSON is strict: NaN
and infinity are null, bytes are `{"bytes": n, "sha256": …}`, and pickles are not decoded. Cells of
CSV, TSV and tables contain JSON values with two exceptions: strings are printed without JSON quotes
and escapes, and numbers may be `nan`, `inf` and `-inf`. JSON and tables escape control, C1 and bidi
characters. CSV and TSV escape these characters only on a terminal, so programs read each value
unchanged.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

from flarecli import encodings
from flarecli.cli.printer import (
    Printer,
    binary_stdout,
    bytes_summary,
    finish,
    has_colors,
    is_terminal,
    json_text,
    json_value,
    refuse_terminal,
    write_text,
)
from flarecli.errors import FlareError, ValueFitError
from flarecli.expansion import MAX_DECODED_VALUE, MAX_PARQUET_VALUE, MAX_TEXT_VALUE
from flarecli.lazy import np, pa
from flarecli.model import ENCODING
from flarecli.names import escape, shell_quoted
from flarecli.units import format_size

if TYPE_CHECKING:
    from rich.text import Text

__all__ = ["BYTES", "DELIMITERS", "FORMS", "ValueStyle", "cell", "check_terminal", "write"]

FORMS = ("jsonl", "csv", "tsv", "table", "arrow", "parquet")
BYTES = ("sha256", "base64")
_BINARY = ("arrow", "parquet")
DELIMITERS = {"csv": ",", "tsv": "\t"}
# ASCII and full-width characters that start a formula in a spreadsheet
_FORMULA = tuple("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
# encodings whose values are decoded to Python objects
_DOCUMENTS = ("json", "json_json", "msgpack", "tree")
_TEXT_BYTES = 4 << 20  # maximum size of rows that are converted to text together
_IMAGE_PIXELS = 24  # maximum width and height of an image in a cell: 24 characters on 12 lines
_TABLE_ROWS, _CELL_CHARS = 500, 200  # limits on a terminal table: rows; characters per cell
_MAX_DIGITS = 4300  # Python's default limit for parsing integers; longer integers remain text
_MAX_QUOTED = 40  # maximum number of characters of an invalid value in a message


@dataclass(frozen=True)
class ValueStyle:
    """Options for the text form of values.

    as_base64     print bytes as base64 instead of size and SHA-256
    allow_pickle  decode pickles, which runs code from the data
    csv_safe      in CSV and TSV, put an apostrophe before text that looks like a formula
    """

    as_base64: bool = False
    allow_pickle: bool = False
    csv_safe: bool = False


def check_terminal(form: str, raw: str | None) -> None:
    """Raise UsageError for binary output to a terminal.

    form  output format, one of FORMS
    raw   column whose stored bytes are the only output, or None
    """
    if raw is not None:
        refuse_terminal(f"--raw {raw}")
    elif form in _BINARY:
        refuse_terminal(f"--to {form}")


def write(
    batches: Iterable[pa.RecordBatch],
    printer: Printer,
    form: str = "jsonl",
    raw: str | None = None,
    style: ValueStyle = ValueStyle(),
) -> None:
    """Write batches to stdout.

    form    output format, one of FORMS
    raw     column whose stored bytes are the only output, regardless of `form`; or None
    style   text form of bytes and pickles
    raises  ValueFitError for a value that is invalid or too large to print
    """
    if raw is not None:
        _write_raw(batches, raw)
        return
    if form not in _BINARY:
        batches = (part for batch in batches for part in _parts(batch, style))
    if form == "jsonl":
        _write_json(batches, style)
    elif form == "arrow":
        _write_arrow(batches)
    elif form == "parquet":
        _write_parquet(batches)
    elif form in DELIMITERS:
        _write_lines(batches, _separated(DELIMITERS[form], style.csv_safe), style)
    elif is_terminal():
        _write_table(batches, printer, style)
    else:
        _write_lines(batches, _plain, style)


def _parts(batch: pa.RecordBatch, style: ValueStyle) -> Iterator[pa.RecordBatch]:
    """Split a batch to limit the memory for Python objects and text.

    raises  ValueFitError for a value that is too large
    """
    if not batch.num_rows:
        yield batch  # CSV output has a header even if there are no rows
        return
    sizes = np.zeros(batch.num_rows)
    for field, array in zip(batch.schema, batch.columns, strict=True):
        lengths = encodings.value_sizes(array)
        if lengths is None:
            continue
        encoding = (field.metadata or {}).get(ENCODING, b"").decode()
        is_document = encoding.removesuffix("[]") in _DOCUMENTS
        if not is_document and not style.as_base64 and encodings.is_binary(array.type):
            continue  # only the size and the checksum of these bytes are printed
        limit = MAX_DECODED_VALUE if is_document else MAX_TEXT_VALUE
        if (largest := int(lengths.max(initial=0))) > limit:
            message = f"value is {largest} bytes; at most {limit} are printed as text"
            raise _value_error(field.name, message)
        sizes += lengths
    ends, start = np.cumsum(sizes), 0
    while start < batch.num_rows:
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + _TEXT_BYTES, "right")))
        yield batch if stop - start == batch.num_rows else batch.slice(start, stop - start)
        start = stop


def _write_json(batches: Iterable[pa.RecordBatch], style: ValueStyle) -> None:
    for batch in batches:
        names = batch.schema.names
        lines = (json_text(dict(zip(names, row, strict=True))) for row in _rows(batch, style))
        write_text("".join(line + "\n" for line in lines))


def _write_lines(
    batches: Iterable[pa.RecordBatch], line: Callable[[Iterable[Any]], str], style: ValueStyle
) -> None:
    """Write a line with the column names, then a line for each row.

    line  function that returns the line for the values of a row
    """
    is_header_written = False
    for batch in batches:
        lines = [line(row) for row in _rows(batch, style, numbers=True)]
        if not is_header_written:
            lines.insert(0, line(batch.schema.names))
            is_header_written = True
        write_text("".join(lines))


def _separated(delimiter: str, is_safe: bool) -> Callable[[Iterable[Any]], str]:
    r"""Return a function that formats the values of a row as CSV (RFC 4180) or TSV.

    TSV has the same rules as CSV; lines end with `\n`. A cell is quoted if it contains a delimiter,
    a quote or a line end, if it starts or ends with white space, if it starts with a byte order
    mark, or if the line would be empty. Without quotes, Python's csv module or pandas would read a
    different text.
    """
    printable = escape if is_terminal() else str
    needs_quotes = re.compile(f'[{delimiter}"\r\n]|\\A[\\s\ufeff]|\\s\\Z')

    def line(values: Iterable[Any]) -> str:
        cells = []
        for value in values:
            text = printable(_cell_text(value, is_safe))
            if needs_quotes.search(text):
                doubled = text.replace('"', '""')
                text = f'"{doubled}"'
            cells.append(text)
        return (delimiter.join(cells) if cells != [""] else '""') + "\n"

    return line


def _plain(values: Iterable[Any]) -> str:
    """Format the values of a row as escaped, tab-separated cells."""
    return "\t".join(map(cell, values)) + "\n"


def _cell_text(value: Any, safe: bool) -> str:
    """Return the text of a cell.

    With `safe`, an apostrophe prevents spreadsheets from evaluating text as a formula (OWASP, CSV
    injection).
    """
    text = _text(value)
    is_formula = text.startswith(_FORMULA) and not isinstance(value, (int, float))
    return f"'{text}" if safe and is_formula else text


def _write_table(batches: Iterable[pa.RecordBatch], printer: Printer, style: ValueStyle) -> None:
    header: Sequence[str] = ()

    def cells() -> Iterator[list[Any]]:
        nonlocal header
        for batch in batches:
            header = batch.schema.names
            drawn = _drawings(batch) if has_colors(sys.stdout) and not style.as_base64 else {}
            for i, row in enumerate(_rows(batch, style, numbers=True)):
                texts = [
                    text if len(text) <= _CELL_CHARS else text[: _CELL_CHARS - 1] + "…"
                    for text in map(cell, row)
                ]
                yield [drawn.get((i, k), text) for k, text in enumerate(texts)]

    rows = cells()
    while table := list(islice(rows, _TABLE_ROWS)):
        printer.table(header, table)


def _drawings(batch: pa.RecordBatch) -> dict[tuple[int, int], Any]:
    """Draw the images in a batch and return (row, column) -> drawing."""
    from flarecli.media import is_image, sniff

    out: dict[tuple[int, int], Any] = {}
    for k, column in enumerate(batch.columns):
        for i, value in enumerate(
            encodings.raw_values(column) if encodings.is_binary(column.type) else ()
        ):
            data = bytes(value) if value is not None and len(value) <= MAX_TEXT_VALUE else None
            kind = sniff(data[:512]) if data else None
            if data is None or not is_image(kind):
                continue
            drawing = half_blocks(data, f"{kind}, {format_size(len(data))}")
            if drawing is not None:
                out[i, k] = drawing
    return out


def half_blocks(data: bytes, caption: str) -> Text | None:
    """Draw an image above a caption. The result is None if the image is invalid or too large.

    Each character is a half block that shows two pixels; the foreground color is the
    color of the upper pixel.

    caption  text that is already escaped
    """
    from rich.color import Color
    from rich.style import Style
    from rich.text import Text

    from flarecli.media import thumbnail

    try:
        image = thumbnail(data, _IMAGE_PIXELS, _IMAGE_PIXELS)
    except ValueFitError:
        return None
    width, height = image.size
    pixels = image.tobytes()

    def color_at(x: int, y: int) -> Color | None:
        start = 3 * (y * width + x)
        return Color.from_rgb(*pixels[start : start + 3]) if y < height else None

    text = Text(no_wrap=True)
    for y in range(0, height, 2):
        for x in range(width):
            text.append("▀", Style(color=color_at(x, y), bgcolor=color_at(x, y + 1)))
        text.append("\n")
    text.append(caption)
    return text


def _write_arrow(batches: Iterable[pa.RecordBatch]) -> None:
    schema, batches = _with_schema(batches)
    with (
        pa.PythonFile(binary_stdout(), mode="w") as sink,
        pa.ipc.new_stream(sink, schema) as writer,
    ):
        for batch in batches:
            writer.write_batch(batch)
            finish()


def _write_parquet(batches: Iterable[pa.RecordBatch]) -> None:
    from flarecli.formats.tables.parquet_write import parquet_parts

    schema, batches = _with_schema(batches)

    def checked() -> Iterator[pa.RecordBatch]:
        for batch in batches:
            _check_parquet(batch)
            yield batch

    out = binary_stdout()
    for part in parquet_parts(schema, checked()):
        out.write(part)


def _check_parquet(batch: pa.RecordBatch) -> None:
    """Raise ValueFitError for a value that is too large for Parquet.

    The limit exists because the Parquet writer copies each value several times.
    """
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        sizes = encodings.value_sizes(array)
        limit = MAX_PARQUET_VALUE if pa.types.is_large_binary(array.type) else MAX_TEXT_VALUE
        if sizes is not None and (largest := int(sizes.max(initial=0))) > limit:
            raise ValueFitError(
                f"column {name!r}: value is {largest} bytes; the maximum for Parquet is {limit}",
                hint="Use --to arrow, or select other columns with -c.",
                column=name,
            )


def _with_schema(batches: Iterable[pa.RecordBatch]) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema of the first batch, which must exist, and an iterator over all batches."""
    rest = iter(batches)
    first = next(rest)
    return first.schema, chain((first,), rest)


def _write_raw(batches: Iterable[pa.RecordBatch], name: str) -> None:
    out = binary_stdout()
    for batch in batches:
        array = batch.column(name).drop_null()
        encoding = encodings.encoding_of(batch.schema.field(name))
        if encoding is not None:
            array = encodings.stored(array, encodings.lookup(encoding))
        elif not encodings.is_binary(array.type):
            array = array.cast(pa.large_string()).view(pa.large_binary())
        for data in encodings.raw_values(array):
            out.write(b"" if data is None else data)
        finish()


def _rows(
    batch: pa.RecordBatch, style: ValueStyle, numbers: bool = False
) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a batch as tuples of JSON values.

    numbers  True to keep NaN and infinity, which JSON cannot store
    """
    if not batch.num_columns:
        return iter([()] * batch.num_rows)
    columns = zip(batch.columns, batch.schema, strict=True)
    return zip(*(_values(array, field, style, numbers) for array, field in columns), strict=True)


def _values(
    array: pa.Array, field: pa.Field, style: ValueStyle, numbers: bool = False
) -> list[Any]:
    """Return the JSON values of a column."""
    encoding, kind = (field.metadata or {}).get(ENCODING, b"").decode(), array.type
    if pa.types.is_large_list(kind) and encoding.endswith("[]"):
        item = field.with_metadata({ENCODING: encoding.removesuffix("[]").encode()})
        return _lists(array, item, style)
    if encodings.is_binary(kind):
        return [
            None if data is None else _bytes(data, field.name, encoding, style)
            for data in encodings.raw_values(array)
        ]
    if isinstance(array, pa.FixedShapeTensorArray):
        tensors = iter(array.drop_null().to_numpy_ndarray().tolist())
        present = array.is_valid().to_pylist()
        return [json_value(next(tensors)) if valid else None for valid in present]
    if pa.types.is_temporal(kind) or pa.types.is_decimal(kind):
        array = array.cast(pa.large_string())
    values: list[Any] = array.to_pylist()
    if encoding in _NUMBERS:
        parse = float if numbers and encoding == "str_float" else _NUMBERS[encoding]
        return [None if text is None else _number(text, field.name, parse) for text in values]
    if encoding in ("json", "json_str", "json_int", "json_float"):
        return [None if text is None else _json(text, field.name) for text in values]
    if encoding == "json_json":  # a JSON string that contains JSON text
        return [
            None if text is None else _json(str(_json(text, field.name)), field.name)
            for text in values
        ]
    is_plain = pa.types.is_primitive(array.type) or encodings.is_text(array.type)
    if is_plain and (numbers or not pa.types.is_floating(kind)):
        return values
    return [json_value(value) for value in values]


def _lists(array: pa.Array, item: pa.Field, style: ValueStyle) -> list[Any]:
    """Return the lists in a column as lists of JSON values; `item` is the field of the items."""
    ends, flat = array.offsets.to_pylist(), _values(array.flatten(), item, style)
    first = ends[0] if ends else 0
    pairs = zip(ends, ends[1:], array.is_valid().to_pylist(), strict=False)
    return [
        flat[start - first : stop - first] if is_valid else None for start, stop, is_valid in pairs
    ]


def _bytes(
    data: bytes | bytearray | memoryview, name: str, encoding: str, style: ValueStyle
) -> Any:
    """Return the JSON value of bytes in the column `name`."""
    if encoding in ("msgpack", "tree"):
        return _unpacked(bytes(data), name, encoding, style)
    if encoding == "pkl" and style.allow_pickle:
        return _unpickled(bytes(data))
    if style.as_base64:
        return base64.b64encode(data).decode()
    if encoding == "pkl":
        return f"<pickle, {format_size(len(data))}, not decoded>"
    return bytes_summary(data)


def _unpickled(data: bytes) -> Any:
    """Decode a pickle and convert its value to the types of JSON.

    Code in the pickle may raise any exception.
    """
    try:
        return json_value(encodings.decode(encodings.lookup("pkl"), data, allow_pickle=True))
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, FlareError):
            reason = error.message
        raise ValueFitError(
            f"cannot decode a pickle: {reason}",
            hint="Omit --allow-pickle to print only the size of the pickle.",
        ) from None


def _unpacked(data: bytes, name: str, encoding: str, style: ValueStyle) -> Any:
    """Decode a MessagePack value and convert it to the types of JSON; arrays become lists."""

    def convert(value: Any) -> Any:
        if isinstance(value, (bytes, bytearray)):
            return _bytes(value, name, "", style)
        if isinstance(value, dict):
            return {str(key): convert(item) for key, item in value.items()}
        if isinstance(value, (list, tuple)):
            return [convert(item) for item in value]
        return convert(value.tolist()) if hasattr(value, "tolist") else json_value(value)

    try:
        return convert(encodings.decode(encodings.lookup(encoding), data))
    except ValueFitError as error:
        raise _value_error(name, error.message) from None


def _json(text: str, name: str) -> Any:
    """Parse JSON text. NaN and infinity become null."""
    try:
        return json.loads(
            text, parse_constant=lambda _: None, parse_float=_finite, parse_int=_integer
        )
    except RecursionError:
        raise _value_error(name, "value is nested too deeply") from None
    except ValueError:
        raise _value_error(name, f"invalid JSON: {_quoted(text)}") from None


def _number(text: str, name: str, parse: Callable[[str], Any]) -> Any:
    """Parse a number. Raises ValueFitError for any other text."""
    try:
        return parse(text)
    except ValueError:
        raise _value_error(name, f"expected a number, got {_quoted(text)}") from None


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None


def _integer(text: str) -> int | str:
    return int(text) if len(text) <= _MAX_DIGITS else text


_NUMBERS = {"str_int": _integer, "str_float": _finite}


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "…")


def _value_error(name: str, reason: str) -> ValueFitError:
    """Return the error for a value that cannot be printed."""
    hint = f"Use --raw {shell_quoted(name)} to print its bytes, or select other columns with -c."
    return ValueFitError(f"column {name!r}: {reason}", hint=hint, column=name)


def cell(value: Any) -> str:
    """Return the escaped text of a value in a table."""
    return escape(_text(value))


def _text(value: Any) -> str:
    """Format a JSON value for a cell.

    A string is returned unchanged. Null becomes an empty string. NaN and infinity, which JSON
    cannot store, become `nan`, `inf` or `-inf`. Any other value is returned as JSON.
    """
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if type(value) is int or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return json_text(value)
