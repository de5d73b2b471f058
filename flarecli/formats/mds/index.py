"""`index.json` of MosaicML Streaming: what it says is checked before anything uses it; written exactly as there.

    {"shards": [{…config, raw_data, raw_meta, samples, zip_data, zip_meta}, …], "version": 2}

A shard's config is what `mds_config` says. `raw_data` and the others are {basename, bytes, hashes}; `raw_meta` and `zip_meta` only stand
where a shard has a `.meta`, `zip_data` and `zip_meta` are null where shards are not compressed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from flarecli import compress
from flarecli.compress import suffix_of
from flarecli.errors import FlareError, FormatError, MissingError, Place, UsageError
from flarecli.formats import byte_ranges as spans
from flarecli.formats.mds import config as mds_config
from flarecli.formats.registry import INDEX
from flarecli.hashes import DEFAULT, Sums
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
    "store",
    "write_entries",
    "write_index",
]

FAMILY = ("mds", "json", "csv", "tsv", "xsv")  # formats that one kind of index lists
_INDEX_LIMIT = 1 << 30  # bytes: some 2 million shards
_COUNT_LIMIT = 1 << 63
_FILE_LIMIT = (
    1 << 40
)  # bytes: a shard ends at 4 GiB, and all that an index can list add up to an int64
_KINDS = 100  # of hashes: each is a column as long as the list of shards
_TOP, _FILE = frozenset(("shards", "version")), frozenset(("basename", "bytes", "hashes"))
_SHARD = frozenset(
    ("compression", "format", "hashes", "raw_data", "samples", "size_limit", "version", "zip_data")
)  # of any form
_LONG, _ALIKE = (
    60,
    0.8,
)  # characters of a key that may be meant, and how alike, of 1: `hashs` and `hashes` are, `size` and `size_limit` are not


def open_dataset(at: Location) -> Stream:
    """Read a folder's `index.json`; no shard is opened.

    raises  MissingError if there is none; FormatError if it is not one; UnsafeError if a name in it leaves the folder
    """
    where = at / INDEX
    shards, size = read_shards(where)
    there = _cached(at, shards)
    listed, shown = Listed(), str(where)
    for i, shard in enumerate(shards):
        try:
            listed.add(shard, f"shards[{i}]", there)
        except FlareError as error:
            raise error.changed(address=shown, item=error.address) from None
    return listed.stream(at, File(INDEX, size))


def _lost(where: Location) -> str:
    """Say what to do about an index that was cut short: the shards say what it said."""
    return (
        f"Fetch it again, or delete it and run `flare playlist {shell_quoted(str(where.folder))} --reindex`."
        if where.is_local
        else "Fetch it again."
    )


def read_shards(where: Location) -> tuple[list[dict[str, Any]], int]:
    """Read what an `index.json` lists, and its size in bytes. Raises FormatError if it is none."""
    size = where.size()
    if size > _INDEX_LIMIT:
        raise FormatError(f"{size} bytes, {_INDEX_LIMIT} is the most that is read", where=where)
    try:
        index = mds_config.parse(where.read(0, size), where) if size else None
    except FormatError as error:
        raise FormatError(error.message, where=error.place, hint=_lost(where)) from None
    if not size:
        raise FormatError("an empty file", where=where, hint=_lost(where))
    if isinstance(index, dict):
        _check_keys(index, _TOP, where)
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise FormatError("no list of shards in it", where=where)
    version = index.get("version")
    if version != 2 or isinstance(version, bool):
        raise FormatError(f"version {version!r:.60}, 2 is wanted", where=where)
    for i, shard in enumerate(index["shards"]):
        if not isinstance(shard, dict):
            raise FormatError("not an object", where=Place(where, item=f"shards[{i}]"))
    return index["shards"], size


def _cached(at: Location, shards: Sequence[Mapping[str, Any]]) -> frozenset[str]:
    """Name the files of a folder that holds the first shard no longer as it was compressed: the original's cache. Empty for any other."""
    zipped = shards[0].get("zip_data") if shards else None
    name = zipped.get("basename") if isinstance(zipped, dict) else None
    if not at.is_local or not isinstance(name, str) or (at / name).exists():
        return frozenset()
    return frozenset(entry.name for entry in at.list())


