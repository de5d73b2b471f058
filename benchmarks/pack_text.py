"""Pack text from one parquet file into MDS with xxh3_128 checksums: flare, the original MDSWriter
and a minimal loop.

    PEER_PYTHON=/path/to/python python benchmarks/pack_text.py [--rows 100000] [--rounds 7]
    [--codecs none snappy]

PEER_PYTHON names an interpreter with mosaicml-streaming, xxhash and pyarrow; without it, only flare
and the floor run. They run in turns, each in its own process, and must write the same bytes. The
original gets rows from `to_pylist`, as its users write it, and in a second variant columns, which
is faster. The CPU time, user and system, of all threads counts, for the packing alone: the lowest
of a few packs in one process, and the first pack, which also loads modules. Medians of the rounds,
and of the ratios of each round, are printed.

The parquet file is written with each codec. Decompression takes the same time for all; with snappy
it is half of the time of flare, so the ratio depends on the codec as much as on the packers.
"""

import argparse
import filecmp
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from measure import print_figures, run

COLUMNS = {"number": "int", "score": "float64", "text": "str"}
LIMIT = 1 << 26
PACKS = 3  # in one process; the first pack also loads modules and touches new memory
BATCH = 8000  # a number of rows that fits the cache of the CPU


def flare(index: str, out: str) -> Callable[[], object]:
    from flarecli import pack

    return lambda: pack(index, out, hash=["xxh3_128"])


def peer(index: str, out: str) -> Callable[[], object]:
    import pyarrow.parquet as pq
    from streaming import MDSWriter

    def pack() -> None:
        with MDSWriter(out=out, columns=COLUMNS, hashes=["xxh3_128"], size_limit=LIMIT) as writer:
            for batch in pq.ParquetFile(index).iter_batches():
                for row in batch.to_pylist():
                    writer.write(row)

    return pack


def peer_by_columns(index: str, out: str) -> Callable[[], object]:
    import pyarrow.parquet as pq
    from streaming import MDSWriter

    def pack() -> None:
        with MDSWriter(out=out, columns=COLUMNS, hashes=["xxh3_128"], size_limit=LIMIT) as writer:
            for batch in pq.ParquetFile(index, pre_buffer=False).iter_batches(
                BATCH, use_threads=False
            ):
                for number, score, text in zip(
                    *(batch.column(name).to_pylist() for name in COLUMNS), strict=True
                ):
                    writer.write({"number": number, "score": score, "text": text})

    return pack


def floor(index: str, out: str) -> Callable[[], object]:
    """Write the same shards with a minimal loop: no journal, fsync, checks or playlist."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq
    import xxhash

    binary = pa.large_binary()
    listed: list[dict[str, object]] = []
    common = {
        "column_encodings": list(COLUMNS.values()),
        "column_names": list(COLUMNS),
        "column_sizes": [8, 8, None],
        "compression": None,
        "format": "mds",
        "hashes": ["xxh3_128"],
        "size_limit": LIMIT,
        "version": 2,
    }
    config = json.dumps(common, sort_keys=True).encode()

    def fixed(values: "np.ndarray") -> pa.Array:
        width = values.dtype.itemsize
        return pa.array(np.ascontiguousarray(values)).view(pa.binary(width)).cast(binary)

    def flush(parts: list[memoryview], sizes: list["np.ndarray"]) -> None:
        lengths = np.concatenate(sizes)
        head = np.empty(len(lengths) + 2, "<u4")
        head[0] = len(lengths)
        head[1] = 4 * len(head) + len(config)
        head[2:] = head[1] + np.cumsum(lengths)
        name, summed, size = f"shard.{len(listed):05}.mds", xxhash.xxh3_128(), 0
        with open(f"{out}/{name}", "wb") as file:
            for part in (head.tobytes(), config, *parts):
                file.write(part)
                summed.update(part)
                size += len(part)
        info = {"basename": name, "bytes": size, "hashes": {"xxh3_128": summed.hexdigest()}}
        listed.append({**common, "raw_data": info, "samples": len(lengths), "zip_data": None})

    def pack() -> None:
        Path(out).mkdir()
        parts, sizes, held = [], [], 8 + len(config)
        for batch in pq.ParquetFile(index, pre_buffer=False).iter_batches(BATCH, use_threads=False):
            text = batch.column("text").cast(pa.large_string()).cast(binary)
            lengths = np.diff(np.frombuffer(text.buffers()[1], "<i8", len(text) + 1))
            numbers = [fixed(batch.column(name).to_numpy()) for name in ("number", "score")]
            rows = pc.binary_join_element_wise(
                fixed(lengths.astype("<u4")), *numbers, text, pa.scalar(b"", binary)
            )
            ends = np.frombuffer(rows.buffers()[1], "<i8", len(rows) + 1)
            data, start = memoryview(rows.buffers()[2]), 0
            while start < len(rows):
                stop = (
                    int(
                        np.searchsorted(
                            ends + 4 * np.arange(len(ends)),
                            LIMIT - held + ends[start] + 4 * start,
                            "right",
                        )
                    )
                    - 1
                )
                parts.append(data[ends[start] : ends[stop]])
                sizes.append(np.diff(ends[start : stop + 1]))
                held += int(ends[stop] - ends[start]) + 4 * (stop - start)
                if stop < len(rows):
                    flush(parts, sizes)
                    parts, sizes, held = [], [], 8 + len(config)
                start = stop
        flush(parts, sizes)
        Path(out, "index.json").write_text(
            json.dumps({"shards": listed, "version": 2}, sort_keys=True)
        )

    return pack


PACKERS = {"flare": flare, "peer": peer, "peer by columns": peer_by_columns, "floor": floor}
WANTED = {"peer": 3.5}  # minimum ratio to the time of flare


def make(path: str, rows: int, codec: str = "snappy") -> None:
    """Write the parquet file: a unique text of about 1 KB, an integer and a float."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    rng = random.Random(1)
    words = [
        bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 11))).decode()
        for _ in range(4000)
    ]
    schema = pa.schema({"text": pa.string(), "number": pa.int64(), "score": pa.float64()})
    with pq.ParquetWriter(path, schema, compression=codec) as writer:
        for start in range(0, rows, 10_000):
            numbers = range(start, min(start + 10_000, rows))
            texts = [" ".join(rng.choices(words, k=rng.randint(80, 190))) for _ in numbers]
            writer.write_table(
                pa.table([texts, list(numbers), [rng.random() for _ in numbers]], schema=schema)
            )


