"""The `flare` command as a process: signals, streams and the exit code.

SIGINT, SIGTERM and SIGHUP end a run with one line and the exit code 130, 143 or 129. The handler
raises one KeyboardInterrupt, so `finally` and `with` clean up. An import could swallow the
interrupt or leave a partial module, so during an import it is raised after the import. A run that
takes longer than GRACE_S to end is killed. Before this module is imported, signals have the default
action of Python.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:  # loading typing takes as long as all other imports of this module
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NoReturn

GRACE_S = 4.0  # the documentation promises five seconds
_RETRY_S = 0.02
_NAMES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
if sys.platform != "win32":
    _NAMES[signal.SIGHUP] = "hung up"  # under `nohup`, it stays ignored


class _Signals:
    """Handlers of SIGINT, SIGTERM and SIGHUP.

    number  the first signal received, or 0
    armed   whether a signal raises KeyboardInterrupt
    over    whether the run has ended
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.number, self.armed, self.over, self._args = 0, True, False, args
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook

    def install(self) -> None:
        """Install the handlers, except for ignored signals; do nothing outside the main thread."""
        for number in _NAMES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._set_handler(number, self._handle)
        sys.unraisablehook = self._handle_unraisable

    def _set_handler(self, number: int, handler: Any) -> None:
        try:
            self._before.setdefault(number, signal.signal(number, handler))
        except ValueError:  # only the main thread can install handlers
            return

    def restore(self) -> None:
        """Restore the previous handlers."""
        self.armed, self.over = False, True
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in _NAMES:
            if self.number:
                return  # the first signal is being handled
            self.number = number
            start_new_thread(self._kill_after_grace, ())
        if self.armed:
            if _is_importing(frame):
                self._raise_later()
            else:
                raise KeyboardInterrupt

    def _raise_later(self) -> None:
        """Schedule another call of the handler."""
        self._set_handler(signal.SIGALRM, self._handle)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)

    def _handle_unraisable(self, unraisable: Any) -> None:
        """Handle an exception of a finalizer.

        An interrupt is raised again later. Other exceptions are printed only with --debug.
        """
        if self.number and self.armed and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._raise_later()
        elif _is_set(self._args, "debug"):
            self._hook(unraisable)

    def _kill_after_grace(self) -> None:
        time.sleep(GRACE_S)
        if not self.over:  # the run is blocked, or the interrupt was swallowed
            if target := sys.modules.get("flarecli.write.folder_target"):
                target.remove_unfinished_files()
            try:
                os.write(2, self._line().encode())
            finally:  # the write fails if the terminal is closed
                os._exit(128 + self.number)

    def print_reason(self) -> None:
        """Print one line with the reason why the run ended."""
        _write_stderr(self._line())

    def _line(self) -> str:
        reason, code = _NAMES[self.number], 128 + self.number
        resumable = self._args[:1] in (["pack"], ["unpack"])
        if _is_set(self._args, "json"):
            hint = "Use --resume to continue." if resumable else ""
            return f'{{"error": {{"kind": "interrupted", "message": "{reason}", "where": "", "row": null, "column": null, "hint": "{hint}", "exit_code": {code}}}}}\n'
        return f"error: {reason}" + ("; use --resume to continue\n" if resumable else "\n")


def _write_stderr(text: str) -> None:
    """Write to stderr; ignore failures."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return


def _is_set(args: Sequence[str], name: str) -> bool:
    """Return whether a switch is set by a flag or a variable. The arguments are not parsed."""
    return f"--{name}" in args or os.environ.get(f"FLARE_{name.upper()}", "").lower() in (
        "1",
        "true",
        "t",
        "yes",
        "y",
        "on",
    )


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether an import is in progress below `_run`."""
    while frame is not None and frame.f_code is not _run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _run(args: Sequence[str], signals: _Signals) -> int:
    """Run one command line. An interrupt is printed as one line and sets the exit code."""
    code = 128 + signal.SIGINT
    try:
        try:
            signals.install()
            code = _execute(args, signals)
        finally:
            signals.armed = False  # from now on, a signal only changes the exit code
    except KeyboardInterrupt:
        signals.number = signals.number or signal.SIGINT
    except Exception as error:  # a broken installation; flarecli.cli prints all other errors
        code = 6 if isinstance(error, ImportError) else 1
        _write_stderr(f"error: {type(error).__name__}: {error}\nhint: Reinstall flare.\n")
    if signals.number:
        signals.print_reason()
        return 128 + signals.number
    return code


def _execute(args: Sequence[str], signals: _Signals) -> int:
    if list(args) == ["--version"]:
        return _print_version()
    from flarecli.cli import run

    return run(
        list(args),
        as_json=_is_set(args, "json"),
        debug=_is_set(args, "debug"),
        stopped=lambda: bool(signals.number),
    )


def _print_version() -> int:
    from flarecli import __version__

    try:
        if sys.stdout is None:
            raise OSError("the stream is closed")
        print(f"flare {__version__}", flush=True)
    except BrokenPipeError:
        return 0
    except OSError as error:
        _write_stderr(f"error: stdout: {error.strerror or error}\n")
        return 3
    return 0


def _set_streams(settings: Sequence[tuple[Any, str, str]]) -> list[tuple[Any, str, str]]:
    """Set encoding and error handler of streams; return the previous ones."""
    before = []
    for stream, encoding, errors in settings:
        if hasattr(stream, "reconfigure"):
            before.append((stream, stream.encoding, stream.errors))
            try:
                stream.reconfigure(encoding=encoding, errors=errors)
            except (OSError, ValueError):  # a broken or closed stream stays unchanged
                continue
    return before


def _use_utf8() -> list[tuple[Any, str, str]]:
    return _set_streams(
        [(stream, "utf-8", "backslashreplace") for stream in (sys.stdout, sys.stderr)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Signal handlers and streams are restored afterwards.

    argv  the arguments without the name of the program; None: the arguments of the process
    """
    args = sys.argv[1:] if argv is None else list(argv)
    signals, before = _Signals(args), _use_utf8()
    try:
        return _run(args, signals)
    finally:
        signals.restore()
        _set_streams(before)


class _NoPandas:
    """Import finder that hides pandas, which Arrow would load at the first list it converts.

    pandas is slow to load, and no command has pandas values.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("commands do not use pandas", name=name)


def entry() -> NoReturn:
    """Run the command line of the process and exit without finalizers, which could block or print."""
    # numpy would start a thread per core for linear algebra, which no command uses
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(20_000, 10, 10)  # fewer collections: imported objects stay alive anyway
    signals = _Signals(sys.argv[1:])
    code = 128 + signal.SIGINT
    try:
        signals.install()
        sys.meta_path.insert(0, _NoPandas)
        for fd in range(3):  # a file opened as descriptor 1 or 2 would receive the output
            try:
                os.fstat(fd)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        _use_utf8()
        code = _run(sys.argv[1:], signals)
    finally:
        os._exit(128 + signals.number if signals.number else code)


if __name__ == "__main__":
    entry()
