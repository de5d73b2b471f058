"""Columns converted between encodings and from every Arrow type, and values that do not fit."""

import datetime
import io
import json
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flarecli.encodings import coerce, decode, encode, lookup, stored, typed
from flarecli.errors import ValueFitError
from flarecli.formats import find, names
from tests.properties import examples

ALL = names(writable=True)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.sampled_from(
    ['"', "\\", "\x7f", "é\U0001f642", "\n"]
)
LEAVES = st.none() | st.booleans() | INT64 | st.floats() | TEXT
DOCUMENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
NOT_ARRAYS = DOCUMENTS.filter(lambda value: '["_",' not in json.dumps(value))


def numbers(dtype):
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return st.floats(width=kind.itemsize * 8)
    return st.integers(int(np.iinfo(kind).min), int(np.iinfo(kind).max))


def file_of(kind, mode="RGB"):
    out = io.BytesIO()
    Image.frombytes(mode, (2, 3), bytes(range(2 * 3 * len(mode)))).save(out, kind)
    return out.getvalue()


PICTURES = st.sampled_from([file_of("JPEG"), file_of("JPEG", "L")])
PNGS = st.sampled_from([file_of("PNG"), file_of("PNG", "RGBA")])
ARRAYS = st.lists(st.integers(-9, 9), min_size=1, max_size=6).map(
    lambda value: np.array(value, "int16")
)
DECIMALS = st.decimals(allow_nan=False, places=3, min_value=-(10**6), max_value=10**6)
VALUES = {
    **{
        name: numbers(name)
        for name in (
            "uint8",
            "uint16",
            "uint32",
            "uint64",
            "int8",
            "int16",
            "int32",
            "int64",
            "float16",
            "float32",
            "float64",
        )
    },
    "int": INT64,
    "varint": INT64,
    "msgpack_float": st.floats(),
    "str_int": INT64,
    "json_int": INT64,
    "str_float": st.floats(),
    "json_float": st.floats(),
    "str_decimal": DECIMALS,
    "str": TEXT,
    "json_str": TEXT,
    "bytes": st.binary(max_size=9),
    "mp4": st.binary(max_size=9),
    "webm": st.binary(max_size=9),
    "pkl": st.binary(max_size=9),
    "json": DOCUMENTS,
    "json_json": DOCUMENTS,
    "msgpack": DOCUMENTS,
    "tree": NOT_ARRAYS,
    "ndarray": ARRAYS,
    "ndarray:int16": ARRAYS,
    "ndarray:int16:2,1": st.just(np.array([[1], [-2]], "int16")),
    "array": ARRAYS,
    "jpeg": PICTURES,
    "png": PNGS,
    "pil": st.just(Image.frombytes("LA", (1, 2), b"abcd")),
    "jpeg_array": st.lists(PICTURES, max_size=2),
    "jpegarray": st.lists(PICTURES, max_size=2),
    "list[jpeg]": st.lists(PICTURES, max_size=2),
    "list[png]": st.lists(PNGS, max_size=2),
    "list[pil]": st.just([Image.frombytes("L", (1, 2), b"ab")]),
}
FILES = {
    f"{name}[]" for name in VALUES if find("ffrecord").store_as(f"{name}[]") == "msgpack"
}  # msgpack keeps their bytes
VALUES |= {f"{name}[]": st.lists(values, max_size=3) for name, values in VALUES.items()}


def column(encoding, values):
    kind = lookup(encoding)
    return typed(pa.array([encode(kind, value) for value in values], kind.raw), kind)


def shown(value):
    """Return a value in a form that does not depend on its encoding."""
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [shown(one) for one in value]
    if isinstance(value, dict):
        return {key: shown(one) for key, one in value.items()}
    if isinstance(value, float) and math.isnan(value):
        return "NaN"
    return value


def values_of(array, encoding):
    kind = lookup(encoding)
    if kind.name.startswith("pkl"):
        return array.to_pylist()
    return [shown(decode(kind, data)) for data in stored(array, kind).to_pylist()]


