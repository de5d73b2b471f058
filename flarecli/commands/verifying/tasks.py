"""Tasks of `verify`: each task checks one file. Tasks run in threads or on a cluster.

The results are yielded in the order of the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from flarecli.commands.verifying.listings import OtherLists, is_index, original_index
from flarecli.commands.verifying.plans import Only
from flarecli.commands.verifying.shard import (
    MAX_MEMORY_BYTES,
    Depth,
    FileResult,
    ListEntry,
    check_chunk,
    check_file,
)
from flarecli.errors import FlareError, ReachError, UsageError
from flarecli.formats import INDEX, SHARD_INDEX
from flarecli.hashes import digest
from flarecli.model import Chunk, Columns, Finding, Playlist, Stream, finding_of
from flarecli.prefetch import ordered_map
from flarecli.progress import Progress, counted
from flarecli.read import places_of
from flarecli.storage import Location

__all__ = ["Task", "chunk_tasks", "file_tasks", "list_sizes", "run_local", "run_on_engine"]

_READ_AHEAD_BYTES = 1 << 30  # maximum total size of the shards in memory, for any number of jobs

# function that returns the result of an earlier run for a task, or None
Known: TypeAlias = Callable[["Task"], FileResult | None]


@dataclass(frozen=True)
class Task:
    """One file to check.

    weight    memory that the check needs, in bytes
    findings  findings that are known before the check
    at        address of a shard or of a companion file; empty for other files
    key       checksum of the address and the list entries; empty: the result is not stored in the
              state file
    """

    check: Callable[[], FileResult]
    weight: int = 0
    is_shard: bool = False
    findings: tuple[Finding, ...] = ()
    at: str = ""
    key: str = ""
    is_file: bool = True


def list_sizes(stream: Stream) -> tuple[Mapping[str, int] | None, str]:
    """Return the size of each object in the folder of a remote stream, and the folder's address.

    The bucket is listed once. The sizes are None if the folder is local or cannot be listed.
    """
    top = stream.at
    if top.is_local or not len(stream):
        return None, ""
    try:
        sizes = {
            top.store.show(top.store.child(top.path, entry.name)): entry.size
            for entry in top.list()
        }
    except (UsageError, ReachError):
        return None, ""
    return sizes, f"{top}/"


def file_tasks(
    playlist: Playlist,
    stream: Stream,
    results: dict[str, tuple[Location, FileResult]],
    depth: Depth,
    only: Only | None = None,
) -> Iterator[Task]:
    """Yield tasks for listed files that are not part of a shard. Each task stores its result.

    results  dict to update: name of a file -> its location and result
    only     check only these files and the indexes of the shards; None: all
    """

    def check(name: str, entry: ListEntry) -> FileResult:
        try:
            at = stream.at.join(name)
        except FlareError as error:
            return FileResult([finding_of(error, playlist.at or "")])
        result = check_file(at, [entry], depth)
        if result.findings and (original := original_index(stream, name)) is not None:
            # A change replaces the index before `playlist.yaml`. The list describes the original.
            name, at = original.name, original
            result = check_file(at, [entry], depth)
        results[name] = at, result
        return result

    for name, file in stream.files.items():
        is_chosen = only is None or name in only.files or name in (INDEX, SHARD_INDEX)
        if is_chosen and not is_index(playlist):
            yield Task(partial(check, name, ListEntry(str(playlist.at), file)))


def chunk_tasks(
    playlist: Playlist,
    stream: Stream,
    others: OtherLists,
    depth: Depth,
    chosen: Collection[int],
    only: Only | None = None,
) -> Iterator[Task]:
    """Yield tasks for the chosen shards of a stream and for their companion files.

    Each task contains the entries of all lists for its file. For shards that are not chosen, only
    the lists are compared with each other.

    chosen  positions of the shards to check
    only    shards to which the check is restricted; all others are ignored. None: all shards
    """
    first = 0  # number of the next row; -1: unknown
    for i, place in enumerate(places_of(stream)):
        rows = None if stream.rows is None or stream.rows[i] < 0 else int(stream.rows[i])
        start, first = first, first + rows if first >= 0 and rows is not None else -1
        if only is not None and i not in only.shards:
            continue
        try:
            chunk = stream.chunk(i)
        except FlareError as error:
            finding = finding_of(error, playlist.at or stream.at)
            yield Task(partial(FileResult, [finding]), is_shard=True)
            continue
        entries = [ListEntry(str(playlist.at), chunk.files[0])] if playlist.at is not None else []
        other_entries, findings = others.entries_of(i, place, chunk)
        entries += [
            ListEntry(str(other.at), entry.files[0], entry.rows if chunk.rows is None else None)
            for other, entry in other_entries
        ]
        companions = list[tuple[Location, Sequence[ListEntry]]]()
        for at, file in zip(chunk.companions, chunk.files[1:], strict=True) if i in chosen else ():
            own = [ListEntry(str(playlist.at), file)] if playlist.at is not None else []
            own += [
                ListEntry(str(other.at), file)
                for other, entry in other_entries
                for file, one in zip(entry.files[1:], entry.companions, strict=True)
                if one.name == at.name
            ]
            companions.append((at, own))
        if i in chosen:
            raw_size = max((entry.file.raw_size or 0 for entry in entries), default=0)
            size = chunk.files[0].size
            weight = min(MAX_MEMORY_BYTES // 4 if size is None else size, MAX_MEMORY_BYTES)
            yield Task(
                partial(_check_shard, chunk, entries, stream.columns, start, depth, companions),
                weight + raw_size,
                True,
                tuple(findings),
                str(chunk.at),
                _key(chunk.at, entries),
            )
        elif findings:
            yield Task(FileResult, findings=tuple(findings), is_file=False)
        for at, listed in companions:
            check = partial(check_file, at, listed, depth)
            yield Task(check, at=str(at), key=_key(at, listed))


def _check_shard(
    chunk: Chunk,
    entries: Sequence[ListEntry],
    columns: Columns | None,
    first: int,
    depth: Depth,
    companions: Sequence[tuple[Location, Sequence[ListEntry]]],
) -> FileResult:
    """Check a shard; drop the findings that the checks of its companion files also report."""
    result = check_chunk(chunk, entries, columns, first, depth)
    addresses = {one.where for one in result.findings}
    reported = {
        str(at)
        for at, own in companions
        if str(at) in addresses and check_file(at, own, depth).findings
    }
    result.findings = [one for one in result.findings if one.where not in reported]
    return result


def _key(at: Location, entries: Sequence[ListEntry]) -> str:
    return digest(repr((at.key, list(entries))).encode())


def run_local(
    tasks: Iterable[Task], known: Known, jobs: int, progress: Progress
) -> Iterator[tuple[Task, FileResult]]:
    """Check files in threads, with a limit on the bytes in memory.

    The progress advances with each read. After the check of a file, the progress is corrected, so
    that the bytes of the file are counted once.
    """

    def check(task: Task) -> tuple[Task, FileResult]:
        count = 0

        def report(size: int) -> None:
            nonlocal count
            count += size
            progress.advance(0, size)

        with counted(report):
            result = known(task) or task.check()
        progress.advance(result.rows, result.size - count)
        return task, result

    yield from ordered_map(
        check,
        tasks,
        workers=jobs,
        max_items=2 * jobs,
        max_bytes=_READ_AHEAD_BYTES,
        weigh=lambda task: task.weight,
    )


def run_on_engine(
    tasks: Iterable[Task], known: Known, engine: str
) -> Iterator[tuple[Task, FileResult]]:
    """Check files on a cluster, and yield the results in the order of the tasks.

    Each task contains the list entries for a file, and returns counts and findings.

    raises  the errors of `engines.run`
    """
    from flarecli.write import engines

    waiting: dict[int, Task] = {}
    results: dict[int, FileResult] = {}
    next_position = 0

    def unknown_tasks() -> Iterator[tuple[int, Callable[[], FileResult]]]:
        for position, task in enumerate(tasks):
            waiting[position], result = task, known(task)
            if result is None:
                yield position, task.check
            else:
                results[position] = result

    for _, (position, result) in engines.run(engine, _run_check, unknown_tasks()):
        results[position] = result
        while next_position in results:
            yield waiting.pop(next_position), results.pop(next_position)
            next_position += 1
    # the engine has returned all of its results; the remaining results are from an earlier run
    for position in sorted(results):
        yield waiting.pop(position), results[position]


def _run_check(item: tuple[int, Callable[[], FileResult]]) -> tuple[int, FileResult]:
    position, check = item
    return position, check()
