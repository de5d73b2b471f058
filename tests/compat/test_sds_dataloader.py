"""sds's MultiStreamDataLoader: orders of the original, batches, states, and progress."""

import itertools
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

torch = pytest.importorskip("torch")

from flarecli.compat.sds.dataloader import (  # noqa: E402
    MultiStreamDataLoader,
    ScheduleType,
    StreamOptions,
)
from flarecli.compat.sds.dataset import StreamingDataset  # noqa: E402
from flarecli.errors import FormatError, UsageError  # noqa: E402

COUNTS = {0: 2, 1: 3, 2: 4}
# Results of the original for these counts and seed 42.
ROUNDS = {
    "random": "22221121122212121110",
    "consecutive": "00111222200111222200",
    "consecutive_interleaved": "01201212201201212201",
    "random_order": "20211220122201021110",
    "fixed_random_order": "20202111220202111220",
}
# Results of the original for ratios 1, 2, 5 and 1, 2, 1 consecutive batches, with seed 7.
MIXES = {
    ("fixed_random_order", "no_mixing"): "112022112211202211221120",
    ("fixed_random_order", "custom"): "222112021120211022112221",
    ("fixed_random_order", "mix_all"): "221122022202202221122112",
    ("random", "no_mixing"): "221122022202202221122112",
    ("random", "custom"): "222220111120112011111122",
    ("random_order", "no_mixing"): "211022112221122202111122",
    ("random_order", "custom"): "211222011220112021121122",
    ("consecutive_interleaved", "no_mixing"): "011211222201121122220112",
    ("consecutive_interleaved", "custom"): "211222112221122011222112",
}


@pytest.mark.parametrize("name", ROUNDS)
def test_schedules_have_the_orders_of_the_original(name):
    ratios = {group: count / 9 for group, count in COUNTS.items()}
    found = [
        ScheduleType.sample_iter_idx(ScheduleType(name), i, COUNTS, ratios, 42) for i in range(20)
    ]
    assert "".join(map(str, found)) == ROUNDS[name]


def test_group_numbers_may_be_arbitrary():
    found = {
        ScheduleType.sample_iter_idx(ScheduleType.RANDOM, i, {7: 1, 3: 1}, {7: 0.5, 3: 0.5}, 2**40)
        for i in range(20)
    }
    assert found == {7, 3}


class Numbers(torch.utils.data.IterableDataset):
    data_type = "image"

    def __init__(self, first, count=6):
        self.first, self.count, self.loaded = first, count, None

    def __iter__(self):
        return ({"n": self.first + i} for i in range(self.count))

    def state_dict(self):
        return {"epoch": 0, "sample_in_epoch": self.first}

    def load_state_dict(self, state):
        self.loaded = state


def options(strategy="no_mixing", **more):
    groups = [0, 1, 0] if strategy == "custom" else [None] * 3
    configs = [
        {"name": f"s{i}", "ratio": ratio, "batch_gpu": 2, "num_accum_rounds": rounds, **more}
        | ({} if group is None else {"mixing_group_id": group})
        for i, (ratio, rounds, group) in enumerate(zip((1, 2, 5), (1, 2, 1), groups, strict=True))
    ]
    return StreamOptions.init_group(configs, mixing_strategy=strategy)


def loader(strategy="no_mixing", **more):
    data = [Numbers(100 * i) for i in range(3)]
    return MultiStreamDataLoader(data, options(strategy), **{"shuffle_seed": 7, **more})


@pytest.mark.parametrize(("schedule", "strategy"), MIXES)
def test_streams_alternate_as_in_the_original(schedule, strategy):
    batches = itertools.islice(loader(strategy, schedule=schedule), 24)
    assert "".join(one.stream_name[1] for one in batches) == MIXES[schedule, strategy]


