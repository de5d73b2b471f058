"""Append-only logs of JSON lines, in a local file or in a bucket.

A log remains readable after a crash or a torn write.

A local log is a single file. Objects in a bucket cannot grow, so each append creates an object:

    OUT/.flare/journal/00000.json …        a log in the scratch folder
    OUT/.flare/failed.jsonl/00000.json …   a log that `publish` copies to OUT/failed.jsonl

Only one process at a time may use a log.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from flarecli.errors import BusyError, FlareError, FormatError, MissingError, UsageError
from flarecli.storage import descriptors
from flarecli.storage.base import Location, read_each
from flarecli.storage.local import SCRATCH, LocalStore

__all__ = ["LogLine", "first_entry", "format_line", "open_log", "parse_line"]

_MAX_HEAD_BYTES = 1 << 20  # maximum length of the first line, because the file is untrusted
_PIECE = re.compile(r"(\d{1,9})\.json", re.ASCII)
_APPEND = os.O_RDWR | os.O_CREAT | os.O_APPEND | descriptors.NO_WAIT | descriptors.FILE


class LogLine(NamedTuple):
    """A complete line of a log.

    stop   offset of the end of the line in the log, in bytes
    entry  JSON object in the line, or None if the line is invalid
    """

    stop: int
    entry: dict[str, Any] | None


def parse_line(line: bytes) -> dict[str, Any] | None:
    """Return the JSON object in a line, or None if the line does not contain a JSON object."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def format_line(entry: Mapping[str, Any]) -> bytes:
    """Return an entry as one line of JSON that ends with a newline."""
    return (json.dumps(entry) + "\n").encode()


