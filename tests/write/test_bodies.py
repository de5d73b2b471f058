"""Columns are made in memory that is used again, and never in memory that somebody still looks at."""

import os

import pyarrow as pa

from flarecli.write.bodies import Bodies


def column(bodies, values):
    for value in values:
        bodies.add(value)
    found = bodies.take()
    found.validate(full=True)
    return found


def address(found):
    return found.buffers()[2].address


def test_a_column_holds_what_was_added():
    bodies = Bodies(100)
    for values in ([b"abc", b"", b"defg"], [], [b""], [os.urandom(100)], [b"x" * 60, b"y" * 41], [b"x" * 101], [b"x" * 99, b"yy", b"z", b""]):
        assert column(bodies, values).to_pylist() == values
        assert column(bodies, [b"other"]).type == pa.large_binary()


def test_memory_that_nobody_looks_at_is_used_again():
    bodies = Bodies(1000)
    places = set()
    for _ in range(10):
        places.add(address(column(bodies, [b"a" * 500])))
    assert len(places) <= 2


def test_columns_that_are_kept_keep_their_bytes():
    bodies = Bodies(1000)
    kept = [column(bodies, [bytes([i]) * 300, bytes([i]) * 200]) for i in range(20)]
    part = column(bodies, [b"first", b"second", b"third"]).slice(1, 1)
    for i in range(20):
        column(bodies, [bytes([100 + i]) * 900])
    assert [one.to_pylist() for one in kept] == [[bytes([i]) * 300, bytes([i]) * 200] for i in range(20)]
    assert part.to_pylist() == [b"second"]
