"""Import path `streaming.base.local`."""

from flarecli.compat.streaming.local import LocalDataset

__all__ = [
    "LocalDataset",
]
