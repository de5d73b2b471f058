"""Columns of numbers and JSON text: compared with Python, natural types, and varints of
Granular.
"""

import json
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flarecli.encodings import coerce, decode, encode, lookup, plain, stored, typed
from flarecli.encodings.columns import check_text
from flarecli.encodings.number_text import (
    escape_json,
    float_text,
    floats,
    ints,
    parse_json_text,
)
from flarecli.errors import ValueFitError

FLOATS = (
    st.floats()
    | st.integers(0, 2**64 - 1).map(lambda bits: struct.unpack("<d", struct.pack("<Q", bits))[0])
    | st.integers(-(10**18), 10**18).map(float)
)
TEXT = st.text(st.characters(exclude_categories=["Cs"]))


def text(values):
    return pa.array(values, pa.large_string())


@given(st.lists(FLOATS | st.none()))
@example(
    [
        1e10,
        9999999999.0,
        1e-4,
        9.99e-5,
        1e15,
        1e16,
        1e22,
        0.1,
        -0.0,
        5e-324,
        math.nan,
        math.inf,
        -math.inf,
        123456789.125,
        None,
    ]
)
def test_floats_are_written_as_python_writes_them(values):
    out = float_text(pa.array(values, pa.float64()))
    assert out.to_pylist() == [None if value is None else repr(value) for value in values]
    again, failed = floats(out)
    assert failed == []
    assert repr(again.to_pylist()) == repr(values)


@given(st.lists(TEXT | st.none()))
@example(['"', "\\", "\n", "\x7f", "é", "\U0001f642", "", " ", None])
def test_text_is_escaped_as_json_dumps_does(values):
    out, failed = escape_json(text(values))
    assert failed == []
    assert out.to_pylist() == [None if value is None else json.dumps(value) for value in values]
    assert parse_json_text(out) == (text(values), [])


MIB = 1 << 20


@pytest.mark.parametrize("before", [0, 1, 2, 3])
def test_large_text_is_escaped_as_json_dumps_does(before):
    signs = "".join(map(chr, range(0x80))) + "é\ud7ff\ue000\uffff\U0001f642"
    large = "a" * (MIB - before) + signs * 3000
    values = ["", None, large, "é", large[::-1], None]
    out, failed = escape_json(text(["x", *values])[1:])
    assert failed == []
    out.validate(full=True)
    assert out.to_pylist() == [None if value is None else json.dumps(value) for value in values]


