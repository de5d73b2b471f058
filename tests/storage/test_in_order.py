"""Calls side by side whose results are given in order, while others come."""

import threading
import time

import pytest

from flarecli.storage.threads import in_order


def test_results_come_in_order_whichever_ends_first():
    def call(i):
        time.sleep(0.02 if i % 7 == 0 else 0)
        return b"%d" % i

    assert list(in_order(call, range(200), 8, 1000)) == [b"%d" % i for i in range(200)]
    assert list(in_order(call, range(3), 8, 1)) == [b"0", b"1", b"2"]
    assert list(in_order(call, range(3), 8, 0)) == [b"0", b"1", b"2"]
    assert list(in_order(call, [], 8, 1000)) == []


def test_what_waits_to_be_given_is_bounded_and_calls_go_on_when_it_was_taken():
    begun, lock = [0], threading.Lock()

    def call(i):
        with lock:
            begun[0] += 1
        return b"x" * 100

    found = in_order(call, range(1000), 4, 2000)
    taken = 0
    for _ in found:
        taken += 1
        if taken in (1, 100, 500):
            time.sleep(0.05)
            assert begun[0] - taken <= 20 + 4  # as many as fit, and one more of each thread
    assert taken == begun[0] == 1000


def test_one_that_is_larger_than_the_bound_passes():
    assert [
        len(data) for data in in_order(lambda i: bytes(i), [5000, 1, 5000, 5000, 0], 2, 100)
    ] == [5000, 1, 5000, 5000, 0]


def test_calls_are_begun_beside_each_other_at_most_so_many():
    at_once, most, lock = [0], [0], threading.Lock()

    def call(i):
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        time.sleep(0.01)
        with lock:
            at_once[0] -= 1
        return b"x"

    assert len(list(in_order(call, range(60), 6, 1000))) == 60
    assert most[0] == 6


def test_an_error_is_raised_at_once_and_ends_the_rest():
    begun, stuck = [], threading.Event()

    def call(i):
        begun.append(i)
        if i == 0:
            stuck.wait(30)
        if i == 5:
            raise ValueError("the fifth")
        time.sleep(0.001)
        return b"x"

    try:
        with pytest.raises(ValueError, match="the fifth"):
            list(in_order(call, range(10_000), 4, 10**6))
    finally:
        stuck.set()
    time.sleep(0.05)
    count = len(begun)
    time.sleep(0.05)
    assert len(begun) == count < 10_000


def test_who_stops_taking_stops_the_calls():
    begun = []

    def call(i):
        begun.append(i)
        time.sleep(0.001)
        return b"x"

    found = in_order(call, range(10_000), 4, 10**6)
    assert next(found) == b"x"
    found.close()
    time.sleep(0.05)
    count = len(begun)
    time.sleep(0.05)
    assert len(begun) == count < 10_000
