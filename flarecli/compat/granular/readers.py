"""granular's readers, which read rows by number or range from datasets of any granular release."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from flarecli import encodings, formats
from flarecli.compat import Closeable
from flarecli.compat.granular.bag import rows_of
from flarecli.compat.granular.paths import located
from flarecli.errors import UsageError
from flarecli.formats.granular.spec import REFS, SPEC, columns_of
from flarecli.model import Shard

__all__ = ["DatasetReader", "ShardedDatasetReader"]

Decoders = Mapping[str, Callable[[bytes], Any]]


class _Reader(Closeable):
    """Base class of both readers. Pickling a reader stores only its arguments.

    directory    a path, an address, or an object with the methods of a Path
    decoders     type -> function from bytes to a value; None means that values remain bytes
    cache_keys   keys whose records are read at the start and kept in memory
    shards       (first shard, step to the next shard); None means a dataset without shards
    raises       MissingError or FormatError for a missing or invalid dataset; UsageError for a type
                 without a decoder, a sharded dataset without `shards`, or `shards` for a dataset
                 without shards
    """

    def __init__(
        self,
        directory: Any,
        decoders: Decoders | None,
        cache_keys: Sequence[str],
        shards: tuple[int, int] | None,
    ) -> None:
        self._args = (directory, decoders, tuple(cache_keys), shards)
        self._open(directory, shards)
        lists = {
            column.name for column in self._shards[0].columns if column.encoding.endswith("[]")
        }
        self._decoders: dict[str, Callable[[bytes], Any] | None] = {}
        for key, kind in self.spec.items():
            plain = kind.removesuffix("[]") if key in lists else kind
            if decoders is not None and plain not in decoders:
                raise UsageError(
                    f"no decoder for type {plain!r:.60}", hint="Pass decoders=None to read bytes."
                )
            self._decoders[key] = None if decoders is None else decoders[plain]
        # cache_keys may contain `refs`, the table of lists, which is always in memory
        has_refs = any(file.name == REFS for file in self._shards[0].chunk.companions)
        for key in cache_keys:
            if key not in self.spec and not (key == "refs" and has_refs):
                raise UsageError(f"cache_keys: unknown key {key!r:.60}")
        self.cache_keys = tuple(key for key in cache_keys if key in self.spec and key not in lists)
        self._cached = [
            {key: _records(shard, key) for key in self.cache_keys} for shard in self._shards
        ]

    def _open(self, directory: Any, shards: tuple[int, int] | None) -> None:
        at, form = located(directory), formats.find("granular")
        stream = form.open_dataset(at)
        folders = [url.rpartition("/")[0] for url in stream.urls]
        if bool(folders[0]) != (shards is not None):
            raise UsageError(
                "expected one dataset, found shards"
                if folders[0]
                else "expected shards, found one dataset",
                where=at,
            )
        start, step = shards or (0, 1)
        selected = range(len(stream))[start::step]
        if not selected:
            raise UsageError(
                f"no shards selected: {len(stream)} shards, shardstart {start}, shardstep {step}",
                where=at,
            )
        self._shards: list[Shard] = [
            form.open_shard(stream.chunk(i), stream.columns) for i in selected
        ]
        first = folders[selected[0]]
        self._spec = columns_of((at / first if first else at) / SPEC)
        self._starts = [0, *accumulate(len(shard) for shard in self._shards)]

    def __getstate__(self) -> tuple[Any, ...]:
        return self._args

    def __setstate__(self, args: tuple[Any, ...]) -> None:
        _Reader.__init__(self, *args)

    @property
    def spec(self) -> dict[str, str]:
        """The type of each key, as in spec.json: key -> type."""
        return self._spec

    @property
    def size(self) -> int:
        """Size of the bags and their tables in bytes."""
        return sum(file.size() for shard in self._shards for file in shard.chunk.companions)

    @property
    def shards(self) -> int:
        """Number of shards that are read."""
        return len(self._shards)

    def __len__(self) -> int:
        return self._starts[-1]

    def __iter__(self) -> Any:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return one datapoint for `[i]`, or key -> list of values for `[a:b]` or `[range(a, b)]`.

        `[i, keys]` reads only the keys in `keys`: a tuple or list of keys, or a mapping from each
        key to True, False, or a range of items of the list value.

        raises  RowsError (an IndexError) for a row outside the data; UsageError for an unknown
                key, or a range of a value that is not a list
        """
        index, mask = index if isinstance(index, tuple) else (index, tuple(self.spec))
        parts = {}
        if isinstance(mask, Mapping):
            keys = [key for key, part in mask.items() if part is not False]
            for key, part in mask.items():
                if isinstance(part, (range, slice)):
                    parts[key] = _bounds(part)
        else:
            keys = list(mask)
        for key in keys:
            if key not in self.spec:
                raise UsageError(f"no key {key!r:.60}", hint=f"Choose from {', '.join(self.spec)}.")
        rows = self._rows(rows_of(index, len(self), "datapoint"), keys, parts)
        if isinstance(index, (range, slice)):
            return {key: [row[key] for row in rows] for key in keys}
        return rows[0]

    def _rows(
        self, rows: range, keys: list[str], parts: Mapping[str, tuple[int, int]]
    ) -> list[dict[str, Any]]:
        """Read consecutive rows from one or more shards, and return their datapoints."""
        out = []
        while rows:
            i = bisect_right(self._starts, rows.start) - 1
            stop = min(rows.stop, self._starts[i + 1])
            places = range(rows.start - self._starts[i], stop - self._starts[i])
            cached = self._cached[i]
            missing = [key for key in keys if key not in cached]
            stored = formats.find("granular").read_rows(
                self._shards[i], places, missing, parts or None
            )
            for place, row in zip(places, stored, strict=True):
                values = {key: cached[key][place].as_py() for key in keys if key in cached} | row
                out.append({key: self._decoded(key, values[key]) for key in keys})
            rows = range(stop, rows.stop)
        return out

    def _decoded(self, key: str, data: Any) -> Any:
        decoder = self._decoders[key]
        if isinstance(data, list):
            return [bytes(item) if decoder is None else decoder(bytes(item)) for item in data]
        return bytes(data) if decoder is None else decoder(bytes(data))

    def available(self, index: int) -> dict[str, Any]:
        """Return the argument `keys` that selects a complete datapoint.

        It maps each key to True, or to the range of all items if the value is a list.
        """
        row = rows_of(index, len(self), "datapoint").start
        i = bisect_right(self._starts, row) - 1
        (values,) = formats.find("granular").read_rows(self._shards[i], [row - self._starts[i]])
        return {
            key: range(len(value)) if isinstance(value, list) else True
            for key, value in values.items()
        }

    def copy(self) -> Any:
        """Return a new reader of the same dataset."""
        return copy.copy(self)


