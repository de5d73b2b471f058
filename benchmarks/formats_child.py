"""One side of `formats.py` in its own process: flare, an original library, or the floor.

    formats_child.py SIDE FORMAT FOLDER

It reads lines `WORKLOAD OPERATION`, runs each operation, and prints its CPU µs per sample.
FOLDER/WORKLOAD is the dataset, and FOLDER/WORKLOAD-scan its first rows. flare wrote both, and all
sides read them.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from formats_data import WORKLOADS, samples

TIMES = {"write": 3}  # the first run of a turn also pays for memory that the host took back
Done = int  # samples
Operation = Callable[[], Done]


def main(side: str, form: str, folder: str) -> None:
    if side == "flare":
        from formats_flare import Flare as Side
    elif side == "floor":
        from formats_floor import SIDES
    else:
        from formats_peers import SIDES
    if side != "flare":
        Side = SIDES[form]
    workload, one = "", None
    for line in sys.stdin:
        wanted, operation = line.rstrip("\n").split(" ", 1)
        if wanted != workload:
            workload, one = wanted, None  # free the memory of the last operation first
            one = Side(form, wanted, Path(folder, wanted))
        print(run(one, operation), flush=True)


def run(one: Any, operation: str) -> float:
    """Return the CPU µs per sample of an operation, the lowest of a few runs.

    Written files are removed.
    """
    out = Path(f"{one.folder}-{operation}-{type(one).__name__}")
    begin, costs = getattr(one, operation), []
    todo = begin(out) if operation == "write" else begin
    for _ in range(TIMES.get(operation, 2)):
        began = time.process_time()
        done = todo()
        costs.append((time.process_time() - began) / done * 1e6)
        shutil.rmtree(out, ignore_errors=True)
    return min(costs)


def held(workload: str) -> list[dict[str, Any]]:
    """Yield all samples of a workload as Python values."""
    return list(samples(workload, WORKLOADS[workload].rows))


def count(items: Iterable[Any]) -> int:
    """Exhaust an iterable. The loop costs less than the measured work."""
    done = 0
    for _ in items:
        done += 1
    return done


if __name__ == "__main__":
    main(*sys.argv[1:])
