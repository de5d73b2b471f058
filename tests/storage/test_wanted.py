"""Many objects that are wanted at once: each is found in its place, as if it had been asked for alone."""

import os
import threading
import time

from flarecli.storage.http.engine import Engine, Fault, Page, Wanted
from flarecli.storage.http.scheduler import Hosts
from flarecli.storage.http.url import parse

BODY = os.urandom(20_000)


def wanted(urls, arrived=lambda: None, **more):
    """Want some addresses; None: nothing is asked for there."""
    addresses = [None if url is None else parse(url) for url in urls]
    users = {i: one.user for i, one in enumerate(addresses) if one and one.user}
    found = [None if url else "mine" for url in urls]
    columns = (
        [one.url if one else "" for one in addresses],
        [one.origin if one else "" for one in addresses],
        users,
    )
    return Wanted(*columns, found, arrived, **{"named": frozenset(columns[1]), **more})


def fetched(engine, urls, **more):
    """Fetch addresses, waiting for the last that is asked for, then for all others."""
    rang = threading.Semaphore(0)
    many = wanted(urls, rang.release, **more)
    engine.want(many)
    for place in reversed(range(len(urls))):
        many.awaited = place
        while many.found[place] is None:
            assert rang.acquire(timeout=60)
    return many.found


def test_each_object_is_found_in_its_place(web, other_web, engine):
    def serve(handler, times):
        handler.answer(200, b"body " + handler.path.encode())

    web.pages["/a"] = other_web.pages["/a"] = serve
    webs = [web if i % 3 else other_web for i in range(200)]
    urls = [None if i % 17 == 5 else webs[i].url(f"/a?{i}") for i in range(200)]
    found = fetched(engine(), urls)
    assert found == ["mine" if url is None else b"body /a?%d" % i for i, url in enumerate(urls)]


def test_a_failure_a_redirect_and_a_page_change_no_other_object(web, engine):
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


def test_one_that_was_tried_again_is_like_the_others(web, engine, monkeypatch):
    monkeypatch.setattr("flarecli.storage.http.retry.WAIT_S", 0.001)

    def serve(handler, times):
        handler.answer(503 if times == 1 else 200, handler.path.encode())

    for i in range(30):
        web.pages[f"/{i}"] = serve
    one = engine(jobs=4)
    assert fetched(one, [web.url(f"/{i}") for i in range(30)]) == [b"/%d" % i for i in range(30)]


def test_a_crowded_host_whose_time_comes_while_the_thread_is_held_up_is_asked_again(
    web, engine, monkeypatch
):
    """A busy machine may stop the thread between its look at what may be started and its wait."""
    monkeypatch.setattr("flarecli.storage.http.retry.WAIT_S", 0.001)
    reckoned = Engine._timeout

    def held_up(self):
        if not self._active:
            time.sleep(0.05)  # more than a crowded host's pace
        return reckoned(self)

    monkeypatch.setattr(Engine, "_timeout", held_up)
    web.pages["/a"] = lambda handler, times: handler.answer(503 if times == 1 else 200, b"a")
    assert fetched(engine(jobs=1), [web.url("/a")] * 3) == [b"a"] * 3


def test_passwords_go_to_their_own_objects_only(web, engine):
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


def test_private_addresses_only_where_the_caller_names_them(web, engine):
    web.file("/a", BODY)
    url, origin = web.url("/a"), parse(web.url("/a")).origin
    web.page("/away", b"", status=302, Location="http://127.0.0.2:1/")
    assert fetched(engine(), [url] * 3) == [BODY] * 3
    hosts = (f"127.0.0.1:{web.port}",)
    assert fetched(engine(), [url] * 3, named=frozenset(), hosts=hosts) == [BODY] * 3
    assert fetched(engine(), [url] * 3, named=frozenset([origin])) == [BODY] * 3
    assert fetched(engine(), [url] * 3, named=frozenset(), private=True) == [BODY] * 3
    assert {one.kind for one in fetched(engine(), [url] * 3, named=frozenset())} == {"unsafe"}
    assert [one.kind for one in fetched(engine(), [web.url("/away")])] == ["unsafe"]


def test_the_next_one_needed_comes_when_there_is_no_room(web, engine):
    web.file("/a", BODY)
    one, rang = engine(ahead_bytes=30_000, jobs=4), threading.Semaphore(0)
    many = wanted([web.url("/a")] * 40, rang.release, first=100)
    one.want(many)
    for place in range(40):
        many.awaited = place
        one.release(len(BODY) if place else 0, 100 + place)
        while many.found[place] is None:
            assert rang.acquire(timeout=60)
        assert many.found[place] == BODY
        assert sum(found is not None for found in many.found) <= place + 6


def test_a_mistake_in_the_thread_is_told_to_all_that_waits(web, engine, monkeypatch):
    web.file("/a", BODY)
    monkeypatch.setattr("flarecli.storage.http.transfer.Slot.finish", lambda self, code: 1 // 0)
    found = fetched(engine(), [web.url("/a"), None, web.url("/a")])
    assert [one if isinstance(one, str) else (one.kind, one.message) for one in found] == [
        ("bug", "ZeroDivisionError: integer division or modulo by zero"),
        "mine",
        ("bug", "ZeroDivisionError: integer division or modulo by zero"),
    ]


def test_many_objects_wait_in_their_order_among_single_requests():
    hosts, many = (
        Hosts(),
        wanted(["http://a.example/1", None, "http://b.example/2", "http://a.example/3"], first=10),
    )
    assert hosts.put_all(many) == 3
    picked = []
    while (one := hosts.pick(0.0)) is not None:
        hosts.count(one.origin, 1)
        picked.append((one.url, one.order, one.place))
    assert picked == [
        ("http://a.example/1", 10, 0),
        ("http://b.example/2", 12, 2),
        ("http://a.example/3", 13, 3),
    ]


def test_what_one_object_met_is_not_carried_to_the_next(web, engine):
    """One handle for all: a plain body after a page, a part of an error, one that was too large, one without a length."""
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


def test_an_address_that_cannot_be_asked_among_many(web, engine):
    web.file("/a", BODY)
    urls = [web.url("/a")] * 3 + [web.url("/" + "x" * 9_000_000)] + [web.url("/a")] * 3
    found = fetched(engine(jobs=1), urls)
    assert found[3].kind == "address" and found[:3] + found[4:] == [BODY] * 6