@pytest.mark.parametrize("encoding", VALUES)
@settings(max_examples=examples(10), deadline=None)
@given(data=st.data())
def test_substitutes_of_every_format_keep_the_values(encoding, data):
    values = data.draw(st.lists(VALUES[encoding], max_size=4))
    array = column(encoding, values)
    wanted = values_of(array, encoding)
    for form in ALL:
        instead = find(form).store_as(encoding)
        if instead is None:
            continue
        out, failures = coerce(array, lookup(instead), lookup(encoding))
        assert failures == [], (form, instead)
        out.validate(full=True)
        assert out.type == lookup(instead).arrow
        if (
            not (encoding in FILES and instead == "msgpack")
            and instead not in ("str", "json_str", "bytes")
            and "str_decimal" not in encoding
        ):
            assert values_of(out, instead) == wanted
        back, failures = coerce(out, lookup(encoding), lookup(instead))
        assert failures == [], (form, instead)
        assert values_of(back, encoding) == wanted, (form, instead)


@pytest.mark.parametrize(
    ("source", "encoding"),
    [
        *(
            (name, text)
            for name in ("int", "uint64", "int8", "varint")
            for text in ("str_int", "json_int", "json")
        ),
        *(
            (name, text)
            for name in ("float64", "float32", "float16")
            for text in ("str_float", "json_float", "json", "msgpack", "msgpack_float")
        ),
        ("str", "json_str"),
        ("json_str", "str"),
        ("str_int", "json_int"),
        ("json_int", "str_int"),
        ("str_float", "json_float"),
        ("json_float", "str_float"),
        ("str_int", "int"),
        ("str_float", "float64"),
        ("int", "varint"),
        ("array", "ndarray"),
        ("ndarray", "array"),
        ("ndarray:int16", "ndarray"),
        ("json", "msgpack"),
        ("msgpack", "json_json"),
        ("json_json", "json"),
        ("str[]", "json"),
        ("float64[]", "msgpack"),
        ("json[]", "json"),
        ("int[]", "varint[]"),
        ("bytes[]", "msgpack"),
        ("list[jpeg]", "jpeg_array"),
        ("jpeg[]", "list[jpeg]"),
        ("jpegarray", "jpeg[]"),
        ("json", "int[]"),
    ],
)
@settings(max_examples=examples(15), deadline=None)
@given(data=st.data())
def test_converting_a_column_equals_encoding_each_value(source, encoding, data):
    values = data.draw(
        st.lists(VALUES[source] if encoding != "int[]" else VALUES[encoding], max_size=6)
    )
    out, failures = coerce(column(source, values), lookup(encoding), lookup(source))
    assert failures == []
    expected = [decode(lookup(source), encode(lookup(source), value)) for value in values]
    if lookup(source).name in ("list[jpeg]", "jpeg[]", "jpegarray"):
        expected = values  # image files are copied, not decoded and saved again
    expected = [
        json.dumps(one) if encoding == "json_str" and not isinstance(one, str) else one
        for one in expected
    ]
    assert stored(out, lookup(encoding)).to_pylist() == [
        encode(lookup(encoding), one) for one in expected
    ]


@pytest.mark.parametrize(
    ("source", "encoding"),
    [
        ("jpeg", "bytes"),
        ("bytes", "jpeg"),
        ("int", "int64"),
        ("jpeg_array", "jpegarray"),
        ("pkl", "bytes"),
        ("msgpack", "bytes"),
        ("ndarray", "ndarray:"),
    ],
)
def test_bytes_that_are_valid_in_both_encodings_are_copied_unchecked(source, encoding):
    raw = [b"12345678", b"87654321"]
    out, failures = coerce(
        typed(pa.array(raw, pa.large_binary()), lookup(source)), lookup(encoding), lookup(source)
    )
    assert failures == []
    assert stored(out, lookup(encoding)).to_pylist() == raw


@pytest.mark.parametrize("source", ["json", "str_int", "str_float", "str_decimal"])
def test_text_encodings_are_copied_to_str_unchanged(source):
    texts = pa.array(["1", " 1.50", "not even"], pa.large_string())
    assert coerce(texts, lookup("str"), lookup(source)) == (texts, [])


def test_text_of_unknown_encoding_may_be_json_and_str_is_not():
    text = pa.array(["[1]", "é"], pa.large_string())
    assert coerce(text, lookup("json"), lookup("str"))[0].to_pylist() == ['"[1]"', '"\\u00e9"']
    assert coerce(text, lookup("json")) == (
        pa.array(["[1]", None], pa.large_string()),
        [(1, "'é' cannot be stored as json")],
    )


