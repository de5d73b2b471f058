"""The tree of errors: what happened, where, the way out, and the exit code.

Grouped by what a caller would do about them; the builtin as a second base keeps
`except ValueError` and `except OSError` working.
"""

from __future__ import annotations

import errno
import os

__all__ = [
    "BusyError",
    "ExhaustedError",
    "FlareError",
    "FormatError",
    "IntegrityError",
    "MissingError",
    "MissingLibraryError",
    "ReachError",
    "RowsError",
    "TransformError",
    "UnfinishedError",
    "UnsafeError",
    "UsageError",
    "ValueFitError",
    "check_exhausted",
]


class FlareError(Exception):
    """A failure a user can act on: what happened, where, and the way out.

    `where` is an address such as `out/shard.00000.mds[17]`; `hint` is one imperative sentence, or empty.
    `kind` never changes: scripts match on it.
    """

    kind, exit_code = "error", 1

    def __init__(self, message: str, *, where: object = "", hint: str = "") -> None:
        super().__init__(message)
        self.message, self.where, self.hint = message, str(where), hint

    def __str__(self) -> str:
        return f"{self.where}: {self.message}" if self.where else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild, (type(self), self.message, self.where, self.hint)


def _rebuild(kind: type[FlareError], message: str, where: str, hint: str) -> FlareError:
    return kind(message, where=where, hint=hint)


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
