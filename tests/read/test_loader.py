"""The loader: batches do not depend on workers, states are exact, errors name the row, closing is
quick.
"""

import json
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli.errors import TransformError, UsageError
from flarecli.model import Settings
from tests.pool import is_idle
from tests.properties import examples

ROWS = 103


def pack(path, compression=None):
    columns = {"n": "int", "weight": "float32", "text": "str", "grid": "ndarray:uint8:2,3"}
    settings = Settings(shard_rows=10, compression=compression)
    with flare.Writer(str(path), columns=columns, settings=settings) as writer:
        for n in range(ROWS):
            writer.write(
                {"n": n, "weight": n / 2, "text": "x" * n, "grid": np.full((2, 3), n, np.uint8)}
            )
    return flare.open(str(path))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Return compressed data, whose batches are always made by worker threads."""
    return pack(tmp_path_factory.mktemp("loader") / "d", "zstd")


def numbers(batches):
    return [batch["n"].tolist() for batch in batches]


def test_batches_are_arrays_by_dtype_and_shape_and_lists(data):
    (batch, *_), expected = (
        list(flare.Loader(data, 8, seed=3)),
        [sample["n"] for sample in data.run(3)][:8],
    )
    assert batch["n"].tolist() == expected
    assert {
        name: (value.dtype, value.shape) for name, value in batch.items() if name != "text"
    } == {
        "n": (np.int64, (8,)),
        "weight": (np.float32, (8,)),
        "grid": (np.uint8, (8, 2, 3)),
    }
    assert batch["text"] == ["x" * n for n in expected]
    assert (batch["grid"] == np.array(expected)[:, None, None]).all()


@pytest.mark.parametrize("order", ["shuffle", "windows", "sequential"])
@pytest.mark.parametrize(
    "options",
    [
        {"workers": 0},
        {"workers": 1},
        {"workers": 5, "ahead": 1},
        {"workers": 2, "processes": True, "start": "fork"},
    ],
)
def test_workers_do_not_change_the_batches(data, order, options):
    loader = flare.Loader(data, 7, seed=5, order=order, transform=shifted, **options)
    first = list(loader)
    assert np.concatenate([batch["n"] for batch in first]).tolist() == [
        sample["n"] + 1 for sample in data.run(5, 0, order)
    ]
    assert all(batch["weight"].dtype == np.float32 for batch in first)
    assert [len(batch["n"]) for batch in first] == [7] * 14 + [5]
    assert np.concatenate([batch["n"] for batch in loader]).tolist() == [
        sample["n"] + 1 for sample in data.run(5, 1, order)
    ]
    assert is_idle()


def shifted(sample):
    return {**sample, "n": sample["n"] + 1}


@pytest.mark.parametrize("taken", [0, 1, 7, 14, 15])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_saved_state_is_exact(data, taken, workers):
    whole = flare.Loader(data, 7, seed=5, workers=0)
    expected = numbers(whole) + numbers(whole)
    loader = flare.Loader(data, 7, seed=5, workers=workers)
    seen = []
    for batch in loader:
        if len(seen) == taken:
            break
        seen.append(batch["n"].tolist())
        state = json.loads(json.dumps(loader.save()))
    if not taken:
        state = flare.Loader(data, 7, seed=5).save()
    other = flare.Loader(data, 7, seed=99, workers=3)
    other.load(state)
    assert len(other) == 15 - taken
    assert seen + numbers(other) == expected[:15]
    assert numbers(other) == expected[15:]


def test_a_loop_continues_where_the_previous_one_stopped(data):
    loader = flare.Loader(data, 10, seed=1)
    first = next(iter(loader))["n"].tolist()
    assert first + [n for batch in numbers(loader) for n in batch] == [
        sample["n"] for sample in data.run(1)
    ]
    assert loader.cursor == flare.Cursor(1, 1, 0, "shuffle")
    one = iter(loader)
    next(one)
    two = iter(loader)
    next(two), next(two)
    assert list(one) == []
    del two
    assert is_idle()


@settings(max_examples=examples(100), deadline=None)
@given(st.data())
def test_a_loader_resumes_with_other_ranks_and_workers(data, draw):
    seed, batch = draw.draw(st.integers(0, 1 << 40)), draw.draw(st.integers(1, 9))
    order = draw.draw(st.sampled_from(["shuffle", "windows", "sequential"]))
    seen, state = [], None
    while state is None or state["epoch"] == 0:
        ranks = draw.draw(st.integers(1, 4))
        loaders = [
            flare.Loader(
                data, batch, seed, draw.draw(st.integers(0, 2)), order=order, rank=rank, ranks=ranks
            )
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load(state)
        loops = [iter(loader) for loader in loaders]
        for _ in range(draw.draw(st.integers(1, 8))):
            parts = [next(loop, None) for loop in loops]
            rows = [[] if part is None else part["n"].tolist() for part in parts]
            seen += [own[k] for k in range(batch) for own in rows if k < len(own)]
        for loop in loops:
            loop.close()
        state = loaders[0].save()
        if state["epoch"] == 0 and state["step"] == ROWS:
            break
    assert seen == [sample["n"] for sample in data.run(seed, 0, order)]


def test_a_state_is_valid_in_processes_of_every_start_method(data):
    fork = {"workers": 2, "processes": True, "start": "fork"}
    turns = [
        (1, {"workers": 2}),
        (2, fork),
        (1, {"workers": 1, "processes": True, "start": "spawn"}),
        (3, {"workers": 0}),
        (2, fork),
    ]
    seen, state = [], None
    for turn, (ranks, own) in enumerate(turns):
        loaders = [flare.Loader(data, 3, 7, rank=rank, ranks=ranks, **own) for rank in range(ranks)]
        for loader in loaders:
            if state is not None:
                loader.load(state)
        loops = [iter(loader) for loader in loaders]
        for _ in range(100 if turn == 4 else 2):
            rows = [batch["n"].tolist() for batch in (next(loop, None) for loop in loops) if batch]
            seen += [own_rows[k] for k in range(3) for own_rows in rows if k < len(own_rows)]
        for loop in loops:
            loop.close()
        state = json.loads(json.dumps(loaders[0].save()))
    assert seen == [sample["n"] for sample in data.run(7)]
    assert is_idle()


def test_transforms_may_return_several_samples_or_none(data):
    def several(sample):
        return [{"n": sample["n"] * 100 + k} for k in range(sample["n"] % 4)]

    expected = [one["n"] for sample in data.run(2) for one in several(sample)]
    for workers in (0, 3):
        loader, seen = flare.Loader(data, 8, seed=2, workers=workers, transform=several), []
        while loader.cursor.epoch == 0:
            for batch in loader:  # one loader per batch
                seen += batch["n"].tolist()
                state = loader.save()
                loader = flare.Loader(data, 8, workers=workers, transform=several)
                loader.load(state)
                break
        assert seen == expected
    other = flare.Loader(data, 8, seed=2, transform=several, ranks=2)
    loop = iter(other)
    while not other.save()["skip"]:
        next(loop)
    with pytest.raises(
        UsageError,
        match="^the state was saved in the middle of a row, with ranks=2; this loader has ranks=1(?m:$)",
    ):
        flare.Loader(data, 8).load(other.save())


def test_transforms_run_in_order_with_a_generator_per_row(data):
    def draw(sample, rng):
        return {"n": sample["n"], "drawn": float(rng.random())}

    runs = [
        {
            int(n): x
            for batch in flare.Loader(data, 9, seed=1, workers=w, transform=[shifted, draw])
            for n, x in zip(batch["n"], batch["drawn"], strict=True)
        }
        for w in (0, 2)
    ]
    assert runs[0] == runs[1]
    assert len(set(runs[0].values())) == ROWS
    assert sorted(runs[0]) == list(range(1, ROWS + 1))


def failing(sample):
    return {"n": 1 // (sample["n"] - 17)}


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"workers": 2}, {"workers": 1, "processes": True, "start": "fork"}]
)
def test_an_exception_in_a_transform_names_the_row(data, options):
    loader, seen = flare.Loader(data, 10, order="sequential", transform=failing, **options), []
    with pytest.raises(TransformError) as caught:
        for batch in loader:
            seen.append(len(batch["n"]))
    assert (str(caught.value), seen) == (
        "row 17: the transform failed: ZeroDivisionError: integer division or modulo by zero",
        [10],
    )
    assert (
        isinstance(caught.value.__cause__, ZeroDivisionError)
        or "in failing" in caught.value.__notes__[0]
    )
    assert loader.save()["step"] == 10
    del caught
    assert is_idle()


def test_ranks_with_drop_last_yield_the_same_number_of_batches(data):
    for ranks in (1, 2, 3, 5):
        parts = [
            numbers(flare.Loader(data, 10, seed=1, rank=rank, ranks=ranks, drop_last=True))
            for rank in range(ranks)
        ]
        assert {len(part) for part in parts} == {ROWS // (10 * ranks)}
        assert len(flare.Loader(data, 10, ranks=ranks, drop_last=True)) == ROWS // (10 * ranks)
        seen = [n for part in parts for batch in part for n in batch]
        assert len(set(seen)) == len(seen) == ROWS // (10 * ranks) * 10 * ranks


def test_a_loader_accepts_decoders(data):
    (batch,) = flare.Loader(
        data.select(["text", "n"]), ROWS, order="sequential", decode={"text": len, "n": False}
    )
    assert batch["text"].tolist() == list(range(ROWS))
    assert batch["n"][3] == (3).to_bytes(8, "little")


def test_invalid_arguments_and_samples_are_refused(data):
    for options, message in (
        ({"batch": 0}, "batch: expected at least 1, got 0"),
        ({"rank": 1}, "rank 1 of 1: expected a rank below the number of ranks"),
        ({"order": "random"}, "unknown order 'random'"),
        ({"decode": {"x": False}}, "no column 'x'"),
    ):
        with pytest.raises(UsageError) as caught:
            flare.Loader(data, **options)
        assert str(caught.value) == message
    with pytest.raises(UsageError, match="^cannot collate a sample that is not a dict(?m:$)"):
        list(flare.Loader(data, transform=lambda sample: sample["n"]))
    with pytest.raises(UsageError, match="^column 'odd' is missing in some samples(?m:$)"):
        list(flare.Loader(data, transform=lambda sample: {"odd": 1} if sample["n"] % 2 else {}))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": 104}, "the position was saved with data of 104 rows; this data has 103 rows"),
        ({"step": 104}, "step 104 is outside the epoch, which has 103 steps"),
        ({"order": "x"}, "unknown order 'x'"),
        ({"step": "1"}, "expected a state that a Loader saved"),
        ({"more": 1}, "expected a state that a Loader saved"),
    ],
)
def test_an_invalid_state_is_refused_and_changes_nothing(data, change, message):
    loader = flare.Loader(data, seed=4)
    with pytest.raises(UsageError) as caught:
        loader.load(loader.save() | change)
    assert str(caught.value) == message
    assert loader.save()["seed"] == 4


SLOW = """
import sys, time
import flarecli as flare

