"""The fetch engine: fair, bounded, patient with what may pass and with nothing else, and gone when it is closed."""

import _thread
import contextlib
import os
import socket
import struct
import sys
import threading
import time
from queue import SimpleQueue

import pytest

from flarecli.errors import ReachError
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.http import retry as tries
from flarecli.storage.http.engine import Engine, Request
from flarecli.storage.http.ip_guard import PUBLIC, Permit
from flarecli.storage.http.scheduler import Hosts
from flarecli.storage.http.url import parse

BODY = os.urandom(50_000)
PATIENT = {"timeout_s": 100.0, "deadline_s": 200.0}  # longer than a test waits
CUT = "the connection ended before the answer was whole"


def request(url, deliver, **more):
    address = parse(url)
    return Request(address, deliver, **{"named": frozenset((address.origin,)), **more})


def fetched(engine, urls, **more):
    """Fetch addresses; the requests in their order."""
    arrived = SimpleQueue()
    wanted = [request(url, arrived.put, order=i, **more) for i, url in enumerate(urls)]
    engine.submit(wanted)
    for _ in wanted:
        arrived.get(timeout=60)
    return wanted


def said(engine, url, **more):
    """Say how one address failed."""
    (one,) = fetched(engine, [url], **more)
    return one.fault.kind, one.fault.message


def test_so_many_transfers_at_a_time_and_no_more(web, engine):
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


def test_connections_are_used_again(web, engine):
    ports, lock = set(), threading.Lock()

    def serve(handler, times):
        with lock:
            ports.add(handler.client_address[1])
        handler.answer(200 if times % 2 else 404, BODY[:100])

    web.pages["/a"] = serve
    fetched(engine(jobs=3), [web.url("/a")] * 60)
    assert len(ports) <= 3


def test_connections_that_end_unannounced_cost_no_try(engine):
    """Many idle connections, each reset when it is used again: libcurl gives up after some of them, and none says anything of the request."""
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
                    begun.wait(10)  # so that each gets a connection of its own
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


def test_a_slow_host_does_not_hold_up_another(web, other_web, engine):
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


def test_what_is_not_used_yet_is_bounded_and_the_next_one_wanted_always_comes(web, engine):
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
        time.sleep(0.01)  # time in which too much could come
        delivered = sum(len(other.data) for other in wanted[i + 1 :])
        assert delivered <= 100_000
        assert this.fault is None and len(this.data) == sizes[i]
        one.release(len(this.data), i + 1)


def test_a_pause_that_the_consumer_makes_is_not_the_servers_fault(web, engine):
    web.file("/a", bytes(3 << 20))
    one = engine(ahead_bytes=1 << 20, jobs=4, timeout_s=0.3, deadline_s=1.0)
    arrived = SimpleQueue()
    wanted = [request(web.url("/a"), arrived.put, order=i) for i in range(3)]
    one.submit(wanted)
    arrived.get(timeout=60)
    time.sleep(1.3)  # longer than any of the limits
    for i, this in enumerate(wanted):
        while not this.done:
            arrived.get(timeout=60)
        assert this.fault is None
        one.release(len(this.data), i + 1)


def test_a_stream_waits_for_its_reader_and_goes_on_where_it_broke_off(web):
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
    assert sent[0] < (8 << 20) + (8 << 20)  # the window, and what the sockets hold
    came += blocks
    assert b"".join(came) == data
    assert web.asked["/a"] == 3


def test_a_stream_that_nobody_reads_to_its_end_is_ended(web):
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


def test_a_large_file_from_a_server_without_ranges_streams_too(web):
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
        ("garbage", "protocol", "the answer is not HTTP"),
        ("nothing", "cut", CUT),
        ("long", "large", "larger than the limit of 100000 bytes"),
        ("endless", "large", "larger than the limit of 100000 bytes"),
    ],
)
def test_what_goes_wrong_is_named(web, engine, name, kind, message):
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


def test_nobody_there_is_told_and_asked_again(engine, monkeypatch):
    monkeypatch.setattr(tries, "WAIT_S", 0.001)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        (one,) = fetched(engine(retries=2), [f"http://127.0.0.1:{closed.getsockname()[1]}/"])
    assert (one.fault.kind, one.fault.message, one.attempts) == ("connect", "no connection", 3)


