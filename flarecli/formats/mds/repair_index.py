"""Rebuild, merge and write `index.json` files of MosaicML Streaming.

`rebuild` recreates a lost index from the configs, row counts, sizes and checksums of the shards.
For shards that MosaicML Streaming wrote, the new index has the same bytes as the lost index.

`merge` writes one index for the shards of all datasets below a folder, as `merge_index` of MosaicML
Streaming does. The index lists the shards by their paths relative to the folder. Shards are not
copied, moved or deleted. An existing index is replaced atomically. Unlike MosaicML Streaming, flare
preserves all levels of a path, checks that the shards exist, and can merge again after datasets
were added.

`write_version` writes the index of a dataset version.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flarecli.compress import SUFFIXES
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    Place,
    UnsafeError,
    UsageError,
)
from flarecli.formats import byte_ranges
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.index import (
    FAMILY,
    Listed,
    entry,
    name_of,
    open_dataset,
    raw_name,
    read_shards,
    scan_shards,
    write_entries,
)
from flarecli.formats.registry import INDEX, find, first_index, refuse_existing
from flarecli.hashes import Sums
from flarecli.model import Chunk, File, Settings, Shard, Stream
from flarecli.names import check_name, is_fragment, shell_quoted
from flarecli.storage import Location

__all__ = ["merge", "rebuild", "write_version"]

_FILES = ("raw_data", "zip_data", "raw_meta", "zip_meta")
_SCRATCH = ".flare"
_NAME = re.compile(
    rf"shard\.(\d{{5,12}})\.({'|'.join(FAMILY)})(\.meta)?(?:\.({'|'.join(SUFFIXES)}))?", re.ASCII
)


@dataclass
class _ShardFiles:
    """The format and the uncompressed name of a shard, and the names of its files in the folder."""

    form: str
    name: str
    data: set[str]
    meta: set[str]


def rebuild(at: Location, replace: bool = False) -> Stream:
    """Write the `index.json` of a folder of shards; return the shards, sorted by number.

    replace  replace an existing index
    raises   MissingError if there are no shards, or a `.meta` file is missing; FormatError for a
             gap in the shard numbers, an invalid shard, or shards that differ in format or columns;
             UsageError if an index exists and `replace` is False
    """
    if not replace:
        refuse_existing(at / INDEX)
    entries, columns, listed = list[bytes](), None, Listed()
    for group in _shards(at):
        shard, config = _opened(at, group)
        if columns is not None and shard.columns != columns:
            raise FormatError(
                f"columns differ from the columns in {name_of(0, group.form)}", where=shard.chunk.at
            )
        columns = shard.columns
        own = _entry(at, group, shard, config)
        # `add` checks that readers accept the entry.
        listed.add(own, f"{shard.chunk.at}: config", frozenset())
        entries.append(mds_config.dumped(own))
    write_entries(at, entries, replace=replace)
    return open_dataset(at)


def _shards(at: Location) -> list[_ShardFiles]:
    """Group the files in a folder by shard. Files whose names are not shard names are ignored."""
    shards: dict[int, _ShardFiles] = {}
    for listed in at.list():
        match = _NAME.fullmatch(listed.name)
        if not match or match[1] != f"{int(match[1]):05d}":
            continue
        group = shards.setdefault(
            int(match[1]), _ShardFiles(match[2], name_of(int(match[1]), match[2]), set(), set())
        )
        if group.form != match[2]:
            raise FormatError(
                f"shard {match[1]} exists as {group.form} and as {match[2]}", where=at
            )
        (group.meta if match[3] else group.data).add(listed.name)
    if not shards:
        raise MissingError(
            "no shards in this folder",
            where=at,
            hint="Specify the folder that contains files such as shard.00000.mds.",
        )
    for expected, number in enumerate(sorted(shards)):
        if number != expected or not shards[number].data:
            name, last = name_of(expected, shards[number].form), shards[max(shards)]
            raise FormatError(
                f"{name} is missing, but {min(last.data | last.meta)} exists",
                where=at,
                hint="Fetch the missing shard first.",
            )
    forms = {group.form for group in shards.values()}
    if len(forms) > 1:
        raise FormatError(
            f"shards of several formats: {', '.join(sorted(forms))}",
            where=at,
            hint="Move the shards of each format to a separate folder.",
        )
    return [shards[number] for number in sorted(shards)]


def _stored(names: set[str], plain: str, where: Location) -> str:
    """Return the name of the compressed file if it exists, otherwise the uncompressed name.

    raises  FormatError for several compressed files
    """
    zipped = sorted(names - {plain})
    if len(zipped) > 1:
        raise FormatError(
            f"both {zipped[0]} and {zipped[1]} exist",
            where=where,
            hint="Remove one of the two files.",
        )
    return zipped[0] if zipped else plain


def _opened(at: Location, group: _ShardFiles) -> tuple[Shard, dict[str, Any]]:
    main = _stored(group.data, group.name, at)
    companions: tuple[Location, ...] = ()
    files: tuple[File, ...] = (File(main),)
    if group.form != "mds":
        meta = _stored(group.meta, f"{group.name}.meta", at)
        companions, files = (at / meta,), (File(main), File(meta))
    shard = find(group.form).open_shard(Chunk(at / main, None, files, group.form, companions))
    config, _ = mds_config.parse_config(_config(shard, group.form), group.form, shard.chunk.at)
    expected = mds_config.config(group.form, shard.columns, Settings())
    if config.keys() != expected.keys():
        expected_keys, keys = (", ".join(sorted(one)) for one in (expected, config))
        message = f"config: expected the keys {expected_keys}, got {keys}"
        raise FormatError(message[:300], where=shard.chunk.at)
    if config["format"] != group.form:
        raise FormatError(
            f"config: expected format {group.form!r}, got {config['format']!r:.60}",
            where=shard.chunk.at,
        )
    return shard, config


def _config(shard: Shard, form: str) -> bytes:
    """Read the config, which precedes the first sample or is at the end of the `.meta` file."""
    chunk, start = shard.chunk, 8 + 4 * shard.rows
    if form == "mds":
        stop = int(shard.layout["starts"][0])
    else:
        chunk = byte_ranges.single_file_chunk(chunk.companions[0])
        view = byte_ranges.whole(chunk)
        stop = byte_ranges.stored_size(chunk) if view is None else len(view)
    return bytes(byte_ranges.read(chunk, [(start, stop)])[0])


def _entry(
    at: Location, group: _ShardFiles, shard: Shard, config: Mapping[str, Any]
) -> dict[str, Any]:
    chunk = shard.chunk
    locations = (chunk.at, *chunk.companions)
    zipped = {byte_ranges.suffix(byte_ranges.single_file_chunk(one)) for one in locations}
    declared = config["compression"]
    if len(zipped) > 1 or (
        any(zipped) and (not isinstance(declared, str) or {declared.partition(":")[0]} != zipped)
    ):
        raise FormatError(
            f"config has compression {declared!r:.60}; "
            f"the suffixes of the files are {' and '.join(map(repr, sorted(zipped)))}",
            where=chunk.at,
        )
    hashes = config["hashes"]
    if not isinstance(hashes, list) or not all(isinstance(name, str) for name in hashes):
        raise FormatError("config: hashes must be a list of names", where=chunk.at)
    try:
        files = tuple(_hashed(one, hashes) for one in locations)
    except UsageError as error:
        raise FormatError(f"config: {error.message}", where=chunk.at) from None
    effective = {**config, "compression": declared if any(zipped) else None}
    return entry(effective, Chunk(chunk.at, shard.rows, files, group.form))


def _hashed(at: Location, hashes: list[str]) -> File:
    """Return a File: the size and hashes of a file, and of its decompressed bytes."""
    chunk, stored = byte_ranges.single_file_chunk(at), Sums(hashes)
    size = at.size()
    for block in at.blocks(size) if hashes else ():
        stored.update(block)
    view = byte_ranges.whole(chunk) if raw_name(at.name) != at.name else None
    if view is None:
        return File(at.name, size, stored.hex())
    raw = Sums(hashes)
    raw.update(view)
    return File(at.name, size, stored.hex(), len(view), raw.hex())


# -- merging


def merge(at: Location, parts: Sequence[Location] | None = None) -> dict[str, File]:
    """Write one `index.json` for the datasets below a folder; return name -> File.

    parts   folders of the datasets, or their index files, in the order of the rows; None for all
            datasets below the folder, in bytewise order of their paths
    raises  UnsafeError for a dataset that is not below the folder; MissingError if a dataset or
            one of its local shards does not exist; FormatError if an index is invalid, or if
            datasets differ in columns, in format, or in the entry for the same shard
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
                        f"entry for {name} differs from the entry in {seen[name][1]}",
                        where=here,
                        hint="Check which of the two indexes was changed.",
                    )
                if seen[name][1] != str(where):  # a shard may be listed twice in the same index
                    continue
            seen[name] = moved, str(where)
            _check_files(at, moved, here)
            shards.append(moved)
    if not shards:
        raise MissingError("no index.json below this folder lists a shard", where=at)
    texts = (mds_config.dumped(shard, is_sorted=False) for shard in shards)
    return write_entries(at, texts, is_sorted=False)


