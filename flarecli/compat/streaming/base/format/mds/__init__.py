"""Import path `streaming.base.format.mds`."""

from flarecli.compat.streaming.writers import MDSWriter

__all__ = [
    "MDSWriter",
]
