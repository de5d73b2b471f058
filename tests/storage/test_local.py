"""Local files: no name leaves the root, and files are written completely or not at all."""

from __future__ import annotations

import errno
import os
import pickle
import stat
import threading
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.__main__ import main
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.storage import Guard, Location, local, locate
from flarecli.storage.local import LocalStore, is_in_dev, is_not_regular
from flarecli.write import Writer
from tests.properties import examples


@pytest.fixture
def root(tmp_path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "a.bin").write_bytes(bytes(range(100)))
    (tmp_path / "data" / "sub" / "b.bin").write_bytes(b"bee")
    (tmp_path / "secret.txt").write_text("secret")
    return locate(str(tmp_path / "data"))


def test_ranges_are_returned_in_their_order(root):
    at = root / "a.bin"
    assert at.size() == 100
    assert at.read_many([(90, 100), (0, 3), (5, 5)]) == [bytes(range(90, 100)), b"\0\1\2", b""]
    assert at.read(98) == b"\x62\x63"
    assert b"".join(at.blocks()) == bytes(at.map()) == bytes(range(100))
    assert (root / "sub/b.bin").read() == b"bee"


def test_a_read_past_the_end_is_an_error(root):
    with pytest.raises(FormatError) as caught:
        (root / "a.bin").read(90, 1 << 60)
    assert str(caught.value) == f"{root}/a.bin: ends at byte 100; expected at least {1 << 60} bytes"


def test_a_folder_that_becomes_a_link_during_several_reads_or_writes_does_not_lead_outside(
    root, tmp_path
):
    data = tmp_path / "data"
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "c.bin").write_bytes(b"outside")

    def swap():
        (data / "sub").rename(data / "moved")
        (data / "sub").symlink_to(tmp_path / "sub")
        return b"written"

    with root.store.writes() as write:
        write("sub/x", [b"1"], (), True)
        write("sub/y", (swap() for _ in range(1)), (), True)
        write("sub/z", [b"3"], (), False)
        with pytest.raises(UnsafeError):
            write("sub/new/z", [b"4"], (), True)
    assert sorted(os.listdir(tmp_path / "sub")) == ["c.bin"]
    assert sorted(os.listdir(data / "moved")) == ["b.bin", "x", "y", "z"]
    found = root.store.read_files(["a.bin", "sub/c.bin", "moved/y"], 1000, 1000)
    assert [found[0], type(found[1]), found[2]] == [bytes(range(100)), UnsafeError, b"written"]


@pytest.mark.parametrize("kind", ["link", "folder link", "dangling"])
def test_links_are_not_followed_below_the_root(root, tmp_path, kind):
    data = tmp_path / "data"
    target = {
        "link": tmp_path / "secret.txt",
        "folder link": tmp_path,
        "dangling": tmp_path / "no",
    }[kind]
    (data / "x").symlink_to(target)
    at = root / ("x/secret.txt" if kind == "folder link" else "x")
    with pytest.raises(
        UnsafeError, match="is a symbolic link; its target may be outside the folder"
    ):
        at.read()
    with pytest.raises(UnsafeError):
        at.size()
    if kind == "folder link":
        with pytest.raises(UnsafeError):
            (root / "x/new.txt").write([b"x"])
        assert not (tmp_path / "new.txt").exists()
        with pytest.raises(UnsafeError):
            at.delete()
        assert (tmp_path / "secret.txt").exists()


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    "links",
    [
        {"x": "x"},
        {"x": "./x"},
        {"x": "{data}/x"},
        {"x": "y", "y": "z", "z": "x"},
        {"x": "y", "y": "y/"},
    ],
    ids=str,
)
def test_a_symbolic_link_loop_is_reported(root, tmp_path, links, allowed):
    for name, target in links.items():
        (tmp_path / "data" / name).symlink_to(target.format(data=tmp_path / "data"))
    at = locate(str(tmp_path / "data"), Guard(allow_local=allowed))
    for path in ("x", "x/b.bin"):
        with pytest.raises(UnsafeError) as caught:
            (at / path).read()
        assert str(caught.value) == f"{root}/{path}: symbolic link loop"
        assert caught.value.hint == "Use a regular file instead."
    with pytest.raises(UnsafeError, match="symbolic link loop"):
        locate(str(tmp_path / "data/x")).read()
    with pytest.raises(UnsafeError, match="symbolic link loop"):
        locate(str(tmp_path / "data/x/b.bin")).read()


