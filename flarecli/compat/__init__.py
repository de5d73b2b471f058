"""Other libraries' interfaces over flare's own road: a program that uses one of them changes its import line, and nothing else.

`flarecli.compat.streaming`, `granular`, `ffrecord` and `sds`: each as its original documents it. `docs/compat.md` says what differs,
and why. None of them loads torch, except where its original is a class of torch's.
"""

from __future__ import annotations

import sys


def register(kind: type, made: type) -> None:
    """Have torch, where it is loaded, take a class for an IterableDataset of its own; not needed for one that inherits from that."""
    loaded = sys.modules.get("torch.utils.data")
    if loaded is not None and not issubclass(made, loaded.IterableDataset):
        loaded.IterableDataset.register(kind)
