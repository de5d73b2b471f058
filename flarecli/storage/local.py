"""Store for local files below a root folder. Names in data cannot refer to files outside the root.

Each component of a path is opened relative to its parent folder (openat), and symbolic links below
the root are not followed. Pipes, devices and sockets are rejected, because reading a pipe would
block. A file is written under a temporary name, synced, and then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import itertools
import os
import stat
import tempfile
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Self, TypeAlias

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
from flarecli.names import (
    bare,
    check_name,
    is_url,
    local_path,
    scheme_of,
    slashed,
    whole_path,
    windows_fault,
)
from flarecli.redact import redact
from flarecli.storage import descriptors
from flarecli.storage.base import (
    ALLOW_LOCAL_HINT,
    MAX_DEPTH,
    Buffer,
    Entry,
    Guard,
    Location,
    Store,
    Written,
    bytewise,
    object_size_error,
    short_read,
    too_deep,
)
from flarecli.storage.descriptors import OpenFolder
from flarecli.storage.mmap import files_limit, map_file, read_ahead_of_file

__all__ = ["LocalStore", "SCRATCH", "made_folder", "sync_folder"]

SCRATCH = ".flare"  # folder of the lock, journal and temporary files of a pack
SCHEMES_IN_DATA = ("http", "https", "s3", "gs", "az", "hf")  # accepted without --allow-local
MAX_MAPS = 1024  # maximum number of open maps per store, unless `files_limit` is lower
_COPY_BYTES = 1 << 20  # bytes that are hashed, then written per step; they fit in the CPU cache
_BLOCK_BYTES = 1 << 18  # bytes per read of a whole file
_MAX_LINKS = 40  # maximum number of symbolic links that Linux follows in one path
_READ = os.O_RDONLY | descriptors.NO_WAIT | descriptors.FILE
_CREATE = os.O_WRONLY | descriptors.CREATE
_CLOSED = -1  # a file descriptor that is not open
_LINK_TAG = 0x20000000  # bit of a reparse tag: the entry is a link or a junction (Windows)
_NO_HARD_LINKS = (
    errno.EPERM,
    errno.EACCES,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EMLINK,
)
_REPLACE_HINT = "Use a regular file instead."
_number = itertools.count(time.time_ns())
Write: TypeAlias = Callable[[str, Iterable[Buffer], Iterable[str], bool], Written]


class LocalStore(Store):
    """A store for the files below `root`.

    A store can be pickled, because each process creates its own maps.

    shown    the root as the user typed it, for messages
    maps     whether files are mapped for reading; reading a map of a truncated file ends the
             process
    durable  whether files are synced before they are renamed; for small files, the sync takes
             longer than the write
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
        # No lock is used, because single dict operations are atomic, and a fork could copy a lock
        # in its locked state.
        self._maps: OrderedDict[str, memoryview] = OrderedDict()
        self._root_names: list[str] | None = None  # see `_roots`
        self._pinned: os.stat_result | None = None  # see `pin`

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
        """Return the Location for a path that the user typed.

        If the path is a folder, the folder is the root of the store. Otherwise, the root is the
        parent folder. Raises UsageError if the path contains a NUL byte.
        """
        if "\0" in path:
            raise UsageError("the path contains a NUL byte", where=path.replace("\0", "\\0"))
        real = os.path.realpath(whole_path(path))
        if os.path.isdir(real) or path.endswith("/"):
            return Location(cls(real, path.rstrip("/") or "/", guard))
        folder, name = os.path.split(real)
        # If the user typed a link, the root is the folder of the link's target, and messages show
        # this folder.
        is_link = os.path.basename(path) != name
        return Location(cls(folder, folder if is_link else os.path.dirname(path), guard), name)

    def close(self) -> None:
        # `clear` is not atomic, because other threads may run while `clear` closes the maps.
        self._maps = OrderedDict()

    def pin(self) -> None:
        """Pin the folder at `root`.

        All later calls raise ReachError if the folder was moved or deleted.
        """
        self._pinned = None
        root = self._open_root()
        try:
            self._pinned = os.stat(root)
        finally:
            _close(root)

    def check_root(self) -> None:
        """Raise ReachError if the pinned folder was moved or deleted."""
        _close(self._folder(""))

    def _open_root(self) -> OpenFolder:
        try:
            root = _opened_folder(self.root)
        except FileNotFoundError:
            if self._pinned is None:
                raise
            raise self._moved() from None
        if self._pinned is not None and not os.path.samestat(os.stat(root), self._pinned):
            _close(root)
            raise self._moved()
        return root

    def _moved(self) -> ReachError:
        return ReachError(
            "the folder was moved or deleted during the write",
            where=self.show(""),
            hint="Move the folder back and run the command with --resume, or use another folder.",
        )

    # -- addresses

    def show(self, path: str) -> str:
        return os.path.join(self.shown, path) if path else self.shown or "."

    def join(self, path: str, url: str) -> Location:
        """Resolve an address found in a local file.

        The address is a network address, or a path in the folder of the file. Absolute paths,
        `file://` URLs and paths with `..` are accepted if they refer to a file in this folder.

        raises  UnsafeError for a path outside the folder, unless the guard allows local paths
        """
        scheme = scheme_of(url)
        if is_url(url) and scheme != "file":
            if scheme not in SCHEMES_IN_DATA and not self.guard.allow_local:
                raise UnsafeError(
                    f"{scheme}:// addresses are not allowed in data",
                    where=redact(url),
                    hint="Pass --allow-local if you trust this dataset.",
                )
            return self.guard.locate(url, self.guard)
        if self.guard.allow_local:
            return self._any_path(path, url)
        name: str | None = bare(url)
        if scheme == "file" or url.startswith("/") or ".." in url.split("/"):
            name = self._name_inside(path, url)
        if name is None:
            raise UnsafeError(
                f"the address {url!r} points outside the folder",
                where=self.show(path),
                hint=ALLOW_LOCAL_HINT,
            )
        if not name:
            return Location(self, path)
        return Location(self, self.child(path, check_name(name, where=self.show(path))))

    def _any_path(self, path: str, url: str) -> Location:
        """Resolve a local address without restrictions, relative to the folder `path`."""
        address = local_path(url)
        if scheme_of(url) == "file" and not address.startswith("/"):
            raise FormatError("file:// with a remote host is not supported", where=self.show(path))
        target = os.path.join(self.root, path, address)
        if "\0" in target:
            raise FormatError("the address contains a control character", where=self.show(path))
        folder, name = os.path.split(os.path.realpath(target))
        return Location(LocalStore(folder, None, self.guard, self.maps), name)

    def _name_inside(self, path: str, url: str) -> str | None:
        """Return the path of an address, relative to the folder `path`.

        The result is None for an address outside the folder. Only strings are compared, because
        data must not decide which paths are looked up in the file system. A later open rejects
        links below the root, so `..` after a link cannot lead outside the folder.
        """
        address = local_path(url)
        if scheme_of(url) == "file" and not address.startswith("/"):
            return None  # the address has a remote host (file://HOST/path)
        for root in self._roots() if address.startswith("/") else [self.root]:
            folder = slashed(os.path.join("/", root, path)).rstrip("/")
            target = slashed(os.path.normpath(os.path.join(f"{folder}/", address)))
            if target.startswith("/"):
                target = f"/{target.lstrip('/')}"  # `normpath` keeps two leading slashes (POSIX)
            if target == (folder or "/"):
                return ""
            if target.startswith(f"{folder}/"):
                return target[len(folder) + 1 :]
        return None

    def _roots(self) -> list[str]:
        """Return the absolute paths of the root: its real path, and the typed path with its links.

        If the typed path is relative, it is joined both with the working folder and with $PWD,
        which may contain links.
        """
        if self._root_names is None:
            typed = [os.path.join(os.environ.get("PWD", ""), self.shown)]
            with contextlib.suppress(OSError):  # the working folder was deleted
                typed.append(os.path.abspath(self.shown))
            names = [os.path.normpath(path) for path in typed if os.path.isabs(path)]
            same = [path for path in names if os.path.realpath(path) == self.root]
            self._root_names = list(dict.fromkeys((self.root, *same)))
        return self._root_names

    def unmapped(self) -> LocalStore:
        return LocalStore(self.root, self.shown, self.guard, maps=False)

    # -- reading

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
        """Yield bytes 0..size in order, in blocks.

        A block fits in the CPU cache, so that the caller can hash it fast.
        """
        with self.opened(path) as fd:
            for start in range(0, size, _BLOCK_BYTES):
                yield self.pread(fd, path, start, min(start + _BLOCK_BYTES, size), size)

    def pread(self, fd: int, path: str, start: int, stop: int, size: int) -> bytes:
        """Read all bytes start..stop of an open file of `size` bytes."""
        # The range is checked before the read, because `pread` would allocate memory for an invalid
        # length.
        if max(start, stop) > size:
            raise short_read(self.show(path), 0, max(start, stop), size)
        try:
            data = descriptors.pread(fd, stop - start, start)
            while len(data) < stop - start:
                more = descriptors.pread(fd, stop - start - len(data), start + len(data))
                if not more:
                    raise short_read(self.show(path), start, stop, len(data))
                data += more
        except OSError as error:
            raise self.error(error, path, start) from None
        return data

    def map(self, path: str) -> memoryview | None:
        if not self.maps:
            return None
        view = self._maps.get(path)
        if view is not None:
            with contextlib.suppress(KeyError):  # another thread has removed the map
                self._maps.move_to_end(path)
            return view
        with self.opened(path) as fd:
            size = self.status(fd, path).st_size
            view = memoryview(b"")
            if size:
                try:
                    view = memoryview(map_file(fd, size))
                except OSError:  # no address space left, or the file system does not support maps
                    return None
        self._maps[path] = view
        while len(self._maps) > files_limit(MAX_MAPS):
            with contextlib.suppress(KeyError):
                self._maps.popitem(last=False)  # the map stays open as long as it has views
        return view

    def forget(self, path: str) -> None:
        self._maps.pop(path, None)

    def names(self, path: str) -> Sequence[str]:
        with self._in_folder(path) as folder:
            return sorted(os.listdir(folder))

    @contextlib.contextmanager
    def opened(self, path: str, flags: int = _READ) -> Iterator[int]:
        """Open a regular file below the root and yield its file descriptor."""
        with _OpenFolders(self) as folders:
            fd, _ = self._open_file(path, folders, flags)
        try:
            yield fd
        finally:
            _close(fd)

    def read_files(
        self, paths: Sequence[str], max_bytes: int, room: int
    ) -> list[bytes | int | FlareError]:
        out: list[bytes | int | FlareError] = []
        with _OpenFolders(self) as folders:
            for path in paths:
                try:
                    fd, size = self._open_file(path, folders)
                    try:
                        if size > max_bytes:
                            raise object_size_error(size, max_bytes, self.show(path))
                        if size <= room:
                            out.append(self.pread(fd, path, 0, size, size))
                            room -= size
                        else:
                            out.append(size)
                    finally:
                        _close(fd)
                except FlareError as error:
                    out.append(error)
        return out

    def _open_file(self, path: str, folders: _OpenFolders, flags: int = _READ) -> tuple[int, int]:
        """Open a regular file below the root; return its file descriptor and its size in bytes."""
        parent, _, name = path.rpartition("/")
        folder = folders.folder(parent, path)
        try:
            if not name:
                raise self._is_folder(path)
            if isinstance(folder, str):
                at = checked_path(folder, name, self.guard.allow_local)
                if os.path.isdir(at):
                    raise self._is_folder(path)
                fd = os.open(at, flags, 0o666)
            else:
                fd = os.open(name, self._flags(flags), 0o666, dir_fd=folder)
        except OSError as error:
            raise self.error(error, path) from None
        try:
            status = self.status(fd, path)
            if not stat.S_ISREG(status.st_mode):
                is_folder = stat.S_ISDIR(status.st_mode)
                raise self._is_folder(path) if is_folder else self._not_regular(path)
        except BaseException:
            _close(fd)
            raise
        return fd, status.st_size

    def list(self, path: str) -> Iterator[Entry]:
        return self._listed(path, "")

    def _listed(self, path: str, prefix: str) -> Iterator[Entry]:
        """Yield the files below a folder; each name starts with `prefix`."""
        with self._in_folder(path) as folder:
            if path.count("/") >= MAX_DEPTH:
                raise too_deep(self.show(""))
            with os.scandir(folder) as entries:
                scanned = sorted(map(_scanned, entries), key=bytewise)
        for name, is_folder, size in scanned:
            if size is not None:
                yield Entry(prefix + name, size)
                continue
            below = self.child(path, name)
            try:
                if is_folder:
                    yield from self._listed(below, f"{prefix}{name}/")
                else:
                    yield Entry(prefix + name, self.size(below))
            except MissingError:  # the entry was deleted in the meantime
                continue
            except (UnsafeError, ReachError):  # a link or a pipe; opening it raises the error again
                yield Entry(prefix + name, -1)

    def status(self, fd: int, path: str) -> os.stat_result:
        """Return the status of an open file. Raises ReachError for an I/O error."""
        try:
            return os.fstat(fd)
        except OSError as error:
            raise self.error(error, path) from None

    def _flags(self, flags: int) -> int:
        return flags & ~descriptors.NO_FOLLOW if self.guard.allow_local else flags

    @contextlib.contextmanager
    def _in_folder(self, path: str) -> Iterator[OpenFolder]:
        """Open a folder below the root for the duration of the block, and convert OSErrors."""
        folder = self._folder(path)
        try:
            yield folder
        except OSError as error:
            raise self.error(error, path) from None
        finally:
            _close(folder)

    def _folder(self, path: str, wanted: str = "", creates: bool = False) -> OpenFolder:
        """Open a folder below the root, component by component.

        wanted   path in error messages; by default `path`
        creates  whether to create and sync missing folders, including the root
        """
        if creates and self._pinned is None:
            made_folder(self.root, self)
        try:
            folder = self._open_root()
        except OSError as error:
            raise self.error(error, wanted) from None
        for part in path.split("/") if path else ():
            folder = self._enter(folder, part, wanted or path, creates)
        return folder

    def _enter(self, folder: OpenFolder, part: str, path: str, creates: bool) -> OpenFolder:
        """Open the subfolder `part` of an open folder, and close `folder`."""
        try:
            if creates:
                at, dir_fd = descriptors.in_folder(folder, part)
                with contextlib.suppress(FileExistsError):
                    os.mkdir(at, dir_fd=dir_fd)
                    self._sync_names(folder)
            if isinstance(folder, str):
                return _opened_folder(checked_path(folder, part, self.guard.allow_local))
            return os.open(part, self._flags(descriptors.FOLDER), dir_fd=folder)
        except OSError as error:
            if error.errno == errno.ENOTDIR and is_link(part, folder):
                error = OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            raise self.error(error, path) from None
        finally:
            _close(folder)

    # -- errors

    def error(self, error: OSError, path: str, start: int | None = None) -> FlareError:
        """Convert an OSError to a FlareError; `start` is the first byte of a failed read."""
        if isinstance(error, FlareError):
            return error
        check_exhausted(error)
        where, code = self.show(path), error.errno
        if code == errno.ENOTDIR and not path and os.path.exists(self.root):
            return MissingError("is a file, not a folder", where=where)
        if code in (errno.ENOENT, errno.ENOTDIR):
            return MissingError("no such file or folder", where=where)
        if code == errno.ELOOP and is_link_loop(self.root, path, self.guard.allow_local):
            return UnsafeError("symbolic link loop", where=where, hint=_REPLACE_HINT)
        if code == errno.ELOOP:
            return UnsafeError(
                "is a symbolic link; its target may be outside the folder",
                where=where,
                hint="Pass --allow-local to follow links if you trust this dataset.",
            )
        if code == errno.ENXIO:
            return self._not_regular(path)
        if code in (errno.ENOSPC, errno.EDQUOT):
            return ReachError(
                f"the disk is full: {os.strerror(code)}",
                where=where,
                hint="Free disk space, then run the same command again, with --resume if the command has this option.",
            )
        message = os.strerror(code).lower() if code else str(error)
        return ReachError(
            message if start is None else f"{message} while reading from byte {start}", where=where
        )

    def _is_folder(self, path: str) -> FormatError:
        return FormatError("is a folder; expected a file", where=self.show(path))

    def _not_regular(self, path: str) -> UnsafeError:
        return UnsafeError("not a regular file", where=self.show(path), hint=_REPLACE_HINT)

    # -- writing

    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        with self.writes() as write:
            return write(path, parts, hashes, replace)

    @contextlib.contextmanager
    def writes(self) -> Iterator[Write]:
        """Yield a function that writes files like `write`.

        The function keeps the folder of the last file open for the next file.
        """
        with _OpenFolders(self) as folders:
            yield functools.partial(self._write, folders)

    def _write(
        self,
        folders: _OpenFolders,
        path: str,
        parts: Iterable[Buffer],
        hashes: Iterable[str] = (),
        replace: bool = True,
    ) -> Written:
        sums, (parent, _, name) = Sums(hashes), path.rpartition("/")
        folder = folders.folder(parent, creates=True)
        scratch, part = folders.scratch(name)
        try:
            if isinstance(folder, str):
                checked_path(folder, name, follows=True)
            if folders.is_special(name, replace):
                raise self._special(path)
            at, dir_fd = descriptors.in_folder(scratch, part)
            fd = os.open(at, _CREATE, 0o666, dir_fd=dir_fd)
            try:
                self._fill(fd, parts, sums)
            finally:
                os.close(fd)
            if replace:
                _rename(part, name, scratch, folder)
            else:
                _rename_new(part, name, scratch, folder)
            self._sync_names(folder)
        except BaseException as error:
            with contextlib.suppress(OSError):
                _unlink(part, scratch)
            if isinstance(error, FileExistsError):
                if folders.is_special(name, True):
                    raise self._special(path) from None
                raise UsageError("already exists", where=self.show(path)) from None
            if isinstance(error, OSError):
                raise self.error(error, path) from None
            raise
        return Written(sums.size, sums.hex())

    def _special(self, path: str) -> UsageError:
        return UsageError(
            "not a regular file; writing would replace it",
            where=self.show(path),
            hint="Write to a regular file or a new file.",
        )

    def create(self, path: str, data: bytes) -> None:
        self.write(path, [data], replace=False)

    def _fill(self, fd: int, parts: Iterable[Buffer], sums: Sums) -> None:
        """Write, hash and sync a new file."""
        from flarecli.storage.direct_io import FileWriter  # imported on the first write

        writer = FileWriter(fd, self.durable)
        for data in parts:
            view = memoryview(data).cast("B")
            for start in range(0, len(view), _COPY_BYTES):
                piece = view[start : start + _COPY_BYTES]
                sums.update(piece)
                writer.write(piece)
        writer.finish()
        self._sync(fd)

    def cut(self, path: str, size: int) -> None:
        with self.opened(path, _READ | os.O_WRONLY) as fd:
            try:
                os.ftruncate(fd, min(size, self.status(fd, path).st_size))
                self._sync(fd)
            except OSError as error:
                raise self.error(error, path) from None

    def extend(self, path: str, size: int, parts: Iterable[Buffer]) -> None:
        from flarecli.storage.direct_io import write_all

        with self.opened(path, _READ | os.O_WRONLY) as fd:
            actual = os.lseek(fd, 0, os.SEEK_END)
            if actual != size:
                raise BusyError(
                    f"file is {actual} bytes; expected {size}",
                    where=self.show(path),
                    hint="Another process is writing this file; stop one of the two processes.",
                )
            try:
                for data in parts:
                    write_all(fd, memoryview(data).cast("B"))
                self._sync(fd)
            except OSError as error:
                raise self.error(error, path) from None

    def _sync(self, fd: int) -> None:
        if self.durable:
            descriptors.sync(fd)

    def _sync_names(self, folder: OpenFolder) -> None:
        if self.durable:
            descriptors.sync_folder(folder)

    def sync_names(self, path: str) -> None:
        """Sync a folder, so that new file names in it survive a power loss."""
        with self._in_folder(path) as folder:
            self._sync_names(folder)

    def remove_folders(self, path: str) -> None:
        """Remove all empty folders below a folder, and then the folder itself if it is empty."""
        for below, _, _ in os.walk(os.path.join(self.root, path), topdown=False):
            with contextlib.suppress(OSError):  # not empty
                os.rmdir(below)

    def delete(self, path: str) -> None:
        try:
            folder = self._folder(os.path.dirname(path))
        except MissingError:
            return
        try:
            _unlink(os.path.basename(path), folder)
            descriptors.sync_folder(folder)
        except FileNotFoundError:
            pass
        except OSError as error:
            raise self.error(error, path) from None
        finally:
            _close(folder)


