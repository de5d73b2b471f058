"""Bytes that go from a worker to who takes its batches through memory that both map: all of them, in order, or not that way at all."""

import multiprocessing
import os
import random
from pathlib import Path

import pytest

from flarecli.read import shared_ring
from flarecli.read.shared_ring import passed, taken

pytestmark = pytest.mark.skipif(
    not hasattr(os, "memfd_create"), reason="this system has no memory without a name"
)

ROUNDS = 40


def columns(number, seed=1):
    rng = random.Random(f"{seed} {number}")
    sizes = [rng.choice([0, 1, 300, 5000, 70_000]) for _ in range(rng.randint(1, 70))]
    return {
        "a": [rng.randbytes(size) for size in sizes],
        "none": [],
        "b": [bytes([number]) * size for size in reversed(sizes)],
    }


def serve(queue, room, over):
    """Pass what fits, send what does not; stay until all of it was taken, as a worker does."""
    for number in range(ROUNDS):
        place = passed(columns(number))
        queue.put((number, place, None if place else columns(number)))
        room.acquire()
    over.wait(60)


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize("ahead", [1, 3, 30])
def test_a_process_gets_what_another_passed(start, ahead, monkeypatch):
    monkeypatch.syspath_prepend(
        Path(__file__).parents[2]
    )  # a new process looks for this module there
    context = multiprocessing.get_context(start)
    queue, room, over = context.Queue(), context.Semaphore(ahead), context.Event()
    process = context.Process(target=serve, args=(queue, room, over))
    process.start()
    ways = set()
    for wanted in range(ROUNDS):
        number, place, sent = queue.get(timeout=60)
        got = taken(place) if place else sent
        assert number == wanted and got == columns(number) and list(got) == ["a", "none", "b"]
        ways.add(place is not None)
        room.release()
    over.set()
    process.join(10)
    assert process.exitcode == 0 and True in ways


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(shared_ring, "_own", None)
    monkeypatch.setattr(shared_ring, "_maps", {})


def told(place):
    """What a pipe would make of the handle."""
    return place._replace(handle=None if place.handle is None else Handle(shared_ring._own.fd))


class Handle:
    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return os.dup(self.fd)


def test_nothing_is_written_over_before_it_was_taken(own):
    data = {"x": [bytes([n]) * 30_000 for n in range(10)]}
    places = []
    while (place := passed(data)) is not None:
        places.append(told(place))
        data = {"x": [bytes([len(places)]) * 30_000 for _ in range(10)]}
    assert len(places) == shared_ring._BATCHES
    assert taken(places[0]) == {"x": [bytes([n]) * 30_000 for n in range(10)]}
    again = passed(data)
    assert again is not None and passed(data) is None
    for n, place in enumerate([*places[1:], again], 1):
        assert taken(place) == {"x": [bytes([n]) * 30_000] * 10}


@pytest.mark.parametrize(
    ("size", "does"),
    [
        (shared_ring._LEAST - 1, False),
        (shared_ring._LEAST, True),
        (shared_ring._MOST, True),
        (shared_ring._MOST + 1, False),
    ],
)
def test_little_and_very_much_go_through_the_pipe(own, size, does):
    assert (passed({"x": [bytes(size)]}) is not None) is does


def test_a_larger_batch_gets_a_larger_ring_and_the_old_one_goes(own):
    for size in (100_000, 150_000, 900_000, 12_000_000, 100_000):
        assert taken(told(passed({"x": [bytes(size)]}))) == {"x": [bytes(size)]}
        assert len(shared_ring._maps) == 1
    assert shared_ring._own.size == shared_ring._MOST


def test_batches_of_more_than_half_a_ring_go_on_fitting(own):
    for size in (9, 12, 7, 15, 2, 16, 10, 11):
        assert taken(told(passed({"x": [bytes([size]) * (size << 20)]}))) == {
            "x": [bytes([size]) * (size << 20)]
        }


def test_the_memory_of_processes_that_have_ended_is_let_go(own):
    gone = multiprocessing.Process(target=int)
    gone.start()
    gone.join()
    shared_ring._maps[gone.pid.to_bytes(8, "little") + bytes(8)] = None
    taken(told(passed({"x": [bytes(100_000)]})))
    assert list(shared_ring._maps) == [shared_ring._own.name]


def memories():
    """Handles of this process on memory without a name: other tests' threads open and close files meanwhile."""
    return sum(
        "memfd:flare" in os.readlink(fd)
        for fd in Path("/proc/self/fd").iterdir()
        if os.path.lexists(fd)
    )


def test_what_the_system_does_not_give_goes_through_the_pipe(own, monkeypatch):
    def none(*_):
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none)
        assert passed({"x": [bytes(100_000)]}) is None
    before = memories()
    for _ in range(3):
        assert shared_ring._Ring(1 << 20).write([bytes(100)], 100) == 0
    assert memories() == before