@pytest.mark.parametrize(
    ("values", "source", "encoding", "failures"),
    [
        (
            [1, 300, -1],
            "int",
            "uint8",
            [
                (1, "300 cannot be stored as uint8 (0 to 255)"),
                (2, "-1 cannot be stored as uint8 (0 to 255)"),
            ],
        ),
        ([1.0, 1e300], "float64", "float32", [(1, "1e+300 cannot be stored as float32")]),
        (
            [1.0, 1e6, math.inf],
            "float32",
            "float16",
            [(1, "1000000.0 cannot be stored as float16")],
        ),
        (
            [1.5, math.nan],
            "float64",
            "int",
            [
                (i, f"{v} cannot be stored as int (-9223372036854775808 to 9223372036854775807)")
                for i, v in ((0, 1.5), (1, "nan"))
            ],
        ),
        (
            [10**30, 5],
            "str_int",
            "int",
            [
                (
                    0,
                    f"'{10**30}' cannot be stored as int (-9223372036854775808 to 9223372036854775807)",
                )
            ],
        ),
        (
            [2**63],
            "uint64",
            "varint",
            [
                (
                    0,
                    "9223372036854775808 cannot be stored as varint (-9223372036854775808 to 9223372036854775807)",
                )
            ],
        ),
        (
            [[1], {"a": 1}],
            "json",
            "int",
            [(0, "[1] cannot be stored as int"), (1, "{'a': 1} cannot be stored as int")],
        ),
        ([{"a": b"x"}, 1], "msgpack", "json", [(0, "{'a': b'x'} cannot be stored as json")]),
        ([[1, 2], [3, 500]], "int[]", "uint8[]", [(1, "500 cannot be stored as uint8 (0 to 255)")]),
        ([[b"x"]], "bytes[]", "json", [(0, "[b'x'] cannot be stored as json")]),
        ([b"x"], "pkl", "json", [(0, "is a pickle; pickles are not decoded")]),
        ([b"not packed"], "array", "ndarray", [(0, "is not array")]),
        ([b"text"], "str", "jpeg", []),
        ([7], "int", "bytes", [(0, "7 cannot be stored as bytes")]),
        (["a"], "str", "float64", [(0, "'a' cannot be stored as float64")]),
        ([["_", 1, 2, 3]], "json", "tree", [(0, "['_', 1, 2, 3] cannot be stored as tree")]),
        ([np.array([1.5])], "ndarray", "ndarray:int8", [(0, "cannot be stored as ndarray:int8")]),
        ([b"\x00" * 17], "varint", "int", None),
    ],
)
def test_values_that_do_not_fit_have_row_and_reason(values, source, encoding, failures):
    if failures is None:
        with pytest.raises(ValueError, match=r"^not a valid varint value \(17 B\)$"):
            column(source, values)
        return
    out, found = coerce(column(source, values), lookup(encoding), lookup(source))
    assert found == failures
    assert [row for row, value in enumerate(out.to_pylist()) if value is None] == [
        row for row, _ in failures
    ]


@pytest.mark.parametrize(
    "encoding",
    ["str", "int", "float32", "jpeg", "str_int", "json_str", "str[]", "array", "list[jpeg]"],
)
def test_a_null_fails_in_encodings_without_null(encoding):
    for array in (
        pa.nulls(2),
        pa.nulls(2, pa.string()),
        pa.nulls(2, pa.list_(pa.string())),
        pa.nulls(2, pa.struct([])),
    ):
        out, failures = coerce(array, lookup(encoding))
        assert failures == [(0, "is null"), (1, "is null")]
        assert (out.null_count, out.type) == (2, lookup(encoding).arrow)


@pytest.mark.parametrize("encoding", ["json", "json_json", "msgpack", "tree"])
@pytest.mark.parametrize(
    "array",
    [
        pa.array([None, 1.5]),
        pa.array([None, ["a"]]),
        pa.array([{"a": 1}, None]),
        pa.array([1, None]),
    ],
)
def test_json_and_messagepack_store_null(array, encoding):
    out, failures = coerce(array, lookup(encoding))
    assert failures == []
    assert values_of(out, encoding) == array.to_pylist()


def test_a_null_item_fails_in_lists_and_is_stored_in_json():
    array = pa.array([["a", None], [], None, ["b"]], pa.list_(pa.string()))
    out, failures = coerce(array, lookup("str[]"))
    assert failures == [(0, "contains a null"), (2, "is null")]
    assert out.to_pylist() == [None, [], None, ["b"]]
    assert coerce(array[:2], lookup("json"))[0].to_pylist() == ['["a", null]', "[]"]


