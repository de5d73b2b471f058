"""Pack on a Ray cluster while workers, a node and the driver are killed, and compare the objects
with a local pack.

    python benchmarks/lost.py [--parts 200] [--rows 20] [--every 3] [--drivers 2]

A Ray cluster of two nodes (two raylets with one core each) packs an index in parts into a local S3
server (moto). Every few seconds, a worker is killed by SIGKILL. Halfway, a node is removed. The
driver, `flare pack --engine ray --resume`, is killed by SIGKILL `--drivers` times and started
again. Then every object is compared with the file that the local engine wrote.
"""

import argparse
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import measure
import pyarrow as pa
import pyarrow.parquet as pq

from flarecli.storage import locate

ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # the variable with which Ray keeps 127.0.0.1 as its address
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
    "AWS_SECRET_ACCESS_KEY": "verysecret",
}


def served() -> subprocess.Popen:
    """Start an S3 server with one empty bucket, and set its address in the environment."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], **quiet
    )
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{port}"
    for _ in range(300):
        try:
            urllib.request.urlopen(
                urllib.request.Request(f"http://127.0.0.1:{port}/bucket", method="PUT")
            ).close()
            return server
        except OSError:
            time.sleep(0.1)
    sys.exit("the S3 server does not answer")


def workers(cluster) -> list[int]:
    """Return the processes that pack parts on the nodes of this cluster."""
    nodes = {str(node.all_processes["raylet"][0].process.pid) for node in cluster.list_all_nodes()}
    found = subprocess.run(
        ["ps", "-eo", "pid,ppid,args"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    return [
        int(line.split()[0])
        for line in found
        if "ray::pack_part" in line and line.split()[1] in nodes
    ]


def packed_anyhow(argv: list[str], out, cluster, second, args) -> str:
    """Pack while processes are killed, and return how many were killed."""
    chance, workers_killed, drivers_killed, is_there = random.Random(args.seed), 0, 0, True
    driver, last = subprocess.Popen(argv), time.monotonic()
    while driver.poll() is None:
        time.sleep(0.25)
        parts = (
            sum(entry.name.endswith("/playlist.yaml") for entry in out.list())
            if (out / ".flare/journal/00000.json").exists()
            else 0
        )
        if time.monotonic() - last > args.every and (there := workers(cluster)):
            os.kill(chance.choice(there), signal.SIGKILL)
            workers_killed, last = workers_killed + 1, time.monotonic()
        if is_there and parts >= args.parts // 2:
            cluster.remove_node(second)
            is_there = False
        if drivers_killed < args.drivers and parts >= args.parts * (drivers_killed + 1) // (
            args.drivers + 1
        ):
            driver.kill()
            driver.wait()
            drivers_killed += 1
            driver = subprocess.Popen(argv)
    if driver.returncode:
        sys.exit(f"the driver ended with {driver.returncode}")
    return f"{workers_killed} workers and {drivers_killed} drivers killed, {'no' if is_there else 'one'} node removed"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, default=200)
    parser.add_argument("--rows", type=int, default=20, help="of a part")
    parser.add_argument(
        "--every", type=float, default=3.0, help="seconds between two kills of workers"
    )
    parser.add_argument("--drivers", type=int, default=2, help="how often the driver is killed")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    from ray.cluster_utils import Cluster

    with tempfile.TemporaryDirectory() as scratch:
        index, local = f"{scratch}/index.parquet", Path(scratch, "local")
        rows = range(args.parts * args.rows)
        pq.write_table(
            pa.table({"id": [f"k{i}" for i in rows], "text": ["é" * (i % 700) for i in rows]}),
            index,
            row_group_size=500,
        )
        options = ["--part-rows", str(args.rows), "--shard-size", "4000", "-q"]
        measure.run([measure.FLARE, "pack", index, str(local), *options])
        server, out = served(), locate("s3://bucket/out")
        node = {"num_cpus": 1, "node_ip_address": "127.0.0.1", "object_store_memory": 80 << 20}
        cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
        try:
            second = cluster.add_node(**node)
            os.environ["RAY_ADDRESS"] = cluster.address
            began = time.monotonic()
            told = packed_anyhow(
                [measure.FLARE, "pack", index, str(out), *options, "--engine", "ray", "--resume"],
                out,
                cluster,
                second,
                args,
            )
            print(
                f"{args.parts} parts, {len(rows)} rows in {time.monotonic() - began:.0f} s: {told}; load {os.getloadavg()[0]:.1f}"
            )
            found = {entry.name: (out / entry.name).read() for entry in out.list()}
        finally:
            cluster.shutdown()
            server.terminate()
            server.wait()
        wanted = {
            str(path.relative_to(local)): path.read_bytes()
            for path in local.rglob("*")
            if path.is_file()
        }
        if found != wanted:
            names = sorted(
                name for name in found.keys() | wanted.keys() if found.get(name) != wanted.get(name)
            )
            sys.exit(f"{len(names)} objects differ: {', '.join(names[:5])}")
        print(f"{len(found)} objects, all equal to those of the local engine")


if __name__ == "__main__":
    main()
