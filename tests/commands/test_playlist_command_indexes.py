"""Indexes: rebuild a lost index, and merge the indexes of several datasets."""

import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.errors import MissingError, UnfinishedError, UnsafeError, UsageError
from flarecli.model import Settings


def write(path, first, rows=25, **options):
    with flarecli.Writer(
        str(path), columns={"n": "int", "text": "str"}, settings=Settings(shard_rows=10), **options
    ) as writer:
        for n in range(first, first + rows):
            writer.write({"n": n, "text": f"row {n}"})


@pytest.mark.parametrize("format", ["mds", "json", "csv"])
def test_a_lost_index_is_rebuilt_byte_for_byte(tmp_path, format, capsys):
    write(tmp_path / "d", 0, format=format)
    index = tmp_path / "d" / "index.json"
    expected = index.read_bytes()
    with pytest.raises(UsageError):
        flarecli.reindex(str(tmp_path / "d"))
    index.unlink()
    assert flarecli.reindex(str(tmp_path / "d")) == str(index)
    assert index.read_bytes() == expected
    assert list(flarecli.verify(str(tmp_path / "d"))) == []
    index.unlink()
    assert main(["playlist", str(tmp_path / "d"), "--reindex"]) == 0
    assert capsys.readouterr() == (f"{index}\n", "")


def test_datasets_below_a_folder_get_one_index(tmp_path):
    for part, first in (("a/deep", 0), ("b", 25)):
        write(tmp_path / part, first)
        (tmp_path / part / "playlist.yaml").unlink()
    assert flarecli.merge_index(str(tmp_path)) == str(tmp_path / "index.json")
    assert [row["n"] for row in flarecli.open(str(tmp_path))] == list(range(50))
    flarecli.merge_index(str(tmp_path), [str(tmp_path / "b"), str(tmp_path / "a" / "deep")])
    assert [row["n"] for row in flarecli.open(str(tmp_path))][:2] == [25, 26]


def test_folders_may_be_paths(tmp_path):
    write(tmp_path / "a", 0)
    (tmp_path / "a" / "index.json").unlink()
    assert flarecli.reindex(tmp_path / "a") == str(tmp_path / "a" / "index.json")
    assert flarecli.merge_index(tmp_path, [tmp_path / "a"]) == str(tmp_path / "index.json")


def test_a_file_instead_of_a_folder_is_an_error(tmp_path):
    write(tmp_path / "d", 0)
    for name in ("playlist.yaml", "index.json", "shard.00000.mds"):
        with pytest.raises(UsageError) as caught:
            flarecli.reindex(str(tmp_path / "d" / name))
        assert str(caught.value) == f"{tmp_path}/d/{name}: expected a folder of shards, got a file"
        assert caught.value.hint == f"Use the folder instead: {tmp_path}/d."


def test_folders_without_shards_of_these_formats_are_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(MissingError):
        flarecli.reindex(str(tmp_path / "empty"))
    (tmp_path / "half" / ".flare").mkdir(parents=True)
    (tmp_path / "half" / ".flare" / "journal").touch()
    with pytest.raises(UnfinishedError) as caught:
        flarecli.reindex(str(tmp_path / "half"))
    assert str(caught.value) == f"{tmp_path}/half: folder contains an unfinished pack"
    with pytest.raises(UsageError) as caught:
        flarecli.reindex("http://host/set")
    assert str(caught.value) == "http://host/set: expected a local folder"
    write(tmp_path / "out", 0)
    (tmp_path / "root").mkdir()
    with pytest.raises(UnsafeError):
        flarecli.merge_index(str(tmp_path / "root"), [str(tmp_path / "out")])
