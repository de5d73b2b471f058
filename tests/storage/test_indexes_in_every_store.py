"""Indexes of every kind on disk, over HTTP and in a bucket have the rows that pandas and DuckDB
read.
"""

import datetime
import decimal
import gzip
import io
import json

import duckdb
import pandas
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest
import zstandard

from flarecli import commands, read
from flarecli.commands.options import NetworkOptions
from flarecli.errors import FormatError, MissingError
from flarecli.ingest import open_folder, open_index
from flarecli.storage import Guard, Limits, locate

WORDS = [
    "plain",
    "é ü 漢 🙂",
    'a "quoted", one',
    "two\nlines",
    "",
    " spaces ",
    "tab\there",
    "007",
    "null",
]


PLAIN = {
    "id": list(range(200)),
    "text": [f"{WORDS[i % 9]}{i}" for i in range(200)],
    "score": [i / 7 for i in range(200)],
}


RICH = pa.table(
    {
        "id": pa.array([None if i % 5 == 0 else i for i in range(200)], pa.int32()),
        "text": pa.array([None if i % 3 == 0 else WORDS[i % 9] for i in range(200)]),
        "kind": pa.array(
            [None if i % 11 == 0 else WORDS[i % 4] for i in range(200)]
        ).dictionary_encode(),
        "price": pa.array([decimal.Decimal(i) / 100 for i in range(200)], pa.decimal128(9, 2)),
        "at": pa.array(
            [datetime.datetime(2020, 1, 1) + datetime.timedelta(hours=i) for i in range(200)],
            pa.timestamp("us"),
        ),
        "day": pa.array(
            [datetime.date(1969, 12, 1) + datetime.timedelta(days=i) for i in range(200)]
        ),
        "tags": pa.array([None if i % 7 == 0 else WORDS[: i % 4] for i in range(200)]),
        "box": pa.array([{"x": i, "y": [i, None]} for i in range(200)]),
        "raw": pa.array([bytes([i % 256, 0, 255]) for i in range(200)]),
        "yes": pa.array([i % 2 == 0 for i in range(200)]),
    }
)


def parquet(table):
    out = io.BytesIO()
    pq.write_table(table, out, row_group_size=37)
    return out.getvalue()


def arrow(table, is_file):
    out = io.BytesIO()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(out, table.schema) as writer:
        writer.write_table(table, max_chunksize=37)
    return out.getvalue()


def feathered(table):
    out = io.BytesIO()
    feather.write_feather(table, out)
    return out.getvalue()


def by_pandas(read, **options):
    return lambda data: read(io.BytesIO(data), **options).to_dict("records")


def by_duckdb(data, folder):
    (folder / "truth.parquet").write_bytes(data)
    found = duckdb.sql(f"SELECT * FROM read_parquet('{folder / 'truth.parquet'}')").to_arrow_table()
    return found.to_pylist()


FRAME = pandas.DataFrame(PLAIN)


CSV = FRAME.to_csv(index=False).encode()


LINES = FRAME.to_json(orient="records", lines=True, force_ascii=False, double_precision=15).encode()


as_csv = by_pandas(pandas.read_csv, keep_default_na=False)


as_lines = by_pandas(
    pandas.read_json, lines=True, dtype={"id": int, "score": float}, precise_float=True
)


TSV = FRAME.to_csv(index=False, sep="\t").encode()


KINDS = {
    "x.parquet": (parquet(RICH), None),
    "x.arrow": (
        arrow(RICH, True),
        by_pandas(
            lambda data: pa.ipc.open_file(data).read_all().to_pandas(types_mapper=pandas.ArrowDtype)
        ),
    ),
    "x.csv": (CSV, as_csv),
    "x.tsv": (TSV, by_pandas(pandas.read_csv, sep="\t", keep_default_na=False)),
    "x.csv.gz": (gzip.compress(CSV), lambda data: as_csv(gzip.decompress(data))),
    "x.csv.zst": (zstandard.compress(CSV), lambda data: as_csv(zstandard.decompress(data))),
    "x.jsonl": (LINES, as_lines),
    "x.jsonl.gz": (gzip.compress(LINES), lambda data: as_lines(gzip.decompress(data))),
    "x.json": (
        json.dumps(FRAME.to_dict("records")).encode(),
        by_pandas(pandas.read_json, precise_float=True),
    ),
    "x.feather": (feathered(pa.table(PLAIN)), by_pandas(pandas.read_feather)),
    "x.arrows": (
        arrow(pa.table(PLAIN), False),
        by_pandas(lambda data: pa.ipc.open_stream(data).read_pandas()),
    ),
}


