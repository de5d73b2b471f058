"""A local web server for tests, with valid and with faulty responses."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import settings

from tests.properties import examples
from tests.servers import end, end_by_stdin, free_port, stop_server, wait_until_it_answers

# The time of a call depends on the machine.
settings.register_profile("clockless", deadline=None, max_examples=examples(100))
settings.load_profile("clockless")

# Tests start many processes that import the same modules, so write bytecode also where the
# environment disables it.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# In memory, because packs wait for fsync: on a disk the suite takes twice as long.
MEMORY, MIN_FREE_BYTES = "/dev/shm", 4 << 30
if (
    sys.platform != "win32"
    and os.access(MEMORY, os.W_OK)
    and shutil.disk_usage(MEMORY).free > MIN_FREE_BYTES
    and not os.statvfs(MEMORY).f_flag & os.ST_NOEXEC
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", MEMORY)

# Processes inherit ignored signals, and tests send them. A shell ignores SIGINT for background
# jobs, nohup ignores SIGHUP; a handler that does nothing is not inherited, and hangups still do not
# end the tests.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if sys.platform != "win32" and signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda number, frame: None)


@pytest.fixture(scope="module", autouse=True)
def same_signal_handlers():
    """Restore the handlers of signals: Ray's for SIGTERM keeps the forks of later tests from
    ending.
    """
    numbers = [signal.SIGINT, signal.SIGTERM]
    if sys.platform != "win32":
        numbers.append(signal.SIGHUP)
    handlers = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in handlers.items():
        if handler is not None:
            signal.signal(number, handler)


def pytest_ignore_collect(collection_path):
    """On Windows, collect only the files with tests for Windows: other files import modules that
    Windows lacks.
    """
    if sys.platform == "win32" and collection_path.name.startswith("test_"):
        return b"mark.windows" not in collection_path.read_bytes() or None
    return None


def pytest_collection_finish(session):
    """Exempt the modules and tests from garbage collection: each full collection would visit
    millions of objects.
    """
    gc.collect()
    gc.freeze()


def pytest_make_parametrize_id(val, argname):
    """Do not use bytes in test IDs: gzip data contains the time, but all processes of a test run
    need equal IDs.
    """
    return argname if isinstance(val, bytes) else None


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        web, path = self.server.web, self.path.partition("?")[0]
        with web.lock:
            web.asked[path] += 1
            web.requests.append(
                (self.path, {name.lower(): value for name, value in self.headers.items()})
            )
            times = web.asked[path]
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            web.pages.get(path, web.other_page)(self, times)

    do_HEAD = do_PUT = do_GET

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        given = {
            "Content-Length": len(body),
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }
        for name, value in given.items():
            if value is not None:
                self.send_header(name, str(value))
        if given["Content-Length"] is None and "Transfer-Encoding" not in given:
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def begin(self, length, **headers):
        """Send the status and the headers of a response with a body."""
        self.send_response(200)
        for name, value in {"Content-Length": length, **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        self.close_connection = True

    def reset(self):
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.connection.shutdown(socket.SHUT_RD)
        self.close_connection = True


class _Server(ThreadingHTTPServer):
    daemon_threads, block_on_close = True, False
    # with a short queue, the kernel drops simultaneous connections, which are repeated after a
    # second
    request_queue_size = 256

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # raised when a test kills a client
            super().handle_error(request, client_address)


class Web:
    """HTTP server. `pages` is path -> function(handler, number of the request); `asked` counts
    requests, `requests` has headers.
    """

    def __init__(self, port=0):
        self.pages, self.asked, self.requests, self.lock = {}, Counter(), [], threading.Lock()
        self.over = threading.Event()
        self.server = _Server(("127.0.0.1", port), _Handler)
        self.server.web = self
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def other_page(self, handler, times):
        """Answer a request for a path that is not in `pages`."""
        handler.answer(404, b"no")

    def url(self, path, user="", host="127.0.0.1"):
        return f"http://{user + '@' if user else ''}{host}:{self.port}{path}"

    def page(self, path, body, status=200, **headers):
        """Serve bytes without support for ranges."""
        self.pages[path] = lambda handler, times: handler.answer(status, body, **headers)
        return self.url(path)

    def file(self, path, body, etag=None):
        """Serve a file with ranges, ETag and If-Match. `body` may be a function of the number of
        the request.
        """

        def serve(handler, times):
            data = body(times) if callable(body) else body
            tag = etag(times) if callable(etag) else etag
            more = {"ETag": tag} if tag else {}
            if tag and handler.headers.get("If-Match", tag) != tag:
                return handler.answer(412, b"", **more)
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
            if not match:
                return handler.answer(200, data, **more)
            start, stop = int(match[1]), min(len(data), int(match[2] or len(data) - 1) + 1)
            if start >= len(data):
                return handler.answer(416, b"", Content_Range=f"bytes */{len(data)}", **more)
            return handler.answer(
                206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **more
            )

        self.pages[path] = serve
        return self.url(path)

    def close(self):
        self.over.set()
        stop_server(self.server)
        self.thread.join()
        self.server.server_close()


class NumberedImages(Web):
    """HTTP server of images: `/N` is a random image with seed N.

    answer     number -> status and content type
    stuck      number of an image whose response waits until `may_end` is set
    requested  numbers of requested images; `sent` has the numbers of sent images
    """

    def __init__(self, image_bytes, answer=lambda number: (200, "image/jpeg"), stuck=None):
        self.image_bytes, self.answer, self.stuck = image_bytes, answer, stuck
        self.may_end, self.requested, self.sent = threading.Event(), [], []
        super().__init__()

    def other_page(self, handler, times):
        number = int(handler.path[1:].partition("?")[0])
        self.requested.append(number)
        if number == self.stuck:
            self.may_end.wait(60)
        data = b"\xff\xd8\xff\xe0" + random.Random(number).randbytes(self.image_bytes)
        status, content_type = self.answer(number)
        handler.answer(status, data, Content_Type=content_type)
        self.sent.append(number)

    def close(self):
        self.may_end.set()
        super().close()


@pytest.fixture(scope="session")
def forked_flare():
    """Return the start of a command line that runs `flare` in a fork: see forked_flare.py."""
    program = str(Path(__file__).with_name("forked_flare.py"))
    with tempfile.TemporaryDirectory() as folder:  # a name of at most 104 bytes, unlike tmp_path
        path = f"{folder}/socket"
        server = subprocess.Popen(
            [sys.executable, program, "--serve", path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout.readline() == b"listening\n"
            # Without site and PYTHON* variables the client starts in 15 ms.
            yield [sys.executable, "-I", "-S", program, path]
        finally:
            server.stdout.close()
            end_by_stdin(server)


@pytest.fixture(scope="session")
def moto():
    """Return the address of an S3 server that does not check signatures."""
    pytest.importorskip("moto.server")
    port = free_port()
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}/moto-api/")
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


@pytest.fixture
def in_tmp_path(tmp_path):
    """Run a test in the folder `tmp_path`."""
    with contextlib.chdir(tmp_path):
        yield


@pytest.fixture
def web():
    server = Web()
    yield server
    server.close()


@pytest.fixture
def other_web():
    """A second server, as an example of another service on this machine."""
    server = Web()
    yield server
    server.close()
