"""The modules of mosaicml-streaming's `streaming.base`. Names are loaded on first use."""

from __future__ import annotations

from flarecli.compat import streaming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming import (
        CSVWriter,
        JSONWriter,
        LocalDataset,
        MDSWriter,
        Stream,
        StreamingDataLoader,
        StreamingDataset,
        TSVWriter,
        XSVWriter,
    )

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
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(streaming, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
