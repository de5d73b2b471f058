"""Tables as datasets: rows by number, batches, types, several files, remote files, damage."""

import datetime
import decimal
import gzip
import io
import json
import pickle
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli import commands, formats
from flarecli.encodings import parse_type
from flarecli.errors import FlareError, FormatError, UsageError, ValueFitError
from flarecli.formats.tables import rows as table_rows
from flarecli.formats.tables.parquet import Parquet
from flarecli.formats.tables.parquet_metadata import column_chunks
from flarecli.formats.tables.parquet_pages import RowGroupPages
from flarecli.read import dataset, resolve

ROWS = 3000
SINCE = datetime.datetime(2024, 2, 29, 12, 30)
TABLE = pa.table(
    {
        "id": pa.array(range(ROWS), pa.int64()),
        "name": [f"näme {i}" for i in range(ROWS)],
        "score": np.arange(ROWS) / ROWS,
        "ok": [i % 3 == 0 for i in range(ROWS)],
        "at": pa.array(
            [SINCE + datetime.timedelta(hours=i) for i in range(ROWS)], pa.timestamp("us", "UTC")
        ),
        "day": pa.array([SINCE.date()] * ROWS),
        "list": pa.array([[i] * (i % 4) for i in range(ROWS)], pa.list_(pa.int32())),
        "box": [{"a": i, "b": [str(i)]} for i in range(ROWS)],
        "price": pa.array([decimal.Decimal(i) / 100 for i in range(ROWS)], pa.decimal128(10, 2)),
        "kind": pa.array([["x", "y", None][i % 3] for i in range(ROWS)]).dictionary_encode(),
        "none": pa.nulls(ROWS),
        "some": pa.array([None if i % 2 else i for i in range(ROWS)], pa.int16()),
        "data": [i.to_bytes(4, "big") for i in range(ROWS)],
    }
)
FLAT = TABLE.select(["id", "name", "score", "ok", "some"])


def write_parquet(path, table=TABLE, **options):
    options = {"row_group_size": 1000, "write_page_checksum": True, **options}
    pq.write_table(table, path, **options)
    return str(path)


def write_lines(path, table=FLAT):
    path.write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))


def write_table(folder, kind):
    """Write a table of a kind; return its path, and the values that a reader should return."""
    path = folder / f"t.{kind}"
    if kind == "parquet":
        write_parquet(path)
        return path, TABLE
    if kind in ("arrow", "feather"):
        pyarrow.feather.write_feather(TABLE, path, chunksize=700)
        return path, TABLE
    if kind == "arrows":
        with pa.ipc.new_stream(path, TABLE.schema) as writer:
            writer.write_table(TABLE, 700)
        return path, TABLE
    if kind == "json":
        path.write_text(json.dumps(FLAT.to_pylist(), indent=1))
    elif kind.startswith("jsonl"):
        write_lines(path)
    else:
        delimiter = "\t" if kind.startswith("tsv") else ","
        options = pyarrow.csv.WriteOptions(delimiter=delimiter)
        pyarrow.csv.write_csv(FLAT, path, options)
    if kind.endswith(".gz"):
        path.write_bytes(gzip.compress(path.read_bytes()))
    return path, FLAT.set_column(4, "some", FLAT["some"].cast(pa.int64()))


KINDS = (
    "parquet",
    "arrow",
    "feather",
    "arrows",
    "csv",
    "tsv",
    "jsonl",
    "json",
    "csv.gz",
    "jsonl.gz",
)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_read_in_any_order_with_the_types_of_the_table(tmp_path, kind):
    path, wanted = write_table(tmp_path, kind)
    data, rows = flare.open(path), wanted.to_pylist()
    assert (len(data), data.column_names) == (ROWS, wanted.schema.names)
    assert data.schema.equals(wanted.schema)
    assert data[7] == rows[7]
    assert data[-1] == rows[-1]
    order = [2999, 0, 1500, 1500, 7, 8, 9, 2000, 1]
    assert data[order] == [rows[i] for i in order]
    assert data[995:1010:5] == rows[995:1010:5]
    assert data.take(order).to_pylist() == [rows[i] for i in order]
    assert data.to_arrow().equals(wanted)
    assert data.to_arrow(["score", "id"]).equals(wanted.select(["score", "id"]))
    assert [batch.num_rows for batch in data.batches(1100)] == [1100, 1100, 800]
    assert (
        data.where("id >= 2998 or name = 'näme 3'").to_arrow().equals(wanted.take([3, 2998, 2999]))
    )
    assert pickle.loads(pickle.dumps(data))[1234] == rows[1234]


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl"])
def test_stored_rows_have_the_bytes_of_the_encodings(tmp_path, kind):
    path, _ = write_table(tmp_path, kind)
    data = flare.open(path)
    row = data.rows([3])[0]
    assert row["id"] == (3).to_bytes(8, "little")
    assert row["name"] == "näme 3".encode()
    assert row["some"] is None
    assert row["ok"] == b"\1"
    if kind in ("parquet", "arrow"):
        encodings = {column.name: column.encoding for column in data.columns}
        assert encodings["at"] == "str"
        assert encodings["box"] == "json"
        assert row["at"] == b"2024-02-29 15:30:00.000000Z"
        assert row["list"] == [(3).to_bytes(4, "little")] * 3
        assert json.loads(row["box"]) == {"a": 3, "b": ["3"]}
        assert data.decoded({"at": False})[3]["at"] == row["at"]


