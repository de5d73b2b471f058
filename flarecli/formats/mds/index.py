"""Read and write the `index.json` of MosaicML Streaming, and find the files of a shard.

    {"shards": [{…config, raw_data, raw_meta, samples, zip_data, zip_meta}, …], "version": 2}

`mds.config` describes a shard's config. `raw_data`, `raw_meta`, `zip_data` and `zip_meta` are
{basename, bytes, hashes}. `raw_meta` and `zip_meta` exist only if shards have `.meta` files.
`zip_data` and `zip_meta` are null if shards are not compressed. Every value is checked before it is
used. flare and MosaicML Streaming write the same bytes.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flarecli import compress
from flarecli.compress import suffix_of
from flarecli.errors import FlareError, FormatError, MissingError, Place, UsageError
from flarecli.formats import byte_ranges
from flarecli.formats.mds import config as mds_config
from flarecli.formats.registry import INDEX
from flarecli.formats.shard_files import check_count, json_decoder, parse_json
from flarecli.hashes import DEFAULT
from flarecli.lazy import np
from flarecli.model import Chunk, Columns, File, Settings, Stream
from flarecli.names import check_name, shell_quoted
from flarecli.storage import Location

__all__ = [
    "FAMILY",
    "Listed",
    "entry",
    "name_of",
    "open_dataset",
    "present",
    "raw_name",
    "read_shards",
    "scan_shards",
    "write_entries",
    "write_index",
]

FAMILY = ("mds", "json", "csv", "tsv", "xsv")  # formats of the shards in an `index.json`
_MAX_INDEX_BYTES = 1 << 30  # about 2 million shards
_MAX_FILE_BYTES = 1 << 40  # limit for a listed size, so that the sum of all sizes fits in an int64
_ENTRIES_PER_PIECE = 4096  # number of entries that are written together
_SPACE = re.compile(r"[ \t\n\r]*")
_MAX_HASH_KINDS = 100  # limit for hash types, because each type requires a value per shard
_TOP_KEYS, _FILE_KEYS = (
    frozenset(("shards", "version")),
    frozenset(("basename", "bytes", "hashes")),
)
_SHARD_KEYS = frozenset(
    ("compression", "format", "hashes", "raw_data", "samples", "size_limit", "version", "zip_data")
)  # keys that the entry of a shard requires in every format
# Limits for reporting an unknown key as a misspelling: `hashs` for `hashes`, but not `size` for
# `size_limit`.
_MAX_SIMILAR_KEY_CHARS, _MIN_SIMILARITY = 60, 0.8


def open_dataset(at: Location) -> Stream:
    """Read a folder's `index.json` without opening a shard.

    raises  MissingError if there is no index; FormatError if the index is invalid; UnsafeError if
            the index lists a file outside the folder
    """
    where = at / INDEX
    shards, size = read_shards(where)
    cached = _cached_names(at, shards)
    listed, shown = Listed(), str(where)
    for i, shard in enumerate(shards):
        try:
            listed.add(shard, f"shards[{i}]", cached)
        except FlareError as error:
            raise error.changed(address=shown, item=error.address) from None
    return listed.stream(at, File(INDEX, size))


def _truncated_hint(where: Location) -> str:
    """Return the hint for a truncated index. `flare playlist` can rebuild a local index."""
    return (
        "Fetch it again, or delete it and run "
        f"`flare playlist {shell_quoted(str(where.folder))} --reindex`."
        if where.is_local
        else "Fetch it again."
    )


def read_shards(where: Location) -> tuple[list[dict[str, Any]], int]:
    """Return the entries of an `index.json`, and its size in bytes.

    raises  FormatError if the index is invalid
    """
    size = where.size()
    if size > _MAX_INDEX_BYTES:
        raise FormatError(f"file is {size} bytes; the maximum is {_MAX_INDEX_BYTES}", where=where)
    try:
        index = parse_json(where.read(0, size), where) if size else None
    except FormatError as error:
        raise FormatError(error.message, where=error.place, hint=_truncated_hint(where)) from None
    if not size:
        raise FormatError("file is empty", where=where, hint=_truncated_hint(where))
    if isinstance(index, dict):
        _check_keys(index, _TOP_KEYS, where)
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise FormatError("expected an object with a list `shards`", where=where)
    version = index.get("version")
    if version != 2 or isinstance(version, bool):
        raise FormatError(f"expected version 2, got {version!r:.60}", where=where)
    for i, shard in enumerate(index["shards"]):
        if not isinstance(shard, dict):
            raise FormatError("entry is not an object", where=Place(where, item=f"shards[{i}]"))
    return index["shards"], size


def scan_shards(where: Location) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield each entry of an `index.json` and its JSON text. The file is read in blocks.

    raises  the errors of `read_shards`, possibly after some entries
    """
    size = where.size()
    if size <= _MAX_INDEX_BYTES:
        reader, version = _JsonReader(where.blocks(size)), None
        try:
            for key in reader.members():
                if key == "shards":
                    yield from reader.objects()
                else:
                    value = reader.value()[0]
                    version = value if key == "version" else version
            if version == 2 and not isinstance(version, bool) and reader.is_at_end:
                return
        except (ValueError, RecursionError):  # `read_shards` raises an error with the position
            pass
    read_shards(where)
    raise FormatError("expected an object with a list `shards`", where=where)


