"""The API of ffrecord: `import flarecli.compat.ffrecord as ffrecord`.

The module `ffrecord.torch`, which loads torch, is loaded on first use.
"""

from __future__ import annotations

from flarecli.compat.ffrecord.files import FileReader, FileWriter, PackedFolder, pack_folder
from flarecli.compat.ffrecord.utils import dump
from flarecli.lazy import named

__all__ = ["FileReader", "FileWriter", "PackedFolder", "dump", "pack_folder"]
__version__ = "1.4.0"  # the ffrecord release whose API this package implements


def __getattr__(name: str) -> object:
    return named(__name__, {"torch": "torch"}, name)
