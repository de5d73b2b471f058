"""granular's writers: datapoints in, a bag for each key out, the same bytes; what is there already is gone on with.

A type `utf8[]` is a list, as it was up to granular 0.21, if no encoder has that very name: the dataset is then one of that time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import pyarrow as pa

from flarecli.compat.granular.lists import Gatherer
from flarecli.compat.granular.paths import located
from flarecli.encodings import BINARY, column
from flarecli.errors import IntegrityError, UsageError, ValueFitError
from flarecli.formats.granular_append import Appender
from flarecli.storage.local import LocalStore

__all__ = ["DatasetWriter", "ShardedDatasetWriter"]

_HELD_ROWS, _HELD_BYTES = 1024, 1 << 24  # datapoints that wait for a flush, at most
_WHOLE = 1 << 62
Encoders = Mapping[str, Callable[[Any], bytes]]


class _Writer:
    """What both have in common.

    directory  a path, or any object that has a Path's methods
    spec       key -> type, any word; `TYPE[]` for lists
    encoders   type -> function from a value to bytes; None: the values are bytes
    raises     UsageError for a key or a type that cannot be one, or a type without encoder; IntegrityError if another spec is there
    """

    def __init__(
        self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None, **shards: Any
    ) -> None:
        for word in (*spec.keys(), *spec.values()):
            if not re.match(r"[a-z_]", word):
                raise UsageError(f"{word!r:.60} begins neither with a to z nor with _")
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
        self._held: list[list[bytes | list[bytes]]] = []
        self._held_size = self._written = 0
        self.closed = False

    def _opened(self, shards: dict[str, Any]) -> Appender | Gatherer:
        columns = tuple(
            column(key, "bytes[]" if key in self._lists else "bytes") for key in self._spec
        )
        if not self._lists:
            return Appender(self._at, columns, words=self._spec, **shards)
        spool = os.fspath(self.directory) if isinstance(self._at.store, LocalStore) else None
        if spool is not None:
            os.makedirs(spool, exist_ok=True)
        rows = shards.get("shard_rows")
        return Gatherer(
            self._at,
            columns,
            self._spec,
            rows,
            shards.get("start", 0),
            shards.get("step", 1),
            spool,
        )

    @property
    def spec(self) -> dict[str, str]:
        """Key -> type, sorted by key."""
        return self._spec

    def __len__(self) -> int:
        return self._appender.rows + len(self._held)

    @property
    def size(self) -> int:
        """Bytes of the bags and their indexes, of this writer's shards."""
        self.flush()
        return sum(
            one.size
            for one in self._at.list()
            if one.name.endswith((".bag", ".idx")) and self._is_own(one.name)
        )

    def _is_own(self, name: str) -> bool:
        """Tell whether this writer writes the shard that a file belongs to."""
        return True

    def append(self, datapoint: Mapping[str, Any], flush: bool = True) -> int:
        """Add one datapoint; give its number. With `flush` it is handed to the system when this returns.

        raises  UsageError for other keys than the spec's, or behind `close`; ValueFitError for what is not bytes; IntegrityError if a row
                that was not written whole is gone on with by another one
        """
        if self.closed:
            raise UsageError("the writer is closed", where=self._at)
        if datapoint.keys() != self._spec.keys():
            raise UsageError(
                f"key {min(datapoint.keys() ^ self._spec.keys())!r:.60} is missing or unknown in the datapoint"
            )
        row = [
            self._encoded(key, datapoint[key]) for key in self._spec
        ]  # all of them before any is written
        self._held.append(row)
        self._held_size += sum(
            len(one) if isinstance(one, bytes) else sum(map(len, one)) for one in row
        )
        if flush or len(self._held) >= _HELD_ROWS or self._held_size >= _HELD_BYTES:
            self.flush()
        return len(self) - 1

    def _encoded(self, key: str, value: Any) -> bytes | list[bytes]:
        """Give the bytes of a value, or of each of a list."""
        if key in self._lists and not isinstance(value, (list, tuple)):
            raise ValueFitError(f"key {key!r}: {type(value).__name__} is no list")
        encoder, found = self._encoders[key], []
        for one in value if key in self._lists else [value]:
            data = one if encoder is None else encoder(one)
            if not isinstance(data, bytes):
                raise ValueFitError(f"key {key!r}: {type(data).__name__} is not bytes")
            if self._lists and not data:
                raise ValueFitError(
                    f"key {key!r}: a record of no bytes, which a dataset with lists cannot hold"
                )
            found.append(data)
        return found if key in self._lists else found[0]

    def flush(self) -> None:
        """Write what waits."""
        rows, self._held, self._held_size = self._held, [], 0
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
                    message=f"Record mismatch: {error.message}",  # programs look for these two words
                    hint="Append the datapoints that were being written.",
                ) from None

    def close(self) -> None:
        """Write what waits, and end; a dataset with lists is written now."""
        if not self.closed:
            self.flush()
            if isinstance(self._appender, Gatherer):
                self._appender.close()
        self.closed = True

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None and isinstance(self._appender, Gatherer):
            self._appender.abandon()
            self.closed = True
        self.close()


class DatasetWriter(_Writer):
    """Write one dataset into a folder, or go on with it."""

    def __init__(self, directory: Any, spec: Mapping[str, str], encoders: Encoders | None) -> None:
        super().__init__(directory, spec, encoders)
        self._appender.begin()


class ShardedDatasetWriter(_Writer):
    """Write a dataset of shards of `shardlen` datapoints, from number `shardstart` on every `shardstep`-th; the first that has room first."""

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
                f"shardlen is {shardlen}, shardstart {shardstart}, shardstep {shardstep}: those make no shards"
            )
        self._shardlen = shardlen or _WHOLE
        self.shardstart, self.shardstep = shardstart, shardstep
        super().__init__(
            directory, spec, encoders, shard_rows=self._shardlen, start=shardstart, step=shardstep
        )

    @property
    def shards(self) -> int:
        """Shards of this writer that have a row."""
        return -(-len(self) // self._shardlen)

    @property
    def shardnum(self) -> int:
        """Number of the shard that the next datapoint goes to."""
        return self.shardstart + self.shardstep * (len(self) // self._shardlen)

    def _is_own(self, name: str) -> bool:
        folder = name.partition("/")[0]
        return (
            folder.isdigit()
            and int(folder) >= self.shardstart
            and (int(folder) - self.shardstart) % self.shardstep == 0
        )
