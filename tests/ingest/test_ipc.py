"""Arrow files, streams and Feather: rows, and errors for damaged files."""

import random

import pyarrow as pa
import pyarrow.feather
import pytest

from flarecli.errors import (
    FlareError,
    FormatError,
)
from flarecli.formats.tables.ipc import Ipc
from flarecli.ingest import open_index
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.ingest.samples import rows_of


def ipc_bytes(table: pa.Table, is_file=True) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema) as out:
        out.write_table(table, max_chunksize=7)
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
