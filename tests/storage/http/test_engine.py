"""The fetch engine: fair, bounded, with retries; nothing remains when it is closed."""

from __future__ import annotations

import _thread
import contextlib
import os
import socket
import struct
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import SimpleQueue

import pytest

from flarecli.errors import FlareError, IntegrityError, ReachError
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.http import scheduler as tries
from flarecli.storage.http.engine import Engine, Window
from flarecli.storage.http.request import Request
from flarecli.storage.http.scheduler import HostQueues
from flarecli.storage.http.url import parse

BODY = os.urandom(50_000)
PATIENT = {"timeout_s": 100.0, "deadline_s": 200.0}  # longer than a test waits


CUT = "the connection ended before the response was complete"


def request(url, deliver, **more):
    address = parse(url)
    named = more.pop("named", frozenset((address.origin,)))
    return Request(address, deliver, Guard(named=named), **more)


def fetched(engine, urls, **more):
    """Fetch addresses; return the finished requests in their order."""
    arrived = SimpleQueue()
    wanted = [request(url, arrived.put, order=i, **more) for i, url in enumerate(urls)]
    engine.submit(wanted)
    for _ in wanted:
        arrived.get(timeout=60)
    return wanted


def said(engine, url, **more):
    """Return the kind and the message of a fault."""
    (one,) = fetched(engine, [url], **more)
    return one.fault.kind, one.fault.message


def test_the_number_of_parallel_transfers_is_bounded(web, engine):
    most, now, lock = [0], [0], threading.Lock()

    def serve(handler, times):
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        time.sleep(0.01)
        with lock:
            now[0] -= 1
        handler.answer(200, BODY)

    web.pages["/a"] = serve
    assert {one.data for one in fetched(engine(jobs=5), [web.url("/a")] * 40)} == {BODY}
    assert most == [5]


def test_connections_are_reused(web, engine):
    ports, lock = set(), threading.Lock()

    def serve(handler, times):
        with lock:
            ports.add(handler.client_address[1])
        handler.answer(200 if times % 2 else 404, BODY[:100])

    web.pages["/a"] = serve
    fetched(engine(jobs=3), [web.url("/a")] * 60)
    assert len(ports) <= 3


def test_stale_connections_do_not_count_as_attempts(engine):
    """Many idle connections are reset when they are used again: libcurl gives up after some of
    them.
    """
    first, tries = 12, 0
    with (
        socket.create_server(("127.0.0.1", 0), backlog=64) as server,
        contextlib.ExitStack() as opened,
    ):
        begun = threading.Barrier(first)

        def serve(connection, waits):
            nonlocal tries
            with contextlib.suppress(OSError):
                connection.recv(1 << 16)
                if waits:
                    begun.wait(10)  # so that each request has its own connection
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nbody")
                connection.recv(1 << 16)
                tries += 1
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.close()

        def accept():
            for i in range(first + 1):
                connection = opened.enter_context(server.accept()[0])
                threading.Thread(target=serve, args=(connection, i < first), daemon=True).start()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        one, url = engine(retries=0, jobs=first), f"http://127.0.0.1:{server.getsockname()[1]}/"
        assert {done.data for done in fetched(one, [url] * first)} == {b"body"}
        (last,) = fetched(one, [url])
        assert (last.fault, last.data, last.attempts) == (None, b"body", 1)
        assert 1 < tries < first
        thread.join(60)


def test_a_slow_host_does_not_delay_another(web, other_web, engine):
    web.pages["/slow"] = lambda handler, times: web.over.wait(120)
    other_web.file("/quick", BODY)
    one = engine(jobs=4, **PATIENT)
    arrived = SimpleQueue()
    slow = [request(web.url("/slow"), arrived.put, order=i) for i in range(50)]
    quick = [request(other_web.url("/quick"), arrived.put, order=50 + i) for i in range(50)]
    one.submit(slow[:3])
    one.submit(quick + slow[3:])
    assert {arrived.get(timeout=60) for _ in quick} == set(quick)
    web.over.set()


