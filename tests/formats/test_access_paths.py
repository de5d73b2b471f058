"""A value is the same on every access path, in every format, compression and encoding."""

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from flarecli import read
from flarecli.encodings import decode, lookup
from flarecli.errors import ValueFitError
from flarecli.formats import find, names
from flarecli.model import Settings
from flarecli.write import Writer
from tests.properties import examples

COMPRESSIONS, COMPRESSED = (
    (None, "br", "bz2", "gz", "snappy", "zstd"),
    ("mds", "json", "csv", "tsv", "xsv", "webdataset"),
)
WRITTEN = names(writable=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters=",\t\n\r|"), max_size=8)
EDGES = st.sampled_from(
    [0.0, -0.0, math.nan, math.inf, -math.inf, 5e-324, 1e16, 1e-7, 1e10, 123456789.123, 2.0**53]
)
FLOATS = st.floats() | EDGES
INT64 = st.integers(-(2**63), 2**63 - 1) | st.sampled_from(
    [0, -1, 127, 128, 255, 256, 2**31, 2**32, 2**53 + 1]
)
JSON = st.recursive(
    st.none() | st.booleans() | INT64 | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=5,
)


def whole(dtype):
    return st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))


VALUES = {
    "bytes": st.binary(max_size=20),
    "str": TEXT,
    "int": INT64,
    "varint": INT64,
    **{
        name: whole(name)
        for name in ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32")
    },
    "uint64": st.integers(0, 2**63 - 1),
    "float16": st.floats(width=16),
    "float32": st.floats(width=32),
    "float64": FLOATS,
    "msgpack_float": FLOATS,
    "str_int": st.integers(-(10**18) + 1, 10**18 - 1),
    "str_float": FLOATS,
    "str_decimal": st.decimals(allow_nan=False, allow_infinity=False).filter(
        lambda d: len(str(d)) < 30
    ),
    "json": JSON,
    "msgpack": JSON,
    "tree": JSON,
    "json_str": TEXT,
    "json_int": st.integers(-(10**18) + 1, 10**18 - 1),
    "json_float": FLOATS,
    "json_json": JSON,
    "ndarray": st.lists(st.integers(-9, 9), min_size=1, max_size=3).map(
        lambda v: np.array(v, "int16")
    ),
    "ndarray:float32:2": st.lists(st.floats(width=32), min_size=2, max_size=2).map(
        lambda v: np.array(v, "float32")
    ),
    "array": st.lists(st.integers(-9, 9), min_size=1, max_size=3).map(
        lambda v: np.array(v, "int16")
    ),
    "str[]": st.lists(TEXT, max_size=3),
    "int[]": st.lists(INT64, max_size=3),
    "float32[]": st.lists(st.floats(width=32), max_size=3),
    "bytes[]": st.lists(st.binary(max_size=5), max_size=3),
}


def exact(value):
    """Return a form that differs for other types, signs of zero, NaNs, dtypes and bytes of
    arrays.
    """
    if isinstance(value, np.ndarray):
        return (str(value.dtype), value.shape, value.tobytes())
    if isinstance(value, list):
        return list(map(exact, value))
    if isinstance(value, dict):
        return {key: exact(one) for key, one in value.items()}
    return (type(value).__name__, repr(value))


def loose(value):
    """Return the same form with arrays as numbers, since some formats store them as lists."""
    return exact(value.tolist() if isinstance(value, np.ndarray) else value)


def of_column(rows, array):
    """Return the values of a typed column; documents and arrays are decoded, as in a sample."""
    field = rows.schema.field("c")
    if field.metadata is None:  # a column of a table, with the values of its type
        return array.to_pylist()
    encoding = lookup(field.metadata[b"encoding"].decode())
    values = (array if array.type == field.type else array.cast(field.type)).to_pylist()
    item = encoding.item or encoding
    if not item.arrow.equals(pa.large_binary()) and item.name not in ("json", "str_decimal"):
        return values
    stored = [
        one
        if isinstance(one, bytes)
        else one.encode()
        if isinstance(one, str)
        else [v if isinstance(v, bytes) else v.encode() for v in one]
        for one in values
    ]
    return [decode(encoding, one) for one in stored]


def can_hold(encoding, form):
    return find(form).store_as(encoding) is not None


@pytest.mark.parametrize(
    ("form", "encoding"),
    [(form, encoding) for form in WRITTEN for encoding in VALUES if can_hold(encoding, form)],
)
@settings(max_examples=examples(2), deadline=None)
@given(data=st.data())
def test_a_value_is_the_same_on_every_access_path(data, encoding, form, tmp_path_factory):
    compression = data.draw(st.sampled_from(COMPRESSIONS)) if form in COMPRESSED else None
    values = data.draw(st.lists(VALUES[encoding], min_size=1, max_size=7))
    out = str(tmp_path_factory.mktemp("d") / "out")
    try:
        with Writer(
            out, format=form, columns={"c": encoding}, settings=Settings(compression, shard_rows=3)
        ) as writer:
            for value in values:
                writer.write({"c": value})
    except ValueFitError:  # an empty record or array, a list that would be read as an array
        event("refused")
        return
    rows = read.open(out)
    wanted = [exact(rows[i]["c"]) for i in range(len(rows))]
    stored = rows.columns[0].encoding
    ways = {
        "slice": [row["c"] for row in rows[:]],
        "loop": [row["c"] for row in rows],
        "bytes": [decode(lookup(stored), row["c"]) for row in rows.rows(range(len(rows)))],
        "table": of_column(rows, rows.to_arrow().column("c").combine_chunks()),
        "take": of_column(rows, rows.take(range(len(rows))).column("c")),
        "batches": [
            value for batch in rows.batches(2) for value in of_column(rows, batch.column("c"))
        ],
        "views": [
            value
            for batch in rows.batches(2, views=True)
            for value in of_column(rows, batch.column("c"))
        ],
    }
    for way, found in ways.items():
        assert list(map(exact, found)) == wanted, way
    assert list(map(loose, values)) == list(map(loose, [rows[i]["c"] for i in range(len(rows))]))
