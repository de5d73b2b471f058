"""MDSWriter, which writes MDS shards."""

from __future__ import annotations

from flarecli.compat.streaming.base.format.writer import Writer

__all__ = ["MDSWriter"]


class MDSWriter(Writer):
    """Writer of MDS shards."""

    format = "mds"
