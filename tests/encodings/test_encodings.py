"""Encodings: Arrow columns of every type brought to them, values that do not fit named, one value there and back."""

import datetime
import decimal
import io
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli import encodings
from flarecli.encodings import coerce, decode, encode, infer_encoding, lookup, names, stored, typed
from flarecli.errors import FlareError, UnsafeError, UsageError, ValueFitError

NAMES = [
    "bytes",
    "str",
    "int",
    "ndarray",
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
    "str_int",
    "str_float",
    "str_decimal",
    "pil",
    "jpeg",
    "jpeg_array",
    "jpegarray",
    "png",
    "list[pil]",
    "list[jpeg]",
    "list[png]",
    "pkl",
    "json",
]


def test_all_names_of_mds_are_known_and_others_are_not():
    assert len(NAMES) == 28
    assert {name: lookup(name).size for name in NAMES if lookup(name).size} == {
        "int": 8,
        "uint8": 1,
        "uint16": 2,
        "uint32": 4,
        "uint64": 8,
        "int8": 1,
        "int16": 2,
        "int32": 4,
        "int64": 8,
        "float16": 2,
        "float32": 4,
        "float64": 8,
    }
    assert lookup("ndarray:int32:2,3").size == 24
    for name in (
        "",
        "Int",
        "str:x",
        "ndarray::3",
        "ndarray:bool",
        "ndarray:int32:0",
        "ndarray:int32:2,",
        f"ndarray:int8:{1 << 60}",
        "pickle",
        "x" * 5000,
    ):
        with pytest.raises(UsageError, match="^unknown encoding "):
            lookup(name)


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
        (pa.array([decimal.Decimal("1.10")]), "str_decimal", ["1.10"]),
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
def test_columns_of_any_type_are_brought_to_an_encoding(array, name, values):
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
            [(1, "300 does not fit uint8 (0 to 255)"), (3, "-1 does not fit uint8 (0 to 255)")],
        ),
        (
            pa.array([1 << 40]),
            "int32",
            [(0, "1099511627776 does not fit int32 (-2147483648 to 2147483647)")],
        ),
        (
            pa.array([1 << 63], pa.uint64()),
            "int",
            [
                (
                    0,
                    "9223372036854775808 does not fit int (-9223372036854775808 to 9223372036854775807)",
                )
            ],
        ),
        (
            pa.array([1.0, 1.5]),
            "int",
            [(1, "1.5 does not fit int (-9223372036854775808 to 9223372036854775807)")],
        ),
        (
            pa.array(["1", "x", None]),
            "int8",
            [(1, "'x' does not fit int8 (-128 to 127)"), (2, "is null")],
        ),
        (pa.array([b"ok", b"\xff"]), "str", [(1, "is not UTF-8")]),
        (pa.array(['{"a": 1}', "{"]), "json", [(1, "'{' does not fit json")]),
        (pa.array(["1", "1.5"]), "str_int", [(1, "'1.5' does not fit str_int")]),
        (pa.array(["1E+5", "x"]), "str_decimal", [(1, "'x' does not fit str_decimal")]),
        (pa.array([[1]]), "str", [(0, "[1] does not fit str")]),
        (pa.array([1]), "jpeg", [(0, "1 does not fit jpeg")]),
        (pa.array([b"123"]), "ndarray:int64:1", [(0, "'123' does not fit ndarray:int64:1")]),
        (
            pa.array([b"12"]),
            "int",
            [(0, "'12' does not fit int (-9223372036854775808 to 9223372036854775807)")],
        ),
        (pa.array([{"a": b"x"}]), "json", [(0, "{'a': b'x'} does not fit json")]),
    ],
)
def test_values_that_do_not_fit_are_named(array, name, failures):
    out, found = coerce(array, lookup(name))
    assert found == failures
    assert [i for i, value in enumerate(out.to_pylist()) if value is None] == [
        row for row, _ in failures
    ]


