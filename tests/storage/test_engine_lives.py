"""What one server does ends one transfer: the thread that makes all of them goes on, and children of a fork have connections of their own."""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue

import pytest

from flarecli.errors import IntegrityError
from flarecli.storage import locate
from flarecli.storage.cloud import checksums as object_sums
from flarecli.storage.http.engine import Request
from flarecli.storage.http.url import parse
from flarecli.storage.versions import Pins

DATA = bytes(range(256)) * 4096


def test_a_paused_object_that_turns_out_too_large_fails_alone(web, engine):
    held = threading.Event()

    def endless(handler, times):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for _ in range(64):
            handler.wfile.write(b"10000\r\n" + bytes(1 << 16) + b"\r\n")
        held.wait(60)

    web.pages["/a"] = endless
    web.page("/b", b"whole")
    one = engine(ahead_bytes=140_000, max_bytes=150_000)
    arrived = SimpleQueue()
    large, other = (
        Request(parse(web.url(path)), arrived.put, private=True, order=order)
        for path, order in (("/a", 5), ("/b", 6))
    )
    one.submit([large])
    for _ in range(6000):
        if one._window.paused:
            break
        held.wait(0.01)
    one.release(0, 5)
    assert arrived.get(timeout=60) is large
    assert (large.fault.kind, large.fault.message) == (
        "large",
        "larger than the limit of 150000 bytes",
    )
    one.submit([other])
    assert arrived.get(timeout=60).data == b"whole"
    held.set()


def test_a_forked_process_asks_for_sums_on_a_connection_of_its_own(web):
    callers = set()

    def page(handler, times):
        callers.add(handler.client_address)
        handler.answer(200)

    web.pages["/a"] = page
    for _ in range(2):
        assert object_sums._asked(web.url("/a"), {}, 5).status == 200
    assert len(callers) == 1
    child = os.fork()
    if not child:
        answer = object_sums._asked(web.url("/a"), {}, 5)
        os._exit(0 if answer is not None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert len(callers) == 2
    assert object_sums._asked(web.url("/a"), {}, 5).status == 200
    assert len(callers) == 2


@pytest.fixture
def forgetful(monkeypatch):
    """Stores in which other threads have read more objects than are remembered, between any two requests."""
    for name, real in (("check", Pins.check), ("pin", Pins.pin)):

        def forget(self, path, *more, real=real):
            pin = real(self, path, *more)
            self.clear()
            return pin

        monkeypatch.setattr(Pins, name, forget)


def test_a_version_is_known_for_as_long_as_one_read_lasts(web, forgetful):
    at = locate(
        web.file(
            "/a", lambda times: bytes([min(times, 2)]) * 900_000, lambda times: f'"{min(times, 2)}"'
        )
    )
    assert at.read_many([(0, 10), (400_000, 400_010), (800_000, 800_010)]) == 3 * [
        bytes([2]) * 10
    ]  # begun again
    other = locate(web.file("/b", DATA, '"one"'))
    assert (other.size(), other.store.version(other.path)) == (len(DATA), ('"one"', len(DATA)))


def test_a_version_of_an_object_is_known_for_as_long_as_one_read_lasts(
    web, no_cloud, monkeypatch, forgetful
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    body = {"Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    tag = {1: '"1"'}

    def page(handler, times):
        etag = tag.get(times, '"2"')
        if handler.headers.get("If-Match", etag) != etag:
            return handler.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", ETag=etag)
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        data = DATA[start : stop + 1]
        return handler.answer(
            206, data, ETag=etag, Content_Range=f"bytes {start}-{stop}/{len(DATA)}", **body
        )

    web.pages["/b/a"] = page
    at = locate("s3://b/a")
    with pytest.raises(IntegrityError):
        at.store._many("a", [(0, 10), (400_000, 400_010), (800_000, 800_010)])
    assert at.store.read_many("a", [(0, 10), (400_000, 400_010)]) == [
        DATA[:10],
        DATA[400_000:400_010],
    ]


def test_a_version_of_an_object_is_known_for_as_long_as_it_is_read_through(
    web, no_cloud, monkeypatch, forgetful
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr("flarecli.storage.cloud.store._READ", 1 << 16)

    def page(handler, times):
        etag = '"1"' if times < 4 else '"2"'
        if handler.headers.get("If-Match", etag) != etag:
            return handler.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", ETag=etag)
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        more = {
            "ETag": etag,
            "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content_Range": f"bytes {start}-{stop}/{len(DATA)}",
        }
        return handler.answer(206, DATA[start : stop + 1], **more)

    web.pages["/b/a"] = page
    with pytest.raises(IntegrityError):
        list(locate("s3://b/a").blocks(len(DATA)))
