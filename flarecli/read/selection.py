"""Rows as people name them on a command line: `5`, `10:20`, `-5:`, `::100`, `3,1,4`."""

from __future__ import annotations

import re

from flarecli.errors import RowsError, UsageError

__all__ = ["parse_rows"]

_PART = re.compile(
    r"\s*(?:(-?\d{1,18})|(-?\d{1,18})?:(-?\d{1,18})?(?::(-?\d{1,18})?)?)\s*", re.ASCII
)


def parse_rows(spec: str, rows: int) -> list[range]:
    """Read a row specification against a dataset of `rows` rows; what it names keeps its order.

    return  ranges inside [0, rows); a single row is a range of one
    raises  UsageError if it is no specification; RowsError for a single row outside the data
    """
    out = []
    for part in spec.split(","):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(
                f"{spec!r} names no rows", hint="Write rows like 5, 10:20, -5:, ::100 or 3,1,4."
            )
        if match[1] is not None:
            row = int(match[1])
            if not -rows <= row < rows:
                raise RowsError(f"row {row} is outside the data, which has {rows} rows")
            row %= rows
            out.append(range(row, row + 1))
        else:
            start, stop, step = (None if text is None else int(text) for text in match.groups()[1:])
            if step == 0:
                raise UsageError(f"{spec!r} steps by 0")
            out.append(range(rows)[slice(start, stop, step)])
    return out
