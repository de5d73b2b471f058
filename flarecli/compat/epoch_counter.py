"""The number of the next epoch, shared by all workers of a DataLoader."""

from __future__ import annotations

import json
import os
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flarecli.compat import loaded_torch_data
from flarecli.storage import descriptors

__all__ = ["EpochCounter"]

MAX_ENTRIES = 64  # maximum number of recorded iterations and epochs


class EpochCounter:
    """Counter for the next epoch of a dataset, shared by all processes with a copy of the dataset.

    All workers of one iteration receive the same epoch. A temporary file stores the state. The
    process that created the counter removes this file.
    """

    def __init__(self) -> None:
        fd, self._path = tempfile.mkstemp(prefix="flare-epoch-")
        with os.fdopen(fd, "w") as file:
            json.dump({"next": 0, "seeds": [], "resume": [-1, 0], "ends": []}, file)
        # Worker seed -> number of iterations that this process has begun.
        self._turns: dict[int, int] = {}
        weakref.finalize(self, _remove, self._path, os.getpid())

    @contextmanager
    def _state(self) -> Iterator[dict[str, Any]]:
        """Lock the file and yield its state; write the state after the block."""
        with open(self._path, "r+", encoding="utf-8") as file:
            hint = "Set TMPDIR to a folder on a local disk."
            descriptors.lock_or_fail(file.fileno(), self._path, hint, wait=True)
            state = json.load(file)
            yield state
            file.seek(0)
            json.dump(state, file)
            file.truncate()

    def begin(self) -> tuple[int, int, int, int]:
        """Begin an epoch; return (epoch, first step, index of this worker, number of workers).

        The workers of one iteration have the same seed. Persistent workers keep this seed in later
        iterations.
        """
        data = loaded_torch_data()  # a DataLoader worker has always loaded torch
        info = None if data is None else data.get_worker_info()
        with self._state() as state:
            if info is None:
                epoch = state["next"]
            else:
                seed = int(info.seed - info.id)
                turn = self._turns.get(seed, 0)
                self._turns[seed] = turn + 1
                firsts = dict(state["seeds"])  # worker seed -> epoch of the seed's first iteration
                if seed not in firsts:
                    firsts[seed] = state["next"] - turn
                    state["seeds"] = [*firsts.items()][-MAX_ENTRIES:]
                epoch = firsts[seed] + turn
            state["next"] = max(state["next"], epoch + 1)
            resumed_epoch, step = state["resume"]
        step = step if resumed_epoch == epoch else 0
        return epoch, step, *((0, 1) if info is None else (info.id, info.num_workers))

    def resume(self, epoch: int, step: int) -> None:
        """Set the next epoch and its first step."""
        with self._state() as state:
            state.update(next=epoch, resume=[epoch, step], seeds=[], ends=[])

    def end(self, epoch: int, workers: int, has_samples: bool) -> bool:
        """Record that a worker finished an epoch.

        Return True if all workers finished the epoch and none yielded a sample.
        """
        with self._state() as state:
            ends = {known: (count, any_) for known, count, any_ in state["ends"]}
            count, any_samples = ends.pop(epoch, (0, False))
            count, any_samples = count + 1, any_samples or has_samples
            if count < workers:
                ends[epoch] = count, any_samples
            state["ends"] = [[known, *end] for known, end in ends.items()][-MAX_ENTRIES:]
        return count >= workers and not any_samples

    def advance(self, epoch: int) -> None:
        """Record that an epoch has begun, so that the next epoch is at least `epoch` + 1."""
        with self._state() as state:
            state["next"] = max(state["next"], epoch + 1)

    def next(self) -> int:
        """Return the next epoch."""
        with self._state() as state:
            return int(state["next"])

    def last(self) -> tuple[int, int]:
        """Return the epoch that most recently began or was resumed, and its first step."""
        with self._state() as state:
            last, (epoch, step) = max(0, state["next"] - 1), state["resume"]
            return (epoch, step) if epoch in (last, state["next"]) else (last, 0)


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid and os.path.exists(path):
        os.unlink(path)
