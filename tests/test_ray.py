"""Ray Data: read, filter, write as another format, and read again."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.errors import UsageError

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
    "0"  # the variable with which Ray keeps 127.0.0.1 as its address
)
ray = pytest.importorskip("ray", reason="needs ray: pip install 'flarecli[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        object_store_memory=100 << 20,
    )
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    context.enable_progress_bars = False
    yield
    ray.shutdown()


@pytest.fixture
def packed(tmp_path: Path) -> str:
    columns = {
        "id": [f"k{i}" for i in range(300)],
        "n": list(range(300)),
        "data": [b"\x89" + bytes([i % 251]) * i for i in range(300)],
    }
    pq.write_table(pa.table(columns), tmp_path / "index.parquet")
    flarecli.pack(str(tmp_path / "index.parquet"), str(tmp_path / "mds"), shard_size=5000)
    return str(tmp_path / "mds")


@pytest.mark.parametrize("format", ["webdataset", "granular"])
def test_a_dataset_is_read_filtered_and_written_as_another_format(
    cluster: None, packed: str, tmp_path: Path, format: str
) -> None:
    from ray.data.expressions import col

    from flarecli.ray import FlareSink, FlareSource

    data = ray.data.read_datasource(FlareSource(packed), override_num_blocks=5)
    assert data.count() == 300
    kept = data.filter(expr=col("n") >= 100)
    assert all(isinstance(block, pa.Table) for block in map(ray.get, kept.to_arrow_refs()))
    kept.write_datasink(FlareSink(str(tmp_path / "out"), format=format))
    before = [row for row in flarecli.open(packed)[:] if row["n"] >= 100]
    assert flarecli.open(str(tmp_path / "out"))[:] == before
    assert list(flarecli.verify(str(tmp_path / "out"))) == []
    assert not (tmp_path / "out/.flare").exists()


def test_relative_paths_are_relative_to_the_folder_of_the_driver(
    cluster: None, packed: str, tmp_path: Path, in_tmp_path: None
) -> None:
    from flarecli.ray import FlareSink, FlareSource

    ray.data.read_datasource(
        FlareSource("mds", columns=["n"]), override_num_blocks=2
    ).write_datasink(FlareSink("out"))
    assert [row["n"] for row in flarecli.open(str(tmp_path / "out"))] == list(range(300))


def test_a_source_reads_only_the_requested_columns_and_rows(cluster: None, packed: str) -> None:
    from flarecli.ray import FlareSource

    data = ray.data.read_datasource(
        FlareSource(packed, columns=["id", "n"], where="n >= 290"), override_num_blocks=3
    )
    assert data.take_all() == [{"id": f"k{i}", "n": i} for i in range(290, 300)]


@pytest.mark.parametrize(
    "where",
    [
        "SELECT count(*) AS n FROM dataframe",
        "SELECT n FROM dataframe ORDER BY n DESC",
        "SELECT n FROM dataframe LIMIT 3",
    ],
)
def test_a_select_over_all_rows_is_refused(packed: str, where: str) -> None:
    from flarecli.ray import FlareSource

    with pytest.raises(
        UsageError,
        match="^cannot sort, group, count or limit rows, because each task reads only some rows(?m:$)",
    ):
        FlareSource(packed, columns=["n"], where=where)
    tables = [
        table
        for task in FlareSource(
            packed, columns=["n"], where="SELECT n + 1 AS m FROM dataframe"
        ).get_read_tasks(3)
        for table in task()
    ]
    assert [m for table in tables for m in table.column("m").to_pylist()] == list(range(1, 301))


def test_every_row_is_read_once_whatever_the_number_of_tasks(packed: str) -> None:
    from flarecli.ray import FlareSource

    source = FlareSource(packed)
    for parallelism in (1, 2, 7, 300, 10_000):
        tables: list[Any] = [
            table for task in source.get_read_tasks(parallelism) for table in task()
        ]
        assert [n for table in tables for n in table.column("n").to_pylist()] == list(range(300))


def test_a_failed_row_leaves_no_files(cluster: None, packed: str, tmp_path: Path) -> None:
    from flarecli.ray import FlareSink, FlareSource

    with pytest.raises(Exception, match="n is 256, which does not fit into uint8|n .*uint8"):
        ray.data.read_datasource(FlareSource(packed)).write_datasink(
            FlareSink(str(tmp_path / "out"), columns={"n": "uint8"})
        )
    assert not (tmp_path / "out").exists() or list((tmp_path / "out").iterdir()) == []


def test_a_folder_in_use_is_refused(cluster: None, packed: str) -> None:
    from flarecli.ray import FlareSink, FlareSource

    with pytest.raises(UsageError) as caught:
        ray.data.read_datasource(FlareSource(packed)).write_datasink(FlareSink(packed))
    assert caught.value.message == "output folder is not empty"
