"""Writing to a store on the network: one request for what is small, pieces for what is not, whole or not at all.

The caller's parts are taken where the caller is; the upload runs on another thread, so that an interrupt ends it, and with it
the half upload.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from queue import Empty, Full, Queue, SimpleQueue

from flarecli.hashes import Sums
from flarecli.storage.base import Part
from flarecli.storage.ranges import REQUEST_BYTES
from flarecli.storage.threads import Outcome, begin, wait_for

__all__ = ["AHEAD", "upload"]

AHEAD = 4  # pieces under way at a time
_GRACE_S = 2.0  # how long dropping an upload is waited for


class _Dropped(Exception):
    """The caller's parts ended in an error: the upload must not appear."""


def upload(
    parts: Iterable[Part],
    sums: Sums,
    put_whole: Callable[[bytes], None],
    put_pieces: Callable[[Iterator[bytes]], None],
) -> None:
    """Write all parts, and sum them on the way.

    put_whole   writes what is at most REQUEST_BYTES bytes; both are called on another thread, one of them, once
    put_pieces  writes what it iterates over, pieces of REQUEST_BYTES bytes but the last, and nothing if that raises
    """
    pieces = _pieces(parts, sums)
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None:
        wait_for(begin(lambda: put_whole(first))).get()
        return
    queue: Queue[bytes | _Dropped | None] = Queue(2)
    ended = begin(lambda: put_pieces(_taken(queue)))
    try:
        for piece in chain((first, second), pieces, (None,)):
            if not _hand_over(queue, piece, ended):
                break
        outcome = wait_for(ended)
    except BaseException:
        _give_up(queue)
        with contextlib.suppress(Empty):  # so that the half of it there is dropped, not left behind
            ended.get(timeout=_GRACE_S)
        raise
    outcome.get()


def _pieces(parts: Iterable[Part], sums: Sums) -> Iterator[bytes]:
    """Cut what comes in parts of any size into pieces of REQUEST_BYTES bytes."""
    held = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        sums.update(view)
        while len(held) + len(view) >= REQUEST_BYTES:
            room = REQUEST_BYTES - len(held)
            held += view[:room]
            view = view[room:]
            yield bytes(held)
            held.clear()
        held += view
    if held:
        yield bytes(held)


def _hand_over(
    queue: Queue[bytes | _Dropped | None], piece: bytes | None, ended: SimpleQueue[Outcome[None]]
) -> bool:
    """Give a piece to the upload; False if that has failed: its outcome says why."""
    while ended.empty():
        with contextlib.suppress(Full):
            queue.put(piece, timeout=0.2)
            return True
    return False


def _give_up(queue: Queue[bytes | _Dropped | None]) -> None:
    while True:
        try:
            queue.put_nowait(_Dropped())
            return
        except Full:
            with contextlib.suppress(Empty):  # the upload took them just now
                queue.get_nowait()


def _taken(queue: Queue[bytes | _Dropped | None]) -> Iterator[bytes]:
    while (piece := queue.get()) is not None:
        if isinstance(piece, _Dropped):
            raise piece
        yield piece
