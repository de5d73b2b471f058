"""The exception classes of flare. Each error has a message, a place, a hint and an exit code.

Errors are grouped by the caller's possible reaction. Most classes also inherit from a builtin
exception, so `except ValueError` and `except OSError` work.
"""

from __future__ import annotations

import errno
import os
from typing import Any, Self, SupportsInt, TypeAlias, TypeVar

__all__ = [
    "BusyError",
    "ExhaustedError",
    "FlareError",
    "FormatError",
    "IntegrityError",
    "MissingBucketError",
    "MissingError",
    "MissingLibraryError",
    "Place",
    "ReachError",
    "RowsError",
    "TransformError",
    "UnfinishedError",
    "UnsafeError",
    "UsageError",
    "ValueFitError",
    "check_exhausted",
    "format_place",
]

_Error = TypeVar("_Error", bound="FlareError")
# address, row, line, character and item of a Place
Facts: TypeAlias = tuple[str, int | None, int | None, int | None, str]


class Place:
    """A place in the data: a row, a line or a JSON item.

    Errors accept a Place as the argument `where`.

    address    the file or address; may be empty
    row        row number in the file, or in the batch if there is no address
    line       line number in a text file, counted from 1
    character  character in the line, counted from 1
    item       item of a JSON file, such as `shards[3].zip_data`; may be empty
    """

    def __init__(
        self,
        address: object = "",
        row: SupportsInt | None = None,
        line: int | None = None,
        character: int | None = None,
        item: str = "",
    ) -> None:
        self._facts = str(address), None if row is None else int(row), line, character, item

    def facts(self) -> Facts:
        """Return the address, row, line, character and item."""
        return self._facts

    def __str__(self) -> str:
        return format_place(*self.facts())


class FlareError(Exception):
    """An error that the user can act on.

    `kind` never changes, because scripts compare it.

    message    description of the problem
    address    the file or address with the problem; may be empty
    hint       solution in one sentence; may be empty. Tracebacks show it as a note
    row        row number in the file, or in the batch if there is no address
    column     name of the column, or None
    line       line number in a text file, counted from 1
    character  character in the line, counted from 1
    item       item of a JSON file, such as `shards[3].zip_data`; may be empty
    """

    kind, exit_code = "error", 1

    def __init__(
        self,
        message: str,
        *,
        where: object = "",
        hint: str = "",
        row: SupportsInt | None = None,
        column: str | None = None,
    ) -> None:
        super().__init__(message)
        self._set(message, where, hint, row, column)

    def _set(
        self,
        message: str,
        where: object,
        hint: str,
        row: SupportsInt | None = None,
        column: str | None = None,
    ) -> None:
        place = where if isinstance(where, Place) else Place(where, row)
        self.message, self.hint, self.column = message, hint, column
        self.address, self.row, self.line, self.character, self.item = place.facts()
        if hint:
            self.add_note(_hint_note(hint))

    @property
    def place(self) -> Place:
        """Return the place, for use as the argument `where` of another error."""
        return Place(self.address, self.row, self.line, self.character, self.item)

    @property
    def where(self) -> str:
        """Return the place as text for people, such as `out/shard.00000.mds[17]`."""
        return str(self.place)

    def at(self, where: object, first_row: int = 0) -> Self:
        """Return a copy of this error with another address and another row number.

        where      the new address
        first_row  number to add to the row number
        """
        row = None if self.row is None else first_row + self.row
        return self.changed(address=str(where), row=row)

    def of_column(self, name: str) -> Self:
        """Return a copy of this error whose message starts with the name of a column."""
        return self.changed(message=f"column {name!r}: {self.message}", column=name)

    def changed(self, **facts: Any) -> Self:
        """Return a copy in which the given attributes are replaced."""
        if facts.get("row") is not None:
            facts["row"] = int(facts["row"])  # the json module cannot write numpy integers
        hints = _hint_note(self.hint), _hint_note(facts.get("hint", self.hint))
        notes = [note for note in getattr(self, "__notes__", ()) if note not in hints]
        if facts.get("hint", self.hint):
            notes.insert(0, hints[1])
        return _rebuild(type(self), {**self.__dict__, **facts, "__notes__": notes})

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__)


def _hint_note(hint: str) -> str:
    return f"hint: {hint}"


def _rebuild(kind: type[_Error], facts: dict[str, Any]) -> _Error:
    error = kind(facts["message"])
    error.__dict__.update(facts)
    error.args = (error.message,)
    return error


def format_place(
    address: str,
    row: int | None = None,
    line: int | None = None,
    character: int | None = None,
    item: str = "",
) -> str:
    """Return an address followed by the row, the line or the item."""
    if row is not None:
        return f"{address}[{row}]" if address else f"row {row}"
    if line is not None:
        return f"{address}:{line}:{character}" if character is not None else f"{address}:{line}"
    return f"{address}: {item}" if item else address


class UsageError(FlareError, ValueError):
    """An invalid request: an unknown name, a row number out of range, or a target in use."""

    kind, exit_code = "usage", 2


class RowsError(UsageError, IndexError):
    """Row numbers out of range."""

    kind = "rows"


class ReachError(FlareError, OSError):
    """A failure to read or write an address, such as a network error or a full disk."""

    kind, exit_code = "reach", 3


class CredentialsError(ReachError):
    """Invalid or expired credentials, with which every request fails."""


class MissingError(ReachError, FileNotFoundError):
    """An address that does not exist."""

    kind = "missing"


class MissingBucketError(MissingError):
    """A bucket that does not exist."""


class BusyError(ReachError):
    """An address that is in use by another process."""

    kind = "busy"


class FormatError(FlareError, ValueError):
    """A file or value that is not valid in its format."""

    kind, exit_code = "format", 4


class NoRowsError(FormatError):
    """Data without rows, where at least one row is required."""


class EmptyTableError(FormatError):
    """A table without rows, where at least one row is required."""


class IntegrityError(FormatError):
    """A file whose size or checksum differs from the recorded value."""

    kind = "integrity"


class ValueFitError(FormatError):
    """A value that its encoding or format cannot store."""

    kind = "value"


class TransformError(FlareError):
    """A failure of a user's function on a sample; `__cause__` is the exception that it raised."""

    kind = "transform"


class UnfinishedError(FormatError):
    """A dataset whose packing was interrupted."""

    kind = "unfinished"


class UnsafeError(FlareError, PermissionError):
    """Unsafe data, such as a pickle, a file name that contains `..`, or a private IP address."""

    kind, exit_code = "unsafe", 5


class ExhaustedError(MemoryError):
    """A lack of file handles. Like a lack of memory, it is independent of the data.

    This class is not a FlareError, because code that reports a FlareError as a finding or a failed
    row must not catch it.
    """


def check_exhausted(error: OSError) -> None:
    """Raise MemoryError or ExhaustedError if the system is out of memory or file handles."""
    if error.errno == errno.ENOMEM:
        raise MemoryError(os.strerror(errno.ENOMEM)) from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise ExhaustedError(os.strerror(error.errno)) from error


class MissingLibraryError(FlareError, ImportError):
    """An optional library that is not installed; the hint is the command that installs it."""

    kind, exit_code = "library", 6
