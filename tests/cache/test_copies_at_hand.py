"""Copies that a process has at hand: mapped as they were written, and let go when they leave the folder."""

import mmap
import os
import random

import pytest

from flarecli.cache import BLOCK, Cache, directory, entry
from flarecli.storage import Guard, locate

DATA = random.Random(6).randbytes(BLOCK + 4_321)


@pytest.fixture
def at(web, tmp_path, monkeypatch):
    monkeypatch.setattr(directory, "_folders", {})
    web.file("/d/a", DATA, '"one"')
    web.file("/d/b", DATA[::-1], '"one"')
    return locate(
        web.url("/d"), Guard(keeper=Cache(str(tmp_path / "cache"), 4 * len(DATA) + 60_000))
    )


def test_a_map_is_of_the_bytes_kept_alone(at):
    assert at.store.keep((at / "a").path)
    view = (at / "a").map()
    assert isinstance(view.obj, mmap.mmap)
    assert len(view.obj) == len(view) == len(DATA)
    assert bytes(view) == DATA


def test_what_was_just_written_is_not_read_again_to_be_summed(at, monkeypatch):
    monkeypatch.setattr(entry, "opened", lambda fd, one: None)
    assert at.store.keep((at / "a").path)
    assert bytes((at / "a").map()) == DATA


def test_another_process_sums_it(at, tmp_path):
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


def test_what_leaves_the_folder_takes_no_memory_but_its_readers(web, at, tmp_path):
    at.store.keep((at / "a").path)
    view = (at / "a").map()
    for k in range(5):
        web.file(f"/d/{k}", DATA, f'"{k}"')
        at.store.keep((at / f"{k}").path)
    with open("/proc/self/maps", encoding="utf-8") as file:
        gone = [line for line in file if str(tmp_path) in line and "(deleted)" in line]
    assert len(gone) == 1  # the one that is looked at
    assert bytes(view) == DATA
    del view
    held = at.store._folder.views._held
    assert sum(len(one) for one, _ in held.values()) <= at.store.cache.limit
    assert all(os.path.exists(tmp_path / "cache" / directory.LAYOUT / name) for name in held)
