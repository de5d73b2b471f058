"""Command lines of nothing but addresses and switches, read without Typer: loading that takes as long as verifying half a gigabyte.

Whatever else stands in one, and whatever the environment says of an option, takes Typer; so do help and every mistake.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from functools import partial

__all__ = ["plain_line"]

_VERIFY = {
    "--quick": "quick",
    "--decode": "decode",
    "--duplicates": "duplicates",
    "--github": "github",
    "--allow-private": "allow_private",
    "--allow-local": "allow_local",
    "--json": "as_json",
    "--quiet": "quiet",
    "-q": "quiet",
    "--verbose": "verbose",
    "-v": "verbose",
    "--debug": "debug",
}
_COMMANDS = {
    "verify": ("flarecli.cli.checking", "check", _VERIFY)
}  # name -> where it is done, and switch -> the argument that it sets
_JOBS = ("-j", "--jobs")
_MOST = 4  # digits of a number


def plain_line(args: Sequence[str]) -> Callable[[], int] | None:
    """Give what answers a command line, with its exit code; None where that is for Typer to say."""
    if not args or args[0] not in _COMMANDS or any("FLARE_" in name for name in os.environ):
        return None
    module, name, switches = _COMMANDS[args[0]]
    sources, given = list[str](), dict[str, bool | int]()
    rest = iter(args[1:])
    for arg in rest:
        if arg in switches:
            given[switches[arg]] = True
        elif arg.startswith(("-j", "--jobs=")) or arg == "--jobs":
            number = next(rest, "") if arg in _JOBS else arg[2 if arg.startswith("-j") else 7 :]
            if "jobs" in given or not (
                number.isascii() and number.isdecimal() and len(number) <= _MOST and int(number)
            ):
                return None
            given["jobs"] = int(number)
        elif arg[:1] in ("", "-"):
            return None
        else:
            sources.append(arg)
    return (
        partial(getattr(importlib.import_module(module), name), sources, **given)
        if sources
        else None
    )
