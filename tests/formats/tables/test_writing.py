"""Parquet as an output: types, pages, checksums, limits of shards, conversion and resuming."""

import io
import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import flarecli as flare
from flarecli import commands, formats
from flarecli.errors import UsageError, ValueFitError
from flarecli.read import resolve
from flarecli.write import Writer
from tests.formats.tables.test_reading import TABLE

SOURCE = TABLE.drop_columns(["none"])


def source(folder, table=SOURCE):
    pq.write_table(table, folder / "in.parquet")
    return str(folder / "in.parquet")


def large(schema):
    """Return a schema with the layouts that playlists list: large text and bytes."""
    names = {pa.string(): pa.large_string(), pa.binary(): pa.large_binary()}

    def kind(one):
        if pa.types.is_dictionary(one):
            return pa.dictionary(one.index_type, kind(one.value_type))
        if pa.types.is_struct(one):
            return pa.struct([(field.name, kind(field.type)) for field in one])
        return pa.list_(kind(one.value_type)) if pa.types.is_list(one) else names.get(one, one)

    return pa.schema([(field.name, kind(field.type)) for field in schema])


def test_a_packed_table_has_the_same_rows_types_and_order_of_columns(tmp_path):
    commands.pack([source(tmp_path)], str(tmp_path / "out"), format="parquet", shard_rows=1000)
    data = flare.open(tmp_path / "out")
    assert data.schema.equals(large(SOURCE.schema))
    assert data.to_arrow().to_pylist() == SOURCE.to_pylist()
    assert data[1234] == SOURCE.slice(1234, 1).to_pylist()[0]
    assert data.edges.tolist() == [0, 1000, 2000, 3000]
    assert list(commands.verify([str(tmp_path / "out")])) == []
    shards = [pq.read_table(path) for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert pa.concat_tables(shards).to_pylist() == SOURCE.to_pylist()


def test_pages_have_checksums_and_an_index(tmp_path):
    commands.pack([source(tmp_path)], str(tmp_path / "out"), format="parquet")
    path = tmp_path / "out" / "00000.parquet"
    metadata = pq.read_metadata(path)
    for i in range(metadata.num_columns):
        column = metadata.row_group(0).column(i)
        assert column.has_offset_index
        assert column.has_column_index
        assert column.compression == "SNAPPY"
    offset = metadata.row_group(0).column(0).data_page_offset + 40
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    with pytest.raises(OSError, match="CRC checksum verification failed"):
        pq.read_table(io.BytesIO(data), page_checksum_verification=True)


@pytest.mark.parametrize(
    ("compress", "codec"),
    [("zstd:7", "ZSTD"), ("gz", "GZIP"), ("br", "BROTLI"), ("snappy", "SNAPPY")],
)
def test_compress_selects_the_codec_of_the_pages(tmp_path, compress, codec):
    commands.pack([source(tmp_path)], str(tmp_path / "out"), format="parquet", compress=compress)
    column = pq.read_metadata(tmp_path / "out" / "00000.parquet").row_group(0).column(0)
    assert column.compression == codec
    assert flare.open(tmp_path / "out").to_arrow().to_pylist() == SOURCE.to_pylist()
    assert list(commands.verify([str(tmp_path / "out")])) == []


def test_a_compression_that_parquet_lacks_is_refused(tmp_path):
    with pytest.raises(UsageError) as caught:
        commands.pack([source(tmp_path)], str(tmp_path / "out"), format="parquet", compress="bz2")
    assert caught.value.message == "Parquet cannot be compressed with bz2"
    assert caught.value.hint == "Choose one of br, gz, snappy, zstd, or omit --compress."


def test_large_values_have_pages_of_their_own(tmp_path):
    noise = np.random.default_rng(0).bytes(300 * 50_000)
    values = [noise[i * 50_000 :][:50_000] for i in range(300)]
    table = pa.table({"id": range(300), "data": values})
    commands.pack([source(tmp_path, table)], str(tmp_path / "out"), format="parquet")
    path = tmp_path / "out" / "00000.parquet"
    metadata = pq.read_metadata(path)
    assert metadata.num_row_groups == 1
    assert flare.open(tmp_path / "out")[299] == {"id": 299, "data": values[299]}


def test_shards_and_row_groups_have_limited_sizes(tmp_path):
    noise = np.random.default_rng(0).bytes(40 << 20)
    values = [noise[i << 20 :][: 1 << 20] for i in range(40)]
    table = pa.table({"data": values})
    commands.pack(
        [source(tmp_path, table)], str(tmp_path / "out"), format="parquet", shard_size="18MiB"
    )
    rows = [
        [
            pq.read_metadata(path).row_group(i).num_rows
            for i in range(pq.read_metadata(path).num_row_groups)
        ]
        for path in sorted((tmp_path / "out").glob("*.parquet"))
    ]
    assert rows == [[15, 2], [15, 2], [6]]


def test_the_same_rows_make_the_same_bytes(tmp_path):
    for name, rows in (("one", 500), ("two", 70)):
        pq.write_table(SOURCE, tmp_path / f"{name}.parquet", row_group_size=rows)
        commands.pack(
            [str(tmp_path / f"{name}.parquet")], str(tmp_path / name), format="parquet", jobs=2
        )
    shard = "00000.parquet"
    assert (tmp_path / "one" / shard).read_bytes() == (tmp_path / "two" / shard).read_bytes()


def picture(i):
    file = io.BytesIO()
    Image.new("RGB", (8, 8), (i, 0, 0)).save(file, "jpeg")
    return file.getvalue()


@pytest.mark.parametrize(
    "other", [name for name in formats.names(writable=True) if name != "parquet"]
)
def test_every_format_is_converted_to_parquet_and_back(tmp_path, other):
    columns = {"key": "str", "n": "int", "x": "float64"}
    if formats.find(other).store_as("jpeg") == "jpeg":
        columns["jpeg"] = "jpeg"
    try:
        formats.find(other).arrange(
            flare.model.Column(name, formats.find(other).store_as(kind))
            for name, kind in columns.items()
        )
    except UsageError:
        columns = {"n": "int"}
    options = {"separator": "|"} if other == "xsv" else {}
    rows = [{"key": f"{i:03}", "n": i, "x": i / 7, "jpeg": picture(i)} for i in range(9)]
    with flare.Writer(tmp_path / "first", columns=columns) as writer:
        for row in rows:
            writer.write({name: row[name] for name in columns})
    commands.pack([str(tmp_path / "first")], str(tmp_path / "there"), format=other, **options)
    commands.pack([str(tmp_path / "there")], str(tmp_path / "table"), format="parquet")
    commands.pack([str(tmp_path / "table")], str(tmp_path / "back"))
    wanted = flare.open(tmp_path / "first").to_arrow()
    for name in ("table", "back"):
        found = flare.open(tmp_path / name).to_arrow(wanted.schema.names)
        assert found.to_pylist() == wanted.to_pylist()
    if "jpeg" in columns:
        data = flare.open(tmp_path / "table")
        assert data[3]["jpeg"].size == (8, 8)
        assert {one.name: one.encoding for one in data.columns}["jpeg"] == "jpeg"
        direct = flare.open(tmp_path / "table" / "00000.parquet")
        assert direct[3]["jpeg"].size == (8, 8)


def test_encodings_are_kept_in_a_parquet_file(tmp_path):
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    with flare.Writer(
        tmp_path / "out",
        format="parquet",
        columns={"a": "ndarray:float32:2,3", "m": "msgpack", "j": "json", "l": "int[]", "s": "str"},
    ) as writer:
        for i in range(3):
            writer.write(
                {"a": array + i, "m": {"k": [i]}, "j": {"i": i}, "l": [i] * i, "s": str(i)}
            )
    for source in (tmp_path / "out", tmp_path / "out" / "00000.parquet"):
        row = flare.open(source)[2]
        assert (row["a"] == array + 2).all()
        del row["a"]
        assert row == {"m": {"k": [2]}, "j": {"i": 2}, "l": [2, 2], "s": "2"}


def test_nulls_are_kept(tmp_path):
    table = pa.table({"a": [1, None, 3], "b": ["x", None, ""], "c": [None, [1, None], []]})
    commands.pack([source(tmp_path, table)], str(tmp_path / "out"), format="parquet")
    assert flare.open(tmp_path / "out").to_arrow().to_pylist() == table.to_pylist()


def test_a_killed_pack_is_resumed_with_the_same_bytes(tmp_path):
    path = source(tmp_path)
    options = {"format": "parquet", "shard_rows": 500}
    commands.pack([path], str(tmp_path / "whole"), **options)

    class Stop(Exception):
        pass

    class Progress(flare.progress.Progress):
        def advance(self, rows=0, size=0):
            self.rows = getattr(self, "rows", 0) + rows
            if self.rows > 1400:
                raise Stop

    with pytest.raises(Stop):
        commands.pack([path], str(tmp_path / "out"), progress=Progress(), **options)
    assert not (tmp_path / "out" / "playlist.yaml").exists()
    commands.pack([path], str(tmp_path / "out"), resume=True, **options)
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_rows_are_unpacked_as_files(tmp_path):
    table = pa.table({"key": ["a", "b"], "text": ["x", None], "data": [b"1", b"22"]})
    commands.pack([source(tmp_path, table)], str(tmp_path / "out"), format="parquet")
    commands.unpack(
        [str(tmp_path / "out")], str(tmp_path / "files"), key="key", columns=["key", "data"]
    )
    found = {
        path.name: path.read_bytes()
        for path in (tmp_path / "files").iterdir()
        if path.suffix == ".bin"
    }
    assert found == {"a.bin": b"1", "b.bin": b"22"}


def test_rows_are_appended_dropped_and_compacted(tmp_path):
    out = str(tmp_path / "out")
    commands.pack([source(tmp_path, SOURCE.slice(0, 100))], out, format="parquet")
    pq.write_table(SOURCE.slice(100, 50), tmp_path / "in.parquet")
    commands.pack([str(tmp_path / "in.parquet")], out, append=True)
    commands.drop(out, where="id < 30")
    data = flare.open(out)
    assert data.schema.equals(large(SOURCE.schema))
    assert data.to_arrow().to_pylist() == SOURCE.slice(30, 120).to_pylist()
    commands.compact(out)
    assert flare.open(out).edges.tolist() == [0, 120]
    assert flare.open(out)[119] == SOURCE.slice(149, 1).to_pylist()[0]
    assert list(commands.verify([out])) == []


def test_a_flipped_bit_in_a_packed_table_names_file_and_rows(tmp_path):
    commands.pack([source(tmp_path)], str(tmp_path / "out"), format="parquet", shard_rows=1000)
    path = tmp_path / "out" / "00001.parquet"
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 4
    path.write_bytes(data)
    first, *more = commands.verify([str(tmp_path / "out")])
    assert (first.kind, first.address) == ("checksum", str(path))
    assert "(rows 1000 to 1999)" in first.message
    assert [(one.kind, one.column is not None, one.row) for one in more] == [("format", True, 0)]


def test_the_playlist_lists_every_type_so_that_no_shard_is_opened(tmp_path):
    commands.pack([source(tmp_path)], str(tmp_path / "out"), format="parquet")
    (tmp_path / "out" / "00000.parquet").unlink()
    data = flare.open(tmp_path / "out")
    assert (len(data), data.schema.equals(large(SOURCE.schema))) == (3000, True)
    (stream,) = resolve(str(tmp_path / "out"))[0].streams
    assert json.dumps(stream.headers["schema"]["at"]) == '{"timestamp": ["us", "UTC"]}'


SECONDS = pa.array([0, 2**60, 2**60], pa.timestamp("s"))


@pytest.mark.parametrize("column", [SECONDS, pa.StructArray.from_arrays([SECONDS], ["at"])])
def test_a_timestamp_that_parquet_cannot_store_is_reported_with_its_row(tmp_path, column):
    table = pa.table({"v": column})
    message = f"column 'v': a value of {column.type} is out of range; Parquet stores milliseconds"
    with pytest.raises(ValueFitError) as caught, Writer(tmp_path / "one", format="parquet") as one:
        one.write_batch(table)
    assert (caught.value.row, caught.value.column, caught.value.message) == (1, "v", message)
    packed = commands.pack(table, tmp_path / "two", format="parquet", on_error="skip")
    assert (packed.rows, packed.failed) == (1, 2)
    assert flare.open(tmp_path / "two").to_arrow()["v"].to_pylist() == column[:1].to_pylist()


def test_a_column_of_intervals_is_reported_with_its_name(tmp_path):
    table = pa.table({"v": pa.array([pa.MonthDayNano([1, 2, 3])])})
    with pytest.raises(UsageError) as caught, Writer(tmp_path / "out", format="parquet") as out:
        out.write_batch(table)
    error = caught.value
    assert error.message == "column 'v': month_day_nano_interval cannot be stored as str"
    assert (error.column, error.hint) == ("v", "Select other columns with -c.")