@dataclass
class Listed:
    """Shards as they are listed, kept as columns; `add` raises FormatError for one that is broken, or does not go with those before."""

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
    said: tuple[Any, ...] = ()  # of the shard before: most say the same

    def add(self, shard: Mapping[str, Any], here: str, there: frozenset[str]) -> None:
        """Check one and keep it; `there` are the files of a cache."""
        _check_keys(shard, _SHARD, here)
        form = shard.get("format")
        if form not in FAMILY:
            raise FormatError(f"format {form!r:.60} is none of {', '.join(FAMILY)}", where=here)
        if self.form and form != self.form:
            raise FormatError(
                f"format {form}, shards[0] has {self.form}",
                where=here,
                hint="Read the datasets that were merged one by one.",
            )
        self.form = form
        self._check_columns(shard, here)
        self._check_settings(shard, here)
        rows = _count(shard.get("samples"), f"{here}.samples")
        main, raw = _pair(shard, "data", here, there)
        if form == "mds":
            self._add_part((), 8 + 4 * rows, raw, rows, here)
        else:
            meta, raw_meta = _pair(shard, "meta", here, there)
            self._add_part((meta,), 8 + 4 * rows, raw_meta, rows, here)
        i = len(self.names)
        self.names.append(main.name)
        self.rows.append(rows)
        self.sizes.append(main.size or 0)
        self.raw_sizes.append(-1 if main.raw_size is None else main.raw_size)
        _add(self.hashes, main.hashes, i, here)
        _add(self.raw_hashes, main.raw_hashes, i, here)

    def _check_columns(self, shard: Mapping[str, Any], here: str) -> None:
        said = tuple(
            shard.get(key)
            for key in ("columns", "column_names", "column_encodings", "column_sizes")
        )
        if said == self.said and self.columns is not None:
            return
        own = mds_config.columns_of(shard, self.form, here)
        if self.columns is not None and own != self.columns:
            raise FormatError("other columns than shards[0]", where=here)
        self.columns, self.said = own, said

    def _check_settings(self, shard: Mapping[str, Any], here: str) -> None:
        version = shard.get("version", 2)
        if version != 2 or isinstance(version, bool):
            raise FormatError(f"version {version!r:.60}, 2 is wanted", where=here)
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

    def _add_part(
        self, part: tuple[File, ...], table: int, raw: File, rows: int, here: str
    ) -> None:
        if raw.size is not None and table > raw.size:
            raise FormatError(f"{raw.size} bytes cannot hold {rows} samples", where=here)
        self.parts.append(part)

    def stream(self, at: Location, index: File) -> Stream:
        """Give all of them."""
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
        if name not in table and len(table) == _KINDS:
            raise FormatError(
                f"hash {name!r:.60} is one kind more than the {_KINDS} that are read", where=here
            )
        values = table.setdefault(name, [])
        values += [""] * (i - len(values))
        values.append(value)


def _pair(
    shard: Mapping[str, Any], what: str, here: str, there: frozenset[str]
) -> tuple[File, File]:
    """Give a file as it is stored, with what it is when decompressed, and that alone. Of a cache, the one that is there."""
    raw = _file(shard.get(f"raw_{what}"), f"{here}.raw_{what}")
    if shard.get(f"zip_{what}") is None:
        return raw, raw
    file = _file(shard[f"zip_{what}"], f"{here}.zip_{what}")
    if file.name in there or raw.name not in there:
        compression = str(shard.get("compression"))
        if (
            file.name == raw_name(file.name)
            or file.name.rpartition(".")[2] != compression.partition(":")[0]
        ):
            raise FormatError(
                f"the name {file.name!r:.60} is not of compression {compression!r:.60}",
                where=f"{here}.zip_{what}",
            )
        return File(file.name, file.size, file.hashes, raw.size, raw.hashes), raw
    return raw, raw


def _count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _COUNT_LIMIT:
        raise FormatError(f"{value!r:.60} is not a count", where=what)
    return value


def _check_keys(value: Mapping[str, Any], known: frozenset[str], where: object) -> None:
    """Refuse a key that is missing while another is there that looks like it; what others add is theirs."""
    if known <= value.keys():
        return
    import difflib

    more = [key for key in value if len(key) <= _LONG and key not in known]
    for key in sorted(known - value.keys()):
        if alike := difflib.get_close_matches(key, more, 1, _ALIKE):
            raise FormatError(f"no {key} in it, but {alike[0]!r}", where=where)


