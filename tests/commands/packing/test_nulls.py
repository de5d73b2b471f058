"""Values in place of nulls: `pack(null=…)`, compared with pandas' and pyarrow's `fill_null`."""

import datetime
import decimal
import math

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli import formats
from flarecli.commands.packing.nulls import NullValues
from flarecli.errors import UsageError, ValueFitError
from tests.properties import examples

NULL_HINT = (
    "Use --null COL=VALUE or --null fill to store a value in place of a null, or --on-error skip "
    "to omit such rows and list them in failed.jsonl."
)


@pytest.fixture
def pack(tmp_path):
    def run(table, **options):
        pq.write_table(table, tmp_path / "in.parquet")
        flare.pack(tmp_path / "in.parquet", tmp_path / "out", **options)
        return [dict(row) for row in flare.open(tmp_path / "out")]

    return run


TABLE = pa.table(
    {
        "n": pa.array([1, None], pa.int32()),
        "t": ["a", None],
        "b": pa.array([b"x", None]),
        "f": [1.5, None],
        "l": pa.array([[1], None], pa.list_(pa.int64())),
        "y": [True, None],
    }
)


def test_a_null_fails_its_row_and_the_hint_names_the_option(pack):
    for null in ((), ["fail"]):
        with pytest.raises(ValueFitError) as caught:
            pack(TABLE, null=null, overwrite=True)
        assert (caught.value.row, caught.value.hint) == (1, NULL_HINT)


def test_nulls_are_filled_by_type(pack):
    _, row = pack(TABLE, null=["fill"])
    assert math.isnan(row.pop("f"))
    assert row == {"n": 0, "t": "", "b": b"", "l": [], "y": False}


def test_nulls_are_filled_by_column_and_the_rest_by_type(pack):
    null = ["fill", "n=-7", "t=a=b", "b=ü", "f=0.25", "l=[1, 2]", "y=true"]
    _, row = pack(TABLE, null=null)
    assert row == {"n": -7, "t": "a=b", "b": "ü".encode(), "f": 0.25, "l": [1, 2], "y": True}


def test_a_column_without_a_value_still_fails(pack):
    with pytest.raises(ValueFitError) as caught:
        pack(TABLE, null=["n=0"])
    assert caught.value.row == 1


def test_a_column_of_nulls_is_empty_text(pack):
    assert pack(pa.table({"n": [1], "x": pa.nulls(1)}), null=["fill"]) == [{"n": 1, "x": ""}]


def test_formats_that_store_nulls_keep_them_unless_a_value_is_set(pack):
    table = pa.table({"k": ["a", "b"], "n": [1, 2], "t": ["x", None]})
    rows = pack(table, format="webdataset", key="k")
    assert [row["t"] for row in rows] == ["x", None]
    rows = pack(table, format="webdataset", key="k", null=["t=?"], overwrite=True)
    assert [row["t"] for row in rows] == ["x", "?"]


def test_a_key_is_never_filled(pack):
    with pytest.raises(ValueFitError) as caught:
        pack(pa.table({"k": ["a", None], "t": ["x", "y"]}), key="k", null=["fill"])
    assert caught.value.row == 1
    assert "k is null" in caught.value.message


def test_a_resume_needs_the_same_values(pack):
    pack(TABLE, null=["fill"])
    with pytest.raises(UsageError, match="a different source or with different options"):
        pack(TABLE, null=["fill", "n=1"], resume=True)


def test_dictionaries_and_views_of_a_file_are_filled(tmp_path):
    table = pa.table(
        {
            "d": pa.array(["x", None]).dictionary_encode(),
            "v": pa.array(["x", None], pa.string_view()),
        }
    )
    with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as writer:
        writer.write_table(table)
    flare.pack(tmp_path / "in.arrow", tmp_path / "out", null=["d=y", "v=z"])
    assert dict(flare.open(tmp_path / "out")[1]) == {"d": "y", "v": "z"}


