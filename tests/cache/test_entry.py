"""Cached copies of objects: their files and checks, and the copies that a process keeps open."""

from __future__ import annotations

import mmap
import os
import random
import struct

import pytest

from flarecli.cache import BLOCK, Cache, directory, list_copies
from flarecli.cache import entry as entries
from flarecli.cache.entry import OpenCopies, entry
from flarecli.storage import Guard, locate
from tests.cache.samples import copies, lie, put, put_data

DATA = random.Random(6).randbytes(BLOCK + 4_321)


@pytest.fixture
def at(web, tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_folders", {})
    web.file("/d/a", DATA, '"one"')
    web.file("/d/b", DATA[::-1], '"one"')
    return locate(
        web.url("/d"), Guard(keeper=Cache(str(tmp_path / "cache"), 4 * len(DATA) + 60_000))
    )


def test_a_map_contains_only_the_data(at):
    assert at.store.keep((at / "a").path)
    view = (at / "a").map()
    assert isinstance(view.obj, mmap.mmap)
    assert len(view.obj) == len(view) == len(DATA)
    assert bytes(view) == DATA


def test_a_copy_that_was_just_written_is_not_checked_again(at, monkeypatch):
    monkeypatch.setattr(directory, "open_copy", lambda fd, one: None)
    assert at.store.keep((at / "a").path)
    assert bytes((at / "a").map()) == DATA


def test_another_process_checks_the_copy(at, tmp_path):
    at.store.keep((at / "a").path)
    (copy,) = [
        path for path in (tmp_path / "cache" / directory.LAYOUT).iterdir() if "-" in path.name
    ]
    with open(copy, "r+b") as file:
        file.seek(100)
        file.write(bytes([DATA[100] ^ 1]))
    directory._folders.clear()
    again = locate(str(at), Guard(keeper=Cache(str(tmp_path / "cache"), 10 * len(DATA))))
    assert (again / "a").read(90, 110) == DATA[90:110]


def test_an_evicted_copy_uses_only_the_memory_of_its_readers(web, at, tmp_path):
    at.store.keep((at / "a").path)
    view = (at / "a").map()
    for k in range(5):
        web.file(f"/d/{k}", DATA, f'"{k}"')
        at.store.keep((at / f"{k}").path)
    with open("/proc/self/maps", encoding="utf-8") as file:
        gone = [line for line in file if str(tmp_path) in line and "(deleted)" in line]
    assert len(gone) == 1  # the copy under test
    assert bytes(view) == DATA
    del view
    held = at.store._folder.open_copies._open
    assert sum(len(one) for one, _ in held.values()) <= at.store.cache.limit
    assert all(os.path.exists(tmp_path / "cache" / directory.LAYOUT / name) for name in held)


def test_the_bytes_of_open_copies_are_bounded(monkeypatch):
    monkeypatch.setattr(entries, "MAX_OPEN_BYTES", 100)
    held = OpenCopies(lambda name: True)
    for name in "abc":
        held.put(name, memoryview(bytes(40)))
    assert [held.get(name) is not None for name in "abc"] == [False, True, True]


def test_a_copy_that_became_longer_is_not_read(one):
    made = entry("a", "v", "whole", 1000)
    assert put(one, "a") == made.name
    one.open_copies.drop(made.name)
    os.truncate(os.path.join(one.path, made.name), made.file_bytes + (1 << 40))
    assert one.view(made) is None
    assert not copies(one)


def test_an_address_stored_at_another_position_is_ignored(one, tmp_path):
    put(one, "a")
    note = b'{"address": "b", "part": "whole"}'
    data = note + bytes(100) + struct.pack("<QI16s8s", 0, len(note), b"", b"flare\0\0\1")
    with open(os.path.join(one.path, f"{'ab' * 20}-{len(data):x}"), "wb") as file:
        file.write(data)
    assert sorted(found.address for found in list_copies(str(tmp_path / "cache"))) == ["?", "a"]


def test_an_invalid_stored_address_is_ignored(large_folder, tmp_path):
    put_data(large_folder, "a")
    note = b"[" * 60_000
    data = note + struct.pack("<QI16s8s", 0, len(note), b"", b"flare\0\0\1")
    lie(large_folder, f"{'ab' * 20}-{len(data):x}", data)
    assert sorted(found.address for found in list_copies(str(tmp_path / "cache"))) == ["?", "a"]


def test_a_released_object_is_dropped_in_any_version():
    views = OpenCopies(lambda name: True)
    old, new, other = (
        entry(address, version, "whole", 5).name
        for address, version in (("a", "1"), ("a", "2"), ("b", "1"))
    )
    views.put_transient(old, memoryview(b"first"))
    views.put_transient(other, memoryview(b"other"))
    views.put_transient(new, memoryview(b"later"))
    assert (views.get(old), bytes(views.get(new)), bytes(views.get(other))) == (
        None,
        b"later",
        b"other",
    )
    assert views._transient_bytes == 10
    views.release(new[:12])
    assert (views.get(new), views._transient_bytes) == (None, 5)


def test_a_forked_child_has_no_reservations_of_its_parent():
    one = entries.OpenCopies(lambda name: True)
    name = "ab" * 20 + "-5"
    one.put_transient(name, memoryview(b"12345"))
    assert one.reserve("b" * 12, 100)
    one.forked()
    assert (one._transient_bytes, bytes(one.get(name))) == (5, b"12345")
