"""Output of the commands: results to stdout; notes and errors to stderr.

Control characters in data are escaped. Both streams are UTF-8 (see `__main__`). A failed write to
stdout is an error unless the reader closed the pipe; a failed write to stderr is ignored.
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
from flarecli.redact import one_line

if TYPE_CHECKING:
    from rich.text import Text

__all__ = [
    "Printer",
    "binary_stdout",
    "bytes_summary",
    "finish",
    "has_colors",
    "is_reader_gone",
    "is_terminal",
    "json_text",
    "json_value",
    "print_error",
    "refuse_terminal",
    "write_text",
]

# the characters that names.escape replaces, except C0, which the JSON encoder escapes
_ACTIVE = "[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_NAME = 12  # column names are not shortened to fewer characters
_RED, _CYAN, _OFF = "\x1b[31m", "\x1b[36m", "\x1b[0m"


# -- stdout


@contextmanager
def _stdout() -> Iterator[TextIO]:
    """Yield stdout, and convert its errors to ReachError.

    BrokenPipeError, which means that the reader closed the pipe, is not converted.
    """
    if sys.stdout is None:
        raise ReachError("the stream is closed", where="stdout")
    try:
        yield sys.stdout
    except (BrokenPipeError, FlareError):
        raise
    except OSError as error:
        raise ReachError(error.strerror or str(error), where="stdout") from error
    except ValueError as error:
        raise ReachError(str(error), where="stdout") from error


def write_text(text: str) -> None:
    """Write escaped text to stdout."""
    with _stdout() as stream:
        stream.write(text)


def finish() -> None:
    """Flush stdout. Raises ReachError if the flush fails."""
    with _stdout() as stream:
        stream.flush()


def is_reader_gone() -> bool:
    """Return whether stdout is a pipe whose reader closed it."""
    if sys.platform == "win32":  # Windows cannot poll a pipe
        return True
    import select

    try:
        poll = select.poll()
        poll.register(sys.stdout.fileno(), 0)
        return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))
    except (AttributeError, OSError, ValueError):
        return True  # stdout has no descriptor, so only its `write` can raise BrokenPipeError


class _BinaryStdout(io.RawIOBase):
    """Binary file that writes to stdout, for Arrow, Parquet and tar."""

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        with _stdout() as stream:
            return stream.buffer.write(data)

    def flush(self) -> None:
        finish()


def binary_stdout() -> IO[bytes]:
    """Return stdout as a binary file."""
    finish()
    return cast(IO[bytes], _BinaryStdout())


def is_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


def refuse_terminal(output: str) -> None:
    """Raise UsageError if stdout is a terminal.

    output  name of the binary output, for the message
    """
    if is_terminal():
        raise UsageError(
            f"{output} is binary and is not printed to a terminal",
            hint="Redirect the output to a file or a pipe.",
        )


def has_colors(stream: TextIO | None) -> bool:
    """Return whether a stream is a terminal that shows colors."""
    if stream is None or not stream.isatty():
        return False
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


# -- JSON


def json_value(value: Any) -> Any:
    """Convert a value to the types of JSON.

    NaN and infinity become null, bytes become an object with their size and checksum, and values of
    unknown types become text.
    """
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {str(name): json_value(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_value(item) for item in value]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes_summary(bytes(value))
    return str(value)


def bytes_summary(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Return the JSON object for bytes: their size and SHA-256."""
    import hashlib

    return {"bytes": len(data), "sha256": hashlib.sha256(data, usedforsecurity=False).hexdigest()}


def json_text(value: Any) -> str:
    r"""Return a JSON value as one line, with control and bidi characters as \u escapes."""
    text = _ENCODE(value)
    if text.isascii() and "\x7f" not in text:
        return text
    return re.sub(_ACTIVE, lambda match: f"\\u{ord(match[0]):04x}", text)


# -- stderr


def _write_stderr(text: str) -> None:
    """Write text to stderr and ignore errors."""
    if sys.stderr is not None:
        try:
            sys.stderr.write(text)
            sys.stderr.flush()
        except (OSError, ValueError):
            return


def print_error(
    error: FlareError, as_json: bool = False, traceback_of: BaseException | None = None
) -> None:
    """Print an error to stderr: `error: WHERE: MESSAGE` and `hint: HINT`, or one JSON object.

    traceback_of  exception whose traceback is printed first; its line with the hint is omitted
    """
    if traceback_of is not None:
        import traceback

        for line in "".join(traceback.format_exception(traceback_of)).splitlines():
            if line != f"hint: {error.hint}":
                _write_stderr(one_line(line) + "\n")
    where, message, hint = (one_line(text) for text in (error.where, error.message, error.hint))
    if as_json:
        fields = {
            "kind": error.kind,
            "message": message,
            "where": where,
            "row": error.row,
            "column": None if error.column is None else one_line(error.column),
            "hint": hint,
            "exit_code": error.exit_code,
        }
        _write_stderr(json_text({"error": fields}) + "\n")
        return
    red, cyan, off = (_RED, _CYAN, _OFF) if has_colors(sys.stderr) else ("", "", "")
    text = f"{red}error:{off} {where}{': ' if where else ''}{message}\n"
    if hint:
        text += f"{cyan}hint:{off} {hint}\n"
    _write_stderr(text)


class Printer:
    """Output of one command.

    as_json  print one JSON value per line on stdout, and only errors on stderr
    quiet    print only the result line on stdout, and only errors on stderr
    verbose  also print detailed notes
    """

    def __init__(self, as_json: bool = False, quiet: bool = False, verbose: bool = False) -> None:
        self.as_json, self.quiet, self.verbose = as_json, quiet, verbose

    def note(self, text: str, verbose: bool = False) -> None:
        """Print a note to stderr, unless output is quiet or JSON."""
        if not (self.as_json or self.quiet) and (self.verbose or not verbose):
            self.stderr_line(text)

    def stderr_line(self, text: str) -> None:
        """Print a line to stderr, even if output is quiet."""
        _write_stderr(one_line(text) + "\n")

    def json(self, value: Any) -> None:
        """Print one JSON value as one line."""
        write_text(json_text(json_value(value)) + "\n")

    def line(self, text: str) -> None:
        """Print one line to stdout."""
        write_text(escape(text) + "\n")

    def text(self, text: str) -> None:
        """Print several lines to stdout."""
        lines = text.removesuffix("\n").split("\n")
        write_text("".join(escape(line) + "\n" for line in lines))

    def table(self, header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
        """Print a ruled table on a terminal; elsewhere, print rows of tab-separated cells.

        A cell is text or, on a terminal with colors, an image drawn by `half_blocks`.
        """
        names = [escape(name) for name in header]
        if is_terminal():
            _rich_table(names, rows)
            return
        for cells in chain([header], rows):
            write_text("\t".join(escape(str(cell)) for cell in cells) + "\n")


def _rich_table(header: Sequence[str], rows: Iterable[Sequence[str | Text]]) -> None:
    """Print a ruled table. If it is too wide for the terminal, print several tables.

    Each table contains a group of adjacent columns.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(
        file=sys.stdout,
        color_system="auto" if has_colors(sys.stdout) else None,
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
    with _stdout():
        console.print(table)


def _runs(header: Sequence[str], width: int) -> list[slice]:
    """Split the columns of a table into groups that fit in the width.

    The estimated width of a column is 3 plus the smaller of `_NAME` and the length of its name.
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
