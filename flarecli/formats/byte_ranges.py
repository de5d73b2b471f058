"""Read byte ranges of a shard: mapped, decompressed, or few joined reads; and make Arrow arrays of
them.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flarecli import compress, encodings
from flarecli.errors import IntegrityError
from flarecli.lazy import np, pa
from flarecli.model import ByteArray, Chunk, File, IntArray
from flarecli.storage import Location, read_ahead

if TYPE_CHECKING:
    from flarecli.encodings import Encoding

__all__ = [
    "LocatedRows",
    "TARS",
    "VIEW_LIMIT",
    "of",
    "ragged",
    "read",
    "stored_size",
    "suffix",
    "viewed",
    "views",
    "whole",
]

# Other suffixes of compressed tar files; no other format uses them.
TARS = {".tgz": "gz", ".tbz2": "bz2", ".tar.zst": "zstd"}

_ENDS = (*TARS, *(f".{kind}" for kind in compress.SUFFIXES))
MAX_CACHED_BYTES = 256 << 20  # decompressed shards in memory; a larger shard is kept alone
_MAX_GAP = 1 << 16  # bytes between two ranges that are cheaper to read than a second request
VIEW_LIMIT = 1 << 31  # an Arrow view's offset is an int32
# The Location keeps the store alive, so that the id in the key is not used again.
_cache: OrderedDict[object, tuple[Location, bytearray]] = OrderedDict()
_lock = threading.Lock()


class LocatedRows:
    """Stored bytes of rows of one shard, located in memory.

    source   bytes, a map or a memoryview; slicing it reads a value
    columns  name -> values: fixed size: copied values, an array of voids [rows]; variable size: the
             starts and stops of the values in `source`, int64 [rows] each, or a list of bytes
    """

    __slots__ = ("columns", "source")

    def __init__(self, source: Any, columns: dict[str, Any]) -> None:
        self.source, self.columns = source, columns

    def copied(self) -> LocatedRows:
        """Return a copy that does not refer to the shard."""
        return LocatedRows(
            b"",
            {
                name: self._copy(*one) if isinstance(one, tuple) else one
                for name, one in self.columns.items()
            },
        )

    def _copy(self, starts: IntArray, stops: IntArray) -> list[bytes]:
        return [
            bytes(self.source[start:stop])
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]


def of(at: Location, file: File | None = None) -> Chunk:
    """Return a Chunk of a single file, such as a companion; `file` is its listed size and hashes."""
    return Chunk(at, None, (file,) if file is not None else ())


def suffix(chunk: Chunk) -> str:
    """Return the compression suffix of a chunk's file, such as `zstd`; empty if uncompressed."""
    name = chunk.at.name
    if not name.endswith(_ENDS):
        return ""
    return next((kind for end, kind in TARS.items() if name.endswith(end)), name.rpartition(".")[2])


def stored_size(chunk: Chunk) -> int:
    """Return the size of a chunk's file and compare it with the listed size.

    A remote store is not asked if the size is listed: a read past the end is an error anyway.

    raises  IntegrityError if the file does not have the listed size
    """
    listed = chunk.files[0].size if chunk.files else None
    if listed is not None and not chunk.at.is_local:
        return listed
    size = chunk.at.size()
    if listed is not None and size != listed:
        hint = (
            "It was cut short; fetch or pack it again."
            if size < listed
            else "The file was replaced after it was packed; fetch or pack it again."
        )
        raise IntegrityError(f"is {size} bytes, {listed} are listed", where=chunk.at, hint=hint)
    return size


def whole(chunk: Chunk) -> memoryview | None:
    """Return all bytes of a shard: mapped, or decompressed and cached; None if ranges must be read."""
    kind = suffix(chunk)
    if not kind:
        view = chunk.at.map()
        if view is not None and chunk.files and chunk.files[0].size not in (None, len(view)):
            stored_size(chunk)
        return view
    file = chunk.files[0] if chunk.files else None
    # Keyed by the store: a dataset that is opened again may have changed.
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
    """Read byte ranges of a shard in the order asked; ranges with small gaps share a read."""
    view = whole(chunk)
    if view is not None:
        if len(ranges) > 1:
            read_ahead(view, ranges)
        return [view[start:stop] for start, stop in ranges]
    if len(ranges) == 1:
        return [memoryview(data) for data in chunk.at.read_many(ranges)]
    order = sorted(range(len(ranges)), key=ranges.__getitem__)
    joined: list[list[int]] = []
    part_of = [0] * len(ranges)
    for i in order:
        start, stop = ranges[i]
        if joined and start <= joined[-1][1] + _MAX_GAP:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
        part_of[i] = len(joined) - 1
    parts = [memoryview(data) for data in chunk.at.read_many([(a, b) for a, b in joined])]
    return [
        parts[k][start - joined[k][0] : stop - joined[k][0]]
        for k, (start, stop) in zip(part_of, ranges, strict=True)
    ]


def ragged(data: ByteArray, starts: IntArray, lengths: IntArray) -> pa.Array:
    """Return runs of bytes as one large_binary array, copied once by Arrow.

    A single run in data of 2 GiB or more is not copied.

    data             uint8 [bytes]
    starts, lengths  int64 [rows], inside `data`; starts do not decrease
    """
    if len(data) < VIEW_LIMIT or not len(starts):
        return views(data, starts, lengths).cast(encodings.BINARY)
    if len(starts) == 1:
        bounds = pa.py_buffer(np.concatenate((starts, starts + lengths)))
        return pa.Array.from_buffers(encodings.BINARY, 1, [None, bounds, pa.py_buffer(data)])
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


def views(data: ByteArray, starts: IntArray, lengths: IntArray) -> pa.Array:
    """Return runs of bytes as one binary_view array over `data`, which must be below 2 GiB."""
    views = np.zeros((len(starts), 4), "<i4")
    views[:, 0] = lengths
    short = lengths <= 12  # stored inside the view, padded with zeros
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
        # The prefix, which Arrow compares first.
        views[long, 1] = data[at[:, None] + np.arange(4)].view("<i4")[:, 0]
        views[long, 3] = at
    return pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), pa.py_buffer(data)]
    )


def viewed(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Return a binary_view array as the view type of an encoding.

    raises  ValueFitError for text that is not UTF-8
    """
    if not encoding.is_text:
        return array
    text = pa.Array.from_buffers(pa.string_view(), len(array), array.buffers())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        encodings.typed(array.cast(encodings.BINARY), encoding)  # raises with the row
    return text
