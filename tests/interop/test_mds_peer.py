"""MDS compared with mosaicml-streaming: it reads the datasets of flare, and both write the same
bytes for the same samples.

PEER_PYTHON names an interpreter that has mosaicml-streaming 0.13.
`tests/formats/mds/test_golden_datasets.py` needs none, because it reads stored datasets.
"""

import functools
import json
import os
import runpy
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

import flarecli
from flarecli.model import Settings

PEER = os.environ.get("PEER_PYTHON")
SCRIPT = Path(__file__).with_name("peer.py")
shared = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="PEER_PYTHON names no interpreter that has mosaicml-streaming"
)


@pytest.fixture
def peer(run_peer):
    return functools.partial(run_peer, PEER, SCRIPT)


def write(out, kind, settings, form="mds"):
    samples, columns = shared["KINDS"][kind]
    columns = {
        name: {"float": "float64"}.get(encoding, encoding) for name, encoding in columns.items()
    }
    with flarecli.Writer(str(out), format=form, columns=columns, settings=settings) as writer:
        for sample in samples():
            writer.write(sample)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


KINDS = ["arrays", "large", "rows"]
SETTINGS = [
    Settings(),
    Settings(shard_bytes=None, hashes=("sha1", "xxh3_128")),
    Settings(shard_bytes=20_000, hashes=("md5", "xxh64")),
    Settings(shard_bytes=6_000),
]


@pytest.mark.parametrize(
    "settings", SETTINGS, ids=lambda settings: f"{settings.shard_bytes} {'-'.join(settings.hashes)}"
)
@pytest.mark.parametrize("kind", KINDS)
def test_flare_and_the_original_write_the_same_bytes(peer, tmp_path, kind, settings):
    write(tmp_path / "flare", kind, settings)
    peer(
        "write",
        tmp_path / "peer",
        kind,
        json.dumps({"size_limit": settings.shard_bytes, "hashes": list(settings.hashes)}),
    )
    assert set(names(tmp_path / "flare")) == {*names(tmp_path / "peer"), "playlist.yaml"}
    for name in names(tmp_path / "peer"):
        assert (tmp_path / "flare" / name).read_bytes() == (
            tmp_path / "peer" / name
        ).read_bytes(), name


def test_only_the_empty_shard_before_a_first_row_larger_than_a_shard_differs(peer, tmp_path):
    write(tmp_path / "flare", "large", Settings(shard_bytes=4_000))
    peer("write", tmp_path / "peer", "large", json.dumps({"size_limit": 4_000}))
    shards = sorted((tmp_path / "peer").glob("*.mds"))
    assert json.loads((tmp_path / "peer" / "index.json").read_bytes())["shards"][0]["samples"] == 0
    assert [path.read_bytes() for path in sorted((tmp_path / "flare").glob("*.mds"))] == [
        path.read_bytes() for path in shards[1:]
    ]


@pytest.mark.parametrize("compression", ["zstd", "zstd:7"])
def test_compressed_shards_contain_the_same_bytes(peer, tmp_path, compression):
    write(
        tmp_path / "flare",
        "rows",
        Settings(compression=compression, shard_bytes=20_000, hashes=("sha1",)),
    )
    peer(
        "write",
        tmp_path / "peer",
        "rows",
        json.dumps({"size_limit": 20_000, "hashes": ["sha1"], "compression": compression}),
    )
    assert set(names(tmp_path / "flare")) == {*names(tmp_path / "peer"), "playlist.yaml"}
    indexes = [
        json.loads((tmp_path / who / "index.json").read_bytes()) for who in ("flare", "peer")
    ]
    for one, other in zip(*(index["shards"] for index in indexes), strict=True):
        name = other["zip_data"]["basename"]
        raw = [
            zstandard.decompress((tmp_path / who / name).read_bytes()) for who in ("flare", "peer")
        ]
        assert raw[0] == raw[1]
        assert one.pop("zip_data").keys() == other.pop("zip_data").keys()
        assert one == other


@pytest.mark.parametrize("dataset", ["local", "streaming"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_original_reads_every_column(peer, tmp_path, kind, dataset):
    settings = Settings(shard_bytes=20_000)
    write(tmp_path / "out", kind, settings)
    samples, columns = shared["KINDS"][kind]
    expected = [
        {name: shared["described"](as_stored(sample[name], columns[name])) for name in columns}
        for sample in samples()
    ]
    assert peer("read", tmp_path / "out", dataset) == expected


def as_stored(value, encoding):
    import numpy as np

    return float(np.float32(value)) if encoding == "float32" else value


def test_the_original_reads_compressed_shards(peer, tmp_path):
    write(tmp_path / "out", "rows", Settings(shard_bytes=20_000, compression="zstd"))
    samples, columns = shared["KINDS"]["rows"]
    expected = [
        {name: shared["described"](as_stored(sample[name], columns[name])) for name in columns}
        for sample in samples()
    ]
    assert peer("read", tmp_path / "out", "streaming") == expected


@pytest.mark.parametrize("dataset", ["local", "streaming"])
def test_the_original_reads_a_packed_index(peer, tmp_path, dataset):
    table = {
        "id": [f"{i:04}" for i in range(500)],
        "text": ["x" * (i % 97) for i in range(500)],
        "n": list(range(500)),
        "f": [i / 7 for i in range(500)],
    }
    pq.write_table(pa.table(table), tmp_path / "index.parquet")
    flarecli.pack(
        str(tmp_path / "index.parquet"), str(tmp_path / "out"), key="id", shard_size=10_000
    )
    expected = [
        {name: shared["described"](table[name][i]) for name in sorted(table)} for i in range(500)
    ]
    assert peer("read", tmp_path / "out", dataset) == expected


def test_flare_reads_datasets_of_the_original(peer, tmp_path):
    peer("write", tmp_path / "peer", "rows", json.dumps({"size_limit": 20_000}))
    samples, columns = shared["KINDS"]["rows"]
    samples_read = [
        {name: shared["described"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(tmp_path / "peer"))
    ]
    assert samples_read == [
        {
            name: shared["described"](as_stored(sample[name], columns[name]))
            for name in sorted(columns)
        }
        for sample in samples()
    ]
    assert list(flarecli.verify(str(tmp_path / "peer"))) == []


def test_a_dataset_of_the_original_packed_again_has_the_same_bytes(peer, tmp_path):
    settings = {"size_limit": 20_000, "hashes": ["sha1"]}
    peer("write", tmp_path / "peer", "rows", json.dumps(settings))
    flarecli.pack(str(tmp_path / "peer"), str(tmp_path / "flare"), shard_size=20_000, hash=["sha1"])
    shutil.copy(tmp_path / "flare" / "playlist.yaml", tmp_path / "peer")
    for name in names(tmp_path / "peer"):
        assert (tmp_path / "flare" / name).read_bytes() == (
            tmp_path / "peer" / name
        ).read_bytes(), name
