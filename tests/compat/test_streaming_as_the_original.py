"""Details that programs rely on: files, weights, warnings, messages, states, import paths."""

import importlib
import json
import os
import warnings

import numpy as np
import pytest

import flarecli
from flarecli.compat import streaming
from flarecli.compat.streaming import (
    CSVWriter,
    JSONWriter,
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataset,
    TSVWriter,
    XSVWriter,
)
from flarecli.encodings import CUSTOM
from flarecli.errors import RowsError, UnsafeError, UsageError


def written(folder, first=0, count=40, **how):
    with MDSWriter(out=str(folder), columns={"i": "int"}, **{"size_limit": 400, **how}) as out:
        for i in range(first, first + count):
            out.write({"i": i})
    return str(folder)


def ids(data):
    return [one["i"] for one in data]


@pytest.fixture
def folders(tmp_path):
    return [written(tmp_path / "a"), written(tmp_path / "b", 1000, 20)]


# -- writers


@pytest.mark.parametrize(
    ("writer", "companions"),
    [(MDSWriter, 0), (JSONWriter, 1), (CSVWriter, 1), (TSVWriter, 1)],
)
def test_a_writer_leaves_only_shards_and_the_index(tmp_path, writer, companions):
    for out in (str(tmp_path / "d"), (str(tmp_path / "near"), str(tmp_path / "far"))):
        with writer(out=out, columns={"i": "int"}, size_limit=400) as writing:
            for i in range(300):
                writing.write({"i": i})
    for folder in ("d", "far"):
        shards = json.loads((tmp_path / folder / "index.json").read_text())["shards"]
        assert len(shards) > 1
        assert len(os.listdir(tmp_path / folder)) == 1 + len(shards) * (1 + companions)
        assert ids(LocalDataset(str(tmp_path / folder))) == list(range(300))
        assert ids(flarecli.open(tmp_path / folder)) == list(range(300))


def test_exist_ok_replaces_a_dataset_by_a_smaller_one(tmp_path):
    folder = written(tmp_path / "d")
    written(folder, 7, 1, exist_ok=True)
    assert sorted(os.listdir(folder)) == ["index.json", "shard.00000.mds"]
    with pytest.raises(FileExistsError) as caught:
        written(folder)
    assert str(caught.value) == f"{folder}: Directory is not empty"
    assert ids(LocalDataset(folder)) == [7]


@pytest.mark.parametrize(
    ("writer", "more", "own"),
    [
        (
            MDSWriter,
            {},
            {"column_names": ["a"], "column_encodings": ["int"], "column_sizes": [8]},
        ),
        (JSONWriter, {}, {"columns": {"a": "int"}, "newline": "\n"}),
        (CSVWriter, {}, {"column_names": ["a"], "column_encodings": ["int"], "newline": "\n"}),
        (
            XSVWriter,
            {"separator": "|"},
            {
                "column_names": ["a"],
                "column_encodings": ["int"],
                "newline": "\n",
                "separator": "|",
            },
        ),
    ],
)
def test_get_config_equals_the_entries_of_the_index(tmp_path, writer, more, own):
    how = {"compression": "zstd:7", "hashes": ["md5", "sha1"], "size_limit": "1kb", **more}
    with writer(out=str(tmp_path / "d"), columns={"a": "int"}, **how) as out:
        config = out.get_config()
        out.write({"a": 1})
    (entry,) = json.loads((tmp_path / "d" / "index.json").read_text())["shards"]
    assert config == {name: entry[name] for name in config} and own.items() <= config.items()
    assert (config["version"], config["compression"], config["size_limit"]) == (2, "zstd:7", 1024)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"min_workers": 1, "a": 2}, "Invalid Writer argument(s): a, min_workers"),
        ({"size_limit": 1 << 32}, "`size_limit` must be less than 2**32 bytes, got 4294967296"),
        ({"hashes": ["sha1", "md5"]}, "Hashes must be unique and in sorted order, got sha1, md5"),
    ],
)
def test_invalid_writer_arguments_are_rejected(tmp_path, how, message):
    with pytest.raises(ValueError) as caught:
        MDSWriter(out=str(tmp_path / "d"), columns={"a": "int"}, **how)
    assert str(caught.value) == message and not (tmp_path / "d").exists()


# -- weights of streams


