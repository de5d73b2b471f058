"""Arrow types as headers of playlists, and columns restored to these types."""

import datetime
import math
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from flarecli.encodings import (
    coerce,
    column,
    infer_encoding,
    is_restorable,
    lookup,
    parse_type,
    plain,
    restore,
    type_header,
    without_variants,
)
from flarecli.errors import UsageError, ValueFitError
from flarecli.formats import find, names
from tests.properties import examples

UNITS = ("s", "ms", "us")  # nanoseconds may not fit into Python values
ZONES = (None, "UTC", "Europe/Berlin", "+05:30")
SECONDS = st.integers(-(2**31), 2**31)  # the years 1901 to 2038
LEAVES = st.sampled_from(
    [
        pa.bool_(),
        pa.int8(),
        pa.uint16(),
        pa.int64(),
        pa.uint64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.large_string(),
        pa.string_view(),
        pa.date32(),
        pa.date64(),
        pa.time32("s"),
        pa.time32("ms"),
        pa.time64("us"),
        pa.decimal128(12, 3),
        pa.decimal128(38, 0),
        *(pa.duration(unit) for unit in UNITS),
        *(pa.timestamp(unit, zone) for unit in UNITS for zone in ZONES),
    ]
)
ALONE = st.sampled_from(  # not inside of JSON
    [
        pa.binary(),
        pa.binary(3),
        pa.binary_view(),
        pa.time64("ns"),
        pa.duration("ns"),
        *(pa.timestamp("ns", zone) for zone in ZONES),
        pa.dictionary(pa.int8(), pa.string()),
        pa.dictionary(pa.int32(), pa.large_string(), ordered=True),
    ]
)
FIELDS = st.text("abc é:{}", min_size=1, max_size=5)
NESTED = st.recursive(
    LEAVES,
    lambda inner: (
        inner.map(pa.list_)
        | inner.map(pa.large_list)
        | inner.map(lambda item: pa.list_(item, 2))
        | inner.map(lambda item: pa.map_(pa.string(), item))
        | st.dictionaries(FIELDS, inner, min_size=1, max_size=3).map(
            lambda fields: pa.struct(list(fields.items()))
        )
    ),
    max_leaves=5,
)


def value_of(kind):
    """Return a strategy for the Python values of a type, with nulls inside of nested values
    only.
    """
    if pa.types.is_boolean(kind):
        return st.booleans()
    if pa.types.is_integer(kind):
        bits, is_signed = kind.bit_width, pa.types.is_signed_integer(kind)
        return (
            st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)
            if is_signed
            else st.integers(0, (1 << bits) - 1)
        )
    if pa.types.is_floating(kind):
        return st.floats(width=kind.bit_width, allow_nan=False)
    if pa.types.is_dictionary(kind):
        return st.sampled_from(["a", "b", "", "é"])
    if pa.types.is_fixed_size_binary(kind):
        return st.binary(min_size=kind.byte_width, max_size=kind.byte_width)
    if pa.types.is_binary(kind) or pa.types.is_binary_view(kind):
        return st.binary(max_size=5)
    if pa.types.is_date(kind):
        return st.dates(datetime.date(1700, 1, 1), datetime.date(2200, 1, 1))
    if pa.types.is_time(kind):
        step = {"s": 10**6, "ms": 10**3}.get(kind.unit, 1)
        return st.integers(0, (86_400 * 10**6 - 1) // step).map(
            lambda n: (
                datetime.datetime(2000, 1, 1) + datetime.timedelta(microseconds=n * step)
            ).time()
        )
    if pa.types.is_decimal(kind):
        return st.integers(-(10**11), 10**11).map(lambda n: Decimal(n).scaleb(-kind.scale))
    if pa.types.is_timestamp(kind) or pa.types.is_duration(kind):
        return SECONDS
    if pa.types.is_struct(kind):
        return st.fixed_dictionaries({one.name: st.none() | value_of(one.type) for one in kind})
    if pa.types.is_map(kind):
        return st.dictionaries(
            st.text("xyz", max_size=3), value_of(kind.item_type), max_size=2
        ).map(lambda value: list(value.items()))
    if pa.types.is_nested(kind):
        size = kind.list_size if pa.types.is_fixed_size_list(kind) else None
        item = value_of(kind.value_type)
        if pa.types.is_nested(kind.value_type):
            item = st.none() | item
        return st.lists(item, min_size=size or 0, max_size=3 if size is None else size)
    return st.text(st.characters(exclude_categories=["Cs"]), max_size=5)


