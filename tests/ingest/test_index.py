"""Several files as one index: its properties, and errors when it is opened."""

import json
import os
import pickle
import random
import re

import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import xxhash

from flarecli.errors import (
    FormatError,
    MissingError,
    UnsafeError,
    UsageError,
)
from flarecli.ingest import is_index, open_index
from flarecli.sql import select
from flarecli.storage import Guard
from tests.ingest.samples import rows_of, write_files


def test_files_of_one_kind_are_concatenated(tmp_path):
    for part in range(3):
        pq.write_table(
            pa.table({"n": [part * 2, part * 2 + 1], "t": ["a", "b"]}), tmp_path / f"{part}.parquet"
        )
    found = open_index([str(tmp_path / f"{part}.parquet") for part in (2, 0, 1)])
    assert (found.rows, found.is_local, str(found.at)) == (6, True, str(tmp_path))
    assert [row["n"] for row in rows_of(found, ["n"])] == [4, 5, 0, 1, 2, 3]


def test_files_written_by_pandas_are_read_unchanged(tmp_path):
    """The texts are what pandas 2 and 3 write for a frame with a null, by `to_csv()` and
    `to_csv(sep="\\t", index=False)`.
    """
    rows = [
        {"id": 3, "url": "http://h/a,b", "score": 0.1},
        {"id": 1, "url": 'say "x"', "score": 1e-300},
        {"id": 2, "url": "two\nlines", "score": None},
    ]
    (tmp_path / "x.csv").write_text(
        ',id,url,score\n0,3,"http://h/a,b",0.1\n1,1,"say ""x""",1e-300\n2,2,"two\nlines",\n'
    )
    (tmp_path / "x.tsv").write_text(
        'id\turl\tscore\n3\thttp://h/a,b\t0.1\n1\t"say ""x"""\t1e-300\n2\t"two\nlines"\t\n'
    )
    assert rows_of(open_index(str(tmp_path / "x.csv"))) == [
        {"": n} | row for n, row in enumerate(rows)
    ]
    assert rows_of(open_index(str(tmp_path / "x.csv")), list(rows[0])) == rows
    assert rows_of(open_index(str(tmp_path / "x.tsv"))) == rows


def test_the_checksum_covers_the_bytes_of_all_files(tmp_path):
    (tmp_path / "a.csv").write_bytes(b"a\n1\n")
    (tmp_path / "b.csv").write_bytes(b"a\n2\n")
    assert open_index(
        [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    ).sum() == xxhash.xxh3_128_hexdigest(b"a\n1\na\n2\n")


def test_an_index_can_be_pickled(tmp_path):
    pq.write_table(pa.table({"n": [1]}), tmp_path / "x.parquet")
    (tmp_path / "x.csv").write_text("n\n1\n")
    for name in ("x.parquet", "x.csv"):
        assert rows_of(pickle.loads(pickle.dumps(open_index(str(tmp_path / name))))) == [{"n": 1}]


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("x.parquet", True),
        ("X.CSV", True),
        ("https://h/x.tsv?sig=1", True),
        ("x.mds", False),
        ("x", False),
        ("folder/", False),
        ("x.parquet/", False),
    ],
)
def test_the_name_of_a_file_determines_whether_it_is_an_index(address, answer):
    assert is_index(address) is answer


def test_an_address_that_does_not_exist_is_missing(tmp_path):
    for name in ("x.parquet", "x.csv", "no/x.tsv"):
        with pytest.raises(MissingError) as caught:
            open_index(str(tmp_path / name))
        assert (str(caught.value), caught.value.exit_code) == (
            f"{tmp_path / name}: no such file or folder",
            3,
        )


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        (
            {"a.parquet": pa.table({"n": pa.array([], pa.int64())})},
            "a.parquet: table has no rows",
            "",
        ),
        ({"a.csv": b"n,t\n"}, "a.csv: table has no rows", ""),
        (
            {"a.csv": b"n,t\n1,2\n", "b.csv": b"n\n1\n"},
            "b.csv: columns differ from the columns of a.csv: missing column 't'",
            "Use --allow-missing to fill missing columns with nulls.",
        ),
        (
            {"a.csv": b"n\n1\n", "b.csv": b"n,t\n1,2\n"},
            "b.csv: columns differ from the columns of a.csv: additional column 't'",
            "Use --allow-missing to fill missing columns with nulls.",
        ),
        (
            {
                "a.csv": b"n\n1\n",
                "b.parquet": pa.table({"n": [1]}),
                "c.parquet": pa.table({"n": [[1]]}),
            },
            "c.parquet: columns differ from the columns of a.csv: column 'n' is list<item: int64> instead of int64",
            "Pack the files one by one, or read the column as text: --encode n=str.",
        ),
        (
            {"a.jsonl": b'{"n": true}', "b.jsonl": b'{"n": 1}'},
            "b.jsonl: columns differ from the columns of a.jsonl: column 'n' is int64 instead of bool",
            "Pack the files one by one, or read the column as text: --encode n=str.",
        ),
    ],
)
def test_an_invalid_index_is_reported_in_one_line(tmp_path, files, message, hint):
    for name, content in files.items():
        if isinstance(content, pa.Table):
            pq.write_table(content, tmp_path / name)
        else:
            (tmp_path / name).write_bytes(content)
    with pytest.raises(FormatError) as caught:
        open_index([str(tmp_path / name) for name in files])
    assert (str(caught.value).replace(f"{tmp_path}/", ""), caught.value.hint) == (message, hint)


