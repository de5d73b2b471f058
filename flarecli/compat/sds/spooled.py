"""An index's rows in a file of this machine that is mapped, not loaded: an index larger than memory is read from any row on."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import os
import tempfile
import time
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.write import Keys, key_text

__all__ = ["Spooled"]

_ROWS = 1 << 14  # of a batch, at most: one is looked through for one row
_STALE_S = 60.0


class Spooled:
    """Rows of batches by position. Goes to other processes as the file's name; the file goes with whoever made it.

    folder  where the file lies; files there that a process left behind when it was killed are removed
    key     a column in which no value may come twice
    tails   no two of its values may differ by `-` and one of these alone
    raises  UsageError for a key that two rows have, and for two such keys
    """

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        key: str | None,
        where: str,
        tails: Sequence[str] = (),
    ) -> None:
        schema = pa.schema(
            [
                one.with_type(one.type.value_type) if pa.types.is_dictionary(one.type) else one
                for one in schema
            ]
        )
        _sweep(folder)
        fd, self._path = tempfile.mkstemp(".arrow", ".flare-index-", folder)
        with contextlib.suppress(OSError):  # without locks, `_sweep` leaves every file alone
            fcntl.flock(fd, fcntl.LOCK_SH)
        weakref.finalize(self, _remove, self._path, fd, os.getpid())
        keys, tailed, starts = Keys(), {tail: Keys() for tail in tails}, [0]
        with os.fdopen(os.dup(fd), "wb") as file, pa.ipc.new_file(file, schema) as out:
            for batch in batches:
                for start in range(0, batch.num_rows, _ROWS):
                    part = batch.slice(start, _ROWS).cast(schema)
                    if key is not None:
                        _refuse_twice(keys, part.column(key), starts[-1], where)
                        for tail, both in tailed.items():
                            _refuse_tailed(both, part.column(key), tail, where)
                    out.write_batch(part)
                    starts.append(starts[-1] + part.num_rows)
        self._starts = np.array(starts)
        self._open()

    def _open(self) -> None:
        self._file = pa.ipc.open_file(pa.memory_map(self._path))
        self.schema: pa.Schema = self._file.schema

    def __getstate__(self) -> dict[str, Any]:
        return {"_path": self._path, "_starts": self._starts}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._open()

    def __len__(self) -> int:
        return int(self._starts[-1])

    def take(self, rows: Sequence[int]) -> pa.Table:
        """Give rows, in the order asked; only their parts of the file are read."""
        wanted = np.asarray(rows, np.int64)
        number = np.searchsorted(self._starts, wanted, "right") - 1
        order = np.argsort(number, kind="stable")
        parts = []
        for k in np.unique(number).tolist():
            own = wanted[number == k] - self._starts[k]
            parts.append(self._file.get_batch(k).take(pa.array(own)))
        back = np.empty(len(order), np.int64)
        back[order] = np.arange(len(order))
        return pa.Table.from_batches(parts, self.schema).combine_chunks().take(pa.array(back))


def _refuse_twice(keys: Keys, column: pa.Array, first: int, where: str) -> None:
    twice = np.flatnonzero(keys.seen(column, first) >= 0)
    if len(twice):
        hint = "Name a column that tells rows apart."
        raise UsageError(
            f"{key_text(column[int(twice[0])])!r:.60} is the key of more than one row",
            where=where,
            hint=hint,
        )


def _refuse_tailed(both: Keys, column: pa.Array, tail: str, where: str) -> None:
    """Refuse a key that is another one with a tail; `both` are the keys so far, as they are and with it."""
    texts = [key_text(key) for key in column if key.is_valid]
    clash = np.flatnonzero(
        both.seen(pa.array([*texts, *(f"{text}-{tail}" for text in texts)], pa.large_string()), 0)
        >= 0
    )
    if len(clash):
        one = texts[int(clash[0]) % len(texts)]
        other = one.removesuffix(f"-{tail}") if int(clash[0]) < len(texts) else f"{one}-{tail}"
        message = f"the files of the keys {min(one, other)!r:.60} and {max(one, other)!r:.60} would have one name"
        raise UsageError(
            message,
            where=where,
            hint=f"Name a column whose values do not end in -{tail}, or download the columns apart.",
        )


def _sweep(folder: str) -> None:
    """Remove the files of processes that were killed: old ones, whose lock nobody holds."""
    for path in glob.glob(os.path.join(glob.escape(folder), ".flare-index-*.arrow")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if time.time() - os.fstat(fd).st_mtime > _STALE_S:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                os.unlink(path)
        except OSError:
            pass
        finally:
            os.close(fd)


def _remove(path: str, fd: int, pid: int) -> None:
    if os.getpid() == pid:
        os.close(fd)
        if os.path.exists(path):
            os.unlink(path)
