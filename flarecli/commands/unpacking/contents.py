"""The folder of an unpack, and the record of files written by flare, so that no other file is
removed or replaced.

    OUT/.flare/journal   what is done (`target.py`)
    OUT/.flare/begun     one JSON line before the files of each batch are written: {"next": …,
                         "names": […]}, with the row at which the batch begins; {"others": […]} for
                         those of the names that somebody else took first

A name is noted only while nothing lies under it, and is on the disk before its file is. So a file
that neither of the two names is somebody else's. A last line that was cut short is as if it had
never been written: none of its files were begun.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flarecli.commands.unpacking.index import KINDS, read_table
from flarecli.errors import FlareError, ReachError, UsageError
from flarecli.storage import Location
from flarecli.storage.append_log import FileLog, LogLine, format_line, open_log
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.write import FAILED, Contents

__all__ = ["INDEXES", "Begun", "UnpackedContents", "files_below", "index_of"]

INDEXES = tuple(f"index.{kind}" for kind in KINDS if kind != "none")
_HINT = "Move that elsewhere first."


def files_below(folder: str) -> Iterator[str]:
    """Name what lies below a folder and is no folder itself, with `/`, but for flare's own; a link
    is never followed.
    """
    for below, folders, names in os.walk(folder, onerror=_refuse_unread):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(below, name))]
        for name in sorted([*names, *links]):
            path = os.path.relpath(os.path.join(below, name), folder).replace(os.sep, "/")
            if not path.startswith(f"{SCRATCH}/"):
                yield path


def _refuse_unread(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # removed meanwhile
        raise ReachError(os.strerror(error.errno or 0).lower(), where=error.filename)


class Begun:
    """The files that were begun in a folder, in this run and in those before it that were cut
    short.

    next  the row from which on they are written now: files of rows before it are done
    """

    def __init__(self, store: LocalStore, next: int) -> None:
        at, self._folder = Location(store), store.root
        self._log = FileLog(at / f"{SCRATCH}/begun", store)
        self._earlier, whole = _begun(self._log.entries(), next)
        if whole < self._log.size:
            self._log.cut(whole)
        elif next and not (at / f"{SCRATCH}/begun").exists():
            self._earlier.update(map(hash, INDEXES))  # all files were written
        self._log.create()

    def is_own(self, name: str) -> bool:
        """Say whether a run before this one may have left a file of this name."""
        return hash(name) in self._earlier

    def note(self, next: int, names: Sequence[str]) -> None:
        """Record names before their files are written, except existing files of others."""
        free = [
            name
            for name in names
            if self.is_own(name) or not os.path.lexists(os.path.join(self._folder, name))
        ]
        self._log.append(format_line({"next": next, "names": free}))

    def disown(self, name: str) -> None:
        """Record that another process created the file."""
        self._log.append(format_line({"others": [name]}))

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _begun(lines: Iterable[LogLine], next: int = 0) -> tuple[set[int], int]:
    """Return the hashes of the names that were begun from a row on, and the bytes of the complete
    lines.
    """
    found, stop = set[int](), 0
    for line in lines:
        stop, entry = line
        if entry is not None:
            found.difference_update(_hashes(entry.get("others")))
            at = entry.get("next")
            if isinstance(at, int) and at >= next:
                found.update(_hashes(entry.get("names")))
    return found, stop


def _noted(lines: Iterable[LogLine]) -> set[int]:
    """Return the hashes of the names that a journal has as done."""
    found: set[int] = set()
    for _, entry in lines:
        files = (entry or {}).get("files")
        for file in files.values() if isinstance(files, dict) else ():
            found.update(_hashes(file))
    return found


def _hashes(names: Any) -> Iterator[int]:
    """Give those of texts in a list; a folder that came from elsewhere may have anything for one."""
    return (
        (hash(name) for name in names if isinstance(name, str))
        if isinstance(names, list)
        else iter(())
    )


class UnpackedContents(Contents):
    """Unpacked files: a finished folder has an index that names every file, an unfinished one a
    list of those begun.

    is_bare  files without an index may be finished output too: the caller compares them
    """

    noun = "unpack"
    hint = "Give --resume to go on with an unfinished unpack, --overwrite to replace an unpacked folder, or name another folder."

    def __init__(self, is_bare: bool) -> None:
        self._is_bare = is_bare

    def is_finished(self, at: Location) -> bool:
        return self._is_bare or index_of(at) is not None

    def check_replaceable(
        self, at: Location, names: Iterable[str], shown: str, is_begun: bool
    ) -> None:
        """Raise UsageError for the first file that the index does not name.

        `remove_begun` checks unfinished output.
        """
        if is_begun:
            return
        index, folder = index_of(at), local_folder(at)
        named = set[int]()
        if index is not None:
            rows = read_table(os.path.join(folder, index))
            named = {hash(text) for row in rows for text in row}
        for path in files_below(folder):
            if hash(path) not in named and (index is None or path not in (index, FAILED)):
                reason = "no index names" if index is None else f"its {index} does not name"
                raise UsageError(f"it holds {path!r}, which {reason}", where=shown, hint=_HINT)

    def remove_begun(self, at: Location, folder: str, shown: str) -> None:
        """Remove the files of unfinished output.

        Raises UsageError, with nothing removed, if there are others.
        """
        done = _noted(open_log(at / f"{SCRATCH}/journal").entries())
        begun, _ = _begun(open_log(at / f"{SCRATCH}/begun").entries())
        own = {hash(FAILED), *done, *begun}
        if done and not (at / f"{SCRATCH}/begun").exists():  # all files were written
            own.update(map(hash, INDEXES))
        for path in files_below(folder):
            if hash(path) not in own:
                raise UsageError(
                    f"it holds {path!r}, which is no file of the unfinished unpack there",
                    where=shown,
                    hint=_HINT,
                )
        try:
            _remove(folder, own)
        except OSError as error:
            if isinstance(error, FlareError):
                raise
            raise ReachError(os.strerror(error.errno or 0).lower(), where=shown) from None


def index_of(at: Location) -> str | None:
    """Return the name of the index in a finished folder; None if there is none."""
    folder = local_folder(at)
    return next((name for name in INDEXES if os.path.isfile(os.path.join(folder, name))), None)


def local_folder(at: Location) -> str:
    """Return the path of a local folder."""
    if not isinstance(at.store, LocalStore):
        raise UsageError("this is written to local folders only", where=at, hint="Name a folder.")
    return at.store.root


def _remove(folder: str, own: set[int]) -> None:
    folders: set[str] = set()
    for path in files_below(folder):
        if hash(path) in own:
            os.unlink(os.path.join(folder, path))
            folders.update(path[:i] for i, sign in enumerate(path) if sign == "/")
    for path in sorted(folders, key=len, reverse=True):
        if not os.listdir(os.path.join(folder, path)):
            os.rmdir(os.path.join(folder, path))
    scratch = os.path.join(folder, SCRATCH)
    for name in sorted(os.listdir(scratch), key=lambda name: (name == "journal", name)):
        os.unlink(os.path.join(scratch, name))  # the journal last: it names the other files
