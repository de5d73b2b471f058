"""Uploads to object stores: one request for small objects, multipart uploads for large ones.

An object appears only when its upload is complete. The caller's thread iterates over the parts; the
upload runs on another thread, so that an interrupt aborts it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from itertools import chain
from queue import Empty, Full, Queue

from flarecli.hashes import Sums
from flarecli.prefetch import result_interruptibly, run_interruptibly, submit
from flarecli.storage.base import Part
from flarecli.storage.ranges import REQUEST_BYTES

__all__ = ["AHEAD", "upload"]

AHEAD = 4  # pieces in flight
_GRACE_S = 2.0  # time limit for aborting an upload


class _AbortedError(Exception):
    """Raised inside the upload when the caller's parts raise: it must not complete."""


def upload(
    parts: Iterable[Part],
    sums: Sums,
    put_whole: Callable[[bytes], None],
    put_pieces: Callable[[Iterator[bytes]], None],
) -> None:
    """Write all parts and compute their checksums in the same pass.

    One of the two functions is called, once, usually on another thread.

    put_whole   writes at most REQUEST_BYTES bytes in one request
    put_pieces  writes pieces of REQUEST_BYTES bytes, the last one shorter; writes nothing if their
                iterator raises
    """
    pieces = _pieces(parts, sums)
    first = next(pieces, b"")
    second = next(pieces, None)
    if second is None:
        run_interruptibly(lambda: put_whole(first))
        return
    queue: Queue[bytes | _AbortedError | None] = Queue(2)
    upload = submit(lambda: put_pieces(_pieces_of(queue)))
    try:
        for piece in chain((first, second), pieces, (None,)):
            if not _put(queue, piece, upload):
                break
        result_interruptibly(upload)
    except BaseException:
        _abort(queue)
        wait([upload], _GRACE_S)  # the upload deletes the pieces that it has written
        raise


def _pieces(parts: Iterable[Part], sums: Sums) -> Iterator[bytes]:
    """Split parts of any size into pieces of REQUEST_BYTES bytes."""
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


def _put(
    queue: Queue[bytes | _AbortedError | None], piece: bytes | None, upload: Future[None]
) -> bool:
    """Put a piece on the queue of the upload; return False if the upload has ended."""
    while not upload.done():
        with contextlib.suppress(Full):
            queue.put(piece, timeout=0.2)
            return True
    return False


def _abort(queue: Queue[bytes | _AbortedError | None]) -> None:
    while True:
        try:
            queue.put_nowait(_AbortedError())
            return
        except Full:
            with contextlib.suppress(Empty):  # the upload has just taken a piece
                queue.get_nowait()


def _pieces_of(queue: Queue[bytes | _AbortedError | None]) -> Iterator[bytes]:
    while (piece := queue.get()) is not None:
        if isinstance(piece, _AbortedError):
            raise piece
        yield piece
