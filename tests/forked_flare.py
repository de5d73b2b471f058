"""Run `flare` commands as forks of one process that has imported flarecli: each starts in 30 ms,
not in 350 ms.

    python forked_flare.py --serve SOCKET    # listen on a new Unix socket until standard input ends
    python forked_flare.py SOCKET ARGS…      # as `flare ARGS…`: its streams, folder, environment,
                                             exit code

With `--serve SOCKET LIBRARY…`, the process imports those of these libraries that are installed,
instead of flarecli, and runs scripts: ARGS are a script and its arguments.

Each command has a process of its own, so nothing that an earlier command left in memory can help
it. Tests of start-up, signals, limits and locales start an interpreter instead.
"""

import json
import os
import signal
import socket
import sys
from collections.abc import Callable

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


def import_flare() -> None:
    """Import the modules that commands import."""
    import importlib
    import pkgutil

    for name in LIBRARIES:
        importlib.import_module(name)
    for name in PACKAGES:
        package = importlib.import_module(f"flarecli.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)


def import_installed(libraries: list[str]) -> None:
    import contextlib
    import importlib

    del sys.path[0]  # this folder, which contains a folder `torch`
    for name in libraries:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)


def serve(path: str, call: Callable[[list[str]], None]) -> None:
    """Fork for each request. `call` runs a command in the fork."""
    import selectors

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
                run(connection, call)
            connection.close()


def run(connection: socket.socket, call: Callable[[list[str]], None]) -> None:
    """Run the command of one request in another fork, and answer with its exit code."""
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
    call(asked["args"])


def run_flare(args: list[str]) -> None:
    from flarecli.__main__ import entry

    sys.argv = ["flare", *args]
    entry()


def run_script(args: list[str]) -> None:
    import runpy

    sys.argv = args
    sys.path.insert(0, os.path.dirname(args[0]))
    runpy.run_path(args[0], run_name="__main__")
    sys.exit()


if __name__ == "__main__":
    if sys.argv[1] == "--serve":
        if sys.argv[3:]:
            import_installed(sys.argv[3:])
        else:
            import_flare()
        serve(sys.argv[2], run_script if sys.argv[3:] else run_flare)
    else:
        code = request(sys.argv[1], sys.argv[2:])
        if code < 0:
            signal.signal(-code, signal.SIG_DFL)
            os.kill(os.getpid(), -code)
        sys.exit(code)
