"""ordered_map and OrderedQueue: order, bounds on items and bytes, errors, closing, nesting, forks,
no threads.
"""

from __future__ import annotations

import contextlib
import gc
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import prefetch
from flarecli.errors import ReachError
from flarecli.prefetch import OrderedQueue, ordered_map, run_interruptibly, submit
from tests.pool import is_idle
from tests.properties import examples


class Meter:
    """A call that records how many calls, and how many bytes, are in use at a time."""

    def __init__(self, delays=(0,)):
        self.lock, self.delays = threading.Lock(), delays
        self.under_way = self.max_under_way = self.begun = 0

    def __call__(self, item):
        with self.lock:
            self.begun += 1
            self.under_way += 1
            self.max_under_way = max(self.max_under_way, self.under_way)
        time.sleep(self.delays[item % len(self.delays)] / 1000)
        with self.lock:
            self.under_way -= 1
        return item * item


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(0, 60),
    st.integers(0, 6),
    st.none() | st.integers(0, 9),
    st.none() | st.integers(0, 30),
    st.lists(st.integers(0, 3), min_size=1, max_size=5),
    st.lists(st.integers(0, 12), min_size=1, max_size=7),
    st.booleans(),
)
def test_results_are_in_order_and_within_all_bounds(
    count, workers, max_items, max_bytes, delays, weights, is_result_weighed
):
    call, pulled, taken, started_bytes = Meter(delays), 0, 0, []

    def weigh(item):
        return weights[item % len(weights)]

    def items():
        nonlocal pulled
        for item in range(count):
            pulled += 1
            assert pulled - taken <= max(1, 2 * workers if max_items is None else max_items)
            yield item

    def counted(item):
        # No result is taken while this call starts or before, so these bytes are all in use.
        started_bytes.append((item, taken))
        return call(item)

    out = []
    found = ordered_map(
        counted,
        items(),
        workers=workers,
        max_items=max_items,
        max_bytes=max_bytes,
        weigh=None if is_result_weighed else weigh,
        weigh_result=(lambda _: 7) if is_result_weighed else None,
    )
    for result in found:
        out.append(result)
        taken += 1
    assert out == [item * item for item in range(count)]
    assert call.max_under_way <= max(1, workers)
    assert is_idle()
    if max_bytes is not None and not is_result_weighed:
        for item, taken_then in started_bytes:
            held = sum(weigh(one) for one in range(taken_then, item + 1))
            before = held - weigh(item)
            # `taken` is counted after the queue has removed a result, so one result may be extra.
            assert before == 0 or held - weigh(taken_then) <= max_bytes


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(1, 40), st.integers(0, 39), st.integers(0, 4), st.integers(1, 8))
def test_an_error_is_raised_in_order(count, failing, workers, max_items):
    def call(item):
        if item == failing:
            raise KeyError(item)
        return item

    out = []
    with contextlib.suppress(KeyError):
        for result in ordered_map(call, range(count), workers=workers, max_items=max_items):
            out.append(result)
    assert out == list(range(min(count, failing)))


def test_calls_after_an_error_are_not_started():
    call = Meter([1])

    def failing(item):
        if item == 5:
            raise ValueError("the fifth")
        return call(item)

    with pytest.raises(ValueError, match="^the fifth$"):
        list(ordered_map(failing, range(10_000), workers=4, max_items=10_000))
    assert is_idle()
    assert call.begun < 50


def test_an_error_of_the_items_iterator_is_raised():
    def items():
        yield 1
        raise LookupError("no second item")

    found = ordered_map(str, items(), workers=2, max_items=1)
    assert next(found) == "1"
    with pytest.raises(LookupError, match="^no second item$"):
        next(found)


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_closing_the_iterator_starts_no_further_call(workers):
    call = Meter([1])
    found = ordered_map(call, range(10_000), workers=workers, max_items=100)
    assert next(found) == 0
    found.close()
    assert is_idle()
    assert call.begun <= 100


def test_an_abandoned_iterator_starts_no_further_call():
    call = Meter([1])
    found = ordered_map(call, range(10_000), workers=4, max_items=100)
    next(found)
    del found
    gc.collect()
    assert is_idle()
    assert call.begun <= 100