@pytest.mark.parametrize(
    ("how", "size", "wanted"),
    [
        ([{}, {}], None, [(2 / 3, 1, 40), (1 / 3, 1, 20)]),
        ([{"repeat": 0}, {"choose": 50}], None, [(0, 0, 0), (1, 2.5, 50)]),
        ([{"proportion": 1}, {"proportion": 3}], 20, [(0.25, 5 / 40, 5), (0.75, 15 / 20, 15)]),
    ],
)
def test_weights_of_streams_are_derived(folders, how, size, wanted):
    streams = [Stream(local=folder, **one) for folder, one in zip(folders, how, strict=True)]
    for _ in range(2):  # a reused stream keeps its given weights
        data = StreamingDataset(streams=streams, epoch_size=size)
        found = [(one.proportion, one.repeat, one.choose) for one in data.streams]
        assert np.allclose(found, wanted) and len(ids(data)) == sum(one[2] for one in wanted)
    streams[1].choose = 3  # changed by the user
    if how == [{}, {}]:
        with pytest.raises(
            UsageError,
            match="^expected a proportion for every stream or for no stream(?m:$)",
        ):
            StreamingDataset(streams=streams)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (
            {"proportion": 1, "choose": 2},
            "At most one of `proportion`, `repeat`, and `choose` may be specified; "
            "the others are derived",
        ),
        ({"repeat": -1}, "`repeat` must be non-negative, got -1"),
        ({"download_retry": -1}, "`download_retry` must be non-negative, got -1"),
        ({"download_timeout": 0}, "`download_timeout` must be positive, got 0"),
        ({"local": None}, "`remote` and/or `local` path must be provided"),
    ],
)
def test_invalid_stream_arguments_are_rejected(how, message):
    with pytest.raises(ValueError) as caught:
        Stream(**{"local": "x", **how})
    assert str(caught.value) == message


# -- orders


