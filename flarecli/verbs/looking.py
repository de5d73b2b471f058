"""Where the files of a check are looked at: in threads of this process, or as tasks of a cluster. What comes of each is given in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeAlias

from flarecli.verbs.checks import Checked
from flarecli.verbs.listings import Task
from flarecli.write import engines

__all__ = ["Known", "on_engine", "on_threads"]

_AHEAD_BYTES = 1 << 30  # of shards in memory at once, however many jobs there are

Known: TypeAlias = Callable[[Task], Checked | None]  # what came of a file earlier, if it was looked at


def on_threads(tasks: Iterable[Task], known: Known, jobs: int) -> Iterator[tuple[Task, Checked]]:
    """Check side by side, a bounded number of bytes ahead."""
    waiting: deque[tuple[Task, Future[Checked]]] = deque()
    pool = ThreadPoolExecutor(jobs, "verify")
    try:
        for task in tasks:
            while waiting and (len(waiting) >= 2 * jobs or sum(one.weight for one, _ in waiting) + task.weight > _AHEAD_BYTES):
                first, future = waiting.popleft()
                yield first, future.result()
            found = known(task)
            waiting.append((task, pool.submit(task.check) if found is None else _done(found)))
        while waiting:
            first, future = waiting.popleft()
            yield first, future.result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done(found: Checked) -> Future[Checked]:
    future: Future[Checked] = Future()
    future.set_result(found)
    return future


def on_engine(tasks: Iterable[Task], known: Known, engine: str) -> Iterator[tuple[Task, Checked]]:
    """Check where an engine does: a task goes out with what is listed of one file, and comes back as counts and findings.

    raises  what `engines.run` raises
    """
    waiting: dict[int, Task] = {}
    done: dict[int, Checked] = {}
    first = 0

    def asked() -> Iterator[tuple[int, Callable[[], Checked]]]:
        for place, task in enumerate(tasks):
            waiting[place], found = task, known(task)
            if found is None:
                yield place, task.check
            else:
                done[place] = found

    for _, (place, found) in engines.run(engine, _look, asked()):
        done[place] = found
        while first in done:
            yield waiting.pop(first), done.pop(first)
            first += 1
    for place in sorted(done):  # what was known behind the last that was not
        yield waiting.pop(place), done[place]


def _look(item: tuple[int, Callable[[], Checked]]) -> tuple[int, Checked]:
    place, check = item
    return place, check()
