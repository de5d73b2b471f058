"""Failed rows. `failed.jsonl` lists the failed rows in row order, with the reason for each failure.

The file is part of the dataset: secrets are redacted, and repeated packs write the same bytes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.encodings import value_sizes
from flarecli.errors import FlareError, FormatError, ReachError, UnsafeError, ValueFitError
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import File, IntArray
from flarecli.names import is_url
from flarecli.redact import redact, redact_text
from flarecli.storage import Location
from flarecli.storage.append_log import format_line, open_log, parse_line
from flarecli.write.keys import key_text

__all__ = [
    "FAILED",
    "LARGE_HINT",
    "Failed",
    "Failure",
    "count_failed",
    "drop_rows",
    "error_of",
    "read_failed",
    "too_large",
]

FAILED = "failed.jsonl"
NULL_HINT = "Use --null COL=VALUE or --null fill to store a value in place of a null."
LARGE_HINT = "Increase --max-object."
# `failed.jsonl` is written when this many failures are in memory; a failure uses about 1 kB
_MAX_PENDING = 4096
SKIP_HINT = "Use --on-error skip to omit such rows and list them in failed.jsonl."


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed row.

    row             position of the row in the selection
    column          column that caused the failure; empty if unknown
    kind            kind of failure, such as `null` or `value`
    file, file_row  source file that contains the row, and the row number in that file; None if a
                    query computed the row
    hint            how to pack the row, such as an option; not written to `failed.jsonl`
    name            name of the failed file, if it determines the key; messages show the name
                    instead of the key, and `failed.jsonl` lists the name before the reason
    """

    row: int
    key: str
    column: str
    kind: str
    reason: str
    file: str | None = None
    file_row: int | None = None
    hint: str = ""
    name: str = ""

    @property
    def where(self) -> str:
        """Return the file and the row number in it, or the row number in the source."""
        return f"row {self.row}" if self.file is None else f"{self.file}[{self.file_row}]"

    @property
    def report(self) -> tuple[str, str]:
        """Return (row, reason), where the row is a file name, a key, or a file and row number."""
        return self.name or self.key or self.where, self.reason

    def redacted(self) -> Failure:
        """Return a copy in which secrets in URLs are redacted."""
        key = redact(self.key) if is_url(self.key) else redact_text(self.key)
        name, reason = redact_text(self.name), redact_text(self.reason)
        return replace(self, key=key, name=name, reason=reason)

    def line(self) -> bytes:
        """Return the line for `failed.jsonl`."""
        stored = self.redacted()
        entry = {
            "file": self.file,
            "row": self.row if self.file_row is None else self.file_row,
            "key": stored.key,
            "column": self.column,
            "kind": self.kind,
            "reason": f"{stored.name}: {stored.reason}" if stored.name else stored.reason,
        }
        return format_line(entry)


def read_failed(file: Location) -> Iterator[dict[str, Any]]:
    """Yield the entries of a complete `failed.jsonl`. Raises FormatError for an invalid line."""
    number, rest = 0, b""
    for block in file.blocks():
        *lines, rest = (rest + block).split(b"\n")
        for line in lines:
            number += 1
            entry = parse_line(line) or {}
            types = [type(entry.get(name)) for name in ("row", "kind")]
            if "file" not in entry or types != [int, str]:
                raise FormatError(f"invalid line {number}: expected a failed row", where=file)
            yield entry
    if rest:
        raise FormatError(f"line {number + 1} is incomplete", where=file)


def count_failed(file: Location) -> Counter[str]:
    """Return the number of rows for each kind of failure in a complete `failed.jsonl`.

    raises  FormatError for an invalid line
    """
    return Counter(entry["kind"] for entry in read_failed(file))


def drop_rows(
    batch: pa.RecordBatch, rows: IntArray, dropped: Iterable[int]
) -> tuple[pa.RecordBatch, IntArray]:
    """Remove rows from a batch and from its row positions. `dropped` lists rows of the batch."""
    keep = np.ones(len(rows), bool)
    keep[list(dropped)] = False
    return batch.filter(pa.array(keep)), rows[keep]


def too_large(
    batch: pa.RecordBatch, rows: IntArray, key: str | None, max_bytes: int
) -> dict[int, Failure]:
    """Find values of more than `max_bytes`: row in the batch -> failure.

    rows  int64 [rows]: the position of each row in the selection
    key   column that contains the keys of the rows
    """
    failures: dict[int, Failure] = {}
    if batch.nbytes <= max_bytes:
        return failures
    for name, array in zip(batch.schema.names, batch.columns, strict=True):
        sizes = value_sizes(array)
        if sizes is None:
            continue
        for at in np.flatnonzero(sizes > max_bytes).tolist():
            text = "" if key is None or key == name else key_text(batch.column(key)[at])
            reason = f"a value of {sizes[at]} bytes, larger than the limit of {max_bytes} bytes"
            one = Failure(int(rows[at]), text, name, "large", reason, hint=LARGE_HINT)
            failures.setdefault(at, one)
    return failures