@pytest.mark.parametrize(
    "kind",
    [
        pa.list_(pa.int32()),
        pa.large_list(pa.int32()),
        pa.list_(pa.int32(), 2),
        pa.list_view(pa.int32()),
    ],
)
def test_every_arrow_list_type_is_converted(kind):
    array = pa.array([[1, 2], None, [3, 4]], kind)
    out, failures = coerce(array[1:], lookup("int[]"))
    assert (out.to_pylist(), failures) == ([None, [3, 4]], [(0, "is null")])
    assert values_of(coerce(array[:1], lookup("ndarray"))[0], "ndarray") == [[1, 2]]
    assert coerce(array[2:], lookup("json"))[0].to_pylist() == ["[3, 4]"]


def test_lists_of_numbers_keep_their_dtype_as_arrays():
    array = pa.array([[1.5, 2.0], [3.0]], pa.list_(pa.float32()))
    for encoding in ("ndarray", "array"):
        out, _ = coerce(array, lookup(encoding))
        assert [decode(lookup(encoding), data).dtype for data in out.to_pylist()] == [
            np.float32,
            np.float32,
        ]


@pytest.mark.parametrize("values", [[[1, 2, 3]], [[1, 2, 3], None]])
def test_lists_of_numbers_are_cast_to_the_dtype_of_the_encoding(values):
    out, failures = coerce(pa.array(values), lookup("ndarray:float32:3"))
    assert out[0].as_py() == np.array([1, 2, 3], "<f4").tobytes()
    assert failures == [(1, "is null")] * (len(values) - 1)
    assert coerce(pa.array([[1, 300]]), lookup("ndarray:uint8"))[1] == [
        (0, "[1, 300] cannot be stored as ndarray:uint8")
    ]


def test_a_null_list_with_items_is_one_failure():
    array = pa.ListArray.from_arrays(
        [0, 2, 4], pa.array([1, None, 3, 4]), mask=pa.array([True, False])
    )
    out, failures = coerce(array, lookup("int[]"))
    assert (out.to_pylist(), failures) == ([None, [3, 4]], [(0, "is null")])


@pytest.mark.parametrize("kind", [pa.int64(), pa.uint64(), pa.int8(), pa.bool_()])
@pytest.mark.parametrize("encoding", ["float16", "float32", "float64"])
def test_integers_become_the_same_floats_in_columns_and_single_values(kind, encoding):
    values = [
        one
        for one in (0, 1, -128, 65504, 65520, 100_000, 2**53 + 1, 2**63 - 1, 2**64 - 1)
        if _can_store(kind, one)
    ]
    out, failures = coerce(pa.array(values, kind), lookup(encoding))
    singles = []
    for value in values:
        try:
            singles.append(decode(lookup(encoding), encode(lookup(encoding), value)))
        except ValueFitError:
            singles.append(None)
    assert out.to_pylist() == singles
    assert [row for row, _ in failures] == [
        row for row, value in enumerate(singles) if value is None
    ]


def _can_store(kind, value):
    try:
        return pa.array([value], kind)[0].as_py() == value
    except (pa.ArrowInvalid, OverflowError):
        return False


def test_tensors_are_converted_to_arrays():
    numbers = np.arange(12, dtype="float32").reshape(2, 2, 3)
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(numbers)
    for encoding in ("ndarray:float32:2,3", "ndarray", "array"):
        assert values_of(coerce(array, lookup(encoding))[0], encoding) == numbers.tolist()
    assert values_of(coerce(array[1:], lookup("json"))[0], "json") == numbers[1:].tolist()
    assert coerce(array, lookup("int"))[1][0][0] == 0
    holed = pa.ExtensionArray.from_storage(
        array.type, pa.array([list(range(6)), None], array.type.storage_type)
    )
    out, failures = coerce(holed, lookup("ndarray"))
    assert (out.null_count, failures) == (1, [(1, "is null")])


def test_extension_types_are_converted_as_their_storage():
    assert coerce(pa.array(["[1]"], pa.json_()), lookup("json")) == (
        pa.array(["[1]"], pa.large_string()),
        [],
    )


def test_dates_and_decimals_are_text_in_json_and_refused_in_messagepack():
    day = datetime.date(2024, 2, 29)
    array = pa.array([{"day": day, "price": Decimal("1.10")}])
    assert coerce(array, lookup("json"))[0].to_pylist() == [
        '{"day": "2024-02-29", "price": "1.10"}'
    ]
    assert coerce(pa.array([{"day": day}]), lookup("msgpack"))[1] == [
        (0, "{'day': datetime.date(2024, 2, 29)} cannot be stored as msgpack")
    ]


