"""Granular 0.21 and older: a refs.bag, and for each column a bag with its table at the end.

Lists are stored as `TYPE[]`. Empty records are rejected: if the first record is empty, the table
looks like that of an older version. `Granular` reads this generation too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import numpy as np

from flarecli.formats.base import EACH, LISTED_PICTURES, Substitutes
from flarecli.formats.granular import bags
from flarecli.formats.granular import refs as bag_refs
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular import write as granular_write
from flarecli.formats.granular.format import Granular
from flarecli.formats.granular.read import REFS_TABLE
from flarecli.formats.granular.spec import REFS
from flarecli.lazy import pa
from flarecli.model import Chunk, Column, Columns, IntArray, Settings
from flarecli.storage import Location

__all__ = ["GranularRefs"]

_NUMBER_BYTES = 5  # of a record number, at most, unless a shard has 2^32 records


class GranularRefs(Granular):
    """The generation of granular 0.21 and older."""

    name = "granular-refs"
    suffixes = ()
    substitutes: ClassVar[Substitutes] = {
        **Granular.substitutes,
        **{listed: name for name, listed in LISTED_PICTURES.items()},
        **{name: name for name in LISTED_PICTURES},
        **dict.fromkeys(("bytes[]", "ndarray[]", "*[]"), EACH),
    }
    layout = "granular 0.21 or before, by its layout"

    def sniff(self, name: str, head: bytes) -> bool:
        """Return False: a bag may be of either generation, and `Granular` reads both."""
        return False

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Return the columns as `spec.arranged` does."""
        return granular_spec.arranged(columns, self, reserved=REFS_TABLE)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return the bytes of an empty shard and, at most, of each row: records, tables and refs.

        raises  ValueFitError with the first row, `[row]` of the batch, that has an empty record
        """
        numbers = (
            8
            + 3
            + sum(
                1 + 2 * _NUMBER_BYTES if one.encoding.endswith("[]") else _NUMBER_BYTES
                for one in columns
            )
        )
        return len(granular_spec.text(columns)), granular_write.weights(
            columns, batch, self.name
        ) + numbers

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as one dataset, in `000000/` and so on, or in the folder if there is one
        shard.

        The spec.json is written last.

        raises  ValueFitError with the row of a null or an empty record, before anything is written
        """
        files: dict[str, granular_write.Parts] = {REFS: []}
        taken = []
        for one in columns:
            arrays, counts = granular_write.records(one, batches)
            parts, ends = bags.body(arrays)
            granular_write.check_lengths(one, np.diff(ends, prepend=0), counts, self.name)
            counts = np.ones(len(ends), np.int64) if counts is None else counts
            taken.append((np.cumsum(counts) - counts, counts))
            files[f"{one.name}.bag"] = [*parts, ends.astype("<u8").tobytes()]
        parts, ends = bag_refs.packed(taken, [one.encoding.endswith("[]") for one in columns])
        files[REFS] = [*parts, ends.astype("<u8").tobytes()]
        return granular_write.put(
            at,
            number,
            self.name,
            columns,
            files,
            sum(batch.num_rows for batch in batches),
            settings,
        )
