"""Single values: round trips, bytes compared with numpy and json, and values that do not fit."""

import io
import json
import math
import pickle
import struct
import tracemalloc
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli.encodings import TEXT, coerce, decode, encode, lookup, plain
from flarecli.encodings.names import NAMES, NDARRAY_CODES
from flarecli.encodings.number_text import MAX_JSON_TEXT_BYTES
from flarecli.encodings.values import as_json
from flarecli.errors import FlareError, UnsafeError, ValueFitError

FLOATS = ("float16", "float32", "float64")
INTS = [name for name in NDARRAY_CODES if name not in FLOATS]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


def refused(name, value):
    with pytest.raises(FlareError) as caught:
        encode(lookup(name), value)
    return str(caught.value)


@pytest.mark.parametrize("name", INTS)
@given(value=st.integers(-(2**65), 2**65))
def test_integers_equal_those_of_numpy_or_are_refused(name, value):
    limits = np.iinfo(name)
    if limits.min <= value <= limits.max:
        data = encode(lookup(name), value)
        assert data == np.dtype(name).type(value).tobytes()
        assert decode(lookup(name), data) == value
    else:
        assert refused(name, value) == f"int {value!r:.60} cannot be stored as {name}"
        assert "cannot be stored as" in refused(name, float(value))


@pytest.mark.parametrize("name", FLOATS)
@given(value=st.floats())
def test_floats_equal_those_of_numpy_or_are_refused(name, value):
    with np.errstate(all="ignore"):
        wanted = np.dtype(name).type(value)
    if math.isinf(wanted) and not math.isinf(value):
        assert refused(name, value) == f"float {value!r:.60} cannot be stored as {name}"
    elif not math.isnan(value):
        assert encode(lookup(name), value) == wanted.tobytes()
        assert decode(lookup(name), wanted.tobytes()) == wanted
    else:
        assert math.isnan(decode(lookup(name), encode(lookup(name), value)))