def test_views_are_converted_like_text_and_bytes():
    text = pa.array(['"a"', '"é\\n"'], pa.string_view())
    assert coerce(text, lookup("str"), lookup("json_str"))[0].to_pylist() == ["a", "é\n"]
    assert coerce(pa.array([b"a"], pa.binary_view()), lookup("jpeg"), lookup("bytes"))[
        0
    ].to_pylist() == [b"a"]


@settings(deadline=None)
@given(
    st.lists(st.binary(max_size=20), max_size=5),
    st.sampled_from(sorted(VALUES)),
    st.sampled_from(sorted(VALUES)),
)
def test_arbitrary_stored_bytes_are_converted_or_fail_with_a_reason(raw, source, encoding):
    kind = lookup(source)
    try:
        array = typed(pa.array([[data] for data in raw] if kind.item else raw, kind.raw), kind)
    except ValueError:
        return
    out, failures = coerce(array, lookup(encoding), kind)
    assert out.type == lookup(encoding).arrow
    assert out.null_count == len(failures)
    assert all(isinstance(reason, str) and reason for _, reason in failures)


MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5)
COLUMNS = [  # a column of every Arrow type
    *(
        pa.array([1, None], kind)
        for kind in (
            pa.int8(),
            pa.uint64(),
            pa.float16(),
            pa.float64(),
            pa.duration("s"),
            pa.time32("s"),
        )
    ),
    pa.array([True, None]),
    pa.array(["1", None], pa.string_view()),
    pa.array([b"x"], pa.binary(1)),
    *(
        pa.array([Decimal("1.5"), None], kind)
        for kind in (pa.decimal128(5, 2), pa.decimal256(60, 2))
    ),
    *(
        pa.array([MOMENT, None], kind)
        for kind in (pa.timestamp("us"), pa.timestamp("ns", "UTC"), pa.date32(), pa.date64())
    ),
    pa.array([(1, 2, 3), None], pa.month_day_nano_interval()),
    pa.array([[["a"], None], None]),
    pa.array([[MOMENT], None]),
    pa.array([{"a": 1}, None]),
    pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int8())),
    pa.array(["a", None]).dictionary_encode(),
    pa.array([["a"]], pa.list_(pa.dictionary(pa.int8(), pa.string()))),
    pa.nulls(2),
    pa.UnionArray.from_dense(
        pa.array([0, 1], pa.int8()), pa.array([0, 0], pa.int32()), [pa.array([1]), pa.array(["x"])]
    ),
    pa.RunEndEncodedArray.from_arrays([2, 3], [1, 2]),
    pa.array(["a"])[:0],
]


@pytest.mark.parametrize("array", COLUMNS, ids=lambda array: str(array.type)[:40])
def test_every_arrow_type_is_converted_or_fails_with_a_reason_for_each_value(array):
    for encoding in VALUES:
        out, failures = coerce(array, lookup(encoding))
        out.validate(full=True)
        assert (out.type, len(out)) == (lookup(encoding).arrow, len(array))
        assert [row for row, valid in enumerate(out.is_valid().to_pylist()) if not valid] == [
            row for row, _ in failures
        ]


@settings(max_examples=examples(200))
@given(st.lists(st.none() | st.text(max_size=5), max_size=30), st.data())
def test_slices_of_text_columns_are_converted_completely(values, data):
    start = data.draw(st.integers(0, len(values)))
    kept = values[start : start + data.draw(st.integers(0, len(values)))]
    for kind in (pa.string(), pa.large_string(), pa.string_view()):
        out, failures = coerce(pa.array(values, kind)[start : start + len(kept)], lookup("str"))
        out.validate(full=True)
        assert out.equals(pa.array(kept, pa.large_string()))
        assert [row for row, _ in failures] == [
            row for row, value in enumerate(kept) if value is None
        ]


DAY = datetime.date(2024, 2, 29)


TIME = datetime.datetime(2024, 2, 29, 1, 2, 3)


