"""What callers give where one thing or several may stand: an address as text or path, a name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from flarecli.errors import UsageError

__all__ = ["Address", "Addresses", "address_text", "address_texts", "name_list"]

Address: TypeAlias = "str | os.PathLike[str]"
Addresses: TypeAlias = "Address | Sequence[Address]"


def address_text(given: Address) -> str:
    """Give an address, or a path of pathlib, as text. Raises UsageError for anything else."""
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise UsageError(f"{type(given).__name__} is no address", hint="Give text, or a path of pathlib.")
    return text


def address_texts(given: Addresses) -> list[str]:
    """Give one address, or several, as texts. Raises UsageError for what is neither."""
    if isinstance(given, Iterable) and not isinstance(given, (str, os.PathLike)):
        return [address_text(one) for one in given]
    return [address_text(given)]


def name_list(given: str | Iterable[str]) -> list[str]:
    """Give names as a list; one text is one name, not its letters. Raises UsageError for a dict, whose values would be left out."""
    if isinstance(given, Mapping):
        raise UsageError(f"a list of names is wanted, not {type(given).__name__}", hint='Write a pair as "COLUMN:NAME".')
    return [given] if isinstance(given, str) else list(given)
