"""Reading single samples, mapped or by ranges, with all columns or some."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.encodings import column, field
from flarecli.errors import FormatError
from flarecli.formats import byte_ranges, find
from flarecli.formats.mds import read as mds_read
from flarecli.formats.mds.read import read_rows
from flarecli.model import Chunk, Settings, Shard
from flarecli.storage import locate
from tests.properties import examples

mds = find("mds")

SIZES = {
    "a": "int",
    "b": "uint8",
    "c": "bytes",
    "d": "float64",
    "e": "str",
    "f": "ndarray:uint8:5000",
}  # f is large for a column of fixed size


def shard_of(folder, names, rows, maps):
    columns = tuple(column(name, SIZES[name]) for name in names)
    fields = [field(one) for one in columns]
    batch = pa.RecordBatch.from_arrays(
        [pa.array([row[one.name] for row in rows], one.type) for one in fields],
        schema=pa.schema(fields),
    )
    chunk = mds.write_shard(locate(str(folder)), 0, columns, [batch], Settings())
    return mds.open_shard(
        chunk if maps else Chunk(chunk.at.unmapped(), chunk.rows, chunk.files, chunk.format)
    )


def stored(row, name):
    value = row[name]
    if name == "a":
        return value.to_bytes(8, "little", signed=True)
    if name == "b":
        return bytes([value])
    if name == "d":
        return pa.array([value], pa.float64()).buffers()[1].to_pybytes()[:8]
    return value.encode() if name == "e" else value


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_every_column_is_read_from_its_position(tmp_path_factory, data):
    names = sorted(data.draw(st.sets(st.sampled_from(sorted(SIZES)), min_size=1)))
    rows = [
        {
            "a": i - 2,
            "b": i,
            "c": bytes([i]) * (i * 7 % 5),
            "d": i / 3,
            "e": "é" * (i % 3),
            "f": bytes([i]) * 5000,
        }
        for i in range(data.draw(st.integers(1, 5)))
    ]
    maps = data.draw(st.booleans())
    shard = shard_of(tmp_path_factory.mktemp("rows"), names, rows, maps)
    some = data.draw(st.none() | st.lists(st.sampled_from(names), unique=True))
    order = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=6))
    wanted = [
        {name: stored(rows[i], name) for name in names if some is None or name in some}
        for i in order
    ]
    assert read_rows(shard, order, some) == wanted
    assert [list(row) for row in read_rows(shard, order, some)] == [
        list(row) for row in wanted
    ]  # the order of the format
    assert all(
        type(value) is bytes for row in read_rows(shard, order, some) for value in row.values()
    )
    found = gathered([shard], order, some)
    assert (found is not None) is maps
    if found is not None:
        assert found == {
            name: [row[name] for row in wanted] for name in names if some is None or name in some
        }


@settings(max_examples=examples(40), deadline=None)
@given(st.sets(st.sampled_from(sorted(SIZES)), min_size=1), st.data())
def test_columns_of_large_rows_are_read_alone(tmp_path_factory, names, data):
    rows = [
        {"a": i, "b": i, "c": b"c" * i, "d": i / 3, "e": "é" * i, "f": bytes([i]) * 5000}
        for i in range(3)
    ]
    shard = shard_of(tmp_path_factory.mktemp("rows"), sorted(names), rows, False)
    some = data.draw(st.lists(st.sampled_from(sorted(names)), unique=True))
    whole = [
        (mds.read_rows(shard, [i], some), mds.read_batch(shard, i, i + 1, some)) for i in (0, 2)
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mds_read, "MAX_WHOLE_ROW_BYTES", 0)
        parts = [
            (mds.read_rows(shard, [i], some), mds.read_batch(shard, i, i + 1, some)) for i in (0, 2)
        ]
    assert parts == whole


@pytest.mark.parametrize("cut", [2, 11])
def test_a_large_row_with_invalid_lengths_is_refused(tmp_path, monkeypatch, cut):
    monkeypatch.setattr(mds_read, "MAX_WHOLE_ROW_BYTES", 0)
    shard = shard_of(tmp_path, ["a", "c"], [{"a": 1, "c": b"12345678"}], False)
    starts = shard.layout["starts"].copy()
    starts[1] = starts[0] + cut
    damaged = Shard(shard.chunk, shard.columns, 1, {"starts": starts})
    message = (
        f"sample has {cut} bytes; its {'length fields need 4' if cut < 4 else 'fields need 20'}"
    )
    for read in (
        lambda: mds.read_rows(damaged, [0], ["a"]),
        lambda: mds.read_batch(damaged, 0, 1, ["a"]),
    ):
        with pytest.raises(FormatError) as caught:
            read()
        assert caught.value.message == message
    assert mds.large_values(damaged, 1) == []


def change_table(shard, starts):
    """Write other sample offsets to the file of an open shard."""
    table = np.array(starts, "<u4")
    with open(str(shard.chunk.at), "r+b") as file:
        file.seek(4)
        file.write(table.tobytes())
    shard.layout["starts"] = table


def gathered(shards, rows, some=None):
    """Return the columns of rows in several shards as lists; `rows` has the same rows per shard."""
    edges = [len(rows) * k for k in range(len(shards) + 1)]
    order = np.arange(len(rows) * len(shards))[::-1]
    rows = np.array([*rows] * len(shards), np.int64)
    found = columns_as_lists(mds.gather_columns(shards, rows, edges, some))
    reversed_rows = columns_as_lists(mds.gather_columns(shards, rows, edges, some, order))
    assert reversed_rows == (found and {name: values[::-1] for name, values in found.items()})
    return found


def columns_as_lists(found):
    return found and {
        name: one if isinstance(one, list) else one.tolist() for name, one in found.items()
    }


def test_readers_do_not_keep_a_compressed_shard(tmp_path):
    batch = pa.RecordBatch.from_arrays([pa.array([b"ab", b"c"], pa.large_binary())], ["b"])
    chunk = mds.write_shard(
        locate(str(tmp_path)), 0, (column("b", "bytes"),), [batch], Settings(compression="zstd")
    )
    shard = mds.open_shard(chunk)
    assert gathered([shard], [1, 0, 1]) == {"b": [b"c", b"ab", b"c"]}
    assert shard.memo == {}


@pytest.mark.parametrize("buffer_bits", [4, 30])  # a value may begin in any of the buffers
@pytest.mark.parametrize("sizes", [(0, 12), (13, 14), (1, 300), (3000, 4000)])
def test_values_of_several_shards_are_copied(tmp_path, monkeypatch, buffer_bits, sizes):
    monkeypatch.setattr(byte_ranges, "BUFFER_BITS", buffer_bits)
    rows = [{"a": size, "c": bytes([size % 251]) * size, "e": "x" * size} for size in (*sizes, 7)]
    shards = [shard_of(tmp_path / str(k), ["a", "c", "e"], rows[k:], True) for k in range(2)]
    order = [1, 0, 1]
    wanted = [rows[k:][i] for k in range(2) for i in order]
    assert gathered(shards, order) == {
        name: [stored(row, name) for row in wanted] for name in ("a", "c", "e")
    }


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize(
    ("size", "message"),
    [
        (3, "sample has 3 bytes; its length fields need 4"),  # the lengths do not fit
        (10, "sample has 10 bytes; its fields need 15"),  # the numbers before the text do not fit
        (13, "sample has 13 bytes; its fields need 15"),
    ],
)
def test_a_sample_that_is_too_short_is_reported(tmp_path, maps, size, message):
    shard = shard_of(tmp_path, ["a", "b", "c"], [{"a": 1, "b": 2, "c": b"xy"}], maps)
    start = int(shard.layout["starts"][0])
    change_table(shard, [start, start + size])
    assert gathered([shard], [0]) is None
    with pytest.raises(FormatError) as caught:
        read_rows(shard, [0])
    assert str(caught.value) == f"{shard.chunk.at}[0]: {message}"


def test_a_huge_declared_column_size_is_only_an_error(tmp_path):
    shard = shard_of(tmp_path, ["a", "c"], [{"a": 1, "c": b"xy"}], True)
    columns = (column("a", "ndarray:uint8:4294967295"), shard.columns[1])
    hostile = type(shard)(shard.chunk, columns, shard.rows, shard.layout)
    assert gathered([hostile], [0]) is None
    with pytest.raises(FormatError, match="sample has 14 bytes; its fields need [0-9]+$"):
        read_rows(hostile, [0])


@pytest.mark.parametrize("starts", [[0, 20], [1 << 20, 1 << 20], [60, 1 << 20]])
def test_rows_outside_a_file_that_was_changed_are_not_copied(tmp_path, starts):
    shard = shard_of(tmp_path, ["c"], [{"c": b"xy"}], True)
    change_table(shard, starts)
    assert gathered([shard], [0]) is None
    with pytest.raises(FormatError, match=r"^[^ ]+\[0\]: sample has \d+ bytes; its "):
        read_rows(shard, [0])
