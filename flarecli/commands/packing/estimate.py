"""Estimate what a pack would write from its first rows; nothing is written, and few links are
fetched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flarecli import encodings
from flarecli.commands.packing.plan import Plan, fetched, selected
from flarecli.formats import find
from flarecli.model import Columns, Settings
from flarecli.names import shell_quoted
from flarecli.progress import Progress
from flarecli.write import Failure
from flarecli.write.columns import Typed, chosen_encodings, looks_like_addresses

__all__ = ["Reckoning", "note_addresses", "reckon"]

_SAMPLE, _SAMPLE_LINKS = 1024, 32  # rows that are read, and rows whose links are fetched


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Rows, shards and bytes of a dry run; `estimated` unless the first rows were all rows.

    addresses  columns with addresses that are not fetched
    """

    rows: int
    shards: int
    bytes: int
    columns: Columns
    failures: tuple[Failure, ...]
    estimated: bool
    addresses: tuple[str, ...]


def reckon(
    plan: Plan, names: list[str], format: str, settings: Settings, part_rows: int | None = None
) -> Reckoning:
    """Convert the first rows, and estimate the total size from them.

    part_rows  rows per part; None: no parts
    """
    module, most = find(format), _SAMPLE_LINKS if plan.links else _SAMPLE
    rows = None
    if not plan.key or plan.on_duplicate == "keep":
        count = plan.source.count if plan.rows == (0, None) else None
        rows = plan.known_rows if plan.where is None else count(plan.where) if count else None
    if rows is None:
        rows = sum(batch.num_rows for batch in selected(plan))
    elif plan.limit is not None:
        rows = min(rows, plan.limit)
    typed: Typed | None = None
    columns: Columns = ()
    addresses: tuple[str, ...] = ()
    base = body = seen = 0
    failures: list[Failure] = []
    for part in fetched(plan, names, most=most):
        failures += part.failures
        seen += part.batch.num_rows + len(part.failures)
        if not part.batch.num_rows:
            continue
        if typed is None:
            addresses = tuple(name for name in looks_like_addresses(part.batch) if name in names)
            chosen = chosen_encodings(
                part.batch, names, plan.encode, part.extensions, plan.source.stored
            )
            columns = module.arrange(encodings.column(name, one) for name, one in chosen.items())
            typed = Typed(columns, plan.named_by)
        batch, _, unfit = typed.convert(part.batch, part.rows)
        base, sizes = module.row_sizes(columns, batch, settings)
        body += int(sizes.sum())
        failures += unfit
    body = body * rows // seen if 0 < seen < rows else body
    limit = max((settings.shard_bytes or (1 << 32) - 1) - base, 1)
    shards = 0
    for parts, share in _parts(plan, rows, part_rows):
        by_rows = -(-round(rows * share) // settings.shard_rows) if settings.shard_rows else 0
        shards += parts * max(-(-round(body * share) // limit), by_rows, min(body, 1))
    placed = tuple(plan.places.placed(one) for one in sorted(failures, key=lambda one: one.row))
    return Reckoning(rows, shards, body + shards * base, columns, placed, seen < rows, addresses)


def note_addresses(names: Sequence[str], progress: Progress) -> None:
    """Report columns with addresses that are not fetched."""
    for name in names:
        progress.note(
            f"column {name!r} holds addresses; give --fetch {shell_quoted(name)} to pack what they point at"
        )


def _parts(plan: Plan, rows: int, part_rows: int | None) -> list[tuple[int, float]]:
    """Return the number of parts of each size and their share of the rows, if a condition selects
    evenly.
    """
    whole = plan.known_rows if plan.where is not None and plan.known_rows else rows
    if part_rows is None or whole <= part_rows:
        return [(1, 1.0)]
    full, rest = divmod(whole, part_rows)
    return [(full, part_rows / whole), *([(1, rest / whole)] if rest else [])]
