"""Errors that are also what mosaicml-streaming raises in their place, for programs that catch those."""

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
    """Files are where a dataset is to be written."""


class LacksColumnError(UsageError, KeyError):
    """A sample has no value for a column."""


class NoIndexError(MissingError, RuntimeError):
    """A local folder has no index, and there is no remote to fetch it from."""


class NoSamplesError(UsageError, RuntimeError):
    """A stream without a sample."""


class PicklesError(UnsafeError, ValueError):
    """A column holds pickles, and they were not allowed."""


class CorruptIndexError(FormatError, JSONDecodeError):
    """An `index.json` that is empty, or not JSON."""

    def __init__(self, message: str, *, where: object = "", hint: str = "") -> None:
        JSONDecodeError.__init__(self, message, "", 0)
        self._set(message, where, hint)
