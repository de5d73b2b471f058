"""The sums that S3 keeps of objects: read from its answers, asked for with a right signature, and what verify makes of them."""

import base64
import hashlib
import sys
import urllib.request
import zlib
from datetime import UTC, datetime

import pytest

from flarecli import commands, hashes
from flarecli.model import Finding
from flarecli.storage import locate
from flarecli.storage.cloud import checksums as object_sums
from flarecli.storage.cloud.checksums import Kept, kept_sums, signed
from flarecli.storage.http.response import Answer
from flarecli.write import Writer

PARTS = Kept(why_not="they are sums of the parts of an upload")
SHA = hashlib.sha256(b"123456789").digest()


def answer(**headers):
    named = (f"x-amz-checksum-{name}: {value}\r\n".encode() for name, value in headers.items())
    return Answer([b"HTTP/1.1 200 OK\r\n", *named, b"\r\n"])


@pytest.mark.parametrize(
    ("headers", "kept"),
    [
        ({}, Kept()),
        (
            {"sha256": base64.b64encode(SHA).decode(), "type": "FULL_OBJECT"},
            Kept({"sha256": SHA.hex()}),
        ),
        (
            {"crc32": "y/Q5Jg==", "crc32c": "4waSgw==", "crc64nvme": "rosUhgp5mIg="},
            Kept({"crc32": "cbf43926", "crc32c": "e3069283", "crc64nvme": "ae8b14860a799888"}),
        ),
        ({"crc32": "y/Q5Jg==", "type": "COMPOSITE"}, PARTS),
        ({"sha256": base64.b64encode(SHA).decode() + "-3"}, PARTS),
        ({"sha1": "no base64!"}, PARTS),
        ({"sha256": "AAAA"}, PARTS),
    ],
)
def test_the_answer_says_sums_of_the_whole_object_or_none(headers, kept):
    assert object_sums._read(answer(**headers)) == kept


def test_the_crcs_that_s3_computes_are_those_of_their_definitions():
    pytest.importorskip("awscrt")
    assert [hashes.digest(b"123456789", name) for name in ("crc32", "crc32c", "crc64nvme")] == [
        "cbf43926",
        "e3069283",
        "ae8b14860a799888",
    ]


@pytest.mark.parametrize("token", [None, "a/token+="])
@pytest.mark.parametrize("key", ["set/shard.00000.mds", "a b/ü&%.mds", "x//y"])
def test_a_request_is_signed_as_the_library_of_aws_signs_it(key, token):
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


def uploaded(moto, s3, tmp_path):
    """Put a shard without any list into a bucket, with the sum that S3 then keeps of it."""
    with Writer(str(tmp_path / "out"), columns={"id": "int"}) as writer:
        for i in range(9):
            writer.write({"id": i})
    data = (tmp_path / "out" / "shard.00000.mds").read_bytes()
    put(
        moto,
        f"{s3}/a.mds",
        data,
        sdk_checksum_algorithm="SHA256",
        checksum_sha256=base64.b64encode(hashlib.sha256(data).digest()).decode(),
    )
    return data


def test_verify_holds_an_object_against_the_sum_that_the_store_keeps(
    moto, s3, tmp_path, monkeypatch
):
    data = uploaded(moto, s3, tmp_path)
    sha = hashlib.sha256(data).hexdigest()
    assert kept_sums(locate(f"{s3}/a.mds")) == Kept({"sha256": sha})
    done = commands.verify(f"{s3}/a.mds")
    assert (list(done), done.unprotected) == ([], [])
    monkeypatch.setattr(
        object_sums,
        "_read",
        lambda _: Kept({"sha256": "0" * 64, "crc32": f"{zlib.crc32(data):08x}"}),
    )
    message = f"checksum mismatch: sha256 is {sha}, the object store lists {'0' * 64}"
    hint = "The file was changed after it was packed; fetch it again, or pack it again with `flare pack … --overwrite`."
    assert list(commands.verify(f"{s3}/a.mds")) == [
        Finding(f"{s3}/a.mds", "checksum", message, hint, start=0, stop=len(data))
    ]
    assert list(commands.verify(f"{s3}/a.mds", quick=True)) == []


def bare(done):
    assert list(done) == []
    return done.unprotected


def test_what_could_not_be_looked_at_is_said(moto, s3, tmp_path, monkeypatch):
    uploaded(moto, s3, tmp_path)
    address, not_looked = f"{s3}/a.mds", "checksums of the object store were not compared"
    unsummed = "1 of 1 files of stream 'data': no checksums; only sizes and structure were checked"
    assert kept_sums(locate(f"{s3}/none.mds")) == Kept(why_not="it answers 404")
    for name, instead, said in (
        ("_read", Kept(), []),
        ("_read", PARTS, [f"{not_looked}: they are sums of the parts of an upload"]),
        ("_asked", None, [f"{not_looked}: it does not answer"]),
    ):
        with monkeypatch.context() as patched:
            patched.setattr(object_sums, name, lambda *_, instead=instead: instead)
            assert bare(commands.verify(address)) == [*said, unsummed]


def test_a_sum_that_takes_a_library_which_is_not_there_is_said(moto, s3, tmp_path, monkeypatch):
    uploaded(moto, s3, tmp_path)
    monkeypatch.setattr(object_sums, "_read", lambda _: Kept({"crc64nvme": "0" * 16}))
    monkeypatch.setitem(sys.modules, "awscrt", None)
    monkeypatch.setattr(hashes, "_has_awscrt", lambda: False)
    said = bare(commands.verify(f"{s3}/a.mds"))
    assert (
        said[0]
        == "checksums of the object store were not compared: crc64nvme needs awscrt (pip install 'flarecli[s3sums]')"
    )


def test_credentials_that_only_the_library_has_are_not_asked_with(s3, monkeypatch):
    at = locate(f"{s3}/a.mds")
    monkeypatch.setattr(
        type(at.store), "settings", {"region": "us-east-1", "endpoint": "http://127.0.0.1:9"}
    )
    assert kept_sums(at) == Kept(why_not="only the role of this machine may ask for them")
