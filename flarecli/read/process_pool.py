"""Worker processes for transforms that hold the interpreter lock.

Each process has a pipe; values are pickled, with arrays out of band (pickle protocol 5). No shared
memory is used, because a killed process would leave it allocated.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

from flarecli.encodings import CUSTOM, CustomEncoding
from flarecli.errors import FlareError, ReachError, TransformError, UsageError

__all__ = ["Process", "close_all"]

_PARENT_CHECK_S = 1.0  # how often a worker checks that its parent is alive
_END_S = 0.3


class Process:
    """A worker process that runs one function. One thread at a time may call it.

    start   `fork`, `spawn` or `forkserver`; None: Python's default
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
            raise UsageError(f"cannot be sent to another process: {error}", hint=hint) from error
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
            kind, value, told = _received(self._pipe)
        except (EOFError, OSError):
            self._process.join(_END_S)
            code = self._process.exitcode
            is_killed = code is None or code < 0
            raise TransformError(
                f"a worker process ended (exit code {code})",
                hint="It may have run out of memory."
                if is_killed
                else "See its traceback on stderr; the worker must be able to import the modules "
                "of the transforms.",
            ) from None
        if kind == "value":
            return value
        value.add_note(told)
        raise value

    def close_pipe(self) -> None:
        """Close the pipe: the process ends after its current call."""
        self._pipe.close()

    def end(
        self, force: Callable[[multiprocessing.process.BaseProcess], None], until: float
    ) -> bool:
        """Apply `force`, wait until the deadline, and return whether the process has ended."""
        force(self._process)
        self._process.join(max(0.0, until - time.monotonic()))
        return self._process.exitcode is not None


def close_all(processes: Sequence[Process]) -> None:
    """End processes within a second: close their pipes, then terminate, then kill."""
    for one in processes:
        one.close_pipe()
    left = list(processes)
    for force in (
        lambda process: None,
        lambda process: process.terminate(),
        lambda process: process.kill(),
    ):
        until = time.monotonic() + _END_S
        left = [one for one in left if not one.end(force, until)]


def _send(pipe: Connection, value: Any) -> None:
    buffers: list[pickle.PickleBuffer] = []
    body = pickle.dumps(value, 5, buffer_callback=buffers.append)
    raw = [buffer.raw() for buffer in buffers]
    pipe.send_bytes(pickle.dumps([len(one) for one in raw]))
    pipe.send_bytes(body)
    for one in raw:
        if len(one):
            pipe.send_bytes(one)


def _received(pipe: Connection) -> Any:
    sizes, body = pickle.loads(pipe.recv_bytes()), pipe.recv_bytes()
    buffers = [bytearray(size) for size in sizes]
    for buffer in buffers:
        if buffer:
            pipe.recv_bytes_into(buffer)
    return pickle.loads(body, buffers=buffers)


def _serve(pipe: Connection, call: Callable[[Any], Any], own: dict[str, CustomEncoding]) -> None:
    """Run calls until the pipe or the parent ends.

    Forked siblings keep the pipe open, so the parent is checked too.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    CUSTOM.update(own)
    parent = os.getppid()
    try:
        while True:
            while not pipe.poll(_PARENT_CHECK_S):
                if os.getppid() != parent:
                    return
            item = _received(pipe)
            answer: tuple[str, Any, str]
            try:
                answer = "value", call(item), ""
            except BaseException as error:
                known = (
                    error
                    if isinstance(error, FlareError)
                    else TransformError(f"{type(error).__name__}: {error}")
                )
                answer = "error", known, "".join(traceback.format_exception(error))
            try:
                _send(pipe, answer)
            except (pickle.PicklingError, AttributeError, TypeError, ValueError) as error:
                # `_send` pickles everything first, so nothing was sent
                failed = TransformError(f"cannot send the batch to another process: {error}")
                _send(pipe, ("error", failed, ""))
    except (EOFError, OSError):
        return
