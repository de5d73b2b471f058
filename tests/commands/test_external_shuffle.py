"""pack --shuffle: the order depends only on the seed, not on memory."""

import os
import subprocess
import sys
import weakref

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import read
from flarecli.commands import external_shuffle as room
from flarecli.commands import pack
from flarecli.commands.external_shuffle import shuffled
from flarecli.commands.provenance import PLACE
from flarecli.errors import ReachError, UsageError


def batches(rows, size=1000):
    table = pa.table(
        {
            "id": np.arange(rows),
            "text": [f"é {i}" * (i % 5) if i % 7 else None for i in range(rows)],
        }
    )
    return table, table.to_batches(max_chunksize=size)


def ids(rows, seed, **options):
    return [
        one
        for batch in shuffled(batches(rows, options.pop("size", 1000))[1], seed, **options)
        for one in batch.column("id").to_pylist()
    ]


@pytest.mark.parametrize(
    ("rows", "kept_open"),
    [(0, 1), (1, 1), (2, 1), (3_000, 1), (30_000, 100_000), (30_000, 10**9)],
)
def test_every_row_is_returned_once_and_the_order_does_not_depend_on_memory(rows, kept_open):
    table, parts = batches(rows)
    result = list(shuffled(parts, 7, kept_open))
    assert all(batch.schema == table.schema and 0 < batch.num_rows <= 8192 for batch in result)
    complete = pa.Table.from_batches(result, table.schema)
    assert complete.sort_by("id") == table
    assert complete.column("id").to_pylist() == ids(rows, 7)


def test_a_part_that_does_not_fit_in_memory_is_divided_again(monkeypatch):
    shifts = []
    create = room._SortFile

    def file(schema, shift):
        shifts.append(shift)
        return create(schema, shift)

    monkeypatch.setattr(room, "_SortFile", file)
    assert ids(1000, 9, size=50, memory_bytes=800) == ids(1000, 9)
    assert shifts.count(56) == 1 and shifts.count(50) > 32


def test_batches_without_rows_are_ignored():
    table, parts = batches(3000)
    mixed = [parts[0][:0], parts[0][:0], *parts, parts[0][:0]]
    complete = pa.Table.from_batches(list(shuffled(mixed, 7, 1)))
    assert complete == pa.Table.from_batches(list(shuffled(parts, 7, 1)))
    assert complete.sort_by("id") == table
    assert list(shuffled([parts[0][:0]] * 3, 7, 1)) == []


@pytest.mark.parametrize("kept_open", [1, 10**9])
def test_a_column_may_have_the_name_of_the_sort_key(kept_open):
    table = pa.table({room._SORT_KEY: np.full(100, 7), "id": np.arange(100)})
    complete = pa.Table.from_batches(
        list(shuffled(table.to_batches(max_chunksize=30), 7, kept_open))
    )
    assert complete.sort_by("id") == table
    assert complete.column("id").to_pylist() == ids(100, 7)


def test_a_source_column_with_the_reserved_name_is_refused_only_if_row_numbers_are_needed(
    tmp_path,
):
    pq.write_table(pa.table({PLACE: [7, 7, 7], "id": [1, 2, 3]}), tmp_path / "t.parquet")
    with pytest.raises(UsageError) as caught:
        pack(str(tmp_path / "t.parquet"), str(tmp_path / "out"), where="id > 1")
    assert str(caught.value) == "column name 'place in the source' is reserved for row numbers"
    pack(str(tmp_path / "t.parquet"), str(tmp_path / "out"), shuffle=None)
    assert [row["id"] for row in read.open(str(tmp_path / "out"))] == [1, 2, 3]


def test_the_order_depends_on_the_seed_and_not_on_the_size_of_batches():
    assert ids(5000, 3) == ids(5000, 3, size=17) != ids(5000, 4)


def test_the_first_rows_are_from_all_parts_of_the_source():
    """The first tenth of the rows has its share of each fifth of the source, within five standard
    deviations.
    """
    first = np.array(ids(50_000, 11)[:5000])
    counts = np.bincount(first // 10_000, minlength=5)
    assert np.all(np.abs(counts - 1000) < 5 * np.sqrt(1000))


def test_temporary_files_are_removed_at_the_end_and_on_an_early_close(monkeypatch, tmp_path):
    def handles():
        return len(os.listdir("/proc/self/fd")) if os.path.exists("/proc/self/fd") else 0

    before = handles()
    rows = shuffled(batches(20_000)[1], 5, 1)
    next(rows)
    assert handles() > before
    rows.close()
    assert handles() == before


def test_a_full_disk_is_an_error(monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(room.tempfile, "TemporaryFile", full)
    with pytest.raises(ReachError) as caught:
        list(shuffled(batches(20_000)[1], 5, 1))
    assert (
        str(caught.value)
        == f"{room.tempfile.gettempdir()}: cannot write temporary files for the shuffle: no space left on device"
    )
    assert caught.value.hint == "Set TMPDIR to a folder on a larger disk."


LIMITED = """
import resource, sys
import pyarrow as pa
from flarecli.errors import FlareError
from flarecli.commands.external_shuffle import shuffled

batches = pa.table({"id": range(3_000)}).to_batches(1000)
list(shuffled(batches, 7, 1))  # imports need open files
limit = getattr(resource, sys.argv[1])
before = resource.getrlimit(limit)
resource.setrlimit(limit, (int(sys.argv[2]), before[1]))
try:
    print(len(list(shuffled(batches, 7, 1))))
except FlareError as error:
    resource.setrlimit(limit, before)
    print(error, error.hint, sep="; ")
"""


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        (
            ("RLIMIT_NOFILE", "3"),
            "too many open files; Raise the limit of open files (`ulimit -n`).",
        ),
        (
            ("RLIMIT_FSIZE", "10000"),
            "file too large; Set TMPDIR to a folder on a larger disk.",
        ),
    ],
)
def test_a_temporary_file_that_cannot_be_written_is_an_error(limit, message):
    ran = subprocess.run(
        [sys.executable, "-c", LIMITED, *limit],
        capture_output=True,
        text=True,
        env={**os.environ, "TMPDIR": "/tmp"},
    )
    output = f"/tmp: cannot write temporary files for the shuffle: {message}\n"
    assert (ran.stdout, ran.stderr) == (output, "")


def test_batches_written_to_files_are_released():
    batches = iter([pa.record_batch({"a": [b"x" * 1000] * 4})])
    kept = []

    def source():
        for batch in batches:
            kept.append(weakref.ref(batch))
            yield batch
            del batch

    rows = shuffled(source(), 1, memory_bytes=1)
    assert next(rows).num_rows
    assert kept[0]() is None
