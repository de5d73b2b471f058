"""Encodings of the user's own: a name, and two functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from flarecli.errors import UsageError

__all__ = ["OWN", "Own", "remember"]

_NAME = r"(?a)[A-Za-z_][\w.-]{0,63}"


class Own(NamedTuple):
    """What makes bytes of a value, and a value of bytes."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


OWN: dict[str, Own] = {}  # of this process: each that reads or writes such a column registers it


def remember(name: str, own: Own) -> None:
    """Keep an encoding under a name; the same name again replaces it. Raises UsageError for a name that cannot be one."""
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"{name!r:.80} cannot name an encoding",
            hint="Take letters, digits, _, - and dots, 64 at most, and begin with a letter.",
        )
    OWN[name] = own
