"""The interface of sds: `from flarecli.compat.sds.dataset import StreamingDataset`."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.sds.dataset import StreamingDataset as StreamingDataset

__all__ = ["StreamingDataset"]


def __getattr__(name: str) -> object:
    if name != "StreamingDataset":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from flarecli.compat.sds.dataset import StreamingDataset

    return StreamingDataset
