"""What an answer means is decided from its head alone, and a body that lies about its encoding is an error."""

import gzip
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import FormatError, IntegrityError, MissingError, ReachError
from flarecli.storage.http.response import Answer, broken, decoded, refused

TEXT = b"what it is, before anything was done to it; " * 100


def head(*lines):
    return Answer([line.encode("latin-1") + b"\r\n" for line in lines])


def test_the_last_head_counts():
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
def test_a_content_range_is_read_strictly(text, range_, total):
    answer = head("HTTP/1.1 206 Partial Content", f"Content-Range: {text}")
    assert (answer.range, answer.total) == (range_, total)


def test_a_length_says_nothing_of_what_is_encoded():
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
def test_what_a_body_is_is_told_whatever_else_a_head_says(lines, length, total, page):
    answer = head("HTTP/1.1 200 OK", *lines, "")
    assert (answer.status, answer.version, answer.length, answer.total, answer.page) == (
        200,
        "1.1",
        length,
        total,
        page,
    )
    answer = head("HTTP/2 200", *lines, "")
    assert (answer.status, answer.version, answer.length, answer.total, answer.page) == (
        200,
        "2",
        length,
        total,
        page,
    )


def test_a_server_may_ask_for_seconds_or_name_a_date():
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
def test_no_head_is_too_strange_to_be_looked_at(lines):
    answer = Answer([b"HTTP/1.1 200 OK\r\n", *lines])
    assert answer.status >= 0
    assert answer.length is None or answer.length >= 0
    assert answer.total is None or answer.total >= 0
    assert answer.range is None or len(answer.range) == 3
    assert answer.retry_after(0.0) is None or answer.retry_after(0.0) >= 0
    assert refused(answer, b"").message


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
        (412, b"", "changed", "changed while it was read", False, False, IntegrityError),
        (204, b"", "status", "204 No Content", False, False, ReachError),
        (302, b"", "redirect", "302 Found, and no address to go on to", False, False, ReachError),
        (599, b"", "status", "status 599", False, False, ReachError),
    ],
)
def test_only_what_may_pass_is_worth_another_try(
    status, body, kind, message, passing, crowded, error
):
    fault = refused(head(f"HTTP/1.1 {status} whatever the server says"), body)
    assert (fault.kind, fault.message, fault.passing, fault.crowded, fault.error) == (
        kind,
        message,
        passing,
        crowded,
        error,
    )


def test_faults_of_the_network_are_told_without_figures():
    assert [(broken(code).message, broken(code).passing) for code in (6, 18, 56, 60, 12345)] == [
        ("the host name is not known", True),
        ("the connection ended before the answer was whole", True),
        ("the connection ended before the answer was whole", True),
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
        ),  # members follow one another
        ("deflate", zlib.compress(TEXT)),
        ("deflate", raw_deflate(TEXT)),
    ],
)
def test_encodings_are_undone(coding, data):
    assert decoded(coding, [data[:7], data[7:]], 1 << 20) == TEXT
    assert decoded(coding, [data], len(TEXT)) == TEXT
    with pytest.raises(FormatError) as caught:
        decoded(coding, [data], len(TEXT) - 1)
    assert str(caught.value) == f"inflates to more than {len(TEXT) - 1} bytes"


@pytest.mark.parametrize(
    ("coding", "data", "message"),
    [
        ("gzip", gzip.compress(TEXT)[:-1], "its gzip encoding is cut short"),
        ("gzip", gzip.compress(TEXT)[:20], "its gzip encoding is cut short"),
        ("gzip", gzip.compress(TEXT)[:-8] + bytes(8), "its gzip encoding is damaged"),
        ("gzip", gzip.compress(TEXT) + b"rest", "its gzip encoding is damaged"),
        ("deflate", zlib.compress(TEXT) + b"rest", "bytes follow its deflate encoding"),
        ("br", b"", "sent with content encoding 'br', which was not asked for"),
        ("gzip, gzip", b"", "sent with content encoding 'gzip, gzip', which was not asked for"),
        ("gzip", gzip.compress(bytes(64 << 20)), None),
    ],
)
def test_encodings_that_lie_are_errors(coding, data, message):
    with pytest.raises(FormatError) as caught:
        decoded(coding, [data], 1 << 30)
    assert str(caught.value) == (message or "inflates to more than 100 times its size")


@pytest.mark.parametrize("size", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 15 << 20])
def test_encodings_are_undone_at_the_borders_of_the_pieces(size):
    for pack, coding in (
        (gzip.compress, "gzip"),
        (zlib.compress, "deflate"),
        (raw_deflate, "deflate"),
    ):
        assert decoded(coding, [pack(bytes(size))], 1 << 30) == bytes(size)


@given(st.binary(max_size=200), st.sampled_from(["gzip", "deflate"]))
def test_any_bytes_decode_or_are_refused(data, coding):
    try:
        assert len(decoded(coding, [data], 1000)) <= 1000
    except FormatError:
        pass
