"""What somebody meant who typed a name that is none: the nearest of those that there are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from flarecli.names import shell_quoted

__all__ = ["choose", "nearest"]

SHOWN = 60  # names of a hint; of the thousand columns of a table nobody reads more
_LOOKED_AT, _LONGEST = (
    5_000,
    100,
)  # names, and characters of one: those may come from data, and comparing costs


def nearest(given: str, known: Iterable[str]) -> str | None:
    """Give the known name that is most like the given one, upper and lower case and blanks apart; None where none is much like it."""
    import difflib

    plain = given.strip().casefold()
    if not plain or len(plain) > _LONGEST:
        return None
    names: dict[str, str] = {}
    for name, _ in zip(known, range(_LOOKED_AT), strict=False):
        if len(name) <= _LONGEST:
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
    """Give the hint for a name that is none: the one that was meant, if that can be guessed, and those that there are.

    meant  what names that others use are called here
    more   what stands behind the last name
    """
    names = list(known)
    known_as = meant.get(given.strip().casefold())
    guess = known_as if known_as in names else nearest(given, names)
    shown = ", ".join(map(shell_quoted, names[:SHOWN])) + (
        f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    )
    asked = f"{ask} {shown}{more}." if names else ""
    return f"Did you mean {shell_quoted(guess)}? {asked}".strip() if guess else asked
