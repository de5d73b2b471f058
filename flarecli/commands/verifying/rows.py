"""Check that joined streams match: equal row counts, and equal keys in each row.

The key of a stream is the column in its header `key`, or the key column of its format.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from flarecli import encodings, formats
from flarecli.errors import UsageError
from flarecli.lazy import pa, pc
from flarecli.model import Finding, Playlist, Shard, Stream

__all__ = ["Side", "key_of", "keyed", "keys", "uneven"]

_STEP = 65536  # rows whose keys are read together
_SHOWN = 40  # maximum characters of a key in a message
_HINT = "Pack the two again from the same rows, or read them one by one."


@dataclass
class Side:
    """One of the joined streams: its rows if known, and address and keys of each checked shard.

    kept  number of shards whose only checksums are kept by the store
    """

    stream: Stream
    key: str = ""
    rows: int | None = None
    keys: list[tuple[str, pa.Array]] = field(default_factory=list)
    kept: int = 0


def key_of(stream: Stream) -> str:
    """Return the key column of a stream; empty if it has none."""
    named = stream.headers.get("key") or formats.facts(stream.format).key_column
    return (
        named
        if isinstance(named, str) and any(column.name == named for column in stream.columns or ())
        else ""
    )


def keys(form: formats.Format, shard: Shard, name: str) -> pa.Array:
    """Return the keys of a shard as large_binary [rows]: texts, and numbers as text. Raises
    FlareError.
    """
    parts = [
        form.read_batch(shard, start, min(start + _STEP, shard.rows), [name]).column(0)
        for start in range(0, shard.rows, _STEP)
    ]
    try:
        return pa.chunked_array(
            [_written(part) for part in parts], encodings.BINARY
        ).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(
            f"column {name!r} holds no keys: only texts, numbers and bytes can be compared",
            where=shard.chunk.at,
            column=name,
        ) from None


def _written(column: pa.Array) -> pa.Array:
    return (
        column.cast(encodings.BINARY)
        if pa.types.is_large_binary(column.type)
        else column.cast(encodings.TEXT).cast(encodings.BINARY)
    )


def uneven(found: Playlist, sides: Sequence[Side]) -> Iterator[Finding]:
    """Yield findings for joined streams whose row count or keys differ from the first stream."""
    known = _beside(sides)
    for one in known[1:]:
        first = known[0]
        where, both = str(found.at or one.stream.at), f"stream {one.stream.name!r}"
        if one.rows is not None and first.rows is not None and one.rows != first.rows:
            message = f"{both} has {one.rows} rows, {first.stream.name!r} has {first.rows}: they cannot be read side by side"
            yield Finding(where, "streams", message, _HINT)
        elif one.keys and first.keys:
            yield from _other_keys(first, one)


def keyed(sides: Sequence[Side]) -> list[str]:
    """Return the names of joined streams with keys, if there are at least two."""
    names = [one.stream.name for one in _beside(sides) if key_of(one.stream)]
    return names if len(names) > 1 else []


def _beside(sides: Sequence[Side]) -> list[Side]:
    """Return the streams that are joined: none if two have a common column."""
    known = [one for one in sides if one.stream.columns]
    are_apart = any(
        _names(one) & _names(other) for i, one in enumerate(known) for other in known[:i]
    )
    return [] if are_apart else known


def _names(side: Side) -> set[str]:
    return {column.name for column in side.stream.columns or ()} - {key_of(side.stream)}


def _other_keys(first: Side, other: Side) -> Iterator[Finding]:
    """Yield a finding for the first row with another key, with the number of later ones."""
    one, its = (
        pa.chunked_array([part for _, part in side.keys], encodings.BINARY)
        for side in (first, other)
    )
    if len(one) != len(its):
        return  # an unreadable shard, already reported
    differ = pc.indices_nonzero(pc.invert(pc.equal(one, its)))
    if not len(differ):
        return
    row = differ[0].as_py()
    name, mine, wanted = first.stream.name, _text(its[row].as_py()), _text(one[row].as_py())
    more = f", and so do {len(differ) - 1} rows behind it" if len(differ) > 1 else ""
    message = f"its key is {mine}, row {row} of stream {name!r} has {wanted}: they differ{more}"
    address, row = _place(other, row)
    yield Finding(address, "streams", message, _HINT, row=row)


def _text(key: bytes) -> str:
    return repr(key.decode("utf-8", "backslashreplace")[:_SHOWN])


def _place(side: Side, row: int) -> tuple[str, int | None]:
    for at, part in side.keys:
        if row < len(part):
            return str(at), row
        row -= len(part)
    return str(side.stream.at), None