def test_an_iterator_that_a_worker_thread_collects_does_not_block():
    cycle = {}
    cycle["self"] = cycle
    cycle["found"] = ordered_map(str, range(1000), workers=2, max_items=10)
    next(cycle["found"])
    del cycle
    assert run_with_timeout(lambda: list(ordered_map(lambda _: gc.collect(), [1, 2], workers=2)))


def run_with_timeout(call):
    """Run a call on a new thread, and return whether it ended within ten seconds."""
    done = threading.Event()
    threading.Thread(target=lambda: (call(), done.set()), daemon=True).start()
    return done.wait(60)


def test_calls_that_use_the_pool_themselves_do_not_deadlock():
    def nested(depth):
        if depth == 0:
            return 1
        inner = ordered_map(nested, [depth - 1] * 3, workers=2, max_items=2)
        return sum(inner) + run_interruptibly(lambda: 0) + submit(lambda: 0).result()

    found = []
    assert run_with_timeout(lambda: found.append(nested(4)))
    assert found == [3**4]


def test_calls_run_ahead_without_a_consumer():
    call = Meter([1])
    found = ordered_map(call, range(100), workers=2, max_items=20)
    next(found)
    assert is_idle()
    assert call.begun == 20
    found.close()


def test_large_results_stop_further_calls():
    call, lock, bytes_held = Meter(), threading.Lock(), [0]

    def read(item):
        call(item)
        with lock:
            bytes_held[0] += 100
        return b"x" * 100

    found = ordered_map(
        read, range(300), workers=4, max_items=300, max_bytes=2000, weigh_result=len
    )
    for taken, _ in enumerate(found, 1):
        if taken in (1, 100, 200):
            assert is_idle()
            assert bytes_held[0] - taken * 100 <= 2000 + 4 * 100
    assert call.begun == 300


def test_an_item_above_the_bound_runs_alone():
    sizes = [5000, 1, 5000, 5000, 0]
    found = ordered_map(bytes, sizes, workers=2, max_bytes=100, weigh=int, weigh_result=len)
    assert [len(one) for one in found] == sizes


# -- the push form


def test_put_returns_ready_results_and_waits_if_the_queue_is_full():
    gate = threading.Event()

    def call(item):
        assert gate.wait(60)
        return item

    with OrderedQueue(call, workers=2, max_items=3) as behind:
        assert [list(behind.put(item)) for item in range(2)] == [[], []]
        assert len(behind) == 2
        gate.set()
        out = [*behind.put(2), *behind.put(3), *behind.put(4)]
        assert len(behind) < 3
        assert out + list(behind.drain()) == [0, 1, 2, 3, 4]
        assert list(behind.drain()) == []


