"""The state file of an interrupted `verify`: one JSON line for the whole check, then one for each file that was checked.

    {"flare": "verify", "format": 2, "options": {…}}
    {"key": "9f…", "rows": 10, "size": 6041, "findings": [{"address": "a.mds", "kind": "value", "row": 3, …}], "unprotected": []}

A key is the checksum of the file's address and of all that lists say of it: where a list changed, the file is checked again. A check
that came to its end removes the file.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any, BinaryIO

from flarecli.errors import ReachError, UsageError
from flarecli.model import Finding
from flarecli.verbs.checks import Checked

__all__ = ["Remembered"]

_MARK = b'{"flare": "verify", "format": 2, '  # what each state file begins with
_EARLIER = b'{"flare": "verify", "options": '  # format 1, whose findings have no fields
_TEXTS = ("address", "kind", "message", "hint", "item")
_NUMBERS = ("row", "start", "stop", "line", "character")
_OPEN = os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC  # a FIFO would block


def _finding(told: Any) -> Finding:
    facts: dict[str, Any] = {name: str(told[name]) for name in _TEXTS}
    for name in _NUMBERS:
        facts[name] = None if told[name] is None else int(told[name])
    return Finding(**facts, column=None if told["column"] is None else str(told["column"]))


class Remembered:
    """Results by key, written as they come.

    Only an empty file, or one with the header of a state file, is ever written to or removed.

    options  what was asked for: another check has other results
    raises   UsageError if the file is something else, or belongs to another check; ReachError if it cannot be read or written
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path, self._known = path, dict[str, Checked]()
        head = json.dumps({"flare": "verify", "format": 2, "options": options}, sort_keys=True)
        try:
            self._file = _opened(path)
            try:
                whole = self._read(self._file, head.encode())
                self._file.seek(whole)
                self._file.truncate()
                if not whole:
                    self._write(head)
            except BaseException:
                self._file.close()
                raise
        except UsageError:
            raise
        except OSError as error:
            raise ReachError(error.strerror or str(error), where=path) from error

    def _read(self, file: BinaryIO, head: bytes) -> int:
        """Read the results of an earlier run and return the bytes of all complete lines; an incomplete last line is written again.

        raises  UsageError if the file is not the state of this check
        """
        first = file.read(len(head) + 1)
        if not first or (head.startswith(first) and first.startswith(_MARK)):
            return 0  # empty, or the header itself is incomplete
        if first.startswith(_EARLIER):
            raise UsageError(
                "state of a check by an earlier version of flare",
                where=self._path,
                hint="Remove the file, or name another.",
            )
        if not first.startswith(_MARK):
            raise UsageError(
                "not a state file of `flare verify`; nothing was written to it",
                where=self._path,
                hint="Name a file that does not exist yet.",
            )
        if first != head + b"\n":
            raise UsageError(
                "state of a check with other sources or options",
                where=self._path,
                hint="Give the same sources and options, or remove the file.",
            )
        whole = len(first)
        for line in file:
            if not line.endswith(b"\n"):
                break
            try:
                told = json.loads(line)
                key, rows, size, unprotected = (
                    str(told["key"]),
                    int(told["rows"]),
                    int(told["size"]),
                    [str(one) for one in told["unprotected"]],
                )
                findings = [_finding(one) for one in told["findings"]]
            except (ValueError, KeyError, TypeError, IndexError, RecursionError):
                break
            self._known[key] = Checked(findings, rows, size, unprotected)
            whole += len(line)
        return whole

    def _write(self, line: str) -> None:
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise ReachError(error.strerror or str(error), where=self._path) from error

    def find(self, key: str) -> Checked | None:
        """Return the result of a file, or None if it was not checked yet."""
        return self._known.get(key)

    def keep(self, key: str, done: Checked) -> None:
        """Write the result of a file."""
        names = (*_TEXTS, *_NUMBERS, "column")
        findings = [{name: getattr(one, name) for name in names} for one in done.findings]
        self._write(
            json.dumps(
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
        """Close the file; a check that came to its end removes it, unless another file took its name meanwhile."""
        with self._file:
            path = os.path.realpath(self._path)
            own = os.fstat(self._file.fileno())
            if is_done and os.path.exists(path) and os.path.samestat(own, os.stat(path)):
                os.unlink(path)


def _opened(path: str) -> BinaryIO:
    """Open a regular file for reading and writing, made if there is none; its bytes are left as they are."""
    fd = os.open(path, _OPEN, 0o666)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise UsageError("not a regular file", where=path, hint="Name a file for --state.")
        return open(fd, "r+b")
    except BaseException:
        os.close(fd)
        raise
