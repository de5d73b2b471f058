"""Local servers in place of web servers and clouds: moto; nginx, rclone and azurite if installed.

Each is ended by its process id.
"""

from __future__ import annotations

import base64
import contextlib
import email.utils
import hashlib
import hmac
import http.client
import itertools
import os
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import namedtuple
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import pytest

from flarecli.storage import Limits
from flarecli.storage.http.engine import Engine
from tests.servers import end, free_port, stop_server, wait_until_it_answers

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NO_CLOUD = {  # ignore the settings of this machine, and contact no metadata service
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_GCE_CHECK": "true",
}


# the public key of the emulator
AZURITE_KEY = (
    "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)


@pytest.fixture
def engine():
    """Return a function that makes engines, which are closed at the end."""
    with contextlib.ExitStack() as stack:

        def make(ahead_bytes=None, **limits):
            one = Engine(Limits(**{"timeout_s": 5.0, "deadline_s": 20.0, **limits}), ahead_bytes)
            stack.callback(one.close)
            return one

        yield make


@pytest.fixture
def no_cloud(monkeypatch):
    """Remove all settings of clouds from the environment."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "FLARE_")):
            monkeypatch.delenv(name)
    for name, value in NO_CLOUD.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3(moto, no_cloud, monkeypatch):
    """An empty bucket of its own: `s3://NAME`."""
    for name, value in {
        "AWS_ENDPOINT_URL": moto,
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "verysecret",
    }.items():
        monkeypatch.setenv(name, value)
    bucket = f"bucket-{time.monotonic_ns()}"
    urllib.request.urlopen(urllib.request.Request(f"{moto}/{bucket}", method="PUT")).close()
    return f"s3://{bucket}"


@pytest.fixture(scope="session")
def azurite():
    """The address of Azure's own emulator, which checks signatures; npm installs it."""
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite is not installed")
    port = free_port()
    where = ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    argv = [
        program,
        *where,
        "--silent",
        "--inMemoryPersistence",
        "--skipApiVersionCheck",
        "--disableTelemetry",
    ]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


@pytest.fixture
def azure(azurite, no_cloud, monkeypatch):
    """An empty container of its own: `az://NAME`."""
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", azurite)
    container, dated, version = (
        f"container-{time.monotonic_ns()}",
        email.utils.formatdate(usegmt=True),
        "2021-08-06",
    )
    headers = f"x-ms-date:{dated}\nx-ms-version:{version}\n"
    text = (
        "PUT"
        + 12 * "\n"
        + headers
        + f"/devstoreaccount1/devstoreaccount1/{container}\nrestype:container"
    )
    signature = base64.b64encode(
        hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()
    ).decode()
    signed = {
        "x-ms-date": dated,
        "x-ms-version": version,
        "Authorization": f"SharedKey devstoreaccount1:{signature}",
    }
    address = f"{azurite}/devstoreaccount1/{container}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", headers=signed)).close()
    return f"az://{container}"


Asked = namedtuple("Asked", "method path status size")