def test_the_target_of_a_link_outside_the_root_is_not_resolved(root, tmp_path):
    (tmp_path / "data/x").symlink_to("../data/y")
    (tmp_path / "data/y").symlink_to("../data/x")
    with pytest.raises(
        UnsafeError, match="is a symbolic link; its target may be outside the folder"
    ):
        (root / "x").read()
    (tmp_path / "data/z").symlink_to("a.bin")
    with pytest.raises(
        UnsafeError, match="is a symbolic link; its target may be outside the folder"
    ):
        (root / "z").read()
    with pytest.raises(UnsafeError, match="symbolic link loop"):
        (locate(str(tmp_path / "data"), Guard(allow_local=True)) / "x").read()


def test_folders_nested_too_deep_are_not_listed(root, tmp_path):
    deep = tmp_path / "data"
    for _ in range(100):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"1")
    assert [entry.name for entry in root.list() if entry.name.endswith("f")] == ["d/" * 100 + "f"]
    (deep / "d").mkdir()
    with pytest.raises(FormatError) as caught:
        list(root.list())
    assert str(caught.value) == f"{root}: folders are nested more than 100 levels deep"
    assert caught.value.hint == "Use a subfolder of this folder."


def test_links_are_followed_if_the_guard_allows_it(root, tmp_path):
    (tmp_path / "data" / "x").symlink_to(tmp_path / "secret.txt")
    assert (locate(str(tmp_path / "data"), Guard(allow_local=True)) / "x").read() == b"secret"


def test_a_link_that_the_user_typed_is_followed(tmp_path, root):
    (tmp_path / "here").symlink_to(tmp_path / "data" / "a.bin")
    assert locate(str(tmp_path / "here")).size() == 100


def test_a_named_pipe_does_not_block(root, tmp_path):
    os.mkfifo(tmp_path / "data" / "x")
    with pytest.raises(UnsafeError) as caught:
        (root / "x").read()
    assert str(caught.value) == f"{root}/x: not a regular file"


def test_a_folder_instead_of_a_file_is_an_error(root):
    with pytest.raises(FormatError, match="is a folder; expected a file$"):
        (root / "sub").read()


def test_missing_files_and_missing_permissions_are_errors(root, tmp_path):
    with pytest.raises(MissingError, match="^.*/data/no: no such file or folder$"):
        (root / "no").read()
    with pytest.raises(MissingError):
        locate(str(tmp_path / "nowhere" / "x")).size()


def test_files_are_written_completely_or_not_at_all(root, tmp_path):
    at = root / "new/deep/c.bin"
    written = at.write([b"ab", memoryview(b"cd")], ["md5"])
    assert written == (4, {"md5": "e2fc714c4727ee9395f324cd2e7f331f"})
    assert at.read() == b"abcd"

    def parts():
        yield b"x" * 100
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        at.write(parts())
    assert at.read() == b"abcd"
    assert sorted(p.name for p in (tmp_path / "data" / "new" / "deep").iterdir()) == ["c.bin"]


def test_an_existing_file_is_replaced_only_with_replace(root):
    with pytest.raises(UsageError, match="already exists$"):
        (root / "a.bin").write([b"x"], replace=False)
    assert (root / "a.bin").size() == 100


