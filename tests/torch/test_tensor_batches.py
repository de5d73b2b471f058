"""The shared ring transfers columns of bytes completely and in order, or reports that they do not
fit.
"""

import multiprocessing
import os
import random
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from flarecli.torch import tensor_batches as ring  # noqa: E402
from flarecli.torch.tensor_batches import read_ring, write_ring  # noqa: E402

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
    """Write columns that fit into the ring, send the others, and wait until all were read."""
    for number in range(ROUNDS):
        place = write_ring(columns(number))
        queue.put((number, place, None if place else columns(number)))
        room.acquire()
    over.wait(60)


@pytest.mark.parametrize(
    ("start", "ahead"),
    [("fork", 1), ("fork", 3), ("fork", 30), ("spawn", 3)],  # spawned processes import torch
)
def test_a_process_reads_the_batches_that_another_process_wrote(start, ahead, monkeypatch):
    monkeypatch.syspath_prepend(
        Path(__file__).parents[2]
    )  # so that a spawned process can import this module
    context = multiprocessing.get_context(start)
    queue, room, over = context.Queue(), context.Semaphore(ahead), context.Event()
    process = context.Process(target=serve, args=(queue, room, over), daemon=True)
    process.start()
    ways = set()
    for expected in range(ROUNDS):
        number, place, sent = queue.get(timeout=60)
        got = read_ring(place) if place else sent
        assert number == expected and got == columns(number) and list(got) == ["a", "none", "b"]
        ways.add(place is not None)
        room.release()
    over.set()
    process.join(60)
    assert process.exitcode == 0 and True in ways


@pytest.fixture
def own(monkeypatch):
    monkeypatch.setattr(ring, "_own_ring", None)
    monkeypatch.setattr(ring, "_maps", {})


def received(place):
    """Replace the handle as a pipe would."""
    return place._replace(handle=None if place.handle is None else Handle(ring._own_ring.fd))


class Handle:
    def __init__(self, fd):
        self.fd = fd

    def detach(self):
        return os.dup(self.fd)


def test_unread_bytes_are_not_overwritten(own):
    data = {"x": [bytes([n]) * 30_000 for n in range(10)]}
    places = []
    while (place := write_ring(data)) is not None:
        places.append(received(place))
        data = {"x": [bytes([len(places)]) * 30_000 for _ in range(10)]}
    assert len(places) == ring._RING_BATCHES
    assert read_ring(places[0]) == {"x": [bytes([n]) * 30_000 for n in range(10)]}
    again = write_ring(data)
    assert again is not None and write_ring(data) is None
    for n, place in enumerate([*places[1:], again], 1):
        assert read_ring(place) == {"x": [bytes([n]) * 30_000] * 10}


@pytest.mark.parametrize(
    ("size", "is_written"),
    [
        (ring._MIN_RING_BYTES - 1, False),
        (ring._MIN_RING_BYTES, True),
        (ring._MAX_RING_BYTES, True),
        (ring._MAX_RING_BYTES + 1, False),
    ],
)
def test_small_and_very_large_columns_go_through_the_pipe(own, size, is_written):
    assert (write_ring({"x": [bytes(size)]}) is not None) is is_written


def test_a_larger_batch_replaces_the_ring(own):
    for size in (100_000, 150_000, 900_000, 12_000_000, 100_000):
        assert read_ring(received(write_ring({"x": [bytes(size)]}))) == {"x": [bytes(size)]}
        assert len(ring._maps) == 1
    assert ring._own_ring.size == ring._MAX_RING_BYTES


def test_batches_above_half_of_the_ring_keep_fitting(own):
    for size in (9, 12, 7, 15, 2, 16, 10, 11):
        assert read_ring(received(write_ring({"x": [bytes([size]) * (size << 20)]}))) == {
            "x": [bytes([size]) * (size << 20)]
        }


def test_rings_of_ended_processes_are_unmapped(own):
    gone = multiprocessing.Process(target=int)
    gone.start()
    gone.join()
    ring._maps[gone.pid.to_bytes(8, "little") + bytes(8)] = None
    read_ring(received(write_ring({"x": [bytes(100_000)]})))
    assert list(ring._maps) == [ring._own_ring.name]


def memories():
    """Count the memfd handles of this process; other threads may close files meanwhile."""
    return sum(
        "memfd:flare" in os.readlink(fd)
        for fd in Path("/proc/self/fd").iterdir()
        if os.path.lexists(fd)
    )


def test_without_shared_memory_columns_go_through_the_pipe(own, monkeypatch):
    def none(*_):
        raise OSError("no memory")

    with monkeypatch.context() as patch:
        patch.setattr(os, "memfd_create", none)
        assert write_ring({"x": [bytes(100_000)]}) is None
    before = memories()
    for _ in range(3):
        assert ring._Ring(1 << 20).write([bytes(100)], 100) == 0
    assert memories() == before
