"""Parquet as pyarrow writes it, type by type; the bytes that are read; damage at every byte."""

import base64
import datetime
import decimal
import random
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as encryption
import pytest

from flarecli.errors import FlareError, FormatError, ReachError
from flarecli.formats.tables.arrow_files import LocationFile, arrow_errors
from flarecli.formats.tables.parquet import Parquet
from flarecli.ingest import open_index
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore


def stored(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, **options)
    return sink.getvalue().to_pybytes()


def test_a_file_without_row_groups_has_no_rows(tmp_path):
    table = pa.table({"a": pa.array([], pa.int64())})
    with pq.ParquetWriter(tmp_path / "x.parquet", table.schema):
        pass
    assert list(Parquet(locate(str(tmp_path / "x.parquet"))).batches(None)) == []


def opened(data: bytes) -> Parquet:
    return Parquet(Location(MemoryStore({"x.parquet": data}), "x.parquet"))


def rows_of(part: Parquet, columns=None) -> list[dict]:
    return [row for batch in part.batches(columns) for row in batch.to_pylist()]


def error_of(data: bytes) -> tuple[str, str]:
    with pytest.raises(FormatError) as caught:
        list(opened(data).batches(None))
    return str(caught.value), caught.value.hint


class RecordingStore(MemoryStore):
    """A store that records each read, as a remote store."""

    is_local = False

    def __init__(self, data: bytes) -> None:
        super().__init__({"x.parquet": data})
        self.reads: list[tuple[int, int]] = []

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        self.reads.append((start, self.size(path) if stop is None else stop))
        return super().read(path, start, stop)


@pytest.mark.parametrize(
    ("array", "kind"),
    [
        (pa.array([1, None], pa.uint8()), pa.uint8()),
        (pa.array([1.5, None], pa.float32()), pa.float32()),
        (pa.array([True, None]), pa.bool_()),
        (pa.array(["a", None]), pa.string()),
        (pa.array(["a", None], pa.large_string()), pa.large_string()),
        (pa.array(["a", None], pa.string_view()), pa.string()),
        (pa.array([b"a", None], pa.binary_view()), pa.binary()),
        (pa.array(["a", None]).dictionary_encode(), pa.string()),
        (pa.array([b"ab", None], pa.binary(2)), pa.binary(2)),
        (pa.array([decimal.Decimal("1.10"), None]), pa.decimal128(3, 2)),
        (pa.array([datetime.date(2024, 1, 2), None]), pa.date32()),
        (pa.array([datetime.time(1, 2), None], pa.time64("us")), pa.time64("us")),
        (pa.array([1000, None], pa.timestamp("ns", "UTC")), pa.timestamp("ns", "UTC")),
        (pa.array([[1, 2], None]), pa.list_(pa.int64())),
        (pa.array([{"x": 1}, None]), pa.struct([("x", pa.int64())])),
        (
            pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
            pa.map_(pa.string(), pa.int64()),
        ),
        (pa.nulls(2), pa.null()),
        (
            pa.ExtensionArray.from_storage(
                pa.uuid(), pa.array([b"0123456789abcdef", None], pa.binary(16))
            ),
            pa.binary(16),
        ),
    ],
    ids=lambda value: str(value) if isinstance(value, pa.DataType) else "",
)
def test_values_of_each_type_are_preserved(array, kind):
    part = opened(stored(pa.table({"v": array})))
    assert part.schema == pa.schema([("v", kind)])
    storage = array.storage if isinstance(array, pa.ExtensionArray) else array
    assert [row["v"] for row in rows_of(part)] == storage.to_pylist()