def test_collated_batches_have_arrays_of_numbers(tmp_path):
    data = flare.open(write_parquet(tmp_path / "t.parquet"))
    batch = data.collated([5, 2])
    assert batch["id"].tolist() == [5, 2]
    assert batch["ok"].tolist() == [False, False]
    assert batch["ok"].dtype == bool
    assert batch["some"] == [None, 2]
    assert batch["name"] == ["näme 5", "näme 2"]
    assert data.dtypes["some"] == "int16"


def test_a_shuffled_epoch_returns_every_row_once(tmp_path):
    data = flare.open(write_parquet(tmp_path / "t.parquet"))
    batches = [batch["id"] for batch in flare.Loader(data, 64, seed=3)]
    ids = np.concatenate(batches).tolist()
    assert sorted(ids) == list(range(ROWS))
    assert ids != sorted(ids)


# -- several files


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "csv"])
def test_files_of_a_folder_or_a_pattern_are_one_dataset_with_common_types(tmp_path, kind):
    (tmp_path / "sub").mkdir()
    first = pa.table({"a": pa.array([1, 2], pa.int8()), "b": ["x", "y"]})
    second = pa.table({"a": [0.5, 3.0], "b": ["é", "z"]})
    for name, table in (("1", first), ("sub/2", second)):
        path = tmp_path / f"{name}.{kind}"
        if kind == "parquet":
            pq.write_table(table, path)
        elif kind == "csv":
            pyarrow.csv.write_csv(table, path)
        else:
            write_lines(path, table)
    (tmp_path / "README.md").write_text("about")
    (tmp_path / "_SUCCESS").write_text("")
    wanted = [
        {"a": 1.0, "b": "x"},
        {"a": 2.0, "b": "y"},
        {"a": 0.5, "b": "é"},
        {"a": 3.0, "b": "z"},
    ]
    for source in (
        tmp_path,
        f"{tmp_path}/**/*.{kind}",
        [tmp_path / f"1.{kind}", tmp_path / f"sub/2.{kind}"],
    ):
        data = flare.open(source)
        assert data.schema.field("a").type == pa.float64()
        assert data[:] == wanted
        assert data.to_arrow().to_pylist() == wanted
        assert data.edges.tolist() == [0, 2, 4]


