"""Packing of Polars frames, Hugging Face datasets and torch datasets, and reading them back."""

import numpy as np
import pytest

import flarecli as flare
from flarecli import commands, read

ROWS = [{"n": n, "text": f"row {n}", "pair": [n, n + 1]} for n in range(100)]


def rows_of(address):
    return read.open(address).to_arrow().to_pylist()


def test_a_polars_frame_keeps_its_rows_and_types(tmp_path):
    polars = pytest.importorskip("polars")
    frame = polars.DataFrame(ROWS).with_columns(
        polars.col("text").cast(polars.Categorical).alias("kind"),
        polars.datetime(2024, 1, 1, time_zone="UTC").alias("when"),
    )
    commands.pack(frame, tmp_path / "out")
    back = polars.DataFrame(read.open(tmp_path / "out"))
    assert back.equals(frame)
    assert back.schema == frame.schema
    commands.pack(frame.lazy().filter(polars.col("text") != ""), tmp_path / "lazy")
    assert polars.DataFrame(read.open(tmp_path / "lazy")).equals(
        frame.filter(polars.col("text") != "")
    )


def test_a_hugging_face_dataset_keeps_its_order_and_selection(tmp_path):
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_list(ROWS).shuffle(seed=3).select(range(40))
    commands.pack(data, tmp_path / "out")
    assert rows_of(tmp_path / "out") == data.to_list()
    stream = datasets.Dataset.from_list(ROWS).to_iterable_dataset().take(7)
    commands.pack(stream, tmp_path / "stream")
    assert rows_of(tmp_path / "stream") == ROWS[:7]
    back = datasets.Dataset(read.open(tmp_path / "out").to_arrow())
    assert back.to_list() == data.to_list()


def test_a_torch_dataset_of_dicts_keeps_its_tensors(tmp_path):
    torch = pytest.importorskip("torch")

    class Squares(torch.utils.data.Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, index):
            return {"x": torch.full((2, 3), float(index)), "label": torch.tensor(index * index)}

    commands.pack(Squares(), tmp_path / "out")
    data = read.open(tmp_path / "out")
    assert [row["label"] for row in data] == [n * n for n in range(20)]
    assert np.array_equal(data[7]["x"], np.full((2, 3), 7, np.float32))
    assert data[7]["x"].dtype == np.float32


def test_a_writer_takes_frames_relations_and_readers(tmp_path):
    polars, pandas = pytest.importorskip("polars"), pytest.importorskip("pandas")
    duckdb, datasets = pytest.importorskip("duckdb"), pytest.importorskip("datasets")
    frame = polars.DataFrame(ROWS).with_columns(
        polars.col("text").cast(polars.Categorical).alias("kind"),
        polars.struct("n", polars.col("pair").alias("both")).alias("nested"),
        polars.datetime(2024, 1, 1, time_zone="UTC").alias("when"),
        polars.date(2024, 2, 29).alias("day"),
        polars.lit([["a"], []], polars.List(polars.List(polars.String))).alias("lists"),
    )
    table = frame.to_arrow()
    sources = [
        frame,
        table,
        table.to_reader(max_chunksize=30),
        duckdb.from_arrow(table),
        pandas.DataFrame(
            {
                name: pandas.array(table[name], pandas.ArrowDtype(table[name].type))
                for name in table.column_names
            }
        ),
        datasets.Dataset(table.drop(["kind"])).with_format("arrow")[:],
    ]
    for number, source in enumerate(sources):
        with flare.Writer(tmp_path / str(number)) as writer:
            writer.write_batch(source)
        found = polars.DataFrame(read.open(tmp_path / str(number)))
        expected = frame.select(found.columns)
        assert (
            found.with_columns(polars.col("when").dt.convert_time_zone("UTC"))
            .cast(expected.schema)
            .equals(expected)
        )
        assert read.open(tmp_path / str(number)).to_arrow().to_pylist() == expected.to_dicts()
