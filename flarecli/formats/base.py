"""The contract of a format: what it declares about itself, and how its shards are read, written and
checked.

A format is a subclass of `Format`. It converts between Arrow batches and stored bytes; it does not
print, read the clock or create Python values. Code outside `formats/` reads every fact from the
object and never compares format names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from flarecli import encodings
from flarecli.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from flarecli.formats.byte_ranges import LocatedRows
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
    "LargeValue",
    "SMALL_INTEGERS",
    "encoding_group",
]

Ranges = Mapping[str, tuple[int, int]]
Substitutes = Mapping[str, str | None]
Span = tuple[
    "Location", int | None, int | None
]  # a file, its first byte and its end byte; None: unknown


class LargeValue(NamedTuple):
    """A value of a shard: its row, its column and its number of bytes."""

    row: int
    column: str
    size: int


# Encodings that formats often replace together, see `Format.substitutes`.
SMALL_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
INTEGERS = ("int", "int64", "uint64", *SMALL_INTEGERS)
FLOATS = ("float16", "float32", "float64")
BINARY = (
    *("bytes", "pkl", "pil", "jpeg", "png", "mp4", "webm", "jpeg_array", "jpegarray"),
    *("list[jpeg]", "list[png]", "list[pil]"),
)
EACH = "X[]"  # a list whose items are stored by the substitute of their encoding
LISTED_PICTURES = {f"{name}[]": f"list[{name}]" for name in ("jpeg", "png", "pil")}

_LISTS = ("jpeg[]", "png[]", "pil[]")
_ARRAYS = ("ndarray[]", "array[]")
_BYTES = ("bytes", "jpeg_array", "jpegarray", "pkl", "mp4", "webm", "list")


def encoding_group(encoding: str) -> str:
    """Return the key of an encoding in `Format.substitutes`.

    An encoding is its own key, except: `ndarray` for arrays of any dtype and shape, and `bytes` for
    the user's own encodings. Lists have the keys `ndarray[]` for arrays, `bytes[]` for values of
    bytes, their own name for images (`jpeg[]`, `png[]`, `pil[]`), and `*[]` for all others.
    """
    is_list = encoding.endswith("[]")
    item = encoding.removesuffix("[]")
    item = "ndarray" if item.startswith("ndarray:") else item
    if not is_list:
        return "bytes" if item in encodings.CUSTOM else item
    if f"{item}[]" in _LISTS:
        return f"{item}[]"
    if f"{item}[]" in _ARRAYS:
        return "ndarray[]"
    return "bytes[]" if item in encodings.CUSTOM or item.partition("[")[0] in _BYTES else "*[]"


class Format:
    """A shard format. Subclasses set the facts that differ from the defaults, and override the
    methods.

    name              as users and playlists write it
    suffixes          endings of the names of its shards
    index_files       files, relative to the dataset's folder, that list its shards
    key_column        the column with each sample's key; the other columns are then named after file
                      extensions. Empty: samples have no key
    default_key       the column that names the files of `unpack` by default
    holds_null        whether a value may be null
    record_checksums  the hash that protects each record inside the shard; empty: none
    is_listed         whether a folder of shards needs no index: its files are listed in name order
    is_plain          whether any file is a shard of one row without structure
    is_multi_file     whether a shard is several files; `open_shard` finds those that are not listed
    shards_in         the subfolder of a dataset that contains only shards; empty: the dataset's
                      folder
    checks_forward    whether `verify_shard` reads a local shard once, from front to back, in
                      bounded memory
    options           pack options that apply to it: `newline`, `separator`
    separator         its only separator; None: the user chooses it, if `separator` is an option
    writable          whether it can be packed
    reads_streams     whether `scan_stream` reads a stream that cannot seek
    typed             whether the Arrow types of `read_batch` are stored in the file; otherwise they
                      follow from the encodings
    sizes_are_exact   whether `row_sizes` add up to the size of the shard's main file
    substitutes       encoding (`encoding_group`) -> the encoding that is written instead; None: the
                      format cannot store it; EACH: a list of its items' substitutes. Encodings that
                      are not listed are written unchanged
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

        head  the first 64 KiB of the file; b"" if only the name is known
        """
        return name.endswith(self.suffixes)

    def open_dataset(self, at: Location) -> Stream:
        """Read the index of a folder, or list it. No shard is opened.

        raises  MissingError if the folder has no dataset; FormatError if its index is invalid
        """
        raise NotImplementedError

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the header, footer or companion of a shard; check counts before allocating for them.

        columns  the columns that a listing declares: used if the shard declares none, else compared
        raises   FormatError, IntegrityError
        """
        raise NotImplementedError

    def written_by(self, listed_by: str) -> str | None:
        """Return the writer of a dataset if the layout shows it.

        listed_by  name of the index in use, or empty
        """
        return None

    # -- reading

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Read the stored bytes of rows, in the requested order.

        ranges  list column -> (start, stop) within each list; only those items are read
        """
        raise NotImplementedError

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads the stored bytes of one row of a mapped shard, with its
        columns in the requested order.

        For an invalid row it may raise any error. Callers then read the row again with `read_rows`,
        which raises an error with the row.
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
    ) -> LocatedRows | None:
        """Locate the stored bytes of rows in memory by column; None if they must be read."""
        return None

    def scan_stream(
        self, blocks: Iterable[bytes], columns: Columns | None = None, where: object = "-"
    ) -> Iterator[pa.RecordBatch]:
        """Read a stream that cannot seek, in bounded memory.

        Raises UsageError if the format cannot.
        """
        raise UsageError(f"{self.name} cannot be read from a stream", where=where)

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the file and byte range of a row, or of one of its columns; None if unknown."""
        return None

    def large_values(self, shard: Shard, max_bytes: int) -> list[LargeValue]:
        """Return the values of more than `max_bytes` whose size an open shard knows.

        No value is read. Default: a shard does not know the sizes of its values.
        """
        return []

    def packed_files(self, chunk: Chunk) -> list[tuple[str, int]] | None:
        """Return (path, row) of the files that are packed in a shard, in row order; None for a
        shard of other rows.
        """
        return None

    # -- writing

    def store_as(self, encoding: str) -> str | None:
        """Return the encoding that replaces an encoding in this format, often the same; None if
        the format cannot store it.
        """
        instead = self.substitutes.get(encoding_group(encoding), encoding)
        if instead != EACH:
            return instead
        item = self.store_as(encoding[:-2])
        return item if item is None else encoding if item.endswith("[]") else f"{item}[]"

    def stored_column(self, one: Column) -> Column:
        """Return a column as this format stores it.

        raises  UsageError naming the column if its encoding is unknown or cannot be stored
        """
        try:
            encodings.lookup(one.encoding)
        except UsageError as error:
            raise error.of_column(one.name) from None
        instead = self.store_as(one.encoding)
        if instead is None:
            raise UsageError(
                f"{self.name} cannot store {one.encoding}",
                hint="Choose another --format, or select the columns to pack with -c.",
            ).of_column(one.name)
        return one if instead == one.encoding else encodings.column(one.name, instead)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return columns in the order of the format, each as it is stored.

        raises  UsageError for columns that it cannot store
        """
        raise NotImplementedError

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of an empty shard and the bytes that each row adds: int64 [rows].

        raises  ValueFitError naming the first row that the format cannot store
        """
        raise NotImplementedError

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as shard `number` of the dataset in `at`; file names are relative to it.

        The rows were accepted by `row_sizes`.
        """
        raise NotImplementedError

    def write_index(
        self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
    ) -> dict[str, File]:
        """Write the index of the original library; return name -> File."""
        return {}

    # -- checking and repairing

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the structure of a shard and, with `values`, every value."""
        raise NotImplementedError

    def unprotected(self, shard: Shard) -> str:
        """Return which part of a shard its checksums do not cover; empty if they cover all of it."""
        return ""

    def merge_indexes(
        self, at: Location, parts: Sequence[Location] | None = None
    ) -> dict[str, File]:
        """Write one index of all datasets below a folder; return name -> File (empty: no index)."""
        return {}

    def repair_index(self, at: Location, replace: bool = False) -> Stream:
        """Rebuild a lost index from the shards. Raises UsageError if the format has no index."""
        raise UsageError(f"{self.name} has no index to rebuild", where=at)
