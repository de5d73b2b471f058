"""The contract of a format: what it declares about itself, and how its shards are read, written and checked.

A format is a subclass of `Format`. It moves batches and bytes: it touches no clock and no screen, and handles no Python values.
Code outside `formats/` asks the object for every fact, and never compares its name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from flarecli import encodings
from flarecli.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from flarecli.formats.byte_ranges import Lying
    from flarecli.model import (
        Chunk,
        Column,
        Columns,
        File,
        Finding,
        IntArray,
        Row,
        Settings,
        Shard,
        Stream,
    )
    from flarecli.storage import Location

__all__ = [
    "Ranges",
    "Span",
    "Substitutes",
    "BINARY",
    "EACH",
    "FLOATS",
    "Format",
    "INTEGERS",
    "LISTED_PICTURES",
    "SMALL_INTEGERS",
    "encoding_group",
]

Ranges = Mapping[str, tuple[int, int]]
Substitutes = Mapping[str, str | None]
Span = tuple[
    "Location", int | None, int | None
]  # a file, and the bytes start..stop of it if they are known

# Encodings that formats often replace together, see `Format.substitutes`.
SMALL_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
INTEGERS = ("int", "int64", "uint64", *SMALL_INTEGERS)
FLOATS = ("float16", "float32", "float64")
BINARY = (
    *("bytes", "pkl", "pil", "jpeg", "png", "mp4", "webm", "jpeg_array", "jpegarray"),
    *("list[jpeg]", "list[png]", "list[pil]"),
)
EACH = "X[]"  # a list of what its items are stored as
LISTED_PICTURES = {f"{name}[]": f"list[{name}]" for name in ("jpeg", "png", "pil")}

_LISTS = ("jpeg[]", "png[]", "pil[]")
_ARRAYS = ("ndarray[]", "array[]")
_BYTES = ("bytes", "jpeg_array", "jpegarray", "pkl", "mp4", "webm", "list")


def encoding_group(encoding: str) -> str:
    """Return the key of an encoding in `Format.substitutes`.

    An encoding is its own key, except: `ndarray` for arrays of any dtype and shape, `bytes` for the user's own
    encodings; and for lists `ndarray[]` for arrays, `bytes[]` for values of bytes, `*[]` for everything else but
    pictures (`jpeg[]`, `png[]`, `pil[]`).
    """
    is_list = encoding.endswith("[]")
    item = encoding.removesuffix("[]")
    item = "ndarray" if item.startswith("ndarray:") else item
    if not is_list:
        return "bytes" if item in encodings.OWN else item
    if f"{item}[]" in _LISTS:
        return f"{item}[]"
    if f"{item}[]" in _ARRAYS:
        return "ndarray[]"
    return "bytes[]" if item in encodings.OWN or item.partition("[")[0] in _BYTES else "*[]"


class Format:
    """A shard format. Subclasses set the facts that differ from the defaults, and override the methods.

    name              as users and playlists write it
    suffixes          endings of the names of its shards
    index_files       files, relative to the dataset's folder, that list its shards
    key_column        the column that holds each sample's key; the other columns are then named after file
                      extensions. Empty: samples have no key
    default_key       the column that names the files of `unpack` unless the user names one
    holds_null        whether a value may be null
    record_checksums  the hash by which each record is protected inside the shard; empty: none
    is_listed         whether a folder of shards needs no index: it is listed, in the order of the names
    is_plain          whether any file is a shard of one row without structure
    is_multi_file     whether a shard is several files, and `open_shard` looks for those that are not listed
    shards_in         the subfolder of a dataset that holds nothing but shards; empty: the dataset's folder
    checks_forward    whether `verify_shard` reads a local shard once, from front to back, in bounded memory
    options           pack options that apply to it: `newline`, `separator`
    separator         the one separator it has; None: the user chooses, if `separator` is among its options
    writable          whether it can be packed
    reads_streams     whether `scan_stream` reads a stream that cannot seek
    typed             whether the Arrow types of `read_batch` are its own types, and not those of the encodings
    sizes_are_exact   whether `row_sizes` add up to the size of the shard's main file
    substitutes       encoding (`encoding_group`) -> the encoding that is written in its place, None: cannot be held.
                      (EACH: a list of what its items are stored as). Others are written as they are
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    index_files: ClassVar[tuple[str, ...]] = ()
    key_column: ClassVar[str] = ""
    default_key: ClassVar[str] = ""
    holds_null: ClassVar[bool] = False
    record_checksums: ClassVar[str] = ""
    is_listed: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False
    is_multi_file: ClassVar[bool] = False
    shards_in: ClassVar[str] = ""
    checks_forward: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()
    separator: ClassVar[str | None] = None
    writable: ClassVar[bool] = True
    reads_streams: ClassVar[bool] = False
    typed: ClassVar[bool] = False
    sizes_are_exact: ClassVar[bool] = True
    substitutes: ClassVar[Substitutes] = {}

    # -- finding and opening

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether a file is a shard of this format, by its name or its first bytes.

        head  the first 64 KiB of the file, or b"" where only the name is known
        """
        return name.endswith(self.suffixes)

    def open_dataset(self, at: Location) -> Stream:
        """Read the index of a folder, or list it. No shard is opened.

        raises  MissingError if no dataset is there; FormatError if its index is invalid
        """
        raise NotImplementedError

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the header, footer or companion of a shard; check counts before allocating for them.

        columns  the columns that a listing declares: used where the shard has none of its own, compared where it has
        raises   FormatError, IntegrityError
        """
        raise NotImplementedError

    def written_by(self, listed_by: str) -> str | None:
        """Return the writer of a dataset, if the layout tells; `listed_by` is the name of the list in use, or empty."""
        return None

    # -- reading

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Read the stored bytes of rows, in the order asked.

        ranges  list column -> (start, stop) within each list; only those items are read
        """
        raise NotImplementedError

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads the stored bytes of one row of a mapped shard, columns in the order asked.

        It does as little as possible, and its errors for an invalid row are of any type: whoever needs to know
        the place of the damage reads the row again with `read_rows`.
        """
        read_rows = self.read_rows
        names = [one.name for one in shard.columns] if columns is None else columns

        def read(row: int) -> Row:
            values = read_rows(shard, (row,), columns)[0]
            return {name: values[name] for name in names}

        return read

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop as typed columns.

        views  text and bytes may be Arrow views of the mapped shard
        """
        raise NotImplementedError

    def read_columns(
        self, shard: Shard, rows: Sequence[int] | IntArray, columns: Sequence[str] | None = None
    ) -> Lying | None:
        """Locate the stored bytes of rows in memory, column by column; None if `read_rows` must read them."""
        return None

    def scan_stream(
        self, blocks: Iterable[bytes], columns: Columns | None = None, where: object = "-"
    ) -> Iterator[pa.RecordBatch]:
        """Read a stream that cannot seek, in bounded memory. Raises UsageError if the format cannot."""
        raise UsageError(f"{self.name} cannot be read from a stream", where=where)

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the file and the bytes that hold a row, or one column of it; None if they are not known."""
        return None

    def packed_files(self, chunk: Chunk) -> list[tuple[str, int]] | None:
        """Return (path, row) of the files that a shard packs, in the order of the rows; None if it packs none."""
        return None

    # -- writing

    def store_as(self, encoding: str) -> str | None:
        """Return the encoding that is written in place of one, the same if it is held; None if it cannot be held."""
        instead = self.substitutes.get(encoding_group(encoding), encoding)
        if instead != EACH:
            return instead
        item = self.store_as(encoding[:-2])
        return item if item is None else encoding if item.endswith("[]") else f"{item}[]"

    def held(self, one: Column) -> Column:
        """Return a column as this format stores it.

        raises  UsageError for an unknown encoding, or one that it cannot hold; both name the column
        """
        try:
            encodings.lookup(one.encoding)
        except UsageError as error:
            raise error.of_column(one.name) from None
        instead = self.store_as(one.encoding)
        if instead is None:
            raise UsageError(
                f"{self.name} cannot hold {one.encoding}",
                hint="Choose another --format, or the columns to pack with -c.",
            ).of_column(one.name)
        return one if instead == one.encoding else encodings.column(one.name, instead)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return columns in the order of the format, each as it is stored. Raises UsageError for columns it cannot hold."""
        raise NotImplementedError

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the bytes of an empty shard, and those that each row adds: int64 [rows]."""
        raise NotImplementedError

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as shard `number` of the dataset in folder `at`; names of its files are relative to that."""
        raise NotImplementedError

    def write_index(
        self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
    ) -> dict[str, File]:
        """Write the index that the original library writes; return name -> File of what was written."""
        return {}

    # -- checking and repairing

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the structure of a shard and, with `values`, that every value is valid in its encoding."""
        raise NotImplementedError

    def unprotected(self, shard: Shard) -> str:
        """Return which part of a shard its own checksums do not cover; empty if none, or if it has no checksums."""
        return ""

    def merge_indexes(
        self, at: Location, parts: Sequence[Location] | None = None
    ) -> dict[str, File]:
        """Write one index over datasets below a folder; return name -> File. A format without an index writes nothing."""
        return {}

    def repair_index(self, at: Location, replace: bool = False) -> Stream:
        """Rebuild a lost index from the shards. Raises UsageError if the format has no index."""
        raise UsageError(f"{self.name} has no index to rebuild", where=at)
