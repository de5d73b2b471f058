"""CSV, TSV and XSV shards of MosaicML Streaming: a line of text a sample, and a `.meta` beside them; see `lines`.

The first line names the columns, by code point. Nothing is quoted or escaped: a value ends at the separator or at the newline, so it can
hold neither, and is refused if it does. Separators are `,` in csv, a tab in tsv, any text in xsv; the newline may be any text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np

from flarecli import compress
from flarecli.errors import FormatError, UsageError, ValueFitError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import BINARY, FLOATS, INTEGERS, LISTED_PICTURES, Substitutes
from flarecli.formats.lines import base as lines
from flarecli.formats.lines.base import LineFormat
from flarecli.formats.mds import config as mds_config
from flarecli.lazy import pa
from flarecli.model import (
    Chunk,
    Column,
    Columns,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
)
from flarecli.storage import Location

__all__ = ["CSV", "TSV", "XSV"]

_HINT = "Choose another --separator or --newline with -f xsv, or another --format."
_LONG = 32  # bytes of a separator or newline that is looked for in many lines at once: of `aaa…` in `aaa…` each takes another look at all the data


class _Separated(LineFormat):
    """Values between separators, a line per row; `separator` is None where each dataset has its own."""

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

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the `.meta` and touch none of the lines. Raises FormatError, IntegrityError: see `lines.opened`."""
        return lines.opened(chunk, columns, self.name, self._layout)

    def _layout(
        self, columns: Columns, config: Mapping[str, Any], where: object
    ) -> Mapping[str, Any]:
        newline = mds_config.text_of(config, "newline", where).encode()
        separator = (self.separator or mds_config.text_of(config, "separator", where)).encode()
        if not columns:
            raise FormatError("its config names no columns", where=where)
        return {
            "header": separator.join(one.name.encode() for one in columns) + newline,
            "newline": newline,
            "separator": separator,
        }

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Give the text of each value, in the order asked. Raises FormatError naming the row whose line has other fields."""
        names = shard.memo.get("names") or shard.memo.setdefault(
            "names", [one.name for one in shard.columns]
        )
        parts = [
            _split(shard, row, bytes(line))
            for row, line in zip(rows, lines.lines_of(shard, rows), strict=True)
        ]
        out: list[Row] = [dict(zip(names, values, strict=True)) for values in parts]
        return out if columns is None else [{name: row[name] for name in columns} for row in out]

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Give rows start..stop as typed columns of text.

        raises  FormatError naming the first row whose line has other fields; ValueFitError for text that is not UTF-8
        """
        data, starts = lines.bytes_of(shard, start, stop)
        return lines.assembled(
            shard, start, stop, columns, lines.cut(data, _places(shard, start, data, starts), views)
        )

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Weigh each line; the header and the `.meta` do not count, as in the original: int64 [rows].

        raises  UsageError for names that the header cannot hold; ValueFitError naming the first row that a line cannot hold
        """
        separator, newline = self._ends(columns, settings)
        sizes = self._weights(
            columns, batch, separator, newline
        )  # first: a row that no shard holds is never joined
        for _ in lines.bodies((batch,), lambda piece: _body(columns, piece, separator, newline)):
            pass
        return 0, sizes

    def _weights(
        self, columns: Columns, batch: pa.RecordBatch, separator: bytes, newline: bytes
    ) -> IntArray:
        return lines.weights(
            columns, batch, len(separator) * (len(columns) - 1) + len(newline), 0, self.name
        )

    def _ends(self, columns: Columns, settings: Settings) -> tuple[bytes, bytes]:
        """Give the separator and the newline. Raises UsageError if the header would not be read back."""
        separator, newline = self.separator or settings.separator, settings.newline
        for what, text in (("separator", separator), ("newline", newline)):
            if not text:
                raise UsageError(f"a {self.name} shard wants a {what}")
            for one in columns:
                if text in one.name:
                    raise UsageError(
                        f"column {one.name!r}: its name holds the {what} {text!r}",
                        hint=_HINT,
                        column=one.name,
                    )
        header = separator.join(one.name for one in columns)
        if header.split(separator) != [one.name for one in columns] or (header + newline).find(
            newline
        ) != len(header):
            raise UsageError(f"names between {separator!r} cannot be told apart again", hint=_HINT)
        return separator.encode(), newline.encode()

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Sort columns by name, by code point, each as text holds it. Raises UsageError for one that it cannot hold, two of one name, or none."""
        return lines.arranged(tuple(self.held(one) for one in columns))

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write all rows as `shard.00000.csv` (tsv, xsv) and its `.meta`, as the original does.

        raises  ValueFitError for a value that a line cannot hold, or if the data would pass 4 GiB
        """
        separator, newline = self._ends(columns, settings)
        sizes = [self._weights(columns, batch, separator, newline) for batch in batches]
        header = separator.join(one.name.encode() for one in columns) + newline
        bodies = lines.bodies(batches, lambda piece: _body(columns, piece, separator, newline))
        return lines.write(at, number, self.name, columns, settings, header, sizes, bodies)

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the header and that every line has its fields, and, if asked, that every value is text."""
        header = shard.layout["header"]
        (found,) = spans.read(shard.chunk, [(0, len(header))])
        if found != header:
            yield Finding(
                str(shard.chunk.at),
                FormatError.kind,
                f"its header is {bytes(found)!r:.80}, not {header!r:.80}",
                "Find out what was changed.",
            )
        yield from lines.checked(shard, lambda start, stop: self._check(shard, start, stop, values))

    def _check(self, shard: Shard, start: int, stop: int, values: bool) -> None:
        if values:
            self.read_batch(shard, start, stop)
        else:
            _places(shard, start, *lines.bytes_of(shard, start, stop))


