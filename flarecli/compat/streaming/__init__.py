"""The API of mosaicml-streaming: `import flarecli.compat.streaming as streaming`.

Names load on first use; only `StreamingDataLoader` loads torch.
"""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.streaming.dataset import StreamingDataset as StreamingDataset
    from flarecli.compat.streaming.local import LocalDataset as LocalDataset
    from flarecli.compat.streaming.shard import Reader as Reader
    from flarecli.compat.streaming.shard import reader_from_json as reader_from_json
    from flarecli.compat.streaming.streams import Stream as Stream
    from flarecli.compat.streaming.torch import StreamingDataLoader as StreamingDataLoader
    from flarecli.compat.streaming.writers import CSVWriter as CSVWriter
    from flarecli.compat.streaming.writers import JSONWriter as JSONWriter
    from flarecli.compat.streaming.writers import MDSWriter as MDSWriter
    from flarecli.compat.streaming.writers import TSVWriter as TSVWriter
    from flarecli.compat.streaming.writers import XSVWriter as XSVWriter

_FILES = {
    "CSVWriter": "writers",
    "JSONWriter": "writers",
    "LocalDataset": "local",
    "MDSWriter": "writers",
    "Reader": "shard",
    "Stream": "streams",
    "StreamingDataLoader": "torch",
    "StreamingDataset": "dataset",
    "TSVWriter": "writers",
    "XSVWriter": "writers",
    "base": "base",
    "reader_from_json": "shard",
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
    found = globals()[name] = named(__name__, _FILES, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
