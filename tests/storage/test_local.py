"""Local files: nothing below the root leads out of it, and what is written is whole or not there."""

import os
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.storage import Guard, Location, locate
from flarecli.storage.local import LocalStore


@pytest.fixture
def root(tmp_path):
    (tmp_path / "data" / "sub").mkdir(parents=True)
    (tmp_path / "data" / "a.bin").write_bytes(bytes(range(100)))
    (tmp_path / "data" / "sub" / "b.bin").write_bytes(b"bee")
    (tmp_path / "secret.txt").write_text("secret")
    return locate(str(tmp_path / "data"))


def test_ranges_are_read_in_the_order_asked(root):
    at = root / "a.bin"
    assert at.size() == 100
    assert at.read_many([(90, 100), (0, 3), (5, 5)]) == [bytes(range(90, 100)), b"\0\1\2", b""]
    assert at.read(98) == b"\x62\x63"
    assert b"".join(at.blocks()) == bytes(at.map()) == bytes(range(100))
    assert (root / "sub/b.bin").read() == b"bee"


def test_a_read_past_the_end_is_an_error_not_a_short_answer(root):
    with pytest.raises(FormatError) as caught:
        (root / "a.bin").read(90, 1 << 60)
    assert str(caught.value) == f"{root}/a.bin: ends at byte 100, {1 << 60} are needed"


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
    with pytest.raises(UnsafeError, match="a symbolic link, which may lead out of the folder"):
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
def test_a_link_that_leads_back_to_itself_is_said_to(root, tmp_path, links, allowed):
    for name, target in links.items():
        (tmp_path / "data" / name).symlink_to(target.format(data=tmp_path / "data"))
    at = locate(str(tmp_path / "data"), Guard(allow_local=allowed))
    for path in ("x", "x/b.bin"):
        with pytest.raises(UnsafeError) as caught:
            (at / path).read()
        assert str(caught.value) == f"{root}/{path}: a symbolic link that leads back to itself"
        assert caught.value.hint == "Replace it by the file itself."
    with pytest.raises(UnsafeError, match="a symbolic link that leads back to itself"):
        locate(str(tmp_path / "data/x")).read()
    with pytest.raises(UnsafeError, match="a symbolic link that leads back to itself"):
        locate(str(tmp_path / "data/x/b.bin")).read()


def test_a_link_that_may_lead_anywhere_is_not_asked_where_it_ends(root, tmp_path):
    (tmp_path / "data/x").symlink_to("../data/y")
    (tmp_path / "data/y").symlink_to("../data/x")
    with pytest.raises(UnsafeError, match="a symbolic link, which may lead out of the folder"):
        (root / "x").read()
    (tmp_path / "data/z").symlink_to("a.bin")
    with pytest.raises(UnsafeError, match="a symbolic link, which may lead out of the folder"):
        (root / "z").read()
    with pytest.raises(UnsafeError, match="a symbolic link that leads back to itself"):
        (locate(str(tmp_path / "data"), Guard(allow_local=True)) / "x").read()


def test_folders_that_never_end_are_not_listed(root, tmp_path):
    deep = tmp_path / "data"
    for _ in range(100):
        deep = deep / "d"
    deep.mkdir(parents=True)
    (deep / "f").write_bytes(b"1")
    assert [entry.name for entry in root.list() if entry.name.endswith("f")] == ["d/" * 100 + "f"]
    (deep / "d").mkdir()
    with pytest.raises(FormatError) as caught:
        list(root.list())
    assert str(caught.value) == f"{root}: folders lie more than 100 deep in it"
    assert caught.value.hint == "Name a folder further down."


def test_links_are_followed_when_the_user_says_so(root, tmp_path):
    (tmp_path / "data" / "x").symlink_to(tmp_path / "secret.txt")
    assert (locate(str(tmp_path / "data"), Guard(allow_local=True)) / "x").read() == b"secret"


def test_a_link_that_the_user_typed_is_followed(tmp_path, root):
    (tmp_path / "here").symlink_to(tmp_path / "data" / "a.bin")
    assert locate(str(tmp_path / "here")).size() == 100


def test_a_fifo_does_not_block(root, tmp_path):
    os.mkfifo(tmp_path / "data" / "x")
    with pytest.raises(UnsafeError) as caught:
        (root / "x").read()
    assert str(caught.value) == f"{root}/x: not a regular file"


def test_a_folder_where_a_file_is_needed(root):
    with pytest.raises(FormatError, match="a folder where a file is needed$"):
        (root / "sub").read()