def test_text_above_the_limit_of_json_text_fails(monkeypatch):
    monkeypatch.setattr("flarecli.encodings.number_text.MAX_JSON_TEXT_BYTES", 3 * MIB)
    fits, exceeds = "a" * (3 * MIB - 2), "\x01" * (MIB // 2 + 1)
    out, failed = escape_json(text(["a", exceeds, fits, fits + "a", "b"]))
    assert failed == [1, 3]
    assert out.to_pylist() == ['"a"', None, f'"{fits}"', None, '"b"']


@pytest.mark.parametrize(
    ("values", "wanted", "failed"),
    [
        (
            ['"a"', "1", '"\\ud800"', '"a"b"', '"', "", None, ' "x" ', '"\n"'],
            ["a", None, None, None, None, None, None, "x", None],
            [1, 2, 3, 4, 5, 8],
        ),
        ([], [], []),
        ([None], [None], []),
    ],
)
def test_invalid_json_strings_are_reported_with_their_rows(values, wanted, failed):
    out, found = parse_json_text(text(values))
    assert (out.to_pylist(), found) == (wanted, failed)


def test_integers_are_parsed_as_python_parses_them():
    values = [
        "1",
        " 2",
        "x",
        str(2**70),
        str(2**63 - 1),
        str(-(2**63)),
        "1_0",
        None,
        "0x10",
        "+3",
        "1.0",
        "",
    ]
    out, failed = ints(text(values))
    assert out.to_pylist() == [1, 2, None, None, 2**63 - 1, -(2**63), 10, None, None, 3, None, None]
    assert failed == [2, 3, 8, 10, 11]
    out, failed = ints(text([str(2**64 - 1), "-1", "5"]), kind=pa.uint64())
    assert (out.to_pylist(), failed) == ([2**64 - 1, None, 5], [1])
    out, failed = ints(text(["300", "5"]), kind=pa.uint8())
    assert (out.to_pylist(), failed) == ([None, 5], [0])


def test_floats_are_parsed_as_python_parses_them():
    values = [
        "1",
        " 2.5",
        "x",
        "nan(1)",
        "1e400",
        "-Infinity",
        "1_0.5",
        None,
        "+3",
        "infinity",
        ".5",
        "0x10",
        "1e5",
    ]
    out, failed = floats(text(values))
    assert out.to_pylist() == [
        1.0,
        2.5,
        None,
        None,
        math.inf,
        -math.inf,
        10.5,
        None,
        3.0,
        math.inf,
        0.5,
        None,
        1e5,
    ]
    assert failed == [2, 3, 11]


@pytest.mark.parametrize(
    ("encoding", "values", "name", "wanted"),
    [
        ("str_int", ["1", "-5"], "int", [1, -5]),
        ("json_int", ["1", "true"], "int", [1, 1]),
        ("str_float", ["1.5", "nan"], "float64", [1.5, math.nan]),
        (
            "json_float",
            ["1.5", "NaN", "-Infinity", "7"],
            "float64",
            [1.5, math.nan, -math.inf, 7.0],
        ),
        ("json_str", ['"a"', '"\\u00e9"', None], "str", ["a", "é", None]),
        ("json_json", ['"[1]"'], "json", ["[1]"]),
        ("json_int[]", [["1", "2"], []], "int[]", [[1, 2], []]),
        ("str", ["1"], "str", ["1"]),
        ("str_decimal", ["1.10"], "str_decimal", ["1.10"]),
        ("jpeg", [b"x"], "jpeg", [b"x"]),
        ("str[]", [["a"]], "str[]", [["a"]]),
    ],
)
def test_text_of_numbers_is_converted_to_numbers(encoding, values, name, wanted):
    array = pa.array(values, lookup(encoding).arrow)
    out, kind = plain(array, lookup(encoding))
    assert (kind, out.type) == (lookup(name), lookup(name).arrow)
    assert repr(out.to_pylist()) == repr(wanted)
    assert name != encoding or out is array
    assert plain(array[:0], lookup(encoding))[0].type == lookup(name).arrow


@pytest.mark.parametrize(
    ("encoding", "values", "message"),
    [
        (
            "str_int",
            ["1", str(2**63)],
            "row 1: a value of str_int is not a valid int, or is too large",
        ),
        (
            "json_int",
            ["1", '"2"'],
            "row 1: a value of json_int is not a valid int, or is too large",
        ),
        ("json_int", ["1.5"], "row 0: a value of json_int is not a valid int, or is too large"),
        (
            "json_float",
            ["null"],
            "row 0: a value of json_float is not a valid float64, or is too large",
        ),
        (
            "json_str",
            ['"a"', "[]"],
            "row 1: a value of json_str is not a valid str, or is too large",
        ),
        (
            "json_int[]",
            [["1"], ["2", "x"]],
            "row 1: a value of json_int is not a valid int, or is too large",
        ),
    ],
)
def test_text_that_is_not_a_number_is_reported_with_its_row(encoding, values, message):
    with pytest.raises(ValueFitError) as caught:
        plain(pa.array(values, lookup(encoding).arrow), lookup(encoding))
    assert str(caught.value) == message


def test_views_are_converted_to_natural_types():
    assert plain(pa.array(['"a"', '"\\n"'], pa.string_view()), lookup("json_str"))[
        0
    ].to_pylist() == ["a", "\n"]


@pytest.mark.parametrize(
    ("encoding", "values", "message"),
    [
        ("str", [b"ok", None, b"\xff"], "row 2: str is not UTF-8"),
        ("int", [b"12345678", b"1234"], "row 1: 4 bytes cannot be stored as int; expected 8"),
        ("str[]", [[b"ok"], [], [b"a", b"\xff"]], "row 2: str is not UTF-8"),
        (
            "float32[]",
            [[b"1234"], [b"123"]],
            "row 1: 3 bytes cannot be stored as float32; expected 4",
        ),
    ],
)
def test_invalid_stored_bytes_are_reported_with_their_row(encoding, values, message):
    with pytest.raises(ValueFitError) as caught:
        typed(pa.array(values, lookup(encoding).raw), lookup(encoding))
    assert str(caught.value) == message


LARGE = [b"a" * 1000] * 64  # enough bytes for the check of whole columns


@pytest.mark.parametrize(
    ("end", "is_text"),
    [
        (b"z", True),
        ("ä€😀".encode(), True),
        (b"\xff", False),
        ("ä".encode()[:1], False),
        ("ä".encode()[1:], False),
        (b"\xed\xa0\x80", False),
    ],
)
@pytest.mark.parametrize("at", [0, 1, 63])
def test_large_columns_of_text_are_checked_to_their_last_byte(end, is_text, at):
    raw = pa.array([*LARGE[:at], LARGE[at] + end, *LARGE[at + 1 :]], pa.large_binary())
    if is_text:
        assert typed(raw, lookup("str")).view(pa.large_binary()).equals(raw)
        return
    with pytest.raises(ValueFitError, match=rf"^row {at}: str is not UTF-8$"):
        typed(raw, lookup("str"))
    assert coerce(raw.view(pa.large_string()), lookup("str"))[1] == [(at, "is not UTF-8")]
    assert typed(raw[at + 1 :], lookup("str")).equals(raw[at + 1 :].view(pa.large_string()))


def test_a_character_split_between_two_values_is_invalid():
    raw = pa.array([*LARGE, "ä".encode()[:1], "ä".encode()[1:]], pa.large_binary())
    assert [row for row, _ in coerce(raw, lookup("str"))[1]] == [64, 65]


def test_decreasing_offsets_are_refused_in_large_ascii_columns():
    ends = np.array([0, 40_000, 20_000, 50_000])
    text = pa.Array.from_buffers(
        pa.large_string(), 3, [None, pa.py_buffer(ends), pa.py_buffer(b"a" * 50_000)]
    )
    with pytest.raises(pa.ArrowInvalid):
        check_text(text)


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1)) | st.none()))
def test_slices_of_lists_are_stored_and_typed(values):
    kind = lookup("int32[]")
    array = pa.array(values, kind.arrow)
    raw = pa.array([None if one is None else encode(kind, one) for one in values], kind.raw)
    assert typed(raw, kind).equals(array)
    assert typed(raw[1:], kind).equals(array[1:])
    assert stored(array[1:], kind).equals(raw[1:])


