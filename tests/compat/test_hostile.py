"""Hostile data through each of the four APIs: no code runs, and no file outside is touched."""

import io
import json
import os
import pickle
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flarecli.compat import ffrecord, granular
from flarecli.compat.ffrecord import FileReader, FileWriter, PackedFolder
from flarecli.compat.sds.dataset import StreamingDataset as Streamed
from flarecli.compat.streaming import (
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataset,
    reader_from_json,
)
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UnsafeError,
    ValueFitError,
)


class Runs:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def packed(path, listing, *records):
    with FileWriter(path, len(records) + 1) as writer:
        for one in records:
            writer.write_one(one)
        writer.write_one(
            b"piouhjgbr"
            + (listing if isinstance(listing, bytes) else pickle.dumps(listing, protocol=4))
        )
    return path


# -- ffrecord


def test_pickled_names_never_run_code(tmp_path):
    with pytest.raises(UnsafeError):
        PackedFolder(packed(tmp_path / "a.ffr", Runs(tmp_path / "ran"), b"x"))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    "listing",
    [
        {"..": 0},
        {"a/../../b": 0},
        {"/etc": 0},
        {"": 0},
        {"a\\b": 0},
        {"a\x00": 0},
        {"..": {"x": 0}},
        {"a": 1},
        {"a": -1},
        {"a": 0, "b": 0},
        [1],
        b"\x80",
    ],
)
def test_names_and_numbers_of_a_packed_folder_are_checked(tmp_path, listing):
    from collections import OrderedDict

    def ordered(value):
        return (
            OrderedDict((key, ordered(one)) for key, one in value.items())
            if isinstance(value, dict)
            else value
        )

    with pytest.raises(FlareError) as caught:
        PackedFolder(packed(tmp_path / "a.ffr", ordered(listing), b"x"))
    assert "a.ffr" in str(caught.value)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0\0\0",
        struct.pack("<Iq", 0, 1 << 40),
        struct.pack("<Iq", 0, -1),
        struct.pack("<IqIq", 0, 1, 0, 1 << 62) + b"x",
        struct.pack("<IqIq", 0, 1, 0, 0) + b"x",
    ],
)
@pytest.mark.parametrize("check", [True, False])
def test_invalid_tables_are_rejected(tmp_path, data, check):
    (tmp_path / "a.ffr").write_bytes(data)
    with pytest.raises(FlareError):
        FileReader(tmp_path / "a.ffr", check_data=check).read_one(0)


def test_empty_records_are_written_and_read(tmp_path):
    with FileWriter(tmp_path / "a.ffr", 3) as writer:
        for one in (b"", b"x", b""):
            writer.write_one(one)
    reader = FileReader(tmp_path / "a.ffr")
    assert [one.tobytes() for one in reader.read([2, 0, 1, 1])] == [b"", b"", b"x", b"x"]
    assert reader.read_one(0).shape == (0,)
    (tmp_path / "f").mkdir()
    (tmp_path / "f" / "void.txt").write_bytes(b"")
    ffrecord.pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    assert PackedFolder(tmp_path / "f.ffr").read_one("void.txt").shape == (0,)


# -- granular


def dataset(folder, **changed):
    with granular.DatasetWriter(folder, {"a": "bytes", "n": "array"}, granular.encoders) as writer:
        for i in range(3):
            writer.append({"a": b"x" * i, "n": np.arange(i + 1)})
    for name, data in changed.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder


@pytest.mark.parametrize("key", ["../secret", "/etc/passwd", "", ".hidden", "a/b", "a\\b", "a\x00"])
def test_keys_that_are_paths_are_rejected(tmp_path, key):
    for end in ("bag", "idx"):
        (tmp_path / f"secret.{end}").write_bytes(bytes(8))
    folder = dataset(tmp_path / "d", spec_json=json.dumps({key: "bytes"}).encode())
    with pytest.raises(FlareError):
        granular.DatasetReader(folder, None)[0]
    with pytest.raises(FlareError):
        granular.DatasetWriter(tmp_path / "e", {key: "bytes"}, None)
    assert sorted(path.name for path in tmp_path.iterdir()) in (
        ["d", "secret.bag", "secret.idx"],
        ["d", "e", "secret.bag", "secret.idx"],
    )


@pytest.mark.parametrize("ends", [(1 << 62, 1 << 62, 1 << 62), (3, 2, 3), (9, 9, 9), (0, 1)])
def test_forged_indexes_are_rejected(tmp_path, ends):
    folder = dataset(tmp_path / "d", a_idx=struct.pack(f"<{len(ends)}Q", *ends))
    with pytest.raises(FlareError):
        granular.DatasetReader(folder, granular.decoders)[2]


def packs(value):
    import msgpack

    return msgpack.packb(value)