def test_the_deadline_is_for_all_tries_together(web, engine, monkeypatch):
    monkeypatch.setattr(tries, "WAIT_S", 0.01)

    deadlines, arrived = [], SimpleQueue()
    wanted = request(web.url("/a"), arrived.put)

    def stall(handler, times):
        deadlines.append(wanted.deadline)
        handler.begin(1000)
        web.over.wait(120)

    web.pages["/a"] = stall
    engine(timeout_s=0.4, deadline_s=2.0, retries=100).submit([wanted])
    fault = arrived.get(timeout=30).fault
    assert (fault.kind, fault.message) == (
        "slow",
        "less than 1 kB/s for 0.4 s",
    )  # what went wrong first
    assert 2 <= len(deadlines) <= 5  # a try takes 0.4 s, or longer on a busy machine
    assert set(deadlines) == {wanted.deadline}
    web.over.set()


def test_an_object_that_never_ends_meets_its_deadline(web, engine):
    def drip(handler, times):
        handler.begin(1 << 29)
        while not web.over.wait(0.05):
            handler.wfile.write(bytes(1000))

    web.pages["/a"] = drip
    assert said(engine(timeout_s=20.0, deadline_s=1.0), web.url("/a")) == (
        "deadline",
        "incomplete after 1 s",
    )  # never too slow, though it be held up
    web.over.set()


def test_a_request_that_gets_no_answer_keeps_none_of_its_host_waiting(web, engine):
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    web.file("/b", BODY)
    one, arrived = engine(**PATIENT), SimpleQueue()
    one.submit([request(web.url("/a"), arrived.put), request(web.url("/b"), arrived.put, order=1)])
    assert arrived.get(timeout=60).data == BODY
    web.over.set()


def test_retries_have_a_budget_for_the_whole_run(web, engine, monkeypatch):
    monkeypatch.setattr(tries, "WAIT_S", 0.0001)
    monkeypatch.setattr(tries, "BUDGET", 7)
    web.page("/a", b"", status=500)
    one = engine(retries=4)
    wanted = fetched(one, [web.url("/a")] * 30)
    assert {done.fault.message for done in wanted} == {"500 Internal Server Error"}
    assert web.asked["/a"] == 30 + 15
    assert one.spent


def test_a_wait_that_would_pass_the_deadline_is_not_waited(web, engine):
    web.page("/a", b"", status=503, Retry_After=3600)
    begin = time.monotonic()
    assert said(engine(deadline_s=30.0), web.url("/a")) == ("busy", "503 Service Unavailable")
    assert time.monotonic() - begin < 15  # the server asks for an hour, the deadline is 30 s
    assert web.asked["/a"] == 1


def test_a_wait_that_is_asked_for_is_waited(web, engine):
    web.pages["/a"] = lambda handler, times: (
        handler.answer(429, b"", Retry_After=1) if times == 1 else handler.answer(200, BODY)
    )
    begin = time.monotonic()
    (one,) = fetched(engine(), [web.url("/a")])
    assert one.data == BODY
    assert time.monotonic() - begin >= 1


def test_closing_ends_transfers_at_once_and_the_thread_with_them(web, engine):
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


def test_what_is_cancelled_is_not_delivered(web, engine):
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


def test_a_mistake_in_the_thread_leaves_nobody_waiting(web, engine):
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


def test_an_idle_slot_holds_no_body(web, engine):
    web.file("/a", BODY)
    (one,) = fetched(engine(), [web.url("/a")])
    before = sys.getrefcount(one)
    time.sleep(0.05)
    assert before <= 3  # this name, the list of what was asked for, and the call that counts


def test_the_host_with_the_fewest_transfers_goes_first():
    hosts, address = Hosts(), "http://{}.example/"
    for order, name in enumerate("aaaabbc"):
        hosts.put(request(address.format(name), print, order=order))
    picked = []
    for _ in range(7):
        one = hosts.pick(0.0)
        hosts.count(one.address.origin, 1)
        picked.append((one.address.origin[7], one.order))
    assert picked == [("a", 0), ("b", 4), ("c", 6), ("a", 1), ("b", 5), ("a", 2), ("a", 3)]
    assert hosts.pick(0.0) is None


