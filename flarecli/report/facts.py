"""Statistics of columns as a table: one line per column, without the facts that no column has."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flarecli.units import format_size

__all__ = ["facts_table"]

_NAMES = ("rows", "nulls", "unfit", "distinct", "least", "most", "bytes in all", "pictures")
_TEXT = 40  # maximum characters of a number


def facts_table(stats: Mapping[str, Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Lay out statistics, column -> name of a fact -> value, as `inspect` finds them.

    return  names of the facts that at least one column has, and a row of texts per column
    """
    rows = [_told(facts) for facts in stats.values()]
    names = [name for name in _NAMES if any(row.get(name) for row in rows)]
    return names, [[row.get(name, "") for name in names] for row in rows]


def _told(facts: Mapping[str, Any]) -> dict[str, str]:
    out = {"rows": f"{facts['rows']:,}", "nulls": f"{facts['nulls']:,}"}
    if "unfit" in facts:
        out["unfit"] = f"{facts['unfit']:,}"
    if "distinct" in facts:
        out["distinct"] = f"{facts['distinct']:,}"
    elif "distinct_over" in facts:
        out["distinct"] = f"over {facts['distinct_over']:,}"
    for name, end in (("least", "min"), ("most", "max")):
        parts = [_number(facts[end])] if end in facts else []
        parts += [f"{facts[f'{end}_chars']:,} chars"] if f"{end}_chars" in facts else []
        parts += [format_size(facts[f"{end}_bytes"])] if f"{end}_bytes" in facts else []
        parts += [f"{facts[f'{end}_items']:,} items"] if f"{end}_items" in facts else []
        out[name] = ", ".join(parts)
    if "bytes" in facts:
        out["bytes in all"] = format_size(facts["bytes"])
    if "pictures" in facts:
        sizes = dict.fromkeys(facts[name] for name in ("smallest", "median", "largest"))
        out["pictures"] = f"{facts['pictures']:,} of {' / '.join(sizes)}"
    return out


def _number(value: Any) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    return text if len(text) <= _TEXT else text[: _TEXT - 1] + "…"
