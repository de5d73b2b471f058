"""Datasets in buckets that change: commits by conditional puts, lost responses, and stores without conditional puts."""

import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli.errors import UsageError
from flarecli.storage import locate
from flarecli.storage.cloud.store import ObjectStore


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


def test_writers_of_several_processes_append_to_a_bucket(s3, tmp_path):
    out = f"{s3}/living/many"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    sources = [table(3 + 2 * i, 2, tmp_path / f"{i + 1}.parquet") for i in range(9)]
    children = []
    for start in range(3):
        pid = os.fork()
        if not pid:
            code = 1
            try:
                for source in sources[start::3]:
                    flare.pack(source, out, append=True)
                code = 0
            finally:
                os._exit(code)
        children.append(pid)
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children] == [0, 0, 0]
    assert sorted(ids(out)) == list(range(21))
    assert [one.rows for one in flare.log(out)] == list(range(3, 22, 2))
