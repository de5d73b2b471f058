"""The examples of mosaicml-streaming's README with another import line; the rest of its API."""

import json
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

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
    reader_from_json,
)
from flarecli.errors import IntegrityError, UnsafeError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "mds"


def numbers(folder, count=100, **how):
    with MDSWriter(
        out=str(folder), columns={"i": "int", "text": "str"}, **{"size_limit": 400, **how}
    ) as out:
        for i in range(count):
            out.write({"i": i, "text": f"row {i}", "dropped": None})
    return folder


def test_the_quickstart_runs(tmp_path):
    data_dir = str(tmp_path / "path-to-dataset")
    columns = {"image": "jpeg", "class": "int"}
    compression = "zstd"
    with MDSWriter(out=data_dir, columns=columns, compression=compression) as out:
        for _ in range(50):
            sample = {
                "image": Image.fromarray(np.random.randint(0, 256, (32, 32, 3), np.uint8)),
                "class": np.random.randint(10),
            }
            out.write(sample)
    remote, local = data_dir, str(tmp_path / "local")
    dataset = StreamingDataset(local=local, remote=remote, shuffle=True)
    sample = dataset[37]
    assert sample["image"].size == (32, 32)
    assert 0 <= sample["class"] < 10
    assert sorted(os.listdir(local)) == ["index.json", "shard.00000.mds"]
    assert sum(1 for _ in dataset) == len(dataset) == 50


@pytest.mark.parametrize(
    ("writer", "how"),
    [(JSONWriter, {}), (CSVWriter, {}), (TSVWriter, {}), (XSVWriter, {"separator": "|"})],
)
def test_shards_of_lines_are_written_and_read(tmp_path, writer, how):
    rows = [{"a": i, "b": i / 7, "c": f"t{i}"} for i in range(30)]
    with writer(
        out=str(tmp_path / "d"),
        columns={"a": "int", "b": "float", "c": "str"},
        size_limit="0.1kb",
        **how,
    ) as out:
        for row in rows:
            out.write(row)
    data = LocalDataset(str(tmp_path / "d"))
    assert list(data) == rows
    reader = data.shards[0]
    assert reader.decode_sample(reader.get_sample_data(1)) == rows[1]


def test_an_exception_in_the_block_leaves_no_index(tmp_path):
    with (
        pytest.raises(KeyError),
        MDSWriter(out=str(tmp_path / "d"), columns={"i": "int"}, size_limit=200) as out,
    ):
        for i in range(100):
            out.write({"i": i})
        raise KeyError
    assert not (tmp_path / "d" / "index.json").exists()


def test_a_writer_with_two_outputs_keeps_the_dataset_at_the_second(tmp_path):
    with MDSWriter(
        out=(str(tmp_path / "here"), str(tmp_path / "there")), columns={"i": "int"}
    ) as out:
        out.write({"i": 1})
    assert (tmp_path / "there" / "index.json").exists() and not (
        tmp_path / "here" / "index.json"
    ).exists()
    assert flarecli.open(str(tmp_path / "there"))[0] == {"i": 1}


def test_a_dataset_accepts_integers_slices_lists_and_arrays_as_indices(tmp_path):
    data = LocalDataset(str(numbers(tmp_path / "d")))
    assert data[-1]["i"] == 99
    assert [one["i"] for one in data[::-1]] == list(range(99, -1, -1))
    assert [one["i"] for one in data[np.array([3, 1])]] == [3, 1]
    assert [[one["i"] for one in many] for many in data[[[1, 2], [3]]]] == [[1, 2], [3]]
    with pytest.raises(IndexError):
        data[100]
    assert pickle.loads(pickle.dumps(data))[5] == data[5]


def test_numbers_are_numpy_scalars_as_in_the_original():
    found = LocalDataset(str(FIXTURES / "mds_scalars" / "data"))[0]
    kinds = {name: type(value) for name, value in found.items()}
    assert set(map(type, found.values())) <= {
        int,
        *(
            np.dtype(n).type
            for n in ("i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8")
        ),
    }, kinds


