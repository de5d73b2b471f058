"""Parts on a Ray cluster of two nodes have the bytes of the local engine, even if workers or nodes
are lost.
"""

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.commands.packing.parts import pack_part
from flarecli.errors import FormatError, UsageError
from flarecli.write import engines
from tests.outputs import files_of

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
    "0"  # the variable that keeps the address 127.0.0.1
)
ray = pytest.importorskip("ray", reason="needs ray: pip install 'flarecli[ray]'")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    from ray.cluster_utils import Cluster

    common = {
        "num_cpus": 1,
        "node_ip_address": "127.0.0.1",
        "include_dashboard": False,
        "object_store_memory": 80 << 20,
    }
    nodes = Cluster(initialize_head=True, head_node_args=common)
    nodes.second = nodes.add_node(
        num_cpus=1, node_ip_address="127.0.0.1", object_store_memory=80 << 20
    )
    ray.init(address=nodes.address, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture
def index(tmp_path: Path) -> str:
    path = tmp_path / "index.parquet"
    pq.write_table(
        pa.table({"id": [f"k{i}" for i in range(400)], "text": ["x" * i for i in range(400)]}),
        path,
        row_group_size=50,
    )
    return str(path)


def test_a_quick_check_connects_to_no_cluster(index: str, tmp_path: Path) -> None:
    flarecli.pack(index, str(tmp_path / "out"))
    before = ray.is_initialized()  # False, because this test runs before the cluster is started
    assert list(flarecli.verify(str(tmp_path / "out"), quick=True, engine="ray")) == []
    assert ray.is_initialized() == before


def dying(marks: Path) -> Callable[[Any], Any]:
    """Return a function that packs a part; for every third part, its process is killed at the first
    attempt.
    """

    def work(request: Any) -> Any:
        import threading

        mark = marks / Path(request.out).name
        if int(mark.name) % 3 == 0 and not mark.exists():
            mark.touch()
            threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGKILL)).start()
            pack_part(request)
            signal.pause()
        return pack_part(request)

    return work


def test_relative_paths_start_in_the_folder_of_the_driver(
    cluster: Any, index: str, tmp_path: Path, in_tmp_path: None
) -> None:
    flarecli.pack("index.parquet", "local", part_rows=200)
    flarecli.pack("index.parquet", "ray", part_rows=200, engine="ray")
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")


def test_killed_workers_and_a_removed_node_do_not_change_the_output(
    cluster: Any, index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flarecli.pack(index, str(tmp_path / "local"), part_rows=80, shard_size=2000)
    (tmp_path / "marks").mkdir()
    real = engines.run

    def lossy(engine: str, work: Any, items: Any) -> Iterator[tuple[int, Any]]:
        for number, result in enumerate(real(engine, dying(tmp_path / "marks"), items)):
            if number == len(items) // 2:
                cluster.remove_node(cluster.second)
            yield result

    monkeypatch.setattr(engines, "run", lossy)
    packed = flarecli.pack(
        index, str(tmp_path / "ray"), part_rows=80, shard_size=2000, engine="ray"
    )
    assert packed.rows == 400
    assert len(list((tmp_path / "marks").iterdir())) == 2
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")


def test_rows_are_appended_on_a_cluster_with_the_bytes_of_a_local_append(
    cluster: Any, index: str, tmp_path: Path, in_tmp_path: None
) -> None:
    pq.write_table(pq.read_table(index).slice(0, 60), "first.parquet")
    for engine in ("local", "ray"):
        flarecli.pack("first.parquet", engine)
        flarecli.pack("index.parquet", engine, append=True, part_rows=200, engine=engine)
    assert len(flarecli.open("ray")) == 460
    assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")


def test_the_error_names_the_first_failed_part_in_row_order(cluster: Any, tmp_path: Path) -> None:
    source = str(tmp_path / "i.parquet")
    pq.write_table(pa.table({"n": [*range(25), 300, *range(24), 400]}), source)
    with pytest.raises(FormatError) as caught:
        flarecli.pack(
            source, str(tmp_path / "out"), encode={"n": "uint8"}, part_rows=10, engine="ray"
        )
    assert caught.value.where == f"part 00002: {source}[25]"


@pytest.mark.parametrize(
    "options",
    [["--decode", "--duplicates"], ["--quick"], ["--sample", "50%", "--max-findings", "2"]],
)
def test_a_check_on_the_cluster_has_the_same_findings_as_a_local_check(
    cluster: Any, index: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    out = tmp_path / "out"
    flarecli.pack(index, str(out), part_rows=100, shard_size=6000, compress="zstd")
    assert verify_json(capsys, [str(out), *options, "--engine", "ray"]) == verify_json(
        capsys, [str(out), *options]
    )
    shards = sorted(out.glob("*/*.zstd"))
    damaged = bytearray(shards[1].read_bytes())
    damaged[len(damaged) // 2] ^= 1
    shards[1].write_bytes(damaged)
    shards[-1].write_bytes(shards[-1].read_bytes()[:-7])
    shards[-2].unlink()
    (out / "00002/index.json").write_text("{}")
    here = verify_json(capsys, [str(out), *options])
    assert here[0] == 1
    assert verify_json(capsys, [str(out), *options, "--engine", "ray"]) == here


def verify_json(capsys: pytest.CaptureFixture[str], argv: list[str]) -> tuple[int, str, str]:
    code = main(["verify", *argv, "--json"])
    return code, *capsys.readouterr()


def test_an_interrupted_check_continues_on_the_cluster(
    cluster: Any, index: str, tmp_path: Path
) -> None:
    out, state = tmp_path / "out", tmp_path / "state"
    flarecli.pack(index, str(out), shard_size=6000)
    shard = out / "shard.00003.mds"
    shard.write_bytes(shard.read_bytes()[:-1])
    expected = list(flarecli.verify(str(out)))
    started = flarecli.verify(str(out), state=str(state))
    findings = iter(started)
    assert next(findings) == expected[0]
    findings.close()  # type: ignore[attr-defined]
    assert state.exists()
    again = flarecli.verify(str(out), state=str(state), engine="ray")
    assert (list(again), again.rows) == (
        expected,
        400 - flarecli.open(str(out)).playlists[0].streams[0].rows[3],
    )
    assert not state.exists()


def test_an_unknown_engine_is_refused(index: str) -> None:
    with pytest.raises(UsageError) as caught:
        flarecli.verify(index, engine="slurm")
    assert caught.value.message == "--engine: expected local or ray, got 'slurm'"
