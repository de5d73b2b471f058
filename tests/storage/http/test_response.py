"""Responses are classified by their heads; a body that does not match its encoding is an error."""

from __future__ import annotations

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import FormatError, IntegrityError, MissingError, ReachError
from flarecli.storage.http.response import (
    Response,
    curl_fault,
    decode_body,
    is_settled,
    status_fault,
)

TEXT = b"what it is, before anything was done to it; " * 100


def head(*lines):
    return Response([line.encode("latin-1") + b"\r\n" for line in lines])


def test_the_last_of_several_response_heads_is_used():
    answer = head(
        "HTTP/1.1 100 Continue",
        "X: 1",
        "",
        "HTTP/1.1 206 Partial: Content",
        'ETag: "a"',
        "Content-Range: bytes 5-9/20",
        "content-LENGTH:5",
        "",
    )
    assert (answer.status, answer.etag, answer.range, answer.total, answer.length) == (
        206,
        '"a"',
        (5, 10, 20),
        20,
        5,
    )
    assert answer.get("x") == ""


@pytest.mark.parametrize(
    ("text", "range_", "total"),
    [
        ("bytes 0-0/1", (0, 1, 1), 1),
        ("bytes 0-4/*", (0, 5, None), None),
        ("bytes */7", None, 7),
        ("bytes */*", None, None),
        ("bytes 0-4", None, None),
        ("items 0-4/5", None, None),
        ("bytes -1-4/5", None, None),
        ("bytes 0-4/5, 6-7/8", None, None),
        ("bytes 0-99999999999999999999/5", None, None),
        ("", None, None),
    ],
)
def test_content_range_is_parsed_strictly(text, range_, total):
    answer = head("HTTP/1.1 206 Partial Content", f"Content-Range: {text}")
    assert (answer.range, answer.total) == (range_, total)


def test_content_length_is_not_the_size_of_an_encoded_object():
    assert head("HTTP/1.1 200 OK", "Content-Length: 5").total == 5
    assert head("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Encoding: gzip").total is None
    assert head("HTTP/1.1 200 OK", "Content-Length: 5", "Content-Encoding: identity").total == 5
    assert head("HTTP/1.1 200 OK", "Content-Length: 5", "Transfer-Encoding: chunked").length is None
    assert head("HTTP/1.1 200 OK", "Content-Length: +5").length is None
    assert head("HTTP/1.1 200 OK", 'ETag: W/"5"').etag == ""


@pytest.mark.parametrize(
    ("lines", "length", "total", "page"),
    [
        (["Content-Type: image/jpeg", "Content-Length: 5", "ETag: x"], 5, 5, False),
        (["CONTENT-LENGTH:\t7 "], 7, 7, False),
        (["Content-Length: 5", "Content-Length: 6"], 6, 6, False),
        (["Content-Length: 5", "content-length: x"], None, None, False),
        (["Content-Length : 5"], None, None, False),
        (["X-Content-Length: 5"], None, None, False),
        (["Content-Length: 1234567890123456789"], None, None, False),
        (["content-type:TEXT/HTML; charset=x", "Content-Length: 5"], 5, 5, True),
        (["Content-Length: 5", "Content-Type: application/xhtml+xml"], 5, 5, True),
        (["Content-Length: 5", "Content-Type: text/html", "Content-Type: image/png"], 5, 5, False),
        (["Content-Length: 5", "X: text/html"], 5, 5, False),
        (["Content-Range: bytes 0-4/9", "Content-Length: 5"], 5, 9, False),
    ],
)
def test_the_content_type_is_recognised_among_other_headers(lines, length, total, page):
    answer = head("HTTP/1.1 200 OK", *lines, "")
    assert (answer.status, answer.version, answer.length, answer.total, answer.is_page) == (
        200,
        "1.1",
        length,
        total,
        page,
    )
    answer = head("HTTP/2 200", *lines, "")
    assert (answer.status, answer.version, answer.length, answer.total, answer.is_page) == (
        200,
        "2",
        length,
        total,
        page,
    )


def test_retry_after_is_a_number_of_seconds_or_a_date():
    now = 784_111_777.0  # 1994-11-06 08:49:37 UTC
    for text, seconds in [
        ("120", 120),
        ("0", 0),
        ("Sun, 06 Nov 1994 08:50:37 GMT", 60),
        ("Sun, 06 Nov 1994 08:00:00 GMT", 0),
        ("soon", None),
        ("-1", None),
    ]:
        assert head("HTTP/1.1 503 Busy", f"Retry-After: {text}").retry_after(now) == seconds
    assert head("HTTP/1.1 503 Busy").retry_after(now) is None


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_any_head_is_parsed_without_an_error(lines):
    answer = Response([b"HTTP/1.1 200 OK\r\n", *lines])
    assert answer.status >= 0
    assert answer.length is None or answer.length >= 0
    assert answer.total is None or answer.total >= 0
    assert answer.range is None or len(answer.range) == 3
    assert answer.retry_after(0.0) is None or answer.retry_after(0.0) >= 0
    assert status_fault(answer, b"").message


