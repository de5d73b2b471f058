"""Without threads, calls run one after another, or raise one error; nothing hangs or is left
behind.
"""

import threading

import pytest

import flarecli as flare
from flarecli import commands, prefetch, read
from flarecli.errors import ReachError
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.storage.base import Limits
from flarecli.storage.http import engine as transfers
from flarecli.write import Writer
from flarecli.write.bucket_target import BucketTarget, Lease
from tests.pool import is_idle

NONE = "cannot start another thread"


HINT = "Lower --jobs, or raise the limit on processes (`ulimit -u`)."


@pytest.fixture
def allowed(monkeypatch):
    """Return a function that limits the number of threads that may start; idle threads are ended
    first.
    """
    start = threading.Thread.start

    def allow(count):
        left = [None] * count

        def start_or_raise(thread):
            if not left:
                raise RuntimeError("can't start new thread")
            left.pop()
            start(thread)

        assert is_idle()
        prefetch.close_idle_threads()
        monkeypatch.setattr(threading.Thread, "start", start_or_raise)

    return allow


def message_and_hint(caught):
    return str(caught.value), caught.value.hint


def test_without_a_thread_the_transfer_engine_is_not_started(allowed):
    allowed(0)
    known = set(transfers._engines)
    with pytest.raises(ReachError) as caught:
        transfers.Engine(Limits())
    assert message_and_hint(caught) == (NONE, HINT)
    assert transfers._engines == known


def packed(folder):
    with Writer(str(folder), columns={"id": "int"}, settings=Settings(shard_rows=1)) as writer:
        for i in range(3):
            writer.write({"id": i})
    return str(folder)


def test_verify_works_without_threads(tmp_path, allowed):
    out = packed(tmp_path / "out")
    allowed(0)
    assert list(commands.verify(out)) == []
    (tmp_path / "out" / "shard.00001.mds").write_bytes(b"cut")
    assert [one.kind for one in commands.verify(out)] == ["size"]


def test_pack_works_without_threads(tmp_path, allowed):
    source, sizes = tmp_path / "in.jsonl", {"shard_size": 200, "compress": "zstd"}
    source.write_text("".join(f'{{"id": {i}}}\n' for i in range(100)))
    flare.pack(str(source), str(tmp_path / "whole"), **sizes)
    allowed(0)
    assert flare.pack(str(source), str(tmp_path / "out"), **sizes).rows == 100
    assert {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()} == {
        one.name: one.read_bytes() for one in (tmp_path / "whole").iterdir()
    }


def test_images_are_resized_without_threads(tmp_path, allowed):
    pillow = pytest.importorskip("PIL.Image")
    pillow.new("RGB", (9, 9)).save(tmp_path / "one.png")
    source = tmp_path / "in.jsonl"
    source.write_text('{"url": "one.png"}\n' * 3)
    options = {"fetch": "url:image", "resize": 4}
    flare.pack(str(source), str(tmp_path / "whole"), **options)
    allowed(0)
    assert flare.pack(str(source), str(tmp_path / "out"), **options).rows == 3
    assert {one.name: one.read_bytes() for one in (tmp_path / "out").iterdir()} == {
        one.name: one.read_bytes() for one in (tmp_path / "whole").iterdir()
    }


@pytest.mark.parametrize("count", range(3))
@pytest.mark.parametrize("order", ["shuffle", "windows"])
def test_a_loader_returns_the_same_batches_with_any_number_of_threads(
    tmp_path, allowed, count, order, monkeypatch
):
    data = read.open(packed(tmp_path / "out"))
    monkeypatch.setattr(type(data.shards), "room", 1 << 30)  # like remote shards
    allowed(count)
    loader = flare.Loader(data, 1, workers=3, order=order, transform=dict)
    assert sorted(batch["id"].tolist() for batch in loader) == [[0], [1], [2]]
    assert sorted(sample["id"] for sample in data.run(order=order)) == [0, 1, 2]


def test_without_a_thread_that_renews_it_a_lock_is_released(tmp_path, allowed):
    lock = locate(str(tmp_path)) / "lock"
    allowed(0)
    with pytest.raises(ReachError) as caught:
        Lease(lock, "s3://b/out", waits=False)
    assert message_and_hint(caught) == (NONE, HINT)
    assert not lock.exists()
    allowed(1)
    lease = Lease(lock, "s3://b/out", waits=False)
    lease.expire()
    lease._thread.join(60)
    assert not lease._thread.is_alive()
    assert lock.exists()


def test_an_abandoned_pack_that_no_thread_can_finish_lets_its_lock_expire(tmp_path, allowed):
    allowed(1)
    target, done = BucketTarget(locate(str(tmp_path)) / "out"), []
    target.run_finalizer(lambda: done.append("on a thread"))
    target._lease._thread.join(60)
    assert not target._lease._thread.is_alive()
    assert done == []
    assert (tmp_path / "out/.flare/lock").exists()
    target.release()
    assert not (tmp_path / "out/.flare/lock").exists()


def test_processes_that_cannot_start_are_reported(tmp_path, monkeypatch):
    data = read.open(packed(tmp_path / "out"))

    def forked():
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", forked)
    with pytest.raises(ReachError) as caught:
        next(iter(flare.Loader(data, 1, processes=True, start="fork", workers=2)))
    hint = "Use fewer workers, or raise the limits on processes (`ulimit -u`) and memory of the user or the container."
    assert message_and_hint(caught) == (
        "cannot start another process: resource temporarily unavailable",
        hint,
    )