def test_unreleased_bytes_are_bounded_and_the_head_always_arrives(web, engine):
    sizes = [30_000, 400_000] + [30_000] * 60
    for i, size in enumerate(sizes):
        web.file(f"/{i}", bytes(size))
    one = engine(ahead_bytes=100_000, jobs=8)
    arrived = SimpleQueue()
    wanted = [request(web.url(f"/{i}"), arrived.put, order=i) for i in range(len(sizes))]
    one.submit(wanted)
    for i, this in enumerate(wanted):
        while not this.done:
            arrived.get(timeout=60)
        time.sleep(0.01)  # time for too much data to arrive
        delivered = sum(len(other.data) for other in wanted[i + 1 :])
        assert delivered <= 100_000
        assert this.fault is None and len(this.data) == sizes[i]
        one.release(len(this.data), i + 1)


def test_a_pause_of_the_consumer_is_not_a_slow_transfer(web, engine):
    web.file("/a", bytes(3 << 20))
    one = engine(ahead_bytes=1 << 20, jobs=4, timeout_s=0.3, deadline_s=1.0)
    arrived = SimpleQueue()
    wanted = [request(web.url("/a"), arrived.put, order=i) for i in range(3)]
    one.submit(wanted)
    arrived.get(timeout=60)
    time.sleep(1.3)  # longer than all limits
    for i, this in enumerate(wanted):
        while not this.done:
            arrived.get(timeout=60)
        assert this.fault is None
        one.release(len(this.data), i + 1)


def test_a_stream_waits_for_its_reader_and_a_retry_continues_it(web):
    data = os.urandom(40 << 20)
    sent, lock = [0], threading.Lock()

    def serve(handler, times):
        start = int(handler.headers["Range"].removeprefix("bytes=").partition("-")[0])
        handler.send_response(206)
        handler.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        handler.send_header("Content-Length", str(len(data) - start))
        handler.end_headers()
        stop = start + (15 << 20) if times < 3 else len(data)
        for at in range(start, stop, 1 << 16):
            handler.wfile.write(data[at : min(at + (1 << 16), stop)])
            with lock:
                sent[0] += 1 << 16
        if stop < len(data):
            handler.reset()

    web.pages["/a"] = serve
    blocks = locate(web.url("/a")).blocks(len(data))
    came = [next(blocks)]
    time.sleep(0.3)
    assert sent[0] < (8 << 20) + (8 << 20)  # the window, and the buffers of the sockets
    came += blocks
    assert b"".join(came) == data
    assert web.asked["/a"] == 3


def test_an_abandoned_stream_is_ended(web):
    over = threading.Event()

    def serve(handler, times):
        start = int(handler.headers["Range"].removeprefix("bytes=").partition("-")[0])
        handler.begin((1 << 40) - start, Content_Range=f"bytes {start}-{(1 << 40) - 1}/{1 << 40}")
        try:
            while True:
                handler.wfile.write(bytes(1 << 16))
        except OSError:
            over.set()

    web.pages["/a"] = serve
    blocks = locate(web.url("/a")).blocks(1 << 40)
    assert next(blocks)[:4] == bytes(4)
    blocks.close()
    assert over.wait(60)


def test_a_large_file_is_streamed_without_range_support(web):
    data = os.urandom(3 << 20)
    at = locate(web.page("/a", data))
    assert b"".join(at.blocks(len(data))) == data
    assert web.asked["/a"] == 1


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("mute", "slow", "less than 1 kB/s for 0.4 s"),
        ("stall", "slow", "less than 1 kB/s for 0.4 s"),
        ("drip", "slow", "less than 1 kB/s for 0.4 s"),
        ("cut", "cut", CUT),
        ("chunk cut", "cut", CUT),
        ("reset", "cut", CUT),
        ("garbage", "protocol", "the response is not HTTP"),
        ("nothing", "cut", CUT),
        ("long", "large", "larger than the limit of 100000 bytes"),
        ("endless", "large", "larger than the limit of 100000 bytes"),
    ],
)
def test_errors_name_their_cause(web, engine, name, kind, message):
    def drip(handler, times):
        handler.begin(1000)
        while not web.over.wait(0.05):
            handler.wfile.write(b"x")

    def endless(handler, times):
        handler.send_response(200)
        handler.end_headers()
        handler.close_connection = True
        while True:
            handler.wfile.write(bytes(1 << 14))

    def cut(handler, times):
        handler.begin(1000)
        handler.wfile.write(bytes(500))

    def chunk_cut(handler, times):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"5\r\nabcde\r\n")
        handler.close_connection = True

    def reset(handler, times):
        handler.begin(1000)
        handler.reset()

    def nothing(handler, times):
        handler.close_connection = True

    def stall(handler, times):
        handler.begin(1000)
        web.over.wait(120)

    def garbage(handler, times):
        handler.wfile.write(b"SMTP ready\x00\xff\r\n\r\n")
        handler.close_connection = True

    web.pages = {
        "/mute": lambda handler, times: web.over.wait(120),
        "/stall": stall,
        "/drip": drip,
        "/cut": cut,
        "/chunk cut": chunk_cut,
        "/reset": reset,
        "/garbage": garbage,
        "/nothing": nothing,
        "/long": lambda handler, times: handler.begin(100_001),
        "/endless": endless,
    }
    web.pages = {path.replace(" ", "%20"): page for path, page in web.pages.items()}
    assert said(engine(timeout_s=0.4, retries=0, max_bytes=100_000), web.url(f"/{name}")) == (
        kind,
        message,
    )
    web.over.set()


