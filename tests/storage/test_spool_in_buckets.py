"""What a pack into a bucket has fetched is kept in the bucket when it is stopped, and not fetched again."""

import random
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flarecli.storage import locate

ROWS, STUCK = 40, 30


class _Objects(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        row = int(self.path[1:])
        self.server.asked.append(row)
        if row == STUCK:
            self.server.may_end.wait(60)
        data = b"\xff\xd8\xff\xe0" + random.Random(row).randbytes(200_000)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.server.sent.append(row)

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Objects) as server:
        server.daemon_threads = True
        server.may_end, server.asked, server.sent = threading.Event(), [], []
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.may_end.set()
        server.shutdown()


def objects(address):
    at = locate(address)
    return {entry.name: (at / entry.name).read() for entry in at.list()}


def test_a_stopped_pack_into_a_bucket_fetches_nothing_twice(s3, server, tmp_path):
    host = f"127.0.0.1:{server.server_port}"
    (tmp_path / "index.csv").write_text(
        "url\n" + "".join(f"http://{host}/{row}\n" for row in range(ROWS))
    )

    def command(out, *more):
        argv = ["pack", str(tmp_path / "index.csv"), f"{s3}/{out}", "--fetch", "url:data", "-q"]
        argv += ["--allow-host", host, "--shard-size", "1MB", *more]
        return [sys.executable, "-m", "flarecli", *argv]

    with subprocess.Popen(command("out"), stderr=subprocess.PIPE) as packing:
        for _ in range(2000):
            if len(server.sent) == ROWS - 1 or packing.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(1.0)
        packing.send_signal(signal.SIGINT)
        packing.communicate()
    assert packing.returncode == 130
    kept = [name for name in objects(f"{s3}/out") if name.startswith(".flare/fetched.")]
    assert len(kept) == 2
    server.may_end.set()
    subprocess.run(command("out", "--resume"), check=True)
    assert sorted(server.asked) == sorted([*range(ROWS), STUCK])
    subprocess.run(command("whole"), check=True)
    assert objects(f"{s3}/out") == objects(f"{s3}/whole")
