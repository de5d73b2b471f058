"""Arrow, loaded when something of it is first used: to say what a dataset is and to check its sums takes none of it.

`pa` is pyarrow and `pc` its compute functions. Loading the two takes longer than summing a gigabyte.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["pa", "pc"]


class _Later(ModuleType):
    """A module that is loaded for the first name it is asked for; it keeps each, so that only the first use costs more."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(importlib.import_module(self.__name__), name)
        setattr(self, name, found)
        return found


if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.compute as pc
else:
    pa, pc = _Later("pyarrow"), _Later("pyarrow.compute")
