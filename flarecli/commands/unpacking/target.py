"""Where unpacked files go: into a folder, noted so that it can be resumed, or into a tar on a
stream.

    OUT/.flare/journal   one JSON line for what is unpacked, then one for each row, and one after
                         each batch: {"row": …, "files": {column: [name, bytes]}, "values": {…}},
                         {"next": …, "failed": {…}}

`next` is the row of the selection at which the next batch begins. Files are not forced to the disk
one by one; so a resume believes a batch only as far as its files are there with their sizes.
`claimed.py` has which files are under way.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import IO, Any, Protocol

import pyarrow as pa

from flarecli.commands.unpacking.contents import Begun, UnpackedContents, files_below, index_of
from flarecli.commands.unpacking.index import read_table, table
from flarecli.errors import FlareError, UsageError
from flarecli.names import whole_path
from flarecli.storage import Location
from flarecli.storage.append_log import format_line, open_log, parse_line
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.write import FAILED, Failure, FolderTarget
from flarecli.write.failures import Failed
from flarecli.write.journal import key_difference

__all__ = ["Folder", "Outlet", "Tar", "There"]

_BLOCK = 512  # of a tar
_COPY = 1 << 20


class Outlet(Protocol):
    """Destination of unpacked files.

    next     row of the selection to begin with
    rows, files, bytes  what lies there already
    reasons  kind of failure -> rows
    """

    next: int
    rows: int
    files: int
    bytes: int

    @property
    def reasons(self) -> Mapping[str, int]: ...
    def begin(self, names: Sequence[str]) -> None: ...
    def put(self, name: str, data: memoryview) -> None: ...
    def fail(self, failure: Failure) -> None: ...
    def note(self, rows: Sequence[Mapping[str, Any]], next: int) -> None: ...
    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None: ...
    def abandon(self) -> None: ...


def _index_rows(entries: Iterable[dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        if entry is not None and "files" in entry:
            yield entry["values"] | {column: name for column, (name, _) in entry["files"].items()}


def _lines(rows: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> bytes:
    return b"".join(map(format_line, (*rows, last)))


class Folder:
    """A local folder: claimed like a pack's, so that two never mix and a half one is known for what
    it is.

    head     what is unpacked and how; an unfinished folder must say the same
    is_done  a finished unpack lies there already, and `resume` was given; `failed` is how many rows
             it left out
    is_bare  files lie there without an index, and none is asked for: `There` tells whether they are
             all that is wanted
    raises   as `Target` does
    """

    def __init__(
        self,
        out: str,
        head: Mapping[str, Any],
        *,
        resume: bool,
        overwrite: bool,
        is_bare: bool = False,
    ) -> None:
        contents = UnpackedContents(is_bare and resume and not overwrite)
        self._target = FolderTarget(out, contents, resume=resume, overwrite=overwrite)
        self.is_done, self.shown = self._target.is_done, self._target.shown
        self.next = self.rows = self.files = self.bytes = self.failed = 0
        self.index: str | None = None
        index = index_of(Location(LocalStore(self._target.final, self.shown, maps=False)))
        self.is_bare = self.is_done and index is None
        if self.is_done:
            if index is not None:
                self._count(index)
            return
        store = LocalStore(self._target.folder, self.shown, maps=False, durable=False)
        self._at = Location(store)
        self._log = open_log(self._at / f"{SCRATCH}/journal")
        try:
            self._failed = Failed(self._target.at, self._load(head))
            self._begun = Begun(LocalStore(self._target.folder, self.shown, maps=False), self.next)
        except BaseException:
            self._log.close()
            self._target.release()
            raise
        self._kept = resume

    def _count(self, index: str) -> None:
        """Say what a finished folder holds, by its index and its files."""
        folder = self._target.final
        self.index = f"{self.shown.rstrip('/')}/{index}"
        self.rows = sum(1 for _ in read_table(os.path.join(folder, index))) - (index == "index.csv")
        for path in files_below(folder):
            if path == FAILED:
                self.failed = sum(
                    block.count(b"\n") for block in (self._target.at / FAILED).blocks()
                )
            elif path != index:
                self.files, self.bytes = (
                    self.files + 1,
                    self.bytes + os.path.getsize(os.path.join(folder, path)),
                )

    @property
    def reasons(self) -> Mapping[str, int]:
        return dict(sorted(self._failed.counts.items()))

    def _load(self, head: Mapping[str, Any]) -> Mapping[str, Any]:
        """Go through what is noted as far as its files are there, and cut off the rest; give the
        state of the failed rows.
        """
        entries = self._log.entries()
        first = next(entries, None)
        if first is None:
            if self._log.size:
                self._log.cut(0)
            self._log.append(format_line(head))
            return {}
        wanted = json.loads(json.dumps(head))
        if first.entry != wanted:
            version = (first.entry or {}).get("flare", wanted["flare"])
            difference = "from another source or with other options"
            if version != wanted["flare"]:
                difference = f"with {key_difference('flare', version, wanted['flare'])}"
            raise UsageError(
                f"the unfinished unpack there was begun {difference}",
                where=self.shown,
                hint="Give --overwrite to begin anew.",
            )
        good = first.stop
        state: Mapping[str, Any] = {}
        rows = files = size = 0
        for stop, entry in entries:
            if entry is None or not _is_noted(entry):
                break
            written = entry.get("files", {})
            if not all(self._has(*file) for file in written.values()):
                break
            rows, files = rows + bool("files" in entry), files + len(written)
            size += sum(one for _, one in written.values())
            if "next" in entry:
                good, state = stop, entry["failed"]
                self.next, self.rows, self.files, self.bytes = entry["next"], rows, files, size
        self._log.cut(good)
        return state

    def _has(self, name: str, size: int) -> bool:
        try:
            return (self._at / name).size() == size
        except FlareError:
            return False

    def begin(self, names: Sequence[str]) -> None:
        """Note the files that are written next: what is not noted is never removed or replaced."""
        if names:
            self._begun.note(self.next, names)

    def put(self, name: str, data: memoryview) -> None:
        """Create a file; one of the same size that an unfinished run left is kept, one of another
        size replaced.

        raises  UsageError if something else is there
        """
        is_own = self._kept and self._begun.is_own(name)
        if not (
            self._kept
            and self._has(name, len(data))
            and (is_own or b"".join((self._at / name).blocks()) == data)
        ):
            self._write_file(self._at / name, [data], is_own)

    def _write_file(self, at: Location, parts: Iterable[bytes | memoryview], is_own: bool) -> None:
        try:
            at.write(parts, replace=is_own)
        except UsageError:
            self._begun.disown(at.path)
            raise

    def fail(self, failure: Failure) -> None:
        self._failed.add(failure)

    def note(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        """Note rows whose files are there, and the row at which the next batch begins."""
        self._log.append(_lines(rows, {"next": next, "failed": self._failed.settle(next)}))
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        """Write the index and unlock the folder; return the path of the index."""
        if kind != "none":
            name = f"index.{kind}"
            self.begin([name])
            self._write_file(
                self._target.at / name,
                table(kind, fields, _index_rows(line.entry for line in self._log.entries())),
                self._kept and self._begun.is_own(name),
            )
            self.index = f"{self.shown.rstrip('/')}/index.{kind}"
        self._close()
        self._target.finish()
        return self.index

    def _close(self) -> None:
        for log in (self._failed, self._log, self._begun):
            log.close()

    def abandon(self) -> None:
        """Stop; keep written files for a resume, or remove the folder if there are none."""
        self._close()
        self._target.abandon(keep=self.next > 0)


def _is_noted(entry: Mapping[str, Any]) -> bool:
    """Say whether a line of the journal is what `note` writes: a bit of it may have flipped."""
    if "next" in entry:
        return isinstance(entry["next"], int) and isinstance(entry.get("failed"), dict)
    files = entry.get("files")
    if not isinstance(files, dict) or not isinstance(entry.get("values"), dict):
        return False
    return all(
        isinstance(one, list) and [type(part) for part in one] == [str, int]
        for one in files.values()
    )


class There:
    """What a finished unpack without an index left: nothing is written, everything has to be there,
    by name and size, and nothing else.

    raises  UsageError for the first file that is not, or should not be
    """

    def __init__(self, shown: str) -> None:
        self.next = self.rows = self.files = self.bytes = 0
        self._folder, self._shown, self._seen = (
            os.path.realpath(whole_path(shown)),
            shown,
            set[int](),
        )
        self._counts, self._failed = Counter[str](), b""

    @property
    def reasons(self) -> Mapping[str, int]:
        return dict(sorted(self._counts.items()))

    def begin(self, names: Sequence[str]) -> None:
        """Do nothing."""

    def put(self, name: str, data: memoryview) -> None:
        self._expect(name, len(data))

    def _expect(self, name: str, size: int) -> None:
        path = os.path.join(self._folder, name)
        if not os.path.isfile(path) or os.path.islink(path):
            raise self._other(f"lacks {name!r}")
        if os.path.getsize(path) != size:
            raise self._other(f"its {name!r} is of {os.path.getsize(path)} bytes, not of {size}")
        self._seen.add(hash(name))

    def _other(self, what: str) -> UsageError:
        hint = "Name another folder: without an index, an unpack is finished where all its files are there and nothing else."
        return UsageError(f"the folder is not empty, and {what}", where=self._shown, hint=hint)

    def fail(self, failure: Failure) -> None:
        self._counts[failure.kind] += 1
        self._failed += failure.line()

    def note(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        if self._failed:
            self._expect(FAILED, len(self._failed))
        for path in files_below(self._folder):
            if hash(path) not in self._seen:
                raise self._other(f"{path!r} is no file of this unpack")
        return None

    def abandon(self) -> None:
        """Do nothing."""


class Tar:
    """A tar on a stream of bytes: POSIX, no times, no owners, so that the same rows give the same
    bytes. The index comes last.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.next = self.rows = self.files = self.bytes = self._size = 0
        self._stream, self._counts = stream, Counter[str]()
        self._log, self._failed = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed by abandon

    @property
    def reasons(self) -> Mapping[str, int]:
        return dict(sorted(self._counts.items()))

    def begin(self, names: Sequence[str]) -> None:
        """Do nothing: a stream has no existing files."""

    def put(self, name: str, data: memoryview) -> None:
        self._member(name, len(data), [data])

    def _member(self, name: str, size: int, parts: Iterable[bytes | memoryview]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        for part in (
            info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"),
            *parts,
            bytes(-size % _BLOCK),
        ):
            self._stream.write(part)
            self._size += len(part)

    def fail(self, failure: Failure) -> None:
        self._counts[failure.kind] += 1
        self._failed.write(failure.line())

    def note(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        self._log.write(_lines(rows, {"next": next}))
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        self._log.seek(0)
        if kind != "none":
            with tempfile.TemporaryFile() as index:
                index.writelines(table(kind, fields, _index_rows(map(parse_line, self._log))))
                self._spooled(f"index.{kind}", index)
        if self._failed.tell():
            self._spooled(FAILED, self._failed)
        end = 2 * _BLOCK
        self._stream.write(bytes(end + -(self._size + end) % tarfile.RECORDSIZE))
        self._stream.flush()
        self.abandon()
        return None

    def _spooled(self, name: str, file: IO[bytes]) -> None:
        size = file.tell()
        file.seek(0)
        self._member(name, size, iter(lambda: file.read(_COPY), b""))

    def abandon(self) -> None:
        self._log.close()
        self._failed.close()
