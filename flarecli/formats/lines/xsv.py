"""CSV, TSV and XSV shards of MosaicML Streaming: a line per sample, and a `.meta` file.

`lines.base` describes the `.meta` file. The first line lists the columns, sorted by the code
points of their names. Values are not quoted or escaped. A value ends at the separator or newline,
so a value that contains a separator or newline is an error. The separator is `,` in csv, a tab in
tsv and any text in xsv. The newline string is any text.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from flarecli import compress
from flarecli.errors import FormatError, UsageError, ValueFitError
from flarecli.formats.base import (
    BINARY,
    FLOATS,
    INTEGERS,
    LISTED_PICTURES,
    OriginalValue,
    Substitutes,
)
from flarecli.formats.lines import base as lines
from flarecli.formats.lines.base import LineFormat, LineWriter
from flarecli.formats.mds import config as mds_config
from flarecli.lazy import pa
from flarecli.model import (
    ByteArray,
    Columns,
    IntArray,
    Row,
    Settings,
    Shard,
)

__all__ = ["CSV", "TSV", "XSV"]

_HINT = (
    "Use -f json or -f mds, which can store any text, or use -f xsv with another --separator or "
    "--newline."
)
# Maximum length of a separator or newline that numpy searches for. The search compares one byte at
# a time at all candidate offsets, so it is slow for long text.
_MAX_SEARCH_BYTES = 32


class _Separated(LineFormat):
    """Base class for formats that store a row as a line of separated values.

    The class attribute `separator` is None if each shard declares its separator in its config.
    """

    readers = "MosaicML readers"
    options = frozenset({"newline", "separator"})
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys((*BINARY, *LISTED_PICTURES, "bytes[]")),
        **dict.fromkeys(("varint", "json_int", *INTEGERS), "str_int"),
        **dict.fromkeys(("msgpack_float", "json_float", *FLOATS), "str_float"),
        **dict.fromkeys(("ndarray", "array", "msgpack", "tree", "json_json"), "json"),
        "json_str": "str",
        "ndarray[]": "json",
        "*[]": "json",
    }

    def parse_layout(
        self, columns: Columns, config: Mapping[str, Any], where: object
    ) -> Mapping[str, Any]:
        """Return the header, the newline and the separator of a shard."""
        newline = mds_config.text_of(config, "newline", where).encode()
        separator = (self.separator or mds_config.text_of(config, "separator", where)).encode()
        if not columns:
            raise FormatError("config has no columns", where=where)
        return {
            "header": separator.join(one.name.encode() for one in columns) + newline,
            "newline": newline,
            "separator": separator,
        }

    def line_writer(self, columns: Columns, settings: Settings) -> LineWriter:
        """Return the writer for lines of separated values.

        raises  UsageError if a reader could not split the header into the column names
        """
        separator, newline = self._ends(columns, settings)
        return LineWriter(
            separator.join(one.name.encode() for one in columns) + newline,
            len(separator) * (len(columns) - 1) + len(newline),
            lambda piece: _check(columns, piece, separator, newline),
            lambda piece: _parts(lines.stored_columns(columns, piece).values(), separator, newline),
        )

    def locate(self, shard: Shard, data: ByteArray, starts: IntArray) -> lines.Places | None:
        """Locate each value; None if a line has a wrong number of separators or a wrong newline."""
        separator, newline = shard.layout["separator"], shard.layout["newline"]
        ends = starts[1:] - len(newline)
        if (ends < starts[:-1]).any():
            return None
        found = data[ends[:, None] + np.arange(len(newline))]
        if not (found == np.frombuffer(newline, np.uint8)).all():
            return None
        cuts = _cuts(data, starts, ends, separator, len(shard.columns) - 1)
        if cuts is None:
            return None
        first = np.concatenate((starts[:-1, None], cuts + len(separator)), axis=1)
        last = np.concatenate((cuts, ends[:, None]), axis=1)
        return {
            one.name: (first[:, k], last[:, k] - first[:, k]) for k, one in enumerate(shard.columns)
        }

    def split_line(self, shard: Shard, row: int, line: bytes) -> Row:
        """Return the text of each value in a line."""
        newline, separator = shard.layout["newline"], shard.layout["separator"]
        if not line.endswith(newline):
            raise FormatError(
                f"line does not end with {newline.decode()!r:.60}", where=shard.chunk.at, row=row
            )
        # An invalid line may contain millions of separators, so split off only one extra value.
        parts = line[: -len(newline)].split(separator, len(shard.columns))
        if len(parts) != len(shard.columns):
            count = line[: -len(newline)].count(separator) + 1
            raise FormatError(
                f"expected {len(shard.columns)} values in the line, got {count}",
                where=shard.chunk.at,
                row=row,
            )
        return {one.name: value for one, value in zip(shard.columns, parts, strict=True)}

    def original_value(self, encoding: str) -> OriginalValue:
        """Return "text" for decimals, and "JSON text" for JSON. MosaicML readers parse neither."""
        if encoding == "json":
            return "JSON text"
        return "text" if encoding == "str_decimal" else super().original_value(encoding)

    def _ends(self, columns: Columns, settings: Settings) -> tuple[bytes, bytes]:
        """Return the separator and the newline.

        raises  UsageError if a reader could not split the header into the column names
        """
        separator, newline = self.separator or settings.separator, settings.newline
        for what, text in (("separator", separator), ("newline", newline)):
            if not text:
                raise UsageError(f"{self.name} needs a {what}")
            for one in columns:
                if text in one.name:
                    raise UsageError(
                        f"column name {one.name!r} contains the {what} {text!r}",
                        hint=_HINT,
                        column=one.name,
                    )
        header = separator.join(one.name for one in columns)
        if header.split(separator) != [one.name for one in columns] or (header + newline).find(
            newline
        ) != len(header):
            raise UsageError(
                f"the column names cannot be read back if the separator is {separator!r} and the "
                f"newline is {newline!r}",
                hint=_HINT,
            )
        return separator.encode(), newline.encode()


def _cuts(
    data: ByteArray, starts: IntArray, ends: IntArray, separator: bytes, each: int
) -> IntArray | None:
    """Return the offsets of the separators: int64 [rows, each].

    ends    end of each line without its newline: int64 [rows]
    each    expected number of separators per line
    return  None if a line has a different number of separators, if separators overlap, or if the
            separator is longer than `_MAX_SEARCH_BYTES`
    """
    rows = len(ends)
    if not each:
        return np.zeros((rows, 0), np.int64)
    if len(separator) > _MAX_SEARCH_BYTES:
        return None
    at = lines.find_all(data, separator)
    if len(at) != rows * each:
        # The newline string may contain the separator. Remove such matches.
        row = np.searchsorted(starts, at, "right") - 1
        at = at[at + len(separator) <= ends[row]]
        if len(at) != rows * each:
            return None
    cuts = at.reshape(rows, each)
    if (
        (cuts[:, 0] < starts[:-1]).any()
        or (cuts[:, -1] + len(separator) > ends).any()
        or (np.diff(cuts) < len(separator)).any()
    ):
        return None
    return cuts


# -- writing


def _check(columns: Columns, batch: pa.RecordBatch, separator: bytes, newline: bytes) -> None:
    """Raise ValueFitError for the first row that a reader would not read back unchanged."""
    fields = list(lines.stored_columns(columns, batch).values())
    body, starts = lines.joined(_parts(fields, separator, newline))
    data = np.frombuffer(body, np.uint8)
    each, ends = len(columns) - 1, starts[1:] - len(newline)
    suspects = np.union1d(
        _suspects(data, starts, ends, separator, each),
        _suspects(data, starts, starts[1:], newline, 1),
    )
    # A suspect row may be valid: if a value is empty, the separators around it may contain a third
    # match that overlaps both.
    for row in suspects.tolist():
        values = [field[row].as_py() for field in fields]
        line = separator.join(values)
        if line.split(separator) != values or (line + newline).find(newline) != len(line):
            _refuse(columns, values, row, separator, newline)


def _parts(fields: Iterable[pa.Array], separator: bytes, newline: bytes) -> list[Any]:
    """Return the columns and the constant bytes around them; see `LineWriter.parts`."""
    parts = [part for field in fields for part in (separator, field)]
    return [*parts[1:], newline]


def _suspects(
    data: ByteArray, starts: IntArray, ends: IntArray, text: bytes, each: int
) -> IntArray:
    """Return the rows that contain `text` more than `each` times, including overlapping matches.

    If `text` is longer than `_MAX_SEARCH_BYTES`, all rows are returned.
    """
    if len(text) > _MAX_SEARCH_BYTES:
        return np.arange(len(ends))
    at = lines.find_all(data, text)
    if len(at) == len(ends) * each:  # each row has at least `each` matches, so no row has more
        return np.zeros(0, np.int64)
    row: IntArray = np.searchsorted(starts, at, "right") - 1
    count = np.bincount(row[at + len(text) <= ends[row]], minlength=len(ends))
    return np.flatnonzero(count != each)


def _refuse(
    columns: Columns, values: Sequence[bytes], row: int, separator: bytes, newline: bytes
) -> NoReturn:
    """Raise ValueFitError for a row that a reader would split in the wrong place."""
    for what, text in (("separator", separator), ("newline", newline)):
        for one, value in zip(columns, values, strict=True):
            if text in value:
                raise ValueFitError(
                    f"column {one.name!r}: value contains the {what} {text.decode()!r}",
                    row=row,
                    hint=_HINT,
                    column=one.name,
                )
    for one, value in zip(columns, values, strict=True):
        for what, text in (("separator", separator), ("newline", newline)):
            if (value + text).find(text) != len(value):
                message = (
                    f"column {one.name!r}: followed by the {what} {text.decode()!r}, "
                    "the value would end too early"
                )
                raise ValueFitError(message, row=row, hint=_HINT, column=one.name)
    raise ValueFitError(
        f"values joined by {separator.decode()!r} contain the newline {newline.decode()!r}",
        row=row,
        hint=_HINT,
    )


def _suffixes(name: str) -> tuple[str, ...]:
    return (f".{name}", *(f".{name}.{kind}" for kind in compress.SUFFIXES))


class CSV(_Separated):
    """CSV shards: values separated by commas."""

    name, separator, suffixes = "csv", ",", _suffixes("csv")


class TSV(_Separated):
    """TSV shards: values separated by tabs."""

    name, separator, suffixes = "tsv", "\t", _suffixes("tsv")


class XSV(_Separated):
    """XSV shards: values with a separator that the user chooses."""

    name, suffixes = "xsv", _suffixes("xsv")
