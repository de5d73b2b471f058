r"""JSON shards of MosaicML Streaming: a line of JSON a sample, and a `.meta` beside them; see `lines`.

A line is `json.dumps(sample, sort_keys=True)` and the newline, which may be any blanks of JSON, or nothing. A value is kept as the text
that stands there, a string with its quotes and escapes: encodings `json_str`, `json_int`, `json_float`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flarecli import compress, encodings
from flarecli.errors import FormatError, UsageError, ValueFitError
from flarecli.formats.base import BINARY, FLOATS, INTEGERS, LISTED_PICTURES, Substitutes
from flarecli.formats.lines import base as lines
from flarecli.formats.lines import json_lines
from flarecli.formats.lines.base import LineFormat
from flarecli.formats.lines.json_lines import Plan
from flarecli.formats.mds import config as mds_config
from flarecli.lazy import pa, pc
from flarecli.model import Chunk, Column, Columns, Finding, IntArray, Row, Settings, Shard
from flarecli.storage import Location

__all__ = ["JSONShards"]

_BLANKS = frozenset(" \t\n\r")


class JSONShards(LineFormat):
    """A line of JSON per row."""

    name = "json"
    suffixes = tuple(f".json{end}" for end in ("", *(f".{name}" for name in compress.SUFFIXES)))
    options = frozenset({"newline"})
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys((*BINARY, *LISTED_PICTURES, "bytes[]")),
        **dict.fromkeys(("str", "str_decimal"), "json_str"),
        **dict.fromkeys(("str_int", "varint", *INTEGERS), "json_int"),
        **dict.fromkeys(("str_float", "msgpack_float", *FLOATS), "json_float"),
        **dict.fromkeys(("json", "ndarray", "array", "msgpack", "tree"), "json_json"),
        "ndarray[]": "json_json",
        "*[]": "json_json",
    }

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the `.meta` and touch none of the lines. Raises FormatError, IntegrityError: see `lines.opened`."""
        return lines.opened(chunk, columns, self.name, _layout)

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Give the JSON text of each value, in the order asked; what stands inside of strings is not looked at.

        raises  FormatError naming the row whose line is not one
        """
        plan = _plan(shard)
        out: list[Row] = [
            dict(_values(shard, row, bytes(line), plan))
            for row, line in zip(rows, lines.lines_of(shard, rows), strict=True)
        ]
        return out if columns is None else [{name: row[name] for name in columns} for row in out]

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Give rows start..stop as typed columns: the JSON text of each value.

        raises  FormatError naming the first row whose line is not one; ValueFitError for text that is not UTF-8
        """
        plan = _plan(shard)
        data, starts = lines.bytes_of(shard, start, stop)
        found = json_lines.places(data, starts, plan)
        if found is not None:
            return lines.assembled(shard, start, stop, columns, lines.cut(data, found, views))
        cuts, whole = memoryview(starts), data.tobytes()
        rows = [
            _values(shard, start + i, whole[cuts[i] : cuts[i + 1]], plan, True)
            for i in range(stop - start)
        ]
        return lines.assembled(
            shard,
            start,
            stop,
            columns,
            lambda name: pa.array([row[name] for row in rows], encodings.BINARY),
        )

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Sort columns by name, by code point, each as JSON holds it. Raises UsageError for one that it cannot hold, two of one name, or none."""
        return lines.arranged(tuple(self.held(one) for one in columns))

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Weigh each line; nothing else counts, as in the original: int64 [rows].

        raises  UsageError for a newline that JSON cannot end with; ValueFitError naming the first row with a value that is no JSON of its kind
        """
        _check_newline(settings)
        plan = json_lines.planned(columns, settings.newline.encode())
        sizes = _weights(columns, batch, plan)  # first: a row that no shard holds is never joined
        for _ in lines.bodies((batch,), lambda piece: _body(columns, piece, plan)):
            pass
        return 0, sizes

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write all rows as `shard.00000.json` and its `.meta`, as the original does.

        raises  ValueFitError for a value that is no JSON of its kind, or if the data would pass 4 GiB
        """
        _check_newline(settings)
        plan = json_lines.planned(columns, settings.newline.encode())
        sizes = [_weights(columns, batch, plan) for batch in batches]
        return lines.write(
            at,
            number,
            self.name,
            columns,
            settings,
            b"",
            sizes,
            lines.bodies(batches, lambda piece: _body(columns, piece, plan)),
        )

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check that every line is an object of these columns, and, if asked, that every value is what its encoding says."""
        return lines.checked(shard, lambda start, stop: self._check(shard, start, stop, values))

    def _check(self, shard: Shard, start: int, stop: int, values: bool) -> None:
        batch = self.read_batch(shard, start, stop)
        if not values:
            return
        for one in shard.columns:
            pattern = r'^"' if json_lines.is_text(one) else r"^[-0-9tfnNI]"
            wrong = pc.invert(pc.match_substring_regex(batch.column(one.name), pattern))
            if pc.any(wrong, min_count=0).as_py():
                row = start + int(pc.index(wrong, True).as_py())
                raise ValueFitError(
                    f"column {one.name!r:.60}: not {one.encoding}",
                    where=shard.chunk.at,
                    row=row,
                    column=one.name,
                )


