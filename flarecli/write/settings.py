"""Checks of shard settings and columns, before anything is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flarecli import compress
from flarecli import hashes as sums
from flarecli.arguments import checked
from flarecli.errors import UsageError
from flarecli.model import Column, Columns, Settings

__all__ = ["SHARD_LIMIT", "column_pairs", "held_settings"]

_COLUMNS_ERROR = "columns: expected names with encodings"
_COLUMNS_HINT = 'Use a mapping such as {"image": "jpeg", "label": "int"}.'
SHARD_LIMIT = (1 << 32) - 1  # the largest uint32 offset


def held_settings(settings: Settings) -> Settings:
    """Return the settings with Python integers. Raises UsageError for invalid ones."""
    return _held(**{name: getattr(settings, name) for name in settings.__slots__})


@checked
def _held(
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
        raise UsageError(
            f"a shard of {shard_bytes} bytes is past 4 GiB, which its offsets cannot reach"
        )
    for count, noun in ((shard_bytes, "bytes"), (shard_rows, "rows")):
        if count is not None and count < (noun == "rows"):
            raise UsageError(f"a shard of {count} {noun} holds nothing")
    return Settings(compression, tuple(hashes), shard_bytes, shard_rows, newline, separator)


def column_pairs(columns: Mapping[str, str] | Columns) -> list[tuple[str, str]]:
    """Return the name and encoding of each column. Raises UsageError if one is missing."""
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
