"""Columns hold what was added, in memory that nothing else is written to."""

import os

import pyarrow as pa

from flarecli.write.bodies import Bodies


def column(bodies, values):
    bodies.add(values[:1])
    bodies.add(values[1:])
    found = bodies.take()
    found.validate(full=True)
    return found


def test_a_column_holds_what_was_added():
    bodies = Bodies(100)
    for values in (
        [b"abc", b"", b"defg"],
        [],
        [b""],
        [os.urandom(100)],
        [b"x" * 60, b"y" * 41],
        [b"x" * 101],
        [b"x" * 99, b"yy", b"z", b""],
    ):
        assert column(bodies, values).to_pylist() == values
        assert column(bodies, [b"other"]).type == pa.large_binary()


def test_who_keeps_a_small_column_keeps_no_large_memory():
    bodies = Bodies(1 << 20)
    assert column(bodies, [b"small"]).get_total_buffer_size() < 100
    large = column(bodies, [bytes(100_000)] * 2)
    assert large.get_total_buffer_size() < 201_000 and large.to_pylist() == [bytes(100_000)] * 2


def test_columns_that_are_kept_keep_their_bytes():
    bodies = Bodies(1000)
    kept = [column(bodies, [bytes([i]) * 300, bytes([i]) * 200]) for i in range(20)]
    part = column(bodies, [b"first", b"second", b"third"]).slice(1, 1)
    for i in range(20):
        column(bodies, [bytes([100 + i]) * 900])
    assert [one.to_pylist() for one in kept] == [
        [bytes([i]) * 300, bytes([i]) * 200] for i in range(20)
    ]
    assert part.to_pylist() == [b"second"]
