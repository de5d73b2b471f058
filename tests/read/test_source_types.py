"""Datasets whose playlist lists the Arrow types of the source: batches have these types, in the
order of the source.
"""

import datetime
import io
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import flarecli
from flarecli import commands, read
from flarecli.__main__ import main
from flarecli.errors import FormatError, ValueFitError
from flarecli.formats import names
from flarecli.model import Settings
from flarecli.write import Writer

WHEN = datetime.datetime(2024, 2, 29, 12, 30, 0, 250_000, tzinfo=datetime.UTC)
ROWS = [
    {
        "when": WHEN + datetime.timedelta(hours=i),
        "ok": i % 2 == 0,
        "price": Decimal(i).scaleb(-2),
        "day": datetime.date(2024, 1, 1 + i),
        "kind": "abc"[i % 3],
        "box": {"x": i, "at": datetime.date(2020, 1, 1 + i)},
        "amount": [i, i + 1],
        "text": f"row {i}",
        "pair": [float(i), 0.5],
        "took": datetime.timedelta(microseconds=i),
        "a": i,
    }
    for i in range(20)
]
SCHEMA = pa.schema(
    [
        ("when", pa.timestamp("ms", "UTC")),
        ("ok", pa.bool_()),
        ("price", pa.decimal128(10, 2)),
        ("day", pa.date32()),
        ("kind", pa.dictionary(pa.int32(), pa.large_string())),
        ("box", pa.struct([("x", pa.int64()), ("at", pa.date32())])),
        ("amount", pa.list_(pa.int16())),
        ("text", pa.large_string()),
        ("pair", pa.list_(pa.float32(), 2)),
        ("took", pa.duration("us")),
        ("a", pa.int64()),
    ]
)
TABLE = pa.Table.from_pylist(ROWS, SCHEMA)
FLAT = ["when", "ok", "price", "day", "kind", "text", "took", "a"]  # without commas in CSV


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    path = tmp_path_factory.mktemp("source") / "t.parquet"
    small = TABLE["kind"].cast(pa.dictionary(pa.int8(), pa.large_string()))
    pq.write_table(TABLE.set_column(SCHEMA.get_field_index("kind"), "kind", small), path)
    return str(path)


def pack(source, out, format, **options):
    columns = FLAT if format in ("csv", "tsv", "xsv") else None
    if format == "ffrecord":
        columns = ["when"]
    separator = {"separator": ";"} if format == "xsv" else {}
    commands.pack(source, str(out), format=format, columns=columns, **separator, **options)
    return TABLE if columns is None else TABLE.select(columns)


@pytest.mark.parametrize("format", names(writable=True))
def test_batches_have_the_types_and_the_order_of_the_source(source, tmp_path, format):
    expected = pack(source, tmp_path / "out", format, shard_rows=7)
    data = read.open(str(tmp_path / "out"))
    found = data.to_arrow()
    if "__key__" in found.schema.names:
        found = found.drop_columns(["__key__"])
    assert found.schema.equals(expected.schema)
    assert found.to_pylist() == expected.to_pylist()
    taken = data.take([13, 2])
    assert taken.schema.equals(data.schema)
    assert [row["when"] for row in taken.to_pylist()] == [ROWS[13]["when"], ROWS[2]["when"]]
    assert list(data[3]) == list(data[[3, 4]][1]) == data.schema.names
    assert [column.name for column in data.columns] == data.schema.names


@pytest.mark.parametrize("format", names(writable=True))
def test_a_dataset_that_is_packed_again_keeps_the_types(source, tmp_path, format):
    expected = pack(source, tmp_path / "one", format)
    columns = expected.schema.names
    commands.pack(str(tmp_path / "one"), str(tmp_path / "two"), columns=columns)
    commands.pack(
        str(tmp_path / "two"), str(tmp_path / "three"), where='"when" is not null', shuffle=1
    )
    for name in ("two", "three"):
        found = read.open(str(tmp_path / name)).to_arrow()
        assert found.schema.equals(expected.schema)
        rows = sorted(found.to_pylist(), key=lambda row: row["when"])
        assert rows == expected.to_pylist()


