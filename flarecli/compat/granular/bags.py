"""granular's bags by themselves: records of bytes behind one another, and a table of where they end."""

from __future__ import annotations

import os
from types import TracebackType
from typing import Any

import numpy as np

from flarecli import formats
from flarecli.compat.granular.paths import located
from flarecli.errors import RowsError, UsageError
from flarecli.model import Chunk

__all__ = ["BagReader"]


class BagReader:
    """Records of one bag by number or by range of numbers, whatever release wrote it.

    bag_source  a path, an address, or any object that has a Path's methods; a table in a `.idx` is looked for beside it
    idx_source, cache_index, cache_data, single_file  taken: the table is always in memory, and is found where it is
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
        self._source = bag_source
        folder = (
            os.path.dirname(os.path.abspath(bag_source))
            if isinstance(bag_source, (str, os.PathLike))
            else bag_source.parent
        )
        name = (
            os.path.basename(bag_source)
            if isinstance(bag_source, (str, os.PathLike))
            else bag_source.name
        )
        self._shard = formats.find("granular").open_shard(Chunk(located(folder) / name))
        self.closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        return BagReader, (self._source,)

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
        return BagReader(self._source)

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
