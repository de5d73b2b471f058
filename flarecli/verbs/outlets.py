"""Where unpacked files go: into a folder, noted so that it can be resumed, or into a tar on a stream.

    OUT/.flare/journal   one JSON line for what is unpacked, then one for each row, and one after each batch:
                         {"row": …, "files": {column: [name, bytes]}, "values": {…}}, {"next": …, "failed": {…}}

`next` is the row of the selection at which the next batch begins. Files are not forced to the disk one by one;
so a resume believes a batch only as far as its files are there with their sizes.
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

from flarecli.errors import FlareError, UsageError
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH, LocalStore
from flarecli.verbs.tables import KINDS, read_table, table
from flarecli.write import FAILED, Failure
from flarecli.write.failures import Failed
from flarecli.write.target import Target

__all__ = ["Folder", "Outlet", "Tar"]

_INDEXES = tuple(f"index.{kind}" for kind in KINDS if kind != "none")
_BLOCK = 512  # of a tar
_COPY = 1 << 20


class Outlet(Protocol):
    """What takes files.

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
    def put(self, name: str, data: memoryview) -> None: ...
    def fail(self, failure: Failure) -> None: ...
    def note(self, rows: Sequence[Mapping[str, Any]], next: int) -> None: ...
    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None: ...
    def abandon(self) -> None: ...


