"""Suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flarecli.names import shell_quoted

__all__ = ["choose", "nearest"]

SHOWN = 60  # maximum names in a hint
_MAX_NAMES, _MAX_LENGTH = 5_000, 100  # of compared names, which may come from data


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Return the known name most similar to the given one, ignoring case and outer spaces; None if
    there is none.
    """
    import difflib

    plain = given.strip().casefold()
    if not plain or len(plain) > _MAX_LENGTH:
        return None
    names: dict[str, str] = {}
    for name, _ in zip(known, range(_MAX_NAMES), strict=False):
        if len(name) <= _MAX_LENGTH:
            names.setdefault(name.casefold(), name)
    if plain in names:
        return names[plain]
    found = difflib.get_close_matches(plain, names, 1, 0.7)
    if not found and len(plain) >= 3:  # `url` of `data_url`
        found = sorted(
            (name for name in names if plain in name.replace("-", "_").split("_")), key=len
        )[:1]
    return names[found[0]] if found else None


def choose(
    given: str,
    known: Iterable[str],
    ask: str = "Choose one of",
    meant: Mapping[str, str] = {},
    more: str = "",
) -> str:
    """Return the hint for an unknown name: the most similar known name, and the list of known
    names.

    meant  name used elsewhere -> the name used here
    more   text after the last name
    """
    names = list(known)
    known_as = meant.get(given.strip().casefold())
    guess = known_as if known_as in names else nearest(given, names)
    shown = ", ".join(map(shell_quoted, names[:SHOWN])) + (
        f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    )
    asked = f"{ask} {shown}{more}." if names else ""
    return f"Did you mean {shell_quoted(guess)}? {asked}".strip() if guess else asked
