"""Parse row specifications of the command line: `5`, `10:20`, `-5:`, `::100`, `3,1,4`."""

from __future__ import annotations

import re

from flarecli.errors import RowsError, UsageError

__all__ = ["parse_rows"]

_PART = re.compile(
    r"\s*(?:(-?\d{1,18})|(-?\d{1,18})?:(-?\d{1,18})?(?::(-?\d{1,18})?)?)\s*", re.ASCII
)


def parse_rows(spec: str, rows: int) -> list[range]:
    """Parse a row specification for a dataset of `rows` rows.

    return  ranges inside [0, rows) in the order of the specification; a row is a range of one
    raises  UsageError for an invalid specification; RowsError for a single row outside the data
    """
    out = []
    for part in spec.split(","):
        match = _PART.fullmatch(part)
        if not match:
            raise UsageError(
                f"invalid rows: {spec!r}", hint="Write rows like 5, 10:20, -5:, ::100 or 3,1,4."
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
                raise UsageError(f"invalid rows: {spec!r} has step 0")
            out.append(range(rows)[slice(start, stop, step)])
    return out
