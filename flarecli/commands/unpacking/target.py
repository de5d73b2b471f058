"""Outputs of an unpack: a folder that can be resumed, a finished folder, or a tar on a stream.

    OUT/.flare/journal   JSON lines: first the source and the options; after each batch, {"rows":
                         [{"files": {column: [name, bytes]}, "values": {…}}, …], "next": …,
                         "failed": {…}}
    OUT/.flare/begun     JSON lines: before the files of a batch are written, {"next": …,
                         "names": […]}; for files that another process created, {"others": […]}

`next` is the position of a row in the selection. In the journal, this row is the first row of the
next batch. In `begun`, it is the first row of the current batch. The files of a batch are not
synced, so a resumed unpack keeps a batch only if its files exist with the recorded sizes.

Before flare creates a file, it writes the name to "names" in `begun`, and syncs the log. The name
of a file that already exists is not written. If another process creates the file at the same time,
flare writes the name to "others". flare removes or replaces a file only if the journal contains the
name, or if "names" contains the name and no later "others" contains it.

An incomplete last line of a log is ignored. If it is in `begun`, the files that it names have not
been created. If it is in the journal, the batch that it describes is written again.
"""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import IO, Any

import pyarrow as pa

from flarecli.commands.unpacking.index import KINDS, read_index_texts, write_index
from flarecli.errors import FlareError, ReachError, UsageError
from flarecli.names import whole_path
from flarecli.storage import Location
from flarecli.storage.append_log import FileLog, LogLine, format_line, open_log, parse_line
from flarecli.storage.local import SCRATCH, LocalStore, Write
from flarecli.units import format_count
from flarecli.write import FAILED, Contents, Failure, FolderTarget
from flarecli.write.failures import Failed, count_failed
from flarecli.write.journal import key_difference

__all__ = ["FinishedFolder", "Folder", "Output", "Tar"]

INDEXES = tuple(f"index.{kind}" for kind in KINDS if kind != "none")
_TAR_BLOCK = 512
_COPIED_BYTES = 1 << 20  # bytes that are copied at a time
_JOURNAL, _BEGUN = f"{SCRATCH}/journal", f"{SCRATCH}/begun"
_MOVE_HINT = "Move this file elsewhere first."
_NOT_SAME = "Specify another folder. If a folder is not empty and has no index, it must contain exactly the files that this command would write."