def test_a_listing_is_bytewise_and_includes_unreadable_files(root, tmp_path):
    for name in ("B", "a-", "a", "é"):
        (tmp_path / "data" / "sub" / name).write_bytes(b"1")
    (tmp_path / "data" / "sub" / "z").symlink_to("/nowhere")
    assert [tuple(entry) for entry in root.list()] == [
        ("a.bin", 100),
        ("sub/B", 1),
        ("sub/a", 1),
        ("sub/a-", 1),
        ("sub/b.bin", 3),
        ("sub/z", -1),
        ("sub/é", 1),
    ]


def test_listing_opens_only_folders_and_links(root, tmp_path, monkeypatch):
    (tmp_path / "data" / "sub" / "z").symlink_to("b.bin")
    sized = []
    monkeypatch.setattr(type(root.store), "size", lambda self, path: sized.append(path) or 0)
    assert [entry.name for entry in root.list()] == ["a.bin", "sub/b.bin", "sub/z"]
    assert sized == ["sub/z"]


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "/etc/passwd", "../secret.txt", "sub/../../secret.txt"]
)
def test_addresses_in_data_stay_in_the_folder(root, url):
    with pytest.raises(UnsafeError) as caught:
        root.join(url)
    assert str(caught.value) == f"{root}: the address {url!r} points outside the folder"
    assert caught.value.hint == "Pass --allow-local if you trust this dataset."


def test_addresses_outside_the_folder_are_allowed_by_the_guard(tmp_path, root):
    free = locate(str(tmp_path / "data"), Guard(allow_local=True))
    assert free.join("../secret.txt").read() == b"secret"
    assert free.join(f"file://{tmp_path}/secret.txt").read() == b"secret"


@pytest.mark.parametrize("url", ["ftp://h/x", "simplecache::http://h/x", "data://x", "gopher://h"])
def test_other_schemes_are_refused(root, url):
    with pytest.raises((UnsafeError, FormatError)):
        root.join(url).size()


def test_a_pickled_location_has_no_maps(root):
    at = root / "a.bin"
    at.map()
    copy = pickle.loads(pickle.dumps(at))
    assert copy == at
    assert copy.read() == at.read()


def test_an_unmapped_store_never_maps(root):
    assert (root / "a.bin").unmapped().map() is None


def test_a_full_disk_is_reported(root, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ReachError) as caught:
        (root / "n").write([b"x"])
    assert str(caught.value) == f"{root}/n: the disk is full: No space left on device"
    assert caught.value.exit_code == 3


def test_maps_that_are_closed_stay_readable(tmp_path):
    store = LocalStore(str(tmp_path))
    for i in range(300):
        (tmp_path / str(i)).write_bytes(b"%d" % i)
    views = [Location(store, str(i)).map() for i in range(300)]
    assert [bytes(view) for view in views] == [b"%d" % i for i in range(300)]


INSIDE = [
    "{top}/data/sub/b.bin",
    "/{top}//data/./x/../sub/b.bin",
    "file://{top}/data/sub/b.bin",
    "FILE://localhost{top}/data/sub/%62.bin",
    "{top}/link/sub/b.bin",
]


@pytest.fixture
def linked(tmp_path, root):
    """The folder `root`, opened through a symbolic link."""
    (tmp_path / "link").symlink_to("data")
    return locate(str(tmp_path / "link"))


@pytest.mark.parametrize(
    "url", [*INSIDE, "../data/sub/b.bin", "x/../sub/b.bin", "sub/../../data/sub/b.bin"]
)
def test_paths_inside_the_folder_are_accepted_in_any_spelling(linked, tmp_path, url):
    found = linked.join(url.format(top=tmp_path))
    assert found.path == "sub/b.bin" and found.read() == b"bee"
    assert pickle.loads(pickle.dumps(found)).read() == b"bee"


@pytest.mark.parametrize("url", [*INSIDE, "../sub/b.bin"])
def test_paths_inside_a_folder_below_the_root_are_accepted(linked, tmp_path, url):
    assert (linked / "sub").join(url.format(top=tmp_path)).path == "sub/b.bin"


