"""The `flare` command as a process: signals, streams and the exit code. `--version` is answered before anything heavy loads.

SIGINT, SIGTERM and SIGHUP end a run with one line and the exit code 130, 143 or 129, wherever they land. They arrive as one
KeyboardInterrupt, so that `finally` and `with` put things right. Inside an import it would be lost or leave half a
module, so there it waits until the import is done; what takes longer than GRACE_S is ended without asking. Only what comes while
Python itself starts, or while the installed script imports this file (a millisecond, and what the script imports before it),
ends as Python ends it: no code of ours runs yet.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import time
from _thread import start_new_thread

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes as long to load as all the rest here
    from collections.abc import Sequence
    from types import FrameType
    from typing import Any, NoReturn

GRACE_S = 4.0  # five seconds are promised
_RETRY_S = 0.02
_NAMES: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
if sys.platform != "win32":
    _NAMES[signal.SIGHUP] = "hung up"  # `nohup` has it ignored, and so it stays


class _Signals:
    """What to do on SIGINT, SIGTERM and SIGHUP. `number` is the first one that came, 0 as long as none did."""

    def __init__(self, args: Sequence[str]) -> None:
        self.number, self.armed, self.over, self._args = 0, True, False, args
        self._before: dict[int, Any] = {}
        self._hook = sys.unraisablehook

    def install(self) -> None:
        """Install the handlers, except for ignored signals; do nothing outside the main thread."""
        for number in _NAMES:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._take(number, self._caught)
        sys.unraisablehook = self._lost

    def _take(self, number: int, handler: Any) -> None:
        try:
            self._before.setdefault(number, signal.signal(number, handler))
        except ValueError:  # not the main thread: signals are somebody else's business
            return

    def restore(self) -> None:
        """Put everything back as it was before."""
        self.armed, self.over = False, True
        if signal.SIGALRM in self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
        sys.unraisablehook = self._hook
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _caught(self, number: int, frame: FrameType | None) -> None:
        if number in _NAMES:
            if self.number:
                return  # the first one is being obeyed
            self.number = number
            start_new_thread(self._watch, ())
        if self.armed:
            if _importing(frame):
                self._again()
            else:
                raise KeyboardInterrupt

    def _again(self) -> None:
        """Have the interrupt raised once more, in a moment."""
        self._take(signal.SIGALRM, self._caught)
        signal.setitimer(signal.ITIMER_REAL, _RETRY_S)

    def _lost(self, what: Any) -> None:
        """An exception in a finalizer goes nowhere: an interrupt is raised again, anything else is for --debug."""
        if self.number and self.armed and issubclass(what.exc_type, KeyboardInterrupt):
            self._again()
        elif _flag(self._args, "debug"):
            self._hook(what)

    def _watch(self) -> None:
        time.sleep(GRACE_S)
        if not self.over:  # stuck, or the interrupt was swallowed
            if target := sys.modules.get("flarecli.write.folder_target"):
                target.remove_unfinished_files()
            try:
                os.write(2, self._line().encode())
            finally:  # the terminal may be gone
                os._exit(128 + self.number)

    def say(self) -> None:
        """Say in one line why it stopped."""
        _tell(self._line())

    def _line(self) -> str:
        what, code = _NAMES[self.number], 128 + self.number
        resumable = self._args[:1] in (["pack"], ["unpack"])
        if _flag(self._args, "json"):
            hint = "Give --resume to go on from here." if resumable else ""
            return f'{{"error": {{"kind": "interrupted", "message": "{what}", "where": "", "row": null, "column": null, "hint": "{hint}", "exit_code": {code}}}}}\n'
        return f"error: {what}" + ("; give --resume to go on from here\n" if resumable else "\n")


def _tell(text: str) -> None:
    """Write to stderr; nobody listening is no error."""
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except (AttributeError, OSError, ValueError):
        return


def _flag(args: Sequence[str], name: str) -> bool:
    """Say whether a switch is given, before or without the command line being understood."""
    return f"--{name}" in args or os.environ.get(f"FLARE_{name.upper()}", "").lower() in (
        "1",
        "true",
        "t",
        "yes",
        "y",
        "on",
    )


def _importing(frame: FrameType | None) -> bool:
    """Say whether an import is under way below `_run`."""
    while frame is not None and frame.f_code is not _run.__code__:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


def _run(args: Sequence[str], signals: _Signals) -> int:
    """Answer one command line, and turn an interrupt into its line and exit code."""
    code = 128 + signal.SIGINT
    try:
        try:
            signals.install()
            code = _answer(args, signals)
        finally:
            signals.armed = False  # from here on a signal only changes the exit code
    except KeyboardInterrupt:
        signals.number = signals.number or signal.SIGINT
    except Exception as error:  # a broken installation; the command line reports all other errors
        code = 6 if isinstance(error, ImportError) else 1
        _tell(f"error: {type(error).__name__}: {error}\nhint: Install flare again.\n")
    if signals.number:
        signals.say()
        return 128 + signals.number
    return code


def _answer(args: Sequence[str], signals: _Signals) -> int:
    if list(args) == ["--version"]:
        return _version()
    from flarecli.cli import run

    return run(
        list(args),
        as_json=_flag(args, "json"),
        debug=_flag(args, "debug"),
        stopped=lambda: bool(signals.number),
    )


def _version() -> int:
    from flarecli import __version__

    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        print(f"flare {__version__}", flush=True)
    except BrokenPipeError:
        return 0
    except OSError as error:
        _tell(f"error: stdout: {error.strerror or error}\n")
        return 3
    return 0


def _set_streams(wanted: Sequence[tuple[Any, str, str]]) -> list[tuple[Any, str, str]]:
    """Give streams an encoding and a way with what it cannot hold; return what they had before."""
    before = []
    for stream, encoding, errors in wanted:
        if hasattr(stream, "reconfigure"):
            before.append((stream, stream.encoding, stream.errors))
            try:
                stream.reconfigure(encoding=encoding, errors=errors)
            except (OSError, ValueError):  # a broken or closed stream stays as it is
                continue
    return before


def _utf8() -> list[tuple[Any, str, str]]:
    return _set_streams(
        [(stream, "utf-8", "backslashreplace") for stream in (sys.stdout, sys.stderr)]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and give its exit code; signal handlers and streams are put back afterwards.

    argv  the arguments without the program's name; None: those of the process
    """
    args = sys.argv[1:] if argv is None else list(argv)
    signals, before = _Signals(args), _utf8()
    try:
        return _run(args, signals)
    finally:
        signals.restore()
        _set_streams(before)


class _NoPandas:
    """A finder that hides pandas: where it is installed, Arrow loads it for the first list it is given, which takes a quarter of a second.

    No value of a command is one of pandas', and a process of our own has no other user.
    """

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: Any = None) -> None:
        if name == "pandas":
            raise ModuleNotFoundError("a command does without pandas", name=name)


def entry() -> NoReturn:
    """Run the process's own command line and end the process: no finalizer may block, print or change the exit code."""
    os.environ.setdefault(
        "OPENBLAS_NUM_THREADS", "1"
    )  # numpy's algebra, which no command does, would start a thread for each core
    gc.set_threshold(
        20_000, 10, 10
    )  # what is imported stays: to look through it every 700 objects takes a tenth of the start
    signals = _Signals(sys.argv[1:])
    code = 128 + signal.SIGINT
    try:
        signals.install()
        sys.meta_path.insert(0, _NoPandas)
        for fd in range(3):  # a file that happened to be opened as 1 or 2 would get what is printed
            try:
                os.fstat(fd)
            except OSError:
                os.open(os.devnull, os.O_RDWR)
        _utf8()
        code = _run(sys.argv[1:], signals)
    finally:
        os._exit(128 + signals.number if signals.number else code)


if __name__ == "__main__":
    entry()
