"""A Writer whose disk fails once: lost rows are always reported."""

import errno
import itertools
import os

import pytest

from flarecli import read
from flarecli.errors import FlareError, ReachError, UsageError
from flarecli.model import Settings
from flarecli.write import Failure, Writer
from tests.outputs import files_of

COLUMNS = {"n": "int"}
GONE = "an earlier shard could not be written, so later rows are refused"
AGAIN = "Open another Writer with resume=True, and skip the rows that it already contains (`writer.rows`)."


def pack(out, rows, **options):
    with Writer(str(out), columns=COLUMNS, settings=Settings(shard_rows=2), **options) as writer:
        for row in rows[writer.rows :]:
            writer.write({"n": row})
    return files_of(out)


@pytest.fixture
def failing_fsync(monkeypatch):
    """Let the n-th fsync of files with a name fail."""

    def arm(name, times=1):
        fsync, turns = os.fsync, itertools.count(1)

        def failing(fd):
            if (
                name in os.readlink(f"/proc/self/fd/{fd}") and next(turns) == times
            ):  # shards are written in parallel
                raise OSError(errno.ENOSPC, "No space left on device")
            fsync(fd)

        monkeypatch.setattr("os.fsync", failing)

    return arm


@pytest.mark.parametrize(
    "how",
    [Settings(shard_rows=2), Settings(shard_rows=2, compression="zstd")],
    ids=["plain", "zstd"],
)
@pytest.mark.parametrize(
    ("name", "times"), [("shard.00001", 1), ("/journal", 4), ("/failed.jsonl", 2)]
)
def test_a_writer_that_lost_a_shard_refuses_rows_and_finishes_no_dataset(
    tmp_path, failing_fsync, how, name, times
):
    """Its rows are lost; a caller that ignores the error must not finish a dataset without them."""
    failing_fsync(name, times)
    out, messages = tmp_path / "out", []
    with (
        pytest.raises(UsageError) as caught,
        Writer(str(out), columns=COLUMNS, settings=how, jobs=2) as writer,
    ):
        for row in range(9):
            try:
                writer.failed.add(Failure(row, f"k{row}", "n", "null", "n is null"))
                writer.write({"n": row})
                writer._write_samples()
            except FlareError as error:
                messages.append(error)
    assert (str(caught.value), caught.value.hint) == (GONE, AGAIN)
    assert isinstance(messages[0], ReachError)
    assert all(isinstance(one, UsageError) for one in messages[1:])
    assert not {"index.json", "playlist.yaml"} & files_of(out).keys()
    with Writer(str(out), columns=COLUMNS, settings=how, resume=True) as second:
        assert second.rows in (2, 4)
        for row in range(second.rows, 9):
            second.write({"n": row})
    assert [row["n"] for row in read.open(str(out))] == list(range(9))


def test_a_writer_interrupted_within_a_shard_finishes_no_dataset(tmp_path, monkeypatch):
    def interrupted(fd):
        if "shard.00001" in os.readlink(f"/proc/self/fd/{fd}"):
            raise KeyboardInterrupt

    writer = Writer(str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=2))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.fsync", interrupted)
        for row in range(6):
            writer.write({"n": row})
        writer._write_samples()
    with pytest.raises(UsageError) as caught:
        writer.close()
    assert str(caught.value) == GONE
    writer.abandon()
    assert pack(tmp_path / "out", range(6), resume=True) == pack(tmp_path / "whole", range(6))
