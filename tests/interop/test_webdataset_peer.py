"""WebDataset compared with the library that defines it: each reads the same values from the files
of the other.

WEBDATASET_PYTHON names an interpreter that has webdataset 1.0. Other tests read files that it
wrote, in `fixtures/webdataset`.
"""

import functools
import hashlib
import json
import os
import runpy
from pathlib import Path

import pyarrow as pa
import pytest

from flarecli import encodings
from flarecli.formats import find
from flarecli.model import Chunk, Settings
from flarecli.storage import locate

webdataset = find("webdataset")

PEER = os.environ.get("WEBDATASET_PYTHON")
SCRIPT = Path(__file__).with_name("webdataset_peer.py")
shared = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="WEBDATASET_PYTHON names no interpreter that has webdataset"
)


@pytest.fixture
def peer(run_peer):
    return functools.partial(run_peer, PEER, SCRIPT)


def described(row):
    return {
        name: data.decode() if name == "__key__" else shared["described"](data)
        for name, data in row.items()
        if data is not None
    }


def rows(path):
    shard = webdataset.open_shard(Chunk(locate(str(path))))
    return webdataset.read_rows(shard, range(shard.rows))


@pytest.mark.parametrize("format", ["USTAR_FORMAT", "PAX_FORMAT", "GNU_FORMAT"])
@pytest.mark.parametrize("kind", sorted(shared["KINDS"]))
def test_flare_and_the_original_read_the_same_from_files_of_the_original(
    peer, tmp_path, kind, format
):
    if (kind, format) == ("long", "USTAR_FORMAT"):
        pytest.skip("ustar cannot store these names")
    peer("write", tmp_path / "t.tar", kind, format)
    assert [described(row) for row in rows(tmp_path / "t.tar")] == peer("read", tmp_path / "t.tar")


COLUMNS = {
    "caption": "str",
    "image": "jpeg",
    "label": "int",
    "score": "float64",
    "meta": "json",
    "raw.bin": "bytes",
    "Mixed": "str",
}


def samples():
    for i in range(50):
        score = (0.1 * i, -0.0, 1e300, float("inf"), 5e-324)[i % 5]
        yield {
            "__key__": ("a/" * (i % 3) + f"{i}", "é" * i + str(i), "long" * 30 + f"/{i}")[i % 3],
            "caption": "é 漢 " * i,
            "image": b"\xff\xd8\xff" + bytes(i * 40),
            "label": (-1) ** i * 7**i,
            "score": score,
            "meta": {"i": [i, None, "é"]},
            "raw.bin": bytes(i * 30),
            "Mixed": "m",
        }


def pack_samples(folder):
    columns = webdataset.arrange(
        encodings.column(name, encoding) for name, encoding in {"__key__": "str", **COLUMNS}.items()
    )
    arrays = []
    for column in columns:
        values = [sample[column.name] for sample in samples()]
        texts = {"str_int": str, "json_float": json.dumps, "json": json.dumps}.get(column.encoding)
        arrays.append(
            pa.array(
                [texts(value) if texts else value for value in values],
                encodings.lookup(column.encoding).arrow,
            )
        )
    batch = pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(column) for column in columns])
    )
    return webdataset.write_shard(locate(f"{folder}/"), 0, columns, [batch], Settings())


def test_the_original_decodes_files_of_flare_to_the_same_values(peer, tmp_path):
    pack_samples(tmp_path)
    names = {
        "caption": "caption.txt",
        "image": "image.jpg",
        "label": "label.cls",
        "score": "score.json",
        "meta": "meta.json",
        "Mixed": "mixed.txt",
    }
    expected = [
        {
            names.get(name, name): [len(value), hashlib.sha256(value).hexdigest()]
            if isinstance(value, bytes)
            else value
            for name, value in sample.items()
        }
        for sample in samples()
    ]
    assert peer("decode", tmp_path / "00000.tar") == expected


def test_flare_and_the_original_read_the_same_from_files_of_flare(peer, tmp_path):
    pack_samples(tmp_path)
    assert peer("read", tmp_path / "00000.tar") == [
        described(row) for row in rows(tmp_path / "00000.tar")
    ]
