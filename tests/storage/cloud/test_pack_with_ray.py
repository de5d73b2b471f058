"""A pack on a Ray cluster of two nodes into a bucket: killed drivers and workers change no
object.
"""

import os
import signal
import subprocess
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.errors import BusyError
from flarecli.storage import locate

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = (
    "0"  # Ray's name for the option that keeps 127.0.0.1
)


pytest.importorskip("ray", reason="needs ray: pip install 'flarecli[ray]'")


PARTS = 10


OPTIONS = {"part_rows": 10, "shard_size": 1500}


@pytest.fixture
def cluster(s3, monkeypatch):
    """Start two nodes with one core each, whose workers use the bucket; this process is not
    connected to them.
    """
    from ray.cluster_utils import Cluster

    before = signal.getsignal(signal.SIGTERM)  # Ray sets variables that later tests would inherit
    common = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
    made = Cluster(initialize_head=True, head_node_args={**common, "include_dashboard": False})
    try:
        made.add_node(**common)
        monkeypatch.setenv("RAY_ADDRESS", made.address)
        yield made
    finally:
        made.shutdown()
        signal.signal(signal.SIGTERM, before)


def workers(cluster):
    """Return the processes that pack parts on the nodes of a cluster."""
    nodes = {str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes()}
    found = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in found
        if "ray::pack_part" in line and line.split()[1] in nodes
    ]


def done(out):
    return (
        sum(entry.name.endswith("/playlist.yaml") for entry in out.list())
        if (out / ".flare/journal/00000.json").exists()
        else 0
    )


def begun(index, out):
    argv = [
        sys.executable,
        "-m",
        "flarecli",
        "pack",
        index,
        out,
        "--part-rows",
        "10",
        "--shard-size",
        "1500",
        "--engine",
        "ray",
        "--resume",
        "-q",
    ]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def wait_for_parts(process, out, parts):
    stop = time.monotonic() + 90
    while done(out) < parts and process.poll() is None and time.monotonic() < stop:
        time.sleep(0.1)
    assert process.poll() is None, process.stderr.read()


def kill_a_worker(cluster, driver):
    """Kill one of the processes that pack parts; between two parts there may be none for a
    moment.
    """
    stop = time.monotonic() + 30
    while not (found := workers(cluster)) and driver.poll() is None and time.monotonic() < stop:
        time.sleep(0.05)
    for pid in found[:1]:
        os.kill(pid, signal.SIGKILL)
    return found[:1]


def test_killed_drivers_and_workers_change_no_object(cluster, s3, tmp_path):
    index, out = str(tmp_path / "index.parquet"), locate(f"{s3}/out")
    rows = range(PARTS * 10)
    pq.write_table(
        pa.table({"id": [f"k{i}" for i in rows], "text": ["é" * i for i in rows]}),
        index,
        row_group_size=50,
    )
    flarecli.pack(index, str(tmp_path / "local"), **OPTIONS)
    killed = []
    for parts in (2, 6):
        driver = begun(index, f"{s3}/out")
        wait_for_parts(driver, out, parts)
        killed += kill_a_worker(cluster, driver)
        with pytest.raises(BusyError) as caught:
            flarecli.pack(index, f"{s3}/out", **OPTIONS, resume=True)
        assert caught.value.message.startswith(
            f"another pack is writing to this folder (process {driver.pid} on "
        )
        if parts < 6:
            driver.kill()
            driver.communicate()
    told = driver.communicate(timeout=120)
    assert (driver.returncode, *told) == (0, f"{s3}/out/playlist.yaml\n", "")
    assert len(killed) == 2
    packed = {entry.name: (out / entry.name).read() for entry in out.list()}
    folder = tmp_path / "local"
    assert packed == {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }
