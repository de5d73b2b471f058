"""Names of encodings: sizes, Arrow types, and names that are unknown."""

import pytest

from flarecli.encodings import lookup, names
from flarecli.errors import UsageError

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


def test_all_names_of_mds_are_known_and_other_names_are_refused():
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


@pytest.mark.parametrize(
    "name",
    [*names.NAMES, "ndarray:float32:3,2", "ndarray:uint8", "int[]", "jpeg[]", "float16[]", "str[]"],
)
def test_the_name_of_the_arrow_type_equals_that_of_arrow(name):
    assert lookup(name).arrow_name == str(lookup(name).arrow)
