"""Import path `streaming.base.dataloader`; it loads torch."""

from flarecli.compat.streaming.torch import StreamingDataLoader

__all__ = [
    "StreamingDataLoader",
]
