"""Limits on the data that a small input may expand to: columns, rows, cells and decompressed bytes.

Each limit is a constant that every input may reach, or a multiple of the stored bytes if that is
more. Real datasets stay far below, because a row takes at least a few bytes.
"""

from __future__ import annotations

from flarecli.errors import FormatError, IntegrityError

__all__ = [
    "BOMB_HINT",
    "FREE_BYTES",
    "FREE_ROWS",
    "MAX_COLUMNS",
    "MAX_DECODED_VALUE",
    "MAX_PARQUET_VALUE",
    "MAX_TEXT_VALUE",
    "check_columns",
    "check_decoded",
    "check_rows",
    "check_values",
    "decompressed_limit",
]

MAX_COLUMNS = 10_000
FREE_BYTES, MAX_RATIO = 256_000_000, 256  # bytes of output: any input, per byte of input
FREE_ROWS, ROWS_PER_BYTE = 1 << 22, 4
FREE_CELLS, CELLS_PER_BYTE = 1 << 25, 32
MAX_DECODED_VALUE = (
    16 << 20
)  # bytes of one document; its Python objects take up to 25 times as much
MAX_TEXT_VALUE = 32 << 20  # bytes of one value as text; escaping can make it 6 times as long
MAX_PARQUET_VALUE = 64 << 20  # bytes of one value; Arrow's writer copies it several times
BOMB_HINT = "It may be a decompression bomb; do not trust it."


def check_columns(count: int, where: object) -> None:
    """Raise FormatError for more than MAX_COLUMNS columns."""
    if count > MAX_COLUMNS:
        raise FormatError(
            f"{count} columns; the maximum is {MAX_COLUMNS}",
            where=where,
            hint="Store the values as a list or as JSON in one column.",
        )


def check_rows(rows: int, columns: int, stored: int, where: object) -> None:
    """Raise FormatError if `stored` bytes have too many rows, or too many rows times columns."""
    limit = max(FREE_ROWS, ROWS_PER_BYTE * stored)
    if rows > limit:
        raise FormatError(
            f"{rows} rows in {stored} bytes; the maximum is {limit}",
            where=where,
            hint=BOMB_HINT,
        )
    limit = max(FREE_CELLS, CELLS_PER_BYTE * stored)
    if rows * columns > limit:
        raise FormatError(
            f"{rows} rows of {columns} columns in {stored} bytes; the maximum is {limit} cells",
            where=where,
            hint=BOMB_HINT,
        )


def check_values(count: int, stored: int, where: object) -> None:
    """Raise FormatError if `stored` bytes have too many values, such as elements of lists."""
    limit = max(FREE_CELLS, CELLS_PER_BYTE * stored)
    if count > limit:
        raise FormatError(
            f"{count} values in {stored} bytes; the maximum is {limit}",
            where=where,
            hint=BOMB_HINT,
        )


def decompressed_limit(stored: int) -> int:
    """Return the maximum number of bytes that `stored` compressed bytes may decompress to."""
    return max(FREE_BYTES, MAX_RATIO * stored)


def check_decoded(size: int, stored: int, where: object) -> None:
    """Raise IntegrityError if `stored` bytes decode to more than their limit."""
    limit = decompressed_limit(stored)
    if size > limit:
        raise IntegrityError(
            f"{stored} bytes decode to more than {limit} bytes",
            where=where,
            hint=BOMB_HINT,
        )
