"""cat: selection and order of rows, and columns."""

import gzip
import io
import json
import tarfile
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import commands
from flarecli.commands import cat, row_reader, unpack
from flarecli.commands import row_order as rows_of
from flarecli.errors import FormatError, RowsError, UsageError
from flarecli.write import Writer
from tests.properties import examples


def ids(address, **options) -> list[int]:
    return [
        one
        for batch in commands.cat(str(address), **options)
        for one in batch.column("id").to_pylist()
    ]


@pytest.mark.parametrize("kind", ["plain", "zipped"])
def test_all_rows_are_returned_in_order(kind, request, samples):
    batches = list(commands.cat(str(request.getfixturevalue(kind))))
    assert [row for batch in batches for row in batch.to_pylist()] == samples
    assert batches[0].schema.field("image").metadata == {b"encoding": b"jpeg"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"rows": "5"}, [5]),
        ({"rows": "8:12"}, [8, 9, 10, 11]),
        ({"rows": "-3:"}, [32, 33, 34]),
        ({"rows": "::10"}, [0, 10, 20, 30]),
        ({"rows": "3:0:-1"}, [3, 2, 1]),
        ({"rows": "33,1,4,1"}, [33, 1, 4, 1]),
        ({"rows": "30:,0:2"}, [30, 31, 32, 33, 34, 0, 1]),
        ({"head": 3}, [0, 1, 2]),
        ({"tail": 2}, [33, 34]),
        ({"head": 5, "tail": 2}, [3, 4]),
        ({"limit": 4, "head": 9}, [0, 1, 2, 3]),
        ({"limit": 0}, []),
        ({"rows": "10:20", "rank": (1, 4)}, [11, 15, 19]),
        ({"where": "id % 10 = 3"}, [3, 13, 23, 33]),
        ({"where": "id % 10 = 3", "limit": 3, "tail": 2}, [13, 23]),
        ({"where": "id > 30", "head": 2}, [31, 32]),
        (
            {"where": "id > 30", "limit": 1 << 70, "head": 1 << 70, "tail": 1 << 70},
            [31, 32, 33, 34],
        ),
        (
            {"limit": 1 << 70, "head": 1 << 70, "tail": 1 << 70, "rows": "33:", "sample": 1 << 70},
            [33, 34],
        ),
        ({"where": "false"}, []),
        ({"where": "SELECT id + 1 AS id FROM dataframe WHERE id < 2"}, [1, 2]),
    ],
)
def test_selected_rows_are_returned_in_order(plain, options, expected):
    assert ids(plain, **options) == expected


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rank": (2, 2)}, "invalid rank 2 of 2: ranks are numbered from 0"),
        ({"rank": (0, 0)}, "invalid rank 0 of 0: ranks are numbered from 0"),
        ({"rank": (-1, 2)}, "invalid rank -1 of 2: ranks are numbered from 0"),
        ({"shuffle": -1}, "--shuffle: expected at least 0, got -1"),
        (
            {"sample": 2, "seed": -1},
            "--seed: expected at least 0, got -1",
        ),
        (
            {"shuffle": 1, "epoch": -1},
            "--epoch: expected at least 0, got -1",
        ),
        ({"sample": 1.5}, "invalid sample 1.5: expected a whole number, or a share of at most 1.0"),
        (
            {"sample": float("nan")},
            "--sample: expected at least 0, got nan",
        ),
    ],
)
def test_invalid_numbers_are_refused(plain, options, message):
    with pytest.raises(UsageError) as caught:
        ids(plain, **options)
    assert str(caught.value) == message


def test_columns_are_in_the_requested_order_and_a_condition_may_use_other_columns(plain):
    batches = list(commands.cat(str(plain), columns=["text", "id"], rows="2"))
    assert [batch.to_pylist() for batch in batches] == [[{"text": "caption 2", "id": 2}]]
    batches = list(commands.cat(str(plain), columns=["text"], where="ID = 3"))
    assert [batch.to_pylist() for batch in batches] == [[{"text": "caption 3"}]]


def test_sources_may_be_an_iterator(plain):
    batches = commands.cat((source for source in (str(plain), plain)), columns=["id"])
    assert [one for batch in batches for one in batch.column("id").to_pylist()] == [
        *range(35),
        *range(35),
    ]


def test_an_empty_result_has_a_schema(plain):
    (batch,) = commands.cat(str(plain), rows="0:0", columns=["id"])
    assert (batch.num_rows, batch.schema.names) == (0, ["id"])


