"""Batches over several shards equal the single rows, and share no memory with the data."""

from pathlib import Path

import numpy as np
import pytest

import flarecli as flare
from flarecli.errors import FormatError
from flarecli.model import Settings

COLUMNS = {
    "box": "ndarray:float32:2,3",
    "body": "bytes",
    "flag": "uint8",
    "n": "int",
    "name": "str",
    "x": "float64",
}
ROWS = 120


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("collated") / "data"
    with flare.Writer(str(path), columns=COLUMNS, settings=Settings(shard_rows=40)) as writer:
        for n in range(ROWS):
            box = np.full((2, 3), n, np.float32)
            writer.write(
                {
                    "box": box,
                    "body": bytes([n]) * (n * 7 % 30),
                    "flag": n % 7,
                    "n": n - 50,
                    "name": "é" * (n % 4),
                    "x": n / 3,
                }
            )
    return str(path)


ORDERS = {
    "all, mixed": np.random.default_rng(1).permutation(ROWS),
    "twice, and from the end": [5, 5, -1, 3, 118, *range(30, 60), -2, 90, *range(100, 110)],
    "of one shard": np.arange(79, 40, -2),
    "a few of each": [0, 50, 100],
    "one": [7],
}


@pytest.mark.parametrize("rows", ORDERS.values(), ids=ORDERS.keys())
@pytest.mark.parametrize("maps", [True, False])
def test_a_batch_equals_its_rows(folder: str, maps: bool, rows: list[int]) -> None:
    data = flare.open(folder, maps=maps)
    batch, one_by_one = data.collated(rows), [data[int(row)] for row in rows]
    assert list(batch) == sorted(COLUMNS)
    for name, values in batch.items():
        expected = [sample[name] for sample in one_by_one]
        if name in ("body", "name"):
            assert values == expected and type(values) is list
        else:
            assert values.tolist() == [np.asarray(value).tolist() for value in expected]
    assert {
        name: values.dtype for name, values in batch.items() if isinstance(values, np.ndarray)
    } == {
        "box": np.float32,
        "flag": np.uint8,
        "n": np.int64,
        "x": np.float64,
    }


def test_columns_that_are_not_decoded_are_bytes(folder: str) -> None:
    rows = ORDERS["all, mixed"]
    batch = flare.open(folder, decode={"n": False, "x": len}).select(["x", "n"]).collated(rows)
    assert batch["n"] == [(int(row) - 50).to_bytes(8, "little", signed=True) for row in rows]
    assert batch["x"].tolist() == [8] * ROWS


def test_a_batch_can_be_modified(folder: str) -> None:
    data = flare.open(folder)
    for name, values in data.collated(range(30)).items():
        if isinstance(values, np.ndarray):
            values[:] = 1
            assert np.array_equal(data.collated(range(30))[name][5], data[5][name])


def test_a_damaged_row_of_a_batch_is_named(folder: str, tmp_path: Path) -> None:
    for path in Path(folder).iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    data = flare.open(str(tmp_path))
    shard = data._table.series[0].shard(1)
    start = int(np.asarray(shard.layout["starts"])[17])
    with (tmp_path / "shard.00001.mds").open("r+b") as file:
        file.seek(start)
        file.write(b"\xff\xff\xff\xff")
    with pytest.raises(FormatError) as caught:
        data.collated(range(ROWS))
    assert caught.value.where == f"{tmp_path}/shard.00001.mds[17]"
    assert "its fields need 42949" in caught.value.message
