"""The API of mosaicml-streaming compared with the library: both write the same files, and each
reads the files of the other.
"""

import functools
import json
import os
import runpy
import shutil
from pathlib import Path

import pytest

from flarecli.compat import streaming
from flarecli.errors import UsageError

PEER = os.environ.get("PEER_PYTHON")
SCRIPT = Path(__file__).with_name("peer.py")
shared = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="PEER_PYTHON names no interpreter that has mosaicml-streaming"
)


@pytest.fixture
def peer(run_peer):
    return functools.partial(run_peer, PEER, SCRIPT)


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("rows", {"size_limit": 20_000, "hashes": ["md5", "xxh64"]}),
        ("arrays", {"size_limit": "6kb"}),
        ("lines", {"format": "json", "size_limit": 9_000}),
        ("lines", {"format": "tsv", "size_limit": 9_000}),
    ],
)
def test_flare_and_the_original_write_the_same_files(peer, tmp_path, kind, settings):
    samples, columns = shared["KINDS"][kind]
    rest = dict(settings)
    with getattr(streaming, rest.pop("format", "mds").upper() + "Writer")(
        out=str(tmp_path / "ours"), columns=columns, **rest
    ) as writer:
        for sample in samples():
            writer.write(sample)
    peer("write", tmp_path / "theirs", kind, json.dumps(settings))
    assert sorted(os.listdir(tmp_path / "ours")) == sorted(os.listdir(tmp_path / "theirs"))
    for path in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes(), path.name
    read = [
        {name: shared["described"](value) for name, value in one.items()}
        for one in streaming.LocalDataset(str(tmp_path / "theirs"))
    ]
    assert read == peer("read", tmp_path / "ours", "local")


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("form", ["mds", "json", "csv"])
def test_every_method_of_a_reader_returns_the_same(peer, tmp_path, form, compression):
    settings = {
        "format": form,
        "size_limit": 9_000,
        "hashes": ["md5", "xxh64"],
        "compression": compression,
    }
    peer("write", tmp_path / "d", "rows" if form == "mds" else "lines", json.dumps(settings))
    shutil.copytree(tmp_path / "d", tmp_path / "mine")
    theirs = peer("methods", tmp_path / "d")
    shutil.rmtree(tmp_path / "d")
    shutil.move(tmp_path / "mine", tmp_path / "d")
    folder = str(tmp_path / "d")
    entries = json.loads((tmp_path / "d" / "index.json").read_text())["shards"]
    mine = [
        json.loads(
            json.dumps(
                shared["reader_results"](streaming.reader_from_json(folder, None, entry), folder)
            )
        )
        for entry in entries
    ]
    assert len(mine) > 2 and mine == theirs


@pytest.mark.parametrize(
    "settings",
    [
        {"batch_size": 4},
        {"batch_size": 4, "shuffle": True, "shuffle_algo": "naive", "shuffle_seed": 5},
        {"batch_size": 8, "shuffle": True, "epoch_size": 300, "predownload": 3},
        {
            "batch_size": 4,
            "shuffle": True,
            "cache_limit": "1gb",
            "num_canonical_nodes": 1,
            "sampling_granularity": 5,
        },
    ],
)
def test_an_epoch_has_the_same_samples_and_its_state_the_same_keys(peer, tmp_path, settings):
    peer("write", tmp_path / "d", "rows", json.dumps({"size_limit": 20_000}))
    (theirs,) = peer("epoch", tmp_path / "d", json.dumps(settings))
    assert (
        json.loads(
            json.dumps(
                shared["epoch_results"](
                    streaming.StreamingDataset(local=str(tmp_path / "d"), **settings)
                )
            )
        )
        == theirs
    )
    with pytest.raises(UsageError, match="was saved by mosaicml-streaming at sample 7 of epoch 0"):
        streaming.StreamingDataset(local=str(tmp_path / "d"), **settings).load_state_dict(
            theirs["state"]
        )
