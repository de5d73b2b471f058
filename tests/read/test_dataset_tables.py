"""Datasets as tables of other libraries, in notebooks, and split into parts."""

import io
import os
import subprocess
import sys
from collections import Counter

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli import commands, read
from flarecli.errors import UsageError
from flarecli.read.split import part_rows, row_hashes

ROWS = 1000
TABLE = pa.table(
    {
        "text": pa.array([f"row {i}" for i in range(ROWS)], pa.large_string()),
        "group": pa.array([f"g{i % 40}" for i in range(ROWS)], pa.large_string()),
        "ok": [i % 3 == 0 for i in range(ROWS)],
        "n": list(range(ROWS)),
    }
)


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    pq.write_table(TABLE, folder / "t.parquet")
    commands.pack(str(folder / "t.parquet"), str(folder / "out"), shard_rows=300)
    return str(folder / "out")


def test_other_libraries_read_a_dataset_as_a_table(out):
    data = read.open(out)
    assert pa.table(data).equals(TABLE)
    assert pa.RecordBatchReader.from_stream(data).read_all().equals(TABLE)
    query = "select sum(n), count(*) from data where ok"
    assert duckdb.sql(query).fetchall() == [(sum(range(0, ROWS, 3)), 334)]
    assert pa.table(data.where("n < 5").select(["n", "ok"])).to_pydict() == {
        "n": [0, 1, 2, 3, 4],
        "ok": [True, False, False, True, False],
    }


def test_a_dataset_has_column_names_and_a_shape(out):
    data = read.open(out)
    assert (data.column_names, data.shape) == (["text", "group", "ok", "n"], (ROWS, 4))
    assert data.select(["n"]).shape == (ROWS, 1)
    assert data.where("n < 5").shape == (5, 4)


def test_head_returns_the_first_rows(out):
    data = read.open(out)
    assert data.head().to_arrow().equals(TABLE.slice(0, 5))
    assert data.head(0).to_arrow().equals(TABLE.slice(0, 0))
    assert data.head(2 * ROWS).to_arrow().equals(TABLE)
    with pytest.raises(UsageError) as caught:
        data.head(-1)
    assert caught.value.message == "rows: expected at least 0, got -1"


def test_pandas_is_reported_if_it_is_missing(out, tmp_path):
    (tmp_path / "pandas.py").write_text("raise ModuleNotFoundError(\"No module named 'pandas'\")\n")
    code = (
        "from flarecli import errors, read\n"
        f"try: read.open({out!r}).to_pandas()\n"
        "except errors.MissingLibraryError as error: print(error, '|', error.hint)\n"
    )
    env = os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    argv = [sys.executable, "-c", code]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env=env)
    assert done.stdout == "the library pandas is not installed | Run `pip install pandas`.\n"


@pytest.mark.parametrize("count", [1, 3, 7, 999, 1000, 1003])
def test_shards_are_consecutive_and_of_equal_size(out, count):
    data = read.open(out)
    sizes = [len(data.shard(count, index)) for index in range(count)]
    expected = [len(part) for part in np.array_split(np.arange(ROWS), count)]
    assert sizes == expected
    last = next(index for index in reversed(range(count)) if sizes[index])
    assert data.shard(count, last)[-1]["n"] == ROWS - 1
    assert data.shard(count, 0)[0]["n"] == 0


@pytest.mark.parametrize("index", [-1, 3])
def test_a_shard_outside_the_count_is_refused(out, index):
    with pytest.raises(UsageError) as caught:
        read.open(out).shard(3, index)
    assert caught.value.message == f"index: expected 0 to 2, got {index}"


def test_a_filter_keeps_the_samples_for_which_a_function_is_true(out):
    data = read.open(out).filter(lambda sample: sample["n"] % 100 == 7)
    assert [row["n"] for row in data] == list(range(7, ROWS, 100))
    assert data.filter(lambda sample: sample["n"] > 500).shape == (5, 4)
    assert data.filter(lambda sample: False).shape == (0, 4)


