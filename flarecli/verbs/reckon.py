"""What a pack would write, reckoned from its first rows: nothing is written, and a few links at most are fetched."""

from __future__ import annotations

from dataclasses import dataclass

from flarecli import encodings
from flarecli.formats import find
from flarecli.model import Columns, Settings
from flarecli.verbs.selection import Plan, fetched, selected
from flarecli.write import Failure
from flarecli.write.columns import Typed, chosen_encodings

__all__ = ["Reckoning", "reckon"]

_SAMPLE, _SAMPLE_LINKS = 1024, 32  # rows that are read, and fetched


@dataclass(frozen=True, slots=True)
class Reckoning:
    """Rows, shards and bytes of a pack that was not done; `estimated` from the first rows, unless those were all."""

    rows: int
    shards: int
    bytes: int
    columns: Columns
    failures: tuple[Failure, ...]
    estimated: bool


def reckon(plan: Plan, names: list[str], format: str, settings: Settings) -> Reckoning:
    """Type and weigh the first rows, and reckon the rest from them."""
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
    base = body = seen = 0
    failures: list[Failure] = []
    for part in fetched(plan, names, most=most):
        failures += part.failures
        seen += part.batch.num_rows + len(part.failures)
        if not part.batch.num_rows:
            continue
        if typed is None:
            chosen = chosen_encodings(part.batch, names, plan.encode, part.extensions, plan.source.stored)
            columns = module.arrange(encodings.column(name, one) for name, one in chosen.items())
            typed = Typed(columns, plan.named_by)
        batch, _, unfit = typed.convert(part.batch, part.rows)
        base, sizes = module.row_sizes(columns, batch, settings)
        body += int(sizes.sum())
        failures += unfit
    body = body * rows // seen if 0 < seen < rows else body
    limit = settings.shard_bytes or (1 << 32) - 1
    by_rows = -(-rows // settings.shard_rows) if settings.shard_rows else 0
    shards = max(-(-body // max(limit - base, 1)), by_rows, min(body, 1))
    return Reckoning(
        rows, shards, body + shards * base, columns, tuple(plan.places.placed(one) for one in sorted(failures, key=lambda one: one.row)), seen < rows
    )
