"""granular's writers: one bag per key, the same bytes; existing datasets are extended.

A type such as `utf8[]` without an encoder of that name is a list: the dataset is then written in
the format of granular 0.21.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from typing import Any

import pyarrow as pa

from flarecli.compat import Closeable
from flarecli.compat.granular.legacy_writer import LegacyWriter
from flarecli.compat.granular.paths import located
from flarecli.encodings import BINARY, column
from flarecli.errors import IntegrityError, UsageError, ValueFitError
from flarecli.formats.granular.append import Appender
from flarecli.storage.local import LocalStore

__all__ = ["DatasetWriter", "ShardedDatasetWriter"]

MAX_PENDING_ROWS, MAX_PENDING_BYTES = 1024, 1 << 24  # before a flush
_UNLIMITED = 1 << 62
Encoders = Mapping[str, Callable[[Any], bytes]]


class _Writer(Closeable):
    """Base class of both writers.

    directory  a path, or an object with the methods of a Path
    spec       key -> type; `TYPE[]` for lists
    encoders   type -> function from a value to bytes; None: the values are bytes
    raises     UsageError for an invalid key or type, or a type without encoder; IntegrityError
               if the folder has a dataset with another spec
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

    def _opened(self, shards: dict[str, Any]) -> Appender | LegacyWriter:
        columns = tuple(
            column(key, "bytes[]" if key in self._lists else "bytes") for key in self._spec
        )
        if not self._lists:
            return Appender(self._at, columns, words=self._spec, **shards)
        spool = os.fspath(self.directory) if isinstance(self._at.store, LocalStore) else None
        if spool is not None:
            os.makedirs(spool, exist_ok=True)
        rows = shards.get("shard_rows")
        start, step = shards.get("start", 0), shards.get("step", 1)
        return LegacyWriter(self._at, columns, self._spec, rows, start, step, spool)

    @property
    def spec(self) -> dict[str, str]:
        """Key -> type, sorted by key."""
        return self._spec

    def __len__(self) -> int:
        return self._appender.rows + len(self._pending)

    @property
    def size(self) -> int:
        """Bytes of the bags and tables in the shards of this writer."""
        self.flush()
        return sum(
            one.size
            for one in self._at.list()
            if one.name.endswith((".bag", ".idx")) and self._is_own(one.name)
        )

    def _is_own(self, name: str) -> bool:
        """Return whether a file belongs to a shard of this writer."""
        return True

    def append(self, datapoint: Mapping[str, Any], flush: bool = True) -> int:
        """Append one datapoint and return its number; with `flush`, it is written at once.

        raises  UsageError for keys that differ from the spec, or after `close`; ValueFitError for
                a value that is not bytes; IntegrityError if another datapoint was partly written
        """
        if self.closed:
            raise UsageError("the writer is closed", where=self._at)
        if datapoint.keys() != self._spec.keys():
            key = min(datapoint.keys() ^ self._spec.keys())
            raise UsageError(f"missing or unknown key {key!r:.60}")
        row = [self._encoded(key, datapoint[key]) for key in self._spec]  # before any is written
        self._pending.append(row)
        self._pending_bytes += sum(
            len(one) if isinstance(one, bytes) else sum(map(len, one)) for one in row
        )
        if (
            flush
            or len(self._pending) >= MAX_PENDING_ROWS
            or self._pending_bytes >= MAX_PENDING_BYTES
        ):
            self.flush()
        return len(self) - 1

    def _encoded(self, key: str, value: Any) -> bytes | list[bytes]:
        """Return the bytes of a value, or those of each item of a list."""
        if key in self._lists and not isinstance(value, (list, tuple)):
            raise ValueFitError(f"key {key!r}: expected a list, got {type(value).__name__}")
        encoder, found = self._encoders[key], []
        for one in value if key in self._lists else [value]:
            data = one if encoder is None else encoder(one)
            if not isinstance(data, bytes):
                raise ValueFitError(f"key {key!r}: expected bytes, got {type(data).__name__}")
            if self._lists and not data:
                raise ValueFitError(
                    f"key {key!r}: a dataset with lists cannot store a value of 0 bytes"
                )
            found.append(data)
        return found if key in self._lists else found[0]

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
                    message=f"Record mismatch: {error.message}",  # programs search for these words
                    hint="Append the datapoints that were being written.",
                ) from None

    def close(self) -> None:
        """Write the pending datapoints, and all rows of a dataset with lists."""
        if not self.closed:
            self.flush()
            if isinstance(self._appender, LegacyWriter):
                self._appender.close()
        self.closed = True

    def abort(self) -> None:
        """Close the writer; discard the pending rows of a dataset with lists."""
        if isinstance(self._appender, LegacyWriter):
            self._appender.abandon()
            self.closed = True
        self.close()


class DatasetWriter(_Writer):
    """Writer of one dataset; appends to an existing one."""

    def __init__(self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None) -> None:
        super().__init__(directory, spec, encoders)
        self._appender.begin()


class ShardedDatasetWriter(_Writer):
    """Writer of every `shardstep`-th shard from `shardstart` on, of `shardlen` datapoints each.

    The first shard that is not full is filled first.
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
        """Number of shards of this writer that have a row."""
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