def test_parts_have_the_types_of_the_source(source, tmp_path):
    commands.pack(source, str(tmp_path / "out"), part_rows=6)
    found = read.open(str(tmp_path / "out")).to_arrow()
    assert (found.schema, found.to_pylist()) == (SCHEMA, ROWS)


def test_the_command_line_prints_the_types(source, tmp_path, capfdbinary):
    def cat(*options):
        assert main(["cat", str(tmp_path / "out"), *options]) == 0
        return capfdbinary.readouterr().out

    commands.pack(source, str(tmp_path / "out"))
    for form, load in (
        ("arrow", lambda data: pa.ipc.open_stream(data).read_all()),
        ("parquet", lambda data: pq.read_table(io.BytesIO(data))),
    ):
        found = load(cat("--to", form))
        assert found.to_pylist() == ROWS
        assert found.schema.names == SCHEMA.names
    assert cat("--rows", "5", "--to", "jsonl").decode() == (
        '{"when": "2024-02-29 17:30:00.250Z", "ok": false, "price": "0.05", "day": "2024-01-06", '
        '"kind": "c", "box": {"x": 5, "at": "2020-01-06"}, "amount": [5, 6], "text": "row 5", '
        '"pair": [5.0, 0.5], "took": "5", "a": 5}\n'
    )
    assert cat("--rows", "5", "--to", "csv").decode().splitlines()[1] == (
        '2024-02-29 17:30:00.250Z,false,0.05,2024-01-06,c,"{""x"": 5, ""at"": ""2020-01-06""}",'
        '"[5, 6]",row 5,"[5.0, 0.5]",5,5'
    )
    for name, raw in (("when", b"2024-02-29 17:30:00.250Z"), ("ok", b"\0"), ("amount", b"[5, 6]")):
        assert cat("--rows", "5", "--raw", name) == raw


def test_an_encoding_that_the_user_chose_replaces_the_type(source, tmp_path):
    commands.pack(source, str(tmp_path / "out"), encode={"price": "float32", "ok": "int"})
    schema = read.open(str(tmp_path / "out")).schema
    assert schema.field("price").type == pa.float32()
    assert schema.field("ok").type == pa.int64()
    assert schema.field("day").type == pa.date32()


def test_a_source_in_the_order_and_types_of_the_format_lists_no_schema(tmp_path):
    table = pa.table({"a": [1, 2], "b": ["x", "y"]})
    pq.write_table(table, tmp_path / "t.parquet")
    commands.pack(str(tmp_path / "t.parquet"), str(tmp_path / "out"))
    headers = yaml.safe_load((tmp_path / "out/playlist.yaml").read_text())["data"]["headers"]
    assert "schema" not in headers


def test_a_resumed_writer_keeps_the_types(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), Writer(str(out), settings=Settings(shard_rows=5)) as one:
        one.write_batch(TABLE.slice(0, 10).combine_chunks())
        raise KeyboardInterrupt
    with Writer(str(out), settings=Settings(shard_rows=5), resume=True) as two:
        two.write_batch(TABLE.slice(two.rows).combine_chunks())
    found = read.open(str(out)).to_arrow()
    assert (found.schema, found.to_pylist()) == (SCHEMA, ROWS)


def test_selected_and_joined_columns_keep_their_types(source, tmp_path):
    commands.pack(source, str(tmp_path / "one"), columns=["when", "box"])
    commands.pack(source, str(tmp_path / "two"), columns=["text", "amount"])
    commands.playlist(
        [f"z={tmp_path / 'one'}", f"y={tmp_path / 'two'}"], out=str(tmp_path / "both.yaml")
    )
    data = read.open(str(tmp_path / "both.yaml"))
    names = ["when", "box", "text", "amount"]
    assert data.to_arrow().equals(TABLE.select(names))
    assert data.select(["amount", "when"]).to_arrow().equals(TABLE.select(["amount", "when"]))
    assert list(data[5]) == names


