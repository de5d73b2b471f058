"""Replace mosaicml-streaming: its classes by those of flare, in each module of the original that
uses them.

The modules of the original come from the checkout. Its internals (shared memory, partitions,
clouds, classes of encodings) stay as they are. Tests of internals do not use flare and are not
counted.
"""

import importlib
import importlib.util
import pkgutil
import sys

OURS, THEIRS = "flarecli.compat.streaming", "streaming"


def install(counted):
    """Replace the names of the original by those of flare; `counted` records each use."""
    pairs = [(OURS, THEIRS)]
    package = importlib.import_module(f"{OURS}")
    for module in pkgutil.walk_packages(package.__path__, f"{OURS}."):
        their_name = THEIRS + module.name.removeprefix(OURS)
        is_replaced = their_name.startswith(f"{THEIRS}.base") and not their_name.endswith(
            ".encodings"
        )
        if is_replaced and importlib.util.find_spec(their_name) is not None:
            pairs.append((module.name, their_name))
    for name in ("dataset", "stream", "local", "dataloader", "format", "util", "world"):
        importlib.import_module(f"{THEIRS}.base.{name}")
    replacements = {}
    for our_name, their_name in pairs:
        ours, theirs = importlib.import_module(our_name), importlib.import_module(their_name)
        for name in ours.__all__:
            if hasattr(theirs, name):
                mine = getattr(ours, name)
                if id(mine) not in replacements:
                    replacements[id(mine)] = counted(mine) if callable(mine) else mine
                _replace(getattr(theirs, name), replacements[id(mine)])


def _replace(old, new):
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] == THEIRS and module is not None:
            for name, value in list(vars(module).items()):
                if value is old:
                    setattr(module, name, new)
