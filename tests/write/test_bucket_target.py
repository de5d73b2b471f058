"""Replacement of a dataset in a bucket: a playlist, of the old or the new dataset, always lists
complete files.
"""

import time

import pytest

from flarecli.errors import BusyError, UsageError
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.storage.fsspec_store import FsspecStore
from flarecli.write import Failure, Writer


class Killed(BaseException):
    pass


def objects(address):
    at = locate(address)
    return {
        entry.name: (at / entry.name).read()
        for entry in at.list()
        if not entry.name.startswith(".flare/")
    }


def pack(address, rows, **options):
    with Writer(
        address, columns={"n": "int"}, settings=Settings(shard_rows=2), **options
    ) as writer:
        for row in rows:
            if row % 5 == 4:
                writer.failed.add(Failure(row, f"k{row}", "n", "null", "n is null"))
            writer.write({"n": row})
    return objects(address)


def test_whenever_a_playlist_exists_its_files_are_complete(monkeypatch):
    bucket = f"memory://swap{time.monotonic_ns()}"
    new = pack(f"{bucket}/new", range(100, 109))
    real, kills = {name: getattr(FsspecStore, name) for name in ("write", "delete")}, 0
    for step in range(200):
        out, left = f"{bucket}/{step}", [step]
        old = pack(out, range(7))

        def dying(name, left=left):
            def call(self, path, *more, **named):
                if not path.endswith("/lock"):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                return real[name](self, path, *more, **named)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(FsspecStore, name, dying(name))
            try:
                pack(out, range(100, 109), overwrite=True)
                break
            except Killed:
                kills += 1
        result = objects(out)
        assert "playlist.yaml" not in result or result in (old, new), step
    assert kills > 20
    assert objects(out) == new


@pytest.mark.parametrize("overwrite", [False, True])
def test_objects_added_to_the_target_during_a_pack_are_kept(overwrite):
    out = f"memory://mine{time.monotonic_ns()}/out"
    if overwrite:
        pack(out, range(3))
    with pytest.raises(RuntimeError), Writer(out, columns={"n": "int"}, overwrite=overwrite):
        (locate(out) / "photos.tar").write([b"mine"])
        raise RuntimeError
    assert objects(out)["photos.tar"] == b"mine"


def test_objects_added_to_the_old_dataset_during_a_pack_are_kept():
    bucket = f"memory://late{time.monotonic_ns()}"
    out = f"{bucket}/out"
    old, how = (
        pack(out, range(3)),
        {"columns": {"n": "int"}, "settings": Settings(shard_rows=2), "overwrite": True},
    )
    message = f"{out}: contains a file 'photos.tar', which is not part of the dataset"
    with pytest.raises(UsageError) as caught, Writer(out, **how) as writer:
        for row in range(100, 104):
            writer.write({"n": row})
        (locate(out) / "photos.tar").write([b"mine"])
    assert str(caught.value) == message
    assert objects(out) == {**old, "photos.tar": b"mine"}
    with pytest.raises(UsageError) as caught:
        Writer(out, **how, resume=True)
    assert str(caught.value) == message
    assert objects(out) == {**old, "photos.tar": b"mine"}
    (locate(out) / "photos.tar").delete()
    assert pack(out, range(100, 104), overwrite=True, resume=True) == pack(
        f"{bucket}/other", range(100, 104)
    )


def test_overwrite_removes_an_unfinished_pack_even_if_its_removal_was_interrupted(
    monkeypatch,
):
    """Objects of the journal are deleted from the last to the first, after the shards, since the
    first lists the shards.
    """
    monkeypatch.setattr("flarecli.write.bucket_target._PARALLEL_REQUESTS", 1)
    bucket, real, kills = f"memory://half{time.monotonic_ns()}", FsspecStore.delete, 0
    for step in range(100):
        out, left = f"{bucket}/{step}", [step]
        pack(out, range(3))
        unfinished = Writer(
            out, columns={"n": "int"}, settings=Settings(shard_rows=2), overwrite=True
        )
        for row in range(9):
            unfinished.write({"n": row})
        unfinished._write_samples()
        unfinished.abandon()

        def dying(self, path, left=left):
            if not path.endswith("/lock"):
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
            return real(self, path)

        with monkeypatch.context() as patch:
            patch.setattr(FsspecStore, "delete", dying)
            try:
                Writer(
                    out, columns={"n": "int"}, settings=Settings(shard_rows=2), overwrite=True
                ).abandon()
                break
            except Killed:
                kills += 1
        second = Writer(
            out, columns={"n": "int"}, settings=Settings(shard_rows=2), overwrite=True, resume=True
        )
        rows = max(second.rows, 3)
        for row in range(second.rows, rows):
            second.write({"n": row})
        second.close()
        with Writer(
            f"{bucket}/whole{step}", columns={"n": "int"}, settings=Settings(shard_rows=2)
        ) as complete:
            for row in range(rows):
                complete.write({"n": row})
        assert objects(out) == objects(f"{bucket}/whole{step}"), step
    assert kills > 8


