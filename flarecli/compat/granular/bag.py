"""granular's bags: consecutive byte records, and a table of the offsets at which they end."""

from __future__ import annotations

import contextlib
import io
import os
from typing import Any

import numpy as np

from flarecli import formats
from flarecli.compat import Closeable
from flarecli.compat.granular.paths import located
from flarecli.errors import FlareError, IntegrityError, RowsError, UsageError, ValueFitError
from flarecli.formats.granular.append import repair_table
from flarecli.model import Chunk, File
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore

__all__ = ["BagReader", "BagWriter", "SharedBuffer", "rows_of"]

_BAG, _IDX = ".bag", ".idx"


class SharedBuffer:
    """Source of a `BagReader`: a bag or a table as bytes in memory. Pickling copies the bytes."""

    def __init__(self, content: bytes | bytearray | memoryview) -> None:
        self.buf: bytes | None = bytes(content)
        self.size = len(self.buf)

    @property
    def closed(self) -> bool:
        """True if the buffer is closed."""
        return self.buf is None

    def _content(self) -> bytes:
        if self.buf is None:
            raise UsageError("the buffer is closed")
        return self.buf

    def __getitem__(self, index: Any) -> Any:
        return self._content()[index]

    def open(self, mode: str = "rb") -> io.BytesIO:
        """Return the bytes as a file object."""
        return io.BytesIO(self._content())

    def close(self) -> None:
        """Release the bytes."""
        self.buf = None


class BagWriter(Closeable):
    """Writer that creates or extends one bag and its table.

    After a crash, the bag may have bytes after the last record in the table. The next appended
    records must be equal to these bytes, which are not written again. The writer also removes
    incomplete table entries, and table entries whose records are missing.

    bag_path  a path, or an object with the methods of a Path
    idx_path  path of the table; None means `NAME.idx` next to the bag
    raises    FormatError for a table whose offsets decrease
    """

    def __init__(self, bag_path: Any, idx_path: Any = None) -> None:
        self.bag_path, self.idx_path = bag_path, idx_path
        self._bag = _location(bag_path, writing=True)
        beside = self._bag.folder / f"{os.path.splitext(self._bag.name)[0]}{_IDX}"
        self._idx = beside if idx_path is None else _location(idx_path, writing=True)
        for at in (self._bag, self._idx):
            if not at.exists():
                at.write([])
        starts = repair_table(self._bag, self._idx)
        self.length, self.offset = len(starts) - 1, int(starts[-1])
        self._pending: list[bytes] = []

    @property
    def size(self) -> int:
        """Total bytes of the flushed records, plus 8 bytes for each appended record."""
        return self.offset + 8 * self.length

    def __len__(self) -> int:
        return self.length

    def append(self, record: bytes, flush: bool = True) -> int:
        """Append a record and return its number.

        raises  UsageError after `close`; ValueFitError if the record is not bytes; IntegrityError
                as in `flush`
        """
        if self.closed:
            raise UsageError("the writer is closed", where=self._bag)
        if not isinstance(record, bytes):
            raise ValueFitError(f"expected bytes, got {type(record).__name__}", where=self._bag)
        self._pending.append(record)
        self.length += 1
        if flush:
            self.flush()
        return self.length - 1

    def flush(self) -> None:
        """Write the pending records, then their table entries.

        raises  IntegrityError if the pending records differ from the bytes that a crash left after
                the last record in the table
        """
        if not self._pending:
            return
        data = b"".join(self._pending)
        size = self._bag.size()
        existing = self._bag.read(self.offset, min(size, self.offset + len(data)))
        if existing != data[: len(existing)]:
            raise IntegrityError(
                f"cannot resume: the {size - self.offset} bytes after the last record are from a "
                "partial write, and the new data does not match them",
                where=self._bag,
                hint="Append the records whose write was interrupted, or truncate the bag after "
                "the last record.",
            )
        if len(existing) < len(data):
            self._bag.extend(size, [data[len(existing) :]])
        ends = self.offset + np.cumsum([len(record) for record in self._pending])
        self._idx.extend(8 * (self.length - len(ends)), [ends.astype("<u8").tobytes()])
        self.offset = int(ends[-1])
        self._pending.clear()

    def close(self) -> None:
        """Write the pending records and close the writer."""
        if not self.closed:
            self.flush()
        self.closed = True

    def abort(self) -> None:
        """Write the pending records and close the writer after an exception in the `with` block.

        Errors of the writer are ignored, so that the program receives this exception.
        """
        with contextlib.suppress(FlareError):
            self.close()


