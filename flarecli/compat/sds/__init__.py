"""The API of sds: `from flarecli.compat.sds.dataset import StreamingDataset`."""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.sds.dataset import StreamingDataset

__all__ = ["StreamingDataset"]


def __getattr__(name: str) -> object:
    value = globals()[name] = named(__name__, {"StreamingDataset": "dataset"}, name)
    return value
