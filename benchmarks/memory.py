"""Measure the memory of packing: text from parquet, 10,000 to 1,000,000 rows, and 2 GB of
photographs over HTTP.

    python benchmarks/memory.py [--rows 10000,100000,1000000] [--photos-gb 2]

Peaks are from GNU time -v. 10,000 rows of 1 KB do not fill a shard of 64 MiB; with more rows, the
peak must stay the same.
"""

import argparse
import itertools
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from measure import FLARE, peak
from pack_text import make

sys.path.insert(0, str(Path(__file__).parents[1] / "docs"))
from demo import Server, photograph  # photographs and server of the demo

PHOTOGRAPHS = 64  # different photographs; the links of all rows differ, so each row is downloaded


def text(scratch: str, rows: int) -> str:
    make(f"{scratch}/{rows}.parquet", rows)
    most, seconds = peak([FLARE, "pack", f"{scratch}/{rows}.parquet", f"{scratch}/{rows}", "-q"])
    return f"{rows:,} rows of 1 KB text: peak {most / 1e6:.0f} MB, {seconds:.1f} s"


def photographs(scratch: str, size: float) -> str:
    (root := Path(scratch, "photos")).mkdir()
    drawn = []
    for number in range(PHOTOGRAPHS):
        data = photograph(number)
        (root / f"{number}.jpg").write_bytes(data)
        drawn.append(len(data))
    rows = next(
        row
        for row, total in enumerate(itertools.accumulate(itertools.cycle(drawn)), 1)
        if total >= size
    )
    with Server(root) as server:
        links = [f"{server.url}/{row % PHOTOGRAPHS}.jpg?{row}" for row in range(rows)]
        pq.write_table(
            pa.table({"data_id": [f"{row:08}" for row in range(rows)], "data_url": links}),
            f"{scratch}/photos.parquet",
        )
        argv = [
            FLARE,
            "pack",
            f"{scratch}/photos.parquet",
            f"{scratch}/packed",
            "--fetch",
            "data_url:image",
            "--allow-private",
            "--key",
            "data_id",
            "-q",
        ]
        most, seconds = peak(argv)
        return f"{rows:,} photographs, {server.sent / 1e9:.2f} GB over HTTP: peak {most / 1e6:.0f} MB, {seconds:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", default="10000,100000,1000000")
    parser.add_argument("--photos-gb", type=float, default=2.0)
    args = parser.parse_args()
    for rows in map(int, filter(None, args.rows.split(","))):
        with tempfile.TemporaryDirectory() as scratch:
            print(text(scratch, rows), flush=True)
    if args.photos_gb:
        with tempfile.TemporaryDirectory() as scratch:
            print(photographs(scratch, args.photos_gb * 1e9), flush=True)


if __name__ == "__main__":
    main()
