"""The two indexes of a dataset: one lists the members of a tar, and the other lists the tars.

`NAME.idx.json`, in the folder of `NAME.tar`, contains the offsets of all members of the tar. flare
defines this format, because wids stores its index only in memory or in a pickle, which flare does
not read. The file is JSON on one line:

    {"bytes": 20480, "columns": ["jpg", "cls"], "ends": "…", "format": "flare tar index 1",
     "keys": "…", "rows": 2, "sizes": "…", "starts": "…", "xxh3_128": "…"}

    bytes     size of the decompressed tar
    columns   extensions of the members
    keys      the keys of all samples, concatenated
    ends      int64 [rows]: end of each key
    starts    int64 [columns, rows]: offset of each member, -1 if it is missing
    sizes     int64 [columns, rows]: size of each member in bytes, -1 if it is missing
    xxh3_128  checksum of all bytes before `, "xxh3_128"`

Arrays are little-endian bytes in base64. A damaged, outdated or inconsistent index is ignored;
flare reads the tar headers instead, and `verify` reports the index.

`shardindex.json` of wids lists the tars of a dataset and the number of rows in each:

    {"__kind__": "wids-shard-index-v1", "wids_version": 1,
     "shardlist": [{"url": "00000.tar", "nsamples": 100, "filesize": 20480, "md5sum": "…"}, …]}

`filesize` and `md5sum` are optional, and other keys are allowed, but a misspelled `filesize` or
`md5sum` is an error.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Sequence
from typing import Any

from flarecli.errors import FormatError, Place, UnsafeError
from flarecli.formats.registry import SHARD_INDEX
from flarecli.formats.shard_files import check_count, parse_json, read_optional
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import KEY, NAME
from flarecli.formats.webdataset.scan import Table, key_text
from flarecli.hashes import DEFAULT, digest
from flarecli.lazy import np, pa
from flarecli.model import ByteArray, Chunk, Columns, File, IntArray, Settings, Stream
from flarecli.storage import Location
from flarecli.suggest import nearest

__all__ = [
    "location_of",
    "name_of",
    "parse",
    "read",
    "read_shards",
    "text",
    "write_index",
]

SHARDS_KIND, SHARDS_VERSION = "wids-shard-index-v1", 1
_SHARDS_KEYS = ("url", "nsamples", "filesize", "md5sum")
_MAX_SHARD_INDEX_BYTES = 1 << 30
_SHARD_INDEX_HINT = "Fetch the index again, or delete it so that flare lists the folder instead."
_MAX_INDEX_BYTES = 64 << 20  # sufficient for about a million samples
_FORMAT = "flare tar index 1"
_CHECKSUM = re.compile(rb', "xxh3_128": "([0-9a-f]{32})"}\n')
_CHECKSUM_BYTES = len(', "xxh3_128": ""}\n') + 32
_TAR = re.compile(r"\.(?:tar(?:\.[a-z0-9]+)?|t[a-z]+)$")


def name_of(name: str) -> str:
    """Return the index name for a tar: `00000.idx.json` for `00000.tar` and `00000.tar.gz`."""
    return _TAR.sub("", name) + ".idx.json"


def location_of(chunk: Chunk) -> Location | None:
    """Return the location of a tar's index: the listed index, or the index in the tar's folder.

    Return None if the name of the index would be invalid, for example if it exceeds 255 bytes.
    """
    if chunk.companions:
        return chunk.companions[0]
    try:
        return chunk.at.folder / name_of(chunk.at.name)
    except UnsafeError:
        return None


def read(chunk: Chunk, size: int) -> Table | None:
    """Read the index for a tar of `size` bytes; return None if it is missing or invalid."""
    data = read_optional(location_of(chunk), _MAX_INDEX_BYTES)
    return None if data is None else parse(data, size)


def text(table: Table, size: int) -> bytes:
    """Return the serialized index for a tar of `size` bytes."""
    body: dict[str, Any] = {
        "bytes": size,
        "columns": list(table.extensions),
        "format": _FORMAT,
        "rows": table.rows,
        "keys": _packed(table.keys),
    }
    body |= {
        name: _packed(getattr(table, name).astype("<i8", copy=False))
        for name in ("ends", "sizes", "starts")
    }
    data = json.dumps(body, sort_keys=True).encode()[:-1]
    return b'%s, "xxh3_128": "%s"}\n' % (data, _checksum(data))


def _packed(values: IntArray | ByteArray) -> str:
    return base64.b64encode(np.ascontiguousarray(values).data).decode()


def _checksum(data: bytes | memoryview) -> bytes:
    return digest(data).encode()


def parse(data: bytes, size: int) -> Table | None:
    """Parse the index for a tar of `size` bytes; return None if it is invalid."""
    end = _CHECKSUM.fullmatch(data, max(0, len(data) - _CHECKSUM_BYTES))
    if not end or _checksum(memoryview(data)[: end.start()]) != end[1]:
        return None
    try:
        body = json.loads(data)
        rows, columns = body["rows"], body["columns"]
        if (
            body["format"] != _FORMAT
            or body["bytes"] != size
            or type(rows) is not int
            or type(columns) is not list
            or not all(type(one) is str for one in columns)
        ):
            return None
        keys = np.frombuffer(base64.b64decode(body["keys"], validate=True), np.uint8)
        ends, starts, sizes = (
            np.frombuffer(base64.b64decode(body[name], validate=True), "<i8")
            for name in ("ends", "starts", "sizes")
        )
        table = Table(
            tuple(columns),
            keys,
            ends,
            starts.reshape(len(columns), rows),
            sizes.reshape(len(columns), rows),
        )
        if not _is_possible(table, rows, size):
            return None
        key_text(keys, ends).validate(full=True)
    except (KeyError, TypeError, ValueError, RecursionError, binascii.Error, pa.ArrowInvalid):
        return None
    return table


def _is_possible(table: Table, rows: int, size: int) -> bool:
    """Return whether no key is empty, and whether the members are in order and inside the tar.

    Each member must start at a multiple of the block size, after its header.
    """
    ends = table.ends
    if len(ends) != rows or len({*table.extensions, KEY}) != len(table.extensions) + 1:
        return False
    if rows and (ends[0] <= 0 or ends[-1] != len(table.keys) or (ends[1:] <= ends[:-1]).any()):
        return False
    if ((table.starts < 0) != (table.sizes < 0)).any() or (
        rows and (table.starts < 0).all(0).any()
    ):
        return False
    is_stored = table.starts >= 0
    if (
        rows
        and (np.where(is_stored, table.starts, size).min(0)[1:] <= table.starts.max(0)[:-1]).any()
    ):  # `read_batch` expects rows in the order of the tar
        return False
    starts, sizes = table.starts[is_stored], table.sizes[is_stored]
    if not len(starts):
        return True
    if (
        (starts % tar.BLOCK).any()
        or (starts < tar.BLOCK).any()
        or (starts > size).any()
        or (sizes > size - starts).any()
    ):
        return False
    order = np.argsort(starts, kind="stable")
    stops = starts[order] + tar.padded(sizes[order])
    return bool((stops[:-1] + tar.BLOCK <= starts[order][1:]).all())


# -- shardindex.json


def read_shards(at: Location) -> Stream:
    """Read a `shardindex.json` without opening the tars.

    raises  MissingError if the file is missing; FormatError if it is invalid
    """
    size = at.size()
    if size > _MAX_SHARD_INDEX_BYTES:
        raise FormatError(
            f"file is {size} bytes; the maximum is {_MAX_SHARD_INDEX_BYTES}", where=at
        )
    try:
        return _stream(at, parse_json(at.read(0, size), at))
    except FormatError as error:
        raise FormatError(
            error.message, where=error.place, hint=error.hint or _SHARD_INDEX_HINT
        ) from None


def _stream(at: Location, index: Any) -> Stream:
    if not isinstance(index, dict) or not isinstance(index.get("shardlist"), list):
        raise FormatError("shardlist is missing, or not a list", where=at)
    version = index.get("wids_version")
    if version != SHARDS_VERSION or isinstance(version, bool):
        raise FormatError(
            f"unsupported wids_version {version!r:.60}; expected {SHARDS_VERSION}", where=at
        )
    if index.get("__kind__") != SHARDS_KIND:
        raise FormatError(
            f"unsupported __kind__ {index.get('__kind__')!r:.60}; expected {SHARDS_KIND!r}",
            where=at,
        )
    urls, rows, sizes, sums = [], [], [], []
    for i, shard in enumerate(index["shardlist"]):
        here = Place(at, item=f"shardlist[{i}]")
        if not isinstance(shard, dict) or not isinstance(shard.get("url"), str) or not shard["url"]:
            raise FormatError("url is missing, or not a string", where=here)
        for key in ("filesize", "md5sum"):
            if (
                key not in shard
                and (other := nearest(key, (name for name in shard if name not in _SHARDS_KEYS)))
                is not None
            ):
                raise FormatError(f"unknown key {other!r:.60}; did you mean {key!r}?", where=here)
        if not isinstance(md5 := shard.get("md5sum", ""), str):
            raise FormatError("md5sum is not a string", where=here)
        urls.append(shard["url"])
        rows.append(check_count(shard.get("nsamples"), Place(at, item=f"shardlist[{i}].nsamples")))
        has_size = "filesize" in shard
        sizes.append(
            check_count(shard["filesize"], Place(at, item=f"shardlist[{i}].filesize"))
            if has_size
            else -1
        )
        sums.append(md5.lower())
    hashes = {"md5": sums} if any(sums) else {}
    return Stream(
        "data",
        at.folder,
        NAME,
        urls,
        rows=np.array(rows, np.int64),
        sizes=np.array(sizes, np.int64),
        hashes=hashes,
    )


def write_version_index(at: Location, stream: Stream) -> None:
    """Write the `shardindex.json` of a dataset version. It lists the shards of a stream."""
    write_index(at, list(stream), stream.columns or (), Settings())


def write_index(
    at: Location, chunks: Sequence[Chunk], columns: Columns, settings: Settings
) -> dict[str, File]:
    """Write `shardindex.json` as `widsindex create` does, so that wids can open the folder.

    An entry contains the MD5 checksum of its tar if the checksum is known.
    """
    shards = []
    for chunk in chunks:
        file = chunk.files[0]
        one = {
            "url": file.name,
            "md5sum": file.hashes.get("md5"),
            "nsamples": chunk.rows,
            "filesize": file.size,
        }
        shards.append({key: value for key, value in one.items() if value is not None})
    data = json.dumps(
        {"__kind__": SHARDS_KIND, "wids_version": SHARDS_VERSION, "shardlist": shards}, indent=2
    ).encode()
    written = (at / SHARD_INDEX).write([data], [DEFAULT])
    return {SHARD_INDEX: File(SHARD_INDEX, written.size, written.hashes)}
