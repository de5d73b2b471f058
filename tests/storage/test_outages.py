"""Outages, overload and the retry budget: what is ridden out, for how long, and what fails at once."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

import pytest

from flarecli.errors import ReachError
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.cloud.checksums import kept_sums
from flarecli.storage.http.engine import Request
from flarecli.storage.http.request import Wanted
from flarecli.storage.http.response import Answer, Fault, broken
from flarecli.storage.http.retry import Tries
from flarecli.storage.http.scheduler import Hosts
from flarecli.storage.http.url import parse
from tests.conftest import Web

ORIGIN = "http://a.example:80"
SLOW_DOWN = Fault("busy", "503 Slow Down", passing=True, crowded=True)
SERVER = Fault("server", "500 Internal Server Error", passing=True)
REFUSED = broken(7)


def request(deadline=600.0, retry_after=None):
    made = Request(parse("http://a.example/x"), print)
    made.deadline, made.attempts = deadline, 1
    if retry_after is not None:
        lines = [b"HTTP/1.1 503 Slow Down\r\n", b"Retry-After: %d\r\n" % retry_after]
        made.answer = Answer(lines)
    return made


def next_attempt(tries, one):
    """Return when the request that was just scheduled is retried."""
    return max(due for due, _, its in tries._later if its is one)


def lasts(tries, fault, step=1):
    """Return for how many seconds a request is retried that always fails in the same way."""
    one, now = request(deadline=1e9), 0.0
    while tries.again(one, fault, now):
        now = next_attempt(tries, one)
        one.attempts += step
    return now


# -- policy, by the clock of the caller


def test_a_host_that_answered_before_is_retried_through_an_outage_of_60_s():
    hosts = Hosts()
    hosts.answered(ORIGIN)
    for _ in range(20):
        assert 60 < lasts(Tries(2, hosts), REFUSED) <= 90
        hosts.answered(ORIGIN)


def test_a_host_that_never_answered_is_given_up_within_10_s():
    for _ in range(20):
        assert lasts(Tries(100, Hosts()), REFUSED) <= 8


def test_after_a_long_outage_each_request_fails_at_once():
    hosts = Hosts()
    hosts.answered(ORIGIN)
    tries = Tries(2, hosts)
    over = lasts(tries, REFUSED)
    assert not tries.again(request(deadline=1e9), REFUSED, over + 40)
    hosts.answered(ORIGIN)
    assert tries.again(request(deadline=1e9), REFUSED, over + 41)


def test_an_outage_never_passes_the_deadline_of_an_object():
    hosts = Hosts()
    hosts.answered(ORIGIN)
    one, now, tries = request(deadline=12.0), 0.0, Tries(2, hosts)
    while tries.again(one, REFUSED, now):
        now = next_attempt(tries, one)
    assert now < 12.0


def test_no_retries_means_none_in_an_outage_too():
    hosts = Hosts()
    hosts.answered(ORIGIN)
    assert not Tries(0, hosts).again(request(), REFUSED, 0.0)


def test_slow_down_uses_up_no_budget():
    """20 % of 5,000 objects, and of the retries: 1,250 answers."""
    tries = Tries(8, Hosts())
    tries.requests = 5000
    assert all(tries.again(request(), SLOW_DOWN, i / 100) for i in range(1250))
    assert not tries.spent
    assert sum(tries.again(request(), SERVER, 20.0) for _ in range(3000)) == 2500
    assert tries.spent


@pytest.mark.parametrize(("requests", "budget"), [(10, 100), (200, 100), (300, 150)])
def test_the_budget_is_the_larger_of_100_and_half_of_the_requests(requests, budget):
    tries = Tries(8, Hosts())
    tries.requests = requests
    assert sum(tries.again(request(), SERVER, 0.0) for _ in range(1000)) == budget


def test_retry_after_counts_once_for_a_host():
    """32 requests were under way, and each answer asks for 10 seconds, the last one 9 seconds later."""
    tries = Tries(8, Hosts())
    due = []
    for i in range(32):
        one = request(retry_after=10)
        assert tries.again(one, SLOW_DOWN, i * 9 / 31)
        due.append(next_attempt(tries, one))
    assert min(due) >= 10 and max(due) <= 11.6


def test_retry_after_pauses_a_host_no_longer_than_the_deadline():
    hosts, one = Hosts(), request(deadline=12.0, retry_after=3600)
    hosts.put(request())
    assert not Tries(8, hosts).again(one, SLOW_DOWN, 0.0)
    assert hosts.next_due(0.0) <= 12.0


# -- with real servers


class Outage:
    """A server that is closed after its first answers, and opened again at the same port."""

    def __init__(self, web, seconds):
        self.web, self.seconds, self.again = web, seconds, None

    def begin(self):
        self.web.server.shutdown()
        self.web.server.server_close()
        threading.Timer(self.seconds, self.end).start()

    def end(self):
        self.again = Web(self.web.port)
        self.again.pages = self.web.pages


def closing(handler, status=200, body=b"whole", **headers):
    handler.answer(status, body, Connection="close", **headers)


def test_a_web_server_that_is_closed_for_a_while_is_waited_for(engine):
    web = Web()
    web.pages["/a"] = lambda handler, times: closing(handler)
    one, arrived = engine(retries=1, deadline_s=60.0), SimpleQueue()

    def fetch(count):
        found = [Request(parse(web.url("/a")), arrived.put, private=True) for _ in range(count)]
        one.submit(found)
        return [arrived.get(timeout=30) for _ in found]

    assert fetch(1)[0].data == b"whole"
    outage = Outage(web, 2.5)
    outage.begin()
    try:
        done = fetch(300)
    finally:
        if outage.again is None:
            outage.end()
        outage.again.close()
    assert {(found.fault, found.data) for found in done} == {(None, b"whole")}
    assert not one.spent


def test_a_bucket_that_is_closed_for_a_while_is_waited_for(no_cloud, monkeypatch):
    web = Web()
    modified = "Wed, 21 Oct 2015 07:28:00 GMT"
    web.pages["/b/a"] = web.pages["/b/c"] = lambda handler, times: closing(
        handler, ETag='"one"', Last_Modified=modified
    )
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    guard = Guard(limits=Limits(retries=1, deadline_s=60.0))
    at = locate("s3://b/a", guard)
    assert at.read() == b"whole"
    outage = Outage(web, 2.5)
    outage.begin()
    try:
        # a store of its own, as each row of an index opens one
        assert locate("s3://b/c", guard).read() == b"whole"
    finally:
        if outage.again is None:
            outage.end()
        outage.again.close()


def test_many_objects_of_a_server_that_was_never_reached_fail_soon(engine):
    web = Web()
    web.close()
    url, rang = web.url("/a"), threading.Event()
    address = parse(url)
    found = [None] * 100
    many = Wanted(
        [url] * 100, [address.origin] * 100, {}, found, rang.set, named=frozenset([address.origin])
    )
    one = engine(retries=1, deadline_s=60.0)
    many.awaited = 99
    one.want(many)
    assert rang.wait(60)
    assert {fault.kind for fault in found if fault is not None} == {"connect"}


def test_a_proxy_that_refuses_to_connect_is_no_outage_of_the_host(engine, monkeypatch):
    """Its answer is not the host's: as many retries as were asked for, and no more."""
    asked = []

    class Proxy(BaseHTTPRequestHandler):
        def do_CONNECT(self):
            asked.append(self.path)
            self.send_error(403)

        def log_message(self, *args):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setenv("https_proxy", f"http://127.0.0.1:{server.server_address[1]}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    arrived = SimpleQueue()
    wanted = Request(parse("https://127.0.0.1:1/a"), arrived.put, private=True)
    try:
        engine(retries=2, deadline_s=20.0).submit([wanted])
        fault = arrived.get(timeout=60).fault
    finally:
        server.shutdown()
        server.server_close()
    assert fault is not None and len(asked) == 3


def test_slow_down_in_a_fifth_of_the_answers_fails_no_object(web, engine):
    lock, asked = threading.Lock(), [0]

    def page(handler, times):
        with lock:
            asked[0] += 1
            number = asked[0]
        if number % 5 == 0:
            handler.answer(503, b"<Error><Code>SlowDown</Code></Error>")
        else:
            handler.answer(200, b"whole")

    web.pages["/a"] = page
    one, arrived = engine(retries=8, deadline_s=60.0), SimpleQueue()
    wanted = [Request(parse(web.url("/a")), arrived.put, private=True) for _ in range(300)]
    begin = time.monotonic()
    one.submit(wanted)
    done = [arrived.get(timeout=60) for _ in wanted]
    assert {found.fault for found in done} == {None}
    assert asked[0] > 350 and time.monotonic() - begin < 60


def test_a_checksum_that_is_refused_once_is_asked_for_again(web, no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")
    web.pages["/b/a"] = lambda handler, times: (
        handler.answer(503, b"")
        if times == 1
        else handler.answer(200, b"", x_amz_checksum_crc32="AAAAAA==")
    )
    assert kept_sums(locate("s3://b/a")).hashes == {"crc32": "00000000"}
    assert web.asked["/b/a"] == 2
    web.pages["/b/b"] = lambda handler, times: handler.answer(403, b"")
    assert kept_sums(locate("s3://b/b")).why_not == "it answers 403"
    assert web.asked["/b/b"] == 1


def test_a_bucket_that_was_never_reached_fails(no_cloud, monkeypatch):
    web = Web()
    web.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    with pytest.raises(ReachError) as caught:
        locate("s3://b/a", Guard(limits=Limits(retries=1))).read()
    assert "the connection is refused" in caught.value.message


def test_a_host_that_refuses_some_requests_at_random_is_not_slowed_down_without_end():
    """Few transfers at a time: four successes between two refusals, a pause after each."""
    hosts, now = Hosts(), 0.0
    for order in range(3000):
        hosts.put(Request(parse("http://a.example/"), print, order=order))
    for number in range(1, 3001):
        while hosts.pick(now) is None:
            now = hosts.next_due(now)
        now += 0.05
        if number % 5:
            hosts.went_well(ORIGIN)
        else:
            hosts.hold_back(ORIGIN, now, 0.5)
    assert now < 3000 * 0.05 + 600 * 0.5


def test_a_host_that_refuses_nearly_all_requests_is_slowed_down():
    hosts, now = Hosts(), 0.0
    for order in range(1000):
        hosts.put(Request(parse("http://a.example/"), print, order=order))
    for _ in range(1000):
        while hosts.pick(now) is None:
            now = hosts.next_due(now)
        hosts.hold_back(ORIGIN, now, 0.0)
    assert now > 1000
