"""Read shuffled data from an S3 server in the order `windows`, through a cache of a tenth of the
data, and compare with a plain download of the same bytes.

    remote.py [--rounds N] [--rows N] [--shard BYTES …]

The shards have 2.5 MB, 8 MB, and 64 MiB, which is the default of flare and of the original: with
larger shards, the cost per shard matters less.

A local nginx answers path-style GETs, unsigned, on the same cores; its CPU time is printed too. It
runs without a limit, and then with a limit of RATE per request, which is about what a bucket
allows; then the cores wait. `obstore` downloads each shard in one of four threads and drops it. The
control also computes a checksum and writes the shard to a file, and keeps a tenth of the data, like
a cache that writes everything. `flare.Loader` returns batches of 64 samples of 20 KB, each of which
is accessed, with an empty cache at the start. All three run in each round, each in its own process.
Wall-clock time and CPU time are printed, because a busy machine distorts the former. Without a
limit, four processes, one for each rank, share one cache, and one process reads two epochs. The log
of the server shows how often each shard was downloaded.
"""

import argparse
import json
import multiprocessing
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from storage import serve

ROWS, SAMPLE, SHARDS, WINDOW, RANKS, LEAST, RATE = (
    40_000,
    20_000,
    (2_500_000, 8_000_000, 1 << 26),
    3,
    4,
    0.7,
    "80m",
)
# of a dataset: three windows fit a tenth of it, and the first window, for which batches wait, is a
# small part of an epoch
LEAST_SHARDS = 96


def make(folder: Path, rows: int, shard: int) -> int:
    """Pack random bytes, and return the size of all shards."""
    import random

    import flarecli as flare
    from flarecli.model import Settings

    rng = random.Random(1)
    with flare.Writer(
        str(folder), columns={"n": "int", "b": "bytes"}, settings=Settings(shard_bytes=shard)
    ) as writer:
        for n in range(rows):
            writer.write({"n": n, "b": rng.randbytes(SAMPLE)})
    return sum(path.stat().st_size for path in folder.glob("*.mds"))


