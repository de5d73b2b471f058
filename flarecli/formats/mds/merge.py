"""One `index.json` over datasets of MosaicML Streaming that lie below one folder: what the original calls `merge_index`.

Shards are listed as their own indexes list them, in the order of those, by their whole path below the folder. Nothing is copied, moved or
deleted, and the index that may be there is replaced at the end, whole. The original keeps one level of the path, takes JSON shards and
indexes that were merged before for parts, cannot merge twice, and lists what is not there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flarecli.errors import FlareError, FormatError, MissingError, Place, UnsafeError
from flarecli.formats.mds.index import Listed, read_shards, write_entries
from flarecli.formats.registry import INDEX
from flarecli.model import File
from flarecli.names import check_name
from flarecli.storage import Location

__all__ = ["merge", "parts_below"]

_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
_SCRATCH = ".flare"


def merge(at: Location, parts: Sequence[Location] | None = None) -> dict[str, File]:
    """Write the `index.json` of a folder over those of datasets below it; give name -> File of what was written.

    parts   folders or their `index.json`, in the order of the rows; None: every one below the root, in bytewise order of their paths
    raises  UnsafeError for a part that is not below the root; MissingError if a part, or a local shard of one, is not there; FormatError
            if a part is broken, two list a shard differently, or their columns or formats differ
    """
    listed, shards = Listed(), []
    seen: dict[str, tuple[Any, str]] = {}
    for folder in (
        parts_below(at) if parts is None else dict.fromkeys(_below(at, part) for part in parts)
    ):
        where = at / f"{folder}/{INDEX}"
        for i, shard in enumerate(read_shards(where)[0]):
            item = f"shards[{i}]"
            here = Place(where, item=item)
            try:
                moved = {
                    key: _moved(value, folder, f"{item}.{key}") if key in _FILES else value
                    for key, value in shard.items()
                }
                listed.add(moved, item, frozenset())
            except FlareError as error:
                raise error.changed(address=str(where), item=error.address) from None
            name = moved["raw_data"]["basename"]
            if name in seen:
                if seen[name][0] != moved:
                    raise FormatError(
                        f"lists {name} otherwise than {seen[name][1]}",
                        where=here,
                        hint="Find out which of the two was changed.",
                    )
                if seen[name][1] != str(where):  # what one index lists twice is there twice
                    continue
            seen[name] = moved, str(where)
            _check_there(at, moved, here)
            shards.append(moved)
    if not shards:
        raise MissingError("no index.json with a shard lies below it", where=at)
    return write_entries(at, {"version": 2, "shards": shards}, is_sorted=False)


def parts_below(root: Location) -> list[str]:
    """Name the folders below one that hold an `index.json`, in bytewise order of the paths."""
    names = (entry.name for entry in root.list() if entry.name.endswith(f"/{INDEX}"))
    return [name.removesuffix(f"/{INDEX}") for name in names if _SCRATCH not in name.split("/")]


def _below(root: Location, part: Location) -> str:
    """Name a part as the root sees it. Raises UnsafeError if it is not below."""
    folder = part.folder if part.name == INDEX else part
    store, base = _address(root)
    own, path = _address(folder)
    start = f"{base.rstrip('/')}/" if base else ""
    if own != store or not path.startswith(start) or path.rstrip("/") == base.rstrip("/"):
        raise UnsafeError(
            f"is not below {root}",
            where=part,
            hint="Move the parts below one folder first: an index names nothing outside its own.",
        )
    return check_name(path[len(start) :].rstrip("/"), where=part)


def _address(at: Location) -> tuple[object, str]:
    """Give a store and a path in it; every local path is one in the same store."""
    root = at.store.root
    return (at.store, at.path) if not root else (None, f"{root.rstrip('/')}/{at.path}".rstrip("/"))


def _moved(file: Any, folder: str, where: str) -> Any:
    if file is None:
        return None
    if not isinstance(file, dict) or not isinstance(file.get("basename"), str):
        raise FormatError("no basename in it", where=where)
    return {**file, "basename": f"{folder}/{check_name(file['basename'], where=where)}"}


def _check_there(root: Location, shard: Mapping[str, Any], here: Place) -> None:
    """Look for the files of a shard where looking costs nothing; the original's caches hold one of the two."""
    if not root.is_local:
        return
    for what in ("data",) if shard["format"] == "mds" else ("data", "meta"):
        listed = [file for file in (shard.get(f"zip_{what}"), shard.get(f"raw_{what}")) if file]
        found = [file for file in listed if (root / file["basename"]).exists()]
        if listed and not found:
            raise MissingError(
                f"no such file, {here} lists it",
                where=root / listed[0]["basename"],
                hint="Fetch it, or leave the part out.",
            )
        for file in found[:1]:
            size = (root / file["basename"]).size()
            if size != file["bytes"]:
                raise FormatError(
                    f"is {size} bytes, {here} lists {file['bytes']}",
                    where=root / file["basename"],
                    hint="Run `flare verify` on the part.",
                )
