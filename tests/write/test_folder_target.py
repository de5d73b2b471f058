"""A claimed folder: other files are neither followed nor removed, and a kill at any step leaves a
complete dataset.
"""

import contextlib
import fcntl
import json
import os
import threading
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flarecli.errors import BusyError, ReachError, UsageError
from flarecli.model import Settings
from flarecli.write import Failure, Writer
from flarecli.write.folder_target import remove_unfinished_files
from tests.outputs import files_of

COLUMNS = {"n": "int"}


def pack(out, rows, **options):
    with Writer(str(out), columns=COLUMNS, settings=Settings(shard_rows=2), **options) as writer:
        for row in range(writer.rows, rows):
            writer.write({"n": row})
    return files_of(out)


def leave_unfinished(out, rows, **options):
    """Leave an unfinished pack."""
    writer = Writer(str(out), columns=COLUMNS, settings=Settings(shard_rows=2), **options)
    for row in range(rows):
        writer.write({"n": row})
    writer._write_samples()
    writer.abandon()


@pytest.mark.parametrize("how", ["link", "hard link", "pipe"])
def test_a_link_at_the_path_of_the_lock_is_replaced_and_not_followed(tmp_path, how):
    """A copied folder may contain such a link."""
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "out" / ".flare").mkdir(parents=True)
    lock = tmp_path / "out" / ".flare" / "lock"
    make = {
        "link": lambda: lock.symlink_to(tmp_path / "mine"),
        "hard link": lambda: lock.hardlink_to(tmp_path / "mine"),
        "pipe": lambda: os.mkfifo(lock),
    }
    make[how]()
    assert pack(tmp_path / "out", 3) == pack(tmp_path / "other", 3)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_link_at_the_path_of_the_scratch_folder_is_not_followed(tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / ".flare").symlink_to(tmp_path / "mine")
    for options in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(ReachError) as caught:
            pack(tmp_path / "out", 3, **options)
        assert str(caught.value) == f"{tmp_path}/out/.flare: Not a directory"
    assert list((tmp_path / "mine").iterdir()) == []


@pytest.mark.parametrize("name", ["photos.tar", "old.mds", "records.ffr"])
def test_a_file_that_only_looks_like_a_shard_is_not_removed(tmp_path, name):
    leave_unfinished(tmp_path / "out", 4)
    (tmp_path / "out" / name).write_text("mine")
    with pytest.raises(UsageError) as caught:
        pack(tmp_path / "out", 6, overwrite=True)
    assert (
        str(caught.value)
        == f"{tmp_path}/out: contains a file {name!r}, which is not part of the dataset"
    )
    assert (tmp_path / "out" / name).read_text() == "mine"
    with pytest.raises(RuntimeError), Writer(str(tmp_path / "new"), columns=COLUMNS):
        (tmp_path / "new" / name).write_text("mine")
        raise RuntimeError
    assert (tmp_path / "new" / name).read_text() == "mine"


def test_a_link_in_an_unfinished_pack_is_removed_and_its_target_is_kept(tmp_path):
    leave_unfinished(tmp_path / "out", 4)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("precious")
    (tmp_path / "out" / "00007.mds").symlink_to(tmp_path / "mine")
    assert pack(tmp_path / "out", 6, overwrite=True) == pack(tmp_path / "other", 6)
    assert files_of(tmp_path / "mine") == {"notes": b"precious"}


