"""Names of a package that are loaded when they are first asked for: what nobody uses costs nothing at start-up."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

__all__ = ["named"]


def named(package: str, files: Mapping[str, str], name: str) -> Any:
    """Give what a package calls by a name, loading the file that has it; for a package's `__getattr__`, which keeps it.

    files   name -> the file of the package that has it, or FILE:NAME where it has another name there; a file of that very name is the thing itself
    raises  AttributeError for another name
    """
    if name not in files:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    file, _, its = files[name].partition(":")
    module = importlib.import_module(f"{package}.{file}")
    return module if file == name else getattr(module, its or name)
