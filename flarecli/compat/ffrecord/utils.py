"""The functions of ffrecord's `utils` module."""

from __future__ import annotations

import os
from typing import Any

from flarecli.compat.ffrecord.files import FileWriter
from flarecli.errors import FormatError

__all__ = ["dump"]


def dump(
    dataset: Any, fname: str | os.PathLike[str], nfiles: int = 1, verbose: bool = False
) -> None:
    """Write an indexable dataset of bytes as one file, or as files `PART_00000.ffr`, … in a folder.

    nfiles   maximum number of files; all files except the last have the same number of records
    verbose  ignored; accepted for compatibility
    raises   FormatError if the dataset is empty and `nfiles` is above 1
    """
    rows, out = len(dataset), os.fspath(fname)
    each = rows if nfiles <= 1 else -(-rows // nfiles)
    if nfiles > 1:
        if not each:
            raise FormatError("no records to write", where=out)
        os.makedirs(out, exist_ok=True)
    for k, start in enumerate(range(0, max(rows, 1), max(each, 1))):
        stop = min(rows, start + each)
        name = os.path.join(out, f"PART_{k:05d}.ffr") if nfiles > 1 else out
        with FileWriter(name, stop - start) as writer:
            for i in range(start, stop):
                writer.write_one(dataset[i])
