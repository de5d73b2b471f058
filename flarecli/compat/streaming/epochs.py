"""Which samples an epoch of a StreamingDataset has, in which order, and which epoch it is: the same for all workers of one iteration."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from flarecli.model import IntArray
from flarecli.read import positions
from flarecli.read.windows import Epoch

__all__ = ["Clock", "Choice"]


class Choice:
    """An epoch's samples: of each stream so many, all of it as often as it goes, then a part chosen anew for each epoch.

    starts  of each stream: the sample at which each of its shards begins, and the end
    chosen  how many samples of each stream
    """

    def __init__(self, starts: Sequence[Sequence[int]], chosen: Sequence[int], seed: int) -> None:
        self._sizes, self._chosen, self._seed = [one[-1] for one in starts], list(chosen), seed
        self._firsts = np.cumsum([0, *self._sizes])  # each stream's first sample
        self._edges = np.cumsum([0, *chosen])  # each stream's first place in an epoch
        edges = [0]
        for own, count in zip(starts, chosen, strict=True):
            base, size = edges[-1], own[-1]
            for turn in range(count // size):
                edges += [base + turn * size + end for end in own[1:] if base + turn * size + end > edges[-1]]
            if base + count > edges[-1]:
                edges.append(base + count)
        self.edges = np.array(edges, np.int64)

    def __len__(self) -> int:
        return int(self._edges[-1])

    def samples(self, steps: IntArray, epoch: int, shuffle: bool, order: str, window: int) -> IntArray:
        """Give the sample of each step: int64 [k]."""
        places = Epoch(self.edges, self._seed, epoch, order if shuffle else "sequential", window).at(steps)
        out = np.empty(len(places), np.int64)
        stream = np.searchsorted(self._edges, places, "right") - 1
        for k in np.unique(stream):
            at, size = stream == k, self._sizes[k]
            own = places[at] - self._edges[k]
            rest = own >= self._chosen[k] // size * size
            own = own % size
            if rest.any():
                own[rest] = positions(own[rest], size, self._seed, epoch)
            out[at] = self._firsts[k] + own
        return out


class Clock:
    """The epoch that comes next, shared by the processes that hold one dataset: workers of one iteration are told the same one.

    It lives in a file of its own in the folder for temporary files, until whoever made it lets go.
    """

    def __init__(self) -> None:
        fd, self._path = tempfile.mkstemp(prefix="flare-epoch-")
        with os.fdopen(fd, "w") as file:
            json.dump({"next": 0, "seeds": [], "resume": None}, file)
        weakref.finalize(self, _remove, self._path, os.getpid())

    def _change(self, change: Callable[[dict[str, Any]], Any]) -> Any:
        with open(self._path, "r+", encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            state = json.load(file)
            out = change(state)
            file.seek(0)
            json.dump(state, file)
            file.truncate()
        return out

    def begin(self, seed: int | None, turn: int) -> tuple[int, int]:
        """Begin an epoch; give it and the step to begin at.

        seed  what the workers of one iteration have in common; None: no workers
        turn  how many iterations of that seed this process has begun before
        """

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

        found: tuple[int, int] = self._change(change)
        return found

    def resume(self, epoch: int, step: int) -> None:
        """Say that the next epoch is this one, from this step on."""
        self._change(lambda state: state.update(next=epoch, resume=[epoch, step], seeds=[]))

    def next(self) -> int:
        """Give the epoch that comes next."""
        return int(self._change(lambda state: state["next"]))

    def last(self) -> tuple[int, int]:
        """Give the epoch begun last, and the step that it began at."""

        def look(state: dict[str, Any]) -> tuple[int, int]:
            epoch, resume = max(0, state["next"] - 1), state["resume"]
            return epoch, resume[1] if resume and resume[0] == epoch else 0

        found: tuple[int, int] = self._change(look)
        return found


def _remove(path: str, pid: int) -> None:
    if os.getpid() == pid and os.path.exists(path):
        os.unlink(path)
