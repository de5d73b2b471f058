"""Speed-up of a whole pack by more cores: photographs of 20 kB resized to 256 pixels, shards in
zstd, `--jobs 1` and all cores, in pairs.

    python benchmarks/jobs.py [ROWS] [PAIRS]

Before and after each pack, a control runs on one thread and on all cores. Pairs whose controls show
that all cores were free are reported separately. Both packs must write the same bytes. The printed
peak is the memory of the whole process of the larger pack.
"""

import io
import os
import random
import statistics
import sys
import tempfile
from pathlib import Path

import measure
import pyarrow as pa
import pyarrow.parquet as pq
import resize
from PIL import Image

from flarecli.prefetch import cpu_count

SIDES = (400, 300)
FREE = 1.7  # minimum speed-up of the control if two cores are free
QUALITY = 90


def index(path: str, rows: int) -> None:
    """Write photographs, which are different parts of one scene, with a number and a caption."""
    chance = random.Random(1)
    scene = Image.open(io.BytesIO(resize.photograph(1)))
    pictures = []
    for _ in range(rows):
        left, top = (
            chance.randrange(whole - side) for whole, side in zip(scene.size, SIDES, strict=True)
        )
        out = io.BytesIO()
        scene.crop((left, top, left + SIDES[0], top + SIDES[1])).save(out, "jpeg", quality=QUALITY)
        pictures.append(out.getvalue())
    columns = {"n": range(rows), "caption": [f"a photograph, number {i}" for i in range(rows)]}
    pq.write_table(
        pa.table({**columns, "image": pa.array(pictures, pa.large_binary())}),
        path,
        row_group_size=500,
    )


def packing(source: str, out: str, jobs: int) -> list[str]:
    return [
        measure.FLARE,
        "pack",
        source,
        out,
        "--encode",
        "image=jpeg",
        "--resize",
        "256",
        "-z",
        "zstd",
        "--jobs",
        str(jobs),
        "--overwrite",
        "-q",
    ]


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def main() -> None:
    rows, pairs = (int(one) for one in [*sys.argv[1:], *("5000", "5")[len(sys.argv) - 1 :]])
    cores, noise = cpu_count(), os.urandom(1 << 20)
    if cores < 2:
        sys.exit("this benchmark needs at least two cores")
    ratios, free, used = [], [], []
    with tempfile.TemporaryDirectory() as scratch:
        source = f"{scratch}/index.parquet"
        index(source, rows)
        for pair in range(pairs):
            costs, alone = {}, []
            for jobs in (1, cores) if pair % 2 else (cores, 1):
                alone += [resize.control(noise, 1) / resize.control(noise, cores)]
                costs[jobs] = measure.run(packing(source, f"{scratch}/{jobs}", jobs))
                alone += [resize.control(noise, 1) / resize.control(noise, cores)]
            if files(Path(scratch, "1")) != files(Path(scratch, str(cores))):
                sys.exit("the two packs differ")
            ratios.append(costs[1].wall / costs[cores].wall)
            free += [ratios[-1]] if min(alone) >= FREE else []
            used.append(costs[cores].cpu / costs[1].cpu)
            costs_text = ", ".join(
                f"--jobs {jobs}: {cost.wall:.1f} s, {cost.cpu:.1f} CPU s"
                for jobs, cost in sorted(costs.items())
            )
            print(
                f"{costs_text}: {ratios[-1]:.2f}; control {min(alone):.2f}; load {os.getloadavg()[0]:.1f}",
                flush=True,
            )
        size = sum(map(len, files(Path(scratch, "1")).values()))
        most, _ = measure.peak(packing(source, f"{scratch}/peak", cores))
    print(
        f"{rows:,} photographs, {size / 1e6:.0f} MB of shards, the same bytes; peak {most / 1e6:.0f} MB; {statistics.median(used):.2f} times the CPU"
    )
    for what, found in (("all pairs", ratios), ("pairs with all cores free", free)):
        median = (
            f"{statistics.median(found):.2f} times --jobs 1, {min(found):.2f} to {max(found):.2f}"
            if found
            else "none"
        )
        print(f"{len(found)} {what}: {median}")


if __name__ == "__main__":
    main()
