"""Runs of bytes as Arrow arrays, at the border of what the offset of a view reaches."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.formats import spans


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.booleans()), max_size=12), st.integers(1, 200))
def test_runs_are_cut_apart_where_a_view_would_not_reach(rows, limit):
    starts, lengths, end = [], [], 0
    for gap, length, is_there in rows:
        starts.append(end + gap if is_there else (starts[-1] if starts else 0))  # one that is not there lies, empty, where the one before begins
        lengths.append(length if is_there else 0)
        end = end + gap + length if is_there else end
    data = np.frombuffer(bytes(i % 251 for i in range(end)), np.uint8)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "VIEW_LIMIT", limit)
        real = spans.views
        patch.setattr(spans, "views", lambda some, *args: seen.append(len(some) if len(args[0]) else 0) or real(some, *args))
        out = spans.ragged(data, np.array(starts, np.int64), np.array(lengths, np.int64))
    out.validate(full=True)
    assert out.type == pa.large_binary()
    assert out.to_pylist() == [data[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True)]
    assert max(seen, default=0) < limit
