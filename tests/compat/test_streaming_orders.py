"""Epochs of a StreamingDataset: proportions, batches by stream, states, invalid arguments."""

import inspect
import os
import stat

import numpy as np
import pytest

from flarecli.compat.streaming import MDSWriter, Stream, StreamingDataset
from flarecli.errors import UnsafeError, UsageError

COUNTS = {"a": 40, "b": 20}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("streams")
    for number, (name, count) in enumerate(COUNTS.items()):
        with MDSWriter(out=str(root / name), columns={"i": "int"}, size_limit=400) as out:
            for i in range(count):
                out.write({"i": 1000 * number + i})
    return root


@pytest.fixture
def a(folders):
    return str(folders / "a")


def both(folders, **how):
    one, other = ({k: v[n] for k, v in how.items() if v[n] is not None} for n in (0, 1))
    return [Stream(local=str(folders / "a"), **one), Stream(local=str(folders / "b"), **other)]


def ids(data):
    return [one["i"] for one in data]


def of_all_ranks(monkeypatch, ranks, make):
    """Return the samples of each rank, and all of them by step."""
    monkeypatch.setenv("WORLD_SIZE", str(ranks))
    found = []
    for rank in range(ranks):
        monkeypatch.setenv("RANK", str(rank))
        found.append(ids(make()))
    return found, [one for step in zip(*found, strict=True) for one in step]


def test_arguments_equal_those_of_the_original():
    names = """
        streams remote local split download_retry download_timeout validate_hash keep_zip
        epoch_size predownload cache_limit sampling_method sampling_granularity partition_algo
        num_canonical_nodes batch_size shuffle shuffle_algo shuffle_seed shuffle_block_size
        batching_method allow_unsafe_types replication stream_name stream_config
    """
    assert list(inspect.signature(StreamingDataset.__init__).parameters) == ["self", *names.split()]
    names = """
        remote local split proportion repeat choose download_retry download_timeout validate_hash
        keep_zip
    """
    assert list(inspect.signature(Stream).parameters) == names.split()


@pytest.mark.parametrize(
    ("how", "size", "of_a"),
    [
        ({"proportion": (0.25, 0.75)}, None, (15, 60)),
        ({"proportion": (1, 3)}, "1k", (250, 1000)),
        ({"repeat": (0.5, None)}, None, (20, 40)),
        ({"repeat": (0, 2.5)}, None, (0, 50)),
        ({"choose": (100, None)}, None, (100, 120)),
        ({}, 30, (20, 30)),
    ],
)
def test_streams_have_their_proportions(folders, how, size, of_a):
    data = StreamingDataset(
        streams=both(folders, **how), epoch_size=size, shuffle=True, batch_size=4
    )
    found = ids(data)
    assert (sum(one < 1000 for one in found), len(found)) == of_a
    assert data.epoch_size == len(data) == of_a[1] and data.size == 60


@pytest.mark.parametrize(
    ("how", "size"),
    [
        ({"proportion": (0.5, None)}, None),
        ({"repeat": (0.5, None)}, 20),
        ({"choose": (3, 4)}, 20),
        ({"proportion": (0, 0)}, None),
    ],
)
def test_contradictory_proportions_are_rejected(folders, how, size):
    with pytest.raises(UsageError):
        StreamingDataset(streams=both(folders, **how), epoch_size=size)


