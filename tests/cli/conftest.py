"""Fixtures that run the command line with functions that replace the commands."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from dataclasses import dataclass

import pytest

_START = """
import sys
import flarecli.commands
exec({source!a}, vars(flarecli.commands))
sys.argv = ["flare", *{args!a}]
from flarecli.__main__ import entry
entry()
"""


_COMMANDS = (
    "cat",
    "check_playlist",
    "diff_playlists",
    "inspect",
    "pack",
    "playlist",
    "unpack",
    "verify",
)


def _not_reached(*args, **options):
    raise AssertionError("no command should have been called")


def environment(**more):
    """Return the environment without variables that change the behaviour of the command line."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("FLARE_", "_FLARE", "NO_COLOR", "PYTHON", "LC_", "LANG"))
    }
    return {**kept, "LC_ALL": "C.UTF-8", **more}


@dataclass
class Outcome:
    code: int
    data: bytes
    err: str

    @property
    def out(self):
        return self.data.decode()


@pytest.fixture
def flare_process():
    """Start `flare ARGS` as a process. `source` is Python code that replaces the commands.

    A process that is still running after a failed test is killed.
    """
    started = []

    def start(args, source=None, env=None, **more):
        command = (
            ["-m", "flarecli", *args]
            if source is None
            else ["-c", _START.format(source=source, args=list(args))]
        )
        streams = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **more,
        }
        hang_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored below `nohup`
        try:
            process = subprocess.Popen(
                [sys.executable, *command],
                env=environment(**(env or {})),
                start_new_session=True,
                **streams,
            )
        finally:
            signal.signal(signal.SIGHUP, hang_up)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
            process.wait()


@pytest.fixture
def flare_run(flare_process):
    """Run `flare ARGS` as a process to its end."""

    def run(args, source=None, env=None, **more):
        with flare_process(args, source, env, **more) as process:
            out, err = process.communicate(timeout=60)
        return Outcome(process.returncode, out or b"", (err or b"").decode())

    return run


@pytest.fixture
def flare_forked(forked_flare):
    """Run `flare ARGS` to its end in a fork of a process that has imported flarecli."""

    def run(args, env=None):
        ran = subprocess.run(
            [*forked_flare, *args],
            env=environment(**(env or {})),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=60,
        )
        return Outcome(ran.returncode, ran.stdout, ran.stderr.decode())

    return run


class _Stream(io.TextIOWrapper):
    """A text stream over bytes, like sys.stdout."""

    def __init__(self, terminal=False):
        super().__init__(
            io.BytesIO(), encoding="latin-1", errors="strict", newline="", write_through=True
        )
        self._terminal = terminal

    def isatty(self):
        return self._terminal

    @property
    def data(self):
        return self.buffer.getvalue()


@pytest.fixture
def flare(monkeypatch):
    """Run the command line in this process with replaced commands: `flare("out", "x",
    cat=function)`.
    """

    def call(*args, terminal=False, environment=None, **commands):
        import flarecli.commands
        from flarecli.__main__ import main

        for name in list(os.environ):
            if name.startswith(("FLARE_", "_FLARE", "NO_COLOR")):
                monkeypatch.delenv(name)
        for name, value in {"COLUMNS": "200", "TERM": "xterm", **(environment or {})}.items():
            monkeypatch.setenv(name, value)
        for name, function in {**dict.fromkeys(_COMMANDS, _not_reached), **commands}.items():
            monkeypatch.setitem(vars(flarecli.commands), name, function)
        out, err = _Stream(terminal), _Stream(terminal)
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", err)
        try:
            code = main(list(args))
        finally:
            monkeypatch.undo()
        return Outcome(code, out.data, err.data.decode())

    return call
