"""The API of mosaicml-streaming: `import flarecli.compat.streaming as streaming`.

The modules below `base` have the same paths as in mosaicml-streaming. `StreamingDataLoader`, which
loads torch, is loaded on first use.
"""

from __future__ import annotations

from flarecli.compat.streaming.base import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from flarecli.compat.streaming.base.format import Reader, reader_from_json
from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming.base import StreamingDataLoader

__all__ = [
    "CSVWriter",
    "JSONWriter",
    "LocalDataset",
    "MDSWriter",
    "Reader",
    "Stream",
    "StreamingDataLoader",
    "StreamingDataset",
    "TSVWriter",
    "XSVWriter",
    "reader_from_json",
]


def __getattr__(name: str) -> object:
    return named(__name__, {"StreamingDataLoader": "base.dataloader"}, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
