"""`index.json` of MosaicML Streaming: what it says is checked before anything uses it; written exactly as there.

    {"shards": [{column_names, column_encodings, column_sizes, compression, format, hashes, raw_data, samples,
                 size_limit, version, zip_data}, …], "version": 2}

`raw_data` and `zip_data` are {basename, bytes, hashes}; `zip_data` is null where shards are not compressed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from flarecli.compress import SUFFIXES
from flarecli.encodings import column
from flarecli.errors import FormatError, UsageError
from flarecli.formats import INDEX
from flarecli.hashes import DEFAULT
from flarecli.model import Chunk, Columns, File, Settings, Stream
from flarecli.names import check_name
from flarecli.storage import Location

__all__ = ["open_dataset", "parse_columns", "write_index"]

_INDEX_LIMIT = 1 << 30  # bytes: some 2 million shards
_FILE_LIMIT = 1 << 63


def open_dataset(at: Location) -> Stream:
    """Read a folder's `index.json`; no shard is opened.

    raises  MissingError if there is none; FormatError if it is not one; UnsafeError if a name in it leaves the folder
    """
    where = at / INDEX
    size = where.size()
    if size > _INDEX_LIMIT:
        raise FormatError(f"{size} bytes, {_INDEX_LIMIT} is the most that is read", where=where)
    data = where.read(0, size)
    shards = _shards(_parse(data, where), where)
    columns: Columns | None = None
    names: list[str] = []
    rows: list[int] = []
    sizes: list[Any] = []
    raw_sizes: list[Any] = []
    hashes: dict[str, list[str]] = {}
    raw_hashes: dict[str, list[str]] = {}
    compressions = set()
    for i, shard in enumerate(shards):
        here = f"{where}: shards[{i}]"
        if shard.get("format") != "mds":
            raise FormatError(f"format {shard.get('format')!r:.60} is not read yet, mds is", where=here)
        if zipped := shard.get("compression"):
            _check_compression(zipped, here)
        own = _columns(shard, here)
        if columns is not None and own != columns:
            raise FormatError("other columns than shards[0]", where=here)
        columns = own
        raw = _file(shard.get("raw_data"), f"{here}.raw_data")
        zip_data = None if shard.get("zip_data") is None else _file(shard["zip_data"], f"{here}.zip_data")
        file = zip_data or raw
        names.append(file.name)
        rows.append(_count(shard.get("samples"), f"{here}.samples"))
        if raw.size is not None and 8 + 4 * rows[-1] > raw.size:
            raise FormatError(f"{raw.size} bytes cannot hold {rows[-1]} samples", where=here)
        sizes.append(file.size)
        raw_sizes.append(raw.size if zip_data else -1)
        _add(hashes, file.hashes, i)
        _add(raw_hashes, raw.hashes if zip_data else {}, i)
        compressions.add(shard.get("compression"))
    for table in (hashes, raw_hashes):
        for values in table.values():
            values += [""] * (len(names) - len(values))
    return Stream(
        "data",
        at,
        "mds",
        names,
        columns or (),
        np.array(rows, np.int64),
        np.array(sizes, np.int64),
        hashes,
        np.array(raw_sizes, np.int64) if any(size >= 0 for size in raw_sizes) else None,
        raw_hashes,
        {"compression": next(iter(compressions))} if len(compressions) == 1 and None not in compressions else {},
        {INDEX: File(INDEX, size)},
    )


def _check_compression(name: Any, where: str) -> None:
    if not isinstance(name, str) or name.partition(":")[0] not in SUFFIXES:
        raise FormatError(f"compression {name!r:.60} is not read yet, {', '.join(SUFFIXES)} is", where=where)


def _add(table: dict[str, list[str]], hashes: Any, i: int) -> None:
    for name, value in hashes.items():
        values = table.setdefault(name, [])
        values += [""] * (i - len(values))
        values.append(value)


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        name = next(key for i, (key, _) in enumerate(pairs) if key in dict(pairs[:i]))
        raise ValueError(f"two keys are named {name!r:.60}")
    return out


def _not_json(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _parse(data: bytes, where: object) -> Any:
    """Read JSON, strictly: one key once, no NaN, no depth that breaks the parser."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_pairs, parse_constant=_not_json)
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=where) from None
    except RecursionError:
        raise FormatError("JSON nested too deep", where=where) from None
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}", where=where) from None


