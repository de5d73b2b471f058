"""One command line answered, and the one place where an error becomes a line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import flarecli.cli.show as show
from flarecli.errors import (
    ExhaustedError,
    FlareError,
    FormatError,
    MissingError,
    MissingLibraryError,
    ReachError,
    check_exhausted,
)

__all__ = ["run"]

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
            show.finish()
        return code if isinstance(code, int) else 0
    except SystemExit as end:  # completion
        return end.code if isinstance(end.code, int) else 0
    except BaseException as caught:
        error = caught
    if isinstance(error, KeyboardInterrupt):
        raise error
    if stopped() or (isinstance(error, BrokenPipeError) and show.reader_left()):
        return 0
    told = _told(error, args)
    show.error(told, as_json, error if debug else None)
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
        from flarecli.cli.mistakes import hint_for

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
    if isinstance(error, RuntimeError):
        from flarecli.storage.threads import none_left

        if no_thread := none_left(error):
            return no_thread
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
