"""JSON, CSV, TSV and XSV, each compression, and merged datasets, compared with mosaicml-streaming:
each reads the files of the other.

PEER_PYTHON names an interpreter that has mosaicml-streaming 0.13.
"""

import functools
import json
import os
import runpy
from pathlib import Path

import pytest

import flarecli
from flarecli.compress import decompress
from flarecli.formats.mds.repair_index import merge, rebuild
from flarecli.model import Settings
from flarecli.storage import locate

PEER = os.environ.get("PEER_PYTHON")
SCRIPT = Path(__file__).with_name("peer.py")
shared = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="PEER_PYTHON names no interpreter that has mosaicml-streaming"
)
ENDS = {"json": ("", "\r\n"), "csv": (",", "\n"), "tsv": ("\t", "\r\n"), "xsv": ("||", "#\n")}
FORMATS = sorted(ENDS)
COMPRESSIONS = ["br", "br:0", "bz2", "bz2:1", "gz", "gz:0", "snappy", "zstd", "zstd:9"]


@pytest.fixture
def peer(run_peer):
    return functools.partial(run_peer, PEER, SCRIPT)


def expected_samples(kind="lines"):
    """Return the samples of a kind as `peer.py read` prints them."""
    samples, columns = shared["KINDS"][kind]
    return [{name: shared["described"](sample[name]) for name in columns} for sample in samples()]


def write_datasets(
    peer,
    tmp_path,
    form,
    compression=None,
    hashes=("sha1", "xxh64"),
    limit=20_000,
    only=("flare", "peer"),
):
    """Write the same samples with both libraries; return the two folders."""
    separator, newline = ENDS.get(form, (",", "\n"))
    samples, columns = shared["KINDS"]["lines"]
    kinds = {"float": "str_float", "int": "str_int"} if form == "mds" else {"float": "str_float"}
    if "flare" in only:
        options = Settings(compression, tuple(hashes), limit, None, newline, separator)
        columns = {name: kinds.get(encoding, encoding) for name, encoding in columns.items()}
        with flarecli.Writer(
            str(tmp_path / "flare"), format=form, columns=columns, settings=options
        ) as writer:
            for sample in samples():
                writer.write(sample)
    if "peer" in only:
        settings = {
            "format": form,
            "size_limit": limit,
            "hashes": list(hashes),
            "compression": compression,
            "newline": newline,
        }
        if form == "xsv":
            settings["separator"] = separator
        peer("write", tmp_path / "peer", "lines", json.dumps(settings))
    return tmp_path / "flare", tmp_path / "peer"


def files(folder):
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if path.name != "playlist.yaml"
    }


@pytest.mark.parametrize("form", FORMATS)
def test_flare_and_the_original_write_the_same_bytes(peer, tmp_path, form):
    flare, original = write_datasets(peer, tmp_path, form)
    assert files(flare) == files(original)
    index = (flare / "index.json").read_bytes()
    for name in ("index.json", "playlist.yaml"):
        (flare / name).unlink()
    rebuild(locate(str(flare)))
    assert (flare / "index.json").read_bytes() == index


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", ["json", "csv"])
def test_compressed_files_contain_the_same_bytes(peer, tmp_path, form, compression):
    flare, original = write_datasets(peer, tmp_path, form, compression)
    suffix = compression.partition(":")[0]
    assert files(flare).keys() == files(original).keys()
    for name, data in files(original).items():
        if name != "index.json":
            assert decompress(suffix, [files(flare)[name]], None, name) == decompress(
                suffix, [data], None, name
            )
    index_of_flare, index_of_original = (
        json.loads(files(folder)["index.json"]) for folder in (flare, original)
    )
    for index in (index_of_flare, index_of_original):
        for shard in index["shards"]:
            for what in ("zip_data", "zip_meta"):
                shard[what] = (
                    shard[what].keys(),
                    shard[what]["basename"],
                    shard[what]["hashes"].keys(),
                )
    assert index_of_flare == index_of_original


@pytest.mark.parametrize("dataset", ["local", "streaming"])
@pytest.mark.parametrize("form", FORMATS)
def test_the_original_reads_every_column(peer, tmp_path, form, dataset):
    flare, _ = write_datasets(peer, tmp_path, form, only=("flare",))
    assert peer("read", flare, dataset) == expected_samples()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", ["json", "tsv"])
def test_the_original_reads_compressed_lines(peer, tmp_path, form, compression):
    flare, _ = write_datasets(peer, tmp_path, form, compression, only=("flare",))
    assert peer("read", flare, "streaming") == expected_samples()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_original_reads_compressed_mds(peer, tmp_path, compression):
    samples, columns = shared["KINDS"]["large"]
    with flarecli.Writer(
        str(tmp_path / "out"), columns=columns, settings=Settings(compression, ("md5",), 8_000)
    ) as writer:
        for sample in samples():
            writer.write(sample)
    assert peer("read", tmp_path / "out", "streaming") == expected_samples("large")


@pytest.mark.parametrize("form", FORMATS)
def test_flare_reads_datasets_of_the_original(peer, tmp_path, form):
    _, original = write_datasets(peer, tmp_path, form, "gz:1", only=("peer",))
    samples = [
        {name: shared["described"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(original))
    ]
    assert samples == [{name: row[name] for name in sorted(row)} for row in expected_samples()]
    assert list(flarecli.verify(str(original))) == []


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_folder_with_files_that_the_original_decompressed_is_read(peer, tmp_path, form):
    _, original = write_datasets(peer, tmp_path, form, "zstd", only=("peer",))
    peer("read", original, "streaming")
    # The original writes decompressed shards next to the compressed ones.
    assert any(path.name.endswith(form) for path in original.iterdir())
    samples = [
        {name: shared["described"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(original))
    ]
    for path in original.glob("*.zstd"):
        path.unlink()
    assert [
        {name: shared["described"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(original))
    ] == samples
    assert samples == [{name: row[name] for name in sorted(row)} for row in expected_samples()]
    assert list(flarecli.verify(str(original))) == []


@pytest.mark.parametrize("dataset", ["local", "streaming"])
def test_the_original_reads_a_dataset_merged_by_flare(peer, tmp_path, dataset):
    for part in ("a/deep", "b", "x/deep"):
        write_datasets(peer, tmp_path / part, "json", only=("flare",))
        (tmp_path / part / "flare" / "playlist.yaml").unlink()
    merge(locate(str(tmp_path)))
    assert peer("read", tmp_path, dataset) == expected_samples() * 3
    assert len(flarecli.open(str(tmp_path))) == 3 * len(expected_samples())