@pytest.mark.parametrize(
    ("status", "body", "kind", "message", "passing", "crowded", "error"),
    [
        (404, b"", "missing", "404 Not Found", False, False, MissingError),
        (410, b"", "missing", "410 Gone", False, False, MissingError),
        (401, b"", "denied", "401 Unauthorized", False, False, ReachError),
        (
            403,
            b"<Error><Code>ExpiredToken</Code></Error>",
            "denied",
            "403 Forbidden (ExpiredToken)",
            False,
            False,
            ReachError,
        ),
        (
            400,
            b"<Error><Code>RequestTimeout</Code></Error>",
            "server",
            "400 Bad Request (RequestTimeout)",
            True,
            False,
            ReachError,
        ),
        (400, b"<Code>\x1b[2J</Code>", "status", "400 Bad Request", False, False, ReachError),
        (408, b"", "server", "408 Request Timeout", True, False, ReachError),
        (425, b"", "server", "425 Too Early", True, False, ReachError),
        (429, b"", "busy", "429 Too Many Requests", True, True, ReachError),
        (500, b"", "server", "500 Internal Server Error", True, False, ReachError),
        (501, b"", "status", "501 Not Implemented", False, False, ReachError),
        (
            503,
            b'<?xml version="1.0"?><Error><Code>SlowDown</Code></Error>',
            "busy",
            "503 Service Unavailable (SlowDown)",
            True,
            True,
            ReachError,
        ),
        (504, b"", "server", "504 Gateway Timeout", True, False, ReachError),
        (412, b"", "changed", "changed while it was being read", False, False, IntegrityError),
        (204, b"", "status", "204 No Content", False, False, ReachError),
        (302, b"", "redirect", "302 Found without a target", False, False, ReachError),
        (599, b"", "status", "status 599", False, False, ReachError),
    ],
)
def test_only_transient_faults_are_retried(status, body, kind, message, passing, crowded, error):
    fault = status_fault(head(f"HTTP/1.1 {status} whatever the server says"), body)
    assert (fault.kind, fault.message, fault.is_transient, fault.is_overload, fault.error) == (
        kind,
        message,
        passing,
        crowded,
        error,
    )


def test_libcurl_errors_have_messages_without_codes():
    assert [
        (curl_fault(code).message, curl_fault(code).is_transient) for code in (6, 18, 56, 60, 12345)
    ] == [
        ("cannot resolve the host name", True),
        ("the connection ended before the response was complete", True),
        ("the connection ended before the response was complete", True),
        ("the TLS certificate is not trusted", False),
        ("libcurl error 12345", False),
    ]


def raw_deflate(data):
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "data"),
    [
        ("gzip", gzip.compress(TEXT)),
        (
            "x-gzip",
            gzip.compress(TEXT[:50]) + gzip.compress(TEXT[50:]),
        ),  # several members
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
    ],
)
def test_content_encodings_are_decoded(coding, data):
    assert decode_body(coding, [data[:7], data[7:]], 1 << 20) == TEXT
    assert decode_body(coding, [data], len(TEXT)) == TEXT
    with pytest.raises(FormatError) as caught:
        decode_body(coding, [data], len(TEXT) - 1)
    assert str(caught.value) == f"decodes to more than {len(TEXT) - 1} bytes"


@pytest.mark.parametrize(
    ("coding", "data", "message"),
    [
        ("gzip", gzip.compress(TEXT)[:-1], "the gzip body is truncated"),
        ("gzip", gzip.compress(TEXT)[:20], "the gzip body is truncated"),
        ("gzip", gzip.compress(TEXT)[:-8] + bytes(8), "the gzip body is damaged"),
        ("gzip", gzip.compress(TEXT) + b"rest", "the gzip body is damaged"),
        ("deflate", zlib.compress(TEXT) + b"rest", "bytes follow the end of the deflate body"),
        ("br", b"", "unexpected content encoding 'br'"),
        ("gzip, gzip", b"", "unexpected content encoding 'gzip, gzip'"),
        ("gzip", gzip.compress(bytes(64 << 20)), None),
    ],
)
def test_invalid_content_encodings_are_errors(coding, data, message):
    with pytest.raises(FormatError) as caught:
        decode_body(coding, [data], 1 << 30)
    assert str(caught.value) == (message or "decodes to more than 100 times its size")


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 15 << 20])
def test_bodies_that_end_at_a_step_boundary_are_decoded(size):
    for pack, coding in (
        (gzip.compress, "gzip"),
        (zlib.compress, "deflate"),
        (raw_deflate, "deflate"),
    ):
        assert decode_body(coding, [pack(bytes(size))], 1 << 30) == bytes(size)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]))
def test_any_bytes_are_decoded_or_raise_a_format_error(data, coding):
    try:
        assert len(decode_body(coding, [data], 1000)) <= 1000
    except FormatError:
        pass


@pytest.mark.parametrize(("second", "settled"), [("58:59", False), ("59:00", True)])
def test_a_modification_time_identifies_a_version_after_a_minute(second, settled):
    date = f"Mon, 05 Jan 2026 23:{second} GMT"
    assert is_settled("Mon, 05 Jan 2026 23:58:00 GMT", date) is settled
