"""Writer.write_batch: a batch of any Arrow types is cast to the encodings, checked, or refused."""

import contextlib
import datetime as dt
import json
import math
import struct
import uuid
from decimal import Decimal

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from flarecli import read
from flarecli.encodings.names import NAMES
from flarecli.errors import FlareError, UsageError, ValueFitError
from flarecli.model import Settings
from flarecli.write import Writer

ENCODINGS = (
    *NAMES,
    *("ndarray:uint8", "ndarray:int32:2,2", "ndarray:uint8:8"),
    *("int[]", "str[]", "bytes[]", "msgpack[]"),
)
NUMBERS = {
    **{one: f"<{code}" for one, code in zip(("int8", "int16", "int32"), "bhi", strict=True)},
    **{one: f"<{code}" for one, code in zip(("uint8", "uint16", "uint32"), "BHI", strict=True)},
    "int": "<q",
    "int64": "<q",
    "uint64": "<Q",
    "float16": "<e",
    "float32": "<f",
    "float64": "<d",
}


def unions():
    kinds, places = pa.array([0, 1, 0], pa.int8()), pa.array([0, 0, 1], pa.int32())
    yield pa.UnionArray.from_dense(kinds, places, [pa.array([1, 2]), pa.array(["a"])])
    yield pa.UnionArray.from_sparse(kinds, [pa.array([1, 2, 3]), pa.array(["a", "b", "c"])])


def repeated(values):
    return pa.RunEndEncodedArray.from_arrays(pa.array([2, 3], pa.int32()), pa.array(values))


def integers():
    yield pa.array([2**64 - 1, 1, 2], pa.uint64())
    yield pa.array([-(2**63), -1, 3])
    for sign in ("u", ""):
        for bits in (8, 16, 32, 64):
            yield pa.array([1, 2, 100], getattr(pa, f"{sign}int{bits}")())


TEXTS = ["12", "a", '{"x": 1}']
BYTES = [b"\x01\x02", b"12345678", b"\xff" * 16]
ARRAYS = [
    *integers(),
    pa.array([True, False, True]),
    pa.array(np.array([1.5, 2, -3], np.float16)),
    pa.array([1.5, 2, -3], pa.float32()),
    pa.array([1.5, 2, 1e300]),
    pa.array([math.nan, math.inf, -0.0]),
    *(pa.array(TEXTS, kind()) for kind in (pa.string, pa.large_string, pa.string_view)),
    *(pa.array(BYTES, kind()) for kind in (pa.binary, pa.large_binary, pa.binary_view)),
    pa.array([b"12345678"] * 3, pa.binary(8)),
    pa.array([dt.date(2020, 1, 2)] * 3, pa.date32()),
    pa.array([dt.date(2020, 1, 2)] * 3, pa.date64()),
    pa.array([5, 6, 7], pa.timestamp("s")),
    pa.array([5, 6, 7], pa.timestamp("us", "UTC")),
    pa.array([5, 6, 7], pa.time32("s")),
    pa.array([5000, 6000, 7000], pa.time64("ns")),
    pa.array([5, 6, 7], pa.duration("ms")),
    pa.array([(1, 2, 3)] * 3, pa.month_day_nano_interval()),
    *(pa.array([Decimal("1.5")] * 3, kind(5, 2)) for kind in (pa.decimal32, pa.decimal64)),
    *(pa.array([Decimal(7)] * 3, kind(9, 0)) for kind in (pa.decimal128, pa.decimal256)),
    pa.nulls(3),
    pa.array([1, None, 3]),
    pa.array([[1, 2], [], [3]]),
    pa.array([[1, 2], [], [3]], pa.large_list(pa.int32())),
    pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int16(), 2)),
    pa.array([[1, 2], [], [3]], pa.list_view(pa.int64())),
    pa.array([[1, 2], [], [3]], pa.large_list_view(pa.uint8())),
    pa.array([["a", "1"], [], [""]], pa.list_(pa.string_view())),
    pa.array([[b"a"], [], [b"\xff"]]),
    pa.array([[1, None], [], [2]]),
    pa.array([[[1]], [], [[2, 3]]]),
    pa.array([[1.5], [2.0], []]),
    pa.array([{"a": 1, "b": "x"}] * 3),
    pa.array([[("k", 1)], [], [("l", 2)]], pa.map_(pa.string(), pa.int64())),
    pa.array(["12", "2", "12"]).dictionary_encode(),
    pa.array([300, 2, 300]).dictionary_encode(),
    repeated([7, 8]),
    repeated(["7", "8"]),
    *unions(),
    pa.array([uuid.UUID(int=1).bytes] * 3, pa.uuid()),
    pa.array(['{"a":1}', "1", "[]"], pa.json_(pa.string())),
    pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, 1], pa.int8())),
    pa.ExtensionArray.from_storage(pa.opaque(pa.binary(), "t", "v"), pa.array(BYTES)),
    pa.FixedShapeTensorArray.from_numpy_ndarray(np.arange(12, dtype=np.int32).reshape(3, 2, 2)),
]


