"""The `flare` command as a process: signals, streams and the exit code.

SIGINT, SIGTERM and SIGHUP end a run with a one-line message and exit code 130, 143 or 129. The
handler raises KeyboardInterrupt once, so that `finally` and `with` blocks clean up. An exception
during an import could be swallowed or leave a partial module, so the handler raises
KeyboardInterrupt only after the import. A run that has not ended GRACE_S seconds after the signal
is killed. Before this module is imported, signals have Python's default actions.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from _thread import interrupt_main, start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing is slow to import
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NoReturn

GRACE_S = 4.0  # the documentation promises that a run ends within five seconds of a signal
_RETRY_S = 0.02
_NAMES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
if sys.platform != "win32":
    _NAMES[signal.SIGHUP] = "hung up"  # under `nohup`, SIGHUP remains ignored
    _RETRY_SIGNAL = signal.SIGALRM
else:
    _RETRY_SIGNAL = signal.SIGBREAK


class _Signals:
    """Handlers for SIGINT, SIGTERM and SIGHUP.

    number  number of the first signal received, or 0
    armed   True while a signal raises KeyboardInterrupt
    hint    how to resume the run, and how much work is then repeated; None if unknown, empty if the
            run cannot be resumed
    over    True after the run has ended
    """

    def __init__(self, args: Sequence[str]) -> None:
        self.number, self.armed, self.over, self._args = 0, True, False, args
        self.hint: str | None = None
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
        if _RETRY_SIGNAL in self._before and sys.platform != "win32":
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if number in _NAMES:
            if self.number:
                return  # the first signal already ends the run
            self.number = number
            start_new_thread(self._kill_after_grace, ())
        if self.armed:
            if _is_importing(frame):
                self._raise_later()
            else:
                raise KeyboardInterrupt

    def _raise_later(self) -> None:
        """Call the handler again after _RETRY_S seconds."""
        self._set_handler(_RETRY_SIGNAL, self._handle)
        if sys.platform == "win32":  # Windows has no timer signals
            start_new_thread(_interrupt_after, (_RETRY_S,))
        else:
            signal.setitimer(signal.ITIMER_REAL, _RETRY_S)

    def _handle_unraisable(self, unraisable: Any) -> None:
        """Handle an exception that a finalizer raised.

        KeyboardInterrupt is raised again later. Other exceptions are printed only with --debug.
        """
        if self.number and self.armed and issubclass(unraisable.exc_type, KeyboardInterrupt):
            self._raise_later()
        elif _is_set(self._args, "debug"):
            self._hook(unraisable)

    def _kill_after_grace(self) -> None:
        time.sleep(GRACE_S)
        if not self.over:  # the run is blocked, or a library has caught the exception
            if target := sys.modules.get("flarecli.write.folder_target"):
                target.remove_unfinished_files()
            try:
                os.write(2, self._line().encode())
            finally:  # also end the process if the write fails, as on a closed terminal
                os._exit(128 + self.number)

    def print_reason(self) -> None:
        """Print one line to stderr with the reason for the end of the run."""
        _write_stderr(self._line())

    def _line(self) -> str:
        reason, code = _NAMES[self.number], 128 + self.number
        hint = self.hint
        if hint is None:  # no command has set a hint
            hint = "use --resume to continue" if self._args[:1] in (["pack"], ["unpack"]) else ""
        if _is_set(self._args, "json"):
            hint = f"{hint[0].upper()}{hint[1:]}." if hint else ""
            return f'{{"error": {{"kind": "interrupted", "message": "{reason}", "where": "", "row": null, "column": null, "hint": "{hint}", "exit_code": {code}}}}}\n'
        return f"error: {reason}" + (f"; {hint}\n" if hint else "\n")


def _interrupt_after(seconds: float) -> None:
    time.sleep(seconds)
    interrupt_main(_RETRY_SIGNAL)


def _write_stderr(text: str) -> None:
    """Write text to stderr; ignore errors."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return


def _is_set(args: Sequence[str], name: str) -> bool:
    """Return whether `--NAME` or `FLARE_NAME` sets a switch. The option parser is not needed."""
    return f"--{name}" in args or os.environ.get(f"FLARE_{name.upper()}", "").lower() in (
        "1",
        "true",
        "t",
        "yes",
        "y",
        "on",
    )


def _is_importing(frame: FrameType | None) -> bool:
    """Return whether `frame` belongs to an import that started after `_run` was called."""
    while frame is not None and frame.f_code is not _run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _run(args: Sequence[str], signals: _Signals) -> int:
    """Run one command line and return its exit code. If a signal ends the run, print one line."""
    code = 128 + signal.SIGINT
    try:
        try:
            signals.install()
            code = _execute(args, signals)
        finally:
            signals.armed = False  # from here on, a signal changes only the exit code
    except KeyboardInterrupt as caught:
        signals.number = signals.number or signal.SIGINT
        signals.hint = str(caught) if caught.args else None
    except Exception as error:  # a broken installation; flarecli.cli reports all other errors
        code = 6 if isinstance(error, ImportError) else 1
        _write_stderr(f"error: {type(error).__name__}: {error}\nhint: Reinstall flare.\n")
    if signals.number:
        signals.print_reason()
        return 128 + signals.number
    return code


def _execute(args: Sequence[str], signals: _Signals) -> int:
    if list(args) == ["--version"]:
        from flarecli import __version__

        try:
            sys.stdout.write(f"flare {__version__}\n")
            sys.stdout.flush()
            return 0
        except (AttributeError, OSError, ValueError):
            pass  # `cli.run` prints the version too, and reports the error
    from flarecli.cli import run

    return run(
        list(args),
        as_json=_is_set(args, "json"),
        debug=_is_set(args, "debug"),
        stopped=lambda: bool(signals.number),
    )


def _set_streams(settings: Sequence[tuple[Any, str, str]]) -> list[tuple[Any, str, str]]:
    """Set the encoding and error handler of each stream and return the previous settings.

    settings  (stream, encoding, error handler) for each stream
    """
    before = []
    for stream, encoding, errors in settings:
        if hasattr(stream, "reconfigure"):
            before.append((stream, stream.encoding, stream.errors))
            try:
                stream.reconfigure(encoding=encoding, errors=errors)
            except (OSError, ValueError):  # ignore broken and closed streams
                continue
    return before


def _use_utf8() -> list[tuple[Any, str, str]]:
    return _set_streams(
        [(stream, "utf-8", "backslashreplace") for stream in (sys.stdout, sys.stderr)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    Signal handlers and streams are restored afterwards.

    argv  arguments without the program name (default: `sys.argv[1:]`)
    """
    args = sys.argv[1:] if argv is None else list(argv)
    signals, before = _Signals(args), _use_utf8()
    try:
        return _run(args, signals)
    finally:
        signals.restore()
        _set_streams(before)


class _NoPandas:
    """Import finder that hides pandas, which no command uses.

    Without this finder, Arrow would import pandas when it first converts a list. This import is
    slow.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("commands do not use pandas", name=name)


def entry() -> NoReturn:
    """Run the command line in `sys.argv`, and exit.

    Finalizers are not run, because they could block or print.
    """
    # numpy would start one thread per core for linear algebra, which no command uses
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.set_threshold(20_000, 10, 10)  # collect less often, because imported objects are never freed
    signals = _Signals(sys.argv[1:])
    code = 128 + signal.SIGINT
    try:
        signals.install()
        sys.meta_path.insert(0, _NoPandas)
        # open the null device for a closed standard stream, so that no file receives its descriptor
        for fd in range(3):
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
