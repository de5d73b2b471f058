"""What stores say when they refuse, as S3 and its like say it, and what flare makes of it: the cause, and the way out."""

from __future__ import annotations

import re

import pytest

from flarecli.errors import CredentialsError, FlareError, FormatError, MissingError, ReachError
from flarecli.storage import Guard, Limits, locate

ACCESS = "Check the credentials, and that they may do this; some stores also answer so for what is not there."
TRIED = "tried with the key in AWS_ACCESS_KEY_ID at HOST"


@pytest.fixture
def cloud(web, no_cloud, monkeypatch):
    """A web server that stands for S3, asked with a key."""
    for name, value in {"AWS_ENDPOINT_URL": web.url(""), "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE", "AWS_SECRET_ACCESS_KEY": "verysecret"}.items():
        monkeypatch.setenv(name, value)
    return web


@pytest.mark.parametrize(
    ("status", "code", "kind", "message", "hint"),
    [
        (403, "InvalidObjectState", ReachError, f"403 Forbidden (InvalidObjectState), {TRIED}", "The object is archived: restore it first."),
        (403, "AccessDenied", ReachError, f"403 Forbidden (AccessDenied), {TRIED}", ACCESS),
        (400, "ExpiredToken", CredentialsError, f"400 Bad Request (ExpiredToken), {TRIED}", "Get new credentials, then run the same command again."),
        (403, "RequestTimeTooSkewed", CredentialsError, f"403 Forbidden (RequestTimeTooSkewed), {TRIED}", "Set this machine's clock."),
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
def test_a_refusal_says_its_cause_and_the_way_out_and_is_asked_for_once(cloud, status, code, kind, message, hint):
    cloud.page("/b/a", f"<?xml version='1.0'?><Error><Code>{code}</Code><Key>AKIDEXAMPLE</Key></Error>".encode(), status)
    with pytest.raises(FlareError) as caught:
        locate("s3://b/a").read()
    assert type(caught.value) is kind
    told = re.sub(r"http://127\.0\.0\.1:\d+", "HOST", str(caught.value))
    assert (told, caught.value.hint) == (f"s3://b/a: {message}", hint)
    assert cloud.asked["/b/a"] == 1


def test_a_listing_that_names_what_lies_elsewhere_is_refused(cloud):
    found = "<Contents><Key>{}</Key><Size>1</Size><ETag>x</ETag><LastModified>2026-01-01T00:00:00.000Z</LastModified></Contents>"
    keys = ("train/a", "other/b")
    body = f"<ListBucketResult>{''.join(map(found.format, keys))}<IsTruncated>false</IsTruncated></ListBucketResult>"
    cloud.page("/b", body.encode())
    with pytest.raises(FormatError) as caught:
        list(locate("s3://b/train").list())
    assert str(caught.value) == "s3://b/train: the listing of its folder names what lies elsewhere"


def test_a_body_that_decodes_to_more_than_memory_should_hold_is_refused(web, monkeypatch):
    import gzip
    import os

    from flarecli.storage import slots

    monkeypatch.setattr(slots, "_DECODED", 1 << 20)
    data = os.urandom(1 << 16) * 17  # not by its ratio: what is sent grows along
    web.page("/a", gzip.compress(data, 1), Content_Encoding="gzip")
    with pytest.raises(FormatError) as caught:
        locate(web.url("/a"), Guard(limits=Limits(retries=0))).read()
    assert caught.value.message == "inflates to more than 1048576 bytes"