def test_nothing_there_and_no_permission(root, tmp_path):
    with pytest.raises(MissingError, match="^.*/data/no: no such file or folder$"):
        (root / "no").read()
    with pytest.raises(MissingError):
        locate(str(tmp_path / "nowhere" / "x")).size()


def test_written_files_are_whole_or_not_there(root, tmp_path):
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


def test_a_file_that_is_there_is_not_replaced_unless_asked(root):
    with pytest.raises(UsageError, match="something is there already$"):
        (root / "a.bin").write([b"x"], replace=False)
    assert (root / "a.bin").size() == 100


def test_listing_is_bytewise_and_names_what_cannot_be_read(root, tmp_path):
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


def test_listing_opens_folders_and_links_alone(root, tmp_path, monkeypatch):
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
    assert str(caught.value) == f"{root}: the address {url!r} leaves the folder"
    assert caught.value.hint == "Give --allow-local to read it, if you trust this dataset."


def test_addresses_out_of_the_folder_when_the_user_says_so(tmp_path, root):
    free = locate(str(tmp_path / "data"), Guard(allow_local=True))
    assert free.join("../secret.txt").read() == b"secret"
    assert free.join(f"file://{tmp_path}/secret.txt").read() == b"secret"


@pytest.mark.parametrize("url", ["ftp://h/x", "simplecache::http://h/x", "data://x", "gopher://h"])
def test_other_schemes_are_refused(root, url):
    with pytest.raises((UnsafeError, FormatError)):
        root.join(url).size()


def test_locations_pickle_and_forget_their_maps(root):
    at = root / "a.bin"
    at.map()
    copy = pickle.loads(pickle.dumps(at))
    assert copy == at
    assert copy.read() == at.read()


def test_an_unmapped_store_never_maps(root):
    assert (root / "a.bin").unmapped().map() is None


def test_a_full_disk_is_said(root, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ReachError) as caught:
        (root / "n").write([b"x"])
    assert str(caught.value) == f"{root}/n: the disk is full: No space left on device"
    assert caught.value.exit_code == 3


def test_more_maps_than_are_kept_stay_readable(tmp_path):
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
    """The folder `root` as opened through a symbolic link that the user typed."""
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
    with pytest.raises(UnsafeError, match="leaves the folder"):
        (linked / "sub").join(url.format(top=tmp_path))


@pytest.mark.parametrize(
    "url",
    [
        "{top}/data.bin",  # its name begins like the folder's
        "{top}/data/../secret.txt",
        "file://{top}/data/%2e%2e/secret.txt",
        "file://data/a.bin",  # of another machine
        "file:///",
        "/",
        "../link/a.bin",  # another folder's name, as far as text says
    ],
)
def test_paths_beside_the_folder_are_refused(linked, tmp_path, url):
    with pytest.raises(UnsafeError, match="leaves the folder"):
        linked.join(url.format(top=tmp_path))


def test_a_link_inside_the_folder_is_refused_by_its_absolute_path_too(root, tmp_path):
    (tmp_path / "data" / "out").symlink_to(tmp_path)
    for url in (f"{tmp_path}/data/out/secret.txt", "../data/out/secret.txt"):
        with pytest.raises(UnsafeError, match="a symbolic link"):
            root.join(url).read()
    assert root.join(f"{tmp_path}/data/out/../a.bin").path == "a.bin"


def test_absolute_paths_through_a_linked_working_folder_are_accepted(linked, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path / "link")
    monkeypatch.setenv("PWD", str(tmp_path / "link"))  # as a shell sets it
    assert locate("a.bin").folder.join(f"{tmp_path}/link/sub/b.bin").read() == b"bee"
    monkeypatch.setenv("PWD", "/")  # not the working folder: it names nothing here
    with pytest.raises(UnsafeError):
        locate("a.bin").folder.join(f"{tmp_path}/link/sub/b.bin")


def test_a_file_url_that_names_another_machine_is_no_path_here(tmp_path):
    free = locate(str(tmp_path), Guard(allow_local=True))
    with pytest.raises(FormatError, match="file:// names another machine"):
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


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["", "sub"]),
    st.sampled_from(["", "/", "//", "/t/data/", "/t/", "file://", "file:///t/data/", "FILE:///"]),
    st.lists(st.sampled_from(PARTS), max_size=7),
)
def test_no_address_names_anything_outside_its_folder(path, prefix, parts):
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
