"""Plain files as a dataset: a file is a row, and its bytes are unchanged."""

import os
import pickle

import pytest

from flarecli import commands, formats, read
from flarecli.errors import IntegrityError, UnsafeError, UsageError, ValueFitError
from flarecli.formats import find
from flarecli.model import Chunk
from flarecli.storage import locate

files = find("files")


@pytest.fixture
def folder(tmp_path):
    for name, data in (
        ("b/2.zstd", b"not zstd at all"),
        ("a.txt", b"one"),
        ("b/1.bin", b""),
        ("b.txt", b"\xff"),
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(data)
    return tmp_path


WANTED = [("a.txt", b"one"), ("b.txt", b"\xff"), ("b/1.bin", b""), ("b/2.zstd", b"not zstd at all")]


def test_a_folder_is_rows_of_names_and_bytes_in_bytewise_order(folder):
    data = read.open(str(folder))
    assert len(data) == 4
    assert [(column.name, column.encoding) for column in data.columns] == [
        ("name", "str"),
        ("data", "bytes"),
    ]
    assert [(row["name"], row["data"]) for row in data[:]] == WANTED
    assert [
        (row["name"], row["data"]) for batch in data.batches(3) for row in batch.to_pylist()
    ] == WANTED
    assert data.rows([3], ["name"]) == [{"name": b"b/2.zstd"}]
    assert next(data.batches(9, ["data", "name"])).schema.names == ["data", "name"]


def test_a_single_file_is_a_dataset(folder):
    assert read.open(str(folder / "a.txt"))[0] == {"name": "a.txt", "data": b"one"}


def test_a_playlist_may_list_files(folder):
    (folder / "set.yaml").write_text(
        "x:\n  headers: {format: files}\n  content: [b/2.zstd, a.txt]\n"
    )
    assert [row["name"] for row in read.open(str(folder / "set.yaml"))[:]] == ["b/2.zstd", "a.txt"]


def test_a_pickled_shard_can_be_read(folder):
    chunk = files.open_dataset(read.resolve(str(folder))[0].streams[0].at).chunk(0)
    shard = pickle.loads(pickle.dumps(files.open_shard(chunk)))
    assert files.read_rows(shard, [0, 0]) == [{"name": b"a.txt", "data": b"one"}] * 2


def test_links_and_pipes_are_listed_and_refused_when_read(folder, tmp_path_factory):
    secret = tmp_path_factory.mktemp("outside") / "secret"
    secret.write_text("secret")
    os.symlink(secret, folder / "z")
    os.mkfifo(folder / "y")
    data = read.open(str(folder), maps=False)
    assert [row["name"] for row in data.rows(range(6), ["name"])][4:] == [b"y", b"z"]
    for row in (4, 5):
        with pytest.raises(UnsafeError):
            data[row]


def test_a_file_that_changed_its_size_since_it_was_listed_is_refused(folder):
    data = read.open(str(folder))
    (folder / "a.txt").write_bytes(b"longer")
    with pytest.raises(IntegrityError) as caught:
        data[0]
    assert str(caught.value) == f"{folder}/a.txt: file is 6 bytes; the listed size is 3"


def test_verify_only_checks_that_plain_files_can_be_read(folder):
    done = commands.verify(str(folder))
    assert (list(done), done.files, done.rows, done.bytes) == ([], 4, 4, 19)
    assert done.unprotected == [
        "4 of 4 files of stream 'data': no checksums; only sizes and structure were checked"
    ]


def test_files_are_not_packed():
    with pytest.raises(UsageError) as caught:
        formats.find("files").arrange(())
    assert caught.value.hint == "Run `flare unpack` to write files, or choose another --format."


def test_files_of_an_unfinished_pack_are_not_listed(folder):
    (folder / ".flare").mkdir()
    (folder / ".flare" / "journal").write_text("x")
    (folder / ".flared").write_text("x")
    assert files.open_dataset(locate(str(folder))).urls == [
        ".flared",
        *(name for name, _ in WANTED),
    ]


def test_a_name_that_is_not_utf8_is_read_as_bytes_only(tmp_path):
    with open(os.fsencode(tmp_path) + b"/\xff.txt", "wb") as file:
        file.write(b"x")
    shard = files.open_shard(files.open_dataset(locate(str(tmp_path))).chunk(0))
    assert files.read_rows(shard, [0]) == [{"name": b"\xff.txt", "data": b"x"}]
    assert files.read_batch(shard, 0, 1, ["data"]).to_pylist() == [{"data": b"x"}]
    with pytest.raises(ValueFitError) as caught:
        files.read_batch(shard, 0, 1)
    assert caught.value.message == "file name is not UTF-8"


def test_empty_selections_of_rows_and_columns_are_read(folder):
    shard = files.open_shard(files.open_dataset(locate(str(folder))).chunk(0))
    assert (
        files.read_batch(shard, 0, 0).num_rows
        == files.read_batch(shard, 1, 1, ["name"]).num_rows
        == 0
    )
    assert [files.read_batch(shard, 0, rows, []).num_rows for rows in (0, 1)] == [0, 1]
    assert (files.read_rows(shard, []), files.read_rows(shard, [0], [])) == ([], [{}])


def test_an_unlisted_chunk_has_the_name_of_its_file(folder):
    assert files.read_rows(files.open_shard(Chunk(locate(str(folder / "b" / "1.bin")))), [0]) == [
        {"name": b"1.bin", "data": b""}
    ]


def test_no_file_name_is_recognized_as_plain_files():
    assert not any(files.sniff(name, b"") for name in ("a.txt", "x.mds", ""))
