"""Errors that are also of the builtin classes that mosaicml-streaming raises."""

from __future__ import annotations

from json import JSONDecodeError

from flarecli.errors import FormatError, MissingError, UnsafeError, UsageError

__all__ = [
    "CorruptIndexError",
    "LacksColumnError",
    "NoIndexError",
    "NoSamplesError",
    "OccupiedError",
    "PicklesError",
]


class OccupiedError(UsageError, FileExistsError):
    """The output folder is not empty."""


class LacksColumnError(UsageError, KeyError):
    """A sample has no value for a column."""


class NoIndexError(MissingError, RuntimeError):
    """A local folder has no index, and there is no remote to fetch it from."""


class NoSamplesError(UsageError, RuntimeError):
    """A stream has no samples."""


class PicklesError(UnsafeError, ValueError):
    """A column contains pickles, which are not allowed."""


class CorruptIndexError(FormatError, JSONDecodeError):
    """An `index.json` is empty or not valid JSON."""

    def __init__(self, message: str, *, where: object = "", hint: str = "") -> None:
        JSONDecodeError.__init__(self, message, "", 0)
        self._set(message, where, hint)
