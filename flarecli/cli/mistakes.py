"""What may have been meant by an address on the command line at which nothing is: looked for when the error is told."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from flarecli.guesses import nearest
from flarecli.names import bare, is_url, local_path, shell_quoted

__all__ = ["hint_for"]

_SIGNS = re.compile(r"[*?\[{]")
_ONE_SLASH = re.compile(r"(https?|s3|gs|az|hf):/*(?=[^/])")
_SHOWN, _LOOKED_AT = 3, 2_000  # names of a folder


def hint_for(where: str, args: Sequence[str]) -> str:
    """Give the way out where nothing is at an address; empty where it is not the user's own word, or nothing comes to mind.

    where  what the error names
    args   the command line
    """
    typed = next((arg for arg in args if _same(arg, where)), None)
    if (
        typed is None
        or os.path.lexists(local_path(typed))
        or (is_url(typed) and not typed.lower().startswith("file://"))
    ):
        return ""
    if match := _ONE_SLASH.match(typed):
        return f"Write it with two slashes: {shell_quoted(f'{match[1]}://{typed[match.end() :]}')}"
    if typed.startswith("file:") and not is_url(typed):
        url = f"file://{os.path.abspath(typed[5:])}"
        return f"Leave `file:` out, or write {shell_quoted(url)}."
    if _is_turned_round(typed, args):
        places = f"{shell_quoted(args[-1])} {shell_quoted(typed)}"
        return f"Name the source first and OUT last: `flare {args[0]} {places}`."
    if typed.isdecimal() and args[0] in ("cat", "inspect"):
        return f"Rows are named by an option: `flare cat SOURCE -r {typed}`."
    return _beside(local_path(typed))


def _same(arg: str, where: str) -> bool:
    return bool(where) and bare(arg).rstrip("/") == bare(where).rstrip("/")


def _is_turned_round(typed: str, args: Sequence[str]) -> bool:
    """Say whether OUT stands where the source should, and a file where OUT should."""
    return (
        args[0] in ("pack", "unpack")
        and len(args) > 2
        and typed == args[1]
        and os.path.isfile(args[-1])
    )


def _beside(path: str) -> str:
    """Say what is there instead: a file taken for a folder, a name much like it, or how far the path is right."""
    plain = path.rstrip("/")
    if os.path.isfile(plain):
        return f"{shell_quoted(plain)} is a file: leave the slash out."
    folder, name = os.path.split(plain)
    while folder and not os.path.isdir(folder) and not _SIGNS.search(folder):
        if os.path.isfile(folder):
            return f"{shell_quoted(folder)} is a file: nothing lies below it."
        folder, name = os.path.split(folder)
    names = _names(folder)
    if found := nearest(name, names):
        more = plain[len(os.path.join(folder, name)) :]
        return f"Did you mean {shell_quoted(os.path.join(folder, found) + more)}?"
    place = shell_quoted(folder) if folder else "the folder that you are in"
    if _SIGNS.search(plain) and names:
        return (
            f"{place} holds names such as {', '.join(map(shell_quoted, sorted(names)[:_SHOWN]))}."
        )
    return f"{place} is there, and no {shell_quoted(name)} in it." if folder else ""


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder or ".") as entries:
            return [
                entry.name
                for entry, _ in zip(entries, range(_LOOKED_AT), strict=False)
                if not entry.name.startswith(".")
            ]
    except OSError:
        return []
