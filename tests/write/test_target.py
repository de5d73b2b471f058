"""--overwrite removes only files that the lists of a finished dataset name, regardless of the names
of other files.
"""

import shutil
from pathlib import Path

import pytest

from flarecli.errors import UsageError
from flarecli.model import Settings
from flarecli.write import Writer
from tests.outputs import files_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
HINT = "Move this file elsewhere first."


def pack(out, rows=5, format="mds", **options):
    is_text = format in ("json", "csv")
    with Writer(
        str(out),
        format=format,
        columns={"b": "str" if is_text else "bytes"},
        settings=Settings(shard_rows=2),
        **options,
    ) as writer:
        for row in range(writer.rows, rows):
            writer.write({"b": str(row) if is_text else b"%d" % row})
    return files_of(out)


def refused(out, name, **options):
    """Check that an overwrite is refused because of a file, and changes nothing."""
    before = files_of(out)
    with pytest.raises(UsageError) as caught:
        pack(out, 9, overwrite=True, **options)
    assert (str(caught.value), caught.value.hint) == (
        f"{out}: contains a file {name!r}, which is not part of the dataset",
        HINT,
    )
    assert files_of(out) == before
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name]


@pytest.mark.parametrize(
    "name", ["mds_many_shards", "mds_comp_zstd", "json_comp_gz", "csv_plain", "merged_root"]
)
def test_overwrite_removes_the_files_that_the_index_lists(tmp_path, name):
    shutil.copytree(FIXTURES / "mds" / name / "data", tmp_path / "out")
    (tmp_path / "out" / "shard.00099.mds").write_text("mine")
    refused(tmp_path / "out", "shard.00099.mds")
    (tmp_path / "out" / "shard.00099.mds").unlink()
    assert pack(tmp_path / "out", 9, overwrite=True) == pack(tmp_path / "other", 9)


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("new/sharded", "000001/mine.bag"),
        ("new/sharded", "mine.bag"),
        ("new/alltypes", "mine.bag"),
        ("old/alltypes", "mine.idx"),
    ],
)
def test_overwrite_removes_the_files_that_a_granular_spec_lists(tmp_path, name, other):
    shutil.copytree(FIXTURES / "granular" / name / "data" / "ds", tmp_path / "out")
    (tmp_path / "out" / other).write_text("mine")
    refused(tmp_path / "out", other)
    (tmp_path / "out" / other).unlink()
    assert pack(tmp_path / "out", 9, overwrite=True) == pack(tmp_path / "other", 9)


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("mds", "shard.00099.mds"),
        ("ffrecord", "00099.ffr"),
        ("webdataset", "photos.tar"),
        ("json", "a.json"),
        ("granular", "shards/000001/x.bag"),
    ],
)
def test_overwrite_removes_the_files_that_the_playlist_lists(tmp_path, format, name):
    pack(tmp_path / "out", format=format)
    (tmp_path / "out" / name).write_text("mine")
    refused(tmp_path / "out", name, format=format)
    (tmp_path / "out" / name).unlink()
    assert pack(tmp_path / "out", 9, format, overwrite=True) == pack(tmp_path / "other", 9, format)


@pytest.mark.parametrize("format", ["mds", "ffrecord", "webdataset", "csv", "granular"])
def test_a_dataset_whose_playlist_is_damaged_can_be_packed_again(tmp_path, format):
    pack(tmp_path / "out", format=format)
    (tmp_path / "out" / "playlist.yaml").write_text("[")
    (tmp_path / "out" / "photos.tar").write_text("mine")
    refused(tmp_path / "out", "photos.tar", format=format)
    (tmp_path / "out" / "photos.tar").unlink()
    assert pack(tmp_path / "out", 9, format, overwrite=True) == pack(tmp_path / "other", 9, format)


def test_overwrite_keeps_shards_with_an_unreadable_index(tmp_path):
    shutil.copytree(FIXTURES / "mds" / "mds_many_shards" / "data", tmp_path / "out")
    (tmp_path / "out" / "index.json").write_text("{")
    refused(tmp_path / "out", min(path.name for path in (tmp_path / "out").glob("shard*")))


def test_files_added_to_the_old_dataset_during_a_pack_are_kept(tmp_path):
    old = pack(tmp_path / "out")
    how = {"columns": {"b": "bytes"}, "settings": Settings(shard_rows=2), "overwrite": True}
    with pytest.raises(UsageError) as caught, Writer(str(tmp_path / "out"), **how) as new:
        for row in range(9):
            new.write({"b": b"%d" % row})
        (tmp_path / "out" / "notes.txt").write_text("mine")
    assert (
        str(caught.value)
        == f"{tmp_path}/out: contains a file 'notes.txt', which is not part of the dataset"
    )
    assert files_of(tmp_path / "out") == {**old, "notes.txt": b"mine"}
    (tmp_path / "out" / "notes.txt").rename(tmp_path / "notes.txt")
    assert pack(tmp_path / "out", 9, overwrite=True, resume=True) == pack(tmp_path / "other", 9)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["notes.txt", "other", "out"]
