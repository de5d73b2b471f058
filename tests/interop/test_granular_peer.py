"""Granular compared with the library that defines it, in both generations: each reads the datasets
of the other.

GRANULAR_PYTHON names an interpreter that has granular 0.24, GRANULAR_OLD_PYTHON one that has
granular 0.21.
"""

import os
import runpy
from pathlib import Path

import pytest

from flarecli.compat.granular import BagWriter
from flarecli.formats import find
from flarecli.formats.granular.append import Appender
from flarecli.model import Settings
from flarecli.storage import locate
from tests.outputs import files_of

granular = find("granular")
granular_refs = find("granular-refs")

SCRIPT = Path(__file__).with_name("granular_peer.py")
shared = runpy.run_path(str(SCRIPT))
PEERS = {"new": os.environ.get("GRANULAR_PYTHON"), "old": os.environ.get("GRANULAR_OLD_PYTHON")}
FORMS = {"new": granular, "old": granular_refs}
ROWS = 300
generations = pytest.mark.parametrize(
    "generation",
    [
        pytest.param(
            name,
            marks=pytest.mark.skipif(
                not python, reason=f"no variable names an interpreter that has granular ({name})"
            ),
        )
        for name, python in PEERS.items()
    ],
)
sharded = pytest.mark.parametrize("shardlen", [0, 70])


@pytest.fixture
def peer(run_peer):
    return lambda generation, *args: run_peer(PEERS[generation], SCRIPT, *args)


def lists_of(generation):
    return int(generation == "old")


def samples(generation, first=0, stop=ROWS):
    return list(shared["samples"](first, stop, lists_of(generation)))


def shards(folder):
    stream = granular.open_dataset(locate(f"{folder}/"))
    return [granular.open_shard(chunk, stream.columns) for chunk in stream]


@generations
@sharded
def test_flare_reads_datasets_of_the_original(peer, tmp_path, generation, shardlen):
    peer(generation, "write", tmp_path / "peer", 0, ROWS, lists_of(generation), shardlen)
    rows = [
        row
        for shard in shards(tmp_path / "peer")
        for row in granular.read_rows(shard, range(shard.rows))
    ]
    expected = peer(generation, "read", tmp_path / "peer", 1, int(shardlen > 0))
    assert [shared["described"](row) for row in rows] == expected
    written = samples(generation)
    typed = [
        row
        for shard in shards(tmp_path / "peer")
        for row in granular.read_batch(shard, 0, shard.rows).to_pylist()
    ]
    for name in ("blob", "i", "n", "text", "u", *(shared["LISTS"] if generation == "old" else ())):
        assert [row[name] for row in typed] == [row[name] for row in written], name
    assert [
        finding
        for shard in shards(tmp_path / "peer")
        for finding in granular.verify_shard(shard, values=True)
    ] == []


@generations
@sharded
def test_the_original_reads_datasets_of_flare(peer, tmp_path, generation, shardlen):
    peer(generation, "write", tmp_path / "peer", 0, ROWS, lists_of(generation), shardlen)
    form = FORMS[generation]
    for number, shard in enumerate(shards(tmp_path / "peer")):
        batches = [
            granular.read_batch(shard, start, min(shard.rows, start + 64))
            for start in range(0, shard.rows, 64)
        ]
        columns = form.arrange(shard.columns)
        form.write_shard(
            locate(f"{tmp_path}/flare/"),
            number,
            columns,
            batches,
            Settings(shard_bytes=1 << 26 if shardlen else None),
        )
    expected = [shared["described"](row) for row in samples(generation)]
    assert peer(generation, "read", tmp_path / "flare", 0, int(shardlen > 0)) == expected
    assert files_of(tmp_path / "flare") == files_of(tmp_path / "peer")


@pytest.mark.skipif(
    not PEERS["new"], reason="GRANULAR_PYTHON names no interpreter that has granular"
)
def test_the_original_reads_a_single_bag(peer, tmp_path):
    records = [b"hello", b"", b"world" * 1000, b"x"]
    with BagWriter(tmp_path / "a.bag") as writer:
        for record in records:
            writer.append(record)
    assert peer("new", "bag", tmp_path / "a.bag") == [
        shared["described"](record) for record in records
    ]


@pytest.mark.skipif(not all(PEERS.values()), reason="both generations of granular are needed")
@pytest.mark.parametrize("source, target", [("new", "old"), ("old", "new")])
def test_one_generation_is_converted_to_the_other(peer, tmp_path, source, target):
    peer(source, "write", tmp_path / "peer", 0, ROWS, 0, 0)
    (shard,) = shards(tmp_path / "peer")
    form = FORMS[target]
    form.write_shard(
        locate(f"{tmp_path}/flare/"),
        0,
        form.arrange(shard.columns),
        [granular.read_batch(shard, 0, ROWS)],
        Settings(shard_bytes=None),
    )
    assert peer(target, "read", tmp_path / "flare", 0, 0) == [
        shared["described"](row) for row in shared["samples"](0, ROWS, 0)
    ]
    peer(target, "write", tmp_path / "same", 0, ROWS, 0, 0)
    assert files_of(tmp_path / "flare") == files_of(tmp_path / "same")


@pytest.mark.skipif(
    not PEERS["new"], reason="GRANULAR_PYTHON names no interpreter that has granular"
)
def test_flare_and_the_original_append_rows_to_one_dataset_in_turn(peer, tmp_path):
    folder = tmp_path / "ds"
    peer("new", "write", tmp_path / "whole", 0, 30, 0, 0)
    peer("new", "write", folder, 0, 10, 0, 0)
    (source,) = shards(tmp_path / "whole")
    Appender(locate(f"{folder}/"), source.columns).append(granular.read_batch(source, 10, 20))
    peer("new", "write", folder, 20, 30, 0, 0)
    assert peer("new", "read", folder, 0, 0) == [
        shared["described"](row) for row in shared["samples"](0, 30, 0)
    ]
    assert files_of(folder) == files_of(tmp_path / "whole")


@pytest.mark.skipif(
    not PEERS["new"], reason="GRANULAR_PYTHON names no interpreter that has granular"
)
def test_shards_completed_by_flare_equal_those_of_the_original(peer, tmp_path):
    peer("new", "write", tmp_path / "whole", 0, 25, 0, 7)
    peer("new", "write", tmp_path / "ds", 0, 10, 0, 7)
    rows = [granular.read_batch(shard, 0, shard.rows) for shard in shards(tmp_path / "whole")]
    writer = Appender(
        locate(f"{tmp_path}/ds/"), shards(tmp_path / "whole")[0].columns, shard_rows=7
    )
    assert writer.rows == 10
    for batch in (rows[1].slice(3), *rows[2:]):
        writer.append(batch)
    assert files_of(tmp_path / "ds") == files_of(tmp_path / "whole")
    assert len(peer("new", "read", tmp_path / "ds", 0, 1)) == 25
