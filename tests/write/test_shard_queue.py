"""Shards that are compressed on threads: the bytes and the journal are those of sequential writing,
also after failures.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pyarrow as pa
import pytest

import flarecli
from flarecli import prefetch
from flarecli.errors import FlareError, UsageError
from flarecli.model import Chunk, Settings
from flarecli.storage import locate
from flarecli.write import Writer
from flarecli.write.shard_queue import ShardQueue
from tests.outputs import files_of

ROWS = 400
COLUMNS = {"n": "int", "text": "str"}
SMALL = Settings(shard_bytes=2000, compression="zstd")


def chunk(number: int) -> Chunk:
    return Chunk(locate(f"/{number}"), 1, (), "mds", ())


def written(out: Path, jobs: int, **options) -> Writer:
    """Write a dataset of many small compressed shards."""
    with Writer(str(out), columns=COLUMNS, settings=SMALL, jobs=jobs, **options) as writer:
        for n in range(writer.rows, ROWS):
            writer.write({"n": n, "text": f"row {n} " * (n % 17)})
            if n % 50 == 49:
                writer._write_samples()  # a few rows at a time
    return writer


def journal(out: Path) -> list[str]:
    lines = (out / ".flare" / "journal").read_text().splitlines()
    return [entry["shard"] for entry in map(json.loads, lines) if "shard" in entry]


@pytest.mark.parametrize("jobs", [2, 5])
def test_parallel_writing_produces_the_same_bytes(tmp_path, jobs):
    one, many = written(tmp_path / "one", 1), written(tmp_path / "many", jobs)
    assert one.shards == many.shards > 10
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


@pytest.mark.parametrize("format", ["mds", "json", "csv", "webdataset"])
def test_a_pack_with_two_threads_has_the_same_bytes_in_each_compressed_format(
    tmp_path, format, monkeypatch
):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1}, raising=False)
    index = tmp_path / "index.csv"
    index.write_text("key,text\n" + "".join(f"{n},text of row {n}\n" for n in range(300)))
    for jobs in (1, 2):
        flarecli.pack(
            str(index),
            str(tmp_path / f"{jobs}"),
            format=format,
            key="key",
            compress="gz",
            shard_size=3000,
            jobs=jobs,
        )
    result = files_of(tmp_path / "1")
    assert len(result) > 4
    assert result == files_of(tmp_path / "2")


def test_a_failed_shard_is_named_and_no_later_shard_is_recorded(tmp_path):
    out, expected = tmp_path / "out", tmp_path / "wanted"
    written(expected, 1)
    stuck = out / "shard.00003.mds.zstd"
    with (
        pytest.raises(FlareError) as caught,
        Writer(str(out), columns=COLUMNS, settings=SMALL, jobs=2) as writer,
    ):
        (stuck / "in the way").mkdir(parents=True)
        for n in range(ROWS):
            writer.write({"n": n, "text": f"row {n} " * (n % 17)})
    assert str(caught.value) == f"{stuck}: is a directory"
    assert journal(out) == [f"shard.{number:05d}.mds.zstd" for number in range(3)]
    assert not list((out / ".flare").glob("*.part"))
    (stuck / "in the way").rmdir()
    stuck.rmdir()
    written(out, 2, resume=True)
    assert files_of(out) == files_of(expected)


def test_a_failed_first_shard_leaves_no_files(tmp_path):
    out = tmp_path / "out"
    with (
        pytest.raises(FlareError),
        Writer(
            str(out),
            columns={"n": "int"},
            settings=Settings(shard_rows=5, compression="zstd"),
            jobs=4,
        ) as writer,
    ):
        (out / "shard.00000.mds.zstd").mkdir()
        for n in range(100):
            writer.write({"n": n})
    assert not out.exists()


def test_shards_are_recorded_in_order_for_any_order_of_completion():
    recorded, gate = [], threading.Event()

    def first() -> Chunk:
        assert gate.wait(60)
        return chunk(0)

    def second() -> Chunk:
        gate.set()
        return chunk(1)

    queue, record = ShardQueue(2), lambda created, next: recorded.append((created.at.path, next))
    queue.add(first, 10, 1, record)
    queue.add(second, 20, 1, record)
    assert (len(queue), recorded) == (2, [])
    queue.close(record)
    assert (len(queue), recorded) == (0, [("0", 10), ("1", 20)])


def test_the_number_of_parallel_shards_is_limited_and_large_shards_are_written_alone():
    making, most, lock = [], [], threading.Lock()

    def make() -> Chunk:
        with lock:
            making.append(1)
            most.append(len(making))
        threading.Event().wait(0.01)
        with lock:
            making.pop()
        return chunk(0)

    for size, expected in ((1, 3), (200 << 20, 1)):
        most.clear()
        queue, record = ShardQueue(3), lambda created, next: None
        for next in range(12):
            queue.add(make, next, size, record)
            assert len(queue) <= expected
        queue.close(record)
        assert max(most) <= expected


def test_a_large_shard_waits_until_enough_memory_is_free():
    gate, recorded = threading.Event(), []

    def make() -> Chunk:
        assert gate.wait(60)
        return chunk(0)

    queue, record = ShardQueue(4), lambda created, next: recorded.append(next)
    for next in (1, 2):
        queue.add(make, next, 100 << 20, record)
    threading.Timer(0.05, gate.set).start()
    queue.add(make, 3, 200 << 20, record)
    assert (recorded, len(queue)) == ([1, 2], 1)
    queue.close(record)


def test_with_one_job_the_calling_thread_writes_each_shard():
    threads = []

    def make() -> Chunk:
        threads.append(threading.current_thread())
        return chunk(0)

    queue = ShardQueue(1)
    queue.add(make, 7, 1, lambda created, next: threads.append(next))
    assert threads == [threading.current_thread(), 7]
    assert len(queue) == 0


def test_uncompressed_shards_are_written_by_the_calling_thread(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.prefetch._run_task", None)
    with Writer(
        str(tmp_path / "out"), columns={"n": "int"}, settings=Settings(shard_rows=5), jobs=4
    ) as writer:
        writer.write_batch(pa.record_batch({"n": pa.array(range(50), pa.int64())}), range(50))
    assert writer.shards == 10


@pytest.mark.parametrize("is_running", [True, False])
def test_after_an_interrupt_no_thread_writes_a_shard(monkeypatch, is_running):
    running, gate, ended, start = threading.Event(), threading.Event(), [], prefetch._run_task

    def make() -> Chunk:
        running.set()
        assert gate.wait(60)
        ended.append(1)
        return chunk(0)

    def interrupted(task) -> None:
        if is_running:
            start(task)
            assert running.wait(60)
            threading.Timer(0.05, gate.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr("flarecli.prefetch._run_task", interrupted)
    queue = ShardQueue(2)
    with pytest.raises(KeyboardInterrupt):
        queue.add(make, 10, 1, lambda created, next: None)
    assert (len(queue), ended) == (0, [1] if is_running else [])
    with pytest.raises(
        UsageError, match="^an earlier shard could not be written, so later rows are refused(?m:$)"
    ):
        queue.close(lambda created, next: None)
