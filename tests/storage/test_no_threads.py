"""Where the system lets no thread start, calls are made one after the other, or it is said in one line; nothing hangs and nothing stays."""

import queue
import threading

import pytest

from flarecli import verbs
from flarecli.cli import run
from flarecli.errors import ReachError
from flarecli.model import Settings
from flarecli.storage import threads, transfers
from flarecli.storage.limits import Limits
from flarecli.write import Writer

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

        monkeypatch.setattr(threads, "_tasks", queue.SimpleQueue())
        monkeypatch.setattr(threads, "_idle", threading.Semaphore(0))
        monkeypatch.setattr(threading.Thread, "start", begin)

    return allow


CALLS = {
    "alone": lambda call: [threads.alone(lambda: call(b"0")), *map(call, (b"1", b"2", b"3", b"4", b"5"))],
    "side by side": lambda call: threads.side_by_side(call, [b"0", b"1", b"2", b"3", b"4", b"5"], 3),
    "ahead": lambda call: list(threads.ahead(call, [b"0", b"1", b"2", b"3", b"4", b"5"], 3)),
    "in order": lambda call: list(threads.in_order(call, [b"0", b"1", b"2", b"3", b"4", b"5"], 3, 8)),
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


def test_a_check_says_that_no_thread_starts(tmp_path, allowed):
    out = packed(tmp_path / "out")
    allowed(0)
    with pytest.raises(ReachError) as caught:
        list(verbs.verify(out))
    assert told(caught) == (NONE, HINT)
    allowed(100)
    assert list(verbs.verify(out)) == []


def test_a_pack_says_that_no_thread_starts_and_leaves_the_way_free_for_the_next(tmp_path, allowed, capsys):
    source, out = tmp_path / "in.jsonl", str(tmp_path / "out")
    source.write_text("".join(f'{{"id": {i}}}\n' for i in range(100)))
    line = ["pack", str(source), out, "--shard-size", "200", "--compress", "zstd"]
    allowed(0)
    assert run(line) == 3
    assert capsys.readouterr().err == f"error: {NONE}\nhint: {HINT}\n"
    allowed(100)
    assert run(line) == 0
    assert list(verbs.verify(out)) == []
