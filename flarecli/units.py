"""Sizes and durations as text: `64MB` is 64 * 10^6, `64MiB` is 64 * 2^20, `2h` is 7200 s."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flarecli.errors import UsageError

__all__ = ["format_count", "format_list", "format_size", "parse_box", "parse_size", "parse_time"]

_SIZE = r"(?ai)(\d{1,99})(?:\.(\d{1,99}))? ?([kmgtpe]?)(i?)b?"
_TIME = r"(?a)(\d+(?:\.\d+)?) ?(ms|s|m|min|h|d)?"
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5, "e": 6}
_SECONDS = {"ms": 0.001, "s": 1, None: 1, "m": 60, "min": 60, "h": 3600, "d": 86400}
_SIZE_LIMIT = 1 << 63  # sizes are stored as int64


def parse_size(text: str) -> int:
    """Parse a size in bytes: `512`, `512K` and `64MB` use powers of 1000, `64MiB` powers of 1024.

    return  number of bytes from 0 to 2^63 - 1, rounded down
    raises  UsageError if the text is not a valid size
    """
    match = re.fullmatch(_SIZE, text.strip())
    if not match or (match[4] and not match[3]):
        raise UsageError(
            f"invalid size {text!r:.60}", hint="Use a form such as 512K, 64MB or 64MiB."
        )
    step, decimals = 1024 if match[4] else 1000, match[2] or ""
    power: int = step ** _POWERS[match[3].lower()]
    # Integer arithmetic is exact. With floats, 1.001K would be 1000 bytes.
    size = int(match[1] + decimals) * power // int("1" + "0" * len(decimals))
    if size >= _SIZE_LIMIT:
        raise UsageError(f"size {text!r:.60} exceeds 2^63 bytes")
    return size


def parse_box(text: str) -> int | tuple[int, int]:
    """Parse a size in pixels: `512` is the side of a square, `640x480` the width and height.

    Raises UsageError for any other text.
    """
    match = re.fullmatch(r"(\d{1,9})(?:x(\d{1,9}))?", text.strip(), re.ASCII)
    if not match:
        raise UsageError(
            f"invalid size in pixels: {text!r}", hint="Use a form such as 512 or 640x480."
        )
    return (int(match[1]), int(match[2])) if match[2] else int(match[1])


def parse_time(text: str) -> float:
    """Parse a duration such as `30s`, `10m`, `2h` or `500ms`, and return its seconds.

    A number without a unit is a number of seconds.

    raises  UsageError if the text is not a duration above zero
    """
    match = re.fullmatch(_TIME, text.strip())
    seconds = float(match[1]) * _SECONDS[match[2]] if match else 0.0
    if not 0 < seconds < 1e9:
        raise UsageError(f"invalid duration {text!r}", hint="Use a form such as 30s, 10m or 2h.")
    return seconds


def format_size(size: int) -> str:
    """Return a size in bytes as text for people: `999 B`, `1.2 kB`, `67.1 MB`."""
    if size < 1000:
        return f"{size} B"
    power = min(6, (len(str(size)) - 1) // 3)
    if size / 1000**power >= 999.95 and power < 6:
        power += 1
    return f"{size / 1000**power:.1f} {' kMGTPE'[power]}B"


def format_count(number: int, noun: str, nouns: str | None = None) -> str:
    """Return a count with its noun, such as `12,345 rows`; `nouns` is an irregular plural."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {nouns or noun + 's'}"


def format_list(items: Sequence[str], word: str = "and") -> str:
    """Return items as text for people: `a`, `a and b`, `a, b and c`."""
    return f" {word} ".join([*([", ".join(items[:-1])] if items[1:] else []), items[-1]])


def format_time(seconds: float) -> str:
    """Return a duration as text for people, rounded down: `59 s`, `3 m`, `47 h`, `12 days`."""
    for size, unit in ((172_800, "days"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds / (86_400 if unit == 'days' else size))} {unit}"
    return f"{int(seconds)} s"
