"""What a check that was interrupted had done: a file of lines, one for the whole and one for each file that was checked.

    {"flare": "verify", "options": {…}}
    {"key": "9f…", "rows": 10, "size": 6041, "findings": [["a.mds[3]", "value", "…", "…", [8, 72]]], "unprotected": []}

A key is the sum of the file's address and of all that lists say of it: where a list changed, the file is checked again. What was
checked is not looked at twice, so the file goes when a check came to its end.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flarecli.errors import ReachError, UsageError
from flarecli.model import Finding
from flarecli.verbs.checks import Checked

__all__ = ["Remembered"]


def _finding(told: Any) -> Finding:
    *texts, span = told
    where, kind, message, hint = (str(text) for text in texts)
    return Finding(
        where, kind, message, hint, None if span is None else (int(span[0]), int(span[1]))
    )


class Remembered:
    """Results by key, kept as they come.

    options  what was asked for: another question has other answers
    raises   UsageError if the file is of another check, or is none; ReachError if it cannot be read or written
    """

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        self._path, self._known = Path(path), dict[str, Checked]()
        head = json.dumps({"flare": "verify", "options": options}, sort_keys=True)
        try:
            whole = self._read(head) if self._path.exists() else 0
            self._file = self._path.open("r+b" if whole else "wb")
            self._file.seek(whole)
            self._file.truncate()
            if not whole:
                self._write(head)
        except OSError as error:
            raise ReachError(error.strerror or str(error), where=path) from error

    def _read(self, head: str) -> int:
        """Take in what was kept; give the bytes of whole lines: a line that was cut short is written again."""
        lines = self._path.read_bytes().split(b"\n")[:-1]
        if not lines:
            return 0
        if lines[0] != head.encode():
            raise UsageError(
                "it is not of this check",
                where=str(self._path),
                hint="Give the same sources and options, or remove it.",
            )
        whole = len(lines[0]) + 1
        for line in lines[1:]:
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
            whole += len(line) + 1
        return whole

    def _write(self, line: str) -> None:
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise ReachError(error.strerror or str(error), where=str(self._path)) from error

    def find(self, key: str) -> Checked | None:
        """Give what came of a file, if it was checked."""
        return self._known.get(key)

    def keep(self, key: str, done: Checked) -> None:
        """Note what came of a file."""
        findings = [[one.where, one.kind, one.message, one.hint, one.span] for one in done.findings]
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
        """End; a check that came to its end leaves no file."""
        self._file.close()
        if is_done:
            self._path.unlink(missing_ok=True)
