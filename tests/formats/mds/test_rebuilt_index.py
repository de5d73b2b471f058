"""Rebuilding an `index.json` from shards that were built byte by byte."""

import gzip
import json
import struct

import pytest

from flarecli.errors import FlareError, UsageError
from flarecli.formats.mds import repair_index as mds_reindex
from flarecli.formats.mds.repair_index import rebuild
from flarecli.storage import locate

CONFIG = {
    "column_encodings": ["int"],
    "column_names": ["a"],
    "column_sizes": [8],
    "compression": None,
    "format": "mds",
    "hashes": ["sha1"],
    "size_limit": None,
    "version": 2,
}
LINES = {
    "columns": {"a": "int"},
    "compression": None,
    "format": "json",
    "hashes": [],
    "newline": "\n",
    "size_limit": None,
    "version": 2,
}


def mds(**more):
    """Return a shard without rows."""
    config = json.dumps({**CONFIG, **more}, sort_keys=True).encode()
    return struct.pack("<II", 0, 8 + len(config)) + config


def meta(**more):
    return struct.pack("<II", 0, 0) + json.dumps({**LINES, **more}, sort_keys=True).encode()


def folder_of(folder, files):
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return locate(str(folder))


def refusal(folder, files):
    at = folder_of(folder, files)
    with pytest.raises(FlareError) as caught:
        rebuild(at)
    assert {path.name for path in folder.iterdir()} == set(files)
    return str(caught.value).removeprefix(str(folder))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"version": 3}, "config: expected version 2, got 3"),
        ({"version": None}, "config: expected version 2, got None"),
        ({"format": "csv"}, "config: expected format 'mds', got 'csv'"),
        ({"format": None}, "config: expected format 'mds', got None"),
        ({"size_limit": "1k"}, "config.size_limit: expected a size, got '1k'"),
        ({"hashes": {"sha1": 1}}, "config: hashes must be a list of names"),
        ({"hashes": ["sha1", 7]}, "config: hashes must be a list of names"),
        (
            {"hashes": ["sha1", "crc"]},
            "config: unknown hash 'crc'",
        ),
        (
            {"samples": 0},
            "config: expected the keys column_encodings, column_names, column_sizes, compression, format, hashes, size_limit, version, "
            "got column_encodings, column_names, column_sizes, compression, format, hashes, samples, size_limit, version",
        ),
    ],
)
def test_an_invalid_config_is_reported_before_an_index_is_written(tmp_path, config, message):
    files = {"shard.00000.mds": mds(), "shard.00001.mds": mds(**config)}
    assert refusal(tmp_path, files) == f"/shard.00001.mds: {message}"


def test_a_missing_key_of_a_config_is_reported(tmp_path):
    config = json.dumps({key: value for key, value in CONFIG.items() if key != "hashes"}).encode()
    assert refusal(
        tmp_path, {"shard.00000.mds": struct.pack("<II", 0, 8 + len(config)) + config}
    ) == (
        "/shard.00000.mds: config: expected the keys column_encodings, column_names, column_sizes, compression, format, hashes, size_limit, version, "
        "got column_encodings, column_names, column_sizes, compression, format, size_limit, version"
    )


ZIPPED = gzip.compress(mds(compression="gz"))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"shard.00001.mds": mds()}, ": shard.00000.mds is missing, but shard.00001.mds exists"),
        (
            {"shard.00000.json.meta": meta()},
            ": shard.00000.json is missing, but shard.00000.json.meta exists",
        ),
        (
            {"shard.00000.mds": mds(), "shard.00000.json": b""},
            ": shard 00000 exists as json and as mds",
        ),
        (
            {"shard.00000.mds": mds(), "shard.00001.json": b"", "shard.00001.json.meta": meta()},
            ": shards of several formats: json, mds",
        ),
        (
            {"shard.00000.mds": mds(), "shard.00001.mds": mds(column_names=["b"])},
            "/shard.00001.mds: columns differ from the columns in shard.00000.mds",
        ),
        (
            {"shard.00000.mds.gz": ZIPPED, "shard.00000.mds.bz2": b""},
            ": both shard.00000.mds.bz2 and shard.00000.mds.gz exist",
        ),
        (
            {"shard.00000.mds.gz": gzip.compress(mds())},
            "/shard.00000.mds.gz: config has compression None; the suffixes of the files are 'gz'",
        ),
        (
            {"shard.00000.mds.gz": gzip.compress(mds(compression="br:5"))},
            "/shard.00000.mds.gz: config has compression 'br:5'; the suffixes of the files are 'gz'",
        ),
        (
            {
                "shard.00000.json": b"",
                "shard.00000.json.meta.gz": gzip.compress(meta(compression="gz")),
            },
            "/shard.00000.json: config has compression 'gz'; the suffixes of the files are '' and 'gz'",
        ),
        ({"shard.00000.json": b""}, "/shard.00000.json.meta: no such file or folder"),
        (
            {
                "shard.0000.mds": mds(),
                "shard.000001.mds": mds(),
                "shard.00000.mds.part": mds(),
                "xshard.00000.mds": mds(),
            },
            ": no shards in this folder",
        ),
    ],
)
def test_files_that_are_not_a_dataset_are_reported(tmp_path, files, message):
    assert refusal(tmp_path, files) == message


def index(folder):
    return json.loads((folder / "index.json").read_bytes())["shards"]


def test_only_names_with_the_digits_of_the_original_are_shards(tmp_path):
    rebuild(
        folder_of(
            tmp_path,
            {"shard.00000.mds": mds(), "shard.000001.mds": mds(), "shard.٠٠٠٠١.mds": mds()},
        )
    )
    assert [shard["raw_data"]["basename"] for shard in index(tmp_path)] == ["shard.00000.mds"]


@pytest.mark.parametrize(
    ("name", "zipped", "compression"),
    [("shard.00000.mds", False, None), ("shard.00000.mds.gz", True, "gz:9")],
)
def test_a_decompressed_cache_is_listed_with_its_existing_files(
    tmp_path, name, zipped, compression
):
    data = mds(compression="gz:9")
    rebuild(folder_of(tmp_path, {name: gzip.compress(data) if zipped else data}))
    (shard,) = index(tmp_path)
    assert (shard["compression"], shard["raw_data"]["basename"], shard["raw_data"]["bytes"]) == (
        compression,
        "shard.00000.mds",
        len(data),
    )
    assert (shard["zip_data"] and shard["zip_data"]["basename"]) == (name if zipped else None)


def test_an_existing_index_is_not_replaced(tmp_path):
    at = folder_of(tmp_path, {"shard.00000.mds": mds(), "index.json": b"mine"})
    with pytest.raises(UsageError) as caught:
        rebuild(at)
    assert str(caught.value) == f"{tmp_path}/index.json: index already exists"
    assert (tmp_path / "index.json").read_bytes() == b"mine"
    rebuild(at, replace=True)
    assert len(index(tmp_path)) == 1


def test_an_index_written_meanwhile_is_not_replaced(tmp_path, monkeypatch):
    at, real = folder_of(tmp_path, {"shard.00000.mds": mds()}), mds_reindex._entry
    monkeypatch.setattr(
        mds_reindex,
        "_entry",
        lambda *args: (tmp_path / "index.json").write_bytes(b"theirs") and real(*args),
    )
    with pytest.raises(UsageError):
        rebuild(at)
    assert (tmp_path / "index.json").read_bytes() == b"theirs"
