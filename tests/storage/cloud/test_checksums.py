"""Checksums that S3 stores: parsed, requested with a valid signature, and compared by verify."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
import urllib.request
from datetime import UTC, datetime

import pytest

from flarecli import commands, hashes
from flarecli.model import Finding
from flarecli.storage import locate
from flarecli.storage.cloud import checksums as object_sums
from flarecli.storage.cloud.checksums import StoredChecksums, signed, stored_checksums
from flarecli.storage.http.response import Response
from flarecli.write import Writer

PARTS = StoredChecksums(unavailable="they are checksums of the parts of an upload")


SHA = hashlib.sha256(b"123456789").digest()


def answer(**headers):
    named = (f"x-amz-checksum-{name}: {value}\r\n".encode() for name, value in headers.items())
    return Response([b"HTTP/1.1 200 OK\r\n", *named, b"\r\n"])


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({}, StoredChecksums()),
        (
            {"sha256": base64.b64encode(SHA).decode(), "type": "FULL_OBJECT"},
            StoredChecksums({"sha256": SHA.hex()}),
        ),
        (
            {"crc32": "y/Q5Jg==", "crc32c": "4waSgw==", "crc64nvme": "rosUhgp5mIg="},
            StoredChecksums(
                {"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}
            ),
        ),
        ({"crc32": "y/Q5Jg==", "type": "COMPOSITE"}, PARTS),
        ({"sha256": base64.b64encode(SHA).decode() + "-3"}, PARTS),
        ({"sha1": "no base64!"}, PARTS),
        ({"sha256": "AAAA"}, PARTS),
    ],
)
def test_only_checksums_of_the_whole_object_are_used(headers, kept):
    assert object_sums._parsed(answer(**headers)) == kept


def test_crcs_are_computed_by_their_definitions():
    pytest.importorskip("awscrt")
    assert [hashes.digest(b"123456789", name) for name in ("crc32", "crc32c", "crc64nvme")] == [
        "cbf43926",
        "e3069283",
        "ae8b14860a799888",
    ]


@pytest.mark.parametrize("token", [None, "a/token+="])
@pytest.mark.parametrize("key", ["set/shard.00000.mds", "a b/ü&%.mds", "x//y"])
def test_a_request_is_signed_like_botocore_signs_it(key, token):
    auth = pytest.importorskip("botocore.auth")
    from urllib.parse import quote

    from botocore.awsrequest import AWSRequest
    from botocore.credentials import Credentials

    now, url = (
        datetime.now(UTC),
        f"https://s3.eu-north-1.amazonaws.com/bucket/{quote(key, safe='/-_.~')}",
    )
    config = {
        "access_key_id": "AKIDEXAMPLE",
        "secret_access_key": "secret",
        "region": "eu-north-1",
        **({"session_token": token} if token else {}),
    }
    mine = signed("HEAD", url, {"x-amz-checksum-mode": "ENABLED"}, config, now)
    signer = auth.S3SigV4Auth(Credentials("AKIDEXAMPLE", "secret", token), "s3", "eu-north-1")
    request = AWSRequest(
        "HEAD",
        url,
        headers={name: value for name, value in mine.items() if name != "authorization"},
    )
    request.context = {"timestamp": mine["x-amz-date"], "payload_signing_enabled": False}
    canonical = signer.canonical_request(request)
    wanted = signer.signature(signer.string_to_sign(request, canonical), request)
    assert mine["authorization"].rpartition("=")[2] == wanted


def put(moto, address, data, **headers):
    request = urllib.request.Request(
        f"{moto}/{address.removeprefix('s3://')}",
        data=data,
        method="PUT",
        headers={"Content-Type": "application/octet-stream"},
    )
    for name, value in headers.items():
        request.add_header(f"x-amz-{name.replace('_', '-')}", value)
    urllib.request.urlopen(request, timeout=30).close()


def uploaded(moto, s3, tmp_path, algorithm="SHA256", checksum=None, name="a.mds"):
    """Upload a shard without any list to a bucket, with a checksum that S3 stores.

    algorithm  of the checksum, or None to store no checksum
    checksum   base64; by default the SHA-256 of the shard
    """
    with Writer(str(tmp_path / name), columns={"id": "int"}) as writer:
        for i in range(9):
            writer.write({"id": i})
    data = (tmp_path / name / "shard.00000.mds").read_bytes()
    headers = {}
    if algorithm is not None:
        stored = checksum or base64.b64encode(hashlib.sha256(data).digest()).decode()
        headers = {"sdk_checksum_algorithm": algorithm, f"checksum_{algorithm.lower()}": stored}
    put(moto, f"{s3}/{name}", data, **headers)
    return data


def test_verify_compares_an_object_with_its_stored_checksum(moto, s3, tmp_path):
    data = uploaded(moto, s3, tmp_path)
    sha = hashlib.sha256(data).hexdigest()
    assert stored_checksums(locate(f"{s3}/a.mds")) == StoredChecksums({"sha256": sha})
    done = commands.verify(f"{s3}/a.mds")
    assert (list(done), done.unprotected) == ([], [])
    uploaded(moto, s3, tmp_path, checksum=base64.b64encode(bytes(32)).decode(), name="b.mds")
    message = f"checksum mismatch: sha256 is {sha}, the object store lists {'0' * 64}"
    hint = "The file was changed after it was packed; fetch it again, or pack it again with `flare pack … --overwrite`."
    assert list(commands.verify(f"{s3}/b.mds")) == [
        Finding(f"{s3}/b.mds", "checksum", message, hint, start=0, stop=len(data))
    ]
    assert list(commands.verify(f"{s3}/b.mds", quick=True)) == []


def bare(done):
    assert list(done) == []
    return done.unprotected


def test_checksums_that_could_not_be_read_are_reported(moto, s3, tmp_path, monkeypatch):
    not_looked = "checksums of the object store were not compared"
    unsummed = "1 of 1 files of stream 'data': no checksums; only sizes and structure were checked"
    assert stored_checksums(locate(f"{s3}/none.mds")) == StoredChecksums(
        unavailable="the response has status 404"
    )
    uploaded(moto, s3, tmp_path, algorithm=None)
    assert bare(commands.verify(f"{s3}/a.mds")) == [unsummed]
    uploaded(moto, s3, tmp_path, checksum=base64.b64encode(SHA).decode() + "-3", name="b.mds")
    of_parts = f"{not_looked}: they are checksums of the parts of an upload"
    assert bare(commands.verify(f"{s3}/b.mds")) == [of_parts, unsummed]
    monkeypatch.setattr(object_sums, "_head", lambda *_: None)
    said = bare(commands.verify(f"{s3}/a.mds", retries=0))
    assert said == [f"{not_looked}: no response", unsummed]


def test_a_checksum_that_needs_a_missing_library_is_reported(moto, s3, tmp_path, monkeypatch):
    uploaded(moto, s3, tmp_path, "CRC64NVME", base64.b64encode(bytes(8)).decode())
    monkeypatch.setitem(sys.modules, "awscrt", None)
    monkeypatch.setattr(hashes, "_has_awscrt", lambda: False)
    said = bare(commands.verify(f"{s3}/a.mds"))
    assert (
        said[0]
        == "checksums of the object store were not compared: crc64nvme needs awscrt (pip install 'flarecli[s3sums]')"
    )


def test_no_request_is_sent_with_the_credentials_of_a_role(s3, monkeypatch):
    at = locate(f"{s3}/a.mds")
    monkeypatch.setattr(
        type(at.store), "settings", {"region": "us-east-1", "endpoint": "http://127.0.0.1:9"}
    )
    assert stored_checksums(at) == StoredChecksums(
        unavailable="only the role of this machine can read them"
    )


def test_a_forked_process_requests_checksums_on_its_own_connection(web):
    callers = set()

    def page(handler, times):
        callers.add(handler.client_address)
        handler.answer(200)

    web.pages["/a"] = page
    for _ in range(2):
        assert object_sums._head(web.url("/a"), {}, 5).status == 200
    assert len(callers) == 1
    child = os.fork()
    if not child:
        answer = object_sums._head(web.url("/a"), {}, 5)
        os._exit(0 if answer is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(callers) == 2
    assert object_sums._head(web.url("/a"), {}, 5).status == 200
    assert len(callers) == 2
