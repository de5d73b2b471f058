"""The local folders of a StreamingDataset: checks, counting and eviction of files."""

import json
import os
import re
import shutil
import sys

import pytest

from flarecli.compat.streaming import JSONWriter, MDSWriter, Stream, StreamingDataset
from flarecli.errors import IntegrityError, UsageError


def written(folder, first=0, count=100, writer=MDSWriter, **how):
    with writer(out=str(folder), columns={"i": "int"}, **{"size_limit": 400, **how}) as out:
        for i in range(first, first + count):
            out.write({"i": i})
    return str(folder)


def ids(data):
    return [one["i"] for one in data]


def damage(path):
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


# -- one dataset per folder


@pytest.mark.parametrize("spelling", ["near", "near/", "./near", "link"])
def test_two_streams_with_the_same_local_are_rejected(tmp_path, in_tmp_path, spelling):
    far = [written(tmp_path / name, first) for name, first in (("a", 0), ("b", 1000))]
    os.mkdir("near")
    os.symlink("near", "link")
    streams = [Stream(remote=far[0], local="near"), Stream(remote=far[1], local=spelling)]
    with pytest.raises(ValueError) as caught:
        StreamingDataset(streams=streams)
    assert str(caught.value) == (
        f"Reused local directory: {tmp_path}/near. Provide a different one."
    )
    streams = [Stream(remote=far[0], local="near/x"), Stream(remote=far[1], local="near/y")]
    assert ids(StreamingDataset(streams=streams)) == [*range(100), *range(1000, 1100)]


def test_streams_of_two_splits_may_share_a_local_folder(tmp_path):
    for split, first in (("train", 0), ("val", 1000)):
        written(tmp_path / "far" / split, first)
    streams = [
        Stream(remote=str(tmp_path / "far"), local=str(tmp_path / "near"), split=split)
        for split in ("train", "val")
    ]
    assert ids(StreamingDataset(streams=streams)) == [*range(100), *range(1000, 1100)]


def test_a_local_folder_of_another_remote_is_rejected(tmp_path):
    near = str(tmp_path / "near")
    far = [written(tmp_path / name, first, 90 + first) for name, first in (("a", 0), ("b", 1))]
    assert ids(StreamingDataset(remote=far[0], local=near)) == list(range(90))
    with pytest.raises(UsageError) as caught:
        StreamingDataset(remote=far[1], local=near)
    assert caught.value.message == (
        f"Reused local directory: its index.json differs from {far[1]}. Provide a different one."
    )
    assert ids(StreamingDataset(remote=far[0], local=near)) == list(range(90))


def test_a_complete_local_folder_works_while_the_remote_is_unreachable(tmp_path):
    far, near = written(tmp_path / "far"), str(tmp_path / "near")
    assert ids(StreamingDataset(remote=far, local=near)) == list(range(100))
    os.rename(far, tmp_path / "elsewhere")
    assert ids(StreamingDataset(remote=far, local=near)) == list(range(100))


# -- kept files are checked


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_damaged_kept_shard_is_fetched_again_under_validate_hash(tmp_path, writer, compression):
    far = written(tmp_path / "far", writer=writer, hashes=["sha1"], compression=compression)
    near = tmp_path / "near"
    assert ids(StreamingDataset(remote=far, local=str(near))) == list(range(100))
    path = sorted(near.glob("shard.00001.*"))[0]
    whole = path.read_bytes()
    damage(path)
    how = {"remote": far, "local": str(near), "validate_hash": "sha1"}
    assert ids(StreamingDataset(**how)) == list(range(100))
    assert path.read_bytes() == whole
    damage(path)
    data = StreamingDataset(**how)
    assert [data[i]["i"] for i in range(100)] == list(range(100)) and path.read_bytes() == whole


def test_a_damaged_only_copy_is_an_error_under_validate_hash(tmp_path):
    folder = written(tmp_path / "d", hashes=["sha1"])
    damage(tmp_path / "d" / "shard.00001.mds")
    listed = json.loads((tmp_path / "d" / "index.json").read_text())["shards"][1]["raw_data"]
    with pytest.raises(IntegrityError) as caught:
        ids(StreamingDataset(local=folder, validate_hash="sha1"))
    assert re.fullmatch(
        rf"sha1 is [0-9a-f]{{40}}; the index lists {listed['hashes']['sha1']}", caught.value.message
    )
    assert caught.value.where == f"{folder}/shard.00001.mds"


def test_a_kept_shard_of_another_size_is_fetched_again_without_a_hash(tmp_path):
    far, near = written(tmp_path / "far"), tmp_path / "near"
    assert ids(StreamingDataset(remote=far, local=str(near))) == list(range(100))
    path = near / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-1])
    assert ids(StreamingDataset(remote=far, local=str(near))) == list(range(100))


