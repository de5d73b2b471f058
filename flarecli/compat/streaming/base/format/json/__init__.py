"""Import path `streaming.base.format.json`."""

from flarecli.compat.streaming.writers import JSONWriter

__all__ = [
    "JSONWriter",
]