@pytest.mark.parametrize(
    "record",
    [
        packs(["|O", [1], bytes(8)]),
        packs(["<i8", [1 << 40], bytes(8)]),
        packs(["<i8", [-1], bytes(8)]),
        packs(["<i8", [2], bytes(8)]),
        packs([1, 2]),
        b"",
        b"\xdd\xff\xff\xff\xff",
    ],
)
def test_invalid_arrays_are_rejected(record):
    with pytest.raises(FlareError):
        granular.decoders["array"](record)


def test_object_arrays_are_rejected():
    with pytest.raises(ValueError):
        granular.encoders["array"](np.array([object()]))


def test_addresses_inside_a_video_are_not_opened(tmp_path, web):
    pytest.importorskip("av")
    there = web.page("/canary.ts", b"canary")
    for data in (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{there}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {there}\n",
    ):
        for kind in ("mp4", "webm"):
            with pytest.raises(ValueFitError, match="^invalid video: "):
                granular.decoders[kind](data.encode())
    assert web.requests == []


def test_empty_records_and_an_empty_dataset_are_read(tmp_path):
    assert granular.DatasetReader(dataset(tmp_path / "d"), granular.decoders)[0]["a"] == b""
    granular.DatasetWriter(tmp_path / "e", {"a": "bytes"}, granular.encoders).close()
    assert list(granular.DatasetReader(tmp_path / "e", granular.decoders)) == []


# -- streaming


@pytest.fixture
def shards(tmp_path):
    with MDSWriter(
        out=str(tmp_path / "d"),
        columns={"i": "int"},
        compression="zstd",
        size_limit=200,
        hashes=["sha1"],
    ) as out:
        for i in range(20):
            out.write({"i": i})
    return tmp_path / "d"


def changed(folder, change):
    """Change the first shard of an index and return its entry."""
    index = json.loads((folder / "index.json").read_text())
    change(index["shards"][0])
    (folder / "index.json").write_text(json.dumps(index))
    (folder / "playlist.yaml").unlink(missing_ok=True)
    return index["shards"][0]


@pytest.mark.parametrize(
    "name", ["../victim", "/victim", "a/../../victim", "~/victim", "", "a\\b", "a\x00"]
)
@pytest.mark.parametrize("which", ["raw_data", "zip_data"])
def test_basenames_outside_the_folder_are_rejected(tmp_path, shards, name, which):
    victim = tmp_path / "victim"
    victim.write_bytes(b"dear")
    entry = changed(shards, lambda one: one[which].update(basename=name))
    calls = [
        lambda: reader_from_json(str(shards), None, entry),
        lambda: LocalDataset(str(shards))[0],
        lambda: StreamingDataset(local=str(shards))[0],
        lambda: StreamingDataset(remote=str(shards), local=str(tmp_path / "near"))[0],
        lambda: list(
            StreamingDataset(streams=[Stream(remote=str(shards), local=str(tmp_path / "near"))])
        ),
    ]
    for call in calls:
        with pytest.raises(FlareError):
            call()
    assert victim.read_bytes() == b"dear" and sorted(path.name for path in tmp_path.iterdir()) in (
        ["d", "near", "victim"],
        ["d", "victim"],
    )


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1},
        {"format": "nope"},
        {"samples": -1},
        {"samples": 1 << 60},
        {"samples": "3"},
        {"raw_data": None},
        {"raw_data": {"basename": "x"}},
        {"raw_data": {"basename": "x", "bytes": 3, "hashes": {}, "more": 1}},
        {"column_names": 3},
        {"column_encodings": []},
        {"compression": "nope"},
        {"zip_data": 7},
    ],
)
def test_invalid_index_entries_are_rejected(shards, change):
    entry = changed(shards, lambda one: one.update(change))
    for call in (
        lambda: reader_from_json(str(shards), None, entry)[0],
        lambda: list(StreamingDataset(local=str(shards))),
    ):
        with pytest.raises(FlareError):
            call()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"shards": 3, "version": 2}',
        '{"shards": [3], "version": 2}',
        '{"shards": [], "version": 2}',
        "[" * 100_000,
    ],
)
def test_invalid_indexes_are_rejected(tmp_path, text):
    (tmp_path / "index.json").write_text(text)
    with pytest.raises(FlareError):
        StreamingDataset(local=str(tmp_path))
    with pytest.raises((FlareError, IndexError)):
        LocalDataset(str(tmp_path))[0]


def test_a_decompression_bomb_is_rejected(tmp_path, shards):
    changed(
        shards, lambda one: one["raw_data"].update(bytes=one["raw_data"]["bytes"] - 1, hashes={})
    )
    data = StreamingDataset(remote=str(shards), local=str(tmp_path / "near"))
    with pytest.raises((FormatError, IntegrityError)):
        data[0]
    assert not (tmp_path / "near" / "shard.00000.mds").exists()


def test_a_listed_size_beyond_the_file_is_rejected(tmp_path, shards):
    changed(shards, lambda one: one["zip_data"].update(bytes=1 << 50, hashes={}))
    with pytest.raises(FlareError):
        StreamingDataset(remote=str(shards), local=str(tmp_path / "near"))[0]


