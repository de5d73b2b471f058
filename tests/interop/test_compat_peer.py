"""The interface of mosaicml-streaming beside the library itself: the same samples give the same files, and each reads the other's."""

import json
import os
import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from flarecli.compat import streaming
from flarecli.errors import UsageError

PEER = os.environ.get("PEER_PYTHON")
SCRIPT = Path(__file__).with_name("peer.py")
ours = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="PEER_PYTHON names no interpreter that has mosaicml-streaming"
)


def peer(*args):
    ran = subprocess.run(
        [PEER, str(SCRIPT), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("rows", {"size_limit": 20_000, "hashes": ["md5", "xxh64"]}),
        ("arrays", {"size_limit": "6kb"}),
        ("lines", {"format": "json", "size_limit": 9_000}),
        ("lines", {"format": "tsv", "size_limit": 9_000}),
    ],
)
def test_the_same_calls_give_the_same_files_and_values(tmp_path, kind, how):
    samples, columns = ours["KINDS"][kind]
    rest = dict(how)
    with getattr(streaming, rest.pop("format", "mds").upper() + "Writer")(
        out=str(tmp_path / "ours"), columns=columns, **rest
    ) as writer:
        for sample in samples():
            writer.write(sample)
    peer("write", tmp_path / "theirs", kind, json.dumps(how))
    assert sorted(os.listdir(tmp_path / "ours")) == sorted(os.listdir(tmp_path / "theirs"))
    for path in (tmp_path / "theirs").iterdir():
        assert (tmp_path / "ours" / path.name).read_bytes() == path.read_bytes(), path.name
    read = [
        {name: ours["shown"](value) for name, value in one.items()}
        for one in streaming.LocalDataset(str(tmp_path / "theirs"))
    ]
    assert read == peer("read", tmp_path / "ours", "local")


@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("form", ["mds", "json", "csv"])
def test_every_verb_of_a_shard_gives_the_same(tmp_path, form, compression):
    how = {
        "format": form,
        "size_limit": 9_000,
        "hashes": ["md5", "xxh64"],
        "compression": compression,
    }
    peer("write", tmp_path / "d", "rows" if form == "mds" else "lines", json.dumps(how))
    shutil.copytree(tmp_path / "d", tmp_path / "mine")
    theirs = peer("verbs", tmp_path / "d")
    shutil.rmtree(tmp_path / "d")
    shutil.move(tmp_path / "mine", tmp_path / "d")
    folder = str(tmp_path / "d")
    entries = json.loads((tmp_path / "d" / "index.json").read_text())["shards"]
    mine = [
        json.loads(
            json.dumps(ours["told"](streaming.reader_from_json(folder, None, entry), folder))
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
def test_an_epoch_has_the_same_and_its_state_the_same_shape(tmp_path, settings):
    peer("write", tmp_path / "d", "rows", json.dumps({"size_limit": 20_000}))
    (theirs,) = peer("epoch", tmp_path / "d", json.dumps(settings))
    assert (
        json.loads(
            json.dumps(
                ours["gone_through"](
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
