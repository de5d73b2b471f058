"""The `verify` command: check that datasets are complete and undamaged.

sources -> lists -> each file in parallel: size, checksums, structure -> findings in order
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from flarecli import formats
from flarecli.arguments import address_text, address_texts, from_options
from flarecli.commands.options import VerifyOptions
from flarecli.commands.shard_choice import Choice
from flarecli.commands.source_notes import note_sources
from flarecli.commands.verifying.enclosing_lists import with_lists
from flarecli.commands.verifying.hints import with_command
from flarecli.commands.verifying.other_listings import (
    CHANGED,
    held_against,
    is_index,
    look_beside,
    own_sum,
)
from flarecli.commands.verifying.repeated_sources import once
from flarecli.commands.verifying.rows import Side, key_of, keyed, uneven
from flarecli.commands.verifying.run import on_engine, on_threads
from flarecli.commands.verifying.shard import Checked, Depth
from flarecli.commands.verifying.tasks import (
    Only,
    Plan,
    Task,
    chunk_tasks,
    file_tasks,
    mistaken,
    place_named,
    planned,
    sizes_below,
    told_once,
    unlisted,
)
from flarecli.cpus import cpu_count
from flarecli.errors import FlareError, UsageError
from flarecli.model import Finding, Playlist, Stream, finding_of, total
from flarecli.progress import Progress
from flarecli.read import expand, resolve
from flarecli.storage import Location

if TYPE_CHECKING:
    from flarecli.commands.verifying.state import VerifyState
    from flarecli.media import Sandbox

__all__ = ["Verification", "verify"]

_Take: TypeAlias = Callable[[Task, Checked], None]
_REMOTE_JOBS = 8  # more than cores, since network jobs mostly wait


@dataclass(frozen=True)
class _Options:
    depth: Depth
    choice: Choice
    against: Playlist | None
    state: VerifyState | None
    most: int
    jobs: int
    engine: str
    progress: Progress


class Verification:
    """A running check: iterate it once for the findings, in order; its counts are complete after that.

    files, shards, rows, bytes  checked so far
    findings                    total number of findings, including those beyond the maximum
    unprotected                 notes about files without checksums
    extra                       files in the folder that no list names
    left                        shards that the sample or the part skips
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        said: Sequence[str],
        held: dict[str, Finding],
        options: _Options,
    ) -> None:
        self.files = self.shards = self.rows = self.bytes = self.findings = self.left = 0
        self.unprotected = list(said)
        self.extra: list[str] = []
        self._said: set[str] = set()
        self._found: Iterator[Finding] = self._given(plans, held, options)

    def __repr__(self) -> str:
        return f"<Verification: {self.files} files, {self.shards} shards, {self.rows} rows looked at, {self.findings} findings; iterate it for them>"

    def __iter__(self) -> Iterator[Finding]:
        found, self._found = (
            self._found,
            iter(()),
        )  # only the caller refers to it, so leaving the loop closes it at once
        return found

    def _given(
        self, plans: Sequence[Plan], held: dict[str, Finding], options: _Options
    ) -> Iterator[Finding]:
        """Yield the first `max_findings` findings, and one with the number of others."""
        for one in map(with_command, _each_once(self._walk(plans, options), held)):
            self.findings += 1
            if self.findings <= options.most:
                yield one
        if self.findings > options.most:
            more = self.findings - options.most
            yield Finding(
                plans[-1].address,
                "more",
                f"{more} more finding{'s' * (more > 1)}",
                "Give a larger --max-findings to see them.",
            )

    def _walk(self, plans: Sequence[Plan], options: _Options) -> Iterator[Finding]:
        known, all_of_it = (
            [stream for plan in plans for stream in plan.streams],
            options.choice.is_all,
        )
        all_of_it = all_of_it and not any(plan.only for plan in plans)
        rows, sizes = [stream.rows for stream in known], [stream.sizes for stream in known]
        options.progress.start(
            "verify", _total(rows) if all_of_it else None, _total(sizes) if all_of_it else None
        )
        is_done = False
        try:
            if options.against is not None:
                yield from self._of_list(options.against)
            with _joined(options.engine):
                for plan in plans:
                    yield from plan.findings
                    self.unprotected += mistaken(plan)
                    if plan.found is not None:
                        yield from self._of_plan(plan.found, plan, options)
            is_done = True
        finally:
            options.progress.close()
            if options.depth.pictures is not None:
                options.depth.pictures.close()
            if options.state is not None:
                options.state.close(is_done)

    def _of_list(self, found: Playlist) -> Iterator[Finding]:
        """Check the checksum of the list itself, if it has one."""
        if found.at is None:
            return
        self.files += 1
        try:
            size, findings, has_sums = own_sum(found)
        except FlareError as error:
            yield finding_of(error, found.at)
            return
        self.bytes += size
        yield from findings
        if is_index(found):
            self.unprotected.append(
                f"{found.at}: carries no sum, cross-checked with the shards' own headers"
            )
        elif not has_sums:
            self.unprotected.append(f"{found.at}: carries no sums")

    def _of_plan(self, found: Playlist, plan: Plan, options: _Options) -> Iterator[Finding]:
        note_sources([found], options.progress)
        yield from self._of_list(found)
        is_read = options.choice.is_all and not options.depth.quick
        has_keys = (
            is_read and len(plan.streams) > 1 and options.state is None and not plan.only
        )  # state files do not store keys
        known = set[str]()  # paths of other lists, and of the files they name
        sides = [Side(stream, key_of(stream) if has_keys else "") for stream in plan.streams]
        for side, only in zip(sides, plan.only or [None] * len(sides), strict=True):
            rows, findings = self.rows, self.findings
            yield from self._of_stream(found, side, plan, options, known, only)
            side.rows = (
                self.rows - rows
                if is_read and self.findings == findings
                else _total([side.stream.rows])
            )
        if plan.only:
            return
        yield from uneven(found, sides)
        if not has_keys and (names := keyed(sides)):
            why = (
                "--quick reads no rows"
                if options.depth.quick
                else "--state keeps none"
                if is_read
                else "not all shards were read"
            )
            self.unprotected.append(
                f"keys of streams {', '.join(map(repr, names))}: not compared, {why}"
            )
        if options.against is not None:
            theirs = [
                one.name
                for one in options.against
                if len(plan.streams) > 1
                and one.name not in {stream.name for stream in plan.streams}
            ]
            for name in theirs:
                yield Finding(
                    str(options.against.at),
                    "listing",
                    f"has a stream {name!r}, {plan.address} has not",
                    CHANGED,
                )
        if plan.is_whole:
            for name, one in unlisted(found, known):
                if one is not None:
                    yield one
                else:
                    self.extra.append(name)

    def _of_stream(
        self,
        found: Playlist,
        side: Side,
        plan: Plan,
        options: _Options,
        known: set[str],
        only: Only | None,
    ) -> Iterator[Finding]:
        stream, depth, claimed = (
            side.stream,
            replace(options.depth, key=side.key),
            dict[str, tuple[Location, Checked]](),
        )
        if depth.quick:
            sizes, below = sizes_below(stream)
            depth = replace(depth, sizes=sizes, below=below)
        yield from self._run(file_tasks(found, stream, claimed, depth, only), options)
        shards = range(len(stream)) if only is None else sorted(only.shards)
        others = look_beside(
            found,
            stream,
            claimed,
            depth,
            plan.named,
            plan.is_folder,
            None if only is None else shards,
        )
        yield from (one for one in others.findings if one not in plan.findings)
        self.files += len(others.read)
        self.bytes += others.size
        self.unprotected += others.unprotected
        known |= others.known
        if options.against is not None:
            other, findings = held_against(options.against, stream, plan.streams, plan.address)
            yield from findings
            if other is not None:
                others.add(other)
        chosen = frozenset(shards[i] for i in options.choice.of(len(shards)))
        self.left += len(shards) - len(chosen)
        sums: list[tuple[str, bytes]] = []

        def take(task: Task, done: Checked) -> None:
            sums.extend([(task.at, done.contents)] if done.contents else [])
            side.keys += [(task.at, done.keys)] if done.keys is not None else []
            side.kept += done.is_kept

        engine = "local" if depth.quick else options.engine  # comparing sizes needs no cluster
        tasks = chunk_tasks(found, stream, others, depth, chosen, only)
        wrong = self._run(tasks, options, engine, take)
        yield from (
            one for one in wrong if one not in others.findings
        )  # already reported by the other lists
        yield from others.rest(plan.address)
        if sums:
            from flarecli.commands.verifying.duplicates import duplicates as equal_rows

            yield from equal_rows(sums)
        if not any(listing.has_sums for listing in others.listings):
            self._say_bare(stream, shards, side.kept)

    def _say_bare(self, stream: Stream, shards: Sequence[int], kept: int) -> None:
        if formats.facts(stream.format).record_checksums:
            return
        tables = (*stream.hashes.values(), *stream.raw_hashes.values())
        bare = sum(not any(values[i] for values in tables) for i in shards) - kept
        if bare:
            self.unprotected.append(
                f"{bare} of {len(shards)} files of stream {stream.name!r}: carry no sums, only sizes and structure were checked"
            )

    def _run(
        self,
        tasks: Iterator[Task],
        options: _Options,
        engine: str = "local",
        take: _Take | None = None,
    ) -> Iterator[Finding]:
        """Check files; yield findings in the order of the tasks, and call `take` with each result."""
        state = options.state

        def known(task: Task) -> Checked | None:
            return state.find(task.key) if state is not None and task.key else None

        looked_at = (
            on_threads(tasks, known, options.jobs)
            if engine == "local"
            else on_engine(tasks, known, engine)
        )
        for task, done in looked_at:
            if state is not None and task.key and state.find(task.key) is None:
                state.add(task.key, done)
            if take is not None:
                take(task, done)
            self.files += task.is_file
            self.shards += task.is_shard
            self.rows += done.rows
            self.unprotected += [text for text in done.unprotected if text not in self._said]
            self._said.update(done.unprotected)
            self.bytes += done.size
            options.progress.advance(done.rows, done.size)
            yield from (*task.findings, *done.findings)


