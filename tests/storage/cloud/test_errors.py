"""Errors of object stores: cause and hint, and the texts that identify them."""

from __future__ import annotations

import re

import pytest

from flarecli.errors import (
    BusyError,
    CredentialsError,
    FlareError,
    FormatError,
    IntegrityError,
    MissingBucketError,
    MissingError,
    ReachError,
)
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.cloud.errors import converted

ACCESS = "Check the credentials and their permissions; some stores also deny access to objects that do not exist."


TRIED = "tried with the key in AWS_ACCESS_KEY_ID at HOST"


@pytest.fixture
def cloud(web, no_cloud, monkeypatch):
    """A web server in place of S3, and a key in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": web.url(""),
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "verysecret",
    }.items():
        monkeypatch.setenv(name, value)
    return web


@pytest.mark.parametrize(
    ("status", "code", "kind", "message", "hint"),
    [
        (
            403,
            "InvalidObjectState",
            ReachError,
            f"403 Forbidden (InvalidObjectState), {TRIED}",
            "Restore the archived object first.",
        ),
        (403, "AccessDenied", ReachError, f"403 Forbidden (AccessDenied), {TRIED}", ACCESS),
        (
            400,
            "ExpiredToken",
            CredentialsError,
            f"400 Bad Request (ExpiredToken), {TRIED}",
            "Renew the credentials, then run the same command again.",
        ),
        (
            403,
            "RequestTimeTooSkewed",
            CredentialsError,
            f"403 Forbidden (RequestTimeTooSkewed), {TRIED}",
            "Correct the clock of this machine.",
        ),
        (404, "NoSuchBucket", MissingBucketError, "no such bucket", ""),
        (404, "NoSuchKey", MissingError, "not found", ""),
        (
            400,
            "AuthorizationHeaderMalformed",
            ReachError,
            "400 Bad Request (AuthorizationHeaderMalformed): the bucket is in a different region at HOST",
            "Set AWS_REGION to the bucket's region.",
        ),
        (
            301,
            "PermanentRedirect",
            ReachError,
            "301 Moved Permanently: the bucket is in a different region at HOST",
            "Set AWS_REGION to the bucket's region.",
        ),
        (410, "Gone", ReachError, "410 Gone (Gone) at HOST", ""),
    ],
)
def test_an_error_has_its_cause_and_a_hint_and_is_not_retried(
    cloud, status, code, kind, message, hint
):
    cloud.page(
        "/b/a",
        f"<?xml version='1.0'?><Error><Code>{code}</Code><Key>AKIDEXAMPLE</Key></Error>".encode(),
        status,
    )
    with pytest.raises(FlareError) as caught:
        locate("s3://b/a").read()
    assert type(caught.value) is kind
    told = re.sub(r"http://127\.0\.0\.1:\d+", "HOST", str(caught.value))
    assert (told, caught.value.hint) == (f"s3://b/a: {message}", hint)
    assert cloud.asked["/b/a"] == 1


def test_a_listing_with_objects_outside_the_folder_is_refused(cloud):
    cloud.page("/b", found(("train/a", 1), ("other/b", 1)))
    with pytest.raises(FormatError) as caught:
        list(locate("s3://b/train").list())
    assert (
        str(caught.value)
        == "s3://b/train: the listing of the folder contains an object outside the folder"
    )


def test_a_body_that_decodes_beyond_the_limit_is_refused(web, monkeypatch):
    import gzip
    import os

    from flarecli.storage.http import transfer as slots

    monkeypatch.setattr(slots, "_MAX_DECODED_BYTES", 1 << 20)
    data = os.urandom(1 << 16) * 17  # not by its ratio: the encoded size grows, too
    web.page("/a", gzip.compress(data, 1), Content_Encoding="gzip")
    with pytest.raises(FormatError) as caught:
        locate(web.url("/a"), Guard(limits=Limits(retries=0))).read()
    assert caught.value.message == "decodes to more than 1048576 bytes"


def found(*objects):
    """Return a listing like S3's."""
    one = "<Contents><Key>{}</Key><Size>{}</Size><ETag>x</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    return f"<ListBucketResult>{''.join(one.format(*each) for each in objects)}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()


