"""Run programs and measure their cost.

Benchmarks import this module first, because each is a script that runs alone.
"""

import json
import os
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

FLARE = (
    sysconfig.get_path("scripts") + "/flare"
)  # the program beside the interpreter of this process
GNU_TIME = "/usr/bin/time"


class Cost(NamedTuple):
    """Wall-clock seconds; CPU seconds of all threads, user and system; and the output."""

    wall: float
    cpu: float
    out: str


def run(argv: Sequence[str], **env: str) -> Cost:
    """Run a program to its end. Exits with its error output if it fails."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        began = time.perf_counter()
        child = subprocess.Popen(argv, stdout=out, stderr=err, env={**os.environ, **env})
        _, status, used = os.wait4(child.pid, 0)
        wall = time.perf_counter() - began
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        if child.returncode:
            sys.exit(f"{' '.join(argv)}: exit {child.returncode}\n{err.read().decode()}")
        return Cost(wall, used.ru_utime + used.ru_stime, out.read().decode(errors="replace"))


def print_figures(ratios: Mapping[str, float]) -> None:
    """Print ratios by name as the last line of a benchmark, as JSON. `run.py` reads this line."""
    print(json.dumps({"figures": {name: round(ratio, 3) for name, ratio in ratios.items()}}))


def peak(argv: Sequence[str]) -> tuple[int, float]:
    """Return the peak memory of a program in bytes and its wall-clock seconds, from GNU time -v.

    os.wait4 would be wrong: the peak of a child includes the memory of its parent at the fork.
    """
    if not Path(GNU_TIME).exists():
        sys.exit(f"{GNU_TIME} is needed: install the package `time`")
    with tempfile.NamedTemporaryFile("r") as told:
        run([GNU_TIME, "-v", "-o", told.name, *argv])
        lines = dict(line.strip().rsplit(": ", 1) for line in told if ": " in line)
    clock = [
        float(part) for part in lines["Elapsed (wall clock) time (h:mm:ss or m:ss)"].split(":")
    ]
    return int(lines["Maximum resident set size (kbytes)"]) * 1024, sum(
        part * 60**i for i, part in enumerate(reversed(clock))
    )
