"""Replace ffrecord by `flarecli.compat.ffrecord`."""

import sys
import types

from suite_plugin import count_classes

import flarecli.compat.ffrecord as ours
import flarecli.compat.ffrecord.torch as ours_torch


def install(counted):
    """Put flare's modules in the place of the original's; `counted` notes each use."""
    count_classes(ours, counted)
    count_classes(ours_torch, counted)
    utils = types.ModuleType("ffrecord.utils")
    utils.dump = ours.dump
    sys.modules.update({"ffrecord": ours, "ffrecord.torch": ours_torch, "ffrecord.utils": utils})
