"""The cache folder: its layout, space accounting, eviction, and errors of the file system.

    FOLDER/flare-1/KEY-SIZE                  a copy: see `entry`
    FOLDER/flare-1/KEY.HOST.PID.N.part       a copy that is being fetched; it has its final size
    FOLDER/flare-1/HOST.PID.N.room           space that a process has reserved for small copies
    FOLDER/flare-1/lock                      locked while space is reserved
    FOLDER/flare-1/here/of.HOST.PID.N.here   locked while a process that uses the folder runs
    FOLDER/flare-1/turns/                    locks of copies that are being fetched: see `locks`

The space used is the total size of these files. Space is reserved before any byte is fetched, so
that the total never exceeds the limit. On file systems without working locks every copy is still
correct, but the total may exceed the limit by the copies that are fetched at the same time, and two
processes may fetch the same copy. Parts of processes that have ended are removed by the next
process that lists the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import itertools
import math
import os
import socket
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import NamedTuple

from flarecli import lifetimes
from flarecli.cache.entry import NAME, PLACE, Entry, opened, read_note, viewed
from flarecli.cache.locks import Turns, held, holder, locked_within
from flarecli.cache.named import BATCH_SHARE, MANY, coldest_first
from flarecli.cache.open_entries import Views
from flarecli.errors import ReachError
from flarecli.names import whole_path

__all__ = ["LAYOUT", "CacheWarning", "Folder", "Kept", "Part", "kept", "shared"]

_YOUNG_S = 5.0  # younger parts are kept although their lock is free
_OLD_S = 3600.0  # younger parts are kept where locks do not work


def host() -> str:
    """Return an identifier of this machine, boot and process namespace, in which process ids are
    valid.
    """
    words = [socket.gethostname()]
    with contextlib.suppress(OSError):
        words.append(os.readlink("/proc/self/ns/pid"))
    with (
        contextlib.suppress(OSError),
        open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file,
    ):
        words.append(file.read())
    return hashlib.sha256("\0".join(words).encode()).hexdigest()[:8]


def is_left(folder: int, name: str, found: os.stat_result, own: str) -> bool:
    """Return whether the process that created a part or a reservation has ended.

    folder  file descriptor of the folder
    own     result of `host`
    """
    words = name.split(".")
    if len(words) >= 4 and words[-4] == own and words[-3].isdecimal():
        try:
            os.kill(int(words[-3]), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # the id belongs to another user's process now; the lock decides
            pass
    age = abs(time.time() - found.st_mtime)  # a clock may jump
    if age < _YOUNG_S:
        return False
    try:
        fd = os.open(name, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # locks do not work here
        return age > _OLD_S
    finally:
        os.close(fd)
    return True


_HERE = "here"
_ALONE_S = 0.25  # how long the count of other processes is reused
_number_here = itertools.count()


class Present:
    """Tracks which processes use a folder. `host` is the result of `host()`."""

    def __init__(self, host: str) -> None:
        self._host, self._fd, self._others, self._looked = host, -1, 0, 0.0

    def arrive(self, folder: int) -> None:
        """Register this process until it ends. `folder` is a file descriptor."""
        if self._fd >= 0:  # the folder was removed, and this one is new
            os.close(self._fd)
            self._fd = -1
        with contextlib.suppress(OSError):
            with contextlib.suppress(FileExistsError):
                os.mkdir(_HERE, 0o700, dir_fd=folder)
            name = f"{_HERE}/of.{self._host}.{os.getpid()}.{next(_number_here)}.here"
            self._fd = os.open(
                name,
                os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=folder,
            )
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def leave(self) -> None:
        """Unregister this process."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def is_alone(self, folder: int) -> bool:
        """Return whether no other running process uses the folder; False if registering failed."""
        now = time.monotonic()
        if now - self._looked > _ALONE_S:
            self._others, self._looked = self._count(folder), now
        return self._fd >= 0 and not self._others

    def _count(self, folder: int) -> int:
        others = 0
        try:
            fd = os.open(
                _HERE, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder
            )
        except OSError:
            return 1
        try:
            for name in os.listdir(fd):
                if name.startswith(f"of.{self._host}.{os.getpid()}."):
                    continue
                with contextlib.suppress(FileNotFoundError):
                    if is_left(
                        fd, name, os.stat(name, dir_fd=fd, follow_symlinks=False), self._host
                    ):
                        os.unlink(name, dir_fd=fd)
                    else:
                        others += 1
        except OSError:
            return 1
        finally:
            os.close(fd)
        return others