def test_only_the_next_one_wanted_may_start_when_there_is_no_room():
    hosts = Hosts()
    hosts.put(request("http://a.example/", print, order=5))
    hosts.put(request("http://b.example/", print, order=4))
    assert hosts.pick(0.0, head=3) is None
    assert hosts.pick(0.0, head=4).order == 4
    assert hosts.pick(0.0, head=4) is None


def test_a_host_is_followed_up_only_where_nothing_else_is_to_be_decided():
    hosts, origin = Hosts(), "http://a.example:80"
    first, private, last = (
        request("http://a.example/", print, order=i, named=frozenset([origin] if i == 1 else []))
        for i in range(3)
    )
    for one in (first, private, last):
        hosts.put(one)
    assert hosts.follow(origin, PUBLIC) is first
    assert hosts.follow(origin, PUBLIC) is None  # the next one may reach more
    assert hosts.follow(origin, Permit(by_name=True)) is private
    hosts.put(request("http://b.example/", print, order=9))
    assert hosts.follow(origin, PUBLIC) is None  # another host waits
    assert hosts.pick(0.0) is last
    assert hosts.pick(0.0).order == 9
    assert hosts.follow(origin, PUBLIC) is None
    hosts.put(last)
    hosts.hold_back(origin, 0.0, 1.0)
    assert hosts.follow(origin, PUBLIC) is None


def test_an_address_that_cannot_be_asked_ends_no_transfer_of_its_host(web, engine):
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


def test_a_crowded_host_is_paced_and_eased_again():
    hosts, origin = Hosts(), "http://a.example:80"
    for order in range(100):
        hosts.put(request("http://a.example/", print, order=order))
    for _ in range(10):  # one wave, however many are refused in it
        hosts.hold_back(origin, 10.0, 2.0)
    assert hosts.pick(11.9) is None and hosts.next_due(11.9) == 12.0
    assert hosts.pick(12.0).order == 0
    assert hosts.pick(12.01) is None
    assert hosts.pick(12.03).order == 1
    hosts.hold_back(origin, 13.0, 0.0)
    assert hosts.pick(13.0) is not None
    assert hosts.next_due(13.0) == pytest.approx(13.04)
    for _ in range(100):
        hosts.went_well(origin)
    assert hosts.pick(13.05) is not None and hosts.pick(13.05) is not None


def test_a_host_that_rests_does_not_keep_others_waiting():
    hosts = Hosts()
    hosts.put(request("http://a.example/", print, order=0))
    hosts.put(request("http://b.example/", print, order=1))
    hosts.hold_back("http://a.example:80", 0.0, 60.0)
    assert hosts.pick(1.0).order == 1
    assert hosts.pick(1.0) is None
    assert hosts.pick(60.0).order == 0


def test_limits_of_the_user_hold_for_what_data_names_too(web, tmp_path):
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
def test_an_address_that_cannot_be_asked_fails_alone(web, engine, tail):
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
    assert one.unproven == 2


def test_an_interrupt_ends_a_wait_and_drops_what_was_asked_for(web):
    web.pages["/a"] = lambda handler, times: web.over.wait(120)
    begin = time.monotonic()
    threading.Timer(0.3, _thread.interrupt_main).start()
    with pytest.raises(KeyboardInterrupt):
        locate(web.url("/a")).read()
    assert time.monotonic() - begin < 60  # the server hangs for 120 s
    web.over.set()


def test_what_is_tried_again_never_stands_before_the_next_one_wanted():
    hosts = Hosts()
    first, second, third = (
        request("http://one.example/", print, order=order) for order in (0, 1, 2)
    )
    hosts.put(third)
    hosts.put(first, again=True)
    hosts.put(second, again=True)  # its pause was the longer one
    assert hosts.pick(0.0, head=0) is first
    assert hosts.pick(0.0, head=1) is second


def test_requests_that_a_dying_thread_never_took_are_delivered_too(engine, monkeypatch):
    submitted = threading.Event()

    def fails(self):
        submitted.wait(10)
        raise OSError("no more files")

    monkeypatch.setattr(Engine, "_turn", fails)
    one, arrived = engine(), SimpleQueue()
    one.submit([request("http://127.0.0.1:9/", arrived.put)])
    submitted.set()
    assert arrived.get(timeout=60).fault.kind == "bug"
    with pytest.raises(RuntimeError, match="^the transfer thread has died$"):
        one.submit([request("http://127.0.0.1:9/", arrived.put)])