def stored(folder):
    data = read.open(str(folder))
    return [row["v"] for row in data.rows(range(len(data)))]


def expected(value, encoding):
    """Return the stored bytes of a number, text or bytes, computed with struct and str; None if
    there are none.
    """
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    if encoding in ("str", "bytes"):
        if isinstance(value, bytes):
            is_text = value.decode("utf-8", "ignore").encode() == value
            return value if encoding == "bytes" or is_text else None
        if isinstance(value, str):
            return value.encode()
        return str(value).encode() if encoding == "str" and type(value) is int else None
    if isinstance(value, bytes):
        return None
    try:
        if encoding.startswith("float"):
            data = struct.pack(NUMBERS[encoding], float(text))
            is_wide = math.isinf(struct.unpack(NUMBERS[encoding], data)[0])
            return None if is_wide and not math.isinf(float(text)) else data
        number = int(text)
        is_cut = isinstance(text, float) and number != text
        return None if is_cut else struct.pack(NUMBERS[encoding], number)
    except (ValueError, OverflowError, struct.error):
        return None


def opened(folder, encoding):
    """Return a Writer of the first format that stores the encoding without a replacement."""
    for form in ("mds", "granular", "json", "granular-refs"):
        with contextlib.suppress(UsageError):
            writer = Writer(folder / form, format=form, columns={"v": encoding})
            if writer.columns[0].encoding == encoding:
                return writer
            writer.abandon()
    return pytest.fail(f"no format holds {encoding}")


def halves(array):
    """Return slices within the buffers, and the whole array."""
    return [array[:1], array[1:], array[2:3], array]


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_arrow_type_is_cast_or_refused_by_name(tmp_path, encoding):
    """A slice is stored like the same rows of the whole array."""
    wanted = []
    with opened(tmp_path, encoding) as writer:
        for number, array in enumerate(ARRAYS):
            taken = []
            for row in range(3):
                one = pa.record_batch({"v": array[row : row + 1]})
                try:
                    writer.write_batch(one)
                    taken.append(row)
                    wanted.append((number, row))
                except FlareError as error:
                    assert error.message.startswith("column 'v' ")
            for part, rows in zip(halves(array), ([0], [1, 2], [2], [0, 1, 2]), strict=True):
                batch = pa.record_batch({"v": part})
                if set(rows) <= set(taken):
                    writer.write_batch(batch)
                    wanted += [(number, row) for row in rows]
                else:
                    with pytest.raises(FlareError):
                        writer.write_batch(batch)
    first = {}
    result = stored(tmp_path / writer.format) if wanted else []
    assert len(result) == len(wanted)
    for which, data in zip(wanted, result, strict=True):
        assert data == first.setdefault(which, data), which


@pytest.mark.parametrize("encoding", [*NUMBERS, "str", "bytes"])
def test_values_are_stored_as_struct_packs_them(tmp_path, encoding):
    kinds = (pa.types.is_integer, pa.types.is_floating, pa.types.is_large_string)
    plain = [one for one in ARRAYS if any(is_kind(one.type) for is_kind in kinds)]
    plain += [pa.array(TEXTS), pa.array(BYTES), pa.array(TEXTS, pa.string_view())]
    wanted = []
    with Writer(tmp_path / "out", columns={"v": encoding}) as writer:
        for array in plain:
            for row, value in enumerate(array.to_pylist()):
                if value is None or (isinstance(value, float) and encoding in ("str", "bytes")):
                    continue
                batch = pa.record_batch({"v": array[row : row + 1]})
                data = expected(value, encoding)
                if data is None:
                    with pytest.raises(ValueFitError):
                        writer.write_batch(batch)
                else:
                    writer.write_batch(batch)
                    wanted.append(data)
    assert stored(tmp_path / "out") == wanted


