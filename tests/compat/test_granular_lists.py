"""Lists, masks and ranges: the examples of granular's README up to 0.21, and the library itself."""

import json
import os
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest

from flarecli.compat import granular
from flarecli.errors import MissingError, RowsError, UsageError, ValueFitError

OLD = os.environ.get("GRANULAR_OLD_PYTHON")
SCRIPT = Path(__file__).parents[1] / "interop" / "granular_peer.py"
ours = runpy.run_path(str(SCRIPT))
KINDS = {
    False: (granular.DatasetWriter, granular.DatasetReader),
    True: (granular.ShardedDatasetWriter, granular.ShardedDatasetReader),
}
SPEC = {"title": "utf8", "frames": "jpg[]", "captions": "utf8[]", "times": "int[]"}


def datapoint(i, frames=54):
    return {
        "title": f"film {i}",
        "frames": [np.full((4, 6, 3), k, np.uint8) for k in range(frames)],
        "captions": [f"caption {i}.{k}" for k in range(i)],
        "times": list(range(0, 40 * frames, 40)),
    }


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "dataset"
    with granular.DatasetWriter(directory, SPEC, granular.encoders) as writer:
        for i in range(8):
            assert writer.append(datapoint(i)) == i
        assert len(writer) == 8 and not (directory / "spec.json").exists()
    return directory


def test_the_quickstart_runs_with_a_list_type(tmp_path):
    directory = tmp_path / "dataset"
    spec = {"foo": "int", "bar": "utf8[]", "baz": "msgpack", "abc": "jpg", "xyz": "array"}
    with granular.DatasetWriter(directory, spec, granular.encoders) as writer:
        for i in range(10):
            datapoint = {
                "foo": i,
                "bar": ["hello"] * i,
                "baz": {"a": 1},
                "abc": np.zeros((60, 80, 3), np.uint8),
                "xyz": np.arange(0, 1 + i, dtype=np.float32),
            }
            writer.append(datapoint)
    assert {path.name for path in directory.glob("*")} == {
        "spec.json",
        "refs.bag",
        "foo.bag",
        "bar.bag",
        "baz.bag",
        "abc.bag",
        "xyz.bag",
    }
    with granular.DatasetReader(
        directory, granular.decoders, cache_index=True, cache_keys=("refs", "foo")
    ) as reader:
        assert reader.spec == spec and len(reader) == 10
        assert reader.size == sum(path.stat().st_size for path in directory.glob("*.bag"))
        datapoint = reader[2]
        assert datapoint["foo"] == 2
        assert datapoint["bar"] == ["hello", "hello"]
        assert datapoint["abc"].shape == (60, 80, 3)


def test_masks_and_ranges_select_items_of_lists(directory):
    reader = granular.DatasetReader(directory, granular.decoders)
    available = reader.available(7)
    assert available == {
        "title": True,
        "frames": range(54),
        "captions": range(7),
        "times": range(54),
    }
    mask = {"title": True, "frames": range(32, 42), "captions": range(7), "times": True}
    datapoint = reader[7, mask]
    assert len(datapoint["frames"]) == 10
    assert [round(frame.mean()) for frame in datapoint["frames"]] == list(range(32, 42))
    assert datapoint["captions"] == [f"caption 7.{k}" for k in range(7)]
    assert datapoint["times"] == list(range(0, 40 * 54, 40))
    assert (
        set(reader[3, {"title": True, "times": True}])
        == {"title", "times"}
        == set(reader[3, {"title": True, "times": True, "frames": False}])
    )
    assert reader[3, {"captions": slice(2, 99)}] == {"captions": ["caption 3.2"]}
    assert reader[range(2, 4), {"title": True}] == {"title": ["film 2", "film 3"]}
    assert reader[0, {"captions": True}] == {"captions": []} and reader.available(0)[
        "captions"
    ] == range(0)
    for wrong in ({"title": range(2)}, {"frames": range(0, 4, 2)}, {"nope": True}):
        with pytest.raises(UsageError):
            reader[0, wrong]


def test_lists_are_written_in_shards(tmp_path):
    with granular.ShardedDatasetWriter(
        tmp_path / "d", {"n": "int[]"}, granular.encoders, shardlen=3, shardstart=1, shardstep=2
    ) as writer:
        for i in range(7):
            assert writer.append({"n": [i] * i}) == i
        assert writer.shards == 3 and len(writer) == 7
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "000001",
        "000003",
        "000005",
    ]
    assert [
        granular.DatasetReader(tmp_path / "d" / name, granular.decoders)[0]["n"]
        for name in ("000001", "000003")
    ] == [[], [3, 3, 3]]


