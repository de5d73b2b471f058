"""The default encoding of a column: by its type, then by the bytes of its first value."""

import io

import pyarrow as pa
import pytest
from PIL import Image

from flarecli.encodings import infer_encoding
from flarecli.errors import UsageError


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
    with pytest.raises(UsageError, match="^column 'c' has only nulls(?m:$)"):
        infer_encoding(pa.field("c", pa.null()))