TENSORS = st.tuples(
    st.sampled_from(["int8", "int64", "uint16", "float32", "float64"]),
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
).map(lambda pair: pa.fixed_shape_tensor(pa.type_for_alias(pair[0]), pair[1]))
ARRAYS = (NESTED | ALONE).flatmap(
    lambda kind: st.lists(value_of(kind), min_size=1, max_size=5).map(
        lambda values: pa.array(values, kind)
    )
)


@settings(max_examples=examples(300))
@given(NESTED | ALONE | TENSORS)
def test_the_header_of_a_type_is_parsed_as_this_type(kind):
    header = type_header(without_variants(kind))
    assume(header is not None)  # fewer than six levels
    assert parse_type(header).equals(without_variants(kind))


@pytest.mark.parametrize("format", names(writable=True))
@settings(max_examples=examples(60))
@given(array=ARRAYS)
def test_a_column_of_any_type_is_restored_from_its_encoding(format, array):
    inferred = column("a", infer_encoding(pa.field("a", array.type), b"\0"))
    holds_bytes = format not in ("json", "csv", "tsv", "xsv")
    assume(holds_bytes or inferred.encoding not in ("bytes", "bytes[]"))
    (stored,) = find(format).arrange([inferred])
    encoding = lookup(stored.encoding)
    typed, failures = coerce(array, encoding)
    assert not failures
    natural, natural_encoding = plain(typed, encoding)
    kind = without_variants(array.type)
    assume(type_header(kind) is not None)
    assert is_restorable(natural_encoding, kind)
    restored = restore(natural, kind, natural_encoding)
    restored.validate(full=True)
    assert restored.type.equals(kind)
    assert restored.to_pylist() == array.to_pylist()


@pytest.mark.parametrize("format", ["mds", "json", "granular", "webdataset", "tfrecord"])
@settings(max_examples=examples(40))
@given(kind=TENSORS, rows=st.integers(1, 4))
def test_a_tensor_is_restored_from_its_encoding(format, kind, rows):
    numbers = np.arange(rows * math.prod(kind.shape)) % 100
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(
        numbers.reshape(rows, *kind.shape).astype(kind.value_type.to_pandas_dtype())
    )
    inferred = column("a", infer_encoding(pa.field("a", array.type)))
    (stored,) = find(format).arrange([inferred])
    typed, failures = coerce(array, lookup(stored.encoding))
    assert not failures
    natural, encoding = plain(typed, lookup(stored.encoding))
    restored = restore(natural, without_variants(array.type), encoding)
    assert restored.equals(array)


def test_durations_in_documents_may_be_written_by_python_or_pandas():
    documents = [
        "-1 day, 23:59:58.500000",
        "0:00:01",
        "1 days 00:00:00.000000001",
        "-1 days +00:00:00",
    ]
    array = pa.array([f'["{text}"]' for text in documents], pa.large_string())
    found = restore(array, pa.list_(pa.duration("ns")), lookup("json"))
    assert found.cast(pa.list_(pa.int64())).to_pylist() == [
        [-1_500_000_000],
        [1_000_000_000],
        [86_400_000_000_001],
        [-86_400_000_000_000],
    ]


