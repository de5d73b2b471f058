"""Batches of requests: each outcome is stored at its position, as if it had been requested
alone.
"""

import os
import threading
import time

from flarecli.storage import Guard
from flarecli.storage.http.engine import BatchRequest, Engine, Fault, Page
from flarecli.storage.http.scheduler import HostQueues
from flarecli.storage.http.url import parse

BODY = os.urandom(20_000)


def wanted(urls, arrived=lambda: None, guard=None, **more):
    """Return a batch for some addresses; nothing is requested for None."""
    addresses = [None if url is None else parse(url) for url in urls]
    users = {i: one.user for i, one in enumerate(addresses) if one and one.user}
    found = [None if url else "mine" for url in urls]
    columns = (
        [one.url if one else "" for one in addresses],
        [one.origin if one else "" for one in addresses],
        users,
    )
    return BatchRequest(
        *columns, found, arrived, guard or Guard(named=frozenset(columns[1])), **more
    )


def fetched(engine, urls, **more):
    """Fetch addresses; wait for the last one, then for the others."""
    rang = threading.Semaphore(0)
    many = wanted(urls, rang.release, **more)
    engine.submit_batch(many)
    for place in reversed(range(len(urls))):
        many.awaited = place
        while many.outcomes[place] is None:
            assert rang.acquire(timeout=60)
    return many.outcomes


def test_each_outcome_is_stored_at_its_position(web, other_web, engine):
    def serve(handler, times):
        handler.answer(200, b"body " + handler.path.encode())

    web.pages["/a"] = other_web.pages["/a"] = serve
    webs = [web if i % 3 else other_web for i in range(200)]
    urls = [None if i % 17 == 5 else webs[i].url(f"/a?{i}") for i in range(200)]
    found = fetched(engine(), urls)
    assert found == ["mine" if url is None else b"body /a?%d" % i for i, url in enumerate(urls)]


def test_faults_redirects_and_pages_do_not_affect_other_objects(web, engine):
    web.file("/a", BODY)
    web.page("/moved", b"", status=302, Location="/a")
    web.page("/page", b"<html>", Content_Type="text/html; charset=utf-8")
    web.page("/empty", b"")
    urls = [
        web.url(f"/{name}")
        for name in ("a", "missing", "a", "moved", "a", "page", "a", "empty", "a") * 5
    ]
    found = fetched(engine(jobs=2), urls)
    for i in range(0, len(urls), 9):
        missing, moved, page, empty = found[i + 1 : i + 9 : 2]
        assert isinstance(missing, Fault) and (missing.kind, missing.message) == (
            "missing",
            "404 Not Found",
        )
        assert (moved, page, empty) == (BODY, Page(b"<html>"), b"")
        assert set(found[i : i + 9 : 2]) == {BODY}


def test_a_retried_object_is_delivered_like_the_others(web, engine, monkeypatch):
    monkeypatch.setattr("flarecli.storage.http.scheduler.BASE_DELAY_S", 0.001)

    def serve(handler, times):
        handler.answer(503 if times == 1 else 200, handler.path.encode())

    for i in range(30):
        web.pages[f"/{i}"] = serve
    one = engine(jobs=4)
    assert fetched(one, [web.url(f"/{i}") for i in range(30)]) == [b"/%d" % i for i in range(30)]


def test_an_overloaded_host_that_becomes_due_during_a_delay_is_retried(web, engine, monkeypatch):
    """A busy machine may stop the thread between the start of requests and its wait."""
    monkeypatch.setattr("flarecli.storage.http.scheduler.BASE_DELAY_S", 0.001)
    reckoned = Engine._timeout

    def held_up(self):
        if not self._active:
            time.sleep(0.05)  # longer than the delay of an overloaded host
        return reckoned(self)

    monkeypatch.setattr(Engine, "_timeout", held_up)
    web.pages["/a"] = lambda handler, times: handler.answer(503 if times == 1 else 200, b"a")
    assert fetched(engine(jobs=1), [web.url("/a")] * 3) == [b"a"] * 3


