"""The data types of a dataset: frozen, picklable records.

    Playlist -> Stream -> Chunk (a listed shard) -> Shard (an open shard) -> rows

A Stream stores its chunks as columns to save memory. Chunk objects are created on demand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
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
    "UInt64Array",
    "ByteArray",
    "BoolArray",
    "column_of",
    "finding_of",
    "joined_columns",
    "total",
]

# column -> encoded value, as the format stores it
Row: TypeAlias = dict[str, "bytes | list[bytes] | None"]
Sample: TypeAlias = dict[str, Any]  # column -> Python value
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    IntArray: TypeAlias = npt.NDArray[np.int64]
    UInt32Array: TypeAlias = npt.NDArray[np.uint32]
    UInt64Array: TypeAlias = npt.NDArray[np.uint64]
    ByteArray: TypeAlias = npt.NDArray[np.uint8]
    BoolArray: TypeAlias = npt.NDArray[np.bool_]
else:  # numpy is slow to import
    IntArray = UInt32Array = UInt64Array = ByteArray = BoolArray = Any
ENCODING = b"encoding"  # key for a column's encoding in the metadata of an Arrow field


@dataclass(frozen=True, slots=True)
class Column:
    """A column.

    size       number of bytes per value, or None if values differ in size
    extension  extension of the files whose contents are the values, such as `jpg`; `{NAME}` if the
               column NAME contains the extension of each row; empty if the values were not files
    """

    name: str
    encoding: str
    size: int | None = None
    extension: str = field(default="", compare=False)


Columns: TypeAlias = tuple[Column, ...]


def joined_columns(first: Columns, others: Iterable[Columns]) -> Columns:
    """Return the columns of concatenated streams, which differ at most in their extensions.

    If the extensions of a column differ only in letter case, the result has the extension in lower
    case. If they differ in other ways, the result has an empty extension.
    """
    out = first
    for columns in others:
        pairs = zip(out, columns, strict=True)
        out = tuple(
            one
            if one.extension == other.extension
            else replace(one, extension=one.extension.lower())
            if one.extension.lower() == other.extension.lower()
            else replace(one, extension="")
            for one, other in pairs
        )
    return out


def column_of(extension: str) -> str:
    """Return the column that contains the extension of each row; empty for a fixed extension.

    extension  a `Column.extension`
    """
    return extension[1:-1] if extension.startswith("{") else ""


@dataclass(frozen=True, slots=True)
class File:
    """A stored file.

    name        name in the index or playlist
    size        size in bytes; None if unknown
    hashes      name of the hash -> hex digest
    raw_size    size after decompression in bytes; None if unknown or if the file is not compressed
    raw_hashes  like `hashes`, for the decompressed bytes
    """

    name: str
    size: int | None = None
    hashes: Mapping[str, str] = field(default_factory=dict)
    raw_size: int | None = None
    raw_hashes: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Chunk:
    """A listed shard that is not open.

    at          location of the main file
    rows        number of rows; None if unknown
    files       the main file, then its companion files; names are relative to the dataset's folder
    companions  location of each companion file, parallel to `files[1:]`
    types       column -> Arrow type; empty if the format stores no types, or if they are unknown
    headers     `Stream.headers` of the shard's stream
    """

    at: Location
    rows: int | None = None
    files: tuple[File, ...] = ()
    format: str | None = None
    companions: tuple[Location, ...] = ()
    types: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shard:
    """An open shard. It has no file handles, so it can be pickled.

    layout  tables from the file, such as row offsets
    memo    cache that the format uses in this process; not pickled
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
    """A named sequence of chunks with the same columns.

    at          base for relative URLs
    urls        URL of each chunk, absolute or relative to `at`
    rows        number of rows in each chunk, int64 [chunks], -1 if unknown; None if not listed
    sizes       size of each main file in bytes, int64 [chunks], -1 if unknown; None if not listed
    hashes      name of the hash -> hex digest of each chunk; empty if unknown
    raw_sizes   decompressed size of each file in bytes, int64 [chunks], -1 for a file that is not
                compressed; None if not listed
    raw_hashes  like `hashes`, for the decompressed bytes
    parts       companion files of each chunk, such as `.meta` and `.idx`; may be empty
    headers     other headers of the stream in the playlist, such as `compression`
    files       name -> file that is not part of a chunk, such as an index
    types       column -> Arrow type, for formats that store types; empty if unknown
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
    types: Mapping[str, Any] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.urls)

    @property
    def stored(self) -> IntArray | None:
        """Return the size of each chunk with its companion files, in bytes: int64 [chunks].

        A value is -1 if the size of the main file is unknown. The result is None if `sizes` is
        None.
        """
        if self.sizes is None or not any(self.parts):
            return self.sizes
        return self.sizes + [sum(file.size or 0 for file in files) for files in self.parts] * (
            self.sizes >= 0
        )

    def __iter__(self) -> Iterator[Chunk]:
        return (self.chunk(i) for i in range(len(self.urls)))

    def chunk(self, i: int) -> Chunk:
        """Return the Chunk at position i. Raises UnsafeError for an invalid address."""
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
        companions = self.parts[i] if self.parts else ()
        return Chunk(
            self.at.join(self.urls[i]),
            rows,
            (file, *companions),
            self.format,
            tuple(self.at.join(file.name) for file in companions),
            self.types,
            self.headers,
        )


@dataclass(frozen=True, slots=True)
class Playlist:
    """Named streams, in order.

    at                address of the playlist; None if the playlist is not a file
    protected         True if the last line of the file is a valid checksum of all preceding lines
    has_checksum      True if the file ends with a checksum of its lines, valid or not
    requested_format  format that the user specified, or empty; the playlist may list a different
                      format
    """

    streams: tuple[Stream, ...]
    at: Location | None = None
    protected: bool = False
    has_checksum: bool = False
    requested_format: str = ""

    def __len__(self) -> int:
        return len(self.streams)

    def __iter__(self) -> Iterator[Stream]:
        return iter(self.streams)


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings for the shards to write. Sizes are in bytes; None means no limit.

    hashes  names of the checksums to store in the format's own index
    """

    compression: str | None = None
    hashes: tuple[str, ...] = ()
    shard_bytes: int | None = 1 << 26
    shard_rows: int | None = None
    newline: str = "\n"
    separator: str = ","


