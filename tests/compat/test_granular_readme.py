"""The examples of granular's README with another import line, and the rest of its API."""

import contextlib
import importlib
import json
import multiprocessing
import os
import pathlib
import pickle
import runpy
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from flarecli.compat import granular
from flarecli.errors import FormatError, IntegrityError, RowsError, UsageError
from flarecli.formats.granular.spec import parse

FIXTURES = Path(__file__).parents[2] / "fixtures" / "granular"
PEER = os.environ.get("GRANULAR_PYTHON")
SCRIPT = Path(__file__).parents[1] / "interop" / "granular_peer.py"
ours = runpy.run_path(str(SCRIPT))
SPEC = {"foo": "int", "bar": "utf8", "baz": "msgpack", "abc": "jpg", "xyz": "array"}


def datapoints(count=10):
    for i in range(count):
        yield {
            "foo": i,
            "bar": "hello",
            "baz": {"a": 1},
            "abc": np.zeros((60, 80, 3), np.uint8),
            "xyz": np.arange(0, 1 + i, dtype=np.float32),
        }


@pytest.fixture
def directory(tmp_path):
    directory = tmp_path / "dataset"
    with granular.DatasetWriter(directory, SPEC, granular.encoders) as writer:
        for datapoint in datapoints():
            writer.append(datapoint)
    return directory


def test_the_quickstart_runs(directory):
    assert {path.name for path in directory.glob("*")} == {
        "spec.json",
        *(f"{key}.{end}" for key in SPEC for end in ("bag", "idx")),
    }
    with granular.DatasetReader(directory, granular.decoders) as reader:
        assert reader.spec == SPEC
        assert reader.size == sum(
            path.stat().st_size for path in directory.iterdir() if path.name != "spec.json"
        )
        assert len(reader) == 10
        datapoint = reader[2]
        assert datapoint["foo"] == 2
        assert datapoint["bar"] == "hello"
        assert datapoint["abc"].shape == (60, 80, 3)
        np.testing.assert_array_equal(reader[9]["xyz"], np.arange(10, dtype=np.float32))
        assert [one["foo"] for one in reader] == list(range(10))


PREPROC = """
def preproc(datapoint, seed):
    return {'image': datapoint['abc'], 'label': datapoint['foo']}
"""


@pytest.mark.parametrize("mp", [None, "spawn"])
def test_a_loader_resumes_at_a_saved_state(directory, mp, tmp_path, monkeypatch):
    (tmp_path / "users_own_module.py").write_text(PREPROC)  # as a worker process imports it
    monkeypatch.syspath_prepend(tmp_path)
    preproc = importlib.import_module("users_own_module").preproc
    reader = granular.DatasetReader(directory, granular.decoders)

    def loader():
        source = granular.sources.Epochs(reader, shuffle=True, seed=0)
        source = granular.sources.Transform(source, preproc)
        return granular.Loader(
            source, batch=8, workers=2, mp=mp and multiprocessing.get_context(mp)
        )

    one = loader()
    assert one.spec == {"image": (np.uint8, (60, 80, 3)), "label": (np.int64, ())}
    dataset = iter(one)
    labels = []
    for _ in range(10):
        batch = next(dataset)
        assert batch["image"].shape == (8, 60, 80, 3)
        labels.append(batch["label"].tolist())
    flat = [label for batch in labels for label in batch]
    assert [sorted(flat[i : i + 10]) for i in range(0, 80, 10)] == [list(range(10))] * 8
    assert one.save() == {"step": 80}
    after = next(dataset)["label"].tolist()
    one.load({"step": 16})
    assert next(dataset)["label"].tolist() == labels[2]
    one.close()
    other = loader()
    other.load({"step": 80})
    assert next(iter(other))["label"].tolist() == after
    other.close()
    sys.modules.pop("users_own_module")


def test_epochs_are_permutations_of_numpy():
    source = granular.sources.Epochs(list(range(7)), seed=0)
    assert [source(step) for step in range(14)] == [
        2,
        4,
        3,
        6,
        5,
        0,
        1,
        1,
        3,
        6,
        0,
        4,
        2,
        5,
    ]  # as the original, with any seed
    other = granular.sources.Epochs(list(range(7)), seed=1)
    assert [other(step) for step in range(7)] != [2, 4, 3, 6, 5, 0, 1]


