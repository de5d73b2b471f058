"""Columns of text: floats as Python writes them, JSON escaped and read, natural types; the few odd values among many."""

import json
import math
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from flarecli.encodings import coerce, encode, lookup, plain, stored, typed
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
def test_json_that_is_no_text_is_found(values, wanted, failed):
    out, found = parse_json_text(text(values))
    assert (out.to_pylist(), found) == (wanted, failed)


def test_integers_are_read_as_python_reads_them():
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


def test_floats_are_read_as_python_reads_them():
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
def test_text_of_numbers_becomes_numbers(encoding, values, name, wanted):
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
def test_text_that_is_no_number_is_named(encoding, values, message):
    with pytest.raises(ValueFitError) as caught:
        plain(pa.array(values, lookup(encoding).arrow), lookup(encoding))
    assert str(caught.value) == message


def test_views_become_natural_too():
    assert plain(pa.array(['"a"', '"\\n"'], pa.string_view()), lookup("json_str"))[
        0
    ].to_pylist() == ["a", "\n"]


@pytest.mark.parametrize(
    ("encoding", "values", "message"),
    [
        ("str", [b"ok", None, b"\xff"], "row 2: str is not UTF-8"),
        ("int", [b"12345678", b"1234"], "row 1: 4 bytes do not fit int; expected 8"),
        ("str[]", [[b"ok"], [], [b"a", b"\xff"]], "row 2: str is not UTF-8"),
        ("float32[]", [[b"1234"], [b"123"]], "row 1: 3 bytes do not fit float32; expected 4"),
    ],
)
def test_stored_bytes_that_are_others_are_named(encoding, values, message):
    with pytest.raises(ValueFitError) as caught:
        typed(pa.array(values, lookup(encoding).raw), lookup(encoding))
    assert str(caught.value) == message


LARGE = [b"a" * 1000] * 64  # bytes enough to be looked at as a whole first


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


def test_a_character_cut_in_two_by_the_values_of_a_large_column_is_none():
    raw = pa.array([*LARGE, "ä".encode()[:1], "ä".encode()[1:]], pa.large_binary())
    assert [row for row, _ in coerce(raw, lookup("str"))[1]] == [64, 65]


def test_offsets_that_fall_are_refused_in_large_columns_of_ascii():
    ends = np.array([0, 40_000, 20_000, 50_000])
    text = pa.Array.from_buffers(
        pa.large_string(), 3, [None, pa.py_buffer(ends), pa.py_buffer(b"a" * 50_000)]
    )
    with pytest.raises(pa.ArrowInvalid):
        check_text(text)


@given(st.lists(st.lists(st.integers(-(2**31), 2**31 - 1)) | st.none()))
def test_lists_are_stored_and_typed_whole_or_in_part(values):
    kind = lookup("int32[]")
    array = pa.array(values, kind.arrow)
    raw = pa.array([None if one is None else encode(kind, one) for one in values], kind.raw)
    assert typed(raw, kind).equals(array)
    assert typed(raw[1:], kind).equals(array[1:])
    assert stored(array[1:], kind).equals(raw[1:])
