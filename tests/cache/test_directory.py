"""The cache folder: eviction, reservations, listings, other files in it, forks and removals."""

from __future__ import annotations

import os
import shutil
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest

from flarecli.cache import Cache, CacheWarning, directory, list_copies
from flarecli.cache.directory import Folder, KnownPrefixes
from flarecli.cache.entry import entry, name_prefix
from flarecli.cache.locks import Presence
from flarecli.errors import IntegrityError
from flarecli.storage import Guard, locate
from tests.cache.samples import copies, put, put_data


@pytest.mark.parametrize("mode", [0o720, 0o702])
def test_a_folder_that_a_group_or_others_may_write_to_is_not_used(one, monkeypatch, mode):
    monkeypatch.setattr(directory, "_warned", set())
    os.makedirs(one.path)
    os.chmod(one.path, mode)
    with pytest.warns(CacheWarning):
        assert one.part(entry("a", "v", "whole", 10)) is None


def test_a_folder_that_others_may_only_read_is_used(one):
    os.makedirs(one.path)
    os.chmod(one.path, 0o755)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        put(one, "a")


def test_a_copy_with_a_future_time_of_use_is_evicted_first(one):
    ahead, old = put(one, "a"), put(one, "b")
    for name, shift in ((ahead, 10_000), (old, -10_000)):
        os.utime(os.path.join(one.path, name), (time.time(), time.time() + shift))
    put(one, "c", 62_000)
    assert ahead not in copies(one) and old in copies(one)


def test_many_copies_are_evicted_in_batches(one, monkeypatch):
    for i in range(40):
        put(one, f"{i}")
    monkeypatch.setattr(directory, "MANY_COPIES", 10)
    before = len(copies(one))
    put(one, "large", 62_000 - 1140 * before)
    assert len(copies(one)) == before + 1  # it fits
    put(one, "one", 3000)
    size = 1000 + 140
    left = before + 2 - len(copies(one))
    assert left * size >= 3000 - 2000 + 64_000 // directory.BATCH_SHARE


@pytest.mark.parametrize(("used", "fits"), [(63_950, True), (63_951, False)])
def test_reservations_for_small_copies_do_not_exceed_the_limit(one, monkeypatch, used, fits):
    """Nothing can be evicted: all space is used by parts of other processes."""
    assert one.fd >= 0
    monkeypatch.setattr(directory, "MANY_COPIES", 0)
    monkeypatch.setattr(one, "_scan", lambda: (used, [(0.0, f"{'0' * 40}-1", 1)]))
    assert one._reserve(50, float("inf"), []) is fits
    assert one._reserved_bytes == 0


@pytest.mark.parametrize(("limit", "is_kept"), [(8 << 20, False), (13 << 20, True)])
def test_an_object_larger_than_a_quarter_of_the_limit_is_not_kept_whole(
    web, tmp_path, limit, is_kept
):
    at = locate(
        web.file("/a", bytes(3 << 20), '"one"'), Guard(keeper=Cache(str(tmp_path / "cache"), limit))
    )
    assert at.store.keep(at.path) is is_kept


def test_a_reservation_removed_with_its_folder_is_not_used(large_folder, monkeypatch):
    monkeypatch.setattr(directory, "MANY_COPIES", 1)
    for name in "abc":
        put_data(large_folder, name)
    assert large_folder._reserved_bytes > 0
    shutil.rmtree(large_folder.path)
    put_data(large_folder, "d")
    there = sum(
        os.stat(os.path.join(large_folder.path, name)).st_size
        for name in os.listdir(large_folder.path)
        if name.endswith(".room")
    )
    assert large_folder._reserved_bytes == there


def test_one_thread_creates_a_removed_folder_again(large_folder, monkeypatch):
    """Two threads would each close the presence file; the second one could close another file with
    the same descriptor.
    """
    closed, close, arrive = [], os.close, Presence.register

    def slow(self, fd):
        time.sleep(0.01)
        arrive(self, fd)

    monkeypatch.setattr(Presence, "register", slow)
    monkeypatch.setattr(os, "close", lambda fd: (closed.append(fd), time.sleep(0.01), close(fd)))
    put_data(large_folder, "a")
    for turn in range(3):
        shutil.rmtree(large_folder.path)
        here, start = large_folder._presence._fd, threading.Barrier(8)
        closed.clear()

        def work(name, start=start):
            start.wait(10)
            put_data(large_folder, name)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(work, [f"{turn}-{k}" for k in range(8)]))
        assert closed.count(here) == 1
        assert len(os.listdir(os.path.join(large_folder.path, "here"))) == 1


def test_a_symbolic_link_with_the_name_of_a_copy_is_not_touched(large_folder, tmp_path):
    made = put_data(large_folder, "a")
    (tmp_path / "victim").write_bytes(b"")
    os.utime(tmp_path / "victim", (1, 1))
    os.unlink(os.path.join(large_folder.path, made.name))
    os.symlink(tmp_path / "victim", os.path.join(large_folder.path, made.name))
    large_folder.touch(made.name)
    assert os.stat(tmp_path / "victim").st_mtime == 1


