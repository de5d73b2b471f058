"""Pictures decoded in child processes of bounded memory and time, so that no file can end the run or fill the machine.

A child is asked for one picture after another and kept for the next; one that dies or is late is ended, and that is
the answer for the picture. The program of a child is `pixels`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import struct
import subprocess
import sys
import threading
import time

from flarecli.errors import ReachError, check_exhausted
from flarecli.media import pixels
from flarecli.media.pixels import NO_MEMORY

__all__ = ["Decoders"]

MEMORY = 1 << 30  # bytes of address space that a child may have, Python and Pillow included
PIXELS = 1 << 27  # of a frame that is decoded: 17 kB can hold 400 MB
SECONDS = 30.0  # for one picture
CPU_S, CPU_S_PER_BYTE = (
    8,
    8e-6,
)  # of all pictures together: so many seconds, and so many more for each byte of them
_ANSWER = 1 << 12  # bytes; a longer one is no answer
_HEAD = struct.Struct("<II")


class _Late(Exception):
    """Nothing came in time."""


class _Child:
    """One process; its pipes do not block, so that a child that neither reads nor writes is noticed too."""

    def __init__(self, memory: int, most: int) -> None:
        argv = [sys.executable, "-P", pixels.__file__, str(memory), str(most)]
        try:
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            check_exhausted(error)
            raise ReachError(f"no process to decode pictures: {error.strerror or error}") from error
        self._pipes = [
            pipe for pipe in (self._process.stdin, self._process.stdout) if pipe is not None
        ]
        self._stdin, self._stdout = (pipe.fileno() for pipe in self._pipes)
        for number in (self._stdin, self._stdout):
            os.set_blocking(number, False)

    def ask(self, data: bytes, seconds: float, cpu: int) -> tuple[str, float]:
        """Give the answer for a picture, and the seconds of CPU that it took. Raises _Late, EOFError when the child is gone."""
        end = time.monotonic() + seconds
        self._send(memoryview(_HEAD.pack(len(data), cpu)), end)
        self._send(memoryview(data), end)
        took, size = _HEAD.unpack(self._receive(_HEAD.size, end))
        if size > _ANSWER:
            raise EOFError
        return self._receive(size, end).decode("utf-8", "replace"), took / 1e6

    def _send(self, data: memoryview, end: float) -> None:
        while data:
            try:
                data = data[os.write(self._stdin, data) :]
            except BlockingIOError:
                _wait(self._stdin, selectors.EVENT_WRITE, end)
            except BrokenPipeError:
                raise EOFError from None

    def _receive(self, size: int, end: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = os.read(self._stdout, size - len(parts))
            except BlockingIOError:
                _wait(self._stdout, selectors.EVENT_READ, end)
                continue
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def end(self) -> str:
        """End the process; say how it failed, if it had ended by itself."""
        for pipe in self._pipes:
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _died(self._process.wait(0.2))
        self._process.kill()
        self._process.wait()
        return ""


def _wait(pipe: int, event: int, end: float) -> None:
    """Wait until a pipe takes or has something. Raises _Late behind `end`."""
    with selectors.DefaultSelector() as ready:
        ready.register(pipe, event)
        if not ready.select(max(0.0, end - time.monotonic())):
            raise _Late


def _died(code: int) -> str:
    if code >= 0:
        return f"exit {code}" if code else ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _is_confined(memory: int) -> bool:
    """Tell whether this process, and so its children, may have less memory than decoding may take: then a failure is not the picture's."""
    try:
        import resource
    except ImportError:
        return False
    limits = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(one != resource.RLIM_INFINITY and one < memory for one in limits)


class Decoders:
    """Children that decode pictures, as many as there are threads that ask at once; each is started when it is needed.

    memory   bytes that a child may have in all
    most     pixels of a frame that are decoded
    seconds  for one picture
    """

    def __init__(self, memory: int = MEMORY, most: int = PIXELS, seconds: float = SECONDS) -> None:
        self.memory, self.most, self.seconds = memory, most, seconds
        self.started = 0
        self._cpu, self._bytes = 0.0, 0  # that all pictures took so far
        self._free: list[_Child] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Decoders, (self.memory, self.most, self.seconds)

    def reason(self, data: bytes) -> str:
        """Say why a picture cannot be decoded whole; empty if it can.

        raises  ReachError if no process can be started
        """
        if len(data) > self.memory:
            return f"takes {len(data)} bytes, decoding may have {self.memory}"
        with self._lock:
            child = self._free.pop() if self._free else None
            self._bytes += len(data)
            left = CPU_S + CPU_S_PER_BYTE * self._bytes - self._cpu
        if left < 1:
            if child is not None:
                with self._lock:
                    self._free.append(child)
            return f"not decoded: the pictures before it took {self._cpu:.0f} s of CPU for {self._bytes} bytes"
        if child is None:
            child, self.started = _Child(self.memory, self.most), self.started + 1
        try:
            answer, took = child.ask(data, self.seconds, int(left))
            with self._lock:
                self._cpu += took
        except _Late:
            child.end()
            return f"takes more than {self.seconds:g} s to decode"
        except EOFError:
            how = child.end()
            if how == "SIGXCPU":
                with self._lock:
                    self._cpu += left
                return f"takes more than {left:.0f} s of CPU to decode"
            if _is_confined(self.memory):
                raise MemoryError("the process that decodes pictures ended") from None
            return f"its decoder died of it ({how})" if how else "its decoder gave no answer"
        except BaseException:
            child.end()
            raise
        with self._lock:
            self._free.append(child)
        if answer.endswith(NO_MEMORY) and _is_confined(self.memory):
            raise MemoryError(answer)
        return answer

    def close(self) -> None:
        """End the children."""
        with self._lock:
            children, self._free = self._free, []
        for child in children:
            child.end()