def write_version(at: Location, stream: Stream) -> None:
    """Write the `index.json` of a dataset version.

    The index lists the shards of a stream, in order. The entries of new shards come from the
    `index.json` files in the folders of the shards.

    raises  FormatError for a shard that no index lists
    """
    write_entries(at, _version_entries(at, stream.urls), is_sorted=False)


def _version_entries(at: Location, urls: Sequence[str]) -> Iterator[bytes]:
    """Yield the entry of each shard.

    The entries in the current index are read one by one, because the index may be large. One pass
    is sufficient, because shards that several versions contain have the same order in each version.
    """
    unused = set(urls)
    current = _entries(at / INDEX, "")
    others: dict[str, dict[str, bytes]] = {}  # folder -> entries of its shards
    name, text = next(current, ("", b""))
    for url in urls:
        while name and name not in unused:
            name, text = next(current, ("", b""))
        unused.discard(url)
        if name == url:
            yield text
            continue
        folder = url.rpartition("/")[0]
        if folder not in others:
            index = f"{folder}/{INDEX}" if folder else first_index(INDEX)
            others[folder] = {
                own: one for own, one in _entries(at / index, folder) if own in unused or own == url
            }
        if url not in others[folder]:
            raise FormatError(f"no index lists the shard {url!r:.60}", where=at)
        yield others[folder][url]
    for _ in current:  # check the rest of the index
        pass