def test_a_split_has_each_row_once_and_about_the_given_shares(out):
    parts = read.open(out).split({"train": 0.8, "val": 0.1, "test": 0.1}, seed=3)
    rows = [set(part.to_arrow()["n"].to_pylist()) for part in parts.values()]
    assert list(parts) == ["train", "val", "test"]
    assert Counter(n for part in rows for n in part) == Counter(range(ROWS))
    assert [len(part) // 50 for part in rows] == pytest.approx([16, 2, 2], abs=1)
    other = read.open(out).split({"train": 0.8, "val": 0.1, "test": 0.1}, seed=4)
    assert set(other["val"].to_arrow()["n"].to_pylist()) != rows[1]


def test_rows_with_one_key_are_in_one_part(out):
    data = read.open(out)
    parts = data.split({"train": 0.5, "val": 0.5}, key="group")
    groups = [set(part.to_arrow()["group"].to_pylist()) for part in parts.values()]
    assert groups[0] & groups[1] == set()
    assert len(groups[0]) + len(groups[1]) == 40
    again = data.where("n >= 500").split({"train": 0.5, "val": 0.5}, key="group")
    assert set(again["val"].to_arrow()["group"].to_pylist()) == groups[1]


@given(rows=st.integers(0, 300), more=st.integers(0, 300), seed=st.integers(0, 2**64))
def test_appended_rows_move_no_other_row(rows, more, seed):
    fractions = {"a": 0.3, "b": 0.7}
    before = part_rows(row_hashes(rows, seed), fractions)
    after = part_rows(row_hashes(rows + more, seed), fractions)
    for name, part in before.items():
        assert part.tolist() == [row for row in after[name].tolist() if row < rows]


def test_the_hash_of_a_row_is_splitmix64():
    def reference(state):
        state = (state + 0x9E3779B97F4A7C15) % 2**64
        state = (state ^ (state >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB % 2**64
        return state ^ (state >> 31)

    seed = 5 * 0x9E3779B97F4A7C15
    expected = [reference(reference((row + seed) % 2**64)) for row in range(50)]
    assert row_hashes(50, 5).tolist() == expected


@pytest.mark.parametrize(
    "fractions", [{}, {"a": 0.5}, {"a": 1.5, "b": -0.5}, {"a": float("nan")}, {"a": "1"}]
)
def test_fractions_without_a_sum_of_one_are_refused(out, fractions):
    with pytest.raises(UsageError) as caught:
        read.open(out).split(fractions)
    assert caught.value.message == f"expected fractions with a sum of 1, got {fractions!r}"


def test_a_notebook_shows_the_first_rows_with_thumbnails(tmp_path):
    picture = io.BytesIO()
    Image.new("RGB", (400, 200), "red").save(picture, "PNG")
    table = pa.table(
        {
            "<name>": ["<script>alert(1)</script>", "\x1b[31mred", "x" * 1000],
            "image": [picture.getvalue(), b"\x89PNG\r\n\x1a\n damaged", b"abc"],
            "data": [{"a": 1}, {"a": 2}, {"a": 3}],
        }
    )
    pq.write_table(table, tmp_path / "t.parquet")
    commands.pack(str(tmp_path / "t.parquet"), str(tmp_path / "out"), encode={"image": "bytes"})
    page = read.open(str(tmp_path / "out"))._repr_html_()
    assert page.startswith(
        "<table><caption>3 rows, 3 columns</caption>"
        "<tr><th>&lt;name&gt;</th><th>image</th><th>data</th></tr>"
        "<tr><td>&lt;script&gt;alert(1)&lt;/script&gt;</td>"
        '<td><img src="data:image/png;base64,'
    )
    assert page.endswith(
        "<tr><td>\\x1b[31mred</td><td>16 B of bytes</td><td>{&#x27;a&#x27;: 2}</td></tr>"
        f"<tr><td>{'x' * 199}…</td><td>3 B of bytes</td><td>{{&#x27;a&#x27;: 3}}</td></tr></table>"
    )
    assert read.open(str(tmp_path / "out")).head(0)._repr_html_() == "<p>0 rows, 3 columns</p>"


def test_tab_completion_lists_public_names_only(out):
    names = dir(read.open(out))
    assert {"split", "where", "column_names", "to_pandas"} <= set(names)
    assert not [name for name in names if name.startswith("_") or name in read.Dataset.INTERNAL]
    assert set(read.Dataset.INTERNAL) <= set(dir(read.Dataset))


def test_open_reads_a_csv_file_with_any_name_and_dialect(tmp_path):
    path = tmp_path / "export.dat"
    path.write_text("1;a\n2;b\n")
    data = read.open(path, input="csv", csv=["delimiter=;", "header=no"])
    assert pa.table(data).to_pylist() == [
        {"column_0": 1, "column_1": "a"},
        {"column_0": 2, "column_1": "b"},
    ]
    with pytest.raises(UsageError) as caught:
        read.open(path, input="csv", format="mds")
    assert str(caught.value) == "--input csv contradicts --format mds"
    with pytest.raises(UsageError) as caught:
        read.open(path, input="excel")
    assert "input: expected" in str(caught.value)
