"""The scheduler: order of hosts, outages, overload, and the retry budget."""

from __future__ import annotations

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

import pytest

from flarecli.errors import ReachError
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.cloud.checksums import stored_checksums
from flarecli.storage.http.engine import Request
from flarecli.storage.http.ip_guard import PUBLIC, Permit
from flarecli.storage.http.request import BatchRequest
from flarecli.storage.http.response import Fault, Response, curl_fault
from flarecli.storage.http.scheduler import HostQueues, RetryQueue
from flarecli.storage.http.url import parse
from tests.conftest import Web
from tests.servers import free_port, stop_server

ORIGIN = "http://a.example:80"


SLOW_DOWN = Fault("busy", "503 Slow Down", is_transient=True, is_overload=True)


SERVER = Fault("server", "500 Internal Server Error", is_transient=True)


REFUSED = curl_fault(7)


def request(deadline=600.0, retry_after=None):
    made = Request(parse("http://a.example/x"), print, Guard())
    made.deadline, made.attempts = deadline, 1
    if retry_after is not None:
        lines = [b"HTTP/1.1 503 Slow Down\r\n", b"Retry-After: %d\r\n" % retry_after]
        made.response = Response(lines)
    return made


def next_attempt(tries, one):
    """Return when the request that was just scheduled is retried."""
    return max(due for due, _, its in tries._scheduled if its is one)


def lasts(tries, fault, step=1):
    """Return the seconds for which a request with a constant fault is retried."""
    one, now = request(deadline=1e9), 0.0
    while tries.schedule(one, fault, now):
        now = next_attempt(tries, one)
        one.attempts += step
    return now


def test_a_host_that_responded_before_is_retried_through_an_outage_of_60_s():
    hosts = HostQueues()
    hosts.responded(ORIGIN)
    for _ in range(20):
        assert 60 < lasts(RetryQueue(2, hosts), REFUSED) <= 90
        hosts.responded(ORIGIN)


def test_a_host_that_never_responded_fails_within_10_s():
    for _ in range(20):
        assert lasts(RetryQueue(100, HostQueues()), REFUSED) <= 8


def test_after_a_long_outage_each_request_fails_at_once():
    hosts = HostQueues()
    hosts.responded(ORIGIN)
    tries = RetryQueue(2, hosts)
    over = lasts(tries, REFUSED)
    assert not tries.schedule(request(deadline=1e9), REFUSED, over + 40)
    hosts.responded(ORIGIN)
    assert tries.schedule(request(deadline=1e9), REFUSED, over + 41)


def test_an_outage_never_passes_the_deadline_of_an_object():
    hosts = HostQueues()
    hosts.responded(ORIGIN)
    one, now, tries = request(deadline=12.0), 0.0, RetryQueue(2, hosts)
    while tries.schedule(one, REFUSED, now):
        now = next_attempt(tries, one)
    assert now < 12.0


def test_without_retries_an_outage_is_not_retried():
    hosts = HostQueues()
    hosts.responded(ORIGIN)
    assert not RetryQueue(0, hosts).schedule(request(), REFUSED, 0.0)


def test_slow_down_does_not_use_up_the_retry_budget():
    """20 % of 5,000 objects and of their retries: 1,250 responses."""
    tries = RetryQueue(8, HostQueues())
    tries.request_count = 5000
    assert all(tries.schedule(request(), SLOW_DOWN, i / 100) for i in range(1250))
    assert not tries.budget_exhausted
    assert sum(tries.schedule(request(), SERVER, 20.0) for _ in range(3000)) == 2500
    assert tries.budget_exhausted


@pytest.mark.parametrize(("requests", "budget"), [(10, 100), (200, 100), (300, 150)])
def test_the_budget_is_the_larger_of_100_and_half_of_the_requests(requests, budget):
    tries = RetryQueue(8, HostQueues())
    tries.request_count = requests
    assert sum(tries.schedule(request(), SERVER, 0.0) for _ in range(1000)) == budget


def test_retry_after_counts_once_for_a_host():
    """32 requests were in flight, and each response asks for 10 seconds, the last one 9 seconds
    later.
    """
    tries = RetryQueue(8, HostQueues())
    due = []
    for i in range(32):
        one = request(retry_after=10)
        assert tries.schedule(one, SLOW_DOWN, i * 9 / 31)
        due.append(next_attempt(tries, one))
    assert min(due) >= 10 and max(due) <= 11.6


