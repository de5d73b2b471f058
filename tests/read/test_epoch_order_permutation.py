"""The shuffle: a bijection at any size, as uniform as numpy's permutation, and equal in every
process.
"""

import subprocess
import sys
import textwrap
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flarecli as flare
from flarecli.errors import RowsError
from flarecli.model import Settings
from flarecli.read import positions

SIZES = sorted(
    {
        1,
        2,
        3,
        4,
        5,
        9999,
        10**7,
        *np.geomspace(1, 10**6, 200).astype(int).tolist(),
        *(n * n + d for n in (31, 317, 1024) for d in (-1, 0, 1)),
    }
)
ROWS, CELLS = 10**6, 100


@pytest.mark.parametrize("part", range(2))
def test_every_row_is_read_once(part):
    assert len(SIZES) >= 180
    for rows in SIZES[part::2]:
        seen = np.zeros(rows, bool)
        for start in range(0, rows, 1 << 20):
            seen[
                positions(
                    np.arange(start, min(rows, start + (1 << 20))), rows, seed=rows, epoch=part
                )
            ] = True
        assert seen.all(), rows


def excess(counts, expected):
    """Return the chi-square of counts against a uniform distribution, in standard deviations."""
    statistic, freedom = ((counts - expected) ** 2 / expected).sum(), counts.size - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


def faults(order, rows):
    """Return statistics of an order in standard deviations: position, successor and distance of
    rows.
    """
    at = np.arange(len(order))
    cell = order * CELLS // rows if rows < 1 << 50 else order // (rows // CELLS)
    place = at * CELLS // len(order)
    pairs = np.bincount(place * CELLS + cell, minlength=CELLS**2)
    follow = np.bincount(cell[:-1] * CELLS + cell[1:], minlength=CELLS**2)
    apart = np.bincount(cell[:-7] * CELLS + cell[7:], minlength=CELLS**2)
    low = np.bincount(order % 97, minlength=97)
    mean = order - order.mean()
    serial = [
        float((mean[:-lag] * mean[lag:]).mean() / mean.var()) * len(order) ** 0.5
        for lag in (1, 2, 3, 1000)
    ]
    with_place = float(np.corrcoef(at, order)[0, 1]) * len(order) ** 0.5
    return np.abs(
        [
            excess(pairs, len(order) / CELLS**2),
            excess(follow, len(order) / CELLS**2),
            excess(apart, len(order) / CELLS**2),
            *serial,
            with_place,
        ]
    ), low


@pytest.mark.parametrize(("seed", "epoch"), [(0, 0), (0, 1), (1, 0), (2**40, 7)])
def test_a_shuffle_is_as_uniform_as_one_of_numpy(seed, epoch):
    own, _ = faults(positions(np.arange(ROWS), ROWS, seed, epoch), ROWS)
    other, _ = faults(np.random.default_rng(seed + epoch).permutation(ROWS), ROWS)
    assert other.max() < 5, other
    assert own.max() < 5, own


def test_samples_of_a_shuffle_of_10_to_the_12_rows_are_uniform():
    rows = 10**12
    for first in (0, rows - ROWS):
        order = positions(np.arange(first, first + ROWS), rows, seed=3)
        assert order.min() >= 0
        assert order.max() < rows
        assert len(np.unique(order)) == ROWS
        own, low = faults(order, rows)
        assert own.max() < 5, own
        assert abs(excess(low, ROWS / 97)) < 5


def test_orders_of_epochs_and_seeds_are_independent():
    orders = [
        positions(np.arange(ROWS), ROWS, seed, epoch) for seed, epoch in ((5, 0), (5, 1), (6, 0))
    ]
    for k, one in enumerate(orders):
        for other in orders[:k]:
            assert abs(np.corrcoef(one, other)[0, 1]) * ROWS**0.5 < 5
            assert (one == other).sum() < 12  # one is expected


def test_a_block_is_computed_in_less_than_a_megabyte():
    steps = np.arange(10**11, 10**11 + (1 << 14))
    tracemalloc.start()
    positions(steps, 10**12, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


SPLITS = """
    import multiprocessing, random, sys
    import flarecli as flare

    def share(job):
        data, seed, order, cursor, rank, ranks, taken = job
        run = data.run(seed, 1, order, rank, ranks, cursor)
        return [sample["n"] for _, sample in zip(range(taken), run)], run.cursor

    def main(path, start):
        data, rng = flare.open(path), random.Random(start)
        with multiprocessing.get_context(start).Pool(3) as pool:
            for _ in range(12):
                seed, order = rng.randrange(1 << 40), rng.choice(["shuffle", "windows", "sequential"])
                expected, seen, cursor = [sample["n"] for sample in data.run(seed, 1, order)], [], None
                while cursor is None or cursor.step < len(data):
                    ranks, taken = rng.randint(1, 6), rng.randint(1, 60)
                    parts = pool.map(share, [(data, seed, order, cursor, rank, ranks, taken) for rank in range(ranks)])
                    seen += [rows[k] for k in range(taken) for rows, _ in parts if k < len(rows)]
                    cursor = parts[0][1]
                assert seen == expected, (seed, order)
        print("passed")

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_runs_split_over_processes_read_each_row_once_in_order(tmp_path, start):
    with flare.Writer(
        str(tmp_path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=10)
    ) as writer:
        for n in range(103):
            writer.write({"n": n})
    (tmp_path / "splits.py").write_text(textwrap.dedent(SPLITS))
    ran = subprocess.run(
        [sys.executable, str(tmp_path / "splits.py"), str(tmp_path / "d"), start],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (ran.stdout, ran.stderr, ran.returncode) == ("passed\n", "", 0)


@given(st.integers(1, 3000), st.integers(0, 1 << 70), st.integers(0, 100))
def test_a_shuffle_is_a_permutation(rows, seed, epoch):
    assert sorted(positions(np.arange(rows), rows, seed, epoch).tolist()) == list(range(rows))


def test_a_shuffle_depends_on_seed_and_epoch_and_stores_no_table():
    steps = np.arange(1000)
    one = positions(steps, 10**12, 1)
    assert (one == positions(steps[::-1], 10**12, 1)[::-1]).all()
    assert (
        len({tuple(positions(steps, 10**12, seed, epoch)) for seed in (1, 2) for epoch in (0, 1)})
        == 4
    )
    assert abs(one.mean() / 10**12 - 0.5) < 0.05
    with pytest.raises(RowsError, match="^step is outside the range 0 to 9$"):
        positions(np.array([10]), 10, 0)
