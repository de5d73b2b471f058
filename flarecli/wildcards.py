"""Wildcards and braces in addresses: `shards/*.csv`, `**/x.parquet`, `{00000..00127}`, `{a,b}`. Nothing is listed here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flarecli.errors import UsageError

__all__ = ["SIGNS", "braced", "divided", "pattern_of"]

SIGNS = "*?["
_BRACES = re.compile(r"\{([^{}]*)\}")
_RANGE = re.compile(r"(\d+)\.\.(\d+)", re.ASCII)
_BRACE_LIMIT = 1 << 20  # addresses


def braced(address: str) -> list[str]:
    """Expand braces, those on the left first. Raises UsageError for more than a million addresses."""
    match = _BRACES.search(address)
    if not match:
        return [address]
    numbers = _RANGE.fullmatch(match[1])
    if numbers:
        first, last = int(numbers[1]), int(numbers[2])
        if abs(last - first) >= _BRACE_LIMIT:
            raise UsageError(f"{match[0]} names more than {_BRACE_LIMIT} addresses")
        width = len(numbers[1]) if numbers[1].startswith("0") else 0
        words = [f"{n:0{width}d}" for n in range(first, last + 1 if last >= first else last - 1, 1 if last >= first else -1)]
    elif "," in match[1]:
        words = match[1].split(",")
    else:
        head, rest = address[: match.end()], address[match.end() :]
        return [head + tail for tail in braced(rest)]
    tails = braced(address[match.end() :])
    if len(words) * len(tails) > _BRACE_LIMIT:
        raise UsageError(f"{address!r:.80} names more than {_BRACE_LIMIT} addresses")
    return [address[: match.start()] + word + tail for word in words for tail in tails]


def divided(address: str) -> tuple[str, list[str]]:
    """Part an address with a sign in it: the folder to list, empty where that is the one to start from, and the parts to match.

    raises  UsageError for an address whose bucket would have to be found
    """
    parts = address.split("/")
    plain = next(i for i, part in enumerate(parts) if any(sign in part for sign in SIGNS))
    if "://" in address and plain < 3:
        raise UsageError("a bucket is named without *, ? or [")
    return ("/" if parts[:plain] == [""] else "/".join(parts[:plain])), parts[plain:]


def pattern_of(parts: Sequence[str]) -> re.Pattern[str]:
    """Make an expression of a glob: `**` is any number of folders, no other sign passes a slash, and only `.…` names what is hidden.

    An empty part at the end fits what ends in a slash.
    """
    out = ""
    for i, part in enumerate(parts):
        if part == "**":
            out += "(?:(?!\\.)[^/]+/)*" if i < len(parts) - 1 else "(?:(?!\\.)[^/]+/)*(?!\\.)[^/]+"
            continue
        hidden = "" if part.startswith(".") or not part else "(?!\\.)"
        signs = re.split(r"(\*+|\?|\[!?\]?[^\]]*\])", part)
        out += hidden + "".join(_sign(sign) if k % 2 else re.escape(sign) for k, sign in enumerate(signs)) + ("/" if i < len(parts) - 1 else "")
    try:
        return re.compile(out, re.DOTALL)
    except re.error:
        raise UsageError(f"{'/'.join(parts)!r:.80} is no pattern") from None


def _sign(sign: str) -> str:
    if sign[0] == "[":
        inside = sign[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        not_in = inside.startswith("!")
        inside = inside[not_in:].replace("]", "\\]").replace("^", "\\^")
        return f"(?!/)[{'^' if not_in else ''}{inside}]"
    return "[^/]" if sign == "?" else "[^/]*"