# -- varints

VARINT = lookup("varint")
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
def test_a_varint_has_the_fewest_bytes_for_value_and_sign(value, data):
    assert encode(VARINT, value).hex() == data
    assert decode(VARINT, bytes.fromhex(data)) == value


def test_varints_equal_those_of_the_original():
    for value in (*EDGES, *range(5000)):
        if value < 0:
            continue
        size = max(1, int(np.ceil(np.log2(1 + value) / 8)))
        if value < 1 << 8 * size - 1:
            assert encode(VARINT, value) == value.to_bytes(size, "little", signed=True)
        else:
            assert len(encode(VARINT, value)) == math.floor(value.bit_length() / 8) + 1


@given(st.lists(INT64 | st.sampled_from(EDGES)))
def test_columns_of_varints_equal_single_varints(values):
    array = pa.array(values, pa.int64())
    out = stored(array, VARINT)
    out.validate(full=True)
    assert out.to_pylist() == [encode(VARINT, value) for value in values]
    assert typed(out, VARINT).equals(array)
    assert typed(out[1:], VARINT).equals(array[1:])
    assert stored(array[1:], VARINT).equals(out[1:])


@given(st.lists(INT64), st.data())
def test_varints_of_up_to_16_bytes_are_read(values, data):
    wide = []
    for value in values:
        least = len(encode(VARINT, value))
        wide.append(value.to_bytes(data.draw(st.integers(least, 16)), "little", signed=True))
    assert typed(raw(*wide), VARINT).to_pylist() == values
    assert [decode(VARINT, one) for one in wide] == values


def test_an_empty_varint_is_zero_and_nulls_are_kept():
    assert decode(VARINT, b"") == 0
    assert typed(raw(b"", None, b"\x80"), VARINT).to_pylist() == [0, None, -128]
    assert typed(raw(), VARINT).to_pylist() == []
    assert typed(raw(b"", b""), VARINT).to_pylist() == [0, 0]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((2**63).to_bytes(9, "little"), "row 1: an integer is out of range for int64"),
        (
            (-(2**63) - 1).to_bytes(16, "little", signed=True),
            "row 1: an integer is out of range for int64",
        ),
        ((2**100).to_bytes(16, "little"), "row 1: an integer is out of range for int64"),
        (bytes(17), "row 1: an integer of 17 bytes is longer than 16"),
        (bytes(10**6), "row 1: an integer of 1000000 bytes is longer than 16"),
    ],
)
def test_varints_outside_int64_are_reported_with_their_row(data, message):
    with pytest.raises(ValueFitError) as caught:
        typed(raw(b"\1", data, bytes(20)), VARINT)
    assert str(caught.value) == message


def test_single_varints_of_more_than_16_bytes_are_refused():
    assert decode(VARINT, (2**100).to_bytes(16, "little")) == 2**100
    with pytest.raises(ValueFitError, match=r"^not a valid varint value \(17 B\)$"):
        decode(VARINT, bytes(17))
    for value in (2**63, -(2**63) - 1, "1", 1.5, None):
        with pytest.raises(ValueFitError, match="cannot be stored as varint$"):
            encode(VARINT, value)


def test_lists_of_varints_report_the_row_and_are_int64_as_plain():
    lists = pa.array([[b"\1"], [], [b"\2", bytes(17)]], pa.large_list(pa.large_binary()))
    with pytest.raises(ValueFitError, match=r"^row 2: an integer of 17 bytes is longer than 16$"):
        typed(lists, lookup("varint[]"))
    array = typed(lists[:2], lookup("varint[]"))
    assert stored(array, lookup("varint[]")).to_pylist() == [[b"\1"], []]
    assert plain(array, lookup("varint[]"))[1].name == "int[]"
    assert coerce(pa.array([2**63], pa.uint64()), VARINT)[1][0][0] == 0
