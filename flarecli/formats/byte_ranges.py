"""Read byte ranges of a shard, and convert them to Arrow arrays and batches.

A compressed shard is decompressed as a whole. Other shards are mapped into memory if possible, and
otherwise read in ranges.
"""

from __future__ import annotations

import mmap
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias

from flarecli import compress, encodings, lifetimes
from flarecli.errors import IntegrityError, ValueFitError
from flarecli.lazy import np, pa
from flarecli.model import (
    ByteArray,
    Chunk,
    Column,
    Columns,
    File,
    IntArray,
    Shard,
    UInt32Array,
)
from flarecli.storage import Location, join_near, read_ahead

if TYPE_CHECKING:
    import numpy.typing as npt

    from flarecli.encodings import Encoding

__all__ = [
    "GatheredColumns",
    "ShardMemory",
    "Source",
    "TARS",
    "first_decrease",
    "gathered",
    "gathered_bytes",
    "ragged",
    "read",
    "record_batch",
    "rows_by_offsets",
    "runs",
    "selected_columns",
    "single_file_chunk",
    "sliceable",
    "source_of",
    "stored_size",
    "suffix",
    "typed",
    "typed_batch",
    "value_bytes",
    "value_offsets",
    "values_at",
    "views",
    "whole",
]

# File suffix -> compression, for the suffixes of compressed tar files.
TARS = {".tgz": "gz", ".tbz2": "bz2", ".tar.zst": "zstd"}

_ENDS = (*TARS, *(f".{kind}" for kind in compress.SUFFIXES))
MAX_CACHED_BYTES = 256 << 20  # maximum size of the cache; a larger shard is cached alone
# Minimum and maximum bytes per read of a file that is read from front to back. Reads become smaller
# after the caller skips bytes, such as a large file in a tar file.
_MIN_WINDOW_BYTES, _MAX_WINDOW_BYTES = 1 << 12, 1 << 20
VIEW_LIMIT = 1 << 31  # an Arrow view's offset is an int32
# Buffer k of `ShardMemory` starts at byte k << BUFFER_BITS, so that the offset of a value in its
# buffer fits in an int32.
BUFFER_BITS = 30
MAX_INLINE_BYTES = 12  # maximum size of a value that an Arrow view contains
_MAX_GATHERED_BYTES = 1 << 11  # maximum average size of values that Arrow copies
# Column name -> copies of values: a numpy void array, a large_binary array or a list of bytes.
GatheredColumns: TypeAlias = dict[str, Any]
# Cache of decompressed shards. A key contains the id of a store object. The cached Location keeps
# this object alive, so that no other store object gets the same id.
_cache: OrderedDict[object, tuple[Location, bytearray]] = OrderedDict()
_lock = threading.Lock()


def _forked() -> None:
    """Replace the lock in a forked child, where the thread that held the lock may not exist."""
    global _lock
    _lock = threading.Lock()


def _close() -> None:
    with _lock:
        _cache.clear()


lifetimes.after_fork(_forked)
lifetimes.register("decompressed shards", _close)


class ShardMemory(NamedTuple):
    """The bytes of a shard that is in memory.

    view     all bytes
    source   memory map or bytes object that `view` covers completely; slicing it returns bytes.
             `view` itself if there is no such object
    buffers  Arrow buffers of the same memory: buffer k contains all bytes from the offset k GiB
    """

    view: memoryview
    source: Any
    buffers: list[pa.Buffer]

    @classmethod
    def of(cls, view: memoryview) -> ShardMemory:
        """Create the ShardMemory of a shard from a view of all its bytes."""
        whole = pa.py_buffer(view)
        buffers = [whole.slice(start) for start in range(0, len(view) + 1, 1 << BUFFER_BITS)]
        return cls(view, sliceable(view) or view, buffers)


def single_file_chunk(at: Location, file: File | None = None) -> Chunk:
    """Return a Chunk for one file, such as a companion file. `file` has the size and the hashes."""
    return Chunk(at, None, (file,) if file is not None else ())


def suffix(chunk: Chunk) -> str:
    """Return the compression suffix of a chunk's file, such as `zstd`; empty if uncompressed."""
    name = chunk.at.name  # unlike the path, without the query of a signed address
    if not name.endswith(_ENDS):
        return ""
    return next((kind for end, kind in TARS.items() if name.endswith(end)), name.rpartition(".")[2])


