"""Columns as stored bytes and back, compared with numpy and Python."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.encodings import lookup, stored, typed


@pytest.mark.parametrize(
    "name", ["int", "uint8", "int16", "float16", "float32", "float64", "uint64"]
)
@given(data=st.data())
def test_numbers_are_stored_as_numpy_stores_them(name, data):
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


def test_fields_have_the_name_of_their_encoding_as_metadata():
    field = encodings.field(encodings.column("c", "jpeg"))
    assert encodings.encoding_of(field) == "jpeg"
    assert encodings.encoding_of(pa.field("c", pa.binary())) is None


@pytest.mark.parametrize(
    ("kind", "plain"),
    [
        (pa.string_view(), pa.large_string()),
        (pa.binary_view(), pa.large_binary()),
        (pa.string(), pa.string()),
        (pa.int64(), pa.int64()),
    ],
)
def test_a_dictionary_of_any_values_is_decoded(kind, plain):
    values = [5, 7] if pa.types.is_integer(kind) else ["5", "7"]
    indices = pa.array([1, None, 0, 1], pa.int8())
    array = pa.DictionaryArray.from_arrays(indices, pa.array(values).cast(kind))
    found = encodings.decoded_dictionary(array)
    assert found.type == plain
    assert found.cast(pa.string()).to_pylist() == ["7", None, "5", "7"]
