"""Pack ten million rows into a slow bucket that fails one request in a thousand.

    python benchmarks/faults.py [--rows 10000000] [--part-rows 50000] [--latency 0.005] [--faults
    0.001]

The bucket is moto's S3 server behind a gateway that counts, delays and fails requests. Half of the
faults are a refusal (503) without an effect. The other half are a refusal after the request took
effect, which the client cannot know. The same rows are packed into a folder too, and both
playlists, which list the checksum of every file, must be equal bytes. The requests, the seconds and
the peak memory of the packing process are printed.
"""

import argparse
import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from pathlib import Path

import measure
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from flarecli.storage import locate

COUNTS = "/-/counts"
VERBS = ("PUT", "GET", "HEAD", "POST", "delete", "list")
BATCH_ROWS = 500_000  # rows generated at a time


class Gateway:
    """WSGI gateway that counts and delays every request, and answers some with a fault."""

    def __init__(self, app, latency: float, faults: float) -> None:
        self.app, self.latency, self.faults = app, latency, faults
        self.counts, self.chance, self.lock = Counter(), random.Random(1), threading.Lock()

    def __call__(self, environ, answer):
        if environ["PATH_INFO"] == COUNTS:
            answer("200 OK", [("Content-Type", "application/json")])
            return [json.dumps(self.counts).encode()]
        verb, query = environ["REQUEST_METHOD"], environ.get("QUERY_STRING", "")
        what = (
            "list"
            if "list-type" in query
            else "delete"
            if verb == "DELETE" or query.startswith("delete")
            else verb
        )
        with self.lock:
            self.counts[what] += 1
            self.counts["bytes in"] += int(environ.get("CONTENT_LENGTH") or 0)
            dice = self.chance.random()
            self.counts["refused"] += dice < self.faults / 2
            self.counts["failed after taking effect"] += self.faults / 2 <= dice < self.faults
        time.sleep(self.latency)
        if dice >= self.faults:
            return self.app(environ, answer)
        if dice < self.faults / 2:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        else:
            list(self.app(environ, lambda *_: None))
        answer("503 Slow Down", [("Content-Type", "application/xml")])
        return [b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"]


def serve(port: int, latency: float, faults: float) -> None:
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, run_simple

    class Silent(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_) -> None:
            pass

    app = DomainDispatcherApplication(create_backend_app)
    run_simple(
        "127.0.0.1", port, Gateway(app, latency, faults), threaded=True, request_handler=Silent
    )


def served(args) -> tuple[subprocess.Popen, str]:
    """Start the bucket in another process, and return the process and its address."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    argv = [
        sys.executable,
        __file__,
        "--serve",
        str(port),
        "--latency",
        str(args.latency),
        "--faults",
        str(args.faults),
    ]
    server, at = (
        subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL),
        f"http://127.0.0.1:{port}",
    )
    for _ in range(300):
        try:
            urllib.request.urlopen(urllib.request.Request(f"{at}/bucket", method="PUT")).close()
            return server, at
        except OSError:
            time.sleep(0.1)
    sys.exit("the bucket does not answer")


def index(path: str, rows: int, part_rows: int) -> None:
    schema = pa.schema({"id": pa.int64(), "text": pa.string()})
    with pq.ParquetWriter(path, schema, compression="zstd") as file:
        for first in range(0, rows, BATCH_ROWS):
            ids = pa.array(np.arange(first, min(first + BATCH_ROWS, rows)))
            words = pc.binary_repeat("word ", pa.array(np.arange(len(ids)) % 17))
            file.write_table(
                pa.table(
                    [ids, pc.binary_join_element_wise(words, ids.cast(pa.string()), "-")], schema
                ),
                row_group_size=part_rows,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--part-rows", type=int, default=50_000)
    parser.add_argument("--latency", type=float, default=0.005, help="seconds")
    parser.add_argument("--faults", type=float, default=0.001, help="share of requests")
    parser.add_argument("--serve", type=int, metavar="PORT", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        serve(args.serve, args.latency, args.faults)
        return
    server, at = served(args)
    secrets = {
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "verysecret",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    os.environ.update(
        AWS_ENDPOINT_URL=at,
        AWS_CONFIG_FILE=os.devnull,
        AWS_SHARED_CREDENTIALS_FILE=os.devnull,
        **secrets,
    )
    try:
        with tempfile.TemporaryDirectory() as scratch:
            source, local = f"{scratch}/index.parquet", Path(scratch, "local")
            index(source, args.rows, args.part_rows)
            options = ["--part-rows", str(args.part_rows), "--shard-size", "1MiB", "-q"]
            here = measure.run([measure.FLARE, "pack", source, str(local), *options])
            most, took = measure.peak([measure.FLARE, "pack", source, "s3://bucket/out", *options])
            with urllib.request.urlopen(at + COUNTS) as answer:
                counts = json.load(answer)
            same = (local / "playlist.yaml").read_bytes() == locate(
                "s3://bucket/out/playlist.yaml"
            ).read()
            shards = len(list(local.glob("*/*.mds")))
    finally:
        server.terminate()
        server.wait()
    parts, requests = (
        -(-args.rows // args.part_rows),
        sum(counts[verb] for verb in VERBS if verb in counts),
    )
    print(f"{args.rows:,} rows, {parts:,} parts, {shards:,} shards, load {os.getloadavg()[0]:.1f}")
    print(
        f"{requests:,} requests, {requests / parts:.1f} a part, {requests / shards:.1f} a shard: {counts}"
    )
    print(f"{took:.0f} s, {here.wall:.0f} s into a folder; peak {most / 1e6:.0f} MB")
    sys.exit(None if same else "the playlists differ")


if __name__ == "__main__":
    main()