@pytest.mark.parametrize(
    ("array", "encoding", "message"),
    [
        (
            pa.array([1.5]),
            "int",
            "row 0: column 'v' (double): 1.5 cannot be stored as int "
            "(-9223372036854775808 to 9223372036854775807)",
        ),
        (
            pa.array([1, 2**64 - 1], pa.uint64()),
            "int64",
            "row 1: column 'v' (uint64): 18446744073709551615 cannot be stored as int64 "
            "(-9223372036854775808 to 9223372036854775807)",
        ),
        (pa.array([1, None]), "int", "row 1: column 'v' (int64): is null"),
        (
            pa.array([{"a": 1}]),
            "float32",
            "row 0: column 'v' (struct<a: int64>): {'a': 1} cannot be stored as float32",
        ),
        (
            pa.array([b"\xff"]),
            "str",
            "row 0: column 'v' (binary): is not UTF-8",
        ),
    ],
)
def test_a_refused_value_is_reported_with_row_column_and_arrow_type(
    tmp_path, array, encoding, message
):
    with Writer(tmp_path / "out", columns={"v": encoding}) as writer:
        with pytest.raises(ValueFitError) as caught:
            writer.write_batch(pa.record_batch({"v": array}))
        assert str(caught.value) == message
        writer.write({"v": "a" if encoding == "str" else 1})  # no row of the batch was written
    assert len(stored(tmp_path / "out")) == 1


def test_metadata_that_contradicts_the_type_of_a_column_is_ignored(tmp_path):
    field = pa.field("v", pa.int64(), metadata={"encoding": "str"})
    with Writer(tmp_path / "out", columns={"v": "str"}) as writer:
        writer.write_batch(pa.record_batch([pa.array([7, 8])], schema=pa.schema([field])))
    assert stored(tmp_path / "out") == [b"7", b"8"]


def test_text_whose_buffers_are_not_utf8_is_refused(tmp_path):
    text = pa.array([b"a", b"\xff"], pa.large_binary()).view(pa.large_string())
    for metadata in (None, {"encoding": "str"}):
        schema = pa.schema([pa.field("v", pa.large_string(), metadata=metadata)])
        with Writer(tmp_path / "out", columns={"v": "str"}, overwrite=True) as writer:
            with pytest.raises(ValueFitError, match="^invalid Arrow data: .*Invalid UTF8"):
                writer.write_batch(pa.record_batch([text], schema=schema))
            writer.write({"v": "b"})


def test_offsets_outside_the_data_are_refused(tmp_path):
    """Arrow checks the last offset when an array is created, and the others only on request."""
    offsets = pa.py_buffer(np.array([0, 1 << 40, 1], np.int64))
    array = pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), 2, [None, offsets, pa.py_buffer(b"a")]
    )
    with Writer(tmp_path / "out", columns={"v": "bytes"}) as writer:
        with pytest.raises(ValueFitError, match="^invalid Arrow data: "):
            writer.write_batch(pa.record_batch({"v": array}))
        writer.write({"v": b"a"})
    assert stored(tmp_path / "out") == [b"a"]


def test_a_value_of_the_wrong_size_for_its_encoding_is_refused(tmp_path):
    """A value of seven bytes would shift all later columns of the row."""
    field = pa.field("v", pa.large_binary(), metadata={"encoding": "ndarray:uint8:8"})
    batch = pa.record_batch([pa.array([b"1234567"], field.type)], schema=pa.schema([field]))
    with Writer(tmp_path / "out", columns={"v": "ndarray:uint8:8"}) as writer:
        with pytest.raises(ValueFitError) as caught:
            writer.write_batch(batch)
        writer.write({"v": np.zeros(8, np.uint8)})
    assert str(caught.value) == (
        "row 0: column 'v' (large_binary): '1234567' cannot be stored as ndarray:uint8:8"
    )