def _entries(where: Location, folder: str) -> Iterator[tuple[str, bytes]]:
    """Yield the entries of an index: path of the stored file, and JSON text of the entry.

    If the index does not exist, there are no entries.

    folder  folder of the shards, relative to the dataset; empty for the folder of the dataset
    """
    with contextlib.suppress(MissingError):
        for i, (shard, text) in enumerate(scan_shards(where)):
            if folder:
                shard = {
                    key: _moved(value, folder, f"shards[{i}].{key}") if key in _FILES else value
                    for key, value in shard.items()
                }
            stored = shard.get("zip_data") or shard.get("raw_data")
            if not isinstance(stored, dict) or not isinstance(stored.get("basename"), str):
                raise FormatError("basename is missing", where=Place(where, item=f"shards[{i}]"))
            entry = mds_config.dumped(shard, is_sorted=False) if folder else text.encode()
            yield stored["basename"], entry


def parts_below(root: Location) -> list[str]:
    """Return the folders below `root` that contain an `index.json`, in bytewise order.

    Fragments are omitted, because the index of a changed dataset already lists their shards in the
    newest version.

    raises  MissingError if a changed dataset has no index
    """
    names = (entry.name for entry in root.list() if entry.name.endswith(f"/{INDEX}"))
    folders = [name.removesuffix(f"/{INDEX}") for name in names if _SCRATCH not in name.split("/")]
    found = []
    for folder in folders:
        parts = folder.split("/")
        fragment = next((i for i, part in enumerate(parts) if is_fragment(part)), None)
        if fragment is None:
            found.append(folder)
        elif fragment and "/".join(parts[:fragment]) not in folders:
            dataset = root / "/".join(parts[:fragment])
            raise MissingError(
                "the index of the changed dataset is missing",
                where=dataset / INDEX,
                hint=f"Run `flare playlist {shell_quoted(str(dataset))} --reindex`.",
            )
    return found


def _below(root: Location, part: Location) -> str:
    """Return the path of a dataset relative to the root.

    raises  UnsafeError if the dataset is not below the root
    """
    folder = part.folder if part.name == INDEX else part
    store, base = _address(root)
    own, path = _address(folder)
    prefix = f"{base.rstrip('/')}/" if base else ""
    if own != store or not path.startswith(prefix) or path.rstrip("/") == base.rstrip("/"):
        raise UnsafeError(
            f"not below {root}",
            where=part,
            hint="Move all datasets into one folder; an index lists only files below its folder.",
        )
    return check_name(path[len(prefix) :].rstrip("/"), where=part)


def _address(at: Location) -> tuple[object, str]:
    """Return the store of a location and the path in that store.

    return  (None, absolute path) for a local location
    """
    root = at.store.root
    return (at.store, at.path) if not root else (None, f"{root.rstrip('/')}/{at.path}".rstrip("/"))


def _moved(file: Any, folder: str, where: str) -> Any:
    if file is None:
        return None
    if not isinstance(file, dict) or not isinstance(file.get("basename"), str):
        raise FormatError("basename is missing", where=where)
    return {**file, "basename": f"{folder}/{check_name(file['basename'], where=where)}"}


def _check_files(root: Location, shard: Mapping[str, Any], here: Place) -> None:
    """Check that the files of a local shard exist and have the listed sizes.

    A cache of MosaicML Streaming may contain only the decompressed file of a compressed shard.
    """
    if not root.is_local:
        return
    for part in ("data",) if shard["format"] == "mds" else ("data", "meta"):
        listed = [file for file in (shard.get(f"zip_{part}"), shard.get(f"raw_{part}")) if file]
        existing = [file for file in listed if (root / file["basename"]).exists()]
        if listed and not existing:
            raise MissingError(
                f"no such file; {here} lists it",
                where=root / listed[0]["basename"],
                hint="Fetch the file, or merge without this dataset.",
            )
        for file in existing[:1]:
            size = (root / file["basename"]).size()
            if size != file["bytes"]:
                raise FormatError(
                    f"file is {size} bytes; {here} lists {file['bytes']}",
                    where=root / file["basename"],
                    hint="Run `flare verify` on this dataset.",
                )
