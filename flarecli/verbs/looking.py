"""Where the files of a check are looked at: in threads of this process, or as tasks of a cluster. What comes of each is given in order."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from queue import Empty, SimpleQueue
from threading import Thread
from typing import TypeAlias

from flarecli.storage.threads import Outcome, wait_for
from flarecli.verbs.checks import Checked
from flarecli.verbs.listings import Task

__all__ = ["Known", "on_engine", "on_threads"]

_AHEAD_BYTES = 1 << 30  # of shards in memory at once, however many jobs there are

_Asked: TypeAlias = "tuple[Callable[[], Checked], SimpleQueue[Outcome[Checked]]]"
Known: TypeAlias = Callable[
    [Task], Checked | None
]  # what came of a file earlier, if it was looked at


def on_threads(tasks: Iterable[Task], known: Known, jobs: int) -> Iterator[tuple[Task, Checked]]:
    """Check side by side, a bounded number of bytes ahead."""
    waiting: deque[tuple[Task, SimpleQueue[Outcome[Checked]]]] = deque()
    todo: SimpleQueue[_Asked | None] = SimpleQueue()
    threads = 0
    try:
        for task in tasks:
            while waiting and (
                len(waiting) >= 2 * jobs
                or sum(one.weight for one, _ in waiting) + task.weight > _AHEAD_BYTES
            ):
                first, arrived = waiting.popleft()
                yield first, wait_for(arrived).get()
            found, arrived = known(task), SimpleQueue()
            waiting.append((task, arrived))
            if found is not None:
                arrived.put(_known(found))
                continue
            todo.put((task.check, arrived))
            if threads < jobs:
                threads += 1
                Thread(target=_work, args=(todo,), name="verify", daemon=True).start()
        while waiting:
            first, arrived = waiting.popleft()
            yield first, wait_for(arrived).get()
    finally:
        # Nothing here waits or takes a lock that Python code holds: whoever left this half-way may have it closed by any thread that
        # collects garbage, one of these too.
        with contextlib.suppress(Empty):
            while True:
                todo.get_nowait()
        for _ in range(threads):
            todo.put(None)


def _work(todo: SimpleQueue[_Asked | None]) -> None:
    while (asked := todo.get()) is not None:
        check, arrived = asked
        arrived.put(_outcome(check))


def _known(found: Checked) -> Outcome[Checked]:
    outcome: Outcome[Checked] = Outcome(0)
    outcome.value = found
    return outcome


def _outcome(check: Callable[[], Checked]) -> Outcome[Checked]:
    outcome: Outcome[Checked] = Outcome(0)
    try:
        outcome.value = check()
    except BaseException as error:
        outcome.error = error
    return outcome


def on_engine(tasks: Iterable[Task], known: Known, engine: str) -> Iterator[tuple[Task, Checked]]:
    """Check where an engine does: a task goes out with what is listed of one file, and comes back as counts and findings.

    raises  what `engines.run` raises
    """
    from flarecli.write import engines

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
