"""verify with a failing disk, and a check that is left early."""

import errno
import gc
import os
import shutil
import threading

import pytest

from flarecli import commands
from flarecli.errors import ReachError


def failing(monkeypatch, name, *paths, code=errno.EIO):
    """Let a function of `os` fail for these paths.

    Disks and servers fail like this, but a test cannot provoke it.
    """
    bad = {(one.st_dev, one.st_ino) for one in map(os.stat, paths)}
    real, stat = getattr(os, name), os.fstat

    def fail(fd, *rest, **more):
        one = stat(fd) if isinstance(fd, int) else os.stat(fd)
        if (one.st_dev, one.st_ino) in bad:
            raise OSError(code, os.strerror(code))
        return real(fd, *rest, **more)

    monkeypatch.setattr(os, name, fail)


def described(done):
    return [(one.where, one.kind, one.message) for one in done]


def test_an_unreadable_byte_of_a_shard_is_reported_and_other_shards_are_checked(out, monkeypatch):
    bad = os.stat(out / "shard.00001.mds").st_ino
    real = os.preadv

    def preadv(fd, buffers, offset):
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    done = commands.verify(str(out))
    assert [(one.where, one.kind, one.message) for one in done] == [
        (str(out / "shard.00001.mds"), "reach", "input/output error while reading from byte 0"),
    ]
    assert done.shards == 4


@pytest.mark.parametrize("quick", [False, True])
@pytest.mark.parametrize(
    ("name", "shards"), [("shard.00001.mds", 4), ("index.json", 4), ("failed.jsonl", 4)]
)
def test_a_failed_stat_is_reported_and_other_files_are_checked(
    name, shards, quick, out, monkeypatch
):
    done = commands.verify(str(out), quick=quick)
    failing(monkeypatch, "fstat", out / name)
    assert described(done) == [(str(out / name), "reach", "input/output error")]
    assert done.shards == shards


@pytest.mark.parametrize("name", ["playlist.yaml", "index.json"])
def test_a_list_that_becomes_unreadable_is_reported_and_its_shards_are_checked(
    name, out, monkeypatch
):
    if name == "index.json":
        (out / "playlist.yaml").unlink()
    done = commands.verify(str(out))
    failing(monkeypatch, "fstat", out / name, code=errno.ESTALE)
    result = set(described(done))
    assert result == {(str(out / name), "reach", os.strerror(errno.ESTALE).lower())}
    assert (done.shards, done.rows) == (4, 35)


def test_an_unreadable_folder_is_reported_after_the_shards(out, monkeypatch):
    done = commands.verify(str(out))
    failing(monkeypatch, "scandir", out)
    assert described(done) == [(str(out), "reach", "input/output error")]
    assert done.shards == 4


def test_an_unreadable_subfolder_is_reported_and_others_are_listed(out, monkeypatch):
    for name in ("a", "b", "c"):
        (out / name).mkdir()
        shutil.copy(out / "shard.00000.mds", out / name / "shard.00000.mds")
    failing(monkeypatch, "scandir", out / "b")
    done = commands.verify(str(out))
    assert [one[:2] for one in described(done)] == [
        (str(out / "b"), "reach"),
        (str(out / "a" / "shard.00000.mds"), "unlisted"),
        (str(out / "c" / "shard.00000.mds"), "unlisted"),
    ]


def test_an_unreadable_address_is_reported_and_others_are_checked(out, plain, zipped, monkeypatch):
    failing(monkeypatch, "fstat", out / "playlist.yaml", code=errno.EACCES)
    done = commands.verify([str(plain), str(out), str(zipped)])
    assert described(done) == [(f"{out}/playlist.yaml", "reach", "permission denied")]
    assert done.shards == 4 + len(list(zipped.glob("*.zstd")))
    for sources in (str(out), [str(out), f"{out}/playlist.yaml"]):
        with pytest.raises(ReachError, match="playlist.yaml: permission denied"):
            commands.verify(sources)


def test_an_error_at_the_end_of_reading_changes_nothing(out, monkeypatch):
    real = os.close

    def close(fd):
        real(fd)
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    done = commands.verify(str(out))
    monkeypatch.setattr(os, "close", close)
    result = described(done)
    monkeypatch.undo()
    assert (result, done.shards, done.rows) == ([], 4, 35)


def test_a_check_that_is_left_early_ends_its_threads(out):
    for path in out.glob("*.mds"):
        path.write_bytes(path.read_bytes()[:-1])
    for _ in range(20):
        assert next(iter(commands.verify(str(out)))).kind == "size"
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "verify":
            thread.join(60)
            assert not thread.is_alive()