def raw(url: str, names: list[str]) -> int:
    import obstore
    from obstore.store import S3Store

    store = S3Store(
        "files",
        endpoint=url,
        skip_signature=True,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    with ThreadPoolExecutor(4) as threads:
        return sum(threads.map(lambda name: len(obstore.get(store, f"d/{name}").bytes()), names))


def written(url: str, names: list[str], folder: str, limit: int) -> int:
    """Download as `raw` does; compute the checksum of each shard, write it, and remove the
    oldest.
    """
    import obstore
    import xxhash
    from obstore.store import S3Store

    store = S3Store(
        "files",
        endpoint=url,
        skip_signature=True,
        region="us-east-1",
        client_options={"allow_http": True},
    )
    kept: deque[tuple[str, int]] = deque()

    def one(name: str) -> int:
        data = memoryview(obstore.get(store, f"d/{name}").bytes())
        path = os.path.join(folder, f"{name}-{xxhash.xxh3_128_hexdigest(data)}")
        with open(path, "wb", buffering=0) as file:
            file.write(data)
        kept.append((path, len(data)))
        while sum(size for _, size in list(kept)) > limit:
            os.unlink(kept.popleft()[0])
        return len(data)

    os.makedirs(folder)
    with ThreadPoolExecutor(4) as threads:
        return sum(threads.map(one, names))


def streamed(cache: str, limit: int, epochs: int = 1) -> int:
    import flarecli as flare

    data = flare.open("s3://files/d/playlist.yaml", cache=cache, cache_limit=limit)
    loader = flare.Loader(data, 64, order="windows", window=WINDOW)
    return sum(len(one) for _ in range(epochs) for batch in loader for one in batch["b"])


def ranked(cache: str, limit: int, rank: int, barrier: Any, out: Any) -> None:
    """Read one rank. As in training, no rank is more than one batch ahead of another."""
    import flarecli as flare

    data, rows = flare.open("s3://files/d/playlist.yaml", cache=cache, cache_limit=limit), []
    for batch in flare.Loader(
        data, 64, order="windows", window=WINDOW, rank=rank, ranks=RANKS, drop_last=True
    ):
        rows += batch["n"].tolist()
        barrier.wait(120)
    out.put(rows)


def in_step(url: str, cache: str, limit: int) -> tuple[int, float]:
    """Read all ranks with one cache; return the number of different samples, and the seconds."""
    os.environ.update(environment(url))
    context, began = multiprocessing.get_context("spawn"), time.perf_counter()
    barrier, out = context.Barrier(RANKS), context.Queue()
    processes = [
        context.Process(target=ranked, args=(cache, limit, rank, barrier, out))
        for rank in range(RANKS)
    ]
    for process in processes:
        process.start()
    rows = [row for _ in processes for row in out.get(timeout=240)]
    for process in processes:
        process.join()
    if len(set(rows)) != len(rows):
        sys.exit("a sample was returned twice")
    return len(rows), time.perf_counter() - began


def side(task: dict) -> None:
    """Run one side in this process; print seconds, CPU seconds and bytes as JSON."""
    import obstore.store  # noqa: F401  imports and the first connection are not counted

    import flarecli as flare

    len(flare.open("s3://files/d/playlist.yaml")[0])
    if task["kind"] != "streamed":
        raw(*task["args"][:1], task["args"][1][:1])
    began, used = time.perf_counter(), time.process_time()
    got = {"raw": raw, "written": written, "streamed": streamed}[task["kind"]](*task["args"])
    print(
        json.dumps(
            {
                "seconds": time.perf_counter() - began,
                "cpu": time.process_time() - used,
                "bytes": got,
            }
        ),
        flush=True,
    )


def environment(url: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }


def begin(url: str, task: dict) -> subprocess.Popen:
    env = {"PATH": os.environ["PATH"]} | environment(url)
    return subprocess.Popen(
        [sys.executable, __file__, "--side", json.dumps(task)],
        stdout=subprocess.PIPE,
        text=True,
        env=env,
    )


def ended(process: subprocess.Popen) -> dict:
    out, _ = process.communicate(timeout=300)
    if process.returncode:
        sys.exit(f"a side ended with {process.returncode}")
    return json.loads(out)


def fetches(log: Path, sizes: dict[str, int]) -> list[float]:
    """Return how often each shard was downloaded, from its bytes in the log, and empty the log."""
    sent: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        found = re.search(r'"GET \S*/([^/ ]+\.mds)\S* HTTP/[\d.]+" 20[06] (\d+)', line)
        if found:
            sent[found[1]] += int(found[2])
    os.truncate(log, 0)
    return [sent[name] / size for name, size in sizes.items()]


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--shard", type=int, nargs="+", default=SHARDS)
    parser.add_argument("--side")
    args = parser.parse_args()
    if args.side:
        side(json.loads(args.side))
        return
    for shard in args.shard:
        measured(max(args.rows, LEAST_SHARDS * shard // SAMPLE), shard, args.rounds)


def measured(rows: int, shard: int, rounds: int) -> None:
    """Run all measurements with one dataset."""
    with tempfile.TemporaryDirectory(prefix="flare-streaming-") as scratch:
        folder = Path(scratch)
        os.chmod(folder, 0o755)
        total = make(folder / "files" / "d", rows, shard)
        sizes = {
            path.name: path.stat().st_size
            for path in sorted((folder / "files" / "d").glob("*.mds"))
        }
        print(
            f"{len(sizes)} shards of {shard / 1e6:.1f} MB, {total / 1e6:.0f} MB, cache {total / 1e7:.0f} MB; load {os.getloadavg()[0]:.1f}"
        )
        for rate, times in (("0", rounds), (RATE, min(3, rounds))):
            log = folder / f"log-{rate}"
            server, url = serve(folder, str(log), rate)
            try:
                print("as fast as it can" if rate == "0" else f"{rate}B/s for each request")
                compared(url, log, folder / "cache", total, sizes, times, server.pid)
                if rate == "0":
                    together(url, log, folder / "cache", total, sizes, rows)
                    again(url, log, folder / "cache", total, sizes)
            finally:
                server.terminate()
                server.wait()


def compared(
    url: str, log: Path, cache: Path, total: int, sizes: dict[str, int], rounds: int, server: int
) -> None:
    names, limit = list(sizes), total // 10
    tasks = {
        "raw": [url, names],
        "written": [url, names, str(cache), limit],
        "streamed": [str(cache), limit],
    }
    rows: dict[str, list[dict]] = {kind: [] for kind in tasks}
    times = []
    for _ in range(rounds):
        for kind, args in tasks.items():
            os.truncate(log, 0)
            before = cpu_of(server)
            one = ended(begin(url, {"kind": kind, "args": args}))
            rows[kind].append(
                one | {"rate": one["bytes"] / one["seconds"], "server": cpu_of(server) - before}
            )
            shutil.rmtree(cache, ignore_errors=True)
        times.append(fetches(log, sizes))
    for name, kind in (
        ("obstore", "raw"),
        ("and written", "written"),
        ("flare.Loader", "streamed"),
    ):
        best, cpu, its = (
            min(one[what] for one in rows[kind]) for what in ("seconds", "cpu", "server")
        )
        print(
            f"{name:14}{total / best / 1e6:8,.0f} MB/s{cpu * 1e9 / total:8.2f} CPU ns/byte, the server{its * 1e9 / total:6.2f}"
        )
    ratios = {
        kind: statistics.median(
            b["rate"] / a["rate"] for a, b in zip(rows["raw"], rows[kind], strict=True)
        )
        for kind in tasks
    }
    ratio = ratios["streamed"]
    print(
        f"flare over obstore: {ratio:.2f} (at least {LEAST}){'' if ratio >= LEAST else '   MISSED'}; the control {ratios['written']:.2f}"
    )
    print(
        f"each shard fetched {min(map(min, times)):.3f} to {max(map(max, times)):.3f} times an epoch"
    )


def together(
    url: str, log: Path, cache: Path, total: int, sizes: dict[str, int], rows: int
) -> None:
    got, took = in_step(url, str(cache), total // 10)
    shared = fetches(log, sizes)
    shutil.rmtree(cache)
    print(
        f"{RANKS} processes in step, one cache: {got} of {rows} samples, {got * SAMPLE / took / 1e6:,.0f} MB/s with their start"
    )
    print(f"each shard fetched {min(shared):.3f} to {max(shared):.3f} times")


def again(url: str, log: Path, cache: Path, total: int, sizes: dict[str, int]) -> None:
    ended(begin(url, {"kind": "streamed", "args": [str(cache), total // 10, 2]}))
    times = fetches(log, sizes)
    shutil.rmtree(cache)
    print(
        f"two epochs: each shard fetched {min(times):.3f} to {max(times):.3f} times, {statistics.mean(times):.2f} on average"
    )


def cpu_of(server: int) -> float:
    """Return the CPU seconds of a server and its workers."""
    pids, ticks = (
        [server, *map(int, Path(f"/proc/{server}/task/{server}/children").read_text().split())],
        0,
    )
    for pid in pids:
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(words[11]) + int(words[12])
    return ticks / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
