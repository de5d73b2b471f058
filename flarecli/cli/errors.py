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

HANDLES = 64  # enough for every command
_BUG = "This is a bug in flare, not in your data: please report it with what --debug shows."


def run(
    args: list[str],
    as_json: bool = False,
    debug: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Run one command line and return its exit code. Errors are printed; only KeyboardInterrupt is
    raised.

    as_json  print errors as JSON objects
    debug    print the traceback of errors
    stopped  returns whether a signal ended the run; errors that follow from it are not printed
    """
    try:
        code = _by_typer(args)
        if not stopped():  # flushing could block on the reader of a pipe
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
    """Return whether the limit of open files is too low; libcurl does not report why it cannot
    start.
    """
    try:
        import resource
    except ImportError:
        return False
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] < HANDLES


def _too_few_handles() -> FlareError:
    hint = f"Run `ulimit -n {HANDLES}` first."
    try:
        import resource
    except ImportError:  # no resource module on Windows
        return ReachError("too few file handles", hint=hint)
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ReachError(
        f"too few file handles: {allowed} are allowed, {HANDLES} are needed", hint=hint
    )


def _by_typer(args: list[str]) -> Any:
    from flarecli.cli.app import answer

    return answer(args)


def _told(error: BaseException, args: list[str]) -> FlareError:
    """Return the error to print for an exception."""
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
            "not enough memory", hint="Use fewer --jobs or smaller shards, or allow more memory."
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
_SHOWN, _MAX_NAMES = 3, 2_000  # names of a folder


def hint_for(where: str, args: Sequence[str]) -> str:
    """Return a hint for an address that does not exist; empty if it was not typed or there is no
    suggestion.

    where  address of the error
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
        return f"Use two slashes: {shell_quoted(f'{match[1]}://{typed[match.end() :]}')}"
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
    """Return whether SOURCE and OUT seem to be swapped: the last argument is a file."""
    return (
        args[0] in ("pack", "unpack")
        and len(args) > 2
        and typed == args[1]
        and os.path.isfile(args[-1])
    )


def _beside(path: str) -> str:
    """Return a hint from what exists: a file instead of a folder, a similar name, or the folder
    that exists.
    """
    plain = path.rstrip("/")
    if os.path.isfile(plain):
        return f"{shell_quoted(plain)} is a file: remove the slash."
    folder, name = os.path.split(plain)
    while folder and not os.path.isdir(folder) and not _SIGNS.search(folder):
        if os.path.isfile(folder):
            return f"{shell_quoted(folder)} is a file, not a folder."
        folder, name = os.path.split(folder)
    names = _names(folder)
    if found := nearest(name, names):
        more = plain[len(os.path.join(folder, name)) :]
        return f"Did you mean {shell_quoted(os.path.join(folder, found) + more)}?"
    place = shell_quoted(folder) if folder else "the current folder"
    if _SIGNS.search(plain) and names:
        return f"{place} contains names such as {', '.join(map(shell_quoted, sorted(names)[:_SHOWN]))}."
    return f"{place} is there, and no {shell_quoted(name)} in it." if folder else ""


def _names(folder: str) -> list[str]:
    try:
        with os.scandir(folder or ".") as entries:
            return [
                entry.name
                for entry, _ in zip(entries, range(_MAX_NAMES), strict=False)
                if not entry.name.startswith(".")
            ]
    except OSError:
        return []