class _JsonReader:
    """Read a JSON object from blocks of its text. A block is released after its values were read.

    All methods raise ValueError for invalid JSON.
    """

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self._blocks, self._decoder = iter(blocks), codecs.getincrementaldecoder("utf-8")()
        self._json = json_decoder()
        self._text, self._position = "", 0

    def members(self) -> Iterator[str]:
        """Yield the keys of the object. The caller reads the value after each key."""
        seen = set[str]()
        for _ in self._items("{", "}"):
            key, _ = self.value()
            if not isinstance(key, str) or key in seen or not self._skip(":"):
                raise ValueError
            seen.add(key)
            yield key

    def objects(self) -> Iterator[tuple[dict[str, Any], str]]:
        """Yield each item of a list of objects, and its text."""
        for _ in self._items("[", "]"):
            value, text = self.value()
            if not isinstance(value, dict):
                raise ValueError
            yield value, text

    def _items(self, first: str, last: str) -> Iterator[None]:
        """Yield once before each item of a list or an object. The caller then reads the item."""
        if not self._skip(first):
            raise ValueError
        if self._skip(last):
            return
        yield
        while self._skip(","):
            yield
        if not self._skip(last):
            raise ValueError

    def value(self) -> tuple[Any, str]:
        """Read the next value, and return it with its text."""
        self._next()
        while True:
            try:
                value, stop = self._json.raw_decode(self._text, self._position)
                if stop < len(self._text):  # otherwise, a number may continue in the next block
                    text = self._text[self._position : stop]
                    self._position = stop
                    return value, text
            except ValueError:  # the next block may contain the rest of the value
                pass
            if not self._read():
                raise ValueError

    @property
    def is_at_end(self) -> bool:
        """True if no more text follows."""
        return not self._next()

    def _skip(self, character: str) -> bool:
        """Skip whitespace and a character; return False if a different character follows."""
        if self._next() != character:
            return False
        self._position += 1
        return True

    def _next(self) -> str:
        """Skip whitespace, and return the next character; empty at the end of the text."""
        while True:
            found = _SPACE.match(self._text, self._position)
            self._position = self._position if found is None else found.end()
            if self._position < len(self._text):
                return self._text[self._position]
            if not self._read():
                return ""

    def _read(self) -> bool:
        """Read blocks until the unparsed text has doubled; return False at the end of the file.

        After each call, `value` parses the same value again from its first character. Doubling the
        text limits the number of calls for a large value.
        """
        left = len(self._text) - self._position
        added, count = list[str](), 0
        for block in self._blocks:
            added.append(self._decoder.decode(block))
            count += len(added[-1])
            if count > left:
                break
        self._text, self._position = self._text[self._position :] + "".join(added), 0
        return count > 0