@pytest.mark.parametrize(
    ("array", "name", "values"),
    [
        (pa.array([1, 2], pa.int32()), "int", [1, 2]),
        (pa.array([1.0, 2.0]), "int", [1, 2]),
        (pa.array([True, False]), "uint8", [1, 0]),
        (pa.array(["7", "-8"]), "int16", [7, -8]),
        (pa.array(["1.5", "nan"]), "float64", [1.5, float("nan")]),
        (pa.array([1, 2]), "float32", [1.0, 2.0]),
        (pa.array(["a", "é"], pa.large_string()), "str", ["a", "é"]),
        (pa.array([b"a"], pa.binary()), "str", ["a"]),
        (pa.array(["a", "b", "a"]).dictionary_encode(), "str", ["a", "b", "a"]),
        (pa.array([1.0, 0.1, 1e16]), "str", ["1.0", "0.1", "1e+16"]),
        (pa.array([12]), "str", ["12"]),
        (pa.array([DAY]), "str", ["2024-02-29"]),
        (pa.array([TIME], pa.timestamp("s")), "str", ["2024-02-29 01:02:03"]),
        (pa.array([Decimal("1.10")]), "str_decimal", ["1.10"]),
        (pa.array([10**12]), "str_int", ["1000000000000"]),
        (pa.array([[1, None], []]), "json", ["[1, null]", "[]"]),
        (pa.array([{"a": DAY, "b": "é"}]), "json", ['{"a": "2024-02-29", "b": "\\u00e9"}']),
        (pa.array(['{"b": 1,"a":2}']), "json", ['{"b": 1,"a":2}']),
        (pa.array([3, 4]), "json", ["3", "4"]),
        (pa.array(["x"]), "bytes", [b"x"]),
        (pa.array([b"abcd"], pa.binary(4)), "bytes", [b"abcd"]),
        (pa.array([b"12345678"]), "ndarray:int64:1", [b"12345678"]),
    ],
)
def test_columns_are_converted_by_their_type(array, name, values):
    out, failures = coerce(array, lookup(name))
    assert failures == []
    assert out.type == lookup(name).arrow
    assert repr(out.to_pylist()) == repr(values)


@pytest.mark.parametrize(
    ("array", "name", "failures"),
    [
        (
            pa.array([1, 300, 2, -1]),
            "uint8",
            [
                (1, "300 cannot be stored as uint8 (0 to 255)"),
                (3, "-1 cannot be stored as uint8 (0 to 255)"),
            ],
        ),
        (
            pa.array([1 << 40]),
            "int32",
            [(0, "1099511627776 cannot be stored as int32 (-2147483648 to 2147483647)")],
        ),
        (
            pa.array([1 << 63], pa.uint64()),
            "int",
            [
                (
                    0,
                    "9223372036854775808 cannot be stored as int (-9223372036854775808 to 9223372036854775807)",
                )
            ],
        ),
        (
            pa.array([1.0, 1.5]),
            "int",
            [(1, "1.5 cannot be stored as int (-9223372036854775808 to 9223372036854775807)")],
        ),
        (
            pa.array(["1", "x", None]),
            "int8",
            [(1, "'x' cannot be stored as int8 (-128 to 127)"), (2, "is null")],
        ),
        (pa.array([b"ok", b"\xff"]), "str", [(1, "is not UTF-8")]),
        (pa.array(['{"a": 1}', "{"]), "json", [(1, "'{' cannot be stored as json")]),
        (pa.array(["1", "1.5"]), "str_int", [(1, "'1.5' cannot be stored as str_int")]),
        (pa.array(["1E+5", "x"]), "str_decimal", [(1, "'x' cannot be stored as str_decimal")]),
        (pa.array([[1]]), "str", [(0, "[1] cannot be stored as str")]),
        (pa.array([1]), "jpeg", [(0, "1 cannot be stored as jpeg")]),
        (pa.array([b"123"]), "ndarray:int64:1", [(0, "'123' cannot be stored as ndarray:int64:1")]),
        (
            pa.array([b"12"]),
            "int",
            [(0, "'12' cannot be stored as int (-9223372036854775808 to 9223372036854775807)")],
        ),
        (pa.array([{"a": b"x"}]), "json", [(0, "{'a': b'x'} cannot be stored as json")]),
    ],
)
def test_values_that_do_not_fit_the_type_have_row_and_reason(array, name, failures):
    out, found = coerce(array, lookup(name))
    assert found == failures
    assert [i for i, value in enumerate(out.to_pylist()) if value is None] == [
        row for row, _ in failures
    ]


def test_invalid_utf8_in_a_text_column_is_a_failure():
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
    assert coerce(text, lookup("str"))[1] == [(1, "is not UTF-8")]