def test_text_that_claims_to_be_utf8_and_is_not_is_found():
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
    assert coerce(text, lookup("str"))[1] == [(1, "is not UTF-8")]


@pytest.mark.parametrize(
    "name", ["int", "uint8", "int16", "float16", "float32", "float64", "uint64"]
)
@given(data=st.data())
def test_numbers_are_stored_as_numpy_has_them(name, data):
    dtype = np.dtype("int64" if name == "int" else name)
    raw = data.draw(st.binary(min_size=0, max_size=80))
    values = np.frombuffer(raw[: len(raw) // dtype.itemsize * dtype.itemsize], dtype)
    array = pa.array(values, lookup(name).arrow)
    out = stored(array, lookup(name))
    assert b"".join(out.to_pylist()) == values.tobytes()
    assert (
        typed(out, lookup(name))
        .view(pa.binary(dtype.itemsize))
        .equals(array.view(pa.binary(dtype.itemsize)))
    )


@given(st.lists(st.text()))
def test_text_is_stored_as_utf8(values):
    out = stored(pa.array(values, pa.large_string()), lookup("str"))
    assert out.to_pylist() == [value.encode() for value in values]
    assert typed(out, lookup("str")).to_pylist() == values


def picture(kind):
    out = io.BytesIO()
    Image.effect_noise((9, 7), 50).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize(
    ("field", "first", "extension", "name"),
    [
        (pa.field("c", pa.int64()), None, "", "int"),
        (pa.field("c", pa.int32()), None, "", "int32"),
        (pa.field("c", pa.bool_()), None, "", "uint8"),
        (pa.field("c", pa.float64()), None, "", "float64"),
        (pa.field("c", pa.large_string()), None, "", "str"),
        (pa.field("c", pa.dictionary(pa.int8(), pa.string())), None, "", "str"),
        (pa.field("c", pa.decimal128(5, 2)), None, "", "str_decimal"),
        (pa.field("c", pa.timestamp("ns")), None, "", "str"),
        (pa.field("c", pa.list_(pa.int8())), None, "", "int8[]"),
        (pa.field("c", pa.large_list(pa.string())), None, "", "str[]"),
        (pa.field("c", pa.list_(pa.dictionary(pa.int8(), pa.string()))), None, "", "str[]"),
        (pa.field("c", pa.list_(pa.int64(), 3)), None, "", "int[]"),
        (pa.field("c", pa.list_(pa.binary())), None, "", "bytes[]"),
        (pa.field("c", pa.list_(pa.bool_())), None, "", "json"),
        (pa.field("c", pa.list_(pa.list_(pa.int8()))), None, "", "json"),
        (pa.field("c", pa.list_(pa.date32())), None, "", "json"),
        (pa.field("c", pa.struct([("a", pa.int8())])), None, "", "json"),
        (pa.field("c", pa.map_(pa.string(), pa.int8())), None, "", "json"),
        (
            pa.field("c", pa.fixed_shape_tensor(pa.float32(), [2, 3])),
            None,
            "",
            "ndarray:float32:2,3",
        ),
        (pa.field("c", pa.fixed_shape_tensor(pa.int64(), [4])), None, "", "ndarray:int64:4"),
        (pa.field("c", pa.bool8()), None, "", "int8"),
        (pa.field("c", pa.json_()), None, "", "json"),
        (pa.field("c", pa.uuid()), None, "", "bytes"),
        (pa.field("c", pa.binary()), picture("JPEG"), "png", "jpeg"),
        (pa.field("c", pa.binary()), picture("PNG"), "", "png"),
        (pa.field("c", pa.binary()), b"hello", "txt", "str"),
        (pa.field("c", pa.binary()), b"\xff\xfe", "txt", "bytes"),
        (pa.field("c", pa.binary()), b"{}", "json", "json"),
        (pa.field("c", pa.binary()), b"", "", "bytes"),
    ],
)
def test_encodings_are_inferred_by_type_then_by_content(field, first, extension, name):
    assert infer_encoding(field, first, extension) == name


def test_a_column_of_nulls_has_no_encoding():
    with pytest.raises(UsageError, match="^column 'c' has only nulls$"):
        infer_encoding(pa.field("c", pa.null()))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("int", -5),
        ("uint64", 1 << 63),
        ("float32", 0.5),
        ("str", "é"),
        ("json", {"b": [1, None], "a": "é"}),
        ("str_int", 10**30),
        ("str_float", 1e16),
        ("str_decimal", decimal.Decimal("1.10")),
        ("bytes", b"\0"),
    ],
)
def test_a_value_comes_back(name, value):
    assert decode(lookup(name), encode(lookup(name), value)) == value


