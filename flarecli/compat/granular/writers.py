"""granular's writers: each key has its own bag. The files are byte-identical to granular's files.

A type such as `utf8[]` is a list type if no encoder is named `utf8[]`. The writers store a dataset
with list types in the format of granular 0.21.
"""

from __future__ import annotations

import itertools
import json
import mmap
import os
import re
import tempfile
from collections.abc import Callable, Mapping
from typing import IO, Any

import pyarrow as pa

from flarecli import formats
from flarecli.compat import Closeable
from flarecli.compat.granular.paths import located
from flarecli.encodings import BINARY, column
from flarecli.errors import IntegrityError, UsageError, ValueFitError
from flarecli.formats.granular.append import Appender
from flarecli.formats.granular.spec import SPEC, shard_folder
from flarecli.model import Columns, Settings
from flarecli.storage import Location
from flarecli.storage.local import LocalStore

__all__ = ["DatasetWriter", "ShardedDatasetWriter"]

MAX_PENDING_ROWS, MAX_PENDING_BYTES = 1024, 1 << 24  # limits that trigger a flush
_UNLIMITED = 1 << 62
Encoders = Mapping[str, Callable[[Any], bytes]]


class _Writer(Closeable):
    """Base class of both writers.

    directory  a path, or an object with the methods of a Path
    spec       key -> type; `TYPE[]` for lists
    encoders   type -> function from a value to bytes; None means that the values are bytes
    raises     UsageError for an invalid key or type, or a type without an encoder; IntegrityError
               if the folder has a dataset with a different spec
    """

    def __init__(
        self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None, **shards: Any
    ) -> None:
        for word in (*spec.keys(), *spec.values()):
            if not re.match(r"[a-z_]", word):
                raise UsageError(f"expected a name that begins with a-z or _, got {word!r:.60}")
        self._spec = dict(sorted(spec.items()))
        self._lists = {
            key
            for key, kind in spec.items()
            if kind.endswith("[]") and (encoders is None or kind not in encoders)
        }
        self._encoders: dict[str, Callable[[Any], bytes] | None] = {}
        for key, kind in self._spec.items():
            plain = kind.removesuffix("[]") if key in self._lists else kind
            if encoders is not None and plain not in encoders:
                raise UsageError(f"no encoder for type {plain!r:.60}")
            self._encoders[key] = None if encoders is None else encoders[plain]
        self._at = located(directory, writing=True)
        self.directory = directory
        self._appender = self._opened(shards)
        self._pending: list[list[bytes | list[bytes]]] = []
        self._pending_bytes = 0

    def _opened(self, shards: dict[str, Any]) -> Appender | _LegacyWriter:
        columns = tuple(
            column(key, "bytes[]" if key in self._lists else "bytes") for key in self._spec
        )
        if not self._lists:
            return Appender(self._at, columns, words=self._spec, **shards)
        spool = None  # None means the system's temporary folder
        if isinstance(self._at.store, LocalStore):
            spool = os.fspath(self.directory)
            os.makedirs(spool, exist_ok=True)
        return _LegacyWriter(self._at, columns, self._spec, spool, **shards)

    @property
    def spec(self) -> dict[str, str]:
        """The type of each key, sorted by key: key -> type."""
        return self._spec

    def __len__(self) -> int:
        return self._appender.rows + len(self._pending)

    @property
    def size(self) -> int:
        """Size of the bags and tables in the shards of this writer, in bytes."""
        self.flush()
        return sum(
            file.size
            for file in self._at.list()
            if file.name.endswith((".bag", ".idx")) and self._is_own(file.name)
        )

    def _is_own(self, name: str) -> bool:
        """Return whether a file is in a shard of this writer."""
        return True

    def append(self, datapoint: Mapping[str, Any], flush: bool = True) -> int:
        """Append one datapoint and return its number. With `flush`, write it immediately.

        raises  UsageError for keys that differ from the spec, or after `close`; ValueFitError for
                a value that is not bytes; IntegrityError if an interrupted write left bytes of a
                different datapoint
        """
        if self.closed:
            raise UsageError("the writer is closed", where=self._at)
        if datapoint.keys() != self._spec.keys():
            key = min(datapoint.keys() ^ self._spec.keys())
            fault = "missing" if key in self._spec else "unknown"
            raise UsageError(f"{fault} key {key!r:.60}")
        # All values are encoded first, so that a failing encoder leaves no incomplete datapoint.
        row = [self._encoded(key, datapoint[key]) for key in self._spec]
        self._pending.append(row)
        self._pending_bytes += sum(
            len(value) if isinstance(value, bytes) else sum(map(len, value)) for value in row
        )
        if (
            flush
            or len(self._pending) >= MAX_PENDING_ROWS
            or self._pending_bytes >= MAX_PENDING_BYTES
        ):
            self.flush()
        return len(self) - 1

    def _encoded(self, key: str, value: Any) -> bytes | list[bytes]:
        """Return the bytes of a value, or the bytes of each item in a list."""
        if key in self._lists and not isinstance(value, (list, tuple)):
            raise ValueFitError(f"key {key!r}: expected a list, got {type(value).__name__}")
        encoder, encoded = self._encoders[key], []
        for item in value if key in self._lists else [value]:
            data = item if encoder is None else encoder(item)
            if not isinstance(data, bytes):
                raise ValueFitError(f"key {key!r}: expected bytes, got {type(data).__name__}")
            if self._lists and not data:
                raise ValueFitError(
                    f"key {key!r}: a dataset with lists cannot store a value of 0 bytes"
                )
            encoded.append(data)
        return encoded if key in self._lists else encoded[0]

    def flush(self) -> None:
        """Write the pending datapoints."""
        rows, self._pending, self._pending_bytes = self._pending, [], 0
        if rows:
            kinds = [pa.large_list(BINARY) if key in self._lists else BINARY for key in self._spec]
            arrays = [
                pa.array(values, kind)
                for values, kind in zip(zip(*rows, strict=True), kinds, strict=True)
            ]
            try:
                self._appender.append(pa.RecordBatch.from_arrays(arrays, names=list(self._spec)))
            except IntegrityError as error:
                raise error.changed(
                    message=f"Record mismatch: {error.message}",  # programs search for this text
                    hint="Append the datapoints whose write was interrupted.",
                ) from None

    def close(self) -> None:
        """Write all remaining datapoints and close the writer."""
        if not self.closed:
            self.flush()
            if isinstance(self._appender, _LegacyWriter):
                self._appender.close()
        self.closed = True

    def abort(self) -> None:
        """Close the writer after an error in the `with` block.

        In a dataset with lists, the pending datapoints are discarded. In any other dataset, they
        are written.
        """
        if isinstance(self._appender, _LegacyWriter):
            self._appender.abandon()
            self.closed = True
        else:
            self.close()


