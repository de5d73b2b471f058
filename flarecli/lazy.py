"""Deferred imports: a heavy library is imported when one of its names is first used.

`pa` is pyarrow, `pc` is pyarrow.compute, and `np` is numpy.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["named", "np", "pa", "pc"]


class _LazyModule(ModuleType):
    """Stand-in for a module, which is imported when one of its names is first used."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    np, pa, pc = _LazyModule("numpy"), _LazyModule("pyarrow"), _LazyModule("pyarrow.compute")


def named(package: str, files: Mapping[str, str], name: str) -> Any:
    """Import and return one name of a package, for the package's `__getattr__`.

    files   name -> module in the package that defines the name, or MODULE:NAME if the object has
            another name in the module. If the name and the module are equal, the module is
            returned.
    raises  AttributeError for an unknown name
    """
    if name not in files:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    file, _, attribute = files[name].partition(":")
    module = importlib.import_module(f"{package}.{file}")
    return module if file == name else getattr(module, attribute or name)