@pytest.mark.parametrize(
    ("name", "value", "same"),
    [
        ("int", True, 1),
        ("int", np.int32(5), 5),
        ("uint8", "7", 7),
        ("uint8", 3.0, 3),
        ("int16", np.array([4]), 4),
        ("float32", "2.5", 2.5),
        ("float64", np.float16(0.5), 0.5),
        ("float16", 3, 3.0),
        ("str_int", np.int64(5), 5),
        ("json_int", True, 1),
        ("str_decimal", "1.10", Decimal("1.10")),
    ],
)
def test_numbers_of_other_types_are_accepted_if_they_are_equal(name, value, same):
    assert encode(lookup(name), value) == encode(lookup(name), same) or name == "json_int"
    assert decode(lookup(name), encode(lookup(name), value)) == same


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("int", "5", "str '5' cannot be stored as int"),
        ("int", 5.0, "float 5.0 cannot be stored as int"),
        ("uint8", np.int64(300), "int64 np.int64(300) cannot be stored as uint8"),
        ("uint8", 3.7, "float 3.7 cannot be stored as uint8"),
        ("uint8", math.nan, "float nan cannot be stored as uint8"),
        ("uint8", np.array([1, 2]), "ndarray array([1, 2]) cannot be stored as uint8"),
        ("float16", 1e6, "float 1000000.0 cannot be stored as float16"),
        ("float32", None, "NoneType None cannot be stored as float32"),
        ("int", b"1234", "4 bytes cannot be stored as int; expected 8"),
        ("str", "\ud800", "str '\\ud800' cannot be stored as str"),
        ("str_int", True, "bool True cannot be stored as str_int"),
        ("str_float", 1, "int 1 cannot be stored as str_float"),
        ("str_decimal", "x", "str 'x' cannot be stored as str_decimal"),
        ("json", {1, 2}, "set {1, 2} cannot be stored as json"),
        ("json_str", 5, "int 5 cannot be stored as json_str"),
        ("json_int", 1.5, "float 1.5 cannot be stored as json_int"),
        ("bytes", "text", "str cannot be stored as bytes"),
        ("jpeg", 5, "int cannot be stored as jpeg"),
        ("list[jpeg]", "x", "str cannot be stored as list[jpeg]"),
        ("str[]", "abc", "str 'abc' cannot be stored as str[]"),
        ("int[]", [1, 2**70], "int 1180591620717411303424 cannot be stored as int"),
        (
            "ndarray",
            np.array(5),
            "an array of dtype int64 and shape () cannot be stored as ndarray",
        ),
        (
            "ndarray",
            np.zeros((0, 3)),
            "an array of dtype float64 and shape (0, 3) cannot be stored as ndarray",
        ),
        (
            "ndarray",
            np.array([True]),
            "an array of dtype bool and shape (1,) cannot be stored as ndarray",
        ),
        (
            "ndarray:int32",
            np.zeros(3),
            "an array of dtype float64 and shape (3,) cannot be stored as ndarray:int32",
        ),
        (
            "ndarray:int32:2",
            np.zeros(3, "int32"),
            "an array of dtype int32 and shape (3,) cannot be stored as ndarray:int32:2",
        ),
        ("ndarray:int8", [1, 300], "300 cannot be stored as ndarray:int8"),
        ("ndarray:int8", [1.5], "1.5 cannot be stored as ndarray:int8"),
        ("ndarray:float16", [1e6], "1000000.0 cannot be stored as ndarray:float16"),
        ("ndarray:uint64:1", [-1], "-1 cannot be stored as ndarray:uint64:1"),
        ("pkl", {}, "cannot store the value as pkl, because reading a pickle runs code"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_with_its_type(name, value, message):
    assert refused(name, value) == message


@given(JSON)
def test_json_equals_that_of_python_in_ascii(value):
    assert encode(lookup("json"), value) == json.dumps(value).encode()
    assert decode(lookup("json"), encode(lookup("json"), value)) == value
    assert json.loads(encode(lookup("json_json"), value)) == json.dumps(value)
    assert decode(lookup("json_json"), encode(lookup("json_json"), value)) == value


@given(st.text())
def test_json_strings_may_contain_lone_surrogates(value):
    assert decode(lookup("json_str"), encode(lookup("json_str"), value)) == value


@given(st.integers(-(10**60), 10**60), st.floats(), st.decimals())
def test_numbers_as_text_are_decoded_unchanged(whole, real, decimal):
    for name, value in (
        ("str_int", whole),
        ("json_int", whole),
        ("str_float", real),
        ("json_float", real),
        ("str_decimal", decimal),
    ):
        data = encode(lookup(name), value)
        assert repr(decode(lookup(name), data)) == repr(value)
        assert data.decode() == (json.dumps(value) if name.startswith("json") else str(value))


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json_str", b"1"),
        ("json_int", b"1.5"),
        ("json_int", b'"1"'),
        ("json_float", b"null"),
        ("json_json", b"[1]"),
        ("json_json", b'"["'),
    ],
)
def test_json_of_another_type_is_refused(name, data):
    with pytest.raises(ValueFitError, match=rf"^not a valid {name} value \({len(data)} B\)$"):
        decode(lookup(name), data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("json", b"1\0"),
        ("json", b"\xef\xbb\xbf1"),
        ("json", b'"\xed\xa0\x80"'),
        ("json_int", b"1\0"),
        ("json_str", b'"\0a\0"\0'),
        ("json_float", b"\xfe"),
    ],
)
def test_json_in_other_encodings_than_utf8_is_refused(name, data):
    with pytest.raises(ValueFitError, match=rf"^not a valid {name} value \({len(data)} B\)$"):
        decode(lookup(name), data)


