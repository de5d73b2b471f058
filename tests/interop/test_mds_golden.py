"""MDS as the original library wrote it, through the public functions: every dataset is packed again, and is the same bytes.

`test_mds_peer.py` asks the library itself.
"""

import json
from pathlib import Path

import pytest

import flarecli
from flarecli.compress import decompress, suffix_of
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
    return [
        name
        for name in found
        if (index_of(name)["shards"][0]["compression"] is not None) == compressed
    ]


def pack(name, out):
    """Pack a dataset of the original with the settings it was written with."""
    first = index_of(name)["shards"][0]
    how = {
        "shard_size": first["size_limit"],
        "compress": first["compression"],
        "hash": first["hashes"],
    }
    return flarecli.pack(str(GOLDEN / name / "data"), str(out), **how)


OVERSIZE = "mds_oversize_first"


@pytest.mark.parametrize("name", [name for name in names(compressed=False) if name != OVERSIZE])
def test_a_dataset_packed_again_is_the_same_bytes(tmp_path, name):
    pack(name, tmp_path / "out")
    wanted = {path.name: path.read_bytes() for path in (GOLDEN / name / "data").iterdir()}
    found = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert found.keys() == {*wanted, "playlist.yaml"}
    assert [one for one in wanted if found[one] != wanted[one]] == []


def test_the_empty_shard_before_a_first_row_larger_than_a_shard_is_left_out(tmp_path):
    """The one difference: the original flushes before it holds anything, and lists a shard of no rows first."""
    pack(OVERSIZE, tmp_path / "out")
    assert [shard["samples"] for shard in index_of(OVERSIZE)["shards"]] == [0, 1, 1, 1]
    for i in range(3):
        wanted = (GOLDEN / OVERSIZE / "data" / f"shard.{i + 1:05}.mds").read_bytes()
        assert (tmp_path / "out" / f"shard.{i:05}.mds").read_bytes() == wanted
    assert not (tmp_path / "out" / "shard.00003.mds").exists()


@pytest.mark.parametrize("name", names(compressed=True))
def test_compressed_shards_hold_the_same_bytes(tmp_path, name):
    pack(name, tmp_path / "out")
    again = json.loads((tmp_path / "out" / "index.json").read_bytes())
    for one, other in zip(again["shards"], index_of(name)["shards"], strict=True):
        stored = other["zip_data"]["basename"]
        raw = [
            decompress(suffix_of(other["compression"]), [(at / stored).read_bytes()], None, stored)
            for at in (tmp_path / "out", GOLDEN / name / "data")
        ]
        assert raw[0] == raw[1]
        assert {**one, "zip_data": None} == {**other, "zip_data": None}


@pytest.mark.parametrize(
    "name",
    [
        "mds_scalars",
        "mds_str_numbers",
        "mds_text_bytes",
        "mds_json",
        "mds_ndarray_dtype",
        "mds_ndarray_dynamic",
    ],
)
def test_samples_read_and_written_one_by_one_are_the_same_bytes(tmp_path, name):
    """Each value is decoded to Python and encoded again."""
    data, first = flarecli.open(str(GOLDEN / name / "data")), index_of(name)["shards"][0]
    with flarecli.Writer(
        str(tmp_path / "out"),
        columns=data.columns,
        settings=Settings(None, tuple(first["hashes"]), first["size_limit"]),
    ) as writer:
        for sample in data:
            writer.write(sample)
    for path in (GOLDEN / name / "data").iterdir():
        assert (tmp_path / "out" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", sorted(NOT_PACKED))
def test_what_cannot_be_packed_again_says_why(tmp_path, name):
    with pytest.raises(flarecli.errors.FlareError):
        flarecli.pack(str(GOLDEN / name / "data"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
