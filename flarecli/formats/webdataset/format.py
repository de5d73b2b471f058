"""WebDataset: tar files; consecutive members that share a key are a sample.

    00000.tar         a/b.cls  a/b.jpg  a/c.cls  a/c.jpg  …  two blocks of zeros (`tar.py`)
    00000.idx.json    positions of the members, so that any row can be read (`index.py`)
    shardindex.json   shards and their rows, as `widsindex create` writes it (`shardindex.py`)

The columns of a sample are `__key__` and then the extensions, in the order of their first use; a
missing member is null. `scan.py` splits names into key and extension, `columns.py` maps extensions
to encodings.

Facts of webdataset 1.0.2 and wids 0.2.111, found by running them:

- TarWriter writes ustar headers: mode 0444, uid and gid 0, names `bigdata`, the current time by
  default. Extensions of a sample are sorted. Key and extension are UTF-8 without a PAX record. The
  end is padded to a multiple of 10,240 bytes.
- Reading skips members that are not regular files, names without a dot in their last part, and
  names below `__this__/`. Extensions become lower case. A duplicate extension in a sample is an
  error. A key that is used again later is another sample (in flare an error).
- The decoder reads txt text transcript as text, cls cls2 index inx id as int, json jsn as JSON,
  pkl pickle pyd by unpickling.
- wids reads only the name and size fields of a header (no PAX, no prefix, no base 256); its
  `.index` file is a pickle.

flare writes two things differently: headers have no user name and no time, so the same rows give
the same bytes, and the end marker is two blocks.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from flarecli import compress, encodings
from flarecli.encodings import Encoding, column, lookup
from flarecli.errors import FormatError, IntegrityError, MissingError, UsageError, ValueFitError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.base import FLOATS, INTEGERS, LISTED_PICTURES, Format, Span, Substitutes
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import (
    KEY,
    MAX_EXTENSION_BYTES,
    NAME,
    extension_of,
    extensions_of,
    meant,
)
from flarecli.formats.webdataset.scan import Table, key_text, read_table
from flarecli.formats.webdataset.shardindex import SHARDS
from flarecli.formats.webdataset.stream import scan
from flarecli.formats.webdataset.verify import verify
from flarecli.formats.webdataset.write import row_sizes, write_index, write_shard
from flarecli.lazy import pa
from flarecli.model import (
    ByteArray,
    Chunk,
    Column,
    Columns,
    File,
    Finding,
    IntArray,
    Row,
    Shard,
    Stream,
)
from flarecli.storage import Location

__all__ = ["WebDataset"]


class WebDataset(Format):
    """Samples in a tar: consecutive members that share a key."""

    name = NAME
    suffixes = (
        ".tar",
        *(f".tar.{name}" for name in compress.SUFFIXES),
        *(one for one, kind in spans.TARS.items() if kind in compress.SUFFIXES),
    )
    index_files = (SHARDS,)
    key_column = KEY
    holds_null = True  # a sample may lack a member
    is_listed = True
    reads_streams = True
    substitutes: ClassVar[Substitutes] = {
        "str_float": "json_float",
        **dict.fromkeys(("varint", "json_int", *INTEGERS), "str_int"),
        **dict.fromkeys(("msgpack_float", *FLOATS), "json_float"),
        "json_str": "str",
        "json_json": "json",
        **LISTED_PICTURES,
        "bytes[]": "msgpack",
        "ndarray[]": "json",
        "*[]": "json",
    }

    row_sizes = staticmethod(row_sizes)
    write_shard = staticmethod(write_shard)
    write_index = staticmethod(write_index)
    scan_stream = staticmethod(scan)

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether a name ends like a tar, or the first header has the magic of ustar."""
        return name.endswith(self.suffixes) or head[257:262] == b"ustar"

    def open_dataset(self, at: Location) -> Stream:
        """List the tars of a folder and their indexes, sorted by name. Subfolders are not searched.

        raises  MissingError if the folder contains no tar
        """
        sizes = {entry.name: entry.size for entry in at.list() if "/" not in entry.name}
        names = sorted(name for name in sizes if name.endswith(self.suffixes))
        if not names:
            raise MissingError("folder contains no .tar file", where=at)
        indexes = [webdataset_index.name_of(name) for name in names]
        parts = [(File(one, sizes[one]),) if one in sizes else () for one in indexes]
        return Stream(
            "data",
            at,
            self.name,
            names,
            sizes=np.array([sizes[name] for name in names], np.int64),
            parts=parts if any(parts) else (),
        )

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the index of the tar if it is valid, else all headers.

        columns  the listed columns; each member must belong to one of them, and a column without
                 members is null
        raises   FormatError for an invalid tar, or a wrong number of rows; IntegrityError for a
                 member without a column
        """
        view = spans.whole(chunk)
        size = len(view) if view is not None else spans.stored_size(chunk)
        table = webdataset_index.read(chunk, size)
        if table is None:
            table = read_table(
                tar.Mapped(view) if view is not None else tar.Ranges(chunk.at, size), chunk.at
            )
        if chunk.rows is not None and table.rows != chunk.rows:
            raise FormatError(
                f"contains {table.rows} samples; {chunk.rows} are listed", where=chunk.at
            )
        if columns is None:
            columns = (column(KEY, "str"), *(column(one, meant(one)) for one in table.extensions))
        table = _arranged(self, table, columns, chunk.at)
        layout = {
            "keys": table.keys,
            "ends": table.ends,
            "starts": table.starts,
            "sizes": table.sizes,
        }
        return Shard(chunk, columns, table.rows, layout)

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Read the bytes of members, in the order of `rows`; None where a sample lacks one."""
        starts, sizes, ends, keys, view, places = shard.memo.get("rows") or _row_tables(shard)
        plan = places.items() if columns is None else [(name, places[name]) for name in columns]
        if view is None and (view := spans.whole(shard.chunk)) is None:
            return _ranged(shard, rows, plan)
        out: list[Row] = []
        for row in rows:
            values: Row = {}
            for name, i in plan:
                if i < 0:
                    values[name] = bytes(keys[ends[row - 1] if row else 0 : ends[row]])
                elif (start := starts[i, row]) < 0:
                    values[name] = None
                else:
                    values[name] = bytes(view[start : start + sizes[i, row]])
            out.append(values)
        return out

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads one sample."""
        _, _, ends, keys, view, places = shard.memo.get("rows") or _row_tables(shard)
        if view is None or not isinstance(view.obj, mmap.mmap) or len(view.obj) != len(view):
            return super().row_reader(shard, columns)
        source, starts, sizes = view.obj, shard.layout["starts"], shard.layout["sizes"]
        names = places if columns is None else columns
        members = [
            (name, memoryview(starts[places[name]]), memoryview(sizes[places[name]]))
            for name in names
            if places[name] >= 0
        ]
        is_key_first = next(iter(names), "") == KEY
        if KEY in names and not is_key_first:
            return super().row_reader(shard, columns)

        def read(row: int) -> Row:
            values: Row = {}
            if is_key_first:
                values[KEY] = bytes(keys[ends[row - 1] if row else 0 : ends[row]])
            for name, first, size in members:
                start = first[row]
                values[name] = source[start : start + size[row]] if start >= 0 else None
            return values

        return read

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop as typed columns, null where a sample lacks the member.

        raises  ValueFitError with the first row whose text is not UTF-8
        """
        by_name = {one.name: one for one in shard.columns}
        names = list(by_name) if columns is None else list(columns)
        order = [name for name in by_name if name != KEY]
        wanted = [name for name in names if name != KEY]
        found = _members(shard, [order.index(name) for name in wanted], start, stop)
        members = dict(zip(wanted, found, strict=True))
        arrays = []
        for name in names:
            if name == KEY:
                arrays.append(key_text(shard.layout["keys"], shard.layout["ends"], start, stop))
                continue
            try:
                arrays.append(_array(*members[name], lookup(by_name[name].encoding), views))
            except ValueFitError as error:
                raise error.at(shard.chunk.at, start).of_column(name) from None
        if not arrays:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * (stop - start), pa.struct([])))
        fields = [
            encodings.field(by_name[name]).with_type(array.type)
            for name, array in zip(names, arrays, strict=True)
        ]
        return pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))

    def held(self, one: Column) -> Column:
        """Return a column as a tar stores it; the key is text."""
        return column(KEY, "str") if one.name == KEY else super().held(one)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns as a tar stores them, the key first.

        Integers become decimal text and floats JSON, which webdataset decodes.

        raises  UsageError for a duplicate name or extension, for no column but the key, or an
                encoding that a tar cannot store
        """
        out = tuple(sorted(map(self.held, columns), key=lambda one: one.name != KEY))
        if all(one.name == KEY for one in out):
            raise UsageError(
                "a sample needs at least one column besides the key",
                hint="Name the columns to pack with -c.",
            )
        names: set[str] = set()
        seen: dict[str, str] = {}
        for one in out:
            if one.name in names:
                raise UsageError(f"two columns are named {one.name!r}")
            names.add(one.name)
            extension = KEY if one.name == KEY else extension_of(one)
            if len(extension.encode()) > MAX_EXTENSION_BYTES:
                raise UsageError(
                    f"column {one.name!r}: the extension is {len(extension.encode())} bytes,"
                    f" the limit is {MAX_EXTENSION_BYTES}",
                    column=one.name,
                )
            if extension in seen:
                raise UsageError(
                    f"columns {seen[extension]!r} and {one.name!r} would have the same member name",
                    hint="Name the columns to pack with -c.",
                )
            seen[extension] = one.name
        return out

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the bytes from the first member of a sample to the end of its last member."""
        held = shard.layout["sizes"][:, row] >= 0
        starts, sizes = shard.layout["starts"][held, row], shard.layout["sizes"][held, row]
        if not len(starts):
            return None
        return shard.chunk.at, int(starts.min()), int((starts + sizes).max())

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Read every header, even if there is an index, and, with `values`, check every value."""
        return verify(self, shard, values)


def _arranged(form: Format, table: Table, columns: Columns, at: Location) -> Table:
    """Return the table with its extensions in the order of the columns, without the key.

    raises  FormatError for an encoding that a tar cannot store; IntegrityError for an extension
            without a column
    """
    for one in columns:
        if not _is_held(form, one):
            raise FormatError(
                f"column {one.name!r} is listed as {one.encoding}, which a tar cannot store",
                where=at,
                column=one.name,
            )
    wanted = extensions_of(columns, table.extensions)
    if extra := [one for one in table.extensions if one not in wanted]:
        hint = "Add the column to the playlist; use -c to read fewer columns."
        raise IntegrityError(
            f"members have the extension .{extra[0]}, but no such column is listed",
            where=at,
            hint=hint,
        )
    if tuple(wanted) == table.extensions:
        return table
    starts, sizes = (np.full((len(wanted), table.rows), -1, np.int64) for _ in range(2))
    order = [wanted.index(one) for one in table.extensions]
    starts[order], sizes[order] = table.starts, table.sizes
    return Table(tuple(wanted), table.keys, table.ends, starts, sizes)


def _is_held(form: Format, one: Column) -> bool:
    try:
        return form.held(one) == one
    except UsageError:
        return False


def _row_tables(shard: Shard) -> Any:
    """Return, and keep in the shard, the values that reading one row needs.

    They are memoryviews of starts, sizes, ends and keys, the mapped tar or None, and column ->
    index of its extension (-1: the key). Items of a memoryview are Python integers, which are
    faster than those of numpy.
    """
    names = [one.name for one in shard.columns if one.name != KEY]
    places = {one.name: names.index(one.name) if one.name != KEY else -1 for one in shard.columns}
    tables = (memoryview(shard.layout[name]) for name in ("starts", "sizes", "ends", "keys"))
    view = None if spans.suffix(shard.chunk) else spans.whole(shard.chunk)
    shard.memo["rows"] = (*tables, view, places)
    return shard.memo["rows"]


def _ranged(shard: Shard, rows: Sequence[int], plan: Any) -> list[Row]:
    starts, sizes, ends, keys, _, _ = shard.memo["rows"]
    wanted = [
        (starts[i, row], starts[i, row] + sizes[i, row])
        for row in rows
        for _, i in plan
        if i >= 0 and starts[i, row] >= 0
    ]
    parts = iter(spans.read(shard.chunk, wanted))
    out: list[Row] = []
    for row in rows:
        key = bytes(keys[ends[row - 1] if row else 0 : ends[row]])
        out.append(
            {
                name: key if i < 0 else bytes(next(parts)) if starts[i, row] >= 0 else None
                for name, i in plan
            }
        )
    return out


def _members(
    shard: Shard, places: Sequence[int], start: int, stop: int
) -> list[tuple[ByteArray, IntArray, IntArray]]:
    """Return the bytes of the members of each extension, and where each row's member is.

    return  (uint8 [bytes], int64 [rows], int64 [rows]) per extension; starts of missing members are
            -1
    """
    starts, sizes = (shard.layout[name][places, start:stop] for name in ("starts", "sizes"))
    view = spans.whole(shard.chunk)
    there = starts >= 0
    if view is not None or not there.any():
        data = np.frombuffer(b"" if view is None else view, np.uint8)
        return [(data, *pair) for pair in zip(starts, sizes, strict=True)]
    low, high = int(starts[there].min()), int((starts + sizes)[there].max())
    if 2 * int(sizes[there].sum()) > high - low:
        (part,) = spans.read(shard.chunk, [(low, high)])
        data = np.frombuffer(part, np.uint8)
        return [
            (data, np.where(at < 0, -1, at - low), size)
            for at, size in zip(starts, sizes, strict=True)
        ]
    out = []
    for at, size in zip(starts, sizes, strict=True):  # the members are far apart: read each of them
        parts = spans.read(
            shard.chunk,
            [(a, a + b) for a, b in zip(at.tolist(), size.tolist(), strict=True) if a >= 0],
        )
        lengths = np.maximum(size, 0)
        out.append(
            (
                np.frombuffer(b"".join(parts), np.uint8),
                np.where(at < 0, -1, np.cumsum(lengths) - lengths),
                size,
            )
        )
    return out


def _array(
    data: ByteArray, starts: IntArray, sizes: IntArray, encoding: Encoding, views: bool
) -> pa.Array:
    """Return one column as a typed array; with `views`, as Arrow views of `data` if possible."""
    there = starts >= 0
    if not there.any():
        return pa.nulls(len(starts), encoding.arrow)
    lengths = np.where(there, sizes, 0)
    low, high = int(starts[there].min()), int((starts + sizes)[there].max())
    data, at = data[low:high], np.maximum.accumulate(np.where(there, starts - low, 0))
    if views and high - low < spans.VIEW_LIMIT:
        array = spans.viewed(spans.views(data, at, lengths), encoding)
    else:
        array = encodings.typed(spans.ragged(data, at, lengths), encoding)
    if there.all():
        return array
    validity = pa.py_buffer(np.packbits(there, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(at), [validity, *array.buffers()[1:]])