class _OpenFolders:
    """The folder of the last file in a sequence of reads or writes, and the scratch folder.

    Both folders stay open, because consecutive files are usually in the same folder, and opening a
    folder costs more than opening a file.
    """

    def __init__(self, store: LocalStore) -> None:
        self._store, self._path, self._is_in_dev = store, "", False
        self._process = os.getpid()
        self._fd: OpenFolder = _CLOSED
        self._scratch: OpenFolder = _CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        for fd in (self._fd, self._scratch):
            if fd != _CLOSED:
                _close(fd)
        self._fd = self._scratch = _CLOSED

    def folder(self, path: str, wanted: str = "", creates: bool = False) -> OpenFolder:
        """Open a folder below the root. The result is valid until the next call.

        wanted   path in error messages
        creates  whether to create and sync missing folders
        """
        if self._fd == _CLOSED or path != self._path:
            store, previous = self._store, self._fd
            self._fd = _CLOSED
            if previous != _CLOSED:
                _close(previous)
            self._fd = store._folder(path, wanted, creates)
            self._path, self._is_in_dev = path, creates and is_in_dev(self._fd)
        return self._fd

    def scratch(self, name: str) -> tuple[OpenFolder, str]:
        """Return the open folder for a temporary file, and a unique name for the file.

        The temporary file is created in the scratch folder. If there is no scratch folder, it is
        created in the folder that the last call of `folder` opened. The name must be unique,
        because files such as `0/x` and `1/x` may be written at the same time.
        """
        if len(name) > 50:  # up to 4 bytes per character; name and suffix must fit in 255 bytes
            name = os.fsdecode(os.fsencode(name)[:200])
        name = f"{name}.{self._process}.{next(_number)}.part"
        if self._scratch == _CLOSED:
            root = self._store._folder("")
            try:
                if isinstance(root, str):
                    self._scratch = _opened_folder(checked_path(root, SCRATCH, False))
                else:
                    self._scratch = os.open(SCRATCH, descriptors.FOLDER, dir_fd=root)
            except OSError:
                return self._fd, f".{name}"
            finally:
                _close(root)
        return self._scratch, name

    def is_special(self, name: str, replace: bool) -> bool:
        """Return whether a new file would be in /dev, or would replace a file that is not regular.

        A rename can replace a device or a pipe. For the user root, this includes `/dev/null`.
        """
        return self._is_in_dev or (replace and is_not_regular(name, self._fd))


