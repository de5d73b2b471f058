"""Comparisons of rows: keys of joined streams, and duplicate rows.

In joined streams, rows with the same row number must have the same key. Rows with the same bytes
are duplicates. The key of a stream is the column that the header `key` of the stream names, or the
key column of the format.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flarecli import encodings, formats
from flarecli.errors import UsageError, format_place
from flarecli.lazy import np, pa, pc
from flarecli.model import Finding, Playlist, Shard, Stream
from flarecli.progress import count_bytes

if TYPE_CHECKING:
    from flarecli.model import IntArray

__all__ = [
    "StreamRows",
    "compare_streams",
    "find_duplicates",
    "hash_rows",
    "key_column",
    "names_of_keyed_streams",
    "read_keys",
]

_KEY_ROWS = 65536  # number of rows whose keys are read together
_KEY_CHARS = 40  # maximum number of characters of a key in a message
_HASHED_ROWS = 64  # number of rows that are read together to hash them
_STREAM_HINT = "Pack both streams again from the same rows, or read each stream alone."
_DUPLICATE_HINT = "Pack again without one of the two rows."


@dataclass
class StreamRows:
    """The checked rows of one stream.

    key           key column; empty if keys are not compared
    count         number of rows; None if unknown
    keys          address and keys of each checked shard
    store_hashed  number of shards whose only checksum is stored by the object store
    """

    stream: Stream
    key: str = ""
    count: int | None = None
    keys: list[tuple[str, pa.Array]] = field(default_factory=list)
    store_hashed: int = 0


def key_column(stream: Stream) -> str:
    """Return the name of the key column of a stream; empty if the stream has no key."""
    name = stream.headers.get("key") or formats.facts(stream.format).key_column
    names = [column.name for column in stream.columns or ()]
    return name if isinstance(name, str) and name in names else ""


def read_keys(form: formats.Format, shard: Shard, name: str) -> pa.Array:
    """Return the keys of a shard as large_binary [rows]; numbers are converted to text.

    Raises FlareError if the keys cannot be read or compared.
    """
    parts = []
    for start in range(0, shard.rows, _KEY_ROWS):
        stop = min(start + _KEY_ROWS, shard.rows)
        column = form.read_batch(shard, start, stop, [name]).column(0)
        try:
            if not pa.types.is_large_binary(column.type):
                column = column.cast(encodings.TEXT)
            parts.append(column.cast(encodings.BINARY))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            raise UsageError(
                f"column {name!r} cannot be a key: expected text, numbers or bytes",
                where=shard.chunk.at,
                column=name,
            ) from None
    return pa.chunked_array(parts, encodings.BINARY).combine_chunks()


def compare_streams(playlist: Playlist, streams: Sequence[StreamRows]) -> Iterator[Finding]:
    """Yield findings for streams whose row count or keys differ from those of the first stream."""
    joined = _joined(streams)
    for other in joined[1:]:
        first = joined[0]
        if other.count is not None and first.count is not None and other.count != first.count:
            message = f"stream {other.stream.name!r} has {other.count} rows, stream {first.stream.name!r} has {first.count}; joined streams need the same number of rows"
            yield Finding(str(playlist.at or other.stream.at), "streams", message, _STREAM_HINT)
        elif other.keys and first.keys:
            yield from _compare_keys(first, other)


def names_of_keyed_streams(streams: Sequence[StreamRows]) -> list[str]:
    """Return the names of joined streams with keys, if there are at least two."""
    names = [one.stream.name for one in _joined(streams) if key_column(one.stream)]
    return names if len(names) > 1 else []


def _joined(streams: Sequence[StreamRows]) -> list[StreamRows]:
    """Return the joined streams; empty if two streams have a common column that is not a key.

    Streams whose columns are not known are omitted.
    """
    known = [one for one in streams if one.stream.columns]
    seen = set[str]()
    for one in known:
        key = key_column(one.stream)
        names = {column.name for column in one.stream.columns or ()} - ({key} if key else set())
        if names & seen:
            return []
        seen |= names
    return known


def _compare_keys(first: StreamRows, other: StreamRows) -> Iterator[Finding]:
    """Yield a finding for the first row whose keys differ, with the number of later differences."""
    expected, actual = (
        pa.chunked_array([keys for _, keys in one.keys], encodings.BINARY) for one in (first, other)
    )
    if len(expected) != len(actual):
        return  # the keys of an unreadable shard are missing, and the shard is already reported
    rows = pc.indices_nonzero(pc.invert(pc.equal(expected, actual)))
    if not len(rows):
        return
    row = rows[0].as_py()
    message = f"key is {_key_text(actual[row])}, row {row} of stream {first.stream.name!r} has key {_key_text(expected[row])}"
    if len(rows) > 1:
        message += f"; {len(rows) - 1} later rows also differ"
    ends = np.cumsum([len(keys) for _, keys in other.keys])
    address, row = _shard_row([at for at, _ in other.keys], ends, row)
    yield Finding(address, "streams", message, _STREAM_HINT, row=row)


def _key_text(key: Any) -> str:
    return repr(key.as_py().decode("utf-8", "backslashreplace")[:_KEY_CHARS])


def hash_rows(form: formats.Format, shard: Shard) -> bytes:
    """Return the xxh3_128 checksum of the stored bytes of each row in a shard, 16 bytes per row."""
    import xxhash

    names = [column.name for column in shard.columns]
    out = bytearray()
    for start in range(0, shard.rows, _HASHED_ROWS):
        stop = min(start + _HASHED_ROWS, shard.rows)
        for row in form.read_rows(shard, range(start, stop), names):
            checksum = xxhash.xxh3_128()
            for value in row.values():
                # The checksum includes the number of parts and the length of each part, so that
                # different rows have different checksums.
                parts = value if isinstance(value, list) else [] if value is None else [value]
                count = len(parts) if isinstance(value, list) else -1 - len(parts)
                checksum.update(struct.pack("<q", count))
                for part in parts:
                    checksum.update(struct.pack("<q", len(part)))
                    checksum.update(part)
                    count_bytes(len(part))
            out += checksum.digest()
    return bytes(out)


def find_duplicates(shards: Sequence[tuple[str, bytes]]) -> Iterator[Finding]:
    """Yield a finding for each row that equals an earlier row.

    shards  for each shard, its address and the return value of `hash_rows`
    """
    hashes = np.frombuffer(b"".join(data for _, data in shards), "<u8").reshape(-1, 2)
    addresses = [at for at, _ in shards]
    ends = np.cumsum([len(data) // 16 for _, data in shards])
    order = np.lexsort((hashes[:, 1], hashes[:, 0]))  # a stable sort keeps the order of equal rows
    is_same = np.zeros(len(order), bool)
    is_same[1:] = (hashes[order[1:]] == hashes[order[:-1]]).all(axis=1)
    firsts = order[np.maximum.accumulate(np.where(is_same, 0, np.arange(len(order))))]
    repeated, first = order[is_same], firsts[is_same]
    for i in np.argsort(repeated):
        address, row = _shard_row(addresses, ends, int(repeated[i]))
        original = format_place(*_shard_row(addresses, ends, int(first[i])))
        yield Finding(
            address, "duplicate", f"duplicate of row {original}", _DUPLICATE_HINT, row=row
        )


def _shard_row(addresses: Sequence[str], ends: IntArray, row: int) -> tuple[str, int]:
    """Return the shard that contains a row, and the row number in this shard.

    ends  cumulative row counts of the shards
    """
    k = int(np.searchsorted(ends, row, "right"))
    return addresses[k], row - (int(ends[k - 1]) if k else 0)