def test_digits_of_any_script_are_numbers_in_rows_and_batches():
    assert (
        decode(lookup("str_int"), "١٢".encode())
        == 12
        == plain(pa.array(["١٢"], TEXT), lookup("str_int"))[0][0].as_py()
    )
    assert (
        decode(lookup("str_float"), "١.٥".encode())
        == 1.5
        == plain(pa.array(["١.٥"], TEXT), lookup("str_float"))[0][0].as_py()
    )


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("str", b"\xff", "bytes b'\\xff' cannot be stored as str: not UTF-8"),
        ("str[]", [b"a", b"\xff"], "bytes b'\\xff' cannot be stored as str: not UTF-8"),
        ("varint", bytes(17), "not a valid varint value (17 B)"),
        ("msgpack_float", b"\xc0", "not a valid msgpack_float value (1 B)"),
    ],
)
def test_invalid_bytes_are_refused_by_the_encoder(name, data, message):
    assert refused(name, data) == message


def test_an_array_without_dimensions_is_not_a_list():
    with pytest.raises(ValueFitError, match=r"^ndarray array\(5\) cannot be stored as int\[\]$"):
        encode(lookup("int[]"), np.array(5))


@given(
    st.sampled_from(sorted(NDARRAY_CODES)),
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.booleans(),
    st.booleans(),
    st.sampled_from("<>"),
)
def test_arrays_of_every_layout_are_decoded_unchanged(dtype, shape, fortran, backwards, order):
    array = np.arange(math.prod(shape)).astype(np.dtype(dtype).newbyteorder(order)).reshape(shape)
    array = np.asfortranarray(array) if fortran else array
    array = array[::-1] if backwards else array
    for name in (
        "ndarray",
        "ndarray:",
        f"ndarray:{dtype}",
        f"ndarray:{dtype}:{','.join(map(str, shape))}",
    ):
        out = decode(lookup(name), encode(lookup(name), array))
        assert (out.dtype, out.shape) == (np.dtype(dtype), array.shape)
        assert (out == array).all()


@pytest.mark.parametrize(
    ("size", "head"),
    [(255, "0804ff"), (256, "08050001"), (65535, "0805ffff"), (65536, "080600000100")],
)
def test_dimensions_have_the_width_of_the_largest(size, head):
    assert encode(lookup("ndarray"), np.zeros(size, "uint8"))[: len(head) // 2].hex() == head


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x08",
        b"\x07\x04\x01\0",
        b"\x08\x04\x02\0",
        b"\x08\x04\x01\0\0",
        b"\x08\xff" + b"\xff" * 63 * 8,
        b"\x42\x0b" + b"\xff" * 16,
        b"\x08\0\1",
    ],
)
def test_invalid_bytes_of_arrays_are_refused(data):
    with pytest.raises(ValueFitError, match="^not a valid ndarray value "):
        decode(lookup("ndarray"), data)


def picture(mode, size=(5, 3)):
    return Image.frombytes(
        mode, size, (bytes(range(256)) * 20)[: len(Image.new(mode, size).tobytes())]
    )


@pytest.mark.parametrize(
    "mode",
    [
        "1",
        "L",
        "LA",
        "P",
        "PA",
        "RGB",
        "RGBA",
        "RGBX",
        "RGBa",
        "La",
        "CMYK",
        "YCbCr",
        "LAB",
        "HSV",
        "I",
        "F",
        "I;16",
        "I;16B",
    ],
)
def test_raw_images_of_every_mode_are_decoded_unchanged(mode):
    data = encode(lookup("pil"), picture(mode))
    assert data[:12] == struct.pack("<III", 5, 3, len(mode))
    again = decode(lookup("pil"), data)
    assert (again.mode, again.size, again.tobytes()) == (mode, (5, 3), picture(mode).tobytes())
    assert encode(lookup("pil"), again) == data


def test_an_image_with_a_palette_is_refused_by_pil():
    with pytest.raises(ValueFitError) as caught:
        encode(lookup("pil"), picture("RGB").quantize(4))
    assert (
        str(caught.value) == "pil does not store palettes, but an image of mode P needs a palette"
    )
    assert caught.value.hint == "Convert the image to RGB, or choose png."
    assert decode(lookup("png"), encode(lookup("png"), picture("RGB").quantize(4))).mode == "P"