def _opened_folder(path: str) -> OpenFolder:
    """Open a folder, and follow links. Raises OSError."""
    if descriptors.HAS_OPENAT:
        return os.open(path, descriptors.FOLDER & ~descriptors.NO_FOLLOW)
    if not stat.S_ISDIR(os.stat(path).st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    return path


def checked_path(folder: str, name: str, follows: bool) -> str:
    """Return the path of a name in a folder, for Windows, which has no openat.

    The name must not be a link or a junction, unless `follows` is set. Each component of a path is
    checked in this way. However, a process with write access to the folder can replace a component
    with a link that leads outside the root, between the check and the use of the path. With openat,
    this is not possible.

    raises  OSError with ELOOP for a link; UnsafeError for a name that Windows reserves
    """
    if fault := windows_fault(name):
        raise UnsafeError(f"the name {name!r:.80} {fault}", where=folder)
    path = os.path.join(folder, name)
    if not follows:
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) & _LINK_TAG:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    return path


def _rename(part: str, name: str, scratch: OpenFolder, folder: OpenFolder) -> None:
    """Move a file from one open folder to another, and replace any file with the new name."""
    if isinstance(scratch, str) or isinstance(folder, str):
        source, _ = descriptors.in_folder(scratch, part)
        os.replace(source, descriptors.in_folder(folder, name)[0])
    else:
        os.rename(part, name, src_dir_fd=scratch, dst_dir_fd=folder)


