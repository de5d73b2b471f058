"""The number of the next epoch, shared by all workers of a DataLoader."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import weakref
from collections.abc import Callable
from typing import Any

from flarecli.compat import loaded_torch_data
from flarecli.storage.flock import flock

__all__ = ["EpochCounter"]


class EpochCounter:
    """The next epoch of a dataset, shared by the processes that have a copy of it.

    All workers of one iteration get the same epoch. The state is a file in the folder for
    temporary files, which is removed with the first copy.
    """

    def __init__(self) -> None:
        fd, self._path = tempfile.mkstemp(prefix="flare-epoch-")
        with os.fdopen(fd, "w") as file:
            json.dump({"next": 0, "seeds": [], "resume": None, "ends": []}, file)
        self._turns: dict[int, int] = {}  # seed of workers -> iterations begun by this process
        weakref.finalize(self, _remove, self._path, os.getpid())

    def _change(self, change: Callable[[dict[str, Any]], Any]) -> Any:
        with open(self._path, "r+", encoding="utf-8") as file:
            flock(
                file.fileno(), fcntl.LOCK_EX, self._path, "Set TMPDIR to a folder on a local disk."
            )
            state = json.load(file)
            out = change(state)
            file.seek(0)
            json.dump(state, file)
            file.truncate()
        return out

    def begin(self) -> tuple[int, int, int, int]:
        """Begin an epoch; return its number, its first step, the worker's number, and their count.

        The workers of one iteration have a seed in common. Persistent workers keep it for the
        next iterations.
        """
        data = loaded_torch_data()  # a worker has always loaded it
        info = None if data is None else data.get_worker_info()
        seed = None if info is None else int(info.seed - info.id)
        turn = 0 if seed is None else self._turns.get(seed, 0)
        if seed is not None:
            self._turns[seed] = turn + 1

        def change(state: dict[str, Any]) -> tuple[int, int]:
            if seed is None:
                epoch = state["next"]
            else:
                known = dict(state["seeds"])
                if seed not in known:
                    known[seed] = state["next"] - turn
                    state["seeds"] = [*state["seeds"][-63:], [seed, known[seed]]]
                epoch = known[seed] + turn
            state["next"] = max(state["next"], epoch + 1)
            resume = state["resume"]
            return epoch, resume[1] if resume and resume[0] == epoch else 0

        epoch, step = self._change(change)
        return epoch, step, *((0, 1) if info is None else (info.id, info.num_workers))

    def resume(self, epoch: int, step: int) -> None:
        """Set the next epoch and its first step."""
        self._change(
            lambda state: state.update(next=epoch, resume=[epoch, step], seeds=[], ends=[])
        )

    def end(self, epoch: int, workers: int, has_samples: bool) -> bool:
        """Record that a worker finished an epoch; return True if all have and none had a sample."""

        def change(state: dict[str, Any]) -> bool:
            ends = {known: (count, any_) for known, count, any_ in state["ends"]}
            count, any_ = ends.pop(epoch, (0, False))
            count, any_ = count + 1, any_ or has_samples
            if count < workers:
                ends[epoch] = count, any_
            state["ends"] = [[known, *end] for known, end in ends.items()][-64:]
            return count >= workers and not any_

        return bool(self._change(change))

    def advance(self, epoch: int) -> None:
        """Record that an epoch has begun, unless a later one has."""
        self._change(lambda state: state.update(next=max(state["next"], epoch + 1)))

    def next(self) -> int:
        """Return the next epoch."""
        return int(self._change(lambda state: state["next"]))

    def last(self) -> tuple[int, int]:
        """Return the epoch begun or resumed last, and its first step."""

        def read(state: dict[str, Any]) -> tuple[int, int]:
            epoch, resume = max(0, state["next"] - 1), state["resume"]
            if resume and resume[0] in (epoch, state["next"]):
                return resume[0], resume[1]
            return epoch, 0

        found: tuple[int, int] = self._change(read)
        return found


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid and os.path.exists(path):
        os.unlink(path)
