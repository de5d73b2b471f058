"""`NAME.idx.json` beside `NAME.tar`: where the samples lie, so that any row is read without a pass over the headers.

webdataset has no such file: wids keeps its index in memory, or as a pickle, which is never read here. This one is JSON on one line:

    {"bytes": 20480, "columns": ["jpg", "cls"], "ends": "…", "format": "flare tar index 1", "keys": "…", "rows": 2,
     "sizes": "…", "starts": "…", "xxh3_128": "…"}

`bytes` is the size of the tar, decompressed. The other texts are base64 of little-endian arrays: `keys` the keys of all samples behind
one another, `ends` int64 [rows] where each ends; `starts` and `sizes` int64 [columns, rows], the first byte and the size of each
member, -1 where a sample lacks it. `xxh3_128` is the sum of all bytes before `, "xxh3_128"`. An index that is damaged, older than
its tar or impossible is not used: the headers are read instead, and `verify` says so.
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
from flarecli.model import Chunk, IntArray
from flarecli.storage import Location

__all__ = ["name_of", "parse", "place", "read", "text"]

_LIMIT = 64 << 20  # bytes of an index that is read: those of some million samples
_FORMAT = "flare tar index 1"
_SUM = re.compile(rb', "xxh3_128": "([0-9a-f]{32})"}\n')
_SUM_BYTES = len(', "xxh3_128": ""}\n') + 32
_TAR = re.compile(r"\.(?:tar(?:\.[a-z0-9]+)?|t[a-z]+)$")


def name_of(name: str) -> str:
    """Give the name of the index beside a tar: `00000.idx.json` beside `00000.tar` and `00000.tar.gz`."""
    return _TAR.sub("", name) + ".idx.json"


def place(chunk: Chunk) -> Location:
    """Give the place of the index beside a tar: the one listed, or the one that its name says."""
    return chunk.beside[0] if chunk.beside else chunk.at.folder / name_of(chunk.at.name)


def read(chunk: Chunk, size: int) -> Table | None:
    """Read the index beside a tar of `size` bytes; None if none is there, or none that can be used."""
    try:
        at = place(chunk)
        there = at.size()
        data = at.read(0, there) if there <= _LIMIT else b""
    except (ReachError, FormatError, UnsafeError):
        return None
    return parse(data, size)


def text(table: Table, size: int) -> bytes:
    """Give the bytes of an index over a tar of `size` bytes."""
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
    return b'%s, "xxh3_128": "%s"}\n' % (data, _sum(data))


def _packed(values: IntArray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).data).decode()


def _sum(data: bytes | memoryview) -> bytes:
    sums = Sums([DEFAULT])
    sums.update(data)
    return sums.hex()[DEFAULT].encode()


def parse(data: bytes, size: int) -> Table | None:
    """Read an index over a tar of `size` bytes; None if it is damaged, of another tar, or points anywhere but at possible members."""
    end = _SUM.fullmatch(data, max(0, len(data) - _SUM_BYTES))
    if not end or _sum(memoryview(data)[: end.start()]) != end[1]:
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
    """Hold an index against the tar's size: members one behind another, in whole blocks, each with room for its header."""
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
    ):  # a batch takes rows to lie in their order
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
