"""granular's bags by themselves: records of bytes behind one another, and a table of where they end."""

from __future__ import annotations

import contextlib
import io
import os
from types import TracebackType
from typing import Any

import numpy as np

from flarecli import formats
from flarecli.compat.granular.paths import located
from flarecli.errors import FlareError, IntegrityError, RowsError, UsageError, ValueFitError
from flarecli.formats.granular_append import mend_table
from flarecli.model import Chunk, File
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore

__all__ = ["BagReader", "BagWriter", "SharedBuffer"]

_BAG, _IDX = ".bag", ".idx"


class SharedBuffer:
    """Bytes of a bag or of its table in memory, for `BagReader`; sent to another process as a copy."""

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self.buf: bytes | None = bytes(content)
        self.size = len(self.buf)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self.buf is None

    def _content(self) -> bytes:
        if self.buf is None:
            raise UsageError("the buffer is closed")
        return self.buf

    def __getitem__(self, index: Any) -> Any:
        return self._content()[index]

    def open(self, mode: str = "rb") -> io.BytesIO:
        """Open the bytes as a file."""
        return io.BytesIO(self._content())

    def close(self) -> None:
        """Release the bytes."""
        self.buf = None


class BagWriter:
    """Write records into one bag and its table, or add to those that are there.

    A crash may leave bytes behind the last record of the table: the next records must be those bytes, which are not
    written twice. Entries of the table that are incomplete, or that name bytes that are not there, are dropped.

    bag_path  a path, or any object that has a Path's methods
    idx_path  the table; None: beside the bag, with the suffix `.idx`
    raises    FormatError for a table whose ends decrease
    """

    def __init__(self, bag_path: Any, idx_path: Any = None) -> None:
        self.bag_path, self.idx_path = bag_path, idx_path
        self._bag, self._idx = _pair(bag_path, idx_path, writing=True)
        for at in (self._bag, self._idx):
            if not at.exists():
                at.write([])
        starts = mend_table(self._bag, self._idx)
        self.length, self.offset = len(starts) - 1, int(starts[-1])
        self._waiting: list[bytes] = []
        self.closed = False

    @property
    def size(self) -> int:
        """Bytes of the records that were flushed, and 8 for each record."""
        return self.offset + 8 * self.length

    def __len__(self) -> int:
        return self.length

    def append(self, record: bytes, flush: bool = True) -> int:
        """Add a record and return its number.

        raises  UsageError after `close`; ValueFitError for anything but bytes; IntegrityError as `flush` does
        """
        if self.closed:
            raise UsageError("the writer is closed", where=self._bag)
        if not isinstance(record, bytes):
            raise ValueFitError(f"expected bytes, got {type(record).__name__}", where=self._bag)
        self._waiting.append(record)
        self.length += 1
        if flush:
            self.flush()
        return self.length - 1

    def flush(self) -> None:
        """Write the records that wait, then their entries of the table.

        raises  IntegrityError if bytes of another record follow the last one of the table
        """
        if not self._waiting:
            return
        data = b"".join(self._waiting)
        there = self._bag.size()
        known = self._bag.read(self.offset, min(there, self.offset + len(data)))
        if known != data[: len(known)]:
            raise IntegrityError(
                f"cannot resume: the {there - self.offset} bytes after the last record are of a partial "
                "write, and the new data does not match them",
                where=self._bag,
                hint="Append the records that were being written, or cut the bag at that byte.",
            )
        if len(known) < len(data):
            self._bag.extend(there, [data[len(known) :]])
        ends = self.offset + np.cumsum([len(one) for one in self._waiting])
        self._idx.extend(8 * (self.length - len(ends)), [ends.astype("<u8").tobytes()])
        self.offset = int(ends[-1])
        self._waiting.clear()

    def close(self) -> None:
        """Write the records that wait, and end."""
        if not self.closed:
            self.flush()
        self.closed = True

    def __enter__(self) -> BagWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with contextlib.suppress(*([] if kind is None else [FlareError])):
            self.close()


class BagReader:
    """Read records of one bag by number or by range of numbers, whatever release wrote it.

    bag_source  a path, an address, an object that has a Path's methods, the bytes themselves, or a SharedBuffer
    idx_source  the table, likewise; None: `NAME.idx` beside the bag if there is one, else the table at the end of the bag
    cache_index, cache_data, single_file  accepted, without effect: the table is always in memory
    raises      MissingError, FormatError
    """

    def __init__(
        self,
        bag_source: Any,
        idx_source: Any = None,
        cache_index: bool = True,
        cache_data: bool = False,
        single_file: bool = False,
    ) -> None:
        self._source, self._idx_source = bag_source, idx_source
        chunk = Chunk(_source(bag_source, _BAG))
        if idx_source is not None:
            idx = _source(idx_source, _IDX)
            chunk = Chunk(chunk.at, files=(File(f"x{_BAG}"), File(f"x{_IDX}")), beside=(idx,))
        self._shard = formats.find("granular").open_shard(chunk)
        self.closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return BagReader, (self._source, self._idx_source)

    @property
    def size(self) -> int:
        """Bytes of the records and their table."""
        chunk = self._shard.chunk
        return sum(
            one.size() for one in {str(one): one for one in (chunk.at, *chunk.beside)}.values()
        )

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, index: Any) -> Any:
        """Give a record, or of a range a list of them. Raises RowsError (an IndexError) outside the bag; UsageError for what is no index."""
        if isinstance(index, (int, np.integer)):
            if not -len(self) <= index < len(self):
                raise RowsError(f"record {index} is outside the bag, which has {len(self)}")
            return self._read(range(int(index) % len(self), int(index) % len(self) + 1))[0]
        if not isinstance(index, (range, slice)) or index.step not in (None, 1):
            raise UsageError(f"{index!r:.60} is neither a number nor a range of step 1")
        start, stop = index.start or 0, len(self) if index.stop is None else index.stop
        if not 0 <= start <= stop:
            raise RowsError(f"{index!r:.60} is no range of records")
        return self._read(range(start, min(stop, len(self))))

    def _read(self, rows: range) -> list[bytes]:
        (column,) = self._shard.columns
        found: list[dict[str, Any]] = formats.find("granular").read_rows(self._shard, rows)
        return [bytes(row[column.name]) for row in found]

    def copy(self) -> BagReader:
        """Give another reader of the same."""
        return BagReader(self._source, self._idx_source)

    def close(self) -> None:
        """End; nothing is held open."""
        self.closed = True

    def __enter__(self) -> BagReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _place(path: Any, writing: bool = False) -> Location:
    """Return the Location of a file that a path names, or an object that has a Path's methods."""
    if isinstance(path, (str, os.PathLike)):
        folder, name = os.path.split(path)
        return located(folder or ".", writing) / str(name)
    return located(path.parent, writing) / str(path.name)


def _source(source: Any, suffix: str) -> Location:
    """Return the Location of what `BagReader` reads."""
    if isinstance(source, SharedBuffer):
        source = source[:]
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Location(MemoryStore({f"x{suffix}": source}, "bytes in memory"), f"x{suffix}")
    return _place(source)


def _pair(bag: Any, idx: Any, writing: bool) -> tuple[Location, Location]:
    """Return the Locations of a bag and its table."""
    at = _place(bag, writing)
    name = f"{os.path.splitext(at.name)[0]}{_IDX}"
    return at, at.folder / name if idx is None else _place(idx, writing)