def test_int96_timestamps_keep_microseconds_and_a_note_reports_the_precision(tmp_path):
    values = [
        datetime.datetime(2024, 1, 2, 3, 4, 5, 678901),
        None,
        datetime.datetime(9999, 12, 31),
        datetime.datetime(1, 1, 1),
    ]
    table = pa.table(
        {
            "t": pa.array(values, pa.timestamp("us")),
            "l": pa.array([[one] for one in values], pa.list_(pa.timestamp("us"))),
            "n": range(4),
        }
    )
    data = stored(table, use_deprecated_int96_timestamps=True, write_page_checksum=True)
    assert pq.ParquetFile(pa.BufferReader(data)).schema.column(0).physical_type == "INT96"
    part = opened(data)
    assert (part.schema.field("t").type, part.int96_columns) == (pa.timestamp("us"), ("t", "l"))
    assert rows_of(part) == table.to_pylist()
    (tmp_path / "x.parquet").write_bytes(data)
    told = tuple(
        f"column {name!r}: int96 timestamps are read with microsecond precision"
        for name in ("l", "t")
    )
    assert open_index(str(tmp_path / "x.parquet")).notes == told
    assert opened(stored(pa.table({"t": pa.array(values, pa.timestamp("us"))}))).int96_columns == ()


def test_only_the_footer_and_the_requested_columns_are_read():
    table = pa.table(
        {
            "a": range(50_000),
            "heavy": [random.Random(n).randbytes(100) for n in range(50_000)],
            "z": range(50_000),
        }
    )
    store = RecordingStore(stored(table, compression="none", use_dictionary=False))
    part = Parquet(Location(store, "x.parquet"))
    assert part.rows == 50_000
    assert sum(stop - start for start, stop in store.reads) < 70_000
    store.reads.clear()
    assert pa.Table.from_batches(part.batches(["z"])).equals(table.select(["z"]))
    assert sum(stop - start for start, stop in store.reads) < 1_000_000


def test_row_groups_larger_than_a_buffer_are_read_in_pieces():
    table = pa.table({"text": [f"{n:01000}" for n in range(20_000)]})
    store = RecordingStore(
        stored(table, compression="none", use_dictionary=False, row_group_size=20_000)
    )
    batches = Parquet(Location(store, "x.parquet")).batches(None)
    first = next(batches)
    assert 7 << 18 < first.nbytes < 8 << 18
    assert max(stop - start for start, stop in store.reads) <= 2 << 20
    assert sum(stop - start for start, stop in store.reads) < 12 << 20
    assert sum(batch.num_rows for batch in batches) == 20_000 - first.num_rows


def test_large_rows_are_returned_in_small_batches():
    assert (
        max(
            batch.num_rows
            for batch in opened(stored(pa.table({"v": [bytes(1 << 20)] * 40}))).batches(None)
        )
        <= 16
    )


def test_a_large_dictionary_value_in_every_row_leads_to_small_batches():
    data = stored(pa.table({"prompt": pa.array(["x" * 100_000] * 3000).dictionary_encode()}))
    assert len(data) < 200_000
    assert max(batch.num_rows for batch in opened(data).batches(None)) <= 168


def test_nested_dictionaries_of_several_row_groups_are_read():
    tags = pa.array([["a", "b"], [], None, ["a"]] * 10, pa.list_(pa.string()))
    coded = pa.ListArray.from_arrays(
        tags.offsets, tags.values.dictionary_encode(), mask=tags.is_null()
    )
    table = pa.table({"n": range(40), "tags": coded})
    rows = rows_of(opened(stored(table, row_group_size=7)))
    assert rows == [{"n": n, "tags": value} for n, value in enumerate(tags.to_pylist())]


def test_the_number_of_times_a_footer_is_read_does_not_depend_on_the_number_of_row_groups():
    def footer_reads(row_groups: int) -> int:
        texts = [f"{n:0500}" for n in range(20 * row_groups)]  # each dictionary exceeds 8 kB
        store = RecordingStore(stored(pa.table({"text": texts}), row_group_size=20))
        part = Parquet(Location(store, "x.parquet"))
        assert [row["text"] for row in rows_of(part)] == texts
        return sum(stop == store.size("x.parquet") for _, stop in store.reads)

    assert footer_reads(30) == footer_reads(2)


def test_column_names_with_dots_and_reordered_columns_are_read():
    table = pa.table({"a.b": [1], "a": [{"b": 2, "c": 3}], "é": ["x"]})
    assert rows_of(opened(stored(table)), ["é", "a"]) == [{"é": "x", "a": {"b": 2, "c": 3}}]
    assert rows_of(opened(stored(table.select(["é", "a.b"]))), ["a.b"]) == [{"a.b": 1}]


