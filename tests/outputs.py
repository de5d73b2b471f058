"""The output of a command: the files of a folder, the failed rows that `failed.jsonl` lists, and
the text on a terminal.
"""

import contextlib
import json
import os
import subprocess
import threading
from pathlib import Path

# Variables that identify a terminal or configure colours. A test sets the variables that it needs.
TERMINAL_VARIABLES = {
    "COLORTERM",
    "KITTY_WINDOW_ID",
    "KONSOLE_VERSION",
    "NO_COLOR",
    "STY",
    "TERM",
    "TERM_PROGRAM",
    "TMUX",
}


def run_on_a_terminal(argv, folder, **environment):
    """Run a program with a terminal of 100 columns as stdout; return the exit code, stdout and
    stderr.

    Progress is not drawn, because stderr is a pipe. The number of progress lines would depend on
    the time.
    """
    master, slave = os.openpty()
    parts = []

    def read():
        with contextlib.suppress(OSError):  # all writers have closed the terminal
            while data := os.read(master, 1 << 16):
                parts.append(data)

    reader = threading.Thread(target=read)
    reader.start()
    env = {name: value for name, value in os.environ.items() if name not in TERMINAL_VARIABLES}
    env |= {"TERM": "xterm-256color", "COLORTERM": "truecolor", "COLUMNS": "100"}
    try:
        done = subprocess.run(
            argv,
            cwd=folder,
            env={**env, "LC_ALL": "C.UTF-8", **environment},
            stdin=subprocess.DEVNULL,
            stdout=slave,
            stderr=subprocess.PIPE,
            text=True,
            timeout=300,
        )
    finally:
        os.close(slave)
        reader.join(60)
        os.close(master)
    return done.returncode, b"".join(parts).decode().replace("\r\n", "\n"), done.stderr


def files_of(folder):
    """Return path in the folder -> bytes, for all files in the folder and its subfolders."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(Path(folder).rglob("*"))
        if path.is_file()
    }


def state_of(folder):
    """Return what determines a resumed run: path -> bytes, or None for a folder, without the owner
    of the lock.
    """
    folder = Path(folder)
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if not (path.name == "lock" and path.parent.name == ".flare")
    }


def failed_rows(folder):
    """Return the objects in `failed.jsonl`."""
    return [json.loads(line) for line in (Path(folder) / "failed.jsonl").read_text().splitlines()]
