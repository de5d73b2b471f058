"""Datasets in buckets that change: commits by conditional puts, lost responses, and stores without
conditional puts.
"""

import os
import signal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli.errors import BusyError, UsageError
from flarecli.storage import locate
from flarecli.storage.cloud.store import ObjectStore
from flarecli.write import bucket_target, versions

IS_FULL = "FLARE_TEST_CHANGES" in os.environ
WRITERS = (8, 50) if IS_FULL else (3, 3)  # processes, and appends of each


def table(first, count, path):
    pq.write_table(pa.table({"id": range(first, first + count)}), path)
    return str(path)


def ids(address):
    return flare.open(address).to_arrow()["id"].to_pylist()


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_a_dataset_in_a_bucket_is_changed(kind, request, tmp_path):
    out = f"{request.getfixturevalue(kind)}/living/{kind}"
    flare.pack(table(0, 10, tmp_path / "0.parquet"), out, shard_rows=4)
    assert flare.pack(table(10, 5, tmp_path / "1.parquet"), out, append=True).version == 2
    assert flare.drop(out, where="id % 5 = 0").version == 3
    kept = [i for i in range(15) if i % 5]
    assert ids(out) == kept
    assert flare.compact(out).version == 4
    assert [(one.number, one.rows) for one in flare.log(out)] == [
        (1, 10),
        (2, 15),
        (3, 12),
        (4, 12),
    ]
    for number in range(1, 5):
        assert list(flare.verify(f"{out}/playlist.{number:06d}.yaml")) == []
    pruned = flare.prune(out, keep=1)
    assert pruned.versions == (1, 2, 3)
    assert ids(out) == kept
    assert list(flare.verify(out)) == []
    names = {entry.name.partition("/")[0] for entry in locate(out).list()}
    assert names == {
        "index.000001.json",
        "index.json",
        "playlist.000004.yaml",
        "playlist.yaml",
        *(name for name in names if name.startswith("fragment.")),
    }
    assert len([name for name in names if name.startswith("fragment.")]) == 1


def test_a_commit_whose_response_is_lost_is_done_once(s3, tmp_path, monkeypatch):
    out = f"{s3}/living/lost"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    real, lost = ObjectStore.create, []

    def create(self, path, data):
        real(self, path, data)
        if path.endswith("playlist.000002.yaml"):
            lost.append(path)
            raise ConnectionErrorAfterWrite("connection reset", where=path)

    monkeypatch.setattr(ObjectStore, "create", create)
    assert flare.pack(table(3, 3, tmp_path / "1.parquet"), out, append=True).version == 2
    assert len(lost) == 1
    assert [one.number for one in flare.log(out)] == [1, 2]
    assert ids(out) == list(range(6))


class ConnectionErrorAfterWrite(flare.errors.ReachError):
    """An error that hides that the object was written."""


def test_a_store_without_conditional_writes_is_refused(s3, tmp_path, monkeypatch):
    out = f"{s3}/living/ignores"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)

    def create(self, path, data):  # as a server does that ignores If-None-Match
        self.write(path, [data])

    monkeypatch.setattr(ObjectStore, "create", create)
    with pytest.raises(flare.errors.ReachError) as caught:
        flare.pack(table(3, 3, tmp_path / "1.parquet"), out, append=True)
    assert str(caught.value) == (
        f"{out}/playlist.000001.yaml: the store created a file that already exists"
    )
    assert ids(out) == [0, 1, 2]


def test_a_folder_of_fsspec_is_refused(tmp_path):
    out = f"memory://living{os.getpid()}"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    with pytest.raises(UsageError) as caught:
        flare.pack(table(3, 3, tmp_path / "1.parquet"), out, append=True)
    assert (
        caught.value.message == "this store cannot guarantee that only one process creates a file"
    )
    assert ids(out) == [0, 1, 2]


def forked(run):
    """Run a function in a forked process. Return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run()
        code = 0
    except flare.errors.FlareError as error:
        code = error.exit_code
    finally:
        os._exit(code)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("kind", ["s3", "google", "azure"] if IS_FULL else ["s3"])
def test_writers_of_several_processes_append_to_a_bucket(kind, request, tmp_path):
    out, processes, appends = f"{request.getfixturevalue(kind)}/living/many", *WRITERS
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    count = processes * appends
    sources = [table(3 + 2 * i, 2, tmp_path / f"{i + 1}.parquet") for i in range(count)]

    def append(start):
        for source in sources[start::processes]:
            flare.pack(source, out, append=True)

    children = [forked(lambda start=start: append(start)) for start in range(processes)]
    assert [exit_code(pid) for pid in children] == [0] * processes
    assert sorted(ids(out)) == list(range(3 + 2 * count))
    assert [one.rows for one in flare.log(out)] == list(range(3, 4 + 2 * count, 2))
    assert list(flare.verify(out)) == []


@pytest.mark.parametrize("stop", ["before the check of its lock", "before its commit"])
def test_a_writer_that_stops_until_its_locks_expire_loses_no_rows(s3, tmp_path, monkeypatch, stop):
    """It continues after others have committed, and have pruned its fragment and the next
    number.
    """
    out, mine = f"{s3}/living/stopped", table(3, 3, tmp_path / "mine.parquet")
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    for name, seconds in (("BEAT_S", 0.1), ("DEAD_S", 0.5)):
        monkeypatch.setattr(bucket_target, name, seconds)

    def append():
        bucket_target._machine = lambda: "another machine"  # its process id says nothing here
        if stop == "before its commit":
            real = ObjectStore.create

            def create(self, path, data):
                if path.endswith("playlist.000002.yaml"):
                    os.kill(os.getpid(), signal.SIGSTOP)
                real(self, path, data)

            ObjectStore.create = create
        else:
            check = versions.CommitLock.check

            def stopped(self, now=True):
                os.kill(os.getpid(), signal.SIGSTOP)
                check(self, now)

            versions.CommitLock.check = stopped
        flare.pack(mine, out, append=True)

    pid = forked(append)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    try:
        for first in (10, 20):
            flare.pack(table(first, 2, tmp_path / f"{first}.parquet"), out, append=True)
        assert flare.prune(out, keep=1).busy == ()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    assert ids(out) == [0, 1, 2, 10, 11, 20, 21]
    assert [one.number for one in flare.log(out)] == [3]
    assert list(flare.verify(out)) == []
    assert flare.pack(mine, out, append=True, resume=True).version == 4
    assert ids(out) == [0, 1, 2, 10, 11, 20, 21, 3, 4, 5]
    assert list(flare.verify(out)) == []
