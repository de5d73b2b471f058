"""Suggestions for mistyped names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flarecli.names import shell_quoted

__all__ = ["choose", "nearest"]

MAX_SHOWN = 60  # maximum number of names in a hint
# Limits on the names that are compared, because the names may come from data.
_MAX_NAMES, _MAX_LENGTH = 5_000, 100


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, or None if no known name is similar.

    Case and surrounding spaces are ignored.
    """
    import difflib

    plain = name.strip().casefold()
    if not plain or len(plain) > _MAX_LENGTH:
        return None
    names: dict[str, str] = {}
    for known_name, _ in zip(known, range(_MAX_NAMES), strict=False):
        if len(known_name) <= _MAX_LENGTH:
            names.setdefault(known_name.casefold(), known_name)
    if plain in names:
        return names[plain]
    if similar := difflib.get_close_matches(plain, names, 1, 0.7):
        return names[similar[0]]
    if len(plain) < 3:
        return None
    # the name may match a part of a known name, such as `url` in `data_url`
    containing = [known for known in names if plain in known.replace("-", "_").split("_")]
    return names[min(containing, key=len)] if containing else None


def choose(
    name: str,
    known: Iterable[str],
    intro: str = "Choose one of",
    synonyms: Mapping[str, str] = {},
    suffix: str = "",
) -> str:
    """Return the hint for an unknown name, with the most similar known name and all known names.

    intro     text before the first known name
    synonyms  name in other programs -> known name
    suffix    text after the last known name
    """
    names = list(known)
    synonym = synonyms.get(name.strip().casefold())
    guess = synonym if synonym in names else nearest(name, names)
    listed = ", ".join(map(shell_quoted, names[:MAX_SHOWN]))
    if len(names) > MAX_SHOWN:
        listed += f" and {len(names) - MAX_SHOWN:,} more"
    hint = f"{intro} {listed}{suffix}." if names else ""
    return f"Did you mean {shell_quoted(guess)}? {hint}".strip() if guess else hint
