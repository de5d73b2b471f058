"""Import path `streaming.base.stream`."""

from flarecli.compat.streaming.registry import streams_registry
from flarecli.compat.streaming.streams import Stream

__all__ = ["Stream", "streams_registry"]
