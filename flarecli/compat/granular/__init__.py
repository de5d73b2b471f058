"""The API of granular: `import flarecli.compat.granular as granular`.

Names are loaded on first use.
"""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.granular import sources
    from flarecli.compat.granular.bag import BagReader, BagWriter
    from flarecli.compat.granular.codecs import decoders, encoders
    from flarecli.compat.granular.loader import Loader
    from flarecli.compat.granular.readers import DatasetReader, ShardedDatasetReader
    from flarecli.compat.granular.writers import DatasetWriter, ShardedDatasetWriter

_MODULES = {
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
    value = globals()[name] = named(__name__, _MODULES, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
