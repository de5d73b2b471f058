"""The one printer: answers to stdout, notes and errors to stderr, and nothing from data that a terminal would act on.

Both streams are UTF-8 (see `__main__`). On stdout a failed write is an error, unless whoever reads it left; on stderr it is not.
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

# What escape() of names would change, but for C0, which JSON escapes by itself; a \u escape is the same value to whoever parses it
_ACTIVE = "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"  # compiled when it is first needed
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_NAME = 12  # signs of a column's name that are shown at least
_RED, _CYAN, _OFF = "\x1b[31m", "\x1b[36m", "\x1b[0m"


@contextmanager
def _answering() -> Iterator[TextIO]:
    """Lend stdout; BrokenPipeError says that the reader left, anything else is an error of the user's to mend."""
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
    """Write text that is fit to print already."""
    with _answering() as stream:
        stream.write(text)


def finish() -> None:
    """Flush stdout: an answer that did not arrive is an error."""
    with _answering() as stream:
        stream.flush()


def reader_left() -> bool:
    """Say whether stdout is a pipe that nobody reads any more."""
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return True  # not a real stream: only its own writes can have raised


def line(text: str) -> None:
    """Print one line of the answer, whatever it holds."""
    write_text(escape(text) + "\n")


class _Binary(io.RawIOBase):
    """stdout for bytes, as the file that writers of Arrow and tar want."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _answering() as stream:
            return stream.buffer.write(data)

    def flush(self) -> None:
        finish()


def binary() -> IO[bytes]:
    """Give stdout as a file for bytes."""
    finish()
    return cast(IO[bytes], _Binary())


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def refuse_terminal(what: str) -> None:
    """Refuse bytes onto a terminal. Raises UsageError."""
    if is_terminal():
        raise UsageError(f"{what} is not for a terminal", hint="Send it to a file or into a pipe.")


def plain(value: Any) -> Any:
    """Give what JSON can say of a value: numbers that are none become null, bytes their size, the rest its text."""
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
    """Give what stands for bytes in text: how many, and their SHA-256."""
    import hashlib

    return {"bytes": len(data), "sha256": hashlib.sha256(data, usedforsecurity=False).hexdigest()}


def json_text(value: Any) -> str:
    r"""Write one JSON value on one line; it always parses, and what a terminal would act on is a \u escape in it."""
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
    """Write to stderr; nobody listening is no error."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return


def error(told: FlareError, as_json: bool = False, shown: BaseException | None = None) -> None:
    """Print an error to stderr: `error: WHERE: WHAT` and `hint: Do this.`, or one JSON object. `shown` comes with its traceback."""
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
    """Make text fit for stderr: no secrets of addresses, nothing that a terminal acts on, one line."""
    return escape(redact_text(text))


class Printer:
    """How one command speaks.

    as_json  one JSON value a line on stdout; nothing but errors on stderr
    quiet    the one useful line on stdout; nothing but errors on stderr
    verbose  also the notes for those who asked for details
    """

    def __init__(self, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose

    def note(self, text: str, verbose: bool = False) -> None:
        """Say something on stderr, if it is wanted."""
        if not (self.as_json or self.quiet) and (self.verbose or not verbose):
            _tell(_clean(text) + "\n")

    def told(self, text: str) -> None:
        """Say on stderr what was asked for by name, however quiet it is to be."""
        _tell(_clean(text) + "\n")

    def json(self, value: Any) -> None:
        """Print one JSON value as one line."""
        write_text(json_text(plain(value)) + "\n")

    def line(self, text: str) -> None:
        """Print one line of the answer."""
        line(text)

    def text(self, text: str) -> None:
        """Print an answer of several lines."""
        write_text("".join(escape(part) + "\n" for part in text.removesuffix("\n").split("\n")))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
        """Print rows of cells: a ruled table on a terminal, else one line per row, separated by tabs.

        A cell is text or, on a terminal that shows pictures, a drawing by `half_blocks`.
        """
        names = [escape(name) for name in header]
        if is_terminal():
            _rich_table(names, rows)
            return
        for cells in chain([header], rows):
            write_text("\t".join(escape(str(cell)) for cell in cells) + "\n")


def shows_pictures() -> bool:
    """Say whether stdout is a terminal with colours."""
    return _colours(sys.stdout)


def _rich_table(header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print a ruled table. Columns that do not fit side by side are printed as further tables below."""
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
    """Cut the columns of a table into runs whose names have room side by side: each takes its own signs and three of the ruling."""
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
