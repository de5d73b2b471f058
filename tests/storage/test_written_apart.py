"""Files that are written at a time, and what somebody laid where they are written: each file is its own bytes, and nothing else changes."""

from __future__ import annotations

import errno
import os
import threading

import pytest

from flarecli.errors import FormatError, ReachError
from flarecli.storage import local, locate
from flarecli.write import Writer


@pytest.fixture
def top(tmp_path):
    (tmp_path / "d" / ".flare").mkdir(parents=True)
    return tmp_path / "d"


@pytest.mark.parametrize("names", [("0/x", "1/x"), ("n" * 200 + "0", "n" * 200 + "1")])
def test_files_of_one_name_in_two_folders_are_written_at_a_time(top, names):
    both = threading.Barrier(2, timeout=60)

    def parts(sign):
        both.wait()
        yield sign * 1000
        both.wait()
        yield sign * 1000

    threads = [
        threading.Thread(target=(locate(f"{top}/") / name).write, args=(parts(sign),))
        for name, sign in zip(names, (b"a", b"b"), strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [(top / name).read_bytes() for name in names] == [b"a" * 2000, b"b" * 2000]
    assert os.listdir(top / ".flare") == []


@pytest.mark.parametrize(
    "make",
    [
        lambda victim, path: os.link(victim, path),
        lambda victim, path: os.symlink(victim, path),
        lambda _, path: os.mkfifo(path),
    ],
)
def test_nothing_is_written_into_what_lies_there_already(top, tmp_path, make):
    (tmp_path / "victim").write_bytes(b"precious")
    make(tmp_path / "victim", top / ".flare" / "a.part")
    thread = threading.Thread(target=(locate(f"{top}/") / "a").write, args=([b"new"],), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (top / "a").read_bytes() == b"new"


def test_what_a_killed_pack_left_half_written_goes_when_it_is_resumed(tmp_path):
    out = tmp_path / "d"
    child = os.fork()
    if not child:
        killed = Writer(str(out), columns={"x": "bytes"})
        (out / ".flare" / "shard.00000.mds.1.2.part").write_bytes(b"half")
        os._exit(0 if killed else 1)
    os.waitpid(child, 0)
    assert (out / ".flare" / "shard.00000.mds.1.2.part").exists()
    with Writer(str(out), columns={"x": "bytes"}, overwrite=True, resume=True) as writer:
        assert not list((out / ".flare").glob("*.part"))
        writer.write({"x": b"1"})
    assert sorted(os.listdir(out)) == ["index.json", "playlist.yaml", "shard.00000.mds"]


@pytest.mark.parametrize("number", [errno.EIO, errno.EDQUOT, errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("call", ["fsync", "rename", "open"])
def test_a_disk_that_refuses_at_any_step_leaves_what_was_there(top, monkeypatch, call, number):
    at = locate(f"{top}/") / "a"
    at.write([b"old"])
    real = getattr(os, call)

    def refused(*args, **more):
        if call == "open" and not args[1] & os.O_CREAT:
            return real(*args, **more)
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, call, refused)
    with pytest.raises(ReachError) as caught:
        at.write([b"new"])
    monkeypatch.undo()
    said = os.strerror(number)
    assert (
        str(caught.value)
        == f"{top}/a: {f'the disk is full: {said}' if number in (errno.ENOSPC, errno.EDQUOT) else said.lower()}"
    )
    assert (top / "a").read_bytes() == b"old"
    assert os.listdir(top / ".flare") == []


def test_a_name_reaches_the_disk_after_the_file_has_it(top, monkeypatch):
    told = []
    rename, fsync = os.rename, os.fsync
    monkeypatch.setattr(
        os, "rename", lambda *args, **more: (told.append("rename"), rename(*args, **more))
    )
    monkeypatch.setattr(os, "fsync", lambda fd: (told.append(os.fstat(fd).st_ino), fsync(fd)))
    (locate(f"{top}/") / "a").write([b"new"])
    assert told == [os.stat(top / "a").st_ino, "rename", os.stat(top).st_ino]


def test_a_range_that_ends_before_it_begins_is_no_range(top):
    (top / "a").write_bytes(bytes(15))
    with pytest.raises(FormatError):
        (locate(f"{top}/") / "a").read(20, 10)


def test_only_so_many_files_stay_mapped(top, monkeypatch):
    monkeypatch.setattr(local, "MAPS", 3)
    at = locate(f"{top}/")
    for i in range(6):
        (top / f"{i}").write_bytes(b"%d" % i)
        assert bytes((at / f"{i}").map()) == b"%d" % i
    assert list(at.store._maps) == ["3", "4", "5"]