def test_the_old_dataset_stays_until_it_is_replaced_however_often_the_replacement_is_interrupted(
    tmp_path, monkeypatch
):
    old, rename = pack(tmp_path / "out", 3), os.rename

    def killed(source, target, **more):
        if str(source).endswith(".out.flare-new"):
            raise KeyboardInterrupt
        rename(source, target, **more)

    for _ in range(3):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("os.rename", killed)
            pack(tmp_path / "out", 9, overwrite=True, resume=True)
        assert files_of(tmp_path / ".out.flare-old") == old
    assert pack(tmp_path / "out", 9, overwrite=True, resume=True) == pack(tmp_path / "other", 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_a_dataset_that_is_being_replaced_is_busy_for_other_processes(tmp_path, monkeypatch):
    unlink = os.unlink

    def killed(path, **more):
        if path == "lock" and (tmp_path / "out" / "playlist.yaml").exists():
            raise KeyboardInterrupt
        unlink(path, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.unlink", killed)
        pack(tmp_path / "out", 3)
    kept_open = os.open(tmp_path / "out" / ".flare", os.O_RDONLY)
    fcntl.flock(kept_open, fcntl.LOCK_EX)
    try:
        for options in (
            {},
            {"resume": True},
            {"overwrite": True},
            {"overwrite": True, "resume": True},
        ):
            with pytest.raises(BusyError):
                pack(tmp_path / "out", 9, **options)
    finally:
        os.close(kept_open)
    assert pack(tmp_path / "out", 9, overwrite=True) == pack(tmp_path / "other", 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_a_resume_removes_partial_files_before_it_writes(tmp_path):
    """A partial file may have filled the disk."""
    leave_unfinished(tmp_path / "out", 4)
    (tmp_path / "out" / ".flare" / "shard.00002.mds.1.1.part").write_bytes(bytes(99))
    writer = Writer(
        str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=2), resume=True
    )
    assert sorted(path.name for path in (tmp_path / "out" / ".flare").iterdir()) == [
        "journal",
        "lock",
    ]
    writer.abandon()


def test_a_process_that_exits_at_once_removes_only_its_own_partial_files(tmp_path):
    leave_unfinished(tmp_path / "out", 4)
    theirs = (
        tmp_path / "out" / ".flare" / "shard.00002.mds.1.1.part"
    )  # the file of the current owner
    theirs.write_text("")
    writer = Writer(str(tmp_path / "other"), columns=COLUMNS)
    other_file = tmp_path / "other" / ".flare" / "shard.00000.mds.1.1.part"
    other_file.write_text("")
    remove_unfinished_files()
    assert (theirs.exists(), other_file.exists()) == (True, False)
    writer.abandon()


def test_folders_are_synced_in_the_order_of_the_steps(tmp_path, monkeypatch):
    """After a power failure at any time, no step may depend on a name that was not synced."""
    pack(tmp_path / "out", 3)
    steps, real = (
        [],
        {name: getattr(os, name) for name in ("fsync", "rename", "rmdir", "unlink", "write")},
    )

    def shown(path):
        return os.path.relpath(path, tmp_path).replace(".out.flare-new", "NEW")

    def recording(name, tell):
        def call(*args, **more):
            with contextlib.suppress(TypeError, OSError):
                steps.append((name, tell(*args)))
            return real[name](*args, **more)

        monkeypatch.setattr(f"os.{name}", call)

    recording("fsync", lambda fd: shown(os.readlink(f"/proc/self/fd/{fd}")))
    recording("write", lambda fd, data: shown(os.readlink(f"/proc/self/fd/{fd}")))
    recording("rename", lambda source, target: shown(target) if os.path.isabs(source) else "")
    recording("rmdir", lambda path: shown(path))
    with Writer(
        str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=2), overwrite=True
    ) as writer:
        began = len(steps)
        for row in range(3):
            writer.write({"n": row})
    assert steps[:began].index(("fsync", "NEW/.flare")) < steps[:began].index(
        ("write", "NEW/.flare/journal")
    )
    swapped = steps.index(("rename", "out"))
    assert steps[swapped + 1] == ("fsync", ".")
    assert steps[steps.index(("rmdir", "out/.flare")) + 1] == ("fsync", "out")


def test_failed_rows_are_synced_before_the_journal_counts_them(tmp_path, monkeypatch):
    safe, counted, fsync = [0], [], os.fsync

    def recording(fd):
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith("failed.jsonl"):
            safe.append(os.fstat(fd).st_size)
        if name.endswith("journal") and "failed" in (
            entry := json.loads(Path(name).read_text().splitlines()[-1])
        ):
            counted.append((entry["failed"]["bytes"], safe[-1]))
        fsync(fd)

    monkeypatch.setattr("os.fsync", recording)
    with Writer(str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1)) as writer:
        for row in range(0, 6, 2):
            writer.failed.add(Failure(row, f"k{row}", "n", "null", "n is null"))
            writer.write_batch(
                pa.record_batch({"n": pa.array([row], pa.int64())}), np.array([row + 1])
            )
        writer.write_batch(pa.record_batch({"n": pa.array([9], pa.int64())}), np.array([6]))
    assert len(counted) == 4
    assert all(recorded == safe > 0 for recorded, safe in counted[:3])


def test_short_writes_are_completed(tmp_path, monkeypatch):
    complete, write = pack(tmp_path / "whole", 5), os.write
    monkeypatch.setattr("os.write", lambda fd, data: write(fd, bytes(data[:7])))
    leave_unfinished(tmp_path / "out", 4)
    writer = Writer(
        str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=2), resume=True
    )
    assert writer.rows == 2
    writer.abandon()
    assert pack(tmp_path / "out", 5, resume=True) == complete


def test_resume_has_priority_over_overwrite(tmp_path):
    """With both options, an unfinished pack is continued, also one that was started with
    --overwrite.
    """
    leave_unfinished(tmp_path / "out", 5)
    pack(tmp_path / "beside", 3)
    leave_unfinished(tmp_path / "beside", 5, overwrite=True)
    for name in ("out", "beside"):
        writer = Writer(
            str(tmp_path / name),
            columns=COLUMNS,
            settings=Settings(shard_rows=2),
            resume=True,
            overwrite=True,
        )
        assert (writer.rows, writer.shards) == (4, 2)
        writer.abandon()


def test_a_pack_waits_for_a_process_that_holds_the_lock_briefly(tmp_path):
    expected = pack(tmp_path / "expected", 5)
    leave_unfinished(tmp_path / "out", 3)
    held = os.open(tmp_path / "out" / ".flare", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    timer = threading.Timer(0.1, os.close, (held,))
    timer.start()
    assert pack(tmp_path / "out", 5, resume=True) == expected
    timer.join()