_MAX_NAMES = 1 << 12  # above, a listing takes longer than a request for a version
_BELIEVED_S = 0.25  # how long a listing is reused by the only process that uses the folder


class Places:
    """Prefixes of the names of all copies, from a listing and the copies that this process adds.

    A copy that another process adds in between may be fetched again.
    """

    def __init__(self) -> None:
        self._known: set[str] | None = None
        self._listed = 0.0
        self._changes = 0
        self._lock = threading.Lock()

    def added(self, place: str) -> None:
        """Record a new copy, which saves a new listing."""
        with self._lock:
            self._changes += 1
            if self._known is not None:
                self._known.add(place[:PLACE])

    def may_hold(self, folder: int, place: str, is_alone: bool) -> bool:
        """Return whether a copy of any version may exist. `folder` is a file descriptor."""
        with self._lock:
            before = self._changes
            if (
                is_alone
                and self._known is not None
                and time.monotonic() - self._listed < _BELIEVED_S
            ):
                return place[:PLACE] in self._known
        listed = time.monotonic()
        try:
            with listing(folder) as own:
                names = os.listdir(own)
        except OSError:
            return True
        if len(names) > _MAX_NAMES:
            return True
        known = {name[:PLACE] for name in names if NAME.fullmatch(name)}
        with self._lock:
            if before == self._changes:  # otherwise the listing may miss new copies
                self._known, self._listed = known, listed
            return place[:PLACE] in known


@contextlib.contextmanager
def listing(folder: int) -> Iterator[int]:
    """Open a folder again to list it: two listings through one descriptor would share their
    position.
    """
    own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield own
    finally:
        os.close(own)


LAYOUT = "flare-1"
_MAX_DAMAGED = 2  # a copy that was damaged this often is not written again
_MAX_DAMAGED_NAMES = 1 << 12  # damaged copies that are counted
_ROOM = 64 << 20  # maximum space reserved at a time for small copies, and
_ROOM_SHARE = 64  # the same as a fraction of the limit: 1 / _ROOM_SHARE
_LOCK_S, _OTHERS_S = 2.0, 30.0  # time limits: the folder's lock, a fetch by another process
_AGAIN_S = 30.0  # delay before a folder is used again after an error
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_number = itertools.count()
_warned: set[str] = set()


class CacheWarning(UserWarning):
    """The cache cannot be used; files are read without it."""


