"""JSON, CSV, TSV and XSV, every compression and merged datasets, beside the library that defines them: each reads what the other wrote.

PEER_PYTHON names an interpreter that has mosaicml-streaming 0.13.
"""

import json
import os
import runpy
import subprocess
from pathlib import Path

import pytest

import flarecli
from flarecli.compress import decompress
from flarecli.formats.mds.merge import merge
from flarecli.formats.mds.repair_index import rebuild
from flarecli.model import Settings
from flarecli.storage import locate

PEER = os.environ.get("PEER_PYTHON")
SCRIPT = Path(__file__).with_name("peer.py")
ours = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="PEER_PYTHON names no interpreter that has mosaicml-streaming"
)
ENDS = {"json": ("", "\r\n"), "csv": (",", "\n"), "tsv": ("\t", "\r\n"), "xsv": ("||", "#\n")}
FORMATS = sorted(ENDS)
COMPRESSIONS = ["br", "br:0", "bz2", "bz2:1", "gz", "gz:0", "snappy", "zstd", "zstd:9"]


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


def wanted(kind="lines"):
    samples, columns = ours["KINDS"][kind]
    return [{name: ours["shown"](sample[name]) for name in columns} for sample in samples()]


def both(
    tmp_path, form, compression=None, hashes=("sha1", "xxh64"), limit=20_000, only=("flare", "peer")
):
    """Write the same samples by both; give the two folders."""
    separator, newline = ENDS.get(form, (",", "\n"))
    samples, columns = ours["KINDS"]["lines"]
    kinds = {"float": "str_float", "int": "str_int"} if form == "mds" else {"float": "str_float"}
    if "flare" in only:
        how = Settings(compression, tuple(hashes), limit, None, newline, separator)
        columns = {name: kinds.get(encoding, encoding) for name, encoding in columns.items()}
        with flarecli.Writer(
            str(tmp_path / "flare"), format=form, columns=columns, settings=how
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
def test_the_same_samples_give_the_same_bytes(tmp_path, form):
    flare, its = both(tmp_path, form)
    assert files(flare) == files(its)
    index = (flare / "index.json").read_bytes()
    for name in ("index.json", "playlist.yaml"):
        (flare / name).unlink()
    rebuild(locate(str(flare)))
    assert (flare / "index.json").read_bytes() == index


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", ["json", "csv"])
def test_compressed_files_hold_the_same_bytes(tmp_path, form, compression):
    flare, its = both(tmp_path, form, compression)
    suffix = compression.partition(":")[0]
    assert files(flare).keys() == files(its).keys()
    for name, data in files(its).items():
        if name != "index.json":
            assert decompress(suffix, [files(flare)[name]], None, name) == decompress(
                suffix, [data], None, name
            )
    one, other = (json.loads(files(folder)["index.json"]) for folder in (flare, its))
    for index in (one, other):
        for shard in index["shards"]:
            for what in ("zip_data", "zip_meta"):
                shard[what] = (
                    shard[what].keys(),
                    shard[what]["basename"],
                    shard[what]["hashes"].keys(),
                )
    assert one == other


@pytest.mark.parametrize("how", ["local", "streaming"])
@pytest.mark.parametrize("form", FORMATS)
def test_the_original_reads_every_field(tmp_path, form, how):
    flare, _ = both(tmp_path, form, only=("flare",))
    assert peer("read", flare, how) == wanted()


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("form", ["json", "tsv"])
def test_the_original_reads_what_is_compressed(tmp_path, form, compression):
    flare, _ = both(tmp_path, form, compression, only=("flare",))
    assert peer("read", flare, "streaming") == wanted()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_the_original_reads_compressed_mds(tmp_path, compression):
    samples, columns = ours["KINDS"]["large"]
    with flarecli.Writer(
        str(tmp_path / "out"), columns=columns, settings=Settings(compression, ("md5",), 8_000)
    ) as writer:
        for sample in samples():
            writer.write(sample)
    assert peer("read", tmp_path / "out", "streaming") == wanted("large")


@pytest.mark.parametrize("form", FORMATS)
def test_flare_reads_what_the_original_wrote(tmp_path, form):
    _, its = both(tmp_path, form, "gz:1", only=("peer",))
    found = [
        {name: ours["shown"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(its))
    ]
    assert found == [{name: row[name] for name in sorted(row)} for row in wanted()]
    assert list(flarecli.verify(str(its))) == []


@pytest.mark.parametrize("form", ["json", "csv"])
def test_what_the_original_left_of_its_cache_is_read(tmp_path, form):
    _, its = both(tmp_path, form, "zstd", only=("peer",))
    peer("read", its, "streaming")
    assert any(
        path.name.endswith(form) for path in its.iterdir()
    )  # it decompressed beside what is compressed
    found = [
        {name: ours["shown"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(its))
    ]
    for path in its.glob("*.zstd"):
        path.unlink()
    assert [
        {name: ours["shown"](value) for name, value in sample.items()}
        for sample in flarecli.open(str(its))
    ] == found
    assert found == [{name: row[name] for name in sorted(row)} for row in wanted()]
    assert list(flarecli.verify(str(its))) == []


@pytest.mark.parametrize("how", ["local", "streaming"])
def test_the_original_reads_what_flare_merged(tmp_path, how):
    for part in ("a/deep", "b", "x/deep"):
        both(tmp_path / part, "json", only=("flare",))
        (tmp_path / part / "flare" / "playlist.yaml").unlink()
    merge(locate(str(tmp_path)))
    assert peer("read", tmp_path, how) == wanted() * 3
    assert len(flarecli.open(str(tmp_path))) == 3 * len(wanted())
