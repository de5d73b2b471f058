"""Replace sds with `flarecli.compat.sds`; modules that do not exist there cannot be imported."""

import importlib
import pkgutil
import sys

from suite_plugin import count_classes

import flarecli.compat.sds as ours


def install(counted):
    """Replace the modules of the original by those of flare; `counted` records each use."""
    sys.modules["sds"] = ours
    for found in pkgutil.walk_packages(ours.__path__, f"{ours.__name__}."):
        module = importlib.import_module(found.name)
        sys.modules["sds" + found.name.removeprefix(ours.__name__)] = module
        parent, _, last = found.name.rpartition(".")
        setattr(sys.modules[parent], last, module)
        count_classes(module, counted)
    schedule = sys.modules["sds.dataloader"].ScheduleType
    schedule.sample_iter_idx = staticmethod(counted(schedule.sample_iter_idx))
