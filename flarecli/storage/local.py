"""Local files below one root folder, which no name that comes from data can leave.

Each part of a path is opened in the folder before it, and no symbolic link is followed below the root: what a
dataset names is read, written and deleted inside it or not at all. Files that are no files (a FIFO would block
for ever) are refused. Writes go to a temporary name, reach the disk, then take their own name.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import stat
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence

from flarecli.errors import (
    BusyError,
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
    check_exhausted,
)
from flarecli.hashes import Sums
from flarecli.names import bare, check_name, is_url, local_path, scheme_of, whole_path
from flarecli.redact import redact
from flarecli.storage.base import (
    Entry,
    Guard,
    Location,
    Part,
    Store,
    Written,
    short_read,
)
from flarecli.storage.mmap import read_ahead_of_file

__all__ = ["LocalStore", "SCRATCH", "made_folder", "sync_folder"]

SCRATCH = ".flare"  # lock, journal and temporary files of a pack live there
NAMED = (
    "http",
    "https",
    "s3",
    "gs",
    "az",
    "hf",
)  # schemes that an index may name; others only the user types
MAPS = 128  # mapped files kept open at once
_DEEPEST = 100  # folders within folders, in a listing
_number = itertools.count(time.time_ns())
_PIECE = 1 << 20  # bytes summed, then written at once: they stay in the cache
_BLOCK = 1 << 18  # bytes read at once of a whole file
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EMLINK,
)  # what file systems without hard links answer
_MAX_LINKS = 40  # symbolic links that Linux follows in one path
_SCHEME_HINT = "Give --allow-local to follow it, if you trust this dataset."
_LINK_HINT = "Give --allow-local to follow links, if you trust this dataset."


class LocalStore(Store):
    """The files below `root`. `shown` is the root as the user typed it, for messages.

    maps     whether files are mapped for reading; a map of a file that is cut short kills the process
    durable  whether a file reaches the disk before it takes its name: waiting for that costs more than writing a small one

    Picklable: maps are made again in each process.
    """

    is_local = True

    def __init__(
        self,
        root: str,
        shown: str | None = None,
        guard: Guard | None = None,
        maps: bool = True,
        durable: bool = True,
    ) -> None:
        self.root, self.shown = root, root if shown is None else shown
        self.guard, self.maps, self.durable = guard or Guard(), maps, durable
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._lock = threading.Lock()
        self._root_names: list[str] | None = None  # see `_roots`
        self._pinned: os.stat_result | None = None  # the one folder that `root` may name

    def __reduce__(self) -> tuple[object, ...]:
        return LocalStore, (self.root, self.shown, self.guard, self.maps, self.durable)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LocalStore) and (self.root, self.guard, self.maps) == (
            other.root,
            other.guard,
            other.maps,
        )

    def __hash__(self) -> int:
        return hash((self.root, self.guard, self.maps))

    @classmethod
    def locate(cls, path: str, guard: Guard) -> Location:
        """Make a Location of a path that the user typed: a file in its folder, or a folder as a root of its own."""
        if "\0" in path:
            raise UsageError("the path holds a NUL", where=path.replace("\0", "\\0"))
        real = os.path.realpath(whole_path(path))
        if os.path.isdir(real) or path.endswith("/"):
            return Location(cls(real, path.rstrip("/") or "/", guard))
        folder, name = os.path.split(real)
        # a link that the user typed is the user's own word: the root is where it leads, and messages keep the word
        return Location(
            cls(folder, os.path.dirname(path) if os.path.basename(path) == name else folder, guard),
            name,
        )

    def close(self) -> None:
        with self._lock:
            self._maps.clear()

    def pin(self) -> None:
        """Use the folder that `root` names now and no other: later calls raise ReachError if it was moved or deleted."""
        self._pinned = None
        fd = self._open_root()
        try:
            self._pinned = os.fstat(fd)
        finally:
            os.close(fd)

    def check_root(self) -> None:
        """Raise ReachError if the pinned folder was moved or deleted."""
        os.close(self._folder(""))

    def _open_root(self) -> int:
        try:
            fd = os.open(self.root, _FOLDER & ~os.O_NOFOLLOW)
        except FileNotFoundError:
            if self._pinned is None:
                raise
            raise self._moved() from None
        if self._pinned is not None and not os.path.samestat(os.fstat(fd), self._pinned):
            os.close(fd)
            raise self._moved()
        return fd

    def _moved(self) -> ReachError:
        return ReachError(
            "the folder was moved or deleted while it was written",
            where=self.show(""),
            hint="Move it back and run the same command with --resume, or name another folder.",
        )

    def show(self, path: str) -> str:
        """Give the address as the user would type it."""
        return os.path.join(self.shown, path) if path else self.shown or "."

    def join(self, path: str, url: str) -> Location:
        """Resolve a URL from a local file: a path inside its folder, or an address on the network.

        An absolute path, a `file://` URL or a path with `..` is accepted if it names something inside that folder.

        raises  UnsafeError for any other path, unless the guard allows local paths
        """
        scheme = scheme_of(url)
        if is_url(url) and scheme != "file":
            if scheme not in NAMED and not self.guard.allow_local:
                raise UnsafeError(
                    f"{scheme}:// is not an address that data may name",
                    where=redact(url),
                    hint=_SCHEME_HINT,
                )
            return self.guard.locate(url, self.guard)
        if self.guard.allow_local:
            address = local_path(url)
            if scheme == "file" and not address.startswith("/"):
                raise FormatError("file:// names another machine", where=self.show(path))
            target = os.path.join(self.root, path, address)
            if "\0" in target:
                raise FormatError("the address holds a control character", where=self.show(path))
            real = os.path.realpath(target)
            return Location(
                LocalStore(os.path.dirname(real), None, self.guard, self.maps),
                os.path.basename(real),
            )
        name: str | None = bare(url)
        if scheme == "file" or url.startswith("/") or ".." in url.split("/"):
            name = self._name_inside(path, url)
        if name is None:
            raise UnsafeError(
                f"the address {url!r} leaves the folder",
                where=self.show(path),
                hint="Give --allow-local to read it, if you trust this dataset.",
            )
        if not name:
            return Location(self, path)
        return Location(self, self.child(path, check_name(name, where=self.show(path))))

    def _name_inside(self, path: str, url: str) -> str | None:
        """Return the name relative to the folder `path` of what a URL names, or None if it is outside of that folder.

        Only text is compared: the file system is not asked about a path that data names. Links below the root are
        refused when the name is opened, so that `..` behind one cannot leave the folder.
        """
        address = local_path(url)
        if scheme_of(url) == "file" and not address.startswith("/"):
            return None  # file://HOST/path
        for root in self._roots() if address.startswith("/") else [self.root]:
            folder = os.path.join("/", root, path).rstrip("/")
            target = os.path.normpath(os.path.join(f"{folder}/", address))
            target = f"/{target.lstrip('/')}"  # POSIX lets normpath keep two slashes
            if target == (folder or "/"):
                return ""
            if target.startswith(f"{folder}/"):
                return target[len(folder) + 1 :]
        return None

    def _roots(self) -> list[str]:
        """Return the absolute paths that name the root: without links, as the user typed it, and as the shell shows it."""
        if self._root_names is None:
            typed = [os.path.join(os.environ.get("PWD", ""), self.shown)]
            with contextlib.suppress(OSError):  # the working folder is gone
                typed.append(os.path.abspath(self.shown))
            known = dict.fromkeys(os.path.normpath(one) for one in typed if os.path.isabs(one))
            self._root_names = [
                self.root,
                *(one for one in known if one != self.root and os.path.realpath(one) == self.root),
            ]
        return self._root_names

    def unmapped(self) -> LocalStore:
        """Give the same files, always read by `pread`: a map of a file that is cut short kills the process."""
        return LocalStore(self.root, self.shown, self.guard, maps=False)

    def size(self, path: str) -> int:
        with self.opened(path) as fd:
            return self.status(fd, path).st_size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return self.read_many(path, [(start, -1 if stop is None else stop)])[0]

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        with self.opened(path) as fd:
            size = self.status(fd, path).st_size
            read_ahead_of_file(fd, size, ranges)
            return [
                self.pread(fd, path, start, size if stop < 0 else stop, size)
                for start, stop in ranges
            ]

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Read bytes 0..size in order, in pieces that whoever sums them finds in the nearest cache."""
        with self.opened(path) as fd:
            for start in range(0, size, _BLOCK):
                yield self.pread(fd, path, start, min(start + _BLOCK, size), size)

    def pread(self, fd: int, path: str, start: int, stop: int, size: int) -> bytes:
        """Read bytes start..stop of an open file of `size` bytes, all of them or an error."""
        if (
            stop > size or start > size
        ):  # checked first: a hostile length must not become an allocation
            raise short_read(self.show(path), 0, max(start, stop), size)
        try:
            data = os.pread(fd, stop - start, start)
            while len(data) < stop - start:
                more = os.pread(fd, stop - start - len(data), start + len(data))
                if not more:
                    raise short_read(self.show(path), start, stop, len(data))
                data += more
        except OSError as error:
            raise self.error(error, path, start) from None
        return data

    def map(self, path: str) -> memoryview | None:
        if not self.maps:
            return None
        with self._lock:
            view = self._maps.get(path)
            if view is not None:
                self._maps.move_to_end(path)
                return view
        with self.opened(path) as fd:
            size = self.status(fd, path).st_size
            try:
                view = (
                    memoryview(mmap.mmap(fd, size, prot=mmap.PROT_READ))
                    if size
                    else memoryview(b"")
                )
            except OSError:  # no room for a map, or a file system without: it is read
                return None
        with self._lock:
            self._maps[path] = view
            if len(self._maps) > MAPS:
                self._maps.popitem(last=False)  # whoever still holds a view keeps its map alive
        return view

    def forget(self, path: str) -> None:
        """Keep no map of a file; whoever still holds a view keeps its map alive."""
        with self._lock:
            self._maps.pop(path, None)

    def list(self, path: str) -> Iterator[Entry]:
        folder = self._folder(path)
        try:
            if path.count("/") >= _DEEPEST:
                raise FormatError(
                    f"folders lie more than {_DEEPEST} deep in it",
                    where=self.show(""),
                    hint="Name a folder further down.",
                )
            with os.scandir(folder) as entries:
                found = sorted(
                    map(_scanned, entries),
                    key=lambda one: os.fsencode(one[0]) + (b"/" if one[1] else b""),
                )
        except OSError as error:
            raise self.error(error, path) from None
        finally:
            _close(folder)
        for name, is_folder, size in found:
            below = self.child(path, name)
            try:
                if is_folder:
                    yield from (Entry(f"{name}/{one}", its) for one, its in self.list(below))
                else:
                    yield Entry(name, self.size(below) if size is None else size)
            except MissingError:
                continue  # it went while we looked
            except (UnsafeError, ReachError):
                yield Entry(
                    name, -1
                )  # a link or a FIFO: named, so that whoever reads it says why not

    @contextlib.contextmanager
    def opened(self, path: str, flags: int = _READ) -> Iterator[int]:
        """Give an open regular file below the root, for as long as the block lasts."""
        folder = self._folder(os.path.dirname(path), path)
        name = os.path.basename(path)
        try:
            if not name:
                raise FormatError("a folder where a file is needed", where=self.show(path))
            fd = os.open(
                name,
                flags & ~(os.O_NOFOLLOW if self.guard.allow_local else 0),
                0o666,
                dir_fd=folder,
            )
        except OSError as error:
            if isinstance(error, FlareError):
                raise
            raise self.error(error, path) from None
        finally:
            _close(folder)
        try:
            mode = self.status(fd, path).st_mode
            if stat.S_ISDIR(mode):
                raise FormatError("a folder where a file is needed", where=self.show(path))
            if not stat.S_ISREG(mode):
                raise UnsafeError(
                    "not a regular file",
                    where=self.show(path),
                    hint="Replace it by the file itself.",
                )
            yield fd
        finally:
            _close(fd)

    def status(self, fd: int, path: str) -> os.stat_result:
        """Return the status of an open file. Raises ReachError if the disk or the server fails."""
        try:
            return os.fstat(fd)
        except OSError as error:
            raise self.error(error, path) from None

    def _folder(self, path: str, wanted: str = "") -> int:
        """Open a folder below the root, part by part, so that no link leads out of it; `wanted` is what errors name."""
        try:
            fd = self._open_root()
        except OSError as error:
            if isinstance(error, FlareError):
                raise
            raise self.error(error, wanted) from None
        for part in path.split("/") if path else ():
            fd = self._enter(fd, part, wanted or path)
        return fd

    def _enter(self, fd: int, part: str, path: str) -> int:
        """Open a folder in an open folder, and close that."""
        try:
            return os.open(
                part, _FOLDER & ~(os.O_NOFOLLOW if self.guard.allow_local else 0), dir_fd=fd
            )
        except OSError as error:
            if error.errno == errno.ENOTDIR and is_link(part, fd):
                error = OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            raise self.error(error, path) from None
        finally:
            _close(fd)

    def error(self, error: OSError, path: str, start: int | None = None) -> FlareError:
        """Give what an error of the system means, naming the address; `start` is the byte from which it was read."""
        check_exhausted(error)
        where = self.show(path)
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return MissingError("no such file or folder", where=where)
        if error.errno == errno.ELOOP and leads_back(self.root, path, self.guard.allow_local):
            return UnsafeError(
                "a symbolic link that leads back to itself",
                where=where,
                hint="Replace it by the file itself.",
            )
        if error.errno == errno.ELOOP:
            return UnsafeError(
                "a symbolic link, which may lead out of the folder", where=where, hint=_LINK_HINT
            )
        if error.errno == errno.ENXIO:
            return UnsafeError(
                "not a regular file", where=where, hint="Replace it by the file itself."
            )
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            hint = "Make room, then run the same command with --resume."
            return ReachError(
                f"the disk is full: {os.strerror(error.errno or 0)}", where=where, hint=hint
            )
        what = os.strerror(error.errno or 0).lower() if error.errno else str(error)
        return ReachError(
            what if start is None else f"{what}, reading from byte {start}", where=where
        )

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        sums = Sums(hashes)
        folder, name = self._made_folder(os.path.dirname(path)), os.path.basename(path)
        try:
            scratch, part = self._scratch(folder, name)
        except BaseException:
            os.close(folder)
            raise
        try:
            if is_special(name, folder):
                raise UsageError(
                    "no file is there, and what is there would be replaced",
                    where=self.show(path),
                    hint="Name a file.",
                )
            fd = os.open(part, _CREATE, 0o666, dir_fd=scratch)
            try:
                from flarecli.storage.direct_io import Sink  # nobody who reads needs it

                sink = Sink(fd, self.durable)
                for data in parts:
                    view = memoryview(data).cast("B")
                    for start in range(0, len(view), _PIECE):
                        piece = view[start : start + _PIECE]
                        sums.update(piece)
                        sink.write(piece)
                sink.done()
                self._sync(fd)
            finally:
                os.close(fd)
            if replace:
                os.rename(part, name, src_dir_fd=scratch, dst_dir_fd=folder)
            else:
                _name_new(part, name, scratch, folder)
            self._sync_names(folder)
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(part, dir_fd=scratch)
            if isinstance(error, FileExistsError):
                raise UsageError("something is there already", where=self.show(path)) from None
            if isinstance(error, OSError) and not isinstance(error, FlareError):
                raise self.error(error, path) from None
            raise
        finally:
            _close(folder)
            _close(scratch)
        return Written(sums.size, sums.hex())

    def cut(self, path: str, size: int) -> None:
        with self.opened(path, _READ | os.O_WRONLY) as fd:
            try:
                os.ftruncate(fd, min(size, self.status(fd, path).st_size))
                self._sync(fd)
            except OSError as error:
                raise self.error(error, path) from None

    def extend(self, path: str, size: int, parts: Iterable[Part]) -> None:
        from flarecli.storage.direct_io import write_all

        with self.opened(path, _READ | os.O_WRONLY) as fd:
            there = os.lseek(fd, 0, os.SEEK_END)
            if there != size:
                raise BusyError(
                    f"is {there} bytes, it was left at {size}",
                    where=self.show(path),
                    hint="Another process writes there; stop one of the two.",
                )
            try:
                for data in parts:
                    write_all(fd, memoryview(data).cast("B"))
                self._sync(fd)
            except OSError as error:
                raise self.error(error, path) from None

    def _sync(self, fd: int) -> None:
        if self.durable:
            os.fsync(fd)

    def _sync_names(self, folder: int) -> None:
        if self.durable:
            _sync_folder(folder)

    def _scratch(self, folder: int, name: str) -> tuple[int, str]:
        """Open where the temporary file goes: the pack's own scratch folder, or beside with a name no reader takes."""
        name = os.fsdecode(
            os.fsencode(name)[:200]
        )  # a name may take all of the 255 bytes there are
        name = f"{name}.{os.getpid()}.{next(_number)}.part"  # nobody else's: `0/x` and `1/x` may be written at a time
        root = self._folder("")
        try:
            return os.open(SCRATCH, _FOLDER, dir_fd=root), name
        except OSError:
            return os.dup(folder), f".{name}"
        finally:
            os.close(root)

    def _made_folder(self, path: str) -> int:
        """Open a folder below the root, making what is missing; each new name reaches the disk."""
        if self._pinned is None:
            made_folder(self.root, self)
        fd = self._folder("")
        for part in path.split("/") if path else ():
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, dir_fd=fd)
                    self._sync_names(fd)
            except OSError as error:
                _close(fd)
                raise self.error(error, path) from None
            fd = self._enter(fd, part, path)
        return fd

    def sync_names(self, path: str) -> None:
        """Make the names in a folder safe against power loss."""
        folder = self._folder(path)
        try:
            self._sync_names(folder)
        except OSError as error:
            raise self.error(error, path) from None
        finally:
            _close(folder)

    def delete(self, path: str) -> None:
        try:
            folder = self._folder(os.path.dirname(path))
        except MissingError:
            return
        try:
            os.unlink(os.path.basename(path), dir_fd=folder)
            _sync_folder(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self.error(error, path) from None
        finally:
            _close(folder)


def _name_new(part: str, name: str, scratch: int, folder: int) -> None:
    """Give a file of the open folder `scratch` a name in another open folder. Raises FileExistsError if the name is taken.

    A file system without hard links (FAT, exFAT, SMB) gets an empty file of that name, created exclusively, which the rename replaces.
    """
    try:
        os.link(part, name, src_dir_fd=scratch, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
    else:
        os.unlink(part, dir_fd=scratch)
        return
    os.close(os.open(name, _CREATE, 0o666, dir_fd=folder))
    try:
        os.rename(part, name, src_dir_fd=scratch, dst_dir_fd=folder)
    except BaseException:
        os.unlink(name, dir_fd=folder)
        raise


def _close(fd: int) -> None:
    """Close a folder, or a file whose bytes were read or have reached the disk; an error of `close` then loses nothing."""
    with contextlib.suppress(OSError):
        os.close(fd)


def sync_folder(path: str) -> None:
    """Make the names in a folder safe against power loss."""
    fd = os.open(path, _FOLDER & ~os.O_NOFOLLOW)
    try:
        _sync_folder(fd)
    finally:
        _close(fd)


def _sync_folder(fd: int) -> None:
    """Sync an open folder, where its file system can: some network and FUSE file systems sync files alone."""
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EBADF):
            raise


def made_folder(path: str, store: LocalStore) -> None:
    """Make a folder and the ones above it; each new name reaches the disk."""
    if os.path.isdir(path):
        return
    if os.path.lexists(path):
        raise ReachError("a file is there, a folder is wanted", where=path)
    parent = os.path.dirname(path)
    made_folder(parent, store)
    try:
        with contextlib.suppress(FileExistsError):
            os.mkdir(path)
        sync_folder(parent)
    except OSError as error:
        raise store.error(error, "") from None


def is_special(name: str, folder: int) -> bool:
    """Return whether a name in an open folder is a device, a pipe or a socket, or in /dev.

    A file gets its name by a rename, which replaces what has it: for root that could be `/dev/null`.
    """
    with contextlib.suppress(OSError):
        place = os.fstat(folder).st_dev
        if (
            place == os.stat("/dev").st_dev != os.stat("/").st_dev
        ):  # /dev/shm is another file system
            return True
        mode = os.stat(name, dir_fd=folder).st_mode
        return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))
    return False


