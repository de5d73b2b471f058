"""Objects: credentials, versions, truncated bodies, listings, forks and uploads."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import re
import signal
import threading
import time
import urllib.request
from queue import Empty, Full, Queue
from urllib.parse import parse_qsl, urlsplit

import pytest

from flarecli import read
from flarecli.__main__ import main
from flarecli.errors import (
    CredentialsError,
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.hashes import Sums
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.base import REQUEST_BYTES
from flarecli.storage.cloud import store
from flarecli.storage.cloud.credentials import credential_sources
from flarecli.storage.cloud.store import upload

DATA = os.urandom(200_000)


SECRETS = ("verysecret", "AKIDEXAMPLE", "tokentoken")


QUICK = Guard(limits=Limits(retries=1, timeout_s=2, deadline_s=5))


@pytest.mark.parametrize("address", ["s3:///key", "s3://my bucket/key", "gs://a:b/key"])
def test_an_address_needs_a_valid_bucket_name(address):
    with pytest.raises(UsageError) as caught:
        store.parse_address(address)
    assert caught.value.message == "the address has no valid bucket name"
    assert caught.value.hint == f"Use an address such as {address[:2]}://bucket/folder."


def caught(error, call, *args):
    with pytest.raises(FlareError) as found:
        call(*args)
    assert type(found.value) is error, repr(found.value)
    text = f"{found.value} {found.value.hint}"
    assert not any(secret in text for secret in SECRETS)
    return re.sub(r"127\.0\.0\.1:\d+", "HOST", str(found.value))


@pytest.fixture
def cloud(web, no_cloud, monkeypatch):
    """A web server in place of S3; the environment has only its address."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    return web


def signed(handler):
    return "authorization" in {name.lower() for name in handler.headers}


def refusal(code, status=403):
    return lambda handler, times: handler.answer(
        status,
        f'<?xml version="1.0"?><Error><Code>{code}</Code><Key>AKIDEXAMPLE</Key></Error>'.encode(),
    )


def thing(handler, data=DATA, etag='"one"'):
    """Serve an object like S3."""
    handler.headers.get("Range")
    match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
    more = {"ETag": etag, "Last_Modified": "Wed, 21 Oct 2015 07:28:00 GMT"}
    if handler.headers.get("If-Match", etag) != etag:
        return handler.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>")
    if not match:
        return handler.answer(200, data, **more)
    start, stop = int(match[1]), min(len(data), int(match[2] or len(data) - 1) + 1)
    return handler.answer(
        206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}", **more
    )


