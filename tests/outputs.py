"""The output of a command: the files of a folder, and the failed rows that `failed.jsonl` lists."""

import json
from pathlib import Path


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