def test_selected_columns_and_ranges_of_rows_are_read(directory):
    reader = granular.DatasetReader(
        directory, granular.decoders, cache_index=True, cache_keys=("foo",)
    )
    assert reader[3, ("foo", "baz")] == {"foo": 3, "baz": {"a": 1}}
    assert reader[range(2, 5), ("foo",)] == {"foo": [2, 3, 4]}
    assert reader[2:4]["bar"] == ["hello", "hello"]
    assert (
        reader[np.int64(4), ["foo"]]
        == {"foo": 4}
        == pickle.loads(pickle.dumps(reader))[4, ["foo"]]
        == reader.copy()[4, ["foo"]]
    )
    assert reader.available(0) == dict.fromkeys(SPEC, True)
    with pytest.raises(RowsError):
        reader[10]
    with pytest.raises(UsageError):
        reader[0, ("nope",)]


def test_custom_types_are_written_and_read(tmp_path):
    encoders = {"point": lambda x: f"{x[0]},{x[1]}".encode(), "utf8": lambda x: x.encode("utf-8")}
    decoders = {
        "point": lambda x: tuple(map(int, x.decode().split(","))),
        "utf8": lambda x: x.decode("utf-8"),
    }
    with granular.DatasetWriter(
        str(tmp_path / "d"), {"p": "point", "t": "utf8"}, encoders
    ) as writer:
        assert [writer.append({"p": (i, -i), "t": ""}, flush=False) for i in range(3)] == [0, 1, 2]
    assert json.loads((tmp_path / "d" / "spec.json").read_bytes()) == {"p": "point", "t": "utf8"}
    assert granular.DatasetReader(str(tmp_path / "d"), decoders)[2] == {"p": (2, -2), "t": ""}
    assert granular.DatasetReader(str(tmp_path / "d"), None)[2] == {"p": b"2,-2", "t": b""}


def test_two_writers_write_separate_shards(tmp_path):
    for worker in range(2):
        with granular.ShardedDatasetWriter(
            tmp_path / "d",
            {"i": "i64"},
            granular.encoders,
            shardlen=3,
            shardstart=worker,
            shardstep=2,
        ) as writer:
            for i in range(6):
                writer.append({"i": 10 * worker + i})
            assert writer.shards == 2
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == [
        "000000",
        "000001",
        "000002",
        "000003",
    ]
    reader = granular.ShardedDatasetReader(tmp_path / "d", granular.decoders)
    assert [one["i"] for one in reader] == [0, 1, 2, 10, 11, 12, 3, 4, 5, 13, 14, 15]
    assert reader[range(2, 7)] == {"i": [2, 10, 11, 12, 3]}
    assert len(reader) == 12 and reader.shards == 4
    half = granular.ShardedDatasetReader(
        tmp_path / "d", granular.decoders, shardstart=1, shardstep=2
    )
    assert [one["i"] for one in half] == [10, 11, 12, 13, 14, 15]
    assert granular.DatasetReader(tmp_path / "d" / "000002", granular.decoders)[0] == {"i": 3}


def test_a_sharded_writer_fills_the_first_shard_that_is_not_full(tmp_path):
    for start, stop in ((0, 7), (50, 54)):
        with granular.ShardedDatasetWriter(
            tmp_path / "d", {"i": "int"}, granular.encoders, shardlen=3
        ) as writer:
            for i in range(start, stop):
                writer.append({"i": i})
    assert [
        one["i"] for one in granular.ShardedDatasetReader(tmp_path / "d", granular.decoders)
    ] == [*range(7), *range(50, 54)]


def test_a_partly_written_row_is_completed(directory):
    idx = directory / "xyz.idx"
    idx.write_bytes(idx.read_bytes()[:-11])
    rows = list(datapoints())
    with granular.DatasetWriter(directory, SPEC, granular.encoders) as writer:
        assert len(writer) == 8
        with pytest.raises(IntegrityError):
            writer.append({**rows[8], "foo": 99})
    with granular.DatasetWriter(directory, SPEC, granular.encoders) as writer:
        for row in rows[8:]:
            writer.append(row)
    assert [one["foo"] for one in granular.DatasetReader(directory, granular.decoders)] == list(
        range(10)
    )


