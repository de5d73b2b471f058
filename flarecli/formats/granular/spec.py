"""Granular folders: `spec.json`, and the files of each shard.

    spec.json            a single dataset: KEY.bag and KEY.idx for each column, or refs.bag and
                         KEY.bag (0.21 and older)
    000000/spec.json  …  shards, each a separate dataset

    {"bar": "utf8", "seq": "utf8[]"}     spec.json: column -> type, sorted by key, as json.dumps
    writes it, without a newline

The main file of a shard is its spec.json; the .bag and .idx files are its companions. Keys are
checked before use, because they are part of file names such as `KEY.bag`. `TYPE[]` is a list, but
only in datasets with a refs.bag. flare copies values of unsupported types unchanged, as bytes.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping

import numpy as np

from flarecli.encodings import column
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UnsafeError,
    UsageError,
)
from flarecli.expansion import check_columns
from flarecli.formats.base import Format, check_names
from flarecli.formats.shard_files import parse_json
from flarecli.model import Chunk, Column, Columns, File, Stream
from flarecli.names import check_name
from flarecli.storage import Location

__all__ = [
    "REFS",
    "SPEC",
    "agreed",
    "arranged",
    "companion_files",
    "columns_of",
    "companions",
    "has_refs",
    "index_of",
    "open_dataset",
    "parse",
    "shard_folder",
    "spec_of",
    "text",
]

SPEC = "spec.json"
REFS = "refs.bag"
_MAX_PROBED_SHARDS = 1 << 17  # limited, because a server may return a spec.json for every name
MAX_SPEC_BYTES = 1 << 24  # about 500,000 columns
_ENCODINGS = {  # type in spec.json -> encoding
    "bytes": "bytes",
    "utf8": "str",
    "i64": "int",
    "u64": "uint64",
    "int": "varint",
    "msgpack": "msgpack",
    "array": "array",
    "tree": "tree",
    "jpg": "jpeg",
    "png": "png",
    "mp4": "mp4",
    "webm": "webm",
}
_WORDS = {
    **{encoding: word for word, encoding in _ENCODINGS.items()},
    "int64": "i64",
    "msgpack_float": "msgpack",
    **dict.fromkeys(("json", "str_int", "str_float", "str_decimal"), "utf8"),
}


def parse(data: bytes, where: object) -> dict[str, str]:
    """Parse a spec.json; return column -> type, in the order of the file.

    raises  FormatError if the spec is not an object of strings, is empty, or has a duplicate key;
            UnsafeError for a key that is not a valid file name
    """
    value = parse_json(data, where)
    if not isinstance(value, dict) or not all(isinstance(kind, str) for kind in value.values()):
        raise FormatError("expected an object that maps column names to types", where=where)
    if not value:
        raise FormatError("contains no columns", where=where)
    check_columns(len(value), where)
    for key in value:
        _check_key(key, where)
    return value


def _check_key(key: str, where: object = "") -> None:
    check_name(f"{key}.bag" if key else "", where=where)
    if "/" in key or key.startswith(".") or any("\ud800" <= sign <= "\udfff" for sign in key):
        raise UnsafeError(
            f"column {key!r:.60} is not a valid file name",
            where=where,
            hint="Rename the column; no file with this name was read or written.",
            column=key,
        )


def spec_of(spec: dict[str, str], lists: bool) -> Columns:
    """Return the columns of a spec.

    lists  True if `TYPE[]` is a list; otherwise `TYPE[]` is an unsupported type
    """
    return tuple(column(name, _encoding(kind, lists)) for name, kind in spec.items())


def _encoding(kind: str, lists: bool) -> str:
    if lists and kind.endswith("[]"):
        return f"{_ENCODINGS.get(kind.rstrip('[]'), 'bytes')}[]"
    return _ENCODINGS.get(kind, "bytes")


def agreed(own: Columns, listed: Columns, where: object) -> Columns:
    """Return the listed columns if they match the columns of a spec.

    own     columns of the spec
    listed  columns in the playlist or, without a playlist, in the spec.json of the first shard. The
            listed encodings may be more precise than the types in a spec
    raises  IntegrityError if the listed columns do not match the spec
    """
    if len(own) != len(listed) or not all(map(_fits, own, listed)):
        raise IntegrityError(
            "the columns differ from the columns in the playlist or in the first shard",
            where=where,
            hint="Check whether the playlist or spec.json was changed.",
        )
    return listed


def _fits(own: Column, listed: Column) -> bool:
    one, other = own.encoding.removesuffix("[]"), listed.encoding.removesuffix("[]")
    # A column of type `bytes` may be listed with any encoding.
    same = one in (other, "bytes") or _word(one) == _word(other)
    return (
        own.name == listed.name
        and own.encoding.endswith("[]") == listed.encoding.endswith("[]")
        and same
    )


def _word(encoding: str) -> str:
    """Return the type in spec.json for an encoding; `bytes` if no other type is suitable."""
    return f"{_word(encoding[:-2])}[]" if encoding.endswith("[]") else _WORDS.get(encoding, "bytes")


def text(columns: Columns) -> bytes:
    """Return the bytes of a spec.json for these columns, as granular writes them."""
    return json.dumps(
        {one.name: _word(one.encoding) for one in sorted(columns, key=lambda one: one.name)}
    ).encode()


def arranged(columns: Iterable[Column], form: Format, reserved: str = "") -> Columns:
    """Return columns as the format stores them, sorted by the code points of their names.

    reserved  a name that no column may have
    raises    UsageError if there are no columns, for a duplicate name, or for a name that is not a
              valid file name
    """
    out = tuple(sorted((form.stored_column(one) for one in columns), key=lambda one: one.name))
    check_names(out, "a dataset needs at least one column")
    for one in out:
        try:
            _check_key(one.name)
        except FlareError as error:
            # If an error has a column, its message already contains the column's name.
            prefix = "" if error.column else f"column {one.name!r}: "
            raise UsageError(
                f"{prefix}{error.message};"
                " granular stores each column in a file named after the column",
                column=one.name,
            ) from None
        if one.name == reserved:
            raise UsageError(
                f"the column name {one.name!r} is reserved",
                hint="Use -f granular, or rename the column.",
                column=one.name,
            )
    return out


# -- folders


def shard_folder(number: int) -> str:
    """Return the folder name of a shard: its number with at least six digits."""
    return f"{number:06d}"


def columns_of(at: Location, size: int | None = None) -> dict[str, str]:
    """Read a spec.json; return column -> type. Raises FormatError if it is invalid or too large."""
    size = at.size() if size is None else size
    if size > MAX_SPEC_BYTES:
        raise FormatError(f"file is {size} bytes; the maximum is {MAX_SPEC_BYTES}", where=at)
    return parse(at.read(0, size), at)


def companions(spec: Iterable[str], refs: bool) -> list[str]:
    """Return the names of a shard's companion files, in the order used in playlists."""
    if refs:
        return [REFS, *(f"{name}.bag" for name in spec)]
    return [f"{name}{suffix}" for name in spec for suffix in (".bag", ".idx")]


