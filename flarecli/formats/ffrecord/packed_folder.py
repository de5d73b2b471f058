"""Packed folders: an FFRecord file whose last record lists the file names of the others.

    0   bytes   b"piouhjgbr"
    9   pickle  nested collections.OrderedDict: name -> record, or the OrderedDict of a folder

(Source: files written by `pack_folder` of ffrecord 1.4.0.) The original unpickles that record,
which can run any code; here `pickled_names` parses it without running code.
"""

from __future__ import annotations

import pickle
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from isal.isal_zlib import crc32

from flarecli.errors import FormatError, IntegrityError, Place, UnsafeError, UsageError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.ffrecord.pickled_names import HINT, Folder, read_names
from flarecli.formats.ffrecord.table import NAME, packed_table, read_views
from flarecli.hashes import DEFAULT
from flarecli.model import Chunk, File, Shard, UInt32Array
from flarecli.names import PATH_BYTES, check_name, escape
from flarecli.storage import Location

__all__ = ["Folder", "MAGIC", "directory", "files", "folders", "is_packed", "parse", "write_folder"]

MAGIC = b"piouhjgbr"
_LIST_LIMIT = 1 << 26  # bytes of the record that lists the names: two million files
_PROTOCOL = 4  # what Python 3.8 to 3.13 write when they are not told


def is_packed(shard: Shard) -> bool:
    """Return whether the last record begins with the magic bytes of a file list."""
    if not shard.rows:
        return False
    start, stop = (int(at) for at in shard.layout["offsets"][-2:])
    (head,) = spans.read(shard.chunk, [(start, min(stop, start + len(MAGIC)))])
    return bytes(head) == MAGIC


def directory(shard: Shard) -> Folder:
    """Return the file list: nested dicts of name -> row, in stored order.

    raises  UnsafeError for a pickle of other objects than names and numbers, and for an unsafe
            name; FormatError for a list that is invalid, too large, lists a record that does not
            exist, or lists a record twice
    """
    where = Place(shard.chunk.at, shard.rows - 1)
    if not is_packed(shard):
        raise FormatError(
            "its last record is no list of names",
            where=shard.chunk.at,
            hint="It is not a packed folder; read its records.",
        )
    size = int(shard.layout["offsets"][-1] - shard.layout["offsets"][-2])
    if size > _LIST_LIMIT:
        raise FormatError(
            f"its list of names takes {size} bytes, {_LIST_LIMIT} are read at most", where=where
        )
    (data,) = read_views(shard, [shard.rows - 1])
    return parse(bytes(data), shard.rows - 1, where)


def parse(data: bytes, rows: int, where: object = "") -> Folder:
    """Parse the bytes of a file list that may list `rows` records. Raises as `directory` does."""
    tree = read_names(data, len(MAGIC), where)
    seen = bytearray(rows)
    for path, row in files(tree, where):
        if not 0 <= row < rows:
            raise FormatError(f"'{escape(path)}' is record {row}, there are {rows}", where=where)
        if seen[row]:  # else a small file could unpack to a full disk
            raise FormatError(
                f"'{escape(path)}' is record {row}, and so is another name", where=where
            )
        seen[row] = 1
    return tree


def files(tree: Folder, where: object = "") -> Iterator[tuple[str, int]]:
    """Return (path, row) of every file, depth first. Raises UnsafeError for an unsafe name."""
    return ((path, entry) for path, entry in _walk(tree, where) if not isinstance(entry, dict))


def folders(tree: Folder, where: object = "") -> Iterator[str]:
    """Return the path of every folder, also empty ones, each before its contents."""
    return (path for path, entry in _walk(tree, where) if isinstance(entry, dict))


def _walk(tree: Folder, where: object) -> Iterator[tuple[str, Any]]:
    waiting = [("", iter(tree.items()))]
    while waiting:
        above, entries = waiting[-1]
        for name, entry in entries:
            if "/" in name:
                raise UnsafeError(f"the name {name!r:.80} is a path", where=where, hint=HINT)
            path = above + check_name(name, where)
            if len(path) > PATH_BYTES // 4:
                check_name(path, where)
            yield path, entry
            if isinstance(entry, dict):
                waiting.append((f"{path}/", iter(entry.items())))
                break
        else:
            waiting.pop()


def write_folder(
    at: Location,
    name: str,
    contents: Mapping[str, bytes | Location],
    empty: Iterable[str] = (),
    hashes: Iterable[str] = (),
) -> Chunk:
    """Write files as one packed folder, byte for byte as the original does, without loading them.

    contents  path -> bytes, or the location of a file, which is read twice: the table comes first
    empty     empty folders to list
    raises    UnsafeError for an unsafe path; UsageError for a path that is both a file and a
              folder; IntegrityError for a file that changed between the two reads
    """
    tree, order = _numbered(contents, empty)
    listed = MAGIC + _pickled(tree)
    parts = [*(contents[path] for path in order), listed]
    sums, sizes = np.empty(len(parts), np.uint32), np.empty(len(parts), np.int64)
    for row, part in enumerate(parts):
        total = size = 0
        for block in _blocks(part):
            total, size = crc32(block, total), size + len(block)
        sums[row], sizes[row] = total, size
    to = at / name
    written = to.write(_written(packed_table(sums, sizes), parts, sums), {DEFAULT, *hashes})
    return Chunk(to, len(parts), (File(name, written.size, written.hashes),), NAME)


def _numbered(
    contents: Mapping[str, bytes | Location], empty: Iterable[str]
) -> tuple[Folder, list[str]]:
    """Return the tree, with sorted names on each level, and the paths in record order."""
    tree: Folder = OrderedDict()
    order: list[str] = []
    for path in sorted((*contents, *empty), key=lambda path: path.split("/")):
        parts = check_name(path).encode("utf-8", "surrogatepass").split(b"/")
        # A new string for each name, as in the original: a pickle stores a repeated object as a
        # reference.
        *above, last = (part.decode("utf-8", "surrogatepass") for part in parts)
        folder = tree
        for part in above:
            folder = folder.setdefault(part, OrderedDict())
            if not isinstance(folder, dict):
                break
        if not isinstance(folder, dict) or (path in contents and last in folder):
            raise UsageError(f"'{escape(path)}' is a file and a folder")
        if path in contents:
            folder[last] = len(order)
            order.append(path)
        else:
            folder.setdefault(last, OrderedDict())
    return tree, order


def _pickled(tree: Folder) -> bytes:
    try:
        return pickle.dumps(tree, _PROTOCOL)
    except RecursionError:
        raise UsageError("its folders are nested too deep for a packed folder") from None


def _blocks(part: bytes | Location) -> Iterable[bytes]:
    return [part] if isinstance(part, bytes) else part.blocks()


def _written(table: bytes, parts: Iterable[bytes | Location], sums: UInt32Array) -> Iterator[bytes]:
    yield table
    for part, wanted in zip(parts, sums, strict=True):
        total = 0
        for block in _blocks(part):
            total = crc32(block, total)
            yield block
        if total != wanted:
            raise IntegrityError(
                "changed while it was packed", where=part if isinstance(part, Location) else ""
            )
