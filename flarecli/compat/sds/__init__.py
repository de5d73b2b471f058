"""The API of sds: `from flarecli.compat.sds.dataset import StreamingDataset`."""

from __future__ import annotations

from flarecli.compat.sds.dataset import StreamingDataset

__all__ = ["StreamingDataset"]
