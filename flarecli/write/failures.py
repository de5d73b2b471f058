"""Rows that failed: each one named with its reason in `failed.jsonl`, in the order of the rows, as the pack goes.

The file is part of the output, so it holds nothing that changes from run to run: no time, no secret.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from flarecli.errors import FlareError, FormatError, ReachError, UnsafeError, ValueFitError
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import File
from flarecli.names import redact_text
from flarecli.storage import Location
from flarecli.storage.local import LocalStore, sync_folder

__all__ = ["FAILED", "Failed", "Failure", "error_of"]

FAILED = "failed.jsonl"


@dataclass(frozen=True, slots=True)
class Failure:
    """One row that was not packed: its place in the selection, its key, the column, a kind for scripts, and why."""

    row: int
    key: str
    column: str
    kind: str
    reason: str

    def line(self) -> bytes:
        """Give its line in the list of failed rows."""
        return (json.dumps({**asdict(self), "reason": redact_text(self.reason)}) + "\n").encode()


_ERRORS: dict[str, type[FlareError]] = {"null": ValueFitError, "value": ValueFitError, "unsafe": UnsafeError}


def error_of(failure: Failure, address: object, hint: str) -> FlareError:
    """Give the error that ends a run at its first failed row."""
    named = f"{failure.key}: " if failure.key else ""
    return _ERRORS.get(failure.kind, ReachError)(f"{named}{failure.reason}", where=f"{address}[{failure.row}]", hint=hint)


class Failed:
    """The list of failed rows of one pack.

    state   what the journal noted of it, to go on from: bytes, count, reasons
    counts  reason kind -> rows
    """

    def __init__(self, at: Location, state: Mapping[str, Any] | None = None) -> None:
        store = at.store
        if not isinstance(store, LocalStore):
            raise TypeError("failed rows are listed in local folders")
        self._at, self._store, self._path = at / FAILED, store, os.path.join(store.root, FAILED)
        self.counts: Counter[str] = Counter((state or {}).get("kinds", {}))
        self._waiting: list[Failure] = []
        self._sums = Sums([DEFAULT])
        self._fd = -1
        self._begin(int((state or {}).get("bytes", 0)))

    @property
    def count(self) -> int:
        """Rows that failed so far."""
        return self.counts.total()

    def _begin(self, size: int) -> None:
        """Cut the list back to what was noted; what came after will come again."""
        if not size:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            return
        if not self._at.exists() or self._at.size() < size:
            raise FormatError("it is not as long as the journal says", where=self._at, hint="Give --overwrite to begin anew.")
        self._open()
        os.ftruncate(self._fd, size)
        for block in self._at.blocks(size):
            self._sums.update(block)

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise self._store.error(error, FAILED) from None

    def add(self, failure: Failure) -> None:
        """Take note of a row; rows come in order."""
        self._waiting.append(failure)
        self.counts[failure.kind] += 1

    def settle(self, until: int) -> dict[str, Any]:
        """Write the failures of rows before `until` to the disk; give what the journal notes of the list."""
        ready = [one for one in self._waiting if one.row < until]
        self._waiting = self._waiting[len(ready) :]
        if ready:
            first = self._fd < 0
            if first:
                self._open()
            lines = b"".join(one.line() for one in ready)
            self._sums.update(lines)
            try:
                while lines:
                    lines = lines[os.write(self._fd, lines) :]
                os.fsync(self._fd)
                if first:
                    sync_folder(os.path.dirname(self._path))
            except OSError as error:
                raise self._store.error(error, FAILED) from None
        noted = self.counts - Counter(one.kind for one in self._waiting)
        return {"bytes": self._sums.size, "kinds": dict(sorted(noted.items()))}

    def files(self) -> dict[str, File]:
        """Give the list as a file of the playlist; nothing if no row failed."""
        return {FAILED: File(FAILED, self._sums.size, self._sums.hex())} if self._sums.size else {}

    def close(self) -> None:
        """Close the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