@pytest.mark.parametrize(
    ("value", "kind", "encoding", "message"),
    [
        ("2020-13-01", pa.timestamp("us"), "str", "a value is not a valid timestamp[us]"),
        (
            "2020-01-01 00:00:00",
            pa.timestamp("us", "UTC"),
            "str",
            "a value is not a valid timestamp[us, tz=UTC]",
        ),
        ("25:00:00", pa.time32("s"), "str", "a value is not a valid time32[s]"),
        ("1.234", pa.decimal128(5, 2), "str_decimal", "a value is not a valid decimal128(5, 2)"),
        ("x", pa.duration("s"), "str", "a value is not a valid duration[s]"),
        ("[", pa.list_(pa.bool_()), "json", "a value is not a valid list<item: bool>"),
        ("{}", pa.list_(pa.bool_()), "json", "a value is not a valid list<item: bool>"),
        ('["x"]', pa.list_(pa.bool_()), "json", "a value is not a valid list<item: bool>"),
        ("[1]", pa.list_(pa.time64("us")), "json", "a value is not a valid list<item: time64[us]>"),
        ("[128]", pa.list_(pa.int8()), "json", "a value is not a valid list<item: int8>"),
        ("[" * 100_000, pa.list_(pa.bool_()), "json", "a value is not a valid list<item: bool>"),
        (
            "[1, 2, 3]",
            pa.list_(pa.int8(), 2),
            "json",
            "a value is not a valid fixed_size_list<item: int8>[2]",
        ),
    ],
)
def test_a_value_of_another_type_is_reported_with_its_row(value, kind, encoding, message):
    valid = None if encoding != "json" else "null"
    array = pa.array([valid, valid, value, valid, value], pa.large_string())
    with pytest.raises(ValueFitError) as caught:
        restore(array, kind, lookup(encoding))
    assert (caught.value.row, caught.value.message) == (2, message)


def test_a_document_that_is_too_large_is_not_decoded():
    array = pa.array(["[]", "[" + " " * (1 << 24) + "]"], pa.large_string())
    with pytest.raises(ValueFitError) as caught:
        restore(array, pa.list_(pa.bool_()), lookup("json"))
    assert (caught.value.row, caught.value.message, caught.value.hint) == (
        1,
        "document has 16777218 bytes; the maximum is 16777216",
        "Read the column as it is stored, with exact=True.",
    )


def test_null_rows_of_large_fixed_size_lists_are_not_allocated():
    array = pa.nulls(1000, pa.large_list(pa.int64()))
    with pytest.raises(ValueFitError) as caught:
        restore(array, pa.list_(pa.int8(), 1 << 24), lookup("int[]"))
    assert caught.value.message == (
        "the null values of fixed_size_list<item: int8>[16777216] need too much memory"
    )


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("int128", "unknown type 'int128'"),
        (
            {"timestamp": ["us", "Mars/Olympus"]},
            "unknown type {'timestamp': ['us', 'Mars/Olympus']}",
        ),
        (
            {"timestamp": ["us", "../../etc/passwd"]},
            "unknown type {'timestamp': ['us', '../../etc/passwd']}",
        ),
        ({"decimal128": [38, 1 << 29]}, "unknown type {'decimal128': [38, 536870912]}"),
        ({"decimal128": [39, 0]}, "unknown type {'decimal128': [39, 0]}"),
        ({"fixed_size_binary": 1 << 30}, "unknown type {'fixed_size_binary': 1073741824}"),
        ({"fixed_size_list": ["int8", 0]}, "unknown type {'fixed_size_list': ['int8', 0]}"),
        (
            {"fixed_size_list": [{"fixed_size_list": ["int8", 1 << 13]}, 1 << 13]},
            "unknown type {'fixed_size_list': ['int8', 8192]}",
        ),
        ({"fixed_size_list": ["int8", -1]}, "unknown type {'fixed_size_list': ['int8', -1]}"),
        ({"fixed_size_list": ["int8", True]}, "unknown type {'fixed_size_list': ['int8', True]}"),
        ({"tensor": ["int8", []]}, "unknown type {'tensor': ['int8', []]}"),
        ({"tensor": ["int8", [0]]}, "unknown type {'tensor': ['int8', [0]]}"),
        (
            {"tensor": ["int8", [1 << 20, 1 << 20]]},
            "unknown type {'tensor': ['int8', [1048576, 1048576]]}",
        ),
        ({"struct": ["int8"]}, "unknown type {'struct': ['int8']}"),
        (
            {"dictionary": ["string", "string", False]},
            "unknown type {'dictionary': ['string', 'string', False]}",
        ),
        ({"list": "int8", "map": []}, "unknown type {'list': 'int8', 'map': []}"),
        (7, "unknown type 7"),
        (None, "unknown type None"),
        (
            {"struct": {str(i): "int8" for i in range(1000)}},
            "type has more than 1000 nested types or 5 levels",
        ),
    ],
)
def test_an_invalid_header_is_refused(header, message):
    with pytest.raises(UsageError) as caught:
        parse_type(header)
    assert caught.value.message == message