def test_files_without_a_common_type_are_refused_with_both_names(tmp_path):
    pq.write_table(pa.table({"a": [1]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": ["x"]}), tmp_path / "2.parquet")
    with pytest.raises(FormatError) as caught:
        flare.open(tmp_path)
    assert caught.value.message == (
        f"columns differ from the columns of {tmp_path}/1.parquet: column 'a' is string instead of int64"
    )
    assert caught.value.address == f"{tmp_path}/2.parquet"


def test_a_value_that_the_common_type_cannot_represent_is_refused_with_its_row(tmp_path):
    pq.write_table(pa.table({"a": [0.5]}), tmp_path / "1.parquet")
    pq.write_table(pa.table({"a": [1, 2**60 + 1]}), tmp_path / "2.parquet")
    data = flare.open(tmp_path)
    assert data[1] == {"a": 1.0}
    with pytest.raises(ValueFitError) as caught:
        data[2]
    assert (caught.value.row, caught.value.column) == (1, "a")


@pytest.mark.parametrize("other", ["a.jpg", "data.csv", "notes.txt"])
def test_a_folder_with_other_data_files_is_read_as_files(tmp_path, other):
    write_parquet(tmp_path / "t.parquet")
    (tmp_path / other).write_bytes(b"x")
    assert [row["name"] for row in flare.open(tmp_path)] == sorted(["t.parquet", other])
    assert len(flare.open(tmp_path, format="parquet")) == ROWS


def test_a_folder_of_json_files_is_read_as_files(tmp_path):
    for name in ("1.json", "2.json"):
        (tmp_path / name).write_text('{"a":\n1}')
    assert [row["name"] for row in flare.open(tmp_path)] == ["1.json", "2.json"]


def test_a_table_is_one_file_with_the_format_files(tmp_path):
    path = write_parquet(tmp_path / "t.parquet")
    for source in (path, tmp_path):
        (row,) = flare.open(source, format="files")
        assert row == {"name": "t.parquet", "data": (tmp_path / "t.parquet").read_bytes()}


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("x.parquet", "parquet"),
        ("X.PARQUET", "parquet"),
        ("x.feather", "arrow"),
        ("x.csv.zst", "table"),
        ("x.ndjson", "table"),
        ("index.json", None),
        ("000000/spec.json", None),
        ("shard.00000.json", "json"),
        ("shard.00000.csv.zstd", "csv"),
        ("x.parquet.gz", None),
        ("x.txt", None),
    ],
)
def test_names_determine_the_format(name, format):
    assert formats.of_suffix(name) == format


def test_a_parquet_file_without_a_suffix_is_detected_by_its_first_bytes(tmp_path):
    shutil.copy(write_parquet(tmp_path / "t.parquet"), tmp_path / "table")
    assert flare.open(tmp_path / "table")[7] == TABLE.slice(7, 1).to_pylist()[0]


# -- playlists


@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv", "jsonl.gz"])
def test_a_playlist_lists_rows_and_types_of_tables(tmp_path, kind):
    path, wanted = write_table(tmp_path, kind)
    commands.playlist([str(path)], out=str(tmp_path / "p.yaml"), hash=["xxh3_128"])
    data = flare.open(tmp_path / "p.yaml")
    assert data[7] == wanted.slice(7, 1).to_pylist()[0]
    text = pa.schema(
        [
            field.with_type(pa.large_string()) if field.type == pa.string() else field
            for field in wanted.select(FLAT.schema.names).schema
        ]
    )
    assert data.to_arrow(FLAT.schema.names).equals(wanted.select(FLAT.schema.names).cast(text))
    assert list(commands.verify([str(tmp_path / "p.yaml")])) == []
    (stream,) = resolve(str(tmp_path / "p.yaml"))[0].streams
    assert stream.rows.tolist() == [ROWS]


def test_a_table_that_was_replaced_after_it_was_listed_is_refused(tmp_path):
    write_parquet(tmp_path / "t.parquet")
    commands.playlist([str(tmp_path / "t.parquet")], out=str(tmp_path / "p.yaml"))
    pq.write_table(pa.table({"id": [1]}), tmp_path / "t.parquet")
    with pytest.raises(FlareError, match=r"file is \d+ bytes; the listed size is \d+"):
        flare.open(tmp_path / "p.yaml")[0]


# -- commands


def test_cat_selects_rows_and_columns(tmp_path):
    path = write_parquet(tmp_path / "t.parquet")
    batches = list(commands.cat([path], where="score > 0.5", columns=["id", "score"]))
    wanted = TABLE.select(["id", "score"]).filter(pa.compute.greater(TABLE["score"], 0.5))
    assert pa.Table.from_batches(batches).equals(wanted)
    batches = list(commands.cat([path], rows="5,2990:", columns=["box"]))
    assert pa.Table.from_batches(batches).to_pylist() == [
        {"box": {"a": i, "b": [str(i)]}} for i in (5, *range(2990, ROWS))
    ]


def test_inspect_shows_rows_types_and_shards(tmp_path):
    found = commands.inspect(
        [write_parquet(tmp_path / "t.parquet")], shards=True, stats=True
    ).as_json()
    (stream,) = found["streams"]
    assert (found["format"], found["rows"], found["shards"]) == ("parquet", ROWS, 1)
    assert stream["types"]["at"] == "timestamp[us, tz=UTC]"
    assert (
        stream["types"]["list"] == "list<element: int32>"
        or stream["types"]["list"] == "list<item: int32>"
    )
    assert stream["shard_list"][0] == {
        "url": "t.parquet",
        "rows": ROWS,
        "bytes": (tmp_path / "t.parquet").stat().st_size,
        "first": 0,
        "row_groups": 3,
        "compression": "snappy",
        "page_checksums": "crc32",
    }
    assert stream["stats"]["id"]["max"] == ROWS - 1


def test_input_and_csv_serve_the_reading_commands(tmp_path):
    path = tmp_path / "t.dat"
    path.write_bytes("a;b\n1,5;é\n2,5;NA\n".encode("latin-1"))
    csv = ["delimiter=;", "decimal=,", "null=NA", "encoding=latin-1"]
    options = {"input": "csv", "csv": csv}
    rows = [{"a": 1.5, "b": "é"}, {"a": 2.5, "b": None}]
    assert pa.Table.from_batches(commands.cat([str(path)], **options)).to_pylist() == rows
    assert commands.inspect([str(path)], **options).rows == 2
    assert list(commands.verify([str(path)], **options)) == []
    commands.playlist([str(path)], out=str(tmp_path / "p.yaml"), **options)
    assert flare.open(tmp_path / "p.yaml")[:] == rows
    assert flare.open(tmp_path / "p.yaml")[1] == rows[1]
    (row,) = pa.Table.from_batches(commands.cat([str(path)], input="files")).to_pylist()
    assert row == {"name": "t.dat", "data": path.read_bytes()}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"csv": ["delimiter=;"]}, "--csv: the source has no CSV or TSV file"),
        ({"input": "csv", "format": "parquet"}, "--input csv contradicts --format parquet"),
        ({"csv": ["x=1"]}, "--csv: unknown key 'x'"),
        (
            {"input": "lines"},
            "--input lines: this command does not read lists of addresses",
        ),
    ],
)
def test_options_that_do_not_fit_the_table_are_refused(tmp_path, options, message):
    path = write_parquet(tmp_path / "t.parquet")
    for command in (commands.cat, commands.inspect, commands.verify, commands.playlist):
        with pytest.raises(UsageError) as caught:
            list(command([path], **options))
        assert caught.value.message == message


