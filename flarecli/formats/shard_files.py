"""List shards, write files, read small JSON files, and compare shards with their listing."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from flarecli import compress
from flarecli.errors import FlareError, FormatError, MissingError, Place, UsageError
from flarecli.hashes import DEFAULT, Sums
from flarecli.lazy import np
from flarecli.model import Chunk, Columns, File, Settings, Shard, Stream
from flarecli.progress import count_bytes
from flarecli.storage import Location

__all__ = [
    "DAMAGED",
    "check_count",
    "check_ranges",
    "check_row_count",
    "count_parts",
    "list_shards",
    "parse_json",
    "read_optional",
    "write_file",
]

DAMAGED = "The file was damaged or cut short; fetch or pack it again."
_COUNT_LIMIT = 1 << 63


def list_shards(
    at: Location,
    name: str,
    suffix: str,
    is_shard: Callable[[str], bool],
    index_name: Callable[[str], str] | None = None,
    columns: Columns | None = None,
) -> Stream:
    """List the shards in a folder, sorted by name; subfolders are ignored.

    name        format name
    suffix      shard suffix for the error message
    index_name  function that returns the name of a shard's index file; the file may be missing
    raises      MissingError if the folder contains no shards
    """
    sizes = {entry.name: entry.size for entry in at.list() if "/" not in entry.name}
    names = sorted(filter(is_shard, sizes))
    if not names:
        raise MissingError(f"folder contains no {suffix} files", where=at)
    parts: list[tuple[File, ...]] = []
    if index_name is not None:
        indexes = map(index_name, names)
        parts = [(File(one, sizes[one]),) if one in sizes else () for one in indexes]
    return Stream(
        "data",
        at,
        name,
        names,
        columns,
        sizes=np.array([sizes[one] for one in names], np.int64),
        parts=parts if any(parts) else (),
    )


def check_row_count(chunk: Chunk, rows: int, noun: str = "rows", where: object = None) -> None:
    """Raise FormatError if the row count of a shard differs from the playlist or the index."""
    if chunk.rows is not None and rows != chunk.rows:
        raise FormatError(
            f"contains {rows} {noun}; the playlist or index lists {chunk.rows}",
            where=chunk.at if where is None else where,
        )


def check_ranges(shard: Shard, ranges: Mapping[str, tuple[int, int]]) -> None:
    """Raise UsageError for an invalid range, or for a range of a column that is not a list."""
    lists = {one.name for one in shard.columns if one.encoding.endswith("[]")}
    for name, (start, stop) in ranges.items():
        if name not in lists:
            raise UsageError(
                f"column {name!r} is not a list; only lists support ranges", column=name
            )
        if not 0 <= start <= stop:
            raise UsageError(
                f"invalid range {start}:{stop} for column {name!r}",
                hint="Use 0 <= start <= stop.",
                column=name,
            )


# -- writing


def write_file(
    at: Location, name: str, parts: Iterable[Any], size: int, settings: Settings
) -> tuple[Location, File]:
    """Write a file of `size` bytes; compress it if the settings name a compression.

    The name of a compressed file ends with the suffix of its compression.

    return  location of the written file, and its sizes and hashes
    """
    hashes = {DEFAULT, *settings.hashes}
    if settings.compression is None:
        written = (at / name).write(count_parts(parts), hashes)
        return at / name, File(name, written.size, written.hashes)
    raw = Sums(hashes)
    to = at / f"{name}.{compress.suffix_of(settings.compression)}"
    written = to.write(compress.compressed(settings.compression, _hashed(parts, raw), size), hashes)
    return to, File(to.name, written.size, written.hashes, raw.size, raw.hex())


def count_parts(parts: Iterable[Any]) -> Iterator[Any]:
    """Yield the parts of a file. Count the bytes of a part after the caller has written it."""
    for part in parts:
        yield part
        count_bytes(memoryview(part).nbytes)


def _hashed(parts: Iterable[Any], sums: Sums) -> Iterator[Any]:
    for part in parts:
        sums.update(part)
        yield part


# -- reading


def read_optional(at: Location | None, max_bytes: int) -> bytes | None:
    """Return the bytes of a file, or None if the file cannot be read.

    at         location of the file; if it is None, the result is None
    max_bytes  if the file is larger, the result is b""
    """
    if at is None:
        return None
    try:
        size = at.size()
        return at.read(0, size) if size <= max_bytes else b""
    except FlareError:
        return None


def parse_json(data: bytes, where: object) -> Any:
    """Parse JSON strictly.

    raises  FormatError for invalid JSON, repeated keys, NaN, and nesting too deep for the parser
    """
    try:
        return json_decoder().decode(data.decode())
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=where) from None
    except RecursionError:
        raise FormatError("JSON is nested too deeply", where=where) from None
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}", where=where) from None


def json_decoder() -> json.JSONDecoder:
    """Return a decoder that raises ValueError for repeated keys and NaN."""
    return json.JSONDecoder(object_pairs_hook=_object, parse_constant=_refuse_constant)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"duplicate key {key!r:.60}")
        out[key] = value
    return out


def _refuse_constant(word: str) -> NoReturn:
    raise ValueError(f"{word} is not allowed")


def check_count(value: Any, where: object | Place) -> int:
    """Return a JSON value if it is a valid number of rows or bytes.

    raises  FormatError for any other value
    """
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _COUNT_LIMIT:
        raise FormatError(f"expected a count, got {value!r:.60}", where=where)
    return value
