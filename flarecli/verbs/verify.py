"""verify: is it whole?

sources -> what is listed, and by whom -> each file in parallel: size, sums, structure -> findings in order
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from flarecli import formats
from flarecli.errors import UsageError
from flarecli.model import Finding, Playlist, Stream
from flarecli.progress import Progress
from flarecli.read import expand
from flarecli.storage import Guard, Limits, Location
from flarecli.verbs.checks import Checked
from flarecli.verbs.listings import Listing, Plan, Task, chunk_tasks, file_tasks, indexes, is_index, own_sum, planned, unlisted
from flarecli.verbs.rows import bounded

__all__ = ["Verification", "verify"]

_AHEAD_BYTES = 1 << 30  # of shards in memory at once, however many jobs there are
_REMOTE_JOBS = 8  # waiting for a network takes no core


@dataclass(frozen=True)
class _Options:
    quick: bool
    decode: bool
    most: int
    jobs: int
    progress: Progress


class Verification:
    """What is being checked: iterate it once for findings, as they come and in order; the counts are whole after that.

    files, shards, rows, bytes  what was looked at so far
    findings                    how many there are in all, also of those that were not given
    unprotected                 what carries no sum, and what was done about it
    extra                       files in the folder that no list names
    """

    def __init__(self, plans: Sequence[Plan], options: _Options) -> None:
        self.files = self.shards = self.rows = self.bytes = self.findings = 0
        self.unprotected: list[str] = []
        self.extra: list[str] = []
        self._found = self._given(plans, options)

    def __iter__(self) -> Iterator[Finding]:
        return self._found

    def _given(self, plans: Sequence[Plan], options: _Options) -> Iterator[Finding]:
        """Give the first `max_findings`, and one that counts the rest."""
        for one in self._walk(plans, options):
            self.findings += 1
            if self.findings <= options.most:
                yield one
        if self.findings > options.most:
            more = self.findings - options.most
            yield Finding(plans[-1].address, "more", f"{more} more finding{'s' * (more > 1)}", "Give a larger --max-findings to see them.")

    def _walk(self, plans: Sequence[Plan], options: _Options) -> Iterator[Finding]:
        known = [stream for plan in plans for stream in plan.streams]
        options.progress.start("verify", _total([stream.rows for stream in known]), _total([stream.sizes for stream in known]))
        try:
            for plan in plans:
                yield from plan.findings
                if plan.found is not None:
                    yield from self._of_plan(plan.found, plan, options)
        finally:
            options.progress.close()

    def _of_plan(self, found: Playlist, plan: Plan, options: _Options) -> Iterator[Finding]:
        if not is_index(found) and found.at is not None:
            size, findings, has_sums = own_sum(found)
            self.files, self.bytes = self.files + 1, self.bytes + size
            yield from findings
            if not has_sums:
                self.unprotected.append(f"{found.at}: carries no sums")
        elif found.at is not None:
            self.files, self.bytes = self.files + 1, self.bytes + found.at.size()
            self.unprotected.append(f"{found.at}: carries no sum, cross-checked with the shards' own headers")
        for stream in plan.streams:
            claimed: dict[str, tuple[Location, Checked]] = {}
            yield from self._run(file_tasks(found, stream, claimed, options.quick), options)
            beside: list[Listing] = []
            for listing, findings in indexes(found, stream, claimed):
                yield from findings
                beside += [listing] if listing is not None else []
            yield from self._run(chunk_tasks(found, stream, beside, options.quick, options.decode), options)
            for listing in beside:
                if listing.is_claimed and (rest := listing.rest()):
                    message = f"lists {rest[0]}{f' and {len(rest) - 1} others' * (len(rest) > 1)}, {found.at} does not"
                    yield Finding(str(listing.at), "listing", message, "Find out which of the two was changed.")
            if not any(listing.has_sums for listing in beside):
                self._say_bare(stream)
        if plan.is_whole:
            for name, one in unlisted(found):
                if one is not None:
                    yield one
                else:
                    self.extra.append(name)

    def _say_bare(self, stream: Stream) -> None:
        if stream.format in formats.OWN_SUMS:
            return
        tables = (*stream.hashes.values(), *stream.raw_hashes.values())
        bare = sum(not any(values[i] for values in tables) for i in range(len(stream)))
        if bare:
            self.unprotected.append(f"{bare} of {len(stream)} files of stream {stream.name!r}: carry no sums, only sizes and structure were checked")

    def _run(self, tasks: Iterator[Task], options: _Options) -> Iterator[Finding]:
        """Check in parallel, a bounded number of bytes ahead; findings come in the order of the tasks."""
        waiting: deque[tuple[Task, Future[Checked]]] = deque()
        pool = ThreadPoolExecutor(options.jobs, "verify")
        try:
            for task in tasks:
                while waiting and (len(waiting) >= 2 * options.jobs or sum(one.weight for one, _ in waiting) + task.weight > _AHEAD_BYTES):
                    yield from self._took(*waiting.popleft(), options)
                waiting.append((task, pool.submit(task.check)))
            while waiting:
                yield from self._took(*waiting.popleft(), options)
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def _took(self, task: Task, future: Future[Checked], options: _Options) -> list[Finding]:
        done = future.result()
        self.files += 1
        self.shards += task.is_shard
        self.rows += done.rows
        self.unprotected += done.unprotected
        self.bytes += done.size
        options.progress.advance(done.rows, done.size)
        return [*task.findings, *done.findings]


def verify(
    sources: str | Sequence[str],
    *,
    format: str | None = None,
    streams: Sequence[str] = (),
    quick: bool = False,
    decode: bool = False,
    max_findings: int = 100,
    jobs: int | None = None,
    guard: Guard | None = None,
    limits: Limits | None = None,
    progress: Progress | None = None,
) -> Verification:
    """Check that datasets are whole: every file against its size and sums, every shard against its own structure.

    Whatever is wrong below an address is a finding, never an exception: an index that cannot be read, an unfinished
    pack, a name that leaves the folder, a missing shard, damage.

    quick    compare sizes and read headers only
    decode   also decode every value, except pickles
    jobs     files checked at once; None: as many as there are cores
    return   iterate it for the findings; its counts are whole after that
    raises   MissingError if nothing is at an address; ReachError if it cannot be reached; UsageError
    """
    addresses = [one for source in ([sources] if isinstance(sources, str) else sources) for one in expand(source)]
    if not addresses:
        raise UsageError("no source is named")
    if format is not None:
        formats.find(format)
    plans = [planned(address, format, streams, bounded(guard, limits)) for address in addresses]
    cores = os.cpu_count() or 1
    local = all(stream.at.is_local for plan in plans for stream in plan.streams)
    return Verification(plans, _Options(quick, decode, max_findings, jobs or (cores if local else max(_REMOTE_JOBS, cores)), progress or Progress()))


def _total(counts: Sequence[Any]) -> int | None:
    return None if any(one is None or (one < 0).any() for one in counts) else int(sum(one.sum() for one in counts))
