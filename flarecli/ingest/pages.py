"""What the pages of a parquet file say they decode to, before any is decoded.

A footer may declare less than its pages hold, and Arrow allocates what a page header says. Each page begins with a header in Thrift's
compact protocol (source: parquet-format, parquet.thrift):

    PageHeader             1 type, 2 bytes when decompressed, 3 bytes as stored, 5 data page, 7 dictionary page, 8 data page of version 2
    DataPageHeader         1 number of values, 2 encoding
    DictionaryPageHeader   1 number of values
    DataPageHeaderV2       1 number of values, 4 encoding
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from flarecli.errors import FormatError
from flarecli.ingest.footers import ColumnChunk, read_struct
from flarecli.storage import Location

__all__ = ["Page", "pages"]

_HEADER, _MAX_HEADER = 1 << 8, 1 << 24  # bytes read of a header, and the largest that Arrow takes
_DICTIONARY = 2
_DELTA_BYTE_ARRAY = 7


class Page(NamedTuple):
    """One page: bytes when decompressed, number of values, and whether it is a dictionary, or refers to earlier values."""

    size: int
    values: int
    is_dictionary: bool
    is_delta: bool


def pages(at: Location, size: int, chunk: ColumnChunk) -> Iterator[Page]:
    """Read the headers of a column chunk's pages, as many as Arrow reads.

    size    of the file
    raises  FormatError for a header that cannot be
    """
    start, left = max(0, chunk.start), chunk.values
    end = min(size, start + chunk.stored)
    while start < end and left > 0:
        header, length = _header(at, start, end)
        try:
            page = _page(header)
            stored = int(header[3])
        except (LookupError, TypeError, ValueError) as error:
            raise FormatError(f"page at byte {start}: invalid header", where=at) from error
        if stored < 0 or page.size < 0 or page.values < 0:
            raise FormatError(f"page at byte {start}: negative size in its header", where=at)
        if stored > size - start - length:  # Arrow would allocate as much before it reads
            raise FormatError(
                f"page at byte {start}: {stored} bytes, the file ends at byte {size}", where=at
            )
        yield page
        if not page.is_dictionary:
            left -= page.values
        start += length + stored


def _page(header: dict[int, Any]) -> Page:
    size = int(header[2])
    if header[1] == _DICTIONARY:
        return Page(size, int(header[7][1]), True, False)
    data = header.get(5) or header.get(8)
    if data is None:  # an index page, which Arrow skips
        return Page(0, 0, False, False)
    encoding = data[2] if 5 in header else data[4]
    return Page(size, int(data[1]), False, encoding == _DELTA_BYTE_ARRAY)


def _header(at: Location, start: int, end: int) -> tuple[dict[int, Any], int]:
    size = _HEADER
    while True:
        try:
            return read_struct(at.read(start, min(end, start + size)))
        except (IndexError, ValueError) as error:
            if start + size >= end or size >= _MAX_HEADER:
                raise FormatError(f"page at byte {start}: invalid header", where=at) from error
            size *= 16