class Folder:
    """A cache folder in this process.

    Methods do not raise: errors disable the cache with one warning.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = os.path.join(os.path.abspath(whole_path(path)), LAYOUT), limit
        self._given, self._pid, self._fd = path, 0, -1
        self.note: Callable[[str], object] | None = None  # called instead of `warnings.warn`
        self._room, self._room_bytes = -1, 0
        self._not_before = 0.0
        self._host = host()
        self._present = Present(self._host)
        self.views = Views(self.touch)
        self._threads = threading.Lock()  # so that threads do not poll the lock file
        self._turns, self.places = Turns(), Places()
        self._wrong: dict[str, int] = {}  # name -> how often that copy was damaged

    # -- the folder itself

    @property
    def fd(self) -> int:
        """File descriptor of the folder; -1 while it cannot be used."""
        if self._pid != os.getpid():
            with self._threads:
                # The descriptors of the parent stay open: other threads may be about to use them.
                if self._pid != os.getpid():
                    self._room, self._room_bytes = -1, 0
                    self._present = Present(self._host)
                    self._open()
                    self._pid = os.getpid()
        return self._fd

    def _open(self) -> None:
        try:
            self._fd = self._opened()
        except OSError as error:
            self._fd = -1
            self.warn(_words(error))

    def _opened(self) -> int:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        fd = os.open(self.path, _FOLDER)
        found = os.fstat(fd)
        # another user could replace the data
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            os.close(fd)
            self.warn("it belongs to another user, or others may write to it")
            return -1
        self._present.arrive(fd)
        return fd

    def close(self) -> None:
        """Close the folder and open copies; the next use opens it again."""
        self.views.clear()
        with self._threads:
            if self._pid == os.getpid():
                self._give_up_room()
                self._present.leave()
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd, self._pid = -1, 0

    def is_alone(self) -> bool:
        """Return whether no other running process uses the folder, as far as known."""
        fd = self.fd
        return self._present.is_alone(fd)

    def warn(self, why: str) -> None:
        """Warn once per folder and process that the cache is not used."""
        self._not_before = time.monotonic() + _AGAIN_S
        if self.path not in _warned:
            _warned.add(self.path)
            self._tell(f"the cache in {self._given} is not used: {why}")

    def _tell(self, text: str) -> None:
        if self.note is not None:
            self.note(text)
        else:
            warnings.warn(text, CacheWarning, stacklevel=3)

    # -- copies

    def view(self, one: Entry) -> memoryview | None:
        """Return a copy that exists and is undamaged, or None. A damaged copy is removed."""
        view = self.views.get(one.name)
        if view is not None or self.fd < 0:
            return view
        try:
            view = opened(self._fd, one)
        except ValueError:
            self.remove(one.name)
            if len(self._wrong) >= _MAX_DAMAGED_NAMES:
                self._wrong.clear()
            self._wrong[one.name] = self._wrong.get(one.name, 0) + 1
            return None
        if view is not None:
            self.touch(one.name)
            self.views.put(one.name, view)
        return view

    def touch(self, name: str) -> bool:
        """Record that a copy is used; return False if it does not exist any longer."""
        try:
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def remove(self, name: str) -> None:
        """Remove a copy, or an empty folder of that name; open maps of it stay valid."""
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except (IsADirectoryError, PermissionError):
                os.rmdir(name, dir_fd=self._fd)

    def may_hold(self, place: str) -> bool:
        """Return whether a copy of any version may exist."""
        is_alone = self.is_alone()
        return self.places.may_hold(self._fd, place, is_alone)

    # -- space

    def part(self, one: Entry, since: float = math.inf) -> Part | None:
        """Reserve space for a copy and create the file for it; None if the copy cannot be kept.

        since  copies used after that time are not evicted
        """
        if (
            self.fd < 0
            or one.file_bytes > self.limit
            or time.monotonic() < self._not_before
            or self._wrong.get(one.name, 0) >= _MAX_DAMAGED
        ):
            return None
        fd = self._fd
        try:
            try:
                return self._part(one, since)
            except FileNotFoundError:  # the folder was removed, with the reservations in it
                with self._threads:
                    if self._fd == fd:  # otherwise another thread has done so
                        self._give_up_room()
                        self._open()
                return self._part(one, since) if self._fd >= 0 else None
        except OSError as error:
            self.warn(_words(error))
            return None

    def _part(self, one: Entry, since: float) -> Part | None:
        gone: list[str] = []
        try:
            with self.locked():
                if not self._take(one.file_bytes, since, gone):
                    return None
                part = self._make(f"{one.key}.", "part", one.file_bytes)
        finally:
            # Unmapped so that the next copy reuses the memory; without the lock, because it is
            # slow.
            for name in gone:
                self.views.drop(name)
        try:
            if hasattr(os, "posix_fallocate"):
                # Reports a full disk before anything is fetched.
                os.posix_fallocate(part.fd, 0, one.file_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                part.drop()
                raise
        return part

    def _make(self, start: str, end: str, size: int) -> Part:
        """Create a file of this size, which is locked until this process ends."""
        name = f"{start}{self._host}.{os.getpid()}.{next(_number)}.{end}"
        fd = os.open(
            name,
            os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
            0o600,
            dir_fd=self._fd,
        )
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part = Part(self, name, fd)
        try:
            os.ftruncate(fd, size)
        except OSError:
            part.drop()
            raise
        return part

    def _take(self, size: int, since: float, gone: list[str]) -> bool:
        """Find space: reserved by this process, or by evicting copies, whose names are added to
        `gone`.
        """
        if self._room_bytes >= size:
            self._room_bytes -= size
            os.ftruncate(self._room, self._room_bytes)
            return True
        used, copies = self._look()
        room = (
            min(_ROOM, self.limit // _ROOM_SHARE)
            if len(copies) > MANY and size < self.limit // _ROOM_SHARE
            else 0
        )
        wanted = max(0, room - self._room_bytes)
        excess = used + size + wanted - self.limit
        if excess > 0:
            batch = self.limit // BATCH_SHARE if len(copies) > MANY else 0
            old = [one for one in copies if one[0] < since]
            if since < math.inf and sum(size for _, _, size in old) < excess:
                return False
            excess -= self._let_go(old, excess + batch, gone)
        if excess > wanted:
            return False
        if wanted and excess <= 0:
            if self._room < 0:
                self._room = self._make("", "room", 0).fd
            self._room_bytes += wanted
            os.ftruncate(self._room, self._room_bytes)
        return True

    def _give_up_room(self) -> None:
        room, self._room, self._room_bytes = self._room, -1, 0
        if room >= 0:
            os.close(room)

    def _look(self) -> tuple[int, list[tuple[float, str, int]]]:
        """Return the bytes used, and the time of use, name and size of each copy.

        Removes files of processes that have ended, and files whose size does not match their name.
        """
        used, copies = 0, []
        with listing(self.fd) as folder, os.scandir(folder) as files:
            for file in files:
                match = NAME.fullmatch(file.name)
                if match is None:
                    used += self._left(file.name)
                    continue
                try:
                    found = file.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(found.st_mode) and found.st_size == int(match[2], 16):
                    copies.append((found.st_mtime, file.name, found.st_size))
                    used += found.st_size
                else:
                    self.remove(file.name)
        return used, copies

    def _left(self, name: str) -> int:
        """Return the size of a file that is not a copy; remove it if its process has ended."""
        try:
            found = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if (
                name.endswith((".part", ".room"))
                and stat.S_ISREG(found.st_mode)
                and is_left(self._fd, name, found, self._host)
            ):
                os.unlink(name, dir_fd=self._fd)
                return 0
            return found.st_size if stat.S_ISREG(found.st_mode) else 0
        except OSError:
            return 0

    def _let_go(self, copies: list[tuple[float, str, int]], wanted: int, gone: list[str]) -> int:
        """Evict the least recently used copies until `wanted` bytes are free; return the bytes
        freed.
        """
        freed = 0
        for _, name, size in coldest_first(copies):
            if freed >= wanted:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
                freed += size
            gone.append(name)
        return freed

    # -- locks: they save work; correctness does not depend on them

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock; continue without it after a time limit."""
        threads = self._threads
        is_mine = threads.acquire(timeout=_LOCK_S)
        try:
            fd = os.open(
                "lock",
                os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
                dir_fd=self._fd,
            )
            with held(fd):
                locked_within(fd, _LOCK_S)
                yield
        finally:
            if is_mine:
                threads.release()

    def forked(self) -> None:
        """Replace the locks in a forked child: threads of the parent may hold them."""
        self._threads, self._turns, self.places = threading.Lock(), Turns(), Places()
        self.views.forked()

    def turn(
        self,
        key: str,
        kind: str = "b",
        meanwhile: Callable[[], object] | None = None,
        own: bool = False,
    ) -> AbstractContextManager[None]:
        """Wait while others fetch the same key, up to a time limit; see `Turns.turn`.

        meanwhile  called while waiting
        own        the copy is for this process alone; do not wait for other processes
        """
        return self._turns.turn(
            -1 if own else self.fd, key, kind, _OTHERS_S, meanwhile, self._note_holder
        )

    def _note_holder(self, fd: int) -> None:
        self._tell(
            f"the cache in {self._given}: waiting for {holder(fd)}, which fetches the same file"
        )