def stored_size(chunk: Chunk) -> int:
    """Return the size of a chunk's file, and check the size of a local file.

    The listed size of a remote file is not checked, because a read beyond the end of the file
    raises an error.

    raises  IntegrityError if a local file does not have the listed size
    """
    listed = chunk.files[0].size if chunk.files else None
    if listed is not None and not chunk.at.is_local:
        return listed
    size = chunk.at.size()
    if listed is not None and size != listed:
        hint = (
            "The file was cut short; fetch or pack it again."
            if size < listed
            else "The file was replaced after it was packed; fetch or pack it again."
        )
        raise IntegrityError(
            f"file is {size} bytes; the listed size is {listed}", where=chunk.at, hint=hint
        )
    return size


def whole(chunk: Chunk) -> memoryview | None:
    """Map or decompress a shard, and return all its bytes; None if it must be read in ranges."""
    kind = suffix(chunk)
    if not kind:
        view = chunk.at.map()
        if view is not None and chunk.files and chunk.files[0].size not in (None, len(view)):
            stored_size(chunk)
        return view
    file = chunk.files[0] if chunk.files else None
    # Opening a dataset again creates another store object. The key contains the id of the object,
    # because the files may have changed in the meantime.
    key = (id(chunk.at.store), chunk.at.path)
    with _lock:
        if key in _cache:
            _cache.move_to_end(key)
            return memoryview(_cache[key][1]).toreadonly()
    size = stored_size(chunk)
    data = compress.decompress(
        kind, chunk.at.blocks(size), file.raw_size if file else None, chunk.at, size
    )
    with _lock:
        _cache[key] = chunk.at, data
        while len(_cache) > 1 and sum(len(one) for _, one in _cache.values()) > MAX_CACHED_BYTES:
            _cache.popitem(last=False)
    return memoryview(data).toreadonly()


