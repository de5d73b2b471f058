"""Index of a tar, `NAME.idx.json` in the folder of `NAME.tar`: positions of all members.

The format is flare's own: wids keeps its index in memory or in a pickle, which flare does not read.
It is JSON on one line:

    {"bytes": 20480, "columns": ["jpg", "cls"], "ends": "…", "format": "flare tar index 1",
     "keys": "…", "rows": 2, "sizes": "…", "starts": "…", "xxh3_128": "…"}

    bytes     size of the decompressed tar
    columns   extensions of the members
    keys      the keys of all samples, concatenated
    ends      int64 [rows]: end of each key
    starts    int64 [columns, rows]: first byte of each member, -1 where a sample lacks it
    sizes     int64 [columns, rows]: bytes of each member, -1 where a sample lacks it
    xxh3_128  checksum of all bytes before `, "xxh3_128"`

Arrays are base64 of little-endian bytes. A damaged, outdated or impossible index is ignored: the
headers are read instead, and `verify` reports it.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli.errors import FormatError, ReachError, UnsafeError
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import KEY
from flarecli.formats.webdataset.scan import Table, key_text
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import ByteArray, Chunk, IntArray
from flarecli.storage import Location

__all__ = ["name_of", "parse", "location_of", "read", "text"]

_MAX_INDEX_BYTES = 64 << 20  # about a million samples
_FORMAT = "flare tar index 1"
_CHECKSUM = re.compile(rb', "xxh3_128": "([0-9a-f]{32})"}\n')
_CHECKSUM_BYTES = len(', "xxh3_128": ""}\n') + 32
_TAR = re.compile(r"\.(?:tar(?:\.[a-z0-9]+)?|t[a-z]+)$")


def name_of(name: str) -> str:
    """Return the name of the index of a tar: `00000.idx.json` for `00000.tar` and `00000.tar.gz`."""
    return _TAR.sub("", name) + ".idx.json"


def location_of(chunk: Chunk) -> Location:
    """Return the location of the index of a tar: the listed one, or the one in the same folder."""
    return chunk.beside[0] if chunk.beside else chunk.at.folder / name_of(chunk.at.name)


def read(chunk: Chunk, size: int) -> Table | None:
    """Read the index of a tar of `size` bytes; return None if it is missing or cannot be used."""
    try:
        at = location_of(chunk)
        index_size = at.size()
        data = at.read(0, index_size) if index_size <= _MAX_INDEX_BYTES else b""
    except (ReachError, FormatError, UnsafeError):
        return None
    return parse(data, size)


def text(table: Table, size: int) -> bytes:
    """Return the bytes of the index of a tar of `size` bytes."""
    body: dict[str, Any] = {
        "bytes": size,
        "columns": list(table.extensions),
        "format": _FORMAT,
        "rows": table.rows,
        "keys": _packed(table.keys),
    }
    body |= {
        name: _packed(getattr(table, name).astype("<i8", copy=False))
        for name in ("ends", "sizes", "starts")
    }
    data = json.dumps(body, sort_keys=True).encode()[:-1]
    return b'%s, "xxh3_128": "%s"}\n' % (data, _checksum(data))


def _packed(values: IntArray | ByteArray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).data).decode()


def _checksum(data: bytes | memoryview) -> bytes:
    sums = Sums([DEFAULT])
    sums.update(data)
    return sums.hex()[DEFAULT].encode()


def parse(data: bytes, size: int) -> Table | None:
    """Parse the index of a tar of `size` bytes; return None if it cannot be used."""
    end = _CHECKSUM.fullmatch(data, max(0, len(data) - _CHECKSUM_BYTES))
    if not end or _checksum(memoryview(data)[: end.start()]) != end[1]:
        return None
    try:
        body = json.loads(data)
        rows, columns = body["rows"], body["columns"]
        if (
            body["format"] != _FORMAT
            or body["bytes"] != size
            or type(rows) is not int
            or type(columns) is not list
            or not all(type(one) is str for one in columns)
        ):
            return None
        keys = np.frombuffer(base64.b64decode(body["keys"], validate=True), np.uint8)
        ends, starts, sizes = (
            np.frombuffer(base64.b64decode(body[name], validate=True), "<i8")
            for name in ("ends", "starts", "sizes")
        )
        table = Table(
            tuple(columns),
            keys,
            ends,
            starts.reshape(len(columns), rows),
            sizes.reshape(len(columns), rows),
        )
    except (KeyError, TypeError, ValueError, RecursionError, binascii.Error):
        return None
    return table if _is_possible(table, rows, size) and _are_texts(table) else None


def _is_possible(table: Table, rows: int, size: int) -> bool:
    """Return whether the members are in order, block-aligned and within the tar."""
    ends = table.ends
    if len(ends) != rows or len({*table.extensions, KEY}) != len(table.extensions) + 1:
        return False
    if rows and (ends[0] <= 0 or ends[-1] != len(table.keys) or (ends[1:] <= ends[:-1]).any()):
        return False
    if ((table.starts < 0) != (table.sizes < 0)).any() or (
        rows and (table.starts < 0).all(0).any()
    ):
        return False
    there = table.starts >= 0
    if (
        rows and (np.where(there, table.starts, size).min(0)[1:] <= table.starts.max(0)[:-1]).any()
    ):  # read_batch expects rows in the order of the file
        return False
    starts, sizes = table.starts[there], table.sizes[there]
    if not len(starts):
        return True
    if (
        (starts % tar.BLOCK).any()
        or (starts < tar.BLOCK).any()
        or (starts > size).any()
        or (sizes > size - starts).any()
    ):
        return False
    order = np.argsort(starts, kind="stable")
    stops = starts[order] + tar.padded(sizes[order])
    return bool((stops[:-1] + tar.BLOCK <= starts[order][1:]).all())


def _are_texts(table: Table) -> bool:
    try:
        key_text(table.keys, table.ends).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True