def _cached_names(at: Location, shards: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Return the file names in a local cache of MosaicML Streaming; empty for other folders.

    A folder is a cache if the compressed file of its first shard does not exist.
    """
    zipped = shards[0].get("zip_data") if shards else None
    name = zipped.get("basename") if isinstance(zipped, dict) else None
    if not at.is_local or not isinstance(name, str) or (at / name).exists():
        return frozenset()
    return frozenset(entry.name for entry in at.list())


@dataclass
class Listed:
    """The shards that an index lists: one list per property. `add` adds the entry of one shard."""

    form: str = ""
    columns: Columns | None = None
    names: list[str] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    raw_sizes: list[int] = field(default_factory=list)
    hashes: dict[str, list[str]] = field(default_factory=dict)
    raw_hashes: dict[str, list[str]] = field(default_factory=dict)
    parts: list[tuple[File, ...]] = field(default_factory=list)
    compressions: set[str | None] = field(default_factory=set)
    last_config: tuple[Any, ...] = ()  # last parsed config; an equal config is not parsed again

    def add(self, shard: Mapping[str, Any], here: str, cached: frozenset[str]) -> None:
        """Check and add the entry of a shard.

        here    place of the entry in the index, for error messages
        cached  result of `_cached_names` for the folder of the index
        raises  FormatError if the entry is invalid, or inconsistent with earlier entries
        """
        _check_keys(shard, _SHARD_KEYS, here)
        form = shard.get("format")
        if form not in FAMILY:
            raise FormatError(
                f"unknown format {form!r:.60}; expected {', '.join(FAMILY)}", where=here
            )
        if self.form and form != self.form:
            raise FormatError(
                f"format {form} differs from {self.form} in shards[0]",
                where=here,
                hint="Read the merged datasets separately.",
            )
        self.form = form
        self._check_columns(shard, here)
        self._check_settings(shard, here)
        rows = check_count(shard.get("samples"), f"{here}.samples")
        main, raw = _pair(shard, "data", here, cached)
        companions, with_table = tuple[File, ...](), raw
        if form != "mds":
            meta, with_table = _pair(shard, "meta", here, cached)
            companions = (meta,)
        if with_table.size is not None and 8 + 4 * rows > with_table.size:
            raise FormatError(f"{with_table.size} bytes are too few for {rows} samples", where=here)
        self.parts.append(companions)
        i = len(self.names)
        self.names.append(main.name)
        self.rows.append(rows)
        self.sizes.append(main.size or 0)
        self.raw_sizes.append(-1 if main.raw_size is None else main.raw_size)
        _add(self.hashes, main.hashes, i, here)
        _add(self.raw_hashes, main.raw_hashes, i, here)

    def _check_columns(self, shard: Mapping[str, Any], here: str) -> None:
        config = tuple(
            shard.get(key)
            for key in ("columns", "column_names", "column_encodings", "column_sizes")
        )
        if config == self.last_config and self.columns is not None:
            return
        own = mds_config.columns_of(shard, self.form, here)
        if self.columns is not None and own != self.columns:
            raise FormatError("columns differ from the columns in shards[0]", where=here)
        self.columns, self.last_config = own, config

    def _check_settings(self, shard: Mapping[str, Any], here: str) -> None:
        version = shard.get("version", 2)
        if version != 2 or isinstance(version, bool):
            raise FormatError(f"expected version 2, got {version!r:.60}", where=here)
        compression = shard.get("compression")
        if compression:
            try:
                suffix_of(compression if isinstance(compression, str) else repr(compression))
            except UsageError as error:
                raise FormatError(error.message, where=here, hint=error.hint) from None
        self.compressions.add(compression or None)
        mds_config.size_limit(shard.get("size_limit"), f"{here}.size_limit")
        if self.form != "mds":
            mds_config.text_of(shard, "newline", here, empty=self.form == "json")
        if self.form == "xsv":
            mds_config.text_of(shard, "separator", here)

    def stream(self, at: Location, index: File) -> Stream:
        """Return a Stream of the shards that were added."""
        for table in (self.hashes, self.raw_hashes):
            for values in table.values():
                values += [""] * (len(self.names) - len(values))
        one = next(iter(self.compressions)) if len(self.compressions) == 1 else None
        return Stream(
            "data",
            at,
            self.form or "mds",
            self.names,
            self.columns or (),
            np.array(self.rows, np.int64),
            np.array(self.sizes, np.int64),
            self.hashes,
            np.array(self.raw_sizes, np.int64)
            if any(size >= 0 for size in self.raw_sizes)
            else None,
            self.raw_hashes,
            {"compression": one} if one else {},
            {INDEX: index},
            self.parts if any(self.parts) else (),
        )


def _add(table: dict[str, list[str]], hashes: Mapping[str, str], i: int, here: str) -> None:
    for name, value in hashes.items():
        if name not in table and len(table) == _MAX_HASH_KINDS:
            raise FormatError(
                f"too many hash types: the maximum is {_MAX_HASH_KINDS}, and {name!r:.60} is the "
                "next type",
                where=here,
            )
        values = table.setdefault(name, [])
        values += [""] * (i - len(values))
        values.append(value)


def _pair(
    shard: Mapping[str, Any], part: str, here: str, cached: frozenset[str]
) -> tuple[File, File]:
    """Return the stored file and the decompressed file of a shard.

    If a cache of MosaicML Streaming contains only the decompressed file, or if the shard is not
    compressed, both results are the decompressed file.
    """
    raw = _file(shard.get(f"raw_{part}"), f"{here}.raw_{part}")
    if shard.get(f"zip_{part}") is None:
        return raw, raw
    file = _file(shard[f"zip_{part}"], f"{here}.zip_{part}")
    if file.name in cached or raw.name not in cached:
        compression = str(shard.get("compression"))
        if (
            file.name == raw_name(file.name)
            or file.name.rpartition(".")[2] != compression.partition(":")[0]
        ):
            raise FormatError(
                f"name {file.name!r:.60} does not match compression {compression!r:.60}",
                where=f"{here}.zip_{part}",
            )
        return File(file.name, file.size, file.hashes, raw.size, raw.hashes), raw
    return raw, raw


def _check_keys(value: Mapping[str, Any], known: frozenset[str], where: object) -> None:
    """Raise FormatError if a known key is missing and an unknown key has a similar name."""
    if known <= value.keys():
        return
    import difflib

    unknown = [key for key in value if len(key) <= _MAX_SIMILAR_KEY_CHARS and key not in known]
    for key in sorted(known - value.keys()):
        if similar := difflib.get_close_matches(key, unknown, 1, _MIN_SIMILARITY):
            raise FormatError(f"missing key {key!r}; found {similar[0]!r}", where=where)


def _file(value: Any, where: str) -> File:
    if isinstance(value, dict):
        _check_keys(value, _FILE_KEYS, where)
    if not isinstance(value, dict) or not isinstance(value.get("basename"), str):
        raise FormatError("basename is missing", where=where)
    hashes = value.get("hashes")
    if not isinstance(hashes, dict) or not all(isinstance(text, str) for text in hashes.values()):
        raise FormatError("hashes are not strings", where=where)
    name, size = (
        check_name(value["basename"], where=where),
        check_count(value.get("bytes"), f"{where}.bytes"),
    )
    if size > _MAX_FILE_BYTES:
        raise FormatError(
            f"listed size is {size} bytes; the maximum is {_MAX_FILE_BYTES}", where=where
        )
    return File(name, size, hashes)


# -- writing


def write_index(
    at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings, form: str = "mds"
) -> dict[str, File]:
    """Write `index.json` with the same bytes as MosaicML Streaming; return name -> File."""
    config = mds_config.config(form, columns, settings)
    return write_entries(at, (mds_config.dumped(entry(config, chunk)) for chunk in chunks))


def entry(config: Mapping[str, Any], chunk: Chunk) -> dict[str, Any]:
    """Return the entry for a shard in `index.json`, with sorted keys."""
    out = {**config, "samples": chunk.rows}
    for part, file in zip(("data", "meta"), chunk.files, strict=False):
        stored = _file_entry(file.name, file.size, file.hashes, config["hashes"])
        is_zipped = config["compression"] is not None
        out[f"raw_{part}"] = (
            _file_entry(raw_name(file.name), file.raw_size, file.raw_hashes, config["hashes"])
            if is_zipped
            else stored
        )
        out[f"zip_{part}"] = stored if is_zipped else None
    return dict(sorted(out.items()))


def _file_entry(
    name: str, size: int | None, hashes: Mapping[str, str], names: Sequence[str]
) -> dict[str, Any]:
    return {"basename": name, "bytes": size, "hashes": {one: hashes[one] for one in names}}


def write_entries(
    at: Location, entries: Iterable[bytes], is_sorted: bool = True, replace: bool = True
) -> dict[str, File]:
    """Write `index.json` atomically; return name -> File.

    entries    the JSON text of each entry; an iterator is read while the file is written
    is_sorted  True: write the keys in the order of MosaicML's writer; False: in the order of its
               `merge_index`
    raises     UsageError if an index exists and `replace` is False
    """
    written = (at / INDEX).write(_pieces(entries, is_sorted), [DEFAULT], replace)
    return {INDEX: File(INDEX, written.size, written.hashes)}


def _pieces(entries: Iterable[bytes], is_sorted: bool) -> Iterator[bytes]:
    yield b'{"shards": [' if is_sorted else b'{"version": 2, "shards": ['
    remaining, separator = iter(entries), b""
    while batch := list(itertools.islice(remaining, _ENTRIES_PER_PIECE)):
        yield separator + b", ".join(batch)
        separator = b", "
    yield b'], "version": 2}' if is_sorted else b"]}"


# -- the files of a shard


def name_of(number: int, ending: str) -> str:
    """Return the file name of a shard, with at least five digits: `shard.00000.mds`."""
    return f"shard.{number:05d}.{ending}"


def raw_name(name: str) -> str:
    """Return a file name without its compression suffix."""
    head, _, last = name.rpartition(".")
    return head if last in compress.SUFFIXES else name


def present(chunk: Chunk) -> Chunk:
    """Return a chunk; replace its compressed file if only the decompressed file exists.

    Caches of MosaicML Streaming may contain only decompressed files. The returned chunk then refers
    to the decompressed file and has the listed size and hashes of this file.
    """
    if not chunk.at.is_local or not byte_ranges.suffix(chunk) or chunk.at.exists():
        return chunk
    plain = chunk.at.folder / raw_name(chunk.at.name)
    try:
        plain.size()
    except MissingError:
        return chunk
    if not chunk.files:
        return replace(chunk, at=plain)
    listed = chunk.files[0]
    return replace(
        chunk,
        at=plain,
        files=(File(raw_name(listed.name), listed.raw_size, listed.raw_hashes), *chunk.files[1:]),
    )
