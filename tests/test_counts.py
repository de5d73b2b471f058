"""Counts are numpy's arrays to whoever asks more of them than their integers."""

import copy
import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import counts
from flarecli.counts import Counts, first_fall, words

INTS = st.lists(st.integers(-(1 << 63), (1 << 63) - 1), min_size=1, max_size=40)


@given(INTS)
def test_they_hold_what_an_array_holds(values):
    mine, theirs = Counts(values), np.array(values, np.int64)
    assert (len(mine), [*mine], mine.tolist(), mine[0], mine[-1]) == (
        len(theirs),
        values,
        values,
        values[0],
        values[-1],
    )
    assert (mine.min(), mine.max(), mine.dtype, mine.shape) == (
        theirs.min(),
        theirs.max(),
        np.int64,
        theirs.shape,
    )
    assert np.asarray(mine).dtype == np.int64 and (np.asarray(mine) == theirs).all()
    assert (mine.copy() == theirs).all() and (
        mine.astype(np.float64) == theirs.astype(np.float64)
    ).all()
    assert (
        ((mine < 3) == (theirs < 3)).all()
        and (mine == theirs).all()
        and (np.maximum(mine, 0) == np.maximum(theirs, 0)).all()
    )
    assert (
        (mine[1:] == theirs[1:]).all()
        and (mine[theirs > 0] == theirs[theirs > 0]).all()
        and (np.concatenate([mine, mine])[: len(theirs)] == theirs).all()
    )


def test_they_are_added_up_as_python_does():
    assert (Counts([1 << 62, 1 << 62, 5]).sum(), Counts().sum(), len(Counts())) == (
        (1 << 63) + 5,
        0,
        0,
    )
    both = Counts([1, 2])
    assert (
        (both + np.array([3, 4])).tolist(),
        (5 - both).tolist(),
        (both * [True, False]).tolist(),
    ) == ([4, 6], [4, 3], [1, 0])


def test_they_travel():
    for one in (pickle.loads(pickle.dumps(Counts([1, -2]))), copy.deepcopy(Counts([1, -2]))):
        assert type(one) is Counts and one.tolist() == [1, -2] and one.sum() == -1


@given(st.lists(st.integers(0, (1 << 32) - 1), min_size=1, max_size=40), st.booleans())
def test_words_are_little_endian_wherever_they_lie(values, is_sorted):
    values = sorted(values) if is_sorted else values
    found = words(b"abc" + np.array(values, "<u4").tobytes() + b"tail", 3, len(values))
    falls = np.flatnonzero(np.diff(np.array(values, np.int64)) < 0)
    assert found.tolist() == values and (np.asarray(found) == values).all()
    assert first_fall(found) == (int(falls[0]) if len(falls) else None)


@pytest.mark.parametrize(
    ("values", "fall"), [([1, 2, 2, 1, 0], 2), ([5], None), ([0, 0], None), ([2, 1], 0)]
)
def test_a_fall_is_found_with_and_without_numpy(values, fall, monkeypatch):
    found = memoryview(np.array(values, np.uint32))
    assert first_fall(found) == fall
    monkeypatch.delitem(sys.modules, "numpy")
    monkeypatch.setattr(counts, "np", None)
    assert first_fall(found) == fall
