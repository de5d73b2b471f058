"""An S3 server of this machine for the tests of this folder."""

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest


@pytest.fixture(scope="session")
def server():
    pytest.importorskip("moto.server")
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    argv = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for _ in range(400):
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/moto-api/").close()
            break
        except urllib.error.URLError:
            time.sleep(0.05)
    yield f"http://127.0.0.1:{port}"
    process.terminate()
    process.wait(10)
