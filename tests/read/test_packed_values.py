"""Samples have the Python values that Arrow returns for the packed table, in every format."""

import datetime
import os
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli import encodings
from flarecli.encodings import lookup, packed_value
from flarecli.errors import FlareError, ValueFitError
from flarecli.write import Writer
from tests.properties import examples

FORMATS = ("mds", "json", "tsv", "ffrecord", "granular", "webdataset", "tfrecord")
DAY = datetime.date(2024, 2, 29)
WHEN = datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)
INSTANTS = [0, 1_700_000_000_123, -1_700_000_000_123]
BOX = pa.struct(
    [
        *(("flag", pa.bool_()), ("at", pa.timestamp("us", "Europe/Berlin")), ("day", pa.date32())),
        *(("none", pa.date32()), ("x", pa.float32()), ("price", pa.decimal128(5, 2))),
        ("took", pa.duration("us")),
    ]
)
ROW = {"flag": True, "at": WHEN, "day": DAY, "none": None, "x": 1.5, "price": Decimal("1.50")}
ROW["took"] = datetime.timedelta(days=-2, hours=5, microseconds=3)
COLUMNS = {
    "date32": pa.array([DAY, datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]),
    "date64": pa.array([0, 86_400_000, -86_400_000], pa.date64()),
    **{
        f"timestamp {unit} {zone}".replace("/", " "): pa.array(INSTANTS, pa.timestamp(unit, zone))
        for unit in ("ms", "us", "ns")
        for zone in (None, "UTC", "Europe/Berlin", "+05:30")
    },
    "timestamp s": pa.array([0, 1, -1], pa.timestamp("s")),
    "time32 s": pa.array([1, 2, 3], pa.time32("s")),
    "time32 ms": pa.array([1, 2, 86_399_999], pa.time32("ms")),
    "time64 us": pa.array([1, 0, 86_399_999_999], pa.time64("us")),
    "time64 ns": pa.array([1000, 0, 86_399_999_999_000], pa.time64("ns")),
    **{
        f"duration {unit}": pa.array([1, -5, 10**9], pa.duration(unit))
        for unit in ("s", "ms", "us", "ns")
    },
    "decimal": pa.array([Decimal("1.10"), Decimal("-0.01"), Decimal(0)], pa.decimal128(9, 2)),
    "decimal256": pa.array([Decimal("1.10"), Decimal(10) ** 30], pa.decimal256(60, 2)),
    "bool": pa.array([True, False, True]),
    "dictionary of bool": pa.array([True, False, True]).dictionary_encode(),
    "dictionary of dates": pa.array([DAY, DAY, datetime.date(1, 1, 1)]).dictionary_encode(),
    "struct": pa.array([ROW, ROW], BOX),
    "list": pa.array([[WHEN, None], [], [WHEN]], pa.list_(pa.timestamp("us"))),
    "list of ns": pa.array([[1, None], [], [3]], pa.list_(pa.timestamp("ns"))),
    "list of times": pa.array([[datetime.time(1, 2, 3), None]], pa.list_(pa.time32("ms"))),
    "list of durations": pa.array([[5, -7], [], [3]], pa.list_(pa.duration("ns"))),
    "list of bools": pa.array([[True, None], [], [False]]),
    "list of boxes": pa.array([[ROW, None], []], pa.list_(BOX)),
    "map": pa.array([[("a", 1)], [], [("b", None)]], pa.map_(pa.string(), pa.int64())),
    "map of dates": pa.array([[("a", DAY)], [("b", None)]], pa.map_(pa.string(), pa.date32())),
    "text": pa.array(["2024-01-01", "true", ""]),
    "bytes": pa.array([b"ab", b"cd"], pa.binary(2)),
    "uint64": pa.array([2**64 - 1, 0], pa.uint64()),
    "half": pa.array([1.5, 2.0], pa.float16()),
}


def is_same(one, other):
    return type(one) is type(other) and one == other and str(one) == str(other)


def tables_of(form):
    """Return the names of the columns to pack as one table: columns of equal length, if the format
    has several columns.

    The format may refuse the column of bytes, so this column is packed alone.
    """
    if form == "ffrecord":
        return [[name] for name in COLUMNS]
    tables = {}
    for name, array in COLUMNS.items():
        tables.setdefault(name if name == "bytes" else len(array), []).append(name)
    return [*tables.values()]


@pytest.mark.parametrize("form", FORMATS)
def test_samples_have_the_values_of_arrow(tmp_path, form):
    for number, names in enumerate(tables_of(form)):
        out, table = tmp_path / str(number), pa.table({name: COLUMNS[name] for name in names})
        try:
            flare.pack(table, out, format=form)
        except FlareError as error:
            assert names == ["bytes"], error
            assert "cannot store bytes" in error.message
            continue
        data, count = flare.open(out), len(table)
        ways = {
            "first": [data[i] for i in range(count)],
            "again": [data[i] for i in range(count)],
            "list": data[[*range(count)]],
            "iteration": [*data],
            "where": [*data.where("true").select(names)],
            "read": [data.read(i) for i in range(count)],
        }
        (batch,) = flare.Loader(data, count, order="sequential")
        for name in names:
            expected = table[name].to_pylist()
            for way, rows in ways.items():
                values = [row[name] for row in rows]
                assert len(values) == count
                assert all(map(is_same, values, expected)), (name, way, values)
            assert [*batch[name]] == expected, name


@pytest.mark.parametrize("form", FORMATS)
def test_tensors_have_their_shape_and_dtype(tmp_path, form):
    tensors = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
    table = pa.table({"v": pa.FixedShapeTensorArray.from_numpy_ndarray(tensors)})
    flare.pack(table, tmp_path / "out", format=form)
    data = flare.open(tmp_path / "out")
    for value, expected in zip(data, tensors, strict=True):
        assert value["v"].dtype == np.float32
        assert np.array_equal(value["v"], expected)
    assert np.array_equal(data.collated([0, 1, 2])["v"], tensors)


