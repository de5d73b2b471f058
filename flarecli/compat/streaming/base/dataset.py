"""Import path `streaming.base.dataset`."""

from flarecli.compat.streaming.dataset import StreamingDataset

__all__ = [
    "StreamingDataset",
]