def test_a_shuffle_is_a_permutation_that_the_ranks_share(plain):
    complete = ids(plain, shuffle=7)
    assert sorted(complete) == list(range(35)) and complete != list(range(35))
    assert ids(plain, shuffle=7) == complete != ids(plain, shuffle=8)
    assert ids(plain, shuffle=7, epoch=1) != complete
    assert [ids(plain, shuffle=7, rank=(r, 3)) for r in range(3)] == [
        complete[r::3] for r in range(3)
    ]
    assert sorted(ids(plain, rows="10:20", shuffle=1)) == list(range(10, 20))


def test_a_sample_is_reproducible_and_in_row_order(plain):
    some = ids(plain, sample=10)
    assert len(some) == 10 and some == sorted(set(some)) == ids(plain, sample=10)
    assert ids(plain, sample=10, seed=1) != some
    assert len(ids(plain, sample=0.2)) == 7
    assert ids(plain, sample=1.0) == ids(plain, sample=99) == list(range(35))
    assert ids(plain, sample=np.int64(10), seed=np.int64(1)) == ids(plain, sample=10, seed=1)
    assert ids(plain, sample=np.float32(0.2)) == ids(plain, sample=7)


@settings(max_examples=examples(60), deadline=None)
@given(
    st.integers(1, 400),
    st.one_of(st.none(), st.integers(0, 500), st.floats(0, 1)),
    st.one_of(st.none(), st.integers(0, 9)),
    st.integers(1, 5),
)
def test_all_ranks_together_have_each_selected_row_once(total, sample, shuffle, ranks):
    complete = rows_of.select_rows(total, None, sample, 3, shuffle)
    seen = Counter(
        row
        for r in range(ranks)
        for row in _all(rows_of.select_rows(total, None, sample, 3, shuffle, rank=(r, ranks)))
    )
    assert seen == Counter(_all(complete)) and set(seen.values()) <= {1}


def _all(order):
    return order.rows(0, len(order)).tolist()


def test_consecutive_rows_are_scanned_and_others_are_read_in_small_blocks(plain, monkeypatch):
    monkeypatch.setattr(row_reader, "_TAKE_ROWS", 4)
    sizes = [batch.num_rows for batch in commands.cat(str(plain), shuffle=1)]
    assert sizes == [4] * 8 + [3]
    assert ids(plain, rows="0:20,30") == [*range(20), 30]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rows": "35"}, RowsError, "row 35 is outside the data, which has 35 rows"),
        ({"rows": "x"}, UsageError, "invalid rows: 'x'"),
        ({"columns": ["nope"]}, UsageError, "--columns: no column 'nope'"),
        ({"columns": ["nope"], "where": "id > 1"}, UsageError, "--columns: no column 'nope'"),
        ({"head": -1}, UsageError, "--head: expected at least 0, got -1"),
        ({"epoch": 1}, UsageError, "--epoch needs --shuffle"),
    ],
)
def test_invalid_options_are_refused_before_rows_are_read(plain, options, error, message):
    with pytest.raises(error) as caught:
        commands.cat(str(plain), **options)
    assert str(caught.value) == message


def test_the_hint_for_an_unknown_column_lists_all_columns(plain):
    names = ", ".join(next(iter(commands.cat(str(plain), limit=1))).schema.names)
    for where in (None, "id > 1"):
        with pytest.raises(UsageError) as caught:
            commands.cat(str(plain), columns=["nope"], where=where)
        assert caught.value.hint == f"Choose from {names}."


def test_a_tar_at_standard_input_is_read_once_and_in_order(tmp_path, monkeypatch):
    with Writer(
        str(tmp_path / "tars"),
        format="webdataset",
        columns={"__key__": "str", "cls": "str_int", "bin": "bytes"},
    ) as writer:
        for i in range(20):
            writer.write({"__key__": f"k{i:02}", "cls": i, "bin": bytes(1000)})
    plain = (tmp_path / "tars" / "00000.tar").read_bytes()
    for data in (plain, gzip.compress(plain)):
        table = pa.Table.from_batches(
            cat("-", stdin=io.BytesIO(data), where="cls >= 5", head=4, tail=2, columns=["__key__"])
        )
        assert table.to_pydict() == {"__key__": ["k07", "k08"]}
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(plain)))
    assert (
        unpack("-", str(tmp_path / "files"), format="webdataset", limit=3, columns=["bin"]).rows
        == 3
    )
    assert sorted(path.name for path in (tmp_path / "files").iterdir()) == [
        "index.jsonl",
        "k00.bin",
        "k01.bin",
        "k02.bin",
    ]