@pytest.mark.parametrize(
    "data", [b"", b"\1\0\0\0", b"\xff" * 12, struct.pack("<III", 1, 8, 1 << 31)]
)
def test_invalid_shards_are_rejected(tmp_path, data):
    with MDSWriter(out=str(tmp_path / "d"), columns={"t": "str"}) as out:
        out.write({"t": "x"})
    (tmp_path / "d" / "shard.00000.mds").write_bytes(data)
    reader = LocalDataset(str(tmp_path / "d")).shards[0]
    for call in (
        lambda: reader[0],
        lambda: reader.get_sample_data(0),
        lambda: reader.decode_sample(data),
    ):
        with pytest.raises(FlareError):
            call()


def test_links_out_of_the_folder_are_not_followed(tmp_path, shards):
    victim = tmp_path / "victim"
    victim.write_bytes(b"dear")
    (shards / "shard.00000.mds.zstd").unlink()
    (shards / "shard.00000.mds.zstd").symlink_to(victim)
    with pytest.raises(FlareError):
        StreamingDataset(remote=str(shards), local=str(tmp_path / "near"))[0]
    reader = LocalDataset(str(shards)).shards[0]
    reader.evict()
    assert victim.read_bytes() == b"dear"


def test_pickles_in_a_shard_never_run(tmp_path):
    with MDSWriter(out=str(tmp_path / "d"), columns={"x": "pkl"}) as out:
        out.write({"x": Runs(tmp_path / "ran")})
    for call in (
        lambda: StreamingDataset(local=str(tmp_path / "d"))[0],
        lambda: LocalDataset(str(tmp_path / "d"))[0],
        lambda: LocalDataset(str(tmp_path / "d")).shards[0][0],
    ):
        with pytest.raises(UnsafeError):
            call()
    assert not (tmp_path / "ran").exists()


def test_empty_samples_are_written_and_read(tmp_path):
    with MDSWriter(out=str(tmp_path / "d"), columns={"b": "bytes", "t": "str"}) as out:
        for _ in range(3):
            out.write({"b": b"", "t": ""})
    data = LocalDataset(str(tmp_path / "d"))
    assert list(data) == [{"b": b"", "t": ""}] * 3
    assert data.shards[0].get_sample_data(1) == bytes(8) and data.shards[0].decode_sample(
        bytes(8)
    ) == {"b": b"", "t": ""}


# -- sds


def index(tmp_path, urls):
    import pyarrow.parquet as pq

    out = io.BytesIO()
    pq.write_table(pa.table({"id": [str(i) for i in range(len(urls))], "url": urls}), out)
    (tmp_path / "src").mkdir(exist_ok=True)
    (tmp_path / "src" / "i.parquet").write_bytes(out.getvalue())
    return str(tmp_path / "src" / "i.parquet")


@pytest.mark.parametrize(
    "url",
    [
        "../victim.bin",
        "/etc/passwd",
        "file:///etc/passwd",
        "http://127.0.0.1:9/x",
        "http://169.254.169.254/x",
        "gopher://x",
        "",
        None,
        "a\x00b",
        "link.bin",
    ],
)
def test_rows_with_forbidden_addresses_fail(tmp_path, url):
    (tmp_path / "victim.bin").write_bytes(b"dear")
    src = index(tmp_path, [url, "fine.bin"])
    (tmp_path / "src" / "fine.bin").write_bytes(b"fine")
    (tmp_path / "src" / "link.bin").symlink_to(tmp_path / "victim.bin")
    data = Streamed(
        src,
        str(tmp_path / "dst"),
        "image",
        columns_to_load=["url"],
        index_col_name="id",
        num_downloading_retries=0,
    )
    assert [Path(one["url"]).read_bytes() for one in data] == [b"fine"] and data.failed == 1
    with pytest.raises(FlareError) as caught:
        data[0]
    assert "row 0" in str(caught.value) and not isinstance(caught.value, MissingError)
    kept = [
        path.name
        for path in (tmp_path / "dst").rglob("*")
        if path.is_file() and not path.name.startswith(".")
    ]
    assert kept == ["1-url.bin"]


def test_an_empty_file_is_a_failed_row_and_an_empty_index_has_no_rows(tmp_path):
    src = index(tmp_path, ["fine.bin"])
    (tmp_path / "src" / "fine.bin").write_bytes(b"")
    data = Streamed(src, str(tmp_path / "dst"), columns_to_load=["url"], index_col_name="id")
    with pytest.raises(FlareError, match="all rows of epoch 0 failed; .* no data \\(0 bytes\\)"):
        list(data)
    assert data.failed == 1
    with pytest.raises(FlareError, match="no data \\(0 bytes\\)"):
        data[0]
    none = Streamed(
        src,
        str(tmp_path / "none"),
        columns_to_load=["url"],
        index_col_name="id",
        sql_query="SELECT * FROM dataframe WHERE id = 'x'",
    )
    assert list(none) == [] and len(none) == 0
