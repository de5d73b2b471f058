"""Validation of shard settings and columns, before any file is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flarecli import compress
from flarecli import hashes as sums
from flarecli.arguments import checked
from flarecli.errors import UsageError
from flarecli.model import Column, Columns, Settings

__all__ = ["SHARD_LIMIT", "column_pairs", "checked_settings"]

_COLUMNS_ERROR = "columns: expected names with encodings"
_COLUMNS_HINT = 'Use a mapping such as {"image": "jpeg", "label": "int"}.'
SHARD_LIMIT = (1 << 32) - 1  # the largest uint32 offset


def checked_settings(settings: Settings) -> Settings:
    """Validate settings, and convert their numbers to Python integers. Raises UsageError."""
    return _checked(**{name: getattr(settings, name) for name in settings.__slots__})


@checked
def _checked(
    compression: str | None,
    hashes: Sequence[str],
    shard_bytes: int | None,
    shard_rows: int | None,
    newline: str,
    separator: str,
) -> Settings:
    if compression is not None:
        compress.suffix_of(compression)
    sums.Sums(hashes)
    if shard_bytes is not None and shard_bytes > SHARD_LIMIT:
        raise UsageError(f"shard_bytes: expected at most {SHARD_LIMIT} (4 GiB), got {shard_bytes}")
    for name, value, minimum in (("shard_bytes", shard_bytes, 0), ("shard_rows", shard_rows, 1)):
        if value is not None and value < minimum:
            raise UsageError(f"{name}: expected at least {minimum}, got {value}")
    return Settings(compression, tuple(hashes), shard_bytes, shard_rows, newline, separator)


def column_pairs(columns: Mapping[str, str] | Columns) -> list[tuple[str, str]]:
    """Return the name and encoding of each column. Raises UsageError for values of any other type."""
    try:
        pairs = (
            [*columns.items()]
            if isinstance(columns, Mapping)
            else [(one.name, one.encoding) for one in columns if _is_column(one)]
        )
    except TypeError:
        raise UsageError(_COLUMNS_ERROR, hint=_COLUMNS_HINT) from None
    if not all(isinstance(text, str) for pair in pairs for text in pair):
        raise UsageError(_COLUMNS_ERROR, hint=_COLUMNS_HINT)
    return pairs


def _is_column(one: object) -> bool:
    if not isinstance(one, Column):
        raise TypeError
    return True
