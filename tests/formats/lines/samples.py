"""Shards of lines in memory for the tests of their formats."""

import json
import struct

import pyarrow as pa

from flarecli import encodings
from flarecli.encodings import BINARY, lookup, typed
from flarecli.model import Chunk, Settings
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore


def columns_of(form, names):
    """Return columns, name -> encoding, as a format stores them."""
    return form.arrange(encodings.column(name, encoding) for name, encoding in names.items())


def batch_of(columns, rows):
    """Return stored bytes as a typed batch; each row is a mapping."""
    arrays = [
        typed(pa.array([row[one.name] for row in rows], BINARY), lookup(one.encoding))
        for one in columns
    ]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(one) for one in columns])
    )


def write_rows(form, names, rows, how=None):
    """Write rows of stored bytes as a shard in memory; return its chunk and columns."""
    columns = columns_of(form, names)
    chunk = form.write_shard(
        Location(MemoryStore(), ""), 0, columns, [batch_of(columns, rows)], how or Settings()
    )
    return chunk, columns


def shard_of(form, data, starts, config, name=None):
    """Return a shard built from data, table and config."""
    name = name or f"shard.00000.{form.name}"
    table = (
        struct.pack(f"<I{len(starts)}I", len(starts) - 1, *starts)
        + json.dumps(config, sort_keys=True).encode()
    )
    store = MemoryStore({name: data, f"{name}.meta": table})
    return form.open_shard(Chunk(Location(store, name)))
