"""The folder that an unpack writes: claimed like a pack's, and what in it flare has written, so that nothing else is removed or replaced.

    OUT/.flare/journal   what is done (`outlets.py`)
    OUT/.flare/begun     one JSON line before the files of each batch are written: {"next": …, "names": […]}, with the row at which the
                         batch begins; {"others": […]} for those of the names that somebody else took first

A name is noted only while nothing lies under it, and is on the disk before its file is. So a file that neither of the two names is
somebody else's. A last line that was cut short is as if it had never been written: none of its files were begun.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from flarecli.errors import FlareError, MissingError, ReachError, UsageError
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.verbs.tables import KINDS, read_table
from flarecli.write import FAILED
from flarecli.write.target import Target

__all__ = ["INDEXES", "Begun", "Claimed", "files_below", "parsed"]

INDEXES = tuple(f"index.{kind}" for kind in KINDS if kind != "none")
_HINT = "Move that elsewhere first."


def parsed(line: bytes) -> dict[str, Any]:
    """Read a line of a journal; a torn one is as if it had never been written."""
    try:
        value = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


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


def _lines(store: LocalStore, name: str) -> Iterator[bytes]:
    """Read the lines of a file of the scratch folder, as they are needed; none where it is not there."""
    with (
        suppress(MissingError),
        store.opened(f"{SCRATCH}/{name}") as fd,
        open(fd, "rb", closefd=False) as lines,
    ):
        yield from lines


class Begun:
    """The files that were begun in a folder, in this run and in those before it that were cut short.

    next  the row from which on they are written now: files of rows before it are done
    """

    def __init__(self, store: LocalStore, next: int) -> None:
        self._log, self._folder, self._size = Location(store, f"{SCRATCH}/begun"), store.root, 0
        self._earlier = _begun(self._whole(_lines(store, "begun")), next)
        if self._log.exists():
            self._log.cut(self._size)
        else:
            self._log.write([])
            self._earlier.update(
                map(hash, INDEXES) if next else ()
            )  # all was written, and was being put away

    def _whole(self, lines: Iterable[bytes]) -> Iterator[bytes]:
        for line in lines:
            self._size += len(line) if line.endswith(b"\n") else 0
            yield line

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
        self._append({"next": next, "names": free})

    def disown(self, name: str) -> None:
        """Note that somebody else was faster."""
        self._append({"others": [name]})

    def _append(self, entry: dict[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        self._log.extend(self._size, [line])
        self._size += len(line)


def _begun(lines: Iterable[bytes], next: int = 0) -> set[int]:
    """Give the hashes of the names that were begun from a row on."""
    found: set[int] = set()
    for line in lines:
        entry = parsed(line)
        found.difference_update(_hashes(entry.get("others")))
        at = entry.get("next")
        if isinstance(at, int) and at >= next:
            found.update(_hashes(entry.get("names")))
    return found


def _noted(lines: Iterable[bytes]) -> set[int]:
    """Give the hashes of the names that a journal has as done."""
    found: set[int] = set()
    for line in lines:
        files = parsed(line).get("files")
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
        done = _noted(_lines(self._store, "journal"))
        own = {hash(FAILED), *done, *_begun(_lines(self._store, "begun"))}
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