@dataclass(frozen=True, slots=True)
class Cursor:
    """A position in an epoch.

    step      number of rows before the position, over all ranks
    rows      number of rows in the epoch; None if unknown
    window    size of the shuffle window in chunks; None if unknown
    checksum  `Dataset.checksum` of the data; None if unknown
    """

    seed: int
    epoch: int
    step: int
    order: str
    rows: int | None = field(default=None, compare=False)
    window: int | None = field(default=None, compare=False)
    checksum: str | None = field(default=None, compare=False)

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Restore a pickled cursor. Fields that are missing in old pickles become None."""
        for attribute, value in zip_longest(fields(self), state):
            object.__setattr__(self, attribute.name, value)


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem in the data that `verify` reports.

    address      the file or address
    kind         kind of the problem; stable, because scripts compare it
    message      description of the problem
    hint         solution in one sentence; may be empty
    row          row number in the file, or None
    column       name of the column, or None
    start, stop  byte range in the file, or in the decompressed file; None if unknown
    line         line number in a text file, counted from 1
    character    character in the line, counted from 1
    item         item of a JSON file, such as `shards[3].zip_data`; may be empty
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
        """Return the place as text for people, such as `out/shard.00000.mds[17]`."""
        return format_place(self.address, self.row, self.line, self.character, self.item)


def finding_of(error: FlareError, address: object = "") -> Finding:
    """Convert an error to a finding; `address` is used if the error has no address."""
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
    """Return the sum of counts as a Python int, because untrusted counts may overflow int64."""
    return sum(counts.tolist())
