"""BytesColumnBuilder: each column has the added values, in separate memory."""

import os

import pyarrow as pa

from flarecli.write.fetch_links import BytesColumnBuilder


def column(builder, values):
    builder.add(values[:1])
    builder.add(values[1:])
    built = builder.finish()
    built.validate(full=True)
    return built


def test_a_column_has_the_values_that_were_added():
    builder = BytesColumnBuilder(100)
    for values in (
        [b"abc", b"", b"defg"],
        [],
        [b""],
        [os.urandom(100)],
        [b"x" * 60, b"y" * 41],
        [b"x" * 101],
        [b"x" * 99, b"yy", b"z", b""],
    ):
        assert column(builder, values).to_pylist() == values
        assert column(builder, [b"other"]).type == pa.large_binary()


def test_a_small_column_does_not_keep_the_whole_buffer_alive():
    builder = BytesColumnBuilder(1 << 20)
    assert column(builder, [b"small"]).get_total_buffer_size() < 100
    large = column(builder, [bytes(100_000)] * 2)
    assert large.get_total_buffer_size() < 201_000 and large.to_pylist() == [bytes(100_000)] * 2


def test_finished_columns_keep_their_values_while_others_are_built():
    builder = BytesColumnBuilder(1000)
    kept = [column(builder, [bytes([i]) * 300, bytes([i]) * 200]) for i in range(20)]
    part = column(builder, [b"first", b"second", b"third"]).slice(1, 1)
    for i in range(20):
        column(builder, [bytes([100 + i]) * 900])
    assert [values.to_pylist() for values in kept] == [
        [bytes([i]) * 300, bytes([i]) * 200] for i in range(20)
    ]
    assert part.to_pylist() == [b"second"]
