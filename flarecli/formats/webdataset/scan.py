"""Group the members of a tar into samples: consecutive members with the same key.

In a file, only the headers are read. A stream that cannot seek is read in one pass and in bounded
memory.

The rules are the same as in webdataset 1.0.2. The key of `a/b.seg.PNG` is `a/b`, the name up to the
first dot after the last slash. The extension is `seg.png`, the text after that dot in lower case. A
member is ignored if its name has no extension, if it is in a top-level folder such as `__this__`,
or if it is hidden (see `split` for hidden files with a key). Unlike webdataset, flare reports an
error if a key occurs again later in a file, because the members of a sample must be consecutive. In
a stream, such a key starts a new sample, because remembering all keys would need unbounded memory.
"""

from __future__ import annotations

import itertools
import re
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flarecli import compress, encodings
from flarecli.encodings import column
from flarecli.errors import FlareError, FormatError, UnsafeError
from flarecli.formats import byte_ranges
from flarecli.formats.shard_files import DAMAGED
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import KEY, encoding_of, extensions_of
from flarecli.lazy import np, pa, pc
from flarecli.model import ByteArray, Columns, IntArray
from flarecli.names import escape

__all__ = ["Table", "key_text", "read_stream", "read_table", "split"]

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 8192, 16 << 20  # a batch ends when it reaches a limit
_META = re.compile(rb"__[^/]*__(?:/|$)")
MAX_EXTENSIONS = 1024  # maximum number of extensions in a shard
_MAX_CELLS = 64  # maximum table cells per member, to limit the memory for missing members


@dataclass(frozen=True, slots=True)
class Table:
    """The offsets and sizes of all members, by extension and sample.

    extensions  extensions as stored, in the order of their first use
    keys        the keys of all samples, one after another: uint8 [bytes]
    ends        end of each key in `keys`: int64 [rows]
    starts      int64 [extensions, rows]: data offset of the member in the tar, -1 if it is missing
    sizes       int64 [extensions, rows]: size of the member in bytes, -1 if it is missing
    """

    extensions: tuple[str, ...]
    keys: ByteArray
    ends: IntArray
    starts: IntArray
    sizes: IntArray

    @property
    def rows(self) -> int:
        """Number of samples."""
        return len(self.ends)

    def in_order_of_use(self) -> Table:
        """Return the table with extensions in the order of their first use, as in `read_table`.

        Extensions without a member are omitted.
        """
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
    """Split the name of a member into key and extension; return None if the member is ignored.

    The result is the same as with webdataset's pattern `((?:.*/|)[^.]+)[.]([^/]*)`, but the time is
    always linear. The key of a hidden file such as `a/.png` is the path of its folder, `a/`. A
    hidden file is ignored if it has no folder, or if the name of the folder contains a dot.
    """
    if name[:2] == b"__" and _META.match(name):
        return None
    slash = name.rfind(b"/") + 1
    dot = name.find(b".", slash)
    above = name[name.rfind(b"/", 0, max(0, slash - 1)) + 1 : slash]
    if dot < 0 or (dot == slash and (not above or b"." in above)):
        return None
    return name[:dot], name[dot + 1 :]


def key_text(keys: ByteArray, ends: IntArray, start: int = 0, stop: int | None = None) -> pa.Array:
    """Return keys start..stop as a large_string array, without copying their bytes."""
    stop = len(ends) if stop is None else stop
    bounds = np.zeros(stop - start + 1, np.int64)
    bounds[1:] = ends[start:stop]
    bounds[0] = ends[start - 1] if start else 0
    return pa.Array.from_buffers(
        encodings.TEXT, stop - start, [None, pa.py_buffer(bounds), pa.py_buffer(keys)]
    )


@dataclass(slots=True, eq=False)
class _Column:
    """The members with one extension: the row, the data offset and the size of each member."""

    last: list[int]  # one item: the last row. Extensions that differ only in case share the list
    rows: array[int] = field(default_factory=lambda: array("q"))
    starts: array[int] = field(default_factory=lambda: array("q"))
    sizes: array[int] = field(default_factory=lambda: array("q"))


