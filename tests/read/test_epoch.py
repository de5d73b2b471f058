"""Runs: one row per step for any number of ranks, and resume with another number of ranks."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli
from flarecli.errors import UsageError
from flarecli.model import Cursor, Settings
from flarecli.read.epoch_order import ORDERS
from tests.properties import examples

ROWS = 103


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("run")
    with flarecli.Writer(
        str(path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=10)
    ) as writer:
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
def test_the_block_size_does_not_change_the_steps(data, monkeypatch, order, block):
    whole = numbers(data.run(3, 2, order))
    monkeypatch.setattr("flarecli.read.batch._BLOCK_STEPS", block)
    for ranks in (1, 3):
        parts = [numbers(data.run(3, 2, order, rank, ranks)) for rank in range(ranks)]
        assert [parts[step % ranks][step // ranks] for step in range(ROWS)] == whole


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_a_run_resumes_with_any_number_of_ranks(data, draw):
    data_, order = data, draw.draw(st.sampled_from(ORDERS))
    seed, epoch = draw.draw(st.integers(0, 2**40)), draw.draw(st.integers(0, 99))
    whole = numbers(data_.run(seed, epoch, order))
    seen, cursor = [], None
    while cursor is None or cursor.step < ROWS:
        ranks = draw.draw(st.integers(1, 9))
        runs = [data_.run(seed, epoch, order, rank, ranks, cursor) for rank in range(ranks)]
        taken = draw.draw(st.integers(1, 40))
        for _ in range(taken):
            seen += [
                sample["n"] for run in runs for sample in [next(run, None)] if sample is not None
            ]
        cursor = pickle.loads(pickle.dumps(runs[0].cursor))
        assert cursor.step == min(ROWS, len(seen))
    assert seen == whole


def test_the_cursor_counts_steps_of_all_ranks(data):
    run = data.run(5, 1, "shuffle", 2, 8)
    for _ in range(3):
        next(run)
    assert run.cursor == Cursor(5, 1, 24, "shuffle")
    assert len(run) == 10
    assert len(list(run)) == 10
    assert (run.cursor.step, len(run)) == (ROWS, 0)


def test_invalid_arguments_of_a_run_are_refused(data):
    for message, options in (
        ("rank 8 of 8: expected a rank below the number of ranks", {"rank": 8, "ranks": 8}),
        ("unknown order 'random'", {"order": "random"}),
        ("window: expected at least 1, got 0", {"window": 0}),
        (
            f"step 104 is outside the epoch, which has {ROWS} steps",
            {"cursor": Cursor(0, 0, 104, "shuffle")},
        ),
    ):
        with pytest.raises(UsageError) as caught:
            data.run(**options)
        assert str(caught.value) == message


ANEW = "Use the `cursor` of a run, or create one: flare.Cursor(seed, epoch, step, order)."
OTHER = "Open the data with which the position was saved."


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"cursor": {}}, "cursor: expected a Cursor, got {}", ANEW),
        (
            {"cursor": (1, 0, 3, "shuffle")},
            "cursor: expected a Cursor, got (1, 0, 3, 'shuffle')",
            ANEW,
        ),
        (
            {"cursor": Cursor(0, 0, 9, "shuffle", rows=200)},
            f"the position was saved with data of 200 rows; this data has {ROWS} rows",
            OTHER,
        ),
        (
            {"cursor": Cursor(0, 0, 9, "windows", rows=50)},
            f"the position was saved with data of 50 rows; this data has {ROWS} rows",
            OTHER,
        ),
        (
            {"cursor": Cursor(0, 0, -1, "shuffle")},
            f"step -1 is outside the epoch, which has {ROWS} steps",
            "",
        ),
        (
            {"cursor": Cursor(1, 0, 9, "shuffle"), "seed": 2},
            "seed is 2, but the cursor has 1",
            "Omit seed, because the cursor sets it.",
        ),
        (
            {"cursor": Cursor(1, 4, 9, "shuffle"), "epoch": 5},
            "epoch is 5, but the cursor has 4",
            "Omit epoch, because the cursor sets it.",
        ),
        (
            {"cursor": Cursor(1, 0, 9, "shuffle"), "order": "windows"},
            "order is 'windows', but the cursor has 'shuffle'",
            "Omit order, because the cursor sets it.",
        ),
        (
            {"cursor": Cursor(1, 0, 9, "windows", window=3), "window": 4},
            "window is 4, but the cursor has 3",
            "Omit window, because the cursor sets it.",
        ),
        (
            {"cursor": Cursor(1, 0, 1.5, "shuffle")},
            "invalid cursor: Cursor(seed=1, epoch=0, step=1.5, order='shuffle', rows=Non…",
            "Use integers for seed, epoch and step: flare.Cursor(seed, epoch, step, order).",
        ),
        (
            {"rank": "0/8"},
            "rank: expected a whole number, got '0/8'",
            "Use rank=R, ranks=N for rank R of N.",
        ),
    ],
)
def test_a_cursor_of_another_run_is_refused(data, options, message, hint):
    for rows in (data, flarecli.mix({data: 1})):
        with pytest.raises(UsageError) as caught:
            rows.run(**options)
        assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize("order", ORDERS)
def test_a_cursor_contains_the_options_of_its_run(data, order):
    run = data.run(5, 1, order, window=3)
    seen = [next(run)["n"] for _ in range(20)]
    cursor = pickle.loads(pickle.dumps(run.cursor))
    assert (cursor.rows, cursor.window) == (ROWS, 3)
    rest = numbers(run)
    assert numbers(data.run(cursor=cursor)) == rest
    assert numbers(data.run(5, 1, order, window=3, cursor=cursor)) == rest
    assert (
        numbers(data.run(cursor=Cursor(np.int64(5), np.uint8(1), np.int32(20), order), window=3))
        == rest
    )
    assert sorted(seen + rest) == list(range(ROWS))
    less = data.where("n < 50")
    with pytest.raises(
        UsageError,
        match=f"^the position was saved with data of {ROWS} rows; this data has 50 rows(?m:$)",
    ):
        less.run(cursor=cursor)


def test_a_run_resumes_at_the_cursor_of_a_loader(data):
    loader = flarecli.Loader(data, 10, 7, order="windows", window=2)
    batch = next(iter(loader))
    assert loader.cursor == Cursor(7, 0, 10, "windows")
    assert (loader.cursor.rows, loader.cursor.window) == (ROWS, 2)
    assert sorted([*batch["n"].tolist(), *numbers(data.run(cursor=loader.cursor))]) == list(
        range(ROWS)
    )
