"""The cache folder: layout, space accounting, eviction, and file system errors.

    FOLDER/flare-1/KEY-SIZE                  a copy; see `entry`
    FOLDER/flare-1/KEY.HOST.PID.N.part       a copy that is being fetched; it already has its final
                                             size
    FOLDER/flare-1/HOST.PID.N.room           space that a process has reserved for small copies
    FOLDER/flare-1/lock                      locked while space is reserved or a copy is renamed
    FOLDER/flare-1/here/of.HOST.PID.N.here   locked as long as a process uses the folder; see
                                             `locks`
    FOLDER/flare-1/turns/                    locks for copies that are being fetched; see `locks`

The used space is the total size of these files. Space is reserved before a file is fetched, so that
the total never exceeds the limit. On file systems without working locks, every copy is still
correct, but two processes may fetch the same copy, and the total may exceed the limit by the size
of the copies that are being fetched. A process that needs more space first removes the `.part` and
`.room` files of processes that have ended.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import math
import os
import stat
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
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
from flarecli.storage import descriptors

__all__ = [
    "BATCH_SHARE",
    "MANY_COPIES",
    "CacheWarning",
    "CachedCopy",
    "Folder",
    "PartialFile",
    "least_recently_used_first",
    "list_copies",
    "shared",
]

LAYOUT = "flare-1"
# If the folder contains more than MANY_COPIES copies, an eviction frees limit / BATCH_SHARE bytes
# more than needed, because listing the folder before each eviction takes a long time.
MANY_COPIES = 512
BATCH_SHARE = 32
# `KnownPrefixes` does not check more than _MAX_NAMES file names, because the check would take
# longer than the request that it can save (a request for the version of an object).
_MAX_NAMES = 1 << 12
_LISTING_S = 0.25  # time for which a process reuses its listing if no other process uses the folder
_MAX_DAMAGED = 2  # a copy that was damaged this many times is not written again
_MAX_DAMAGED_NAMES = 1 << 12  # maximum number of names in `Folder._damage_counts`
# A reservation for small copies has at most _RESERVE_BYTES bytes, and at most
# limit / _RESERVE_SHARE bytes.
_RESERVE_BYTES, _RESERVE_SHARE = 64 << 20, 64
_LOCK_S = 2.0  # maximum wait for the lock of the folder
_OTHERS_S = 30.0  # maximum wait for a thread or process that fetches the same data
_RETRY_S = 30.0  # delay after an error before copies are added again
_number = itertools.count()
_warned: set[str] = set()
T = TypeVar("T", str, int)


class CacheWarning(UserWarning):
    """A warning that a cache is not used, or that this process waits for another process."""


class Folder:
    """The state of a cache folder in this process: its descriptors, locks and known copies.

    Methods that read or add copies do not raise OSError. The first error causes a warning. After
    each error, no copies are added for _RETRY_S seconds.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path, self.limit = os.path.join(os.path.abspath(whole_path(path)), LAYOUT), limit
        self._shown, self._pid, self._fd = path, 0, -1
        self.note: Callable[[str], object] | None = None  # receives warnings; see `Cache`
        self._reserved_fd, self._reserved_bytes = -1, 0
        self._not_before = 0.0
        self._presence = Presence()
        self.open_copies = OpenCopies(self.touch)
        self._threads = threading.Lock()  # allows only one thread to poll the lock file
        self._turns, self.prefixes = Turns(), KnownPrefixes()
        self._damage_counts: dict[str, int] = {}

    # -- the folder and its descriptor

    @property
    def fd(self) -> int:
        """The file descriptor of the folder, or -1 if the folder cannot be used."""
        if self._pid != os.getpid():
            with self._threads:
                # A forked child does not close the descriptors that it inherits, because other
                # threads of the child may still use these descriptors.
                if self._pid != os.getpid():
                    self._reserved_fd, self._reserved_bytes = -1, 0
                    self._presence = Presence()
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
        if sys.platform == "win32":
            self.warn("caches are not supported on Windows")
            return -1
        os.makedirs(os.path.dirname(self.path), exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.mkdir(self.path, 0o700)
        fd = os.open(self.path, descriptors.FOLDER)
        status = os.fstat(fd)
        # The folder must not be writable by other users, who could replace the data.
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            os.close(fd)
            self.warn("the folder belongs to another user, or other users have write access")
            return -1
        self._presence.register(fd)
        return fd

    def close(self) -> None:
        """Close the folder and all open copies. The next use opens the folder again."""
        self.open_copies.clear()
        with self._threads:
            if self._pid == os.getpid():
                self._release_reservation()
                self._presence.unregister()
                if self._fd >= 0:
                    os.close(self._fd)
                self._fd, self._pid = -1, 0

    def is_alone(self) -> bool:
        """Return whether this is the only process that is known to use the folder."""
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
        """Return the data of a copy, or None if the copy is missing or damaged.

        A damaged copy is removed.
        """
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
        """Record the use of a copy; return False if the copy no longer exists."""
        try:
            os.utime(name, dir_fd=self._fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        except OSError:
            pass
        return True

    def remove(self, name: str) -> None:
        """Remove a copy, or an empty folder with the same name.

        Open maps of the copy remain valid.
        """
        with contextlib.suppress(OSError):
            try:
                os.unlink(name, dir_fd=self._fd)
            except (IsADirectoryError, PermissionError):
                os.rmdir(name, dir_fd=self._fd)

    def may_have(self, prefix: str) -> bool:
        """Return whether the folder may contain a copy of any version of an object.

        prefix  see `entry.name_prefix`
        """
        is_alone = self.is_alone()
        return self.prefixes.may_have(prefix, self._fd, is_alone)

    # -- space

    def part(self, identity: Entry, since: float = math.inf) -> PartialFile | None:
        """Reserve space for a copy and create its file; return None if the copy cannot be cached.

        since  copies that were used after this time are not evicted
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
            except FileNotFoundError:  # the folder was removed, including its reservations
                with self._threads:
                    if self._fd == fd:  # unless another thread has already reopened the folder
                        self._release_reservation()
                        self._open()
                return self._part(identity, since) if self._fd >= 0 else None
        except OSError as error:
            self.warn(_reason(error))
            return None

    def _part(self, identity: Entry, since: float) -> PartialFile | None:
        evicted: list[str] = []
        try:
            with self.locked():
                if not self._reserve(identity.file_bytes, since, evicted):
                    return None
                part = self._make(f"{identity.key}.", "part", identity.file_bytes)
        finally:
            # Evicted copies are unmapped, so that the next copy reuses the memory. The folder is
            # not locked during this time, because unmapping is slow.
            for name in evicted:
                self.open_copies.drop(name)
        try:
            if hasattr(os, "posix_fallocate"):
                # The allocation reports a full disk before the copy is fetched.
                os.posix_fallocate(part.fd, 0, identity.file_bytes)
        except OSError as error:
            if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                part.drop()
                raise
        return part

    def _make(self, start: str, end: str, size: int) -> PartialFile:
        """Create a file of `size` bytes, and lock it until it is closed."""
        name = f"{start}{host()}.{os.getpid()}.{next(_number)}.{end}"
        fd = os.open(name, os.O_RDWR | descriptors.CREATE, 0o600, dir_fd=self._fd)
        with contextlib.suppress(OSError):
            descriptors.lock(fd)
        part = PartialFile(self, name, fd)
        try:
            os.ftruncate(fd, size)
        except OSError:
            part.drop()
            raise
        return part

    def _reserve(self, size: int, since: float, evicted: list[str]) -> bool:
        """Reserve space for a copy; return False if there is not enough space.

        The space is taken from the reservation of this process, or from the free space of the
        folder. If both are too small, other copies are evicted.

        evicted  list to which the names of evicted copies are appended
        """
        if self._reserved_bytes >= size:
            self._reserved_bytes -= size
            os.ftruncate(self._reserved_fd, self._reserved_bytes)
            return True
        used, copies = self._scan()
        has_many = len(copies) > MANY_COPIES
        # With many small copies, reserve more space than needed, so that the folder is not listed
        # again for each of the next copies.
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
        """Return the total size of all files, and (time of last use, name, size) of each copy.

        Also remove the temporary files of processes that have ended, and copies whose size differs
        from the size in their name.
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
        """Return the size of a file in the cache folder that is not a cached copy.

        If it is a temporary file of a process that has ended, remove the file and return 0.
        """
        try:
            status = os.stat(name, dir_fd=self._fd, follow_symlinks=False)
            if not stat.S_ISREG(status.st_mode):
                return 0
            is_temporary = name.endswith((".part", ".room"))
            if is_temporary and is_abandoned(self._fd, name, status):
                os.unlink(name, dir_fd=self._fd)
                return 0
        except OSError:
            return 0
        return status.st_size

    def _evict(self, copies: list[tuple[float, str, int]], size: int, evicted: list[str]) -> int:
        """Evict the least recently used copies until `size` bytes are freed.

        return  the number of bytes that were freed
        """
        freed = 0
        for _, name, copy_size in least_recently_used_first(copies):
            if freed >= size:
                break
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._fd)
                freed += copy_size
            evicted.append(name)
        return freed

    # -- locks, which prevent duplicate work; correctness does not depend on them

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder for the duration of the block.

        If the folder cannot be locked within _LOCK_S seconds, the block runs without the lock.
        """
        threads = self._threads
        is_mine = threads.acquire(timeout=_LOCK_S)
        try:
            flags = os.O_RDWR | os.O_CREAT | descriptors.FILE
            fd = os.open("lock", flags, 0o600, dir_fd=self._fd)
            with held(fd):
                locked_within(fd, _LOCK_S)
                yield
        finally:
            if is_mine:
                threads.release()

    def forked(self) -> None:
        """Replace the locks in a forked child.

        A thread of the parent process may have held a lock at the time of the fork.
        """
        self._threads, self._turns, self.prefixes = threading.Lock(), Turns(), KnownPrefixes()
        self.open_copies.forked()

    def turn(
        self,
        key: str,
        kind: str = "b",
        meanwhile: Callable[[], object] | None = None,
        own: bool = False,
    ) -> AbstractContextManager[None]:
        """Lock a key for the duration of the block, so that its data is fetched only once.

        If the key cannot be locked within _OTHERS_S seconds, the block runs without the lock.

        kind       one letter; nested locks need different letters
        meanwhile  function that is called once before a wait for another process
        own        True to wait only for threads of this process
        """
        return self._turns.turn(
            -1 if own else self.fd, key, kind, _OTHERS_S, meanwhile, self._notify_wait
        )

    def _notify_wait(self, fd: int) -> None:
        self._notify(
            f"the cache in {self._shown}: waiting for {holder(fd)}, which is fetching the same file"
        )


class PartialFile:
    """A temporary file for a copy that is being fetched.

    The complete file is renamed to the name of the copy.
    """

    def __init__(self, folder: Folder, name: str, fd: int) -> None:
        self._folder, self._name, self.fd, self._at, self._pid = folder, name, fd, 0, os.getpid()

    def write(self, data: bytes | memoryview) -> bool:
        """Write the next bytes; after an error, remove the file and return False."""
        view = memoryview(data)
        try:
            while view:
                count = descriptors.pwrite(self.fd, view, self._at)
                view, self._at = view[count:], self._at + count
        except OSError as error:
            self._folder.warn(_reason(error))
            self.drop()
            return False
        return True

    def publish(self, identity: Entry, open_now: bool = False) -> bool:
        """Rename the complete temporary file to its final name; return False after an error.

        open_now  True: also open the copy for reading; its checksum is not verified again
        """
        folder = self._folder.fd
        try:
            with self._folder.locked():  # otherwise, a simultaneous listing could miss the file
                os.rename(self._name, identity.name, src_dir_fd=folder, dst_dir_fd=folder)
                self._folder.prefixes.add(identity.name)
        except OSError as error:
            # Issue no warning if another process removed the `.part` file.
            if not isinstance(error, FileNotFoundError):
                self._folder.warn(_reason(error))
            self.drop()
            return False
        if open_now:
            with contextlib.suppress(OSError, ValueError):
                self._folder.open_copies.put(identity.name, mapped_copy(self.fd, identity))
        self._close()
        return True

    def drop(self) -> None:
        """Remove the file.

        In a forked child, the file is only closed, because the parent still writes to it.
        """
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
    """The name prefixes of the copies that are known to be in the folder.

    The known copies are the copies in the last listing, and the copies that this process added
    later. If another process adds a copy after the listing, this process may fetch the copy again.
    """

    def __init__(self) -> None:
        self._known: set[str] | None = None
        self._listed = 0.0
        self._changes = 0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        """Record a new copy without listing the folder again."""
        with self._lock:
            self._changes += 1
            if self._known is not None:
                self._known.add(name[:PREFIX_DIGITS])

    def may_have(self, prefix: str, folder: int, is_alone: bool) -> bool:
        """Return whether the folder may contain a copy whose name starts with `prefix`.

        prefix    see `entry.name_prefix`
        folder    file descriptor of the folder
        is_alone  whether this is the only process that uses the folder
        """
        with self._lock:
            changes = self._changes
            is_recent = time.monotonic() - self._listed < _LISTING_S
            if is_alone and self._known is not None and is_recent:
                return prefix in self._known
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
            if changes == self._changes:  # no copy was added since the listing began
                self._known, self._listed = known, listed
            return prefix in known


@contextlib.contextmanager
def listing(folder: int) -> Iterator[int]:
    """Open a second descriptor of a folder for a listing.

    Simultaneous listings with the same descriptor would share one position in the folder.
    """
    own = os.open(".", descriptors.FOLDER, dir_fd=folder)
    try:
        yield own
    finally:
        os.close(own)


_folders: dict[tuple[str, int], Folder] = {}
_lock_of_folders = threading.Lock()


def shared(path: str, limit: int) -> Folder:
    """Return the shared `Folder` of this process for a path and a limit."""
    with _lock_of_folders:
        return _folders.setdefault((os.path.abspath(whole_path(path)), limit), Folder(path, limit))


def _forked() -> None:
    global _lock_of_folders
    _lock_of_folders = threading.Lock()
    for folder in _folders.values():
        folder.forked()


def close_shared() -> None:
    """Close all shared cache folders of this process."""
    with _lock_of_folders:
        open_folders = [*_folders.values()]
    for folder in open_folders:
        folder.close()


lifetimes.register("cache folders", close_shared)
lifetimes.after_fork(_forked)


class CachedCopy(NamedTuple):
    """A copy in a cache folder.

    address  address of the object, without secrets
    part     `whole`, a byte range or a kind of derived data; see `entry.entry`
    size     size of the file in bytes
    idle_s   seconds since the last use
    """

    address: str
    part: str
    size: int
    idle_s: float


def list_copies(path: str) -> Iterator[CachedCopy]:
    """Yield every copy in a cache folder, in no particular order.

    A folder that does not exist contains no copies.

    raises  ReachError for a folder that cannot be listed
    """
    try:
        folder = os.open(os.path.join(path, LAYOUT), descriptors.FOLDER)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ReachError(
            error.strerror or str(error),
            where=path,
            hint="Pass a folder that was used with --cache.",
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


def least_recently_used_first(
    copies: Iterable[tuple[float, T, int]],
) -> list[tuple[float, T, int]]:
    """Sort copies (time of last use, name, bytes) by their time of last use.

    A time in the future is the result of a wrong clock, and is sorted before all other times.
    """
    now = time.time()
    return sorted((used if used <= now + 1 else 0.0, name, size) for used, name, size in copies)