def test_columns_that_only_the_condition_reads_are_not_filled(pack):
    table = pa.table({"x": [1, None], "t": pa.array([None, 5], pa.timestamp("us"))})
    rows = pack(table, columns=["x"], null=["fill"], where="t is null or x is null")
    assert rows == [{"x": 1}, {"x": 0}]


@pytest.mark.parametrize("null", ["bogus", "zz=1"])
def test_a_wrong_value_leaves_an_unfinished_pack_as_it_is(pack, tmp_path, null):
    table = pa.table({"n": [1, 2, 3, None]})
    with pytest.raises(ValueFitError):
        pack(table, shard_rows=1)
    before = sorted(path.name for path in (tmp_path / "out").rglob("*"))
    assert before
    with pytest.raises(UsageError):
        pack(table, shard_rows=1, overwrite=True, null=[null])
    assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == before


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.none() | st.integers(-(2**31), 2**31 - 1), min_size=1), st.integers(-9, 9))
def test_numbers_are_filled_as_arrow_fills_them(values, value):
    array = pa.array(values, pa.int32())
    batch = pa.record_batch({"a": array})
    found = NullValues({"a": str(value)}).fill(batch, ["a"]).column("a")
    assert found.equals(pc.fill_null(array, value))


@pytest.mark.parametrize(
    ("array", "text", "value"),
    [
        (pa.array([None], pa.date32()), "2024-02-29", datetime.date(2024, 2, 29)),
        (pa.array([None], pa.timestamp("s")), "1970-01-02", datetime.datetime(1970, 1, 2)),
        (pa.array([None], pa.decimal128(5, 2)), "1.5", decimal.Decimal("1.50")),
        (pa.array([None], pa.struct([("a", pa.int8())])), '{"a": 3}', {"a": 3}),
        (pa.array([None], pa.float32()), "nan", math.nan),
    ],
)
def test_a_text_becomes_a_value_of_the_type(array, text, value):
    batch = pa.record_batch({"a": array})
    found = NullValues({"a": text}).fill(batch, ["a"]).column("a")[-1].as_py()
    assert found == value or (math.isnan(value) and math.isnan(found))


@pytest.mark.parametrize(
    ("array", "setting", "message"),
    [
        (pa.array([None], pa.int8()), "a=300", "--null a: expected int8, got '300'"),
        (pa.array([None], pa.int64()), "a=x", "--null a: expected int64, got 'x'"),
        (
            pa.array([None], pa.list_(pa.int8())),
            "a=[",
            "--null a: expected list<element: int8>, got '['",
        ),
        (pa.array([None], pa.int64()), "b=1", "--null: no column 'b'"),
        (
            pa.array([None], pa.date32()),
            "fill",
            "--null fill: column 'a' has type date32[day], which has no default value",
        ),
    ],
)
def test_a_value_that_does_not_fit_is_refused(tmp_path, array, setting, message):
    pq.write_table(pa.table({"a": array}), tmp_path / "in.parquet")
    with pytest.raises(UsageError) as caught:
        flare.pack(tmp_path / "in.parquet", tmp_path / "out", null=[setting])
    assert caught.value.message == message


def test_all_columns_without_a_default_value_are_reported_at_once(tmp_path):
    when, box = [None, datetime.datetime(2024, 1, 2)], [{"x": 1}, None]
    source = pa.table({"when": when, "n": [None, 1], "box": box})
    with pytest.raises(UsageError) as caught:
        flare.pack(source, tmp_path / "out", null=["fill"])
    assert caught.value.message == (
        "--null fill: column 'when' has type timestamp[us] and column 'box' has type "
        "struct<x: int64>; these types have no default"
    )
    assert caught.value.hint == "Choose values with --null when=VALUE --null box=VALUE."
    values = ["fill", "when=1970-01-01", 'box={"x": 7}']
    flare.pack(source, tmp_path / "out", null=values)
    first, second = flare.open(tmp_path / "out")
    assert first == {"when": datetime.datetime(1970, 1, 1), "n": 0, "box": {"x": 1}}
    assert second == {"when": when[1], "n": 1, "box": {"x": 7}}


