"""The folder of kept copies: room in it, what leaves first, and what to do when it cannot be used.

    FOLDER/flare-1/KEY-SIZE                  a copy: see `entry`
    FOLDER/flare-1/KEY.HOST.PID.N.part       one that is being fetched, from the first moment as large as it will be
    FOLDER/flare-1/HOST.PID.N.room           room that a process has taken for many small ones, as large as what is left of it
    FOLDER/flare-1/lock                      held for the moment in which room is taken
    FOLDER/flare-1/here/of.HOST.PID.N.here   locked while a process that uses the folder lives
    FOLDER/flare-1/turns/                    whose turn it is to fetch a copy: see `locks`

What is used is the sum of the sizes of these files, nothing else: parts and room are there before a byte is fetched, so that
the sum never passes the limit. Locks make that exact and keep two processes from fetching the same; where a file system's
locks do not work, every copy is still right, and the folder may pass its limit by the largest copies that its processes
fetch at one moment. Parts whose process is gone are removed by whoever looks next.
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

_YOUNG_S, _OLD_S = (
    5.0,
    3600.0,
)  # a part whose lock is free is left alone so long; one whose lock says nothing, so long


def host() -> str:
    """Tell this machine, boot and process namespace from others: only here does a process id mean a process."""
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
    """Say whether the process that made a part, or took room, is gone. `folder` is open, `own` what `host` gives."""
    words = name.split(".")
    if len(words) >= 4 and words[-4] == own and words[-3].isdecimal():
        try:
            os.kill(int(words[-3]), 0)
        except (ProcessLookupError, OverflowError):
            return True
        except OSError:  # the number is another user's process by now: the lock tells
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
    except OSError:  # locks say nothing here
        return age > _OLD_S
    finally:
        os.close(fd)
    return True


_HERE = "here"
_ALONE_S = 0.25  # how long it is believed that nobody else is there
_number_here = itertools.count()


class Present:
    """The processes at one folder, as this one sees them. `host` is what `left.host` gives."""

    def __init__(self, host: str) -> None:
        self._host, self._fd, self._others, self._looked = host, -1, 0, 0.0

    def arrive(self, folder: int) -> None:
        """Note that this process is here, as long as it lives. `folder` is open."""
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
        """Stop being counted."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def is_alone(self, folder: int) -> bool:
        """Say whether no other process that lives is here; never where this one could not be noted."""
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


_MAX_NAMES = (
    1 << 12
)  # from so many files on, looking at all names costs more than asking a server for a version
_BELIEVED_S = 0.25  # how long a listing is believed by a process that is alone at the folder


class Places:
    """The places of copies, as a listing says. This process tells when it adds one; others that come meanwhile cost a fetch at worst."""

    def __init__(self) -> None:
        self._known: set[str] | None = None
        self._listed = 0.0
        self._changes = 0
        self._lock = threading.Lock()

    def added(self, place: str) -> None:
        """Say that there is a copy more: to list all names again for each would cost more than the copy, where there are thousands."""
        with self._lock:
            self._changes += 1
            if self._known is not None:
                self._known.add(place[:PLACE])

    def may_hold(self, folder: int, place: str, is_alone: bool) -> bool:
        """Say whether there may be a copy, of whatever version, whose name begins so. `folder` is open."""
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
            if before == self._changes:  # else it may miss what came meanwhile
                self._known, self._listed = known, listed
            return place[:PLACE] in known


@contextlib.contextmanager
def listing(folder: int) -> Iterator[int]:
    """Open an open folder once more, to list it: two listings by one handle share its place, and each would miss what the other was given."""
    own = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
    try:
        yield own
    finally:
        os.close(own)


LAYOUT = "flare-1"
_TWICE, _MANY_WRONG = (
    2,
    1 << 12,
)  # a copy that was wrong so often is made no more; names remembered for that
_ROOM = 64 << 20  # room taken at once, at most, and
_ROOM_SHARE = 64  # this part of the limit at most
_LOCK_S, _OTHERS_S = 2.0, 30.0  # how long the lock, and another's fetch, are waited for
_AGAIN_S = 30.0  # a folder that could not be written is left alone so long
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_number = itertools.count()
_warned: set[str] = set()


class CacheWarning(UserWarning):
    """A cache that cannot be used; everything is read as if there were none."""