def test_a_datapoint_that_cannot_be_encoded_is_not_partly_written(directory):
    with granular.DatasetWriter(directory, SPEC, granular.encoders) as writer:
        with pytest.raises(ValueError):
            writer.append({**next(datapoints()), "xyz": object()})
        writer.append(next(datapoints()))
    assert len(granular.DatasetReader(directory, granular.decoders)) == 11


class Strange:
    """An object with the methods of a Path that is not a Path."""

    def __init__(self, path):
        self._path = pathlib.Path(path)

    @property
    def name(self):
        return self._path.name

    def __truediv__(self, name):
        return Strange(self._path / name)

    def __str__(self):
        return f"strange:{self._path}"

    def __getattr__(self, name):
        if name.startswith("_") or name not in ("exists", "open", "mkdir", "is_dir", "unlink"):
            raise AttributeError(name)
        return getattr(self._path, name)

    def glob(self, pattern):
        return map(Strange, self._path.glob(pattern))


@pytest.mark.parametrize("shardlen", [None, 4])
def test_objects_with_the_methods_of_a_path_are_accepted(tmp_path, shardlen):
    kind = (
        (granular.ShardedDatasetWriter, granular.ShardedDatasetReader)
        if shardlen
        else (granular.DatasetWriter, granular.DatasetReader)
    )
    how = {"shardlen": shardlen} if shardlen else {}
    for first in (0, 5):
        with kind[0](Strange(tmp_path / "d"), SPEC, granular.encoders, **how) as writer:
            for row in list(datapoints())[first : first + 5]:
                writer.append(row)
    with kind[0](tmp_path / "plain", SPEC, granular.encoders, **how) as writer:
        for row in datapoints():
            writer.append(row)
    files = {
        str(path.relative_to(tmp_path / "plain")): path.read_bytes()
        for path in (tmp_path / "plain").rglob("*")
        if path.is_file()
    }
    assert {
        str(path.relative_to(tmp_path / "d")): path.read_bytes()
        for path in (tmp_path / "d").rglob("*")
        if path.is_file()
    } == files
    reader = kind[1](Strange(tmp_path / "d"), granular.decoders, cache_keys=("foo",))
    assert [one["foo"] for one in reader] == list(range(10))


def test_lists_of_the_earlier_release_are_read_with_masks_and_ranges(tmp_path):
    """Masks and ranges on files of the original."""
    folders = [
        path.parent
        for path in (FIXTURES / "old").rglob("spec.json")
        if any(v.endswith("[]") for v in json.loads(path.read_text()).values())
    ]
    assert folders
    for folder in folders:
        spec = parse((folder / "spec.json").read_bytes(), "")
        if folder.name.isdigit() or "refs" in spec:
            continue
        reader = granular.DatasetReader(folder, None)
        lists = [key for key, kind in spec.items() if kind.endswith("[]")]
        for i in range(min(len(reader), 4)):
            there, row = reader.available(i), reader[i]
            for key in lists:
                assert there[key] == range(len(row[key]))
                assert reader[i, {key: range(2)}] == {key: row[key][:2]}
                assert reader[i, {key: slice(1, None), lists[0]: True}][key] in (
                    row[key][1:],
                    row[key],
                )
            assert reader[i, dict.fromkeys(spec, False)] == {}


