"""Limits on the size of decoded data: columns, rows, cells and decompressed bytes.

The limits protect against small inputs that expand to huge data. A limit is the larger of a
constant and a multiple of the stored bytes. Real datasets are far below the limits, because a row
takes at least a few bytes.
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
# Each of the next three lines sets a limit on decoded data. The limit is the first number, or the
# second number times the size of the stored data in bytes, whichever is larger.
FREE_BYTES, MAX_RATIO = 256_000_000, 256
FREE_ROWS, ROWS_PER_BYTE = 1 << 22, 4
FREE_CELLS, CELLS_PER_BYTE = 1 << 25, 32
# maximum bytes of one value that is decoded to Python objects, such as JSON; these objects take up
# to 25 times as much memory
MAX_DECODED_VALUE = 16 << 20
MAX_TEXT_VALUE = 32 << 20  # maximum bytes of one text value; escaping may lengthen it sixfold
MAX_PARQUET_VALUE = 64 << 20  # maximum bytes of one value; Arrow's writer copies it several times
BOMB_HINT = "The file may be a decompression bomb; do not trust it."


def check_columns(count: int, where: object) -> None:
    """Raise FormatError for more than MAX_COLUMNS columns."""
    if count > MAX_COLUMNS:
        raise FormatError(
            f"{count} columns; the maximum is {MAX_COLUMNS}",
            where=where,
            hint="Store the values as a list or as JSON in one column.",
        )


def check_rows(rows: int, columns: int, stored: int, where: object) -> None:
    """Raise FormatError if a file of `stored` bytes declares too many rows or too many cells."""
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
    """Raise FormatError if a file of `stored` bytes declares too many values or list items."""
    limit = max(FREE_CELLS, CELLS_PER_BYTE * stored)
    if count > limit:
        raise FormatError(
            f"{count} values in {stored} bytes; the maximum is {limit} values",
            where=where,
            hint=BOMB_HINT,
        )


def decompressed_limit(stored: int) -> int:
    """Return the maximum number of bytes to which `stored` bytes may decompress."""
    return max(FREE_BYTES, MAX_RATIO * stored)


def check_decoded(size: int, stored: int, where: object) -> None:
    """Raise IntegrityError if `stored` bytes were decoded to more bytes than is allowed."""
    limit = decompressed_limit(stored)
    if size > limit:
        raise IntegrityError(
            f"{stored} bytes decode to more than {limit} bytes",
            where=where,
            hint=BOMB_HINT,
        )