def child(name: str, index: str, out: str) -> None:
    """Pack the file PACKS times and print the CPU seconds of each pack; keep the last output."""
    for _ in range(PACKS):
        shutil.rmtree(out, ignore_errors=True)
        pack = PACKERS[name](index, out)
        began = time.process_time()
        pack()
        print(time.process_time() - began)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument(
        "--peer",
        default=os.environ.get("PEER_PYTHON"),
        help="interpreter with mosaicml-streaming; default: PEER_PYTHON",
    )
    parser.add_argument(
        "--codecs",
        nargs="+",
        default=["none", "snappy"],
        help="of the parquet file: none, snappy, zstd …",
    )
    args = parser.parse_args()
    figures: dict[str, float] = {}
    for codec in args.codecs:
        figures |= compare(codec, args.rows, args.rounds, args.peer)
    if not args.peer:
        print("the original MDSWriter was skipped: PEER_PYTHON is not set")
    print_figures(figures)


def compare(codec: str, rows: int, rounds: int, python_of_peer: str | None) -> dict[str, float]:
    """Pack the same parquet file with all packers, print their CPU time, and return the ratios."""
    pythons = {
        name: python_of_peer if name.startswith("peer") else sys.executable for name in PACKERS
    }
    lowest: dict[str, list[float]] = {name: [] for name, python in pythons.items() if python}
    first: dict[str, list[float]] = {name: [] for name in lowest}
    with tempfile.TemporaryDirectory() as scratch:
        index = f"{scratch}/index.parquet"
        make(index, rows, codec)
        for number in range(rounds):
            names = list(lowest)[:: 1 if number % 2 else -1]
            for name in names:
                cost = run(
                    [str(pythons[name]), __file__, "--child", name, index, f"{scratch}/{name}"]
                )
                seconds = [float(line) for line in cost.out.split()]
                first[name].append(seconds[0] / rows * 1e6)
                lowest[name].append(min(seconds) / rows * 1e6)
            for name in names:
                check(Path(scratch, "flare"), Path(scratch, name), name)
            for name in names:  # the next round starts with the same free memory in the page cache
                shutil.rmtree(Path(scratch, name))
    figures: dict[str, float] = {}
    for what, each in (
        (f"lowest of {PACKS} packs in a process", lowest),
        ("first pack of a process", first),
    ):
        print(
            f"parquet of {codec}, {what}: CPU µs a row, medians of {rounds} rounds, and times flare"
        )
        for name, values in each.items():
            ratios = [other / own for other, own in zip(values, each["flare"], strict=True)]
            ratio = statistics.median(ratios)
            if each is lowest:
                figures[f"{codec}, {name}"] = ratio
            goal = (
                f", {WANTED[name]:g} wanted: {'met' if ratio >= WANTED[name] else 'not met'}"
                if name in WANTED and each is lowest
                else ""
            )
            print(
                f"  {name:16}{statistics.median(values):7.2f}{ratio:8.2f} ({min(ratios):.2f} to {max(ratios):.2f}){goal}"
            )
    return figures


def check(own: Path, other: Path, name: str) -> None:
    """Check that both folders contain the same shards and index."""
    files = (
        sorted(path.name for path in other.iterdir() if path.is_file()) if name != "flare" else []
    )
    _, different, missing = filecmp.cmpfiles(own, other, files, shallow=False)
    if different or missing:
        sys.exit(f"flare and {name} differ: {different + missing}")


if __name__ == "__main__":
    child(*sys.argv[2:]) if sys.argv[1:2] == ["--child"] else main()
