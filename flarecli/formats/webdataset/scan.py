"""Where the samples of a tar lie: members that stand side by side and share a key, found by one pass over the headers.

As webdataset 1.0.2 has it: the key of `a/b.seg.PNG` is `a/b`, up to the first dot after the last slash, the extension is the rest in lower
case. A name without an extension, or within a folder like `__this__` at the top, or a hidden one, belongs to no sample.
Unlike there, a key that comes back after another one is an error: its sample would fall apart in two without a word.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flarecli import encodings
from flarecli.errors import FlareError, FormatError, UnsafeError
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import KEY
from flarecli.lazy import pa, pc
from flarecli.model import IntArray
from flarecli.names import escape

__all__ = ["EXTENSIONS", "Table", "key_text", "read_table", "split"]

_META = re.compile(rb"__[^/]*__(?:/|$)")
EXTENSIONS = 1024  # in one shard; a sample has a handful
_CELLS = 64  # of the table for each member: what few samples have must not cost every sample


@dataclass(frozen=True, slots=True)
class Table:
    """Where each member of each sample lies.

    extensions  in lower case, in the order in which they first come
    keys, ends  uint8: the keys of all samples, and int64 [rows]: where each one ends in that
    starts      int64 [extensions, rows]: first byte of the member in the tar; -1 where the sample lacks it
    sizes       the same, its bytes
    """

    extensions: tuple[str, ...]
    keys: IntArray
    ends: IntArray
    starts: IntArray
    sizes: IntArray

    @property
    def rows(self) -> int:
        """Samples there are."""
        return len(self.ends)

    def as_found(self) -> Table:
        """Give the table as a pass over the tar finds it: extensions in the order in which they first come, those without a member left out."""
        firsts = [
            (int(starts[starts >= 0][0]), i)
            for i, starts in enumerate(self.starts)
            if (starts >= 0).any()
        ]
        order = [i for _, i in sorted(firsts)]
        if order == list(range(len(self.extensions))):
            return self
        return Table(
            tuple(self.extensions[i] for i in order),
            self.keys,
            self.ends,
            self.starts[order],
            self.sizes[order],
        )


def split(name: bytes) -> tuple[bytes, bytes] | None:
    """Split a member's name into key and extension; None if it belongs to no sample.

    As `((?:.*/|)[^.]+)[.]([^/]*)` does there, which takes hours for a name of a megabyte. A hidden name is the extension of the folder that
    it lies in, unless that has a dot itself.
    """
    if name[:2] == b"__" and _META.match(name):
        return None
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    above = name[name.rfind(b"/", 0, max(0, slash - 1)) + 1 : slash]
    if dot < 0 or (dot == slash and (not above or b"." in above)):
        return None
    return name[:dot], name[dot + 1 :]


def key_text(keys: IntArray, ends: IntArray, start: int = 0, stop: int | None = None) -> pa.Array:
    """Give keys start..stop as large_string, without a copy of their bytes."""
    stop = len(ends) if stop is None else stop
    bounds = np.zeros(stop - start + 1, np.int64)
    bounds[1:] = ends[start:stop]
    bounds[0] = ends[start - 1] if start else 0
    return pa.Array.from_buffers(
        encodings.TEXT, stop - start, [None, pa.py_buffer(bounds), pa.py_buffer(keys)]
    )


@dataclass(slots=True, eq=False)
class _Column:
    """The members of one extension: the row, first byte and size of each."""

    last: int = -1
    rows: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))


class _Pass:
    """One pass over the headers: the samples so far, the last of which may go on."""

    def __init__(self) -> None:
        self.columns: dict[str, _Column] = {}
        self.of: dict[bytes, _Column] = {}  # by the extension as it is spelt
        self.keys, self.ends, self.key = bytearray(), array("q"), b""
        self.row, self.count = -1, 0

    def add(self, members: Iterable[tuple[bytes, int, int]]) -> None:
        """Take in members one by one: name, first byte, size."""
        for name, start, size in members:
            self.count += 1
            slash = name.rfind(b"/") + 1
            dot = name.find(b".", slash)
            if dot > slash and name[:2] != b"__":
                head, extension = name[:dot], name[dot + 1 :]
            elif parts := split(name):
                head, extension = parts
            else:
                continue
            if head != self.key:
                self.key = head
                self.row += 1
                self.keys += head
                self.ends.append(len(self.keys))
            found = self.of.get(extension) or self.column(extension)
            if found.last == self.row:
                raise FormatError(
                    f"a second member {escape(name.decode('utf-8', 'replace'))!r} at byte {start - tar.BLOCK}"
                )
            found.last = self.row
            found.rows.append(self.row)
            found.starts.append(start)
            found.sizes.append(size)

    def column(self, extension: bytes) -> _Column:
        """Give the column of an extension, a new one if need be."""
        name = _lower(extension)
        if name not in self.columns and len(self.columns) >= EXTENSIONS:
            raise FormatError(f"more than {EXTENSIONS} extensions")
        found = self.of[extension] = self.columns.setdefault(name, _Column())
        return found


def read_table(source: tar.Source, where: object, seen: tar.Seen | None = None) -> Table:
    """Go through the headers once: about 2 µs a member on a map, a quarter of that where many stand close together.

    raises  FormatError naming the row and the byte of what is no tar, a key that comes back, a member that a sample has twice;
            UnsafeError for a name that is not UTF-8 or holds a NUL
    """
    found = _Pass()
    try:
        found.add(tar.members(source, where, seen))
    except FlareError as error:
        row = found.row if found.row >= 0 else None
        raise error.changed(address=str(where), row=row) from None
    if len(found.columns) * len(found.ends) > _CELLS * found.count + (1 << 20):
        raise FormatError(
            f"{len(found.columns)} extensions in {len(found.ends)} samples, which have few of them",
            where=where,
        )
    table = _dense(
        found.columns,
        np.frombuffer(bytes(found.keys), np.uint8),
        np.frombuffer(found.ends, np.int64),
    )
    _check_keys(table, where)
    return table


def _lower(extension: bytes) -> str:
    try:
        text = extension.decode().lower()
    except UnicodeDecodeError:
        raise UnsafeError(f"the extension {extension[:40]!r} is not UTF-8") from None
    if text == KEY:
        raise FormatError(f"a member that ends in .{KEY}, which every sample has already")
    return text


def _dense(columns: dict[str, _Column], keys: IntArray, ends: IntArray) -> Table:
    starts = np.full((len(columns), len(ends)), -1, np.int64)
    sizes = np.full((len(columns), len(ends)), -1, np.int64)
    for i, one in enumerate(columns.values()):
        rows = np.frombuffer(one.rows, np.int64)
        starts[i, rows] = np.frombuffer(one.starts, np.int64)
        sizes[i, rows] = np.frombuffer(one.sizes, np.int64)
    return Table(tuple(columns), keys, ends.copy(), starts, sizes)


def _check_keys(table: Table, where: object) -> None:
    """Refuse keys that are not UTF-8, and one that comes back: members that are not side by side make two samples of one."""
    keys = key_text(table.keys, table.ends)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        row = _first(keys.view(encodings.BINARY), _is_not_utf8)
        raise UnsafeError("its key is not UTF-8", where=where, row=row) from None
    if pc.count_distinct(keys).as_py() != len(keys):
        seen: dict[str, int] = {}
        row = _first(keys, lambda key: seen.setdefault(key, len(seen)) != len(seen) - 1)
        key = keys[row].as_py()
        hint = "Its members are not side by side; make the tar again with sorted names."
        raise FormatError(
            f"the key {escape(key)!r:.80} came before, in row {seen[key]}",
            where=where,
            row=row,
            hint=hint,
        )


def _is_not_utf8(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return True
    return False


def _first(values: pa.Array, wrong: Callable[[Any], bool]) -> int:
    return next(i for i, value in enumerate(values) if wrong(value.as_py()))
