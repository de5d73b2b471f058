"""Datasets in buckets: folders and globs are listed, and reading a row takes a few small
requests.
"""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands
from flarecli.__main__ import main
from flarecli.errors import FormatError, MissingError, UsageError
from flarecli.read import expand, resolve
from flarecli.storage import locate


@pytest.fixture
def counted(s3, moto, proxy, monkeypatch):
    """The bucket behind a proxy that records each request and the bytes of its response."""
    server = proxy(moto)
    return (
        s3,
        server.asked,
        lambda: monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}"),
    )


def put(address, *names):
    for name in names:
        (locate(address) / name).write([b"x"])


def test_inspecting_and_reading_a_row_of_60_shards_takes_few_requests(
    counted, tmp_path, capsysbinary
):
    s3, asked, count = counted
    rng, image = random.Random(3), random.Random(4).randbytes(2500)
    images = [rng.randbytes(8) + image for _ in range(600)]
    pq.write_table(
        pa.table({"id": list(range(600)), "image": images}),
        tmp_path / "index.parquet",
        compression="zstd",
    )
    packed = commands.pack(
        str(tmp_path / "index.parquet"), f"{s3}/train", shard_rows=10, encode={"image": "bytes"}
    )
    assert packed.shards == 60
    count()
    assert commands.inspect(f"{s3}/train").rows == 600
    assert len(asked) < 8 and sum(one.size for one in asked) < 200_000, asked
    asked.clear()
    assert main(["cat", f"{s3}/train", "-r", "437", "--raw", "image"]) == 0
    assert capsysbinary.readouterr().out == images[437]
    assert len(asked) < 8 and sum(one.size for one in asked) < 200_000, asked


def test_globs_are_expanded_by_listing(s3):
    put(s3, "d/a.mds", "d/b.mds", "d/c.txt", "d/.h.mds", "d/e/a.mds", "d/e/f/g.mds", "d/[1].mds")
    for pattern, wanted in {
        "d/*.mds": ["[1].mds", "a.mds", "b.mds"],
        "d/?.mds": ["a.mds", "b.mds"],
        "d/[!a].mds": ["b.mds"],
        "d/[a-b].mds": ["a.mds", "b.mds"],
        "d/[1].mds": ["[1].mds"],
        "d/**/*.mds": ["[1].mds", "a.mds", "b.mds", "e/a.mds", "e/f/g.mds"],
        "d/*/a.*": ["e/a.mds"],
        "d/.*.mds": [".h.mds"],
        "d/{b,a}.mds": ["b.mds", "a.mds"],
    }.items():
        assert expand(f"{s3}/{pattern}") == [f"{s3}/d/{name}" for name in wanted], pattern
    with pytest.raises(MissingError, match=r"/d/\*\.tar: no matches found"):
        expand(f"{s3}/d/*.tar")
    with pytest.raises(UsageError, match=": invalid pattern "):
        expand(f"{s3}/d/*[z-a].mds")
    with pytest.raises(UsageError, match=r"a bucket name cannot contain"):
        expand("s3://b*/d")
    with pytest.raises(UsageError, match="files on a web server cannot be listed"):
        expand("http://127.0.0.1/*.mds")


def test_shards_by_glob_are_one_dataset_and_requested_once(counted, tmp_path):
    s3, asked, count = counted
    pq.write_table(pa.table({"id": list(range(40))}), tmp_path / "index.parquet")
    commands.pack(str(tmp_path / "index.parquet"), f"{s3}/train", shard_rows=10)
    count()
    (found,) = resolve(f"{s3}/train/*.mds")
    assert (len(found.streams[0]), [one.method for one in asked]) == (4, ["GET"])
    assert commands.inspect(f"{s3}/train/*.mds").rows == 40
    commands.playlist(f"{s3}/train/*.mds", out=str(tmp_path / "train.yaml"))
    assert resolve(str(tmp_path / "train.yaml"))[0].streams[0].urls == [
        f"{s3}/train/shard.{i:05d}.mds" for i in range(4)
    ]
    assert [
        row["id"]
        for batch in commands.cat(str(tmp_path / "train.yaml"))
        for row in batch.to_pylist()
    ] == list(range(40))


def test_a_playlist_in_a_bucket_names_objects_below_it(s3, tmp_path):
    pq.write_table(pa.table({"id": list(range(40))}), tmp_path / "index.parquet")
    commands.pack(str(tmp_path / "index.parquet"), f"{s3}/a/train", shard_rows=10)
    commands.playlist(f"{s3}/a/train/*.mds", out=f"{s3}/a/all.yaml")
    assert resolve(f"{s3}/a/all.yaml")[0].streams[0].urls == [
        f"train/shard.{i:05d}.mds" for i in range(4)
    ]
    assert [
        row["id"] for batch in commands.cat(f"{s3}/a/all.yaml") for row in batch.to_pylist()
    ] == list(range(40))
    commands.pack(str(tmp_path / "index.parquet"), str(tmp_path / "local"))
    with pytest.raises(UsageError, match=f"a playlist in {s3}/a cannot list a local file"):
        commands.playlist(str(tmp_path / "local"), out=f"{s3}/a/all.yaml")
    with pytest.raises(UsageError, match="cannot write to a web server"):
        commands.playlist(f"{s3}/a/train", out="http://127.0.0.1/all.yaml")


def test_folders_without_an_index_are_read_by_their_files(s3, tmp_path):
    pq.write_table(pa.table({"key": ["a", "b"], "txt": ["x", "y"]}), tmp_path / "index.parquet")
    commands.pack(
        str(tmp_path / "index.parquet"),
        f"{s3}/tars",
        format="webdataset",
        key="key",
        encode={"txt": "str"},
    )
    for name in ("playlist.yaml", "shards.json", "index.json"):
        (locate(f"{s3}/tars") / name).delete()
    assert commands.inspect(f"{s3}/tars").rows == 2
    put(s3, "loose/shard.00000.mds")
    with pytest.raises(FormatError, match="found 1 shard, but no index.json"):
        resolve(f"{s3}/loose")
    with pytest.raises(MissingError):
        resolve(f"{s3}/nothing")


def test_datasets_in_fsspec_stores_are_listed(tmp_path):
    pq.write_table(pa.table({"id": list(range(40))}), tmp_path / "index.parquet")
    commands.pack(
        str(tmp_path / "index.parquet"), f"memory://listed{id(tmp_path)}/d", shard_rows=10
    )
    assert commands.inspect(f"memory://listed{id(tmp_path)}/d").rows == 40
    assert commands.inspect(f"memory://listed{id(tmp_path)}/d/*.mds").rows == 40
