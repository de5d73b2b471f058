"""State file of an interrupted `verify`: one JSON line for the options, and one for each file.

    {"flare": "verify", "format": 2, "options": {…}}
    {"key": "9f…", "rows": 10, "size": 6041, "findings": [{"address": "a.mds", "kind": "value",
     "row": 3, …}], "unprotected": []}

A key is a checksum of a file's address and of the entries for this file in playlists and indexes. A
file is therefore checked again if one of these entries changed. A completed check removes the state
file.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

from flarecli.commands.verifying.shard import FileResult
from flarecli.errors import FlareError, ReachError, UnsafeError, UsageError
from flarecli.model import Finding
from flarecli.storage import Location
from flarecli.storage.append_log import FileLog, format_line
from flarecli.storage.local import LocalStore

__all__ = ["VerifyState"]

_MARK = b'{"flare": "verify", "format": 2, '  # the first bytes of a state file
# the first bytes of a state file of format 1, which this version of flare does not read
_EARLIER = b'{"flare": "verify", "options": '
_TEXTS = ("address", "kind", "message", "hint", "item")
_NUMBERS = ("row", "start", "stop", "line", "character")


class VerifyState:
    """Results of checked files by key. Each added result is written immediately.

    A file is changed or removed only if it is empty or has the header of a state file.

    options  options of the check, which must equal the recorded options
    count    number of files whose results the state contains
    raises   UsageError if the file is not a state file or belongs to a different check; ReachError
             if the file cannot be read or written
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path, self._known = path, dict[str, FileResult]()
        self.count = 0
        folder, name = os.path.split(os.path.realpath(path))
        store = LocalStore(folder, maps=False, durable=False)
        self._log = FileLog(Location(store, name), store)
        head = {"flare": "verify", "format": 2, "options": options}
        try:
            self._log.create()
            self._load(json.dumps(head, sort_keys=True).encode() + b"\n")
        except UsageError:
            self._log.close()
            raise
        except UnsafeError:
            self._log.close()
            raise UsageError(
                "not a regular file", where=path, hint="Use another path for --state."
            ) from None
        except FlareError as error:
            self._log.close()
            raise ReachError(error.message, where=path) from error

    def _load(self, head: bytes) -> None:
        """Read the results of an earlier run, and remove an incomplete last line."""
        first = next(self._log.blocks(), b"")[: len(head)]
        if not first or (head.startswith(first) and first.startswith(_MARK) and first != head):
            self._log.truncate()  # the file is empty, or its header is incomplete
            self._log.append(head)
            return
        if first != head:
            raise self._foreign(first)
        lines = self._log.entries()
        good = next(lines).stop
        for stop, entry in lines:
            try:
                key, done = _result(entry)
            except (KeyError, TypeError, ValueError):
                break
            self._known[key], good = done, stop
        self.count = len(self._known)
        self._log.cut(good)

    def _foreign(self, first: bytes) -> UsageError:
        """Return the error for a file that is not the state of this check."""
        if first.startswith(_EARLIER):
            return UsageError(
                "file contains the state of a check by an earlier version of flare",
                where=self._path,
                hint="Remove the file, or specify another path for --state.",
            )
        if not first.startswith(_MARK):
            return UsageError(
                "not a state file of `flare verify`; nothing was written to it",
                where=self._path,
                hint="Specify a file that does not exist yet.",
            )
        return UsageError(
            "file contains the state of a check with different sources or options",
            where=self._path,
            hint="Use the same sources and options, or remove the file.",
        )

    def find(self, key: str) -> FileResult | None:
        """Return the result of checking a file, or None if the file has not been checked yet."""
        return self._known.get(key)

    def add(self, key: str, done: FileResult) -> None:
        """Write the result of checking a file."""
        self.count += 1
        names = (*_TEXTS, *_NUMBERS, "column")
        findings = [{name: getattr(one, name) for name in names} for one in done.findings]
        self._log.append(
            format_line(
                {
                    "key": key,
                    "rows": done.rows,
                    "size": done.size,
                    "findings": findings,
                    "unprotected": done.unprotected,
                }
            )
        )

    def close(self, is_done: bool) -> None:
        """Close the file, and remove it after a completed check, unless it was replaced."""
        if is_done:
            self._log.remove()
        self._log.close()


def _result(entry: dict[str, Any] | None) -> tuple[str, FileResult]:
    """Return the key and the result in a line.

    Raises KeyError, TypeError or ValueError if the line is invalid.
    """
    if entry is None:
        raise ValueError("line is not a JSON object")
    findings = [_finding(one) for one in entry["findings"]]
    unprotected = [str(one) for one in entry["unprotected"]]
    return str(entry["key"]), FileResult(
        findings, int(entry["rows"]), int(entry["size"]), unprotected
    )


def _finding(entry: Any) -> Finding:
    facts: dict[str, Any] = {name: str(entry[name]) for name in _TEXTS}
    for name in _NUMBERS:
        facts[name] = None if entry[name] is None else int(entry[name])
    return Finding(**facts, column=None if entry["column"] is None else str(entry["column"]))
