"""The tree of errors: what happened, where, the way out, and the exit code.

Grouped by what a caller would do about them; the builtin as a second base keeps
`except ValueError` and `except OSError` working.
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
Facts: TypeAlias = tuple[str, int | None, int | None, int | None, str]  # of a Place, in its order


class Place:
    """A row of a file, a line of a text or an item of a JSON file, as `where` of an error.

    address    the file or address; may be empty
    row        the row of the file, or of the data where no address is known
    line       the line of a text, from 1
    character  the character of that line, from 1
    item       the item of a JSON file, such as `shards[3].zip_data`; may be empty
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
        """Return address, row, line, character and item."""
        return self._facts

    def __str__(self) -> str:
        return format_place(*self.facts())


class FlareError(Exception):
    """A failure that a user can act on.

    `kind` never changes: scripts compare it.

    message    what happened
    address    the file or address that it happened at; may be empty
    hint       what to do about it, one sentence; may be empty
    row        the row of the file, or of the batch where no address is known
    column     the column, if it is about one
    line       the line of a text, from 1
    character  the character of that line, from 1
    item       the item of a JSON file, such as `shards[3].zip_data`; may be empty
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

    @property
    def place(self) -> Place:
        """The address with the row, the line or the item, as `where` of another error."""
        return Place(self.address, self.row, self.line, self.character, self.item)

    @property
    def where(self) -> str:
        """The text of the place, such as `out/shard.00000.mds[17]`; only for people."""
        return str(self.place)

    def at(self, where: object, first_row: int = 0) -> Self:
        """Return the same error at an address; `first_row` is the row at which the batch begins."""
        row = None if self.row is None else first_row + self.row
        return self.changed(address=str(where), row=row)

    def of_column(self, name: str) -> Self:
        """Return the same error about a column, which the message then names."""
        return self.changed(message=f"column {name!r}: {self.message}", column=name)

    def changed(self, **facts: Any) -> Self:
        """Return a copy with other facts, given by their names."""
        if facts.get("row") is not None:
            facts["row"] = int(facts["row"])  # of numpy's, which JSON cannot write
        return _rebuild(type(self), {**self.__dict__, **facts})

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.__dict__)


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
    """Return an address with what is known of the place in it."""
    if row is not None:
        return f"{address}[{row}]" if address else f"row {row}"
    if line is not None:
        return f"{address}:{line}:{character}" if character is not None else f"{address}:{line}"
    return f"{address}: {item}" if item else address


class UsageError(FlareError, ValueError):
    """What was asked for makes no sense: an unknown name, rows outside the data, a target in use."""

    kind, exit_code = "usage", 2


class RowsError(UsageError, IndexError):
    """Rows outside the data."""

    kind = "rows"


class ReachError(FlareError, OSError):
    """An address that cannot be read or written: network, permission, a full disk."""

    kind, exit_code = "reach", 3

    def __str__(self) -> str:  # OSError has a __str__ of its own
        return FlareError.__str__(self)


class CredentialsError(ReachError):
    """With these credentials nobody is let in, whatever is asked for: they are wrong, or their time is over."""


class MissingError(ReachError, FileNotFoundError):
    """Nothing is at that address."""

    kind = "missing"


class BusyError(ReachError):
    """Another process is at work there."""

    kind = "busy"


class FormatError(FlareError, ValueError):
    """Bytes are not what the format says they are."""

    kind, exit_code = "format", 4


class NoRowsError(FormatError):
    """There is no row where one was wanted."""


class IntegrityError(FormatError):
    """Bytes are not what their checksum or their size says."""

    kind = "integrity"


class ValueFitError(FormatError):
    """A value that its encoding or its format cannot hold."""

    kind = "value"


class TransformError(FlareError):
    """A function of the user's failed on a sample; its own exception is the cause."""

    kind = "transform"


class UnfinishedError(FormatError):
    """A dataset whose packing has not ended."""

    kind = "unfinished"


class UnsafeError(FlareError, PermissionError):
    """Refused for safety: a pickle, a name that leaves the folder, an address that data may not name."""

    kind, exit_code = "unsafe", 5

    def __str__(self) -> str:  # OSError has a __str__ of its own
        return FlareError.__str__(self)


class ExhaustedError(MemoryError):
    """The process may have no more file handles. Like MemoryError, it says nothing about the data.

    No FlareError on purpose: where errors of the data become findings or failed rows, it goes on to the caller.
    """


def check_exhausted(error: OSError) -> None:
    """Raise MemoryError or ExhaustedError if the system refused memory or a file handle."""
    if error.errno == errno.ENOMEM:
        raise MemoryError(os.strerror(errno.ENOMEM)) from error
    if error.errno in (errno.EMFILE, errno.ENFILE):
        raise ExhaustedError(os.strerror(error.errno)) from error


class MissingLibraryError(FlareError, ImportError):
    """An optional library is not installed; the hint is the line that installs it."""

    kind, exit_code = "library", 6

    def __str__(self) -> str:  # ImportError has a __str__ of its own
        return FlareError.__str__(self)
