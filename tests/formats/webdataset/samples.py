"""Tars and batches of samples for the tests of WebDataset."""

import hashlib
import io
import json
import tarfile
from pathlib import Path

import pyarrow as pa

from flarecli import encodings
from flarecli.formats import find
from flarecli.model import Chunk, Settings
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore

webdataset = find("webdataset")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "webdataset"

NAMES = ["plain", "deep", "pax", "gnu"]


def expected(name):
    return [
        json.loads(line) for line in (GOLDEN / name / "expected.jsonl").read_text().splitlines()
    ]


def summary(row):
    """Return a row as the fixtures list it, without missing members."""
    return {
        name: data.decode() if name == "__key__" else [len(data), hashlib.sha256(data).hexdigest()]
        for name, data in row.items()
        if data is not None
    }


def columns_of(**encoded):
    return webdataset.arrange(
        encodings.column(name, encoding) for name, encoding in encoded.items()
    )


def batch_of(columns, rows):
    """Return rows (tuples) as a typed batch of the columns."""
    arrays = [
        pa.array(values, encodings.lookup(one.encoding).arrow)
        for one, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(one) for one in columns])
    )


def write_rows(columns, rows, number=0, **settings):
    """Write rows (tuples) as a tar in memory; return its chunk."""
    at = Location(MemoryStore(), "")
    return webdataset.write_shard(
        at, number, columns, [batch_of(columns, rows)], Settings(**settings)
    )


def write_batches(columns, *batches, **settings):
    """Write batches as a tar in memory; return its files: name -> bytes."""
    store = MemoryStore()
    webdataset.write_shard(Location(store), 0, columns, list(batches), Settings(**settings))
    return store.files


def tar_of(files, format=tarfile.PAX_FORMAT):
    """Return a tar that tarfile writes; files are pairs of name and bytes."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, data in files:
            one = tarfile.TarInfo(name)
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


def open_files(files, columns=None):
    """Open the shard 00000.tar of files in memory."""
    return webdataset.open_shard(Chunk(Location(MemoryStore(dict(files)), "00000.tar")), columns)


def chunk_of(data, **beside):
    store = MemoryStore(
        {"t.tar": data, **{name.replace("_", "."): value for name, value in beside.items()}}
    )
    return Chunk(Location(store, "t.tar"))


def rows_of(data, columns=None):
    """Return the rows of a tar."""
    shard = webdataset.open_shard(chunk_of(data), columns)
    return webdataset.read_rows(shard, range(shard.rows))
