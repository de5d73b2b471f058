"""WebDataset: tar files in which consecutive members with the same key form a sample.

    00000.tar         a/b.cls  a/b.jpg  a/c.cls  a/c.jpg  …  two blocks of zeros (`tar.py`)
    00000.idx.json    offsets of the members, for random access to rows (`index.py`)
    shardindex.json   shards and their row counts, as `widsindex create` writes them (`index.py`)

The columns of a sample are `__key__`, followed by the extensions in the order of their first use. A
missing member is null. `scan.py` splits names into key and extension, and `columns.py` maps
extensions to encodings.

Behavior of webdataset 1.0.2 and wids 0.2.111, determined by running them:

- TarWriter writes ustar headers with mode 0444, uid and gid 0, user and group `bigdata`, and by
  default the current time. The extensions of a sample are sorted. Key and extension are UTF-8
  without a PAX record. The tar is padded to a multiple of 10,240 bytes.
- The reader skips members that are not regular files, members without a dot in the last part of the
  name, and members below `__this__/`. It converts extensions to lower case. A duplicate extension
  in a sample is an error. A key that occurs again later starts a new sample (in flare: an error,
  except in a stream).
- The decoder reads txt, text and transcript as text; cls, cls2, index, inx and id as int; json and
  jsn as JSON; and pkl, pickle and pyd by unpickling.
- wids reads only the name and size fields of a header (no PAX, no prefix, no base 256). Its
  `.index` file is a pickle.

flare differs from TarWriter in two ways. The headers contain no user name and no time, so equal
rows result in equal bytes. The end marker is only two blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from flarecli import compress, encodings
from flarecli.bisect import findings_of
from flarecli.encodings import column, lookup
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    Place,
    UnsafeError,
    UsageError,
)
from flarecli.formats import byte_ranges, shard_files
from flarecli.formats.base import (
    FLOATS,
    INTEGERS,
    LISTED_PICTURES,
    SELECT_COLUMNS,
    Format,
    LargeValue,
    OriginalValue,
    Span,
    Substitutes,
    check_names,
)
from flarecli.formats.registry import SHARD_INDEX
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import (
    KEY,
    MAX_EXTENSION_BYTES,
    NAME,
    belongs_to,
    encoding_of,
    extension_of,
    extensions_of,
    member_columns,
)
from flarecli.formats.webdataset.index import write_index, write_version_index
from flarecli.formats.webdataset.scan import Table, key_text, read_stream, read_table
from flarecli.formats.webdataset.write import row_sizes, write_shard
from flarecli.lazy import np, pa, pc
from flarecli.model import (
    ByteArray,
    Chunk,
    Column,
    Columns,
    Finding,
    IntArray,
    Row,
    Shard,
    Stream,
    column_of,
    finding_of,
)
from flarecli.names import check_name, name_fault
from flarecli.storage import Location

__all__ = ["WebDataset"]

_MAX_STEP_ROWS, _MAX_STEP_BYTES = 8192, 64 << 20  # limits for the rows of a verification step
_MAX_FINDINGS = 100  # limit per tar for findings about keys, and for findings about padding
_SUSPECT_KEY = r"^/|^~|(^|/)[A-Za-z]:|//|(^|/)[. ]+(/|$)|[\x00-\x1f\x7f\\]"
_NOT_REPORTED = ("folder", "label")  # types of skipped members that are never part of a sample
_INDEX_HINT = "Pack the tar again to rebuild the index, or delete the index."


class WebDataset(Format):
    """Samples in tar files: a sample consists of consecutive members with the same key."""

    name = NAME
    suffixes = (
        ".tar",
        *(f".tar.{name}" for name in compress.SUFFIXES),
        *(one for one, kind in byte_ranges.TARS.items() if kind in compress.SUFFIXES),
    )
    index_files = (SHARD_INDEX,)
    version_index = SHARD_INDEX
    key_column = KEY
    holds_null = True  # the value of a missing member is null
    is_listed = True
    has_shard_index = True
    readers = "WebDataset readers"
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

    def original_value(self, encoding: str) -> OriginalValue:
        """Return the kind of value that webdataset's decoder returns for an encoding."""
        value = super().original_value(encoding)
        return {"decimals": "text", "arrays": "bytes"}.get(value, value)  # type: ignore[return-value]

    row_sizes = staticmethod(row_sizes)
    write_shard = staticmethod(write_shard)
    write_index = staticmethod(write_index)
    write_version_index = staticmethod(write_version_index)
    scan_stream = staticmethod(read_stream)

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name has a tar suffix, or the first header contains `ustar`."""
        return name.endswith(self.suffixes) or head[257:262] == b"ustar"

    def open_dataset(self, at: Location) -> Stream:
        """List the tars in a folder and their indexes, sorted by name; subfolders are ignored.

        raises  MissingError if the folder contains no tar
        """
        return shard_files.list_shards(
            at,
            self.name,
            ".tar",
            lambda name: name.endswith(self.suffixes),
            webdataset_index.name_of,
        )

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the index of a tar. If there is no valid index, read all headers of the tar.

        columns  the columns that a playlist lists; they must include every extension in the tar
        raises   FormatError for an invalid tar, or if the number of rows differs from the listed
                 number; IntegrityError for an extension without a column
        """
        source = byte_ranges.source_of(chunk)
        table = webdataset_index.read(chunk, source.size)
        if table is None:
            table = read_table(source, chunk.at)
        shard_files.check_row_count(chunk, table.rows, "samples")
        if columns is None:
            names = dict.fromkeys(one.lower() for one in table.extensions)
            columns = (column(KEY, "str"), *(column(one, encoding_of(one)) for one in names))
        layout = _arranged(self, table, columns, chunk.at)
        return Shard(chunk, columns, table.rows, layout)

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Mapping[str, tuple[int, int]] | None = None,
    ) -> list[Row]:
        """Read the bytes of members, in the order of `rows`. A missing member is None."""
        read = _mapped_reader(shard, columns)
        if read is not None:
            return list(map(read, rows))
        starts, sizes, ends, keys, places = _row_tables(shard)
        plan = places.items() if columns is None else [(name, places[name]) for name in columns]
        spans = [
            (starts[i, row], starts[i, row] + sizes[i, row])
            for row in rows
            for _, i in plan
            if i >= 0 and starts[i, row] >= 0
        ]
        parts = iter(byte_ranges.read(shard.chunk, spans))
        out: list[Row] = []
        for row in rows:
            values: Row = {}
            for name, i in plan:
                if i == _KEY_PLACE:
                    values[name] = bytes(keys[ends[row - 1] if row else 0 : ends[row]])
                elif i < 0:
                    values[name] = _extension(shard, i, row)
                else:
                    values[name] = bytes(next(parts)) if starts[i, row] >= 0 else None
            out.append(values)
        return out

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads the sample in one row."""
        return _mapped_reader(shard, columns) or super().row_reader(shard, columns)

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop as typed columns; a missing member is null.

        raises  ValueFitError with the first row whose text is not UTF-8
        """
        selected = byte_ranges.selected_columns(shard, columns)
        places = _places(shard.columns)
        wanted = [places[one.name] for one in selected if places[one.name] >= 0]
        members = iter(_members(shard, wanted, start, stop))
        arrays = []
        for one in selected:
            if one.name == KEY:
                arrays.append(key_text(shard.layout["keys"], shard.layout["ends"], start, stop))
            elif places[one.name] < 0:
                numbers = shard.layout["spelled"][-2 - places[one.name]][start:stop]
                spellings = pa.array(shard.layout["spellings"], encodings.BINARY)
                raw = spellings.take(pa.array(numbers, mask=numbers < 0))
                arrays.append(byte_ranges.typed(raw, one, shard.chunk.at, start))
            else:
                arrays.append(_array(*next(members), one, shard.chunk.at, start, views))
        return byte_ranges.record_batch(selected, arrays, stop - start)

    def storable_keys(self, keys: pa.Array) -> pa.Array:
        """Replace the dots in the last part of each key with `_`. Unsafe keys do not change."""
        has_dot = pc.match_substring_regex(keys, r"\.[^/]*$").fill_null(False)
        if not pc.any(has_dot).as_py():
            return keys
        return pc.replace_with_mask(
            keys,
            has_dot,
            pa.array(map(_without_dots, keys.filter(has_dot).to_pylist()), keys.type),
        )

    def stored_column(self, one: Column) -> Column:
        """Return a column as a tar stores it. The encoding of the key is `str`."""
        return column(KEY, "str") if one.name == KEY else super().stored_column(one)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns as a tar stores them, with the key first.

        Integers become decimal text, and floats become JSON. webdataset decodes both to numbers.

        raises  UsageError for a duplicate name or extension, for an encoding that a tar cannot
                store, or if the key is the only column
        """
        out = tuple(sorted(map(self.stored_column, columns), key=lambda one: one.name != KEY))
        members = member_columns(out)
        of_names = {name for one in members if (name := column_of(one.extension))}
        out = tuple(column(one.name, "str") if one.name in of_names else one for one in out)
        if not members:
            raise UsageError(
                "a sample needs at least one column besides the key",
                hint=SELECT_COLUMNS,
            )
        check_names(out, "a sample needs at least one column besides the key")
        seen: dict[str, str] = {}
        for one in members:
            extension = extension_of(one).lower()
            if len(extension.encode()) > MAX_EXTENSION_BYTES:
                raise UsageError(
                    f"column {one.name!r}: the extension is {len(extension.encode())} bytes;"
                    f" the maximum is {MAX_EXTENSION_BYTES}",
                    column=one.name,
                )
            if extension in seen:
                raise UsageError(
                    f"columns {seen[extension]!r} and {one.name!r} would have the same member name",
                    hint=SELECT_COLUMNS,
                )
            seen[extension] = one.name
        return out

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the byte range from a sample's first member to the end of its last member."""
        is_stored = shard.layout["sizes"][:, row] >= 0
        starts, sizes = (
            shard.layout["starts"][is_stored, row],
            shard.layout["sizes"][is_stored, row],
        )
        if not len(starts):
            return None
        return shard.chunk.at, int(starts.min()), int((starts + sizes).max())

    def large_values(self, shard: Shard, max_bytes: int) -> list[LargeValue]:
        """Return the members larger than `max_bytes`. The index or the headers list the sizes."""
        sizes = shard.layout["sizes"]
        names = [one.name for one in member_columns(shard.columns)]
        places = np.argwhere(sizes > max_bytes).tolist()
        return [LargeValue(row, names[i], int(sizes[i, row])) for i, row in places]

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check every header, the keys, the padding and the index of a tar.

        values  also check every value
        """
        at, seen = shard.chunk.at, tar.Seen(padding=[])
        try:
            source = byte_ranges.source_of(shard.chunk)
            table = read_table(source, at, seen)
        except FlareError as error:
            yield finding_of(error)
            return
        for byte in (seen.padding or [])[:_MAX_FINDINGS]:
            yield Finding(str(at), "format", f"the padding at byte {byte} contains non-zero bytes")
        if seen.end < len(tar.END) or source.size % tar.BLOCK:
            yield Finding(
                str(at),
                "format",
                f"the end marker is {seen.end} bytes;"
                f" expected a multiple of 512 bytes, at least {len(tar.END)}",
                "Pack the tar again.",
            )
        for kind, count in sorted(seen.skipped.items()):
            if kind not in _NOT_REPORTED:
                yield Finding(
                    str(at),
                    "skipped",
                    f"skipped members of type {kind}: {count}",
                    "Pack files instead of such members.",
                )
        yield from _verify_keys(table, at)
        yield from _verify_index(shard, table, source.size)
        if values:
            sizes = np.maximum(shard.layout["sizes"], 0).sum(0)
            starts = np.concatenate(([0], np.cumsum(sizes)))
            runs = byte_ranges.runs(starts, _MAX_STEP_ROWS, _MAX_STEP_BYTES)
            yield from findings_of(runs, partial(self.read_batch, shard))


# -- opening and reading


_KEY_PLACE = -1  # place of the key, see `_places`


def _places(columns: Columns) -> dict[str, int]:
    """Return the place of each column, a number that locates the values of the column:

    i >= 0  the members in row i of the layout's `starts` and `sizes`
    -1      the keys
    -2 - i  an extension column: the extensions of the members in row i
    """
    members = member_columns(columns)
    places = {one.name: i for i, one in enumerate(members)}
    of_extensions = {
        name: -2 - i for i, one in enumerate(members) if (name := column_of(one.extension))
    }
    return {
        one.name: places.get(one.name, of_extensions.get(one.name, _KEY_PLACE)) for one in columns
    }


def _extension(shard: Shard, place: int, row: int) -> bytes | None:
    """Return the value of an extension column; None if the member is missing."""
    number = int(shard.layout["spelled"][-2 - place][row])
    return None if number < 0 else shard.layout["spellings"][number]


def _arranged(form: Format, table: Table, columns: Columns, at: Location) -> dict[str, Any]:
    """Return the layout of a shard, which locates the members by column instead of extension.

    Entries of the layout, besides the keys:

    starts, sizes  as in `Table`, but int64 [member columns, rows]
    spellings      extensions in the tar, as stored
    spelled        index of a member column with several extensions -> for each row, the index of
                   the member's extension in `spellings`: int64 [rows]. The index is -1 for a
                   missing member, and for the default extension of the column

    `spellings` and `spelled` exist only if a column has several extensions.

    raises  FormatError for an encoding that a tar cannot store, or for two members of a sample that
            belong to one column; IntegrityError for an extension without a column
    """
    for one in columns:
        if not _can_store(form, one):
            raise FormatError(
                f"column {one.name!r} has the encoding {one.encoding}, which a tar cannot store",
                where=at,
                column=one.name,
            )
    layout: dict[str, Any] = {"keys": table.keys, "ends": table.ends}
    known = [one.lower() for one in table.extensions]
    members = member_columns(columns)
    own = [one.lower() for one in extensions_of(columns, known)]
    places = {extension: i for i, extension in enumerate(own)}
    of_rows = [(i, one.name) for i, one in enumerate(members) if column_of(one.extension)]
    for extension in known:
        if extension not in places:
            found = [i for i, name in of_rows if belongs_to(extension, name)]
            if not found:
                raise IntegrityError(
                    f"unexpected extension .{extension}: the columns do not include it",
                    where=at,
                    hint="Add the column to the playlist; to read fewer columns, use -c.",
                )
            places[extension] = found[0]
    if own == known:
        layout |= {"starts": table.starts, "sizes": table.sizes}
    else:
        starts, sizes = (np.full((len(own), table.rows), -1, np.int64) for _ in range(2))
        for i, extension in enumerate(known):
            place, is_stored = places[extension], table.starts[i] >= 0
            if (twice := is_stored & (starts[place] >= 0)).any():
                raise FormatError(
                    f"two members belong to the column {members[place].name!r}",
                    where=at,
                    row=int(np.flatnonzero(twice)[0]),
                )
            starts[place][is_stored] = table.starts[i][is_stored]
            sizes[place][is_stored] = table.sizes[i][is_stored]
        layout |= {"starts": starts, "sizes": sizes}
    if of_rows:
        layout["spellings"] = [one.encode() for one in table.extensions]
        layout["spelled"] = {place: np.full(table.rows, -1, np.int64) for place, _ in of_rows}
        for i, extension in enumerate(known):
            if extension not in own and (place := places[extension]) in layout["spelled"]:
                layout["spelled"][place][table.starts[i] >= 0] = i
    return layout


def _can_store(form: Format, one: Column) -> bool:
    try:
        return form.stored_column(one) == one
    except UsageError:
        return False


def _without_dots(key: str) -> str:
    # An invalid key such as `..` stays unchanged, because it would be valid without its dots, and
    # the error would be lost.
    if name_fault(key.removeprefix("./")):
        return key
    folder, slash, last = key.rpartition("/")
    return f"{folder}{slash}{last.replace('.', '_')}"


def _row_tables(shard: Shard) -> Any:
    """Return the arrays for reading single rows; create and store them on first use.

    The arrays are memoryviews, because indexing a memoryview is faster than indexing a numpy array.

    return  (starts, sizes, ends, keys, places); `places` is the result of `_places`
    """
    if "rows" not in shard.memo:
        tables = (memoryview(shard.layout[name]) for name in ("starts", "sizes", "ends", "keys"))
        shard.memo["rows"] = (*tables, _places(shard.columns))
    return shard.memo["rows"]


def _mapped_reader(shard: Shard, columns: Sequence[str] | None) -> Callable[[int], Row] | None:
    """Return a function that reads one row of a mapped tar; create and store it on first use.

    return  None if the tar is not mapped, if an extension column is selected, or if the key is
            selected but is not the first column
    """
    memo_key = ("reader", None if columns is None else tuple(columns))
    if memo_key not in shard.memo:
        shard.memo[memo_key] = _make_mapped_reader(shard, columns)
    read: Callable[[int], Row] | None = shard.memo[memo_key]
    return read


def _make_mapped_reader(shard: Shard, columns: Sequence[str] | None) -> Callable[[int], Row] | None:
    _, _, ends, keys, places = _row_tables(shard)
    source = byte_ranges.sliceable(byte_ranges.whole(shard.chunk))
    names = list(places if columns is None else columns)
    is_key_first = names[:1] == [KEY]
    if is_key_first:
        del names[0]
    if source is None or any(places[name] < 0 for name in names):
        return None
    starts, sizes = shard.layout["starts"], shard.layout["sizes"]
    members = [
        (name, memoryview(starts[places[name]]), memoryview(sizes[places[name]])) for name in names
    ]

    def read(row: int) -> Row:
        values: Row = {}
        if is_key_first:
            values[KEY] = bytes(keys[ends[row - 1] if row else 0 : ends[row]])
        for name, first, size in members:
            start = first[row]
            values[name] = source[start : start + size[row]] if start >= 0 else None
        return values

    return read


def _members(
    shard: Shard, places: Sequence[int], start: int, stop: int
) -> list[tuple[ByteArray, IntArray, IntArray]]:
    """Locate the members of rows start..stop for each column.

    places  places of columns with members
    return  for each column: data that contains the members, uint8 [bytes]; start of each member in
            the data, -1 for a missing member, int64 [rows]; size of each member, int64 [rows]
    """
    starts, sizes = (shard.layout[name][places, start:stop] for name in ("starts", "sizes"))
    view = byte_ranges.whole(shard.chunk)
    is_stored = starts >= 0
    if view is not None or not is_stored.any():
        data = np.frombuffer(b"" if view is None else view, np.uint8)
        return [(data, *pair) for pair in zip(starts, sizes, strict=True)]
    low, high = int(starts[is_stored].min()), int((starts + sizes)[is_stored].max())
    if 2 * int(sizes[is_stored].sum()) > high - low:
        (part,) = byte_ranges.read(shard.chunk, [(low, high)])
        data = np.frombuffer(part, np.uint8)
        return [
            (data, np.where(at < 0, -1, at - low), size)
            for at, size in zip(starts, sizes, strict=True)
        ]
    out = []
    # Most bytes between the members are not needed, so each member is a separate range.
    for at, size in zip(starts, sizes, strict=True):
        parts = byte_ranges.read(
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
    data: ByteArray,
    starts: IntArray,
    sizes: IntArray,
    one: Column,
    where: object,
    first_row: int,
    views: bool,
) -> pa.Array:
    """Return one column as a typed array. If `views` is True, use Arrow view types if possible."""
    is_stored = starts >= 0
    if not is_stored.any():
        return pa.nulls(len(starts), lookup(one.encoding).arrow)
    lengths = np.where(is_stored, sizes, 0)
    low, high = int(starts[is_stored].min()), int((starts + sizes)[is_stored].max())
    data, at = data[low:high], np.maximum.accumulate(np.where(is_stored, starts - low, 0))
    array = byte_ranges.typed(
        byte_ranges.values_at(data, at, lengths, views), one, where, first_row
    )
    if is_stored.all():
        return array
    validity = pa.py_buffer(np.packbits(is_stored, bitorder="little"))
    return pa.Array.from_buffers(array.type, len(at), [validity, *array.buffers()[1:]])


# -- verifying


def _verify_keys(table: Table, at: object) -> Iterator[Finding]:
    keys = key_text(table.keys, table.ends)
    for row in pc.indices_nonzero(pc.match_substring_regex(keys, _SUSPECT_KEY))[
        :_MAX_FINDINGS
    ].to_pylist():
        try:
            check_name(keys[row].as_py().removeprefix("./"), where=Place(at, row))
        except UnsafeError as error:
            yield finding_of(error)


def _verify_index(shard: Shard, table: Table, size: int) -> Iterator[Finding]:
    """Yield a finding if the index of a tar is invalid, or differs from the tar headers."""
    location = webdataset_index.location_of(shard.chunk)
    if location is None:
        return
    try:
        location.size()
    except MissingError:
        return
    except FlareError as error:
        yield finding_of(error)
        return
    index = webdataset_index.read(shard.chunk, size)
    if index is None:
        yield Finding(
            str(location),
            "index",
            "index does not match its tar; flare reads the tar headers instead",
            _INDEX_HINT,
        )
    elif not _same(index, table):
        yield Finding(
            str(location),
            "index",
            "the members in the index differ from the members in the tar",
            _INDEX_HINT,
        )


def _same(index: Table, table: Table) -> bool:
    return index.extensions == table.extensions and all(
        np.array_equal(getattr(index, name), getattr(table, name))
        for name in ("keys", "ends", "starts", "sizes")
    )
