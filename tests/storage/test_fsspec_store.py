"""Files through fsspec: versions, listings and uploads."""

from __future__ import annotations

import errno
import tempfile
import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from flarecli.cache import Cache
from flarecli.errors import FormatError, MissingError, ReachError
from flarecli.storage import Guard, locate
from flarecli.storage import fsspec_store as anything
from flarecli.storage.fsspec_store import FsspecStore

fsspec = pytest.importorskip("fsspec")


NOW = datetime.fromtimestamp(1_800_000_000, UTC)


LONG_AGO = NOW - timedelta(seconds=60)


JUST_NOW = NOW - timedelta(seconds=59)


@pytest.mark.parametrize(
    ("told", "sign"),
    [
        ({"ETag": '"one"', "LastModified": JUST_NOW}, '"one"'),
        ({"md5": "c4ca", "mtime": JUST_NOW}, "c4ca"),
        ({"LastModified": LONG_AGO}, str(LONG_AGO)),
        ({"LastModified": JUST_NOW}, ""),
        ({"LastModified": NOW + timedelta(hours=1)}, ""),
        ({"mtime": LONG_AGO.timestamp()}, str(LONG_AGO.timestamp())),
        ({"mtime": JUST_NOW.timestamp()}, ""),
        (
            {"mtime": LONG_AGO.astimezone(timezone(timedelta(hours=-7)))},
            str(LONG_AGO.astimezone(timezone(timedelta(hours=-7)))),
        ),
        ({"mtime": LONG_AGO.replace(tzinfo=None)}, ""),
        (
            {"mtime": LONG_AGO.replace(tzinfo=None) - timedelta(days=1)},
            str(LONG_AGO.replace(tzinfo=None) - timedelta(days=1)),
        ),
        ({"modify": LONG_AGO.strftime("%Y%m%d%H%M%S")}, LONG_AGO.strftime("%Y%m%d%H%M%S")),
        ({"modify": JUST_NOW.strftime("%Y%m%d%H%M%S")}, ""),
        ({"modify": LONG_AGO.strftime("%Y%m%d%H%M%S.000")}, LONG_AGO.strftime("%Y%m%d%H%M%S.000")),
        ({"modified": LONG_AGO.isoformat()}, LONG_AGO.isoformat()),
        ({"modify": "Jan 15 08:00"}, ""),
        ({"modify": "99999999999999"}, ""),
        ({"mtime": 1e300}, ""),
        ({}, ""),
    ],
)
def test_an_old_modification_time_identifies_a_version(told, sign, monkeypatch):
    at = locate("memory://told/a")
    monkeypatch.setattr(time, "time", NOW.timestamp)
    monkeypatch.setattr(
        at.store, "_call", lambda path, call: {"name": path, "type": "file", "size": 7, **told}
    )
    assert at.store.version(at.path) == (sign, 7)
    assert at.size() == 7


@pytest.mark.parametrize(("age", "is_kept"), [(0, False), (30, False), (61, True)])
def test_a_copy_is_cached_only_under_an_old_modification_time(age, is_kept, tmp_path):
    files = fsspec.filesystem("memory")
    when = datetime.fromtimestamp(int(time.time()) - age, UTC)

    def read(data):
        files.pipe("/times/a", data)
        files.store["/times/a"].created = when  # written twice within one second
        return locate("memory://times/a", Guard(keeper=Cache(str(tmp_path)))).read()

    assert read(b"a" * 5_000_000) == b"a" * 5_000_000
    assert (read(b"b" * 5_000_000) == b"a" * 5_000_000) is is_kept
    files.rm("/times/a")


class Made(fsspec.AbstractFileSystem):
    """A file system that lists single folders of `tree`, in which a folder is a dict and a file is
    its size.
    """

    def __init__(self, tree):
        super().__init__(skip_instance_cache=True)
        self.tree, self.asked = tree, []

    def ls(self, path, detail=True, **more):
        self.asked.append(path)
        below = self.tree
        for part in path.split("/")[1:]:
            below = below.get(part) if isinstance(below, dict) else None
        if below is None:
            raise FileNotFoundError(path)
        if not isinstance(below, dict):
            return [{"name": path, "type": "file", "size": below}]
        return [
            {
                "name": f"{path}/{name}",
                "type": "directory" if isinstance(one, dict) else "file",
                "size": 0 if isinstance(one, dict) else one,
            }
            for name, one in below.items()
        ]