class DatasetReader(_Reader):
    """Reader of one dataset: a folder with a spec.json.

    directory   a path, an address, or an object with the methods of a Path
    decoders    type -> function from bytes to a value; None means that values remain bytes
    cache_keys  keys whose records are read at the start and kept in memory
    cache_index, parallel, pool_name  ignored; the tables are always in memory
    """

    def __init__(
        self,
        directory: Any,
        decoders: Decoders | None,
        cache_index: bool = True,
        cache_keys: Sequence[str] = (),
        parallel: bool = False,
        pool_name: str | None = None,
    ) -> None:
        super().__init__(directory, decoders, cache_keys, None)


class ShardedDatasetReader(_Reader):
    """Reader of a sharded dataset: every `shardstep`-th shard from `shardstart` on.

    directory, decoders, cache_keys  as in `DatasetReader`
    cache_index, parallel  ignored; the tables are always in memory
    """

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
        super().__init__(directory, decoders, cache_keys, (shardstart, shardstep))


def _records(shard: Shard, key: str) -> Any:
    """Return the stored values of a key as an Arrow array."""
    batch = formats.find("granular").read_batch(shard, 0, len(shard), [key])
    column = next(column for column in shard.columns if column.name == key)
    return encodings.stored(batch.column(0), encodings.lookup(column.encoding))


def _bounds(part: range | slice) -> tuple[int, int]:
    """Return the start and the exclusive end of a range of list items.

    raises  UsageError if the range is invalid
    """
    start, stop = part.start or 0, part.stop
    if part.step not in (None, 1) or start < 0 or (stop is not None and stop < start):
        raise UsageError(
            f"invalid range of list items: expected step 1 and 0 <= start <= stop, got {part!r:.60}"
        )
    return start, (1 << 62) if stop is None else stop
