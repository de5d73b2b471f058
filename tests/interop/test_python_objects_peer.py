"""Packing of Polars frames, Hugging Face datasets and torch datasets, and reading them back."""

import numpy as np
import pytest

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