@pytest.fixture
def made(monkeypatch):
    def make(tree):
        at, files = locate("memory://top"), Made(tree)
        monkeypatch.setattr(at.store, "file_system_class", lambda: Made)
        monkeypatch.setattr(at.store, "_file_system", lambda: files)
        return at, files

    return make


def test_a_listing_is_in_bytewise_order(made):
    at, _ = made(
        {"b": 1, "a": {"z": 2, "é": 3, "y": {}}, "a.txt": 4, "a-b": {"c": {"d": 5}}, "B": 6}
    )
    found = [(entry.name, entry.size) for entry in at.list()]
    assert found == [("B", 6), ("a-b/c/d", 5), ("a.txt", 4), ("a/z", 2), ("a/é", 3), ("b", 1)]
    assert [name for name, _ in found] == sorted((name for name, _ in found), key=str.encode)


def test_folders_are_listed_one_after_another(made):
    at, files = made({f"{i:03}": {f"{k:04}": k for k in range(1000)} for i in range(1000)})
    found = at.list()
    assert next(found).name == "000/0000"
    assert len(files.asked) == 2
    assert sum(1 for _ in found) == 999_999
    assert len(files.asked) == 1001


def test_a_folder_deleted_during_a_listing_is_empty(made):
    at, files = made({"a": {"x": 1}, "b": {"x": 1}, "c": {"x": 1}})
    found = at.list()
    assert next(found).name == "a/x"
    del files.tree["b"]
    assert [entry.name for entry in found] == ["c/x"]


@pytest.mark.parametrize("tree", [{}, {"a": {"b": {}}}, 7])
def test_empty_folders_and_files_cannot_be_listed(made, tree):
    at, _ = made(tree)
    with pytest.raises(MissingError) as caught:
        list(at.list())
    assert str(caught.value) == "memory://top: not found"


def test_fsspec_folders_nested_too_deep_are_refused(made):
    endless = {}
    endless["a"] = endless
    at, _ = made(endless)
    with pytest.raises(FormatError) as caught:
        list(at.list())
    assert (
        str(caught.value)
        == f"memory://top{'/a' * 101}: folders are nested more than 100 levels deep"
    )


class Full:
    """A temporary file on a full disk."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_an_upload_that_cannot_be_buffered_is_reported(monkeypatch):
    monkeypatch.setattr(anything.tempfile, "NamedTemporaryFile", lambda prefix: Full())
    with pytest.raises(ReachError) as caught:
        locate("memory://full/a").write([b"x"])
    assert (
        str(caught.value)
        == f"{tempfile.gettempdir()}: cannot buffer the upload: no space left on device"
    )


def test_an_incomplete_upload_is_removed_from_the_server(monkeypatch):
    memory = fsspec.filesystem("memory")

    def half(self, source, target, **more):
        memory.pipe_file(target, b"half")
        raise OSError("connection lost")

    monkeypatch.setattr(anything, "_ATOMIC", ())
    monkeypatch.setattr(type(memory), "put_file", half)
    with pytest.raises(ReachError):
        locate("memory://halves/a").write([b"whole"])
    assert not memory.find("/halves")


@pytest.mark.parametrize(
    ("variable", "value", "is_anonymous"),
    [
        ("AWS_SKIP_SIGNATURE", "true", True),
        ("AWS_SKIP_SIGNATURE", "yes", True),
        ("AWS_NO_SIGN_REQUEST", "1", True),
        ("AWS_NO_SIGN_REQUEST", "0", False),
    ],
)
def test_s3fs_signs_no_requests_if_the_environment_says_so(
    monkeypatch, variable, value, is_anonymous
):
    pytest.importorskip("s3fs")
    for name in ("AWS_SKIP_SIGNATURE", "AWS_NO_SIGN_REQUEST"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, value)
    store = FsspecStore.locate("s3://b/a", Guard()).store
    assert bool(store._file_system().anon) == is_anonymous
