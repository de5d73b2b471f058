"""Import path `streaming.base.spanner`."""

from flarecli.compat.streaming.spanner import Spanner

__all__ = [
    "Spanner",
]
