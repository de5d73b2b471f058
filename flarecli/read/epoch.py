"""A run through an epoch: samples in a keyed order, on one of any number of ranks, from any step on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any, NoReturn

import numpy as np

from flarecli.arguments import shown, whole
from flarecli.errors import UsageError
from flarecli.model import Cursor, Sample
from flarecli.read.protocols import Order, Rows
from flarecli.read.shard_ahead import begun

__all__ = ["WINDOW", "Run", "beginning", "check_place", "parse_state"]

_NO_CHECKSUM = "saved by an earlier version of flare, without the checksum of its data"

WINDOW = 8  # chunks whose rows are mixed, unless something else is said
_BLOCK = 1 << 14  # steps mapped to rows at once
_READ = 64  # rows read at once


def beginning(
    seed: int, epoch: int, order: str, window: int, cursor: Cursor | None = None
) -> Cursor:
    """Give the place where a run begins: at the beginning of an epoch, or at a cursor, which says seed, epoch, order and window.

    raises  UsageError for a cursor that is no place, or where something else is asked for than it says
    """
    if cursor is None:
        return Cursor(seed, epoch, 0, order, window=window)
    try:
        seed_, epoch_, step_ = whole(cursor.seed), whole(cursor.epoch), whole(cursor.step)
        place = Cursor(
            seed_,
            epoch_,
            step_,
            cursor.order,
            None if cursor.rows is None else whole(cursor.rows),
            window if cursor.window is None else whole(cursor.window),
            _text(cursor.checksum),
        )
    except TypeError:
        raise UsageError(
            f"{shown(cursor)} is no place of a run",
            hint="Give whole numbers: flare.Cursor(seed, epoch, step, order).",
        ) from None
    for name, given, unsaid in (
        ("seed", seed, 0),
        ("epoch", epoch, 0),
        ("order", order, "shuffle"),
        ("window", window, WINDOW),
    ):
        if given not in (unsaid, its := getattr(place, name)) and (
            name != "window" or place.order == "windows"
        ):
            raise UsageError(
                f"{name} is {given!r:.60}, the cursor's is {its!r:.60}",
                hint=f"Leave {name} out: the cursor says it.",
            )
    return place


def _text(given: Any) -> str | None:
    if given is not None and not isinstance(given, str):
        raise TypeError
    return given


def parse_state(
    state: Mapping[str, Any], keys: Set[str], owner: str, method: str
) -> dict[str, Any]:
    """Return a saved state with Python's integers: `order` and `checksum` are text, the other keys integers.

    raises  UsageError if it lacks a key, has another one, or a value of another type; it names the
            version if only the checksum is missing
    """
    texts = ("order", "checksum")
    try:
        found = {key: state[key] if key in texts else whole(state[key]) for key in state}
    except (TypeError, IndexError):
        found = {}
    if found.keys() == keys - {"checksum"}:
        raise UsageError(
            _NO_CHECKSUM,
            hint='If the data has not changed, add it: state | {"checksum": data.checksum}.',
        )
    if found.keys() != keys or not all(isinstance(found[name], str) for name in texts):
        raise UsageError(
            f"not a state that {owner} saved", hint=f"Pass what its {method}() returned."
        )
    return found


def check_place(data: Rows, rows: int, place: Cursor) -> None:
    """Raise UsageError if a place is outside its epoch, or was saved in other data.

    A place without rows and checksum was made by hand: only its step is checked. In order
    `sequential`, rows may have been added behind those of the data that it was saved in.

    rows  of the epoch
    """
    if not 0 <= place.step <= rows:
        raise UsageError(f"step {place.step} is outside the epoch, which has {rows}")
    if place.rows is None and place.checksum is None:
        return
    is_same_length = place.rows in (None, rows)
    if place.checksum is not None:
        if is_same_length and place.checksum == data.checksum:
            return
        if (
            place.order == "sequential"
            and place.rows is not None
            and data.begins_with(place.checksum, place.rows)
        ):
            return
    hint = "Open the data that it was saved with."
    if not is_same_length:
        raise UsageError(f"saved in data of {place.rows} rows, here are {rows}", hint=hint)
    if place.checksum is None:
        hint = (
            "If the data has not changed, give dataclasses.replace(cursor, checksum=data.checksum)."
        )
        raise UsageError(_NO_CHECKSUM, hint=hint)
    raise UsageError(
        f"saved in data with checksum {shown(place.checksum)}, this data has {data.checksum!r}",
        hint=hint,
    )


class Run:
    """Iterate it once: the samples of one rank, in order; `cursor` is the place behind the last one given.

    Every step of an epoch has one row, and rank r of R takes steps r, r + R, … behind the place where the run began. So
    the ranks together give each row once, in one order, and another number of ranks goes on where they stopped. Where
    the rows are no multiple of the ranks, the last ranks give one row less.

    raises  UsageError for a rank outside the ranks, an order that is none, a place outside the epoch
    """

    def __init__(self, data: Rows, cursor: Cursor, rank: int, ranks: int) -> None:
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks} is no rank")
        self._ranks = ranks
        self._epoch = data.order(
            cursor.seed,
            cursor.epoch,
            cursor.order,
            WINDOW if cursor.window is None else cursor.window,
        )
        check_place(data, self._epoch.rows, cursor)
        self._data = data
        self._begun, self._given, self._place = cursor.step + rank, 0, cursor
        self._samples = _read(data, self._epoch, cursor, rank, ranks)

    @property
    def cursor(self) -> Cursor:
        """The place behind the samples given so far, if every rank gave as many: after k of them, k × ranks steps on."""
        start = self._place
        step = min(self._epoch.rows, start.step + self._given * self._ranks)
        return Cursor(
            start.seed,
            start.epoch,
            step,
            start.order,
            self._epoch.rows,
            start.window,
            self._data.checksum,
        )

    def __repr__(self) -> str:
        at = self.cursor
        return f"<Run: {len(self)} samples left, seed {at.seed}, epoch {at.epoch}, step {at.step} of {self._epoch.rows}, {at.order}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Run cannot be sent to another process",
            hint="Send the dataset and `cursor`: data.run(cursor=cursor).",
        )

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Sample:
        sample = next(self._samples)
        self._given += 1
        return sample

    def __len__(self) -> int:
        """How many samples are left on this rank."""
        return max(0, -(-(self._epoch.rows - self._begun) // self._ranks) - self._given)


def _read(data: Rows, order: Order, place: Cursor, rank: int, ranks: int) -> Iterator[Sample]:
    """Give the samples; what fetches ahead ends with this."""
    fetching, block = begun(data, order, place, ranks), _BLOCK * ranks
    try:
        for first in range(place.step + rank, order.rows, block):
            steps = np.arange(first, min(first + block, order.rows), ranks, dtype=np.int64)
            rows = order.at(steps)
            for start in range(0, len(rows), _READ):
                some = rows[start : start + _READ]
                if fetching:
                    fetching.reached(int(steps[start]))
                    data.have(some, passing=True)
                yield from data.__getitems__(some)
    finally:
        if fetching:
            fetching.close()
            data.release_all()
