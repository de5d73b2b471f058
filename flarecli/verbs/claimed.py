"""The folder that an unpack writes: claimed like a pack's, and what in it flare has written, so that nothing else is removed or replaced.

    OUT/.flare/journal   what is done (`outlets.py`)
    OUT/.flare/begun     one JSON line before the files of each batch are written: {"next": …, "names": […]}, with the row at which the
                         batch begins; {"others": […]} for those of the names that somebody else took first

A name is noted only while nothing lies under it, and is on the disk before its file is. So a file that neither of the two names is
somebody else's. A last line that was cut short is as if it had never been written: none of its files were begun.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from flarecli.errors import FlareError, ReachError, UsageError
from flarecli.storage import Location
from flarecli.storage.append_log import FileLog, LogLine, format_line, open_log
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.verbs.tables import KINDS, read_table
from flarecli.write import FAILED
from flarecli.write.target import Target

__all__ = ["INDEXES", "Begun", "Claimed", "files_below"]

INDEXES = tuple(f"index.{kind}" for kind in KINDS if kind != "none")
_HINT = "Move that elsewhere first."


def files_below(folder: str) -> Iterator[str]:
    """Name what lies below a folder and is no folder itself, with `/`, but for flare's own; a link is never followed."""
    for below, folders, names in os.walk(folder, onerror=_refuse_unread):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(below, name))]
        for name in sorted([*names, *links]):
            path = os.path.relpath(os.path.join(below, name), folder).replace(os.sep, "/")
            if not path.startswith(f"{SCRATCH}/"):
                yield path


def _refuse_unread(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # it went while we looked
        raise ReachError(os.strerror(error.errno or 0).lower(), where=error.filename)


class Begun:
    """The files that were begun in a folder, in this run and in those before it that were cut short.

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
        """Note what will be written, before it is; not what lies there already and is somebody else's."""
        free = [
            name
            for name in names
            if self.is_own(name) or not os.path.lexists(os.path.join(self._folder, name))
        ]
        self._log.append(format_line({"next": next, "names": free}))

    def disown(self, name: str) -> None:
        """Note that somebody else was faster."""
        self._log.append(format_line({"others": [name]}))

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _begun(lines: Iterable[LogLine], next: int = 0) -> tuple[set[int], int]:
    """Return the hashes of the names that were begun from a row on, and the bytes of the complete lines."""
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


class Claimed(Target):
    """A folder that unpack writes. A finished one has an index that names every file in it, a half one says which files it has begun.

    is_bare  no index is asked for: with `resume`, files without one may be what such an unpack left, and are to be held against it
    """

    what = "unpack"
    hint = "Give --resume to go on with an unfinished unpack, --overwrite to replace an unpacked folder, or name another folder."

    def __init__(self, out: str, *, resume: bool, overwrite: bool, is_bare: bool) -> None:
        self._may_be_bare = is_bare and resume and not overwrite
        super().__init__(out, resume=resume, overwrite=overwrite)

    @property
    def index(self) -> str | None:
        """The index of a finished unpack, by its name; None where there is none."""
        return next(
            (name for name in INDEXES if os.path.isfile(os.path.join(self.final, name))), None
        )

    def _holds_dataset(self, folder: str) -> bool:
        return self._may_be_bare or any(
            os.path.isfile(os.path.join(folder, name)) for name in INDEXES
        )

    def _refuse_others(self) -> None:
        """Refuse to replace a folder that holds more than its index names: replacing removes all of it. A half one is emptied file by file."""
        if os.path.exists(os.path.join(self.final, SCRATCH, "journal")):
            return
        index = self.index
        named = (
            set()
            if index is None
            else {hash(text) for row in read_table(os.path.join(self.final, index)) for text in row}
        )
        for path in files_below(self.final):
            if hash(path) not in named and (index is None or path not in (index, FAILED)):
                told = "no index names" if index is None else f"its {index} does not name"
                raise UsageError(f"it holds {path!r}, which {told}", where=self.shown, hint=_HINT)

    def _empty(self) -> None:
        """Remove what flare has written there. Raises UsageError, with nothing removed, if anything else is there."""
        done = _noted(open_log(self.at / f"{SCRATCH}/journal").entries())
        begun, _ = _begun(open_log(self.at / f"{SCRATCH}/begun").entries())
        own = {hash(FAILED), *done, *begun}
        if (
            done and not (self.at / f"{SCRATCH}/begun").exists()
        ):  # all was written, and was being put away
            own.update(map(hash, INDEXES))
        for path in files_below(self.folder):
            if hash(path) not in own:
                raise UsageError(
                    f"it holds {path!r}, which is no file of the unfinished unpack there",
                    where=self.shown,
                    hint=_HINT,
                )
        try:
            self._remove(own)
        except OSError as error:
            raise (
                self._store.error(error, "") if not isinstance(error, FlareError) else error
            ) from None

    def _remove(self, own: set[int]) -> None:
        folders: set[str] = set()
        for path in files_below(self.folder):
            if hash(path) in own:
                os.unlink(os.path.join(self.folder, path))
                folders.update(path[:i] for i, sign in enumerate(path) if sign == "/")
        for path in sorted(folders, key=len, reverse=True):
            if not os.listdir(os.path.join(self.folder, path)):
                os.rmdir(os.path.join(self.folder, path))
        scratch = os.path.join(self.folder, SCRATCH)
        for name in sorted(
            os.listdir(scratch), key=lambda name: (name == "journal", name)
        ):  # it says what the rest is
            os.unlink(os.path.join(scratch, name))
