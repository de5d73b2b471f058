"""Selections of columns and rows, ranges of lists, decoders and custom encodings, also in other
processes.
"""

import json
import multiprocessing
import operator
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import flarecli as flare
from flarecli import encodings
from flarecli.encodings import CUSTOM
from flarecli.errors import RowsError, UsageError, ValueFitError
from flarecli.model import Settings

GOLDEN = Path(__file__).parents[2] / "fixtures"
ROWS = [{"label": i % 7, "score": i / 4, "text": "x" * (i % 40)} for i in range(200)]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("d") / "out")
    with flare.Writer(
        path,
        columns={"label": "int", "score": "float32", "text": "str"},
        settings=Settings(shard_bytes=2000),
    ) as writer:
        for row in ROWS:
            writer.write(row)
    return flare.open(path)


def test_selected_columns_are_in_the_given_order(data):
    few = data.select(["text", "label"])
    expected = [{"text": row["text"], "label": row["label"]} for row in ROWS]
    assert [column.name for column in few.columns] == few.schema.names == ["text", "label"]
    assert list(few[3]) == ["text", "label"]
    assert (few[7], few[[199, 2]], few[190:]) == (
        expected[7],
        [expected[199], expected[2]],
        expected[190:],
    )
    assert few.rows([5], None) == [{"text": b"x" * 5, "label": (5).to_bytes(8, "little")}]
    assert [row for batch in few.batches(33) for row in batch.to_pylist()] == expected
    assert len(data.columns) == 3
    with pytest.raises(UsageError) as caught:
        few.select(["score"])
    assert (str(caught.value), caught.value.hint) == (
        "no column 'score'",
        "Choose from text, label.",
    )


def test_rows_selected_by_a_condition_are_a_dataset(data):
    some = data.where("label = 3 AND score > 10")
    expected = [row for row in ROWS if row["label"] == 3 and row["score"] > 10]
    assert len(some) == len(expected)
    assert list(some) == expected
    assert (some[-1], some[[4, 0]]) == (expected[-1], [expected[4], expected[0]])
    assert some.to_arrow().to_pylist() == expected
    assert [row for batch in some.batches(5, ["label"], 3, 17) for row in batch.to_pylist()] == [
        {"label": row["label"]} for row in expected[3:17]
    ]
    assert some.take([3, 1]).to_pylist() == [expected[3], expected[1]]
    again = some.where("text LIKE 'xx%'").select(["text"])
    assert list(again) == [{"text": row["text"]} for row in expected if len(row["text"]) > 1]
    for order in ("shuffle", "windows", "sequential"):
        assert sorted(sample["score"] for sample in some.run(1, order=order)) == [
            row["score"] for row in expected
        ]
    with pytest.raises(
        RowsError,
        match=f"^row {len(expected)} is outside the data, which has {len(expected)} rows$",
    ):
        some[len(expected)]


def test_a_condition_without_matches_returns_an_empty_dataset(data):
    none = data.where("label > 99")
    assert (len(none), list(none), list(none.run()), none.to_arrow().num_rows) == (0, [], [], 0)


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("SELECT * FROM dataframe", "expected a condition, not a SELECT statement"),
        ("nothing > 3", "--where: no column 'nothing'"),
        ("", "--where is empty"),
    ],
)
def test_invalid_conditions_are_refused(data, condition, message):
    with pytest.raises(UsageError) as caught:
        data.where(condition)
    assert str(caught.value) == message


def test_to_arrow_returns_all_rows(data):
    table = data.to_arrow(["text", "score"])
    assert table.schema.names == ["text", "score"]
    assert table.to_pylist() == [{"text": row["text"], "score": row["score"]} for row in ROWS]
    assert data.select([]).to_arrow().schema.names == []


def test_decoded_replaces_the_decoder_of_a_column(data):
    raw = data.decoded({"label": False, "text": len})
    assert raw[9] == {"label": (2).to_bytes(8, "little"), "score": 2.25, "text": 9}
    assert raw[[9, 9]] == [raw[9]] * 2
    assert (
        flare.open(
            data.playlists[0].at.folder.path or str(data.playlists[0].at), decode={"text": len}
        )[9]["text"]
        == 9
    )
    with pytest.raises(UsageError, match="^no column 'x'(?m:$)"):
        data.decoded({"x": False})