@pytest.mark.parametrize(
    "name",
    sorted(path.name for path in FIXTURES.iterdir() if (path / "data" / "index.json").exists()),
)
def test_reader_methods_read_files_of_the_original(name):
    index = json.loads((FIXTURES / name / "data" / "index.json").read_text())
    for entry in index["shards"][:3]:
        if name in (
            "mds_zero_columns",
            "mds_pkl",
            "mds_json_nan",
            "json_newline_none",
            "mds_json_nan",
        ):
            continue
        reader = reader_from_json(str(FIXTURES / name / "data"), None, entry)
        assert len(reader) == reader.size == entry["samples"]
        raw = entry["raw_data"]["bytes"] + entry.get("raw_meta", {"bytes": 0})["bytes"]
        assert reader.get_raw_size() == raw
        zipped = (
            entry["zip_data"]["bytes"] + (entry.get("zip_meta") or {"bytes": 0})["bytes"]
            if entry["zip_data"]
            else None
        )
        assert reader.get_zip_size() == zipped
        assert reader.get_max_size() == raw + (zipped or 0)
        assert reader.get_persistent_size(True) == (raw + (zipped or 0) if zipped else raw)
        assert reader.get_persistent_size(False) == raw
        for i in range(min(3, len(reader))):
            one, other = reader.get_item(i), reader.decode_sample(reader.get_sample_data(i))
            assert repr(list(one)) == repr(list(other))


def pair(folder, compression, present):
    """Return a shard, some of whose files are present, and their sizes."""
    numbers(folder, 20, size_limit=None, compression=compression)
    entry = json.loads((folder / "index.json").read_text())["shards"][0]
    raw = folder / entry["raw_data"]["basename"]
    if compression:
        if "raw" in present:
            raw.write_bytes(bytes(entry["raw_data"]["bytes"]))
        if "zip" not in present:
            (folder / entry["zip_data"]["basename"]).unlink()
    elif "raw" not in present:
        raw.unlink()
    reader = reader_from_json(str(folder), None, entry)
    listing = {os.path.join(str(folder), "", name) for name in os.listdir(folder)}
    return reader, listing, {"R": reader.get_raw_size(), "Z": reader.get_zip_size() or 0}, raw.name


MATRIX = [  # compression, safe_keep_zip, there, returned, left
    (None, True, "", "", ""),
    (None, False, "raw", "R", "raw"),
    ("zstd", False, "", "", ""),
    ("zstd", False, "zip", "Z", "zip"),
    ("zstd", False, "raw", "R", "raw"),
    (
        "zstd",
        False,
        "raw zip",
        "R",
        "raw",
    ),  # the original deletes the raw file here, keeps the compressed one, and counts R
    ("zstd", True, "", "", ""),
    ("zstd", True, "zip", "Z", "zip"),
    ("zstd", True, "raw", "", ""),
    ("zstd", True, "raw zip", "RZ", "raw zip"),
]


@pytest.mark.parametrize(("compression", "safe", "there", "returned", "left"), MATRIX)
def test_set_up_local_keeps_the_files_that_it_counts(
    tmp_path, compression, safe, there, returned, left
):
    reader, listing, sizes, raw = pair(tmp_path / "d", compression, there.split())
    assert reader.set_up_local(listing, safe) == sum(sizes[one] for one in returned)
    names = {"raw": raw, "zip": f"{raw}.zstd"}
    assert {name for name in os.listdir(tmp_path / "d") if name.startswith("shard")} == {
        names[one] for one in left.split()
    }


def test_evict_returns_the_freed_bytes_once(tmp_path):
    reader, _, sizes, _ = pair(tmp_path / "d", "zstd", ["raw", "zip"])
    assert reader.evict() == sizes["R"] + sizes["Z"]
    assert reader.evict() == 0


def test_pickles_are_rejected_unless_allowed(tmp_path):
    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "pkl"}) as out:
        out.write({"x": {1, 2}})
    for error in (UnsafeError, ValueError):
        with pytest.raises(error, match=r"column 'x' contains an unsafe type \(pickles\)"):
            StreamingDataset(local=str(tmp_path / "d"))
    with pytest.raises(UnsafeError):
        LocalDataset(str(tmp_path / "d"))[0]
    assert StreamingDataset(local=str(tmp_path / "d"), allow_unsafe_types=True)[0] == {"x": {1, 2}}


def ids(data):
    return [one["i"] for one in data]


def test_each_epoch_has_every_sample_once_in_another_order(tmp_path):
    folder = str(numbers(tmp_path / "d"))
    data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=3)
    first, second = ids(data), ids(data)
    assert sorted(first) == sorted(second) == list(range(100))
    assert first != second
    assert ids(StreamingDataset(local=folder, shuffle=True, shuffle_seed=3)) == first
    assert ids(StreamingDataset(local=folder)) == list(range(100))