@pytest.mark.parametrize("form", ["mds", "json", "granular"])
def test_batches_of_booleans_are_arrays_of_booleans(tmp_path, form):
    flare.pack(pa.table({"v": [True, False, True]}), tmp_path / "out", format=form)
    data = flare.open(tmp_path / "out")
    seen = []
    loader = flare.Loader(
        data, 3, order="sequential", transform=lambda sample: seen.append(sample["v"]) or sample
    )
    for batch in (data.collated([0, 1, 2]), data.collate(data[:3]), *loader):
        assert batch["v"].dtype == bool
        assert batch["v"].tolist() == [True, False, True]
    assert seen == [True, False, True]


def test_other_decoders_and_chosen_encodings_return_the_stored_value(tmp_path):
    table = pa.table({"at": pa.array([0], pa.timestamp("us")), "flag": [True]})
    flare.pack(table, tmp_path / "out")
    data = flare.open(tmp_path / "out", decode={"at": False, "flag": list})
    assert data[0] == {"at": b"1970-01-01 00:00:00.000000", "flag": [1]}
    flare.pack(table, tmp_path / "chosen", encode={"at": "str", "flag": "int"})
    assert flare.open(tmp_path / "chosen")[0] == {"at": "1970-01-01 00:00:00.000000", "flag": 1}


def test_a_value_that_is_not_of_the_listed_type_is_reported(tmp_path):
    with Writer(tmp_path / "out") as writer:
        writer.write_batch(pa.table({"at": pa.array([0, 1], pa.timestamp("us"))}))
    (shard,) = (tmp_path / "out").glob("*.mds")
    data = shard.read_bytes()
    shard.write_bytes(data.replace(b"1970-01-01 00:00:00.000001", b"1970-99-01 00:00:00.000001"))
    data = flare.open(tmp_path / "out")
    assert data[0]["at"] == datetime.datetime(1970, 1, 1)
    for read in (lambda: data[1], lambda: data[[0, 1]], lambda: data.collated([0, 1])):
        with pytest.raises(ValueFitError) as caught:
            read()
        assert str(caught.value) == "row 1: column 'at': not a valid timestamp[us] value"


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(["s", "ms", "us"]),
    st.sampled_from([None, "UTC", "America/New_York", "-03:00"]),
    st.integers(-60_000_000_000, 200_000_000_000),
)
def test_a_timestamp_is_read_as_arrow_reads_it(unit, zone, seconds):
    kind = pa.timestamp(unit, zone)
    array = pa.array([seconds * {"s": 1, "ms": 1000, "us": 10**6}[unit] + 1], kind)
    text = encodings.coerce(array, lookup("str"))[0][0].as_py()
    assert is_same(packed_value(lookup("str"), kind)(text), array[0].as_py())


LATE = pa.array([0, 600_000_000_000], pa.timestamp("s"))  # the year 20983


@pytest.mark.parametrize("column", [LATE, pa.StructArray.from_arrays([LATE], ["at"])])
def test_a_value_that_python_cannot_represent_is_reported_with_its_row(tmp_path, column):
    pq.write_table(pa.table({"v": column}), tmp_path / "t.parquet")
    data = flare.open(str(tmp_path / "t.parquet"))
    kind = data.schema.field("v").type
    for read in (lambda: data[1], lambda: data[[0, 1]], lambda: data.collated([0, 1])):
        with pytest.raises(ValueFitError) as caught:
            read()
        error = caught.value
        assert (error.row, error.column) == (1, "v")
        assert error.message == f"column 'v': Python cannot represent this value of type {kind}"
        assert error.hint == "Read the column as an Arrow batch."
    assert data.take([1])["v"].equals(column.slice(1).cast(kind))


def test_the_class_of_nanoseconds_without_pandas_depends_only_on_the_column(tmp_path):
    whole, fraction = 1_000, 1_001
    at = pa.array([whole, whole, fraction], pa.timestamp("ns", "UTC"))
    took = pa.array([whole] * 3, pa.duration("ns"))
    table = pa.table({"at": at, "box": pa.StructArray.from_arrays([at], ["at"]), "took": took})
    pq.write_table(table, tmp_path / "t.parquet")
    flare.pack(table, tmp_path / "packed")
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError(\"No module named 'pandas'\")\n")
    code = """if True:
        import sys
        import flarecli as flare
        for path in sys.argv[1:]:
            data = flare.open(path)
            print(data[0]["at"], data[[0, 1]][0]["at"], data[0]["box"]["at"], data[0]["took"])
            for name in ("at", "box"):
                try:
                    data.select([name])[[0, 2]]
                except flare.errors.ValueFitError as error:
                    print(error, "|", error.hint)
    """
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    argv = [sys.executable, "-c", code, str(tmp_path / "t.parquet"), str(tmp_path / "packed")]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    hint = "Read the column as an Arrow batch, or install pandas, which represents nanoseconds."
    instant, zoned = "1970-01-01 00:00:00.000001+00:00", "timestamp[ns, tz=UTC]"
    expected = []
    for box in (f"struct<at: {zoned}>", zoned):  # a packed struct is decoded value by value
        expected.append(f"{instant} {instant} {instant} 0:00:00.000001")
        for name, kind in (("at", zoned), ("box", box)):
            message = f"column '{name}': Python cannot represent this value of type {kind}"
            expected.append(f"row 2: {message} | {hint}")
    assert done.stdout.splitlines() == expected
