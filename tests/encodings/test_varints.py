"""Granular's `int`, and floats in MessagePack: widths by the original's rule, one by one and as columns; any width up to 16 is read."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.encodings import coerce, decode, encode, lookup, plain, stored, typed
from flarecli.errors import ValueFitError

KIND = lookup("varint")
INT64 = st.integers(-(2**63), 2**63 - 1)
EDGES = [
    sign * (1 << 8 * k >> half) + by
    for k in range(1, 9)
    for half in (0, 1)
    for by in (-1, 0, 1)
    for sign in (1, -1)
]
EDGES = [value for value in EDGES if -(2**63) <= value < 2**63]


def raw(*values):
    return pa.array(values, pa.large_binary())


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (0, "00"),
        (1, "01"),
        (127, "7f"),
        (128, "8000"),
        (255, "ff00"),
        (256, "0001"),
        (-1, "ff"),
        (-128, "80"),
        (-129, "7fff"),
        (2**56, "0000000000000001"),
    ],
)
def test_a_value_takes_as_few_bytes_as_it_and_its_sign_need(value, data):
    assert encode(KIND, value).hex() == data
    assert decode(KIND, bytes.fromhex(data)) == value


def test_where_the_original_can_write_a_value_the_bytes_are_its_own():
    for value in (*EDGES, *range(5000)):
        if value < 0:
            continue
        size = max(1, int(np.ceil(np.log2(1 + value) / 8)))
        if value < 1 << 8 * size - 1:
            assert encode(KIND, value) == value.to_bytes(size, "little", signed=True)
        else:
            assert len(encode(KIND, value)) == math.floor(value.bit_length() / 8) + 1


@given(st.lists(INT64 | st.sampled_from(EDGES)))
def test_columns_and_values_say_the_same(values):
    array = pa.array(values, pa.int64())
    out = stored(array, KIND)
    out.validate(full=True)
    assert out.to_pylist() == [encode(KIND, value) for value in values]
    assert typed(out, KIND).equals(array)
    assert typed(out[1:], KIND).equals(array[1:])
    assert stored(array[1:], KIND).equals(out[1:])


@given(st.lists(INT64), st.data())
def test_any_width_up_to_sixteen_is_read(values, data):
    wide = []
    for value in values:
        least = len(encode(KIND, value))
        wide.append(value.to_bytes(data.draw(st.integers(least, 16)), "little", signed=True))
    assert typed(raw(*wide), KIND).to_pylist() == values
    assert [decode(KIND, one) for one in wide] == values


def test_no_bytes_are_nought_and_a_null_stays():
    assert decode(KIND, b"") == 0
    assert typed(raw(b"", None, b"\x80"), KIND).to_pylist() == [0, None, -128]
    assert typed(raw(), KIND).to_pylist() == []
    assert typed(raw(b"", b""), KIND).to_pylist() == [0, 0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((2**63).to_bytes(9, "little"), "row 1: an integer does not fit int64"),
        (
            (-(2**63) - 1).to_bytes(16, "little", signed=True),
            "row 1: an integer does not fit int64",
        ),
        ((2**100).to_bytes(16, "little"), "row 1: an integer does not fit int64"),
        (bytes(17), "row 1: an integer of 17 bytes is longer than 16"),
        (bytes(10**6), "row 1: an integer of 1000000 bytes is longer than 16"),
    ],
)
def test_what_int64_cannot_hold_is_named(data, message):
    with pytest.raises(ValueFitError) as caught:
        typed(raw(b"\1", data, bytes(20)), KIND)
    assert str(caught.value) == message


def test_longer_ones_than_sixteen_bytes_are_refused_one_by_one_too():
    assert decode(KIND, (2**100).to_bytes(16, "little")) == 2**100
    with pytest.raises(ValueFitError, match=r"^not a valid varint value \(17 B\)$"):
        decode(KIND, bytes(17))
    for value in (2**63, -(2**63) - 1, "1", 1.5, None):
        with pytest.raises(ValueFitError, match="does not fit varint$"):
            encode(KIND, value)


def test_a_list_of_them_names_the_row_and_plain_is_int64():
    lists = pa.array([[b"\1"], [], [b"\2", bytes(17)]], pa.large_list(pa.large_binary()))
    with pytest.raises(ValueFitError, match=r"^row 2: an integer of 17 bytes is longer than 16$"):
        typed(lists, lookup("varint[]"))
    array = typed(lists[:2], lookup("varint[]"))
    assert stored(array, lookup("varint[]")).to_pylist() == [[b"\1"], []]
    assert plain(array, lookup("varint[]"))[1].name == "int[]"
    assert coerce(pa.array([2**63], pa.uint64()), KIND)[1][0][0] == 0


FLOATS = lookup("msgpack_float")


@given(st.lists(st.floats()))
def test_floats_of_messagepack_are_columns_of_floats(values):
    array = pa.array(values, pa.float64())
    out = stored(array, FLOATS)
    out.validate(full=True)
    assert (
        out.to_pylist()
        == [encode(FLOATS, value) for value in values]
        == [encode(lookup("msgpack"), value) for value in values]
    )
    assert (
        repr(typed(out, FLOATS).to_pylist())
        == repr(values)
        == repr([decode(FLOATS, data) for data in out.to_pylist()])
    )
    assert repr(typed(out[1:], FLOATS).to_pylist()) == repr(values[1:])


def test_any_number_of_messagepack_is_a_float_and_nothing_else_is():
    numbers = [encode(lookup("msgpack"), value) for value in (1, -1, 2**64 - 1, 0.5)] + [
        b"\xca\x3f\xc0\0\0",
        None,
    ]
    assert typed(raw(*numbers), FLOATS).to_pylist() == [1.0, -1.0, 2.0**64, 0.5, 1.5, None]
    for wrong, message in (
        (b"\xc3", "not a MessagePack number"),
        (b"\xc0", "not a MessagePack number"),
        (b"\xcb", "not exactly one MessagePack value"),
    ):
        with pytest.raises(ValueFitError) as caught:
            typed(raw(b"\1", wrong), FLOATS)
        assert str(caught.value) == f"row 1: {message}"
    with pytest.raises(ValueFitError, match=r"^not a valid msgpack_float value \(1 B\)$"):
        decode(FLOATS, b"\xc3")
    assert encode(FLOATS, 1) == encode(FLOATS, 1.0)
    with pytest.raises(ValueFitError, match="^str '1' does not fit msgpack_float$"):
        encode(FLOATS, "1")
