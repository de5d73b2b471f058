"""The API of granular: `import flarecli.compat.granular as granular`."""

from __future__ import annotations

from flarecli.compat.granular import sources
from flarecli.compat.granular.bag import BagReader, BagWriter
from flarecli.compat.granular.codecs import decoders, encoders
from flarecli.compat.granular.loader import Loader
from flarecli.compat.granular.readers import DatasetReader, ShardedDatasetReader
from flarecli.compat.granular.writers import DatasetWriter, ShardedDatasetWriter

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