def test_batches_are_dicts_that_name_their_stream():
    batches = list(itertools.islice(loader(schedule="consecutive"), 9))
    assert [(one.stream_name, one.num_accum_rounds_left, one["n"].tolist()) for one in batches] == [
        ("s0", 0, [0, 1]),
        ("s1", 1, [100, 101]),
        ("s1", 0, [102, 103]),
        ("s1", 1, [104, 105]),
        ("s1", 0, [100, 101]),  # its next epoch
        ("s2", 0, [200, 201]),
        ("s2", 0, [202, 203]),
        ("s2", 0, [204, 205]),
        ("s2", 0, [200, 201]),
    ]
    assert {one.data_type for one in batches} == {"image"} and isinstance(batches[0], dict)


def test_streams_keep_their_position_for_the_next_iterator():
    mixed = loader(schedule="consecutive")
    next(iter(mixed))
    assert mixed.meta_iteration_size == 8
    assert [one["n"][0].item() for one in itertools.islice(mixed, 3)] == [100, 102, 104]


def test_ranks_take_batches_of_one_group_and_of_their_own_streams(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        turns = itertools.islice(loader("custom"), 60)
        found.append([one.stream_name for one in turns if not one.num_accum_rounds_left])
    groups = [[name == "s1" for name in names] for names in found]
    shared = min(map(len, groups))
    assert groups[0][:shared] == groups[1][:shared] and found[0][:shared] != found[1][:shared]


def test_states_restore_datasets_and_schedule():
    mixed = loader()
    names = [one.stream_name for one in itertools.islice(mixed, 20)]
    other = loader()
    first = list(itertools.islice(other, 10))
    assert not first[-1].num_accum_rounds_left
    state = other.state_dict()
    resumed = loader()
    resumed.load_state_dict(state)
    assert [one.stream_name for one in itertools.islice(resumed, 10)] == names[10:]
    assert [one.dataset.loaded["sample_in_epoch"] for one in resumed.streams] == [0, 100, 200]
    resumed.load_state_dict({"stream_states": state["stream_states"]})  # as the original writes it
    assert next(iter(resumed)).stream_name == names[0]
    with pytest.raises(UsageError, match="expected the states of 3 streams, got 1"):
        resumed.load_state_dict({"stream_states": [{}]})


def test_streams_of_ratio_0_are_unused_and_the_main_stream_is_known():
    made = [
        StreamOptions("a", 0.3, 0, batch_size=2),
        StreamOptions("b", 0.0, 1, batch_size=1),
        StreamOptions("c", 0.7, 2),
    ]
    mixed = MultiStreamDataLoader([Numbers(100 * i) for i in range(3)], made)
    assert [one.opts.name for one in mixed.streams] == ["a", "c"]
    assert mixed.main_stream.opts.name == "c"
    shapes = {one.stream_name: one["n"] for one in itertools.islice(mixed, 10)}
    assert shapes["a"].shape == (2,) and isinstance(shapes["c"], int)  # no batch size: samples


@pytest.mark.parametrize(
    ("ratios", "total", "wanted"),  # as the original, except the order of equal ones
    [
        ([0.1, 0.2, 0.7], 3, [1, 1, 1]),
        ([0.1, 0.2, 0.7], 8, [1, 2, 5]),
        ([0.5, 0.5], 3, [1, 2]),
        ([0.9, 0.1], 13, [11, 2]),
        ([0.01, 0.99], 13, [1, 12]),
    ],
)
def test_workers_are_divided_by_ratio(ratios, total, wanted):
    assert MultiStreamDataLoader.split_across_consumers(ratios, total) == wanted


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_unused_streams_get_no_workers():
    made = [StreamOptions(str(i), ratio, i, batch_gpu=1) for i, ratio in enumerate((0.5, 0, 0.5))]
    data = [Numbers(0)] * 3

    def counts(**how):
        return [
            one.dataloader.num_workers for one in MultiStreamDataLoader(data, made, **how).streams
        ]

    assert counts(num_workers=5) == [2, 3]
    assert counts(num_workers=[1, 7, 3], reweight_workers=False) == [1, 3]
    assert counts() == [0, 0]


def test_batch_sizes_are_derived_and_checked(monkeypatch):
    infer = StreamOptions.infer_batch_info
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert infer(32) == (32, 8, 1)
    assert infer(32, 2) == (32, 2, 4)
    assert infer(None, 2, 3) == (24, 2, 3)
    assert infer(0) == (0, 0, 0)
    for size, gpu, message in (
        (None, None, "expected batch_size or batch_gpu"),
        (30, None, "a batch of 30 samples cannot be divided into batches of equal size on 4 ranks"),
        (32, 3, "a batch of 32 samples cannot be divided into batches of 3 on 4 ranks"),
    ):
        with pytest.raises(UsageError) as caught:
            infer(size, gpu)
        assert str(caught.value) == message


def test_a_group_derives_the_ratios_of_its_used_streams():
    made = StreamOptions.init_group(
        [{"batch_gpu": 1, "ratio": 3}, {"batch_gpu": 1, "ratio": 0}, {"batch_gpu": 1, "ratio": 1}],
        drop_unused=True,
        mixing_strategy="mix_all",
    )
    assert [(one.name, one.ratio, one.mixing_group_id) for one in made] == [
        ("stream_000", 0.75, 0),
        ("stream_001", 0.25, 0),
    ]
    assert [one.ratio for one in StreamOptions.init_group([{"batch_gpu": 1}] * 4)] == [0.25] * 4


@pytest.mark.parametrize(
    ("configs", "strategy", "message"),
    [
        ([{"ratio": 1}, {}], "no_mixing", "expected a ratio for every stream or for no stream"),
        ([{"ratio": -1}, {"ratio": 2}], "no_mixing", "ratios: expected numbers >= 0"),
        ([{"ratio": 0}], "no_mixing", "ratios: expected numbers >= 0, at least one of them > 0"),
        ([{"ratio": float("nan")}], "no_mixing", "ratios: expected numbers >= 0"),
        ([{"name": "a"}, {"name": "a"}], "no_mixing", "duplicate stream name 'a'"),
        ([{}], "custom", "mixing_strategy 'custom': expected a mixing_group_id for each stream"),
        ([{"mixing_group_id": 1}, {}], "mix_all", "mixing_strategy 'mix_all': expected no"),
        ([{"mixing_group_id": 1}] * 2, "no_mixing", "mixing_strategy 'no_mixing': expected no"),
        ([{}], "all", "mixing_strategy: expected one of no_mixing, mix_all, custom, got 'all'"),
    ],
)
def test_contradictory_options_are_rejected(configs, strategy, message):
    with pytest.raises(UsageError) as caught:
        StreamOptions.init_group(
            [{"batch_gpu": 1, **one} for one in configs], mixing_strategy=strategy
        )
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"schedule": "alphabetical"}, "schedule: expected one of random, consecutive"),
        ({"num_workers": 2}, "num_workers: expected 0 or at least 3, got 2"),
        ({"num_workers": [1, 1, 1]}, "a list of num_workers requires reweight_workers=False"),
        ({"num_workers": [1], "reweight_workers": False}, "num_workers: expected 3 numbers"),
        (
            {"counts_precision": 0},
            "ratios [0.125, 0.25, 0.625]: a ratio rounds to 0 with 0 decimals",
        ),
    ],
)
def test_invalid_loader_arguments_are_rejected(more, message):
    with pytest.raises(UsageError) as caught:
        loader(**more)
    assert str(caught.value).startswith(message)