@pytest.mark.parametrize(
    ("array", "hint"),
    [
        (pa.array([None], pa.date32()), "Use a form such as --null a=2024-01-31."),
        (pa.array([None], pa.timestamp("s")), "Use a form such as --null a=2024-01-31T12:00:00."),
        (pa.array([None], pa.time32("s")), "Use a form such as --null a=12:00:00."),
        (pa.array([None], pa.duration("ms")), "Use a form such as --null a=0."),
        (pa.array([None], pa.struct({"x": pa.int64()})), "Use a form such as --null a={}."),
        (pa.array([None], pa.list_(pa.int64())), "Use a form such as --null a=[]."),
        (pa.array([None], pa.int64()), ""),
    ],
)
def test_the_form_of_a_value_is_in_the_hint(array, hint):
    batch = pa.record_batch({"a": array})
    with pytest.raises(UsageError) as caught:
        NullValues({"a": "x"}).fill(batch, ["a"])
    assert caught.value.hint == hint
    if hint:
        form = hint.removeprefix("Use a form such as --null a=").removesuffix(".")
        assert NullValues({"a": form}).fill(batch, ["a"]).column("a").is_valid().to_pylist() == [
            True
        ]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["x"], "--null: expected COL=VALUE, fill or fail, got 'x'"),
        (["=x"], "--null: expected COL=VALUE, fill or fail, got '=x'"),
        ({"x": 1}, "--null: expected a list of strings, got {'x': 1}"),
        (["a=1", "a=2"], "--null: duplicate column 'a'"),
    ],
)
def test_an_invalid_setting_is_refused(given, message):
    with pytest.raises(UsageError) as caught:
        NullValues.parse(given)
    assert caught.value.message == message


@pytest.mark.parametrize(
    "kind", [pa.decimal128(5, 2), pa.decimal128(5, -2), pa.decimal256(50, 3), pa.decimal64(9, 1)]
)
def test_nulls_of_decimals_become_zero_without_another_type(kind):
    batch = pa.record_batch({"a": pa.array([None, decimal.Decimal(100)], kind)})
    found = NullValues(fills=True).fill(batch, ["a"]).column("a")
    assert found.type == kind
    assert found.to_pylist() == [decimal.Decimal(0), decimal.Decimal(100)]