def test_streams_with_different_types_have_the_types_of_their_encodings(source, tmp_path):
    pq.write_table(
        TABLE.select(["when"]).cast(pa.schema([("when", pa.timestamp("us"))])),
        tmp_path / "other.parquet",
    )
    commands.pack(source, str(tmp_path / "one"), columns=["when"])
    commands.pack(str(tmp_path / "other.parquet"), str(tmp_path / "two"))
    data = read.open([str(tmp_path / "one"), str(tmp_path / "two")])
    assert data.schema.field("when").type == pa.large_string()
    assert len(data.to_arrow()) == 40


def test_the_types_are_read_from_an_edited_playlist(source, tmp_path):
    commands.pack(source, str(tmp_path / "out"), columns=["day", "ok"])
    path = tmp_path / "out/playlist.yaml"
    text = path.read_text().rpartition("# flare")[0]
    path.write_text(text.replace("day: date32", "day: {timestamp: [us, UTC]}"))
    with pytest.raises(ValueFitError) as caught:
        read.open(str(tmp_path / "out")).to_arrow()
    assert str(caught.value) == (
        "row 0: column 'day': a value is not a valid timestamp[us, tz=UTC]"
    )
    for header, message in (
        ("day: date128", "column 'day': unknown type 'date128'"),
        ("days: date32", "schema does not have the same columns as `columns`"),
    ):
        path.write_text(text.replace("day: date32", header))
        with pytest.raises(FormatError) as invalid:
            read.open(str(tmp_path / "out"))
        assert invalid.value.message == message
        (found,) = flarecli.verify(str(tmp_path / "out"))
        assert found.message == message


def test_inspect_shows_the_types_in_the_order_of_the_source(source, tmp_path):
    commands.pack(source, str(tmp_path / "out"))
    (stream,) = commands.inspect(str(tmp_path / "out")).streams
    assert stream.types() == {field.name: str(field.type) for field in SCHEMA}
    assert list(stream.types()) == list(stream.as_json()["columns"]) == SCHEMA.names
    assert stream.as_json()["types"] == stream.types()


def test_a_condition_keeps_encodings_and_reads_every_type(tmp_path):
    table = pa.table(
        {
            "half": pa.array([1.5, 2.5, 3.5], pa.float16()),
            "big": pa.array([Decimal(1), Decimal(2), Decimal(3)], pa.decimal256(50, 2)),
            "items": pa.array([[1, None], [2], []], pa.list_(pa.int64())),
            "z": [1, 2, 3],
        }
    )
    path = tmp_path / "t.arrow"
    with pa.ipc.new_file(str(path), table.schema) as file:
        file.write_table(table)
    commands.pack(str(path), str(tmp_path / "one"), format="webdataset", encode={"items": "json"})
    commands.pack(str(tmp_path / "one"), str(tmp_path / "two"), where="z < 3")
    one, two = (read.open(str(tmp_path / name)) for name in ("one", "two"))
    assert one.where("half > 2 and z = 2").to_arrow()["z"].to_pylist() == [2]
    names = ["half", "big", "items", "z"]
    assert two.to_arrow(names).equals(one.where("z < 3").to_arrow(names))
    encodings = {column.name: column.encoding for column in two.columns}
    assert encodings["items"] == "json"