def _file(value: Any, what: str) -> File:
    if isinstance(value, dict):
        _check_keys(value, _FILE, what)
    if not isinstance(value, dict) or not isinstance(value.get("basename"), str):
        raise FormatError("no basename in it", where=what)
    hashes = value.get("hashes")
    if not isinstance(hashes, dict) or not all(isinstance(text, str) for text in hashes.values()):
        raise FormatError("its hashes are not texts", where=what)
    name, size = (
        check_name(value["basename"], where=what),
        _count(value.get("bytes"), f"{what}.bytes"),
    )
    if size > _FILE_LIMIT:
        raise FormatError(
            f"{size} bytes are listed, {_FILE_LIMIT} is the most that is read", where=what
        )
    return File(name, size, hashes)


# -- writing


def write_index(
    at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings, form: str = "mds"
) -> dict[str, File]:
    """Write `index.json` with exactly the keys and the text of the original writer; give name -> File of what was written."""
    config = mds_config.config(form, columns, settings)
    return write_entries(at, {"shards": [entry(config, chunk) for chunk in chunks], "version": 2})


def entry(config: Mapping[str, Any], chunk: Chunk) -> dict[str, Any]:
    """Give what an index says of a shard, in the order of the keys."""
    out = {**config, "samples": chunk.rows}
    for what, file in zip(("data", "meta"), chunk.files, strict=False):
        stored = _said(file.name, file.size, file.hashes, config["hashes"])
        is_zipped = config["compression"] is not None
        out[f"raw_{what}"] = (
            _said(raw_name(file.name), file.raw_size, file.raw_hashes, config["hashes"])
            if is_zipped
            else stored
        )
        out[f"zip_{what}"] = stored if is_zipped else None
    return dict(sorted(out.items()))


def _said(
    name: str, size: int | None, hashes: Mapping[str, str], wanted: Sequence[str]
) -> dict[str, Any]:
    return {"basename": name, "bytes": size, "hashes": {one: hashes[one] for one in wanted}}


def write_entries(
    at: Location, index: Mapping[str, Any], is_sorted: bool = True, replace: bool = True
) -> dict[str, File]:
    """Write `index.json`, whole or not at all; give name -> File of what was written. Raises UsageError if one is there that is not replaced."""
    written = (at / INDEX).write([mds_config.dumped(index, is_sorted)], [DEFAULT], replace)
    return {INDEX: File(INDEX, written.size, written.hashes)}


# -- the files of a shard


def name_of(number: int, ending: str) -> str:
    """Name the shard at a position as the original does, `shard.00000.mds`: five digits, more past 99,999."""
    return f"shard.{number:05d}.{ending}"


def raw_name(name: str) -> str:
    """Give the name that a file has when it is not compressed."""
    head, _, last = name.rpartition(".")
    return head if last in compress.SUFFIXES else name


def store(
    at: Location, name: str, parts: Iterable[Any], size: int, settings: Settings
) -> tuple[Location, File]:
    """Write a file of `size` bytes below a folder, compressed as the settings say: then its name has the suffix."""
    wanted = {DEFAULT, *settings.hashes}
    if settings.compression is None:
        written = (at / name).write(parts, wanted)
        return at / name, File(name, written.size, written.hashes)
    raw, name = Sums(wanted), f"{name}.{compress.suffix_of(settings.compression)}"
    written = (at / name).write(
        compress.compressed(settings.compression, _summed(parts, raw), size), wanted
    )
    return at / name, File(name, written.size, written.hashes, raw.size, raw.hex())


def _summed(parts: Iterable[Any], sums: Sums) -> Iterator[Any]:
    for part in parts:
        sums.update(part)
        yield part


def present(chunk: Chunk) -> Chunk:
    """Give a chunk as it lies there: where a local compressed file is gone and the decompressed one is there, that one.

    The original leaves its caches so. What is listed of the decompressed bytes then holds for the file.
    """
    if not chunk.at.is_local or not spans.suffix(chunk) or chunk.at.exists():
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