class _LegacyWriter:
    """Writer of datasets with lists, in the format of granular 0.21 and earlier.

    In this format, each file ends with its table, so all rows must be known before a file is
    written. Until then, the writer stores the rows in an unnamed temporary file.

    at          the folder of the dataset
    columns     columns with the encodings `bytes` and `bytes[]`
    words       column -> type name, as in spec.json, sorted by column
    spool       folder for the unnamed file; None means the system's temporary folder
    shard_rows  rows per shard; None means a dataset without shards
    start, step  number of the first shard, and the step to the next shard
    rows        number of appended rows
    raises      UsageError if the folder contains a dataset, because the writer cannot extend it
    """

    def __init__(
        self,
        at: Location,
        columns: Columns,
        words: dict[str, str],
        spool: str | None,
        shard_rows: int | None = None,
        start: int = 0,
        step: int = 1,
    ) -> None:
        self._format = formats.find("granular-refs")
        self.columns = self._format.arrange(columns)
        self._at, self._words, self._shard_rows, self._spool = at, words, shard_rows, spool
        self._numbers = itertools.count(start, step)
        for spec in (SPEC, f"{shard_folder(start)}/{SPEC}"):
            if (at / spec).exists():
                raise UsageError(
                    "cannot append to a dataset with lists",
                    where=at / spec,
                    hint="Choose another folder.",
                )
        self.rows = self._pending = 0
        self._spooled: tuple[IO[bytes], pa.RecordBatchStreamWriter] | None = None

    def begin(self) -> None:
        """Do nothing; `append` and `close` write the files."""

    def append(self, batch: pa.RecordBatch) -> None:
        """Append rows and write complete shards."""
        self.rows += batch.num_rows
        while batch.num_rows:
            room = batch.num_rows if self._shard_rows is None else self._shard_rows - self._pending
            self._spool_rows(batch.slice(0, room))
            batch = batch.slice(room)
            if self._pending == self._shard_rows:
                self._write()

    def close(self) -> None:
        """Write the pending rows, or an empty dataset. Empty shards are not written."""
        if self._pending or (self._shard_rows is None and not self.rows):
            self._write()

    def abandon(self) -> None:
        """Discard the pending rows."""
        if self._spooled is not None:
            self._spooled[0].close()
        self._spooled, self._pending = None, 0

    def _spool_rows(self, batch: pa.RecordBatch) -> None:
        if self._spooled is None:
            file = tempfile.TemporaryFile(dir=self._spool, prefix=".flare-")  # noqa: SIM115
            self._spooled = file, pa.ipc.new_stream(file, batch.schema)
        self._spooled[1].write_batch(batch)
        self._pending += batch.num_rows

    def _write(self) -> None:
        """Write the pending rows as a dataset or as the next shard."""
        number, batches = next(self._numbers), []
        if self._spooled is not None:
            file, stream = self._spooled
            stream.close()
            file.flush()
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
            batches = list(pa.ipc.open_stream(pa.py_buffer(mapped)))
        settings = Settings(shard_bytes=None, shard_rows=self._shard_rows)
        self._format.write_shard(self._at, number, self.columns, batches, settings)
        folder = self._at if self._shard_rows is None else self._at / shard_folder(number)
        (folder / SPEC).write([json.dumps(self._words).encode()])
        self.abandon()