def _layout(columns: Columns, config: Mapping[str, Any], where: object) -> Mapping[str, Any]:
    return {
        "header": b"",
        "newline": mds_config.text_of(config, "newline", where, empty=True).encode(),
    }


def _plan(shard: Shard) -> Plan:
    plan: Plan | None = shard.memo.get("plan")
    if plan is None:
        plan = shard.memo["plan"] = json_lines.planned(shard.columns, shard.layout["newline"])
    return plan


def _values(
    shard: Shard, row: int, line: bytes, plan: Plan, strict: bool = False
) -> dict[str, bytes]:
    parts = json_lines.split(line, plan, strict)
    if parts is not None:
        return dict(zip(plan.names, parts, strict=True))
    try:
        values = json_lines.parsed(line)
    except ValueError as error:
        raise FormatError(str(error), where=shard.chunk.at, row=row) from None
    wanted = set(plan.names)
    if values.keys() != wanted:
        name = min(values.keys() ^ wanted)
        raise FormatError(
            f"column {name!r:.60} is {'missing' if name in wanted else 'unknown'}",
            where=shard.chunk.at,
            row=row,
            column=name,
        )
    return values


def _weights(columns: Columns, batch: pa.RecordBatch, plan: Plan) -> IntArray:
    fixed = len(plan.tail) + sum(len(before) for _, before, _ in plan.columns)
    return lines.weights(columns, batch, fixed, 0, JSONShards.name)


def _check_newline(settings: Settings) -> None:
    if not _BLANKS.issuperset(settings.newline):
        raise UsageError(
            f"a line of JSON that ends in {settings.newline!r:.60} cannot be read back",
            hint="Choose a --newline of blanks, such as '\\n' or '\\r\\n'.",
        )


def _body(columns: Columns, batch: pa.RecordBatch, plan: Plan) -> memoryview:
    """Join lines, and cut them again: what does not come back as it went in is no JSON."""
    fields = lines.stored_columns(columns, batch)
    body, starts = lines.joined(
        [*(part for name, before, _ in plan.columns for part in (before, fields[name])), plan.tail]
    )
    found = json_lines.places(np.frombuffer(body, np.uint8), starts, plan)
    if found is None or any(
        (found[name][1] != pc.binary_length(array).to_numpy()).any()
        for name, array in fields.items()
    ):
        _refuse(fields, plan)
    return body


def _refuse(fields: Mapping[str, pa.Array], plan: Plan) -> None:
    """Name the value that is no JSON of its kind; a column may also hold other JSON than `json.dumps` writes, which is let be."""
    kinds = {name: is_text for name, _, is_text in plan.columns}
    for row in range(len(next(iter(fields.values())))):
        for name, array in fields.items():
            data = array[row].as_py()
            try:
                is_one = (
                    json_lines.parsed(b'{"": ' + data + b"}")[""] == data
                    and data.startswith(b'"') == kinds[name]
                )
            except ValueError:
                is_one = False
            if not is_one or data[:1] in b"{[":
                raise ValueFitError(
                    f"column {name!r}: {data[:60]!r} is no JSON of its kind", row=row, column=name
                )
