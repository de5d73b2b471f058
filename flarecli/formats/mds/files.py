"""One file of a shard, stored as it is or compressed, and the names of MosaicML Streaming."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from flarecli import compress
from flarecli.errors import MissingError
from flarecli.formats import byte_ranges as spans
from flarecli.hashes import DEFAULT, Sums
from flarecli.model import Chunk, File, Settings
from flarecli.storage import Location

__all__ = ["name_of", "present", "raw_name", "store"]


def name_of(number: int, ending: str) -> str:
    """Name the shard at a position as the original does, `shard.00000.mds`: five digits, more past 99,999."""
    return f"shard.{number:05d}.{ending}"


def raw_name(name: str) -> str:
    """Give the name that a file has when it is not compressed."""
    head, _, last = name.rpartition(".")
    return head if last in compress.SUFFIXES else name


def store(
    at: Location, name: str, parts: Iterable[Any], size: int, settings: Settings
) -> tuple[Location, File]:
    """Write a file of `size` bytes below a folder, compressed as the settings say: then its name has the suffix."""
    wanted = {DEFAULT, *settings.hashes}
    if settings.compression is None:
        written = (at / name).write(parts, wanted)
        return at / name, File(name, written.size, written.hashes)
    raw, name = Sums(wanted), f"{name}.{compress.suffix_of(settings.compression)}"
    written = (at / name).write(
        compress.compressed(settings.compression, _summed(parts, raw), size), wanted
    )
    return at / name, File(name, written.size, written.hashes, raw.size, raw.hex())


def _summed(parts: Iterable[Any], sums: Sums) -> Iterator[Any]:
    for part in parts:
        sums.update(part)
        yield part


def present(chunk: Chunk) -> Chunk:
    """Give a chunk as it lies there: where a local compressed file is gone and the decompressed one is there, that one.

    The original leaves its caches so. What is listed of the decompressed bytes then holds for the file.
    """
    if not chunk.at.is_local or not spans.suffix(chunk) or chunk.at.exists():
        return chunk
    plain = chunk.at.folder / raw_name(chunk.at.name)
    try:
        plain.size()
    except MissingError:
        return chunk
    if not chunk.files:
        return replace(chunk, at=plain)
    listed = chunk.files[0]
    return replace(
        chunk,
        at=plain,
        files=(File(raw_name(listed.name), listed.raw_size, listed.raw_hashes), *chunk.files[1:]),
    )