class BagReader(Closeable):
    """Reader of records in one bag, by number or range, for bags of any granular release.

    bag_source  a path, an address, an object with the methods of a Path, bytes, or a SharedBuffer
    idx_source  the table in one of these forms; None means `NAME.idx` next to the bag, if present,
                else the table in the bag
    cache_index, cache_data, single_file  ignored; the table is always in memory
    raises      MissingError for a missing file; FormatError for an invalid table
    """

    def __init__(
        self,
        bag_source: Any,
        idx_source: Any = None,
        cache_index: bool = True,
        cache_data: bool = False,
        single_file: bool = False,
    ) -> None:
        self._sources = (bag_source, idx_source)
        chunk = Chunk(_source(bag_source, _BAG))
        if idx_source is not None:
            idx = _source(idx_source, _IDX)
            chunk = Chunk(chunk.at, files=(File(f"x{_BAG}"), File(f"x{_IDX}")), companions=(idx,))
        self._shard = formats.find("granular").open_shard(chunk)

    def __reduce__(self) -> tuple[Any, ...]:
        return BagReader, self._sources

    @property
    def size(self) -> int:
        """Size of the records and their table in bytes."""
        chunk = self._shard.chunk
        files = {str(file): file for file in (chunk.at, *chunk.companions)}
        return sum(file.size() for file in files.values())

    def __len__(self) -> int:
        return len(self._shard)

    def __getitem__(self, index: Any) -> Any:
        """Return a record, or a list of records for a range.

        raises  RowsError (an IndexError) for a row outside the bag; UsageError for an invalid
                index
        """
        (column,) = self._shard.columns
        rows = rows_of(index, len(self), "record")
        stored: list[dict[str, Any]] = formats.find("granular").read_rows(self._shard, rows)
        records = [bytes(row[column.name]) for row in stored]
        return records if isinstance(index, (range, slice)) else records[0]

    def copy(self) -> BagReader:
        """Return a new reader of the same bag."""
        return BagReader(*self._sources)


def rows_of(index: Any, length: int, noun: str) -> range:
    """Return the rows that a number, a range or a slice selects; the step must be 1.

    noun    word for a row in messages
    raises  RowsError (an IndexError) for a row outside the data; UsageError for an invalid index
    """
    if isinstance(index, (int, np.integer)):
        if not -length <= index < length:
            raise RowsError(f"{noun} {index} is out of range; the length is {length}")
        row = int(index) % length
        return range(row, row + 1)
    if not isinstance(index, (range, slice)) or index.step not in (None, 1):
        raise UsageError(f"expected a number or a range with step 1, got {index!r:.60}")
    start, stop = index.start or 0, length if index.stop is None else index.stop
    if not 0 <= start <= stop:
        raise RowsError(f"invalid range of {noun}s: {index!r:.60}")
    return range(start, min(stop, length))


def _location(path: Any, writing: bool = False) -> Location:
    """Return the Location of a file from a path or from an object with the methods of a Path."""
    if isinstance(path, (str, os.PathLike)):
        folder, name = os.path.split(path)
    else:
        folder, name = path.parent, path.name
    return located(folder or ".", writing) / str(name)


def _source(source: Any, suffix: str) -> Location:
    """Return the Location of a `BagReader` source."""
    if isinstance(source, SharedBuffer):
        source = source[:]
    if isinstance(source, (bytes, bytearray, memoryview)):
        return Location(MemoryStore({f"x{suffix}": source}, "bytes in memory"), f"x{suffix}")
    return _location(source)
