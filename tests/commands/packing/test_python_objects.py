"""Packing of Python objects: tables, iterables of dicts and map-style datasets."""

import datetime
import decimal
import errno
import json
import os
import resource
import subprocess
import sys
import tempfile

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from PIL import Image

from flarecli import commands, read
from flarecli.errors import ReachError, UsageError, ValueFitError

FRAME = pd.DataFrame(
    {
        "text": ["x", "y", "z"],
        "when": pd.to_datetime(["2024-01-01", "2024-01-02", "2024-01-03"]),
        "n": [1, 2, 3],
    }
)
ROWS = [
    {"text": text, "when": datetime.datetime(2024, 1, n), "n": n} for n, text in enumerate("xyz", 1)
]


class MapDataset:
    """A map-style dataset as torch defines it: without `__iter__`."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


@pytest.mark.parametrize(
    "source",
    [
        lambda: FRAME,
        lambda: FRAME.set_index(pd.Index([7, 5, 9])),
        lambda: pa.table(FRAME),
        lambda: pa.record_batch(pa.table(FRAME).to_batches()[0]),
        lambda: pa.table(FRAME).to_reader(),
        lambda: duckdb.from_df(FRAME),
        lambda: ROWS,
        lambda: iter(ROWS),
        lambda: MapDataset(ROWS),
        lambda: iter(pa.table(FRAME).to_batches(max_chunksize=1)),
        lambda: [pa.table(FRAME).slice(0, 2), pa.table(FRAME).slice(2)],
    ],
)
def test_an_object_is_packed_with_its_types(tmp_path, source):
    packed = commands.pack(source(), tmp_path / "out")
    data = read.open(tmp_path / "out")
    assert (packed.rows, data.to_arrow().to_pylist()) == (3, ROWS)
    assert data.schema.names == ["text", "when", "n"]
    assert pa.types.is_timestamp(data.schema.field("when").type)


def test_the_index_of_a_frame_is_packed_if_it_has_a_name(tmp_path):
    commands.pack(FRAME.set_index("text"), tmp_path / "out")
    assert read.open(tmp_path / "out").to_arrow().to_pylist() == ROWS


def test_a_dataset_is_packed_after_where_and_select(tmp_path):
    commands.pack(ROWS, tmp_path / "one")
    data = read.open(tmp_path / "one")
    commands.pack(data.where("n > 1").select(["n", "text"]), tmp_path / "two")
    found = read.open(tmp_path / "two").to_arrow().to_pylist()
    assert found == [{"n": 2, "text": "y"}, {"n": 3, "text": "z"}]


def test_a_dataset_keeps_its_encodings(tmp_path):
    rows = {
        "doc": ['{"a": 1}', "[2]", "null"],
        "image": [b"\xff\xd8\xff1", b"2", b"3"],
        "number": ["1", "22", "3"],
        "when": pa.array([0, 1, 2], pa.timestamp("us")),
        "big": pa.array([2**64 - 1, 0, 1], pa.uint64()),
        "kind": pa.array(["a", "b", "a"]).dictionary_encode(),
        "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((3, 2, 2), np.float32)),
        "flag": [True, False, True],
    }
    encode = {"doc": "json", "image": "bytes", "number": "str_int"}
    commands.pack(pa.table(rows), tmp_path / "one", encode=encode)
    data = read.open(tmp_path / "one")
    for form in ("mds", "webdataset"):
        commands.pack(tmp_path / "one", tmp_path / f"address.{form}", format=form)
        commands.pack(data, tmp_path / f"object.{form}", format=form)
        commands.pack(data.where("big > 0"), tmp_path / f"where.{form}", format=form)
        commands.pack(data, tmp_path / f"option.{form}", format=form, where="big > 0")
        expected = read.open(tmp_path / f"address.{form}")
        for name, selected in (("object", [0, 1, 2]), ("where", [0, 2]), ("option", [0, 2])):
            found = read.open(tmp_path / f"{name}.{form}")
            assert (found.columns, found.schema) == (expected.columns, expected.schema)
            assert found.rows(range(len(found)), ["doc", "image", "number", "when"]) == (
                expected.rows(selected, ["doc", "image", "number", "when"])
            )
            assert found.to_arrow().to_pylist() == [
                expected.to_arrow().to_pylist()[row] for row in selected
            ]


def test_all_options_of_a_pack_apply(tmp_path):
    commands.pack(
        FRAME,
        tmp_path / "out",
        where="n <> 2",
        key="n",
        shuffle=1,
        format="webdataset",
        part_rows=None,
    )
    assert sorted(row["text"] for row in read.open(tmp_path / "out")) == ["x", "z"]
    commands.pack(iter(ROWS), tmp_path / "parts", part_rows=2)
    assert [row["n"] for row in read.open(tmp_path / "parts")] == [1, 2, 3]


def test_a_pack_of_an_iterator_is_resumed_with_the_same_rows(tmp_path):
    rows = [{"n": n, "link": str(tmp_path / f"{n}.txt")} for n in range(30)]
    for n in (*range(23), *range(24, 30)):
        (tmp_path / f"{n}.txt").write_text(f"text {n}")
    options = {"shard_rows": 5, "fetch": ["link"]}
    out = tmp_path / "out"
    with pytest.raises(ReachError) as caught:
        commands.pack(iter(rows), out, **options)
    assert str(caught.value) == f"list_iterator[23]: {tmp_path}/23.txt: no such file or folder"
    with pytest.raises(UsageError) as other:
        commands.pack(iter(rows[1:]), out, resume=True, **options)
    assert other.value.message == (
        "the unfinished pack was started with another source, or before the source was changed"
    )
    (tmp_path / "23.txt").write_text("text 23")
    packed = commands.pack(iter(rows), out, resume=True, **options)
    assert (packed.rows, packed.resumed_rows) == (30, 20)
    assert [row["link"] for row in read.open(out)] == [f"text {n}" for n in range(30)]


def test_relative_links_start_in_the_working_folder(tmp_path, in_tmp_path):
    (tmp_path / "a.txt").write_bytes(b"content")
    commands.pack([{"name": "a", "link": "a.txt"}], "out", fetch=["link:data"])
    assert read.open("out")[0]["data"] == "content"


def test_arrays_images_and_tensors_are_packed(tmp_path):
    rows = [
        {
            "image": Image.new("RGB", (3, 2), (n, 0, 0)),
            "matrix": np.full((2, 3), n, np.float32),
            "vector": np.arange(n),
            "scalar": np.array(n),
        }
        for n in range(3)
    ]
    commands.pack(MapDataset(rows), tmp_path / "out")
    data = read.open(tmp_path / "out")
    assert {column.name: column.encoding for column in data.columns} == {
        "image": "png",
        "matrix": "ndarray:float32:2,3",
        "vector": "json",
        "scalar": "int",
    }
    assert data[2]["image"].getpixel((1, 1)) == (2, 0, 0)
    assert np.array_equal(data[2]["matrix"], rows[2]["matrix"])
    assert data.schema.field("matrix").type == pa.fixed_shape_tensor(pa.float32(), [2, 3])
    assert data.to_arrow()["vector"].to_pylist() == [[], [0], [0, 1]]
    assert data[2]["scalar"] == 2


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            5,
            "expected an address, a DataFrame, an Arrow table, a dataset, or an iterable of dicts, got 5",
        ),
        (
            {"a": 1},
            "expected an address, a DataFrame, an Arrow table, a dataset, or an iterable of dicts, "
            "got {'a': 1}",
        ),
        ([1, 2], "list contains values of type int; expected dicts"),
        (MapDataset([("x", 1)]), "MapDataset contains values of type tuple; expected dicts"),
        (pa.table({"a": [1]}).slice(1), "Table has no rows"),
        (
            [pa.table({"a": [1]}), pa.table({"b": [1]})],
            "a batch has the columns {'b': 'int64'}; the first batch has {'a': 'int64'}",
        ),
        ([], "no source given"),
    ],
)
def test_other_objects_are_refused(tmp_path, source, message):
    with pytest.raises(UsageError) as caught:
        commands.pack(source, tmp_path / "out")
    assert caught.value.message == message
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("row", "error", "message"),
    [
        (
            {"n": "x"},
            ValueFitError,
            "row 1500: column 'n': got string; earlier rows have int64",
        ),
        ({"n": 1, "m": 2}, UsageError, "row 1500: column 'm' is not in the first 1024 rows"),
        (
            {"n": 1 << 70},
            ValueFitError,
            "row 1500: column 'n': Python int too large to convert to C long",
        ),
    ],
)
def test_a_row_that_does_not_fit_the_first_rows_is_named(tmp_path, row, error, message):
    rows = [{"n": n} for n in range(2000)]
    rows[1500] = row
    with pytest.raises(error) as caught:
        commands.pack(iter(rows), tmp_path / "out")
    assert str(caught.value) == message


def test_arrays_of_several_shapes_in_one_column_are_refused(tmp_path):
    rows = [{"x": np.zeros((2, 2))}, {"x": np.zeros((2, 3))}]
    with pytest.raises(ValueFitError) as caught:
        commands.pack(rows, tmp_path / "out")
    assert str(caught.value) == (
        "row 0: column 'x': arrays with more than one dimension must have the same shape and dtype"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rows": "0"}, "Table: rows of a table cannot be selected by number"),
        ({"streams": ["x"]}, "Table: a table has no streams"),
    ],
)
def test_options_for_datasets_are_refused_with_the_name_of_the_object(tmp_path, options, message):
    with pytest.raises(UsageError) as caught:
        commands.pack(pa.table({"a": [1]}), tmp_path / "out", **options)
    assert str(caught.value) == message


def test_temporary_files_are_removed(tmp_path, monkeypatch):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    commands.pack(FRAME, tmp_path / "out")
    with pytest.raises(ValueFitError):
        commands.pack([{"n": None}, {"n": 1}], tmp_path / "other")
    assert os.listdir(scratch) == []


def test_a_full_disk_is_reported(tmp_path):
    code = (
        "import flarecli, sys\n"
        f"try: flarecli.pack(({{'x': 'y' * 1000}} for _ in range(5000)), {str(tmp_path / 'out')!r})\n"
        "except flarecli.errors.ReachError as error: print(error, '|', error.hint)\n"
    )
    limit = 1 << 20
    env = os.environ | {"TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=env,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert done.stdout == (
        f"{tmp_path}: cannot write temporary files for the rows: {os.strerror(errno.EFBIG).lower()} "
        "| Set TMPDIR to a folder on a larger disk.\n"
    )


LATER = [  # type of the first 1,024 values, a later value, and the reason
    (1, 1.5, "got double; earlier rows have int64"),
    ([1], [1.7], "got double; earlier rows have int64"),
    ([1], np.array([0.5]), "got double; earlier rows have int64"),
    (
        {"x": 1},
        {"x": 1, "y": 5},
        "got struct<x: int64, y: int64>; earlier rows have struct<x: int64>",
    ),
    ("x", b"xx", "got binary; earlier rows have string"),
    (True, 2, "got int64; earlier rows have bool"),
    (
        datetime.datetime(2024, 1, 1),
        datetime.datetime(2024, 1, 1, tzinfo=datetime.UTC),
        "got timestamp[us, tz=UTC]; earlier rows have timestamp[us]",
    ),
]  # the later value is alone in its chunk


@pytest.mark.parametrize(("first", "later", "reason"), LATER)
def test_a_later_value_is_never_changed_to_fit_the_first_rows(tmp_path, first, later, reason):
    rows = [{"a": first}] * 1024 + [{"a": later}]
    with pytest.raises(ValueFitError) as caught:
        commands.pack(rows, tmp_path / "out")
    assert str(caught.value) == f"row 1024: column 'a': {reason}"


def test_times_with_and_without_a_zone_are_not_mixed(tmp_path):
    when = datetime.datetime(2024, 1, 1)
    with pytest.raises(ValueFitError) as caught:
        commands.pack([{"a": when}, {"a": when.replace(tzinfo=datetime.UTC)}], tmp_path / "out")
    assert str(caught.value) == (
        "row 0: column 'a': some values have a time zone, and others have none"
    )


def test_later_values_that_fit_without_loss_are_packed(tmp_path):
    first = {"n": 1, "s": {"x": 1, "y": 2}, "l": [1.5], "d": decimal.Decimal("1.25")}
    later = {"n": 2, "s": {"x": 3}, "l": [2], "d": decimal.Decimal("1.5")}
    commands.pack([first] * 1030 + [later], tmp_path / "out")
    found = read.open(tmp_path / "out").to_arrow().slice(1030).to_pylist()
    assert found == [{"n": 2, "s": {"x": 3, "y": None}, "l": [2.0], "d": decimal.Decimal("1.50")}]


def test_tensors_in_any_memory_order_are_packed(tmp_path):
    image = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    rows = [{"x": image.transpose(2, 0, 1), "mask": image[:, :, 0] > 5}] * 3
    commands.pack(rows, tmp_path / "out")
    data = read.open(tmp_path / "out")
    assert np.array_equal(data[1]["x"], image.transpose(2, 0, 1))
    assert np.array_equal(data[1]["mask"], image[:, :, 0] > 5)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ([{"a": 1}, None], "row 1: expected a dict with column names, got None"),
        ([{"a": 1}, {3: 1}], "row 1: expected a dict with column names, got {3: 1}"),
        (
            [pa.table({"a": [1]}), {"a": 1}],
            "item 1: expected a batch or table, got {'a': 1}",
        ),
    ],
)
def test_an_iterable_of_several_kinds_is_refused(tmp_path, source, message):
    with pytest.raises(UsageError) as caught:
        commands.pack(source, tmp_path / "out")
    assert caught.value.message == message


def test_an_object_of_any_class_name_is_packed(tmp_path):
    kind = type("We/ird" * 100, (MapDataset,), {})
    assert commands.pack(kind(ROWS), tmp_path / "out").rows == 3


def test_an_error_of_the_object_is_not_an_error_of_the_disk(tmp_path):
    def rows():
        yield {"n": 1}
        raise FileNotFoundError(2, "No such file or directory", "photo.jpg")

    with pytest.raises(FileNotFoundError) as caught:
        commands.pack(rows(), tmp_path / "out")
    assert caught.value.filename == "photo.jpg"
    assert not (tmp_path / "out").exists()


def test_failed_rows_of_an_object_are_listed_with_its_class(tmp_path):
    rows = [{"n": 1}, {"n": None}, {"n": 3}]
    packed = commands.pack(rows, tmp_path / "out", on_error="skip")
    assert (packed.rows, packed.failed) == (2, 1)
    (entry,) = map(json.loads, (tmp_path / "out/failed.jsonl").read_text().splitlines())
    assert (entry["file"], entry["row"], entry["reason"]) == ("list", 1, "n is null")


def test_nested_values_have_a_limited_depth(tmp_path):
    recursive: list = [1]
    recursive.append({"again": recursive})
    with pytest.raises(ValueFitError) as caught:
        commands.pack([{"v": [1]}, {"v": recursive}], tmp_path / "out")
    assert str(caught.value) == "row 1: column 'v': more than 64 levels of nesting"
    boxed = np.empty(1, object)
    boxed[0] = boxed
    with pytest.raises(ValueFitError, match="more than 64 levels"):
        commands.pack([{"v": boxed}], tmp_path / "out")
    deep: object = 7
    for _ in range(20):
        deep = [deep]
    commands.pack([{"v": deep}], tmp_path / "out")
    assert read.open(tmp_path / "out")[0]["v"] == deep


@pytest.mark.parametrize("source", [pa.array([1]), pa.chunked_array([[1]]), pd.Series([1])])
def test_a_column_without_a_name_is_refused(tmp_path, source):
    with pytest.raises(UsageError) as caught:
        commands.pack(source, tmp_path / "out")
    assert caught.value.message.startswith(f"expected a table, got {type(source).__name__}: ")
    assert caught.value.hint == "Pass a DataFrame, or a table with named columns."


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "Duplicate column names found: ['a', 'a']"),
        (
            pd.DataFrame({"a": [1 + 2j]}),
            "Unsupported numpy type 15; Conversion failed for column a with type complex128",
        ),
    ],
)
def test_a_frame_that_arrow_cannot_store_is_refused(tmp_path, source, reason):
    with pytest.raises(UsageError) as caught:
        commands.pack(source, tmp_path / "out")
    assert caught.value.message == f"cannot convert the DataFrame to Arrow: {reason}"
    assert caught.value.hint == (
        "Use a different name for each column, and values of one type in each column."
    )


def test_an_unknown_or_missing_argument_is_reported_with_the_name_of_the_function(tmp_path):
    with pytest.raises(TypeError) as caught:
        commands.pack([{"a": 1}], tmp_path / "out", nothing=1)
    assert str(caught.value) == "pack() got an unexpected keyword argument 'nothing'"
    with pytest.raises(TypeError) as caught:
        commands.pack([{"a": 1}])
    assert str(caught.value) == "pack() missing a required argument: 'out'"
