"""Compare `flare verify` with programs that only read and compute checksums: `xxhsum -H3`, `cat`
and `sha256sum`, on cached shards.

    verify.py [--mb N] [--rounds N]

One dataset has an xxh3_128, the other also a sha256; both are MDS with shards of 64 MiB. All
programs read the same files, in turns. Medians of the rounds are printed; ratios are medians of the
ratios of each round. The start of each program counts. xxhsum is needed (Debian: xxhash).
"""

import argparse
import os
import statistics
import tempfile
from pathlib import Path

from measure import FLARE, run

from flarecli.model import Settings
from flarecli.write import Writer


def packed(folder: Path, megabytes: int, hashes: tuple[str, ...]) -> list[str]:
    """Write rows of 100 KB, and return the shards."""
    with Writer(
        str(folder), columns={"id": "int", "data": "bytes"}, settings=Settings(hashes=hashes)
    ) as writer:
        for i in range(megabytes * 10):
            writer.write({"id": i, "data": os.urandom(100_000)})
    return sorted(str(path) for path in folder.glob("*.mds"))


def main() -> None:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--mb", type=int, default=1000)
    asked.add_argument("--rounds", type=int, default=5)
    given = asked.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fast, slow = Path(folder) / "xxh3", Path(folder) / "sha256"
        shards, strong = packed(fast, given.mb, ()), packed(slow, given.mb, ("sha256",))
        contenders = {
            "cat": ["sh", "-c", 'cat "$@" > /dev/null', "cat", *shards],
            "xxhsum -H3": ["xxhsum", "-H3", *shards],
            "two xxhsum side by side": [
                "sh",
                "-c",
                "xxhsum -H3 $0 > /dev/null & xxhsum -H3 $1 > /dev/null & wait",
                *map(" ".join, (shards[::2], shards[1::2])),
            ],
            "flare verify": [FLARE, "verify", "-q", str(fast)],
            "flare verify, one core": ["taskset", "-c", "0", FLARE, "verify", "-q", str(fast)],
            "flare verify -j1": [FLARE, "verify", "-q", "-j", "1", str(fast)],
            "sha256sum": ["sha256sum", *strong],
            "flare verify, sha256": [FLARE, "verify", "-q", str(slow)],
            "flare verify -j1, sha256": [FLARE, "verify", "-q", "-j", "1", str(slow)],
        }
        compiled = {"PYTHONDONTWRITEBYTECODE": ""}  # an installed package has compiled modules
        for argv in contenders.values():
            run(argv, **compiled)
        rounds = [
            {name: run(argv, **compiled).wall for name, argv in contenders.items()}
            for _ in range(given.rounds)
        ]
    size = given.mb
    for name in contenders:
        seconds = statistics.median(one[name] for one in rounds)
        print(f"{name:26} {seconds:7.3f} s  {size / seconds:8,.0f} MB/s")
    ratios = {
        "two xxhsum over one, the control": lambda one: (
            one["xxhsum -H3"] / one["two xxhsum side by side"]
        ),
        "of the slower of xxhsum and cat, goal 0.8": lambda one: (
            max(one["cat"], one["xxhsum -H3"]) / one["flare verify"]
        ),
        "of sha256sum, goal 2": lambda one: one["sha256sum"] / one["flare verify, sha256"],
        "all cores over one, goal 1.6": lambda one: one["flare verify -j1"] / one["flare verify"],
        "all cores over one core": lambda one: one["flare verify, one core"] / one["flare verify"],
        "all cores over one with sha256, goal 1.6": lambda one: (
            one["flare verify -j1, sha256"] / one["flare verify, sha256"]
        ),
    }
    for name, ratio in ratios.items():
        print(f"{statistics.median(map(ratio, rounds)):5.2f}  {name}")


if __name__ == "__main__":
    main()
