"""Granular as 0.21 and before keep it: a refs.bag, and for each column one file with its table behind the records.

Lists are kept, `TYPE[]`. Records of no bytes are refused: the table of a bag that begins with one reads as an older version's.
Whatever `granular` reads is read here too.
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

_NUMBER = 5  # bytes of a record's number, at most, in all but the largest shards


class GranularRefs(Granular):
    """The generation of granular 0.21 and before; read by `Granular` too."""

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
        """A bag may be of either generation; `granular` claims it."""
        return False

    def arrange(self, columns: Iterable[Column]) -> Columns:
        """Sort columns by name, by code point; numbers become the types there are. See `granular_spec.arranged`."""
        return granular_spec.arranged(columns, self, reserved=REFS_TABLE)

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Weigh an empty shard and each row of a batch: its records, 8 bytes of table for each, and its numbers at their longest; int64 [rows].

        raises  ValueFitError naming the first row, `[row]` of the batch, with a record of no bytes
        """
        numbers = (
            8
            + 3
            + sum(1 + 2 * _NUMBER if one.encoding.endswith("[]") else _NUMBER for one in columns)
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
        """Write all rows as one dataset: `000000/` and so on where settings cut, else the folder itself; its spec.json comes last.

        raises  ValueFitError for a null or a record of no bytes, naming its row in the shard, before anything is written
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
