"""MDSWriter: shards of MDS."""

from __future__ import annotations

from flarecli.compat.streaming.base.format.writer import Writer

__all__ = ["MDSWriter"]


class MDSWriter(Writer):
    """Write MDS shards."""

    format = "mds"