class Part:
    """A file that a copy is fetched into; it is renamed when it is complete."""

    def __init__(self, folder: Folder, name: str, fd: int) -> None:
        self._folder, self._name, self.fd, self._at, self._pid = folder, name, fd, 0, os.getpid()

    def write(self, data: bytes | memoryview) -> bool:
        """Write the next bytes; on an error, remove the file and return False."""
        view = memoryview(data)
        try:
            while view:
                done = os.pwrite(self.fd, view, self._at)
                view, self._at = view[done:], self._at + done
        except OSError as error:
            self._folder.warn(_words(error))
            self.drop()
            return False
        return True

    def publish(self, one: Entry, at_hand: bool = False) -> bool:
        """Rename the complete file to the name of its copy; return False on an error.

        at_hand  map the copy now, without checking it again
        """
        folder = self._folder.fd
        try:
            with self._folder.locked():  # a listing at the same time could miss the file
                os.rename(self._name, one.name, src_dir_fd=folder, dst_dir_fd=folder)
                self._folder.places.added(one.name)
        except OSError as error:
            # otherwise another process removed the part
            if not isinstance(error, FileNotFoundError):
                self._folder.warn(_words(error))
            self.drop()
            return False
        if at_hand:
            with contextlib.suppress(OSError, ValueError):
                self._folder.views.put(one.name, viewed(self.fd, one))
        self._close()
        return True

    def drop(self) -> None:
        """Remove the file; a forked child only closes it, because the parent still writes it."""
        if self.fd >= 0:
            if self._pid == os.getpid():
                self._folder.remove(self._name)
            self._close()

    def _close(self) -> None:
        os.close(self.fd)
        self.fd = -1


