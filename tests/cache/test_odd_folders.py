"""What else may lie in a cache's folder, and what forks and removals do to it: no error, no copy lost, no limit passed."""

from __future__ import annotations

import os
import shutil
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from flarecli.cache import Cache, CacheWarning, directory, kept
from flarecli.cache.directory import Present, is_left
from flarecli.cache.entry import entry
from flarecli.cache.open_entries import Views
from flarecli.cache.store import write_copy as keep
from flarecli.errors import IntegrityError
from flarecli.storage import Guard, locate


@pytest.fixture
def one(tmp_path):
    """A cache's folder as a process has it open."""
    return directory.Folder(str(tmp_path / "cache"), 64_000_000)


def put(one, name, data=b"x" * 100):
    made = entry(name, "v", "whole", len(data))
    part = one.part(made)
    assert part is not None and keep(part, made, [data])
    return made


def lie(one, name, data=b""):
    path = os.path.join(one.path, name)
    with open(path, "wb") as file:
        file.write(data)
    return path


def test_a_process_number_that_none_can_have_is_of_one_that_is_gone(one):
    put(one, "a")
    left = lie(one, f"{'0' * 40}.{one._host}.{10**20}.0.part")
    put(one, "b")
    assert not os.path.exists(left)


def test_the_lock_tells_where_a_process_number_is_another_users_by_now(one, monkeypatch):
    def another(pid, sign):
        raise PermissionError

    assert one.fd >= 0
    left = lie(one, f"{'0' * 40}.{one._host}.1234.0.part")
    monkeypatch.setattr(os, "kill", another)
    for seconds, gone in ((0, False), (60, True)):
        os.utime(left, (1, os.stat(left).st_mtime - seconds))
        assert is_left(one.fd, os.path.basename(left), os.stat(left), one._host) is gone


def test_a_note_without_end_says_nothing(one, tmp_path):
    put(one, "a")
    note = b"[" * 60_000
    data = note + struct.pack("<QI16s8s", 0, len(note), b"", b"flare\0\0\1")
    lie(one, f"{'ab' * 20}-{len(data):x}", data)
    assert sorted(found.address for found in kept(str(tmp_path / "cache"))) == ["?", "a"]


def test_room_that_was_removed_with_its_folder_is_not_counted_on(one, monkeypatch):
    monkeypatch.setattr(directory, "MANY", 1)
    for name in "abc":
        put(one, name)
    assert one._room_bytes > 0
    shutil.rmtree(one.path)
    put(one, "d")
    there = sum(
        os.stat(os.path.join(one.path, name)).st_size
        for name in os.listdir(one.path)
        if name.endswith(".room")
    )
    assert one._room_bytes == there


def test_a_folder_that_is_removed_is_made_anew_by_one_thread_alone(one, monkeypatch):
    """Two would each close the file that says who is here: the second a file of somebody else's, that has its number by now."""
    closed, close, arrive = [], os.close, Present.arrive

    def slow(self, fd):
        time.sleep(0.01)
        arrive(self, fd)

    monkeypatch.setattr(Present, "arrive", slow)
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), time.sleep(0.01), close(fd)))
    put(one, "a")
    for turn in range(3):
        shutil.rmtree(one.path)
        here, start = one._present._fd, threading.Barrier(8)
        closed.clear()

        def work(name, start=start):
            start.wait(10)
            put(one, name)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, [f"{turn}-{k}" for k in range(8)]))
        assert closed.count(here) == 1
        assert len(os.listdir(os.path.join(one.path, "here"))) == 1


def test_a_link_with_a_copys_name_is_not_followed_to_note_its_use(one, tmp_path):
    made = put(one, "a")
    (tmp_path / "victim").write_bytes(b"")
    os.utime(tmp_path / "victim", (1, 1))
    os.unlink(os.path.join(one.path, made.name))
    os.symlink(tmp_path / "victim", os.path.join(one.path, made.name))
    one.touch(made.name)
    assert os.stat(tmp_path / "victim").st_mtime == 1


def test_a_forked_process_leaves_what_its_parent_fetches(web, tmp_path):
    data = os.urandom(5_000_000)
    at = locate(web.file("/a", data, '"one"'), Guard(keeper=Cache(str(tmp_path / "cache"))))
    blocks = at.blocks()
    came = next(blocks)
    child = os.fork()
    if not child:
        blocks.close()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert came + b"".join(blocks) == data
    web.requests.clear()
    assert at.read() == data
    assert not web.requests


def test_what_a_run_has_passed_leaves_memory_whatever_became_of_its_version():
    views = Views(lambda name: True)
    old, new, other = (
        entry(address, version, "whole", 5).name
        for address, version in (("a", "1"), ("a", "2"), ("b", "1"))
    )
    views.hold(old, memoryview(b"first"))
    views.hold(other, memoryview(b"other"))
    views.hold(new, memoryview(b"later"))
    assert (views.get(old), bytes(views.get(new)), bytes(views.get(other))) == (
        None,
        b"later",
        b"other",
    )
    assert views._passing_bytes == 10
    views.passed(new[:12])
    assert (views.get(new), views._passing_bytes) == (None, 5)


@pytest.mark.parametrize("owner", [1, 4_000_000])
def test_a_folder_of_another_user_is_not_used(web, tmp_path, monkeypatch, owner):
    data = os.urandom(100_000)
    at = locate(web.file("/a", data, '"one"'), Guard(keeper=Cache(str(tmp_path / "cache"))))
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    monkeypatch.setattr(directory, "_warned", set())
    with pytest.warns(CacheWarning, match="it belongs to another user, or others may write to it"):
        assert at.read() == data
    assert os.listdir(tmp_path / "cache" / directory.LAYOUT) == []


@pytest.mark.parametrize(
    "read",
    [
        lambda at: at.read(),
        lambda at: at.map(),
        lambda at: b"".join(at.blocks()),
        lambda at: at.read_many([(0, 5)]),
    ],
)
def test_no_copy_has_the_name_of_one_version_and_the_bytes_of_another(web, tmp_path, read):
    """A store remembers the versions of so many objects, and forgets them then."""
    number = [1]
    at = locate(
        web.file("/a", lambda times: bytes(number) * 2_000_000, lambda times: f'"{number[0]}"'),
        Guard(keeper=Cache(str(tmp_path / "cache"))),
    )
    assert at.store.version(at.path) == ('"1"', 2_000_000)
    at.store._used[at.path] = {0, 1}  # half of it is used: it is mapped then
    number[0] = 2
    at.store.store._pins.clear()
    with pytest.raises(IntegrityError):
        read(at)
    assert list(kept(str(tmp_path / "cache"))) == []
    again = read(at)
    assert bytes(again[0] if isinstance(again, list) else again)[:5] == bytes([2]) * 5
