"""Compare `flare verify` with programs that only read and compute checksums: a loop with xxhash,
`cat` and `sha256sum`, on cached shards.

    verify.py [--mb N] [--rounds N]

One dataset has an xxh3_128, the other also a sha256; both are MDS with shards of 64 MiB. All
programs read the same files, in turns. The speed is measured in wall-clock time, and the ratios to
other programs in CPU time of all threads, because CPU time depends less on other programs of the
machine. Medians of the rounds are printed; ratios are medians of the ratios of each round. The
start of each program counts. The loop computes the xxh3_128 of each file in blocks of 1 MiB, as
`xxhsum -H2` does.
"""

import argparse
import os
import statistics
import sys
import tempfile
from pathlib import Path

from measure import FLARE, print_figures, run

from flarecli.model import Settings
from flarecli.write import Writer

LOOP = """
import sys, xxhash
block = memoryview(bytearray(1 << 20))
for path in sys.argv[1:]:
    digest = xxhash.xxh3_128()
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(block):
            digest.update(block[:size])
"""


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
            "xxhash loop": [sys.executable, "-c", LOOP, *shards],
            "two xxhash loops at once": [
                "sh",
                "-c",
                '"$0" -c "$1" $2 & "$0" -c "$1" $3 & wait',
                sys.executable,
                LOOP,
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
            {name: run(argv, **compiled) for name, argv in contenders.items()}
            for _ in range(given.rounds)
        ]
    size = given.mb
    for name in contenders:
        seconds, cpu = (
            statistics.median(getattr(one[name], kind) for one in rounds)
            for kind in ("wall", "cpu")
        )
        print(f"{name:26} {seconds:7.3f} s {cpu:7.3f} CPU s {size / seconds:8,.0f} MB/s")
    own, strong_own = "flare verify", "flare verify, sha256"
    pairs = {  # name: the program whose time is divided by the time of the other, and the time
        "two loops over one, the control": ("xxhash loop", "two xxhash loops at once", "wall"),
        "all cores over one": ("flare verify -j1", own, "wall"),
        "all cores over one core": ("flare verify, one core", own, "wall"),
        "all cores over one with sha256": ("flare verify -j1, sha256", strong_own, "wall"),
        "flare over xxhash loop": (own, "xxhash loop", "cpu"),
        "sha256sum": ("sha256sum", strong_own, "cpu"),
    }
    figures = {
        name: statistics.median(getattr(one[a], time) / getattr(one[b], time) for one in rounds)
        for name, (a, b, time) in pairs.items()
    }
    for name, figure in figures.items():
        print(f"{figure:5.2f}  {name}")
    print_figures(figures)


if __name__ == "__main__":
    main()