def _index_rows(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    for line in lines:
        entry = json.loads(line)
        if "files" in entry:
            yield entry["values"] | {column: name for column, (name, _) in entry["files"].items()}


def _lines(rows: Sequence[Mapping[str, Any]], last: Mapping[str, Any]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in (*rows, last)).encode()


def _files(folder: str) -> Iterator[str]:
    """Name the files below a folder, with `/`, but for flare's own."""
    for below, _, names in os.walk(folder):
        for name in sorted(names):
            path = os.path.relpath(os.path.join(below, name), folder).replace(os.sep, "/")
            if not path.startswith(f"{SCRATCH}/"):
                yield path


class _Claimed(Target):
    """A folder that unpack writes. A finished one has an index that names every file in it."""

    what = "unpack"
    hint = "Give --resume to go on with an unfinished unpack, --overwrite to replace an unpacked folder, or name another folder."

    @staticmethod
    def _holds_dataset(folder: str) -> bool:
        return any(os.path.isfile(os.path.join(folder, name)) for name in _INDEXES)

    def _refuse_others(self) -> None:
        """Refuse to replace a folder that holds more than its index names: replacing removes all of it."""
        if not self._holds_dataset(self.final):
            return
        index = next(name for name in _INDEXES if os.path.isfile(os.path.join(self.final, name)))
        named = {hash(text) for row in read_table(os.path.join(self.final, index)) for text in row}
        for path in _files(self.final):
            if path not in (index, FAILED) and hash(path) not in named:
                raise UsageError(f"it holds {path!r}, which its {index} does not name", where=self.shown, hint="Move that elsewhere first.")


class Folder:
    """A local folder: claimed like a pack's, so that two never mix and a half one is known for what it is.

    head     what is unpacked and how; an unfinished folder must say the same
    is_done  a finished unpack lies there already, and `resume` was given; `failed` is how many rows it left out
    raises   as Target does
    """

    def __init__(self, out: str, head: Mapping[str, Any], *, resume: bool, overwrite: bool) -> None:
        self._target = _Claimed(out, resume=resume, overwrite=overwrite)
        self.is_done, self.shown = self._target.is_done, self._target.shown
        self.next = self.rows = self.files = self.bytes = self.failed = 0
        self.index: str | None = None
        if self.is_done:
            self._count()
            return
        store = LocalStore(self._target.folder, self.shown, maps=False, durable=False)
        self._at, self._store = Location(store), store
        try:
            self._log = self._opened()
            self._failed = Failed(self._target.at, self._load(head))
        except BaseException:
            self._target.release()
            raise
        self._kept = resume

    def _count(self) -> None:
        """Say what a finished folder holds, by its index and its files."""
        folder, index = self._target.final, next(name for name in _INDEXES if os.path.isfile(os.path.join(self._target.final, name)))
        self.index = f"{self.shown.rstrip('/')}/{index}"
        self.rows = sum(1 for _ in read_table(os.path.join(folder, index))) - (index == "index.csv")
        for path in _files(folder):
            if path == FAILED:
                self.failed = sum(block.count(b"\n") for block in (self._target.at / FAILED).blocks())
            elif path != index:
                self.files, self.bytes = self.files + 1, self.bytes + os.path.getsize(os.path.join(folder, path))

    @property
    def reasons(self) -> Mapping[str, int]:
        return dict(sorted(self._failed.counts.items()))

    def _opened(self) -> IO[bytes]:
        path = os.path.join(self._target.folder, SCRATCH, "journal")
        try:
            return open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666), "r+b")
        except OSError as error:
            raise self._store.error(error, f"{SCRATCH}/journal") from None

    def _load(self, head: Mapping[str, Any]) -> Mapping[str, Any]:
        """Go through what is noted as far as its files are there, and cut off the rest; give the state of the failed rows."""
        first = self._log.readline()
        if not first.endswith(b"\n"):
            self._log.seek(0)
            self._log.truncate()
            self._write(_lines([], head))
            return {}
        if _parsed(first) != json.loads(json.dumps(head)):
            hint = "Give --overwrite to begin anew."
            raise UsageError("the unfinished unpack there was begun from another source or with other options", where=self.shown, hint=hint)
        good = at = len(first)
        state: Mapping[str, Any] = {}
        rows = files = size = 0
        for line in self._log:
            at += len(line)
            entry = _parsed(line)
            written = entry.get("files", {})
            if not entry or not all(self._has(*file) for file in written.values()):
                break
            rows, files, size = rows + bool("files" in entry), files + len(written), size + sum(one for _, one in written.values())
            if "next" in entry:
                good, state = at, entry["failed"]
                self.next, self.rows, self.files, self.bytes = entry["next"], rows, files, size
        self._log.truncate(good)
        self._log.seek(good)
        return state

    def _has(self, name: str, size: int) -> bool:
        try:
            return (self._at / name).size() == size
        except FlareError:
            return False

    def _write(self, lines: bytes) -> None:
        try:
            self._log.write(lines)
            self._log.flush()
        except OSError as error:
            raise self._store.error(error, f"{SCRATCH}/journal") from None

    def put(self, name: str, data: memoryview) -> None:
        """Create a file; one of the same size that an unfinished run left is kept."""
        if not (self._kept and self._has(name, len(data))):
            (self._at / name).write([data], replace=self._kept)

    def fail(self, failure: Failure) -> None:
        self._failed.add(failure)

    def note(self, rows: Sequence[Mapping[str, Any]], next: int) -> None:
        """Note rows whose files are there, and the row at which the next batch begins."""
        self._write(_lines(rows, {"next": next, "failed": self._failed.settle(next)}))
        self.next = next

    def finish(self, kind: str, fields: Sequence[pa.Field]) -> str | None:
        """Write the index and give the folder free; give the index's path."""
        if kind != "none":
            self._log.seek(0)
            (self._target.at / f"index.{kind}").write(table(kind, fields, _index_rows(self._log)), replace=self._kept)
            self.index = f"{self.shown.rstrip('/')}/index.{kind}"
        self._failed.close()
        self._log.close()
        self._target.finish()
        return self.index

    def abandon(self) -> None:
        """Stop: what is there stays for a resume, or nothing stays if nothing is there."""
        self._failed.close()
        self._log.close()
        self._target.abandon(keep=self.next > 0)


class Tar:
    """A tar on a stream of bytes: POSIX, no times, no owners, so that the same rows give the same bytes. The index comes last."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.next = self.rows = self.files = self.bytes = self._size = 0
        self._stream, self._counts = stream, Counter[str]()
        self._log, self._failed = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  closed by abandon

    @property
    def reasons(self) -> Mapping[str, int]:
        return dict(sorted(self._counts.items()))

    def put(self, name: str, data: memoryview) -> None:
        self._member(name, len(data), [data])

    def _member(self, name: str, size: int, parts: Iterable[bytes | memoryview]) -> None:
        info = tarfile.TarInfo(name)
        info.size = size
        for part in (info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"), *parts, bytes(-size % _BLOCK)):
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
                index.writelines(table(kind, fields, _index_rows(self._log)))
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


def _parsed(line: bytes) -> dict[str, Any]:
    """Read a line of the journal; a torn one is as if it had never been written."""
    try:
        value = json.loads(line) if line.endswith(b"\n") else {}
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