# -- damage


def flipped(path, at, target):
    data = bytearray(path.read_bytes())
    data[at] ^= 16
    target.write_bytes(data)
    return str(target)


def test_a_flipped_byte_in_a_page_is_reported_with_column_row_and_bytes(tmp_path):
    path = tmp_path / "t.parquet"
    write_parquet(path)
    chunk = pq.read_metadata(path).row_group(1).column(1)
    damaged = flipped(path, chunk.data_page_offset + 60, tmp_path / "x.parquet")
    (finding,) = commands.verify([damaged])
    start = chunk.dictionary_page_offset
    assert (finding.kind, finding.column, finding.row) == ("format", "name", 1000)
    assert (finding.start, finding.stop) == (start, start + chunk.total_compressed_size)
    assert finding.message == (
        "row group 1 (rows 1000 to 1999): not valid parquet: could not verify page integrity, "
        "CRC checksum verification failed for page_ordinal 0"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_truncated_file_is_a_finding(tmp_path, kind):
    path, _ = write_table(tmp_path, kind)
    data = path.read_bytes()
    for size in (len(data) - 3, len(data) // 2, 9):
        path.write_bytes(data[:size])
        findings = list(commands.verify([str(path)]))
        if kind in ("csv", "tsv", "jsonl") and size == 9:
            continue  # a shorter text file may be valid
        assert findings, f"{kind} truncated to {size} bytes"


def test_files_without_checksums_are_reported(tmp_path):
    write_parquet(tmp_path / "with.parquet")
    write_parquet(tmp_path / "without.parquet", write_page_checksum=False)
    write_table(tmp_path, "csv")

    def unprotected(name):
        check = commands.verify([str(tmp_path / name)])
        assert list(check) == []
        return check.unprotected

    assert unprotected("with.parquet") == []
    assert unprotected("without.parquet") == [
        f"{tmp_path}/without.parquet: pages have no checksums; only the values were checked"
    ]
    assert unprotected("t.csv") == [f"{tmp_path}/t.csv: no checksums; only the values were checked"]


def test_text_that_is_not_utf8_is_refused_with_its_row(tmp_path):
    values = pa.array([b"a", b"b\xff", b"c"]).view(pa.string())
    pq.write_table(pa.table({"t": values}), tmp_path / "t.parquet")
    data = flare.open(tmp_path / "t.parquet")
    assert data[0] == {"t": "a"}
    with pytest.raises(ValueFitError) as caught:
        data[1]
    assert (caught.value.row, caught.value.column) == (1, "t")
    (finding,) = commands.verify([str(tmp_path / "t.parquet")])
    assert (finding.row, finding.column) == (1, "t")


def test_the_cache_of_decoded_rows_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(table_rows, "MAX_CACHED_BYTES", 100_000)
    flare.close()
    data = flare.open(write_parquet(tmp_path / "t.parquet", row_group_size=100))
    assert data[::50] == TABLE.take(list(range(0, ROWS, 50))).to_pylist()
    assert 0 < table_rows._cache._bytes <= 100_000
    del data
    flare.close()
    assert table_rows._cache._bytes == 0


# -- pages of Parquet files


def spy(monkeypatch):
    """Return a list that receives the number of runs of pages that are read."""
    runs, read = [], RowGroupPages.read
    monkeypatch.setattr(
        RowGroupPages,
        "read",
        lambda self, own, *args: (runs.append(len(own)), read(self, own, *args))[1],
    )
    return runs


PAGES = pa.table(
    {
        "id": range(20_000),
        "text": [f"text {i}" for i in range(20_000)],
        "some": pa.array([None if i % 3 else f"{i % 7}" for i in range(20_000)]),
        "list": pa.array([[i] * (i % 4) for i in range(20_000)], pa.list_(pa.int32())),
        "box": [{"a": i, "b": [str(i)] * (i % 3)} for i in range(20_000)],
    }
)


@pytest.mark.parametrize(
    ("options", "is_paged"),
    [
        ({"write_page_index": True}, True),
        ({"write_page_index": True, "use_dictionary": False, "compression": "zstd"}, True),
        ({"data_page_version": "2.0"}, True),
        ({}, False),  # the rows of nested pages are unknown
        ({"use_dictionary": False, "store_schema": False}, False),
    ],
)
def test_rows_in_the_middle_of_a_row_group_are_read_by_pages(
    tmp_path, monkeypatch, options, is_paged
):
    path = tmp_path / "t.parquet"
    pq.write_table(
        PAGES, path, row_group_size=15_000, data_page_size=2000, write_batch_size=100, **options
    )
    runs, data = spy(monkeypatch), flare.open(path)
    for row in (14_999, 7, 8123, 19_999, 9000, 15_001, 0, 12_345):
        assert data[row] == PAGES.slice(row, 1).to_pylist()[0]
    assert data[13_990:15_010] == PAGES.slice(13_990, 1020).to_pylist()
    assert bool(runs) == is_paged
    flat, again = data.select(["text", "some", "id"]), len(runs)
    assert flat[14_000] == PAGES.select(["text", "some", "id"]).slice(14_000, 1).to_pylist()[0]
    assert len(runs) > again


def test_a_page_index_that_contradicts_the_pages_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    table = pa.table({"a": pa.array(range(4000), pa.int64())})
    pq.write_table(
        table,
        path,
        write_page_index=True,
        data_page_size=800,
        write_batch_size=100,
        use_dictionary=False,
        compression="none",
    )
    (chunks,) = column_chunks(
        path.read_bytes()[-8 - int.from_bytes(path.read_bytes()[-8:-4], "little") :]
    )
    start, length = chunks[0].offsets
    data = bytearray(path.read_bytes())
    index = bytes(data[start : start + length])
    wrong = index.replace(bytes([0x16, 0xC8, 0x01]), bytes([0x16, 0xC6, 0x01]), 1)  # row 100 is 99
    assert wrong != index
    data[start : start + length] = wrong
    path.write_bytes(data)
    with pytest.raises(FormatError, match="pages of 99 rows contain 100 values"):
        flare.open(path)[50]


# -- remote tables


@pytest.fixture
def counted(web):
    """Return a function that serves a file, and a list of the sizes of all answers."""
    sent = []

    def serve(name, body):
        web.file(name, body)
        answer = web.pages[name]

        def count(handler, times):
            write = handler.wfile.write
            handler.wfile.write = lambda data: (sent.append(len(data)), write(data))[1]
            try:
                answer(handler, times)
            finally:
                del handler.wfile.write

        web.pages[name] = count
        return web.url(name)

    return serve, sent


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_row_of_a_remote_table_is_read_by_ranges(counted, kind):
    serve, sent = counted
    noise = np.random.default_rng(0).bytes(40 * 200_000)
    table = pa.table({"id": range(40), "data": [noise[i * 200_000 :][:200_000] for i in range(40)]})
    file = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, file, row_group_size=2)
    else:
        pyarrow.feather.write_feather(table, file, compression="uncompressed", chunksize=2)
    body = file.getvalue()
    data = flare.open(serve(f"/t.{kind}", body), allow_private=True)
    assert len(data) == 40
    assert data[37] == table.slice(37, 1).to_pylist()[0]
    assert sum(sent) < len(body) / 4


def test_only_the_pages_of_a_remote_row_and_its_columns_are_read(counted):
    serve, sent = counted
    noise = np.random.default_rng(0).bytes(4 * 1_000_000)
    table = pa.table(
        {
            "id": range(40_000),
            "data": [noise[i * 100 :][:100] for i in range(40_000)],
            "score": np.random.default_rng(1).random(40_000),
        }
    )
    file = io.BytesIO()
    pq.write_table(
        table,
        file,
        write_page_index=True,
        data_page_size=20_000,
        write_batch_size=100,
        use_dictionary=False,
    )
    data = flare.open(serve("/t.parquet", file.getvalue()), allow_private=True)
    opened = sum(sent)
    assert opened < 100_000
    assert data[33_333] == table.slice(33_333, 1).to_pylist()[0]
    assert sum(sent) - opened < 100_000
    asked = sum(sent)
    assert data.select(["score"])[7_777]["score"] == table["score"][7_777].as_py()
    assert sum(sent) - asked < 40_000
    assert len(file.getvalue()) > 4_000_000


def test_pack_reads_a_folder_of_tables_like_its_files(tmp_path):
    source = tmp_path / "in"
    source.mkdir()
    table = TABLE.drop_columns(["none"]).slice(0, 150)
    pq.write_table(table.slice(0, 100), source / "1.parquet")
    pq.write_table(table.slice(100, 50), source / "2.parquet")
    commands.pack([str(source)], str(tmp_path / "out"), columns=["id", "name", "at", "box"])
    commands.pack(
        [f"{source}/*.parquet"], str(tmp_path / "same"), columns=["id", "name", "at", "box"]
    )
    assert flare.open(tmp_path / "same").to_arrow().num_rows == 150
    shard = "shard.00000.mds"
    assert (tmp_path / "out" / shard).read_bytes() == (tmp_path / "same" / shard).read_bytes()


SMALL = pa.dictionary(pa.int8(), pa.string())
CATEGORIES = [[f"{name}{i}" for i in range(100)] for name in "ab"]


def test_dictionaries_of_several_files_may_have_more_values_than_the_index_of_one_holds(tmp_path):
    for number, values in enumerate(CATEGORIES):
        pq.write_table(pa.table({"c": pa.array(values, SMALL)}), tmp_path / f"{number}.parquet")
    expected = [value for values in CATEGORIES for value in values]
    commands.pack(str(tmp_path), str(tmp_path / "mds"))
    commands.pack(str(tmp_path / "mds"), str(tmp_path / "again"), format="parquet")
    for source in (str(tmp_path / "*.parquet"), str(tmp_path / "mds"), str(tmp_path / "again")):
        data = flare.open(source)
        assert data.schema.field("c").type.index_type == pa.int32()
        assert data.to_arrow()["c"].to_pylist() == expected
        assert data.take(range(200))["c"].to_pylist() == expected
        assert [row["c"] for row in data[0:200]] == expected
        assert data.collated(range(200))["c"] == expected


def test_a_replaced_dictionary_of_a_stream_is_verified(tmp_path):
    path = tmp_path / "t.arrows"
    with pa.ipc.new_stream(path, pa.schema([("c", SMALL)])) as writer:
        for values in CATEGORIES:
            writer.write_batch(pa.record_batch({"c": pa.array(values, SMALL)}))
    assert list(commands.verify(str(path))) == []
    assert flare.open(str(path))[150] == {"c": "b50"}


def test_a_table_with_a_dictionary_in_a_struct_is_read(tmp_path):
    box = pa.StructArray.from_arrays([pa.array(["x", "y"], SMALL)], ["kind"])
    pq.write_table(pa.table({"box": box}), tmp_path / "t.parquet")
    data = flare.open(str(tmp_path / "t.parquet"))
    assert data[1] == {"box": {"kind": "y"}}


def test_a_playlist_with_a_small_index_is_read_with_a_larger_index():
    kind = parse_type({"dictionary": ["int8", "string", True]})
    assert kind == pa.dictionary(pa.int32(), pa.large_string(), ordered=True)
    assert parse_type({"dictionary": ["uint32", "string", False]}).index_type == pa.uint32()


def test_few_files_are_open_after_many_selections_of_columns(tmp_path):
    path = write_parquet(tmp_path / "t.parquet")
    data = flare.open(path)
    for one in TABLE.column_names:
        assert data.take([0], [one]).num_rows == 1
    opened = [entry.resolve() for entry in Path("/proc/self/fd").iterdir()]
    assert opened.count(Path(path)) == 2


def test_a_column_may_have_the_name_of_a_cache_key(tmp_path):
    table = PAGES.append_column("\0page", PAGES["text"])
    path = write_parquet(tmp_path / "t.parquet", table, write_page_index=True)
    data = flare.open(path)
    for row, columns in ((5, ["id"]), (0, ["id", "\0page"]), (1, ["id", "\0page"])):
        expected = table.select(columns).slice(row, 1).to_pylist()
        assert data.take([row], columns).to_pylist() == expected


def test_the_work_per_row_group_does_not_depend_on_the_number_of_row_groups(tmp_path, monkeypatch):
    path = write_parquet(tmp_path / "t.parquet", FLAT.slice(0, 200), row_group_size=1)
    opened, located = [], []
    open_file, start_before = pq.ParquetFile, Parquet.start_before
    monkeypatch.setattr(
        pq, "ParquetFile", lambda *args, **kwargs: opened.append(0) or open_file(*args, **kwargs)
    )
    monkeypatch.setattr(
        Parquet, "start_before", lambda *args: located.append(0) or start_before(*args)
    )
    assert list(commands.verify(path)) == []
    assert len(opened) < 10
    assert len(located) < 200 * 12


def test_the_work_per_column_of_a_batch_does_not_depend_on_the_number_of_columns(
    tmp_path, monkeypatch
):
    names = [f"c{i}" for i in range(50)]
    data = flare.open(
        write_parquet(tmp_path / "t.parquet", pa.table({name: ["a"] for name in names}))
    )
    checked, has_arrow_values = [], dataset.has_arrow_values
    monkeypatch.setattr(
        dataset, "has_arrow_values", lambda field: checked.append(0) or has_arrow_values(field)
    )
    assert data.collated([0]) == {name: ["a"] for name in names}
    assert len(checked) <= 2 * len(names)


def test_checksum_files_of_tables_are_not_tables(tmp_path):
    (tmp_path / "a.csv.md5").write_text("00  a.csv\n")
    (stream,) = resolve(str(tmp_path))[0].streams
    assert (stream.format, list(stream.urls)) == ("files", ["a.csv.md5"])
    (tmp_path / "a.csv").write_text("a\n1\n")
    (stream,) = resolve(str(tmp_path))[0].streams
    assert (stream.format, list(stream.urls)) == ("table", ["a.csv"])
    (tmp_path / "b.csv.md5").write_text("00  b.csv\n")
    (stream,) = resolve(str(tmp_path))[0].streams
    assert (stream.format, list(stream.urls)) == ("files", ["a.csv", "a.csv.md5", "b.csv.md5"])


def test_a_dialect_for_a_playlist_or_for_json_lines_is_refused(tmp_path):
    (tmp_path / "t.csv").write_text("a;b\n1;2\n")
    (tmp_path / "t.jsonl").write_text('{"a": 1}\n')
    commands.playlist(str(tmp_path / "t.csv"), out=str(tmp_path / "p.yaml"))
    csv = ["delimiter=;"]
    for name, options in (("p.yaml", {}), ("t.jsonl", {}), ("t.csv", {"input": "jsonl"})):
        with pytest.raises(UsageError) as caught:
            commands.cat(str(tmp_path / name), csv=csv, **options)
        assert caught.value.message == "--csv: the source has no CSV or TSV file"
    both = [str(tmp_path / "t.jsonl"), str(tmp_path / "t.csv")]
    assert resolve(both, table={"csv": csv})[0].streams[0].headers == {"csv": csv}