class Output(ABC):
    """Destination of unpacked files.

    next                position of the next row to write, in the selected rows
    rows, files, bytes  numbers of rows, files and bytes that were written
    """

    def __init__(self) -> None:
        self.next = self.rows = self.files = self.bytes = 0
        self._failures = Counter[str]()

    @property
    def reasons(self) -> Mapping[str, int]:
        """Return error kind -> number of failed rows."""
        return dict(sorted(self._failures.items()))

    def start_batch(self, names: Sequence[str]) -> None:  # noqa: B027  needed only by Folder
        """Prepare to write files with these names."""

    @abstractmethod
    def write(self, name: str, data: memoryview) -> None:
        """Write a file. The caller must check the name with `check_name`."""

    @abstractmethod
    def add_failure(self, failure: Failure) -> None:
        """Add a failed row. Rows must be added in ascending order."""

    @abstractmethod
    def finish_batch(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        """Record rows whose files were written, and the row at which the next batch begins."""

    @abstractmethod
    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        """Write the index, finish the output, and return the path of the index."""

    def resume_hint(self, fetches: bool) -> str:
        """Return a hint that describes how to resume the unpack, and which work is repeated.

        The hint is empty if the unpack cannot be resumed.

        fetches  whether the unpack downloads linked files
        """
        return ""

    def abandon(self) -> None:  # noqa: B027  FinishedFolder writes nothing
        """Stop, and keep written files if the output can be resumed."""


def _index_rows(entries: Iterable[dict[str, Any] | None]) -> Iterator[dict[str, Any]]:
    for entry in entries:
        for row in (entry or {}).get("rows", ()):
            yield row["values"] | {column: name for column, (name, _) in row["files"].items()}


class Folder(Output):
    """A local output folder. The folder is locked in the same way as the output folder of a pack.

    head            source and options; a resumed unpack must have the same source and options
    is_done         True if `resume` is set and the folder contains a finished unpack
    failed          error kind -> number of failed rows of the finished unpack
    has_only_files  True if `is_done` is set and the folder has no index; the caller then checks the
                    files with `FinishedFolder`
    raises          the errors of `FolderTarget`
    """

    def __init__(
        self,
        out: str,
        head: Mapping[str, Any],
        *,
        resume: bool,
        overwrite: bool,
        without_index: bool = False,
    ) -> None:
        super().__init__()
        contents = _UnpackedContents(without_index and resume and not overwrite)
        self._target = FolderTarget(out, contents, resume=resume, overwrite=overwrite)
        self.is_done, self.shown = self._target.is_done, self._target.shown
        self.failed = Counter[str]()
        self.index: str | None = None
        index = _index_name(self._target.final)
        self.has_only_files = self.is_done and index is None
        if self.is_done:
            if index is not None:
                self._count_finished(index)
            return
        self._store = LocalStore(self._target.folder, self.shown, maps=False, durable=False)
        self._at, self._batch = Location(self._store), ExitStack()
        self._write: Write = self._store.write
        self._log = open_log(self._at / _JOURNAL)
        try:
            self._failed = Failed(self._target.at, self._load(head))
            synced = LocalStore(self._target.folder, self.shown, maps=False)
            self._begun = _BegunFiles(synced, self.next)
        except BaseException:
            self._log.close()
            self._target.release()
            raise
        self._is_resumed, self._overwrites = resume, overwrite

    def _count_finished(self, index: str) -> None:
        """Count the rows and the files of a finished folder."""
        folder = self._target.final
        self.index = f"{self.shown.rstrip('/')}/{index}"
        lines = sum(1 for _ in read_index_texts(os.path.join(folder, index)))
        self.rows = lines - (index == "index.csv")
        for path in _files_below(folder):
            if path == FAILED:
                self.failed = count_failed(self._target.at / FAILED)
            elif path != index:
                self.files += 1
                self.bytes += os.path.getsize(os.path.join(folder, path))

    @property
    def reasons(self) -> Mapping[str, int]:
        """Return error kind -> number of failed rows."""
        return dict(sorted(self._failed.counts.items()))

    def _load(self, head: Mapping[str, Any]) -> Mapping[str, Any]:
        """Create the journal, or read it and remove the entries from the first missing file on.

        return  state of the list of failed rows, from the last entry that remains
        raises  UsageError if the source or the options differ from those in the journal
        """
        entries = self._log.entries()
        first = next(entries, None)
        if first is None:
            if self._log.size:
                self._log.cut(0)
            self._log.append(format_line(head))
            return {}
        own = json.loads(json.dumps(head))
        if first.entry != own:
            version = (first.entry or {}).get("flare", own["flare"])
            difference = "from a different source or with different options"
            if version != own["flare"]:
                difference = f"with {key_difference('flare', version, own['flare'])}"
            raise UsageError(
                f"the unfinished unpack was started {difference}",
                where=self.shown,
                hint="Use --overwrite to start again.",
            )
        good = first.stop
        failed: Mapping[str, Any] = {}
        for stop, entry in entries:
            if entry is None or not _is_valid_entry(entry):
                break
            written = [file for row in entry["rows"] for file in row["files"].values()]
            if not all(self._has(*file) for file in written):
                break
            good, failed, self.next = stop, entry["failed"], entry["next"]
            self.rows += len(entry["rows"])
            self.files += len(written)
            self.bytes += sum(size for _, size in written)
        self._log.cut(good)
        return failed

    def _has(self, name: str, size: int) -> bool:
        try:
            return (self._at / name).size() == size
        except FlareError:
            return False

    def start_batch(self, names: Sequence[str]) -> None:
        if names:
            self._begun.add(self.next, names)
        self._write = self._batch.enter_context(self._store.writes())

    def write(self, name: str, data: memoryview) -> None:
        """Create a file. A resumed unpack keeps an existing file in two cases.

        A file that the interrupted run wrote is kept if its size matches. A file that another
        process created is kept if its bytes are the same.

        raises  UsageError if another process created a different file with this name
        """
        is_own = self._is_resumed and self._begun.is_own(name)
        is_same_size = self._is_resumed and self._has(name, len(data))
        if is_same_size and (is_own or b"".join((self._at / name).blocks()) == data):
            return
        with self._disowns(name):
            self._write(name, [data], (), is_own)

    @contextmanager
    def _disowns(self, name: str) -> Iterator[None]:
        """If the block raises UsageError, record that another process created the file."""
        try:
            yield
        except UsageError:
            self._begun.disown(name)
            raise

    def add_failure(self, failure: Failure) -> None:
        self._failed.add(failure)

    def finish_batch(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        self._close_batch()
        entry = {"rows": rows, "next": next, "failed": self._failed.settle(next)}
        self._log.append(format_line(entry))
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        if kind != "none":
            name = f"index.{kind}"
            self._begun.add(self.next, [name])
            rows = _index_rows(line.entry for line in self._log.entries())
            is_own = self._is_resumed and self._begun.is_own(name)
            with self._disowns(name):
                (self._target.at / name).write(write_index(kind, fields, rows), replace=is_own)
            self.index = f"{self.shown.rstrip('/')}/{name}"
        self._close()
        self._target.finish()
        return self.index

    def _close_batch(self) -> None:
        self._batch.close()
        self._write = self._store.write

    def _close(self) -> None:
        self._close_batch()
        for log in (self._failed, self._log, self._begun):
            log.close()

    def resume_hint(self, fetches: bool) -> str:
        if not self.next:
            return "nothing was kept: run the same command again"
        links = " and fetches the other links" if fetches else ""
        files = format_count(self.files, "file")
        return (
            f"use {'--overwrite ' * self._overwrites}--resume to continue: flare keeps {files} of "
            f"{format_count(self.rows, 'row')}, and reads the source{links} again"
        )

    def abandon(self) -> None:
        """Stop, and keep the written files for a resumed unpack; remove a folder without files."""
        self._close()
        self._target.abandon(keep=self.next > 0)


def _is_valid_entry(entry: Mapping[str, Any]) -> bool:
    """Return whether a line of the journal has the form that `finish_batch` writes."""
    rows = entry.get("rows")
    return (
        isinstance(entry.get("next"), int)
        and isinstance(entry.get("failed"), dict)
        and isinstance(rows, list)
        and all(map(_is_valid_row, rows))
    )


def _is_valid_row(row: Any) -> bool:
    files = row.get("files") if isinstance(row, dict) else None
    if not isinstance(files, dict) or not isinstance(row.get("values"), dict):
        return False
    return all(
        isinstance(one, list) and [type(part) for part in one] == [str, int]
        for one in files.values()
    )


class _BegunFiles:
    """Log of the files that this run and earlier, interrupted runs started to write.

    next  position of the first row that is not complete; the files of all earlier rows are complete
    """

    def __init__(self, store: LocalStore, next: int) -> None:
        at, self._folder = Location(store), store.root
        self._log = FileLog(at / _BEGUN, store)
        self._earlier, size = _read_begun(self._log.entries(), next)
        if size < self._log.size:
            self._log.cut(size)
        elif next and not (at / _BEGUN).exists():
            # `begun` was removed after all files, and perhaps an index, had been written
            self._earlier.update(map(hash, INDEXES))
        self._log.create()

    def is_own(self, name: str) -> bool:
        """Return whether an interrupted run may have created the file."""
        return hash(name) in self._earlier

    def add(self, next: int, names: Sequence[str]) -> None:
        """Record the names of files before the files are written.

        next   position of the first row of the current batch
        names  file names; names of files that other processes created are not recorded
        """
        own = [
            name
            for name in names
            if self.is_own(name) or not os.path.lexists(os.path.join(self._folder, name))
        ]
        self._log.append(format_line({"next": next, "names": own}))

    def disown(self, name: str) -> None:
        """Record that another process created the file."""
        self._log.append(format_line({"others": [name]}))

    def close(self) -> None:
        """Close the log."""
        self._log.close()


def _read_begun(lines: Iterable[LogLine], next: int = 0) -> tuple[set[int], int]:
    """Read the log of started files.

    next    position of a row; file names of earlier rows are ignored
    return  hashes of the logged file names; size of the log in bytes, without an incomplete last
            line
    """
    hashes, size = set[int](), 0
    for stop, entry in lines:
        size = stop
        if entry is not None:
            hashes.difference_update(_hashes(entry.get("others")))
            row = entry.get("next")
            if isinstance(row, int) and row >= next:
                hashes.update(_hashes(entry.get("names")))
    return hashes, size


def _hashes(names: Any) -> set[int]:
    """Return the hash of each string in a list of names.

    names  value from a log, which may be invalid; if it is not a list, the result is empty
    """
    return (
        {hash(one) for one in names if isinstance(one, str)} if isinstance(names, list) else set()
    )


def _files_below(folder: str) -> Iterator[str]:
    """Yield the `/`-separated path of each file and link below a folder, except flare's own files.

    Links are not followed.
    """
    for below, folders, names in os.walk(folder, onerror=_raise_unreadable):
        folders.sort()
        links = [name for name in folders if os.path.islink(os.path.join(below, name))]
        for name in sorted([*names, *links]):
            path = os.path.relpath(os.path.join(below, name), folder).replace(os.sep, "/")
            if not path.startswith(f"{SCRATCH}/"):
                yield path


def _raise_unreadable(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # ignore folders that another process removed
        raise ReachError(os.strerror(error.errno or 0).lower(), where=error.filename)


def _index_name(folder: str) -> str | None:
    """Return the name of the index in a finished folder; None if the folder has no index."""
    return next((name for name in INDEXES if os.path.isfile(os.path.join(folder, name))), None)


class _UnpackedContents(Contents):
    """Contents of an output folder. A finished folder has an index of all files.

    An unfinished folder has a log of all files that flare started to write.

    without_index  True: treat a folder without an index as finished, too. The caller must then
                   compare the files in the folder with the files of the unpack
    """

    noun = "unpack"
    hint = "Use --resume to continue an unfinished unpack, --overwrite to replace an unpacked folder, or specify another folder."

    def __init__(self, without_index: bool) -> None:
        self._without_index = without_index

    def is_finished(self, at: Location) -> bool:
        return self._without_index or _index_name(_local_folder(at)) is not None

    def check_replaceable(
        self, at: Location, names: Iterable[str], shown: str, is_begun: bool
    ) -> None:
        """Raise UsageError for the first file that the index does not name.

        Unfinished output is not checked by this method; `remove_begun` checks it.
        """
        if is_begun:
            return
        folder = _local_folder(at)
        index = _index_name(folder)
        named = set[int]()
        if index is not None:
            rows = read_index_texts(os.path.join(folder, index))
            named = {hash(text) for row in rows for text in row}
            named |= {hash(index), hash(FAILED)}
        for path in _files_below(folder):
            if hash(path) not in named:
                reason = f"{index} does not list it" if index else "there is no index that lists it"
                message = f"contains another file {path!r}: {reason}"
                raise UsageError(message, where=shown, hint=_MOVE_HINT)

    def remove_begun(self, at: Location, folder: str, shown: str) -> None:
        """Remove the files of unfinished output.

        If the folder contains other files, remove nothing and raise UsageError.
        """
        done = set[int]()
        for _, entry in open_log(at / _JOURNAL).entries():
            rows = entry["rows"] if entry is not None and _is_valid_entry(entry) else ()
            for row in rows:
                for file in row["files"].values():
                    done |= _hashes(file)
        begun, _ = _read_begun(open_log(at / _BEGUN).entries())
        own = {hash(FAILED), *done, *begun}
        # `begun` was removed after all files, and perhaps an index, had been written
        if done and not (at / _BEGUN).exists():
            own.update(map(hash, INDEXES))
        for path in _files_below(folder):
            if hash(path) not in own:
                message = (
                    f"contains another file {path!r}, which the unfinished unpack did not write"
                )
                raise UsageError(message, where=shown, hint=_MOVE_HINT)
        try:
            _remove_files(folder, own)
        except OSError as error:
            if isinstance(error, FlareError):
                raise
            raise ReachError(os.strerror(error.errno or 0).lower(), where=shown) from None


def _local_folder(at: Location) -> str:
    """Return the path of a local folder."""
    if not isinstance(at.store, LocalStore):
        message = "files can be unpacked only to a local folder"
        raise UsageError(message, where=at, hint="Specify a local folder.")
    return at.store.root


def _remove_files(folder: str, own: set[int]) -> None:
    """Remove the files whose name hashes are in `own`, folders that become empty, and the logs."""
    folders: set[str] = set()
    for path in _files_below(folder):
        if hash(path) in own:
            os.unlink(os.path.join(folder, path))
            folders.update(path[:i] for i, sign in enumerate(path) if sign == "/")
    for path in sorted(folders, key=len, reverse=True):
        if not os.listdir(os.path.join(folder, path)):
            os.rmdir(os.path.join(folder, path))
    scratch = os.path.join(folder, SCRATCH)
    for name in sorted(os.listdir(scratch), key=lambda name: (name == "journal", name)):
        # the journal is last, because it lists the files that a later attempt must remove
        os.unlink(os.path.join(scratch, name))


class FinishedFolder(Output):
    """A finished folder without an index. Its files are checked, and no file is written.

    The folder must contain exactly the files of this unpack, with the same sizes.

    raises  UsageError for the first difference
    """

    def __init__(self, shown: str) -> None:
        super().__init__()
        self._folder, self._shown = os.path.realpath(whole_path(shown)), shown
        self._seen = set[int]()  # hashes of file names
        self._failed_bytes = 0

    def write(self, name: str, data: memoryview) -> None:
        self._expect(name, len(data))

    def _expect(self, name: str, size: int) -> None:
        path = os.path.join(self._folder, name)
        if not os.path.isfile(path) or os.path.islink(path):
            raise self._difference(f"{name!r} is missing")
        if os.path.getsize(path) != size:
            raise self._difference(f"{name!r} is {os.path.getsize(path)} bytes; expected {size}")
        self._seen.add(hash(name))

    def _difference(self, text: str) -> UsageError:
        message = f"output folder is not empty, and {text}"
        return UsageError(message, where=self._shown, hint=_NOT_SAME)

    def add_failure(self, failure: Failure) -> None:
        self._failures[failure.kind] += 1
        self._failed_bytes += len(failure.line())

    def finish_batch(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        if self._failed_bytes:
            self._expect(FAILED, self._failed_bytes)
        for path in _files_below(self._folder):
            if hash(path) not in self._seen:
                raise self._difference(f"{path!r} is not a file of this unpack")
        return None


class Tar(Output):
    """A tar archive on a byte stream.

    Members have no times or owners, so that equal rows result in equal bytes. The index and the
    list of failed rows are the last members.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream, self._size = stream, 0
        self._log, self._failed = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed by abandon

    def write(self, name: str, data: memoryview) -> None:
        self._write_member(name, len(data), [data])

    def _write_member(self, name: str, size: int, parts: Iterable[bytes | memoryview]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        head = info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
        for part in (head, *parts, bytes(-size % _TAR_BLOCK)):
            self._stream.write(part)
            self._size += len(part)

    def _write_file(self, name: str, file: IO[bytes]) -> None:
        size = file.tell()
        file.seek(0)
        self._write_member(name, size, iter(lambda: file.read(_COPIED_BYTES), b""))

    def add_failure(self, failure: Failure) -> None:
        self._failures[failure.kind] += 1
        self._failed.write(failure.line())

    def finish_batch(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        self._log.write(format_line({"rows": rows}))
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        if kind != "none":
            self._log.seek(0)
            with tempfile.TemporaryFile() as index:
                index.writelines(write_index(kind, fields, _index_rows(map(parse_line, self._log))))
                self._write_file(f"index.{kind}", index)
        if self._failed.tell():
            self._write_file(FAILED, self._failed)
        end = 2 * _TAR_BLOCK
        self._stream.write(bytes(end + -(self._size + end) % tarfile.RECORDSIZE))
        self._stream.flush()
        self.abandon()
        return None

    def abandon(self) -> None:
        """Remove the temporary files."""
        self._log.close()
        self._failed.close()