def test_an_unreachable_server_is_retried_and_reported(engine, monkeypatch):
    monkeypatch.setattr(tries, "BASE_DELAY_S", 0.001)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: connections are refused
        (one,) = fetched(engine(retries=2), [f"http://127.0.0.1:{closed.getsockname()[1]}/"])
    assert (one.fault.kind, one.fault.message, one.attempts) == ("connect", "cannot connect", 3)


def test_the_deadline_includes_all_attempts(web, engine, monkeypatch):
    monkeypatch.setattr(tries, "BASE_DELAY_S", 0.01)

    deadlines, arrived = [], SimpleQueue()
    wanted = request(web.url("/a"), arrived.put)

    def stall(handler, times):
        deadlines.append(wanted.deadline)
        handler.begin(1000)
        web.over.wait(120)

    web.pages["/a"] = stall
    engine(timeout_s=0.4, deadline_s=2.0, retries=100).submit([wanted])
    fault = arrived.get(timeout=60).fault
    assert (fault.kind, fault.message) == (
        "slow",
        "less than 1 kB/s for 0.4 s",
    )  # the first fault
    assert 2 <= len(deadlines) <= 5  # an attempt takes 0.4 s, or longer on a busy machine
    assert set(deadlines) == {wanted.deadline}
    web.over.set()


def test_an_endless_object_exceeds_its_deadline(web, engine):
    def drip(handler, times):
        handler.begin(1 << 29)
        while not web.over.wait(0.05):
            handler.wfile.write(bytes(1000))

    web.pages["/a"] = drip
    assert said(engine(timeout_s=20.0, deadline_s=1.0), web.url("/a")) == (
        "deadline",
        "incomplete after 1 s",
    )  # never too slow, even if it is delayed
    web.over.set()


def test_a_request_without_a_response_does_not_delay_its_host(web, engine):
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    web.file("/b", BODY)
    one, arrived = engine(**PATIENT), SimpleQueue()
    one.submit([request(web.url("/a"), arrived.put), request(web.url("/b"), arrived.put, order=1)])
    assert arrived.get(timeout=60).data == BODY
    web.over.set()


def test_retries_have_a_budget_for_the_whole_run(web, engine, monkeypatch):
    monkeypatch.setattr(tries, "BASE_DELAY_S", 0.0001)
    monkeypatch.setattr(tries, "MIN_RETRY_BUDGET", 7)
    web.page("/a", b"", status=500)
    one = engine(retries=4)
    wanted = fetched(one, [web.url("/a")] * 30)
    assert {done.fault.message for done in wanted} == {"500 Internal Server Error"}
    assert web.asked["/a"] == 30 + 15
    assert one.budget_exhausted


def test_a_delay_beyond_the_deadline_fails_at_once(web, engine):
    web.page("/a", b"", status=503, Retry_After=3600)
    begin = time.monotonic()
    assert said(engine(deadline_s=30.0), web.url("/a")) == ("busy", "503 Service Unavailable")
    assert time.monotonic() - begin < 15  # the server asks for an hour, the deadline is 30 s
    assert web.asked["/a"] == 1


def test_retry_after_is_respected(web, engine):
    web.pages["/a"] = lambda handler, times: (
        handler.answer(429, b"", Retry_After=1) if times == 1 else handler.answer(200, BODY)
    )
    begin = time.monotonic()
    (one,) = fetched(engine(), [web.url("/a")])
    assert one.data == BODY
    assert time.monotonic() - begin >= 1


