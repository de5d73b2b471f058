"""What a dataset is made of: frozen records that any process may hold, with no behaviour but len and iter.

    Playlist -> Stream -> Chunk (a shard as listed) -> Shard (a shard opened) -> rows

A Stream keeps its chunks as columns, so that a million of them fit; a Chunk is made when asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from flarecli.errors import FlareError, format_place
from flarecli.names import is_url
from flarecli.storage import Location

__all__ = [
    "Chunk",
    "Column",
    "Columns",
    "Cursor",
    "ENCODING",
    "File",
    "Finding",
    "IntArray",
    "Playlist",
    "Row",
    "Sample",
    "Settings",
    "Shard",
    "Stream",
    "UInt32Array",
    "ByteArray",
    "BoolArray",
    "finding_of",
    "total",
]

Row: TypeAlias = dict[
    str, "bytes | list[bytes] | None"
]  # column -> encoded bytes as the format stores them
Sample: TypeAlias = dict[str, Any]  # column -> Python value
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = Any  # numpy integer array
    UInt32Array: TypeAlias = npt.NDArray[np.uint32]
    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]
else:
    IntArray = UInt32Array = ByteArray = BoolArray = (
        Any  # importing numpy takes longer than most commands need it
    )
ENCODING = b"encoding"  # the key in an Arrow field's metadata that names the column's encoding


@dataclass(frozen=True, slots=True)
class Column:
    """One field of every row: its name, the name of its encoding, and its size in bytes when that is fixed."""

    name: str
    encoding: str
    size: int | None = None


Columns: TypeAlias = tuple[Column, ...]


@dataclass(frozen=True, slots=True)
class File:
    """One stored file: its name as listed, size in bytes (None: not known), hash name -> hex; and what it is when decompressed."""

    name: str
    size: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    raw_size: int | None = None
    raw_hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A shard as listed, not opened: where its main file is, its rows if known, that file and then its companions.

    files   names are relative to the dataset's folder; the first is the main file
    beside  where each companion is, parallel to `files[1:]`
    """

    at: Location
    rows: int | None = None
    files: tuple[File, ...] = ()
    format: str | None = None
    beside: tuple[Location, ...] = ()


@dataclass(frozen=True, slots=True)
class Shard:
    """An open shard: `layout` maps names to the tables of the format. It has no handles, so it can be pickled.

    memo  per-process cache of the format that makes reading a row faster; it is not pickled
    """

    chunk: Chunk
    columns: Columns
    rows: int
    layout: Mapping[str, Any]
    memo: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def __reduce__(self) -> tuple[Any, ...]:
        return Shard, (self.chunk, self.columns, self.rows, self.layout)

    def __len__(self) -> int:
        return self.rows


@dataclass(frozen=True, slots=True)
class Stream:
    """A named run of chunks with the same columns.

    at         where relative URLs start
    urls       one per chunk, relative to `at` or absolute
    rows       int64 [chunks], or None when the listing does not say
    sizes      int64 [chunks], bytes of each stored file, or None
    hashes     hash name -> one hex a chunk (empty: not known)
    raw_sizes  int64 [chunks], bytes when decompressed, -1 where the file is stored as it is; or None
    raw_hashes hash name -> one hex a chunk, of the decompressed bytes
    parts      the companions of each chunk (`.meta`, `.idx`, a bag a column), or empty where no chunk has one
    headers    what a playlist says of the stream, kept whole
    """

    name: str
    at: Location
    format: str | None
    urls: Sequence[str]
    columns: Columns | None = None
    rows: IntArray | None = None
    sizes: IntArray | None = None
    hashes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    raw_sizes: IntArray | None = None
    raw_hashes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)
    files: Mapping[str, File] = field(default_factory=dict)
    parts: Sequence[tuple[File, ...]] = ()

    def __len__(self) -> int:
        return len(self.urls)

    @property
    def stored(self) -> IntArray:
        """Bytes that each chunk takes with its companions, as far as listed: int64 [chunks], -1 where its main file's are not; None if `sizes` is."""
        if self.sizes is None or not any(self.parts):
            return self.sizes
        return self.sizes + [sum(file.size or 0 for file in one) for one in self.parts] * (
            self.sizes >= 0
        )

    def __iter__(self) -> Iterator[Chunk]:
        return (self.chunk(i) for i in range(len(self.urls)))

    def chunk(self, i: int) -> Chunk:
        """Make the Chunk at position i; its addresses are checked here, before anything opens them."""
        raw = int(self.raw_sizes[i]) if self.raw_sizes is not None else -1
        file = File(
            self.urls[i].partition("?")[0].rpartition("/")[2]
            if is_url(self.urls[i])
            else self.urls[i],
            None if self.sizes is None or self.sizes[i] < 0 else int(self.sizes[i]),
            {name: values[i] for name, values in self.hashes.items() if values[i]},
            None if raw < 0 else raw,
            {name: values[i] for name, values in self.raw_hashes.items() if values[i]},
        )
        rows = None if self.rows is None or self.rows[i] < 0 else int(self.rows[i])
        beside = self.parts[i] if self.parts else ()
        return Chunk(
            self.at.join(self.urls[i]),
            rows,
            (file, *beside),
            self.format,
            tuple(self.at.join(one.name) for one in beside),
        )