@pytest.mark.parametrize("url", ["{top}/data/a.bin", "../a.bin", "file://{top}/data/a.bin"])
def test_paths_outside_a_folder_below_the_root_are_refused(linked, tmp_path, url):
    with pytest.raises(UnsafeError, match="points outside the folder"):
        (linked / "sub").join(url.format(top=tmp_path))


@pytest.mark.parametrize(
    "url",
    [
        "{top}/data.bin",  # its name starts like the folder's
        "{top}/data/../secret.txt",
        "file://{top}/data/%2e%2e/secret.txt",
        "file://data/a.bin",  # on another machine
        "file:///",
        "/",
        "../link/a.bin",  # textually, the name of another folder
    ],
)
def test_paths_outside_the_folder_are_refused(linked, tmp_path, url):
    with pytest.raises(UnsafeError, match="points outside the folder"):
        linked.join(url.format(top=tmp_path))


def test_a_link_inside_the_folder_is_refused_by_its_absolute_path_too(root, tmp_path):
    (tmp_path / "data" / "out").symlink_to(tmp_path)
    for url in (f"{tmp_path}/data/out/secret.txt", "../data/out/secret.txt"):
        with pytest.raises(UnsafeError, match="a symbolic link"):
            root.join(url).read()
    assert root.join(f"{tmp_path}/data/out/../a.bin").path == "a.bin"


def test_absolute_paths_through_a_linked_working_folder_are_accepted(linked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))  # as set by a shell
    assert locate("a.bin").folder.join(f"{tmp_path}/link/sub/b.bin").read() == b"bee"
    monkeypatch.setenv("PWD", "/")  # not the working folder
    with pytest.raises(UnsafeError):
        locate("a.bin").folder.join(f"{tmp_path}/link/sub/b.bin")


def test_a_file_url_with_another_host_is_refused(tmp_path):
    free = locate(str(tmp_path), Guard(allow_local=True))
    with pytest.raises(FormatError, match="file:// with a remote host is not supported"):
        free.join("file://data/a.bin")


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "~/x", "a\\b"])
def test_absolute_paths_are_checked_like_names(root, tmp_path, name):
    with pytest.raises(UnsafeError):
        root.join(f"{tmp_path}/data/{name}")


PARTS = [
    "..",
    ".",
    "",
    "data",
    "sub",
    "x",
    "data.bin",
    "%2e%2e",
    "~",
    "file:",
    "localhost",
    "\\",
    "\0",
]


@settings(max_examples=examples(300), deadline=None)
@given(
    st.sampled_from(["", "sub"]),
    st.sampled_from(["", "/", "//", "/t/data/", "/t/", "file://", "file:///t/data/", "FILE:///"]),
    st.lists(st.sampled_from(PARTS), max_size=7),
)
def test_no_address_leaves_its_folder(path, prefix, parts):
    here = Location(LocalStore("/t/data", "shown"), path)
    try:
        found = here.join(prefix + "/".join(parts))
    except FlareError:
        return
    assert found.store == here.store
    whole = os.path.join("/t/data", found.path)
    assert f"{os.path.normpath(whole)}/".startswith(
        f"{os.path.join('/t/data', path)}/".replace("//", "/")
    )
    assert not {"..", "."} & set(found.path.split("/"))


@pytest.fixture
def pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    return tmp_path / "pipe"


def test_a_pipe_stays_a_pipe(pipe):
    with pytest.raises(UsageError) as caught:
        locate(str(pipe)).write([b"x"])
    assert (str(caught.value), caught.value.hint) == (
        f"{pipe}: not a regular file; writing would replace it",
        "Write to a regular file or a new file.",
    )
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert os.listdir(pipe.parent) == ["pipe"]


def test_a_link_to_a_pipe_stays_a_link(pipe):
    link = pipe.parent / "link"
    link.symlink_to("pipe")
    with pytest.raises(UsageError, match="writing would replace it"):
        locate(str(link)).write([b"x"])
    assert link.is_symlink()


