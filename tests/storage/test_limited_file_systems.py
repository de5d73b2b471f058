"""File systems without hard links (exFAT, SMB), locks (some NFS), or fsync of folders; patched,
because tests cannot mount them.
"""

import errno
import fcntl
import json
import os
import stat

import pytest

from flarecli import commands
from flarecli.__main__ import main
from flarecli.compat.streaming import StreamingDataset
from flarecli.errors import ReachError, UsageError
from flarecli.storage import locate
from flarecli.write import Writer

NO_LINKS = [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK]


NO_LOCKS = [errno.ENOLCK, errno.EOPNOTSUPP]


HINT = "Write to a local disk or a bucket, then copy the result to this folder."


def lacking(monkeypatch, module, name, code):
    def fail(*args, **more):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(module, name, fail)


@pytest.fixture
def source(tmp_path):
    (tmp_path / "t.jsonl").write_text("".join(f'{{"id": {i}, "t": "x{i}"}}\n' for i in range(5)))
    return tmp_path / "t.jsonl"


@pytest.fixture
def packed(tmp_path):
    with Writer(str(tmp_path / "packed"), columns={"id": "int", "text": "str"}) as writer:
        for i in range(5):
            writer.write({"id": i, "text": f"text {i}"})
    return tmp_path / "packed"


def below(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


@pytest.mark.parametrize("code", NO_LINKS)
def test_a_new_file_is_written_without_hard_links(code, tmp_path, monkeypatch):
    lacking(monkeypatch, os, "link", code)
    at = locate(str(tmp_path / "new"))
    at.write([b"one"], replace=False)
    assert (tmp_path / "new").read_bytes() == b"one"
    with pytest.raises(UsageError, match="already exists"):
        at.write([b"two"], replace=False)
    assert (tmp_path / "new").read_bytes() == b"one"
    assert below(tmp_path) == ["new"]


def test_without_hard_links_a_symbolic_link_is_not_followed(tmp_path, monkeypatch):
    lacking(monkeypatch, os, "link", errno.EPERM)
    os.symlink(tmp_path / "elsewhere", tmp_path / "new")
    folder = locate(str(tmp_path))
    with pytest.raises(UsageError, match="already exists"):
        (folder / "new").write([b"one"], replace=False)
    assert below(tmp_path) == ["new"]


def test_a_failed_rename_leaves_no_file(tmp_path, monkeypatch):
    lacking(monkeypatch, os, "link", errno.EPERM)
    lacking(monkeypatch, os, "rename", errno.EIO)
    with pytest.raises(ReachError, match="new: input/output error"):
        locate(str(tmp_path / "new")).write([b"one"], replace=False)
    assert below(tmp_path) == []


def test_other_errors_of_a_hard_link_are_raised(tmp_path, monkeypatch):
    lacking(monkeypatch, os, "link", errno.EIO)
    with pytest.raises(ReachError, match="new: input/output error"):
        locate(str(tmp_path / "new")).write([b"one"], replace=False)
    assert below(tmp_path) == []


def test_unpack_and_reindex_work_without_hard_links(packed, tmp_path, monkeypatch):
    columns = ("text",)
    commands.unpack(str(packed), str(tmp_path / "linked"), columns=columns)
    index = (packed / "index.json").read_bytes()
    lacking(monkeypatch, os, "link", errno.EPERM)
    commands.unpack(str(packed), str(tmp_path / "files"), columns=columns)
    assert below(tmp_path / "files") == below(tmp_path / "linked")
    for path in (tmp_path / "linked").iterdir():
        assert (tmp_path / "files" / path.name).read_bytes() == path.read_bytes()
    (packed / "index.json").unlink()
    commands.reindex(str(packed))
    assert (packed / "index.json").read_bytes() == index


@pytest.mark.parametrize("code", NO_LOCKS)
@pytest.mark.parametrize("folder", ["out", "a/b/out"])
def test_a_pack_without_locks_is_an_error_and_leaves_no_files(
    code, folder, source, tmp_path, monkeypatch, capsys
):
    lacking(monkeypatch, fcntl, "flock", code)
    before, out = below(tmp_path), str(tmp_path / folder)
    assert main(["pack", str(source), out]) == 3
    why = os.strerror(code).lower()
    assert capsys.readouterr().err.splitlines() == [
        f"error: {out}: cannot lock: the file system does not support locks ({why})",
        f"hint: {HINT}",
    ]
    assert below(tmp_path) == before


def test_an_unpack_without_locks_leaves_no_files(packed, tmp_path, monkeypatch):
    lacking(monkeypatch, fcntl, "flock", errno.ENOLCK)
    before = below(tmp_path)
    with pytest.raises(ReachError) as caught:
        commands.unpack(str(packed), str(tmp_path / "files"))
    assert (caught.value.exit_code, caught.value.hint) == (3, HINT)
    assert below(tmp_path) == before


def test_an_unfinished_pack_is_kept_if_locks_stop_working(source, tmp_path, monkeypatch):
    writer = Writer(str(tmp_path / "out"), columns={"id": "int"})
    writer.write({"id": 1})
    writer.abandon()
    before = below(tmp_path)
    lacking(monkeypatch, fcntl, "flock", errno.ENOLCK)
    with pytest.raises(ReachError, match="the file system does not support locks"):
        Writer(str(tmp_path / "out"), columns={"id": "int"}, resume=True)
    assert below(tmp_path) == before


def test_an_error_of_a_lock_is_reported(source, tmp_path, monkeypatch, capsys):
    lacking(monkeypatch, fcntl, "flock", errno.EIO)
    assert main(["pack", str(source), str(tmp_path / "out")]) == 3
    assert capsys.readouterr().err.splitlines() == [
        f"error: {tmp_path / 'out'}: cannot lock: input/output error"
    ]


def test_a_streaming_dataset_without_locks_raises_an_error_with_a_hint(
    packed, tmp_path, monkeypatch
):
    lacking(monkeypatch, fcntl, "flock", errno.ENOLCK)
    with pytest.raises(ReachError, match="the file system does not support locks") as caught:
        list(StreamingDataset(local=str(packed), batch_size=1))
    assert caught.value.hint == "Pass a `local` on a local disk."


@pytest.mark.parametrize("code", [errno.EINVAL, errno.EOPNOTSUPP])
def test_datasets_are_complete_in_folders_that_cannot_be_synced(
    code, source, tmp_path, monkeypatch
):
    real = os.fsync

    def fsync(fd):
        if stat.S_ISDIR(os.fstat(fd).st_mode):
            raise OSError(code, os.strerror(code))
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    assert main(["pack", str(source), str(tmp_path / "out"), "-q"]) == 0
    assert list(commands.verify(str(tmp_path / "out"))) == []
    assert json.loads((tmp_path / "out" / "index.json").read_text())["shards"][0]["samples"] == 5
