"""Resolution of addresses: globs, lists, damaged and unfinished datasets."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import playlists, read
from flarecli.__main__ import main
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    UnfinishedError,
    UnsafeError,
    UsageError,
)
from flarecli.ingest import open_index
from flarecli.model import Playlist, Settings
from flarecli.storage import locate
from flarecli.write import Writer
from tests.read.packed import ROWS, pack


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (["*.csv"], ["a.csv"]),
        (["**", "*.csv"], ["a.csv", "x/b.csv", "x/y/c.csv"]),
        (["?", "b*"], ["x/b.csv"]),
    ],
)
def test_files_are_listed_in_bytewise_order(tmp_path, pattern, expected):
    for name in ("x/y/c.csv", "x/b.csv", "a.csv", ".hidden.csv", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("n\n1\n")
    assert list(locate(str(tmp_path)).matching(pattern)) == expected
    (tmp_path / "l.txt").write_text("/".join(pattern))
    assert open_index([str(tmp_path / "l.txt")]).rows in (len(expected), None)


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.storage.base.MAX_LISTED", 2)
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("n\n1\n")
    with pytest.raises(UsageError) as caught:
        list(locate(str(tmp_path)).matching(["*"]))
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}: contains more than 2 files",
        "Use a subfolder of this folder.",
    )


def test_a_glob_in_a_bucket_name_is_refused_in_a_list(tmp_path):
    (tmp_path / "l.txt").write_text("s3://b*/x.csv")
    with pytest.raises(UsageError) as caught:
        open_index([str(tmp_path / "l.txt")])
    assert str(caught.value) == f"{tmp_path}/l.txt: line 1: a bucket name cannot contain *, ? or ["
    with pytest.raises(UsageError) as caught:
        read.open("s3://b*/x.mds")
    assert str(caught.value) == "s3://b*/x.mds: a bucket name cannot contain *, ? or ["


def test_the_query_of_a_signed_address_does_not_hide_its_format(tmp_path, web, capfd, in_tmp_path):
    with Writer("d", columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    url = web.file("/d/shard.00000.mds", Path("d/shard.00000.mds").read_bytes())
    shutil.rmtree("d")
    Path("p.yaml").write_text(f"s:\n  content: ['{url}?X-Amz-Signature=abc']\n")
    assert main(["cat", "p.yaml", "--allow-host", f"127.0.0.1:{web.port}"]) == 0
    assert capfd.readouterr() == ('{"n": 7}\n', "")


@pytest.mark.parametrize(
    ("form", "compress", "shard"),
    [
        ("mds", "zstd", "shard.00000.mds.zstd"),
        ("webdataset", "gz", "00000.tar.gz"),
        ("tfrecord", "gz", "00000.tfrecord.gz"),
    ],
)
def test_the_query_of_a_signed_address_does_not_hide_its_compression(
    tmp_path, web, form, compress, shard
):
    settings = Settings(compression=compress)
    with Writer(tmp_path / "d", format=form, columns={"n": "int"}, settings=settings) as writer:
        writer.write({"n": 7})
    url = web.file(f"/d/{shard}", (tmp_path / "d" / shard).read_bytes())
    with read.open(f"{url}?X-Amz-Signature=abc") as data:
        assert [7 in row.values() for row in data] == [True]


@pytest.mark.parametrize("verb", ["verify", "cat", "inspect", "playlist"])
@pytest.mark.parametrize("address", ["/", "//", "/.", "file:///"])
def test_the_root_folder_is_refused(capfd, verb, address):
    assert main([verb, address]) == 2
    out, err = capfd.readouterr()
    assert (out, err.split(": ", 2)[2]) == (
        "",
        "refusing to read the root folder as a dataset\nhint: Pass the folder of the dataset.\n",
    )


GOLDEN = Path(__file__).parents[2] / "fixtures" / "mds"


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("d") / "out", ROWS)


def test_a_damaged_playlist_is_an_error_even_with_a_valid_index(out, tmp_path):
    shutil.copytree(out, tmp_path / "d")
    (tmp_path / "d" / "playlist.yaml").write_text("data: [\n")
    with pytest.raises(FormatError) as caught:
        read.open(str(tmp_path / "d"))
    assert (
        str(caught.value)
        == f"{tmp_path}/d/playlist.yaml:2:1: not valid YAML: did not find expected node content"
    )


def test_an_index_is_read_without_a_playlist(out, tmp_path):
    shutil.copytree(out, tmp_path / "d")
    (tmp_path / "d" / "playlist.yaml").unlink()
    assert list(read.open(str(tmp_path / "d"))) == ROWS
    assert list(read.open(str(tmp_path / "d" / "index.json"))) == ROWS


def test_shards_without_an_index_are_not_read_as_plain_files(out, tmp_path):
    shutil.copytree(out, tmp_path / "d")
    for name in ("playlist.yaml", "index.json"):
        (tmp_path / "d" / name).unlink()
    with pytest.raises(FormatError, match=r"/d: found \d+ shards, but no index.json(?m:$)"):
        read.open(str(tmp_path / "d"))
    with pytest.raises(FormatError) as caught:
        read.open(str(GOLDEN / "splits_mds" / "data"))
    assert caught.value.hint.startswith("Pass one of the datasets in this folder: ")


@pytest.mark.parametrize("name", ["journal", "lock"])
def test_an_unfinished_pack_is_refused(out, tmp_path, name):
    shutil.copytree(out, tmp_path / "d")
    (tmp_path / "d" / ".flare").mkdir()
    (tmp_path / "d" / ".flare" / name).write_text("{}\n")
    for address in ("d", "d/playlist.yaml"):
        with pytest.raises(UnfinishedError):
            read.open(str(tmp_path / address))


def test_a_pack_killed_before_its_first_journal_entry_is_not_read_as_a_folder_of_files(tmp_path):
    (tmp_path / "d" / ".flare").mkdir(parents=True)
    with pytest.raises(MissingError):
        read.open(str(tmp_path / "d"))
    (tmp_path / "d" / ".flare" / "lock").write_text("{}")
    with pytest.raises(UnfinishedError):
        read.open(str(tmp_path / "d"))


@pytest.mark.parametrize("address", ["nowhere", "nowhere/x.mds", "nowhere/playlist.yaml", "*.mds"])
def test_a_missing_address_is_an_error(tmp_path, address):
    with pytest.raises(MissingError) as caught:
        read.open(str(tmp_path / address))
    assert caught.value.exit_code == 3


def test_a_playlist_with_paths_outside_its_folder_is_refused_unless_allowed(out, tmp_path):
    (stream,) = read.resolve(out)[0].streams
    (tmp_path / "sub").mkdir()
    away = type(stream)(
        "data",
        stream.at,
        "mds",
        [f"{out}/{url}" for url in stream.urls],
        stream.columns,
        stream.rows,
        stream.sizes,
    )
    playlists.write(locate(str(tmp_path / "sub")) / "p.yaml", Playlist((away,)))
    with pytest.raises(UnsafeError) as caught:
        read.open(str(tmp_path / "sub" / "p.yaml"))[0]
    assert caught.value.exit_code == 5
    assert caught.value.hint == "Pass --allow-local if you trust this dataset."
    assert read.open(str(tmp_path / "sub" / "p.yaml"), allow_local=True)[7] == ROWS[7]


def test_braces_and_globs_expand_in_order(tmp_path):
    for name in ("b", "a", "B", "é"):
        (tmp_path / f"{name}.x").write_text("")
    assert [p.rpartition("/")[2] for p in read.expand(f"{tmp_path}/*.x")] == [
        "B.x",
        "a.x",
        "b.x",
        "é.x",
    ]
    assert read.expand("s-{08..11}-{a,b}") == [
        f"s-{n}-{c}" for n in ("08", "09", "10", "11") for c in "ab"
    ]
    assert read.expand("x{3..1}") == ["x3", "x2", "x1"]
    assert read.expand("plain{}") == ["plain{}"]
    with pytest.raises(UsageError, match="expands to more than 1048576 addresses$"):
        read.expand("{0..99999999999}")


@given(st.binary(max_size=64))
def test_any_file_is_a_dataset_or_an_error(data):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.mds").write_bytes(data)
        try:
            read.open(f"{folder}/x.mds")
        except FlareError:
            pass


def test_thousands_of_streams_differ_by_the_names_of_their_shards(tmp_path):
    (tmp_path / "playlist.yaml").write_text(
        "".join(f"s{i}:\n  content: [{i}.{'mds' if i % 2 else 'ffr'}]\n" for i in range(3000))
    )
    (playlist,) = read.resolve(str(tmp_path))
    assert [stream.format for stream in playlist][:3] == ["ffrecord", "mds", "ffrecord"]
    (tmp_path / "playlist.yaml").write_text("a:\n  content: [a.mds]\nb:\n  content: [b.txt]\n")
    message = "cannot detect the format of stream 'b' from the name of its first file"
    with pytest.raises(FormatError, match=f"{message}(?m:$)"):
        read.resolve(str(tmp_path))
