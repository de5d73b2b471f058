"""The API of mosaicml-streaming: `import flarecli.compat.streaming as streaming`.

The modules below `base` have the same paths as in mosaicml-streaming. Names are loaded on first
use. Only `StreamingDataLoader` loads torch.
"""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming.base.dataloader import StreamingDataLoader
    from flarecli.compat.streaming.base.dataset import StreamingDataset
    from flarecli.compat.streaming.base.format.json import JSONWriter
    from flarecli.compat.streaming.base.format.mds import MDSWriter
    from flarecli.compat.streaming.base.format.reader import Reader, reader_from_json
    from flarecli.compat.streaming.base.format.xsv import CSVWriter, TSVWriter, XSVWriter
    from flarecli.compat.streaming.base.local import LocalDataset
    from flarecli.compat.streaming.base.stream import Stream

_MODULES = {
    "CSVWriter": "base.format.xsv",
    "JSONWriter": "base.format.json",
    "LocalDataset": "base.local",
    "MDSWriter": "base.format.mds",
    "Reader": "base.format.reader",
    "Stream": "base.stream",
    "StreamingDataLoader": "base.dataloader",
    "StreamingDataset": "base.dataset",
    "TSVWriter": "base.format.xsv",
    "XSVWriter": "base.format.xsv",
    "base": "base",
    "reader_from_json": "base.format.reader",
}

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
    value = globals()[name] = named(__name__, _MODULES, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
