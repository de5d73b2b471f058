"""Measure random rows with typed values: `data[i]` of flare, and a minimal loop over the mapped
file that decodes the same values.

The rows have a text of about 1 KB, an integer and a float; FFRecord, which has one column, only the
text. The loop checks nothing. Both read the same rows in turns, and the lowest time of each counts.

usage: python benchmarks/random_rows.py [--rows 20000] [--picks 5000] [--turns 7]
"""

import argparse
import json
import random
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import numpy as np
from formats_data import samples
from formats_floor import mapped
from measure import print_figures

import flarecli as flare
from flarecli.model import Settings

GOAL = 2.5
COLUMNS = {"number": "int", "score": "float64", "text": "str"}
Read = Callable[[int], dict[str, Any]]


def mds(folder: Path) -> Read:
    (path,) = folder.glob("*.mds")
    data = mapped(path)
    (rows,) = struct.unpack_from("<I", data)
    table, head = memoryview(data)[4 : 8 + 4 * rows].cast("I"), struct.Struct("<Iqd").unpack_from

    def read(row: int) -> dict[str, Any]:
        start = table[row]
        size, number, score = head(data, start)
        text = data[start + 20 : start + 20 + size].decode()
        return {"number": number, "score": score, "text": text}

    return read


def ffrecord(folder: Path) -> Read:
    (path,) = folder.glob("*.ffr")
    data = mapped(path)
    (rows,) = struct.unpack_from("<q", data, 4)
    starts = struct.unpack_from(f"<{rows}q", data, 12 + 4 * rows)
    table = memoryview(struct.pack(f"<{rows + 1}q", *starts, len(data))).cast("q")
    return lambda row: {"text": data[table[row] : table[row + 1]].decode()}


def granular(folder: Path) -> Read:
    (inside,) = {path.parent for path in folder.rglob("*.bag")}
    a, b, c = (mapped(inside / f"{name}.bag") for name in COLUMNS)
    i, j, k = (
        memoryview(bytes(8) + (inside / f"{name}.idx").read_bytes()).cast("q") for name in COLUMNS
    )
    score = struct.Struct(">xd").unpack  # MessagePack: a type byte, then a double

    def read(row: int) -> dict[str, Any]:
        return {
            "number": int.from_bytes(a[i[row] : i[row + 1]], "little", signed=True),
            "score": score(b[j[row] : j[row + 1]])[0],
            "text": c[k[row] : k[row + 1]].decode(),
        }

    return read


def webdataset(folder: Path) -> Read:
    """Return a reader of a tar. Its members are located once, before the measurement."""
    import tarfile

    (path,) = folder.glob("*.tar")
    data, found = mapped(path), dict[str, dict[str, tuple[int, int]]]()
    with tarfile.open(path) as tar:
        for member in tar:
            key, _, extension = member.name.partition(".")
            place = member.offset_data, member.offset_data + member.size
            found.setdefault(key, {})[extension.partition(".")[0]] = place
    tables = {name: np.array([one[name] for one in found.values()]) for name in COLUMNS}
    starts = {name: memoryview(np.ascontiguousarray(table[:, 0])) for name, table in tables.items()}
    stops = {name: memoryview(np.ascontiguousarray(table[:, 1])) for name, table in tables.items()}
    (a, b), (c, d), (e, f) = ((starts[name], stops[name]) for name in COLUMNS)

    def read(row: int) -> dict[str, Any]:
        return {
            "number": int(data[a[row] : b[row]]),
            "score": json.loads(data[c[row] : d[row]]),  # a member of type .json
            "text": data[e[row] : f[row]].decode(),
        }

    return read


FLOORS = {"mds": mds, "ffrecord": ffrecord, "granular": granular, "webdataset": webdataset}


def seconds(read: Callable[[int], Any], rows: list[int]) -> float:
    start = time.process_time()
    for row in rows:
        read(row)
    return time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--picks", type=int, default=5_000)
    parser.add_argument("--turns", type=int, default=7)
    given = parser.parse_args()
    rows = random.Random(1).choices(range(given.rows), k=given.picks)
    figures: dict[str, float] = {}
    print(f"{'format':12} {'bare loop':>10} {'data[i]':>10} {'ratio':>6}   goal {GOAL}")
    with tempfile.TemporaryDirectory() as folder:
        for name, open_floor in FLOORS.items():
            out = Path(folder) / name
            columns = {"text": "str"} if name == "ffrecord" else COLUMNS
            settings = Settings(shard_bytes=1 << 30)
            with flare.Writer(str(out), format=name, columns=columns, settings=settings) as writer:
                for sample in samples("w1", given.rows):
                    writer.write({column: sample[column] for column in columns})
            data, bare = flare.open(str(out)), open_floor(out)
            read = data.__getitem__
            assert all(read(row) == bare(row) for row in rows[:100]), name
            pairs = [(seconds(bare, rows), seconds(read, rows)) for _ in range(given.turns)]
            floor, own = (min(times) / len(rows) * 1e6 for times in zip(*pairs, strict=True))
            figures[name] = own / floor
            print(f"{name:12} {floor:7.2f} µs {own:7.2f} µs {own / floor:6.2f}")
    print_figures(figures)
    return int(max(figures.values()) > GOAL)


if __name__ == "__main__":
    sys.exit(main())