def test_batches_and_samples_keep_their_order(tmp_path):
    with Writer(tmp_path / "out", columns={"v": "int"}) as writer:
        writer.write({"v": 0})
        writer.write_batch(pa.record_batch({"v": pa.array([1, 2], pa.int8())}))
        writer.write({"v": 3})
        writer.write_batch(pa.table({"v": pa.chunked_array([[4.0], [], [5.0, 6.0]])}))
    assert stored(tmp_path / "out") == [struct.pack("<q", one) for one in range(7)]


def test_a_table_with_a_value_that_does_not_fit_is_not_written(tmp_path):
    table = pa.table({"v": pa.chunked_array([[4.0], [5.0, 6.5]])})
    with Writer(tmp_path / "out", columns={"v": "int"}) as writer:
        with pytest.raises(ValueFitError, match="^row 2: column 'v' "):
            writer.write_batch(table)
        writer.write_batch(table.slice(0, 2))
    assert stored(tmp_path / "out") == [struct.pack("<q", one) for one in (4, 5)]


def test_a_value_that_the_format_cannot_store_is_reported_with_its_row(tmp_path):
    table = pa.table({"v": pa.chunked_array([["a"], ["b", "c\nd"]])})
    with Writer(tmp_path / "out", format="csv", columns={"v": "str"}) as writer:
        with pytest.raises(ValueFitError) as caught:
            writer.write_batch(table)
        writer.write({"v": "e"})
    assert caught.value.where == "row 2"
    assert stored(tmp_path / "out") == [b"e"]


STREAMED = pa.table(
    {
        "text": ["a", "b", "c"],
        "when": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
        "place": [{"x": 1.5, "tags": ["q"]}, {"x": 2.5, "tags": []}, {"x": -1.0, "tags": ["r"]}],
        "items": [[1, 2], [], [3]],
    }
)


@pytest.mark.parametrize(
    "source",
    [
        lambda: STREAMED.to_reader(max_chunksize=2),
        lambda: STREAMED.to_pandas(types_mapper=pd.ArrowDtype),
        lambda: duckdb.from_arrow(STREAMED),
        lambda: pa.StructArray.from_arrays(
            [one.combine_chunks() for one in STREAMED.columns], STREAMED.column_names
        ),
    ],
)
def test_an_arrow_stream_is_written_with_its_types(tmp_path, source):
    with Writer(tmp_path / "out") as writer:
        writer.write_batch(source())
        writer.write_batch(source())
    found = read.open(tmp_path / "out")
    assert found.to_arrow().to_pylist() == STREAMED.to_pylist() * 2
    assert found.schema.field("when").type.tz in ("UTC", "Etc/UTC")  # DuckDB's name for UTC
    with Writer(tmp_path / "copy") as writer:
        writer.write_batch(found)
    assert read.open(tmp_path / "copy").to_arrow().equals(found.to_arrow())


def test_a_stream_is_written_batch_by_batch(tmp_path):
    reader = pa.table({"v": [1.0, 2.0, 3.5, 4.0]}).to_reader(max_chunksize=2)
    with Writer(tmp_path / "out", columns={"v": "int"}) as writer:
        with pytest.raises(ValueFitError, match="^row 2: column 'v' "):
            writer.write_batch(reader)
        writer.write_batch(pa.table({"v": [5.0]}).to_reader(), rows=[9])
        with pytest.raises(UsageError, match="^expected a table, got Series: "):
            writer.write_batch(pd.Series([1.0]))
    assert stored(tmp_path / "out") == [struct.pack("<q", one) for one in (1, 2, 5)]


def test_columns_are_matched_by_name_and_inferred_by_default(tmp_path):
    with Writer(tmp_path / "out") as writer:
        writer.write_batch(pa.table({"b": pa.array([], pa.string()), "a": pa.array([], pa.int8())}))
        assert writer.columns is None
        writer.write_batch(pa.table({"b": ["x"], "a": pa.array([1], pa.int8())}))
        writer.write_batch(pa.table({"a": [2], "b": ["y"]}))
        columns = {column.name: column.encoding for column in writer.columns}
    assert columns == {"a": "int8", "b": "str"}
    assert [*read.open(str(tmp_path / "out"))] == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}]


