"""A Writer of a bucket that is dropped: its lock is released, finished shards stay, nothing is
published.
"""

from __future__ import annotations

import contextlib
import gc
import os
import subprocess
import sys
import threading
import time

import pytest

from flarecli import read
from flarecli.errors import BusyError, MissingError, UnfinishedError
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.write import Writer

COLUMNS = {"n": "int", "t": "str"}


def objects(address):
    at = locate(f"{address}/")
    try:
        return {entry.name: (at / entry.name).read() for entry in at.list()}
    except MissingError:
        return {}


def begun(out, rows, settings, **options):
    writer = Writer(out, columns=COLUMNS, settings=settings, jobs=2, **options)
    for n in range(writer.rows, rows):
        writer.write({"n": n, "t": f"{n} " * 40})
    return writer


def settled(limit_s=60.0):
    """Wait for the threads that end a dropped Writer."""
    end = time.monotonic() + limit_s
    while any(
        thread.name.startswith(("flare-dropped", "shards")) for thread in threading.enumerate()
    ):
        assert time.monotonic() < end, [thread.name for thread in threading.enumerate()]
        time.sleep(0.01)


def dropped(out, rows, settings, **options):
    gc.collect()
    gc.disable()  # it ends with the last reference
    try:
        with pytest.warns(
            ResourceWarning, match="out: a Writer was garbage collected without close"
        ) as found:
            begun(out, rows, settings, **options)
            end = time.monotonic() + 60
            while not found.list and time.monotonic() < end:
                time.sleep(0.01)  # threads that write shards still refer to it
        settled()
    finally:
        gc.enable()


@pytest.mark.parametrize("how", [{}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize("kind", ["s3", "google", "azure"])
def test_a_dropped_writer_releases_its_lock_and_keeps_finished_shards(request, kind, how):
    bucket, settings = request.getfixturevalue(kind), Settings(shard_rows=1000, **how)
    begun(f"{bucket}/whole", 4000, settings).close()
    dropped(f"{bucket}/out", 3500, settings)
    left = objects(f"{bucket}/out")
    assert ".flare/lock" not in left
    assert not {"index.json", "playlist.yaml"} & left.keys()
    assert any(name.startswith("shard.00000") for name in left)
    with pytest.raises(UnfinishedError):
        read.open(f"{bucket}/out")
    again = begun(f"{bucket}/out", 4000, settings, resume=True)
    assert again.rows >= 1000
    again.close()
    assert objects(f"{bucket}/out") == objects(f"{bucket}/whole")


def test_a_writer_dropped_before_its_first_shard_leaves_no_objects(s3):
    dropped(f"{s3}/out", 3, Settings())
    assert objects(s3) == {}
    Writer(f"{s3}/out", columns=COLUMNS).abandon()


def test_a_writer_dropped_during_an_overwrite_leaves_the_old_dataset(s3):
    begun(f"{s3}/out", 10, Settings()).close()
    before = objects(f"{s3}/out")
    dropped(f"{s3}/out", 3, Settings(), overwrite=True)
    assert objects(f"{s3}/out") == before
    dropped(f"{s3}/out", 2500, Settings(shard_rows=1000), overwrite=True)
    left = objects(f"{s3}/out")
    assert before.items() <= left.items()
    assert ".flare/lock" not in left
    assert len(read.open(f"{s3}/out")) == 10
    begun(f"{s3}/out", 2500, Settings(shard_rows=1000), overwrite=True, resume=True).close()
    assert len(read.open(f"{s3}/out")) == 2500


def test_a_writer_in_a_reference_cycle_is_ended_by_the_garbage_collector(s3):
    with pytest.warns(ResourceWarning, match="out: a Writer was garbage collected without close"):
        ring = [begun(f"{s3}/out", 3, Settings())]
        ring.append(ring)
        del ring
        gc.collect()
    settled()
    assert objects(s3) == {}


def test_a_forked_child_does_not_end_the_writer_of_its_parent(s3):
    writer = begun(f"{s3}/out", 3, Settings())
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            del writer
            settled()
        os._exit(0)
    os.waitpid(child, 0)
    assert ".flare/lock" in objects(f"{s3}/out")
    with pytest.raises(BusyError):
        Writer(f"{s3}/out", columns=COLUMNS, resume=True)
    writer.close()
    assert len(read.open(f"{s3}/out")) == 3


def test_the_lock_of_a_killed_process_is_taken_over(s3):
    code = f"""
from flarecli import Writer
from flarecli.model import Settings
writer = Writer({f"{s3}/out"!r}, columns={COLUMNS!r}, settings=Settings(shard_rows=300))
for n in range(2000):
    writer.write({{"n": n, "t": ""}})
print(writer.shards)
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    with Writer(
        f"{s3}/out", columns=COLUMNS, settings=Settings(shard_rows=300), resume=True
    ) as again:
        assert (int(ended.stdout), again.rows) == (3, 900)
