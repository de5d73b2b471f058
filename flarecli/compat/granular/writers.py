"""granular's writers: datapoints in, a bag for each key out, the same bytes; what is there already is gone on with."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from flarecli.compat.granular.paths import located
from flarecli.encodings import BINARY, column
from flarecli.errors import UsageError, ValueFitError
from flarecli.formats.granular_append import Appender

__all__ = ["DatasetWriter", "ShardedDatasetWriter"]

_HELD_ROWS, _HELD_BYTES = 1024, 1 << 24  # datapoints that wait for a flush, at most
_WHOLE = 1 << 62
Encoders = Mapping[str, Callable[[Any], bytes]]


class _Writer:
    """What both have in common.

    directory  a path, or any object that has a Path's methods
    spec       key -> type, any word
    encoders   type -> function from a value to bytes; None: the values are bytes
    raises     UsageError for a key or a type that cannot be one, or a type without encoder; IntegrityError if another spec is there
    """

    def __init__(self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None, **shards: Any) -> None:
        for word in (*spec.keys(), *spec.values()):
            if not re.match(r"[a-z_]", word):
                raise UsageError(f"{word!r:.60} begins neither with a to z nor with _")
        missing = next((kind for kind in spec.values() if encoders is not None and kind not in encoders), None)
        if missing is not None:
            raise UsageError(f"no encoder for type {missing!r:.60}")
        self._spec = dict(sorted(spec.items()))
        self._encoders = {key: None if encoders is None else encoders[kind] for key, kind in self._spec.items()}
        self._at = located(directory, writing=True)
        self.directory = directory
        self._appender = Appender(self._at, tuple(column(key, "bytes") for key in self._spec), words=self._spec, **shards)
        self._held: list[list[bytes]] = []
        self._held_size = self._written = 0
        self.closed = False

    @property
    def spec(self) -> dict[str, str]:
        """Key -> type, sorted by key."""
        return self._spec

    def __len__(self) -> int:
        return self._appender.rows + len(self._held)

    @property
    def size(self) -> int:
        """Bytes of the bags and their indexes."""
        self.flush()
        return sum(one.size for one in self._at.list() if one.name.endswith((".bag", ".idx")))

    def append(self, datapoint: Mapping[str, Any], flush: bool = True) -> int:
        """Add one datapoint; give its number. With `flush` it is handed to the system when this returns.

        raises  UsageError for other keys than the spec's; ValueFitError for what is not bytes; IntegrityError if a row that was not written
                whole is gone on with by another one
        """
        if datapoint.keys() != self._spec.keys():
            raise UsageError(f"key {min(datapoint.keys() ^ self._spec.keys())!r:.60} is missing or unknown in the datapoint")
        row = []
        for key, encoder in self._encoders.items():  # all of them before any is written
            data = datapoint[key] if encoder is None else encoder(datapoint[key])
            if not isinstance(data, bytes):
                raise ValueFitError(f"key {key!r}: {type(data).__name__} is not bytes")
            row.append(data)
        self._held.append(row)
        self._held_size += sum(map(len, row))
        if flush or len(self._held) >= _HELD_ROWS or self._held_size >= _HELD_BYTES:
            self.flush()
        return len(self) - 1

    def flush(self) -> None:
        """Write what waits."""
        rows, self._held, self._held_size = self._held, [], 0
        if rows:
            arrays = [pa.array(values, BINARY) for values in zip(*rows, strict=True)]
            self._appender.append(pa.RecordBatch.from_arrays(arrays, names=list(self._spec)))

    def close(self) -> None:
        """Write what waits, and end."""
        self.flush()
        self.closed = True

    def __enter__(self) -> Any:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class DatasetWriter(_Writer):
    """Write one dataset into a folder, or go on with it."""

    def __init__(self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None) -> None:
        super().__init__(directory, spec, encoders)
        self._appender.begin()


class ShardedDatasetWriter(_Writer):
    """Write a dataset of shards of `shardlen` datapoints, from number `shardstart` on every `shardstep`-th; the first that has room first."""

    def __init__(
        self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None, shardlen: int | None = None, shardstart: int = 0, shardstep: int = 1
    ) -> None:
        if shardstart < 0 or shardstep < 1 or (shardlen is None and (shardstart or shardstep > 1)) or (shardlen is not None and shardlen < 1):
            raise UsageError(f"shardlen is {shardlen}, shardstart {shardstart}, shardstep {shardstep}: those make no shards")
        self._shardlen = shardlen or _WHOLE
        super().__init__(directory, spec, encoders, shard_rows=self._shardlen, start=shardstart, step=shardstep)

    @property
    def shards(self) -> int:
        """Shards of this writer that have a row."""
        return -(-len(self) // self._shardlen)