def peer(*args):
    ran = subprocess.run(
        [PEER, str(SCRIPT), *map(str, args)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.skipif(not PEER, reason="GRANULAR_PYTHON names no interpreter that has granular")
@pytest.mark.parametrize("shardlen", [0, 7])
def test_flare_and_the_original_write_the_same_bytes_and_read_each_other(tmp_path, shardlen):
    peer("write", tmp_path / "peer", 0, 30, 0, shardlen)
    how = {"shardlen": shardlen} if shardlen else {}
    kind = (
        (granular.ShardedDatasetWriter, granular.ShardedDatasetReader)
        if shardlen
        else (granular.DatasetWriter, granular.DatasetReader)
    )
    with kind[0](tmp_path / "ours", ours["spec"](False), granular.encoders, **how) as writer:
        for row in ours["samples"](0, 30, False):
            writer.append(row)
    names = sorted(
        str(path.relative_to(tmp_path / "peer"))
        for path in (tmp_path / "peer").rglob("*")
        if path.is_file()
    )
    assert (
        sorted(
            str(path.relative_to(tmp_path / "ours"))
            for path in (tmp_path / "ours").rglob("*")
            if path.is_file()
        )
        == names
    )
    for name in names:
        if "picture" not in name:  # encoded by another Pillow
            assert (tmp_path / "ours" / name).read_bytes() == (
                tmp_path / "peer" / name
            ).read_bytes(), name
    theirs = peer("read", tmp_path / "ours", 0, int(bool(shardlen)))
    mine = [ours["shown"](row) for row in kind[1](tmp_path / "peer", granular.decoders)]
    assert theirs == mine


def test_encoders_and_decoders_can_be_pickled():
    assert isinstance(granular.decoders["utf8"], partial)
    assert pickle.loads(pickle.dumps(granular.decoders))["utf8"](b"x") == "x"
    assert (
        granular.encoders["int"](200) == b"\xc8\x00"
        and granular.decoders["int"](b"\xc8\x00") == 200
    )


@pytest.mark.skipif(not PEER, reason="GRANULAR_PYTHON names no interpreter that has granular")
def test_sources_return_the_same_as_those_of_the_original():
    assert peer("sources") == [ours["drawn"](granular)]


@pytest.mark.parametrize("kind", ["int", "utf8[]"])
def test_a_closed_writer_rejects_rows(tmp_path, kind):
    writer = granular.DatasetWriter(tmp_path / "d", {"a": kind}, granular.encoders)
    value = ["x"] if kind == "utf8[]" else 1
    writer.append({"a": value})
    writer.close()
    with pytest.raises(UsageError, match="d: the writer is closed$"):
        writer.append({"a": value})
    assert len(granular.DatasetReader(tmp_path / "d", granular.decoders)) == 1


def test_values_that_do_not_fit_the_first_dtype_are_rejected():
    def source(step):
        return {"n": np.int32(step) if step < 3 else np.int64(2**40 if step == 5 else step)}

    with granular_loader(source) as loader:
        assert next(loader)["n"].tolist() == [0, 1]
        assert next(loader)["n"].tolist() == [2, 3]
        with pytest.raises(
            FormatError,
            match="^step 5: key 'n' has int64 values that do not fit in int32, "
            "the dtype of the first datapoint$",
        ):
            next(loader)


@contextlib.contextmanager
def granular_loader(source):
    loader = granular.Loader(source, 2, prefetch=0, workers=1)
    try:
        yield iter(loader)
    finally:
        loader.close()


def test_sources_may_have_an_explicit_length():
    numbers = list(range(100, 110))
    assert {granular.sources.Sample(numbers, length=2)(step) for step in range(40)} == {100, 101}
    assert [granular.sources.Truncate(numbers, 5, length=3)(step) for step in range(4)] == [
        100,
        101,
        102,
        100,
    ]


def test_values_of_another_shape_or_dtype_are_rejected():
    for second in (np.zeros(3, np.int32), np.zeros(2, np.float64)):
        with granular_loader([{"n": np.zeros(2, np.int32)}, {"n": second}]) as loader:
            expected = (
                "^step 1: key 'n': expected dtype int32 and shape \\(2,\\) as in the first datapoint, "
                f"got {second.dtype} and \\({len(second)},\\)$"
            )
            with pytest.raises(FormatError, match=expected):
                next(loader)


@pytest.mark.parametrize(
    ("second", "message"),
    [({}, "step 1: missing key 'n'"), ({"n": 0, "x": 0}, "step 1: unknown key 'x'")],
)
def test_datapoints_with_other_keys_are_rejected(second, message):
    with granular_loader([{"n": 0}, second]) as loader, pytest.raises(FormatError) as caught:
        next(loader)
    assert str(caught.value) == message
