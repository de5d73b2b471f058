"""MDS as the original library wrote it, through the public functions: every dataset is packed again, and is the same bytes.

`test_mds_peer.py` asks the library itself.
"""

import json
from pathlib import Path

import pytest
import zstandard

import flarecli
from flarecli.model import Settings

GOLDEN = Path(__file__).parents[2] / "fixtures" / "mds"
NOT_PACKED = {
    "mds_no_samples": "has no rows, which a pack refuses",
    "mds_zero_columns": "has no columns, which a pack refuses",
}


def index_of(name):
    return json.loads((GOLDEN / name / "data" / "index.json").read_bytes())


def names(compressed):
    found = sorted(path.name for path in GOLDEN.glob("mds_*") if path.name not in NOT_PACKED)
    return [name for name in found if (index_of(name)["shards"][0]["compression"] or "").startswith("zstd") == compressed and is_read(name)]


def is_read(name):
    return (index_of(name)["shards"][0]["compression"] or "zstd").startswith("zstd")


def pack(name, out):
    """Pack a dataset of the original with the settings it was written with."""
    first = index_of(name)["shards"][0]
    how = {"shard_bytes": first["size_limit"], "compress": first["compression"], "hashes": first["hashes"]}
    return flarecli.pack(str(GOLDEN / name / "data"), str(out), **how)


@pytest.mark.parametrize("name", names(compressed=False))
def test_a_dataset_packed_again_is_the_same_bytes(tmp_path, name):
    pack(name, tmp_path / "out")
    wanted = {path.name: path.read_bytes() for path in (GOLDEN / name / "data").iterdir()}
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found.keys() == {*wanted, "playlist.yaml"}
    assert [one for one in wanted if found[one] != wanted[one]] == []


@pytest.mark.parametrize("name", names(compressed=True))
def test_compressed_shards_hold_the_same_bytes(tmp_path, name):
    pack(name, tmp_path / "out")
    again = json.loads((tmp_path / "out" / "index.json").read_bytes())
    for one, other in zip(again["shards"], index_of(name)["shards"], strict=True):
        stored = other["zip_data"]["basename"]
        assert zstandard.decompress((tmp_path / "out" / stored).read_bytes()) == zstandard.decompress((GOLDEN / name / "data" / stored).read_bytes())
        assert {**one, "zip_data": None} == {**other, "zip_data": None}


@pytest.mark.parametrize("name", ["mds_scalars", "mds_str_numbers", "mds_text_bytes", "mds_json", "mds_ndarray_dtype", "mds_ndarray_dynamic"])
def test_samples_read_and_written_one_by_one_are_the_same_bytes(tmp_path, name):
    """Each value is decoded to Python and encoded again."""
    data, first = flarecli.open(str(GOLDEN / name / "data")), index_of(name)["shards"][0]
    with flarecli.Writer(str(tmp_path / "out"), columns=data.columns, settings=Settings(None, tuple(first["hashes"]), first["size_limit"])) as writer:
        for sample in data:
            writer.write(sample)
    for path in (GOLDEN / name / "data").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", sorted(NOT_PACKED))
def test_what_cannot_be_packed_again_says_why(tmp_path, name):
    with pytest.raises(flarecli.errors.FlareError):
        flarecli.pack(str(GOLDEN / name / "data"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