def index_of(bag: str) -> str:
    """Return the name of a bag's index: `x.idx` for `x.bag`."""
    return f"{bag.removesuffix('.bag')}.idx"


def has_refs(spec: Mapping[str, str], names: Iterable[str]) -> bool:
    """Return whether the files include a refs.bag with record numbers (0.21 and older)."""
    return "refs" not in spec and REFS in names


def open_dataset(at: Location) -> Stream:
    """Read the spec of a folder and list the files of each shard. No table is read.

    raises  MissingError if the folder is not a dataset; FormatError for a gap in the shard numbers,
            or for too many shards
    """
    sizes = {entry.name: entry.size for entry in at.list()} if at.is_local else None
    if (at / SPEC).exists():
        return _stream(at, [""], sizes)
    if sizes is None:
        return _stream(at, [f"{name}/" for name in _probed(at)], None)
    top = {name.partition("/")[0] for name in sizes if "/" in name}
    numbers = sorted(
        int(name)
        for name in top
        if name.isascii() and name.isdigit() and name == shard_folder(int(name))
    )
    for position, number in enumerate(numbers):
        if position != number:
            raise FormatError(
                f"shard {shard_folder(position)} is missing, but {shard_folder(number)} exists",
                where=at,
                hint="Fetch the missing shard, or pack the dataset again.",
            )
    if numbers:
        return _stream(at, [f"{shard_folder(number)}/" for number in numbers], sizes)
    return _bags(at, sizes)