def test_a_queue_is_closed_by_the_error_it_raises():
    behind = OrderedQueue(lambda item: 1 // item, workers=1, max_items=8)
    out = []
    with pytest.raises(ZeroDivisionError):
        for found in (behind.put(1), behind.put(0), behind.drain()):
            out.extend(found)
    assert out == [1]
    assert len(behind) == 0
    with pytest.raises(RuntimeError, match="^the queue is closed$"):
        behind.put(1)


def test_closing_a_queue_can_wait_for_calls_in_flight():
    begun, ended = threading.Event(), []

    def call(item):
        begun.set()
        time.sleep(0.5)  # enough for the main thread to close the queue on a busy machine
        ended.append(item)

    behind = OrderedQueue(call, workers=1, max_items=8)
    for item in range(3):
        behind.put(item)
    assert begun.wait(60)
    behind.close(wait=True)
    assert ended == [0]


# -- single calls


def test_a_single_call_returns_its_result_or_raises_its_error():
    assert run_interruptibly(lambda: 5) == 5
    with pytest.raises(TimeoutError, match="^of the call$"):
        run_interruptibly(lambda: fail(TimeoutError("of the call")))
    with pytest.raises(KeyError):
        submit(lambda: fail(KeyError(1))).result()


def fail(error):
    raise error


INTERRUPTED = """
import time
from flarecli.prefetch import ordered_map, run_interruptibly
def block(item=None):
    print("begun", flush=True)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            time.sleep(60)
        except InterruptedError:
            pass
try:
    WAIT
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize(
    "wait", ["run_interruptibly(block)", "list(ordered_map(block, [1], workers=1))"]
)
def test_an_interrupt_ends_the_wait_for_a_call_that_blocks(wait):
    code = INTERRUPTED.replace("WAIT", wait)
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert child.stdout.readline() == "begun\n"
    start = time.monotonic()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[0] == "interrupted\n"
    assert child.returncode == 0
    assert time.monotonic() - start < 50  # the call blocks for 60 s


# -- threads


@pytest.fixture
def allowed(monkeypatch):
    """Limit how many threads may still start, on an empty pool."""
    start, others = threading.Thread.start, set(threading.enumerate())

    def allow(count):
        left = [None] * count

        def begin(thread):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
            start(thread)

        monkeypatch.setattr(prefetch, "_tasks", queue.SimpleQueue())
        monkeypatch.setattr(prefetch, "_idle", threading.Semaphore(0))
        monkeypatch.setattr(threading.Thread, "start", begin)

    yield allow
    assert is_idle(but=others)
    prefetch.close_idle_threads()


@pytest.mark.parametrize("count", range(4))
def test_calls_run_on_as_many_threads_as_the_system_allows(count, allowed):
    allowed(count)
    call = Meter([1])
    found = ordered_map(call, range(20), workers=3, max_bytes=5, weigh=lambda _: 1)
    assert list(found) == [item * item for item in range(20)]
    assert run_interruptibly(lambda: 7) == 7
    with pytest.raises(KeyError, match="^0$"):
        list(ordered_map(lambda item: {}[item], range(3), workers=3))


def test_a_call_that_needs_a_thread_raises_without_one(allowed):
    allowed(0)
    with pytest.raises(ReachError) as caught:
        submit(lambda: 1)
    assert str(caught.value) == "cannot start another thread"
    assert caught.value.hint == "Lower --jobs, or raise the limit on processes (`ulimit -u`)."
    allowed(1)
    assert submit(lambda: 1).result() == 1


def test_idle_threads_end_and_new_ones_start_when_needed():
    assert list(ordered_map(str, range(9), workers=3)) == [str(item) for item in range(9)]
    assert is_idle()
    prefetch.close_idle_threads()
    end = time.monotonic() + 60
    while any(one.name == "flare-pool" for one in threading.enumerate()):
        assert time.monotonic() < end
    assert list(ordered_map(str, range(9), workers=3)) == [str(item) for item in range(9)]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_has_its_own_threads():
    list(ordered_map(str, range(9), workers=3))
    child = os.fork()
    if not child:
        is_right = list(ordered_map(str, range(9), workers=3)) == list("012345678")
        os._exit(0 if is_right else 1)
    assert os.waitpid(child, 0)[1] == 0


# -- memory


class Held:
    """An object that is local to a caller."""


def put_and_drain(call):
    queue = OrderedQueue(call, workers=2)
    list(queue.put(1))
    list(queue.drain())


CALLS = {
    "OrderedQueue": put_and_drain,
    "run_interruptibly": lambda call: run_interruptibly(lambda: call(1)),
    "submit": lambda call: submit(lambda: call(1)).result(),
    "ordered_map": lambda call: list(ordered_map(call, [1, 2, 3], workers=2)),
}


@pytest.mark.parametrize("name", CALLS)
def test_an_error_keeps_no_object_of_its_caller_alive(name):
    def caller():
        held = Held()
        with contextlib.suppress(KeyError):
            CALLS[name](lambda item: {}[item])
            raise AssertionError("no error was raised")
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()


def test_only_the_awaited_call_wakes_the_reader():
    class Counted(threading.Condition):
        waits = 0

        def wait(self, timeout=None):
            self.waits += 1
            return super().wait(timeout)

    others, all_put = threading.Semaphore(0), threading.Event()

    def call(item):
        if item == 0:
            all_put.wait()
            for _ in range(99):
                others.acquire()
        else:
            time.sleep(0.001)
            others.release()
        return item

    behind = OrderedQueue(call, workers=4, max_items=101)
    behind._changed = changed = Counted()
    started = time.monotonic()
    for item in range(100):
        assert not [*behind.put(item)]
    all_put.set()
    assert next(behind.drain()) == 0
    # Each wait also ends after _TICK_S.
    assert changed.waits <= 2 + (time.monotonic() - started) / prefetch._TICK_S
    behind.close(wait=True)
