"""Packed folders: FFRecord files whose last record lists the names of the packed files.

    0   bytes   b"piouhjgbr"
    9   pickle  collections.OrderedDict: file name -> record number, folder name -> OrderedDict

Source: files written by `pack_folder` of ffrecord 1.4.0. The ffrecord library unpickles the last
record, although a pickle can run any code. flare interprets the opcodes of the pickle itself,
imports no classes and calls no objects. It supports only the opcodes of protocols 2 to 5 that
nested OrderedDicts of text and integers need.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
from isal.isal_zlib import crc32

from flarecli.errors import FormatError, IntegrityError, Place, UnsafeError, UsageError
from flarecli.formats import byte_ranges
from flarecli.formats.ffrecord.table import NAME, packed_table, read_views
from flarecli.formats.shard_files import DAMAGED
from flarecli.hashes import DEFAULT
from flarecli.model import Chunk, File, Shard, UInt32Array
from flarecli.names import PATH_BYTES, check_name, escape
from flarecli.storage import Location

__all__ = ["Folder", "HINT", "directory", "files", "folders", "is_packed", "parse", "write_folder"]

Folder: TypeAlias = dict[str, Any]  # file name -> row number; folder name -> Folder

MAGIC = b"piouhjgbr"
HINT = "The last record is not a list of files; read the records instead."
_MAX_LIST_BYTES = 1 << 26  # about two million files
_PROTOCOL = 4  # pickle's default in Python 3.8 to 3.13
_CLASS = ("collections", "OrderedDict")


def is_packed(shard: Shard) -> bool:
    """Return whether the last record begins with the magic bytes of a file list."""
    if not shard.rows:
        return False
    start, stop = (int(at) for at in shard.layout["offsets"][-2:])
    (head,) = byte_ranges.read(shard.chunk, [(start, min(stop, start + len(MAGIC)))])
    return bytes(head) == MAGIC


def directory(shard: Shard) -> Folder:
    """Return the file list of a packed folder, with the names in stored order.

    raises  UnsafeError for a pickle with objects other than names and numbers, or for an unsafe
            name; FormatError for a list that is invalid or too large, or that contains an invalid
            or duplicate record number
    """
    where = Place(shard.chunk.at, shard.rows - 1)
    if not is_packed(shard):
        raise FormatError(
            "last record is not a list of files",
            where=shard.chunk.at,
            hint="The file is not a packed folder; read its records instead.",
        )
    size = int(shard.layout["offsets"][-1] - shard.layout["offsets"][-2])
    if size > _MAX_LIST_BYTES:
        raise FormatError(
            f"list of files is {size} bytes; the maximum is {_MAX_LIST_BYTES}", where=where
        )
    (data,) = read_views(shard, [shard.rows - 1])
    return parse(bytes(data), shard.rows - 1, where)


def parse(data: bytes, rows: int, where: object = "") -> Folder:
    """Parse the bytes of a file list. Raises the same errors as `directory`.

    rows  number of records that precede the file list
    """
    tree = _read_pickle(data, where)
    seen = bytearray(rows)
    for path, row in files(tree, where):
        if not 0 <= row < rows:
            raise FormatError(
                f"invalid record number {row} for '{escape(path)}': the folder has {rows} records",
                where=where,
            )
        if seen[row]:  # many names for one record could fill the disk when the files are unpacked
            raise FormatError(f"'{escape(path)}' is a second name for record {row}", where=where)
        seen[row] = 1
    return tree


def _read_pickle(data: bytes, where: object) -> Folder:
    """Parse the pickle after the magic bytes; return the names and record numbers."""
    file = io.BytesIO(data)
    file.seek(len(MAGIC))
    machine = _Machine(where)
    at = len(MAGIC)
    try:
        for opcode, argument, position in pickletools.genops(file):
            at = position or 0
            machine.run(opcode.name, argument, at)
        if file.tell() != len(data):
            raise ValueError(
                f"unexpected bytes after the end of the pickle: {len(data) - file.tell()}"
            )
        return machine.result()
    except ValueError as error:
        message = f"invalid list of files at byte {at}: {error}"
        raise FormatError(message, where=where, hint=DAMAGED) from None


class _Machine:
    """A pickle interpreter with a stack, the marks of the stack, and a memo.

    Methods raise ValueError for an invalid pickle.
    """

    def __init__(self, where: object) -> None:
        self._where = where
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def run(self, name: str, argument: Any, at: int) -> None:
        """Run the pickle opcode at byte `at`.

        raises  UnsafeError for an opcode that a file list does not need
        """
        match name:
            case "PROTO" | "FRAME" | "STOP":
                pass
            case "SHORT_BINUNICODE" | "BINUNICODE" | "BININT1" | "BININT2" | "BININT" | "LONG1":
                self._stack.append(argument)
            case "EMPTY_TUPLE":
                self._stack.append(())
            case "MARK":
                self._marks.append(len(self._stack))
            case "MEMOIZE" | "BINPUT" | "LONG_BINPUT":
                if argument not in (None, len(self._memo)):
                    raise ValueError("the memo entries of the pickle are not in order")
                top = self._pop()
                self._stack.append(top)
                # Folders are not stored in the memo, because a pickle could add a stored folder to
                # itself.
                self._memo.append(None if isinstance(top, dict) else top)
            case "BINGET" | "LONG_BINGET":
                if argument >= len(self._memo) or self._memo[argument] is None:
                    raise ValueError(
                        f"the pickle refers to memo entry {argument}, which does not exist or "
                        "contains a folder"
                    )
                self._stack.append(self._memo[argument])
            case "STACK_GLOBAL":
                attribute, module = self._pop(), self._pop()
                self._push_class(module, attribute)
            case "GLOBAL":
                module, _, attribute = argument.partition(" ")
                self._push_class(module, attribute)
            case "REDUCE":
                if self._pop() != () or self._pop() is not _CLASS:
                    raise self._unsafe(f"the pickle calls an object at byte {at}")
                self._stack.append({})
            case "SETITEM":
                entry, key = self._pop(), self._pop()
                self._set_items([key, entry])
            case "SETITEMS":
                if not self._marks:
                    raise ValueError("the stack of the pickle contains no mark")
                start = self._marks.pop()
                items = self._stack[start:]
                del self._stack[start:]
                self._set_items(items)
            case _:
                raise self._unsafe(f"unsupported opcode {name} of the pickle at byte {at}")

    def result(self) -> Folder:
        """Return the only object on the stack."""
        if len(self._stack) != 1 or not isinstance(self._stack[0], dict) or self._marks:
            raise ValueError("the pickle does not contain exactly one folder")
        return self._stack[0]

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise ValueError("the stack of the pickle is empty")
        return self._stack.pop()

    def _push_class(self, module: Any, attribute: Any) -> None:
        if (module, attribute) != _CLASS:
            # Only text is formatted, because `repr` could fail for a deeply nested folder.
            is_text = isinstance(module, str) and isinstance(attribute, str)
            name = f"{f'{module}.{attribute}'!r:.80}" if is_text else "an object"
            raise self._unsafe(f"the pickle refers to {name}, which could run code")
        self._stack.append(_CLASS)

    def _unsafe(self, message: str) -> UnsafeError:
        return UnsafeError(message, where=self._where, hint=HINT)

    def _set_items(self, items: list[Any]) -> None:
        """Add items to the folder on top of the stack.

        items  file names, each followed by its record number, and folder names, each followed by
               its folder
        """
        folder = self._pop()
        self._stack.append(folder)
        if not isinstance(folder, dict) or len(items) % 2:
            raise ValueError("a folder, a name or an entry is missing")
        for name, entry in zip(items[::2], items[1::2], strict=True):
            if not isinstance(name, str) or not isinstance(entry, (int, dict)):
                raise ValueError(
                    "expected a file name followed by a record number, or a folder name followed "
                    "by a folder"
                )
            if name in folder:
                raise ValueError(f"duplicate name {name!r:.80}")
            folder[name] = entry


def files(tree: Folder, where: object = "") -> Iterator[tuple[str, int]]:
    """Yield (path, row) of every file, depth first. Raises UnsafeError for an unsafe name."""
    return ((path, entry) for path, entry in _walk(tree, where) if not isinstance(entry, dict))


def folders(tree: Folder, where: object = "") -> Iterator[str]:
    """Yield the paths of all folders, including empty folders. Parents precede subfolders."""
    return (path for path, entry in _walk(tree, where) if isinstance(entry, dict))


def _walk(tree: Folder, where: object) -> Iterator[tuple[str, Any]]:
    pending = [("", iter(tree.items()))]
    while pending:
        above, entries = pending[-1]
        for name, entry in entries:
            if "/" in name:
                raise UnsafeError(f"the name {name!r:.80} contains a slash", where=where, hint=HINT)
            path = above + check_name(name, where)
            if len(path) > PATH_BYTES // 4:
                check_name(path, where)
            yield path, entry
            if isinstance(entry, dict):
                pending.append((f"{path}/", iter(entry.items())))
                break
        else:
            pending.pop()


def write_folder(
    at: Location,
    name: str,
    contents: Mapping[str, bytes | Location],
    empty: Iterable[str] = (),
    hashes: Iterable[str] = (),
) -> Chunk:
    """Write files as one packed folder, with the same bytes that the ffrecord library writes.

    Each file is read twice, in blocks, because the table precedes the records.

    contents  path in the packed folder -> bytes of the file, or location of the file
    empty     paths of empty folders
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
    """Return the folder tree, sorted by name on each level, and the file paths in record order."""
    tree: Folder = OrderedDict()
    order: list[str] = []
    for path in sorted((*contents, *empty), key=lambda path: path.split("/")):
        parts = check_name(path).encode("utf-8", "surrogatepass").split(b"/")
        # Each name is a new string, as in the ffrecord library. A pickle stores a repeated string
        # object as a reference, so the bytes would differ.
        *above, last = (part.decode("utf-8", "surrogatepass") for part in parts)
        folder = tree
        for part in above:
            folder = folder.setdefault(part, OrderedDict())
            if not isinstance(folder, dict):
                break
        if not isinstance(folder, dict) or (path in contents and last in folder):
            raise UsageError(f"'{escape(path)}' is both a file and a folder")
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
        raise UsageError("folders are nested too deeply for a packed folder") from None


def _blocks(part: bytes | Location) -> Iterable[bytes]:
    return [part] if isinstance(part, bytes) else part.blocks()


def _written(table: bytes, parts: Iterable[bytes | Location], sums: UInt32Array) -> Iterator[bytes]:
    yield table
    for part, expected in zip(parts, sums, strict=True):
        total = 0
        for block in _blocks(part):
            total = crc32(block, total)
            yield block
        if total != expected:
            raise IntegrityError(
                "file changed while it was packed", where=part if isinstance(part, Location) else ""
            )
