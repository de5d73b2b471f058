"""Run a script with the interpreter of an original library."""

import contextlib
import json
import subprocess
import sys

import pytest

import tests.forked_flare

PROGRAM = tests.forked_flare.__file__
LIBRARIES = ("streaming", "granular", "webdataset", "wids")  # slower to import than most scripts


@pytest.fixture(scope="session")
def run_peer(tmp_path_factory):
    """A function that runs a script with arguments, and returns the JSON lines that it prints."""
    sockets = {}

    def run(python, script, *args, text=""):
        if python not in sockets:
            path = str(tmp_path_factory.mktemp("peer") / "s")
            server = stack.enter_context(
                subprocess.Popen(
                    [python, PROGRAM, "--serve", path, *LIBRARIES],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            assert server.stdout.readline() == "listening\n"
            sockets[python] = path
        process = subprocess.run(
            [sys.executable, PROGRAM, sockets[python], str(script), *map(str, args)],
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return [json.loads(line) for line in process.stdout.splitlines()]

    with contextlib.ExitStack() as stack:
        yield run