def test_a_deep_header_is_refused():
    header = "int8"
    for _ in range(6):
        header = {"list": header}
    with pytest.raises(UsageError) as caught:
        parse_type(header)
    assert caught.value.message == "type has more than 1000 nested types or 5 levels"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from(["int8", "string", "us", "UTC", "list", "x"])
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "list",
                    "struct",
                    "map",
                    "timestamp",
                    "dictionary",
                    "decimal32",
                    "tensor",
                    "fixed_size_list",
                    "x",
                ]
            ),
            inner,
            max_size=2,
        )
    ),
    max_leaves=8,
)


@settings(max_examples=examples(500))
@given(JSON)
def test_any_header_is_a_type_or_is_refused(header):
    try:
        kind = parse_type(header)
    except UsageError:
        return
    assert type_header(kind) is not None
    assert parse_type(type_header(kind)).equals(kind)


@pytest.mark.parametrize(
    "kind", [pa.month_day_nano_interval(), pa.struct([("a", pa.int8()), ("a", pa.int8())])]
)
def test_some_types_have_no_header(kind):
    assert type_header(kind) is None


DEEP = pa.int8()
for _ in range(6):
    DEEP = pa.struct([("a", DEEP)])


@pytest.mark.parametrize(
    "kind",
    [
        DEEP,
        pa.struct([(str(i), pa.int8()) for i in range(1100)]),
        pa.binary((1 << 24) + 1),
        pa.list_(pa.float32(), 0),
        pa.decimal128(3, 5),
    ],
)
def test_a_type_beyond_the_limits_of_a_header_has_none(kind):
    assert type_header(kind) is None


@pytest.mark.parametrize(
    "kind",
    [pa.float16(), pa.decimal256(40, 0), pa.decimal128(5, -2), pa.list_(pa.float16())],
)
def test_types_that_conditions_read_as_another_type_are_restored(kind):
    assert is_restorable(lookup("json" if pa.types.is_nested(kind) else "str_float"), kind)


def test_null_values_of_many_columns_share_one_limit():
    # the null values of the second column alone take exactly the limit of 512 MiB, at 8 bytes each
    fields = [("a", pa.list_(pa.int8(), 1)), ("b", pa.list_(pa.int8(), 1 << 24))]
    array = pa.array(["{}"] * 4, pa.large_string())
    with pytest.raises(ValueFitError) as caught:
        restore(array, pa.struct(fields), lookup("json"))
    assert caught.value.message == (
        "the null values of fixed_size_list<item: int8>[16777216] need too much memory"
    )


def test_null_rows_of_an_embedding_are_restored():
    array = pa.nulls(8192, pa.large_list(pa.float32()))
    found = restore(array, pa.list_(pa.float32(), 1024), lookup("float32[]"))
    assert (found.null_count, found.values.null_count) == (8192, 8192 * 1024)


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.date32()])
@pytest.mark.parametrize("year", [-1, 10_000])
def test_a_year_that_text_cannot_represent_is_a_failure(kind, year):
    days = (year - 1970) * 366
    value = days * (86_400 * 10**6 if pa.types.is_timestamp(kind) else 1)
    ints = pa.array([0, value], pa.int64() if pa.types.is_timestamp(kind) else pa.int32())
    array = ints.cast(kind)
    _, failures = coerce(array, lookup("str"))
    assert failures == [(1, "the value cannot be stored as str")]