@pytest.mark.parametrize(
    ("width", "height", "length", "rest"),
    [
        (5, 3, 1, b"L" + bytes(14)),
        (5, 3, 1, b"L" + bytes(16)),
        (1 << 31, 1 << 31, 1, b"L"),
        (5, 3, 3, b"RGBx"),
        (0, 3, 1, b"L"),
        (1, 1, 3, b"ABC" + bytes(9)),
        (1, 1, 1 << 31, b"L"),
        (1, 1, 9, b"RGBRGBRGB"),
        (1, 1, 1, b"\xff\0"),
    ],
)
def test_invalid_raw_images_are_refused_without_allocation(width, height, length, rest):
    tracemalloc.start()
    with pytest.raises(ValueFitError, match="^not a valid pil value "):
        decode(lookup("pil"), struct.pack("<III", width, height, length) + rest)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


def test_images_are_saved_as_pillow_saves_them_and_an_opened_jpeg_is_its_file(tmp_path):
    out = io.BytesIO()
    picture("RGB").save(out, "PNG")
    assert encode(lookup("png"), picture("RGB")) == out.getvalue()
    path = tmp_path / "a.jpg"
    picture("RGB", (40, 30)).save(path, "JPEG", quality=33)
    assert encode(lookup("jpeg"), Image.open(path)) == path.read_bytes()
    opened = Image.open(path)
    opened.load()
    path.unlink()
    assert decode(lookup("jpeg"), encode(lookup("jpeg"), opened)).size == (40, 30)
    assert refused("jpeg", picture("RGBA")) == "an image of mode RGBA cannot be stored as jpeg"
    assert refused("png", picture("CMYK")) == "an image of mode CMYK cannot be stored as png"


def test_an_opened_jpeg_without_its_file_is_encoded_again(tmp_path):
    Image.new("RGB", (3, 2), "red").save(tmp_path / "a.jpg")
    picture = Image.open(tmp_path / "a.jpg")
    picture.load()
    (tmp_path / "a.jpg").unlink()
    assert decode(lookup("jpeg"), encode(lookup("jpeg"), picture)).size == (3, 2)
    (tmp_path / "a.jpg").mkdir()
    assert decode(lookup("jpeg"), encode(lookup("jpeg"), picture)).size == (3, 2)


@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM"])
def test_images_of_every_file_format_are_opened_except_eps_which_runs_a_program(kind):
    out = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(out, kind)
    assert decode(lookup("jpeg"), out.getvalue()).size == (3, 2)
    out = io.BytesIO()
    Image.new("RGB", (3, 2), "red").save(out, "EPS")
    assert Image.open(io.BytesIO(out.getvalue())).format == "EPS"
    with pytest.raises(ValueFitError, match=r"^not a valid png value \([\d.]+ k?B\)$"):
        decode(lookup("png"), out.getvalue())


@pytest.mark.parametrize(
    "name", ["list[pil]", "list[jpeg]", "list[png]", "jpeg_array", "jpegarray"]
)
def test_lists_of_images_are_decoded_unchanged(name):
    kind = lookup(name)
    pictures = [picture("RGB"), picture("L", (1, 1))]
    data = encode(kind, pictures)
    assert [one.size for one in decode(kind, data)] == [(5, 3), (1, 1)]
    assert encode(kind, []) == bytes(4 if name.startswith("jpeg") else 8)
    assert decode(kind, encode(kind, [])) == []
    for wrong in (data[:-1], data + b"\0", data[:3], b""):
        with pytest.raises(ValueFitError):
            decode(kind, wrong)


def test_lists_accept_image_files_and_the_reserved_word_is_ignored():
    data = encode(lookup("jpeg"), picture("RGB"))
    assert (
        encode(lookup("list[jpeg]"), [data, bytearray(data)])
        == struct.pack("<IIII", 0, 2, len(data), len(data)) + data * 2
    )
    assert (
        len(decode(lookup("list[jpeg]"), b"\xff" * 4 + struct.pack("<II", 1, len(data)) + data))
        == 1
    )


