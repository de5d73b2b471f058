"""Runs of bytes inside a shard: where they come from, many of them in few reads, and as Arrow arrays without a loop."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from flarecli import compress, encodings
from flarecli.errors import IntegrityError
from flarecli.lazy import np, pa
from flarecli.model import Chunk, File, IntArray
from flarecli.storage import Location, read_ahead

if TYPE_CHECKING:
    from flarecli.encodings import Encoding

__all__ = [
    "Lying",
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

TARS = {
    ".tgz": "gz",
    ".tbz2": "bz2",
    ".tar.zst": "zstd",
}  # what compressed tars are called besides; no other format has such names

_ENDS = (*TARS, *(f".{kind}" for kind in compress.SUFFIXES))
HELD = 256 << 20  # bytes of decompressed shards kept; one larger than that is kept alone
_NEAR = 1 << 16  # a gap that costs less to read than another request would
VIEW_LIMIT = 1 << 31  # an Arrow view's offset is an int32
_held: OrderedDict[object, tuple[Location, bytearray]] = (
    OrderedDict()
)  # each with the Location that keeps its store's id from being used again
_lock = threading.Lock()


class Lying:
    """Rows of one shard that were found in memory, so that those of many batches are found at once and copied one by one.

    source   what gives bytes when it is sliced, or a view
    columns  name -> of one size: an array of voids [rows], copied already; else where each value starts and stops in `source`,
             int64 [rows] twice, or a list of bytes
    """

    __slots__ = ("columns", "source")

    def __init__(self, source: Any, columns: dict[str, Any]) -> None:
        self.source, self.columns = source, columns

    def apart(self) -> Lying:
        """Give the same with every value copied: nothing of the shard is held."""
        return Lying(
            b"",
            {
                name: self._copied(*one) if isinstance(one, tuple) else one
                for name, one in self.columns.items()
            },
        )

    def _copied(self, starts: IntArray, stops: IntArray) -> list[bytes]:
        return [
            bytes(self.source[start:stop])
            for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)
        ]


def of(at: Location, file: File | None = None) -> Chunk:
    """Take a companion for a chunk of its own, so that the functions here read it; `file` is what is listed of it."""
    return Chunk(at, None, (file,) if file is not None else ())


def suffix(chunk: Chunk) -> str:
    """Give the compression suffix of a chunk's file, such as `zstd`; empty when it is stored as it is."""
    name = chunk.at.name
    if not name.endswith(_ENDS):  # as nearly all: this is asked for each few rows
        return ""
    return next((kind for end, kind in TARS.items() if name.endswith(end)), name.rpartition(".")[2])


def stored_size(chunk: Chunk) -> int:
    """Give the bytes of a chunk's file and hold them against what is listed.

    A remote store is not asked when a listing says: a read past the end is an error anyway.

    raises  IntegrityError if the file has another size than the listing says
    """
    listed = chunk.files[0].size if chunk.files else None
    if listed is not None and not chunk.at.is_local:
        return listed
    size = chunk.at.size()
    if listed is not None and size != listed:
        hint = (
            "It was cut short; fetch or pack it again."
            if size < listed
            else "It is not the file that was packed; fetch or pack it again."
        )
        raise IntegrityError(f"is {size} bytes, {listed} are listed", where=chunk.at, hint=hint)
    return size


def whole(chunk: Chunk) -> memoryview | None:
    """Give all bytes of a shard when that costs no copy of more than it: mapped, or decompressed and held for a while.

    return  None where ranges have to be read instead
    """
    kind = suffix(chunk)
    if not kind:
        view = chunk.at.map()
        if view is not None and chunk.files and chunk.files[0].size not in (None, len(view)):
            stored_size(chunk)
        return view
    file = chunk.files[0] if chunk.files else None
    key = (
        id(chunk.at.store),
        chunk.at.path,
    )  # of this very store: a dataset opened anew may be another one of the same sizes
    with _lock:
        if key in _held:
            _held.move_to_end(key)
            return memoryview(_held[key][1]).toreadonly()
    size = stored_size(chunk)
    data = compress.decompress(
        kind, chunk.at.blocks(size), file.raw_size if file else None, chunk.at, size
    )
    with _lock:
        _held[key] = chunk.at, data
        while len(_held) > 1 and sum(len(one) for _, one in _held.values()) > HELD:
            _held.popitem(last=False)
    return memoryview(data).toreadonly()


def read(chunk: Chunk, ranges: Sequence[tuple[int, int]]) -> list[bytes | memoryview]:
    """Read byte ranges of a shard, in the order asked; near ones share a read."""
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
        if joined and start <= joined[-1][1] + _NEAR:
            joined[-1][1] = max(joined[-1][1], stop)
        else:
            joined.append([start, stop])
        part_of[i] = len(joined) - 1
    parts = [memoryview(data) for data in chunk.at.read_many([(a, b) for a, b in joined])]
    return [
        parts[k][start - joined[k][0] : stop - joined[k][0]]
        for k, (start, stop) in zip(part_of, ranges, strict=True)
    ]


def ragged(data: IntArray, starts: IntArray, lengths: IntArray) -> pa.Array:
    """Give runs of bytes as one large_binary array, copied once, by Arrow; a run alone in 2 GiB or more lies over `data` itself.

    data     uint8 [bytes]; starts, lengths int64 [rows], inside it, starts never falling
    return   large_binary [rows]
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


def views(data: IntArray, starts: IntArray, lengths: IntArray) -> pa.Array:
    """Give runs of bytes as one binary_view array over `data`, which must have less than 2 GiB; nothing but the first bytes of each is copied."""
    views = np.zeros((len(starts), 4), "<i4")
    views[:, 0] = lengths
    short = lengths <= 12  # those live inside their view, padded with zeros
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
        views[long, 1] = data[at[:, None] + np.arange(4)].view("<i4")[
            :, 0
        ]  # the prefix that comparisons look at first
        views[long, 3] = at
    return pa.Array.from_buffers(
        pa.binary_view(), len(starts), [None, pa.py_buffer(views), pa.py_buffer(data)]
    )


def viewed(array: pa.Array, encoding: Encoding) -> pa.Array:
    """Give a binary_view array as the type of view that its encoding has. Raises ValueFitError for text that is not UTF-8."""
    if not encoding.is_text:
        return array
    text = pa.Array.from_buffers(pa.string_view(), len(array), array.buffers())
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        encodings.typed(array.cast(encodings.BINARY), encoding)  # says which row
    return text