def test_an_unknown_column_is_refused(tmp_path):
    (tmp_path / "x.csv").write_text("id,url\n1,2\n")
    with pytest.raises(UsageError) as caught:
        list(open_index(str(tmp_path / "x.csv")).batches(["id", "urls"]))
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}/x.csv: no column 'urls'",
        "Did you mean url? Choose from id, url.",
    )


def test_unknown_and_missing_suffixes_are_refused(tmp_path):
    (tmp_path / "x.xml").write_text("<x/>")
    with pytest.raises(UsageError) as caught:
        open_index(str(tmp_path / "x.xml"))
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}/x.xml: unknown table suffix",
        "Use a file with one of the suffixes .parquet, .arrow, .feather, .arrows, .csv, .tsv, .tab, .psv, .json, .jsonl, .ndjson, .txt, or set the kind of the file with --input; for a list of addresses, use --input lines.",
    )
    with pytest.raises(UsageError, match="^missing table: expected at least one address$"):
        open_index([])


def test_a_fifo_is_refused_without_waiting(tmp_path):

    os.mkfifo(tmp_path / "x.csv")
    with pytest.raises(UnsafeError) as caught:
        open_index(str(tmp_path / "x.csv"))
    assert str(caught.value) == f"{tmp_path}/x.csv: not a regular file"


def ranges_of(web) -> list[tuple[int, int]]:
    found = [re.fullmatch(r"bytes=(\d+)-(\d+)", headers["range"]) for _, headers in web.requests]
    return [(int(match[1]), int(match[2]) + 1) for match in found]


def test_a_remote_parquet_file_is_read_by_range_requests_starting_with_the_footer(web):
    table = pa.table(
        {"id": range(30_000), "heavy": [random.Random(n).randbytes(200) for n in range(30_000)]}
    )
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none", use_dictionary=False)
    data = sink.getvalue().to_pybytes()
    found = open_index(web.file("/d/x.parquet", data, '"one"') + "?sig=secret")
    assert (found.rows, found.is_local, found.address) == (
        30_000,
        False,
        web.url("/d/x.parquet"),
    )
    assert sum(stop - start for start, stop in ranges_of(web)) < 150_000
    assert pa.Table.from_batches(found.batches(["id"])).equals(table.select(["id"]))
    assert sum(stop - start for start, stop in ranges_of(web)) < 1_000_000
    assert pa.Table.from_batches(found.batches()).equals(table)


def test_a_remote_csv_is_read_in_pieces(web, monkeypatch):
    monkeypatch.setattr("flarecli.formats.tables.decompress.BLOCK_BYTES", 10_000)
    rows = [{"id": n, "text": f"é,\n{n}"} for n in range(5000)]
    data = "id,text\n" + "".join(f'{row["id"]},"{row["text"]}"\n' for row in rows)
    found = open_index(web.file("/x.csv", data.encode()))
    next(found.batches())
    assert max(stop for _, stop in ranges_of(web)) <= 10_000
    assert rows_of(found) == rows


def test_an_error_page_of_a_server_is_not_an_index(web):
    with pytest.raises(MissingError) as caught:
        open_index(web.url("/no.parquet?token=secret"))
    assert "secret" not in str(caught.value)
    with pytest.raises(FormatError) as caught:
        open_index(web.page("/x.parquet", b"<html><title>Sign in</title></html>"))
    assert (
        str(caught.value)
        == f"{web.url('/x.parquet')}: not a parquet file: it does not start with PAR1"
    )


def test_memory_does_not_grow_with_the_rows(tmp_path):
    """Arrow reports the memory; 60 MB of text are in one row group, as parquet and as CSV."""
    table = pa.table({"id": range(60_000), "text": [f"{n:01000}" for n in range(60_000)]})
    pq.write_table(
        table,
        tmp_path / "x.parquet",
        compression="none",
        use_dictionary=False,
        row_group_size=60_000,
    )
    pa.csv.write_csv(table, tmp_path / "x.csv")
    del table
    for name in ("x.parquet", "x.csv"):
        before, most, rows = pa.total_allocated_bytes(), 0, 0
        found = open_index(str(tmp_path / name))
        for batch in select(found.schema, found.batches(), "id % 10 < 9")[1]:
            rows += batch.num_rows
            most = max(most, pa.total_allocated_bytes() - before)
        assert rows == 54_000
        assert most < 40_000_000


def test_local_files_in_json_are_allowed_by_the_guard(tmp_path):
    write_files(tmp_path, {"a.json": json.dumps([{"n": 1}]), "x/l.txt": "../a.json"})
    assert rows_of(open_index(str(tmp_path / "x/l.txt"), guard=Guard(allow_local=True))) == [
        {"n": 1}
    ]
