"""Import path `streaming.base.registry_utils`."""

from flarecli.compat.streaming.registry import construct_from_registry

__all__ = [
    "construct_from_registry",
]
