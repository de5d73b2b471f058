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
from flarecli.formats.webdataset.tar_runs import plain_run
from flarecli.lazy import pa, pc
from flarecli.model import IntArray
from flarecli.names import escape

__all__ = ["EXTENSIONS", "Table", "key_text", "read_table", "split"]

_META = re.compile(rb"__[^/]*__(?:/|$)")
EXTENSIONS = 1024  # in one shard; a sample has a handful
_SHORT, _DIFFERENT = (
    16,
    32,
)  # bytes of an extension, with a NUL, and how many of them a run may have to be taken at once
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

    def take(self, view: memoryview, pos: int) -> tuple[int, int]:
        """Take in a run of members at once, if one begins at byte `pos`; give the byte after it and their number, or `pos` and 0.

        What is not plain (an odd name, a member that a sample has twice) is left to be added one by one, and refused there.
        """
        run = plain_run(view, pos)
        if (
            run is None or run.names[:, 99].any()
        ):  # a name that fills its field is none to hurry with
            return pos, 0
        width = int((run.names == 0).argmax(1).max())
        names = np.zeros((len(run.starts), width + _SHORT), np.uint8)
        names[:, :width] = run.names[:, :width]
        dots, plain = _dots(names, width)
        rest = names[np.arange(len(names))[:, None], dots[:, None] + 1 + np.arange(_SHORT)]
        lengths = (rest == 0).argmax(1)  # of the extension; 0 as well where it is longer than that
        if not (plain & (lengths > 0)).all():
            return pos, 0
        rest *= np.arange(_SHORT) < lengths[:, None]  # what stands behind the NUL is no name
        begins = np.ones(len(names), bool)  # whether a member has another key than the one before
        heads = names[:, :width] * (np.arange(width) < dots[:, None])
        begins[1:] = (heads[1:] != heads[:-1]).any(1)
        begins[0] = names[0, : dots[0]].tobytes() != self.key
        rows = self.row + np.cumsum(begins)
        try:
            codes, found = self._codes(rest.view("<u8"), lengths)
        except FlareError:
            return pos, 0
        places = [np.flatnonzero(codes == code) for code in range(len(found))]
        if (codes < 0).any() or any(
            rows[at[0]] == one.last or (rows[at[1:]] == rows[at[:-1]]).any()
            for one, at in zip(found, places, strict=True)
        ):
            return pos, 0
        for one, at in zip(found, places, strict=True):
            for values, known in (
                (rows, one.rows),
                (run.starts, one.starts),
                (run.sizes, one.sizes),
            ):
                known.frombytes(values[at].tobytes())
            one.last = int(rows[at[-1]])
        self.ends.frombytes((len(self.keys) + np.cumsum(dots[begins])).tobytes())
        self.keys += names[begins, :width][np.arange(width) < dots[begins][:, None]].tobytes()
        self.key, self.row = names[-1, : dots[-1]].tobytes(), int(rows[-1])
        self.count += len(rows)
        return run.end, len(rows)

    def _codes(self, words: IntArray, lengths: IntArray) -> tuple[IntArray, list[_Column]]:
        """Number the extensions of a run: the number of each member's, and the column of each number. Few differ, so each costs a pass."""
        codes = np.full(len(words), -1)
        found: list[_Column] = []
        while len(left := np.flatnonzero(codes < 0)) and len(found) < _DIFFERENT:
            first = left[0]
            extension = words[first].tobytes()[: lengths[first]]
            column = self.of.get(extension) or self.column(extension)
            if column not in found:
                found.append(column)
            codes[(words == words[first]).all(1)] = found.index(column)
        return codes, found


def _dots(names: IntArray, width: int) -> tuple[IntArray, IntArray]:
    """Find the dot that ends each key, and tell which names are plain: it stands neither first nor right after a slash."""
    text, places = names[:, :width], np.arange(1, width + 1, dtype=np.uint8)
    slashes = ((text == ord("/")) * places).max(1, initial=0)  # bytes up to the last slash
    found = (text == ord(".")) & (places > slashes[:, None])
    dots = found.argmax(1)
    ends = (names == 0).argmax(1)
    return dots, found.any(1) & (dots > slashes) & (dots < ends) & (slashes <= ends) & (
        (names[:, 0] != ord("_")) | (names[:, 1] != ord("_"))
    )


def read_table(source: tar.Source, where: object, seen: tar.Seen | None = None) -> Table:
    """Go through the headers once: about 2 µs a member on a map, a quarter of that where many stand close together.

    raises  FormatError naming the row and the byte of what is no tar, a key that comes back, a member that a sample has twice;
            UnsafeError for a name that is not UTF-8 or holds a NUL
    """
    found = _Pass()
    try:
        found.add(tar.members(source, where, seen, found.take if seen is None else None))
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
