"""What a pack has done so far, one JSON line each, on the disk before the next step counts on it.

    {"flare": VERSION, "format": …, "source": …, "options": …}     what is packed, and how
    {"columns": [[name, encoding], …]}                             once they are known
    {"shard": …, "rows": …, "next": …, "files": […], "failed": …}  a shard whose bytes are safe

`next` is the row of the selection at which the next shard begins; `failed` the bytes of `failed.jsonl` before it.
A last line that was cut short is as if it had never been written.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from typing import Any

from flarecli.errors import FormatError, UsageError
from flarecli.model import File
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH, LocalStore, sync_folder

__all__ = ["Journal"]


class Journal:
    """The journal of one target.

    head     what is packed and how; a journal that is there must say the same
    columns  as noted, or None
    shards   one entry for each finished shard, in order
    raises   UsageError if it belongs to another pack; FormatError if it is no journal; ReachError if it can't be written
    """

    def __init__(self, at: Location, head: Mapping[str, Any]) -> None:
        store = at.store
        if not isinstance(store, LocalStore):
            raise UsageError("only local folders are written yet", where=at)
        self._store, self._at = store, at
        self._path = os.path.join(store.root, SCRATCH, "journal")
        self.columns: list[tuple[str, str]] | None = None
        self.shards: list[dict[str, Any]] = []
        try:
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
        except OSError as error:
            raise store.error(error, f"{SCRATCH}/journal") from None
        try:
            self._load(json.loads(json.dumps(head)))
        except BaseException:
            os.close(self._fd)
            raise

    def _load(self, head: dict[str, Any]) -> None:
        data = os.pread(self._fd, os.fstat(self._fd).st_size, 0)
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            os.ftruncate(self._fd, len(whole))
        if not whole:
            self._append(head)
            sync_folder(os.path.dirname(self._path))
            return
        try:
            lines = whole.splitlines(keepends=True)
            first, *rest = map(json.loads, lines)
            if not all(isinstance(entry, dict) for entry in (first, *rest)):
                raise ValueError("not an object")
        except ValueError:
            raise FormatError("its journal cannot be read", where=self._at, hint="Give --overwrite to begin anew.") from None
        if first != head:
            raise UsageError(
                f"the unfinished pack there was begun with {_difference(first, head)}", where=self._at, hint="Give --overwrite to begin anew."
            )
        good = len(lines[0])
        for line, entry in zip(lines[1:], rest, strict=True):
            if "columns" in entry:
                self.columns = [(name, encoding) for name, encoding in entry["columns"]]
            elif self._is_there(entry):
                self.shards.append(entry)
            else:  # what follows will be noted again, and must not count twice
                os.ftruncate(self._fd, good)
                break
            good += len(line)

    def _is_there(self, entry: dict[str, Any]) -> bool:
        """Whether a noted shard still has its size; it was on the disk before it was noted."""
        with contextlib.suppress(Exception):
            files = [File(**file) for file in entry["files"]]
            is_noted = all(isinstance(entry[name], int) for name in ("rows", "next")) and isinstance(entry["failed"], dict)
            return is_noted and bool(files) and all((self._at / file.name).size() == file.size for file in files)
        return False

    def note_columns(self, columns: list[tuple[str, str]]) -> None:
        """Note what the columns are."""
        self.columns = columns
        self._append({"columns": columns})

    def note_shard(self, rows: int, next: int, files: tuple[File, ...], failed: Mapping[str, Any]) -> None:
        """Note a shard that is on the disk, the row at which the next begins, and the state of `failed.jsonl`."""
        entry = {
            "shard": files[0].name,
            "rows": rows,
            "next": next,
            "files": [
                {"name": f.name, "size": f.size, "hashes": dict(f.hashes), "raw_size": f.raw_size, "raw_hashes": dict(f.raw_hashes)} for f in files
            ],
            "failed": dict(failed),
        }
        self.shards.append(entry)
        self._append(entry)

    def _append(self, entry: Mapping[str, Any]) -> None:
        line = (json.dumps(entry) + "\n").encode()
        try:
            while line:
                line = line[os.write(self._fd, line) :]
            os.fsync(self._fd)
        except OSError as error:
            raise self._store.error(error, f"{SCRATCH}/journal") from None

    def close(self) -> None:
        """Close the file; it stays until the target is finished."""
        os.close(self._fd)


def _difference(had: Mapping[str, Any], has: Mapping[str, Any]) -> str:
    """Name the first thing that differs: `shard_bytes 262144, not 67108864`, or another source."""
    for key in (*had, *has):
        one, two = had.get(key), has.get(key)
        if one == two:
            continue
        if isinstance(one, dict) and isinstance(two, dict):
            return _difference(one, two)
        return f"{key} {_short(one)}, not {_short(two)}"
    return "other options"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