class Endless:
    """A tar without an end: reading ahead would never return."""

    given = 0

    def read(self, size: int = -1) -> bytes:
        self.given += 1
        assert self.given < 100, "more was read than a batch takes"
        return b"".join(
            tarfile.TarInfo(f"{self.given:04}-{i:03}.txt").tobuf() for i in range(size // 512)
        )


def test_a_stream_is_read_only_as_far_as_necessary():
    (batch,) = cat("-", stdin=Endless(), head=2)
    assert batch.to_pydict() == {"__key__": ["0001-000", "0001-001"], "txt": ["", ""]}


TABLE = pa.table({"id": [1, 2, 3], "name": ["x", "y", "z"]})


def table_bytes(kind):
    sink = pa.BufferOutputStream()
    if kind == "arrow":
        with pa.ipc.new_stream(sink, TABLE.schema) as writer:
            writer.write_table(TABLE)
    elif kind == "parquet":
        pq.write_table(TABLE, sink)
    else:
        return {
            "csv": b"id;name\n1;x\n2;y\n3;z\n",
            "jsonl": b"".join(json.dumps(row).encode() + b"\n" for row in TABLE.to_pylist()),
        }[kind]
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize("compress", [bytes, gzip.compress], ids=["plain", "gzip"])
@pytest.mark.parametrize("kind", ["arrow", "parquet", "csv", "jsonl"])
def test_every_reading_command_reads_a_table_from_a_stream(tmp_path, monkeypatch, kind, compress):
    data = compress(table_bytes(kind))

    def stdin():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        return "-"

    assert pa.Table.from_batches(cat(stdin())).to_pylist() == TABLE.to_pylist()
    assert pa.Table.from_batches(cat(stdin(), rows="-1")).to_pylist() == TABLE.to_pylist()[2:]
    (batch,) = cat("-", stdin=io.BytesIO(data), where="id > 1", columns=["name"], input=kind)
    assert batch.to_pydict() == {"name": ["y", "z"]}
    inspection = commands.inspect(stdin())
    assert [column.name for column in inspection.streams[0].columns] == ["id", "name"]
    assert inspection.streams[0].rows == 3
    verified = commands.verify(stdin())
    assert (list(verified), verified.rows) == ([], 3)
    assert unpack(stdin(), str(tmp_path / "files"), key="id", columns=["name"]).rows == 3
    assert (tmp_path / "files").joinpath("index.jsonl").exists()


def test_damage_in_a_stream_is_a_finding(monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a,b\n1,2\n3\n")))
    found = list(commands.verify("-"))
    assert [str(one.where) for one in found] == ["-"]
    assert [one.message for one in found] == ["line 3 has 1 field; the header has 2"]


def test_streams_and_files_are_concatenated(tmp_path):
    (tmp_path / "x.csv").write_bytes(table_bytes("csv"))
    table = pa.Table.from_batches(
        cat([str(tmp_path / "x.csv"), "-"], stdin=io.BytesIO(table_bytes("csv")))
    )
    assert table.to_pylist() == 2 * TABLE.to_pylist()


@pytest.mark.parametrize(
    ("options", "data", "error", "message"),
    [
        (
            {"rows": "3"},
            bytes(1024),
            UsageError,
            "-: the rows of a tar from standard input or a pipe have no numbers",
        ),
        (
            {"shuffle": 1},
            bytes(1024),
            UsageError,
            "-: the rows of a tar from standard input or a pipe have no numbers",
        ),
        (
            {"format": "mds"},
            bytes(1024),
            UsageError,
            "-: the stream is a tar, which cannot be read as format mds",
        ),
        (
            {"format": "mds"},
            b"a,b\n1,2\n",
            UsageError,
            "-: the stream is csv, which cannot be read as format mds",
        ),
        (
            {},
            b"/dev/null\n",
            UsageError,
            "-: the stream is a list of addresses, not a table or a tar",
        ),
        ({}, bytes(1024), FormatError, "-: tar archive contains no samples"),
        ({}, b"", FormatError, "-: standard input is empty"),
    ],
)
def test_options_that_a_stream_does_not_support_are_refused(options, data, error, message):
    with pytest.raises(error) as caught:
        list(cat("-", stdin=io.BytesIO(data), **options))
    assert str(caught.value) == message
