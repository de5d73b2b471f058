"""Ports and waiting for servers that tests start as processes of their own."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

# Below the ports that Linux and macOS assign, so that no other socket takes a port before its
# server does.
PORTS = range(20_000, 32_000)


def free_port():
    """Return a port of 127.0.0.1 that nothing uses and that the system assigns to nobody."""
    choices = random.SystemRandom().sample(PORTS, 100)
    for port in choices:
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError(f"no free port among {len(choices)}")


def wait_until_it_answers(process, url, limit_s=60):
    """Wait until a server answers with any status; raise RuntimeError if it ends or takes too
    long.
    """
    stop = time.monotonic() + limit_s
    while process.poll() is None and time.monotonic() < stop:
        try:
            return urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError:
            return None
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer")


def stop_server(server):
    """End `serve_forever` of a server of this process at once, without waiting for its poll
    interval.
    """
    ending = threading.Thread(target=server.shutdown)
    ending.start()
    while ending.is_alive():
        with contextlib.suppress(OSError), socket.create_connection(server.server_address[:2]):
            # a connection ends the wait for connections, and the server sees that it should stop
            pass
        ending.join(0.001)


def end(process):
    """End a process, and wait for it."""
    process.terminate()
    process.wait(60)


def end_by_stdin(process, limit_s=20):
    """Close the standard input of a process, and wait for the process.

    A process that a test forked and left running keeps the pipe open. After the time limit, kill it
    and the process, and raise RuntimeError.
    """
    pipe = f"pipe:[{os.fstat(process.stdin.fileno()).st_ino}]"
    process.stdin.close()
    try:
        process.wait(limit_s)
    except subprocess.TimeoutExpired:
        left = [pid for pid in holders(pipe) if pid not in (os.getpid(), process.pid)]
        for pid in (*left, process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        raise RuntimeError(
            f"process {process.pid} did not end; killed processes that keep its standard input open: {left}"
        ) from None


def holders(pipe):
    """Return the ids of the processes that have a pipe open; none on systems without /proc."""
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):
            if any(os.readlink(file) == pipe for file in folder.iterdir()):
                found.append(int(folder.parent.name))
    return found