def _words(error: OSError) -> str:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full" if full else os.strerror(error.errno or 0).lower()


_folders: dict[tuple[str, int], Folder] = {}
_lock_of_folders = threading.Lock()


def shared(path: str, limit: int) -> Folder:
    """Return the `Folder` that this process shares for a path."""
    with _lock_of_folders:
        return _folders.setdefault((os.path.abspath(whole_path(path)), limit), Folder(path, limit))


def _forked() -> None:
    global _lock_of_folders
    _lock_of_folders = threading.Lock()
    for folder in _folders.values():
        folder.forked()


def close_shared() -> None:
    """Close the folders that this process uses."""
    with _lock_of_folders:
        open_folders = [*_folders.values()]
    for folder in open_folders:
        folder.close()


lifetimes.register("cache folders", close_shared)
os.register_at_fork(after_in_child=_forked)


class Kept(NamedTuple):
    """A copy in a cache: address without secrets, part of the file, bytes, and seconds since last
    use.
    """

    address: str
    part: str
    size: int
    idle_s: float


def kept(path: str) -> Iterator[Kept]:
    """Yield every copy in a cache folder, in any order; nothing if there is no such folder.

    raises  ReachError for a folder that cannot be listed
    """
    try:
        folder = os.open(
            os.path.join(path, LAYOUT), os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        )
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReachError(
            error.strerror or str(error),
            where=path,
            hint="Name a folder that was used as --cache.",
        ) from None
    try:
        now = time.time()
        for name in os.listdir(folder):
            if not NAME.fullmatch(name):
                continue
            with contextlib.suppress(OSError):
                note = read_note(folder, name)
                idle = max(0.0, now - os.stat(name, dir_fd=folder).st_mtime)
                yield Kept(
                    str(note.get("address", "?")),
                    str(note.get("part", "?")),
                    int(name.partition("-")[2], 16),
                    idle,
                )
    finally:
        os.close(folder)
