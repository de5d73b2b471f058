"""MDS datasets that the original library wrote: when flare packs one again, the bytes are the same.

`tests/interop/test_mds_peer.py` compares with the library itself.
"""

import json
from pathlib import Path

import pytest

import flarecli
from flarecli.compress import decompress, suffix_of
from flarecli.model import Settings

GOLDEN = Path(__file__).parents[3] / "fixtures" / "mds"
NOT_PACKED = {
    "mds_no_samples": "has no rows",
    "mds_zero_columns": "has no columns",
}


def index_of(name):
    return json.loads((GOLDEN / name / "data" / "index.json").read_bytes())


def names(compressed):
    datasets = sorted(path.name for path in GOLDEN.glob("mds_*") if path.name not in NOT_PACKED)
    return [
        name
        for name in datasets
        if (index_of(name)["shards"][0]["compression"] is not None) == compressed
    ]


def pack(name, out):
    """Pack a dataset of the original with its own settings."""
    first = index_of(name)["shards"][0]
    options = {
        "shard_size": first["size_limit"],
        "compress": first["compression"],
        "hash": first["hashes"],
    }
    return flarecli.pack(str(GOLDEN / name / "data"), str(out), **options)


OVERSIZE = "mds_oversize_first"


@pytest.mark.parametrize("name", [name for name in names(compressed=False) if name != OVERSIZE])
def test_a_dataset_packed_again_has_the_same_bytes(tmp_path, name):
    pack(name, tmp_path / "out")
    expected = {path.name: path.read_bytes() for path in (GOLDEN / name / "data").iterdir()}
    packed = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    assert packed.keys() == {*expected, "playlist.yaml"}
    assert [name for name in expected if packed[name] != expected[name]] == []


def test_the_empty_shard_before_a_first_row_larger_than_a_shard_is_omitted(tmp_path):
    """Check the only difference: the original first writes and lists a shard without rows."""
    pack(OVERSIZE, tmp_path / "out")
    assert [shard["samples"] for shard in index_of(OVERSIZE)["shards"]] == [0, 1, 1, 1]
    for i in range(3):
        expected = (GOLDEN / OVERSIZE / "data" / f"shard.{i + 1:05}.mds").read_bytes()
        assert (tmp_path / "out" / f"shard.{i:05}.mds").read_bytes() == expected
    assert not (tmp_path / "out" / "shard.00003.mds").exists()


@pytest.mark.parametrize("name", names(compressed=True))
def test_compressed_shards_contain_the_same_bytes(tmp_path, name):
    pack(name, tmp_path / "out")
    index = json.loads((tmp_path / "out" / "index.json").read_bytes())
    for packed, original in zip(index["shards"], index_of(name)["shards"], strict=True):
        stored = original["zip_data"]["basename"]
        raw = [
            decompress(
                suffix_of(original["compression"]), [(at / stored).read_bytes()], None, stored
            )
            for at in (tmp_path / "out", GOLDEN / name / "data")
        ]
        assert raw[0] == raw[1]
        assert {**packed, "zip_data": None} == {**original, "zip_data": None}


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
def test_samples_written_one_by_one_have_the_same_bytes(tmp_path, name):
    """Decode each value to Python and encode it again."""
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
def test_a_dataset_without_rows_or_columns_cannot_be_packed(tmp_path, name):
    with pytest.raises(flarecli.errors.FlareError):
        flarecli.pack(str(GOLDEN / name / "data"), str(tmp_path / "out"))
    assert not (tmp_path / "out").exists()
