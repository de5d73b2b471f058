"""Errors that are also what mosaicml-streaming raises in their place, for programs that catch those."""

from __future__ import annotations

from flarecli.errors import UnsafeError, UsageError

__all__ = ["LacksColumnError", "OccupiedError", "PicklesError"]


class OccupiedError(UsageError, FileExistsError):
    """Files are where a dataset is to be written."""


class LacksColumnError(UsageError, KeyError):
    """A sample has no value for a column."""


class PicklesError(UnsafeError, ValueError):
    """A column holds pickles, and they were not allowed."""
