"""Run one command line: every exception becomes one printed error and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from flarecli.cli import printer
from flarecli.errors import (
    ExhaustedError,
    FlareError,
    FormatError,
    MissingError,
    MissingLibraryError,
    ReachError,
    check_exhausted,
)
from flarecli.names import bare, is_url, local_path, shell_quoted
from flarecli.suggest import nearest

__all__ = ["hint_for", "run"]

HANDLES = 64  # with so many every command works
_BUG = "This is a bug in flare, not in your data: please report it with what --debug shows."


def run(
    args: list[str],
    as_json: bool = False,
    debug: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Run one command line and give its exit code; errors are printed, and none is raised but KeyboardInterrupt.

    as_json  errors go to stderr as JSON objects
    debug    errors come with their traceback
    stopped  whether a signal is being obeyed: what goes wrong then is its consequence, and not printed
    """
    try:
        code = _by_typer(args)
        if not stopped():  # or it might wait for a reader
            printer.finish()
        return code if isinstance(code, int) else 0
    except SystemExit as end:  # completion
        return end.code if isinstance(end.code, int) else 0
    except BaseException as caught:
        error = caught
    if isinstance(error, KeyboardInterrupt):
        raise error
    if stopped() or (isinstance(error, BrokenPipeError) and printer.reader_left()):
        return 0
    told = _told(error, args)
    printer.error(told, as_json, error if debug else None)
    return told.exit_code


def _are_handles_few() -> bool:
    """Tell whether the process may have fewer handles than it needs; libcurl does not say why it cannot start."""
    try:
        import resource
    except ImportError:
        return False
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] < HANDLES


def _too_few_handles() -> FlareError:
    hint = f"Run `ulimit -n {HANDLES}` first."
    try:
        import resource
    except ImportError:  # another system, with another limit
        return ReachError("too few file handles", hint=hint)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ReachError(
        f"too few file handles: {allowed} are allowed, {HANDLES} are needed", hint=hint
    )


def _by_typer(args: list[str]) -> Any:
    from flarecli.cli.app import answer

    return answer(args)


def _told(error: BaseException, args: list[str]) -> FlareError:
    """Give what to tell the user about any exception."""
    if isinstance(error, MissingError) and not error.hint:
        error.hint = hint_for(error.address, args)
    if isinstance(error, FlareError):
        return error
    if isinstance(error, OSError):
        try:
            check_exhausted(error)
        except MemoryError as exhausted:
            error = exhausted
    if isinstance(error, ExhaustedError):
        return _too_few_handles()
    if isinstance(error, MemoryError):
        return ReachError(
            "not enough memory", hint="Give it more memory, fewer --jobs or smaller shards."
        )
    if isinstance(error, RuntimeError) and "curl" in str(error) and _are_handles_few():
        return _too_few_handles()
    if isinstance(error, RecursionError):
        return FormatError("the data is nested too deeply")
    if (
        isinstance(error, ModuleNotFoundError)
        and error.name
        and not error.name.startswith("flarecli")
    ):
        if error.name in sys.stdlib_module_names:  # fcntl and resource, on Windows
            return MissingLibraryError(
                f"this system has no {error.name}, which the command needs",
                hint="Run flare on Linux or macOS; on Windows, use WSL.",
            )
        return MissingLibraryError(
            f"the library {error.name} is missing",
            hint=f"Run `pip install {error.name.partition('.')[0]}`.",
        )
    if isinstance(error, OSError) and error.strerror:
        return ReachError(error.strerror, where=error.filename or "")
    told = FlareError(f"{type(error).__name__}: {error}".removesuffix(": "), hint=_BUG)
    told.kind = "bug"
    return told


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