_ERRORS: dict[str, type[FlareError]] = {
    "null": ValueFitError,
    "value": ValueFitError,
    "incomplete": FormatError,
    "column": FormatError,
    "erased": FormatError,
    "metadata": FormatError,
    "unsafe": UnsafeError,
}
_OMIT_ROWS = "--on-error skip to omit such rows"
_MISSING_HINT = "Complete the rows, use --allow-missing to store nulls"
_COLUMNS_HINT = "Select the columns to pack with -c"


def error_of(
    failure: Failure, address: object, hint: str = SKIP_HINT, can_skip: bool = True
) -> FlareError:
    """Return the error that ends a command at the first failed row.

    address   address of the source, for a row whose file is unknown
    hint      default hint, for failures without a hint of their own
    can_skip  whether the hint may recommend `--on-error skip`
    """
    label = failure.name or failure.key
    named = f"{label}: " if label else ""
    own, skip = failure.hint.rstrip("."), f", or use {_OMIT_ROWS}"
    if failure.kind == "robots" or (failure.kind == "unsafe" and "--allow-" in own):
        skip = f", or {_OMIT_ROWS}"
    elif failure.kind in ("incomplete", "column"):
        own = _MISSING_HINT if failure.kind == "incomplete" else _COLUMNS_HINT
        skip += f" and list them in {FAILED}"
    elif failure.kind == "null":
        skip = f", or {_OMIT_ROWS} and list them in {FAILED}"
    elif failure.kind not in ("missing", "value", "large"):
        own = ""  # the message explains the failure
    if own:
        hint = f"{own}{skip if can_skip else ''}."
    elif not can_skip and hint == SKIP_HINT:
        hint = ""
    at, row = (address, failure.row) if failure.file is None else (failure.file, failure.file_row)
    return _ERRORS.get(failure.kind, ReachError)(
        f"{named}{failure.reason}", where=at, row=row, column=failure.column or None, hint=hint
    )


class Failed:
    """Writer of `failed.jsonl`, the list of the failed rows of one dataset.

    state       state of `failed.jsonl` in the journal of an interrupted pack
    counts      kind of failure -> number of rows
    keeps_rows  True: also add failures to `unrecorded`, from which the spool saves them
    unrecorded  failures of the rows after the last recorded shard, except for failures in spool
                files
    """

    def __init__(self, at: Location, state: Mapping[str, Any] | None = None) -> None:
        self._at = at / FAILED
        self._list = open_log(self._at)
        self.counts: Counter[str] = Counter((state or {}).get("kinds", {}))
        self._pending: list[Failure] = []
        self.keeps_rows = False
        self.unrecorded = deque[Failure]()
        self._sums = Sums([DEFAULT])
        self._truncate(int((state or {}).get("bytes", 0)))

    @property
    def count(self) -> int:
        """Return the number of failed rows."""
        return self.counts.total()

    def _truncate(self, size: int) -> None:
        """Truncate the file to the size in the journal. Later rows are packed again."""
        if self._list.size < size:
            raise FormatError(
                f"file is {self._list.size} bytes; the journal lists {size}",
                where=self._at,
                hint="Use --overwrite to start again.",
            )
        self._list.cut(size)
        for block in self._list.blocks() if size else ():
            self._sums.update(block)

    def add(self, failure: Failure) -> None:
        """Add a failure. Failures must be added in row order."""
        self._pending.append(failure)
        if self.keeps_rows:
            self.unrecorded.append(failure)
        self.counts[failure.kind] += 1

    def forget(self, until: int) -> None:
        """Remove the failures of rows before `until` from `unrecorded`; they are now saved."""
        while self.unrecorded and self.unrecorded[0].row < until:
            self.unrecorded.popleft()

    def write(self, until: int) -> None:
        """Write the failures of rows before `until` if _MAX_PENDING or more are in memory.

        All rows that fail later must be at or after `until`, and all later shards must begin at or
        after `until`. Otherwise, the state of a shard would include failures of later rows.
        """
        if len(self._pending) >= _MAX_PENDING:
            self.settle(until)

    def settle(self, until: int) -> dict[str, Any]:
        """Write the failures of rows before `until`; return the file's state for the journal.

        After an interrupt, the file may list failures of rows that are in no recorded shard. A
        resumed pack removes these failures, and packs the rows again.
        """
        ready = [one for one in self._pending if one.row < until]
        self._pending = self._pending[len(ready) :]
        if ready:
            lines = b"".join(one.line() for one in ready)
            self._list.append(lines)
            self._sums.update(lines)
        written = self.counts - Counter(one.kind for one in self._pending)
        return {"bytes": self._sums.size, "kinds": dict(sorted(written.items()))}

    def files(self) -> dict[str, File]:
        """Publish `failed.jsonl`; return name -> file, or an empty dict if no row failed."""
        self._list.publish()
        return {FAILED: File(FAILED, self._sums.size, self._sums.hex())} if self._sums.size else {}

    def close(self) -> None:
        """Close the file."""
        self._list.close()
