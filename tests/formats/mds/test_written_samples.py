"""The bytes of MDS samples compared with a plain implementation."""

import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.encodings import column, field
from flarecli.errors import ValueFitError
from flarecli.formats.mds.format import MDS, samples
from flarecli.model import Settings
from flarecli.storage import locate

KINDS = {"a": "int", "b": "bytes", "c": "uint16", "d": "float32", "e": "str", "f": "int8"}
ROWS = st.lists(
    st.tuples(
        st.integers(-(1 << 63), (1 << 63) - 1),
        st.binary(max_size=9),
        st.integers(0, 65535),
        st.floats(width=32, allow_nan=False),
        st.text(max_size=5),
        st.integers(-128, 127),
    ),
    max_size=20,
)
PACK = {"int": "<q", "uint16": "<H", "float32": "<f", "int8": "<b"}


def plainly(names, rows):
    out = b""
    for row in rows:
        fields = [_stored(KINDS[name], row["abcdef".index(name)]) for name in names]
        lengths = [
            struct.pack("<I", len(data))
            for name, data in zip(names, fields, strict=True)
            if KINDS[name] not in PACK
        ]
        out += b"".join((*lengths, *fields))
    return out


def _stored(encoding, value):
    return (
        struct.pack(PACK[encoding], value)
        if encoding in PACK
        else value.encode()
        if encoding == "str"
        else value
    )


def batch_of(names, rows):
    columns = tuple(column(name, KINDS[name]) for name in names)
    fields = [field(one) for one in columns]
    arrays = [
        pa.array([row["abcdef".index(name)] for row in rows], one.type)
        for name, one in zip(names, fields, strict=True)
    ]
    return columns, pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


@given(ROWS, st.sets(st.sampled_from("abcdef"), min_size=1), st.integers(0, 3))
def test_samples_are_lengths_and_fields_for_any_mix_of_columns(rows, names, cut):
    names = sorted(names)
    columns, batch = batch_of(names, rows)
    assert b"".join(samples(columns, [batch.slice(cut)])) == plainly(names, rows[cut:])


def test_large_batches_are_joined_in_pieces():
    rows = [(i, bytes([i % 256]) * 700, 1, 0.5, "ä", 1) for i in range(5000)]
    columns, batch = batch_of(list("abcdef"), rows)
    pieces = list(samples(columns, [batch.slice(1, 3000), batch.slice(3001)]))
    assert len(pieces) > 3
    assert b"".join(pieces) == plainly("abcdef", rows[1:])


def test_a_null_is_refused_and_does_not_remove_its_row():
    columns, batch = batch_of(["a"], [(1, b"", 1, 0.5, "", 1)])
    holed = pa.RecordBatch.from_arrays([pa.array([None], pa.int64())], schema=batch.schema)
    with pytest.raises(ValueFitError, match="^column 'a' is null; mds cannot store nulls$"):
        list(samples(columns, [holed]))


def test_a_field_of_fixed_size_must_have_that_size():
    columns = (column("a", "ndarray:uint8:2,2"),)
    batch = pa.RecordBatch.from_arrays(
        [pa.array([b"1234", b"123"], pa.large_binary())], names=["a"]
    )
    assert b"".join(samples(columns, [batch.slice(0, 1)])) == b"1234"
    with pytest.raises(ValueFitError, match="^column 'a': expected values of 4 bytes$"):
        list(samples(columns, [batch]))


def test_a_shard_of_small_rows_is_written_with_one_copy_of_its_table(tmp_path):
    """The table has 4 bytes per row; int64 offsets and copies of them would take 32 bytes."""
    batch = pa.record_batch(
        [pa.array(np.arange(8192))], schema=pa.schema([field(column("a", "int"))])
    )
    rows = 64 * batch.num_rows
    tracemalloc.start()
    try:
        MDS().write_shard(locate(str(tmp_path)), 0, (column("a", "int"),), [batch] * 64, Settings())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert 4 * rows < peak < 8 * rows