def is_link(name: str, folder: int) -> bool:
    """Return whether a name in an open folder is a symbolic link."""
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    return False


def leads_back(root: str, path: str, follows: bool) -> bool:
    """Return whether the symbolic link that stopped the opening of a path below the root is a loop.

    The user typed the root, so it may be resolved. Below it nothing outside of the root is resolved unless links are
    followed anyway: there only a loop through names of one folder is recognised.
    """
    if _is_loop(root) or (follows and _is_loop(os.path.join(root, path))):
        return True
    at = root
    for part in path.split("/"):
        at = os.path.join(at, part)
        if os.path.islink(at):
            break
    for _ in range(_MAX_LINKS):
        try:
            target = os.readlink(at)
        except OSError:
            return False
        folder, name = os.path.split(target[:-1] if target.endswith("/") else target)
        if folder not in ("", ".", os.path.dirname(at)) or name in ("", ".", ".."):
            return False
        at = os.path.join(os.path.dirname(at), name)
    return True


def _is_loop(path: str) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno == errno.ELOOP
    return False


def _scanned(entry: os.DirEntry[str]) -> tuple[str, bool, int | None]:
    """Return the name of an entry, whether it is a folder, and its bytes if it is a regular file, else None."""
    size = None
    with contextlib.suppress(OSError):  # it went
        size = (
            entry.stat(follow_symlinks=False).st_size
            if entry.is_file(follow_symlinks=False)
            else None
        )
    return entry.name, entry.is_dir(follow_symlinks=False), size