def test_a_part_is_drawn_per_epoch_or_fixed(a):
    def twice(method, **how):
        data = StreamingDataset(streams=[Stream(local=a, choose=10)], sampling_method=method, **how)
        return sorted(ids(data)), sorted(ids(data))

    first, second = twice("fixed")
    assert first == second and len(set(first)) == 10
    first, second = twice("balanced")
    assert first != second
    for part in twice("balanced", sampling_granularity=5):
        assert all({one // 5 * 5 + k for k in range(5)} <= set(part) for one in part)
    for part in twice("balanced", sampling_granularity=7):
        assert len(set(part)) == 10


@pytest.mark.parametrize("granularity", [1, 3, 7, 40, 100])
def test_a_whole_stream_is_used_once_with_any_granularity(a, granularity):
    data = StreamingDataset(streams=[Stream(local=a, choose=79)], sampling_granularity=granularity)
    assert len(set(ids(data)[40:])) == 39


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_each_batch_is_drawn_from_streams_by_the_batching_method(
    folders, monkeypatch, method, ranks, shuffle
):
    batch = 4

    def make():
        return StreamingDataset(
            streams=both(folders), batching_method=method, batch_size=batch, shuffle=shuffle
        )

    own, steps = of_all_ranks(monkeypatch, ranks, make)
    assert len(steps) == len(set(steps))
    whole = [steps[k : k + batch * ranks] for k in range(0, len(steps), batch * ranks)]
    if method == "stratified":
        share = 3 if ranks == 1 else 5
        assert {sum(one < 1000 for one in part) for part in whole} == {share}
        assert len(whole) == min(40 // share, 20 // (batch * ranks - share))
        return
    parts = (
        whole
        if method == "per_stream"
        else [one[k : k + batch] for one in own for k in range(0, len(one), batch)]
    )
    assert {len({one >= 1000 for one in part}) for part in parts} == {1}
    assert len(steps) == (
        batch * ranks * (40 // (batch * ranks) + 20 // (batch * ranks))
        if method == "per_stream"
        else 60 // (4 * ranks) * 4 * ranks
    )


@pytest.mark.parametrize("method", ["stratified", "per_stream", "device_per_stream"])
def test_batches_by_stream_resume_from_a_state(folders, method):
    def make():
        return StreamingDataset(
            streams=both(folders), batching_method=method, batch_size=4, shuffle=True
        )

    data, other = make(), make()
    whole = ids(data)
    other.load_state_dict(data.state_dict(12, True))
    assert ids(other) == whole[12:]
    with pytest.raises(
        UsageError, match="expected a global batch of 4 samples, but the state has 8"
    ):
        other.load_state_dict({**data.state_dict(12, True), "samples_in_batch": 8})


def test_batches_by_stream_need_a_batch_size_and_large_streams(folders):
    with pytest.raises(UsageError, match="Please pass `batch_size` to StreamingDataset: batching"):
        StreamingDataset(streams=both(folders), batching_method="per_stream")
    data = StreamingDataset(
        streams=both(folders, choose=(40, 1)), batching_method="stratified", batch_size=4
    )
    with pytest.raises(
        UsageError, match="the number of samples for stream 1 is 0 in a batch of 4, because"
    ):
        next(iter(data))


def test_a_state_restores_its_seed(a):
    data = StreamingDataset(local=a, shuffle=True, shuffle_seed=1)
    whole = ids(data)
    state = data.state_dict(7, True)
    assert state == {
        "epoch": 0,
        "order": "flare-1",
        "sample_in_epoch": 7,
        "num_canonical_nodes": 1,
        "shuffle_seed": 1,
        "initial_physical_nodes": 1,
    }
    other = StreamingDataset(local=a, shuffle=True, shuffle_seed=2)
    other.load_state_dict({**state, "epoch": 4})
    assert other.state_dict(0, False) == {**state, "epoch": 4}  # before a sample is read
    other.load_state_dict(state)
    running = iter(other)
    assert [next(running)["i"] for _ in range(3)] == whole[7:10]
    assert other.shuffle_seed == 1
    assert (
        other.state_dict(3, False)["sample_in_epoch"] == 10
        and other.state_dict(3, True)["sample_in_epoch"] == 3
    )
    with pytest.raises(UsageError, match="sample 1000 of epoch 0 is out of range; there are 40"):
        other.load_state_dict({**state, "sample_in_epoch": 1000})


@pytest.mark.parametrize(("before", "after"), [(1, 3), (4, 3), (2, 8)])
def test_no_sample_is_lost_when_the_number_of_ranks_changes(a, monkeypatch, before, after):
    def make():
        return StreamingDataset(local=a, shuffle=True)

    _, whole = of_all_ranks(monkeypatch, 1, make)
    step = 5 * before
    state = make().state_dict(step, True)

    def resumed():
        data = make()
        data.load_state_dict(state)
        return data

    own, steps = of_all_ranks(monkeypatch, after, resumed)
    assert len(set(map(len, own))) == 1
    assert steps[: 40 - step] == whole[step:]


def test_consecutive_ranks_get_the_same_samples(a, monkeypatch):
    own, _ = of_all_ranks(
        monkeypatch, 4, lambda: StreamingDataset(local=a, shuffle=True, replication=2)
    )
    assert own[0] == own[1] and own[2] == own[3] and not set(own[0]) & set(own[2])


@pytest.mark.parametrize(
    "how",
    [
        {"sampling_method": "x"},
        {"sampling_granularity": 0},
        {"partition_algo": "x"},
        {"shuffle_algo": "x"},
        {"batching_method": "x"},
        {"shuffle_seed": -1},
        {"batch_size": 0},
        {"epoch_size": "many"},
        {"epoch_size": "1e999"},
        {"stream_name": "mine"},
        {"cache_limit": 10},
        {"validate_hash": "sha1"},
        {"remote": "x", "streams": [Stream(local="x")]},
    ],
)
def test_invalid_arguments_are_rejected(a, how):
    with pytest.raises(ValueError):
        StreamingDataset(**{"local": a, **how})
    with pytest.raises(TypeError):
        StreamingDataset(local=a, nope=1)
    with pytest.raises(TypeError):
        StreamingDataset(local=a, stream_config={"nope": 1})
    with pytest.raises(ValueError):
        StreamingDataset()


def test_streams_inherit_defaults_of_the_dataset(folders):
    streams = [Stream(local=str(folders), split="a", keep_zip=False), Stream(local=str(folders))]
    data = StreamingDataset(
        streams=streams, split="b", download_retry=7, download_timeout=3, keep_zip=True
    )
    assert data.size == 60 and [one.split for one in streams] == ["a", "b"]
    assert [one.keep_zip for one in streams] == [False, True]
    assert {(one.download_retry, one.download_timeout) for one in streams} == {(7, 3)}
    assert streams[1]._guard.limits.retries == 7 and streams[1]._guard.limits.timeout_s == 3
    assert data.samples_per_stream.tolist() == [40, 20] and data.samples_per_shard.sum() == 60
    assert (
        data.num_streams == 2
        and data.num_shards == len(data.shards) == data.shards_per_stream.sum()
    )


def test_the_default_folder_is_private_and_reused(a, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    one, other = StreamingDataset(remote=a), StreamingDataset(remote=a)
    assert one.streams[0].local == other.streams[0].local != Stream(remote=a, split="x").local
    assert ids(one) == list(range(40))
    folder = one.streams[0].local
    assert stat.S_IMODE(os.stat(folder).st_mode) == 0o700 and "index.json" in os.listdir(folder)
    os.rename(folder, tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", folder)
    with pytest.raises(UnsafeError, match="the folder belongs to another user"):
        StreamingDataset(remote=a)


def test_the_coldest_shard_is_evicted_first_and_the_only_copy_never(a, tmp_path):
    data = StreamingDataset(remote=a, local=str(tmp_path / "near"), cache_limit="1mb")
    for shard in (2, 0, 1):
        data.prepare_shard(shard)
        path = tmp_path / "near" / data.shards[shard].file_pairs[0][0].basename
        os.utime(path, (shard + 1, shard + 1))
    used = data.cache_usage
    data.evict_coldest_shard()
    assert sorted(path.name for path in (tmp_path / "near").glob("*.mds")) == [
        "shard.00001.mds",
        "shard.00002.mds",
    ]
    assert data.cache_usage < used
    data.evict_shard(1)
    assert data[0] == {"i": 0} and data[39] == {"i": 39}
    only = StreamingDataset(local=a)
    only.evict_coldest_shard()
    only.evict_shard(0)
    assert ids(only) == list(range(40))


def test_an_epoch_of_many_samples_is_computed_in_blocks(a):
    data = StreamingDataset(streams=[Stream(local=a, repeat=10**9)], shuffle=True)
    assert len(data) == 40 * 10**9
    data.load_state_dict({**data.state_dict(39 * 10**9, True)})
    found = iter(data)
    assert all(0 <= next(found)["i"] < 40 for _ in range(100))


def test_sample_counts_are_parsed(a):
    assert (
        len(StreamingDataset(local=a, epoch_size="1.5k"))
        == 1500
        == len(ids(StreamingDataset(local=a, epoch_size=1500)))
    )
    found = np.bincount(ids(StreamingDataset(local=a, epoch_size=100, shuffle=True)))
    assert set(found.tolist()) == {2, 3} and found.sum() == 100
