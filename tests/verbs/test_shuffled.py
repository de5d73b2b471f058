"""pack --shuffle: one order of all rows, whatever waits in memory, and the seed alone decides."""

import os

import numpy as np
import pyarrow as pa
import pytest

from flarecli.errors import ReachError
from flarecli.verbs import shuffled as room
from flarecli.verbs.shuffled import shuffled


def batches(rows, size=1000):
    table = pa.table({"id": np.arange(rows), "text": [f"é {i}" * (i % 5) if i % 7 else None for i in range(rows)]})
    return table, table.to_batches(max_chunksize=size)


def ids(rows, seed, **options):
    return [one for batch in shuffled(batches(rows, options.pop("size", 1000))[1], seed, **options) for one in batch.column("id").to_pylist()]


@pytest.mark.parametrize("held", [1, 20_000, 10**9])
@pytest.mark.parametrize("rows", [0, 1, 2, 30_000])
def test_every_row_comes_once_whole_and_the_order_does_not_depend_on_memory(rows, held):
    table, parts = batches(rows)
    found = list(shuffled(parts, 7, held))
    assert all(batch.schema == table.schema and 0 < batch.num_rows <= 8192 for batch in found)
    whole = pa.Table.from_batches(found, table.schema)
    assert whole.sort_by("id") == table
    assert whole.column("id").to_pylist() == ids(rows, 7)


def test_the_seed_decides_and_the_size_of_batches_does_not():
    assert ids(5000, 3) == ids(5000, 3, size=17) != ids(5000, 4)


def test_the_first_rows_come_from_everywhere():
    """A tenth of the rows, five ranges of the source: each has its share, within five standard deviations."""
    first = np.array(ids(50_000, 11)[:5000])
    counts = np.bincount(first // 10_000, minlength=5)
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(1000))


def test_files_are_gone_when_it_ends_or_is_left_early(monkeypatch, tmp_path):
    def handles():
        return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    before = handles()
    rows = shuffled(batches(20_000)[1], 5, 1)
    next(rows)
    assert handles() > before
    rows.close()
    assert handles() == before


def test_a_full_disk_is_said(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.tempfile, "TemporaryFile", full)
    with pytest.raises(ReachError) as caught:
        list(shuffled(batches(20_000)[1], 5, 1))
    assert str(caught.value) == f"{room.tempfile.gettempdir()}: rows to shuffle cannot wait there: no space left on device"
    assert caught.value.hint == "Set TMPDIR to a larger disk."
