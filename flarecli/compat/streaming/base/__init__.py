"""Import paths below `streaming.base`: the same names as in `flarecli.compat.streaming`."""

from __future__ import annotations

from flarecli.compat import streaming

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming import CSVWriter as CSVWriter
    from flarecli.compat.streaming import JSONWriter as JSONWriter
    from flarecli.compat.streaming import LocalDataset as LocalDataset
    from flarecli.compat.streaming import MDSWriter as MDSWriter
    from flarecli.compat.streaming import Stream as Stream
    from flarecli.compat.streaming import StreamingDataLoader as StreamingDataLoader
    from flarecli.compat.streaming import StreamingDataset as StreamingDataset
    from flarecli.compat.streaming import TSVWriter as TSVWriter
    from flarecli.compat.streaming import XSVWriter as XSVWriter

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