def test_a_forked_child_does_not_remove_parts_of_its_parent(web, tmp_path):
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


@pytest.mark.parametrize("owner", [1, 4_000_000])
def test_a_folder_of_another_user_is_not_used(web, tmp_path, monkeypatch, owner):
    data = os.urandom(100_000)
    at = locate(web.file("/a", data, '"one"'), Guard(keeper=Cache(str(tmp_path / "cache"))))
    monkeypatch.setattr(os, "geteuid", lambda: owner)
    monkeypatch.setattr(directory, "_warned", set())
    with pytest.warns(
        CacheWarning, match="the folder belongs to another user, or other users have write access"
    ):
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
def test_a_copy_never_has_data_of_another_version(web, tmp_path, read):
    """A store drops version pins when it has too many."""
    number = [1]
    at = locate(
        web.file("/a", lambda times: bytes(number) * 2_000_000, lambda times: f'"{number[0]}"'),
        Guard(keeper=Cache(str(tmp_path / "cache"))),
    )
    assert at.store.version(at.path) == ('"1"', 2_000_000)
    at.store._used[at.path] = {0, 1}  # half of the blocks were used, so it is mapped
    number[0] = 2
    at.store.store._pins.clear()
    with pytest.raises(IntegrityError):
        read(at)
    assert list(list_copies(str(tmp_path / "cache"))) == []
    again = read(at)
    assert bytes(again[0] if isinstance(again, list) else again)[:5] == bytes([2]) * 5


ADDRESS = "s3://bucket/shard.00000.mds"


@pytest.fixture
def alone(tmp_path):
    one = Folder(str(tmp_path), 10**6)
    assert one.fd >= 0
    assert one.is_alone()
    return one


def kept(folder, address):
    one = entry(address, "v", "whole", 3)
    part = folder.part(one)
    assert part.write(b"a" * one.file_bytes)
    assert part.publish(one)


def test_a_copy_that_this_process_wrote_is_found_immediately(alone):
    assert not alone.may_have(name_prefix(ADDRESS))
    kept(alone, ADDRESS)
    assert alone.may_have(name_prefix(ADDRESS))
    assert not alone.may_have(name_prefix(ADDRESS + "x"))


def test_copies_of_this_process_need_no_new_listing(alone, monkeypatch):
    monkeypatch.setattr(directory, "_LISTING_S", 1000.0)
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda fd: listed.append(fd) or listdir(fd))
    for i in range(20):
        assert not alone.may_have(name_prefix(f"{ADDRESS}{i}"))
        kept(alone, f"{ADDRESS}{i}")
    assert all(alone.may_have(name_prefix(f"{ADDRESS}{i}")) for i in range(20))
    assert len(listed) == 1


def test_a_copy_that_another_process_wrote_is_found_after_a_moment(alone, monkeypatch):
    monkeypatch.setattr(directory, "_LISTING_S", 1000.0)
    assert not alone.may_have(name_prefix(ADDRESS))
    kept(Folder(alone._shown, 10**6), ADDRESS)
    assert not alone.may_have(name_prefix(ADDRESS))
    monkeypatch.setattr(directory, "_LISTING_S", 0.0)
    assert alone.may_have(name_prefix(ADDRESS))


def test_a_listing_is_not_reused_with_other_processes(alone, monkeypatch):
    monkeypatch.setattr(directory, "_LISTING_S", 1000.0)
    monkeypatch.setattr(alone, "is_alone", lambda: False)
    assert not alone.may_have(name_prefix(ADDRESS))
    kept(Folder(alone._shown, 10**6), ADDRESS)
    assert alone.may_have(name_prefix(ADDRESS))


def test_a_listing_during_which_a_copy_is_added_is_not_reused(alone, monkeypatch):
    known, listdir = KnownPrefixes(), os.listdir

    def slow(fd):
        found = listdir(fd)
        known.add(name_prefix(ADDRESS))
        return found

    monkeypatch.setattr(directory, "_LISTING_S", 1000.0)
    monkeypatch.setattr(os, "listdir", slow)
    assert not known.may_have(name_prefix(ADDRESS), alone.fd, True)
    monkeypatch.undo()
    kept(alone, ADDRESS)
    assert known.may_have(name_prefix(ADDRESS), alone.fd, True)


def test_every_copy_may_exist_in_a_large_folder(alone, monkeypatch):
    monkeypatch.setattr(directory, "_LISTING_S", 0.0)
    for i in range(5):
        kept(alone, f"{ADDRESS}{i}")
    assert not alone.may_have(name_prefix(ADDRESS))
    monkeypatch.setattr(directory, "_MAX_NAMES", 4)
    assert alone.may_have(name_prefix(ADDRESS))


def test_if_a_folder_cannot_be_listed_every_copy_may_exist(tmp_path):
    (tmp_path / "file").touch()
    with pytest.warns(CacheWarning):
        assert Folder(str(tmp_path / "file"), 10**6).may_have(name_prefix(ADDRESS))