def test_closing_ends_transfers_and_the_thread_at_once(web, engine):
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    one, delivered = engine(), []
    one.submit([request(web.url("/a"), delivered.append, order=i) for i in range(100)])
    time.sleep(0.1)
    begin = time.monotonic()
    one.close()
    assert time.monotonic() - begin < 60  # the server hangs for 120 s
    assert not any(
        thread.name == "flare-transfers" and thread is one._thread
        for thread in threading.enumerate()
    )
    assert delivered == []
    web.over.set()


def test_cancelled_requests_are_not_delivered(web, engine):
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    web.file("/b", BODY)
    one, delivered = engine(jobs=2, **PATIENT), SimpleQueue()
    slow = [request(web.url("/a"), delivered.put, order=i) for i in range(10)]
    one.submit(slow)
    one.submit([request(web.url("/b"), delivered.put, order=99)])
    one.cancel(slow)
    assert delivered.get(timeout=60).data == BODY
    web.over.set()
    time.sleep(0.1)
    assert delivered.empty()


def test_a_crash_of_the_thread_fails_all_requests(web, engine):
    web.file("/a", BODY)
    web.pages["/b"] = lambda handler, times: web.over.wait(120)
    one, arrived = engine(), SimpleQueue()

    def mistaken(done):
        raise KeyError("a bug")

    one.submit([request(web.url("/b"), arrived.put), request(web.url("/a"), mistaken, order=1)])
    assert arrived.get(timeout=60).fault.message == "KeyError: 'a bug'"
    one._thread.join(60)
    with pytest.raises(RuntimeError):
        one.submit([])
    web.over.set()


def test_an_idle_handle_keeps_no_body(web, engine):
    web.file("/a", BODY)
    (one,) = fetched(engine(), [web.url("/a")])
    before = sys.getrefcount(one)
    time.sleep(0.05)
    assert before <= 3  # this name, the list of requests, and the call of getrefcount


def test_an_unusable_address_does_not_end_transfers_of_its_host(web, engine):
    web.file("/a", BODY)
    urls = [
        web.url("/a"),
        web.url("/a"),
        web.url("/" + "x" * 9_000_000),
        web.url("/a"),
        web.url("/a"),
    ]
    done = fetched(engine(retries=0, jobs=1), urls)
    assert [one.data for one in done if one.fault is None] == [BODY] * 4 and done[
        2
    ].fault is not None


def test_a_paused_host_does_not_delay_others():
    hosts = HostQueues()
    hosts.put(request("http://a.example/", print, order=0))
    hosts.put(request("http://b.example/", print, order=1))
    hosts.slow_down("http://a.example:80", 0.0, 60.0)
    assert hosts.pick(1.0).order == 1
    assert hosts.pick(1.0) is None
    assert hosts.pick(60.0).order == 0


def test_limits_of_the_user_apply_to_addresses_in_data(web, tmp_path):
    (tmp_path / "list").write_text("x")
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    limits, hosts = Limits(timeout_s=0.3, retries=0), (f"127.0.0.1:{web.port}",)
    guard = Guard(limits=limits, allow_hosts=hosts)
    for at in (
        locate(web.url("/a"), guard),
        locate(web.url("/"), guard).join("a"),
        locate(str(tmp_path / "list"), guard).folder.join(web.url("/a")),
    ):
        with pytest.raises(ReachError) as caught:
            at.read()
        assert str(caught.value) == f"{web.url('/a')}: less than 1 kB/s for 0.3 s"
    web.over.set()


@pytest.mark.parametrize("tail", ["x" * 9_000_000, "%"])
def test_an_unusable_address_fails_alone(web, engine, tail):
    web.file("/a", BODY)
    strange, plain = fetched(engine(retries=0), [web.url("/" + tail), web.url("/a")])
    assert strange.fault.kind in ("address", "missing", "status", "cut")
    assert plain.data == BODY


def test_a_body_without_a_length_is_counted(web, engine):
    web.page("/a", BODY, Content_Length=None)
    web.file("/b", BODY)
    one = engine()
    assert [done.data for done in fetched(one, [web.url("/a"), web.url("/b"), web.url("/a")])] == [
        BODY
    ] * 3
    assert one.without_length == 2