def test_lists_may_have_custom_types(tmp_path):
    encoders, decoders = (
        {"point": lambda one: f"{one[0]},{one[1]}".encode()},
        {"point": lambda data: tuple(map(int, data.split(b",")))},
    )
    with granular.DatasetWriter(
        tmp_path / "d", {"path": "point[]", "at": "point"}, encoders
    ) as writer:
        writer.append({"path": [(0, 1), (2, 3)], "at": (4, 5)})
    assert json.loads((tmp_path / "d" / "spec.json").read_text()) == {
        "at": "point",
        "path": "point[]",
    }
    assert granular.DatasetReader(tmp_path / "d", decoders)[0] == {
        "path": [(0, 1), (2, 3)],
        "at": (4, 5),
    }
    own = {
        "point[]": lambda value: json.dumps(value).encode()
    }  # an encoder of that name: not a list
    with granular.DatasetWriter(tmp_path / "e", {"path": "point[]"}, own) as writer:
        writer.append({"path": [1, 2]})
    assert (tmp_path / "e" / "path.idx").exists()
    assert granular.DatasetReader(tmp_path / "e", {"point[]": json.loads})[0] == {"path": [1, 2]}


def test_values_that_lists_cannot_store_are_rejected(tmp_path, directory):
    with granular.DatasetWriter(
        tmp_path / "d", {"n": "utf8[]", "b": "bytes"}, granular.encoders
    ) as writer:
        for wrong in (
            {"n": "text", "b": b"x"},
            {"n": ["a", ""], "b": b"x"},
            {"n": [], "b": b""},
            {"n": [None], "b": b"x"},
        ):
            with pytest.raises(ValueFitError):
                writer.append(wrong)
        writer.append({"n": ["a"], "b": b"x"})
    assert len(granular.DatasetReader(tmp_path / "d", granular.decoders)) == 1
    with pytest.raises(UsageError, match="cannot append to a dataset with lists"):
        granular.DatasetWriter(directory, SPEC, granular.encoders)
    with pytest.raises(UsageError, match="cache_keys: unknown key 'refs'"):
        granular.DatasetWriter(tmp_path / "plain", {"a": "int"}, granular.encoders).close()
        granular.DatasetReader(tmp_path / "plain", granular.decoders, cache_keys=("refs",))


def test_an_exception_in_the_block_leaves_no_dataset(tmp_path):
    with (
        pytest.raises(KeyError),
        granular.DatasetWriter(tmp_path / "d", {"n": "int[]"}, granular.encoders) as writer,
    ):
        writer.append({"n": [1]})
        raise KeyError
    assert list((tmp_path / "d").iterdir()) == []
    with pytest.raises(MissingError):
        granular.DatasetReader(tmp_path / "d", granular.decoders)


def peer(*args):
    ran = subprocess.run(
        [OLD, str(SCRIPT), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.skipif(
    not OLD, reason="GRANULAR_OLD_PYTHON names no interpreter that has granular 0.21"
)
@pytest.mark.parametrize("shardlen", [0, 7])
def test_flare_and_the_original_write_the_same_bytes_and_read_each_other(tmp_path, shardlen):
    peer("write", tmp_path / "peer", 0, 30, 1, shardlen)
    writer, reader = KINDS[shardlen > 0]
    with writer(
        tmp_path / "ours",
        ours["spec"](True),
        granular.encoders,
        **({"shardlen": shardlen} if shardlen else {}),
    ) as out:
        for row in ours["samples"](0, 30, True):
            out.append(row)
    files = [
        {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
        for root in (tmp_path / "ours", tmp_path / "peer")
    ]
    assert files[0].keys() == files[1].keys()
    for name in files[0]:
        if "picture" not in name:  # encoded by another Pillow
            assert files[0][name].read_bytes() == files[1][name].read_bytes(), name
    assert peer("read", tmp_path / "ours", 0, int(shardlen > 0)) == [
        ours["shown"](row) for row in reader(tmp_path / "peer", granular.decoders)
    ]


def test_indices_out_of_range_are_rejected(directory):
    reader = granular.DatasetReader(directory, granular.decoders)
    for wrong in (8, -9):
        with pytest.raises(RowsError):
            reader[wrong]
        with pytest.raises(RowsError):
            reader.available(wrong)


def test_single_bags_of_both_releases_are_read(directory, tmp_path):
    with granular.DatasetWriter(tmp_path / "new", {"t": "utf8"}, granular.encoders) as writer:
        for i in range(8):
            writer.append({"t": f"film {i}"})
    for path in (directory / "title.bag", tmp_path / "new" / "t.bag"):
        bag = granular.BagReader(path)
        assert len(bag) == 8 and bag[3] == b"film 3" == bag[-5] == bag.copy()[3]
        assert bag[range(2, 4)] == [b"film 2", b"film 3"] == bag[2:4] and bag[7:99] == [b"film 7"]
        assert list(bag) == [f"film {i}".encode() for i in range(8)]
        assert bag.size == 8 * 8 + sum(map(len, bag))
        for wrong in (8, -9, range(-1, 2)):
            with pytest.raises(RowsError):
                bag[wrong]
    with pytest.raises(MissingError):
        granular.BagReader(tmp_path / "nope.bag")
