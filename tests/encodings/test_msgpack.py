"""MessagePack, arrays and trees: forms of the specification, round trips, damage and hostile
lengths.
"""

import json
import struct
import tracemalloc

import msgpack
import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.encodings import decode, encode, lookup, stored, typed
from flarecli.encodings.msgpack import pack, unpack
from flarecli.errors import ValueFitError

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | TEXT
    | st.binary(max_size=40)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=20)
        | st.dictionaries(TEXT | st.binary(max_size=3), inner, max_size=20)
    ),
    max_leaves=40,
)
FORMS = [  # written by hand from the specification
    ("c0", None),
    ("c2", False),
    ("c3", True),
    ("7f", 127),
    ("cc80", 128),
    ("ccff", 255),
    ("cd0100", 256),
    ("ce00010000", 65536),
    ("cf0000000100000000", 2**32),
    ("e0", -32),
    ("d0df", -33),
    ("d1ff7f", -129),
    ("d2ffff7fff", -32769),
    ("d3ffffffff7fffffff", -(2**31) - 1),
    ("cb3ff8000000000000", 1.5),
    ("a161", "a"),
    ("bf" + "61" * 31, "a" * 31),
    ("d920" + "61" * 32, "a" * 32),
    ("da0100" + "61" * 256, "a" * 256),
    ("c400", b""),
    ("c50100" + "00" * 256, bytes(256)),
    ("90", []),
    ("9f" + "00" * 15, [0] * 15),
    ("dc0010" + "00" * 16, [0] * 16),
    ("80", {}),
    ("82a16201a16102", {"b": 1, "a": 2}),
    (
        "de0010" + "".join(f"a1{0x61 + i:02x}00" for i in range(16)),
        {chr(0x61 + i): 0 for i in range(16)},
    ),
    ("d40500", msgpack.ExtType(5, b"\0")),
    ("c703feaabbcc", msgpack.ExtType._make((-2, b"\xaa\xbb\xcc"))),
    ("d6ff00000001", msgpack.Timestamp(1)),  # the specification reserves -1 for timestamps
]


@pytest.mark.parametrize(("form", "value"), FORMS)
def test_values_are_packed_in_the_shortest_form(form, value):
    assert pack(value).hex() == form
    assert unpack(bytes.fromhex(form)) == value
    assert type(unpack(bytes.fromhex(form))) is type(value)


@pytest.mark.parametrize(
    ("form", "value"),
    [
        ("ca3fc00000", 1.5),
        ("cd0001", 1),
        ("d30000000000000001", 1),
        ("d90161", "a"),
        ("dd00000001c0", [None]),
        ("df00000000", {}),
    ],
)
def test_longer_forms_are_unpacked(form, value):
    assert unpack(bytes.fromhex(form)) == value


@given(VALUES)
def test_packed_values_are_unpacked_unchanged(value):
    assert unpack(pack(value)) == value


@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_a_value_or_refused(data):
    for name in ("msgpack", "tree", "array"):
        try:
            value = decode(lookup(name), data)
        except ValueFitError as error:
            assert str(error)
        else:
            assert (
                name == "array"
                or decode(lookup(name), encode(lookup(name), value)) is not None
                or value is None
            )


@given(VALUES, st.data())
def test_truncated_values_and_extra_bytes_are_refused(value, data):
    whole = pack(value)
    cut = data.draw(st.integers(0, len(whole) - 1))
    for wrong in (whole[:cut], whole + b"\0"):
        with pytest.raises(ValueFitError, match="^expected exactly one MessagePack value$"):
            unpack(wrong)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (2**64, "18446744073709551616 exceeds 64 bits"),
        (-(2**63) - 1, "-9223372036854775809 exceeds 64 bits"),
        ({1: 2}, "map key 1 is neither text nor bytes"),
        ({"a": {1, 2}}, "MessagePack cannot store set {1, 2}"),
        (np.int8(1), "MessagePack cannot store int8 np.int8(1)"),
        ("\ud800", "MessagePack cannot store str '\\ud800'"),
    ],
)
def test_values_that_cannot_be_restored_are_refused(value, message):
    with pytest.raises(ValueFitError) as caught:
        pack(value)
    assert str(caught.value) == message


