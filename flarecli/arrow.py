"""Arrow and numpy, loaded when something of them is first used: to say what a dataset is and to check its sums takes none of them.

`pa` is pyarrow, `pc` its compute functions, `np` numpy. Loading the three takes longer than summing a gigabyte.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["np", "pa", "pc"]


class _Later(ModuleType):
    """A module that is loaded for the first name it is asked for; it keeps each, so that only the first use costs more."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    np, pa, pc = _Later("numpy"), _Later("pyarrow"), _Later("pyarrow.compute")
