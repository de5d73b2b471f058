"""Notes about very many shards, and about rows that are larger than the default shard size."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.errors import ValueFitError
from tests.commands.packing.note_collector import NoteCollector

MANY = "more than 100,000 shards are expected; increase {} to write fewer files"
LARGE = "some rows are larger than the default --shard-size of 64MiB; each of these rows becomes a shard of its own"


def numbers(folder, rows, null_at=None):
    """Write an index of numbers, of which one may be null; return its path."""
    values = [None if i == null_at else i for i in range(rows)]
    pq.write_table(pa.table({"n": pa.array(values, pa.int64())}), folder / "numbers.parquet")
    return folder / "numbers.parquet"


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """An index with two rows that are larger than 64 MiB, and one small row."""
    path = tmp_path_factory.mktemp("large") / "large.parquet"
    values = [b"a" * 100, bytes((1 << 26) + 1), bytes((1 << 26) + 2)]
    table = pa.table({"data": pa.array(values, pa.large_binary())})
    pq.write_table(
        table,
        path,
        row_group_size=1,
        use_dictionary=False,
        compression="zstd",
        write_statistics=False,
    )
    return path


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"shard_rows": 1}, "--shard-size or --shard-rows"),
        ({"shard_size": 30}, "--shard-size"),
        ({"part_rows": 1}, "--shard-size or --part-rows"),
    ],
)
def test_a_dry_run_reports_more_than_100_000_shards(tmp_path, options, shown):
    notes = NoteCollector()
    packed = flarecli.pack(
        numbers(tmp_path, 100_001), tmp_path / "out", dry_run=True, progress=notes, **options
    )
    assert packed.shards > 100_000
    assert notes.notes == [MANY.format(shown)]


def test_a_dry_run_does_not_report_100_000_shards(tmp_path):
    notes, source = NoteCollector(), numbers(tmp_path, 100_000)
    packed = flarecli.pack(source, tmp_path / "out", dry_run=True, shard_rows=1, progress=notes)
    assert (packed.shards, notes.notes) == (100_000, [])


def test_a_pack_reports_the_projected_number_of_shards_once(tmp_path):
    notes, source = NoteCollector(), numbers(tmp_path, 150_000, null_at=1200)
    with pytest.raises(ValueFitError):  # ends the pack after 1200 shards
        flarecli.pack(source, tmp_path / "out", shard_rows=1, progress=notes)
    assert notes.notes == [MANY.format("--shard-size or --shard-rows")]


def test_a_pack_of_1200_shards_has_no_note(tmp_path):
    notes = NoteCollector()
    flarecli.pack(numbers(tmp_path, 1200), tmp_path / "out", shard_rows=1, progress=notes)
    assert notes.notes == []


@pytest.mark.parametrize("dry_run", [True, False])
def test_rows_larger_than_the_default_shard_size_are_reported_once(large, tmp_path, dry_run):
    notes = NoteCollector()
    packed = flarecli.pack(large, tmp_path / "out", dry_run=dry_run, progress=notes)
    assert (packed.rows, notes.notes) == (3, [LARGE])


def test_parts_report_large_rows_once(large, tmp_path):
    notes = NoteCollector()
    packed = flarecli.pack(large, tmp_path / "out", part_rows=1, progress=notes)
    assert (packed.shards, notes.notes) == (3, [LARGE])


def test_large_rows_are_not_reported_if_the_user_chose_the_shard_size(large, tmp_path):
    notes = NoteCollector()
    packed = flarecli.pack(large, tmp_path / "out", shard_size=1 << 20, progress=notes)
    assert (packed.shards, notes.notes) == (3, [])


def test_the_command_line_prints_the_note_on_stderr(large, tmp_path, capfd):
    assert main(["pack", str(large), str(tmp_path / "out")]) == 0
    note, summary = capfd.readouterr().err.splitlines()
    assert note == LARGE
    assert summary.startswith("packed 3 rows in 3 shards, 134.2 MB in ")


def test_python_sizes_are_bytes(tmp_path):
    source = numbers(tmp_path, 100)
    assert flarecli.pack(source, tmp_path / "out", shard_size=64).shards > 10
