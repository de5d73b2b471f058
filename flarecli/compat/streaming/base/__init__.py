"""The modules of mosaicml-streaming's `streaming.base`."""

from __future__ import annotations

from flarecli.compat.streaming.base.dataset import StreamingDataset
from flarecli.compat.streaming.base.format import (
    CSVWriter,
    JSONWriter,
    MDSWriter,
    TSVWriter,
    XSVWriter,
)
from flarecli.compat.streaming.base.local import LocalDataset
from flarecli.compat.streaming.base.stream import Stream
from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming.base.dataloader import StreamingDataLoader

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
]


def __getattr__(name: str) -> object:
    return named(__name__, {"StreamingDataLoader": "dataloader"}, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
