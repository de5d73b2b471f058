"""The cache folder: its layout, space accounting, eviction, and errors of the file system.

    FOLDER/flare-1/KEY-SIZE                  a copy: see `entry`
    FOLDER/flare-1/KEY.HOST.PID.N.part       a copy that is being fetched; it has its final size
    FOLDER/flare-1/HOST.PID.N.room           space that a process has reserved for small copies
    FOLDER/flare-1/lock                      locked while space is reserved
    FOLDER/flare-1/here/of.HOST.PID.N.here   locked while a process that uses the folder runs: see `locks`
    FOLDER/flare-1/turns/                    locks of copies that are being fetched: see `locks`

The space used is the total size of these files. Space is reserved before any byte is fetched, so that the total never
exceeds the limit. On file systems without working locks every copy is still correct, but the total may exceed the limit
by the copies that are fetched at the same time, and two processes may fetch the same copy. Parts of processes that have
ended are removed by the next process that lists the folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import math
import os
import stat
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

from flarecli import lifetimes
from flarecli.cache.entry import (
    NAME,
    PREFIX_DIGITS,
    Entry,
    OpenCopies,
    mapped_copy,
    open_copy,
    read_note,
)
from flarecli.cache.locks import (
    FOLDER_FLAGS,
    NEW_FILE_FLAGS,
    Presence,
    Turns,
    held,
    holder,
    host,
    is_abandoned,
    locked_within,
)
from flarecli.errors import ReachError
from flarecli.names import whole_path

__all__ = [
    "BATCH_SHARE",
    "LAYOUT",
    "MANY_COPIES",
    "CacheWarning",
    "CachedCopy",
    "Folder",
    "NamedFiles",
    "Part",
    "least_recently_used_first",
    "list_copies",
    "shared",
]

LAYOUT = "flare-1"
MANY_COPIES = 512  # above this number of copies, listings are avoided
BATCH_SHARE = 32  # with many copies, limit / BATCH_SHARE bytes are evicted at a time
_MAX_NAMES = 1 << 12  # above, a listing takes longer than a request for a version
_LISTING_S = 0.25  # how long a listing is reused by the only process that uses the folder
_MAX_DAMAGED = 2  # a copy that was damaged this often is not written again
_MAX_DAMAGED_NAMES = 1 << 12  # damaged copies that are counted
# Maximum space reserved at a time for small copies: in bytes, and as a fraction of the limit.
_RESERVE_BYTES, _RESERVE_SHARE = 64 << 20, 64
_LOCK_S, _OTHERS_S = 2.0, 30.0  # time limits: the folder's lock, a fetch by another process
_RETRY_S = 30.0  # delay before a folder is used again after an error
_number = itertools.count()
_warned: set[str] = set()
T = TypeVar("T", str, int)


class CacheWarning(UserWarning):
    """The cache cannot be used; files are read without it."""


class Folder:
    """A cache folder in this process.

    Methods do not raise: errors disable the cache with one warning.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = os.path.join(os.path.abspath(whole_path(path)), LAYOUT), limit
        self._shown, self._pid, self._fd = path, 0, -1
        self.note: Callable[[str], object] | None = None  # called instead of `warnings.warn`
        self._reserved_fd, self._reserved_bytes = -1, 0
        self._not_before = 0.0
        self._host = host()
        self._presence = Presence(self._host)
        self.open_copies = OpenCopies(self.touch)
        self._threads = threading.Lock()  # so that threads do not poll the lock file
        self._turns, self.prefixes = Turns(), KnownPrefixes()
        self._damage_counts: dict[str, int] = {}

    # -- the folder itself

    @property
    def fd(self) -> int:
        """File descriptor of the folder; -1 while it cannot be used."""
        if self._pid != os.getpid():
            with self._threads:
                # The descriptors of the parent stay open: other threads may be about to use them.
                if self._pid != os.getpid():
                    self._reserved_fd, self._reserved_bytes = -1, 0
                    self._presence = Presence(self._host)
                    self._open()
                    self._pid = os.getpid()
        return self._fd

    def _open(self) -> None:
        try:
            self._fd = self._opened()
        except OSError as error:
            self._fd = -1
            self.warn(_reason(error))

    def _opened(self) -> int:
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        fd = os.open(self.path, FOLDER_FLAGS)
        status = os.fstat(fd)
        # Another user could replace the data.
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(fd)
            self.warn("it belongs to another user, or others may write to it")
            return -1
        self._presence.register(fd)
        return fd

    def close(self) -> None:
        """Close the folder and open copies; the next use opens it again."""
        self.open_copies.clear()
        with self._threads:
            if self._pid == os.getpid():
                self._release_reservation()
                self._presence.unregister()
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd, self._pid = -1, 0

    def is_alone(self) -> bool:
        """Return whether no other running process uses the folder, as far as known."""
        fd = self.fd
        return self._presence.is_alone(fd)

    def warn(self, why: str) -> None:
        """Warn once per folder and process that the cache is not used."""
        self._not_before = time.monotonic() + _RETRY_S
        if self.path not in _warned:
            _warned.add(self.path)
            self._notify(f"the cache in {self._shown} is not used: {why}")

    def _notify(self, text: str) -> None:
        if self.note is not None:
            self.note(text)
        else:
            warnings.warn(text, CacheWarning, stacklevel=3)

    # -- copies

    def view(self, identity: Entry) -> memoryview | None:
        """Return a copy that exists and is undamaged, or None. A damaged copy is removed."""
        view = self.open_copies.get(identity.name)
        if view is not None or self.fd < 0:
            return view
        try:
            view = open_copy(self._fd, identity)
        except ValueError:
            self.remove(identity.name)
            if len(self._damage_counts) >= _MAX_DAMAGED_NAMES:
                self._damage_counts.clear()
            self._damage_counts[identity.name] = self._damage_counts.get(identity.name, 0) + 1
            return None
        if view is not None:
            self.touch(identity.name)
            self.open_copies.put(identity.name, view)
        return view

    def touch(self, name: str) -> bool:
        """Record that a copy is used; return False if it does not exist any longer."""
        try:
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True

    def remove(self, name: str) -> None:
        """Remove a copy, or an empty folder of that name; open maps of it stay valid."""
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except (IsADirectoryError, PermissionError):
                os.rmdir(name, dir_fd=self._fd)

    def may_have(self, prefix: str) -> bool:
        """Return whether a copy of any version may exist; see `entry.name_prefix`."""
        is_alone = self.is_alone()
        return self.prefixes.may_have(self._fd, prefix, is_alone)

    # -- space

    def part(self, identity: Entry, since: float = math.inf) -> Part | None:
        """Reserve space for a copy and create the file for it; None if the copy cannot be kept.

        since  copies used after that time are not evicted
        """
        if (
            self.fd < 0
            or identity.file_bytes > self.limit
            or time.monotonic() < self._not_before
            or self._damage_counts.get(identity.name, 0) >= _MAX_DAMAGED
        ):
            return None
        fd = self._fd
        try:
            try:
                return self._part(identity, since)
            except FileNotFoundError:  # the folder was removed, with the reservations in it
                with self._threads:
                    if self._fd == fd:  # otherwise another thread has done so
                        self._release_reservation()
                        self._open()
                return self._part(identity, since) if self._fd >= 0 else None
        except OSError as error:
            self.warn(_reason(error))
            return None

    def _part(self, identity: Entry, since: float) -> Part | None:
        evicted: list[str] = []
        try:
            with self.locked():
                if not self._reserve(identity.file_bytes, since, evicted):
                    return None
                part = self._make(f"{identity.key}.", "part", identity.file_bytes)
        finally:
            # Unmapped so that the next copy reuses the memory; without the lock, because it is slow.
            for name in evicted:
                self.open_copies.drop(name)
        try:
            if hasattr(os, "posix_fallocate"):
                # Reports a full disk before anything is fetched.
                os.posix_fallocate(part.fd, 0, identity.file_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                part.drop()
                raise
        return part

    def _make(self, start: str, end: str, size: int) -> Part:
        """Create a file of this size, which is locked until this process ends."""
        name = f"{start}{self._host}.{os.getpid()}.{next(_number)}.{end}"
        fd = os.open(name, NEW_FILE_FLAGS, 0o600, dir_fd=self._fd)
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part = Part(self, name, fd)
        try:
            os.ftruncate(fd, size)
        except OSError:
            part.drop()
            raise
        return part

    def _reserve(self, size: int, since: float, evicted: list[str]) -> bool:
        """Find space: reserved by this process, or by evicting copies, whose names are added to `evicted`."""
        if self._reserved_bytes >= size:
            self._reserved_bytes -= size
            os.ftruncate(self._reserved_fd, self._reserved_bytes)
            return True
        used, copies = self._scan()
        has_many = len(copies) > MANY_COPIES
        # With many small copies, reserve space for the next ones too: it saves listings.
        extra = 0
        if has_many and size < self.limit // _RESERVE_SHARE:
            reserve = min(_RESERVE_BYTES, self.limit // _RESERVE_SHARE)
            extra = max(0, reserve - self._reserved_bytes)
        excess = used + size + extra - self.limit
        if excess > 0:
            batch = self.limit // BATCH_SHARE if has_many else 0
            old = [copy for copy in copies if copy[0] < since]
            if since < math.inf and sum(copy_size for _, _, copy_size in old) < excess:
                return False
            excess -= self._evict(old, excess + batch, evicted)
        if excess > extra:
            return False
        if extra and excess <= 0:
            if self._reserved_fd < 0:
                self._reserved_fd = self._make("", "room", 0).fd
            self._reserved_bytes += extra
            os.ftruncate(self._reserved_fd, self._reserved_bytes)
        return True

    def _release_reservation(self) -> None:
        fd, self._reserved_fd, self._reserved_bytes = self._reserved_fd, -1, 0
        if fd >= 0:
            os.close(fd)

    def _scan(self) -> tuple[int, list[tuple[float, str, int]]]:
        """Return the bytes used, and the time of use, name and size of each copy.

        Removes files of processes that have ended, and files whose size does not match their name.
        """
        used, copies = 0, []
        with listing(self.fd) as folder, os.scandir(folder) as files:
            for file in files:
                match = NAME.fullmatch(file.name)
                if match is None:
                    used += self._other_bytes(file.name)
                    continue
                try:
                    status = file.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISREG(status.st_mode) and status.st_size == int(match[2], 16):
                    copies.append((status.st_mtime, file.name, status.st_size))
                    used += status.st_size
                else:
                    self.remove(file.name)
        return used, copies

    def _other_bytes(self, name: str) -> int:
        """Return the size of a file that is not a copy; remove it if its process has ended."""
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return 0
            is_temporary = name.endswith((".part", ".room"))
            if is_temporary and is_abandoned(self._fd, name, status, self._host):
                os.unlink(name, dir_fd=self._fd)
                return 0
        except OSError:
            return 0
        return status.st_size

    def _evict(self, copies: list[tuple[float, str, int]], size: int, evicted: list[str]) -> int:
        """Evict the least recently used copies until `size` bytes are free; return the bytes freed."""
        freed = 0
        for _, name, copy_size in least_recently_used_first(copies):
            if freed >= size:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
                freed += copy_size
            evicted.append(name)
        return freed

    # -- locks: they save work; correctness does not depend on them

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder's lock; continue without it after a time limit."""
        threads = self._threads
        is_mine = threads.acquire(timeout=_LOCK_S)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open("lock", flags, 0o600, dir_fd=self._fd)
            with held(fd):
                locked_within(fd, _LOCK_S)
                yield
        finally:
            if is_mine:
                threads.release()

    def forked(self) -> None:
        """Replace the locks in a forked child: threads of the parent may hold them."""
        self._threads, self._turns, self.prefixes = threading.Lock(), Turns(), KnownPrefixes()
        self.open_copies.forked()

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
            -1 if own else self.fd, key, kind, _OTHERS_S, meanwhile, self._notify_wait
        )

    def _notify_wait(self, fd: int) -> None:
        self._notify(
            f"the cache in {self._shown}: waiting for {holder(fd)}, which fetches the same file"
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
                count = os.pwrite(self.fd, view, self._at)
                view, self._at = view[count:], self._at + count
        except OSError as error:
            self._folder.warn(_reason(error))
            self.drop()
            return False
        return True

    def publish(self, identity: Entry, open_now: bool = False) -> bool:
        """Rename the complete file to the name of its copy; return False on an error.

        open_now  add it to the open copies, without checking it again
        """
        folder = self._folder.fd
        try:
            with self._folder.locked():  # a listing at the same time could miss the file
                os.rename(self._name, identity.name, src_dir_fd=folder, dst_dir_fd=folder)
                self._folder.prefixes.add(identity.name)
        except OSError as error:
            if not isinstance(
                error, FileNotFoundError
            ):  # otherwise another process removed the part
                self._folder.warn(_reason(error))
            self.drop()
            return False
        if open_now:
            with contextlib.suppress(OSError, ValueError):
                self._folder.open_copies.put(identity.name, mapped_copy(self.fd, identity))
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


def _reason(error: OSError) -> str:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    return "the disk is full" if is_full else os.strerror(error.errno or 0).lower()


class KnownPrefixes:
    """Prefixes of the names of all copies, from a listing and the copies that this process adds.

    A copy that another process adds in between may be fetched again.
    """

    def __init__(self) -> None:
        self._known: set[str] | None = None
        self._listed = 0.0
        self._changes = 0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Record a new copy, so that the folder need not be listed again."""
        with self._lock:
            self._changes += 1
            if self._known is not None:
                self._known.add(name[:PREFIX_DIGITS])

    def may_have(self, folder: int, prefix: str, is_alone: bool) -> bool:
        """Return whether a copy of any version may exist. `folder` is a file descriptor."""
        with self._lock:
            changes = self._changes
            is_recent = time.monotonic() - self._listed < _LISTING_S
            if is_alone and self._known is not None and is_recent:
                return prefix[:PREFIX_DIGITS] in self._known
        listed = time.monotonic()
        try:
            with listing(folder) as own:
                names = os.listdir(own)
        except OSError:
            return True
        if len(names) > _MAX_NAMES:
            return True
        known = {name[:PREFIX_DIGITS] for name in names if NAME.fullmatch(name)}
        with self._lock:
            if changes == self._changes:  # otherwise the listing may miss new copies
                self._known, self._listed = known, listed
            return prefix[:PREFIX_DIGITS] in known


@contextlib.contextmanager
def listing(folder: int) -> Iterator[int]:
    """Open a folder again to list it: two listings through one descriptor would share their position."""
    own = os.open(".", FOLDER_FLAGS, dir_fd=folder)
    try:
        yield own
    finally:
        os.close(own)


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


class CachedCopy(NamedTuple):
    """A copy in a cache: address without secrets, part of the file, bytes, and seconds since last use."""

    address: str
    part: str
    size: int
    idle_s: float


def list_copies(path: str) -> Iterator[CachedCopy]:
    """Yield every copy in a cache folder, in any order; nothing if the folder does not exist.

    raises  ReachError for a folder that cannot be listed
    """
    try:
        folder = os.open(os.path.join(path, LAYOUT), FOLDER_FLAGS)
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
                address, part = str(note.get("address", "?")), str(note.get("part", "?"))
                yield CachedCopy(address, part, int(name.partition("-")[2], 16), idle)
    finally:
        os.close(folder)


# -- files that keep their own names


def least_recently_used_first(
    copies: Iterable[tuple[float, T, int]],
) -> list[tuple[float, T, int]]:
    """Sort copies (time of use, name, bytes) by time of use.

    A time in the future is from a wrong clock, and counts as the oldest.
    """
    now = time.time()
    return sorted((used if used <= now + 1 else 0.0, name, size) for used, name, size in copies)


class NamedFiles:
    """The files of a folder that keep their own names, such as the shards of a streamed dataset; others are ignored.

    The folder is listed again only if its modification time differs from the time after the last change of this
    process, so that it is not listed for each file that is added.

    sizes  name -> bytes as listed by the dataset that the files belong to
    """

    def __init__(self, path: str, sizes: Mapping[str, int]) -> None:
        self._path, self._sizes = path, sizes
        self._used, self._changed = 0, -1

    def used(self) -> int:
        """Return the bytes of the files that are in the folder, by their listed sizes."""
        changed = self._mtime_ns()
        if changed != self._changed:
            names = os.listdir(self._path) if changed else []
            self._used, self._changed = sum(self._sizes.get(name, 0) for name in names), changed
        return self._used

    def present(self, names: Iterable[str]) -> int:
        """Return the bytes of those of these files that are in the folder, by their listed sizes."""
        return sum(
            self._sizes[name] for name in names if os.path.exists(os.path.join(self._path, name))
        )

    @contextlib.contextmanager
    def changing(self, names: Iterable[str]) -> Iterator[None]:
        """Add or remove these files inside the block, so that the folder need not be listed for it."""
        names = list(names)
        rest = self.used() - self.present(names)
        yield
        self._used, self._changed = rest + self.present(names), self._mtime_ns()

    def copies(self) -> list[tuple[float, str, int]]:
        """List the files that are in the folder: time of use, name, bytes."""
        copies = []
        changed = self._mtime_ns()
        if changed:
            with os.scandir(self._path) as files:
                for file in files:
                    if file.name in self._sizes:
                        with contextlib.suppress(FileNotFoundError):
                            used = file.stat(follow_symlinks=False).st_mtime
                            copies.append((used, file.name, self._sizes[file.name]))
        self._used, self._changed = sum(size for _, _, size in copies), changed
        return copies

    def _mtime_ns(self) -> int:
        """Return the modification time of the folder; 0 if it does not exist."""
        try:
            return os.stat(self._path).st_mtime_ns
        except FileNotFoundError:
            return 0
