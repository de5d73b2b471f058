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
from flarecli.model import Settings
from flarecli.write import Writer
from flarecli.write import writer as writer_module
from tests.outputs import files_of

ROWS = 400
COLUMNS = {"n": "int", "text": "str"}
SMALL = Settings(shard_bytes=2000, compression="zstd")
ROWS_OF_5 = Settings(shard_rows=5, compression="zstd")


def numbers(count: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(count), pa.int64())})


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


def test_shards_are_recorded_in_order_for_any_order_of_completion(tmp_path, monkeypatch):
    second_is_written, write = threading.Event(), writer_module._write_queued

    def first_shard_last(shard):
        if shard.next == 5:
            assert second_is_written.wait(60)
        written = write(shard)
        second_is_written.set()
        return written

    monkeypatch.setattr(writer_module, "_write_queued", first_shard_last)
    with Writer(str(tmp_path / "out"), columns={"n": "int"}, settings=ROWS_OF_5, jobs=2) as writer:
        writer.write_batch(numbers(20))
    assert [row["n"] for row in flarecli.open(str(tmp_path / "out"))] == list(range(20))


@pytest.mark.parametrize(("max_bytes", "expected"), [(1 << 20, 3), (1, 1)])
def test_parallel_shards_are_limited_by_number_and_bytes(
    tmp_path, monkeypatch, max_bytes, expected
):
    writing, counts, lock, write = [], [], threading.Lock(), writer_module._write_queued

    def counted(shard):
        with lock:
            writing.append(1)
            counts.append(len(writing))
        written = write(shard)
        with lock:
            writing.pop()
        return written

    monkeypatch.setattr(writer_module, "_write_queued", counted)
    monkeypatch.setattr(writer_module, "_MAX_QUEUED_BYTES", max_bytes)
    with Writer(str(tmp_path / "out"), columns={"n": "int"}, settings=ROWS_OF_5, jobs=3) as writer:
        writer.write_batch(numbers(100))
    assert len(counts) == 20
    assert max(counts) <= expected


@pytest.mark.parametrize(("jobs", "compression"), [(1, "zstd"), (4, None)])
def test_with_one_job_or_without_compression_the_calling_thread_writes_each_shard(
    tmp_path, monkeypatch, jobs, compression
):
    monkeypatch.setattr("flarecli.prefetch._run_task", None)
    how = Settings(shard_rows=5, compression=compression)
    with Writer(str(tmp_path / "out"), columns={"n": "int"}, settings=how, jobs=jobs) as writer:
        writer.write_batch(numbers(50))
    assert writer.shards == 10


@pytest.mark.parametrize("is_running", [True, False])
def test_after_an_interrupt_no_thread_writes_a_shard(tmp_path, monkeypatch, is_running):
    running, gate, ended = threading.Event(), threading.Event(), []
    write, start = writer_module._write_queued, prefetch._run_task

    def waiting(shard):
        running.set()
        assert gate.wait(60)
        written = write(shard)
        ended.append(1)
        return written

    def interrupted(task) -> None:
        if is_running:
            start(task)
            assert running.wait(60)
            threading.Timer(0.05, gate.set).start()
        raise KeyboardInterrupt

    monkeypatch.setattr(writer_module, "_write_queued", waiting)
    monkeypatch.setattr("flarecli.prefetch._run_task", interrupted)
    writer = Writer(str(tmp_path / "out"), columns={"n": "int"}, settings=ROWS_OF_5, jobs=2)
    with pytest.raises(KeyboardInterrupt):
        writer.write_batch(numbers(20))
    with pytest.raises(
        UsageError, match="^an earlier shard could not be written, so later rows are refused(?m:$)"
    ):
        writer.close()
    writer.abandon()
    assert ended == ([1] if is_running else [])
    assert not (tmp_path / "out").exists()