def test_an_interrupt_ends_a_wait_and_cancels_requests(web):
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    begin = time.monotonic()
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        locate(web.url("/a")).read()
    assert time.monotonic() - begin < 60  # the server hangs for 120 s
    web.over.set()


def test_requests_queued_during_a_crash_are_delivered():
    submitted = threading.Event()

    class CrashingEngine(Engine):  # not Engine itself, because other tests share its thread
        def _turn(self):
            submitted.wait(60)
            raise OSError("no more files")

    one, arrived = CrashingEngine(Limits(timeout_s=5.0, deadline_s=20.0)), SimpleQueue()
    one.submit([request("http://127.0.0.1:9/", arrived.put)])
    submitted.set()
    assert arrived.get(timeout=60).fault.kind == "bug"
    with pytest.raises(RuntimeError, match="^the transfer thread has crashed$"):
        one.submit([request("http://127.0.0.1:9/", arrived.put)])
    one.close()


def on_a_thread(call):
    """Return the result of a call in another thread, which runs a single transfer by itself."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def test_a_thread_transfers_by_itself_over_one_connection(web):
    web.file("/d/a", b"0123456789", '"one"')
    at = locate(web.url("/d")) / "a"
    assert [on_a_thread(partial(at.read, i, i + 2)) for i in (0, 4, 8)] == [b"01", b"45", b"89"]
    assert on_a_thread(at.read) == b"0123456789"
    assert [headers.get("range") for _, headers in web.requests] == [
        "bytes=0-1",
        "bytes=4-5",
        "bytes=8-9",
        None,
    ]


def test_a_thread_reports_the_same_faults_as_the_engine(web):
    web.file("/d/a", b"0123456789", '"one"')
    at = locate(web.url("/d"))
    for name, start, stop in (("none", 0, None), ("a", 5, 20)):
        texts = set()
        for run in (lambda call: call(), on_a_thread):
            with pytest.raises(FlareError) as caught:
                run(lambda name=name, start=start, stop=stop: (at / name).read(start, stop))
            texts.add((type(caught.value), str(caught.value)))
        assert len(texts) == 1
    assert web.asked["/d/none"] == 2


def test_an_engine_keeps_no_state_of_an_idle_host_that_was_overloaded(web, engine):
    web.pages["/a"] = lambda handler, times: handler.answer(
        200 if times > 1 else 503, BODY, Retry_After=0
    )
    one, url = engine(), web.url("/a")
    fetched(one, [url])
    while one.hosts.is_overloaded(parse(url).origin):
        fetched(one, [url])
    assert web.asked["/a"] > 2
    assert not one.hosts._hosts


def test_a_thread_leaves_redirects_and_retries_to_the_engine(web):
    web.file("/d/a", b"0123456789", '"one"')
    whole = web.pages["/d/a"]

    web.pages["/d/moved"] = lambda handler, times: handler.answer(302, Location="/d/a")
    web.pages["/d/busy"] = lambda handler, times: (
        whole(handler, times) if times > 1 else handler.answer(503, Retry_After=0)
    )
    at = locate(web.url("/d"))
    assert on_a_thread((at / "moved").read) == b"0123456789"
    assert on_a_thread((at / "busy").read) == b"0123456789"
    assert (web.asked["/d/moved"], web.asked["/d/busy"]) == (1, 2)


def test_a_transfer_of_a_thread_has_a_time_limit(web):
    def silent(handler, times):
        handler.begin(100)
        handler.wfile.flush()
        web.over.wait(60)

    web.pages["/d/a"] = silent
    at = locate(web.url("/d"), Guard(limits=Limits(retries=0, timeout_s=1.0))) / "a"
    with pytest.raises(ReachError, match=r"/d/a: less than 1 kB/s for 1 s$"):
        on_a_thread(at.read)
    at = locate(web.url("/d"), Guard(limits=Limits(retries=0, deadline_s=0.3))) / "a"
    with pytest.raises(ReachError, match=r"/d/a: incomplete after 0.3 s$"):
        on_a_thread(at.read)


def test_a_paused_object_that_is_too_large_fails_alone(web, engine):
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
        Request(parse(web.url(path)), arrived.put, Guard(allow_private=True), order=order)
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


ONE, TWO = b"a" * 3_000_000, b"b" * 3_000_000


MONDAY, TUESDAY = "Mon, 05 Jan 2026 00:00:00 GMT", "Tue, 06 Jan 2026 00:00:00 GMT"


def served(web, heads, bodies=(ONE, TWO)):
    """Serve a file whose connection ends after 1 MB, and another version of it afterwards."""

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
def test_a_retry_does_not_continue_with_another_version(web, heads, bodies):
    at = served(web, heads, bodies)
    came = b""
    with pytest.raises(IntegrityError) as caught:
        for block in at.blocks(len(ONE)):
            came += block
    assert caught.value.message == "changed while it was being read"
    assert came == ONE[: len(came)]


@pytest.mark.parametrize("second", [{"ETag": '"one"', "Last-Modified": MONDAY}, {"ETag": '"one"'}])
def test_a_retry_continues_with_the_same_version(web, second):
    at = served(web, [{"ETag": '"one"', "Last-Modified": MONDAY}, second], (ONE, ONE))
    assert b"".join(at.blocks(len(ONE))) == ONE
    assert "if-match" not in web.requests[0][1]
    assert web.requests[-1][1]["if-match"] == '"one"'


@pytest.mark.parametrize(("more", "fault"), [(0, None), (1, "large")])
def test_an_object_may_have_exactly_the_maximum_size(web, engine, more, fault):
    def page(handler, times):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (1000 + more, bytes(1000 + more)))

    web.pages["/a"] = page
    arrived = SimpleQueue()
    one = engine(max_bytes=1000)
    one.submit([Request(parse(web.url("/a")), arrived.put, Guard(allow_private=True))])
    found = arrived.get(timeout=60)
    assert (found.fault and found.fault.kind, len(found.data)) == (fault, 0 if fault else 1000)
    for _ in range(500):
        if not any(pool.active for pool in one._pools.values()):
            break
        one.release(0, 0)
    assert not any(pool.active for pool in one._pools.values())


def test_the_window_is_full_according_to_the_mean_size_of_recent_objects():
    window = Window(1000)
    for _ in range(200):
        window.delivered(100)
        window.held -= 100
    assert not window.is_full(9)
    assert window.is_full(11)


def test_a_pause_extends_the_deadline_of_its_transfer():
    class Easy:
        def pause(self, flags):
            pass

    class Handle:
        easy, got, paused, paused_at, checked_at, checked_bytes = Easy(), 7, True, 100.0, 0.0, 0
        request = Request(parse("http://127.0.0.1/"), lambda request: None, Guard())

    window = Window(10)
    Handle.request.deadline = 150.0
    window.paused.append(Handle)
    window.resume(130.0)
    assert (
        Handle.request.deadline,
        Handle.checked_at,
        Handle.checked_bytes,
        Handle.paused,
        window.paused,
    ) == (
        180.0,
        130.0,
        7,
        False,
        [],
    )


def test_a_paused_transfer_does_not_block_the_head_of_a_full_host(web, engine):
    """Object 0 fails at first, and object 2 is paused until object 0 is complete; one transfer at a
    time.
    """

    def fail_once(handler, times):
        if times == 1:
            handler.answer(500, b"", Retry_After=1)
        else:
            handler.answer(200, BODY)

    web.pages["/0"] = fail_once
    for i in range(1, 5):
        web.page(f"/{i}", BODY)
    one, arrived = engine(ahead_bytes=len(BODY) + 10_000, per_host=1), SimpleQueue()
    one.submit([request(web.url(f"/{i}"), arrived.put, order=i) for i in range(5)])
    done, head = {}, 0
    while head < 5:
        finished = arrived.get(timeout=30)
        done[finished.order] = finished
        while head in done:
            assert (done[head].fault, done[head].data) == (None, BODY)
            head += 1
            one.release(len(BODY), head)
    assert web.asked["/0"] == 2 and web.asked["/2"] == 2


def test_a_wait_for_a_full_host_extends_the_deadline_by_the_wait(engine):
    one = engine(deadline_s=50.0)
    wanted = Request(parse("http://127.0.0.1/"), lambda request: None, Guard())
    one._count_attempt(wanted, 100.0)
    assert (wanted.deadline, wanted.attempts) == (150.0, 1)
    one._requeue(wanted, 110.0)
    one._count_attempt(wanted, 140.0)
    assert (wanted.deadline, wanted.attempts) == (180.0, 1)
    one._count_attempt(wanted, 160.0)  # a retry does not extend it
    assert (wanted.deadline, wanted.attempts) == (180.0, 2)
