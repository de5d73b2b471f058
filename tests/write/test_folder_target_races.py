"""Two packs of one folder that start at the same time: one writes, the other reports its owner."""

import multiprocessing
import os

import pytest

from flarecli.errors import BusyError, MissingError, ReachError, UsageError
from flarecli.model import Settings
from flarecli.storage.local import LocalStore, made_folder
from flarecli.write import Writer


def opened(out, **options):
    return Writer(str(out), columns={"n": "int"}, settings=Settings(shard_rows=1), **options)


def call_after_isdir(monkeypatch, name, step):
    """Call `step` right after the first `os.path.isdir` of a scratch folder that does not exist."""
    isdir = os.path.isdir

    def isdir_then_step(path):
        result = isdir(path)
        if not result and str(path) == name:
            monkeypatch.setattr("os.path.isdir", isdir)
            step()
        return result

    monkeypatch.setattr("os.path.isdir", isdir_then_step)


@pytest.mark.parametrize("shards", [0, 2])
def test_a_pack_that_starts_during_the_check_of_the_folder_is_named(tmp_path, monkeypatch, shards):
    """Test with and without finished shards."""
    others = []

    def begin():
        others.append(opened(tmp_path / "out", resume=True))
        for row in range(shards + 1):
            others[0].write({"n": row})
            others[0]._write_samples()

    call_after_isdir(monkeypatch, f"{tmp_path}/out/.flare", begin)
    with pytest.raises(BusyError) as caught:
        opened(tmp_path / "out", resume=True)
    assert str(caught.value).startswith(
        f"{tmp_path}/out: another pack is writing to this folder (process {os.getpid()} on "
    )
    others[0].close()


def test_a_pack_that_ends_during_the_check_of_the_folder_is_finished(tmp_path, monkeypatch):
    def pack():
        with opened(tmp_path / "out") as writer:
            writer.write({"n": 1})

    call_after_isdir(monkeypatch, f"{tmp_path}/out/.flare", pack)
    second = opened(tmp_path / "out", resume=True)
    assert (second.is_done, second.rows) == (True, 1)


def test_a_folder_that_is_removed_during_its_check_is_created(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    call_after_isdir(monkeypatch, f"{tmp_path}/out/.flare", (tmp_path / "out").rmdir)
    with opened(tmp_path / "out", resume=True) as writer:
        writer.write({"n": 1})
    assert (tmp_path / "out" / "playlist.yaml").exists()


def test_a_folder_that_is_created_and_removed_during_its_check_is_created(tmp_path, monkeypatch):
    scratch = tmp_path / "out" / ".flare"
    listdir = os.listdir

    def listdir_then_remove(path):
        names = listdir(path)
        if str(path) == str(tmp_path / "out") and names == [".flare"]:
            monkeypatch.setattr("os.listdir", listdir)
            scratch.rmdir()
            scratch.parent.rmdir()
        return names

    monkeypatch.setattr("os.listdir", listdir_then_remove)
    call_after_isdir(monkeypatch, str(scratch), lambda: scratch.mkdir(parents=True))
    with opened(tmp_path / "out", resume=True) as writer:
        writer.write({"n": 1})
    assert (tmp_path / "out" / "playlist.yaml").exists()


def test_a_folder_that_is_created_during_its_check_is_used(tmp_path, monkeypatch):
    path = tmp_path / "new"
    call_after_isdir(monkeypatch, str(path), path.mkdir)
    made_folder(str(path), LocalStore(str(tmp_path)))
    assert path.is_dir()


def test_a_file_at_the_path_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "new").write_bytes(b"")
    with pytest.raises(ReachError) as caught:
        made_folder(f"{tmp_path}/new", LocalStore(str(tmp_path)))
    assert str(caught.value) == f"{tmp_path}/new: is a file; expected a folder"


def test_a_folder_with_files_of_others_is_still_refused(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("precious")
    with pytest.raises(UsageError) as caught:
        opened(tmp_path / "out", resume=True)
    assert str(caught.value) == f"{tmp_path}/out: output folder is not empty"


def pack_together(out, barrier, results):
    barrier.wait()
    try:
        with opened(out, resume=True) as writer:
            for row in range(writer.rows, 20):
                writer.write({"n": row})
                writer._write_samples()
        results.put("done" if writer.is_done else "packed")
    except BusyError:
        results.put("busy")
    except Exception as error:
        results.put(repr(error))


def test_packs_started_together_with_resume_write_one_dataset(tmp_path):
    spawn = multiprocessing.get_context("fork")
    for number in range(15):
        barrier, results = spawn.Barrier(3), spawn.Queue()
        out = tmp_path / f"out{number}"
        processes = [
            spawn.Process(target=pack_together, args=(out, barrier, results)) for _ in range(3)
        ]
        for process in processes:
            process.start()
        result = [results.get() for _ in processes]
        for process in processes:
            process.join()
        assert result.count("packed") == 1, result
        assert set(result) <= {"packed", "done", "busy"}


@pytest.mark.parametrize("times", [3, 100])
def test_a_folder_that_is_removed_before_it_is_locked_is_created_again(
    tmp_path, monkeypatch, times
):
    """`flare prune` removes the empty folder of a fragment. The attempts are limited."""
    mkdir, removed = os.mkdir, []

    def mkdir_then_remove(path, *args, **options):
        mkdir(path, *args, **options)
        if str(path) == f"{tmp_path}/out" and len(removed) < times:
            removed.append(path)
            os.rmdir(path)

    monkeypatch.setattr("os.mkdir", mkdir_then_remove)
    if times == 100:
        with pytest.raises(MissingError):
            opened(tmp_path / "out")
        assert len(removed) < times
        return
    with opened(tmp_path / "out") as writer:
        writer.write({"n": 1})
    assert (tmp_path / "out" / "playlist.yaml").exists()
    assert len(removed) == times
