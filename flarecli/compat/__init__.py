"""Other libraries' interfaces over flare's own road: a program that uses one of them changes its import line, and nothing else.

`flarecli.compat.streaming`, `granular`, `ffrecord` and `sds`: each as its original documents it. `docs/compat.md` says what differs,
and why. None of them loads torch, except where its original is a class of torch's.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping


def named(package: str, files: Mapping[str, str], name: str) -> object:
    """Give what a package calls by a name, loading the file that has it. Raises AttributeError for another name.

    files  name -> the file of the package that has it; a file of that very name is the thing itself
    """
    if name not in files:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    module = importlib.import_module(f"{package}.{files[name]}")
    return module if files[name] == name else getattr(module, name)


def register(kind: type, made: type) -> None:
    """Have torch, where it is loaded, take a class for an IterableDataset of its own; not needed for one that inherits from that."""
    loaded = sys.modules.get("torch.utils.data")
    if loaded is not None and not issubclass(made, loaded.IterableDataset):
        loaded.IterableDataset.register(kind)
