"""WebDataset: tar files whose neighbouring members make samples.

    00000.tar         a/b.cls  a/b.jpg  a/c.cls  a/c.jpg  …  two blocks of zeros    (`tar.py` has the bytes)
    00000.idx.json    where they lie, so that any row can be read                   (`webdataset_index.py`)
    shardindex.json   the shards and their rows, as `widsindex create` writes it    (`write_index`)

A sample's columns are `__key__` and then its extensions, in the order in which they first come; a member that a sample lacks is null.
What key and extension are stands in `webdataset_table.py`, which extension means which encoding in `webdataset_names.py`.

Facts of webdataset 1.0.2 and wids 0.2.111, found by running them:
  TarWriter writes ustar headers: mode 0444, uid and gid 0, names `bigdata`, the current time unless told; extensions of a sample sorted;
  key and extension in UTF-8 without a PAX record; the end filled up with zeros to a multiple of 10,240 bytes.
  Reading skips what is no regular file, names without a dot in their last part, and below `__this__/`; extensions become lower case;
  an extension twice in a sample is an error there too; a key that comes back is another sample there, and an error here.
  Its decoder reads txt text transcript as text, cls cls2 index inx id as int, json jsn as JSON, pkl pickle pyd by unpickling.
  wids takes the header's own name and size only (no PAX, no prefix, no base 256) and has no index file in JSON: `.index` is a pickle.
Two things are written otherwise: headers carry no name and no time, so the same rows give the same bytes, and the end is two blocks.
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
    LIMIT,
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
from flarecli.model import Chunk, Column, Columns, File, Finding, IntArray, Row, Shard, Stream
from flarecli.storage import Location

__all__ = ["WebDataset"]


class WebDataset(Format):
    """Samples of neighbouring members of a tar."""

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
        """Tell by the name; the magic word of ustar is in the first header of nearly every tar."""
        return name.endswith(self.suffixes) or head[257:262] == b"ustar"

    def open_dataset(self, at: Location) -> Stream:
        """List the tars of a folder, none of its sub-folders, in the order of their names, each with the index beside it.

        raises  MissingError if there is none
        """
        sizes = {entry.name: entry.size for entry in at.list() if "/" not in entry.name}
        names = sorted(name for name in sizes if name.endswith(self.suffixes))
        if not names:
            raise MissingError("no .tar file is in it", where=at)
        beside = [webdataset_index.name_of(name) for name in names]
        parts = [(File(one, sizes[one]),) if one in sizes else () for one in beside]
        return Stream(
            "data",
            at,
            self.name,
            names,
            sizes=np.array([sizes[name] for name in names], np.int64),
            parts=parts if any(parts) else (),
        )

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Find the samples: by the index beside the tar if it is there and right, else by one pass over the headers.

        columns  what a listing says they are; each member must lie in one of them, and those without any are null
        raises   FormatError for what is no tar, or other rows than listed; IntegrityError for members that are not listed
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
                f"holds {table.rows} samples, {chunk.rows} are listed", where=chunk.at
            )
        if columns is None:
            columns = (column(KEY, "str"), *(column(one, meant(one)) for one in table.extensions))
        table = _chosen(self, table, columns, chunk.at)
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
        """Give the bytes of each member, in the order asked, None where a sample lacks it; near ones share a read."""
        starts, sizes, ends, keys, view, places = shard.memo.get("rows") or _rows_memo(shard)
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
        _, _, ends, keys, view, places = shard.memo.get("rows") or _rows_memo(shard)
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
        """Give rows start..stop as typed columns, null where a sample lacks the member.

        raises  ValueFitError naming the first row whose text is not UTF-8
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
        """Return a column as a member holds it; the key is text."""
        return column(KEY, "str") if one.name == KEY else super().held(one)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Put the key first and leave the others in their order; each with an encoding that a member holds.

        Whole numbers become decimal text, floats JSON: that is how webdataset reads them.

        raises  UsageError for two columns of one name or one extension, no column but the key, or an encoding that is not held
        """
        out = tuple(sorted(map(self.held, columns), key=lambda one: one.name != KEY))
        if all(one.name == KEY for one in out):
            raise UsageError(
                "a sample without members cannot be read back",
                hint="Name the columns to pack with -c.",
            )
        names: set[str] = set()
        seen: dict[str, str] = {}
        for one in out:
            if one.name in names:
                raise UsageError(f"two columns are named {one.name!r}")
            names.add(one.name)
            extension = KEY if one.name == KEY else extension_of(one)
            if len(extension.encode()) > LIMIT:
                raise UsageError(
                    f"column {one.name!r}: its members would end in {len(extension.encode())} bytes, {LIMIT} is the most",
                    column=one.name,
                )
            if extension in seen:
                raise UsageError(
                    f"the members of columns {seen[extension]!r} and {one.name!r} would have one name",
                    hint="Name the columns to pack with -c.",
                )
            seen[extension] = one.name
        return out

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the bytes from the first member of a sample to the end of its last."""
        held = shard.layout["sizes"][:, row] >= 0
        starts, sizes = shard.layout["starts"][held, row], shard.layout["sizes"][held, row]
        if not len(starts):
            return None
        return shard.chunk.at, int(starts.min()), int((starts + sizes).max())

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Read every header again, whatever an index says, and, if asked, check every value."""
        return verify(self, shard, values)


def _chosen(form: Format, table: Table, columns: Columns, at: Location) -> Table:
    """Bring the members of a table into the order of the columns, the key left out."""
    for one in columns:
        if not _is_held(form, one):
            raise FormatError(
                f"column {one.name!r} is listed as {one.encoding}, which no member of a tar is",
                where=at,
                column=one.name,
            )
    wanted = extensions_of(columns, table.extensions)
    if extra := [one for one in table.extensions if one not in wanted]:
        hint = "List its column in the playlist; -c then chooses columns."
        raise IntegrityError(
            f"members end in .{extra[0]}, and no such column is listed", where=at, hint=hint
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


def _rows_memo(shard: Shard) -> Any:
    """Keep what one more row needs: tables whose items are Python integers, and the map; the place of the key is -1."""
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
) -> list[tuple[IntArray, IntArray, IntArray]]:
    """Give the bytes in which members lie, and start and size of each row's there: uint8, int64 [rows] (-1: lacking), int64 [rows]."""
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
    for at, size in zip(starts, sizes, strict=True):  # little is wanted of what lies there
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
    data: IntArray, starts: IntArray, sizes: IntArray, encoding: Encoding, views: bool
) -> pa.Array:
    """Give one column of members as a typed array; as views over the bytes themselves where that is wanted and they can be."""
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
