"""What leaves a cache's folder, and when: the coldest, whatever a clock said; many at once where there are many; never one byte too few."""

from __future__ import annotations

import os
import struct
import time
import warnings

import pytest

from flarecli.cache import Cache, CacheWarning, directory, kept
from flarecli.cache.entry import entry
from flarecli.cache.open_entries import Views
from flarecli.cache.store import write_copy as keep
from flarecli.storage import Guard, locate


@pytest.fixture
def one(tmp_path):
    """A cache's folder of 64,000 bytes as a process has it open."""
    return directory.Folder(str(tmp_path / "cache"), 64_000)


def put(one, name, size=1000):
    made = entry(name, "v", "whole", size)
    part = one.part(made)
    assert part is not None and keep(part, made, [bytes(size)])
    return made.name


def copies(one):
    return {name for name in os.listdir(one.path) if directory.NAME.fullmatch(name)}


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


def test_a_copy_whose_time_of_use_lies_ahead_leaves_before_an_old_one(one):
    ahead, old = put(one, "a"), put(one, "b")
    for name, shift in ((ahead, 10_000), (old, -10_000)):
        os.utime(os.path.join(one.path, name), (time.time(), time.time() + shift))
    put(one, "c", 62_000)
    assert ahead not in copies(one) and old in copies(one)


def test_where_there_are_many_copies_a_share_of_the_limit_leaves_at_once(one, monkeypatch):
    for i in range(40):
        put(one, f"{i}")
    monkeypatch.setattr(directory, "MANY", 10)
    before = len(copies(one))
    put(one, "large", 62_000 - 1140 * before)
    assert len(copies(one)) == before + 1  # it fits
    put(one, "one", 3000)
    size = 1000 + 140
    left = before + 2 - len(copies(one))
    assert left * size >= 3000 - 2000 + 64_000 // directory.BATCH_SHARE


@pytest.mark.parametrize(("used", "fits"), [(63_950, True), (63_951, False)])
def test_room_for_many_small_copies_is_never_taken_beyond_the_limit(one, monkeypatch, used, fits):
    """Nothing can leave: what counts belongs to others."""
    assert one.fd >= 0
    monkeypatch.setattr(directory, "MANY", 0)
    monkeypatch.setattr(one, "_look", lambda: (used, [(0.0, f"{'0' * 40}-1", 1)]))
    assert one._take(50, float("inf"), []) is fits
    assert one._room_bytes == 0


def test_views_hold_so_many_bytes_and_no_more(monkeypatch):
    from flarecli.cache import open_entries

    monkeypatch.setattr(open_entries, "_BYTES", 100)
    held = Views(lambda name: True)
    for name in "abc":
        held.put(name, memoryview(bytes(40)))
    assert [held.get(name) is not None for name in "abc"] == [False, True, True]


def test_of_a_copy_that_was_made_longer_nothing_is_read(one):
    made = entry("a", "v", "whole", 1000)
    assert put(one, "a") == made.name
    one.views.drop(made.name)
    os.truncate(os.path.join(one.path, made.name), made.file_bytes + (1 << 40))
    assert one.view(made) is None
    assert not copies(one)


def test_a_note_that_is_not_where_its_copy_ends_says_nothing(one, tmp_path):
    put(one, "a")
    note = b'{"address": "b", "part": "whole"}'
    data = note + bytes(100) + struct.pack("<QI16s8s", 0, len(note), b"", b"flare\0\0\1")
    with open(os.path.join(one.path, f"{'ab' * 20}-{len(data):x}"), "wb") as file:
        file.write(data)
    assert sorted(found.address for found in kept(str(tmp_path / "cache"))) == ["?", "a"]


@pytest.mark.parametrize(("limit", "is_kept"), [(8 << 20, False), (13 << 20, True)])
def test_an_object_larger_than_a_quarter_of_the_limit_is_not_kept_whole(
    web, tmp_path, limit, is_kept
):
    at = locate(
        web.file("/a", bytes(3 << 20), '"one"'), Guard(keeper=Cache(str(tmp_path / "cache"), limit))
    )
    assert at.store.keep(at.path) is is_kept