def test_rounds_that_are_too_long_are_rejected():
    made = [StreamOptions("a", 1e-6, 0, batch_gpu=1), StreamOptions("b", 1.0, 1, batch_gpu=1)]
    with pytest.raises(UsageError, match="these ratios need a schedule of 1000001 batches"):
        MultiStreamDataLoader([Numbers(0)] * 2, made)
    MultiStreamDataLoader([Numbers(0)] * 2, made, schedule="random")


@pytest.mark.parametrize(
    ("opts", "message"),
    [
        (
            {"batch_gpu": 0},
            "stream 'a': expected a batch size of at least 1, got 0",
        ),
        (
            {"num_accum_rounds": 0},
            "stream 'a': num_accum_rounds: expected at least 1, got 0",
        ),
        (
            {"batch_gpu": 2, "dataloader_kwargs": {"batch_size": 3}},
            "stream 'a': dataloader_kwargs: expected batch_size 2, got 3",
        ),
    ],
)
def test_streams_without_batches_are_rejected(opts, message):
    with pytest.raises(UsageError) as caught:
        MultiStreamDataLoader([Numbers(0)], [StreamOptions("a", 1, 0, **opts)])
    assert str(caught.value) == message


def test_an_epoch_without_batches_is_an_error():
    made = [StreamOptions("a", 1, 0, batch_gpu=10, dataloader_kwargs={"drop_last": True})]
    with pytest.raises(FormatError) as caught:
        next(iter(MultiStreamDataLoader([Numbers(0)], made)))
    assert str(caught.value) == "stream 'a': the epoch has no batches"


