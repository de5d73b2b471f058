"""Runs: one row a step, whatever the ranks, and another number of ranks goes on where they stopped."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli
from flarecli.errors import UsageError
from flarecli.model import Cursor, Settings
from flarecli.read.windows import ORDERS, Epoch

ROWS = 103


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    with flarecli.Writer(str(path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=10)) as writer:
        for n in range(ROWS):
            writer.write({"n": n})
    return flarecli.open(str(path / "d"))


def numbers(run):
    return [sample["n"] for sample in run]


@pytest.mark.parametrize("order", ORDERS)
def test_ranks_share_an_epoch(data, order):
    whole = numbers(data.run(3, 2, order))
    assert sorted(whole) == list(range(ROWS))
    assert (whole == list(range(ROWS))) == (order == "sequential")
    for ranks in (1, 2, 7, 200):
        parts = [numbers(data.run(3, 2, order, rank, ranks)) for rank in range(ranks)]
        merged = [parts[step % ranks][step // ranks] for step in range(ROWS)]
        assert merged == whole


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("block", [1, 4, 50])
def test_steps_that_are_mapped_in_blocks_are_the_same(data, monkeypatch, order, block):
    whole = numbers(data.run(3, 2, order))
    monkeypatch.setattr("flarecli.read.run._BLOCK", block)
    for ranks in (1, 3):
        parts = [numbers(data.run(3, 2, order, rank, ranks)) for rank in range(ranks)]
        assert [parts[step % ranks][step // ranks] for step in range(ROWS)] == whole


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_a_run_goes_on_with_any_number_of_ranks(data, draw):
    data_, order = data, draw.draw(st.sampled_from(ORDERS))
    seed, epoch = draw.draw(st.integers(0, 2**40)), draw.draw(st.integers(0, 99))
    whole = numbers(data_.run(seed, epoch, order))
    seen, cursor = [], None
    while cursor is None or cursor.step < ROWS:
        ranks = draw.draw(st.integers(1, 9))
        runs = [data_.run(seed, epoch, order, rank, ranks, cursor) for rank in range(ranks)]
        taken = draw.draw(st.integers(1, 40))
        for _ in range(taken):
            seen += [sample["n"] for run in runs for sample in [next(run, None)] if sample is not None]
        cursor = pickle.loads(pickle.dumps(runs[0].cursor))
        assert cursor.step == min(ROWS, len(seen))
    assert seen == whole


@given(st.lists(st.integers(0, 40), min_size=1, max_size=30), st.integers(1, 5), st.integers(0, 1 << 70), st.integers(0, 1 << 40), st.randoms())
@settings(deadline=None)
def test_steps_of_many_windows_have_the_rows_that_each_has_alone(sizes, window, seed, epoch, rng):
    edges = np.cumsum([0, *sizes])
    whole, rows = Epoch(edges, seed, epoch, "windows", window), int(edges[-1])
    alone = np.array([whole.at(np.array([step]))[0] for step in range(rows)], np.int64)
    assert np.array_equal(whole.at(np.arange(rows)), alone)
    some = np.array([rng.randrange(rows) for _ in range(rows and 20)], np.int64)
    assert np.array_equal(whole.at(some), alone[some])


def test_windows_hold_few_chunks_open():
    edges = np.cumsum([0, *([100] * 50)])
    rows = Epoch(edges, 1, 0, "windows", 4).at(np.arange(5000))
    assert sorted(rows) == list(range(5000))
    chunks = rows // 100
    windows = [set(chunks[start : start + 400].tolist()) for start in range(0, 5000, 400)]
    assert [len(one) for one in windows] == [4] * 12 + [2]
    assert len(set().union(*windows)) == 50
    assert not np.array_equal(np.sort(rows[:400]), rows[:400])


def test_the_cursor_counts_steps_of_all_ranks(data):
    run = data.run(5, 1, "shuffle", 2, 8)
    for _ in range(3):
        next(run)
    assert run.cursor == Cursor(5, 1, 24, "shuffle")
    assert len(run) == 10
    assert len(list(run)) == 10
    assert (run.cursor.step, len(run)) == (ROWS, 0)


def test_what_makes_no_run_is_refused(data):
    for message, options in (
        ("rank 8 of 8 is no rank", {"rank": 8, "ranks": 8}),
        ("order is 'random'", {"order": "random"}),
        ("window is 0, seed 0, epoch 0: at least 1, 0 and 0 are wanted", {"window": 0}),
        (f"step 104 is outside the epoch, which has {ROWS}", {"cursor": Cursor(0, 0, 104, "shuffle")}),
    ):
        with pytest.raises(UsageError) as caught:
            data.run(**options)
        assert str(caught.value) == message
