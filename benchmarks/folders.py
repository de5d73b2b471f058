"""Compare packing and unpacking a folder of small files with tar and cp: CPU time (user and system)
and wall-clock time.

    python benchmarks/folders.py [--files 20000] [--rounds 5] [--folder FOLDER]

The files are JPEG headers followed by 16 kB of random bytes, in 20 subfolders. All programs run
alternately, after a `sync`, and the table contains the lowest time of each program. The start of
flare (a folder with one file) is measured separately; the ratios include it. The exit code is 1 if
a ratio of CPU times is above its goal.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from measure import FLARE, Cost, run

FILE_BYTES, SUBFOLDERS = 16_000, 20
HEAD = bytes.fromhex("ffd8ffe000104a46494600010100000100010000")
GOALS = {  # task of flare -> task of the other program, maximum ratio of CPU times
    "flare pack FOLDER": ("tar cf", 2.5),
    "flare unpack": ("tar xf", 1.5),
    "flare pack MDS -f webdataset": ("cp -r FOLDER", 1.2),
}


def create_files(folder: Path, count: int) -> None:
    generator = random.Random(1)
    for i in range(count):
        path = folder / f"{i % SUBFOLDERS:02}" / f"{i:06}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(HEAD + generator.randbytes(FILE_BYTES - len(HEAD)))


def tasks(at: Path) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield the name of each task, its output, and its command.

    A task may read the outputs of earlier tasks.
    """
    source, mds, tar = at / "files", at / "mds", at / "files.tar"
    yield "tar cf", tar, ["tar", "cf", str(tar), "-C", str(at), "files"]
    yield "flare pack FOLDER", mds, [FLARE, "pack", "-q", str(source), str(mds)]
    yield "tar xf", at / "untar", ["tar", "xf", str(tar), "-C", str(at / "untar")]
    yield "flare unpack", at / "unpacked", [FLARE, "unpack", "-q", str(mds), str(at / "unpacked")]
    yield "cp -r FOLDER", at / "copy", ["cp", "-r", str(source), str(at / "copy")]
    out = at / "webdataset"
    convert = [FLARE, "pack", "-q", str(mds), str(out), "-f", "webdataset"]
    yield "flare pack MDS -f webdataset", out, convert
    yield (
        "flare pack ONE-FILE",
        at / "one.out",
        [FLARE, "pack", "-q", str(at / "one"), str(at / "one.out")],
    )


def remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--files", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="folder for the files, such as /dev/shm")
    options = parser.parse_args()
    at = Path(tempfile.mkdtemp(dir=options.folder))
    costs: dict[str, list[Cost]] = {}
    try:
        create_files(at / "files", options.files)
        create_files(at / "one", 1)
        for _ in range(options.rounds):
            for name, out, argv in tasks(at):
                remove(out)
                if name == "tar xf":
                    out.mkdir()
                os.sync()
                costs.setdefault(name, []).append(run(argv))
    finally:
        shutil.rmtree(at)
    cpu = {name: min(one.cpu for one in found) for name, found in costs.items()}
    wall = {name: min(one.wall for one in found) for name, found in costs.items()}
    print(f"{'task':30} {'CPU':>8} {'wall':>8}   ratio of CPU, of wall")
    failed = False
    for name in costs:
        text = f"{name:30} {cpu[name]:6.2f} s {wall[name]:6.2f} s"
        if name in GOALS:
            other, goal = GOALS[name]
            ratio = cpu[name] / cpu[other]
            failed |= ratio > goal
            text += f"   {ratio:.2f}, {wall[name] / wall[other]:.2f} ({other}; goal {goal})"
        print(text)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
