"""Replace granular by `flarecli.compat.granular`."""

import sys

from suite_plugin import count_classes

import flarecli.compat.granular as ours


def install(counted):
    """Put flare's module in the place of the original's; `counted` notes each use."""
    count_classes(ours, counted)
    sys.modules["granular"] = ours
    sys.modules["granular.sources"] = ours.sources
