"""Appending to a Granular dataset: after an interruption at any step, the result has the same
bytes.
"""

import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from flarecli.encodings import column
from flarecli.errors import BusyError, IntegrityError, UsageError, ValueFitError
from flarecli.formats import find
from flarecli.formats.granular.append import Appender
from flarecli.model import Settings
from flarecli.storage import direct_io as sink
from flarecli.storage import local, locate
from tests.outputs import files_of

granular = find("granular")
granular_refs = find("granular-refs")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "granular"
COLUMNS = (column("n", "int"), column("t", "str"))


def some(start, stop):
    return pa.record_batch(
        {
            "n": pa.array(range(start, stop), pa.int64()),
            "t": pa.array(
                ["x" * (i % 5) + f"row {i}" for i in range(start, stop)], pa.large_string()
            ),
        }
    )


def written(folder, cuts, settings=None):
    """Return the files of a dataset written at once, one shard for each cut."""
    for number, (start, stop) in enumerate(cuts):
        granular.write_shard(
            locate(f"{folder}/"), number, COLUMNS, [some(start, stop)], settings or Settings()
        )
    return files_of(folder)


def test_rows_appended_in_parts_equal_rows_written_at_once(tmp_path):
    for cut in (1, 3, 10):
        at = tmp_path / str(cut)
        for start in range(0, 10, cut):
            writer = Appender(locate(f"{at}/"), COLUMNS)
            assert writer.rows == start
            writer.append(some(start, min(10, start + cut)))
            assert writer.rows == min(10, start + cut)
        assert files_of(at) == written(
            tmp_path / f"whole {cut}", [(0, 10)], Settings(shard_bytes=None)
        )


def test_shards_are_filled_in_order(tmp_path):
    at = tmp_path / "ds"
    for start, stop in ((0, 2), (2, 3), (3, 10), (10, 10), (10, 11)):
        writer = Appender(locate(f"{at}/"), COLUMNS, shard_rows=3)
        assert writer.rows == start
        writer.append(some(start, stop))
    assert files_of(at) == written(tmp_path / "whole", [(0, 3), (3, 6), (6, 9), (9, 11)])


def test_several_writers_share_a_folder_by_shard_numbers(tmp_path):
    at = tmp_path / "ds"
    for start in (0, 1):
        Appender(locate(f"{at}/"), COLUMNS, shard_rows=2, start=start, step=2).append(some(0, 3))
    assert files_of(at) == written(tmp_path / "whole", [(0, 2), (0, 2), (2, 3), (2, 3)])


def test_no_file_is_created_before_the_first_row(tmp_path):
    writer = Appender(locate(f"{tmp_path}/"), COLUMNS, shard_rows=2)
    writer.append(some(0, 0))
    assert files_of(tmp_path) == {}


class Killed(BaseException):
    pass


