"""One side of `formats.py`, in a process of its own: flare, an original library, or the floor.

    formats_child.py SIDE FORMAT FOLDER      reads lines `WORKLOAD OPERATION`, does it once, answers with CPU µs a sample

FOLDER/WORKLOAD is the dataset, FOLDER/WORKLOAD-scan the first rows of it, both written by flare and read by all.
"""

import shutil
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from formats_data import WORKLOADS, samples

TIMES = {"write": 3}  # the first of a turn pays for memory that the host took away meanwhile
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
            workload, one = wanted, None  # what the one before held is free before the next is made
            one = Side(form, wanted, Path(folder, wanted))
        print(run(one, operation), flush=True)


def run(one: Any, operation: str) -> float:
    """Give CPU µs a sample of one operation, the lowest of a few times; what was written goes before the next."""
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
    """Give all samples of a workload as Python values."""
    return list(samples(workload, WORKLOADS[workload].rows))


def count(items: Iterable[Any]) -> int:
    """Go through all there is; a loop costs less than what is measured."""
    done = 0
    for _ in items:
        done += 1
    return done


if __name__ == "__main__":
    main(*sys.argv[1:])
