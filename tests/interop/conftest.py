"""Run a script by the interpreter of an original library."""

import json
import subprocess

import pytest


@pytest.fixture(scope="session")
def run_peer():
    """A function that runs a script with arguments, and returns the JSON lines that it prints."""

    def run(python, script, *args, text=None):
        process = subprocess.run(
            [python, str(script), *map(str, args)],
            input=text,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert process.returncode == 0, process.stderr
        return [json.loads(line) for line in process.stdout.splitlines()]

    return run
