"""A pack in parts: rows 0..N of the source go to `00000/`, the next N to `00001/`; one index and
playlist join them.

The result depends only on N and the source, not on the engine, the order of the parts, or retries.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from flarecli import __version__, encodings, sql
from flarecli.commands.packing.estimate import note_addresses, reckon
from flarecli.commands.packing.plan import Plan, selected
from flarecli.commands.packing.run import (
    SKIP,
    Packed,
    Request,
    done_before,
    packed,
    planned,
    would_pack,
)
from flarecli.errors import BusyError, FlareError, NoRowsError, ReachError, UsageError
from flarecli.hashes import DEFAULT
from flarecli.model import Columns
from flarecli.names import is_url, whole_path
from flarecli.progress import Progress
from flarecli.units import format_count
from flarecli.write import Journal, claim, engines, error_of, parts

__all__ = ["packed_in_parts"]

_LOST_S = 120.0  # maximum wait for a part that another process packs
_AGAIN_S = 0.5  # delay between two attempts
_TOLD = 20  # maximum notes of parts that are reported


@dataclass(frozen=True)
class _Outcome:
    """Result of a part: counts or the error, and notes."""

    packed: Packed | None
    error: FlareError | None = None
    notes: tuple[str, ...] = ()


class _Heard(Progress):
    """Collects the notes of a part."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str, verbose: bool = False) -> None:
        if not verbose:
            self.notes.append(text)


def packed_in_parts(request: Request, part_rows: int, engine: str, progress: Progress) -> Packed:
    """Pack parts of `part_rows` rows of the source as separate datasets, and join them.

    raises  UsageError for options that need rows of several parts; errors of `packed`
    """
    plan, names = planned(request, progress)
    source = plan.source
    _refuse(request, plan, part_rows)
    if request.dry_run:
        return would_pack(request, plan, names, part_rows)
    rows = _count(plan)
    options = {**request.options(), "part_rows": part_rows}
    about = request.about(source, options)
    head = {
        "flare": __version__,
        "format": request.format,
        "settings": asdict(request.settings),
        "source": about[DEFAULT],
        "options": options,
    }
    target = claim(
        request.out, resume=request.resume, overwrite=request.overwrite, guard=request.guard
    )
    if target.is_done:
        return done_before(target, about, request.format)
    journal, keep = (
        None,
        True,
    )  # keep the output of an earlier run if this one is refused
    try:
        journal = Journal(target.at, json.loads(json.dumps(head)))
        keep = journal.columns is not None
        _refuse_duplicates(plan)
        columns = (
            tuple(encodings.column(*one) for one in journal.columns)
            if journal.columns
            else _columns(request, plan, names)
        )
        if not journal.columns:
            journal.note_columns([(column.name, column.encoding) for column in columns])
        given = {column.name: column.encoding for column in columns}
        common = replace(
            request,
            limit=None,
            resume=True,
            overwrite=False,
            known=about[DEFAULT],
            typed=given,
            below=_below(request, engine),
        )
        keep = True
        done = _run(
            engine, _Requests(common, str(target.at), part_rows, rows), rows, progress, source.notes
        )
        if not any(done.held):
            raise NoRowsError(
                "no rows to pack",
                where=source.address,
                hint="Look at --where." if request.where else "",
            )
        stream = parts.join(
            target.at,
            (parts.part_name(i) for i, held in enumerate(done.held) if held),
            {"source": about},
        )
    except BaseException:
        if journal is not None:
            journal.close()
        target.abandon(keep=keep)
        raise
    finally:
        progress.close()
    journal.close()
    target.finish()
    reasons = dict(sorted(done.reasons.items()))
    return Packed(
        target.playlist,
        request.format,
        done.rows,
        len(stream),
        done.bytes,
        done.failed,
        reasons,
        columns,
        0,
        done.resumed_rows,
    )


