"""Printing: results to stdout, notes and errors to stderr, with control characters of data escaped.

Both streams are UTF-8 (see `__main__`). A failed write to stdout is an error unless the reader
closed the pipe; a failed write to stderr is ignored.
"""

from __future__ import annotations

import io
import json
import math
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from flarecli.errors import FlareError, ReachError, UsageError
from flarecli.names import escape
from flarecli.redact import redact_text

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "Printer",
    "binary",
    "compact",
    "error",
    "finish",
    "is_terminal",
    "json_text",
    "line",
    "plain",
    "reader_left",
    "refuse_terminal",
    "shows_pictures",
    "write_text",
]

# The characters that names.escape replaces, without C0, which JSON escapes itself.
# compiled on first use
_ACTIVE = "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_NAME = 12  # characters of a column's name that are always shown
_RED, _CYAN, _OFF = "\x1b[31m", "\x1b[36m", "\x1b[0m"


@contextmanager
def _answering() -> Iterator[TextIO]:
    """Yield stdout; BrokenPipeError means that the reader closed the pipe, other errors become
    ReachError.
    """
    if sys.stdout is None:
        raise ReachError("it is closed", where="stdout")
    try:
        yield sys.stdout
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        if isinstance(error, FlareError):
            raise
        raise ReachError(getattr(error, "strerror", None) or str(error), where="stdout") from error


def write_text(text: str) -> None:
    """Write text that is already escaped."""
    with _answering() as stream:
        stream.write(text)


def finish() -> None:
    """Flush stdout. Raises ReachError if that fails."""
    with _answering() as stream:
        stream.flush()


def reader_left() -> bool:
    """Return whether stdout is a pipe whose reader closed it."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return True  # not a real stream: the error came from its own write


def line(text: str) -> None:
    """Print one line to stdout, escaped."""
    write_text(escape(text) + "\n")


class _Binary(io.RawIOBase):
    """Binary file interface to stdout, for writers of Arrow and tar."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _answering() as stream:
            return stream.buffer.write(data)

    def flush(self) -> None:
        finish()


def binary() -> IO[bytes]:
    """Return stdout as a binary file."""
    finish()
    return cast(IO[bytes], _Binary())


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def refuse_terminal(what: str) -> None:
    """Raise UsageError if stdout is a terminal."""
    if is_terminal():
        raise UsageError(f"{what} is not for a terminal", hint="Redirect it to a file or a pipe.")


def plain(value: Any) -> Any:
    """Return a value that JSON can store: NaN and infinity become null, bytes an object with their
    size, others text.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return compact(bytes(value))
    return str(value)


def compact(data: bytes | memoryview) -> dict[str, Any]:
    """Return the object that represents bytes in JSON: their size and SHA-256."""
    import hashlib

    return {"bytes": len(data), "sha256": hashlib.sha256(data, usedforsecurity=False).hexdigest()}


def json_text(value: Any) -> str:
    r"""Return a JSON value as one line, with control and bidi characters as \u escapes."""
    text = _ENCODE(value)
    return (
        text
        if text.isascii() and "\x7f" not in text
        else re.sub(_ACTIVE, lambda found: f"\\u{ord(found[0]):04x}", text)
    )


def _colours(stream: TextIO | None) -> bool:
    return (
        stream is not None
        and stream.isatty()
        and not os.environ.get("NO_COLOR")
        and os.environ.get("TERM") != "dumb"
    )


def _tell(text: str) -> None:
    """Write to stderr; ignore failures."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return


def error(told: FlareError, as_json: bool = False, shown: BaseException | None = None) -> None:
    """Print an error to stderr: `error: WHERE: WHAT` and `hint: Do this.`, or one JSON object.

    shown  exception whose traceback is printed first
    """
    if shown is not None:
        import traceback

        for part in "".join(traceback.format_exception(shown)).splitlines():
            _tell(_clean(part) + "\n")
    where, message, hint = (_clean(text) for text in (told.where, told.message, told.hint))
    if as_json:
        fields = {
            "kind": told.kind,
            "message": message,
            "where": where,
            "row": told.row,
            "column": None if told.column is None else _clean(told.column),
            "hint": hint,
            "exit_code": told.exit_code,
        }
        _tell(json_text({"error": fields}) + "\n")
        return
    red, cyan, off = (_RED, _CYAN, _OFF) if _colours(sys.stderr) else ("", "", "")
    _tell(
        f"{red}error:{off} {where}{': ' if where else ''}{message}\n"
        + (f"{cyan}hint:{off} {hint}\n" if hint else "")
    )


def _clean(text: str) -> str:
    """Return text as one line, without secrets of addresses and with control characters escaped."""
    return escape(redact_text(text))


class Printer:
    """Output of one command.

    as_json  print one JSON value per line on stdout, and only errors on stderr
    quiet    print only the result line on stdout, and only errors on stderr
    verbose  print verbose notes too
    """

    def __init__(self, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose

    def note(self, text: str, verbose: bool = False) -> None:
        """Print a note to stderr, unless output is quiet or JSON."""
        if not (self.as_json or self.quiet) and (self.verbose or not verbose):
            _tell(_clean(text) + "\n")

    def told(self, text: str) -> None:
        """Print a line to stderr even if output is quiet."""
        _tell(_clean(text) + "\n")

    def json(self, value: Any) -> None:
        """Print one JSON value as one line."""
        write_text(json_text(plain(value)) + "\n")

    def line(self, text: str) -> None:
        """Print one line to stdout."""
        line(text)

    def text(self, text: str) -> None:
        """Print several lines to stdout."""
        write_text("".join(escape(part) + "\n" for part in text.removesuffix("\n").split("\n")))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
        """Print rows of cells: a ruled table on a terminal, else one line per row, separated by
        tabs.

        A cell is text or, on a terminal with colours, an image drawn by `half_blocks`.
        """
        names = [escape(name) for name in header]
        if is_terminal():
            _rich_table(names, rows)
            return
        for cells in chain([header], rows):
            write_text("\t".join(escape(str(cell)) for cell in cells) + "\n")


def shows_pictures() -> bool:
    """Return whether stdout is a terminal with colours."""
    return _colours(sys.stdout)


def _rich_table(header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print a ruled table.

    Columns that do not fit side by side are printed as further tables below.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=sys.stdout,
        color_system="auto" if _colours(sys.stdout) else None,
        markup=False,
        emoji=False,
        highlight=False,
    )
    runs = _runs(header, console.width)
    if len(runs) > 1:
        rows = list(rows)
        for run in runs:
            _rich_table(header[run], [row[run] for row in rows])
        return
    table = Table(box=box.SIMPLE_HEAD)
    for name in header:
        table.add_column(Text(name))
    for row in rows:
        table.add_row(*(Text(escape(cell)) if isinstance(cell, str) else cell for cell in row))
    with _answering():
        console.print(table)


def _runs(header: Sequence[str], width: int) -> list[slice]:
    """Split the columns of a table into runs that fit the width; a column takes its name and 3
    characters.
    """
    starts, used = [0], 1
    for i, name in enumerate(header):
        own = min(len(name), _NAME) + 3
        if used + own > width and i > starts[-1]:
            starts.append(i)
            used = 1
        used += own
    return [
        slice(start, stop) for start, stop in zip(starts, [*starts[1:], len(header)], strict=True)
    ]