def test_the_depth_of_nesting_is_bounded():
    deep = 1
    for _ in range(400):
        deep = [deep]
    assert unpack(pack(deep)) == deep
    for _ in range(200):
        deep = [deep]
    with pytest.raises(ValueFitError, match="^MessagePack cannot store"):
        pack(deep)
    for data in (b"\x91" * 600 + b"\0", b"\x91" * 10**6, b"\x81\xa1a" * 10**5):
        with pytest.raises(ValueFitError, match="^expected exactly one MessagePack value$"):
            unpack(data)


@pytest.mark.parametrize(
    "data",
    [
        b"\xdd\xff\xff\xff\xff" * 1000,
        b"\xdf\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xdc\xff\xff" + b"\xdc\xff\xff" * 400,
    ],
)
def test_a_declared_length_of_four_thousand_million_allocates_no_memory(data):
    tracemalloc.start()
    with pytest.raises(ValueFitError):
        unpack(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20


ARRAYS = [
    np.arange(6, dtype="int16").reshape(2, 3),
    np.array(5.0),
    np.zeros((0, 3), "uint8"),
    np.array([True, False]),
    np.array([1 + 2j]),
    np.array(["ab", "é"]),
    np.array([b"x", b"yz"]),
    np.arange(4, dtype=">i4"),
    np.asfortranarray(np.arange(6.0).reshape(2, 3))[:, ::-1],
]


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_arrays_of_any_layout_are_unpacked_unchanged(array):
    for name, value in (("array", array), ("tree", array), ("tree", {"a": [array]})):
        out = decode(lookup(name), encode(lookup(name), value))
        out = out["a"][0] if isinstance(out, dict) else out
        assert (out.dtype, out.shape) == (array.dtype, array.shape)
        assert out.tobytes() == array.tobytes()
        assert not out.flags.writeable


def test_an_array_is_packed_as_dtype_shape_and_bytes():
    assert (
        encode(lookup("array"), ARRAYS[0]).hex() == "93a33c6932920203c40c000001000200030004000500"
    )
    assert (
        encode(lookup("tree"), [ARRAYS[0]]).hex()
        == "9194a15fa33c6932920203c40c000001000200030004000500"
    )


@pytest.mark.parametrize(
    "array",
    [
        np.array([None]),
        np.array(["2024"], "M8[D]"),
        np.array([1], "m8[s]"),
        np.zeros(2, "i4,f8"),
        np.zeros(1, "V0"),
    ],
    ids=str,
)
def test_arrays_that_cannot_be_restored_are_refused(array):
    for name, value in (("array", array), ("tree", [array])):
        with pytest.raises(ValueFitError, match="cannot be read back$"):
            encode(lookup(name), value)


def test_a_list_that_would_be_read_as_an_array_is_refused_in_a_tree():
    with pytest.raises(
        ValueFitError,
        match="^a list of four items that starts with '_' would be read as a numpy array$",
    ):
        encode(lookup("tree"), {"a": ["_", 1, 2, 3]})
    assert decode(lookup("msgpack"), encode(lookup("msgpack"), ["_", 1, 2, 3])) == ["_", 1, 2, 3]
    assert decode(lookup("tree"), encode(lookup("tree"), ["_", 1])) == ["_", 1]


@pytest.mark.parametrize(
    ("dtype", "shape", "data"),
    [
        ("|O", [1], bytes(8)),
        ("O", [1], bytes(8)),
        ("<M8[s]", [1], bytes(8)),
        ("i4,O", [1], bytes(12)),
        ("(1000000000,)i4", [1], b""),
        ("<i3", [1], bytes(3)),
        ("<i4", [2], bytes(4)),
        ("<i4", [2**62, 0], b""),
        ("<i4", [0, 2**62], bytes(4)),
        ("<i4", [2**40, 2**40], bytes(4)),
        ("<i4", [-1], bytes(4)),
        ("<i4", [True], bytes(4)),
        ("<i4", [1.0], bytes(4)),
        ("<i4", 1, bytes(4)),
        ("<i4", [1], "text"),
        ("|S0", [1], b""),
        ("<U999999999", [1], bytes(4)),
        (5, [1], bytes(4)),
        ("<i4", [1] * 65, bytes(4)),
        ("x" * 10**5, [1], bytes(4)),
    ],
)
def test_hostile_arrays_are_refused_before_allocation(dtype, shape, data):
    tracemalloc.start()
    for name, packed in (
        ("array", pack([dtype, shape, data])),
        ("tree", pack(["_", dtype, shape, data])),
    ):
        with pytest.raises(ValueFitError) as caught:
            decode(lookup(name), packed)
        assert len(str(caught.value)) < 200
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 << 20


@pytest.mark.parametrize(
    "data", [pack([]), pack({}), pack(["<i4", [1]]), pack(["<i4", [1], bytes(4), 1]), pack(1)]
)
def test_other_values_are_not_an_array(data):
    with pytest.raises(ValueFitError):
        decode(lookup("array"), data)


def test_keys_must_be_text_and_the_last_of_equal_keys_is_used():
    with pytest.raises(ValueFitError, match="^map key 1 is neither text nor bytes$"):
        unpack(b"\x81\x01\x02")
    assert unpack(b"\x82\xa1a\x01\xa1a\x02") == {"a": 2}
    with pytest.raises(ValueFitError):
        unpack(b"\xa1\xff")
    with pytest.raises(ValueFitError):
        unpack(b"\xc1")


def test_nothing_is_unpickled():
    data = pack(["|O", [1], struct.pack("<Q", id(json))])
    with pytest.raises(
        ValueFitError, match="^expected the dtype, the shape and the bytes of an array$"
    ):
        decode(lookup("array"), data)


@pytest.mark.parametrize("depth", [2, 100, 400])
def test_declared_lengths_of_nested_lists_allocate_no_memory(depth):
    """Each list declares as many items as there are bytes, which is possible for one list alone."""
    data = (b"\xdd" + (1 << 17).to_bytes(4, "big")) * depth + b"\0" * (1 << 17)
    tracemalloc.start()
    with pytest.raises(ValueFitError, match="^expected exactly one MessagePack value$"):
        unpack(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 4 << 20


# -- columns of floats

FLOATS = lookup("msgpack_float")


@given(st.lists(st.floats()))
def test_columns_of_floats_equal_single_floats(values):
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


def test_every_packed_number_is_a_float_and_other_values_are_refused():
    numbers = [encode(lookup("msgpack"), value) for value in (1, -1, 2**64 - 1, 0.5)] + [
        b"\xca\x3f\xc0\0\0",
        None,
    ]
    assert typed(pa.array(numbers, pa.large_binary()), FLOATS).to_pylist() == [
        1.0,
        -1.0,
        2.0**64,
        0.5,
        1.5,
        None,
    ]
    for wrong, message in (
        (b"\xc3", "not a MessagePack number"),
        (b"\xc0", "not a MessagePack number"),
        (b"\xcb", "expected exactly one MessagePack value"),
    ):
        with pytest.raises(ValueFitError) as caught:
            typed(pa.array([b"\1", wrong], pa.large_binary()), FLOATS)
        assert str(caught.value) == f"row 1: {message}"
    with pytest.raises(ValueFitError, match=r"^not a valid msgpack_float value \(1 B\)$"):
        decode(FLOATS, b"\xc3")
    assert encode(FLOATS, 1) == encode(FLOATS, 1.0)
    with pytest.raises(ValueFitError, match="^str '1' cannot be stored as msgpack_float$"):
        encode(FLOATS, "1")