def test_a_pack_that_lost_its_lock_replaces_and_removes_nothing(monkeypatch):
    bucket = f"memory://lost{time.monotonic_ns()}"
    old = pack(f"{bucket}/a", range(3))
    writer = Writer(f"{bucket}/a", columns={"n": "int"}, overwrite=True)
    writer.write({"n": 7})
    real, swapping = FsspecStore.write, []

    def losing_lock(self, path, *more, **named):
        if path.endswith("a/shard.00000.mds") and not swapping:
            swapping.append(path)
            writer.target._lease._lost = "another process took over the lock"
        return real(self, path, *more, **named)

    with monkeypatch.context() as patch, pytest.raises(BusyError):
        patch.setattr(
            FsspecStore,
            "write",
            lambda self, path, *more, **named: (
                losing_lock(self, path, *more, **named)
                if "/.flare/" not in path
                else real(self, path, *more, **named)
            ),
        )
        writer.close()
    assert swapping
    assert (
        objects(f"{bucket}/a").keys() < old.keys()
    )  # one shard and no playlist: the process that took over writes the rest
    other = Writer(f"{bucket}/b", columns={"n": "int"})
    (locate(f"{bucket}/b") / "shard.00000.mds").write([b"of who took over"])
    other.target._lease._lost = "another process took over the lock"
    other.abandon()
    assert objects(f"{bucket}/b") == {"shard.00000.mds": b"of who took over"}


def test_a_complete_dataset_with_a_journal_is_finished(monkeypatch):
    out = f"memory://done{time.monotonic_ns()}/out"

    def killed(self):
        if (self.at / "playlist.yaml").exists():
            raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr("flarecli.write.bucket_target.BucketTarget._clear", killed)
        pack(out, range(5))
    writer = Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2), resume=True)
    assert (writer.is_done, writer.rows) == (True, 5)
    assert [entry.name for entry in locate(out).list() if entry.name.startswith(".flare/")] == []


def test_a_lost_lock_is_detected_before_the_next_step_and_is_not_deleted():
    out = f"memory://theirs{time.monotonic_ns()}/out"
    writer = Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2))
    (locate(out) / ".flare/lock").write([b'{"token": "theirs"}'])
    writer.target._lease._last -= 100  # as after the machine was suspended
    with pytest.raises(BusyError) as caught:
        writer.target.check()
    assert str(caught.value) == f"{out}: another process took over the lock"
    writer.abandon()
    assert (locate(out) / ".flare/lock").read() == b'{"token": "theirs"}'


def test_a_lock_that_another_pack_took_at_the_end_is_not_deleted():
    out = f"memory://late{time.monotonic_ns()}/out"
    writer = Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2))
    (locate(out) / ".flare/lock").write([b'{"token": "theirs"}'])
    writer.target.release()
    assert (locate(out) / ".flare/lock").read() == b'{"token": "theirs"}'


def test_a_journal_entry_of_another_pack_is_not_accepted():
    out = f"memory://step{time.monotonic_ns()}/out"
    writer = Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2))
    (locate(out) / ".flare/journal/00002.json").write([b"theirs"])
    with pytest.raises(BusyError) as caught:
        for row in range(5):
            writer.write({"n": row})
        writer._write_samples()
    assert (
        str(caught.value)
        == f"{out}/.flare/journal/00002.json: another pack is writing to this folder"
    )
    writer.abandon()


def test_journal_entries_after_a_lost_entry_are_written_again():
    out = f"memory://gap{time.monotonic_ns()}/out"
    writer = Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2))
    for row in range(9):
        writer.write({"n": row})
    writer._write_samples()
    writer.abandon()
    (locate(out) / ".flare/journal/00003.json").delete()
    second = Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2), resume=True)
    assert second.rows == 2
    second.abandon()
    assert [entry.name for entry in (locate(out) / ".flare/journal").list()] == [
        "00000.json",
        "00001.json",
        "00002.json",
    ]
