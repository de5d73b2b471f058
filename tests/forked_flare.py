"""Run `flare` commands as forks of one process that has imported flarecli: each starts in 30 ms,
not in 350 ms.

    python forked_flare.py --serve SOCKET    # listen on a new Unix socket until standard input ends
    python forked_flare.py SOCKET ARGS…      # as `flare ARGS…`: its streams, folder, environment,
                                             exit code

Each command has a process of its own, so nothing that an earlier command left in memory can help
it. Tests of start-up, signals, limits and locales start an interpreter instead.
"""

import json
import os
import signal
import socket
import sys

LENGTH_BYTES = 4
LIBRARIES = ("duckdb", "pandas", "yaml")
PACKAGES = ("cli", "commands", "encodings", "formats", "ingest", "playlists", "read", "write")


def request(path: str, args: list[str]) -> int:
    """Run a command on the server, and return its exit code, or the negative number of a signal."""
    body = json.dumps({"args": args, "folder": os.getcwd(), "environment": dict(os.environ)})
    data = body.encode()
    with socket.socket(socket.AF_UNIX) as server:
        server.connect(path)
        socket.send_fds(server, [len(data).to_bytes(LENGTH_BYTES, "big")], [0, 1, 2])
        server.sendall(data)
        return int(server.recv(16))


def serve(path: str) -> None:
    """Import the modules that commands import, then fork for each request."""
    import importlib
    import pkgutil
    import selectors

    for name in LIBRARIES:
        importlib.import_module(name)
    for name in PACKAGES:
        package = importlib.import_module(f"flarecli.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel removes ended forks
    with socket.socket(socket.AF_UNIX) as listener, selectors.DefaultSelector() as ready:
        listener.bind(path)
        listener.listen(64)
        print("listening", flush=True)
        ready.register(listener, selectors.EVENT_READ)
        ready.register(0, selectors.EVENT_READ)
        while all(key.fd != 0 for key, _ in ready.select()):
            connection, _ = listener.accept()
            if not os.fork():
                ready.close()
                listener.close()
                run(connection)
            connection.close()


def run(connection: socket.socket) -> None:
    """Run the command of one request in another fork, and answer with its exit code."""
    from flarecli.__main__ import entry

    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    head, fds, _, _ = socket.recv_fds(connection, LENGTH_BYTES, 3)
    with connection.makefile("rb") as stream:
        asked = json.loads(stream.read(int.from_bytes(head, "big")))
    worker = os.fork()
    if worker:
        _, status = os.waitpid(worker, 0)
        connection.sendall(str(os.waitstatus_to_exitcode(status)).encode())
        os._exit(0)
    connection.close()
    for number, fd in enumerate(fds):
        os.dup2(fd, number)
        os.close(fd)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    sys.argv = ["flare", *asked["args"]]
    entry()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        serve(sys.argv[2])
    else:
        code = request(sys.argv[1], sys.argv[2:])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
