"""Limits on how much data a small input may expand to: columns, rows, cells and decompressed bytes.

Each limit is a constant up to which any input may go, and above it a multiple of the stored bytes. Real datasets stay far below:
a row of a dataset takes at least a few bytes for its key, its link or its data.
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
FREE_BYTES, MAX_RATIO = 256_000_000, 256  # bytes of output; above them, per byte of input
FREE_ROWS, ROWS_PER_BYTE = 1 << 22, 4
FREE_CELLS, CELLS_PER_BYTE = 1 << 25, 32
MAX_DECODED_VALUE = 16 << 20  # bytes of one document: its Python objects take up to 25 times that
MAX_TEXT_VALUE = 32 << 20  # bytes of one value as text: escaped, it is 6 times as long
MAX_PARQUET_VALUE = 64 << 20  # bytes of one value: Arrow's writer copies it several times
BOMB_HINT = "It may be a decompression bomb; do not trust it."


def check_columns(count: int, where: object) -> None:
    """Raise FormatError for more columns than are read."""
    if count > MAX_COLUMNS:
        raise FormatError(
            f"{count} columns; at most {MAX_COLUMNS} are read",
            where=where,
            hint="Store the values as a list or as JSON in one column.",
        )


def check_rows(rows: int, columns: int, stored: int, where: object) -> None:
    """Raise FormatError if rows, or rows times columns, are more than `stored` bytes can mean."""
    most = max(FREE_ROWS, ROWS_PER_BYTE * stored)
    if rows > most:
        raise FormatError(
            f"{rows} rows in {stored} bytes; at most {most} are read", where=where, hint=BOMB_HINT
        )
    most = max(FREE_CELLS, CELLS_PER_BYTE * stored)
    if rows * columns > most:
        raise FormatError(
            f"{rows} rows of {columns} columns in {stored} bytes; at most {most} cells are read",
            where=where,
            hint=BOMB_HINT,
        )


def check_values(count: int, stored: int, where: object) -> None:
    """Raise FormatError if `stored` bytes hold more values than they can mean; a row may list any number of them."""
    most = max(FREE_CELLS, CELLS_PER_BYTE * stored)
    if count > most:
        raise FormatError(
            f"{count} values in {stored} bytes; at most {most} are read",
            where=where,
            hint=BOMB_HINT,
        )


def decompressed_limit(stored: int) -> int:
    """Return how many bytes `stored` compressed bytes may decompress to."""
    return max(FREE_BYTES, MAX_RATIO * stored)


def check_decoded(size: int, stored: int, where: object) -> None:
    """Raise IntegrityError if `stored` bytes decode to more than their limit."""
    most = decompressed_limit(stored)
    if size > most:
        raise IntegrityError(
            f"{stored} bytes decode to more than {most} bytes",
            where=where,
            hint=BOMB_HINT,
        )
