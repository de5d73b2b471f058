"""Arrow files, streams and Feather: rows, and errors for damaged files."""

import random

import pyarrow as pa
import pyarrow.feather
import pytest

from flarecli.errors import (
    FlareError,
    FormatError,
)
from flarecli.formats.tables.base import value_sizes
from flarecli.formats.tables.ipc import Ipc
from flarecli.formats.tables.schema_merge import convert, plain
from flarecli.ingest import open_index
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.ingest.samples import rows_of


def ipc_bytes(table: pa.Table, is_file=True, batch_rows=7) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema) as out:
        out.write_table(table, max_chunksize=batch_rows)
    return sink.getvalue().to_pybytes()


def arrow(data: bytes) -> Ipc:
    return Ipc(Location(MemoryStore({"x.arrow": data}), "x.arrow"))


TABLE = pa.table(
    {
        "n": range(40),
        "t": [f"text {n}" for n in range(40)],
        "d": pa.array(["a", "b"] * 20).dictionary_encode(),
    }
)


@pytest.mark.parametrize("is_file", [True, False])
def test_arrow_columns_are_returned_in_the_requested_order(is_file):
    part = arrow(ipc_bytes(TABLE, is_file))
    assert part.schema == pa.schema([("n", pa.int64()), ("t", pa.string()), ("d", pa.string())])
    found = pa.Table.from_batches(part.batches(["d", "n"]))
    assert found.to_pydict() == {"d": ["a", "b"] * 20, "n": list(range(40))}


def test_feather_is_read(tmp_path):
    pa.feather.write_feather(TABLE, tmp_path / "x.feather")
    assert rows_of(open_index(str(tmp_path / "x.feather"))) == TABLE.to_pylist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.arrow: file is empty"),
        (b"FEA1" + bytes(40), "x.arrow: Feather version 1 is not supported"),
        (
            ipc_bytes(pa.Table.from_arrays([pa.array([1])] * 2, names=["x", "x"])),
            "x.arrow: duplicate column 'x'",
        ),
        (ipc_bytes(TABLE)[:-20], "x.arrow: not valid Arrow IPC: "),
        (b"hello world, this is text", "x.arrow: not valid Arrow IPC: "),
    ],
)
def test_invalid_arrow_files_are_reported(data, message):
    with pytest.raises(FormatError) as caught:
        list(arrow(data).batches(None))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("is_file", [True, False])
def test_flipped_bytes_in_arrow_files_do_not_crash(is_file):
    data, rng = ipc_bytes(TABLE, is_file), random.Random(3)
    for _ in range(400):
        at = rng.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        try:
            list(arrow(damaged).batches(None))
        except FlareError as error:
            assert "\n" not in str(error)


TEXTS = pa.array(["", "a", "bcd", "é" * 30, None] * 8).dictionary_encode()
OFFSETS = pa.array([0, 3, 3, 10, 11, 40], pa.int32())
NESTED = {
    "struct": pa.StructArray.from_arrays([TEXTS, TEXTS], ["x", "y"]),
    "list": pa.ListArray.from_arrays(OFFSETS, TEXTS),
    "list of structs": pa.ListArray.from_arrays(
        OFFSETS, pa.StructArray.from_arrays([TEXTS], ["x"])
    ),
    "large list of views": pa.LargeListArray.from_arrays(
        OFFSETS.cast(pa.int64()), TEXTS.dictionary_decode().cast(pa.string_view())
    ),
    "fixed-size list": pa.FixedSizeListArray.from_arrays(TEXTS, 4),
    "list view": pa.ListViewArray.from_arrays(
        pa.array([30, 0, 5, 5], pa.int32()), pa.array([10, 3, 0, 20], pa.int32()), TEXTS
    ),
    "map": pa.MapArray.from_arrays(
        pa.array([0, 1, 1, 4], pa.int32()), pa.array(["k", "kk", "kkk", ""]), TEXTS.slice(2, 4)
    ),
    "run-end encoded": pa.RunEndEncodedArray.from_arrays(
        pa.array([3, 5, 40], pa.int32()), pa.array(["x", "yyyy", None])
    ),
    "lists of null": pa.ListArray.from_arrays(pa.array([0, None, 2, 2], pa.int32()), TEXTS),
}