def test_retry_after_does_not_pause_a_host_beyond_the_deadline():
    hosts, one = HostQueues(), request(deadline=12.0, retry_after=3600)
    hosts.put(request())
    assert not RetryQueue(8, hosts).schedule(one, SLOW_DOWN, 0.0)
    assert hosts.next_due(0.0) <= 12.0


class Outage:
    """A server that is closed after its first responses, and started again at the same port."""

    def __init__(self, web, seconds):
        self.web, self.seconds, self.again = web, seconds, None

    def begin(self):
        stop_server(self.web.server)
        self.web.server.server_close()
        threading.Timer(self.seconds, self.end).start()

    def end(self):
        self.again = Web(self.web.port)
        self.again.pages = self.web.pages


def closing(handler, status=200, body=b"whole", **headers):
    handler.answer(status, body, Connection="close", **headers)


def test_a_web_server_that_restarts_is_retried(engine):
    web = Web(free_port())  # no other socket takes it while the server is down
    web.pages["/a"] = lambda handler, times: closing(handler)
    one, arrived = engine(retries=1, deadline_s=60.0), SimpleQueue()

    def fetch(count):
        found = [
            Request(parse(web.url("/a")), arrived.put, Guard(allow_private=True))
            for _ in range(count)
        ]
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
    assert not one.budget_exhausted


def test_an_object_store_that_restarts_is_retried(no_cloud, monkeypatch):
    web = Web(free_port())  # no other socket takes it while the server is down
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
        # a store of its own, like each row of an index
        assert locate("s3://b/c", guard).read() == b"whole"
    finally:
        if outage.again is None:
            outage.end()
        outage.again.close()


def test_all_objects_of_an_unreachable_server_fail_soon(engine):
    web = Web(free_port())  # no other socket takes it while the server is down
    web.close()
    url, rang = web.url("/a"), threading.Event()
    address = parse(url)
    found = [None] * 100
    many = BatchRequest(
        [url] * 100,
        [address.origin] * 100,
        {},
        found,
        rang.set,
        Guard(named=frozenset([address.origin])),
    )
    one = engine(retries=1, deadline_s=60.0)
    many.awaited = 99
    one.submit_batch(many)
    assert rang.wait(60)
    assert {fault.kind for fault in found if fault is not None} == {"connect"}


def test_a_proxy_that_refuses_to_connect_is_not_an_outage_of_the_host(engine, monkeypatch):
    """The response is not the host's, so the usual number of retries applies."""
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
    wanted = Request(parse("https://127.0.0.1:1/a"), arrived.put, Guard(allow_private=True))
    try:
        engine(retries=2, deadline_s=20.0).submit([wanted])
        fault = arrived.get(timeout=60).fault
    finally:
        stop_server(server)
        server.server_close()
    assert fault is not None and len(asked) == 3


def test_slow_down_in_a_fifth_of_the_responses_fails_no_object(web, engine):
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
    wanted = [
        Request(parse(web.url("/a")), arrived.put, Guard(allow_private=True)) for _ in range(300)
    ]
    begin = time.monotonic()
    one.submit(wanted)
    done = [arrived.get(timeout=60) for _ in wanted]
    assert {found.fault for found in done} == {None}
    assert asked[0] > 350 and time.monotonic() - begin < 60