def read(chunk: Chunk, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
    """Read byte ranges of a shard, and return them in the requested order.

    Ranges that are close together are read with one request.
    """
    view = whole(chunk)
    if view is not None:
        if len(ranges) > 1:
            read_ahead(view, ranges)
        return [view[start:stop] for start, stop in ranges]
    pieces, piece_of = join_near(ranges)
    data = [memoryview(piece) for piece in chunk.at.read_many(pieces)]
    return [
        data[k][start - pieces[k][0] : stop - pieces[k][0]] if start < stop else memoryview(b"")
        for k, (start, stop) in zip(piece_of, ranges, strict=True)
    ]


class Source(Protocol):
    """Interface of a byte source that is read from front to back."""

    @property
    def size(self) -> int | None:
        """Total number of bytes; None if the number is not known yet."""

    def window(self, start: int, need: int) -> memoryview:
        """Return `need` or more bytes from the offset `start`; fewer at the end of the data.

        `start` must not decrease from call to call.
        """


class MappedSource:
    """Source for a file that is in memory or mapped."""

    def __init__(self, view: memoryview) -> None:
        self.size = len(view)
        self._view = view

    def window(self, start: int, need: int) -> memoryview:
        return self._view[start:]


class RangeSource:
    """Source that reads a file in ranges. The ranges become smaller when the caller skips bytes."""

    def __init__(self, at: Location, size: int) -> None:
        self.size = size
        self._at, self._step, self._end = at, _MAX_WINDOW_BYTES, 0

    def window(self, start: int, need: int) -> memoryview:
        is_next = start <= self._end
        self._step = _MAX_WINDOW_BYTES if is_next else max(_MIN_WINDOW_BYTES, self._step // 4)
        self._end = min(self.size, start + max(need, self._step))
        return memoryview(self._at.read(start, self._end)) if start < self._end else memoryview(b"")


def source_of(chunk: Chunk) -> MappedSource | RangeSource:
    """Return a source that reads a shard's decompressed bytes once, from front to back."""
    view = whole(chunk)
    return MappedSource(view) if view is not None else RangeSource(chunk.at, stored_size(chunk))


def sliceable(view: memoryview | None) -> bytes | mmap.mmap | None:
    """Return the memory map or bytes object that a view covers completely; None for other views.

    Slicing this object creates bytes faster than copying a slice of the view.
    """
    if view is None or not isinstance(view.obj, (bytes, mmap.mmap)) or len(view.obj) != len(view):
        return None
    return view.obj


def runs(starts: npt.NDArray[Any], max_rows: int, max_bytes: int) -> Iterator[tuple[int, int]]:
    """Split rows into consecutive ranges within both limits; yield (start, stop) of each range.

    A row larger than `max_bytes` is a range of one row.

    starts  byte offset of each row, and the end of the last row: non-decreasing [rows + 1]
    """
    table, start = starts.data, 0
    rows = len(table) - 1
    while start < rows:
        stop = bisect_right(table, table[start] + max_bytes) - 1
        stop = max(start + 1, min(start + max_rows, rows, stop))
        yield start, stop
        start = stop


def first_decrease(starts: IntArray | UInt32Array) -> int | None:
    """Return the first row whose end offset is lower than its start offset; None if there is none.

    A crafted offset table could use such a row to read the bytes of other rows.
    """
    decreases = starts[1:] < starts[:-1]
    return int(np.argmax(decreases)) if decreases.any() else None


# -- Arrow arrays


def value_offsets(array: pa.Array) -> IntArray:
    """Return the value offsets of a large_binary or large_string array: int64 [rows + 1]."""
    return np.frombuffer(array.buffers()[1] or bytes(8), np.int64, len(array) + 1, array.offset * 8)


def value_bytes(array: pa.Array) -> memoryview:
    """Return the bytes of all values of a large_binary or large_string array, without a copy."""
    offsets = value_offsets(array)
    return memoryview(array.buffers()[2] or b"")[int(offsets[0]) : int(offsets[-1])]


def rows_by_offsets(data: Any, offsets: IntArray) -> pa.Array:
    """Return a large_binary array of the values between offsets, without a copy.

    data     bytes of all values
    offsets  start of each value, and the end of the last value: int64 [rows + 1]
    """
    return pa.Array.from_buffers(
        encodings.BINARY, len(offsets) - 1, [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    )


def typed(raw: pa.Array, column: Column, where: object, first_row: int) -> pa.Array:
    """Convert a column of stored bytes to its Arrow type; views of text or bytes remain views.

    raw     large_binary, binary_view, or fixed-size binary of the encoding's size
    raises  ValueFitError with the column and the row of the first invalid value
    """
    encoding = encodings.lookup(column.encoding)
    try:
        if pa.types.is_binary_view(raw.type):
            return _viewed(raw, encoding)
        return encodings.typed(raw, encoding)
    except ValueFitError as error:
        message = f"column {column.name!r:.60}: {error.message}"
        raise error.at(where, first_row).changed(message=message, column=column.name) from None


def record_batch(
    columns: Sequence[Column], arrays: Sequence[pa.Array], rows: int
) -> pa.RecordBatch:
    """Return typed columns as a batch of `rows` rows, with the encodings in the batch's schema."""
    if not arrays:
        return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))
    fields = [
        encodings.field(column).with_type(array.type)
        for column, array in zip(columns, arrays, strict=True)
    ]
    return pa.RecordBatch.from_arrays(list(arrays), schema=pa.schema(fields))


def selected_columns(shard: Shard, names: Sequence[str] | None) -> Columns:
    """Return a shard's columns with these names, in the order of `names`; None selects all."""
    if names is None:
        return shard.columns
    by_name = {one.name: one for one in shard.columns}
    return tuple(by_name[name] for name in names)


def typed_batch(
    shard: Shard,
    start: int,
    stop: int,
    names: Sequence[str] | None,
    stored: Callable[[Column], pa.Array],
) -> pa.RecordBatch:
    """Return rows start..stop as typed columns.

    stored  function that returns the stored bytes of a column, in a type that `typed` accepts
    """
    columns = selected_columns(shard, names)
    arrays = [typed(stored(one), one, shard.chunk.at, start) for one in columns]
    return record_batch(columns, arrays, stop - start)


def values_at(
    data: ByteArray, starts: IntArray, lengths: IntArray, as_views: bool = False
) -> pa.Array:
    """Return slices of `data` as an array; see `ragged` for the arguments.

    as_views  if `data` is smaller than 2 GiB, return views of the slices instead of copies
    """
    make = views if as_views and len(data) < VIEW_LIMIT else ragged
    return make(data, starts, lengths)


def ragged(data: ByteArray, starts: IntArray, lengths: IntArray) -> pa.Array:
    """Return copies of slices of `data` as one large_binary array.

    If `data` has at least 2 GiB and there is only one slice, the slice is not copied.

    data             uint8 [bytes]
    starts, lengths  int64 [rows], inside `data`; starts do not decrease
    """
    if len(data) < VIEW_LIMIT or not len(starts):
        return views(data, starts, lengths).cast(encodings.BINARY)
    if len(starts) == 1:
        return rows_by_offsets(data, np.concatenate((starts, starts + lengths)))
    halves = [
        (int(at[0]), int((at + size).max()), at, size)
        for at, size in zip(_halves(starts), _halves(lengths), strict=True)
    ]
    return pa.concat_arrays(
        [ragged(data[low:high], at - low, size) for low, high, at, size in halves]
    )


def _halves(values: IntArray) -> tuple[IntArray, IntArray]:
    middle = len(values) // 2
    return values[:middle], values[middle:]


def gathered(
    shards: Sequence[ShardMemory], sources: IntArray, starts: IntArray, lengths: IntArray
) -> pa.Array | list[bytes]:
    """Return copies of values from several shards: as large_binary if they are small, or as bytes.

    Arrow copies small values faster than Python does. Large values are returned as bytes, because
    the conversion of an Arrow array to bytes would copy them again.

    sources          index in `shards` of the shard of each value: integers [values]
    starts, lengths  start and length of each value in its shard: integers [values]. Each start
                     must be greater than `MAX_INLINE_BYTES`, because Arrow copies a short value
                     together with bytes that precede the value
    """
    most = min(len(lengths) * _MAX_GATHERED_BYTES, VIEW_LIMIT - 1)  # a view's size is an int32
    if int(lengths.sum(dtype=np.int64)) > most:
        places = zip(sources.tolist(), starts.tolist(), (starts + lengths).tolist(), strict=True)
        # A slice of a bytes object or a memory map is bytes, which `bytes` does not copy again.
        return [bytes(shards[k].source[start:stop]) for k, start, stop in places]
    # A view refers to a buffer only if its value has more than 12 bytes. A shorter value is
    # extended to 13 bytes with the bytes before the value; `ragged` then removes these bytes.
    sizes = np.maximum(lengths, MAX_INLINE_BYTES + 1).astype(np.int64)
    array = _copy_ranges(shards, sources, starts + lengths - sizes, sizes)
    if np.array_equal(sizes, lengths):
        return array
    data, ends = np.frombuffer(array.buffers()[2], np.uint8), value_offsets(array)[1:]
    return ragged(data, ends - lengths, lengths.astype(np.int64))


def gathered_bytes(
    shards: Sequence[ShardMemory], sources: IntArray, starts: IntArray, size: int
) -> ByteArray:
    """Return copies of byte ranges of the same size from several shards: uint8 [ranges, size].

    Bytes before a range are also read if `size` is less than 13. Therefore, each range must end
    after byte 12 of its shard.

    sources  index in `shards` of the shard of each range: integers [ranges]
    starts   start of each range in its shard: integers [ranges]
    """
    extra = max(0, MAX_INLINE_BYTES + 1 - size)
    copied = _copy_ranges(shards, sources, starts - extra, size + extra)
    data = np.frombuffer(copied.buffers()[2] or b"", np.uint8, len(starts) * (size + extra))
    return data.reshape(len(starts), size + extra)[:, extra:]


def _copy_ranges(
    shards: Sequence[ShardMemory], sources: IntArray, starts: IntArray, sizes: IntArray | int
) -> pa.Array:
    """Return copies of byte ranges as large_binary. Each range must have at least 13 bytes."""
    # The second item of a view is the prefix of its value, which the cast does not read.
    views = np.zeros((len(starts), 4), "<i4")
    views[:, 0] = sizes
    firsts = np.cumsum([0, *(len(shard.buffers) for shard in shards[:-1])])
    views[:, 2] = firsts[sources] + (starts >> BUFFER_BITS)
    views[:, 3] = starts & ((1 << BUFFER_BITS) - 1)
    buffers = [buffer for shard in shards for buffer in shard.buffers]
    return pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), *buffers]
    ).cast(encodings.BINARY)