def _unlink(name: str, folder: OpenFolder) -> None:
    path, dir_fd = descriptors.in_folder(folder, name)
    os.unlink(path, dir_fd=dir_fd)


def _rename_new(part: str, name: str, scratch: OpenFolder, folder: OpenFolder) -> None:
    """Move a file from one open folder to another, without replacing a file.

    On a file system without hard links (FAT, exFAT, SMB), an empty file is created exclusively, and
    then replaced.

    raises  FileExistsError if the new name exists
    """
    if isinstance(scratch, str) or isinstance(folder, str):
        source, _ = descriptors.in_folder(scratch, part)
        # On Windows, `os.rename` never replaces a file.
        os.rename(source, descriptors.in_folder(folder, name)[0])
        return
    try:
        os.link(part, name, src_dir_fd=scratch, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_HARD_LINKS:
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


def _close(fd: OpenFolder) -> None:
    """Close a folder or a file, and ignore errors.

    A file that was written must already be synced.
    """
    if isinstance(fd, str):
        return
    with contextlib.suppress(OSError):
        os.close(fd)


def sync_folder(path: str) -> None:
    """Sync a folder, so that new file names in it survive a power loss."""
    folder = _opened_folder(path)
    try:
        descriptors.sync_folder(folder)
    finally:
        _close(folder)


def made_folder(path: str, store: LocalStore) -> None:
    """Create and sync a folder and its missing parents.

    Raises ReachError if a part of the path is a file, or if the folder cannot be created.
    """
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    made_folder(parent, store)
    try:
        os.mkdir(path)
        sync_folder(parent)
    except FileExistsError:
        if not os.path.isdir(path):  # if it is a folder, another process has just created it
            raise ReachError("is a file; expected a folder", where=path) from None
    except OSError as error:
        raise store.error(error, "") from None


def is_in_dev(folder: OpenFolder) -> bool:
    """Return whether an open folder is in /dev, but not in /dev/shm."""
    with contextlib.suppress(OSError):
        return os.stat(folder).st_dev == os.stat("/dev").st_dev != os.stat("/").st_dev
    return False


def is_not_regular(name: str, folder: OpenFolder) -> bool:
    """Return whether a name in an open folder refers to a device, a pipe or a socket."""
    path, dir_fd = descriptors.in_folder(folder, name)
    try:
        mode = os.stat(path, dir_fd=dir_fd).st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def is_link(name: str, folder: OpenFolder) -> bool:
    """Return whether a name in an open folder refers to a symbolic link."""
    path, dir_fd = descriptors.in_folder(folder, name)
    with contextlib.suppress(OSError):
        return stat.S_ISLNK(os.stat(path, dir_fd=dir_fd, follow_symlinks=False).st_mode)
    return False


def is_link_loop(root: str, path: str, follows: bool) -> bool:
    """Return whether a path below the root could not be opened because of a symbolic link loop.

    The links of the root may be followed, because the user typed the root. The links below the root
    may be followed only if `follows` is True. Otherwise, only a loop within a single folder is
    detected, because other links could lead outside the root.
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
    """Return the name of an entry, whether the entry is a folder, and its size.

    The size is None for a folder, a link or a special file.
    """
    try:
        if entry.is_file(follow_symlinks=False):
            return entry.name, False, entry.stat(follow_symlinks=False).st_size
    except OSError:  # the entry was deleted in the meantime
        pass
    return entry.name, entry.is_dir(follow_symlinks=False), None


def temporary_file_error(error: OSError, purpose: str) -> ReachError:
    """Return the error for temporary files that cannot be written, such as on a full disk.

    purpose  purpose of the files, such as "the shuffle"
    """
    reason = os.strerror(error.errno) if error.errno else str(error)  # shorter than Arrow's message
    hint = "Set TMPDIR to a folder on a larger disk."
    if error.errno in (errno.EMFILE, errno.ENFILE):
        hint = "Raise the limit of open files (`ulimit -n`)."
    return ReachError(
        f"cannot write temporary files for {purpose}: {reason.lower()}",
        where=tempfile.gettempdir(),
        hint=hint,
    )
