"""The complete demo with a few photographs: every command, over files and over HTTP, with each byte
compared.
"""

import contextlib
import os
import subprocess
import sys
import threading
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run_on_a_terminal(argv, folder):
    """Run a program with a terminal as stdout; return the exit code, stdout and stderr."""
    master, slave = os.openpty()
    parts = []

    def read():
        with contextlib.suppress(OSError):  # all writers have closed the terminal
            while data := os.read(master, 1 << 16):
                parts.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    with subprocess.Popen(
        argv, cwd=folder, env=environment, stdout=slave, stderr=subprocess.PIPE, text=True
    ) as process:
        os.close(slave)
        _, err = process.communicate(timeout=120)
    reader.join(20)
    os.close(master)
    return process.returncode, b"".join(parts).decode(), err


def test_the_demo_replaces_the_output_of_an_earlier_run(tmp_path):
    for left in ("out", "files", "photos"):
        (tmp_path / "demo" / left).mkdir(parents=True)
        (tmp_path / "demo" / left / "left").write_bytes(b"")
    argv = [sys.executable, str(ROOT / "docs" / "demo.py"), "demo", "--photos", "14"]
    code, out, err = run_on_a_terminal(argv, tmp_path)
    assert (code, err.count("error:"), err.count("Traceback")) == (0, 0, 0), out + err
    assert "14 of 14 photographs are unpacked without a changed byte" in out
    assert "▀" in out, "photographs are drawn"
    assert "───" in out and "\t" not in out, "tables are ruled"
    assert not list(tmp_path.rglob("left"))
