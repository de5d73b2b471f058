"""Sizes that the page headers of a parquet file declare, read before any page is decoded.

A footer may declare less than the pages contain, and Arrow allocates what a page header declares.
Each page starts with a header in Thrift's compact protocol (source: parquet-format,
parquet.thrift):

    PageHeader             1 type, 2 decompressed bytes, 3 stored bytes, 5 data page,
                           7 dictionary page, 8 data page of version 2
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

HEADER_BYTES, MAX_HEADER_BYTES = 1 << 8, 1 << 24  # first read, and the limit of Arrow
_DICTIONARY = 2
_DELTA_BYTE_ARRAY = 7


class Page(NamedTuple):
    """A page: its size in bytes after decompression, and its number of values.

    is_dictionary  the page is a dictionary
    is_delta       values refer to earlier values (DELTA_BYTE_ARRAY)
    """

    size: int
    values: int
    is_dictionary: bool
    is_delta: bool


def pages(at: Location, size: int, chunk: ColumnChunk) -> Iterator[Page]:
    """Yield the headers of a column chunk's pages that Arrow would read.

    size    of the file in bytes
    raises  FormatError for an invalid header
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
        if stored > size - start - length:  # Arrow would allocate this before it reads
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
    size = HEADER_BYTES
    while True:
        try:
            return read_struct(at.read(start, min(end, start + size)))
        except (IndexError, ValueError) as error:
            if start + size >= end or size >= MAX_HEADER_BYTES:
                raise FormatError(f"page at byte {start}: invalid header", where=at) from error
            size *= 16