def test_a_checksum_request_is_retried(web, no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")
    web.pages["/b/a"] = lambda handler, times: (
        handler.answer(503, b"")
        if times == 1
        else handler.answer(200, b"", x_amz_checksum_crc32="AAAAAA==")
    )
    assert stored_checksums(locate("s3://b/a")).hashes == {"crc32": "00000000"}
    assert web.asked["/b/a"] == 2
    web.pages["/b/b"] = lambda handler, times: handler.answer(403, b"")
    assert stored_checksums(locate("s3://b/b")).unavailable == "the response has status 403"
    assert web.asked["/b/b"] == 1


def test_an_unreachable_object_store_fails(no_cloud, monkeypatch):
    web = Web(free_port())  # no other socket takes it while the server is down
    web.close()
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    with pytest.raises(ReachError) as caught:
        locate("s3://b/a", Guard(limits=Limits(retries=1))).read()
    assert "connection refused" in caught.value.message


def test_a_host_that_refuses_some_requests_is_not_slowed_down_forever():
    """Few parallel transfers: four successes between two refusals, and a pause after each
    refusal.
    """
    hosts, now = HostQueues(), 0.0
    for order in range(3000):
        hosts.put(Request(parse("http://a.example/"), print, Guard(), order=order))
    for number in range(1, 3001):
        while hosts.pick(now) is None:
            now = hosts.next_due(now)
        now += 0.05
        if number % 5:
            hosts.succeeded(ORIGIN)
        else:
            hosts.slow_down(ORIGIN, now, 0.5)
    assert now < 3000 * 0.05 + 600 * 0.5


def test_a_host_that_refuses_nearly_all_requests_is_slowed_down():
    hosts, now = HostQueues(), 0.0
    for order in range(1000):
        hosts.put(Request(parse("http://a.example/"), print, Guard(), order=order))
    for _ in range(1000):
        while hosts.pick(now) is None:
            now = hosts.next_due(now)
        hosts.slow_down(ORIGIN, now, 0.0)
    assert now > 1000


def request_for(url, deliver, **more):
    address = parse(url)
    named = more.pop("named", frozenset((address.origin,)))
    return Request(address, deliver, Guard(named=named), **more)


def test_the_host_with_the_fewest_transfers_is_next():
    hosts, address = HostQueues(), "http://{}.example/"
    for order, name in enumerate("aaaabbc"):
        hosts.put(request_for(address.format(name), print, order=order))
    picked = []
    for _ in range(7):
        one = hosts.pick(0.0)
        hosts.count(one.address.origin, 1)
        picked.append((one.address.origin[7], one.order))
    assert picked == [("a", 0), ("b", 4), ("c", 6), ("a", 1), ("b", 5), ("a", 2), ("a", 3)]
    assert hosts.pick(0.0) is None


def test_only_the_head_may_start_when_the_window_is_full():
    hosts = HostQueues()
    hosts.put(request_for("http://a.example/", print, order=5))
    hosts.put(request_for("http://b.example/", print, order=4))
    assert hosts.pick(0.0, head=3) is None
    assert hosts.pick(0.0, head=4).order == 4
    assert hosts.pick(0.0, head=4) is None


def test_an_overloaded_host_is_slowed_down_and_recovers():
    hosts, origin = HostQueues(), "http://a.example:80"
    for order in range(100):
        hosts.put(request_for("http://a.example/", print, order=order))
    for _ in range(10):  # one wave, for any number of refusals
        hosts.slow_down(origin, 10.0, 2.0)
    assert hosts.pick(11.9) is None and hosts.next_due(11.9) == 12.0
    assert hosts.pick(12.0).order == 0
    assert hosts.pick(12.01) is None
    assert hosts.pick(12.03).order == 1
    hosts.slow_down(origin, 13.0, 0.0)
    assert hosts.pick(13.0) is not None
    assert hosts.next_due(13.0) == pytest.approx(13.04)
    for _ in range(100):
        hosts.succeeded(origin)
    assert hosts.pick(13.05) is not None and hosts.pick(13.05) is not None


def test_a_retry_is_queued_after_the_head():
    hosts = HostQueues()
    first, second, third = (
        request_for("http://one.example/", print, order=order) for order in (0, 1, 2)
    )
    hosts.put(third)
    hosts.put(first, is_retry=True)
    hosts.put(second, is_retry=True)  # its pause was longer
    assert hosts.pick(0.0, head=0) is first
    assert hosts.pick(0.0, head=1) is second


def test_a_redirected_request_needs_another_permit_than_a_request_to_the_same_host():
    """The user typed the host of both requests; a redirect to this host needs --allow-private."""
    guard = Guard(named=frozenset({ORIGIN}))
    own, redirected = (Request(parse(f"http://{h}.example/x"), print, guard) for h in "ab")
    redirected.address = own.address
    assert own.permit == Permit(by_name=True)
    assert redirected.permit == PUBLIC


def test_a_full_host_does_not_start_another_request():
    hosts, other = HostQueues(per_host=1), Request(parse("https://a.example/x"), print, Guard())
    for one in (request(), other):
        hosts.put(one)
    assert hosts.pick(0.0) is not None
    hosts.count(ORIGIN, 1)
    assert hosts.pick(0.0) is None and hosts.blocked_host(0.0, 0) == "a.example"
    hosts.count(ORIGIN, -1)
    assert hosts.pick(0.0) is other