@pytest.mark.parametrize(
    ("nodes", "again"),
    [(1, []), (8, []), (7, [0, 20]), (32, [n * 40 // 24 for n in range(24)])],
)
def test_an_epoch_is_filled_up_to_a_multiple_of_the_canonical_nodes(folders, nodes, again):
    for shuffle in (False, True):
        data = StreamingDataset(
            local=folders[0], num_canonical_nodes=nodes, batch_size=2, shuffle=shuffle
        )
        found = ids(data)
        assert len(data) == 40 and sorted(found[:40]) == list(range(40))
        assert found[40:] == [found[step] for step in again]


def test_batches_by_stream_are_filled_up(folders):
    data = StreamingDataset(
        streams=[Stream(local=one) for one in folders],
        num_canonical_nodes=8,
        batch_size=8,
        batching_method="per_stream",
    )
    found = np.array(ids(data)).reshape(-1, 8)
    assert [len(set(one)) for one in (found >= 1000).tolist()] == [1] * 8
    assert sorted(found[found >= 1000])[::1] == [
        *np.repeat(range(1000, 1004), 2),
        *range(1004, 1020),
    ]


def test_equal_remainders_of_a_batch_go_to_the_last_stream(folders):
    streams = [Stream(local=one, proportion=1) for one in folders]
    data = StreamingDataset(streams=streams, batch_size=7, batching_method="stratified")
    batches = np.array(ids(data)).reshape(-1, 7)
    assert (batches >= 1000).sum(1).tolist() == [4] * len(batches)


def test_more_canonical_nodes_than_samples_are_rejected(folders):
    data = StreamingDataset(local=folders[0], num_canonical_nodes=41, batch_size=1)
    with pytest.raises(ValueError) as caught:
        iter(data)
    assert str(caught.value) == (
        "The number of samples assigned to a canonical node is 0: the epoch has 40 samples, "
        "and num_canonical_nodes is 41"
    )


def test_slow_settings_warn(folders):
    with pytest.warns(UserWarning) as caught:
        StreamingDataset(local=folders[0], predownload=4, batch_size=8)
    assert [str(one.message) for one in caught] == [
        "predownload < batch_size (4 < 8), so batches may be slow. "
        "Set predownload to at least batch_size."
    ]
    data = StreamingDataset(local=folders[0], shuffle=True, shuffle_block_size=5)
    largest = int(data.samples_per_shard.max())
    with pytest.warns(UserWarning) as caught:
        ids(data)
    assert [str(one.message) for one in caught] == [
        f"shuffle_block_size is smaller than some shards (5 < {largest}), so "
        "samples are shuffled only within single shards. "
        "Set shuffle_block_size to a multiple of the shard size."
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ids(StreamingDataset(local=folders[0], shuffle=True, predownload=8, batch_size=8))
        ids(
            StreamingDataset(
                local=folders[0], shuffle=True, shuffle_algo="naive", shuffle_block_size=5
            )
        )


# -- states


THEIRS = {
    "epoch": 3,
    "sample_in_epoch": 7,
    "num_canonical_nodes": 1,
    "shuffle_seed": 9176,
    "initial_physical_nodes": 1,
}


@pytest.mark.parametrize("step", [1, 7, 39])
def test_a_state_of_the_original_within_an_epoch_is_rejected(folders, step):
    data = StreamingDataset(local=folders[0], shuffle=True)
    with pytest.raises(ValueError) as caught:
        data.load_state_dict({**THEIRS, "sample_in_epoch": step})
    assert str(caught.value) == (
        f"the state was saved by mosaicml-streaming at sample {step} of epoch 3; "
        "flare uses a different sample order"
    )
    assert caught.value.hint == (
        "Finish the epoch with mosaicml-streaming, or set sample_in_epoch to 0."
    )
    assert data.next_epoch == 0


@pytest.mark.parametrize(("step", "rest"), [(0, 40), (40, 0)])
def test_a_state_of_the_original_between_epochs_is_accepted(folders, step, rest):
    data = StreamingDataset(local=folders[0], shuffle=True)
    data.load_state_dict({**THEIRS, "sample_in_epoch": step})
    assert len(ids(data)) == rest and data.next_epoch == 4


def test_a_state_survives_json(folders):
    data = StreamingDataset(local=folders[0], shuffle=True)
    whole = ids(data)
    other = StreamingDataset(local=folders[0], shuffle=True)
    other.load_state_dict(json.loads(json.dumps(data.state_dict(7, True))))
    assert ids(other) == whole[7:]


# -- errors


def test_folders_without_a_dataset_are_reported(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    for text, error, message in (
        (None, RuntimeError, "No `remote` provided, but local file index.json does not exist"),
        ("", json.JSONDecodeError, "Index file at index.json is empty or corrupted: file is empty"),
        (
            "{",
            json.JSONDecodeError,
            "Index file at index.json is empty or corrupted: not valid JSON: "
            "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
        ),
        (
            '{"shards": [], "version": 2}',
            RuntimeError,
            "Stream contains no samples: index.json lists no samples",
        ),
    ):
        if text is not None:
            (folder / "index.json").write_text(text)
        with pytest.raises(error) as caught:
            StreamingDataset(local=str(folder))
        assert isinstance(caught.value, flarecli.errors.FlareError)
        assert caught.value.message == message
        assert str(caught.value).endswith(message)
    with pytest.raises(FileNotFoundError) as caught:
        StreamingDataset(remote=str(tmp_path / "far"), local=str(tmp_path / "near"))
    assert str(caught.value) == f"{tmp_path}/far/index.json: No such file or directory"


# -- import paths


@pytest.mark.parametrize(
    ("path", "names"),
    [
        (
            "base",
            "CSVWriter JSONWriter LocalDataset MDSWriter Stream StreamingDataset TSVWriter "
            "XSVWriter",
        ),
        ("base.dataset", "StreamingDataset"),
        ("base.format", "FileInfo MDSWriter Reader XSVWriter reader_from_json"),
        ("base.format.json", "JSONWriter"),
        ("base.format.mds", "MDSWriter"),
        ("base.format.xsv", "CSVWriter TSVWriter XSVWriter"),
        ("base.local", "LocalDataset"),
        ("base.stream", "Stream streams_registry"),
        ("base.registry_utils", "construct_from_registry"),
        ("base.spanner", "Spanner"),
        ("base.util", "clean_stale_shared_memory merge_index"),
    ],
)
def test_the_import_paths_of_the_original_exist(path, names):
    module = importlib.import_module(f"flarecli.compat.streaming.{path}")
    for name in names.split():
        assert getattr(module, name) is getattr(streaming, name, getattr(module, name))
    assert streaming.base.MDSWriter is MDSWriter
    with pytest.raises(AttributeError):
        streaming.base.nope  # noqa: B018


def test_a_custom_stream_class_is_used_by_name(folders, tmp_path):
    registry = importlib.import_module("flarecli.compat.streaming.base.stream").streams_registry

    @registry.register("counting")
    class Counting(Stream):
        def __init__(self, *, extra, **rest):
            super().__init__(**rest)
            self.extra = extra

    data = StreamingDataset(
        remote=folders[0],
        local=str(tmp_path / "near"),
        stream_name="counting",
        stream_config={"extra": 100},
        download_retry=5,
    )
    (stream,) = data.streams
    assert type(stream) is Counting and stream.extra == 100 and stream.download_retry == 5
    assert ids(data) == list(range(40)) and "counting" in registry
    with pytest.raises(ValueError) as caught:
        StreamingDataset(local=folders[0], stream_name="nope")
    assert str(caught.value) == "no stream is registered as 'nope'"


def test_registered_classes_are_constructed_and_validated():
    utils = importlib.import_module("flarecli.compat.streaming.base.registry_utils")
    registry = importlib.import_module("flarecli.compat.streaming.base.registry_utils").Registry()
    registry.register("function", func=lambda **given: given)
    registry.register("class", func=Stream)
    build = utils.construct_from_registry
    assert build("function", registry, kwargs={"a": 1})(b=2) == {"a": 1, "b": 2}
    assert build("function", registry, partial_function=False, kwargs={"a": 1}) == {"a": 1}
    seen = []
    built = build("class", registry, True, Stream, seen.append, {"local": "x"})
    assert (
        seen == [built] and built.local == "x" and set(registry.get_all()) == {"function", "class"}
    )
    with pytest.raises(ValueError, match="Expected class to be of type Counter"):
        build("class", registry, pre_validation_function=type("Counter", (), {}))
    with pytest.raises(ValueError, match="to be a callable or a type, but got int"):
        build("class", registry, pre_validation_function=5)
    registry.register("text", func="nothing")
    with pytest.raises(ValueError, match="Expected text to be a class or function, but got str"):
        build("text", registry)


def test_the_spanner_finds_the_shard_of_each_sample(folders):
    data = StreamingDataset(streams=[Stream(local=one) for one in folders])
    at = [data.spanner[i] for i in range(60)]
    assert at == [
        (shard, i) for shard, size in enumerate(data.samples_per_shard) for i in range(size)
    ]
    for wrong in (-1, 60):
        with pytest.raises(
            RowsError, match=f"Invalid sample index `{wrong}`: there are 60 samples"
        ):
            data.spanner[wrong]


def test_merge_index_accepts_a_folder_or_a_list(tmp_path):
    util = importlib.import_module("flarecli.compat.streaming.base.util")
    for name, first in (("0", 0), ("1", 1000)):
        written(tmp_path / name, first, 20)
    util.merge_index(str(tmp_path), keep_local=True)
    assert ids(LocalDataset(str(tmp_path))) == [*range(20), *range(1000, 1020)]
    parts = [str(tmp_path / name / "index.json") for name in "10"]
    util.merge_index(parts, str(tmp_path))
    assert ids(LocalDataset(str(tmp_path))) == [*range(1000, 1020), *range(20)]
    with pytest.raises(ValueError, match="Invalid arguments to merge_index"):
        util.merge_index()
    util.clean_stale_shared_memory()


def test_custom_encodings_are_registered_as_in_the_original(tmp_path):
    before = dict(CUSTOM)
    try:
        check_custom_encodings(tmp_path)
    finally:
        CUSTOM.clear()
        CUSTOM.update(before)


def check_custom_encodings(tmp_path):
    module = importlib.import_module("flarecli.compat.streaming.base.format.mds.encodings")

    class Complex128(module.Encoding):
        def encode(self, obj):
            return np.complex128(obj).tobytes()

        def decode(self, data):
            return np.frombuffer(data, np.complex128)[0]

    module._encodings["complex128"] = Complex128
    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "complex128"}) as out:
        out.write({"x": 1 + 2j})
    assert StreamingDataset(local=str(tmp_path / "d"))[0] == {"x": 1 + 2j}
    assert module.is_mds_encoding("complex128") and "complex128" in module.get_mds_encodings()
    assert module.is_mds_encoding("ndarray:uint8:3,4") and not module.is_mds_encoding("nope")
    assert not module.is_mds_encoding_safe("pkl") and module.is_mds_encoding_safe("int")
    assert module.mds_decode("int", module.mds_encode("int", 5)) == 5
    assert module._encodings["uint8"]().decode(module._encodings["uint8"]().encode(7)) == 7
    with pytest.raises(UnsafeError):
        module.mds_decode("pkl", b"x")
    with pytest.raises(ValueError, match="encoding 'sized' has a fixed size of 16 bytes"):
        module._encodings["sized"] = type("Sized", (Complex128,), {"size": 16})