@pytest.fixture
def places(tmp_path, web, s3):
    """A function that writes a file, and the address of the folder: on disk, on a web server, or in
    a bucket.
    """

    def at_home(name, data):
        path = tmp_path / "here" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)

    return {
        "local": (at_home, str(tmp_path / "here")),
        "http": (lambda name, data: web.file(f"/d/{name}", data), web.url("/d")),
        "s3": (lambda name, data: locate(f"{s3}/d/{name}").write([data]), f"{s3}/d"),
    }


def rows_of(found):
    return [row for batch in found.batches() for row in batch.to_pylist()]


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_index_in_every_store_equals_pandas_and_duckdb(places, name, tmp_path):
    data, others = KINDS[name]
    wanted = (
        by_duckdb(data, tmp_path)
        if name == "x.parquet"
        else None
        if name == "x.arrow"
        else others(data)
    )
    wanted = RICH.to_pylist() if wanted is None else wanted
    for put, at in places.values():
        put(name, data)
        assert rows_of(open_index(f"{at}/{name}")) == wanted


def test_wildcards_and_braces_read_files_in_the_order_of_their_names(places):
    parts = {
        f"p/{name}.parquet": pa.table({"n": [i]}) for i, name in enumerate(["b", "a10", "a2", "é"])
    }
    for where in ("local", "s3"):
        put, at = places[where]
        for name, table in parts.items():
            put(name, parquet(table))
        put("p/c.csv", b"n\n9\n")
        assert packed_rows(f"{at}/p/*.parquet", places) == [1, 2, 0, 3]
        assert packed_rows(f"{at}/p/{{b,a2}}.parquet", places) == [0, 2]


def packed_rows(address, places):
    from flarecli.commands.packing.source import SourceOptions, open_source

    source = open_source(address, SourceOptions(guard=Guard()))
    return [row["n"] for batch in source.batches() for row in batch.to_pylist()]


def test_a_list_names_files_beside_it_and_in_other_stores(places, s3):
    for number, (put, at) in enumerate(places.values()):
        put("lists/a.csv", b"n\n1\n")
        put("lists/b.parquet", parquet(pa.table({"n": [2]})))
        put(
            "lists/split_file_paths.txt",
            f"b.parquet\n{at if '://' in at else '.'}{'/lists' if '://' in at else ''}/a.csv\n".encode(),
        )
        assert [row["n"] for row in rows_of(open_index(f"{at}/lists/split_file_paths.txt"))] == [
            2,
            1,
        ], number
    put, at = places["local"]
    put("split_file_paths.txt", f"lists/a.csv\n{s3}/d/lists/b.parquet\n".encode())
    assert [row["n"] for row in rows_of(open_index(f"{at}/split_file_paths.txt"))] == [1, 2]