class ProxyHandler(BaseHTTPRequestHandler):
    """Forwards each request to `server.host`, and appends it to `server.asked`.

    server.fault   function of a request; it returns None, or whether to forward the request, and
                   the answer: `cut`, `timeout`, or the status and the error code of a response
    server.faults  number of requests for which it returned an answer
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        is_forwarded, answer = self.server.fault(self) or (True, None)
        if is_forwarded:
            status, headers, data = self.forwarded(body)
        if answer is not None:
            self.server.faults += 1
            self.close_connection = True
            if answer == "timeout":
                self.connection.recv(1)  # returns when the client closes the connection
            if isinstance(answer, str):
                return
            status, data = answer[0], f"<Error><Code>{answer[1]}</Code></Error>".encode()
            headers = [("Content-Length", str(len(data)))]
        self.server.asked.append(Asked(self.command, self.path, status, len(data)))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    do_HEAD = do_PUT = do_POST = do_DELETE = do_GET

    def forwarded(self, body):
        connection = http.client.HTTPConnection(self.server.host)
        try:
            connection.request(self.command, self.path, body or None, dict(self.headers))
            answer = connection.getresponse()
            data = answer.read()
        finally:
            connection.close()
        unwanted = {"transfer-encoding", "connection", "content-length", "date", "server"}
        headers = [one for one in answer.getheaders() if one[0].lower() not in unwanted]
        size = answer.getheader("Content-Length") if self.command == "HEAD" else len(data)
        return answer.status, [*headers, ("Content-Length", str(size or 0))], data


@pytest.fixture
def proxy():
    """Return a function that starts a proxy in front of the server at an address."""
    servers = []

    def start(upstream):
        server = Server(("127.0.0.1", 0), ProxyHandler)
        server.host, server.asked, server.faults = urlsplit(upstream).netloc, [], 0
        server.fault = lambda request: None
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        stop_server(server)
        thread.join()
        server.server_close()


class Google(BaseHTTPRequestHandler):
    """Serves objects in memory like Google's XML API; no emulator that can be installed from a
    package supports writes.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def refuse(self, status, code):
        self.answer(status, f"<Error><Code>{code}</Code></Error>".encode())

    def body(self):
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def asked(self):
        """Return the key and the query."""
        parts = urlsplit(self.path)
        return unquote(parts.path.removeprefix("/").partition("/")[2]), dict(
            parse_qsl(parts.query, keep_blank_values=True)
        )

    def put(self, key, data):
        generation = next(self.server.generations)
        self.server.objects[key] = (data, f'"{generation:x}"', generation)
        return {"ETag": f'"{generation:x}"', "x-goog-generation": generation}

    def listing(self, prefix="", delimiter="", **_):
        """Return the objects below a prefix; with a delimiter, the folders directly below it."""
        parts, folders = [], set()
        for name, (data, etag, _) in sorted(self.server.objects.copy().items()):
            if not name.startswith(prefix):
                continue
            folder, slash, _ = name[len(prefix) :].partition(delimiter or "\0")
            if slash:
                folders.add(prefix + folder + slash)
                continue
            parts.append(
                f"<Contents><Key>{escape(name)}</Key><Size>{len(data)}</Size><ETag>{escape(etag)}</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
            )
        parts += (
            f"<CommonPrefixes><Prefix>{escape(name)}</Prefix></CommonPrefixes>"
            for name in sorted(folders)
        )
        return f"<ListBucketResult>{''.join(parts)}</ListBucketResult>"

    def do_GET(self):
        key, query = self.asked()
        if not key:
            return self.answer(200, self.listing(**query).encode())
        if key not in self.server.objects:
            return self.refuse(404, "NoSuchKey")
        data, etag, generation = self.server.objects[key]
        more = {
            "ETag": etag,
            "x-goog-generation": generation,
            "Last-Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
        }
        if self.headers.get("If-Match", etag) != etag:
            return self.refuse(412, "PreconditionFailed")
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked is None:
            return self.answer(200, data, **more)
        start, stop = int(asked[1]), min(len(data), int(asked[2] or len(data)) + 1)
        if start >= len(data):
            return self.refuse(416, "InvalidRange")
        return self.answer(
            206,
            data[start:stop],
            **more,
            **{"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"},
        )

    do_HEAD = do_GET

    def do_PUT(self):
        (key, query), data = self.asked(), self.body()
        if "uploadId" in query:
            self.server.uploads[query["uploadId"]][int(query["partNumber"])] = data
            return self.answer(200, ETag='"part"')
        wanted = self.headers.get("x-goog-if-generation-match")
        with self.server.mutex:
            there = self.server.objects.get(key)
            is_expected = wanted is None or int(wanted) == (there[2] if there else 0)
            headers = self.put(key, data) if is_expected else {}
        if not is_expected:
            return self.refuse(412, "PreconditionFailed")
        return self.answer(200, **headers)

    def do_POST(self):
        key, query = self.asked()
        self.body()
        if "uploads" in query:
            upload = str(next(self.server.generations))
            self.server.uploads[upload] = {}
            return self.answer(
                200,
                f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId></InitiateMultipartUploadResult>".encode(),
            )
        parts = self.server.uploads.pop(query["uploadId"])
        made = self.put(key, b"".join(parts[number] for number in sorted(parts)))
        result = f"<CompleteMultipartUploadResult><ETag>{escape(made['ETag'])}</ETag></CompleteMultipartUploadResult>"
        return self.answer(200, result.encode(), **made)

    def do_DELETE(self):
        key, query = self.asked()
        if "uploadId" in query:
            self.server.uploads.pop(query["uploadId"], None)
            return self.answer(204)
        return (
            self.answer(204)
            if self.server.objects.pop(key, None) is not None
            else self.refuse(404, "NoSuchKey")
        )


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 256  # with a short queue, the kernel drops simultaneous connections

    def __init__(self, *args):
        super().__init__(*args)
        self.mutex = threading.Lock()

    def handle_error(self, request, client_address):
        if not isinstance(sys.exception(), ConnectionError):  # the client closed the connection
            super().handle_error(request, client_address)


@pytest.fixture
def google(no_cloud, monkeypatch):
    """An empty bucket: `gs://bucket`."""
    server = Server(("127.0.0.1", 0), Google)
    server.objects, server.uploads, server.generations = {}, {}, itertools.count(1)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{server.server_port}")
    yield "gs://bucket"
    stop_server(server)
    thread.join()
    server.server_close()


@pytest.fixture(scope="session")
def rclone(tmp_path_factory):
    """The address of an S3 server that checks signatures (rclone), and the folder of its bucket."""
    program = shutil.which(
        "rclone", path=f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}"
    )
    if program is None:
        pytest.skip("rclone is not installed")
    folder, port = tmp_path_factory.mktemp("rclone"), free_port()
    (folder / "bucket").mkdir()
    argv = [
        program,
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        "AKIDEXAMPLE,verysecret",
        "--config",
        os.devnull,
        str(folder),
    ]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}/")
        yield f"http://127.0.0.1:{port}", folder / "bucket"
    finally:
        end(process)


@pytest.fixture(scope="session")
def nginx(tmp_path_factory):
    """A folder and the address at which nginx serves it."""
    if NGINX is None:
        pytest.skip("nginx is not installed")
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    (folder / "www").mkdir()
    os.chmod(folder, 0o755)
    temporary = "".join(
        f"{kind}_temp_path {folder}/tmp;"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "conf").write_text(
        f"{user} daemon off; master_process off; error_log {folder}/error.log; pid {folder}/pid; events {{}}"
        f"http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port} backlog=1024; root {folder}/www; }} }}"
    )
    process = subprocess.Popen([NGINX, "-c", str(folder / "conf")], stderr=subprocess.DEVNULL)
    try:
        wait_until_it_answers(process, f"http://127.0.0.1:{port}/")
        yield folder / "www", f"http://127.0.0.1:{port}"
    finally:
        end(process)
