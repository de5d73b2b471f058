"""Runs: iterators over the samples of one rank in an epoch. A run can resume at any step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any, ClassVar, NoReturn, cast

from flarecli.arguments import checked, shown, whole
from flarecli.errors import UsageError
from flarecli.lifetimes import Closable
from flarecli.model import Cursor, Sample
from flarecli.read.batch import Order, Rows, batch_rows
from flarecli.read.shard_prefetch import Prefetch

__all__ = ["DATASET_HINT", "WINDOW", "Data", "Run", "check_cursor", "check_rows", "parse_state"]

DATASET_HINT = "Pass a dataset that flare.open or flare.mix returned."
_NO_CHECKSUM = "the position was saved by an earlier version of flare, without a data checksum"

WINDOW = 8  # default number of chunks whose rows are mixed
_READ_ROWS = 64  # number of rows per read


def _start(seed: int, epoch: int, order: str, window: int, cursor: Cursor | None = None) -> Cursor:
    """Return the cursor at which a run starts: `cursor`, or the start of the epoch.

    raises  UsageError if the cursor is invalid, or if an argument that differs from its default
            also differs from the value in the cursor
    """
    if cursor is None:
        return Cursor(seed, epoch, 0, order, window=window)
    try:
        start = Cursor(
            whole(cursor.seed),
            whole(cursor.epoch),
            whole(cursor.step),
            cursor.order,
            None if cursor.rows is None else whole(cursor.rows),
            window if cursor.window is None else whole(cursor.window),
            _text_or_none(cursor.checksum),
        )
    except TypeError:
        raise UsageError(
            f"invalid cursor: {shown(cursor)}",
            hint="Use integers for seed, epoch and step: flare.Cursor(seed, epoch, step, order).",
        ) from None
    for name, value, default, saved in (
        ("seed", seed, 0, start.seed),
        ("epoch", epoch, 0, start.epoch),
        ("order", order, "shuffle", start.order),
        ("window", window, WINDOW, start.window),
    ):
        if value not in (default, saved) and (name != "window" or start.order == "windows"):
            raise UsageError(
                f"{name} is {value!r:.60}, but the cursor has {saved!r:.60}",
                hint=f"Omit {name}, because the cursor sets it.",
            )
    return start


def _text_or_none(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise TypeError
    return value


def parse_state(
    state: Mapping[str, Any], keys: Set[str], owner: str, method: str
) -> dict[str, Any]:
    """Return a saved state as a dict of Python integers; `order` and `checksum` remain strings.

    keys    the keys of a valid state
    owner   the class that saves such states, for error messages
    method  the method that saves such states, for error messages
    raises  UsageError for missing or unknown keys, and for values of the wrong type
    """
    texts = ("order", "checksum")
    try:
        values = {key: state[key] if key in texts else whole(state[key]) for key in state}
    except (TypeError, IndexError):
        values = {}
    if values.keys() == keys - {"checksum"}:
        raise UsageError(
            _NO_CHECKSUM,
            hint='If the data is unchanged, add its checksum: state | {"checksum": data.checksum}.',
        )
    if values.keys() != keys or not all(isinstance(values[name], str) for name in texts):
        raise UsageError(
            f"expected a state that {owner} saved", hint=f"Pass the result of {method}()."
        )
    return values


def check_cursor(data: Rows, rows: int, cursor: Cursor) -> None:
    """Raise UsageError if a cursor is outside the epoch, or was saved with different data.

    Only the step is checked if the cursor has neither a row count nor a checksum, because such a
    cursor was created by a user. With order `sequential`, a cursor remains valid after rows are
    appended to the data. With order `sequential` or `shuffle`, a cursor remains valid after a
    compaction.

    rows  number of rows in the epoch
    """
    if cursor.rows is not None or cursor.checksum is not None:
        _check_saved(data, rows, cursor)
    if not 0 <= cursor.step <= rows:
        raise UsageError(f"step {cursor.step} is outside the epoch, which has {rows} steps")


def _check_saved(data: Rows, rows: int, cursor: Cursor) -> None:
    """Raise UsageError if a cursor was saved with different data; see `check_cursor`."""
    has_same_length = cursor.rows in (None, rows)
    if cursor.checksum is not None:
        if has_same_length and cursor.checksum == data.checksum:
            return
        if (
            cursor.order == "sequential"
            and cursor.rows is not None
            and data.begins_with(cursor.checksum, cursor.rows)
        ):
            return
        # a compaction changes the chunks, from which the order `windows` is computed
        if has_same_length and cursor.order != "windows" and data.is_compaction_of(cursor.checksum):
            return
    hint = "Open the data with which the position was saved."
    if cursor.checksum is not None and (address := data.version_with(cursor.checksum)):
        hint = f"Open {address}, the version with which the position was saved."
    if not has_same_length:
        raise UsageError(
            f"the position was saved with data of {cursor.rows} rows; this data has {rows} rows",
            hint=hint,
        )
    if cursor.checksum is None:
        hint = (
            "If the data has not changed, pass dataclasses.replace(cursor, checksum=data.checksum)."
        )
        raise UsageError(_NO_CHECKSUM, hint=hint)
    raise UsageError(
        f"the position was saved with data whose checksum is {shown(cursor.checksum)}; "
        f"this data has checksum {data.checksum!r}",
        hint=hint,
    )


class Data(Closable):
    """The base class of Dataset and Mix."""

    # Members for other modules of this package. Tab completion and the API reference omit them.
    INTERNAL: ClassVar[frozenset[str]] = frozenset(
        (
            "INTERNAL",
            "begins_with",
            "edges",
            "gather",
            "is_compaction_of",
            "is_copied",
            "large_values",
            "load",
            "matching",
            "order",
            "same_row_checksums",
            "stream_checksums",
            "version_with",
        )
    )

    def __dir__(self) -> list[str]:
        """Return the public names, for tab completion."""
        names = set(super().__dir__()) - self.INTERNAL
        return sorted(name for name in names if not name.startswith("_"))

    @checked
    def run(
        self,
        seed: int = 0,
        epoch: int = 0,
        order: str = "shuffle",
        rank: int = 0,
        ranks: int = 1,
        cursor: Cursor | None = None,
        window: int = WINDOW,
    ) -> Run:
        """Return an iterator over the samples of one rank in an epoch; see `Run`.

        order   `shuffle` (permute all rows), `windows` (for remote data: permute the chunks, and
                mix the rows of `window` chunks at a time) or `sequential`
        cursor  position at which to resume: the attribute `cursor` of an earlier run, which may
                have another number of ranks. The cursor sets seed, epoch, order and window
        raises  UsageError for an invalid rank or order, or a cursor saved with different data
        """
        return Run(cast("Rows", self), _start(seed, epoch, order, window, cursor), rank, ranks)


def check_rows(data: object) -> None:
    """Raise UsageError unless `data` is a Dataset or a Mix."""
    if not isinstance(data, Data):
        raise UsageError(f"expected a dataset, got {shown(data)}", hint=DATASET_HINT)


class Run:
    """An iterator over the samples of one rank, in order. `cursor` is the current position.

    Every step of an epoch reads one row. Rank r of R reads steps r, r + R, … after the start of the
    run. Together, the ranks read each row once. A run can resume with any number of ranks. If the
    number of rows is not a multiple of the number of ranks, the last ranks read one row fewer.

    raises  UsageError for an invalid rank, an unknown order or a step outside the epoch
    """

    def __init__(self, data: Rows, cursor: Cursor, rank: int, ranks: int) -> None:
        if not 0 <= rank < ranks:
            raise UsageError(f"rank {rank} of {ranks}: expected a rank below the number of ranks")
        self._ranks = ranks
        self._epoch = data.order(
            cursor.seed,
            cursor.epoch,
            cursor.order,
            WINDOW if cursor.window is None else cursor.window,
        )
        check_cursor(data, self._epoch.rows, cursor)
        self._data = data
        self._start, self._first, self._count = cursor, cursor.step + rank, 0
        self._samples = _read(data, self._epoch, cursor, rank, ranks)

    @property
    def cursor(self) -> Cursor:
        """Return the current position.

        The position assumes that every rank has read the same number of samples.
        """
        step = min(self._epoch.rows, self._start.step + self._count * self._ranks)
        return replace(self._start, step=step, rows=self._epoch.rows, checksum=self._data.checksum)

    def __repr__(self) -> str:
        at = self.cursor
        position = f"epoch {at.epoch}, step {at.step} of {self._epoch.rows}, {at.order}"
        return f"<Run: {len(self)} samples left, seed {at.seed}, {position}>"

    def __reduce__(self) -> NoReturn:
        raise UsageError(
            "a Run cannot be sent to another process",
            hint="Send the dataset and the cursor to the process, and call data.run(cursor=cursor) there.",
        )

    def __iter__(self) -> Run:
        return self

    def __next__(self) -> Sample:
        sample = next(self._samples)
        self._count += 1
        return sample

    def __len__(self) -> int:
        """Return the number of samples that this rank has not yielded yet."""
        return max(0, -(-(self._epoch.rows - self._first) // self._ranks) - self._count)


def _read(data: Rows, order: Order, start: Cursor, rank: int, ranks: int) -> Iterator[Sample]:
    """Yield the samples of a rank, and prefetch shards until the generator ends or is closed."""
    step = start.step + rank
    with contextlib.closing(Prefetch(data, order, start, ranks)) as prefetch:
        for rows in batch_rows(order, start.step, _READ_ROWS, rank=rank, ranks=ranks):
            for k in range(0, len(rows), _READ_ROWS):
                rows_read = rows[k : k + _READ_ROWS]
                prefetch.reached(step)
                if prefetch.is_active:
                    data.shards.fetch_rows(rows_read, passing=True)
                yield from data.__getitems__(rows_read)
                step += ranks * len(rows_read)