class _Builder:
    """Builder that groups members into samples. The last sample may be incomplete."""

    def __init__(self) -> None:
        self.columns: dict[str, _Column] = {}
        self.of: dict[bytes, _Column] = {}
        self.last: dict[str, list[int]] = {}  # extension in lower case -> `_Column.last`
        self.keys, self.ends, self.key = bytearray(), array("q"), b""
        self.row, self.count = -1, 0

    def add(self, members: Iterable[tuple[bytes, int, int]]) -> None:
        """Add members, each a tuple of name, data offset and size.

        raises  FormatError for a duplicate member of a sample, or too many extensions
        """
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
            one = self.of.get(extension) or self.column(extension)
            if one.last[0] == self.row:
                raise FormatError(
                    f"duplicate member {escape(name.decode('utf-8', 'replace'))!r}"
                    f" at byte {start - tar.BLOCK}"
                )
            one.last[0] = self.row
            one.rows.append(self.row)
            one.starts.append(start)
            one.sizes.append(size)

    def column(self, extension: bytes) -> _Column:
        """Return the column for an extension; create the column if it does not exist."""
        name = _text(extension)
        if len(self.columns) >= MAX_EXTENSIONS:
            raise FormatError(f"more than {MAX_EXTENSIONS} extensions")
        one = _Column(self.last.setdefault(name.lower(), [-1]))
        self.of[extension] = self.columns[name] = one
        return one


def read_table(source: byte_ranges.Source, where: object, seen: tar.Seen | None = None) -> Table:
    """Read all headers of a tar and return a table of its members.

    raises  FormatError with row and byte for an invalid tar, a duplicate key, or a duplicate member
            in a sample; UnsafeError for a name that is not UTF-8
    """
    builder = _Builder()
    try:
        builder.add(tar.members(source, where, seen))
    except FlareError as error:
        row = builder.row if builder.row >= 0 else None
        raise error.changed(address=str(where), row=row) from None
    if len(builder.columns) * len(builder.ends) > _MAX_CELLS * builder.count + (1 << 20):
        raise FormatError(
            f"too many extensions: {len(builder.columns)} in {len(builder.ends)} samples, which "
            f"contain only {builder.count} members",
            where=where,
        )
    table = _dense(
        builder.columns,
        np.frombuffer(bytes(builder.keys), np.uint8),
        np.frombuffer(builder.ends, np.int64),
    )
    _check_keys(table, where)
    return table


def _text(extension: bytes, error: type[FlareError] = UnsafeError) -> str:
    """Return an extension as text.

    Raises `error` if it is not UTF-8, and FormatError for the reserved extension `__key__`.
    """
    try:
        text = extension.decode()
    except UnicodeDecodeError:
        raise error(f"the extension {extension[:40]!r} is not UTF-8") from None
    if text.lower() == KEY:
        raise FormatError(f"the extension .{KEY} is reserved for the key of a sample")
    return text


def _dense(columns: dict[str, _Column], keys: ByteArray, ends: IntArray) -> Table:
    starts = np.full((len(columns), len(ends)), -1, np.int64)
    sizes = np.full((len(columns), len(ends)), -1, np.int64)
    for i, one in enumerate(columns.values()):
        rows = np.frombuffer(one.rows, np.int64)
        starts[i, rows] = np.frombuffer(one.starts, np.int64)
        sizes[i, rows] = np.frombuffer(one.sizes, np.int64)
    return Table(tuple(columns), keys, ends.copy(), starts, sizes)


def _check_keys(table: Table, where: object) -> None:
    """Raise UnsafeError for a key that is not UTF-8, and FormatError for a duplicate key."""
    keys = key_text(table.keys, table.ends)
    try:
        keys.validate(full=True)
    except pa.ArrowInvalid:
        row = _first(keys.view(encodings.BINARY), lambda key: not encodings.is_utf8(key))
        raise UnsafeError("the key is not UTF-8", where=where, row=row) from None
    if pc.count_distinct(keys).as_py() != len(keys):
        seen: dict[str, int] = {}
        row = _first(keys, lambda key: seen.setdefault(key, len(seen)) != len(seen) - 1)
        key = keys[row].as_py()
        hint = (
            "The members of the sample are not consecutive; create the tar again with sorted names, "
            "for example with `tar --sort=name`."
        )
        raise FormatError(
            f"duplicate key {escape(key)!r:.80}, first used in row {seen[key]}",
            where=where,
            row=row,
            hint=hint,
        )


