"""Run a script by the interpreter of an original library."""

import contextlib
import json
import subprocess
from pathlib import Path

import pytest

SERVER = Path(__file__).with_name("forked_peer.py")


@pytest.fixture(scope="session")
def run_peer(tmp_path_factory):
    """A function that runs a script with arguments, and returns the JSON lines that it prints."""
    folder = tmp_path_factory.mktemp("peer")
    streams = [folder / name for name in ("input", "output", "errors")]
    servers = {}

    def run(python, script, *args, text=""):
        if python not in servers:
            command = [python, str(SERVER)]
            servers[python] = stack.enter_context(
                subprocess.Popen(
                    command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
                )
            )
        server = servers[python]
        streams[0].write_text(text)
        request = {
            "args": [str(script), *map(str, args)],
            "streams": [str(name) for name in streams],
        }
        server.stdin.write(json.dumps(request) + "\n")
        code = server.stdout.readline()
        assert code == "0\n", streams[2].read_text()
        return [json.loads(line) for line in streams[1].read_text().splitlines()]

    with contextlib.ExitStack() as stack:
        yield run