def decoded_size(value, kind: pa.DataType) -> int:
    """Return the size of a value in Arrow's memory: 4 bytes per text and list, and the texts."""
    if pa.types.is_struct(kind):
        return sum(decoded_size((value or {}).get(one.name), one.type) for one in kind)
    if pa.types.is_map(kind):
        pairs = [(key, kind.key_type) for key, _ in value] + [(x, kind.item_type) for _, x in value]
        return 4 + sum(decoded_size(*pair) for pair in pairs)
    if pa.types.is_fixed_size_list(kind):
        return sum(decoded_size(one, kind.value_type) for one in value)
    if pa.types.is_nested(kind) and not pa.types.is_run_end_encoded(kind):
        return 4 + sum(decoded_size(one, kind.value_type) for one in value or [])
    return 4 + len((value or "").encode())


@pytest.mark.parametrize("name", NESTED)
def test_the_size_of_a_nested_value_counts_shared_texts_for_each_value(name):
    array = NESTED[name]
    for start in range(len(array)):
        part = array.slice(start, 7)
        sizes = value_sizes(pa.RecordBatch.from_arrays([part], ["x"]))
        assert sizes.tolist() == [decoded_size(value, part.type) for value in part.to_pylist()]
    assert value_sizes(pa.RecordBatch.from_arrays([array.slice(0, 0)], ["x"])).tolist() == []


LONG = pa.DictionaryArray.from_arrays(pa.array([0] * 2000, pa.int32()), pa.array(["x" * 100_000]))
ONE_EACH = pa.array(range(2001), pa.int32())
COUNTING = pa.proxy_memory_pool(pa.default_memory_pool())  # must outlive the arrays that it holds


@pytest.mark.parametrize(
    "array",
    [
        pa.ListArray.from_arrays(ONE_EACH, LONG),
        pa.LargeListArray.from_arrays(ONE_EACH.cast(pa.int64()), LONG),
        pa.ListViewArray.from_arrays(ONE_EACH[:2000], pa.array([1] * 2000, pa.int32()), LONG),
        pa.FixedSizeListArray.from_arrays(LONG, 2),
        pa.StructArray.from_arrays([LONG], ["x"]),
        pa.StructArray.from_arrays([pa.ListArray.from_arrays(ONE_EACH, LONG)], ["x"]),
        pa.MapArray.from_arrays(ONE_EACH, pa.array(["k"] * 2000), LONG),
    ],
    ids=lambda array: str(array.type)[:40],
)
def test_converting_a_slice_decodes_only_its_own_values(array):
    part, default = array.slice(900, 3), pa.default_memory_pool()
    pa.set_memory_pool(COUNTING)
    try:
        converted = convert(part, plain(part.type))
    finally:
        pa.set_memory_pool(default)
    assert converted.to_pylist() == part.to_pylist()
    assert COUNTING.max_memory() < 5_000_000  # all values take 200 MB


def test_a_large_batch_of_nested_dictionaries_is_not_split_into_batches_of_a_few_rows():
    count = 200_000
    codes = pa.array([n % 50 for n in range(count)], pa.int32())
    texts = pa.DictionaryArray.from_arrays(codes, pa.array([f"class {n}" for n in range(50)]))
    table = pa.table({"x": pa.StructArray.from_arrays([texts], ["name"])})
    batches = list(arrow(ipc_bytes(table, batch_rows=count)).batches(None))
    assert sum(batch.num_rows for batch in batches) == count
    assert len(batches) <= count // 1000


def test_repeated_long_texts_in_nested_dictionaries_lead_to_small_batches():
    text = "x" * 1_000_000
    codes = pa.array([0] * 2000, pa.int32())
    texts = pa.DictionaryArray.from_arrays(codes, pa.array([text]))
    table = pa.table({"x": pa.ListArray.from_arrays(pa.array(range(2001), pa.int32()), texts)})
    batches = arrow(ipc_bytes(table, batch_rows=2000)).batches(None)
    assert [next(batches).num_rows for _ in range(3)] == [16, 16, 16]
