"""The API of granular: `import flarecli.compat.granular as granular`. Names load on first use."""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.granular import sources as sources
    from flarecli.compat.granular.bag import BagReader as BagReader
    from flarecli.compat.granular.bag import BagWriter as BagWriter
    from flarecli.compat.granular.codecs import decoders as decoders
    from flarecli.compat.granular.codecs import encoders as encoders
    from flarecli.compat.granular.loader import Loader as Loader
    from flarecli.compat.granular.readers import DatasetReader as DatasetReader
    from flarecli.compat.granular.readers import ShardedDatasetReader as ShardedDatasetReader
    from flarecli.compat.granular.writers import DatasetWriter as DatasetWriter
    from flarecli.compat.granular.writers import ShardedDatasetWriter as ShardedDatasetWriter

_FILES = {
    "BagReader": "bag",
    "BagWriter": "bag",
    "DatasetReader": "readers",
    "DatasetWriter": "writers",
    "Loader": "loader",
    "ShardedDatasetReader": "readers",
    "ShardedDatasetWriter": "writers",
    "decoders": "codecs",
    "encoders": "codecs",
    "sources": "sources",
}

__all__ = [
    "BagReader",
    "BagWriter",
    "DatasetReader",
    "DatasetWriter",
    "Loader",
    "ShardedDatasetReader",
    "ShardedDatasetWriter",
    "decoders",
    "encoders",
    "sources",
]


def __getattr__(name: str) -> object:
    found = globals()[name] = named(__name__, _FILES, name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