def set_credentials(monkeypatch, **more):
    values = {"AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "verysecret", **more}
    for name, value in values.items():
        monkeypatch.setenv(name, value)


def test_an_open_bucket_needs_no_settings(cloud):
    cloud.pages["/open/a"] = lambda handler, times: (
        handler.answer(400, b"") if signed(handler) else thing(handler)
    )
    assert locate("s3://open/a").read() == DATA


def test_wrong_credentials_end_at_once_and_the_sources_are_named(cloud, monkeypatch):
    set_credentials(monkeypatch, AWS_SESSION_TOKEN="tokentoken")
    for code, status in (
        ("InvalidAccessKeyId", 403),
        ("SignatureDoesNotMatch", 403),
        ("ExpiredToken", 400),
        ("RequestTimeTooSkewed", 403),
    ):
        cloud.pages["/b/a"] = refusal(code, status)
        cloud.asked.clear()
        words = "Forbidden" if status == 403 else "Bad Request"
        expected = f"s3://b/a: {status} {words} ({code}), tried with the key in AWS_ACCESS_KEY_ID at http://HOST"
        assert caught(CredentialsError, locate("s3://b/a").read) == expected
        assert cloud.asked["/b/a"] == 1


def pack_until_credentials_expire(cloud, tmp_path, capfd, links, valid, *options, denied=()):
    """Pack links to objects, whose credentials expire after some objects; check the printed error.

    links    number of links
    valid    number of the first object that is refused because the credentials have expired
    denied   numbers of objects that may never be read
    return   arguments of the command, and a function that renews the credentials
    """
    has_expired = True

    def served(handler, times):
        number = int(handler.path.rpartition("/")[2])
        if has_expired and number >= valid:
            refusal("ExpiredToken", 400)(handler, times)
        elif number in denied:
            refusal("AccessDenied")(handler, times)
        else:
            thing(handler, handler.path.encode() * 9)

    def renew():
        nonlocal has_expired
        has_expired = False

    for i in range(links):
        cloud.pages[f"/b/{i}"] = served
    index = tmp_path / "index.csv"
    index.write_text("url\n" + "".join(f"s3://b/{i}\n" for i in range(links)))
    line = ["pack", str(index), str(tmp_path / "out"), "--fetch", "url", "--on-error", "skip"]
    line += options
    assert main(line) == 3
    out, err = capfd.readouterr()
    assert re.sub(r"127\.0\.0\.1:\d+", "HOST", err).splitlines()[-2:] == [
        f"error: s3://b/{valid}: 400 Bad Request (ExpiredToken), tried with the key in AWS_ACCESS_KEY_ID at http://HOST",
        "hint: Renew the credentials, then run the same command again.",
    ]
    assert out == "" and not any(secret in err for secret in SECRETS)
    return line, renew


def test_a_pack_resumes_with_new_credentials_after_the_old_ones_expired(
    cloud, monkeypatch, tmp_path, capfd
):
    set_credentials(monkeypatch, AWS_SESSION_TOKEN="tokentoken")
    options = ["--limit", "120", "--shard-rows", "20"]
    line, renew = pack_until_credentials_expire(
        cloud, tmp_path, capfd, 5000, 50, *options, denied=[7]
    )
    assert sum(cloud.asked.values()) < 400
    renew()
    assert main([*line, "--resume"]) == 1
    assert len(read.open(str(tmp_path / "out"))) == 119
    assert [
        json.loads(row)["key"]
        for row in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    ] == [""]


def test_expired_credentials_end_a_pack_through_s3fs(cloud, monkeypatch, tmp_path, capfd):
    pytest.importorskip("s3fs")
    set_credentials(monkeypatch, FLARE_S3="s3fs")
    options = ["--shard-rows", "2", "--jobs", "1"]
    pack_until_credentials_expire(cloud, tmp_path, capfd, 12, 3, *options)


def test_the_role_of_the_machine_is_used_only_if_anonymous_access_is_denied(cloud, monkeypatch):
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", cloud.url(""))
    role = "/latest/meta-data/iam/security-credentials/"
    cloud.page("/latest/api/token", b"T")
    cloud.page(role, b"my-role")
    given = b'{"Code":"Success","AccessKeyId":"AKIDEXAMPLE","SecretAccessKey":"verysecret","Token":"tokentoken","Expiration":"2099-01-01T00:00:00Z"}'
    cloud.page(f"{role}my-role", given)
    cloud.pages["/b/a"] = lambda handler, times: (
        thing(handler) if signed(handler) else refusal("AccessDenied")(handler, times)
    )
    assert locate("s3://b/a").read() == DATA
    cloud.page("/open/a", b"open", ETag='"x"', Last_Modified="Wed, 21 Oct 2015 07:28:00 GMT")
    cloud.asked.clear()
    assert locate("s3://open/a").read() == b"open"
    assert set(cloud.asked) == {"/open/a"}
    cloud.pages["/b/a"] = refusal("AccessDenied")
    expected = "s3://b/a: 403 Forbidden (AccessDenied), tried without credentials and with the machine's role at http://HOST"
    assert caught(ReachError, locate("s3://b/a").read) == expected


def test_a_missing_metadata_service_costs_no_wait(cloud, monkeypatch):
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:1")
    cloud.pages["/b/a"] = refusal("AccessDenied")
    assert (
        caught(ReachError, locate("s3://b/a").read)
        == "s3://b/a: 403 Forbidden (AccessDenied), tried without credentials at http://HOST"
    )


def test_aws_profiles_are_read(tmp_path):
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id=A\naws_secret_access_key=B%\n[two]\naws_access_key_id=C\naws_secret_access_key=D\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion=eu-west-3\n[profile two]\nendpoint_url=http://127.0.0.1:9\n[profile sso]\nsso_session=x\n"
    )
    env = {"HOME": str(tmp_path)}
    (source,) = credential_sources("s3", env)
    assert (source.name, dict(source.config)) == (
        "with the profile 'default'",
        {"region": "eu-west-3", "access_key_id": "A", "secret_access_key": "B%"},
    )
    (source,) = credential_sources("s3", {**env, "AWS_PROFILE": "two", "AWS_REGION": "us-east-2"})
    assert dict(source.config) == {
        "endpoint": "http://127.0.0.1:9",
        "region": "us-east-2",
        "access_key_id": "C",
        "secret_access_key": "D",
    }
    assert "B%" not in repr(source) and "'D'" not in repr(source)
    expected = "the profile 'sso' uses sso_session, which flare does not support"
    assert caught(ReachError, credential_sources, "s3", {**env, "AWS_PROFILE": "sso"}) == expected
    assert (
        caught(ReachError, credential_sources, "s3", {**env, "AWS_PROFILE": "none"})
        == "the AWS profile 'none' does not exist or is empty"
    )
    expected = "AWS_ACCESS_KEY_ID is set in the environment, but AWS_SECRET_ACCESS_KEY is not set"
    assert (
        caught(ReachError, credential_sources, "s3", {**env, "AWS_ACCESS_KEY_ID": "A"}) == expected
    )
    assert (
        caught(ReachError, credential_sources, "az", env)
        == "AZURE_STORAGE_ACCOUNT_NAME is not set in the environment"
    )
    assert [
        source.name for source in credential_sources("gs", {**env, "NO_GCE_CHECK": "true"})
    ] == ["without credentials"]


