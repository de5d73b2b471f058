"""Compare loaders: 5,000 rows of 20 KB, shuffled, in batches of 64; then the shuffle; then
decoding.

    python benchmarks/loaders.py [SIDE …]    # for example: flare floor mds

For each side, the samples per second, the CPU time per sample (of all threads and processes) and
the milliseconds until the first batch are printed, the best of two turns of four epochs. By
default, torch starts new workers for each epoch, which takes most of an epoch here; with
`persistent_workers` they stay alive. The sides with torch's own DataLoader are also measured with
persistent workers, as `kept`. `floor` is a memory map, struct and slices over the same files.
Another library is measured if its interpreter is named: see README.md. Figures are the CPU time per
sample of another side divided by that of flare with two threads.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from pathlib import Path

from measure import print_figures

CHILD, ROUNDS = str(Path(__file__).with_name("loaders_child.py")), 2
PYTHONS = {  # side -> variable with its interpreter
    "lmdb": "LMDB_PYTHON",
    "litdata": "LITDATA_PYTHON",
    "datasets": "TRAINING_PYTHON",
    "ffrecord": "FFRECORD_PYTHON",
    "array_record": "ARRAY_RECORD_PYTHON",
    "grain": "GRAIN_PYTHON",
    "mds": "PEER_PYTHON",
    "webdataset": "WEBDATASET_PYTHON",
}
FOLDERS = {"floor": "flare", "grain": "array_record"}
NO_TORCH = ("array_record", "grain", "webdataset")
OWN_LOADER = ("ffrecord", "litdata")


def child(python: str, *arguments: str) -> str | None:
    try:
        ran = subprocess.run(
            [python, CHILD, *arguments], capture_output=True, text=True, check=False, timeout=600
        )
    except subprocess.TimeoutExpired:
        print(f"  {' '.join(arguments)}: not finished in ten minutes", file=sys.stderr)
        return None
    if ran.returncode:
        print(f"  {' '.join(arguments)}: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return ran.stdout.strip().splitlines()[-1] if ran.stdout.strip() else ""


def has_torch(python: str) -> bool:
    return not subprocess.run(
        [python, "-c", "import torch"], capture_output=True, check=False
    ).returncode


def loaders(chosen: list[str], tmp: str) -> None:
    """Measure all sides in turns, print the best turn of each, and the ratios to flare's loader."""
    pythons = {"flare": sys.executable, "floor": sys.executable} | {
        side: os.environ[name] for side, name in PYTHONS.items() if name in os.environ
    }
    pythons = {side: python for side, python in pythons.items() if not chosen or side in chosen}
    for side in pythons:
        if side not in FOLDERS:
            child(pythons[side], "write", side, f"{tmp}/{side}")
    turns = [(side, "2" if side == "flare" else "0", "") for side in pythons] + (
        [("flare", "0", "")] if "flare" in pythons else []
    )
    has = [side for side in pythons if side not in NO_TORCH and has_torch(pythons[side])]
    turns += [(side, workers, "torch") for side in has for workers in ("0", "2")]
    turns += [(side, "2", "kept") for side in has if side not in OWN_LOADER]
    best: dict[tuple[str, str, str], list[float]] = {}
    for number in range(ROUNDS):
        print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
        for turn in turns:
            side, workers, torch = turn
            told = child(
                pythons[side], "read", side, f"{tmp}/{FOLDERS.get(side, side)}", workers, torch
            )
            if told is None:
                continue
            rate, cost, first = json.loads(told)
            old = best.get(turn, [0, float("inf"), float("inf")])
            best[turn] = [max(rate, old[0]), min(cost, old[1]), min(first, old[2])]
    print(f"{'':32}{'samples/s':>12}{'CPU µs':>10}{'first ms':>10}")
    for side, workers, torch in sorted(
        best, key=lambda turn: (turn[2], turn[1] if turn[2] else "", -best[turn][0])
    ):
        rate, cost, first = best[side, workers, torch]
        who = f"{workers} {'kept ' * (torch == 'kept')}workers" if torch else f"{workers} threads"
        what = f"{side}, {'torch, ' if torch else ''}{who}" if torch or side == "flare" else side
        print(f"{what:32}{rate:12,.0f}{cost * 1e6:10.1f}{first * 1e3:10.1f}")
    own = best["flare", "2", ""][1]
    print_figures(
        {
            side: best[side, "0", ""][1] / own
            for side in pythons
            if side != "flare" and (side, "0", "") in best
        }
    )


def order() -> None:
    """Measure the permutation: nanoseconds per index in blocks of 16 k, and memory of a block."""
    import numpy as np

    from flarecli.read import positions

    for rows in (5_000, 10**6, 10**9, 10**12):
        steps = np.arange(1 << 14) % rows
        took = []
        for _ in range(200):
            began = time.process_time_ns()
            positions(steps, rows, 1)
            took.append(time.process_time_ns() - began)
        tracemalloc.start()
        positions(steps, rows, 1)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(
            f"order of {rows:>17,} rows: {min(took) / len(steps):5.1f} ns an index, {peak / 1e6:.2f} MB"
        )


def decoding(tmp: str) -> None:
    """Compare decoding and resizing of JPEG to 224 pixels in the loader with Pillow alone."""
    import io

    import numpy as np
    from PIL import Image

    import flarecli as flare

    rng, files = np.random.default_rng(1), []
    for _ in range(64):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8)).resize(
            (640, 480), Image.Resampling.BICUBIC
        ).save(out, "JPEG", quality=90)
        files.append(out.getvalue())
    with flare.Writer(f"{tmp}/jpeg", columns={"image": "jpeg"}) as writer:
        for k in range(1024):
            writer.write({"image": files[k % 64]})
    data, best = flare.open(f"{tmp}/jpeg"), dict.fromkeys(("pillow", "1 thread", "2 threads"), 0.0)
    for _ in range(4):
        began = time.perf_counter()
        for k in range(256):
            Image.open(io.BytesIO(files[k % 64])).load()
        best["pillow"] = max(best["pillow"], 256 / (time.perf_counter() - began))
        for workers in (1, 2):
            began = time.perf_counter()
            done = sum(
                len(batch["image"])
                for batch in flare.Loader(
                    data, 64, workers=workers, decode={"image": flare.presets.image(224)}
                )
            )
            name = f"{workers} thread{'s' * (workers > 1)}"
            best[name] = max(best[name], done / (time.perf_counter() - began))
    for name, rate in best.items():
        print(f"decoding 640 x 480, {name:10}{rate:10,.0f} pictures/s")
    print(
        f"two threads {best['2 threads'] / best['1 thread']:.2f} times one, {best['2 threads'] / best['pillow']:.2f} times Pillow's decoding alone"
    )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        if not sys.argv[1:]:
            order()
            decoding(folder)
        loaders(sys.argv[1:], folder)