def _probed(at: Location) -> list[str]:
    """Return the names of the shard folders up to the first gap, without listing the folder."""
    if not (at / shard_folder(0) / SPEC).exists():
        raise MissingError(
            f"found neither {SPEC} nor {shard_folder(0)}/{SPEC}",
            where=at,
            hint="Specify a playlist or a .bag file.",
        )
    columns_of(at / shard_folder(0) / SPEC)
    names = list(
        itertools.takewhile(
            lambda name: (at / name / SPEC).exists(),
            map(shard_folder, range(_MAX_PROBED_SHARDS + 1)),
        )
    )
    if len(names) > _MAX_PROBED_SHARDS:
        raise FormatError(
            f"more than {_MAX_PROBED_SHARDS} shards in a folder that cannot be listed",
            where=at,
            hint="Specify a playlist.",
        )
    return names


def _stream(at: Location, folders: list[str], sizes: Mapping[str, int] | None) -> Stream:
    spec = columns_of(at / f"{folders[0]}{SPEC}")
    refs = has_refs(spec, [REFS] if (at / f"{folders[0]}{REFS}").exists() else [])
    names = companions(spec, refs)
    parts = [tuple(_file(f"{folder}{name}", sizes, at) for name in names) for folder in folders]
    mains = [_file(f"{folder}{SPEC}", sizes, at) for folder in folders]
    return Stream(
        "data",
        at,
        "granular-refs" if refs else "granular",
        [one.name for one in mains],
        spec_of(spec, refs),
        None if refs else np.array([_rows(one) for one in parts], np.int64),
        np.array([-1 if one.size is None else one.size for one in mains], np.int64),
        parts=parts,
    )


def _file(name: str, sizes: Mapping[str, int] | None, at: Location) -> File:
    if sizes is None:
        return File(name)
    if name not in sizes:
        raise MissingError(
            "no such file or folder",
            where=at / name,
            hint="Fetch the file, or pack the dataset again.",
        )
    return File(name, sizes[name] if sizes[name] >= 0 else None)


def _rows(parts: tuple[File, ...]) -> int:
    """Return the row count of a shard from the size of an index; -1 if the size is unknown."""
    return -1 if parts[1].size is None else parts[1].size // 8


def _bags(at: Location, sizes: Mapping[str, int]) -> Stream:
    """Return a Stream for a folder of bags without a spec.json; each bag is a shard."""
    bags = [name for name in sizes if name.endswith(".bag") and "/" not in name]
    if not bags:
        raise MissingError(
            f"found neither {SPEC} nor {shard_folder(0)}/{SPEC}",
            where=at,
            hint="Specify a playlist or a .bag file.",
        )
    parts = [
        tuple(_file(name, sizes, at) for name in (index_of(bag),) if name in sizes) for bag in bags
    ]
    return Stream(
        "data",
        at,
        "granular",
        bags,
        sizes=np.array([sizes[name] for name in bags], np.int64),
        parts=parts,
    )


def companion_files(
    chunk: Chunk, names: Iterable[str]
) -> tuple[tuple[File, ...], tuple[Location, ...]]:
    """Return a File and a Location for each companion of a shard whose companions are not listed.

    A companion is any file of the shard except its main file.

    names  file names of the companions
    """
    locations = tuple(chunk.at.folder / name for name in names)
    folder, slash, _ = chunk.files[0].name.rpartition("/")
    return tuple(File(f"{folder}{slash}{one.name}") for one in locations), locations
