"""Decode images in child processes with limited memory, CPU and time.

Each child process runs `sandbox_worker`, and decodes one image after another. If a child process
crashes or is too slow, it is ended, and its image is reported as damaged.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import signal
import subprocess
import sys
import threading
import time

from flarecli.errors import ReachError, check_exhausted
from flarecli.media import sandbox_worker
from flarecli.media.sandbox_worker import OUT_OF_MEMORY, REQUEST, RESPONSE

__all__ = ["Sandbox"]

MEMORY_BYTES = 1 << 30  # address space of a child, including Python and Pillow
MAX_PIXELS = 1 << 27  # limit per frame, because a file of 17 kB can decode to 400 MB
TIMEOUT_S = 30.0  # per image
# CPU limit for all images of a pool: CPU_S plus CPU_S_PER_BYTE for each byte of the image files.
CPU_S, CPU_S_PER_BYTE = 8, 8e-6
MAX_MESSAGE_BYTES = 1 << 12
END_S = 0.2  # time for a child to end by itself after its pipes were closed; then it is killed


class _Timeout(Exception):
    """The child did not respond within its time limit."""


class _Child:
    """A child process. Its pipes are non-blocking, so a child that stops reading is detected.

    On Windows, pipes block, and a timer ends the child.
    """

    def __init__(self, memory: int) -> None:
        argv = [sys.executable, "-P", sandbox_worker.__file__, str(memory), str(MAX_PIXELS)]
        pipe = subprocess.PIPE
        try:
            self._process = subprocess.Popen(
                argv, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0
            )
        except OSError as error:
            check_exhausted(error)
            raise ReachError(
                f"cannot start a process to decode images: {error.strerror or error}"
            ) from error
        self._pipes = [one for one in (self._process.stdin, self._process.stdout) if one]
        self._stdin, self._stdout = (one.fileno() for one in self._pipes)
        for fd in (self._stdin, self._stdout):
            if sys.platform != "win32":  # Windows has no non-blocking pipes
                os.set_blocking(fd, False)

    def decode(self, data: bytes, timeout_s: float, cpu_s: int) -> tuple[int, str, float]:
        """Decode an image; return the status, the message and the CPU seconds used.

        raises  _Timeout after `timeout_s`; EOFError if the child has ended
        """
        if sys.platform != "win32":
            return self._decode(data, timeout_s, cpu_s)
        timer = threading.Timer(timeout_s, self._process.kill)  # ends a blocked read or write
        timer.start()
        try:
            return self._decode(data, timeout_s, cpu_s)
        except EOFError:
            if timer.is_alive():
                raise
            raise _Timeout from None
        finally:
            timer.cancel()

    def _decode(self, data: bytes, timeout_s: float, cpu_s: int) -> tuple[int, str, float]:
        deadline = time.monotonic() + timeout_s
        self._send(REQUEST.pack(len(data), cpu_s), deadline)
        self._send(data, deadline)
        cpu_us, size, status = RESPONSE.unpack(self._receive(RESPONSE.size, deadline))
        if size > MAX_MESSAGE_BYTES:
            raise EOFError
        return status, self._receive(size, deadline).decode("utf-8", "replace"), cpu_us / 1e6

    def _send(self, data: bytes, deadline: float) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._stdin, view) :]
            except BlockingIOError:
                _wait(self._stdin, selectors.EVENT_WRITE, deadline)
            except OSError as error:
                if error.errno not in (errno.EPIPE, errno.EINVAL):  # EINVAL: Windows
                    raise
                raise EOFError from None

    def _receive(self, size: int, deadline: float) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            try:
                part = os.read(self._stdout, size - len(parts))
            except BlockingIOError:
                _wait(self._stdout, selectors.EVENT_READ, deadline)
                continue
            if not part:
                raise EOFError
            parts += part
        return bytes(parts)

    def end(self) -> str:
        """End the process; return a reason such as `SIGSEGV` if the process had already failed."""
        for pipe in self._pipes:
            pipe.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            return _exit_reason(self._process.wait(END_S))
        self._process.kill()
        self._process.wait()
        return ""


def _wait(fd: int, event: int, deadline: float) -> None:
    """Wait until a pipe is ready; raise _Timeout at the deadline."""
    with selectors.DefaultSelector() as selector:
        selector.register(fd, event)
        if not selector.select(max(0.0, deadline - time.monotonic())):
            raise _Timeout


def _exit_reason(code: int) -> str:
    if code >= 0:
        return f"exit {code}" if code else ""
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _is_confined(memory: int) -> bool:
    """Return whether the memory limit of this process is lower than the limit of a child.

    With a lower limit, an image that exhausts the memory is not necessarily damaged.
    """
    if sys.platform == "win32":
        return False
    import resource

    limits = (resource.getrlimit(one)[0] for one in (resource.RLIMIT_AS, resource.RLIMIT_DATA))
    return any(one != resource.RLIM_INFINITY and one < memory for one in limits)


class Sandbox:
    """A pool of child processes that decode images, with one child per concurrent caller.

    memory     address space of a child in bytes
    timeout_s  time limit per image in seconds
    """

    def __init__(self, memory: int = MEMORY_BYTES, timeout_s: float = TIMEOUT_S) -> None:
        self.memory, self.timeout_s = memory, timeout_s
        self.started = 0
        self._cpu_s, self._bytes = 0.0, 0  # totals for all images so far
        self._idle: list[_Child] = []
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[object, ...]:
        return Sandbox, (self.memory, self.timeout_s)

    def check(self, data: bytes) -> str:
        """Decode an image completely; return an error message, which is empty after success.

        raises  ReachError if no process can be started; MemoryError if this process has too
                little memory to decode images
        """
        if len(data) > self.memory:
            return f"{len(data)} bytes; the maximum is {self.memory}"
        with self._lock:
            self._bytes += len(data)
            cpu_s = CPU_S + CPU_S_PER_BYTE * self._bytes - self._cpu_s
            if cpu_s < 1:
                return f"not decoded: {self._bytes} bytes of images used {self._cpu_s:.0f} s of CPU"
            child = self._idle.pop() if self._idle else None
        if child is None:
            child, self.started = _Child(self.memory), self.started + 1
        try:
            status, message, used_s = child.decode(data, self.timeout_s, int(cpu_s))
        except _Timeout:
            child.end()
            return f"decoding takes more than {self.timeout_s:g} s"
        except EOFError:
            reason = child.end()
            if reason == "SIGXCPU":
                with self._lock:
                    self._cpu_s += cpu_s
                return f"decoding takes more than {cpu_s:.0f} s of CPU"
            if _is_confined(self.memory):
                raise MemoryError("the image decoding process ended unexpectedly") from None
            return f"the decoder crashed ({reason})" if reason else "the decoder sent no response"
        except BaseException:
            child.end()
            raise
        with self._lock:
            self._cpu_s += used_s
            self._idle.append(child)
        if status == OUT_OF_MEMORY and _is_confined(self.memory):
            raise MemoryError(message)
        return message

    def close(self) -> None:
        """End the child processes."""
        with self._lock:
            children, self._idle = self._idle, []
        for child in children:
            child.end()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
