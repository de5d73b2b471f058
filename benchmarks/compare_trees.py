"""Compare the CPU time of two checkouts of flare on the same tasks.

    python benchmarks/compare_trees.py OLD NEW [--rounds 5] [--only NAME,…]

OLD and NEW are folders that contain `flarecli`. Each task is a process that imports one of the two
checkouts. It runs once with each checkout before the counted rounds. For a task of the command
line, the CPU time of the whole process counts (user and system, all threads); a task of the Python
package counts and prints the CPU time of its loop. For each task, the ratio NEW / OLD of the
lowest times is printed, with the smallest and the largest ratio of a round. The lowest times are
compared, because page faults take up to five times as long while other programs use the memory of
the machine. The exit code is 1 if a ratio of the lowest times is above 1.10.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from formats_data import samples
from measure import run

LIMIT = 1.10
FORMATS = ("mds", "json", "tsv", "ffrecord", "granular", "webdataset")


class Task(NamedTuple):
    """Arguments of `flare`, or the source of a program that prints the seconds of its loop. `{out}`
    is a new folder.
    """

    arguments: str = ""
    program: str = ""


LOOP = """
import random, sys, time
import flarecli as flare
def cpu(loop):
    best = 9e9
    for _ in range(3):
        start = time.process_time()
        loop()
        best = min(best, time.process_time() - start)
    print(best)
"""
RANDOM_ROWS = """
data = flare.open({folder!r})
rows = [random.Random(7).randrange(len(data)) for _ in range(20000)]
cpu(lambda: [data[row] for row in rows])
"""
BATCHES = """
data = flare.open({folder!r})
cpu(lambda: [batch.num_rows for batch in data.batches(size=1024)])
"""
EPOCH = """
data = flare.open({folder!r})
def epoch():
    for batch in flare.Loader(data, batch=64, seed=7, workers={workers}, decode={{"image": False}}):
        pass
cpu(epoch)
"""
WRITER = """
import shutil, tempfile
rows = [{{"name": f"row {{i}}", "square": i * i}} for i in range(100000)]
def write():
    folder = tempfile.mkdtemp()
    with flare.Writer(folder + "/out", columns={{"name": "str", "square": "int"}}) as writer:
        for row in rows:
            writer.write(row)
    shutil.rmtree(folder)
cpu(write)
"""
OPEN = """
cpu(lambda: [len(flare.open({folder!r})) for _ in range(20)])
"""


def tasks(data: Path) -> dict[str, Task]:
    """Return the tasks for the datasets that `prepare` wrote."""
    table, images, small = data / "text.parquet", data / "images.parquet", data / "small"
    found = {
        "start: --version": Task("--version"),
        "start: pack --help": Task("pack --help"),
        "start: verify a small dataset": Task(f"verify {small}"),
        "start: cat a small dataset": Task(f"cat {small} --limit 3"),
        "pack images as mds": Task(f"pack {images} {{out}} -q"),
        "pack files of a folder": Task(f"pack {data / 'files'} {{out}} -q"),
        "pack text as mds, zstd": Task(f"pack {table} {{out}} -z zstd -q"),
        "pack text, --where": Task(f"pack {table} {{out}} --where number%2=1 -q"),
        "pack text, --shuffle": Task(f"pack {table} {{out}} --shuffle 7 -q"),
        "unpack images": Task(f"unpack {data / 'images'} {{out}} -q"),
        "convert images to webdataset": Task(f"pack {data / 'images'} {{out}} -f webdataset -q"),
        "verify images": Task(f"verify {data / 'images'}"),
        "cat to arrow": Task(f"cat {data / 'mds'} --to arrow"),
        "cat to jsonl": Task(f"cat {data / 'mds'}"),
        "inspect --stats": Task(f"inspect {data / 'mds'} --stats"),
        "loader, inline": Task("", EPOCH.format(folder=str(data / "images"), workers=0)),
        "loader, 2 workers": Task("", EPOCH.format(folder=str(data / "images"), workers=2)),
        "Writer.write": Task("", WRITER.format()),
        "open a small dataset": Task("", OPEN.format(folder=str(small))),
    }
    for name in FORMATS:
        columns = " -c text" if name == "ffrecord" else ""
        found[f"pack text as {name}"] = Task(f"pack {table} {{out}} -f {name}{columns} -q")
        found[f"verify --decode {name}"] = Task(f"verify {data / name} --decode")
        found[f"random rows of {name}"] = Task("", RANDOM_ROWS.format(folder=str(data / name)))
        found[f"batches of {name}"] = Task("", BATCHES.format(folder=str(data / name)))
    return found


def prepare(data: Path, tree: Path) -> None:
    """Write the sources and datasets of the tasks with the checkout `tree`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    for name, workload, rows in (("text", "w1", 100_000), ("images", "w2", 5_000)):
        pq.write_table(
            pa.Table.from_pylist(list(samples(workload, rows))), data / f"{name}.parquet"
        )
    pq.write_table(pa.table({"a": ["x", "y", "z"], "b": [1, 2, 3]}), data / "small.parquet")
    (data / "files").mkdir()
    for number, row in enumerate(samples("w2", 2_000)):
        (data / "files" / f"{number:05}.jpg").write_bytes(row["image"])
        (data / "files" / f"{number:05}.txt").write_text(row["caption"])
    for name in FORMATS:
        columns = " -c text" if name == "ffrecord" else ""
        flare(tree, f"pack {data}/text.parquet {data}/{name} -f {name}{columns} -q")
    flare(tree, f"pack {data}/images.parquet {data}/images -q")
    flare(tree, f"pack {data}/small.parquet {data}/small -q")


def flare(tree: Path, arguments: str) -> float:
    """Run `flare` of a checkout, and return the CPU seconds of its process."""
    start = "import sys; from flarecli.__main__ import entry; sys.exit(entry())"
    return run([sys.executable, "-c", start, *arguments.split()], PYTHONPATH=str(tree)).cpu


def seconds(task: Task, tree: Path) -> float:
    """Run a task with a checkout, and return its CPU seconds."""
    if task.program:
        printed = run([sys.executable, "-c", LOOP + task.program], PYTHONPATH=str(tree)).out
        return float(printed)
    scratch = tempfile.mkdtemp()
    try:
        return flare(tree, task.arguments.format(out=f"{scratch}/out"))
    finally:
        shutil.rmtree(scratch)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="parts of task names, separated by commas")
    options = parser.parse_args()
    trees = options.old.resolve(), options.new.resolve()
    slower = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        # the warm-up writes the bytecode, as an installation would; else a start would compile
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        os.environ["PYTHONPYCACHEPREFIX"] = f"{folder}/bytecode"
        prepare(Path(folder), trees[0])
        print(f"{'task':34} {'old':>9} {'new':>9}  ratio  (smallest to largest)")
        for name, task in tasks(Path(folder)).items():
            if options.only and not any(part in name for part in options.only.split(",")):
                continue
            for tree in trees:
                seconds(task, tree)
            pairs = [[seconds(task, tree) for tree in trees] for _ in range(options.rounds)]
            old, new = (min(column) for column in zip(*pairs, strict=True))
            ratios = [b / a for a, b in pairs]
            print(
                f"{name:34} {old * 1e3:6.1f} ms {new * 1e3:6.1f} ms  {new / old:5.2f}"
                f"  ({min(ratios):.2f} to {max(ratios):.2f})",
                flush=True,
            )
            if new / old > LIMIT:
                slower.append(name)
    print(json.dumps({"slower than 1.10": slower}))
    return int(bool(slower))


if __name__ == "__main__":
    sys.exit(main())
