"""Ports and waiting for servers that tests start as processes of their own."""

import contextlib
import random
import socket
import threading
import time
import urllib.error
import urllib.request

# Below the ports that Linux and macOS assign, so that no other socket takes a port before its server does.
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
    """Wait until a server answers with any status; raise RuntimeError if it ends or takes too long."""
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
    """End `serve_forever` of a server of this process at once, without waiting for its poll interval."""
    ending = threading.Thread(target=server.shutdown)
    ending.start()
    while ending.is_alive():
        with contextlib.suppress(OSError), socket.create_connection(server.server_address[:2]):
            pass  # a connection ends the wait for connections, and the server sees that it should stop
        ending.join(0.001)


def end(process):
    """End a process, and wait for it."""
    process.terminate()
    process.wait(60)
