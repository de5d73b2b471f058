"""Replace mosaicml-streaming: its classes by flare's, wherever a module of the original names them.

The original's modules come from the checkout. Its internals (shared memory, partitions, clouds, classes of encodings) stay as they are:
tests of these do not use flare, and are not counted.
"""

import importlib
import pkgutil
import sys

OURS, THEIRS = "flarecli.compat.streaming", "streaming"


def install(counted):
    """Put flare's names in the place of the original's; `counted` notes each use."""
    pairs = [(OURS, THEIRS)]
    package = importlib.import_module(f"{OURS}")
    for module in pkgutil.walk_packages(package.__path__, f"{OURS}."):
        if module.name.startswith(f"{OURS}.base") and not module.name.endswith(".encodings"):
            pairs.append((module.name, THEIRS + module.name.removeprefix(OURS)))
    for name in ("dataset", "stream", "local", "dataloader", "format", "util", "world"):
        importlib.import_module(f"{THEIRS}.base.{name}")
    importlib.import_module(f"{THEIRS}.base.format")
    done = {}
    for our_name, their_name in pairs:
        ours, theirs = importlib.import_module(our_name), importlib.import_module(their_name)
        for name in ours.__all__:
            if not hasattr(theirs, name):
                continue
            mine, old = getattr(ours, name), getattr(theirs, name)
            if id(mine) not in done:
                done[id(mine)] = mine, counted(mine) if callable(mine) else mine
            _replace(old, done[id(mine)][1])


def _replace(old, new):
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == THEIRS and module is not None:
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
