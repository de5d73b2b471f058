"""Replace granular with `flarecli.compat.granular`."""

import importlib
import pkgutil
import sys

from suite_plugin import count_classes

import flarecli.compat.granular as ours


def install(counted):
    """Replace the modules of the original by those of flare; `counted` records each use."""
    count_classes(ours, counted)
    sys.modules["granular"] = ours
    for found in pkgutil.walk_packages(ours.__path__, f"{ours.__name__}."):
        module = importlib.import_module(found.name)
        sys.modules["granular" + found.name.removeprefix(ours.__name__)] = module
        setattr(ours, found.name.rpartition(".")[2], module)
