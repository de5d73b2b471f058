"""Measure every format: flare, the original library, and a minimal loop as the floor.

    PEER_PYTHON=… GRANULAR_PYTHON=… WEBDATASET_PYTHON=… python benchmarks/formats.py [FORMAT …]
    [--workloads w1,w2,w3] [--rounds 5]

The operations are reading one random row, reading all rows in order, and writing from memory. A row
of workload w1 has about 1 KB of text, an integer and a float (100,000 rows); a row of w2 about 20
KB of bytes, an integer and a caption (5,000 rows); a row of w3 500 KB of bytes and an integer
(1,000 rows). The variables name interpreters with mosaicml-streaming, granular 0.24 and webdataset;
an original without an interpreter is skipped. `os.pread` and `zlib.crc32` replace ffrecord, which
cannot be installed. The floor is a memory map, struct and slices in minimal Python, with the
interface of `read_rows`. All read the same files, which flare wrote, from the page cache.

Each side is a process. The sides run one operation after another, in turns. Results are CPU time,
user and system, of all threads, in µs per sample: the lowest of two or three runs in a turn, and of
these the median of the rounds. Ratios are medians of the ratios of each round. Writing with flare
includes fsync, a journal and checksums; the originals and the floor write to the page cache only.
For all sides, malloc is configured to keep freed memory; otherwise the cost of half a megabyte
depends on the top of the heap.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from measure import print_figures

HERE = Path(__file__).parent
KEEP = {"MALLOC_TRIM_THRESHOLD_": str(1 << 30), "MALLOC_MMAP_THRESHOLD_": str(1 << 25)}
PEERS = {
    "mds": "PEER_PYTHON",
    "json": "PEER_PYTHON",
    "csv": "PEER_PYTHON",
    "granular": "GRANULAR_PYTHON",
    "webdataset": "WEBDATASET_PYTHON",
    "ffrecord": "",  # this interpreter has what the side needs
}
FLOORS = ("mds", "granular", "ffrecord")
WORKLOADS = {
    name: ("w1",) if name in ("json", "csv") else ("w1", "w2", "w3") for name in PEERS
}  # text formats cannot store bytes
LABELS = {
    "row": "random row",
    "row_of_dataset": "same, data.rows",
    "scan": "in order, batches",
    "scan_views": "same, views",
    "copies": "64 checked, copies",
    "views": "64 checked, views",
    "write": "write",
}
RIVALS = {
    "row_of_dataset": "row",
    "scan_views": "scan",
}  # -> the operation of the other sides to compare with
OWN = {"row_of_dataset", "scan_views"}  # operations that only flare has
NOT_OF = {"peer": {"ffrecord": ("row", "scan", "write"), "webdataset": ("row",)}}
TIMES_PEER = {  # minimum speed relative to the original, for w1, w2, w3
    ("mds", "scan"): (30, 15, 1.5),
    ("mds", "write"): (8, 3, 2),
    ("granular", "scan"): (2, 2, 1.5),
    ("granular", "write"): (2, 1.5, 1.5),
    ("webdataset", "scan"): (30, 20, 2),
    ("webdataset", "write"): (20, 5, 2),
    ("ffrecord", "copies"): (1.5, 2, 2),
    ("ffrecord", "views"): (2, 8, 8),
}
TIMES_FLOOR = {
    (name, "row"): (1.3, 1.3, 1.3) for name in FLOORS
}  # maximum time relative to the floor
AT_MOST = {
    ("ffrecord", "write"): (3.2 * 1.2, 18 * 1.2, 500 * 1.2)
}  # µs: published results of the original, from another machine


class Child:
    """The process of one side of one format, started at its first operation."""

    def __init__(self, python: str, side: str, form: str, folder: str) -> None:
        argv = [python, str(HERE / "formats_child.py"), side, form, folder]
        self._process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **KEEP},
        )

    def ask(self, workload: str, operation: str) -> float:
        if self._process.stdin is None or self._process.stdout is None:
            raise ValueError("no pipe")
        self._process.stdin.write(f"{workload} {operation}\n")
        self._process.stdin.flush()
        while line := self._process.stdout.readline():
            try:
                return float(line)
            except ValueError:
                continue  # messages of a library
        sys.exit(f"{' '.join(map(str, self._process.args))}: ended at {workload} {operation}")  # type: ignore[arg-type]

    def end(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()


class Line(NamedTuple):
    """Results of one operation on one workload: side -> µs of each round."""

    form: str
    workload: str
    operation: str
    costs: dict[str, list[float]]

    def shown(self) -> str:
        cells = [
            f"{statistics.median(self.costs[side]):9.2f}" if side in self.costs else f"{'':9}"
            for side in ("flare", "peer", "floor")
        ]
        return f"{self.form:11}{self.workload:4}{LABELS[self.operation]:19}{''.join(cells)}   {'; '.join(self.ratios())}"

    def ratios(self) -> list[str]:
        number, key = int(self.workload[1]) - 1, (self.form, self.operation)
        out = []
        if "peer" in self.costs:
            out.append(
                _told(
                    "times the original",
                    self.ratio("peer"),
                    TIMES_PEER.get(key, (None,) * 3)[number],
                    True,
                )
            )
        if "floor" in self.costs:
            out.append(
                _told(
                    "of the floor",
                    1 / self.ratio("floor"),
                    TIMES_FLOOR.get(key, (None,) * 3)[number],
                    False,
                )
            )
        if key in AT_MOST:
            out.append(
                _told("µs", statistics.median(self.costs["flare"]), AT_MOST[key][number], False)
            )
        return out

    def ratio(self, side: str) -> float:
        return statistics.median(
            other / own for other, own in zip(self.costs[side], self.costs["flare"], strict=True)
        )


def _told(what: str, value: float, wanted: float | None, at_least: bool) -> str:
    if wanted is None:
        return f"{value:.2f} {what}"
    is_met = value >= wanted if at_least else value <= wanted
    return f"{value:.2f} {what} ({'at least' if at_least else 'at most'} {wanted:g}: {'met' if is_met else 'NOT MET'})"


def operations(form: str) -> tuple[str, ...]:
    return (
        "row",
        "row_of_dataset",
        "scan",
        "scan_views",
        *(("copies", "views") if form == "ffrecord" else ()),
        "write",
    )


def sides_of(form: str, operation: str, children: dict[str, Child]) -> list[str]:
    out = []
    for side in children:
        if side == "flare" or (
            operation not in OWN and operation not in NOT_OF.get(side, {}).get(form, ())
        ):
            out.append(side)
    return [
        side
        for side in out
        if side != "floor"
        or operation not in ("copies", "views", *(("write",) if form != "mds" else ()))
    ]


def measured(
    form: str, workload: str, children: dict[str, Child], rounds: int, only: list[str]
) -> list[Line]:
    lines = [
        Line(form, workload, operation, {})
        for operation in operations(form)
        if not only or operation in only
    ]
    for number in range(rounds + 1):
        for line in lines:
            sides = sides_of(form, line.operation, children)
            for side in sides if number % 2 else reversed(sides):
                cost = children[side].ask(workload, line.operation)
                if number:  # the first run loads modules and brings the files into the page cache
                    line.costs.setdefault(side, []).append(cost)
    for (
        line
    ) in lines:  # several operations of flare are compared with the same operation of the others
        if line.operation in RIVALS:
            for other in (one for one in lines if one.operation == RIVALS[line.operation]):
                line.costs.update(
                    {side: other.costs[side] for side in ("peer", "floor") if side in other.costs}
                )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("formats", nargs="*", help=f"{', '.join(PEERS)}; default: all")
    parser.add_argument("--workloads", default="w1,w2,w3")
    parser.add_argument(
        "--only", default="", help=f"operations, of {', '.join(LABELS)}; default: all"
    )
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    if unknown := [name for name in args.formats if name not in PEERS]:
        parser.error(f"no format {unknown[0]!r}")
    only = [name for name in args.only.split(",") if name]
    from formats_flare import make

    figures: dict[str, float] = {}
    print(
        f"CPU µs a sample, medians of {args.rounds} rounds\n{'format':15}{'operation':19}{'flare':>9}{'original':>9}{'floor':>9}",
        flush=True,
    )
    for form in args.formats or PEERS:
        python = os.environ.get(PEERS[form]) if PEERS[form] else sys.executable
        with tempfile.TemporaryDirectory() as folder:
            wanted = [name for name in args.workloads.split(",") if name in WORKLOADS[form]]
            for workload in wanted:
                make(form, workload, Path(folder, workload))
            pythons = {
                "flare": sys.executable,
                **({"peer": python} if python else {}),
                **({"floor": sys.executable} if form in FLOORS else {}),
            }
            children = {side: Child(path, side, form, folder) for side, path in pythons.items()}
            try:
                for workload in wanted:
                    for line in measured(form, workload, children, args.rounds, only):
                        print(line.shown(), flush=True)
                        name = f"{form} {workload}, {LABELS[line.operation]}"
                        if "peer" in line.costs:
                            figures[f"{name}, original"] = line.ratio("peer")
                        if "floor" in line.costs:
                            figures[f"{name}, floor"] = 1 / line.ratio("floor")
            finally:
                for child in children.values():
                    child.end()
        if not python:
            print(f"  the original did not run: {PEERS[form]} names no interpreter")
    print_figures(figures)


if __name__ == "__main__":
    main()