def test_lists_contain_wildcards_on_disk_and_in_a_bucket(places, s3):
    for put, _ in (places["local"], places["s3"]):
        for n, name in enumerate(("b", "a10", "a2")):
            put(f"w/shards/{name}.csv", f"n\n{n}\n".encode())
    here, home = places["local"]
    far, there = places["s3"]
    here(
        "w/split_file_paths.txt",
        f"shards/a*.csv\n{there}/w/shards/?.csv\n{there}/w/shards/{{a2,b}}.csv\n".encode(),
    )
    far("w/split_file_paths.txt", b"shards/*.csv\n")
    assert [row["n"] for row in rows_of(open_index(f"{home}/w/split_file_paths.txt"))] == [
        1,
        2,
        0,
        2,
        0,
    ]
    assert [row["n"] for row in rows_of(open_index(f"{there}/w/split_file_paths.txt"))] == [1, 2, 0]
    here("w/split_file_paths.txt", f"{there}/w/none/*.csv\n".encode())
    with pytest.raises(MissingError) as caught:
        open_index(f"{home}/w/split_file_paths.txt")
    assert (
        str(caught.value)
        == f"{home}/w/split_file_paths.txt: line 1: nothing matches '{there}/w/none/*.csv'"
    )


def test_a_missing_file_of_a_list_in_a_bucket_is_reported(places, s3):
    put, at = places["s3"]
    put("l.txt", b"gone.parquet\n")
    with pytest.raises(MissingError) as caught:
        open_index(f"{at}/l.txt")
    assert (str(caught.value), caught.value.hint) == (
        f"{at}/gone.parquet: not found",
        f"The file is listed in line 1 of {at}/l.txt.",
    )
    put("l.txt", b"m.txt\n")
    put("m.txt", b"# back\nl.txt\n")
    with pytest.raises(FormatError) as caught:
        open_index(f"{at}/l.txt")
    assert (str(caught.value), caught.value.hint) == (
        f"{at}/m.txt: line 2: the list {at}/l.txt contains itself",
        f"The file is listed in line 1 of {at}/l.txt. Remove the line.",
    )
    local, here = places["local"]
    local("l.txt", f"{at}/gone.parquet\n".encode())
    with pytest.raises(MissingError) as caught:
        open_index(f"{here}/l.txt")
    assert (str(caught.value), caught.value.hint) == (
        f"{at}/gone.parquet: not found",
        f"The file is listed in line 1 of {here}/l.txt.",
    )


def test_a_folder_has_the_same_rows_on_disk_and_in_a_bucket(places):
    found = []
    for where in ("local", "s3"):
        put, at = places[where]
        for name in ("a/000.jpg", "a/000.txt", "b/000.jpg", "b/000.meta.json", "b/001.txt"):
            put(f"f/{name}", name.encode())
        index = open_folder(f"{at}/f")
        rows = [
            row
            for batch, flaws in index.filled(index.batches(), index.links)
            for row in batch.to_pylist()
            if not flaws
        ]
        found.append((rows, index.notes))
    assert found[0] == found[1]
    assert [row["key"] for row in found[0][0]] == ["a/000", "b/000", "b/001"]


def test_links_of_an_index_in_a_bucket_are_relative_to_it(places, tmp_path, s3, monkeypatch):
    put, at = places["s3"]
    put("files/1.txt", b"one")
    put("i.csv", f"id,link\n1,files/1.txt\n2,{at}/files/1.txt\n3,files/2.txt\n".encode())
    done = commands.pack(
        f"{at}/i.csv", str(tmp_path / "out"), fetch=["link:text"], key="id", on_error="skip"
    )
    assert (done.rows, done.failed, done.reasons) == (2, 1, {"missing": 1})
    here, home = places["local"]
    names = [f"{at}/files/{i}" for i in range(100)]
    for i, name in enumerate(names):
        locate(name).write([b"x" * (300 if i % 9 == 0 else 30) + str(i).encode()])
    here("i.csv", "\n".join(["id,link", *(f"{i},{name}" for i, name in enumerate(names))]).encode())
    limits = Limits(ahead_bytes=16 * 100)  # one ninth of the objects is too large to be prefetched
    monkeypatch.setattr(NetworkOptions, "limits", lambda options: limits)
    commands.pack(f"{home}/i.csv", str(tmp_path / "two"), fetch=["link:data"], key="id")
    data = read.Dataset(read.select_streams(found := read.resolve(str(tmp_path / "two"))), found)
    packed = [value for batch in data.scan() for value in batch.column("data").to_pylist()]
    assert packed == [locate(name).read() for name in names]
