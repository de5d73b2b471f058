"""Interface of a format: declared facts, and methods that read, write and check shards.

A format is a subclass of `Format` that converts between Arrow batches and stored bytes. A format
does not print, read the clock or decode values to Python objects. Code outside `formats/` reads
each fact from the format object and never compares format names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

from flarecli import encodings
from flarecli.errors import UsageError

if TYPE_CHECKING:
    import pyarrow as pa

    from flarecli.formats.byte_ranges import GatheredColumns
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
    from flarecli.storage import Entry, Location

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
    "OriginalValue",
    "SELECT_COLUMNS",
    "SMALL_INTEGERS",
    "check_names",
]

Ranges = Mapping[str, tuple[int, int]]
Substitutes = Mapping[str, str | None]
Span = tuple[
    "Location", int | None, int | None
]  # file, first byte, and byte after the last; None for an unknown offset


SELECT_COLUMNS = "Use -c to select the columns to pack."


class LargeValue(NamedTuple):
    """A large value in a shard: its row, its column and its size in bytes."""

    row: int
    column: str
    size: int


# Kinds of values that the format's original library returns. "lists" are the lists and dicts of a
# parsed JSON document.
OriginalValue = Literal["numbers", "text", "decimals", "lists", "arrays", "JSON text", "bytes"]

# Groups of encodings that formats often replace together; see `Format.substitutes`.
SMALL_INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
INTEGERS = ("int", "int64", "uint64", *SMALL_INTEGERS)
FLOATS = ("float16", "float32", "float64")
BINARY = (
    *("bytes", "pkl", "pil", "jpeg", "png", "mp4", "webm", "jpeg_array", "jpegarray"),
    *("list[jpeg]", "list[png]", "list[pil]"),
)
EACH = "X[]"  # keep the list, and replace the encoding of its items
LISTED_PICTURES = {f"{name}[]": f"list[{name}]" for name in ("jpeg", "png", "pil")}

_ORIGINAL_VALUES: Mapping[OriginalValue, tuple[str, ...]] = {
    "numbers": (
        *(*INTEGERS, *FLOATS, "varint", "msgpack_float"),
        *("str_int", "str_float", "json_int", "json_float"),
    ),
    "text": ("str", "json_str"),
    "decimals": ("str_decimal",),
    "lists": ("json", "msgpack", "tree"),
    "arrays": ("ndarray", "array"),
    "JSON text": ("json_json",),
}
_BYTES = ("bytes", "jpeg_array", "jpegarray", "pkl", "mp4", "webm", "list")


def encoding_group(encoding: str) -> str:
    """Return the key in `Format.substitutes` for an encoding.

    Most encodings are their own key. Arrays of any dtype and shape have the key `ndarray`, and
    custom encodings have the key `bytes`. The keys for lists are `ndarray[]` for arrays, `jpeg[]`,
    `png[]` and `pil[]` for images, `bytes[]` for other byte values, and `*[]` for all other items.
    """
    item = encoding.removesuffix("[]")
    item = "ndarray" if item.startswith("ndarray:") else item
    if not encoding.endswith("[]"):
        return "bytes" if item in encodings.CUSTOM else item
    if encoding in LISTED_PICTURES:
        return encoding
    if item in ("ndarray", "array"):
        return "ndarray[]"
    return "bytes[]" if item in encodings.CUSTOM or item.partition("[")[0] in _BYTES else "*[]"


def check_names(columns: Columns, needs: str) -> None:
    """Raise UsageError if there are no columns, or if two columns have the same name.

    needs  message of the error that is raised if there are no columns
    """
    if not columns:
        raise UsageError(needs, hint=SELECT_COLUMNS)
    for one, two in pairwise(sorted(column.name for column in columns)):
        if one == two:
            raise UsageError(f"duplicate column name {one!r}")


class Format:
    """Base class of shard formats.

    A subclass overrides methods, and sets the attributes whose values differ from the defaults.

    name              format name in options and playlists
    suffixes          file name suffixes of shards
    index_files       files that list the shards; paths are relative to the dataset's folder
    version_index     name of the index file that lists the shards of a changed dataset's newest
                      version; empty if the format has no such file
    key_column        name of the column with the sample keys; each other column is named after a
                      file extension. Empty if samples have no key
    default_key       column whose values `unpack` uses as file names by default
    holds_null        True if values may be null
    max_columns       maximum number of columns; None if any number of columns can be stored
    record_checksums  the hash that protects each record inside a shard; empty if there is none
    is_listed         True if a folder needs no index; its shards are then sorted by name
    is_plain          True if each file, with any content, is a shard with one row
    is_multi_file     True if a shard may have several files; `open_shard` also finds the files that
                      the index does not list
    shards_in         the subfolder for shards; empty if shards are written into the folder of the
                      dataset
    checks_forward    True if `verify_shard` reads a local shard once, from front to back, in
                      bounded memory
    options           pack options that the format supports: `newline` or `separator`
    separator         the fixed separator; None if there is none, or if the user chooses it
    writable          True if `pack` can write the format
    typed             True if a file stores the Arrow types that `read_batch` returns; otherwise
                      the encodings determine the types
    readers           the term for the readers of the original library in notes, for example
                      `MosaicML readers`. Empty if no other library reads the format, or if the
                      other library returns the packed types
    sizes_are_exact   True if the sizes from `row_sizes` add up to the size of the shard's main file
    has_shard_index   True if each shard has an index file, whose size `row_sizes` does not include
    substitutes       key from `encoding_group` -> encoding that is written instead: None if the
                      format cannot store the encoding; EACH if the items of a list have
                      substitutes. Other encodings are written unchanged
    """

    name: ClassVar[str]
    suffixes: ClassVar[tuple[str, ...]] = ()
    index_files: ClassVar[tuple[str, ...]] = ()
    version_index: ClassVar[str] = ""
    key_column: ClassVar[str] = ""
    default_key: ClassVar[str] = ""
    holds_null: ClassVar[bool] = False
    max_columns: ClassVar[int | None] = None
    record_checksums: ClassVar[str] = ""
    is_listed: ClassVar[bool] = False
    is_plain: ClassVar[bool] = False
    is_multi_file: ClassVar[bool] = False
    shards_in: ClassVar[str] = ""
    checks_forward: ClassVar[bool] = False
    options: ClassVar[frozenset[str]] = frozenset()
    separator: ClassVar[str | None] = None
    writable: ClassVar[bool] = True
    typed: ClassVar[bool] = False
    readers: ClassVar[str] = ""
    sizes_are_exact: ClassVar[bool] = True
    has_shard_index: ClassVar[bool] = False
    substitutes: ClassVar[Substitutes] = {}

    # -- finding and opening

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name or the first bytes of a file identify a shard of this format.

        head  the first 64 KiB of the file; b"" if only the name is known
        """
        return name.endswith(self.suffixes)

    def open_dataset(self, at: Location) -> Stream:
        """Read the index of a folder, or list the folder, without opening a shard.

        raises  MissingError if the folder has no dataset; FormatError if its index is invalid
        """
        raise NotImplementedError

    def of_listing(self, at: Location, entries: Sequence[Entry]) -> Stream:
        """Open the dataset in a folder. `entries` lists the files in the folder."""
        return self.open_dataset(at)

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Read the header, footer or companion file of a shard.

        Counts are compared with the file size before memory is allocated.

        columns  columns that the dataset's index lists; None if it lists no columns
        raises   FormatError for an invalid shard; IntegrityError if the shard declares other
                 columns
        """
        raise NotImplementedError

    def has_delimited_text(self, stream: Stream) -> bool:
        """Return whether a stream has a CSV or TSV file, to which `--csv` applies."""
        return False

    def described(self, streams: Sequence[Stream]) -> Sequence[Stream]:
        """Add the common columns and Arrow types of all files to the streams of one dataset.

        Only typed formats add columns and types. They open each file whose types are unknown, and
        read no rows.

        return  the new streams

        raises  FormatError if the columns of two files differ
        """
        return streams

    def types(self, shard: Shard) -> Mapping[str, pa.DataType]:
        """For a typed format, return the Arrow type of each column that `read_batch` returns."""
        return {}

    def shard_facts(self, shard: Shard) -> Mapping[str, int | str]:
        """Return facts about a shard for `inspect`, without reading rows: name -> fact."""
        return {}

    def written_by(self, listed_by: str) -> str | None:
        """Return the name of the software that wrote a dataset; None if it is unknown.

        listed_by  name of the index file that lists the shards; empty if there is no index file
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

        ranges  name of a list column -> (start, stop): only these items of each list are read
        """
        raise NotImplementedError

    def row_reader(
        self, shard: Shard, columns: Sequence[str] | None = None
    ) -> Callable[[int], Row]:
        """Return a function that reads the stored bytes of one row of a mapped shard.

        The function returns the columns in the requested order. It may raise any error for an
        invalid row. Callers then read the row again with `read_rows`, which raises an error that
        contains the row number.
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

        views  whether text and bytes may be Arrow views into the mapped shard
        """
        raise NotImplementedError

    def gather_columns(
        self,
        shards: Sequence[Shard],
        rows: IntArray,
        edges: Sequence[int],
        columns: Sequence[str] | None = None,
        order: IntArray | slice = slice(None),
    ) -> GatheredColumns | None:
        """Return the stored values of rows in several shards.

        The result is None if this is impossible, for example because a shard is not in memory. The
        caller then calls `read_rows`.

        rows   row numbers in each shard, int64 [k]: the rows of the first shard, then those of the
               second shard, and so on
        edges  position in `rows` of the first row of each shard; the last item is `len(rows)`
        order  positions in `rows` of the rows to return, int64 [k]; by default, in the order of
               `rows`
        """
        return None

    def scan_stream(
        self, blocks: Iterable[bytes], columns: Columns | None = None, where: object = "-"
    ) -> Iterator[pa.RecordBatch]:
        """Yield batches from a stream that cannot seek, in bounded memory.

        raises  UsageError if the format does not support streams
        """
        raise UsageError(f"{self.name} cannot be read from a stream", where=where)

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span | None:
        """Return the file and byte range of a row or of one of its values; None if unknown."""
        return None

    def large_values(self, shard: Shard, max_bytes: int) -> list[LargeValue]:
        """Return the rows, columns and sizes of the values larger than `max_bytes`.

        No value is read. The list is also empty if the format does not store the sizes of values.
        """
        return []

    def packed_files(self, chunk: Chunk) -> list[tuple[str, int]] | None:
        """Return (path, row) for each file in a shard, in row order; None if rows are not files."""
        return None

    # -- writing

    def store_as(self, encoding: str) -> str | None:
        """Return the encoding that this format writes for a given encoding.

        The result is None if the format cannot store values of this encoding.
        """
        instead = self.substitutes.get(encoding_group(encoding), encoding)
        if instead != EACH:
            return instead
        item = self.store_as(encoding[:-2])
        return item if item is None else encoding if item.endswith("[]") else f"{item}[]"

    def original_value(self, encoding: str) -> OriginalValue:
        """Return the kind of value that the original library returns for a stored encoding."""
        if encoding.endswith("[]"):
            return "lists"
        for value, names in _ORIGINAL_VALUES.items():
            if encoding.partition(":")[0] in names:
                return value
        return "bytes"

    def storable_keys(self, keys: pa.Array) -> pa.Array:
        """Replace the characters in keys that this format uses to separate key and file extension.

        keys  text [rows]; keys that are invalid for another reason are not changed
        """
        return keys

    def stored_column(self, one: Column) -> Column:
        """Return a column as this format stores it.

        raises  UsageError with the column if its encoding is unknown or cannot be stored
        """
        try:
            encodings.lookup(one.encoding)
        except UsageError as error:
            raise error.of_column(one.name) from None
        instead = self.store_as(one.encoding)
        if instead is None:
            raise UsageError(
                f"{self.name} cannot store {one.encoding}",
                hint=SELECT_COLUMNS,
            ).of_column(one.name)
        if instead == one.encoding:
            return one
        return encodings.column(one.name, instead, one.extension)

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return columns in the order in which the format stores them, with their stored encodings.

        By default, this is the given order.

        raises  UsageError for columns that the format cannot store, if there are no columns, for
                duplicate names, or if the format is read-only
        """
        if not self.writable:
            raise UsageError(
                f"the format `{self.name}` is read-only", hint="Choose another --format."
            )
        out = tuple(map(self.stored_column, columns))
        check_names(out, f"{self.name} needs at least one column")
        return out

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the size of an empty shard, and the bytes that each row adds to it: int64 [rows].

        raises  ValueFitError with the first row that the format cannot store
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
        """Write rows as shard `number` of the dataset in the folder `at`.

        Callers must first check the rows with `row_sizes`. File names in the result are relative to
        `at`.
        """
        raise NotImplementedError

    def write_index(
        self, at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
    ) -> dict[str, File]:
        """Write the index that the format's original library reads; return file name -> File."""
        return {}

    # -- checking and repairing

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check the structure of a shard; yield a finding for each fault.

        values  also check every value
        """
        raise NotImplementedError

    def unprotected(self, shard: Shard) -> str:
        """Return a description of the data that no checksum covers; empty if there is none."""
        return ""

    def merge_indexes(
        self, at: Location, parts: Sequence[Location] | None = None
    ) -> dict[str, File]:
        """Write one index for all datasets below a folder; return file name -> File.

        The result is empty if the format has no index.
        """
        return {}

    def write_version_index(self, at: Location, stream: Stream) -> None:
        """Write the file `version_index`, which lists the shards in the order of the stream.

        The entries are copied from the current index, from the indexes of the fragments (folders
        with added shards), and from the backup of the original index.
        """

    def repair_index(self, at: Location, replace: bool = False) -> Stream:
        """Rebuild a lost index from the shards. Raises UsageError if the format has no index."""
        raise UsageError(f"{self.name} has no index to rebuild", where=at)