def test_a_damaged_kept_compressed_file_is_fetched_again(tmp_path):
    far, near = written(tmp_path / "far", compression="zstd", hashes=["sha1"]), tmp_path / "near"
    how = {"remote": far, "local": str(near), "keep_zip": True}
    assert ids(StreamingDataset(**how)) == list(range(100))
    damage(near / "shard.00001.mds.zstd")
    (near / "shard.00001.mds").unlink()
    assert ids(StreamingDataset(**how)) == list(range(100))
    assert (near / "shard.00001.mds.zstd").read_bytes() == (
        tmp_path / "far" / "shard.00001.mds.zstd"
    ).read_bytes()


# -- the limit


def many(root, count):
    """Write a dataset of many copies of one shard."""
    written(root / "one", count=8)
    index = json.loads((root / "one" / "index.json").read_text())
    data = (root / "one" / "shard.00000.mds").read_bytes()
    (root / "far").mkdir()
    shards = []
    for i in range(count):
        entry = json.loads(json.dumps(index["shards"][0]))
        entry["raw_data"]["basename"] = f"shard.{i:05}.mds"
        (root / "far" / f"shard.{i:05}.mds").write_bytes(data)
        shards.append(entry)
    (root / "far" / "index.json").write_text(json.dumps({"version": 2, "shards": shards}))
    return str(root / "far"), len(data)


def test_fetching_a_shard_does_not_check_the_others(tmp_path):
    far, size = many(tmp_path, 640)
    near = tmp_path / "near"
    near.mkdir()
    for name in ["index.json", *(f"shard.{i:05}.mds" for i in range(560))]:
        shutil.copy(tmp_path / "far" / name, near / name)
        os.utime(near / name, (1, 1))
    index = os.path.getsize(near / "index.json")
    limit = index + 600 * size
    data = StreamingDataset(remote=far, local=str(near), cache_limit=limit)
    looks, listings = [], 0
    for shard in range(560, 640):
        calls = 0

        def count(frame, event, arg):
            nonlocal calls, listings
            listings += event == "c_call" and arg is os.listdir
            calls += event == "c_call" and arg in (os.stat, os.listdir, os.scandir)

        sys.setprofile(count)
        try:
            data.prepare_shard(shard)
        finally:
            sys.setprofile(None)
        looks.append(calls)
        assert data.cache_usage <= limit
    names = os.listdir(near)
    assert sum(name.endswith(".mds") for name in names) * size + index == data.cache_usage
    assert max(looks[:40]) < 40  # without eviction: only its own files
    assert listings <= 5  # one before the first fetch, and at most one for each eviction
    assert sum(look > 40 for look in looks) <= 3  # one eviction makes room for many
    assert "shard.00639.mds" in names and "shard.00000.mds" not in names


def test_two_datasets_with_one_folder_share_the_limit(tmp_path):
    far, size = many(tmp_path, 60)
    limit = os.path.getsize(tmp_path / "far" / "index.json") + 10 * size
    pair = [
        StreamingDataset(remote=far, local=str(tmp_path / "near"), cache_limit=limit)
        for _ in range(2)
    ]
    for shard in range(60):
        pair[shard % 2].prepare_shard(shard)
        assert len(list((tmp_path / "near").glob("*.mds"))) <= 10
    usage = pair[0].cache_usage
    assert usage == pair[1].cache_usage <= limit
    (tmp_path / "near" / "other.mds").write_bytes(bytes(size))  # not listed in the index
    os.utime(tmp_path / "near", (1, 1))  # two changes within 4 ms may have the same time
    assert pair[0].cache_usage == usage
    (tmp_path / "near" / "shard.00059.mds").unlink()
    os.utime(tmp_path / "near", (2, 2))
    assert pair[0].cache_usage == usage - size


def test_a_limit_below_four_shards_or_the_index_is_rejected(tmp_path):
    far = written(tmp_path / "far", compression="zstd")
    index = os.path.getsize(tmp_path / "far" / "index.json")
    shards = json.loads((tmp_path / "far" / "index.json").read_text())["shards"]
    least = 4 * max(one["raw_data"]["bytes"] + one["zip_data"]["bytes"] for one in shards)
    for limit, message in (
        (
            index,
            f"Minimum cache usage ({index} bytes) is larger than the cache limit ({index} bytes)",
        ),
        (
            index + 1,
            f"Cache limit ({index + 1} bytes) is too low. Increase the `cache_limit` to at least "
            f"{least} bytes, "
            "four times the largest shard",
        ),
    ):
        near = tmp_path / str(limit)
        if limit > least:
            continue
        with pytest.raises(ValueError) as caught:
            StreamingDataset(remote=far, local=str(near), cache_limit=limit)
        assert str(caught.value) == message
    shutil.rmtree(tmp_path / "near", ignore_errors=True)
    limit = max(least, index + least)
    data = StreamingDataset(remote=far, local=str(tmp_path / "near"), cache_limit=limit)
    assert ids(data) == list(range(100))