@pytest.mark.parametrize("name", ["ndarray", "ndarray:", "ndarray:int32", "ndarray:int32:2,3"])
def test_an_array_comes_back_whatever_its_layout(name):
    array = np.asfortranarray(np.arange(6, dtype="int32").reshape(2, 3))
    out = decode(lookup(name), encode(lookup(name), array))
    assert out.dtype == np.int32
    assert (out == array).all()


def test_a_big_endian_array_is_swapped_not_mislabelled():
    assert decode(
        lookup("ndarray"), encode(lookup("ndarray"), np.array([1, 2], ">i4"))
    ).tolist() == [1, 2]


def test_pictures_are_opened_and_can_be_given_as_bytes():
    data = picture("PNG")
    assert encode(lookup("png"), data) == data
    assert decode(lookup("png"), data).size == (9, 7)
    raw = struct.pack("<III", 2, 1, 1) + b"L" + b"\x05\x06"
    assert list(decode(lookup("pil"), raw).tobytes()) == [5, 6]
    assert [
        p.size
        for p in decode(
            lookup("jpeg_array"), struct.pack("<III", 2, len(data), len(data)) + data + data
        )
    ] == [(9, 7), (9, 7)]
    assert [
        p.size for p in decode(lookup("list[png]"), struct.pack("<III", 0, 1, len(data)) + data)
    ] == [(9, 7)]


@pytest.mark.parametrize("name", NAMES)
@given(data=st.binary(max_size=60))
def test_any_bytes_decode_or_are_refused(name, data):
    try:
        decode(lookup(name), data)
    except FlareError as error:
        assert isinstance(error, UnsafeError if name == "pkl" else ValueFitError)


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<II", 0xFFFFFFFF, 1),
        struct.pack("<III", 0, 1 << 30, 5),
        b"\x42\xff" + b"\xff" * 63,
    ],
)
def test_hostile_counts_allocate_nothing(data):
    for name in ("jpeg_array", "list[jpeg]", "ndarray"):
        with pytest.raises(ValueFitError):
            decode(lookup(name), data)


def test_pickles_are_neither_made_nor_read_unasked():
    import pickle

    data = pickle.dumps({"a": 1})
    assert encode(lookup("pkl"), data) == data
    with pytest.raises(
        UnsafeError, match="^pkl would pickle the value; reading a pickle runs code$"
    ):
        encode(lookup("pkl"), {"a": 1})
    with pytest.raises(UnsafeError, match=f"^a pickle \\({len(data)} B\\) is not decoded$"):
        decode(lookup("pkl"), data)
    assert decode(lookup("pkl"), data, allow_pickle=True) == {"a": 1}


def test_fields_carry_the_name_of_their_encoding():
    field = encodings.field(encodings.column("c", "jpeg"))
    assert encodings.encoding_of(field) == "jpeg"
    assert encodings.encoding_of(pa.field("c", pa.binary())) is None


@pytest.mark.parametrize(
    "name",
    [*names.NAMES, "ndarray:float32:3,2", "ndarray:uint8", "int[]", "jpeg[]", "float16[]", "str[]"],
)
def test_the_name_of_an_arrow_type_takes_no_arrow(name):
    assert lookup(name).arrow_name == str(lookup(name).arrow)