class Folder:
    """A cache's folder as one process sees it. Nothing here raises: what cannot be done is not done, and warned of once."""

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = os.path.join(os.path.abspath(whole_path(path)), LAYOUT), limit
        self._given, self._pid, self._fd = path, 0, -1
        self.note: Callable[[str], object] | None = None  # instead of `warnings.warn`
        self._room, self._room_bytes = -1, 0
        self._not_before = 0.0
        self._host = host()
        self._present = Present(self._host)
        self.views = Views(self.touch)
        self._threads = (
            threading.Lock()
        )  # those of this process need not ask the file system again and again whose turn it is
        self._turns, self.places = Turns(), Places()
        self._wrong: dict[str, int] = {}  # name -> how often that copy was found wrong

    # -- the folder itself

    @property
    def fd(self) -> int:
        """The open folder; -1 while it cannot be used."""
        if self._pid != os.getpid():
            with self._threads:
                if (
                    self._pid != os.getpid()
                ):  # what a parent had open stays so: other threads may be about to use it
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
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:  # another user could feed us data
            os.close(fd)
            self.warn("it belongs to another user, or others may write to it")
            return -1
        self._present.arrive(fd)
        return fd

    def close(self) -> None:
        """Close the folder and forget open copies; the next use opens it again."""
        self.views.clear()
        with self._threads:
            if self._pid == os.getpid():
                self._give_up_room()
                self._present.leave()
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd, self._pid = -1, 0

    def is_alone(self) -> bool:
        """Say whether no other process that lives uses the folder, as far as that can be told."""
        fd = self.fd
        return self._present.is_alone(fd)

    def warn(self, why: str) -> None:
        """Say once, for each folder and process, that the cache is not used."""
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
        """Give a copy that is there and right. One that is wrong is removed."""
        view = self.views.get(one.name)
        if view is not None or self.fd < 0:
            return view
        try:
            view = opened(self._fd, one)
        except ValueError:
            self.remove(one.name)
            if len(self._wrong) >= _MANY_WRONG:
                self._wrong.clear()
            self._wrong[one.name] = self._wrong.get(one.name, 0) + 1
            return None
        if view is not None:
            self.touch(one.name)
            self.views.put(one.name, view)
        return view

    def touch(self, name: str) -> bool:
        """Note that a copy is used; False if it is gone."""
        try:
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            return True
        return True

    def remove(self, name: str) -> None:
        """Remove a copy, or what stands in its place; whoever reads it goes on reading."""
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except (IsADirectoryError, PermissionError):
                os.rmdir(name, dir_fd=self._fd)

    def may_hold(self, place: str) -> bool:
        """Say whether there may be a copy, of whatever version, whose name begins so."""
        is_alone = self.is_alone()
        return self.places.may_hold(self._fd, place, is_alone)

    # -- room

    def part(self, one: Entry, since: float = math.inf) -> Part | None:
        """Take room for a copy, and make the file that it is fetched into. None if it cannot be kept.

        since  copies that were used after that time do not leave for it
        """
        if (
            self.fd < 0
            or one.file_bytes > self.limit
            or time.monotonic() < self._not_before
            or self._wrong.get(one.name, 0) >= _TWICE
        ):
            return None
        fd = self._fd
        try:
            try:
                return self._part(one, since)
            except (
                FileNotFoundError
            ):  # somebody removed the folder, and what room was taken there: it is made anew
                with self._threads:
                    if self._fd == fd:  # else another thread has done so
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
            for name in gone:  # else its memory would be held, and the next copy be written into fresh memory: 4 times as slow
                self.views.drop(
                    name
                )  # not under the lock: giving back the memory of a large one takes a while
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(
                    part.fd, 0, one.file_bytes
                )  # a full disk is noticed before anything is fetched
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                part.drop()
                raise
        return part

    def _make(self, start: str, end: str, size: int) -> Part:
        """Make a file of this size that no other process has; it is locked while this one lives."""
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
        """Find room, of this process's own or by letting the coldest go, whose names are added to `gone`."""
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
        """Give the bytes used, and each copy with its time of use and size; remove what dead processes left, and what only has a copy's name."""
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
        """Give the size of a file that is no copy; one that its process has left behind is removed."""
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
        """Remove the coldest copies until so many bytes are free; return the bytes freed."""
        freed = 0
        for _, name, size in coldest_first(copies):
            if freed >= wanted:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
                freed += size
            gone.append(name)
        return freed

    # -- locks, which save work and never decide what is right

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock, or go on without it after a while."""
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
        """In a child: another thread of the parent may have had the locks."""
        self._threads, self._turns, self.places = threading.Lock(), Turns(), Places()
        self.views.forked()

    def turn(
        self,
        key: str,
        kind: str = "b",
        meanwhile: Callable[[], object] | None = None,
        own: bool = False,
    ) -> AbstractContextManager[None]:
        """Wait, for a while, while others fetch something of the same key, and do something meanwhile; see `Turns.turn`.

        own  what is fetched is for this process alone, so that others are not asked
        """
        return self._turns.turn(
            -1 if own else self.fd, key, kind, _OTHERS_S, meanwhile, self._note_holder
        )

    def _note_holder(self, fd: int) -> None:
        self._tell(
            f"the cache in {self._given}: waiting for {holder(fd)}, which fetches the same file"
        )


class Part:
    """A file that a copy is fetched into; its name is no copy's."""

    def __init__(self, folder: Folder, name: str, fd: int) -> None:
        self._folder, self._name, self.fd, self._at, self._pid = folder, name, fd, 0, os.getpid()

    def write(self, data: bytes | memoryview) -> bool:
        """Write the next bytes; False, and the part is dropped, if that fails."""
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
        """Give the whole file its own name, and have what was just summed and written at hand if asked; False if that fails."""
        folder = self._folder.fd
        try:
            with self._folder.locked():  # a listing that somebody takes room by could miss a file that changes its name meanwhile
                os.rename(self._name, one.name, src_dir_fd=folder, dst_dir_fd=folder)
                self._folder.places.added(one.name)
        except OSError as error:
            if not isinstance(error, FileNotFoundError):  # else somebody took this process for dead
                self._folder.warn(_words(error))
            self.drop()
            return False
        if at_hand:
            with contextlib.suppress(OSError, ValueError):
                self._folder.views.put(one.name, viewed(self.fd, one))
        self._close()
        return True

    def drop(self) -> None:
        """Remove the file; a forked process only lets go of it, since its parent goes on."""
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
    """Give the process's own view of a folder."""
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
    """A copy in a cache: the address without secrets, what of it, its bytes, and the seconds since it was last used."""

    address: str
    part: str
    size: int
    idle_s: float


def kept(path: str) -> Iterator[Kept]:
    """Give every copy in a cache's folder, in no order; nothing where there is none.

    raises  ReachError for a folder that cannot be looked at
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
            hint="Name a folder that was given as --cache before.",
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
