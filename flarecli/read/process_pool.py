"""Worker processes for transforms that hold the interpreter lock (GIL).

Values are pickled and sent through one pipe per process; arrays are sent out of band (pickle
protocol 5). Shared memory is not used, because it would remain allocated after a process is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from flarecli.encodings import CUSTOM, CustomEncoding
from flarecli.errors import FlareError, ReachError, TransformError, UsageError

if TYPE_CHECKING:
    if sys.platform == "win32":
        from multiprocessing.connection import PipeConnection as Connection
    else:
        from multiprocessing.connection import Connection

__all__ = ["Process", "WorkerEndedError", "close_all"]

_PARENT_CHECK_S = 1.0  # interval at which a worker checks that its parent is alive
_END_S = 0.3  # wait before terminating a process, and again before killing the process


class WorkerEndedError(TransformError):
    """The error for a worker process that ended during a call."""


class Process:
    """A worker process that runs one function. One thread at a time may call it.

    start   `fork`, `spawn` or `forkserver`; None means Python's default
    raises  UsageError if the function cannot be pickled; ReachError if no process can be started
    """

    def __init__(self, call: Callable[[Any], Any], start: str | None = None) -> None:
        try:
            context = multiprocessing.get_context(start)
        except ValueError:
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise UsageError(
                f"unknown start method {start!r:.60}", hint=f"Choose one of {known}."
            ) from None
        self._pipe, other = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(other, call, dict(CUSTOM)), name="flare-loader", daemon=True
        )
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._pipe.close()
            hint = "Define the function at the top level of a module, or use threads."
            raise UsageError(
                f"cannot send the function to another process: {error}", hint=hint
            ) from error
        except OSError as error:
            self._pipe.close()
            hint = (
                "Use fewer workers, or raise the limits on processes (`ulimit -u`) and memory "
                "of the user or the container."
            )
            raise ReachError(
                f"cannot start another process: {(error.strerror or str(error)).lower()}",
                hint=hint,
            ) from error
        finally:
            other.close()

    def __call__(self, item: Any) -> Any:
        try:
            _send(self._pipe, item)
            kind, value, traceback_text = _receive(self._pipe)
        except (EOFError, OSError):
            self._process.join(_END_S)
            code = self._process.exitcode
            is_killed = code is None or code < 0
            raise WorkerEndedError(
                f"a worker process ended (exit code {code})",
                hint="The process may have run out of memory."
                if is_killed
                else "See the traceback on stderr; a worker must be able to import the modules "
                "of the transforms.",
            ) from None
        if kind == "value":
            return value
        value.add_note(traceback_text)
        raise value


def close_all(processes: Sequence[Process]) -> None:
    """End processes within a second: close their pipes, then terminate and finally kill them."""
    for one in processes:
        one._pipe.close()  # the process ends after its current call
    running = [one._process for one in processes]
    for end in (None, BaseProcess.terminate, BaseProcess.kill):
        until = time.monotonic() + _END_S
        for process in running:
            if end is not None:
                end(process)
            process.join(max(0.0, until - time.monotonic()))
        running = [process for process in running if process.exitcode is None]


def _send(pipe: Connection, value: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    views = [buffer.raw() for buffer in buffers]
    pipe.send_bytes(pickle.dumps([len(view) for view in views]))
    pipe.send_bytes(body)
    for view in views:
        if len(view):
            pipe.send_bytes(view)


def _receive(pipe: Connection) -> Any:
    sizes, body = pickle.loads(pipe.recv_bytes()), pipe.recv_bytes()
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            pipe.recv_bytes_into(buffer)
    return pickle.loads(body, buffers=buffers)


def _serve(pipe: Connection, call: Callable[[Any], Any], custom: dict[str, CustomEncoding]) -> None:
    """Run calls until the pipe is closed or the parent has ended.

    Forked siblings keep the pipe open after the parent has ended, so the parent is also checked.

    custom  custom encodings that the parent process registered
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # after Ctrl-C, the parent ends this process
    CUSTOM.update(custom)
    parent = os.getppid()
    try:
        while True:
            while not pipe.poll(_PARENT_CHECK_S):
                if os.getppid() != parent:
                    return
            item = _receive(pipe)
            response: tuple[str, Any, str]
            try:
                response = "value", call(item), ""
            except BaseException as error:
                if isinstance(error, FlareError):
                    reported: FlareError = error
                else:
                    reported = TransformError(f"{type(error).__name__}: {error}")
                response = "error", reported, "".join(traceback.format_exception(error))
            try:
                _send(pipe, response)
            except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
                # Pickling failed before `_send` wrote to the pipe, so the pipe is still usable.
                failure = TransformError(f"cannot send the batch to another process: {error}")
                _send(pipe, ("error", failure, ""))
    except (EOFError, OSError):
        return
