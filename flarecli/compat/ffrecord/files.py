"""ffrecord's FileWriter and FileReader: byte records by number, the same bytes on disk."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any, BinaryIO
from zlib import crc32

import numpy as np

from flarecli.errors import FormatError, ReachError, RowsError, UsageError
from flarecli.formats import ffrecord_table, find, spans
from flarecli.model import Chunk, IntArray, Shard
from flarecli.storage import locate

__all__ = ["FileReader", "FileWriter", "dump"]


class FileWriter:
    """Write `n` records into one file, which has its name only when all of them are in it.

    raises  UsageError for a name that does not end in `.ffr`
    """

    def __init__(self, fname: str | os.PathLike[str], n: int) -> None:
        self.fname, self.n = os.fspath(fname), n
        if not self.fname.endswith(".ffr") or n < 0:
            raise UsageError(
                f"{n} records: a name that ends in .ffr, and a number are wanted", where=self.fname
            )
        self._part = os.path.join(
            os.path.dirname(self.fname), f".{os.path.basename(self.fname)}.part"
        )
        self._sums, self._sizes = np.zeros(n, np.uint32), np.zeros(n, np.int64)
        self._count = 0
        try:
            self._file: BinaryIO | None = open(self._part, "wb")  # noqa: SIM115
        except OSError as error:
            raise ReachError(os.strerror(error.errno or 0), where=self.fname) from None
        self._file.seek(12 + 12 * n)

    def write_one(self, data: Any) -> None:
        """Write one record: all bytes of a buffer. Raises UsageError past `n`, or for what is no buffer."""
        if self._file is None or self._count == self.n:
            raise UsageError(
                f"{self.n} records are written" if self._file else "the file is closed",
                where=self.fname,
            )
        try:
            view = memoryview(data)
            view = view.cast("B") if view.contiguous else memoryview(view.tobytes())
        except TypeError:
            raise UsageError(
                f"{type(data).__name__} is not bytes", where=self.fname, row=self._count
            ) from None
        self._file.write(view)
        self._sums[self._count], self._sizes[self._count] = crc32(view), len(view)
        self._count += 1

    def close(self) -> None:
        """Write the table, and give the file its name. Raises UsageError if records are missing: then nothing stays."""
        file, self._file = self._file, None
        if file is None:
            return
        with file:
            if self._count == self.n:
                file.seek(0)
                file.write(ffrecord_table.packed_table(self._sums, self._sizes))
                if not self._sizes.any():
                    file.truncate(12 + 12 * self.n)
                file.flush()
                os.fsync(file.fileno())
        if self._count < self.n:
            os.unlink(self._part)
            raise UsageError(
                f"{self._count} records were written, {self.n} are wanted", where=self.fname
            )
        os.replace(self._part, self.fname)

    def __enter__(self) -> FileWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()
        elif self._file is not None:
            self._file.close()
            self._file = None
            os.unlink(self._part)


class FileReader:
    """Records of one file, of several behind one another, or of a folder's, in the order of their names.

    n           how many there are
    fnames      the files
    check_data  hold each table and each record against its CRC-32
    raises      MissingError, FormatError, IntegrityError; UsageError for a name that does not end in `.ffr`
    """

    def __init__(
        self,
        fname: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        check_data: bool = True,
    ) -> None:
        given = [fname] if isinstance(fname, (str, os.PathLike)) else list(fname)
        names = [os.fspath(one) for one in given]
        if len(names) == 1 and os.path.isdir(names[0]):
            stream = find("ffrecord").open_dataset(locate(f"{names[0].rstrip('/')}/"))
            names = [os.path.join(names[0], url) for url in stream.urls]
        if not names:
            raise UsageError("no file is named")
        for name in names:
            if not name.endswith(".ffr"):
                raise UsageError("its name does not end in .ffr", where=name)
        self.fnames, self.check_data = names, check_data
        self._shards: list[Shard] = [self._opened(name) for name in names]
        self._starts = [0, *accumulate(len(shard) for shard in self._shards)]

    def _opened(self, name: str) -> Shard:
        at = locate(name)
        return ffrecord_table.open_shard(
            spans.of(at) if at.is_local else Chunk(at), None, self.check_data
        )

    def __reduce__(self) -> tuple[Any, ...]:
        return FileReader, (self.fnames, self.check_data)

    @property
    def n(self) -> int:
        """How many records there are."""
        return self._starts[-1]

    def __len__(self) -> int:
        return self.n

    def read(self, indices: Sequence[int] | IntArray) -> list[IntArray]:
        """Give records in the order asked, also one several times: uint8 [bytes] each, writable.

        Those of one call share their memory: holding one holds all of them.

        raises  UsageError for no list of whole numbers; RowsError (an IndexError) outside the data, also below 0; IntegrityError naming the record
        """
        if not self._shards:
            raise UsageError("the reader is closed")
        try:
            rows = [operator.index(index) for index in indices]
        except TypeError:
            raise UsageError(
                "what was asked for is no list of whole numbers", where=self.fnames[0]
            ) from None
        for row in rows:
            if not 0 <= row < self.n:
                raise RowsError(f"record {row} is outside the data, which has {self.n}")
        out: list[IntArray] = [np.empty(0, np.uint8)] * len(rows)
        places: dict[int, list[int]] = {}
        for k, row in enumerate(rows):
            places.setdefault(bisect_right(self._starts, row) - 1, []).append(k)
        for i, ks in places.items():
            parts = ffrecord_table.read_copies(
                self._shards[i], [rows[k] - self._starts[i] for k in ks], self.check_data
            )
            for k, part in zip(ks, parts, strict=True):
                out[k] = np.frombuffer(part, np.uint8)
        return out

    def read_one(self, index: int) -> IntArray:
        """Give one record."""
        return self.read([index])[0]

    def validate(self) -> None:
        """Hold every table against its CRC-32. Raises IntegrityError."""
        for name in self.fnames:
            ffrecord_table.open_shard(spans.of(locate(name)))

    def get_offsets(self, file_index: int) -> IntArray:
        """Where each record of a file starts, and the file's size: int64 [records + 1]."""
        return self._layout(file_index, "offsets").astype(np.int64)

    def get_checksums(self, file_index: int) -> IntArray:
        """The CRC-32 of each record of a file: uint32 [records]."""
        return self._layout(file_index, "sums").astype(np.uint32)

    def _layout(self, file_index: int, what: str) -> IntArray:
        if not 0 <= file_index < len(self._shards):
            raise RowsError(f"file {file_index} is none of {len(self._shards)}")
        return self._shards[file_index].layout[what]

    def close(self) -> None:
        """End: nothing more is read."""
        self._shards = []

    def __enter__(self) -> FileReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def dump(
    dataset: Any, fname: str | os.PathLike[str], nfiles: int = 1, verbose: bool = False
) -> None:
    """Write what has `len` and `[i]` as one file, or as a folder of `PART_00000.ffr` and so on, as many in each but the last.

    verbose  taken, and of no use here

    raises  FormatError if no file would have a record
    """
    rows, out = len(dataset), os.fspath(fname)
    each = rows if nfiles <= 1 else -(-rows // nfiles)
    if nfiles > 1:
        if not each:
            raise FormatError("no records to write", where=out)
        os.makedirs(out, exist_ok=True)
    for k, start in enumerate(range(0, max(rows, 1), max(each, 1))):
        stop = min(rows, start + each)
        with FileWriter(
            os.path.join(out, f"PART_{k:05d}.ffr") if nfiles > 1 else out, stop - start
        ) as writer:
            for i in range(start, stop):
                writer.write_one(dataset[i])