def test_lists_are_lists_of_stored_bytes():
    kind = lookup("int[]")
    data = encode(kind, [1, -1])
    assert data == [struct.pack("<q", 1), struct.pack("<q", -1)]
    assert decode(kind, data) == [1, -1]
    assert decode(lookup("str[]"), encode(lookup("str[]"), ("a", "é"))) == ["a", "é"]
    assert encode(lookup("array[]"), np.zeros((2, 3)))[1] == encode(lookup("array"), np.zeros(3))
    with pytest.raises(UnsafeError):
        decode(lookup("pkl[]"), [pickle.dumps(1)])


@pytest.mark.parametrize("name", [*NAMES, "ndarray:int8", "ndarray:int8:3", "str[]", "list[pil][]"])
@given(data=st.binary(max_size=60))
def test_arbitrary_bytes_are_decoded_or_refused(name, data):
    kind = lookup(name)
    try:
        decode(kind, [data] if kind.item else data)
    except FlareError as error:
        assert isinstance(error, UnsafeError if name == "pkl" else ValueFitError)
        assert len(str(error)) < 200


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
        ("str_decimal", Decimal("1.10")),
        ("bytes", b"\0"),
    ],
)
def test_a_value_is_decoded_unchanged(name, value):
    assert decode(lookup(name), encode(lookup(name), value)) == value


@pytest.mark.parametrize("name", ["ndarray", "ndarray:", "ndarray:int32", "ndarray:int32:2,3"])
def test_a_fortran_array_is_decoded_unchanged(name):
    array = np.asfortranarray(np.arange(6, dtype="int32").reshape(2, 3))
    out = decode(lookup(name), encode(lookup(name), array))
    assert out.dtype == np.int32
    assert (out == array).all()


def test_a_big_endian_array_is_stored_as_little_endian():
    assert decode(
        lookup("ndarray"), encode(lookup("ndarray"), np.array([1, 2], ">i4"))
    ).tolist() == [1, 2]


def test_image_files_are_stored_unchanged_and_opened():
    data = encode(lookup("png"), picture("RGB", (9, 7)))
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


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<II", 0xFFFFFFFF, 1),
        struct.pack("<III", 0, 1 << 30, 5),
        b"\x42\xff" + b"\xff" * 63,
    ],
)
def test_hostile_counts_are_refused(data):
    for name in ("jpeg_array", "list[jpeg]", "ndarray"):
        with pytest.raises(ValueFitError):
            decode(lookup(name), data)


def test_pickles_are_not_written_and_only_read_if_allowed():
    data = pickle.dumps({"a": 1})
    assert encode(lookup("pkl"), data) == data
    with pytest.raises(
        UnsafeError,
        match="^cannot store the value as pkl, because reading a pickle runs code(?m:$)",
    ):
        encode(lookup("pkl"), {"a": 1})
    with pytest.raises(
        UnsafeError, match=f"^refusing to decode a pickle \\({len(data)} B\\)(?m:$)"
    ):
        decode(lookup("pkl"), data)
    assert decode(lookup("pkl"), data, allow_pickle=True) == {"a": 1}


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2100,), "uint8"),
        ((3, 701), "int16"),
        ((2, 2, 600), "float32"),
        ((1500, 2), "bool"),
    ],
)
def test_an_array_converted_in_steps_has_the_text_of_json_dumps(monkeypatch, shape, dtype):
    monkeypatch.setattr("flarecli.encodings.values._ARRAY_STEP", 1024)
    array = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)
    assert as_json(array) == json.dumps(array.tolist())


def test_an_array_whose_text_would_be_too_long_is_refused_before_it_is_converted():
    array = np.broadcast_to(np.uint8(0), (MAX_JSON_TEXT_BYTES // 3 + 1,))
    with pytest.raises(OverflowError):
        as_json(array)


def test_the_failure_of_a_too_large_array_names_its_size():
    size = MAX_JSON_TEXT_BYTES // 3 + 1
    array = pa.array([bytes(size)], pa.large_binary())
    source, target = lookup(f"ndarray:uint8:{size}"), lookup("json")
    assert coerce(array, target, source)[1] == [
        (0, f"array of {size} values cannot be stored as json")
    ]
