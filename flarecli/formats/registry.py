"""Format registry: the built-in formats, and formats that other packages register.

A format's class is imported at the first use of the format's name or suffix. Entry points are read
only if no built-in format matches. A package registers a format in its `pyproject.toml`:

    [project.entry-points."flarecli.formats"]
    toy = "my_package.toy:Toy"
"""

from __future__ import annotations

import contextlib
import importlib
import re
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING, NamedTuple

from flarecli.errors import FlareError, MissingLibraryError, UsageError
from flarecli.formats.base import Format
from flarecli.suggest import choose

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from flarecli.model import Column, Columns
    from flarecli.storage import Location

__all__ = [
    "DEFAULT",
    "FALLBACK",
    "HEAD_BYTES",
    "INDEX",
    "SHARD_INDEX",
    "INDEX_FILES",
    "INDEX_INPUTS",
    "INPUTS",
    "LIST_INPUT",
    "NOT_TABLES",
    "STREAMED",
    "TEXT_INPUTS",
    "all_names",
    "arranged",
    "facts",
    "find",
    "first_index",
    "is_known",
    "looks_like_table",
    "names",
    "of_folder",
    "of_suffix",
    "refuse_existing",
    "sniff",
    "with_option",
]

DEFAULT = "mds"  # the format that `pack` writes by default
FALLBACK = "files"  # the format for files that no other format recognizes
STREAMED = "webdataset"  # the format of tar files; it is also read from standard input
LIST_INPUT = "lines"  # value of --input for a list of addresses
# value of --input -> format of the source; None for a list of addresses
INPUTS = {
    "arrow": "arrow",
    "parquet": "parquet",
    **dict.fromkeys(("jsonl", "csv", "tsv"), "table"),
    LIST_INPUT: None,
    "tar": STREAMED,
    "files": FALLBACK,
}
# values of --input that `ingest.open_index` supports: tables and lists of addresses
INDEX_INPUTS = tuple(kind for kind, one in INPUTS.items() if one not in (STREAMED, FALLBACK))
# values of --input for text tables
TEXT_INPUTS = tuple(kind for kind, one in INPUTS.items() if one == "table")
GROUP = "flarecli.formats"
MAX_ENDINGS = 1024  # maximum number of file name endings whose formats are cached
MAX_NAMED = 2  # maximum number of formats in a hint
HEAD_BYTES = 1 << 16  # bytes passed to `sniff` if no format recognizes the file's name
INDEX = "index.json"
SHARD_INDEX = "shardindex.json"  # the list of tar files that the tool `widsindex` writes
# Index file -> the format that reads its folder. Index files are searched in this order.
INDEX_FILES = {
    INDEX: "mds",
    "spec.json": "granular",
    "000000/spec.json": "granular",
}


# Matches the names of index files and MosaicML shards that have the suffix of a table. Names are
# tested before the table readers are imported, because the import takes 0.1 s.
NOT_TABLES = re.compile(
    r"(?:.*/)?(?:(?:index|spec|shardindex|widsindex)\.json|.*\.idx\.json|"
    r"shard\.\d{5,}\.(?:json|csv|tsv)(?:\.\w+)?)"
)


def first_index(index: str) -> str:
    """Return the name for the backup of an original index, such as `index.000001.json`."""
    name, dot, suffix = index.rpartition(".")
    return f"{name}.000001{dot}{suffix}"


def refuse_existing(index: Location) -> None:
    """Raise UsageError if an index exists."""
    if index.exists():
        raise UsageError(
            "index already exists",
            where=index,
            hint="Delete the index first if `flare verify` reports it as damaged.",
        )


class _Line(NamedTuple):
    """A built-in format. Help and shell completion read `writable` without importing the class."""

    name: str
    suffixes: tuple[str, ...]  # each starts with a dot, and every shard name contains one of them
    target: str  # module:Class
    writable: bool = True
    is_table: bool = False  # equals `Format.typed`


_LINES = {
    line.name: line
    for line in (
        _Line("mds", (".mds",), "flarecli.formats.mds.format:MDS"),
        _Line("json", (".json",), "flarecli.formats.lines.json:JSONShards"),
        _Line("csv", (".csv",), "flarecli.formats.lines.xsv:CSV"),
        _Line("tsv", (".tsv",), "flarecli.formats.lines.xsv:TSV"),
        _Line("xsv", (".xsv",), "flarecli.formats.lines.xsv:XSV"),
        _Line("ffrecord", (".ffr",), "flarecli.formats.ffrecord.format:FFRecord"),
        _Line("granular", (".bag",), "flarecli.formats.granular.format:Granular"),
        _Line("granular-refs", (), "flarecli.formats.granular.format:GranularRefs"),
        _Line(
            "webdataset", (".tar", ".tgz", ".tbz2"), "flarecli.formats.webdataset.format:WebDataset"
        ),
        _Line("tfrecord", (".tfrecord",), "flarecli.formats.tfrecord:TFRecord"),
        _Line(
            "parquet",
            (".parquet",),
            "flarecli.formats.tables.format:ParquetFormat",
            is_table=True,
        ),
        _Line(
            "arrow",
            (".arrow", ".feather"),
            "flarecli.formats.tables.format:ArrowFormat",
            writable=False,
            is_table=True,
        ),
        _Line(
            "table",
            (".csv", ".tsv", ".tab", ".psv", ".json", ".ndjson"),
            "flarecli.formats.tables.format:TextTable",
            writable=False,
            is_table=True,
        ),
        _Line("files", (), "flarecli.formats.files:PlainFiles", writable=False),
    )
}
_OTHER_WORDS = {
    "tar": "webdataset",
    "wds": "webdataset",
    "ffr": "ffrecord",
    "bag": "granular",
    "streaming": "mds",
    "jsonl": "json",
}