class _Requests(Sequence[Request]):
    """The request of each part, created on access, since there may be millions."""

    def __init__(self, common: Request, out: str, part_rows: int, rows: int) -> None:
        self._common, self._out, self._part_rows, self._rows = (
            common,
            out.rstrip("/"),
            part_rows,
            rows,
        )

    def __len__(self) -> int:
        return -(-self._rows // self._part_rows)

    def __getitem__(self, number: Any) -> Any:
        if not 0 <= number < len(self):
            raise IndexError(number)
        out = f"{self._out}/{parts.part_name(number)}"
        return replace(self._common, out=out, rows=parts.span(number, self._part_rows, self._rows))


@dataclass
class _Done:
    """Totals so far. held: 1 for each part that has rows."""

    held: bytearray
    rows: int = 0
    bytes: int = 0
    failed: int = 0
    resumed_rows: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def add(self, number: int, one: Packed | None) -> None:
        """Add a part; None: no row of it was selected."""
        if one is None:
            return
        self.held[number] = 1
        self.rows, self.bytes, self.failed = (
            self.rows + one.rows,
            self.bytes + one.bytes,
            self.failed + one.failed,
        )
        self.resumed_rows += one.resumed_rows
        self.reasons.update(one.reasons)


def _refuse(request: Request, plan: Plan, part_rows: int) -> None:
    """Raise UsageError for options that need rows of several parts."""
    if part_rows < 1:
        raise UsageError(f"a part of {part_rows} rows holds nothing")
    if request.shuffle is not None:
        raise UsageError(
            "--shuffle orders all rows, and a part sees its own alone",
            hint="Read the dataset shuffled, or leave --part-rows out.",
        )
    if request.where is not None and not sql.is_row_by_row(plan.source.schema, request.where):
        raise UsageError(
            "--where looks at several rows at once, and a part sees its own alone",
            hint="Give a condition, or leave --part-rows out.",
        )
    if request.limit is not None and request.where is not None:
        raise UsageError(
            "--limit counts what --where left in the parts before",
            hint="Leave one of them out, or --part-rows.",
        )
    if request.on_duplicate == "first" and request.key is not None:
        raise UsageError(
            "--on-duplicate first looks at keys of other parts",
            hint="Give --on-duplicate error or keep, or leave --part-rows out.",
        )
    if request.sources == ("-",):
        raise UsageError("standard input cannot be read in parts", hint="Write it to a file first.")


def _count(plan: Plan) -> int:
    """Return the number of rows of the source; read it once if it is not listed."""
    rows = plan.known_rows
    if rows is None:
        rows = sum(batch.num_rows for batch in plan.source.batches(plan.source.schema.names[:1]))
    return rows if plan.limit is None else min(rows, plan.limit)


def _refuse_duplicates(plan: Plan) -> None:
    """Raise the error of a duplicate key in any part before packing."""
    if plan.key is not None and plan.on_duplicate == "error":
        for _ in selected(replace(plan, columns=(), links=(), limit=plan.limit)):
            pass


def _columns(request: Request, plan: Plan, names: list[str]) -> Columns:
    """Infer the columns from the first rows of the source, so that all parts have the same."""
    found = reckon(
        replace(plan, progress=Progress()), names, request.format, request.settings
    )  # the parts report their own notes
    note_addresses(found.addresses, plan.progress)
    if found.failures and not found.columns and request.on_error == "fail":
        raise error_of(found.failures[0], plan.source.address, SKIP)
    if not found.columns:
        raise NoRowsError(
            "no rows to pack among the first ones",
            where=plan.source.address,
            hint="Give --encode for each column.",
        )
    return found.columns


def _run(
    engine: str, requests: Sequence[Request], rows: int, progress: Progress, told: Sequence[str]
) -> _Done:
    """Pack all parts; notes in `told` are not repeated. Raises the error of the first failed part,
    by number.
    """
    done, notes = _Done(bytearray(len(requests))), 0
    errors: dict[int, FlareError] = {}
    progress.start("pack", rows)
    for i, outcome in engines.run(engine, _outcome, requests):
        done.add(i, outcome.packed)
        if outcome.error is not None:
            errors[i] = outcome.error
            if engine == "local":
                break
        for note in outcome.notes:
            notes += note not in told
            if note not in told and notes <= _TOLD:
                progress.note(f"part {parts.part_name(i)}: {note}")
        first, stop = requests[i].rows or (0, 0)
        progress.advance(stop - first, 0 if outcome.packed is None else outcome.packed.bytes)
        if outcome.packed is not None and outcome.packed.failed:
            progress.failed(
                f"part {parts.part_name(i)}",
                f"{outcome.packed.failed} rows failed, see its failed.jsonl",
            )
    if notes > _TOLD:
        progress.note(f"{format_count(notes - _TOLD, 'more note')} of parts")
    if errors:
        i = min(errors)
        error = errors[i]
        part = f"part {parts.part_name(i)}: "
        if error.address:
            raise error.changed(address=part + error.address)
        raise error.changed(address=part + error.where, row=None)
    return done


def _below(request: Request, engine: str) -> str | None:
    """Return the base folder of relative addresses, for tasks with another working folder."""
    is_relative = any(
        not is_url(address) and not os.path.isabs(address)
        for address in (*request.sources, request.out)
    )
    return whole_path("") if engine != "local" and is_relative else None


def _enter(folder: str | None) -> None:
    if folder is not None:
        try:
            os.chdir(folder)
        except OSError as error:
            hint = "Name the source and the target by whole paths, on a disk that every node has."
            raise ReachError(
                f"relative addresses start there: {os.strerror(error.errno or 0).lower()}",
                where=folder,
                hint=hint,
            ) from None


def _outcome(request: Request) -> _Outcome:
    """Pack one part, wherever this runs.

    The whole is ours, so who is at work on a part works for a driver or a node that was lost: it
    soon ends, done or not.
    """
    stop = time.monotonic() + _LOST_S
    while True:
        try:
            _enter(request.below)
            heard = _Heard()
            return _Outcome(packed(request, heard), notes=tuple(heard.notes[:_TOLD]))
        except NoRowsError:
            return _Outcome(None)
        except BusyError as error:
            if time.monotonic() > stop:
                return _Outcome(None, error)
            time.sleep(_AGAIN_S)
        except FlareError as error:
            return _Outcome(None, error)