def test_passwords_are_sent_only_for_their_objects(web, engine):
    seen = {}

    def serve(handler, times):
        seen[handler.path] = handler.headers.get("Authorization")
        handler.answer(200, b"x")

    for i in range(12):
        web.pages[f"/{i}"] = serve
    fetched(
        engine(jobs=1), [web.url(f"/{i}", "me:secret" if i % 3 == 1 else "") for i in range(12)]
    )
    assert [seen[f"/{i}"] is not None for i in range(12)] == [i % 3 == 1 for i in range(12)]


def test_private_addresses_need_the_guard(web, engine):
    web.file("/a", BODY)
    url, origin = web.url("/a"), parse(web.url("/a")).origin
    web.page("/away", b"", status=302, Location="http://127.0.0.2:1/")
    assert fetched(engine(), [url] * 3) == [BODY] * 3
    hosts = (f"127.0.0.1:{web.port}",)
    assert fetched(engine(), [url] * 3, guard=Guard(allow_hosts=hosts)) == [BODY] * 3
    assert fetched(engine(), [url] * 3, guard=Guard(named=frozenset([origin]))) == [BODY] * 3
    assert fetched(engine(), [url] * 3, guard=Guard(allow_private=True)) == [BODY] * 3
    assert {one.kind for one in fetched(engine(), [url] * 3, guard=Guard())} == {"unsafe"}
    assert [one.kind for one in fetched(engine(), [web.url("/away")])] == ["unsafe"]


def test_the_awaited_object_arrives_when_the_window_is_full(web, engine):
    web.file("/a", BODY)
    one, rang = engine(ahead_bytes=30_000, jobs=4), threading.Semaphore(0)
    many = wanted([web.url("/a")] * 40, rang.release, first=100)
    one.submit_batch(many)
    for place in range(40):
        many.awaited = place
        one.release(len(BODY) if place else 0, 100 + place)
        while many.outcomes[place] is None:
            assert rang.acquire(timeout=60)
        assert many.outcomes[place] == BODY
        assert sum(found is not None for found in many.outcomes) <= place + 6


def test_a_crash_of_the_thread_fails_the_whole_batch(web, engine, monkeypatch):
    web.file("/a", BODY)
    monkeypatch.setattr("flarecli.storage.http.transfer.Handle.finish", lambda self, code: 1 // 0)
    found = fetched(engine(), [web.url("/a"), None, web.url("/a")])
    assert [one if isinstance(one, str) else (one.kind, one.message) for one in found] == [
        ("bug", "ZeroDivisionError: integer division or modulo by zero"),
        "mine",
        ("bug", "ZeroDivisionError: integer division or modulo by zero"),
    ]


def test_batches_and_single_requests_start_in_their_order():
    hosts, many = (
        HostQueues(),
        wanted(["http://a.example/1", None, "http://b.example/2", "http://a.example/3"], first=10),
    )
    assert hosts.put_batch(many) == 3
    picked = []
    while (one := hosts.pick(0.0)) is not None:
        hosts.count(one.origin, 1)
        picked.append((one.address.url, one.order, one.index))
    assert picked == [
        ("http://a.example/1", 10, 0),
        ("http://b.example/2", 12, 2),
        ("http://a.example/3", 13, 3),
    ]


def test_a_reused_handle_keeps_no_state_of_the_last_object(web, engine):
    """One handle for all: a body after a web page, an error, a body that is too large, and one
    without a length.
    """
    web.file("/a", BODY)
    web.file("/large", BODY * 3)
    web.page("/page", b"<html>", Content_Type="text/html")
    urls = [
        web.url(f"/{name}")
        for name in ("a", "a", "large", "a", "a", "page", "a", "missing", "a", "a")
    ]
    found = fetched(engine(jobs=1, max_bytes=2 * len(BODY)), urls)
    assert [one.kind if isinstance(one, Fault) else one for one in found] == [
        *(BODY, BODY, "large", BODY, BODY, Page(b"<html>"), BODY, "missing", BODY, BODY),
    ]


def test_an_unusable_address_in_a_batch_fails_alone(web, engine):
    web.file("/a", BODY)
    urls = [web.url("/a")] * 3 + [web.url("/" + "x" * 9_000_000)] + [web.url("/a")] * 3
    found = fetched(engine(jobs=1), urls)
    assert found[3].kind == "address" and found[:3] + found[4:] == [BODY] * 6