@pytest.mark.parametrize(
    ("batch", "rows", "message"),
    [
        ({"v": [1]}, None, "expected a table, got dict"),
        (pa.table({"w": [1]}), None, "the batch has no column 'v'"),
        (pa.table({"v": [1], "w": [1]}), None, "the batch has an unknown column 'w'"),
        (
            pa.table([pa.array([1]), pa.array([2])], names=["v", "v"]),
            None,
            "column 'v' occurs 2 times in the batch",
        ),
        (pa.table({"v": [1, 2]}), [0], "rows: expected 2 whole numbers, got [0]"),
        (pa.table({"v": [1, 2]}), [0.5, 1], "rows: expected 2 whole numbers, got [0.5, 1]"),
        (pa.table({"v": [1, 2]}), [1, 0], "rows: expected ascending numbers, got [1, 0]"),
    ],
)
def test_invalid_batches_are_refused(tmp_path, batch, rows, message):
    with Writer(tmp_path / "out", columns={"v": "int"}) as writer:
        with pytest.raises(UsageError) as caught:
            writer.write_batch(batch, rows)
        assert str(caught.value) == message
        writer.write({"v": 1})


def test_row_numbers_are_recorded_in_the_journal_and_counted_by_default(tmp_path):
    writer = Writer(tmp_path / "out", columns={"v": "int"}, settings=Settings(shard_rows=2))
    writer.write_batch(pa.table({"v": [1, 2, 3]}))
    writer.write_batch(pa.table({"v": [4, 5]}), rows=range(10, 12))
    writer.abandon()
    lines = (tmp_path / "out" / ".flare" / "journal").read_text().splitlines()
    assert [json.loads(line).get("next") for line in lines] == [None, None, 2, 11]


def test_typed_columns_of_another_type_are_refused(tmp_path):
    with Writer(tmp_path / "out", columns={"v": "int"}) as writer:
        with pytest.raises(UsageError) as caught:
            writer.write_typed(pa.record_batch({"v": pa.array([1.5])}), np.arange(1))
        assert str(caught.value) == "column 'v': expected int64 for int, got double"
        writer.write({"v": 1})


@pytest.mark.parametrize("exact", [True, False])
def test_a_batch_of_a_dataset_is_written_unchanged(tmp_path, exact):
    columns = {"d": "json_str", "n": "json_int", "t": "json_json", "x": "json_float"}
    rows = [{"d": "a", "n": 5, "t": [1], "x": 0.5}, {"d": "", "n": -1, "t": {}, "x": 2.0}]
    with Writer(tmp_path / "one", format="json", columns=columns) as writer:
        for row in rows:
            writer.write(row)
    with Writer(tmp_path / "two", format="json", columns=columns) as writer:
        for batch in read.open(str(tmp_path / "one")).scan(exact=exact):
            writer.write_batch(batch)
    names = ["shard.00000.json", "index.json"]
    assert [(tmp_path / "two" / one).read_bytes() for one in names] == [
        (tmp_path / "one" / one).read_bytes() for one in names
    ]


@pytest.mark.parametrize(("form", "bad"), [("csv", "a,b"), ("tsv", "a\tb"), ("xsv", "a|b")])
def test_a_value_that_lines_cannot_store_leaves_no_shard(tmp_path, form, bad):
    settings = Settings(separator="|") if form == "xsv" else Settings()
    columns = {"s": "str", "t": "str"}
    good = pa.table({"s": ["x", "y"], "t": ["x", "y"]})
    with (
        pytest.raises(ValueFitError) as caught,
        Writer(tmp_path / "out", columns=columns, format=form, settings=settings) as writer,
    ):
        writer.write_batch(good)
        writer.write_batch(pa.table({"s": ["x", bad], "t": ["x", "y"]}))
    assert (caught.value.row, caught.value.column) == (3, "s")
    assert [path for path in (tmp_path / "out").glob("*") if path.suffix] == []
