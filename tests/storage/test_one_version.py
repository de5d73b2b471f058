"""Two versions of a file are never one: what was given of the first may not go on with the second, however the change is told."""

from __future__ import annotations

import pytest

from flarecli.errors import IntegrityError
from flarecli.storage import locate

ONE, TWO = b"a" * 3_000_000, b"b" * 3_000_000
MONDAY, TUESDAY = "Mon, 05 Jan 2026 00:00:00 GMT", "Tue, 06 Jan 2026 00:00:00 GMT"


def served(web, heads, bodies=(ONE, TWO)):
    """A file that breaks off after its first megabyte, and is another one then."""

    def page(handler, times):
        head, body = heads[min(times, 2) - 1], bodies[min(times, 2) - 1]
        if "ETag" in head and handler.headers.get("If-Match", head["ETag"]) != head["ETag"]:
            return handler.answer(412)
        start = int(handler.headers["Range"].removeprefix("bytes=").partition("-")[0])
        handler.send_response(206)
        for name, value in {
            **head,
            "Content-Range": f"bytes {start}-{len(body) - 1}/{len(body)}",
            "Content-Length": len(body) - start,
        }.items():
            handler.send_header(name, str(value))
        handler.end_headers()
        handler.wfile.write(body[start : start + 1_000_000] if times == 1 else body[start:])
        if times == 1:
            handler.reset()
        return None

    web.pages["/a"] = page
    return locate(web.url("/a"))


@pytest.mark.parametrize(
    ("heads", "bodies"),
    [
        (({"ETag": '"one"'}, {"ETag": '"two"'}), (ONE, TWO)),
        (
            (
                {"ETag": 'W/"one"', "Last-Modified": MONDAY},
                {"ETag": 'W/"two"', "Last-Modified": TUESDAY},
            ),
            (ONE, TWO),
        ),
        (({}, {}), (ONE, TWO + b"b")),
    ],
)
def test_a_stream_does_not_go_on_with_another_version(web, heads, bodies):
    at = served(web, heads, bodies)
    came = b""
    with pytest.raises(IntegrityError) as caught:
        for block in at.blocks(len(ONE)):
            came += block
    assert caught.value.message == "changed while it was read"
    assert came == ONE[: len(came)]


@pytest.mark.parametrize("second", [{"ETag": '"one"', "Last-Modified": MONDAY}, {"ETag": '"one"'}])
def test_a_stream_goes_on_with_the_same_version(web, second):
    at = served(web, [{"ETag": '"one"', "Last-Modified": MONDAY}, second], (ONE, ONE))
    assert b"".join(at.blocks(len(ONE))) == ONE
    assert "if-match" not in web.requests[0][1]
    assert web.requests[-1][1]["if-match"] == '"one"'
