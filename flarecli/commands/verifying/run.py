"""Runs the checks of files on threads of this process, or as tasks of a cluster; results come in order."""

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
    """Check files in parallel; what is read ahead is bounded in bytes."""

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
