"""Run checks of files on threads of this process, or as tasks of a cluster; yield results in order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeAlias

from flarecli.commands.verifying.shard import Checked
from flarecli.commands.verifying.tasks import Task
from flarecli.prefetch import ordered_map

__all__ = ["Known", "on_engine", "on_threads"]

_AHEAD_BYTES = 1 << 30  # shards in memory, whatever the number of jobs

Known: TypeAlias = Callable[[Task], Checked | None]  # the result of an earlier run, if there is one


def on_threads(tasks: Iterable[Task], known: Known, jobs: int) -> Iterator[tuple[Task, Checked]]:
    """Check files in parallel, with a bounded number of bytes in memory."""

    def check(task: Task) -> tuple[Task, Checked]:
        found = known(task)
        return task, task.check() if found is None else found

    yield from ordered_map(
        check,
        tasks,
        workers=jobs,
        max_items=2 * jobs,
        max_bytes=_AHEAD_BYTES,
        weigh=lambda task: task.weight,
    )


def on_engine(tasks: Iterable[Task], known: Known, engine: str) -> Iterator[tuple[Task, Checked]]:
    """Check files on an engine: each task gets the listed facts of a file and returns counts and
    findings.

    raises  errors of `engines.run`
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
    for place in sorted(done):  # known results after the last task
        yield waiting.pop(place), done[place]


def _look(item: tuple[int, Callable[[], Checked]]) -> tuple[int, Checked]:
    place, check = item
    return place, check()
