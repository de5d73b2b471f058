"""Granular folders: `spec.json`, and the files of each shard.

    spec.json            a single dataset: KEY.bag and KEY.idx for each column, or refs.bag and KEY.bag (0.21 and older)
    000000/spec.json  …  shards, each a dataset of its own

    {"bar": "utf8", "seq": "utf8[]"}     spec.json: column -> type, sorted by key, as json.dumps writes it, no newline

The main file of a shard is its spec.json; the .bag and .idx files are its companions.
A key is part of a file name, `KEY.bag`, so it is checked before it is used. `TYPE[]` is a list, and only in
datasets with a refs.bag; the bytes of a type that is not one of the library's own are copied unchanged.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Mapping
from typing import Any

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
from flarecli.formats.base import Format
from flarecli.model import Chunk, Column, Columns, File, Stream
from flarecli.names import check_name
from flarecli.storage import Location

__all__ = [
    "LIMIT",
    "REFS",
    "SPEC",
    "agreed",
    "arranged",
    "beside",
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
_PROBED = 1 << 17  # shards looked for one by one: a server may have an answer for every name
LIMIT = 1 << 24  # bytes: some 500,000 columns
_ENCODINGS = {  # a type's name there -> here
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
    """Read a spec: column -> type, in its own order.

    raises  FormatError if it is not an object of texts, with one key twice, or without any; UnsafeError for a key that is no file's name
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=where) from None
    except RecursionError:
        raise FormatError("JSON nested too deep", where=where) from None
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}", where=where) from None
    if not isinstance(value, dict) or not all(isinstance(kind, str) for kind in value.values()):
        raise FormatError("not an object of column names and types", where=where)
    if not value:
        raise FormatError("names no columns", where=where)
    check_columns(len(value), where)
    for key in value:
        _check_key(key, where)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"two keys are named {name!r:.60}")
    return out


def _check_key(key: str, where: object = "") -> None:
    check_name(f"{key}.bag" if key else "", where=where)
    if "/" in key or key.startswith(".") or any("\ud800" <= sign <= "\udfff" for sign in key):
        raise UnsafeError(
            f"the column {key!r:.60} cannot name a file here",
            where=where,
            hint="Rename it; nothing was read or written there.",
            column=key,
        )


def spec_of(spec: dict[str, str], lists: bool) -> Columns:
    """Give the columns that a spec names. `lists`: `TYPE[]` is a list here, not a type of that name."""
    return tuple(column(name, _encoding(kind, lists)) for name, kind in spec.items())


def _encoding(kind: str, lists: bool) -> str:
    if lists and kind.endswith("[]"):
        return f"{_ENCODINGS.get(kind.rstrip('[]'), 'bytes')}[]"
    return _ENCODINGS.get(kind, "bytes")


def agreed(own: Columns, listed: Columns, where: object) -> Columns:
    """Give the listed columns, which know more than a spec can say, if they are stored as it says.

    raises  IntegrityError if they are others
    """
    if len(own) != len(listed) or not all(map(_fits, own, listed)):
        raise IntegrityError(
            "its columns are others than the listed ones",
            where=where,
            hint="Find out which of the two was changed.",
        )
    return listed


def _fits(own: Column, listed: Column) -> bool:
    one, other = own.encoding.removesuffix("[]"), listed.encoding.removesuffix("[]")
    same = one in (other, "bytes") or _word(one) == _word(
        other
    )  # `bytes` says nothing: any encoding may be in them
    return (
        own.name == listed.name
        and own.encoding.endswith("[]") == listed.encoding.endswith("[]")
        and same
    )


def _word(encoding: str) -> str:
    """Name the type that stores the bytes of an encoding as they are: `bytes`, where no other does."""
    return f"{_word(encoding[:-2])}[]" if encoding.endswith("[]") else _WORDS.get(encoding, "bytes")


def text(columns: Columns) -> bytes:
    """Write a spec, exactly as the original does."""
    return json.dumps(
        {one.name: _word(one.encoding) for one in sorted(columns, key=lambda one: one.name)}
    ).encode()


