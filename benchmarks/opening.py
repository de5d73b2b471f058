"""Measure opening of long listings: a playlist of 1,000,000 chunks, and an MDS folder of 20,000
shards with 200,000,000 samples.

    opening.py [--rounds N]

Each listing is opened as a dataset in its own process. The time and the additional memory of
opening, without the import of flare, are printed: the median and the maximum of the rounds. Only
the listings exist, because opening reads no shard.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHUNKS, SHARDS, SAMPLES = 1_000_000, 20_000, 200_000_000
TARGETS = {
    "playlist of chunks": (5.0, 500e6),
    "playlist of addresses": (5.0, 500e6),
    "MDS folder": (0.5, 100e6),
}  # name -> maximum seconds and bytes

_OPEN = """
import gc, sys, time
import flarecli.read, flarecli.commands.inspect_command, flarecli.playlists, flarecli.formats.mds.format, yaml, json
def memory(what):
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith(what))
gc.collect()
before, began, used = memory("VmRSS"), time.perf_counter(), time.process_time()
data = flarecli.read.open(sys.argv[1])
print(json.dumps({"seconds": time.perf_counter() - began, "cpu": time.process_time() - used, "peak": memory("VmHWM") - before, "rows": len(data)}))
"""


def playlist(folder: Path) -> str:
    """Write a playlist of many chunks as flare writes it."""
    import numpy as np

    from flarecli import playlists
    from flarecli.model import Column, Playlist, Stream
    from flarecli.storage import locate

    rng = random.Random(0)
    urls = [f"{i // 1000:05}/shard.{i:07}.mds" for i in range(CHUNKS)]
    sums = {"xxh3_128": [f"{rng.getrandbits(128):032x}" for _ in urls]}
    rows, sizes = (np.random.default_rng(0).integers(1, high, CHUNKS) for high in (1000, 1 << 26))
    columns = (Column("id", "str"), Column("image", "jpeg"))
    at = locate(str(folder)) / "chunks.yaml"
    playlists.write(
        at, Playlist((Stream("data", at.folder, "mds", urls, columns, rows, sizes, sums),))
    )
    return str(folder / "chunks.yaml")


def addresses(folder: Path) -> str:
    """Write a playlist of addresses, with the number of rows of each so that no shard must be
    opened.
    """
    path = folder / "addresses.yaml"
    with path.open("w") as file:
        file.write("data:\n  headers:\n    format: mds\n    columns:\n      id: str\n    rows:\n")
        file.writelines("    - 1000\n" for _ in range(CHUNKS))
        file.write("  content:\n")
        file.writelines(
            f"  - https://bucket.host.example/train/{i:07}.mds\n" for i in range(CHUNKS)
        )
    return str(path)


def mds(folder: Path) -> str:
    rng = random.Random(0)
    shards = []
    for i in range(SHARDS):
        size = {
            "basename": f"shard.{i:05}.mds",
            "bytes": rng.randrange(1 << 25, 1 << 26),
            "hashes": {"sha1": f"{rng.getrandbits(160):040x}"},
        }
        columns = {
            "column_encodings": ["str", "jpeg"],
            "column_names": ["id", "image"],
            "column_sizes": [None, None],
        }
        whole = {
            "compression": None,
            "format": "mds",
            "hashes": ["sha1"],
            "raw_data": size,
            "size_limit": 1 << 26,
            "version": 2,
            "zip_data": None,
        }
        shards.append({**columns, **whole, "samples": SAMPLES // SHARDS})
    (folder / "mds").mkdir()
    (folder / "mds" / "index.json").write_text(json.dumps({"shards": shards, "version": 2}))
    return str(folder / "mds")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flare-opening-") as scratch:
        for (name, (seconds, most)), make in zip(
            TARGETS.items(), (playlist, addresses, mds), strict=True
        ):
            address = make(Path(scratch))
            found = []
            for _ in range(args.rounds):
                ran = subprocess.run(
                    [sys.executable, "-c", _OPEN, address], capture_output=True, text=True
                )
                if ran.returncode:
                    sys.exit(ran.stderr)
                found.append(json.loads(ran.stdout))
            took, used = (
                statistics.median(one[key] for one in found) for key in ("seconds", "cpu")
            )
            peak = max(one["peak"] for one in found)
            verdict = "" if took <= seconds and peak <= most else "   MISSED"
            wanted = f"at most {seconds} s, {most / 1e6:.0f} MB"
            print(
                f"{name:24}{found[0]['rows']:14,} rows {took:8.2f} s, {used:.2f} of CPU, {peak / 1e6:8.0f} MB ({wanted}){verdict}"
            )


if __name__ == "__main__":
    main()
