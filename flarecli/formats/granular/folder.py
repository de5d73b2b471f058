"""Where the files of a Granular dataset lie: one folder, or a folder of them, `000000`, `000001` and so on.

    spec.json                one dataset: KEY.bag and KEY.idx for each column, or refs.bag and KEY.bag (0.21 and before)
    000000/spec.json  …      shards, each a dataset of its own

A shard's main file is its spec.json; every .bag and .idx is a companion.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping

import numpy as np

from flarecli.errors import FormatError, MissingError
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular.spec import SPEC
from flarecli.model import Chunk, File, Stream
from flarecli.storage import Location

__all__ = [
    "REFS",
    "beside",
    "columns_of",
    "companions",
    "has_refs",
    "index_of",
    "open_dataset",
    "shard_folder",
]

REFS = "refs.bag"
_PROBED = 1 << 17  # shards looked for one by one: a server may have an answer for every name


def shard_folder(number: int) -> str:
    """Name the folder of a shard, as the original does: six digits, more past 999,999."""
    return f"{number:06d}"


def columns_of(at: Location, size: int | None = None) -> dict[str, str]:
    """Read a spec.json. Raises FormatError if it is larger than any."""
    size = at.size() if size is None else size
    if size > granular_spec.LIMIT:
        raise FormatError(f"{size} bytes, {granular_spec.LIMIT} is the most that is read", where=at)
    return granular_spec.parse(at.read(0, size), at)


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
        granular_spec.spec_of(spec, refs),
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