@pytest.mark.parametrize(
    "address", ["s3://key:verysecret@bucket/x", "s3://", "s3:///x", "s3://a b/x", "gs://?x"]
)
def test_addresses_without_a_bucket_or_with_secrets_are_refused(no_cloud, address):
    caught(UsageError, locate, address)


def test_keys_are_opaque(s3):
    for key in ("a b", "a%20b", "a?b", "a#b", "d/ä+b", "x=y&z"):
        at = locate(f"{s3}/{key}")
        at.write([key.encode()])
        assert at.read() == key.encode()
        assert str(at) == f"{s3}/{key}"
        assert at.folder / at.name == at
    names = [name for name, _ in locate(s3).list()]
    assert names == sorted(["a b", "a%20b", "a?b", "a#b", "d/ä+b", "x=y&z"], key=str.encode)
    assert locate(f"{s3}/d").join("ä+b").read() == "d/ä+b".encode()


def test_data_may_name_its_own_bucket_and_public_web_addresses(s3, web):
    at = locate(f"{s3}/some/folder")
    locate(f"{s3}/else/x").write([b"else"])
    assert at.join(f"{s3}/else/x").read() == b"else"
    assert at.join("s3://other/x").store.guard.anonymous
    assert (
        caught(UnsafeError, at.join, "hf://datasets/a/b")
        == f"{s3}/some/folder: hf://datasets/a/b is not in {s3}"
    )
    assert (
        caught(UnsafeError, at.join, "file:///etc/passwd")
        == f"{s3}/some/folder: data from the network must not contain file:// addresses"
    )
    assert "leads to 127.0.0.1, a loopback address" in caught(
        UnsafeError, at.join(web.page("/x", b"inside")).read
    )
    assert web.requests == []
    free = locate(f"{s3}/some/folder", Guard(allow_local=True, allow_private=True))
    assert free.join("../../else/x").read() == b"else"
    assert free.join(web.page("/x", b"inside")).read() == b"inside"
    assert str(free.join("../../../../x")) == f"{s3}/x"