def test_types_beyond_the_limits_of_a_playlist_are_stored_as_their_encodings(tmp_path):
    deep = {"a": 1}
    for _ in range(8):
        deep = {"a": deep}
    table = pa.table(
        {
            "deep": [deep, deep],
            "empty": pa.array([[], []], pa.list_(pa.float32(), 0)),
            "wide": [{str(i): i for i in range(1100)}] * 2,
        }
    )
    pq.write_table(table.select(["deep", "wide"]), tmp_path / "t.parquet")
    commands.pack(str(tmp_path / "t.parquet"), str(tmp_path / "out"))
    data = read.open(str(tmp_path / "out"))
    assert data[0]["deep"] == deep
    assert data.schema.field("wide").type == pa.large_string()
    commands.pack(table.select(["empty"]), str(tmp_path / "empty"))
    assert read.open(str(tmp_path / "empty")).to_arrow().num_rows == 2


def test_a_year_that_text_cannot_represent_fails_its_row(tmp_path):
    ints = pa.array([0, 3_000_000 * 86_400 * 10**6], pa.int64())
    table = pa.table({"n": [1, 2], "when": ints.cast(pa.timestamp("us"))})
    pq.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ValueFitError) as caught:
        commands.pack(str(tmp_path / "t.parquet"), str(tmp_path / "out"))
    assert str(caught.value) == f"{tmp_path}/t.parquet[1]: when the value cannot be stored as str"


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "webdataset", "tfrecord", "granular"])
def test_large_unsigned_integers_survive_each_format_and_a_conversion(tmp_path, form):
    numbers = pa.array([2**64 - 1, 2**63, 0], pa.uint64())
    table = pa.table({"n": numbers, "kind": numbers.dictionary_encode()})
    commands.pack(table, tmp_path / "one", format=form)
    assert read.open(tmp_path / "one").to_arrow(["n", "kind"]).equals(table)
    commands.pack(tmp_path / "one", tmp_path / "two", format="mds")
    assert read.open(tmp_path / "two").to_arrow(["n", "kind"]).equals(table)


def test_dictionaries_in_nested_columns_survive(tmp_path):
    kinds = pa.array([f"kind {i // 50}" for i in range(10_000)]).dictionary_encode()
    offsets = pa.array(range(len(kinds) + 1), pa.int32())
    table = pa.table(
        {
            "box": pa.StructArray.from_arrays([kinds], ["kind"]),
            "list": pa.ListArray.from_arrays(offsets, kinds),
            "map": pa.MapArray.from_arrays(offsets, kinds.indices, kinds),
        }
    )
    commands.pack(table, tmp_path / "one")
    commands.pack(tmp_path / "one", tmp_path / "two", format="json")
    for name in ("one", "two"):
        data = read.open(tmp_path / name)
        found = data.to_arrow(table.column_names)
        types = [str(kind).replace("large_string", "string") for kind in found.schema.types]
        assert types == [str(kind) for kind in table.schema.types]
        assert found.to_pylist() == table.to_pylist()
        assert [len(batch) for batch in data.batches(9000)] == [9000, 1000]
        assert data.where("box.kind = 'kind 7'").to_arrow().num_rows == 50


@pytest.mark.parametrize("form", ["mds", "tfrecord"])
def test_timestamps_in_local_mean_time_survive(tmp_path, form):
    seconds = [-2_717_650_802, -2_717_650_801, 0]  # New York used UTC-4:56:02 until 1883
    zoned = pa.array(seconds, pa.timestamp("s", "America/New_York"))
    monrovia = pa.array([63_071_999, 1, 0], pa.timestamp("ms", "Africa/Monrovia"))
    nested = pa.array([[one] for one in seconds], pa.list_(zoned.type))
    table = pa.table({"at": zoned, "late": monrovia, "list": nested})
    commands.pack(table, tmp_path / "out", format=form)
    data = read.open(tmp_path / "out")
    assert data.to_arrow(table.column_names).equals(table)
    assert [row["at"] for row in data] == zoned.to_pylist()
    assert data.rows([0, 2], ["at"]) == [
        {"at": b"1883-11-18 16:59:58Z"},  # in UTC, because an offset in text has no seconds
        {"at": b"1969-12-31 19:00:00-0500"},
    ]