def _split(shard: Shard, row: int, line: bytes) -> list[bytes]:
    newline = shard.layout["newline"]
    if not line.endswith(newline):
        raise FormatError(
            f"its line does not end with {newline.decode()!r:.60}", where=shard.chunk.at, row=row
        )
    separator = shard.layout["separator"]
    parts = line[: -len(newline)].split(
        separator, len(shard.columns)
    )  # no more than tell that they are too many
    if len(parts) != len(shard.columns):
        count = line[: -len(newline)].count(separator) + 1
        raise FormatError(
            f"{count} values in its line, {len(shard.columns)} are wanted",
            where=shard.chunk.at,
            row=row,
        )
    return parts


def _places(shard: Shard, first: int, data: IntArray, starts: IntArray) -> lines.Places:
    """Say where each value lies in a run of lines; `first` is the row of the first one. Raises FormatError naming the row that is none."""
    separator, newline = shard.layout["separator"], shard.layout["newline"]
    rows, each, ends = len(starts) - 1, len(shard.columns) - 1, starts[1:] - len(newline)
    cuts = None
    if (
        rows
        and (ends >= starts[:-1]).all()
        and (
            data[ends[:, None] + np.arange(len(newline))] == np.frombuffer(newline, np.uint8)
        ).all()
    ):
        cuts = _cuts(data, starts, ends, separator, each)
    if cuts is None:
        edges, whole = memoryview(starts), data.tobytes()
        lengths = [
            [*map(len, _split(shard, first + row, whole[edges[row] : edges[row + 1]])[:-1])]
            for row in range(rows)
        ]  # no room before they are there
        steps = np.array(lengths, np.int64).reshape(rows, each)
        cuts = starts[:-1, None] + np.cumsum(steps + len(separator), axis=1) - len(separator)
    before = np.concatenate((starts[:-1, None], cuts + len(separator)), axis=1)
    behind = np.concatenate((cuts, ends[:, None]), axis=1)
    return {
        one.name: (before[:, k], behind[:, k] - before[:, k]) for k, one in enumerate(shard.columns)
    }


def _cuts(
    data: IntArray, starts: IntArray, ends: IntArray, separator: bytes, each: int
) -> IntArray | None:
    """Give where the separators lie, int64 [rows, each]; None if any line has another number, some overlap, or they are long."""
    rows = len(ends)
    if not each:
        return np.zeros((rows, 0), np.int64)
    if len(separator) > _LONG:
        return None
    at = lines.find_all(data, separator)
    if len(at) != rows * each:  # some lie in newlines
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


def _body(columns: Columns, batch: pa.RecordBatch, separator: bytes, newline: bytes) -> memoryview:
    """Join lines. Raises ValueFitError naming the first row that would be cut elsewhere."""
    fields = list(lines.stored_columns(columns, batch).values())
    parts: list[Any] = [fields[0]]
    for field in fields[1:]:
        parts += [separator, field]
    body, starts = lines.joined([*parts, newline])
    data = np.frombuffer(body, np.uint8)
    each, ends = len(columns) - 1, starts[1:] - len(newline)
    suspects = np.union1d(
        _suspects(data, starts, ends, separator, each),
        _suspects(data, starts, starts[1:], newline, 1),
    )
    for row in suspects.tolist():  # beside an empty value two separators may overlap in vain
        values = [field[row].as_py() for field in fields]
        line = separator.join(values)
        if line.split(separator) != values or (line + newline).find(newline) != len(line):
            _refuse(columns, values, row, separator, newline)
    return body


def _suspects(data: IntArray, starts: IntArray, ends: IntArray, text: bytes, each: int) -> IntArray:
    """Give the rows in which a text lies more often than `each` times, overlaps counted; all rows for a long one."""
    if len(text) > _LONG:
        return np.arange(len(ends))
    at = lines.find_all(data, text)
    if len(at) == len(ends) * each:  # each row has at least that many
        return np.zeros(0, np.int64)
    row: IntArray = np.searchsorted(starts, at, "right") - 1
    count = np.bincount(row[at + len(text) <= ends[row]], minlength=len(ends))
    return np.flatnonzero(count != each)


def _refuse(
    columns: Columns, values: Sequence[bytes], row: int, separator: bytes, newline: bytes
) -> NoReturn:
    """Say which value of a row ends a line, or itself, too early."""
    for what, text in (("separator", separator), ("newline", newline)):
        for one, value in zip(columns, values, strict=True):
            if text in value:
                raise ValueFitError(
                    f"column {one.name!r}: holds the {what} {text.decode()!r}",
                    row=row,
                    hint=_HINT,
                    column=one.name,
                )
    for one, value in zip(columns, values, strict=True):
        for what, text in (("separator", separator), ("newline", newline)):
            if (value + text).find(text) != len(value):
                message = f"column {one.name!r}: with the {what} {text.decode()!r} behind it, it would be cut before its end"
                raise ValueFitError(message, row=row, hint=_HINT, column=one.name)
    raise ValueFitError(
        f"its values between {separator.decode()!r} hold the newline {newline.decode()!r}",
        row=row,
        hint=_HINT,
    )


def _suffixes(name: str) -> tuple[str, ...]:
    return (f".{name}", *(f".{name}.{kind}" for kind in compress.SUFFIXES))


class CSV(_Separated):
    """Values between commas."""

    name, separator, suffixes = "csv", ",", _suffixes("csv")


class TSV(_Separated):
    """Values between tabs."""

    name, separator, suffixes = "tsv", "\t", _suffixes("tsv")


class XSV(_Separated):
    """Values between separators that the user chooses."""

    name, suffixes = "xsv", _suffixes("xsv")