def test_a_change_between_two_reads_is_an_error_or_is_read_again(cloud):
    versions = ['"one"', '"two"']
    cloud.pages["/b/a"] = lambda handler, times: thing(
        handler, DATA if versions[0] == '"one"' else DATA[::-1], versions[0]
    )
    at = locate("s3://b/a")
    assert at.read(0, 10) == DATA[:10]
    versions.reverse()
    assert caught(IntegrityError, at.read, 10, 20) == "s3://b/a: changed while it was being read"
    assert locate("s3://b/a").read(10, 20) == DATA[::-1][10:20]
    # between the first and the other responses of one read: read again
    first = threading.Event()

    def changing(handler, times):
        tag = '"one"' if not first.is_set() else '"two"'
        first.set()
        return thing(handler, DATA, tag)

    cloud.pages["/b/c"] = changing
    assert locate("s3://b/c").read_many([(0, 10), (150_000, 150_010)]) == [
        DATA[:10],
        DATA[150_000:150_010],
    ]


def test_the_first_pieces_of_a_read_are_requested_in_parallel(cloud):
    together = threading.Barrier(3)

    def page(handler, times):
        together.wait(20)
        return thing(handler)

    cloud.pages["/b/a"] = page
    ranges = [(start, start + 10) for start in (0, 70_000, 140_000)]
    assert locate("s3://b/a").read_many(ranges) == [DATA[a:b] for a, b in ranges]


def test_many_ranges_of_a_changing_object_are_read_again(cloud):
    asked = threading.Event()

    def changing(handler, times):
        if handler.headers.get("Range") and times == 2:
            asked.set()
        return thing(
            handler,
            DATA * 40 if not asked.is_set() else DATA[::-1] * 40,
            '"two"' if asked.is_set() else '"one"',
        )

    cloud.pages["/b/a"] = changing
    ranges = [(start, start + 10) for start in range(0, 8_000_000, 300_000)]
    whole = DATA[::-1] * 40
    assert locate("s3://b/a").read_many(ranges) == [whole[a:b] for a, b in ranges]


def test_only_transient_errors_are_retried(cloud):
    cloud.pages["/b/a"] = lambda handler, times: (
        handler.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        if times < 3
        else thing(handler)
    )
    assert locate("s3://b/a").read() == DATA
    assert caught(MissingError, locate("s3://b/none").read) == "s3://b/none: not found"
    assert cloud.asked["/b/none"] == 1
    cloud.pages["/b/bad"] = refusal("InternalError", 500)
    assert (
        caught(ReachError, locate("s3://b/bad", QUICK).read)
        == "s3://b/bad: 500 Internal Server Error (InternalError) at http://HOST"
    )
    assert cloud.asked["/b/bad"] == 2


def test_a_truncated_body_is_completed_or_not_returned(cloud):
    def cut(handler, times):
        start = int(re.fullmatch(r"bytes=(\d+)-.*", handler.headers.get("Range", "bytes=0-"))[1])
        handler.send_response(206 if start else 200)
        handler.send_header("Content-Length", str(len(DATA) - start))
        handler.send_header(
            "Content-Range", f"bytes {start}-{len(DATA) - 1}/{len(DATA)}"
        ) if start else None
        handler.send_header("ETag", '"one"')
        handler.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        handler.end_headers()
        handler.wfile.write(DATA[start : start + 60_000])
        handler.close_connection = True

    cloud.pages["/b/a"] = cut
    assert locate("s3://b/a").read() == DATA  # in four pieces
    assert caught(ReachError, locate("s3://b/a", QUICK).read).startswith(
        "s3://b/a: connection lost"
    )