FORMATS = ("mds", "json", "tsv", "ffrecord", "granular", "webdataset", "tfrecord")
DICTIONARY = pa.array(["x", None, "y"]).dictionary_encode()
NESTED = {
    "list": pa.array([[1, None], [], [2]], pa.list_(pa.int64())),
    "text": pa.array([["a", None], ["b"], []]),
    "struct": pa.array([{"a": 1, "b": None}, {"a": None, "b": "x"}, {"a": 2, "b": ""}]),
    "structs": pa.array([[{"a": None}, None], [], [{"a": 1}]]),
    "dates": pa.array([[datetime.date(2024, 1, 1), None], [], []]),
    "nulls": pa.array([[None], [], [None, None]], pa.list_(pa.null())),
    "lists": pa.array([[[1, None], None], [], [[]]]),
    "null list": pa.array([[1], None, []], pa.list_(pa.int32())),
    "null struct": pa.array([{"a": 1}, None, {"a": None}]),
    "null map": pa.array([[("a", None)], None, []], pa.map_(pa.string(), pa.int64())),
    "dictionary in list": pa.ListArray.from_arrays([0, 2, 2, 3], DICTIONARY),
    "dictionary in struct": pa.StructArray.from_arrays([DICTIONARY], ["d"]),
}
FLAT = {  # a source -> what `--null fill` stores
    "dictionary": (DICTIONARY, ["x", "", "y"]),
    "null in a dictionary": (
        pa.DictionaryArray.from_arrays(pa.array([0, 1, 0]), pa.array(["x", None])),
        ["x", "", "x"],
    ),
    "all null": (pa.nulls(3, pa.int64()), [0, 0, 0]),
    "bool": (pa.array([True, None, False]), [True, False, False]),
    "uint64": (pa.array([2**64 - 1, None, 0], pa.uint64()), [2**64 - 1, 0, 0]),
    "no type": (pa.nulls(3), ["", "", ""]),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("name", NESTED)
def test_nulls_in_nested_values_are_kept(tmp_path, name, form):
    array = NESTED[name]
    table = pa.table({"v": array})
    if form == "tfrecord" and name in ("list", "text", "dictionary in list"):
        with pytest.raises(ValueFitError) as caught:  # the lists of an Example have no nulls
            flare.pack(table, tmp_path / "out", format=form)
        assert caught.value.hint == (
            "Use --encode v=json to store lists that contain nulls, or use --on-error skip "
            "to omit such rows."
        )
        return
    if form == "webdataset" and array.null_count:
        table = table.append_column("k", pa.array([1, 2, 3]))  # each sample needs a member
    flare.pack(table, tmp_path / "out", format=form)
    found = flare.open(tmp_path / "out").to_arrow(["v"])["v"]
    assert found.to_pylist() == array.to_pylist()
    assert str(found.type).replace("large_string", "string") == str(array.type)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize(("array", "filled"), FLAT.values(), ids=FLAT)
def test_nulls_are_kept_or_filled(tmp_path, array, filled, form):
    table = pa.table({"v": array, "k": [1, 2, 3]} if form != "ffrecord" else {"v": array})
    if formats.find(form).holds_null:
        flare.pack(table, tmp_path / "out", format=form)
        found = flare.open(tmp_path / "out").to_arrow(["v"])["v"]
        assert found.to_pylist() == array.to_pylist()
        assert str(found.type).replace("large_string", "string") == str(array.type)
    else:
        with pytest.raises((ValueFitError, UsageError)) as caught:
            flare.pack(table, tmp_path / "out", format=form)
        assert "--null fill" in caught.value.hint
    flare.pack(table, tmp_path / "out", format=form, null=["fill"], overwrite=True)
    assert flare.open(tmp_path / "out").to_arrow(["v"])["v"].to_pylist() == filled


def test_missing_numbers_of_pandas_are_nulls(tmp_path):
    frame = pd.DataFrame({"n": [1, None, 3], "m": pd.array([1, None, 3], "Int64")})
    with pytest.raises(ValueFitError) as caught:
        flare.pack(frame, tmp_path / "out")
    assert (caught.value.row, caught.value.hint) == (1, NULL_HINT)
    flare.pack(frame, tmp_path / "out", null=["fill"])
    assert flare.open(tmp_path / "out")[1]["m"] == 0
    assert math.isnan(flare.open(tmp_path / "out")[1]["n"])


def test_a_sample_without_members_is_a_failed_row(tmp_path):
    table = pa.table({"v": ["a", None, "b"]})
    with pytest.raises(ValueFitError) as caught:
        flare.pack(table, tmp_path / "out", format="webdataset")
    assert str(caught.value) == (
        "Table[1]: every column is null; a sample needs at least one member"
    )
    assert caught.value.hint == (
        "Use -f tfrecord, which stores such rows, or --null COL=VALUE to store a value, or use "
        "--on-error skip to omit such rows."
    )
    flare.pack(table, tmp_path / "out", format="webdataset", on_error="skip")
    assert [row["v"] for row in flare.open(tmp_path / "out")] == ["a", "b"]


def test_a_nan_key_is_a_failed_row(tmp_path):
    table = pa.table({"k": [1.5, math.nan, 2.5], "v": [1, 2, 3]})
    with pytest.raises(ValueFitError) as caught:
        flare.pack(table, tmp_path / "out", key="k")
    assert str(caught.value) == "Table[1]: nan: k is NaN; keys must not be NaN"
    flare.pack(table, tmp_path / "out", key="k", on_error="skip")
    assert [row["v"] for row in flare.open(tmp_path / "out")] == [1, 3]
