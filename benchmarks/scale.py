"""Measure the memory of the driver of a pack in parts: parts are joined in a store that generates
their playlists and counts requests.

    python benchmarks/scale.py [--parts 100000] [--rows 100000] [--shards 2]

Every read and write waits `--latency` seconds. One request in a thousand fails and is repeated, as
the clients of real stores do. Requests, bytes of the playlist, seconds, CPU seconds and the peak
memory of this process are printed.
"""

import argparse
import random
import resource
import time
from collections import Counter
from collections.abc import Sequence

import numpy as np

from flarecli import playlists
from flarecli.encodings import column
from flarecli.errors import MissingError, ReachError
from flarecli.hashes import Sums
from flarecli.model import File, Playlist, Stream
from flarecli.storage import Entry, Location, Written
from flarecli.write import parts


class GeneratedStore:
    """A store in which all parts have the same playlist. Written bytes are only checksummed.

    files  the files in the listing of each part
    """

    def __init__(self, listing: bytes, files: Sequence[Entry], latency: float) -> None:
        self.listing, self.latency = listing, latency
        self.files, self.requests, self.written = files, Counter[str](), 0
        self._rng = random.Random(1)

    def _request(self, verb: str) -> None:
        while True:
            self.requests[verb] += 1
            if self.latency:
                time.sleep(self.latency)
            if self._rng.random() >= 0.001:
                return
            self.requests["failed and repeated"] += 1

    def _is_listing(self, path: str) -> bool:
        return path.endswith(f"/{playlists.PLAYLIST}")

    def size(self, path: str) -> int:
        self._request("size")
        if not self._is_listing(path):
            raise MissingError("file does not exist", where=path)
        return len(self.listing)

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        self._request("read")
        if not self._is_listing(path):
            raise ReachError("file does not exist", where=path)
        return self.listing[start:stop]

    def list(self, path: str) -> list[Entry]:
        self._request("list")
        return [*self.files]

    def write(self, path: str, pieces, hashes=(), replace: bool = True) -> Written:
        self._request("write")
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
    """Return the playlist of a part, as a pack of images into tar files writes it."""
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
    playlist = listing(args.shards, args.rows)
    files = [
        *(Entry(f"{i:05}.tar", args.rows // args.shards * 100_000) for i in range(args.shards)),
        Entry("shardindex.json", 300),
        Entry(playlists.PLAYLIST, len(playlist)),
    ]
    store = GeneratedStore(playlist, files, args.latency)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    began, cpu = time.monotonic(), time.process_time()
    stream = parts.join(Location(store, ""), map(parts.part_name, range(args.parts)), {})
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took, used = time.monotonic() - began, time.process_time() - cpu
    print(
        f"{args.parts:,} parts, {int(stream.rows.sum()):,} rows, {len(stream):,} shards, playlist {store.written:,} bytes"
    )
    print(f"requests: {dict(store.requests)}")
    print(
        f"{took:.1f} s, {used:.1f} CPU s, peak {peak / 1024:.0f} MB, {(peak - before) / 1024:.0f} MB of it for the parts"
    )


if __name__ == "__main__":
    main()