def test_ranks_share_an_epoch(tmp_path, monkeypatch):
    folder, seen = str(numbers(tmp_path / "d")), []
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        data = StreamingDataset(local=folder, shuffle=True)
        found = ids(data)
        assert len(found) == len(data) == 34
        seen += found
    assert sorted(set(seen)) == list(range(100))


def test_a_state_resumes_with_another_number_of_ranks(tmp_path, monkeypatch):
    folder = str(numbers(tmp_path / "d"))
    whole = ids(StreamingDataset(local=folder, shuffle=True))
    data = StreamingDataset(local=folder, shuffle=True)
    running = iter(data)
    head = [next(running)["i"] for _ in range(40)]
    state = data.state_dict(40, False)
    monkeypatch.setenv("WORLD_SIZE", "2")
    tails = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        data = StreamingDataset(local=folder, shuffle=True)
        data.load_state_dict(state)
        tails.append(ids(data))
    assert head + [one for pair in zip(*tails, strict=True) for one in pair] == whole


def test_the_cache_limit_is_kept_and_the_only_copy_stays(tmp_path):
    numbers(tmp_path / "far")
    limit = 5500  # the index takes 3173
    data = StreamingDataset(
        remote=str(tmp_path / "far"),
        local=str(tmp_path / "near"),
        cache_limit=limit,
        shuffle=True,
        predownload=4,
    )
    assert sorted(ids(data)) == list(range(100))
    assert data.cache_usage <= limit
    shards = len(list((tmp_path / "far").glob("*.mds")))
    only = StreamingDataset(local=str(tmp_path / "far"), cache_limit=limit)
    assert sorted(ids(only)) == list(range(100))
    assert len(list((tmp_path / "far").glob("*.mds"))) == shards


def test_a_damaged_shard_is_never_stored(tmp_path):
    numbers(tmp_path / "far", hashes=["sha1"])
    path = tmp_path / "far" / "shard.00001.mds"
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    data = StreamingDataset(
        remote=str(tmp_path / "far"), local=str(tmp_path / "near"), validate_hash="sha1"
    )
    with pytest.raises(IntegrityError, match="sha1 is"):
        ids(data)
    assert not (tmp_path / "near" / "shard.00001.mds").exists()


def test_streams_have_their_proportions(tmp_path):
    numbers(tmp_path / "a", 40)
    with MDSWriter(out=str(tmp_path / "b"), columns={"i": "int", "text": "str"}) as out:
        for i in range(1000, 1020):
            out.write({"i": i, "text": ""})
    data = StreamingDataset(
        streams=[
            Stream(local=str(tmp_path / "a"), repeat=0.5),
            Stream(local=str(tmp_path / "b"), choose=50),
        ],
        shuffle=True,
    )
    found = ids(data)
    assert sum(one < 1000 for one in found) == 20 == len({one for one in found if one < 1000})
    assert sum(one >= 1000 for one in found) == 50
    assert data[40]["i"] == 1000


def test_a_subclass_changes_the_samples_of_an_epoch(tmp_path):
    class Doubled(StreamingDataset):
        def __getitem__(self, at):
            return super().__getitem__(at)["i"] * 2

    assert list(Doubled(local=str(numbers(tmp_path / "d")))) == list(range(0, 200, 2))


def test_torch_is_not_loaded_by_the_package():
    import subprocess
    import sys

    program = (
        "import sys\nfrom flarecli.compat.streaming import StreamingDataset, MDSWriter\n"
        "print('torch' in sys.modules)"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True
        ).stdout
        == "False\n"
    )
    assert "StreamingDataLoader" in dir(streaming)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_torch_loader_keeps_the_order_and_resumes(tmp_path, workers):
    pytest.importorskip("torch")
    from flarecli.compat.streaming import StreamingDataLoader

    def loader():
        return StreamingDataLoader(
            StreamingDataset(local=folder, shuffle=True, batch_size=8),
            batch_size=8,
            num_workers=workers,
        )

    folder = str(numbers(tmp_path / "d"))
    whole = ids(StreamingDataset(local=folder, shuffle=True))
    one = loader()
    batches = [batch["i"].tolist() for batch in one]
    assert [i for batch in batches for i in batch] == whole
    again = [i for batch in one for i in batch["i"].tolist()]
    assert sorted(again) == sorted(whole) and again != whole
    other = loader()
    running = iter(other)
    for _ in range(5):
        next(running)
    state = other.state_dict()
    assert state["sample_in_epoch"] == 40
    third = loader()
    third.load_state_dict(state)
    assert [i for batch in third for i in batch["i"].tolist()] == whole[40:]