class DatasetWriter(_Writer):
    """Writer of one dataset. An existing dataset is extended."""

    def __init__(self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None) -> None:
        super().__init__(directory, spec, encoders)
        self._appender.begin()


class ShardedDatasetWriter(_Writer):
    """Writer of every `shardstep`-th shard from `shardstart` on, with `shardlen` datapoints each.

    If the last shard in the folder is not full, it is filled first.
    """

    def __init__(
        self,
        directory: Any,
        spec: Mapping[str, str],
        encoders: Encoders | None,
        shardlen: int | None = None,
        shardstart: int = 0,
        shardstep: int = 1,
    ) -> None:
        if (
            shardstart < 0
            or shardstep < 1
            or (shardlen is None and (shardstart or shardstep > 1))
            or (shardlen is not None and shardlen < 1)
        ):
            raise UsageError(
                f"invalid shardlen {shardlen}, shardstart {shardstart}, shardstep {shardstep}"
            )
        self._shardlen = shardlen or _UNLIMITED
        self.shardstart, self.shardstep = shardstart, shardstep
        super().__init__(
            directory, spec, encoders, shard_rows=self._shardlen, start=shardstart, step=shardstep
        )

    @property
    def shards(self) -> int:
        """Number of shards of this writer that contain rows."""
        return -(-len(self) // self._shardlen)

    @property
    def shardnum(self) -> int:
        """Number of the shard for the next datapoint."""
        return self.shardstart + self.shardstep * (len(self) // self._shardlen)

    def _is_own(self, name: str) -> bool:
        folder = name.partition("/")[0]
        return (
            folder.isdigit()
            and int(folder) >= self.shardstart
            and (int(folder) - self.shardstart) % self.shardstep == 0
        )
