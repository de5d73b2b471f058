"""What is fetched in pieces, put together: in a file, in memory, or cut out of blocks."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from flarecli.cache.entries import Entry, Summing
from flarecli.cache.folder import Part
from flarecli.errors import FormatError

__all__ = ["cut", "joined", "keep"]

Piece = bytes | memoryview


def keep(part: Part, one: Entry, pieces: Iterable[Piece], at_hand: bool = False) -> bool:
    """Write a copy and give it its name; False, and nothing is left, if that fails or it has another size."""
    sums = Summing(one)
    try:
        for piece in pieces:
            sums.update(piece)
            if sums.size > one.size or not part.write(piece):
                return False
        return sums.size == one.size and part.write(sums.end()) and part.publish(one, at_hand)
    finally:
        part.drop()


def joined(
    pieces: Iterable[Piece], size: int, room: Callable[[int], memoryview], where: str
) -> memoryview:
    """Put pieces together in memory; a single one is not copied.

    room    gives so many bytes of memory that nobody reads
    raises  FormatError if they are not `size` bytes
    """
    view, at = memoryview(b""), 0
    for piece in pieces:
        if len(piece) >= size:
            view = memoryview(piece)
        elif at + len(piece) <= size:
            view = view or room(size)
            view[at : at + len(piece)] = piece
        at += len(piece)
    if at != size:
        raise FormatError(f"ends at byte {at}, {size} are needed", where=where)
    return view.toreadonly()


def cut(blocks: dict[int, Piece], size: int, start: int, stop: int) -> bytes:
    """Put a range together out of blocks of `size` bytes, by number."""
    touched = range(start // size, -(-stop // size) if start < stop else 0)
    return b"".join(blocks[k][max(0, start - k * size) : stop - k * size] for k in touched)
