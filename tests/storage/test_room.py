"""Room on the disk: what is reserved and not used goes back, and where it is refused nothing is lost."""

import os

import pytest

from flarecli.storage import locate, room

MIB = 1 << 20


@pytest.mark.parametrize("size", [0, 5, MIB, MIB + 1, 16 * MIB + 3, 40 * MIB])
def test_a_file_has_its_bytes_and_no_room_behind_them(tmp_path, size):
    data = os.urandom(MIB)
    parts = [data[: min(MIB, size - start)] for start in range(0, size, MIB)]
    written = (locate(str(tmp_path)) / "x").write(parts)
    found = os.stat(tmp_path / "x")
    assert written.size == found.st_size == size
    assert found.st_blocks * 512 <= size + 64 * 1024
    assert (tmp_path / "x").read_bytes() == b"".join(parts)


@pytest.mark.parametrize("found", [None, lambda fd, mode, start, size: -1])
def test_a_file_system_without_it_is_written_to_all_the_same(tmp_path, monkeypatch, found):
    monkeypatch.setattr(room, "_fallocate", lambda: found)
    written = (locate(str(tmp_path)) / "x").write([b"x" * MIB] * 3)
    assert written.size == os.stat(tmp_path / "x").st_size == 3 * MIB


def test_room_is_asked_for_a_step_at_a_time(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(
        room,
        "_fallocate",
        lambda: lambda fd, mode, start, size: asked.append((mode, start, size)) or 0,
    )
    (locate(str(tmp_path)) / "x").write([b"x" * MIB] * 18)
    assert asked == [(1, 0, 16 * MIB), (1, 16 * MIB, 16 * MIB)]
