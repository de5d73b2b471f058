"""verify where the disk itself fails, and where it is left half-way."""

import errno
import gc
import os
import threading

from flarecli import verbs


def test_a_shard_that_the_disk_cannot_give_is_named_with_the_byte_and_the_others_are_checked(
    out, monkeypatch
):
    bad = os.stat(out / "shard.00001.mds").st_ino
    real = os.preadv

    def preadv(fd, buffers, offset):
        if os.fstat(fd).st_ino == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    done = verbs.verify(str(out))
    assert [(one.where, one.kind, one.message) for one in done] == [
        (str(out / "shard.00001.mds"), "reach", "input/output error, reading from byte 0"),
    ]
    assert done.shards == 4


def test_a_check_left_half_way_ends_its_threads_and_waits_for_nobody(out):
    for path in out.glob("*.mds"):
        path.write_bytes(path.read_bytes()[:-1])
    for _ in range(20):
        assert next(iter(verbs.verify(str(out)))).kind == "size"
    gc.collect()
    for thread in threading.enumerate():
        if thread.name == "verify":
            thread.join(10)
            assert not thread.is_alive()
