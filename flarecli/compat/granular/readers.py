"""granular's readers, for datasets of every generation: by number, by range, some keys, parts of lists."""

from __future__ import annotations

import pickle
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from types import TracebackType
from typing import Any

import numpy as np

from flarecli import encodings, formats
from flarecli.compat.granular.paths import located
from flarecli.errors import RowsError, UsageError
from flarecli.formats.granular_folder import REFS, columns_of
from flarecli.model import Shard

__all__ = ["DatasetReader", "ShardedDatasetReader"]

Decoders = Mapping[str, Callable[[bytes], Any]]


class _Reader:
    """What both have in common.

    directory    a path, an address, or any object that has a Path's methods
    decoders     type -> function from bytes to a value; None: bytes
    cache_index  taken: the tables are always in memory
    cache_keys   keys whose records are read once, whole
    parallel     taken, and of no use here
    raises       MissingError, FormatError; UsageError for a type without decoder, or shards that are none
    """

    def __init__(
        self,
        directory: Any,
        decoders: Decoders | None,
        cache_index: bool = True,
        cache_keys: Sequence[str] = (),
        parallel: bool = False,
        **rest: Any,
    ) -> None:
        self._args = (directory, decoders, cache_index, tuple(cache_keys), parallel, rest)
        self._open(directory, **rest)
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}
        for key, kind in self.spec.items():
            plain = kind.removesuffix("[]") if self._is_list(key) else kind
            if decoders is not None and plain not in decoders:
                raise UsageError(
                    f"no decoder for type {plain!r:.60}", hint="Give decoders=None for bytes."
                )
            self._decoders[key] = None if decoders is None else decoders[plain]
        for key in cache_keys:
            if key not in self.spec and not (
                key == "refs" and self._has_refs()
            ):  # which is in memory in any case
                raise UsageError(f"no key {key!r:.60} to cache")
        self.cache_keys = tuple(
            key for key in cache_keys if key in self.spec and not self._is_list(key)
        )
        self._cached = [
            {key: _records(shard, key) for key in self.cache_keys} for shard in self._shards
        ]
        self.closed = False

    def _open(self, directory: Any, start: int = 0, step: int = 1, sharded: bool = False) -> None:
        at, form = located(directory), formats.find("granular")
        stream = form.open_dataset(at)
        folders = [url.rpartition("/")[0] for url in stream.urls]
        if bool(folders[0]) != sharded:
            raise UsageError(
                "one dataset is there, shards are wanted"
                if sharded
                else "shards are there, one dataset is wanted",
                where=at,
            )
        chosen = range(len(stream))[start::step]
        if not chosen:
            raise UsageError(
                f"none of {len(stream)} shards is shard {start} or every {step} behind it", where=at
            )
        self._at = at / folders[chosen[0]] if folders[0] else at
        self._shards: list[Shard] = [
            form.open_shard(stream.chunk(i), stream.columns) for i in chosen
        ]
        self._spec = columns_of(self._at / "spec.json")
        self._starts = [0, *accumulate(len(shard) for shard in self._shards)]

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (type(self), self._args)

    def _has_refs(self) -> bool:
        return any(one.name == REFS for one in self._shards[0].chunk.beside)

    def _is_list(self, key: str) -> bool:
        return next(one for one in self._shards[0].columns if one.name == key).encoding.endswith(
            "[]"
        )

    @property
    def spec(self) -> dict[str, str]:
        """Key -> type, as spec.json says."""
        return self._spec

    @property
    def size(self) -> int:
        """Bytes of the bags and their indexes."""
        return sum(one.size() for shard in self._shards for one in shard.chunk.beside)

    @property
    def shards(self) -> int:
        """How many shards are read."""
        return len(self._shards)

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Give a datapoint, or of a range a list for each key: `[i]`, `[a:b]`, `[range(a, b)]`, and with keys behind a comma.

        keys    a tuple or a list of them; or a mask: key -> True, False, or the range of a list
        raises  RowsError (an IndexError) outside the data; UsageError for an unknown key, or a range of what is no list
        """
        index, mask = index if isinstance(index, tuple) else (index, tuple(self.spec))
        keys = (
            [key for key, wanted in mask.items() if wanted is not False]
            if isinstance(mask, Mapping)
            else list(mask)
        )
        for key in keys:
            if key not in self.spec:
                raise UsageError(f"no key {key!r:.60}", hint=f"Choose from {', '.join(self.spec)}.")
        parts = (
            {
                key: _span(wanted)
                for key, wanted in mask.items()
                if isinstance(wanted, (range, slice))
            }
            if isinstance(mask, Mapping)
            else {}
        )
        if isinstance(index, (int, np.integer)):
            return self._rows(self._range(int(index)), keys, parts)[0]
        if not isinstance(index, (range, slice)) or index.step not in (None, 1):
            raise UsageError(f"{index!r:.60} is neither a number nor a range of step 1")
        start, stop = index.start or 0, len(self) if index.stop is None else index.stop
        if not 0 <= start <= stop:
            raise RowsError(f"{index!r:.60} is no range of datapoints")
        rows = self._rows(range(start, min(stop, len(self))), keys, parts)
        return {key: [row[key] for row in rows] for key in keys}

    def _range(self, index: int) -> range:
        if not -len(self) <= index < len(self):
            raise RowsError(f"datapoint {index} is outside the data, which has {len(self)}")
        return range(index % len(self), index % len(self) + 1)

    def _rows(
        self, wanted: range, keys: list[str], parts: Mapping[str, tuple[int, int]]
    ) -> list[dict[str, Any]]:
        out = []
        start = wanted.start
        while start < wanted.stop:
            i = bisect_right(self._starts, start) - 1
            stop, first = min(wanted.stop, self._starts[i + 1]), self._starts[i]
            cached = self._cached[i]
            read = [key for key in keys if key not in cached]
            places = range(start - first, stop - first)
            rows = formats.find(self._shards[i].chunk.format or "granular").read_rows(
                self._shards[i], places, read, parts or None
            )
            for row, place in zip(rows, places, strict=True):
                out.append(
                    {
                        key: self._decoded(
                            key, cached[key][place].as_py() if key in cached else row[key]
                        )
                        for key in keys
                    }
                )
            start = stop
        return out

    def _decoded(self, key: str, data: Any) -> Any:
        decoder = self._decoders[key]
        if isinstance(data, list):
            return [bytes(one) if decoder is None else decoder(bytes(one)) for one in data]
        return bytes(data) if decoder is None else decoder(bytes(data))

    def available(self, index: int) -> dict[str, Any]:
        """Say what a datapoint has: True for a value, the range of a list."""
        (row,) = self._rows_raw(self._range(index))
        return {
            key: range(len(value)) if isinstance(value, list) else True
            for key, value in row.items()
        }

    def _rows_raw(self, wanted: range) -> list[Any]:
        i = bisect_right(self._starts, wanted.start) - 1
        return formats.find("granular").read_rows(self._shards[i], [wanted.start - self._starts[i]])

    def copy(self) -> Any:
        """Give another reader of the same."""
        return pickle.loads(pickle.dumps(self))

    def close(self) -> None:
        """End; nothing is held open."""
        self.closed = True

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class DatasetReader(_Reader):
    """Read one dataset: a folder with a spec.json."""

    def __init__(
        self,
        directory: Any,
        decoders: Decoders | None,
        cache_index: bool = True,
        cache_keys: Sequence[str] = (),
        parallel: bool = False,
        pool_name: str | None = None,
    ) -> None:
        super().__init__(directory, decoders, cache_index, cache_keys, parallel)


class ShardedDatasetReader(_Reader):
    """Read a dataset of shards: from number `shardstart` on every `shardstep`-th."""

    def __init__(
        self,
        directory: Any,
        decoders: Decoders | None,
        cache_index: bool = True,
        cache_keys: Sequence[str] = (),
        parallel: bool = False,
        shardstart: int = 0,
        shardstep: int = 1,
    ) -> None:
        super().__init__(
            directory,
            decoders,
            cache_index,
            cache_keys,
            parallel,
            start=shardstart,
            step=shardstep,
            sharded=True,
        )


def _again(kind: type[_Reader], args: tuple[Any, ...]) -> _Reader:
    made = kind.__new__(kind)
    *plain, rest = args
    _Reader.__init__(made, *plain, **rest)
    return made


def _records(shard: Shard, key: str) -> Any:
    batch = formats.find("granular").read_batch(shard, 0, len(shard), [key])
    one = next(one for one in shard.columns if one.name == key)
    return encodings.stored(batch.column(0), encodings.lookup(one.encoding))


def _span(wanted: range | slice) -> tuple[int, int]:
    start, stop = wanted.start or 0, wanted.stop
    if wanted.step not in (None, 1) or start < 0 or (stop is not None and stop < start):
        raise UsageError(f"{wanted!r:.60} is no range of step 1 within a list")
    return start, (1 << 62) if stop is None else stop
