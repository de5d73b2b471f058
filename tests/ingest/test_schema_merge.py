"""The columns and types of several files as one index."""

import pyarrow as pa
import pyarrow.feather

from flarecli.ingest import open_index
from tests.ingest.samples import error_of, rows_of, write_files


def test_files_have_a_common_type_only_if_no_value_changes(tmp_path):
    write_files(
        tmp_path,
        {
            "0.parquet": pa.table(
                {
                    "n": pa.array([1], pa.int8()),
                    "f": [1],
                    "t": ["x"],
                    "w": pa.array([1], pa.timestamp("s")),
                    "z": pa.nulls(1),
                }
            ),
            "1.parquet": pa.table(
                {
                    "z": [[1]],
                    "t": pa.array(["y"], pa.large_string()),
                    "f": [0.5],
                    "n": pa.array([300], pa.uint16()),
                    "w": pa.array([5], pa.timestamp("us")),
                }
            ),
        },
    )
    found = open_index([str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")])
    assert found.schema.to_string(show_field_metadata=False).split("\n")[:4] == [
        "n: int32",
        "f: double",
        "t: large_string",
        "w: timestamp[us]",
    ]
    assert [(row["n"], row["f"], row["t"], row["z"]) for row in rows_of(found)] == [
        (1, 1.0, "x", None),
        (300, 0.5, "y", [1]),
    ]
    assert rows_of(found, ["t"]) == [{"t": "x"}, {"t": "y"}]


def test_a_value_that_does_not_fit_the_common_type_is_reported(tmp_path):
    write_files(
        tmp_path,
        {"a.parquet": pa.table({"n": [1, 2**53 + 1]}), "b.parquet": pa.table({"n": [0.5]})},
    )
    message, hint = error_of(
        tmp_path,
        lambda: rows_of(open_index([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])),
    )
    assert message == "a.parquet[1]: column 'n': value 9007199254740993 cannot be stored as double"
    assert hint == "Pack the files one by one, or read the column as text: --encode n=str."


def test_csv_files_that_differ_are_read_as_text_exactly_as_written(tmp_path):
    write_files(tmp_path, {"a.csv": "n,f\n1,1.50\n", "b.csv": "n,f\nx,2\n", "c.csv": "f,n\n3,4\n"})
    found = open_index([str(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv")])
    assert rows_of(found) == [{"n": "1", "f": 1.5}, {"n": "x", "f": 2.0}, {"n": "4", "f": 3.0}]


def test_missing_columns_are_null_with_allow_missing(tmp_path):
    write_files(
        tmp_path,
        {"a.csv": "n\n1\n", "b.jsonl": '{"t": "x"}', "c.parquet": pa.table({"n": [2], "t": ["y"]})},
    )
    found = open_index(
        [str(tmp_path / name) for name in ("a.csv", "b.jsonl", "c.parquet")], allow_missing=True
    )
    rows = [{"n": 1, "t": None}, {"n": None, "t": "x"}, {"n": 2, "t": "y"}]
    assert rows_of(found) == rows
    assert [batch.column("row").to_pylist() for batch in found.batches(["t"], "n > 0", "row")] == [
        [0],
        [1],
        [2],
    ]
    assert [
        batch.column("row").to_pylist() for batch in found.batches(["n"], "t = 'y'", "row")
    ] == [[0], [1], [2]]
    assert found.count("n > 0") == 2