def test_a_decoder_that_fails_names_the_row_and_the_column(data):
    with pytest.raises(ValueFitError) as caught:
        data.decoded({"text": lambda text: 1 // (len(text) - 5)})[[3, 5]]
    assert (
        str(caught.value)
        == "row 5: column 'text': ZeroDivisionError: integer division or modulo by zero"
    )
    assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_rows_collate_to_arrays_by_dtype_and_shape(data):
    batch = data.collated([5, 0, 199])
    assert {name: getattr(value, "dtype", type(value)) for name, value in batch.items()} == {
        "label": np.int64,
        "score": np.float32,
        "text": list,
    }
    assert batch["label"].tolist() == [5, 0, 3]
    assert batch["score"].tolist() == [1.25, 0, 49.75]
    assert batch["text"] == ["xxxxx", "", "x" * 39]
    batch["label"][0] = 1


def test_a_range_of_a_list_equals_its_slice():
    datasets = [
        flare.open(str(path.parent)) for path in sorted((GOLDEN / "granular").rglob("refs.bag"))
    ]
    data = next(
        one for one in datasets if any(column.encoding.endswith("[]") for column in one.columns)
    )
    name = next(column.name for column in data.columns if column.encoding.endswith("[]"))
    for row in range(len(data)):
        whole = data[row]
        part = data.read(row, {name: range(1, 3)})
        assert str(part[name]) == str(whole[name][1:3])
        assert str(data.read(row, {name: range(0, 999, 2)})[name]) == str(whole[name][::2])
        assert data.read(row).keys() == whole.keys() == part.keys()
    other = next(column.name for column in data.columns if not column.encoding.endswith("[]"))
    for ranges, message in (
        ({other: range(2)}, f"column {other!r} is not a list; only lists support ranges"),
        ({name: range(3, 1)}, f"invalid range 3:1:1 of column {name!r}"),
        ({"no": range(2)}, "no column 'no'"),
    ):
        with pytest.raises(UsageError) as caught:
            data.read(0, ranges)
        assert str(caught.value) == message


# -- other processes


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_other_processes_read_the_same_rows(data, start):
    data[0]
    some = data.where("label < 5").select(["score"])
    read_rows = operator.itemgetter([3, 100], -1, slice(4, 9))
    with ProcessPoolExecutor(2, multiprocessing.get_context(start)) as pool:
        assert list(pool.map(read_rows, [data, some], timeout=60)) == [
            read_rows(data),
            read_rows(some),
        ]
    assert read_rows(pickle.loads(pickle.dumps(some))) == read_rows(some)


# -- custom encodings


def to_json(value):
    return json.dumps(value).encode()


@pytest.fixture
def point():
    flare.encoding("point", to_json, json.loads)
    yield "point"
    CUSTOM.pop("point")


@pytest.mark.parametrize("format", ["mds", "granular", "granular-refs", "webdataset"])
def test_values_of_a_custom_encoding_are_read_back_unchanged(point, tmp_path, format):
    with flare.Writer(
        str(tmp_path / "d"), columns={"p": "point", "n": "int"}, format=format
    ) as writer:
        for n in range(5):
            writer.write({"p": [n, n * n], "n": n})
    data = flare.open(str(tmp_path / "d"))
    assert [column.encoding for column in data.columns if column.name == "p"] == ["point"]
    assert [sample["p"] for sample in data] == [[n, n * n] for n in range(5)]
    assert data.to_arrow(["p"])["p"][2].as_py() == b"[2, 4]"


def test_an_error_of_a_custom_encoding_names_the_row(point, tmp_path):
    with flare.Writer(str(tmp_path / "d"), columns={"p": "point"}) as writer:
        writer.write({"p": 1})
        with pytest.raises(ValueFitError) as caught:
            writer.write({"p": {1, 2}})
        assert (
            str(caught.value)
            == "row 1: column 'p': set {1, 2} cannot be stored as point: TypeError: Object of type set is not JSON serializable"
        )
    flare.encoding(point, to_json, lambda data: data.nothing)
    with pytest.raises(ValueFitError) as caught:
        flare.open(str(tmp_path / "d"))[0]
    assert (
        str(caught.value)
        == "row 0: column 'p': not a valid point value (1 B): AttributeError: 'bytes' object has no attribute 'nothing'"
    )
    flare.encoding(point, lambda value: value, bytes)
    with pytest.raises(ValueFitError, match="^the encoder of point returned int; expected bytes$"):
        encodings.encode(encodings.lookup(point), 5)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("jpeg", "'jpeg' is a built-in encoding"),
        ("a b", "'a b' is not a valid encoding name"),
        ("x[]", "'x[]' is not a valid encoding name"),
    ],
)
def test_invalid_names_of_custom_encodings_are_refused(name, message):
    with pytest.raises(UsageError) as caught:
        flare.encoding(name, bytes, bytes)
    assert str(caught.value) == message


def test_values_of_custom_encodings_are_binary_in_arrow(point):
    assert encodings.field(flare.Column("p", "point")).type == pa.large_binary()
    assert encodings.field(flare.Column("p", "point[]")).type == pa.large_list(pa.large_binary())


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.arange(200) % 100 == 0, "expected row numbers, got values of type bool"),
        ([True, False], "expected row numbers, got values of type bool"),
        ([1.5], "expected row numbers, got values of type float64"),
        (np.array([0.0, 1.0], np.float32), "expected row numbers, got values of type float32"),
        ("label", "expected a list of row numbers, got str"),
    ],
)
def test_every_method_refuses_invalid_row_numbers(data, rows, message):
    for read in (data.__getitem__, data.__getitems__, data.collated, data.rows, data.take):
        with pytest.raises(UsageError) as caught:
            read(rows)
        assert str(caught.value) == message or isinstance(rows, str)
        assert bool(caught.value.hint) is message.endswith((" bool", " str"))


def test_the_name_of_a_column_is_refused_with_the_method_that_selects_columns(data):
    with pytest.raises(UsageError) as caught:
        data["label"]
    assert str(caught.value) == "expected a list of row numbers, got str"
    assert caught.value.hint == "Select a column with data.select(['label'])."


def test_the_repr_of_a_dataset_lists_its_columns(data):
    assert repr(data) == "<Dataset: 200 rows of 'label' int, 'score' float32, 'text' str>"
