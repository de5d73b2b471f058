"""Locks on files, which save work and never decide what is right.

FOLDER/turns/KIND   its bytes are locked, one for each key of that kind that somebody fetches; it holds none, and stays.

A lock of a byte belongs to an open file, not to a process, so that threads exclude each other too. Where a system has no such locks, a few
files stand for the keys: `turns/KIND.NN`. To make one takes as long as fetching 0.5 MB, and those that were removed lately take longest.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator

__all__ = ["Turns", "held", "locked_within"]

_PAUSE_S = 0.004  # between two looks, at most
_TURNS, _DIGITS, _FEW = "turns", 12, 2  # hex digits of a key that choose its byte, or its file
_OF_BYTES: int | None = (
    getattr(fcntl, "F_OFD_SETLK", None) if struct.calcsize("l") == struct.calcsize("q") else None
)
_BYTE = struct.Struct("hhqqi4x")  # the system's own `flock`: kind, whence, start, length, process


def locked_within(fd: int, seconds: float, byte: int | None = None) -> bool:
    """Lock an open file, or one byte of it, for which so long is waited; False if it is not locked."""
    deadline, pause = time.monotonic() + seconds, 0.0005
    while True:
        try:
            _set(fd, byte, True)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _PAUSE_S)
        except OSError:
            return False


def _set(fd: int, byte: int | None, lock: bool) -> None:
    if byte is None or _OF_BYTES is None:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB if lock else fcntl.LOCK_UN)
    else:
        fcntl.fcntl(
            fd,
            _OF_BYTES,
            _BYTE.pack(fcntl.F_WRLCK if lock else fcntl.F_UNLCK, os.SEEK_SET, byte, 1, 0),
        )


class Turns:
    """Turns by key: of this process's threads, and of all processes that use a folder."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: dict[
            str, tuple[threading.Lock, int]
        ] = {}  # and how many threads have it or wait for it

    @contextlib.contextmanager
    def turn(
        self,
        folder: int,
        key: str,
        kind: str,
        seconds: float,
        meanwhile: Callable[[], object] | None = None,
    ) -> Iterator[None]:
        """Wait so long for those that asked before, then go on in any case.

        folder     open; -1: threads of this process alone take turns
        key        ends in hex digits
        kind       one letter; whoever takes a turn inside another one needs another
        meanwhile  called once if another process has the turn
        """
        with self._of_threads(kind + key, seconds):
            if folder < 0:
                yield
                return
            byte = int(key[-_DIGITS:], 16)
            with _opened(
                folder, kind if _OF_BYTES is not None else f"{kind}.{byte % 16**_FEW:02x}", byte
            ) as fd:
                if fd >= 0 and (meanwhile is None or not locked_within(fd, 0.0, byte)):
                    if meanwhile is not None:
                        meanwhile()
                    locked_within(fd, seconds, byte)
                yield

    @contextlib.contextmanager
    def _of_threads(self, key: str, seconds: float) -> Iterator[None]:
        """Wait for this process's own threads: they need not ask the file system again and again whose turn it is."""
        self._count(key, 1)
        is_mine = self._taken[key][0].acquire(timeout=seconds)
        try:
            yield
        finally:
            if is_mine:
                self._taken[key][0].release()
            self._count(key, -1)

    def _count(self, key: str, more: int) -> None:
        with self._lock:
            lock, threads = self._taken.get(key) or (threading.Lock(), 0)
            self._taken[key] = lock, threads + more
            if threads + more == 0:
                del self._taken[key]


@contextlib.contextmanager
def held(fd: int, byte: int | None = None) -> Iterator[None]:
    """Give up the lock of a file or a byte at the end of the block, and close the file: a child that was forked meanwhile has it open still."""
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            _set(fd, byte, False)
        os.close(fd)


@contextlib.contextmanager
def _opened(folder: int, name: str, byte: int) -> Iterator[int]:
    for _ in range(2):
        try:
            fd = os.open(
                f"{_TURNS}/{name}",
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
        except FileNotFoundError:
            with contextlib.suppress(OSError):
                os.mkdir(_TURNS, 0o700, dir_fd=folder)
        except OSError:
            break
        else:
            with held(fd, byte):
                yield fd
            return
    yield -1