def _first(values: pa.Array, wrong: Callable[[Any], bool]) -> int:
    return next(i for i, value in enumerate(values) if wrong(value.as_py()))


# -- streams


def read_stream(
    blocks: Iterable[bytes], columns: Columns | None = None, where: object = "-"
) -> Iterator[pa.RecordBatch]:
    """Yield the samples in a stream as typed batches, in order.

    At most one batch of samples is read into memory at a time.

    blocks   bytes of a tar, plain or compressed with gzip, bzip2 or zstd, in blocks of any length
    columns  columns of the batches; None to use the key and the extensions in the first batch
    raises   FormatError with row and byte for an invalid tar, a duplicate member in a sample, or an
             extension that the columns do not include
    """
    batch: list[dict[str, bytes]] = []
    size = first = 0
    for sample in _samples(tar.Blocks(_decompressed(blocks, where)), where):
        batch.append(sample)
        size += sum(map(len, sample.values()))
        if len(batch) >= MAX_BATCH_ROWS or size >= MAX_BATCH_BYTES:
            columns = columns or _columns(batch)
            yield _batch(batch, columns, first, where)
            first, batch, size = first + len(batch), [], 0
    if batch:
        yield _batch(batch, columns or _columns(batch), first, where)


def _samples(source: tar.Blocks, where: object) -> Iterator[dict[str, bytes]]:
    """Yield each sample as a dict: extension -> bytes, and KEY -> key of the sample."""
    sample: dict[str, bytes] = {}
    known: set[str] = set()
    row = 0
    try:
        for name, start, size in tar.members(source, where):
            parts = split(name)
            if parts is None:
                continue
            key = parts[0]
            if sample and key != sample[KEY]:
                yield sample
                sample, row = {}, row + 1
            extension = _text(parts[1], FormatError).lower()
            known.add(extension)
            # MAX_BATCH_BYTES does not limit the number of extensions, because members may be empty.
            if len(known) > MAX_EXTENSIONS:
                raise FormatError(f"more than {MAX_EXTENSIONS} extensions")
            if extension in sample:
                raise FormatError(
                    f"duplicate member {escape(name.decode('utf-8', 'replace'))!r}"
                    f" at byte {start - tar.BLOCK}"
                )
            data = source.window(start, size)
            if len(data) < size:
                raise FormatError(
                    f"data ends at byte {start + len(data)}, inside a member",
                    hint=DAMAGED,
                )
            sample[KEY] = key
            sample[extension] = bytes(data[:size])
    except FlareError as error:
        raise error.changed(address=str(where), row=row) from None
    if sample:
        yield sample


def _columns(samples: list[dict[str, bytes]]) -> Columns:
    names = dict.fromkeys(name for sample in samples for name in sample if name != KEY)
    return (column(KEY, "str"), *(column(name, encoding_of(name)) for name in names))


def _batch(
    samples: list[dict[str, bytes]], columns: Columns, first: int, where: object
) -> pa.RecordBatch:
    extensions = iter(extensions_of(columns, {name for sample in samples for name in sample}))
    names = [KEY if one.name == KEY else next(extensions).lower() for one in columns]
    known, arrays = {KEY, *names}, []
    for row, sample in enumerate(samples):
        if not sample.keys() <= known:
            name = next(name for name in sample if name not in known)
            raise FormatError(
                f"unexpected extension .{name}: the columns do not include it",
                where=where,
                row=first + row,
                hint="Specify the columns, or save the stream to a file; flare reads all headers of a "
                "file first.",
            )
    for one, name in zip(columns, names, strict=True):
        raw = pa.array([sample.get(name) for sample in samples], encodings.BINARY)
        arrays.append(byte_ranges.typed(raw, one, where, first))
    return byte_ranges.record_batch(columns, arrays, len(samples))


def _decompressed(blocks: Iterable[bytes], where: object) -> Iterator[bytes]:
    """Decompress a stream in bounded steps. The first bytes determine the compression."""
    ahead = iter(blocks)
    head = b""
    while len(head) < 4 and (data := next(ahead, None)) is not None:
        head += data
    chained = itertools.chain([head], ahead)
    kind = compress.detect(head)
    if not kind:
        return chained
    # the end of a tar is marked, so ignored bytes after a bz2 stream cannot hide samples
    return map(bytes, compress.stream(kind, chained, where, allow_rest=True))
