"""Where bounds lie, to the byte and the second: just inside passes, just outside does not."""

from __future__ import annotations

import gzip
import ipaddress
import os
from queue import SimpleQueue

import pytest

from flarecli.errors import IntegrityError, ReachError
from flarecli.storage import locate
from flarecli.storage.http import transfer as slots
from flarecli.storage.http.engine import Window
from flarecli.storage.http.ip_guard import reserved
from flarecli.storage.http.request import Request
from flarecli.storage.http.response import settled
from flarecli.storage.http.url import parse

DATA = bytes(range(256)) * 40
NETWORKS = [  # of IANA's special-purpose registries, and the addresses before and behind where those are public
    "10.0.0.0/8",
    "100.64.0.0/10",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.0.2.0/24",
    "192.88.99.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "198.51.100.0/24",
    "203.0.113.0/24",
]


@pytest.mark.parametrize("network", NETWORKS)
def test_a_network_that_is_not_public_is_known_from_its_first_address_to_its_last(network):
    first, last = ipaddress.ip_network(network)[0], ipaddress.ip_network(network)[-1]
    assert reserved(str(first)) and reserved(str(last))
    assert not reserved(str(first - 1)) and not reserved(str(last + 1))


@pytest.mark.parametrize("last", ["0.255.255.255", "255.255.255.255", "224.0.0.0", "240.0.0.0"])
def test_the_ends_of_all_addresses_are_not_public(last):
    assert reserved(last)


@pytest.mark.parametrize(("second", "is_settled"), [("58:59", False), ("59:00", True)])
def test_a_time_of_change_counts_after_a_minute(second, is_settled):
    assert (
        settled("Mon, 05 Jan 2026 23:58:00 GMT", f"Mon, 05 Jan 2026 23:{second} GMT") is is_settled
    )


def test_a_range_that_lacks_its_last_byte_is_refused(web):
    web.pages["/a"] = lambda handler, times: handler.answer(
        206, DATA[10:19], Content_Range=f"bytes 10-18/{len(DATA)}"
    )
    with pytest.raises(ReachError) as caught:
        locate(web.url("/a")).read(10, 20)
    assert caught.value.message == "the server sent less than requested"


@pytest.mark.parametrize(("more", "fault"), [(0, None), (1, "large")])
def test_an_object_may_be_as_large_as_the_limit_and_no_byte_larger(web, engine, more, fault):
    def page(handler, times):
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        handler.wfile.write(b"%x\r\n%b\r\n0\r\n\r\n" % (1000 + more, bytes(1000 + more)))

    web.pages["/a"] = page
    arrived = SimpleQueue()
    one = engine(max_bytes=1000)
    one.submit([Request(parse(web.url("/a")), arrived.put, private=True)])
    found = arrived.get(timeout=60)
    assert (found.fault and found.fault.kind, len(found.data)) == (fault, 0 if fault else 1000)
    for _ in range(500):
        if not any(pool.busy for pool in one._pools.values()):
            break
        one.release(0, 0)
    assert not any(pool.busy for pool in one._pools.values())


def test_what_a_server_that_ignores_ranges_sends_encoded_is_bounded(web, monkeypatch):
    monkeypatch.setattr(slots, "WHOLE", 1000)
    web.page("/a", gzip.compress(os.urandom(5000)), Content_Encoding="gzip")
    with pytest.raises(ReachError) as caught:
        locate(web.url("/a")).read(10, 20)
    assert (caught.value.message, caught.value.hint) == ("larger than the limit of 1000 bytes", "")


def test_a_time_of_change_tells_versions_apart_where_there_is_no_tag(web):
    days = {1: "05"}

    def page(handler, times):
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        modified = f"Mon, {days.get(times, '06')} Jan 2026 00:00:00 GMT"
        handler.answer(
            206,
            DATA[start : stop + 1],
            Content_Range=f"bytes {start}-{stop}/{len(DATA)}",
            Last_Modified=modified,
        )

    web.pages["/a"] = page
    at = locate(web.url("/a"))
    assert at.read(0, 10) == DATA[:10]
    with pytest.raises(IntegrityError):
        at.read(10, 20)


def test_no_more_transfers_begin_than_what_objects_weighed_lately_leaves_room_for():
    window = Window(1000)
    for _ in range(200):
        window.delivered(100)
        window.held -= 100
    assert not window.is_full(9)
    assert window.is_full(11)


def test_the_time_that_a_transfer_was_paused_is_added_to_its_deadline():
    class Easy:
        def pause(self, flags):
            pass

    class Slot:
        easy, got, paused, paused_at, marked, mark = Easy(), 7, True, 100.0, 0.0, 0
        request = Request(parse("http://127.0.0.1/"), lambda request: None)

    window = Window(10)
    Slot.request.deadline = 150.0
    window.paused.append(Slot)
    window.resume(130.0)
    assert (Slot.request.deadline, Slot.marked, Slot.mark, Slot.paused, window.paused) == (
        180.0,
        130.0,
        7,
        False,
        [],
    )