@pytest.mark.parametrize(
    "args", [["inspect", "out", "--html"], ["verify", "out", "--report"], ["playlist", "out", "-o"]]
)
def test_no_command_replaces_a_pipe(pipe, tmp_path, in_tmp_path, capfd, args):
    (tmp_path / "t.csv").write_text("a\n1\n")
    assert main(["pack", "t.csv", "out", "-q"]) == 0
    os.rename("pipe", "pipe.xml")
    capfd.readouterr()
    assert main([*args, "pipe.xml"]) == 2
    assert (
        capfd.readouterr().err
        == "error: pipe.xml: not a regular file; writing would replace it\nhint: Write to a regular file or a new file.\n"
    )
    assert stat.S_ISFIFO(os.stat("pipe.xml").st_mode)


@pytest.mark.skipif(
    os.stat("/dev").st_dev == os.stat("/").st_dev, reason="/dev is no file system of its own here"
)
def test_only_files_in_dev_are_special(tmp_path):
    def asked(name, folder):
        fd = os.open(folder, os.O_RDONLY)
        try:
            return is_in_dev(fd) or is_not_regular(name, fd)
        finally:
            os.close(fd)

    (tmp_path / "a").write_text("")
    assert [asked("null", "/dev"), asked("no such device", "/dev")] == [True, True]
    assert [asked("a", tmp_path), asked("b", tmp_path), asked("", tmp_path)] == [
        False,
        False,
        False,
    ]


@pytest.fixture
def top(tmp_path):
    (tmp_path / "d" / ".flare").mkdir(parents=True)
    return tmp_path / "d"


@pytest.mark.parametrize("names", [("0/x", "1/x"), ("n" * 200 + "0", "n" * 200 + "1")])
def test_files_of_one_name_in_two_folders_are_written_at_the_same_time(top, names):
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
def test_existing_temporary_files_are_not_written_into(top, tmp_path, make):
    (tmp_path / "victim").write_bytes(b"precious")
    make(tmp_path / "victim", top / ".flare" / "a.part")
    thread = threading.Thread(target=(locate(f"{top}/") / "a").write, args=([b"new"],), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert (top / "a").read_bytes() == b"new"


def test_temporary_files_of_a_killed_pack_are_removed_on_resume(tmp_path):
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
def test_a_failing_step_of_a_write_leaves_the_old_file(top, monkeypatch, call, number):
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


def test_the_folder_is_synced_after_the_rename(top, monkeypatch):
    told = []
    rename, fsync = os.rename, os.fsync
    monkeypatch.setattr(
        os, "rename", lambda *args, **more: (told.append("rename"), rename(*args, **more))
    )
    monkeypatch.setattr(os, "fsync", lambda fd: (told.append(os.fstat(fd).st_ino), fsync(fd)))
    (locate(f"{top}/") / "a").write([b"new"])
    assert told == [os.stat(top / "a").st_ino, "rename", os.stat(top).st_ino]


def test_a_range_that_ends_before_it_starts_is_an_error(top):
    (top / "a").write_bytes(bytes(15))
    with pytest.raises(FormatError):
        (locate(f"{top}/") / "a").read(20, 10)


def test_the_number_of_maps_is_bounded(top, monkeypatch):
    monkeypatch.setattr(local, "MAX_MAPS", 8)
    at = locate(f"{top}/")
    for i in range(11):
        (top / f"{i}").write_bytes(b"%d" % i)
        assert bytes((at / f"{i}").map()) == b"%d" % i
    assert list(at.store._maps) == [str(i) for i in range(3, 11)]


def test_a_file_mapped_while_the_store_is_closed_counts_towards_the_limit(top, monkeypatch):
    monkeypatch.setattr(local, "MAX_MAPS", 8)
    at = locate(f"{top}/")
    for i in range(11):
        (top / f"{i}").write_bytes(b"%d" % i)
    weakref.finalize((at / "0").map().obj, (at / "1").map)  # like another thread
    at.store.close()
    for i in range(2, 11):
        (at / f"{i}").map()
    assert list(at.store._maps) == [str(i) for i in range(3, 11)]
