"""Measure a dataset that grows every day: 365 appends of 10,000 rows, and a shuffled epoch compared
with a dataset packed at once.

    daily_append.py [--days N] [--rows N] [--bytes N] [--rounds N]

Each row has an integer and 100 bytes of text (`--bytes`). The script prints the cost of the first
append (of 15 datasets) and of the last appends (medians of 15; at most twice the CPU time), the
sizes of the lists, the cost of opening, and the rows per second of a shuffled epoch in batches of
64: of a dataset packed at once, of a dataset packed at once in shards of a day, of the fragments
(at least 0.9 of the first rate), and after `flare compact` (likewise). First and last appends run
alternately, because the system time of a sync varies from minute to minute. The epochs also run
alternately: the script prints the median of the rates, and the median of the ratios to the epoch of
the same round. The goals apply to CPU time, which depends less on other programs than elapsed time.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import flarecli as flare

BATCH_ROWS, APPENDS, OPENS = 64, 15, 5
MAX_SLOWDOWN, MIN_RATE = 2.0, 0.9


class Seconds(NamedTuple):
    """Elapsed seconds, and CPU seconds of all threads."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall * 1e3:,.1f} ms, {self.cpu * 1e3:,.1f} ms of CPU"


def measured(call: Callable[[], object]) -> Seconds:
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return Seconds(time.perf_counter() - wall, time.process_time() - cpu)


def best(costs: list[Seconds], choose: Callable[[list[float]], float] = min) -> Seconds:
    return Seconds(*(choose(list(values)) for values in zip(*costs, strict=True)))


def source(path: Path, first: int, count: int, size: int) -> str:
    """Write rows to a Parquet file."""
    letters = np.random.default_rng(first).integers(97, 123, count * size, np.uint8).tobytes()
    text = [letters[i : i + size].decode() for i in range(0, len(letters), size)]
    pq.write_table(pa.table({"id": np.arange(first, first + count), "text": text}), path)
    return str(path)


def epoch(address: str, number: int) -> None:
    """Read a shuffled epoch."""
    rows, data = 0, flare.open(address)
    with flare.Loader(data, batch=BATCH_ROWS, epoch=number) as loader:
        for batch in loader:
            rows += len(batch["id"])
    assert rows == len(data), (rows, len(data))


def lists_in(folder: Path) -> str:
    sizes = [path.stat().st_size for path in sorted(folder.glob("playlist.0*.yaml"))]
    return f"{len(sizes)} lists: newest {sizes[-1] / 1e3:.1f} kB, total {sum(sizes) / 1e6:.2f} MB"


def verdict(is_met: bool) -> str:
    return "" if is_met else "   MISSED"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=365)
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--bytes", type=int, default=100, help="bytes of text in each row")
    parser.add_argument("--rounds", type=int, default=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flare-daily-") as scratch:
        folder = Path(scratch)
        out, once = str(folder / "days"), str(folder / "once")
        sources = [
            source(folder / f"{i:05}.parquet", i * args.rows, args.rows, args.bytes)
            for i in range(args.days)
        ]
        print(f"pack at once: {measured(lambda: flare.pack(sources, once))}", flush=True)
        small = str(folder / "small")
        flare.pack(sources, small, shard_rows=args.rows)
        flare.pack(sources[0], out)
        appended = sources[1:]
        for path in appended[:-APPENDS]:
            flare.pack(path, out, append=True)
        firsts, lasts = [], []
        for i, path in enumerate(appended[-APPENDS:]):
            new = str(folder / f"new{i}")
            flare.pack(sources[0], new)
            firsts.append(measured(lambda new=new: flare.pack(sources[1], new, append=True)))
            lasts.append(measured(lambda path=path: flare.pack(path, out, append=True)))
        first, last = (best(costs, statistics.median) for costs in (firsts, lasts))
        print(f"first append: {first}\nlast append: {last}")
        slowdown = last.cpu / first.cpu
        print(f"slowdown: {slowdown:.2f}{verdict(slowdown <= MAX_SLOWDOWN)}\n{lists_in(Path(out))}")
        for name, address in (("once", once), ("fragments", out)):
            opens = [measured(lambda address=address: flare.open(address)) for _ in range(OPENS)]
            print(f"open {name}: {best(opens)}")
        fragments = flare.open(out).pinned
        print(f"compact: {measured(lambda: flare.compact(out, below='32MiB'))}", flush=True)
        addresses = {
            "once": once,
            "once, in as many shards": small,
            "fragments": fragments,
            "compacted": out,
        }
        epochs: dict[str, list[Seconds]] = {name: [] for name in addresses}
        for number in range(args.rounds):
            for name, address in addresses.items():
                epochs[name].append(
                    measured(lambda address=address, number=number: epoch(address, number))
                )
        rows = args.days * args.rows
        for name, costs in epochs.items():
            cost = best(costs, statistics.median)
            ratio = statistics.median(
                floor.cpu / own.cpu for floor, own in zip(epochs["once"], costs, strict=True)
            )
            is_met = addresses[name] == small or ratio >= MIN_RATE
            print(
                f"epoch of {name}: {rows / cost.wall:,.0f} rows/s, {rows / cost.cpu:,.0f} per second of CPU,"
                f" {ratio:.3f}{verdict(is_met)}"
            )


if __name__ == "__main__":
    main()
