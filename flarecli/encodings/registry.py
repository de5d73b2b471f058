"""Custom encodings, registered by the user: a name and two functions."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from flarecli.errors import UsageError

__all__ = ["CUSTOM", "CustomEncoding", "add_custom"]

_NAME = r"(?a)[A-Za-z_][\w.-]{0,63}"


class CustomEncoding(NamedTuple):
    """The functions of a custom encoding: value to bytes, and bytes to value."""

    encode: Callable[[Any], bytes]
    decode: Callable[[bytes], Any]


CUSTOM: dict[str, CustomEncoding] = {}  # of this process only


def add_custom(name: str, own: CustomEncoding) -> None:
    """Register an encoding; an earlier one of the same name is replaced. Raises UsageError for an
    invalid name.
    """
    if not re.fullmatch(_NAME, name):
        raise UsageError(
            f"{name!r:.80} is not a valid name of an encoding",
            hint="Use letters, digits, _, - and dots, at most 64, and start with a letter.",
        )
    CUSTOM[name] = own