def views(data: ByteArray, starts: IntArray, lengths: IntArray) -> pa.Array:
    """Return slices of `data`, which must be smaller than 2 GiB, as one binary_view array."""
    views = np.zeros((len(starts), 4), "<i4")
    views[:, 0] = lengths
    short = lengths <= 12  # Arrow stores short values inside the view, padded with zeros
    if short.any():
        at = starts[short][:, None] + np.arange(12)
        inline = (
            data[np.minimum(at, max(len(data) - 1, 0))]
            if len(data)
            else np.zeros(at.shape, np.uint8)
        )
        inline[np.arange(12) >= lengths[short][:, None]] = 0
        views[short, 1:] = inline.view("<i4")
    long = ~short
    if long.any():
        at = starts[long]
        # A view contains the first four bytes of its value; Arrow compares them first.
        views[long, 1] = data[at[:, None] + np.arange(4)].view("<i4")[:, 0]
        views[long, 3] = at
    return pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), pa.py_buffer(data)]
    )


def _viewed(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Cast a binary_view array to the view type of an encoding.

    raises  ValueFitError for text that is not UTF-8
    """
    if not encoding.is_text:
        return array
    text = pa.Array.from_buffers(pa.string_view(), len(array), array.buffers())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        # unlike Arrow's error, the error of `encodings.typed` contains the row number
        encodings.typed(array.cast(encodings.BINARY), encoding)
    return text