def test_an_empty_object_named_like_a_folder_is_its_marker(cloud):
    cloud.page("/b", found(("d/a", 5), ("d/a/x", 1), ("d/c", 0), ("d/c/y", 2), ("d/e", 0)))
    assert list(locate("s3://b/d").list()) == [("a", 5), ("a/x", 1), ("c/y", 2), ("e", 0)]


def test_another_version_is_detected_if_a_server_ignores_if_match(cloud):
    def page(handler, times):
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        more = {
            "ETag": f'"{times}"',
            "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content_Range": f"bytes {start}-{stop}/100",
        }
        handler.answer(206, bytes(stop + 1 - start), **more)

    cloud.pages["/b/a"] = page
    at = locate("s3://b/a")
    assert at.read(0, 10) == bytes(10)
    with pytest.raises(IntegrityError):
        at.read(10, 20)


def test_unconditional_ranges_are_of_one_version(cloud):
    def page(handler, times):
        sign = 1 if times < 10 else 2
        more = {"ETag": f'"{sign}"', "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if "Range" not in handler.headers:
            return handler.answer(200, bytes([sign]) * 9_000_000, **more)
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        return handler.answer(
            206,
            bytes([sign]) * (stop + 1 - start),
            Content_Range=f"bytes {start}-{stop}/9000000",
            **more,
        )

    cloud.pages["/b/a"] = page
    ranges = [(start, start + 10) for start in range(0, 9_000_000, 300_000)]
    assert set(locate("s3://b/a").read_many(ranges)) == {bytes([2]) * 10}


@pytest.mark.parametrize("status", [409, 412])
def test_a_conditional_write_that_fails_is_a_busy_error(cloud, status):
    def conflict(handler, times):
        handler.rfile.read(int(handler.headers["Content-Length"]))
        handler.answer(status, b"<Error><Code>ConditionalRequestConflict</Code></Error>")

    cloud.pages["/b/a"] = conflict
    with pytest.raises(BusyError) as caught:
        locate("s3://b/a", Guard(limits=Limits(retries=0))).store.put_if("a", b"new", None)
    assert str(caught.value) == "s3://b/a: another process has changed this file"


ONCE = Guard(limits=Limits(retries=0, timeout_s=0.5))


@pytest.fixture
def keys(no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")


def refused(address, guard=ONCE):
    with pytest.raises(FlareError) as caught:
        locate(address, guard).read()
    return caught.value


@pytest.mark.parametrize(
    "key",
    ["status 403", "a status: 401.mds", "<Code>ExpiredToken</Code>", 'x" status 416', "status 412"],
)
def test_words_in_a_key_are_not_taken_for_a_response(s3, key):
    with pytest.raises(MissingError) as caught:
        (locate(s3) / key).read()
    assert str(caught.value) == f"{s3}/{key}: not found"


def test_words_in_an_address_are_not_taken_for_a_cause(web, keys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    web.pages["/b/certificates/token"] = lambda handler, times: web.over.wait(2)
    assert (
        str(refused("s3://b/certificates/token"))
        == f"s3://b/certificates/token: timed out at http://127.0.0.1:{web.port}"
    )


def test_the_text_of_an_error_is_parsed_after_the_quoted_request():
    text = "Object at location Error performing status 403 not found: Error performing GET http://h/status%20403 in 1ms - status code: 404"
    assert (
        type(
            converted(
                Exception(
                    f'{text}\n\nDebug source:\nNotFound {{\n    path: "a \\" status 403",\n}}'
                ),
                "s3://b/x",
                "",
                "",
            )
        )
        is MissingError
    )
