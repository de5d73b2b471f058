"""Parquet files that flare writes, read by DuckDB, Polars, `datasets` and pyarrow; and files of
other writers, read by flare.
"""

import datetime
import decimal

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli import commands

polars = pytest.importorskip("polars")
datasets = pytest.importorskip("datasets")

ROWS = 2500
SINCE = datetime.datetime(2024, 2, 29, 12, 30)
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "small": pa.array([None if i % 7 == 0 else i % 100 for i in range(ROWS)], pa.int8()),
        "name": [None if i % 11 == 0 else f"näme {i}" for i in range(ROWS)],
        "score": np.arange(ROWS) / ROWS,
        "ok": [i % 3 == 0 for i in range(ROWS)],
        "at": pa.array(
            [SINCE + datetime.timedelta(hours=i) for i in range(ROWS)], pa.timestamp("us")
        ),
        "day": [SINCE.date() + datetime.timedelta(days=i) for i in range(ROWS)],
        "list": pa.array(
            [None if i % 5 == 0 else [i, None] for i in range(ROWS)], pa.list_(pa.int32())
        ),
        "box": [{"a": i, "b": [str(i)]} for i in range(ROWS)],
        "price": pa.array([decimal.Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(10, 2)),
        "kind": pa.array([["x", "y", None][i % 3] for i in range(ROWS)]).dictionary_encode(),
        "data": [i.to_bytes(4, "big") for i in range(ROWS)],
    }
)


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("parquet")
    pq.write_table(TABLE, folder / "in.parquet")
    commands.pack(
        [str(folder / "in.parquet")], str(folder / "out"), format="parquet", shard_rows=1000
    )
    return folder / "out"


def test_pyarrow_reads_the_rows_and_finds_checksums_and_indexes(packed):
    paths = sorted(packed.glob("*.parquet"))
    tables = [pq.read_table(path, page_checksum_verification=True) for path in paths]
    assert pa.concat_tables(tables).to_pylist() == TABLE.to_pylist()
    for path in paths:
        metadata = pq.read_metadata(path)
        for group in range(metadata.num_row_groups):
            for i in range(metadata.num_columns):
                column = metadata.row_group(group).column(i)
                assert (column.has_offset_index, column.has_column_index) == (True, True)


def test_duckdb_reads_the_rows(packed):
    found = duckdb.sql(f"from '{packed}/*.parquet' order by id").fetchall()
    assert [tuple(row.values()) for row in TABLE.to_pylist()] == found
    types = dict(
        duckdb.sql(f"describe from '{packed}/*.parquet'")
        .select("column_name, column_type")
        .fetchall()
    )
    assert types["at"] == "TIMESTAMP"
    assert types["box"] == "STRUCT(a BIGINT, b VARCHAR[])"
    assert types["price"] == "DECIMAL(10,2)"


def test_polars_reads_the_rows(packed):
    found = polars.read_parquet(f"{packed}/*.parquet")
    assert found.drop("kind").to_dicts() == TABLE.drop_columns(["kind"]).to_pylist()
    assert found["kind"].cast(polars.String).to_list() == TABLE["kind"].to_pylist()
    assert found.schema["at"] == polars.Datetime("us")


def test_datasets_reads_the_rows(packed, tmp_path):
    files = sorted(map(str, packed.glob("*.parquet")))
    found = datasets.load_dataset(
        "parquet", data_files=files, split="train", cache_dir=str(tmp_path)
    )
    assert found.to_list() == TABLE.to_pylist()
    assert found.features["at"].dtype == "timestamp[us]"


def test_tables_of_other_writers_are_read(tmp_path):
    frame = polars.from_arrow(TABLE.drop_columns(["kind"]))
    frame.write_parquet(tmp_path / "polars.parquet", row_group_size=700)
    plain = TABLE.drop_columns(["kind"])
    duckdb.sql(f"copy plain to '{tmp_path}/duckdb.parquet' (row_group_size 2048)")
    frame.select("id", "name", "score").write_ndjson(tmp_path / "polars.jsonl")
    frame.select("id", "name", "score").write_csv(tmp_path / "polars.csv")
    frame.write_ipc(tmp_path / "polars.arrow")
    for name in ("polars.parquet", "duckdb.parquet", "polars.arrow"):
        data = flarecli.open(tmp_path / name)
        assert data.to_arrow().to_pylist() == plain.to_pylist()
        assert data[2222] == plain.slice(2222, 1).to_pylist()[0]
        assert list(commands.verify([str(tmp_path / name)])) == []
    rows = flarecli.open(tmp_path / "polars.jsonl")[:]
    assert rows == plain.select(["id", "name", "score"]).to_pylist()
    assert flarecli.open(tmp_path / "polars.csv")[7]["name"] == "näme 7"
