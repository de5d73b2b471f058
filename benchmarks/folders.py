"""Compare packing, unpacking and converting small files with tar and cp: CPU time (user and system)
and wall-clock time.

    python benchmarks/folders.py [--files 20000] [--rounds 5] [--folder FOLDER]

The files are JPEG headers followed by 16 kB of random bytes, in 20 subfolders. All programs run
alternately, after a `sync`, and the table contains the lowest time of each program. The CPU time of
each task of flare is divided into three parts: the startup (the same task with one file), the
required system calls, checksums and copies in a minimal Python loop (`folders_floor.py`), and the
remainder. The exit code is 1 if a ratio of CPU times is above its goal.
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
FLOOR = [sys.executable, str(Path(__file__).with_name("folders_floor.py"))]
START, LOOP = " of one file", " in a minimal loop"
GOALS = {  # task of flare -> task of the other program, maximum ratio of CPU times
    "flare pack FOLDER": ("tar cf", 2.5),
    "flare unpack MDS": ("tar xf", 1.5),
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
    yield from flare_tasks("flare pack FOLDER", "pack", source, mds, "pack")
    yield "tar xf", at / "untar", ["tar", "xf", str(tar), "-C", str(at / "untar")]
    yield from flare_tasks("flare unpack MDS", "unpack", mds, at / "unpacked", "unpack")
    yield "cp -r FOLDER", at / "copy", ["cp", "-r", str(source), str(at / "copy")]
    name, out = "flare pack MDS -f webdataset", at / "webdataset"
    yield from flare_tasks(name, "pack", mds, out, "convert", "-f", "webdataset")


def flare_tasks(
    name: str, command: str, source: Path, out: Path, loop: str, *more: str
) -> Iterator[tuple[str, Path, list[str]]]:
    """Yield a task of flare, the same task with one file, and its minimal loop."""
    one, one_out, loop_out = (
        path.with_name(f"{path.name}.{kind}")
        for path, kind in ((source, "one"), (out, "one"), (out, "loop"))
    )
    yield name, out, [FLARE, command, "-q", str(source), str(out), *more]
    yield name + START, one_out, [FLARE, command, "-q", str(one), str(one_out), *more]
    yield name + LOOP, loop_out, [*FLOOR, loop, str(source), str(loop_out)]


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
    # the first round writes the bytecode, as an installation would; else a start would compile
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(at / "bytecode")
    costs: dict[str, list[Cost]] = {}
    try:
        create_files(at / "files", options.files)
        create_files(at / "files.one", 1)
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
    for name, (other, goal) in GOALS.items():
        ratio, wall_ratio = cpu[name] / cpu[other], wall[name] / wall[other]
        failed |= ratio > goal
        start, loop = cpu[name + START], min(float(one.out) for one in costs[name + LOOP])
        print(f"{other:30} {cpu[other]:6.2f} s {wall[other]:6.2f} s")
        print(
            f"{name:30} {cpu[name]:6.2f} s {wall[name]:6.2f} s   "
            f"{ratio:.2f}, {wall_ratio:.2f} (goal {goal})"
        )
        for part, seconds in (
            ("startup", start),
            ("minimal loop", loop),
            ("without remainder", start + loop),
            ("remainder", cpu[name] - start - loop),
        ):
            print(f"  {part:28} {seconds:6.2f} s            {seconds / cpu[other]:.2f}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