@dataclass(frozen=True, slots=True)
class Playlist:
    """Named streams, in order. `at` is the playlist's own address, or None when it was made in memory.

    protected  the file ends with a right sum over itself
    meant      the format that the user named, which the list may contradict; empty: none
    """

    streams: tuple[Stream, ...]
    at: Location | None = None
    protected: bool = False
    meant: str = ""

    def __len__(self) -> int:
        return len(self.streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self.streams)


@dataclass(frozen=True, slots=True)
class Settings:
    """How shards are written. Sizes in bytes; None: no limit. `hashes` are the format's own sums."""

    compression: str | None = None
    hashes: tuple[str, ...] = ()
    shard_bytes: int | None = 1 << 26
    shard_rows: int | None = None
    newline: str = "\n"
    separator: str = ","


@dataclass(frozen=True, slots=True)
class Cursor:
    """A place in a run; `step` counts rows of all ranks.

    rows, window  of the epoch and the run that it belongs to; None: not known
    checksum      `Dataset.checksum` of the data that it belongs to; None: not known
    """

    seed: int
    epoch: int
    step: int
    order: str
    rows: int | None = field(default=None, compare=False)
    window: int | None = field(default=None, compare=False)
    checksum: str | None = field(default=None, compare=False)

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Restore a pickle; fields that an earlier version did not have become None."""
        for one, value in zip_longest(fields(self), state):
            object.__setattr__(self, one.name, value)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem that verify found.

    address      the file or address that it is about
    kind         never changes: scripts compare it
    message      what is wrong
    hint         what to do about it, one sentence; may be empty
    row          the row of the file, if it is about one
    column       the column, if it is about one
    start, stop  its bytes in the file, or in what the file decompresses to, if they are known
    line         the line of a text, from 1
    character    the character of that line, from 1
    item         the item of a JSON file, such as `shards[3].zip_data`; may be empty
    """

    address: str
    kind: str
    message: str
    hint: str = ""
    row: int | None = None
    column: str | None = None
    start: int | None = None
    stop: int | None = None
    line: int | None = None
    character: int | None = None
    item: str = ""

    @property
    def where(self) -> str:
        """The text of the place, such as `out/shard.00000.mds[17]`; only for people."""
        return format_place(self.address, self.row, self.line, self.character, self.item)


def finding_of(error: FlareError, address: object = "") -> Finding:
    """Return an error as a finding; `address` is where it happened if the error does not know."""
    return Finding(
        error.address or str(address),
        error.kind,
        error.message,
        error.hint,
        row=error.row,
        column=error.column,
        line=error.line,
        character=error.character,
        item=error.item,
    )


def total(counts: IntArray) -> int:
    """Return the exact sum of counts from a list that is not trusted: in int64 it could overflow."""
    return sum(counts.tolist())