def _shards(index: Any, where: object) -> list[dict[str, Any]]:
    if not isinstance(index, dict) or not isinstance(index.get("shards"), list):
        raise FormatError("no list of shards in it", where=where)
    version = index.get("version")
    if version != 2 or isinstance(version, bool):
        raise FormatError(f"version {version!r:.60}, 2 is wanted", where=where)
    for i, shard in enumerate(index["shards"]):
        if not isinstance(shard, dict):
            raise FormatError("not an object", where=f"{where}: shards[{i}]")
    return list(index["shards"])


def _count(value: Any, what: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _FILE_LIMIT:
        raise FormatError(f"{value!r:.60} is not a count", where=what)
    return value


def _file(value: Any, what: str) -> File:
    if not isinstance(value, dict) or not isinstance(value.get("basename"), str):
        raise FormatError("no basename in it", where=what)
    hashes = value.get("hashes")
    if not isinstance(hashes, dict) or not all(isinstance(text, str) for text in hashes.values()):
        raise FormatError("its hashes are not texts", where=what)
    return File(check_name(value["basename"], where=what), _count(value.get("bytes"), f"{what}.bytes"), hashes)


def _columns(config: dict[str, Any], what: str) -> Columns:
    names, encodings, sizes = (config.get(f"column_{part}") for part in ("names", "encodings", "sizes"))
    if not all(isinstance(part, list) for part in (names, encodings, sizes)) or not len(names) == len(encodings) == len(sizes):  # type: ignore[arg-type]
        raise FormatError("column_names, column_encodings and column_sizes are not lists of one length", where=what)
    if not all(isinstance(text, str) for text in (*names, *encodings)):  # type: ignore[misc]
        raise FormatError("a column's name or encoding is not text", where=what)
    if len(set(names)) != len(names):  # type: ignore[arg-type]
        raise FormatError("two columns have one name", where=what)
    out = []
    for name, encoding, size in zip(names, encodings, sizes, strict=True):  # type: ignore[arg-type]
        try:
            one = column(name, encoding)
        except UsageError as error:
            raise FormatError(f"column {name!r:.60}: {error.message}", where=what) from None
        if size != one.size or isinstance(size, bool):
            raise FormatError(f"column {name!r:.60}: size {size!r:.60}, {encoding} has {one.size}", where=what)
        out.append(one)
    return tuple(out)


def parse_columns(config: bytes, where: object) -> Columns:
    """Read the columns out of a shard's own config. Raises FormatError if it is not one."""
    value = _parse(config, f"{where}: its config")
    if not isinstance(value, dict):
        raise FormatError("its config is not an object", where=where)
    return _columns(value, f"{where}: its config")


def write_index(at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings) -> dict[str, File]:
    """Write `index.json` with exactly the keys and the text of the original writer; give name -> File of what was written."""
    wanted = sorted(settings.hashes)
    shards = []
    for chunk in chunks:
        file = chunk.files[0]
        listed = {"basename": file.name, "bytes": file.size, "hashes": {name: file.hashes[name] for name in wanted}}
        raw = listed
        if settings.compression is not None:
            name = file.name.rpartition(".")[0]
            raw = {"basename": name, "bytes": file.raw_size, "hashes": {name: file.raw_hashes[name] for name in wanted}}
        shards.append(
            {
                "column_encodings": [one.encoding for one in columns],
                "column_names": [one.name for one in columns],
                "column_sizes": [one.size for one in columns],
                "compression": settings.compression,
                "format": "mds",
                "hashes": wanted,
                "raw_data": raw,
                "samples": chunk.rows,
                "size_limit": settings.shard_bytes,
                "version": 2,
                "zip_data": None if settings.compression is None else listed,
            }
        )
    data = json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()
    written = (at / INDEX).write([data], [DEFAULT])
    return {INDEX: File(INDEX, written.size, written.hashes)}