def names(writable: bool = False) -> tuple[str, ...]:
    """Return the names of the built-in formats; with `writable`, only the writable formats."""
    return tuple(name for name, line in _LINES.items() if line.writable or not writable)


def all_names(writable: bool = False) -> tuple[str, ...]:
    """Return the names of all formats, including third-party formats."""
    return (*names(writable), *_entry_points())


@cache
def _entry_points() -> dict[str, EntryPoint]:
    """Return the entry points of third-party formats; ignore entry points with built-in names."""
    from importlib.metadata import entry_points  # slow to import

    return {one.name: one for one in entry_points(group=GROUP) if one.name not in _LINES}


def is_known(name: str | None) -> bool:
    """Return whether a format with this name exists."""
    return name is not None and (name in _LINES or name in _entry_points())


@cache
def find(name: str) -> Format:
    """Return a format by name.

    raises  UsageError for an unknown name; MissingLibraryError if the format cannot be imported
    """
    if name in _LINES:
        module, _, target = _LINES[name].target.partition(":")
        found: type[Format] = vars(importlib.import_module(module))[target]
        return found()
    if name not in _entry_points():
        raise UsageError(
            f"unknown format {name!r}", hint=choose(name, all_names(), synonyms=_OTHER_WORDS)
        )
    point = _entry_points()[name]
    try:
        found = point.load()
    except (ImportError, AttributeError) as error:
        raise MissingLibraryError(
            f"format {name!r} cannot be loaded from {point.value}: {error}",
            hint="Reinstall the package that provides the format.",
        ) from error
    if not (isinstance(found, type) and issubclass(found, Format) and found.name == name):
        raise UsageError(f"{point.value} is not a subclass of Format with the name {name!r}")
    return found()


def arranged(format: Format, columns: Iterable[Column]) -> Columns:
    """Return columns as a format stores them; see `Format.arrange`.

    raises  UsageError if the format cannot store the columns; the hint names formats that can
            store them
    """
    listed = tuple(columns)
    try:
        return format.arrange(listed)
    except UsageError as error:
        able = [] if "-f " in error.hint else _formats_for(listed)
        if not able:
            raise
        use = f"Use -f {' or -f '.join(able)}"
        or_else = f", or {error.hint[0].lower()}{error.hint[1:]}" if error.hint else "."
        raise error.changed(hint=use + or_else) from None


def _formats_for(columns: Columns) -> list[str]:
    """Return the names of up to MAX_NAMED formats that can store the columns."""
    out: list[str] = []
    for name in names(writable=True):
        with contextlib.suppress(UsageError):
            find(name).arrange(columns)
            out.append(name)
        if len(out) == MAX_NAMED:
            break
    return out


def facts(name: str | None) -> Format:
    """Return a format by name; for None or an unknown name, one with the default attributes."""
    return find(name) if name and is_known(name) else _UNKNOWN


class _Unknown(Format):
    name = ""


_UNKNOWN = _Unknown()


def of_suffix(name: str, tables: bool = True) -> str | None:
    """Return the name of the built-in format that recognizes a file name; None if none does.

    tables  whether to include table formats; False for a folder of another format that may also
            contain tables
    """
    lower = name.lower()
    lines = _lines_with_suffix(lower.partition(".")[2])
    if not lines:  # most names in a folder of files have no known suffix
        return None
    is_table = tables and not NOT_TABLES.fullmatch(lower)
    return next(
        (
            line.name
            for line in lines
            if (is_table or not line.is_table) and find(line.name).sniff(name, b"")
        ),
        None,
    )


def looks_like_table(name: str) -> bool:
    """Return whether a name has the suffix of a table, without importing the table readers."""
    lower = name.lower()
    lines = _lines_with_suffix(lower.partition(".")[2])
    return bool(lines) and any(line.is_table for line in lines) and not NOT_TABLES.fullmatch(lower)


@lru_cache(MAX_ENDINGS)
def _lines_with_suffix(ending: str) -> tuple[_Line, ...]:
    """Return the formats whose suffix occurs in the ending of a file name.

    The ending starts after the first dot. Results are cached, because a folder usually has few
    different endings.
    """
    return tuple(
        line for line in _LINES.values() if any(suffix in f".{ending}" for suffix in line.suffixes)
    )


def sniff(name: str, head: bytes = b"") -> str | None:
    """Return the name of the format that recognizes a file; None if no format does.

    The first bytes are used only if no format recognizes the name.

    head  the first HEAD_BYTES of the file; b"" to check only the name
    """
    found = of_suffix(name)
    if found is None:
        found = next((one.name for one in _third_party() if one.sniff(name, b"")), None)
    if found is None and head:
        found = next(
            (one.name for one in (*map(find, _LINES), *_third_party()) if one.sniff(name, head)),
            None,
        )
    return found


def of_folder(files: Iterable[str]) -> Format | None:
    """Return the third-party format that can read a folder with these files; None if none can."""
    names = list(files)
    direct = [name for name in names if "/" not in name]
    return next(
        (
            one
            for one in _third_party()
            if not set(one.index_files).isdisjoint(names)
            or (one.is_listed and any(one.sniff(name, b"") for name in direct))
        ),
        None,
    )


def _third_party() -> Iterator[Format]:
    """Yield the third-party formats that can be loaded; `find` raises an error for others."""
    for name in _entry_points():
        with contextlib.suppress(FlareError):
            yield find(name)


def with_option(option: str) -> list[str]:
    """Return the names of the formats that support a pack option."""
    return [name for name in names() if option in find(name).options]
