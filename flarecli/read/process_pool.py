"""Work done in processes of its own, for what holds the interpreter's lock: a pipe to each, values pickled, arrays beside them.

No shared memory: what a killed process leaves there fills it for everyone.
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

from flarecli.encodings import OWN, Own
from flarecli.errors import FlareError, ReachError, TransformError, UsageError

__all__ = ["Process", "close_all"]

_LOOK_S = 1.0  # how often a process looks whether its parent is there
_END_S = 0.3


class Process:
    """A call made in another process; one thread at a time uses it.

    start   `fork`, `spawn` or `forkserver`; None is what Python does by default
    raises  UsageError if the call cannot be sent there; ReachError where no process can be started
    """

    def __init__(self, call: Callable[[Any], Any], start: str | None = None) -> None:
        try:
            context = multiprocessing.get_context(start)
        except ValueError:
            known = ", ".join(multiprocessing.get_all_start_methods())
            raise UsageError(
                f"processes cannot be started by {start!r:.60}", hint=f"Choose one of {known}."
            ) from None
        self._pipe, other = context.Pipe()
        self._process = context.Process(  # type: ignore[attr-defined]
            target=_serve, args=(other, call, dict(OWN)), name="flare-loader", daemon=True
        )
        try:
            self._process.start()
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            self._pipe.close()
            hint = "Define what it calls at the top of a module, or take threads."
            raise UsageError(f"cannot be sent to another process: {error}", hint=hint) from error
        except OSError as error:
            self._pipe.close()
            hint = "Give it fewer workers, or let the user or the container have more processes and memory (`ulimit -u`)."
            raise ReachError(
                f"the system lets no further process start: {(error.strerror or str(error)).lower()}",
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
                else "Read its traceback on stderr; modules that a transform needs must be importable there.",
            ) from None
        if kind == "value":
            return value
        value.add_note(told)
        raise value

    def close_pipe(self) -> None:
        """End the process when it is done with what it is at."""
        self._pipe.close()

    def end(
        self, force: Callable[[multiprocessing.process.BaseProcess], None], until: float
    ) -> bool:
        """End it; say whether it has."""
        force(self._process)
        self._process.join(max(0.0, until - time.monotonic()))
        return self._process.exitcode is not None


def close_all(processes: Sequence[Process]) -> None:
    """End processes within a second: by their pipes, then by force."""
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


def _serve(pipe: Connection, call: Callable[[Any], Any], own: dict[str, Own]) -> None:
    """Answer until the pipe ends, or the parent does: siblings that were forked hold the pipe open."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
    OWN.update(own)
    parent = os.getppid()
    try:
        while True:
            while not pipe.poll(_LOOK_S):
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
            except (
                pickle.PicklingError,
                AttributeError,
                TypeError,
                ValueError,
            ) as error:  # nothing is sent before all of it is pickled
                _send(
                    pipe,
                    (
                        "error",
                        TransformError(f"what was made cannot be sent to another process: {error}"),
                        "",
                    ),
                )
    except (EOFError, OSError):
        return
