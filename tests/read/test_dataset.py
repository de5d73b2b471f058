"""Datasets: rows by number, batches, and several sources."""

import numpy as np
import pytest

from flarecli import read
from flarecli.errors import RowsError, UsageError
from flarecli.storage import Location
from tests.read.packed import ROWS, pack


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("d") / "out", ROWS)


@pytest.mark.parametrize("maps", [True, False])
def test_rows_are_read_by_number(out, maps):
    data = read.open(out, maps=maps)
    assert len(data) == 200
    assert data[7] == ROWS[7]
    assert data[-1] == ROWS[-1]
    assert data[np.int64(3)] == ROWS[3]
    assert data[190:] == ROWS[190:]
    assert data[::-50] == ROWS[::-50]
    assert data[[150, 3, 3, -2]] == [ROWS[150], ROWS[3], ROWS[3], ROWS[-2]]
    assert data[[]] == []
    assert list(data) == ROWS
    assert data.rows([150, 3], ["t"]) == [
        {"t": ROWS[150]["t"].encode()},
        {"t": ROWS[3]["t"].encode()},
    ]


@pytest.mark.parametrize("row", [200, -201])
def test_rows_outside_the_data_are_an_index_error(out, row):
    with pytest.raises(IndexError) as caught:
        read.open(out)[row]
    assert str(caught.value) == f"row {row} is outside the data, which has 200 rows"
    assert isinstance(caught.value, RowsError)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        (1.0, "expected a list of row numbers, got float"),
        (None, "expected a list of row numbers, got NoneType"),
        (np.array(1.5), "expected row numbers, got values of type float64"),
        (np.True_, "expected row numbers, got values of type bool"),
        ([True], "expected row numbers, got values of type bool"),
        ([True, False], "expected row numbers, got values of type bool"),
        ([[7, 3], [1, 2]], "expected a list of row numbers, got list"),
        ([[7, 3], [1]], "expected a list of row numbers, got list"),
        (
            np.array([2**64 - 1], np.uint64),
            "row 18446744073709551615 is above the limit of 2^63 - 1",
        ),
        (np.array([3, 2**63], np.uint64), "row 9223372036854775808 is above the limit of 2^63 - 1"),
    ],
)
def test_invalid_row_numbers_are_refused(out, index, message):
    with pytest.raises(UsageError) as caught:
        read.open(out)[index]
    assert str(caught.value) == message


def test_a_numpy_integer_selects_one_row(out):
    data = read.open(out)
    assert data[np.array(3)] == ROWS[3]
    assert data[np.array([3], np.uint64)] == [ROWS[3]]
    assert data[range(3, 400)[:2]] == ROWS[3:5]
    assert data[5:1] == data[np.zeros(0)] == []


@pytest.mark.parametrize(
    ("start", "stop", "size", "message"),
    [
        (-1, None, 8, "start: expected at least 0, got -1"),
        (0, -1, 8, "stop: expected at least 0, got -1"),
        (0, None, 0, "size: expected at least 1, got 0"),
    ],
)
def test_batches_of_invalid_ranges_are_refused(out, start, stop, size, message):
    data = read.open(out)
    for read_batches in (
        lambda: data.scan(None, start, stop, size),
        lambda: data.batches(size, None, start, stop),
    ):
        with pytest.raises(UsageError) as caught:
            read_batches()
        assert str(caught.value) == message


def test_a_condition_can_use_any_column(tmp_path):
    name = "row number"
    data = read.open(pack(tmp_path / "d", [{name: 9 - i} for i in range(10)], {name: "int"}))
    assert [row[name] for row in data.where(f'"{name}" > 6')] == [9, 8, 7]


def test_an_unknown_column_is_an_error_that_lists_the_columns(out):
    with pytest.raises(UsageError) as caught:
        read.open(out).rows([0], ["x"])
    assert (str(caught.value), caught.value.hint) == ("no column 'x'", "Choose from n, t.")


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_batches_have_the_given_size_and_all_rows_in_order(out, size):
    batches = list(read.open(out).batches(size))
    assert [batch.num_rows for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert [row for batch in batches for row in batch.to_pylist()] == ROWS
    assert [
        row["n"]
        for batch in read.open(out).batches(size, ["n"], 13, 57)
        for row in batch.to_pylist()
    ] == list(range(13, 57))


def test_a_batch_of_take_equals_the_rows(out):
    batch = read.open(out).take([9, 0, 199], ["t", "n"])
    assert batch.schema.names == ["t", "n"]
    assert batch.to_pylist() == [{"t": ROWS[i]["t"], "n": i} for i in (9, 0, 199)]


def test_several_sources_are_concatenated(out, tmp_path):
    more = pack(tmp_path / "more", ROWS[:10])
    data = read.open([out, f"{more}/playlist.yaml"])
    assert len(data) == 210
    assert data[[205, 5]] == [ROWS[5], ROWS[5]]
    shards = read.open(f"{out}/shard.0000[01].mds")
    assert list(shards) == ROWS[: len(shards)]
    assert len(read.open(out + "/shard.{00000..00001}.mds")) == len(shards)


def test_sources_with_other_columns_are_refused(out, tmp_path):
    other = pack(tmp_path / "other", [{"z": 1}], {"z": "int"})
    with pytest.raises(UsageError) as caught:
        read.open([out, other])
    assert (
        str(caught.value)
        == f"{other}: the columns of stream 'data' differ from the columns of the previous stream"
    )
    assert (
        caught.value.hint
        == "Read the streams separately, or pack them again with the same columns."
    )


def test_locations_of_a_dataset_are_below_it(out):
    (stream,) = read.resolve(out)[0].streams
    assert all(isinstance(chunk.at, Location) and str(chunk.at).startswith(out) for chunk in stream)


def test_a_batch_over_several_shards_is_in_the_requested_order(tmp_path):
    data = read.open(
        pack(tmp_path / "out", [{"n": n, "t": str(n) * 5} for n in range(200)], shard_bytes=3000)
    )
    assert len(data.edges) > 2
    for count in (1, 5, 64, 200):
        rows = np.random.default_rng(count).integers(-200, 200, count)
        batch = data.collated(rows)
        assert batch["n"].tolist() == (rows % 200).tolist()
        assert batch["t"] == [str(n) * 5 for n in rows % 200]
        assert data.select(["t"]).collated(rows) == {"t": batch["t"]}
        assert (
            data.where("n % 2 = 0").collated(rows // 2)["n"].tolist()
            == (rows // 2 % 100 * 2).tolist()
        )