def test_row_groups_are_read_in_order():
    table = pa.table({"n": range(1000)})
    assert [row["n"] for row in rows_of(opened(stored(table, row_group_size=7)))] == list(
        range(1000)
    )


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"", "not a parquet file: it does not start with PAR1", ""),
        (b"id,url\n1,http://h/a\n", "not a parquet file: it does not start with PAR1", ""),
        (
            b"PAR1" + bytes(96),
            "truncated parquet file: it does not end with PAR1",
            "The file was cut short; download it again.",
        ),
        (
            stored(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["x", "x"])),
            "duplicate column 'x'",
            "Rename one of the columns in the table.",
        ),
        (stored(pa.table({})), "table has no columns", ""),
    ],
)
def test_an_invalid_file_is_reported_in_one_line(data, message, hint):
    assert error_of(data) == (f"x.parquet: {message}", hint)


def test_text_that_is_not_utf8_is_returned_unchanged():
    text = pa.array([b"ok", b"caf\xe9"]).view(pa.string())
    (batch,) = opened(stored(pa.table({"text": text}))).batches(None)
    assert batch.column("text").view(pa.binary()).to_pylist() == [b"ok", b"caf\xe9"]


def test_each_flipped_byte_of_a_file_with_page_checksums_is_detected_or_harmless():
    table = pa.table(
        {
            "id": range(40),
            "url": [f"http://h/{n}.jpg" for n in range(40)],
            "lang": ["en", "fr"] * 20,
        }
    )
    data = stored(table, write_page_checksum=True, compression="zstd")
    noticed = 0
    for at in range(len(data)):
        damaged = data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1 :]
        try:
            rows = rows_of(opened(damaged))
        except FlareError as error:
            noticed += 1
            assert "\n" not in str(error) and "\x1b" not in str(error)
            continue
        if at < data.rfind(b"PAR1") - 8 - int.from_bytes(data[-8:-4], "little"):
            assert (
                rows == table.to_pylist()
            )  # a page: damage may change statistics in its header, but no value
    assert noticed > len(data) // 3


