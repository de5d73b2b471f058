"""Pack 10,000 links to JPEGs of 10 KB from a local nginx: flare and img2dataset, in images per CPU
second.

    links.py [--rounds N]

The images are packed unchanged and resized to 256 pixels; both tools write webdataset shards.
PEER_PYTHON names an interpreter with img2dataset, as for the other benchmarks. nginx is needed
(Debian: nginx-light). Ratios are medians of the ratios of each round.
"""

import argparse
import io
import os
import random
import shutil
import statistics
import sys
import tempfile
from pathlib import Path

from measure import FLARE, Cost, print_figures, run
from storage import serve

COUNT, SHARD = 10_000, 1_000
WIDTH, HEIGHT = 290, 210
RATIOS = {"unchanged": 6.0, "resized": 1.5}


def make(folder: Path, url: str) -> Path:
    """Write different images, and a table of their links."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet
    from PIL import Image

    rng = random.Random(0)
    noise = np.random.default_rng(0)
    (folder / "pictures").mkdir()
    for i in range(COUNT):
        if i % 50 == 0:  # enlarged coarse noise is as hard to encode as a photograph
            small = Image.fromarray(
                noise.integers(0, 255, (HEIGHT // 10, WIDTH // 10, 3), dtype=np.uint8)
            )
            out = io.BytesIO()
            small.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC).save(out, "JPEG", quality=75)
        (folder / "pictures" / f"{i:05}.jpg").write_bytes(
            out.getvalue() + rng.randbytes(8)
        )  # bytes after the end are not part of the image
    links = [f"{url}/pictures/{i:05}.jpg" for i in range(COUNT)]
    path = folder / "links.parquet"
    pyarrow.parquet.write_table(
        pa.table({"id": [f"{i:05}" for i in range(COUNT)], "url": links}), path
    )
    print(f"{COUNT} images of {len(out.getvalue())} bytes")
    return path


def flare(table: Path, out: Path, task: str) -> Cost:
    more = ("--resize", "256", "--quality", "95") if task == "resized" else ()
    return run(
        [
            FLARE,
            "pack",
            str(table),
            str(out),
            "--fetch",
            "url:jpg",
            "--allow-private",
            "--key",
            "id",
            "--format",
            "webdataset",
            "-q",
            *more,
        ]
    )


def img2dataset(table: Path, out: Path, task: str) -> Cost:
    mode = (
        ("--resize_mode", "keep_ratio_largest", "--image_size", "256")
        if task == "resized"
        else ("--resize_mode", "no", "--disable_all_reencoding", "True")
    )
    argv = (
        str(Path(os.environ["PEER_PYTHON"]).with_name("img2dataset")),
        "--url_list",
        str(table),
        "--input_format",
        "parquet",
        "--url_col",
        "url",
        "--output_folder",
        str(out),
        "--output_format",
        "webdataset",
        "--processes_count",
        "2",
        "--thread_count",
        "64",
        "--number_sample_per_shard",
        str(SHARD),
        "--enable_wandb",
        "False",
        "--encode_quality",
        "95",
        *mode,
    )
    return run(argv, NO_ALBUMENTATIONS_UPDATE="1")


def packed(out: Path) -> int:
    """Return the number of images in the shards."""
    import tarfile

    count = 0
    for path in out.glob("*.tar"):
        with tarfile.open(path) as tar:
            count += sum(member.name.endswith(".jpg") for member in tar)
    return count


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    if not os.environ.get("PEER_PYTHON"):
        sys.exit("PEER_PYTHON must name an interpreter with img2dataset")
    with tempfile.TemporaryDirectory(prefix="flare-links-") as scratch:
        folder = Path(scratch)
        os.chmod(folder, 0o755)
        server, url = serve(folder)
        try:
            table = make(folder, url)
            figures = {
                task: compare(table, folder / "out", task, least, args.rounds)
                for task, least in RATIOS.items()
            }
        finally:
            server.terminate()
            server.wait()
    print_figures(figures)


def compare(table: Path, out: Path, task: str, least: float, rounds: int) -> float:
    """Pack the links with both programs, print the rates, and return the ratio of the CPU times."""
    found: dict[str, list[Cost]] = {"flare": [], "img2dataset": []}
    for _ in range(rounds):
        for name, call in (("flare", flare), ("img2dataset", img2dataset)):
            shutil.rmtree(out, ignore_errors=True)
            found[name].append(call(table, out, task))
            if packed(out) != COUNT:
                sys.exit(f"{name}, {task}: {packed(out)} of {COUNT} images were packed")
    for name, costs in found.items():
        wall, cpu = (
            statistics.median(getattr(cost, kind) for cost in costs) for kind in ("wall", "cpu")
        )
        print(f"{task:14}{name:14}{COUNT / wall:8,.0f}/s {COUNT / cpu:8,.0f} per CPU second")
    ratio = statistics.median(
        two.cpu / one.cpu for one, two in zip(found["flare"], found["img2dataset"], strict=True)
    )
    print(
        f"{task}: {ratio:.1f} times as many (at least {least}){'' if ratio >= least else '   MISSED'}",
        flush=True,
    )
    return ratio


if __name__ == "__main__":
    main()
