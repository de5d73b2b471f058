"""WebDataset beside the library that defines it: it reads what flare packed to the same values, and flare reads what it writes.

WEBDATASET_PYTHON names an interpreter that has webdataset 1.0; `fixtures/webdataset` holds what it once wrote, and is read always.
"""

import hashlib
import json
import os
import runpy
import subprocess
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
ours = runpy.run_path(str(SCRIPT))
pytestmark = pytest.mark.skipif(
    not PEER, reason="WEBDATASET_PYTHON names no interpreter that has webdataset"
)


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


def shown(row):
    return {
        name: data.decode() if name == "__key__" else ours["shown"](data)
        for name, data in row.items()
        if data is not None
    }


def rows(path):
    shard = webdataset.open_shard(Chunk(locate(str(path))))
    return webdataset.read_rows(shard, range(shard.rows))


@pytest.mark.parametrize("format", ["USTAR_FORMAT", "PAX_FORMAT", "GNU_FORMAT"])
@pytest.mark.parametrize("kind", sorted(ours["KINDS"]))
def test_both_read_the_same_out_of_what_the_original_writes(tmp_path, kind, format):
    if (kind, format) == ("long", "USTAR_FORMAT"):
        pytest.skip("ustar has no room for those names")
    peer("write", tmp_path / "t.tar", kind, format)
    assert [shown(row) for row in rows(tmp_path / "t.tar")] == peer("read", tmp_path / "t.tar")


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


def packed(folder):
    columns = webdataset.arrange(
        encodings.column(name, encoding) for name, encoding in {"__key__": "str", **COLUMNS}.items()
    )
    arrays = []
    for one in columns:
        values = [sample[one.name] for sample in samples()]
        texts = {"str_int": str, "json_float": json.dumps, "json": json.dumps}.get(one.encoding)
        arrays.append(
            pa.array(
                [texts(value) if texts else value for value in values],
                encodings.lookup(one.encoding).arrow,
            )
        )
    batch = pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(one) for one in columns])
    )
    return webdataset.write_shard(locate(f"{folder}/"), 0, columns, [batch], Settings())


def test_the_original_decodes_what_flare_writes_to_the_same_values(tmp_path):
    packed(tmp_path)
    names = {
        "caption": "caption.txt",
        "image": "image.jpg",
        "label": "label.cls",
        "score": "score.json",
        "meta": "meta.json",
        "Mixed": "mixed.txt",
    }
    wanted = [
        {
            names.get(name, name): [len(value), hashlib.sha256(value).hexdigest()]
            if isinstance(value, bytes)
            else value
            for name, value in sample.items()
        }
        for sample in samples()
    ]
    assert peer("decode", tmp_path / "00000.tar") == wanted


def test_both_read_the_same_out_of_what_flare_writes(tmp_path):
    packed(tmp_path)
    assert peer("read", tmp_path / "00000.tar") == [
        shown(row) for row in rows(tmp_path / "00000.tar")
    ]
