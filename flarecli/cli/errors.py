"""Execution of one command line. Every exception becomes one printed error and an exit code."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Sequence

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

__all__ = ["run"]

MIN_OPEN_FILES = 64  # number of open files that is sufficient for every command
_BUG = "This is a bug in flare, not in your data. Please report it with the output of --debug."
_GLOB_SIGNS = re.compile(r"[*?\[{]")
_ONE_SLASH = re.compile(r"(https?|s3|gs|az|hf):/*(?=[^/])")
_MAX_SHOWN = 3  # maximum number of names in a hint
_MAX_NAMES = 2_000  # maximum number of names read from a folder


def run(
    args: list[str],
    as_json: bool = False,
    debug: bool = False,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Run one command line and return its exit code.

    Errors are printed. Only KeyboardInterrupt is raised.

    as_json  print errors as JSON objects
    debug    print the traceback of errors
    stopped  function that returns whether a signal ended the run; later errors are not printed
    """
    try:
        from flarecli.cli.app import execute

        code = execute(args)
        if not stopped():  # after a signal, a flush could block if no process reads the pipe
            printer.finish()
        return code if isinstance(code, int) else 0
    except SystemExit as end:  # raised by shell completion
        return end.code if isinstance(end.code, int) else 0
    except KeyboardInterrupt:
        raise
    except BaseException as caught:
        error = caught
    if stopped() or (isinstance(error, BrokenPipeError) and printer.is_reader_gone()):
        return 0
    shown = _flare_error(error, args)
    printer.print_error(shown, as_json, error if debug else None)
    return shown.exit_code


def _flare_error(error: BaseException, args: list[str]) -> FlareError:
    """Convert any exception to the FlareError to print."""
    if isinstance(error, MissingError) and not error.hint:
        error.hint = hint_for(error.address, args)
    if isinstance(error, FlareError):
        return error
    if isinstance(error, OSError):
        try:
            check_exhausted(error)
        except MemoryError as exhausted:
            error = exhausted
    limit = _open_files_limit()
    # libcurl does not report why it cannot start, so assume a low limit on open files
    is_curl = isinstance(error, RuntimeError) and "curl" in str(error)
    is_too_low = limit is not None and limit < MIN_OPEN_FILES
    if isinstance(error, ExhaustedError) or (is_curl and is_too_low):
        counts = "" if limit is None else f": {limit} are allowed, {MIN_OPEN_FILES} are needed"
        return ReachError(
            f"too few file handles{counts}", hint=f"Run `ulimit -n {MIN_OPEN_FILES}` first."
        )
    if isinstance(error, MemoryError):
        return ReachError(
            "not enough memory", hint="Use fewer --jobs or smaller shards, or allow more memory."
        )
    if isinstance(error, RecursionError):
        return FormatError("the data is nested too deeply")
    if isinstance(error, ModuleNotFoundError):
        name = error.name or "flarecli"
        if name in sys.stdlib_module_names:  # Windows lacks fcntl and resource
            return MissingLibraryError(
                f"the command requires {name}, which is not available on this system",
                hint="Run flare on Linux or macOS; on Windows, use WSL.",
            )
        if not name.startswith("flarecli"):
            return MissingLibraryError(
                f"the library {name} is not installed",
                hint=f"Run `pip install {name.partition('.')[0]}`.",
            )
    if isinstance(error, OSError) and error.strerror:
        return ReachError(error.strerror, where=error.filename or "")
    bug = FlareError(f"{type(error).__name__}: {error}".removesuffix(": "), hint=_BUG)
    bug.kind = "bug"
    return bug


def _open_files_limit() -> int | None:
    """Return the number of files that the process may open; None on Windows."""
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def hint_for(where: str, args: Sequence[str]) -> str:
    """Return a hint for an address that does not exist.

    The hint is empty if the address is not in the command line or if there is no suggestion.

    where  address in the error
    args   arguments of the command line
    """
    typed = next((arg for arg in args if _is_same(arg, where)), None)
    if typed is None or os.path.lexists(local_path(typed)):
        return ""
    if is_url(typed) and not typed.lower().startswith("file://"):
        return ""
    if match := _ONE_SLASH.match(typed):
        return f"Use two slashes: {shell_quoted(f'{match[1]}://{typed[match.end() :]}')}"
    if typed.startswith("file:") and not is_url(typed):
        url = f"file://{os.path.abspath(typed[5:])}"
        return f"Remove `file:`, or write {shell_quoted(url)}."
    if (
        args[0] in ("pack", "unpack")
        and len(args) > 2
        and typed == args[1]
        and os.path.isfile(args[-1])
    ):
        swapped = f"{shell_quoted(args[-1])} {shell_quoted(typed)}"
        return f"OUT is the last argument: `flare {args[0]} {swapped}`."
    if typed.isdecimal() and args[0] in ("cat", "inspect"):
        return f"Select rows with an option: `flare cat SOURCE -r {typed}`."
    return _path_hint(local_path(typed).rstrip("/"))


def _is_same(arg: str, where: str) -> bool:
    return bool(where) and bare(arg).rstrip("/") == bare(where).rstrip("/")


def _path_hint(path: str) -> str:
    """Return a hint for a missing path, from the names in the closest existing parent folder."""
    if os.path.isfile(path):
        return "Remove the slash at the end."
    folder, name = os.path.split(path)
    while folder and not os.path.isdir(folder) and not _GLOB_SIGNS.search(folder):
        if os.path.isfile(folder):
            return f"{shell_quoted(folder)} is a file, not a folder."
        folder, name = os.path.split(folder)
    names = _names(folder)
    if similar := nearest(name, names):
        rest = path[len(os.path.join(folder, name)) :]
        return f"Did you mean {shell_quoted(os.path.join(folder, similar) + rest)}?"
    quoted = shell_quoted(folder) if folder else "The current folder"
    if _GLOB_SIGNS.search(path) and names:
        shown = ", ".join(map(shell_quoted, sorted(names)[:_MAX_SHOWN]))
        return f"{quoted} contains names such as {shown}."
    return f"{quoted} exists, but contains no {shell_quoted(name)}." if folder else ""


def _names(folder: str) -> list[str]:
    """Return the names of at most _MAX_NAMES files in a folder, except hidden files."""
    try:
        with os.scandir(folder or ".") as entries:
            return [
                entry.name
                for entry, _ in zip(entries, range(_MAX_NAMES), strict=False)
                if not entry.name.startswith(".")
            ]
    except OSError:
        return []