class AppendLog(ABC):
    """A log at one address. A missing log is empty; only a write creates the log."""

    @property
    @abstractmethod
    def size(self) -> int:
        """The size of the log in bytes, including a torn last line."""

    @abstractmethod
    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the log in order, in blocks."""

    def lines(self) -> Iterator[bytes]:
        """Yield the complete lines.

        A torn last line is ignored, because its write was interrupted.
        """
        rest = b""
        for block in self.blocks():
            head, newline, tail = block.rpartition(b"\n")
            if not newline:
                rest += block
                continue
            yield from (line + newline for line in (rest + head).split(newline))
            rest = tail

    def entries(self) -> Iterator[LogLine]:
        """Parse and yield the complete lines."""
        stop = 0
        for line in self.lines():
            stop += len(line)
            yield LogLine(stop, parse_line(line))

    @abstractmethod
    def append(self, data: bytes) -> None:
        """Append bytes.

        After the call, the bytes survive a crash and, in a durable store, a power loss.
        """

    @abstractmethod
    def cut(self, size: int) -> None:
        """Truncate the log to its first `size` bytes."""

    @abstractmethod
    def publish(self) -> None:
        """Make the log available as a single file at its address."""

    @abstractmethod
    def remove(self) -> None:
        """Remove the log, unless its name now refers to a different file."""

    @abstractmethod
    def close(self) -> None:
        """Close the open file of the log. The log remains."""


def open_log(at: Location) -> AppendLog:
    """Open the log at a location. The log need not exist.

    raises  ReachError if the log cannot be read
    """
    return FileLog(at, at.store) if isinstance(at.store, LocalStore) else ObjectLog(at)


def first_entry(at: Location) -> dict[str, Any]:
    """Return the JSON object in the first line of a log.

    The result is an empty dict if the line cannot be read.
    """
    where = at if isinstance(at.store, LocalStore) else at / "00000.json"
    try:
        data = bytes(where.read(0, min(where.size(), _MAX_HEAD_BYTES)))
    except FlareError:
        return {}
    head, newline, _ = data.partition(b"\n")
    return (parse_line(head) or {}) if newline else {}


class FileLog(AppendLog):
    """A log in a local file."""

    def __init__(self, at: Location, store: LocalStore) -> None:
        self._at, self._store = at, store
        self._fd = -1

    @property
    def size(self) -> int:
        return self._at.size() if self._at.exists() else 0

    def blocks(self) -> Iterator[bytes]:
        if self._at.exists():
            yield from self._at.blocks()

    def create(self) -> None:
        """Create the file if it does not exist. Raises the same errors as `append`."""
        if self._fd < 0:
            with self._store.opened(self._at.path, _APPEND) as fd:
                self._fd = os.dup(fd)
            self._store.sync_names(os.path.dirname(self._at.path))

    def append(self, data: bytes) -> None:
        from flarecli.storage.direct_io import write_all

        self.create()
        try:
            write_all(self._fd, memoryview(data))
            self._sync()
        except OSError as error:
            raise self._store.error(error, self._at.path) from None

    def cut(self, size: int) -> None:
        if not size:
            self.close()
            self._at.delete()
        else:
            self.truncate(size)

    def truncate(self, size: int = 0) -> None:
        """Truncate the file to its first `size` bytes. If `size` is 0, an empty file remains."""
        self.create()
        try:
            os.ftruncate(self._fd, size)
            self._sync()  # needed if no `append` follows
        except OSError as error:
            raise self._store.error(error, self._at.path) from None

    def _sync(self) -> None:
        if self._store.durable:
            descriptors.sync(self._fd)

    def publish(self) -> None:
        """Do nothing, because the file has its final name from the start."""

    def remove(self) -> None:
        path = os.path.join(self._store.root, self._at.path)
        self.create()
        is_own = os.path.exists(path) and os.path.samestat(os.fstat(self._fd), os.stat(path))
        self.close()  # Windows cannot remove an open file
        if is_own:
            os.unlink(path)

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)  # even a failed close releases `fd`, so `fd` must not be closed again
            except OSError as error:
                raise self._store.error(error, self._at.path) from None


class ObjectLog(AppendLog):
    """A log in a bucket, with one object per append, numbered from 0."""

    def __init__(self, at: Location) -> None:
        self._at, self._is_in_scratch = at, at.folder.name == SCRATCH
        self._folder = at if self._is_in_scratch else at.folder / f"{SCRATCH}/{at.name}"
        self._sizes: list[int] = []
        found = {}
        with contextlib.suppress(MissingError):
            found = {
                int(named[1]): entry
                for entry in self._folder.list()
                if (named := _PIECE.fullmatch(entry.name))
            }
        # The log ends before the first missing object. The objects after the missing object are
        # deleted here.
        for number in range(len(found)):
            if number not in found:
                break
            self._sizes.append(found.pop(number).size)
        self._delete([entry.name for _, entry in sorted(found.items())])

    def _name(self, number: int) -> str:
        return f"{number:05d}.json"

    def _delete(self, names: Sequence[str]) -> None:
        # The last object is deleted first, so that the remaining objects are the start of the log
        # even if the deletion is interrupted.
        for name in reversed(names):
            (self._folder / name).delete()

    @property
    def size(self) -> int:
        return sum(self._sizes)

    def blocks(self) -> Iterator[bytes]:
        names = map(self._name, range(len(self._sizes)))
        yield from map(bytes, read_each([self._folder / name for name in names]))

    def append(self, data: bytes) -> None:
        at = self._folder / self._name(len(self._sizes))
        try:
            at.write([data], replace=False)
        except UsageError:  # the object exists because a response was lost or another pack wrote it
            if at.read() != data:
                raise BusyError(
                    "another pack is writing to this folder",
                    where=at,
                    hint="Stop one of the two packs, then repeat this command with --resume.",
                ) from None
        self._sizes.append(len(data))

    def cut(self, size: int) -> None:
        number, stop = 0, 0
        while number < len(self._sizes) and stop < size:
            stop += self._sizes[number]
            number += 1
        if stop != size:
            raise FormatError(
                "the size of the log differs from the size recorded in the journal",
                where=self._folder,
                hint="Pack again with --overwrite.",
            )
        self._delete([self._name(at) for at in range(number, len(self._sizes))])
        del self._sizes[number:]

    def publish(self) -> None:
        if self._sizes and not self._is_in_scratch:
            self._at.write(self.blocks())

    def remove(self) -> None:
        self.cut(0)

    def close(self) -> None:
        """Do nothing, because no file is open."""