def test_a_server_that_ignores_ranges_is_an_error(cloud):
    cloud.page("/b/a", DATA, ETag='"one"', Last_Modified="Wed, 21 Oct 2015 07:28:00 GMT")
    expected = "s3://b/a: the response is not the requested range at http://HOST"
    assert caught(ReachError, locate("s3://b/a").read, 100, 200) == expected


def test_an_unreachable_server_is_reported_soon(no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    assert (
        caught(ReachError, locate("s3://b/a", QUICK).size)
        == "s3://b/a: connection refused at http://HOST"
    )


def test_without_conditional_writes_existence_is_checked_first(cloud):
    written = {}

    def unconditional(handler, times):
        if handler.command != "PUT":
            return thing(handler) if handler.path == "/b/old" else handler.answer(404)
        body = handler.rfile.read(int(handler.headers["Content-Length"]))
        if "If-None-Match" in handler.headers:
            return handler.answer(501, b"<Error><Code>NotImplemented</Code></Error>")
        written[handler.path] = body
        return handler.answer(200, b"", ETag='"one"')

    cloud.pages |= dict.fromkeys(["/b/new", "/b/old"], unconditional)
    locate("s3://b/new", QUICK).write([b"x"], (), False)
    assert written == {"/b/new": b"x"}
    assert (
        caught(UsageError, locate("s3://b/old", QUICK).write, [b"x"], (), False)
        == "s3://b/old: already exists"
    )


def test_an_incomplete_upload_is_aborted(s3, moto):
    def parts():
        for _ in range(4):
            yield bytes(6_000_000)
        raise KeyError("boom")

    with pytest.raises(KeyError):
        locate(f"{s3}/half").write(parts())
    begun = urllib.request.urlopen(f"{moto}/{s3[5:]}?uploads").read()
    assert b"<Upload>" not in begun
    assert not locate(f"{s3}/half").exists()


def test_a_child_of_a_forked_child_can_read(s3):
    """The threads of the library do not survive a fork: a child that used them would wait
    forever.
    """
    at = locate(f"{s3}/a")
    at.write([DATA])
    assert at.read(0, 5) == DATA[:5]
    answers = multiprocessing.get_context("fork").SimpleQueue()

    def child(depth):
        answers.put(at.read_many([(0, 10), (100_000, 100_010)]))
        if depth:
            grandchild = multiprocessing.get_context("fork").Process(
                target=child, args=(depth - 1,)
            )
            grandchild.start()
            grandchild.join(30)

    process = multiprocessing.get_context("fork").Process(target=child, args=(1,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    assert [answers.get() for _ in range(2)] == [[DATA[:10], DATA[100_000:100_010]]] * 2
    assert at.read(5, 9) == DATA[5:9]


def test_secrets_are_not_pickled(s3):
    pickled = pickle.dumps(locate(f"{s3}/a"))
    at = locate(f"{s3}/a")
    at.exists()
    assert not any(secret.encode() in pickle.dumps(at) + pickled for secret in SECRETS)
    assert not any(secret in repr(at) + repr(vars(at.store)) for secret in SECRETS)


def test_a_folder_is_listed_or_does_not_exist(s3):
    for i in range(7):
        (locate(s3) / f"d/{i}").write([bytes(i)])
    assert [size for _, size in locate(f"{s3}/d").list()] == list(range(7))
    assert (
        caught(MissingError, lambda: list(locate(f"{s3}/nothing").list()))
        == f"{s3}/nothing: not found"
    )


def page(keys, behind=""):
    """Return a page of a listing like S3's; `behind` is the token of the next page."""
    found = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    more = (
        f"<IsTruncated>true</IsTruncated><NextContinuationToken>{behind}</NextContinuationToken>"
        if behind
        else "<IsTruncated>false</IsTruncated>"
    )
    return f"<ListBucketResult>{found}{more}</ListBucketResult>".encode()


def test_a_listing_has_several_pages(cloud):
    pages = {
        None: page(["d/0", "d/1"], "two"),
        "two": page(["d/2", "d/3"], "three"),
        "three": page(["d/4"]),
    }
    cloud.pages["/b"] = lambda handler, times: handler.answer(
        200, pages[dict(parse_qsl(urlsplit(handler.path).query)).get("continuation-token")]
    )
    assert [name for name, _ in locate("s3://b/d").list()] == ["0", "1", "2", "3", "4"]


def test_a_listing_that_repeats_is_an_error(cloud):
    cloud.pages["/b"] = lambda handler, times: handler.answer(
        200, page(["d/0", "d/1"], "more")
    )  # for every requested page
    wanted = "s3://b/d/0: the listing contains this object twice"
    assert caught(FormatError, lambda: list(locate("s3://b/d").list())) == wanted


def test_a_bucket_instead_of_an_object_is_an_error(s3):
    assert caught(FormatError, locate(s3).read) == f"{s3}/: is a bucket; expected an object"
    assert caught(UsageError, locate(s3).write, [b""]) == f"{s3}/: is a bucket; expected an object"


def test_google_and_azure_objects_are_read(web, no_cloud, monkeypatch):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", web.url(""))
    monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
    monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", web.url(""))
    for address, path in (
        ("gs://b/d/a b", "/b/d%2Fa%20b"),
        ("az://c/d/a b", "/devstoreaccount1/c/d/a%20b"),
    ):
        web.pages[path] = lambda handler, times: thing(handler)
        at = locate(address)
        assert (at.size(), at.read(5, 10), str(at)) == (len(DATA), DATA[5:10], address)
        ranges = [(i * 100, i * 100 + 7) for i in range(0, 1900, 100)]
        assert at.read_many(ranges) == [DATA[a:b] for a, b in ranges]
        web.pages[path] = refusal("AuthenticationFailed")
        assert caught(CredentialsError, locate(address).read).startswith(
            f"{address}: 403 Forbidden (AuthenticationFailed), tried with"
        )
        assert caught(MissingError, (at.folder / "none").read) == f"{address[:-3]}none: not found"


def test_a_failed_upload_reads_no_further_parts():
    taken = []

    def parts():
        for i in range(12):
            taken.append(i)
            yield bytes(REQUEST_BYTES)

    def put_pieces(pieces):
        next(pieces)
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        upload(parts(), Sums(()), None, put_pieces)
    assert len(taken) < 8


def test_aborting_an_upload_does_not_block():
    class Taken(Queue):  # the upload empties the queue after each failed put
        def put_nowait(self, item):
            try:
                super().put_nowait(item)
            except Full:
                with self.mutex:
                    self.queue.clear()
                raise

    queue = Taken(2)
    queue.put(b"1")
    queue.put(b"2")
    thread = threading.Thread(target=store._abort, args=(queue,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(queue.get_nowait(), store.AbortedError)
    with pytest.raises(Empty):
        queue.get_nowait()


def test_an_interrupt_waits_for_the_upload_to_delete_its_parts():
    ended = threading.Event()

    def put_pieces(pieces):
        assert sum(map(len, pieces)) == 2 * REQUEST_BYTES
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.9)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        upload([bytes(2 * REQUEST_BYTES)], Sums(()), None, put_pieces)
    assert ended.is_set()


def test_parts_are_read_only_as_fast_as_the_upload_sends_them():
    taken, go = [], threading.Event()

    def parts():
        for i in range(9):
            taken.append(i)
            if i > 6:
                go.set()
            yield bytes(REQUEST_BYTES)

    def put_pieces(pieces):
        go.wait(0.5)
        assert len(taken) < 7
        assert sum(map(len, pieces)) == 9 * REQUEST_BYTES

    upload(parts(), Sums(()), None, put_pieces)
    assert len(taken) == 9
