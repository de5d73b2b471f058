"""Replace ffrecord with `flarecli.compat.ffrecord`."""

import sys

from suite_plugin import count_classes

import flarecli.compat.ffrecord as ours
import flarecli.compat.ffrecord.torch as ours_torch
import flarecli.compat.ffrecord.utils as ours_utils


def install(counted):
    """Replace the modules of the original by those of flare; `counted` records each use."""
    count_classes(ours, counted)
    count_classes(ours_torch, counted)
    names = {"ffrecord": ours, "ffrecord.torch": ours_torch, "ffrecord.utils": ours_utils}
    sys.modules.update(names)
