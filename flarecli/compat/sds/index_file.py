"""The rows of an index in a local memory-mapped file, for indexes larger than memory."""

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

__all__ = ["IndexFile"]

MAX_BATCH_ROWS = 1 << 14  # a lookup of one row reads one batch
MIN_STALE_AGE_S = 60.0


class IndexFile:
    """Rows of batches by position, stored in a file.

    An IndexFile is pickled as the name of its file. The process that created the file removes it.

    folder    folder for the file; old files of killed processes are removed from this folder
    key       name of a column with unique values
    suffixes  no key may equal another key followed by `-` and one of these suffixes
    raises    UsageError for duplicate keys, and for two keys that differ by a suffix
    """

    def __init__(
        self,
        folder: str,
        schema: pa.Schema,
        batches: Iterable[pa.RecordBatch],
        key: str | None,
        where: str,
        suffixes: Sequence[str] = (),
    ) -> None:
        schema = pa.schema(
            [
                field.with_type(field.type.value_type)
                if pa.types.is_dictionary(field.type)
                else field
                for field in schema
            ]
        )
        _remove_stale(folder)
        fd, self._path = tempfile.mkstemp(".arrow", ".flare-index-", folder)
        with contextlib.suppress(OSError):  # without locks, `_remove_stale` keeps all files
            fcntl.flock(fd, fcntl.LOCK_SH)
        weakref.finalize(self, _remove, self._path, fd, os.getpid())
        starts = [0]
        with (
            contextlib.ExitStack() as stack,
            os.fdopen(os.dup(fd), "wb") as file,
            pa.ipc.new_file(file, schema) as out,
        ):
            keys = stack.enter_context(Keys())
            suffixed = {suffix: stack.enter_context(Keys()) for suffix in suffixes}
            for batch in batches:
                for start in range(0, batch.num_rows, MAX_BATCH_ROWS):
                    part = batch.slice(start, MAX_BATCH_ROWS).cast(schema)
                    if key is not None:
                        _check_unique(keys, part.column(key), starts[-1], where)
                        for suffix, both in suffixed.items():
                            _check_suffix(both, part.column(key), suffix, where)
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
        """Return rows in the given order; only the batches with these rows are read."""
        positions = np.asarray(rows, np.int64)
        number = np.searchsorted(self._starts, positions, "right") - 1
        order = np.argsort(number, kind="stable")
        parts = []
        for k in np.unique(number).tolist():
            in_batch = positions[number == k] - self._starts[k]
            parts.append(self._file.get_batch(k).take(pa.array(in_batch)))
        table = pa.Table.from_batches(parts, self.schema).combine_chunks()
        return table.take(pa.array(np.argsort(order)))


def _check_unique(keys: Keys, column: pa.Array, first: int, where: str) -> None:
    twice = np.flatnonzero(keys.seen(column, first) >= 0)
    if len(twice):
        raise UsageError(
            f"duplicate key {key_text(column[int(twice[0])])!r:.60}",
            where=where,
            hint="Choose a column with unique values.",
        )


def _check_suffix(both: Keys, column: pa.Array, suffix: str, where: str) -> None:
    """Raise UsageError if one key equals another key followed by the suffix.

    both  all earlier keys, with and without the suffix
    """
    texts = [key_text(key) for key in column if key.is_valid]
    clash = np.flatnonzero(
        both.seen(pa.array([*texts, *(f"{text}-{suffix}" for text in texts)], pa.large_string()), 0)
        >= 0
    )
    if len(clash):
        key = texts[int(clash[0]) % len(texts)]
        other = key.removesuffix(f"-{suffix}") if int(clash[0]) < len(texts) else f"{key}-{suffix}"
        raise UsageError(
            f"files of the keys {min(key, other)!r:.60} and {max(key, other)!r:.60} would have the "
            "same name",
            where=where,
            hint=f"Choose a column whose values do not end in -{suffix}, or download one column "
            "at a time.",
        )


def _remove_stale(folder: str) -> None:
    """Remove old files without a lock, because they are from killed processes."""
    for path in glob.glob(os.path.join(glob.escape(folder), ".flare-index-*.arrow")):
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            continue
        try:
            if time.time() - os.fstat(fd).st_mtime > MIN_STALE_AGE_S:
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