calls = 0

def slow(sample):
    global calls
    calls += 1
    time.sleep(0.01)
    return sample

loader = flare.Loader(flare.open(sys.argv[1]), 4, transform=slow, processes=sys.argv[2] == "processes")
try:
    while True:
        for batch in loader:
            sys.stdout.write("batch\\n")  # as one: an interrupt may come between a line and its end
            sys.stdout.flush()
except KeyboardInterrupt:
    time.sleep(0.2)
    before = calls
    time.sleep(0.2)
    print(calls == before)
    print(__import__("multiprocessing").active_children())
"""


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_an_interrupt_ends_all_workers_soon(data, kind):
    at = str(data.playlists[0].at)
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW, at, kind],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    for _ in range(3):
        assert child.stdout.readline() == "batch\n"
    child.send_signal(signal.SIGINT)
    out, err = child.communicate(timeout=30)
    assert [line for line in out.splitlines() if line != "batch"] == ["True", "[]"]
    assert (child.returncode, err) == (0, "")


def threads_of_transforms(names):
    def transform(sample):
        names.add(threading.current_thread().name)
        return sample

    return transform


def test_batches_of_mapped_bytes_are_made_by_the_calling_thread(tmp_path, monkeypatch):
    data = pack(tmp_path / "d")
    read, names = type(data).collated, set()

    def recorded(self, rows):
        names.add(threading.current_thread().name)
        return read(self, rows)

    monkeypatch.setattr(type(data), "collated", recorded)
    monkeypatch.setattr(type(data), "gather", lambda self, rows, least: None)
    for loader in (flare.Loader(data, 5), flare.Loader(data.decoded({"text": False}), 5)):
        assert sum(len(batch["n"]) for batch in loader) == ROWS
        assert names == {"MainThread"}
    assert sum(len(batch["n"]) for batch in flare.Loader(data, 5, decode={"text": len})) == ROWS
    assert names == {"MainThread", "flare-pool"}


@pytest.mark.parametrize("workers", [0, 2])
def test_transforms_run_on_the_given_number_of_threads(data, workers):
    names = set()
    list(flare.Loader(data, 5, workers=workers, transform=threads_of_transforms(names)))
    assert names == {"flare-pool" if workers else "MainThread"}


def test_numbers_outside_the_dtype_of_a_column_get_a_wider_dtype(data):
    batch = data.collate([{"weight": 1e39, "n": 2**70}, {"weight": float("inf"), "n": 1}])
    assert (batch["weight"].dtype, batch["weight"].tolist()) == (np.float64, [1e39, float("inf")])
    assert batch["n"] == [2**70, 1]
    assert data.collate([{"weight": float("inf")}])["weight"].dtype == np.float32


def four(sample):
    return [sample] * 4


def test_an_iterator_replaced_by_a_newer_one_ends(data):
    loader = flare.Loader(data, 2, workers=0, transform=four)
    old, new = iter(loader), iter(loader)
    next(new)
    place = loader.save()
    assert next(old, None) is None  # never started
    assert loader.save() == place
    newest = iter(loader)
    next(newest)
    place = loader.save()
    assert next(new, None) is None  # between the samples of a row
    assert loader.save() == place


def test_numpy_integers_are_accepted(data):
    numbers_of = {
        name: np.int64(value)
        for name, value in {
            "batch": 4,
            "seed": 3,
            "epoch": 2,
            "window": 5,
            "ranks": 2,
            "rank": 1,
            "workers": 0,
        }.items()
    }
    for order in ("shuffle", "windows"):
        loader, plain = (
            flare.Loader(data, **numbers_of, order=order),
            flare.Loader(data, 4, 3, 0, epoch=2, window=5, ranks=2, rank=1, order=order),
        )
        assert json.loads(json.dumps(loader.save())) == plain.save()
        assert numbers(loader) == numbers(plain)
    assert [one["n"] for one in data.run(np.int64(3), np.uint8(2))] == [
        one["n"] for one in data.run(3, 2)
    ]
    mixed = flare.mix({data: 1})
    assert [one["n"] for one in mixed.run(np.int64(3))] == [one["n"] for one in mixed.run(3)]
    with pytest.raises(UsageError) as caught:
        flare.Loader(data, seed=1.5)
    assert str(caught.value) == "seed: expected a whole number, got 1.5"