@pytest.mark.parametrize("compression", ["none", "zstd", "snappy"])
def test_flipped_bits_never_cause_a_wrong_row(compression):
    """The bits are anywhere in a file with page checksums, including its footer."""
    names = ["id", "url", "lang", "w"]
    table = pa.table(
        [
            range(200),
            [f"http://h/{n}.jpg" for n in range(200)],
            ["en", "fr"] * 100,
            [n / 3 for n in range(200)],
        ],
        names=names,
    )
    data = stored(table, write_page_checksum=True, compression=compression, row_group_size=50)
    chance, noticed = random.Random(7), 0
    for _ in range(400):
        bit = chance.randrange(8 * len(data))
        damaged = data[: bit // 8] + bytes([data[bit // 8] ^ 1 << bit % 8]) + data[bit // 8 + 1 :]
        try:
            assert rows_of(opened(damaged)) == table.to_pylist(), bit
        except FlareError:
            noticed += 1
    assert noticed > 200


def test_a_footer_whose_two_schemas_differ_is_refused():
    data = stored(pa.table({"first": [1], "second": [2]}))
    at = data.index(
        b"second", len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    )  # in the parquet schema, which is before the Arrow schema
    assert error_of(data[:at] + b"Second" + data[at + 6 :]) == (
        "x.parquet: the two schemas in the footer differ: column 'Second', column 'second'",
        "The footer is damaged, or a tool changed only one of its two schemas; write the file again.",
    )


CUT = "truncated parquet file: it does not end with PAR1"


@pytest.mark.parametrize(
    ("cut", "message", "hint"),
    [
        (5, "not a parquet file: it does not start with PAR1", ""),
        (100, CUT, "The file was cut short; download it again."),
        (-1, CUT, "The file was cut short; download it again."),
        (-9, CUT, "The file was cut short; download it again."),
        (-600, CUT, "The file was cut short; download it again."),
    ],
)
def test_a_truncated_file_is_an_error(cut, message, hint):
    data = stored(pa.table({"id": range(100), "text": [f"text {n}" for n in range(100)]}))
    assert error_of(data[:cut]) == (f"x.parquet: {message}", hint)


class PlainKeys(encryption.KmsClient):
    """A key service that does not encrypt keys."""

    def wrap_key(self, key, name):
        return base64.b64encode(key)

    def unwrap_key(self, key, name):
        return base64.b64decode(key)


@pytest.mark.parametrize("plaintext_footer", [True, False])
def test_encrypted_files_and_columns_are_reported(plaintext_footer):
    table, sink = pa.table({"id": range(9), "text": ["x"] * 9}), pa.BufferOutputStream()
    asked = encryption.EncryptionConfiguration(
        footer_key="one", column_keys={"two": ["text"]}, plaintext_footer=plaintext_footer
    )
    seal = encryption.CryptoFactory(lambda _: PlainKeys()).file_encryption_properties(
        encryption.KmsConnectionConfig(), asked
    )
    with pq.ParquetWriter(sink, table.schema, encryption_properties=seal) as writer:
        writer.write_table(table)
    data = sink.getvalue().to_pybytes()
    assert error_of(data) == ("x.parquet: the parquet file is encrypted", "Decrypt the file first.")
    if plaintext_footer:
        assert rows_of(opened(data), ["id"]) == [{"id": n} for n in range(9)]


@pytest.mark.parametrize("version", ["1.0", "2.0"])
@pytest.mark.parametrize(
    "options", [{"compression": "none"}, {"compression": "zstd", "use_dictionary": False}]
)
@pytest.mark.parametrize("rows", [1, 50_000])
def test_page_checksums_are_detected(version, options, rows):
    table = pa.table({"text": [f"{n}" for n in range(rows)]})
    for has_sums in (True, False):
        assert (
            opened(
                stored(table, write_page_checksum=has_sums, data_page_version=version, **options)
            ).has_sums
            is has_sums
        )


def test_an_index_without_page_checksums_is_noted(tmp_path):
    table = pa.table({"n": [1]})
    for number, has_sums in enumerate([True, False, False]):
        pq.write_table(table, tmp_path / f"{number}.parquet", write_page_checksum=has_sums)
    names = [str(tmp_path / f"{number}.parquet") for number in range(3)]
    said = "pages have no checksums, so damage may stay undetected"
    assert open_index(names[0]).details == ()
    assert open_index(names[1]).details == (f"{names[1]}: {said}",)
    assert open_index(names).details == (f"{names[1]} and 1 more: {said}",)


def test_long_cells_are_read_completely():
    cells = ["é" * 100_000, "", "x" * 200_000, "line\n" * 40_000]
    assert [row["text"] for row in rows_of(opened(stored(pa.table({"text": cells}))))] == cells


def test_a_local_file_that_shrinks_while_it_is_read_is_an_error(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(
        pa.table({"text": [f"{n:0500}" for n in range(40_000)]}),
        path,
        compression="none",
        use_dictionary=False,
        row_group_size=10_000,
    )
    size = path.stat().st_size
    batches = open_index(str(path)).batches()
    next(batches)
    with path.open("r+b") as file:
        file.truncate(6_000_000)
    with pytest.raises(FormatError) as caught:
        list(batches)
    assert (str(caught.value), caught.value.hint) == (
        f"{path}: file is 6000000 bytes; it was {size} bytes when it was opened",
        "Another process truncated the file; open it again.",
    )


def test_a_failing_disk_is_not_reported_as_damage(tmp_path):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": [1]}), path)
    at = locate(str(path))
    with pytest.raises(ReachError) as caught, arrow_errors(at, LocationFile(at), "parquet"):
        raise OSError(5, "Error reading bytes from file")
    assert str(caught.value) == f"{path}: input/output error"


def test_a_page_larger_than_its_file_is_refused_before_memory_is_allocated():
    path = Path(__file__).parents[1] / "fuzz" / "found" / "parquet" / "page_larger_than_its_file"
    at = Location(MemoryStore({"a.parquet": path.read_bytes()}), "a.parquet")
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(FormatError) as told:
        list(Parquet(at).batches(None))
    message = "a.parquet: page at byte 57 is 1533678143 bytes; the file ends at byte 1013"
    assert str(told.value) == message
    assert pa.default_memory_pool().max_memory() - before < 1 << 24