def arranged(columns: Iterable[Column], form: Format, reserved: str = "") -> Columns:
    """Sort columns by name, by code point, each with an encoding that the format holds.

    reserved  a name that no column may have
    raises    UsageError for two of one name, none at all, or a name that cannot name a file
    """
    out = tuple(sorted((form.held(one) for one in columns), key=lambda one: one.name))
    if not out:
        raise UsageError(
            "a dataset without columns cannot be read back",
            hint="Name the columns to pack with -c.",
        )
    for i, one in enumerate(out):
        if i and out[i - 1].name == one.name:
            raise UsageError(f"two columns are named {one.name!r}")
        try:
            _check_key(one.name)
        except FlareError as error:
            raise UsageError(
                f"column {one.name!r}: {error.message}, and granular keeps each column in a file of its name",
                column=one.name,
            ) from None
        if one.name == reserved:
            raise UsageError(
                f"column {one.name!r} has the name of the format's own file",
                hint="Choose -f granular, or rename the column.",
                column=one.name,
            )
    return out


# -- folders


def shard_folder(number: int) -> str:
    """Name the folder of a shard, as the original does: six digits, more past 999,999."""
    return f"{number:06d}"


def columns_of(at: Location, size: int | None = None) -> dict[str, str]:
    """Read a spec.json. Raises FormatError if it is larger than any."""
    size = at.size() if size is None else size
    if size > LIMIT:
        raise FormatError(f"{size} bytes, {LIMIT} is the most that is read", where=at)
    return parse(at.read(0, size), at)


def companions(spec: Iterable[str], refs: bool) -> list[str]:
    """Name the files that belong to the columns of a spec, in the order that they are listed in."""
    if refs:
        return [REFS, *(f"{name}.bag" for name in spec)]
    return [f"{name}{suffix}" for name in spec for suffix in (".bag", ".idx")]


def index_of(bag: str) -> str:
    """Name the index that lies beside a bag, if there is one."""
    return f"{bag.removesuffix('.bag')}.idx"


def has_refs(spec: Mapping[str, str], names: Iterable[str]) -> bool:
    """Tell the two generations of a dataset apart by the names that are there."""
    return "refs" not in spec and REFS in names


def open_dataset(at: Location) -> Stream:
    """Read the spec of a folder and list the files of each shard in it; no table is opened.

    raises  MissingError if nothing of a dataset is there; FormatError for a shard that is missing between others, or for shards without end
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
                f"shard {shard_folder(position)} is missing, {shard_folder(number)} is there",
                where=at,
                hint="Fetch it, or pack again.",
            )
    if numbers:
        return _stream(at, [f"{shard_folder(number)}/" for number in numbers], sizes)
    return _bags(at, sizes)


def _probed(at: Location) -> list[str]:
    """Find the shards of a folder that cannot be listed: one after the other, until one is not there; the first is read before the others."""
    if not (at / shard_folder(0) / SPEC).exists():
        raise MissingError(
            f"neither {SPEC} nor {shard_folder(0)}/{SPEC} is there",
            where=at,
            hint="Name a playlist, or a bag.",
        )
    columns_of(at / shard_folder(0) / SPEC)
    found = list(
        itertools.takewhile(
            lambda name: (at / name / SPEC).exists(), map(shard_folder, range(_PROBED + 1))
        )
    )
    if len(found) > _PROBED:
        raise FormatError(
            f"{_PROBED} shards and more are there, and no list of them",
            where=at,
            hint="Name a playlist.",
        )
    return found


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
            "no such file or folder", where=at / name, hint="Fetch it, or pack again."
        )
    return File(name, sizes[name] if sizes[name] >= 0 else None)


def _rows(parts: tuple[File, ...]) -> int:
    """Tell the rows of a shard by the size of an index, -1 where that is not known."""
    return -1 if parts[1].size is None else parts[1].size // 8


def _bags(at: Location, sizes: Mapping[str, int]) -> Stream:
    """Take a folder of bags without any spec for one shard each."""
    bags = [name for name in sizes if name.endswith(".bag") and "/" not in name]
    if not bags:
        raise MissingError(
            f"neither {SPEC} nor {shard_folder(0)}/{SPEC} is there",
            where=at,
            hint="Name a playlist, or a bag.",
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


def beside(chunk: Chunk, names: Iterable[str]) -> tuple[tuple[File, ...], tuple[Location, ...]]:
    """Give files that lie in the folder of a shard that was listed alone."""
    locations = tuple(chunk.at.folder / name for name in names)
    folder = chunk.files[0].name.rpartition("/")[0] if chunk.files else ""
    return tuple(
        File(f"{folder}/{one.name}" if folder else one.name) for one in locations
    ), locations