@pytest.fixture
def killer(monkeypatch):
    """Return a function that stops the writer after a number of steps, or within the last one."""
    left = [1 << 30]

    def step(name, real, half=None):
        def stand_in(*args, **named):
            left[0] -= 1
            if left[0] == 0 and half:
                half(*args, **named)
            if left[0] <= 0:
                raise Killed
            return real(*args, **named)

        return stand_in

    write = sink.write_all
    monkeypatch.setattr(
        sink,
        "write_all",
        step(
            "write", write, lambda fd, data: write(fd, memoryview(data).cast("B")[: len(data) // 2])
        ),
    )
    for name in ("ftruncate", "rename"):
        monkeypatch.setattr(local.os, name, step(name, getattr(local.os, name)))
    monkeypatch.setattr(
        local.os, "fsync", step("fsync", lambda fd: None)
    )  # counted as a step, without a sync of the disk

    def kill_after(steps):
        left[0] = steps

    return kill_after


@pytest.mark.parametrize("shard_rows", [None, 3])
def test_appending_resumes_after_an_interruption_at_any_step(tmp_path, killer, shard_rows):
    cuts = [(0, 8)] if shard_rows is None else [(0, 3), (3, 6), (6, 8)]
    whole = written(
        tmp_path / "whole", cuts, Settings(shard_bytes=None if shard_rows is None else 1)
    )
    steps, ended = 0, False
    while not ended:
        steps += 1
        at = tmp_path / str(steps)
        at.mkdir()
        attempts = 0
        while True:
            attempts += 1
            killer(
                steps if attempts == 1 else 2 * attempts if attempts < 12 else 1 << 30
            )  # the repair is also interrupted, a few times
            try:
                writer = Appender(locate(f"{at}/"), COLUMNS, shard_rows=shard_rows)
                while writer.rows < 8:
                    before = writer.rows
                    writer.append(some(before, min(8, before + 2)))
            except Killed:
                continue
            break
        killer(1 << 30)
        ended = attempts == 1
        left = {name: data for name, data in files_of(at).items() if not name.endswith(".part")}
        assert left == whole, (steps, attempts)
        shutil.rmtree(at)
    assert steps > 20


def torn(tmp_path):
    at = tmp_path / "ds"
    written(at, [(0, 5)], Settings(shard_bytes=None))
    return at


@pytest.mark.parametrize(
    "damage",
    [
        lambda at: (at / "t.idx").write_bytes((at / "t.idx").read_bytes()[:-3]),
        lambda at: (at / "t.idx").write_bytes((at / "t.idx").read_bytes() + b"abc"),
        lambda at: (at / "t.bag").write_bytes((at / "t.bag").read_bytes() + b"beyond"),
        lambda at: (at / "t.bag").write_bytes((at / "t.bag").read_bytes()[:-4]),
        lambda at: (at / "n.idx").write_bytes(b""),
        lambda at: [(at / name).write_bytes(b"") for name in ("n.bag", "n.idx", "t.bag", "t.idx")],
    ],
)
def test_incomplete_records_are_truncated_and_appended_again(tmp_path, damage):
    at = torn(tmp_path)
    damage(at)
    writer = Appender(locate(f"{at}/"), COLUMNS)
    assert writer.rows < 6
    writer.append(some(writer.rows, 7))
    assert files_of(at) == written(tmp_path / "whole", [(0, 7)], Settings(shard_bytes=None))


def test_records_of_an_incomplete_row_are_compared_with_the_next_rows(tmp_path):
    at = torn(tmp_path)
    (at / "t.idx").write_bytes((at / "t.idx").read_bytes()[:16])
    before = (at / "n.bag").read_bytes()
    writer = Appender(locate(f"{at}/"), COLUMNS)
    assert writer.rows == 2
    with pytest.raises(IntegrityError) as caught:
        writer.append(some(3, 5))
    assert (
        str(caught.value)
        == f"{at}/n.bag[2]: the stored record of an incomplete row differs from the new record"
    )
    with pytest.raises(UsageError) as again:
        writer.append(some(2, 5))
    assert again.value.message == "a previous append failed"
    assert (at / "n.bag").read_bytes() == before
    for stop in (3, 4, 6):
        writer = Appender(locate(f"{at}/"), COLUMNS)
        writer.append(some(writer.rows, stop))
    assert files_of(at) == written(tmp_path / "whole", [(0, 6)], Settings(shard_bytes=None))


def test_records_of_an_incomplete_row_can_be_truncated(tmp_path):
    at = torn(tmp_path)
    (at / "t.idx").write_bytes((at / "t.idx").read_bytes()[:16])
    writer = Appender(locate(f"{at}/"), COLUMNS, replay=False)
    assert writer.rows == 2
    writer.append(some(100, 102))
    shard = granular.open_shard(next(iter(granular.open_dataset(locate(f"{at}/")))))
    assert granular.read_batch(shard, 0, 4).column("n").to_pylist() == [0, 1, 100, 101]


def test_a_dataset_resumed_by_the_original_can_be_appended_to(tmp_path):
    shutil.copytree(GOLDEN / "new" / "resumed" / "data" / "ds", tmp_path / "ds")
    columns = (column("a", "str"), column("n", "int"))
    writer = Appender(locate(f"{tmp_path}/ds/"), columns)
    assert writer.rows == 9
    writer.append(
        pa.record_batch(
            {"a": pa.array(["new"], pa.large_string()), "n": pa.array([-1], pa.int64())}
        )
    )
    shard = granular.open_shard(next(iter(granular.open_dataset(locate(f"{tmp_path}/ds/")))))
    assert granular.read_rows(shard, [9, 0]) == [
        {"a": b"new", "n": b"\xff" * 8},
        {"a": b"row0", "n": bytes(8)},
    ]


def test_two_writers_at_once_are_detected(tmp_path):
    one, other = (Appender(locate(f"{tmp_path}/"), COLUMNS) for _ in range(2))
    one.append(some(0, 2))
    with pytest.raises(BusyError) as caught:
        other.append(some(0, 2))
    assert str(caught.value) == f"{tmp_path}/n.bag: file is 16 bytes; expected 0"


def test_a_null_is_refused_before_anything_is_written(tmp_path):
    writer = Appender(locate(f"{tmp_path}/"), COLUMNS)
    with pytest.raises(ValueFitError):
        writer.append(
            pa.record_batch(
                {"n": pa.array([1], pa.int64()), "t": pa.array([None], pa.large_string())}
            )
        )
    assert files_of(tmp_path) == {}


def test_folders_that_cannot_be_appended_to_are_refused(tmp_path):
    at = locate(f"{tmp_path}/a/")
    granular_refs.write_shard(at, 0, COLUMNS, [some(0, 2)], Settings(shard_bytes=None))
    with pytest.raises(UsageError) as caught:
        Appender(at, COLUMNS)
    assert caught.value.message == "cannot append to a dataset of granular 0.21 or older"
    with pytest.raises(UsageError) as caught:
        Appender(at, COLUMNS, shard_rows=3)
    assert caught.value.message == "expected a folder of shards, found a single dataset"
    at = locate(f"{tmp_path}/b/")
    granular.write_shard(at, 0, COLUMNS, [some(0, 2)], Settings())
    with pytest.raises(UsageError) as caught:
        Appender(at, COLUMNS)
    assert caught.value.message == "expected a single dataset, found a folder of shards"
    with pytest.raises(IntegrityError) as other:
        Appender(at, (column("n", "int"), column("t", "bytes")), shard_rows=3)
    assert other.value.message == "the columns differ from the columns of the new rows"
    (tmp_path / "b" / "playlist.yaml").write_bytes(b"")
    with pytest.raises(UsageError) as caught:
        Appender(at, COLUMNS, shard_rows=3)
    assert caught.value.message == "appending would invalidate the checksums in playlist.yaml"
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "n.bag").write_bytes(b"something")
    with pytest.raises(IntegrityError) as other:
        Appender(locate(f"{tmp_path}/c/"), COLUMNS)
    assert str(other.value) == f"{tmp_path}/c/n.bag: contains data, but spec.json is missing"
    with pytest.raises(UsageError) as caught:
        Appender(locate(f"{tmp_path}/d/"), (column("n", "int32"), column("t", "str")))
    assert caught.value.message == "granular cannot store the encoding of column 'n'"


def test_only_local_files_can_be_appended_to(web):
    at = locate(web.url("/ds/n.bag"))
    for verb, args in ((at.cut, (0,)), (at.extend, (0, [b"x"]))):
        with pytest.raises(UsageError) as caught:
            verb(*args)
        assert caught.value.message == "files in this store cannot be changed"
