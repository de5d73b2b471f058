"""Failed rows: `failed.jsonl` lists each with its reason, in row order.

The file is part of the output, so it contains nothing that changes between runs, and no secret.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flarecli.errors import FlareError, FormatError, ReachError, UnsafeError, ValueFitError
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import File
from flarecli.names import is_url
from flarecli.redact import redact, redact_text
from flarecli.storage import Location
from flarecli.storage.append_log import format_line, open_log

__all__ = ["FAILED", "Failed", "Failure", "error_of"]

FAILED = "failed.jsonl"


@dataclass(frozen=True, slots=True)
class Failure:
    """A row that was not packed: its position in the selection, key, column, kind and reason.

    file, file_row  where it lies in the index, as users look for it: a file and the row in that,
    from 0; None where a query made the row
    hint            how to allow it, where an option does; not stored
    """

    row: int
    key: str
    column: str
    kind: str
    reason: str
    file: str | None = None
    file_row: int | None = None
    hint: str = ""

    @property
    def where(self) -> str:
        """The position for messages: in the index, if that is known."""
        return f"row {self.row}" if self.file is None else f"{self.file}[{self.file_row}]"

    def redacted(self) -> Failure:
        """Return the failure as it may be stored, without secrets of addresses."""
        key = redact(self.key) if is_url(self.key) else redact_text(self.key)
        return replace(self, key=key, reason=redact_text(self.reason))

    def line(self) -> bytes:
        """Return the line for `failed.jsonl`."""
        stored = self.redacted()
        told = {
            "file": self.file,
            "row": self.row if self.file_row is None else self.file_row,
            "key": stored.key,
            "column": self.column,
            "kind": self.kind,
            "reason": stored.reason,
        }
        return format_line(told)


_ERRORS: dict[str, type[FlareError]] = {
    "null": ValueFitError,
    "value": ValueFitError,
    "incomplete": FormatError,
    "column": FormatError,
    "unsafe": UnsafeError,
}
_COLUMNS = "Give -c with the columns to pack, or --on-error skip to leave such rows out and list them in failed.jsonl."


def error_of(failure: Failure, address: object, hint: str) -> FlareError:
    """Return the error that ends a run at its first failed row; `hint` is how to leave such rows
    out.
    """
    named = f"{failure.key}: " if failure.key else ""
    if failure.kind == "unsafe" and failure.hint.startswith("Give "):
        hint = f"{failure.hint.rstrip('.')}, or --on-error skip to leave such rows out."
    elif failure.kind in ("column", "incomplete"):
        hint = _COLUMNS
    at, row = (address, failure.row) if failure.file is None else (failure.file, failure.file_row)
    return _ERRORS.get(failure.kind, ReachError)(
        f"{named}{failure.reason}", where=at, row=row, column=failure.column or None, hint=hint
    )


class Failed:
    """The list of failed rows of one pack.

    state   the state in the journal, to resume from: bytes and counts
    counts  kind -> rows
    """

    def __init__(self, at: Location, state: Mapping[str, Any] | None = None) -> None:
        self._at = at / FAILED
        self._list = open_log(self._at)
        self.counts: Counter[str] = Counter((state or {}).get("kinds", {}))
        self._waiting: list[Failure] = []
        self.unnoted = deque[Failure]()  # failures after the last shard in the journal
        self._sums = Sums([DEFAULT])
        self._begin(int((state or {}).get("bytes", 0)))

    @property
    def count(self) -> int:
        """Number of failed rows so far."""
        return self.counts.total()

    def _begin(self, size: int) -> None:
        """Cut the list to the size in the journal; later rows are packed again."""
        if self._list.size < size:
            raise FormatError(
                f"file is {self._list.size} bytes; the journal lists {size}",
                where=self._at,
                hint="Give --overwrite to begin anew.",
            )
        self._list.cut(size)
        for block in self._list.blocks() if size else ():
            self._sums.update(block)

    def add(self, failure: Failure) -> None:
        """Add a failure; rows must ascend."""
        self._waiting.append(failure)
        self.unnoted.append(failure)
        self.counts[failure.kind] += 1

    def noted(self, until: int) -> None:
        """Drop failures of rows before `until` from `unnoted`: the journal includes them."""
        while self.unnoted and self.unnoted[0].row < until:
            self.unnoted.popleft()

    def settle(self, until: int) -> dict[str, Any]:
        """Write the failures of rows before `until`, and return the state for the journal."""
        ready = [one for one in self._waiting if one.row < until]
        self._waiting = self._waiting[len(ready) :]
        if ready:
            lines = b"".join(one.line() for one in ready)
            self._list.append(lines)
            self._sums.update(lines)
        noted = self.counts - Counter(one.kind for one in self._waiting)
        return {"bytes": self._sums.size, "kinds": dict(sorted(noted.items()))}

    def files(self) -> dict[str, File]:
        """Publish the list and return its entry for the playlist; empty if no row failed."""
        self._list.publish()
        return {FAILED: File(FAILED, self._sums.size, self._sums.hex())} if self._sums.size else {}

    def close(self) -> None:
        """Close the file."""
        self._list.close()
