"""A pack in parts: rows 0..N of the source go to `00000/`, the next N to `00001/`; one index and one playlist join them.

What comes out depends on N and the source alone: not on where the parts were packed, in which order, or how often one was begun.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from flarecli import __version__, encodings
from flarecli.errors import FlareError, NoRowsError, UsageError
from flarecli.hashes import DEFAULT
from flarecli.model import Columns
from flarecli.progress import Progress
from flarecli.verbs.packing import Packed, Request, done_before, packed
from flarecli.verbs.reckon import reckon
from flarecli.verbs.selection import Plan, checked, selected
from flarecli.write import BucketTarget, Journal, Target, claim, engines, parts

__all__ = ["packed_in_parts"]


@dataclass(frozen=True)
class _Outcome:
    """What became of a part: what was packed, or the error that ended it; small, whatever the part weighs."""

    packed: Packed | None
    error: FlareError | None = None


def packed_in_parts(request: Request, part_rows: int, engine: str, progress: Progress) -> Packed:
    """Pack parts of `part_rows` rows of the source, each a dataset of its own, and join them.

    raises  UsageError for options that look at rows of several parts; what `packed` raises
    """
    source = request.source()
    plan = request.plan(source, progress)
    names = checked(plan)
    _refuse(request, part_rows, engine)
    if request.dry_run:
        return packed(request, progress)
    rows = _count(plan)
    options = {**request.options(), "part_rows": part_rows}
    about = request.about(source, options)
    head = {"flare": __version__, "format": request.format, "settings": asdict(request.settings), "source": about[DEFAULT], "options": options}
    target = claim(request.out, resume=request.resume, overwrite=request.overwrite, guard=request.guard)
    if target.is_done:
        return done_before(target, about, request.format)
    journal, begun = None, False
    try:
        journal = Journal(target.at, json.loads(json.dumps(head)))
        _refuse_duplicates(plan)
        columns = tuple(encodings.column(*one) for one in journal.columns) if journal.columns else _columns(request, plan, names)
        if not journal.columns:
            journal.note_columns([(column.name, column.encoding) for column in columns])
        spans = [parts.span(i, part_rows, rows) for i in range(-(-rows // part_rows))]
        inner = [_part(request, target, i, span, columns, about[DEFAULT]) for i, span in enumerate(spans)]
        begun = True
        done = _run(engine, inner, rows, progress)
        named = [parts.part_name(i) for i, one in enumerate(done) if one is not None]
        if not named:
            raise NoRowsError("no rows to pack", where=source.address, hint="Look at --where." if request.where else "")
        stream = parts.join(target.at, named, {"source": about})
    except BaseException:
        if journal is not None:
            journal.close()
        target.abandon(keep=begun)
        raise
    finally:
        progress.close()
    journal.close()
    target.finish()
    held = [one for one in done if one is not None]
    reasons = {kind: sum(one.reasons.get(kind, 0) for one in held) for kind in sorted({kind for one in held for kind in one.reasons})}
    before = sum(one.resumed_rows for one in held)
    failed, total = sum(one.failed for one in held), sum(one.rows for one in held)
    return Packed(target.playlist, request.format, total, len(stream), sum(one.bytes for one in held), failed, reasons, columns, 0, before)


def _refuse(request: Request, part_rows: int, engine: str) -> None:
    """Refuse what looks at rows of several parts."""
    if part_rows < 1:
        raise UsageError(f"a part of {part_rows} rows holds nothing")
    if engine not in engines.ENGINES:
        raise UsageError(f"engine is {engine!r}", hint=f"Choose one of {', '.join(engines.ENGINES)}.")
    if request.shuffle is not None:
        raise UsageError("--shuffle orders all rows, and a part sees its own alone", hint="Read the dataset shuffled, or leave --part-rows out.")
    if request.limit is not None and request.where is not None:
        raise UsageError("--limit counts what --where left in the parts before", hint="Leave one of them out, or --part-rows.")
    if request.on_duplicate == "first" and request.key is not None:
        raise UsageError("--on-duplicate first looks at keys of other parts", hint="Give --on-duplicate error or keep, or leave --part-rows out.")
    if request.sources == ("-",):
        raise UsageError("standard input cannot be read in parts", hint="Write it to a file first.")


def _count(plan: Plan) -> int:
    """Count the rows of the source; reads it once where only that tells."""
    rows = plan.known_rows
    if rows is None:
        rows = sum(batch.num_rows for batch in plan.source.batches(plan.source.schema.names[:1]))
    return rows if plan.limit is None else min(rows, plan.limit)


def _refuse_duplicates(plan: Plan) -> None:
    """Hold the keys of all rows against one another, before any part is packed."""
    if plan.key is not None and plan.on_duplicate == "error":
        for _ in selected(replace(plan, columns=(), links=(), limit=plan.limit)):
            pass


def _columns(request: Request, plan: Plan, names: list[str]) -> Columns:
    """Say what the columns are, by the first rows of all: each part would see others."""
    found = reckon(plan, names, request.format, request.settings)
    if not found.columns:
        raise NoRowsError("no rows to pack among the first ones", where=plan.source.address, hint="Give --encode for each column.")
    return found.columns


def _part(request: Request, target: Target | BucketTarget, number: int, span: tuple[int, int], columns: Columns, known: str) -> Request:
    given = {column.name: column.encoding for column in columns}
    out = str(target.at / parts.part_name(number))
    return replace(request, out=out, rows=span, limit=None, resume=True, overwrite=False, known=known, typed=given)


def _run(engine: str, requests: Sequence[Request], rows: int, progress: Progress) -> list[Packed | None]:
    """Pack all parts; None for one that no row was selected of. Raises the error of the first part that has one, by number."""
    done: list[Packed | None] = [None] * len(requests)
    errors: dict[int, FlareError] = {}
    progress.start("pack", rows)
    for i, outcome in engines.run(engine, _outcome, requests):
        done[i] = outcome.packed
        if outcome.error is not None:
            errors[i] = outcome.error
            if engine == "local":
                break
        first, stop = requests[i].rows or (0, 0)
        progress.advance(stop - first, 0 if outcome.packed is None else outcome.packed.bytes)
        if outcome.packed is not None and outcome.packed.failed:
            progress.failed(f"part {parts.part_name(i)}", f"{outcome.packed.failed} rows failed, see its failed.jsonl")
    if errors:
        i = min(errors)
        error = errors[i]
        raise type(error)(error.message, where=f"part {parts.part_name(i)}: {error.where}", hint=error.hint)
    return done


def _outcome(request: Request) -> _Outcome:
    """Pack one part, wherever this runs."""
    try:
        return _Outcome(packed(request, Progress()))
    except NoRowsError:
        return _Outcome(None)
    except FlareError as error:
        return _Outcome(None, error)
