"""Where the system lets no thread start, calls are made one after the other, or it is said in one line; nothing hangs and nothing stays."""

import queue
import threading

import pytest

import flarecli as flare
from flarecli import commands, prefetch, read
from flarecli.errors import ReachError
from flarecli.model import Settings
from flarecli.storage import locate, threads
from flarecli.storage.http import engine as transfers
from flarecli.storage.limits import Limits
from flarecli.storage.workers import Workers
from flarecli.write import Writer
from flarecli.write.bucket_target import BucketTarget
from flarecli.write.lease import Lease

NONE = "the system lets no further thread start"
HINT = "Give it fewer --jobs, or let the user or the container have more processes (`ulimit -u`)."


@pytest.fixture
def allowed(monkeypatch):
    """Say how many threads may start from now on; those that wait for work are left out of it."""
    start = threading.Thread.start

    def allow(count):
        left = [None] * count

        def begin(thread):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
            start(thread)

        for pool in (threads, prefetch):
            monkeypatch.setattr(pool, "_tasks", queue.SimpleQueue())
            monkeypatch.setattr(pool, "_idle", threading.Semaphore(0))
        monkeypatch.setattr(threading.Thread, "start", begin)

    return allow


CALLS = {
    "alone": lambda call: [
        threads.alone(lambda: call(b"0")),
        *map(call, (b"1", b"2", b"3", b"4", b"5")),
    ],
    "side by side": lambda call: threads.side_by_side(
        call, [b"0", b"1", b"2", b"3", b"4", b"5"], 3
    ),
    "ahead": lambda call: list(threads.ahead(call, [b"0", b"1", b"2", b"3", b"4", b"5"], 3)),
    "in order": lambda call: list(
        threads.in_order(call, [b"0", b"1", b"2", b"3", b"4", b"5"], 3, 8)
    ),
}


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("name", CALLS)
def test_calls_are_made_with_as_many_threads_as_there_are(name, count, allowed):
    allowed(count)
    assert CALLS[name](lambda item: item * 3) == [b"000", b"111", b"222", b"333", b"444", b"555"]


@pytest.mark.parametrize("name", CALLS)
def test_what_a_call_raises_comes_without_threads_too(name, allowed):
    allowed(0)
    with pytest.raises(KeyError, match="b'0'"):
        CALLS[name](lambda item: {}[item])


def told(caught):
    return str(caught.value), caught.value.hint


def test_a_call_that_goes_on_beside_its_caller_takes_a_thread(allowed):
    allowed(0)
    with pytest.raises(ReachError) as caught:
        threads.begin(lambda: 1)
    assert told(caught) == (NONE, HINT)
    allowed(1)
    assert threads.wait_for(threads.begin(lambda: 1)).get() == 1


def test_transfers_take_a_thread(allowed):
    allowed(0)
    known = set(transfers._engines)
    with pytest.raises(ReachError) as caught:
        transfers.Engine(Limits())
    assert told(caught) == (NONE, HINT)
    assert transfers._engines == known


def packed(folder):
    with Writer(str(folder), columns={"id": "int"}, settings=Settings(shard_rows=1)) as writer:
        for i in range(3):
            writer.write({"id": i})
    return str(folder)


def test_a_check_needs_no_thread_of_its_own(tmp_path, allowed):
    out = packed(tmp_path / "out")
    allowed(0)
    assert list(commands.verify(out)) == []
    (tmp_path / "out" / "shard.00001.mds").write_bytes(b"cut")
    assert [one.kind for one in commands.verify(out)] == ["size"]


def test_a_pack_needs_no_thread_of_its_own(tmp_path, allowed):
    source, sizes = tmp_path / "in.jsonl", {"shard_size": 200, "compress": "zstd"}
    source.write_text("".join(f'{{"id": {i}}}\n' for i in range(100)))
    flare.pack(str(source), str(tmp_path / "whole"), **sizes)
    allowed(0)
    assert flare.pack(str(source), str(tmp_path / "out"), **sizes).rows == 100
    assert {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()} == {
        one.name: one.read_bytes() for one in (tmp_path / "whole").iterdir()
    }


def test_pictures_that_no_thread_can_shrink_are_told(tmp_path, allowed):
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (9, 9)).save(tmp_path / "one.png")
    source = tmp_path / "in.jsonl"
    source.write_text('{"url": "one.png"}\n' * 3)
    allowed(0)
    with pytest.raises(ReachError) as caught:
        flare.pack(str(source), str(tmp_path / "out"), fetch="url:image", resize=4)
    assert told(caught) == (NONE, HINT)


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize("order", ["shuffle", "windows"])
def test_a_loader_gives_the_same_batches_on_the_threads_that_there_are(
    tmp_path, allowed, count, order, monkeypatch
):
    data = read.open(packed(tmp_path / "out"))
    monkeypatch.setattr(type(data), "room", 1 << 30)  # as if it came from far away
    allowed(count)
    loader = flare.Loader(data, 1, workers=3, order=order, transform=dict)
    assert sorted(batch["id"].tolist() for batch in loader) == [[0], [1], [2]]
    assert sorted(sample["id"] for sample in data.run(order=order)) == [0, 1, 2]


def test_a_lock_that_nobody_can_write_again_is_let_go_of(tmp_path, allowed):
    lock = locate(str(tmp_path)) / "lock"
    allowed(0)
    with pytest.raises(ReachError) as caught:
        Lease(lock, "s3://b/out", waits=False)
    assert told(caught) == (NONE, HINT)
    assert not lock.exists()
    allowed(1)
    lease = Lease(lock, "s3://b/out", waits=False)
    lease.expire()
    lease._thread.join(10)
    assert not lease._thread.is_alive()
    assert lock.exists()


def test_a_dropped_pack_that_no_thread_can_end_leaves_its_lock_to_grow_old(tmp_path, allowed):
    allowed(1)
    target, done = BucketTarget(locate(str(tmp_path)) / "out"), []
    target.run_finalizer(lambda: done.append("by a thread that is not there"))
    target._lease._thread.join(10)
    assert not target._lease._thread.is_alive()
    assert done == []
    assert (tmp_path / "out/.flare/lock").exists()
    target.release()
    assert not (tmp_path / "out/.flare/lock").exists()


def test_calls_that_are_handed_to_workers_say_it(allowed):
    allowed(0)
    with Workers(2) as pool, pytest.raises(ReachError) as caught:
        pool.submit(len, "a")
    assert told(caught) == (NONE, HINT)
    allowed(2)
    with Workers(2) as pool:
        assert list(pool.map(len, ["a", "bc"])) == [1, 2]
        assert pool.submit(int, "11", base=2).result() == 3
    with pytest.raises(RuntimeError, match="^cannot schedule new futures after shutdown$"):
        pool.submit(len, "a")


def test_processes_that_cannot_start_are_told(tmp_path, monkeypatch):
    data = read.open(packed(tmp_path / "out"))

    def forked():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", forked)
    with pytest.raises(ReachError) as caught:
        next(iter(flare.Loader(data, 1, processes=True, start="fork", workers=2)))
    hint = "Give it fewer workers, or let the user or the container have more processes and memory (`ulimit -u`)."
    assert told(caught) == (
        "the system lets no further process start: resource temporarily unavailable",
        hint,
    )
