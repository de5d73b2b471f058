"""What the driver of a pack in parts holds: parts are joined over a store that makes their playlists up and counts what it is asked.

    python benchmarks/scale.py [--parts 100000] [--rows 100000] [--shards 2]

Every read and write waits `--latency` seconds, and one in a thousand fails for a moment, as stores do; it is asked again, as the clients of
real stores ask again. Printed are requests, bytes of the playlist, seconds, CPU seconds and the peak memory of this process.
"""

import argparse
import random
import resource
import time
from collections import Counter

import numpy as np

from flarecli import playlists
from flarecli.encodings import column
from flarecli.errors import MissingError, ReachError
from flarecli.hashes import Sums
from flarecli.model import File, Playlist, Stream
from flarecli.storage import Location, Written
from flarecli.write import parts


class Made:
    """A store in which every part's playlist is the same; what is written is summed and forgotten."""

    def __init__(self, listing: bytes, latency: float) -> None:
        self.listing, self.latency, self.asked, self.written = listing, latency, Counter[str](), 0
        self._rng = random.Random(1)

    def _ask(self, verb: str) -> None:
        while True:
            self.asked[verb] += 1
            if self.latency:
                time.sleep(self.latency)
            if self._rng.random() >= 0.001:
                return
            self.asked["failed for a moment"] += 1

    def _is_listing(self, path: str) -> bool:
        return path.endswith(f"/{playlists.PLAYLIST}")

    def size(self, path: str) -> int:
        self._ask("size")
        if not self._is_listing(path):
            raise MissingError("nothing there", where=path)
        return len(self.listing)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        self._ask("read")
        if not self._is_listing(path):
            raise ReachError("nothing there", where=path)
        return self.listing[start:stop]

    def write(self, path: str, pieces, hashes=(), replace: bool = True) -> Written:
        self._ask("write")
        sums = Sums(hashes)
        for piece in pieces:
            sums.update(piece)
        self.written += sums.size
        return Written(sums.size, sums.hex())

    def child(self, path: str, name: str) -> str:
        return f"{path}/{name}" if path else name

    def show(self, path: str) -> str:
        return f"made://{path}"


def listing(shards: int, rows: int) -> bytes:
    """Give the playlist of a part, as a pack of pictures into tar files writes it."""
    names = [f"{i:05}.tar" for i in range(shards)]
    hashes = {"xxh3_128": ["ab" * 16] * shards}
    files = {"shardindex.json": File("shardindex.json", 300, {"xxh3_128": "cd" * 16})}
    columns = (column("image", "jpeg"), column("text", "str"))
    counts = np.full(shards, rows // shards)
    return playlists.text(
        Playlist(
            (
                Stream(
                    "data",
                    None,
                    "webdataset",
                    names,
                    columns,
                    counts,
                    counts * 100_000,
                    hashes,
                    files=files,
                ),
            )
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=100_000, help="of a part")
    parser.add_argument("--shards", type=int, default=2, help="of a part")
    parser.add_argument("--latency", type=float, default=0.0)
    args = parser.parse_args()
    store = Made(listing(args.shards, args.rows), args.latency)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.monotonic(), time.process_time()
    stream = parts.join(Location(store, ""), map(parts.part_name, range(args.parts)), {})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took, used = time.monotonic() - began, time.process_time() - cpu
    print(
        f"{args.parts:,} parts, {int(stream.rows.sum()):,} rows, {len(stream):,} shards, playlist {store.written:,} bytes"
    )
    print(f"requests: {dict(store.asked)}")
    print(
        f"{took:.1f} s, {used:.1f} CPU s, peak {peak / 1024:.0f} MB, {(peak - before) / 1024:.0f} MB of it for the parts"
    )


if __name__ == "__main__":
    main()