@from_options(VerifyOptions)
def verify(options: VerifyOptions) -> Verification:
    """Check that datasets are complete and undamaged: sizes, checksums and structure of every file.

    A problem below an address is a finding, never an exception: an unreadable index, an
    unfinished pack, a name that leaves the folder, a missing shard, damage. Iterate the result
    for the findings; its counts are complete after that. Raises MissingError if an address does
    not exist, ReachError if no address can be read, and UsageError.
    """
    against, state = (
        None if one is None else address_text(one) for one in (options.against, options.state)
    )
    typed = address_texts(options.sources)
    guard = options.guard(typed if against is None else [*typed, against])
    addresses = [one for source in typed for one in expand(source, guard)]
    if not addresses:
        raise UsageError("missing argument: no source")
    format, streams, quick = options.format, options.streams, options.quick
    if format is not None:
        formats.find(format)
    if options.duplicates and (quick or state is not None):
        raise UsageError(
            f"--duplicates needs every row, {'--quick reads' if quick else '--state keeps'} none"
        )
    if options.decode and quick:
        raise UsageError(
            "--decode needs every value, --quick reads none", hint="Leave one of the two out."
        )
    if options.engine != "local":
        from flarecli.write import engines

        engines.check(options.engine)
    choice = Choice(options.part, options.sample, options.seed)
    plans = [planned(address, format, streams, guard, len(addresses) == 1) for address in addresses]
    failed = [plan.error for plan in plans if plan.error is not None]
    if len(failed) == len(plans):
        raise failed[0]
    plans, said = once(plans, guard)
    plans, held = told_once(plans)
    plans = with_lists(plans, format, guard, quick)
    truth = None if against is None else resolve([against], guard=guard, maps=False)[0]
    recorded = {
        "sources": addresses,
        "quick": quick,
        "decode": options.decode,
        "sample": options.sample,
        "part": options.part,
        "seed": options.seed,
        "against": against,
        "streams": list(streams),
        "format": format,
    }
    remembered = None if state is None else _remembered(state, recorded)
    cores = cpu_count()
    local = all(stream.at.is_local for plan in plans for stream in plan.streams)
    jobs = options.jobs or (cores if local else max(_REMOTE_JOBS, cores))
    depth = Depth(quick, _decoders() if options.decode else None, options.duplicates)
    return Verification(
        plans,
        said,
        held,
        _Options(
            depth,
            choice,
            truth,
            remembered,
            options.max_findings,
            jobs,
            options.engine,
            options.progress or Progress(),
        ),
    )


def _each_once(found: Iterator[Finding], held: dict[str, Finding]) -> Iterator[Finding]:
    """Yield the findings, then those in `held` about places without any.

    A link is described by its finding in `held`.
    """
    for one in found:
        other = held.pop(place_named(one.address), None) if held else None
        yield other if other is not None and one.kind == "unsafe" else one
    yield from held.values()


def _joined(engine: str) -> AbstractContextManager[None]:
    if engine == "local":
        return nullcontext()
    from flarecli.write import engines

    return engines.joined(engine)


def _remembered(state: str, asked: dict[str, Any]) -> VerifyState:
    from flarecli.commands.verifying.state import VerifyState

    return VerifyState(state, asked)


def _decoders() -> Sandbox:
    from flarecli.media import Sandbox

    return Sandbox()


def _total(counts: Sequence[Any]) -> int | None:
    return (
        None
        if any(one is None or (len(one) and one.min() < 0) for one in counts)
        else sum(total(one) for one in counts if one is not None)
    )