def test_batches_that_are_not_dicts_are_rejected():
    how = {"collate_fn": list}
    made = [StreamOptions("a", 1, 0, batch_gpu=2, dataloader_kwargs=how)]
    with pytest.raises(FormatError, match="stream 'a': expected the batch to be a dict, got list"):
        next(iter(MultiStreamDataLoader([Numbers(0)], made)))


# -- with flare's datasets


@pytest.fixture
def src(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.bin").write_bytes(bytes([i]))
    names = [f"{i}.bin" for i in range(6)]
    pq.write_table(pa.table({"id": names, "url": names, "n": range(6)}), folder / "i.parquet")
    return str(folder / "i.parquet")


def opened(src, tmp_path, name="d", **more):
    return StreamingDataset(
        src, str(tmp_path), "image", name, columns_to_load=["url"], index_col_name="id", **more
    )


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_datasets_of_an_index_are_mixed(src, tmp_path, workers):
    data = [opened(src, tmp_path, name) for name in "ab"]
    opts = StreamOptions.init_group([{"name": name, "batch_gpu": 3} for name in "ab"])
    mixed = MultiStreamDataLoader(
        data, opts, num_workers=workers, schedule="consecutive", multiprocessing_context=None
    )
    batches = list(itertools.islice(mixed, 8))
    assert [one.stream_name for one in batches] == ["a", "b"] * 4
    for name in "ab":
        rows = [n for one in batches if one.stream_name == name for n in one["n"].tolist()]
        assert sorted(rows[:6]) == sorted(rows[6:]) == list(range(6))
    assert batches[0].data_type == "image" and Path(batches[0]["url"][0]).exists()
    for stream in mixed.streams:
        stream.iterator.close()


def test_progress_can_be_read_and_set(src, tmp_path):
    data = opened(src, tmp_path, shuffle_seed=3)
    assert (data.epoch, data.sample_in_epoch, data.index_meta.num_samples) == (0, 0, 6)
    running = iter(data)
    whole = [next(running)["n"] for _ in range(6)]
    assert (data.epoch, data.sample_in_epoch) == (0, 6)
    running.close()
    data.epoch = 5
    data.sample_in_epoch = 4
    state = data.state_dict()
    assert state == {"epoch": 5, "sample_in_epoch": 4}
    other = opened(src, tmp_path, shuffle_seed=3)
    other.load_state_dict(state)
    assert other.state_dict() == state  # saved again before a sample is read
    rest = [one["n"] for one in other]
    assert len(rest) == 2 and other.state_dict() == {"epoch": 5, "sample_in_epoch": 6}
    data.set_progress(0)
    assert [one["n"] for one in data] == whole


def test_a_changed_index_is_read_again(src, tmp_path):
    data = opened(src, tmp_path)
    pq.write_table(pq.read_table(src).slice(0, 2), src)
    assert len(data) == 6
    data.build_index()
    assert len(data) == 2 and [one["n"] for one in data] == [0, 1]
