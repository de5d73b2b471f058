"""The API of ffrecord: `import flarecli.compat.ffrecord as ffrecord`.

Names are loaded on first use; only `ffrecord.torch` loads torch.
"""

from __future__ import annotations

from flarecli.lazy import named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from flarecli.compat.ffrecord.files import FileReader, FileWriter, PackedFolder, pack_folder
    from flarecli.compat.ffrecord.utils import dump

_MODULES = {
    "FileReader": "files",
    "FileWriter": "files",
    "PackedFolder": "files",
    "dump": "utils",
    "pack_folder": "files",
    "torch": "torch",
    "utils": "utils",
}

__all__ = ["FileReader", "FileWriter", "PackedFolder", "dump", "pack_folder"]
__version__ = "1.4.0"  # the ffrecord release whose API this package implements


def __getattr__(name: str) -> object:
    value = globals()[name] = named(__name__, _MODULES, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
