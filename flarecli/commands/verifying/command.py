"""The `verify` command: check that datasets are complete and undamaged.

1. Resolve the sources to plans, one for each dataset.
2. Check the files of each plan in parallel: size, checksums and structure.
3. Yield the findings in the order of the files.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from flarecli import formats
from flarecli.arguments import address_text, address_texts, from_options
from flarecli.commands.options import VerifyOptions
from flarecli.commands.sources import note_sources, open_streams
from flarecli.commands.verifying.listings import (
    LISTS_DIFFER,
    check_own_checksum,
    find_unlisted_files,
    is_index,
    matching_list,
    read_other_lists,
)
from flarecli.commands.verifying.plans import (
    Choice,
    Only,
    Plan,
    link_address,
    notes_about_plain_shards,
    plan_sources,
)
from flarecli.commands.verifying.rows import (
    StreamRows,
    compare_streams,
    find_duplicates,
    key_column,
    names_of_keyed_streams,
)
from flarecli.commands.verifying.shard import AGAIN, Depth, FileResult
from flarecli.commands.verifying.tasks import (
    Task,
    chunk_tasks,
    file_tasks,
    list_sizes,
    run_local,
    run_on_engine,
)
from flarecli.errors import FlareError, UsageError
from flarecli.formats import INDEX
from flarecli.model import Finding, Playlist, Stream, finding_of, total
from flarecli.names import is_url, shell_quoted
from flarecli.playlists import PLAYLIST, version_name, version_number
from flarecli.prefetch import cpu_count
from flarecli.progress import Progress
from flarecli.read import expand, resolve
from flarecli.read.version_lists import list_names, listed_files
from flarecli.storage import Guard, Location, locate
from flarecli.units import format_count

if TYPE_CHECKING:
    from flarecli.commands.verifying.state import VerifyState

__all__ = ["Verification", "verify"]

# this minimum does not depend on the CPU count, because remote jobs mostly wait for the network
_MIN_REMOTE_JOBS = 8
_REPAIR = "fetch it again, or pack it again with `flare pack … --overwrite`."
# kinds of findings whose cause remains if the list is written again
_NOT_REPAIRED = ("reach", "listing", "streams", "unsafe")


@dataclass(frozen=True)
class _Settings:
    """The parsed options of a check, with defaults for unset options."""

    depth: Depth
    choice: Choice
    against: Playlist | None
    state: VerifyState | None
    max_findings: int
    jobs: int
    engine: str
    progress: Progress

    @property
    def reads_all_rows(self) -> bool:
        """Return whether every row of every shard is read."""
        return self.choice.is_all and not self.depth.quick


class Verification:
    """A running check. Iterate over the check once to receive the findings in order.

    The counts are complete when the iteration has ended.

    files, shards, rows, bytes  numbers of checked files, shards, rows and bytes
    findings                    total number of findings, which may exceed the maximum
    unprotected                 notes about files that have no checksums or were not fully checked
    extra                       files in the folder that no list names
    left                        number of shards that are not checked because of --sample or --part
    """

    def __init__(
        self,
        plans: Sequence[Plan],
        notes: Sequence[str],
        unreadable: dict[str, Finding],
        settings: _Settings,
    ) -> None:
        self.files = self.shards = self.rows = self.bytes = self.findings = self.left = 0
        self.unprotected = list(notes)
        self.extra: list[str] = []
        self._settings = settings
        self._results: Iterator[Finding] = self._limit(plans, unreadable)

    def __repr__(self) -> str:
        return f"<Verification: {self.files} files, {self.shards} shards, {self.rows} rows, {self.findings} findings; iterate over it to receive the findings>"

    @property
    def resume_hint(self) -> str:
        """Return a hint about resuming an interrupted check; empty without a state file."""
        state = self._settings.state
        if state is None:
            return ""
        kept = f"keeps the results of {format_count(state.count, 'file')}"
        return f"run the same command again: the state file {kept}, and all other files are checked"

    def __iter__(self) -> Iterator[Finding]:
        # keep no reference to the iterator, so that it is closed when the caller's loop ends
        results, self._results = self._results, iter(())
        return results

    def _limit(self, plans: Sequence[Plan], unreadable: dict[str, Finding]) -> Iterator[Finding]:
        """Yield the first `max_findings` findings, and a finding that counts the other findings."""
        maximum = self._settings.max_findings
        for finding in _with_unreadable(self._check_all(plans), unreadable):
            self.findings += 1
            if self.findings <= maximum:
                yield _with_repair_command(finding)
        if self.findings > maximum:
            more = self.findings - maximum
            message = f"{more} more finding{'s' * (more > 1)}"
            hint = "Use a larger --max-findings to see all findings."
            yield Finding(plans[-1].address, "more", message, hint)

    def _check_all(self, plans: Sequence[Plan]) -> Iterator[Finding]:
        settings, is_done = self._settings, False
        streams = [stream for plan in plans for stream in plan.streams]
        rows = size = None
        if not any(plan.only for plan in plans):
            rows = _total([stream.rows for stream in streams], settings.choice)
            size = _total([stream.sizes for stream in streams], settings.choice)
        settings.progress.start("verify", rows, size)
        try:
            if settings.against is not None:
                yield from self._check_list(settings.against)
            with _connected(settings.engine):
                for plan in plans:
                    yield from plan.findings
                    self.unprotected += notes_about_plain_shards(plan)
                    if plan.playlist is not None:
                        yield from self._check_plan(plan.playlist, plan)
            is_done = True
        finally:
            settings.progress.close()
            if settings.depth.decoder is not None:
                settings.depth.decoder.close()
            if settings.state is not None:
                settings.state.close(is_done)

    def _check_list(self, playlist: Playlist) -> Iterator[Finding]:
        """Check a list against its own checksum, if it has one."""
        if playlist.at is None:
            return
        self.files += 1
        try:
            size, findings, has_checksums = check_own_checksum(playlist)
        except FlareError as error:
            yield finding_of(error, playlist.at)
            return
        self.bytes += size
        yield from findings
        if is_index(playlist):
            self.unprotected.append(
                f"{playlist.at}: no checksums; compared with the headers of the shards"
            )
        elif not has_checksums:
            self.unprotected.append(f"{playlist.at}: no checksums")

    def _check_plan(self, playlist: Playlist, plan: Plan) -> Iterator[Finding]:
        settings = self._settings
        note_sources([playlist], settings.progress)
        yield from self._check_list(playlist)
        # a state file contains no keys, so a resumed check cannot compare the keys of all rows
        compares_keys = (
            settings.reads_all_rows
            and len(plan.streams) > 1
            and settings.state is None
            and not plan.only
        )
        known = set[str]()  # paths of files that must not be reported as unlisted
        streams = [
            StreamRows(stream, key_column(stream) if compares_keys else "")
            for stream in plan.streams
        ]
        for stream, only in zip(streams, plan.only or [None] * len(streams), strict=True):
            rows, findings = self.rows, self.findings
            yield from self._check_stream(playlist, stream, plan, known, only)
            is_counted = settings.reads_all_rows and self.findings == findings
            stream.count = self.rows - rows if is_counted else _total([stream.stream.rows])
        if plan.only:
            return
        yield from compare_streams(playlist, streams)
        if not compares_keys and (names := names_of_keyed_streams(streams)):
            reason = "not all shards were read"
            if settings.depth.quick:
                reason = "--quick reads no rows"
            elif settings.reads_all_rows:
                reason = "--state stores no keys"
            listed = ", ".join(map(repr, names))
            self.unprotected.append(f"keys of streams {listed} were not compared: {reason}")
        if settings.against is not None and len(plan.streams) > 1:
            own = {stream.name for stream in plan.streams}
            for other in settings.against.streams:
                if other.name not in own:
                    message = f"contains stream {other.name!r}, {plan.address} does not"
                    at = str(settings.against.at)
                    yield Finding(at, "listing", message, LISTS_DIFFER)
        if plan.is_whole:
            for name, finding in find_unlisted_files(playlist, known):
                if finding is not None:
                    yield finding
                else:
                    self.extra.append(name)

    def _check_stream(
        self,
        playlist: Playlist,
        rows: StreamRows,
        plan: Plan,
        known: set[str],
        only: Only | None,
    ) -> Iterator[Finding]:
        settings, stream = self._settings, rows.stream
        depth = replace(settings.depth, key=rows.key)
        if depth.quick:
            sizes, below = list_sizes(stream)
            depth = replace(depth, listed_sizes=sizes, listed_below=below)
        files = dict[str, tuple[Location, FileResult]]()
        yield from self._run(file_tasks(playlist, stream, files, depth, only))
        shards = range(len(stream)) if only is None else sorted(only.shards)
        checked = None if only is None else shards
        others = read_other_lists(
            playlist, stream, files, depth, plan.named, plan.is_folder, checked
        )
        yield from (one for one in others.findings if one not in plan.findings)
        self.files += len(others.read_paths)
        self.bytes += others.size
        self.unprotected += others.notes()
        known |= others.known_paths
        if settings.against is not None:
            other, findings = matching_list(settings.against, stream, plan.streams, plan.address)
            yield from findings
            if other is not None:
                others.add(other)
        chosen = frozenset(shards[i] for i in settings.choice.of(len(shards)))
        self.left += len(shards) - len(chosen)
        hashes: list[tuple[str, bytes]] = []

        def add(task: Task, result: FileResult) -> None:
            if result.row_hashes:
                hashes.append((task.at, result.row_hashes))
            if result.keys is not None:
                rows.keys.append((task.at, result.keys))
            rows.store_hashed += result.store_hashed

        tasks = chunk_tasks(playlist, stream, others, depth, chosen, only)
        for finding in self._run(tasks, settings.engine, add):
            if finding not in others.findings:  # `others.findings` were already reported
                yield finding
        yield from others.additional_shards(plan.address)
        if hashes:
            yield from find_duplicates(hashes)
        if not any(one.stream.hashes or one.stream.raw_hashes for one in others.lists):
            self._note_unprotected(stream, shards, rows.store_hashed)

    def _note_unprotected(self, stream: Stream, shards: Sequence[int], protected: int) -> None:
        """Add a note with the number of shards without checksums.

        protected  number of shards whose only checksum is stored by the object store
        """
        form = formats.facts(stream.format)
        # If the format is a table format (`typed`), `Format.unprotected` returns a note for each
        # file without checksums.
        if form.record_checksums or form.typed:
            return
        tables = (*stream.hashes.values(), *stream.raw_hashes.values())
        count = sum(not any(values[i] for values in tables) for i in shards) - protected
        if count:
            self.unprotected.append(
                f"{count} of {len(shards)} files of stream {stream.name!r}: no checksums; only sizes and structure were checked"
            )

    def _run(
        self,
        tasks: Iterable[Task],
        engine: str = "local",
        add: Callable[[Task, FileResult], None] = lambda task, result: None,
    ) -> Iterator[Finding]:
        """Check files; yield findings in the order of the tasks. Call `add` with each result."""
        settings, state = self._settings, self._settings.state

        def known(task: Task) -> FileResult | None:
            return state.find(task.key) if state is not None and task.key else None

        results = (
            run_local(tasks, known, settings.jobs, settings.progress)
            if engine == "local"
            else run_on_engine(tasks, known, engine)
        )
        noted = set(self.unprotected)
        for task, result in results:
            if state is not None and task.key and known(task) is None:
                state.add(task.key, result)
            add(task, result)
            self.files += task.is_file
            self.shards += task.is_shard
            self.rows += result.rows
            self.bytes += result.size
            self.unprotected += [note for note in result.unprotected if note not in noted]
            noted.update(result.unprotected)
            if engine != "local":
                settings.progress.advance(result.rows, result.size)
            yield from (*task.findings, *result.findings)


@from_options(VerifyOptions)
def verify(options: VerifyOptions) -> Verification:
    """Check that datasets are complete and undamaged: sizes, checksums and structure of every file.

    A problem within a dataset is a finding, never an exception: for example, an unreadable index,
    an unfinished pack, a path outside the folder, a missing shard or a damaged shard. Iterate over
    the result to receive the findings; the counts are complete when the iteration has ended. Raises
    MissingError if an address does not exist, ReachError if no address can be read, and UsageError
    for invalid options.
    """
    against = None if options.against is None else address_text(options.against)
    state = None if options.state is None else address_text(options.state)
    sources = address_texts(options.sources)
    guard = options.guard(sources if against is None else [*sources, against])
    addresses = [one for source in sources for one in expand(source, guard)]
    if not addresses:
        raise UsageError("missing argument: SOURCE")
    format, streams, quick = (
        options.source_format(options.format),
        options.streams,
        options.quick,
    )
    if format is not None:
        formats.find(format)
    if options.engine != "local":
        from flarecli.write import engines

        engines.check(options.engine)
    choice = Choice(options.part, options.sample, options.seed)
    opened = open_streams(sources, options.input)
    plans, notes, unreadable = plan_sources(
        addresses, format, streams, guard, quick, options.table_headers(), opened
    )
    decoder = None
    if options.decode:
        from flarecli.media import Sandbox

        decoder = Sandbox()
    max_bytes = cast(int, options.max_object)
    settings = _Settings(
        Depth(options.quick, decoder, options.duplicates, max_value_bytes=max_bytes),
        choice,
        None if against is None else resolve([against], guard=guard, maps=False)[0],
        None if state is None else _open_state(state, addresses, against, options),
        options.max_findings,
        options.jobs or _default_jobs(plans),
        "local" if quick else options.engine,  # a quick check does not need a cluster
        options.progress or Progress(),
    )
    return Verification(plans, notes, unreadable, settings)


def _open_state(
    path: str, addresses: Sequence[str], against: str | None, options: VerifyOptions
) -> VerifyState:
    from flarecli.commands.verifying.state import VerifyState

    recorded = {
        "sources": addresses,
        "quick": options.quick,
        "decode": options.decode,
        "sample": options.sample,
        "part": options.part,
        "seed": options.seed,
        "against": against,
        "streams": list(options.streams),
        "format": options.source_format(options.format),
        **options.table_headers(),
        **({"max_object": options.max_object} if options.decode else {}),
    }
    return VerifyState(path, recorded)


def _default_jobs(plans: Sequence[Plan]) -> int:
    is_local = all(stream.at.is_local for plan in plans for stream in plan.streams)
    return cpu_count() if is_local else max(_MIN_REMOTE_JOBS, cpu_count())


def _with_unreadable(
    findings: Iterable[Finding], unreadable: dict[str, Finding]
) -> Iterator[Finding]:
    """Yield the findings, and then those in `unreadable` whose file has no finding yet.

    A finding about an unsafe link is replaced with the finding in `unreadable` for the same link.

    unreadable  path -> finding
    """
    for finding in findings:
        other = unreadable.pop(link_address(finding.address), None) if unreadable else None
        yield other if other is not None and finding.kind == "unsafe" else finding
    yield from unreadable.values()


def _with_repair_command(finding: Finding) -> Finding:
    """Add a repair command to the hint of a finding: rebuild the list, or pack the file again."""
    folder, slash, name = finding.address.rpartition("/")
    is_of_list = slash and name in (INDEX, PLAYLIST) and finding.row is None
    is_of_entry = finding.line is not None or bool(finding.item)
    if is_of_list and finding.kind not in _NOT_REPAIRED and not (is_of_entry and finding.hint):
        if is_url(folder):
            hint = "Upload it again, or repair it in a local copy of the dataset."
        else:
            command = _repair_command(folder, name)
            repair = f", or remove it and run `{command}`" if command else ""
            hint = f"Fetch it again{repair}."
        return replace(finding, hint=hint)
    return replace(finding, hint=finding.hint.replace(AGAIN, _REPAIR))


def _repair_command(folder: str, name: str) -> str:
    """Return the command that recreates a list in a local folder; empty if there is none."""
    at = shell_quoted(folder)
    if name == INDEX:
        return f"flare playlist {at} --reindex"
    with contextlib.suppress(FlareError):
        where = locate(folder, Guard())
        newest = max(filter(None, map(version_number, list_names(where))), default=0)
        if newest:
            with contextlib.suppress(FlareError):
                listed_files(where, version_name(newest))
                return f"flare log {at} --restore {newest}"
            return ""
    return f"flare playlist {at} -o {shell_quoted(f'{folder}/{name}')}"


def _connected(engine: str) -> AbstractContextManager[None]:
    if engine == "local":
        return nullcontext()
    from flarecli.write import engines

    return engines.joined(engine)


def _total(counts: Sequence[Any], choice: Choice | None = None) -> int | None:
    """Return the sum of all counts; None if a count is unknown.

    counts  one array per stream, with one count per shard
    choice  in each stream, only the counts of the shards in this selection are added; None: all
    """
    if any(one is None or (len(one) and one.min() < 0) for one in counts):
        return None
    if choice is not None and not choice.is_all:
        counts = [one[sorted(choice.of(len(one)))] for one in counts]
    return sum(total(one) for one in counts)
