"""What stores say when they refuse, as S3 and its like say it, and what flare makes of it: the cause, and the way out."""

from __future__ import annotations

import re

import pytest

from flarecli.errors import (
    BusyError,
    CredentialsError,
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    ReachError,
)
from flarecli.storage import Guard, Limits, locate

ACCESS = "Check the credentials, and that they may do this; some stores also answer so for what is not there."
TRIED = "tried with the key in AWS_ACCESS_KEY_ID at HOST"


@pytest.fixture
def cloud(web, no_cloud, monkeypatch):
    """A web server that stands for S3, asked with a key."""
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
            "The object is archived: restore it first.",
        ),
        (403, "AccessDenied", ReachError, f"403 Forbidden (AccessDenied), {TRIED}", ACCESS),
        (
            400,
            "ExpiredToken",
            CredentialsError,
            f"400 Bad Request (ExpiredToken), {TRIED}",
            "Get new credentials, then run the same command again.",
        ),
        (
            403,
            "RequestTimeTooSkewed",
            CredentialsError,
            f"403 Forbidden (RequestTimeTooSkewed), {TRIED}",
            "Set this machine's clock.",
        ),
        (404, "NoSuchBucket", MissingError, "no such bucket", ""),
        (404, "NoSuchKey", MissingError, "nothing is there", ""),
        (
            400,
            "AuthorizationHeaderMalformed",
            ReachError,
            "400 Bad Request (AuthorizationHeaderMalformed): the bucket is in another region at HOST",
            "Set AWS_REGION to the bucket's region.",
        ),
        (
            301,
            "PermanentRedirect",
            ReachError,
            "301 Moved Permanently: the bucket is in another region at HOST",
            "Set AWS_REGION to the bucket's region.",
        ),
        (410, "Gone", ReachError, "410 Gone (Gone) at HOST", ""),
    ],
)
def test_a_refusal_says_its_cause_and_the_way_out_and_is_asked_for_once(
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


def test_a_listing_that_names_what_lies_elsewhere_is_refused(cloud):
    cloud.page("/b", found(("train/a", 1), ("other/b", 1)))
    with pytest.raises(FormatError) as caught:
        list(locate("s3://b/train").list())
    assert str(caught.value) == "s3://b/train: the listing of its folder names what lies elsewhere"


def test_a_body_that_decodes_to_more_than_memory_should_hold_is_refused(web, monkeypatch):
    import gzip
    import os

    from flarecli.storage.http import transfer as slots

    monkeypatch.setattr(slots, "_DECODED", 1 << 20)
    data = os.urandom(1 << 16) * 17  # not by its ratio: what is sent grows along
    web.page("/a", gzip.compress(data, 1), Content_Encoding="gzip")
    with pytest.raises(FormatError) as caught:
        locate(web.url("/a"), Guard(limits=Limits(retries=0))).read()
    assert caught.value.message == "inflates to more than 1048576 bytes"


def found(*objects):
    """A listing, as S3 gives it."""
    one = "<Contents><Key>{}</Key><Size>{}</Size><ETag>x</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    return f"<ListBucketResult>{''.join(one.format(*each) for each in objects)}<IsTruncated>false</IsTruncated></ListBucketResult>".encode()


def test_an_empty_object_that_is_a_folder_too_is_its_mark_and_another_is_a_file(cloud):
    cloud.page("/b", found(("d/a", 5), ("d/a/x", 1), ("d/c", 0), ("d/c/y", 2), ("d/e", 0)))
    assert list(locate("s3://b/d").list()) == [("a", 5), ("a/x", 1), ("c/y", 2), ("e", 0)]


def test_another_version_is_noticed_where_a_server_ignores_the_condition(cloud):
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


def test_many_ranges_are_of_one_version_though_none_has_a_condition(cloud):
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
def test_a_write_on_condition_that_came_too_late_is_outrun(cloud, status):
    cloud.page("/b/a", b"<Error><Code>ConditionalRequestConflict</Code></Error>", status)
    cloud.server.RequestHandlerClass.do_PUT = put
    try:
        with pytest.raises(BusyError) as caught:
            locate("s3://b/a", Guard(limits=Limits(retries=0))).store.exchange("a", b"new", None)
    finally:
        del cloud.server.RequestHandlerClass.do_PUT
    assert str(caught.value) == "s3://b/a: somebody else has written there"


def put(handler):
    handler.rfile.read(int(handler.headers["Content-Length"]))
    handler.do_GET()
