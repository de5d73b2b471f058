"""Orders of an epoch: windows of chunks."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.read.epoch_order import Epoch


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=30),
    st.integers(1, 5),
    st.integers(0, 1 << 70),
    st.integers(0, 1 << 40),
    st.randoms(),
)
@settings(deadline=None)
def test_steps_of_many_windows_equal_single_steps(sizes, window, seed, epoch, rng):
    edges = np.cumsum([0, *sizes])
    whole, rows = Epoch(edges, seed, epoch, "windows", window), int(edges[-1])
    alone = np.array([whole.at(np.array([step]))[0] for step in range(rows)], np.int64)
    assert np.array_equal(whole.at(np.arange(rows)), alone)
    some = np.array([rng.randrange(rows) for _ in range(rows and 20)], np.int64)
    assert np.array_equal(whole.at(some), alone[some])


def test_order_windows_needs_few_open_chunks():
    edges = np.cumsum([0, *([100] * 50)])
    rows = Epoch(edges, 1, 0, "windows", 4).at(np.arange(5000))
    assert sorted(rows) == list(range(5000))
    chunks = rows // 100
    windows = [set(chunks[start : start + 400].tolist()) for start in range(0, 5000, 400)]
    assert [len(one) for one in windows] == [4] * 12 + [2]
    assert len(set().union(*windows)) == 50
    assert not np.array_equal(np.sort(rows[:400]), rows[:400])
