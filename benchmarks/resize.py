"""Speed-up of resizing by threads: one thread and one thread per core, in pairs.

python benchmarks/resize.py [IMAGES] [PAIRS]
"""

import io
import os
import statistics
import sys
import time
import zlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from PIL import Image

from flarecli.media import Resize, resize
from flarecli.prefetch import cpu_count

SIDE, SIZE, QUALITY = (1024, 768), 256, 90


def photograph(seed: int) -> bytes:
    """Return a JPEG of about 170 kB with the detail of a photograph: noise of many scales."""
    numbers = np.random.default_rng(seed)
    total = np.zeros((SIDE[1], SIDE[0], 3), np.float32)
    for scale in (4, 16, 64, 256):
        small = numbers.normal(size=(max(2, SIDE[1] // scale), max(2, SIDE[0] // scale), 3)).astype(
            np.float32
        )
        layers = [
            np.asarray(Image.fromarray(small[:, :, band]).resize(SIDE, Image.Resampling.BICUBIC))
            for band in range(3)
        ]
        total += np.stack(layers, -1) * scale**0.5
    out = io.BytesIO()
    Image.fromarray(np.clip(128 + total * 4, 0, 255).astype(np.uint8)).save(
        out, "jpeg", quality=QUALITY
    )
    return out.getvalue()


def turn(pictures: pa.Array, jobs: int) -> float:
    began = time.perf_counter()
    found, failures = resize(pictures, Resize(SIZE), jobs)
    if failures or found.null_count:
        sys.exit(f"pictures failed: {failures[:3]}")
    return time.perf_counter() - began


def control(data: bytes, jobs: int) -> float:
    began = time.perf_counter()
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(zlib.compress, [data] * 8))
    return time.perf_counter() - began


def main() -> None:
    count, pairs = (int(one) for one in [*sys.argv[1:], *("40", "20")[len(sys.argv) - 1 :]])
    cores = cpu_count()
    pictures, noise = (
        pa.array([photograph(i) for i in range(8)] * (count // 8), pa.large_binary()),
        os.urandom(1 << 20),
    )
    turn(pictures[:16], cores)
    ratios, free = [], []
    for pair in range(pairs):
        order = (1, cores) if pair % 2 else (cores, 1)
        times, others = (
            {jobs: turn(pictures, jobs) for jobs in order},
            {jobs: control(noise, jobs) for jobs in order},
        )
        ratios.append(times[1] / times[cores])
        if others[1] / others[cores] >= 1.7:
            free.append(ratios[-1])
    print(
        f"{len(pictures)} pictures of {SIDE[0]}×{SIDE[1]} to {SIZE}, {cores} cores, load {os.getloadavg()[0]:.1f}"
    )
    for what, found in (("all pairs", ratios), ("pairs with all cores free", free)):
        median = (
            f"{statistics.median(found):.2f} times one thread, {min(found):.2f} to {max(found):.2f}"
            if found
            else "none"
        )
        print(f"{len(found)} {what}: {median}")


if __name__ == "__main__":
    main()
