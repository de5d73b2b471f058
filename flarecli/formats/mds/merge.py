"""Merge the `index.json` of MosaicML Streaming datasets below one folder, as `merge_index` of the
original.

The merged index lists the shards of every part in order, by their full path below the folder.
Shards are not copied, moved or deleted; an existing index is replaced atomically. Unlike the
original, merging keeps all levels of a path, checks that the shards exist, and can be repeated.
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
    """Write one `index.json` for the datasets below a folder; return name -> File.

    parts   folders or their `index.json`, in the order of the rows; None: every one below the
            folder, in bytewise order of their paths
    raises  UnsafeError for a part that is not below the folder; MissingError if a part, or a local
            shard of one, does not exist; FormatError if the index of a part is invalid, two parts
            list a shard differently, or their columns or formats differ
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
                        f"entry of {name} differs from that in {seen[name][1]}",
                        where=here,
                        hint="Find out which of the two indexes was changed.",
                    )
                if seen[name][1] != str(where):  # one index may list a shard twice
                    continue
            seen[name] = moved, str(where)
            _check_files(at, moved, here)
            shards.append(moved)
    if not shards:
        raise MissingError("no index.json with a shard below this folder", where=at)
    return write_entries(at, {"version": 2, "shards": shards}, is_sorted=False)


def parts_below(root: Location) -> list[str]:
    """Return the folders below `root` that contain an `index.json`, in bytewise order."""
    names = (entry.name for entry in root.list() if entry.name.endswith(f"/{INDEX}"))
    return [name.removesuffix(f"/{INDEX}") for name in names if _SCRATCH not in name.split("/")]


def _below(root: Location, part: Location) -> str:
    """Return the path of a part relative to the root. Raises UnsafeError if it is not below it."""
    folder = part.folder if part.name == INDEX else part
    store, base = _address(root)
    own, path = _address(folder)
    prefix = f"{base.rstrip('/')}/" if base else ""
    if own != store or not path.startswith(prefix) or path.rstrip("/") == base.rstrip("/"):
        raise UnsafeError(
            f"not below {root}",
            where=part,
            hint="Move all parts below one folder first; an index lists only files below its folder.",
        )
    return check_name(path[len(prefix) :].rstrip("/"), where=part)


def _address(at: Location) -> tuple[object, str]:
    """Return a store and a path in it; all local paths are in one store, None."""
    root = at.store.root
    return (at.store, at.path) if not root else (None, f"{root.rstrip('/')}/{at.path}".rstrip("/"))


def _moved(file: Any, folder: str, where: str) -> Any:
    if file is None:
        return None
    if not isinstance(file, dict) or not isinstance(file.get("basename"), str):
        raise FormatError("no basename", where=where)
    return {**file, "basename": f"{folder}/{check_name(file['basename'], where=where)}"}


def _check_files(root: Location, shard: Mapping[str, Any], here: Place) -> None:
    """Check that the files of a local shard exist; the original's caches have one of the two."""
    if not root.is_local:
        return
    for part in ("data",) if shard["format"] == "mds" else ("data", "meta"):
        listed = [file for file in (shard.get(f"zip_{part}"), shard.get(f"raw_{part}")) if file]
        found = [file for file in listed if (root / file["basename"]).exists()]
        if listed and not found:
            raise MissingError(
                f"no such file; {here} lists it",
                where=root / listed[0]["basename"],
                hint="Fetch it, or leave out the part.",
            )
        for file in found[:1]:
            size = (root / file["basename"]).size()
            if size != file["bytes"]:
                raise FormatError(
                    f"file is {size} bytes; {here} lists {file['bytes']}",
                    where=root / file["basename"],
                    hint="Run `flare verify` on the part.",
                )
