"""Servers of this machine that stand for the network's: moto; nginx, rclone, azurite where they are installed. Each ends by its process id."""

from __future__ import annotations

import base64
import email.utils
import hashlib
import hmac
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request

import pytest

NGINX = shutil.which("nginx", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
NO_CLOUD = {  # nothing of this machine's own settings counts, and no metadata service is asked
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
    "NO_GCE_CHECK": "true",
}


AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # the same for everybody


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def wait_until_it_answers(process, url):
    for _ in range(600):
        try:
            return urllib.request.urlopen(url, timeout=1).close()
        except urllib.error.HTTPError:
            return None
        except OSError:
            if process.poll() is not None:
                break
            time.sleep(0.05)
    raise RuntimeError(f"{url} does not answer")


def end(process):
    process.terminate()
    process.wait(10)


@pytest.fixture(scope="session")
def moto():
    """The address of an S3 server; it checks no signatures."""
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
def no_cloud(monkeypatch):
    """An environment without any settings of a cloud."""
    for name in list(os.environ):
        if name.startswith(("AWS_", "GOOGLE_", "AZURE_", "FLARE_")):
            monkeypatch.delenv(name)
    for name, value in NO_CLOUD.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def s3(moto, no_cloud, monkeypatch):
    """An empty bucket of its own: `s3://NAME`."""
    for name, value in {"AWS_ENDPOINT_URL": moto, "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "verysecret"}.items():
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
    argv = [program, *where, "--silent", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
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
    container, dated, version = f"container-{time.monotonic_ns()}", email.utils.formatdate(usegmt=True), "2021-08-06"
    headers = f"x-ms-date:{dated}\nx-ms-version:{version}\n"
    text = "PUT" + 12 * "\n" + headers + f"/devstoreaccount1/devstoreaccount1/{container}\nrestype:container"
    signature = base64.b64encode(hmac.new(base64.b64decode(AZURITE_KEY), text.encode(), hashlib.sha256).digest()).decode()
    signed = {"x-ms-date": dated, "x-ms-version": version, "Authorization": f"SharedKey devstoreaccount1:{signature}"}
    address = f"{azurite}/devstoreaccount1/{container}?restype=container"
    urllib.request.urlopen(urllib.request.Request(address, method="PUT", headers=signed)).close()
    return f"az://{container}"


@pytest.fixture(scope="session")
def rclone(tmp_path_factory):
    """The address of an S3 server that checks signatures, and a folder of which each folder is a bucket: rclone's."""
    program = shutil.which("rclone", path=f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}")
    if program is None:
        pytest.skip("rclone is not installed")
    folder, port = tmp_path_factory.mktemp("rclone"), free_port()
    (folder / "bucket").mkdir()
    argv = [program, "serve", "s3", "--addr", f"127.0.0.1:{port}", "--auth-key", "AKIDEXAMPLE,verysecret", "--config", os.devnull, str(folder)]
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
    temporary = "".join(f"{kind}_temp_path {folder}/tmp;" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
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
