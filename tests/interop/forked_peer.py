"""Run scripts as forks of one process that has imported the original libraries, because their
imports take longer than most scripts. An interpreter that has the libraries runs this file.

Each line of standard input is a JSON object: the arguments, of which the first is the script, and
the names of the files for the three standard streams. The exit code is printed for each line.
"""

import contextlib
import importlib
import json
import os
import runpy
import signal
import sys

TIMEOUT_S = 300
LIBRARIES = ("streaming", "granular", "webdataset", "wids")


def run_script(script, *args, streams):
    """Run a script in this process, with files as its standard streams."""
    signal.alarm(TIMEOUT_S)
    for number, name in enumerate(streams):
        mode = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if number else os.O_RDONLY
        os.dup2(os.open(name, mode), number)
    sys.argv = [script, *args]
    sys.path[0] = os.path.dirname(script)
    runpy.run_path(script, run_name="__main__")


def serve():
    """Return the next request in a new process; print the exit code in this one."""
    for line in sys.stdin:
        if not (pid := os.fork()):
            return json.loads(line)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


if __name__ == "__main__":
    for name in LIBRARIES:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    if (request := serve()) is not None:
        run_script(*request["args"], streams=request["streams"])
