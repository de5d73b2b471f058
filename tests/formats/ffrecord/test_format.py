"""FFRecord: files of the original, damage, and written files that are read again."""

import hashlib
import json
import pickle
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.encodings import lookup, stored
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UnfinishedError,
    UsageError,
    ValueFitError,
)
from flarecli.formats import find
from flarecli.formats.ffrecord import table as ffrecord_table
from flarecli.model import Chunk, Column, File, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from tests.properties import examples

ffrecord = find("ffrecord")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "ffrecord"
NAMES = sorted(path.name for path in GOLDEN.iterdir() if path.name != "bad")
DAMAGED = "The file was damaged or cut short; fetch or pack it again."
CHANGED = "The file was changed after it was packed; fetch or pack it again."


def expected(name):
    return [
        json.loads(line)["fields"]["data"]
        for line in (GOLDEN / name / "expected.jsonl").read_text().splitlines()
    ]


def in_memory(data, rows=None, size=None):
    return Chunk(Location(MemoryStore({"s.ffr": data}), "s.ffr"), rows, (File("s.ffr", size),))


def made(records, sums=None, starts=None, head=None):
    """Return the bytes of a file; None: the valid value."""
    first = 12 + 12 * len(records)
    starts = (
        np.cumsum([first, *map(len, records)])[: len(records)].tolist()
        if starts is None
        else starts
    )
    sums = [zlib.crc32(data) for data in records] if sums is None else sums
    table = struct.pack(f"<q{len(sums)}I{len(starts)}q", len(records), *sums, *starts)
    return (
        struct.pack("<I", zlib.crc32(table) if head is None else head) + table + b"".join(records)
    )


def written(records, encoding="bytes", compression=None):
    store = MemoryStore()
    array = encodings.typed(pa.array(records, pa.large_binary()), lookup(encoding))
    column = encodings.column("data", encoding)
    chunk = ffrecord.write_shard(
        Location(store),
        0,
        (column,),
        [pa.record_batch([array], schema=pa.schema([encodings.field(column)]))],
        Settings(compression),
    )
    return chunk, store.files["00000.ffr"]


def rows_of(shard):
    return [row["data"] for row in ffrecord.read_rows(shard, range(shard.rows))]


def unchecked_rows_of(shard):
    return ffrecord_table.read_views(shard, range(shard.rows), check=False)


# -- files of the original


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_files_of_the_original_are_read_by_rows_and_by_batches(name, maps):
    at = locate(str(GOLDEN / name / "data"))
    by_row, by_batch, by_view, by_copy = [], [], [], []
    for chunk in ffrecord.open_dataset(at if maps else at.unmapped()):
        shard = ffrecord.open_shard(chunk)
        by_row += rows_of(shard)
        by_view += map(bytes, ffrecord_table.read_views(shard, range(shard.rows)))
        by_copy += map(bytes, ffrecord_table.read_copies(shard, range(shard.rows)))
        by_batch += ffrecord.read_batch(shard, 0, shard.rows, views=maps).column("data").to_pylist()
        assert list(ffrecord.verify_shard(shard, values=True)) == []
        third = shard.rows // 3
        assert (
            ffrecord.read_batch(shard, third, 2 * third).column("data").to_pylist()
            == rows_of(shard)[third : 2 * third]
        )
    wanted = [(one["len"], one["sha256"]) for one in expected(name)]
    assert [(len(data), hashlib.sha256(data).hexdigest()) for data in by_row] == wanted
    assert by_row == by_batch == by_view == by_copy


@pytest.mark.parametrize("name", [name for name in NAMES if name != "oldversion"])
def test_rewritten_shards_have_the_bytes_of_the_original(name):
    for chunk in ffrecord.open_dataset(locate(str(GOLDEN / name / "data"))):
        shard = ffrecord.open_shard(chunk)
        to = Location(MemoryStore())
        half = shard.rows // 2
        batches = [
            ffrecord.read_batch(shard, 0, half),
            ffrecord.read_batch(shard, half, shard.rows, views=True),
        ]
        again = ffrecord.write_shard(to, 3, shard.columns, batches, Settings(hashes=("crc32",)))
        assert again.at.read() == chunk.at.read()
        assert (again.files[0].name, again.rows, again.files[0].size) == (
            "00003.ffr",
            shard.rows,
            chunk.files[0].size,
        )
        assert set(again.files[0].hashes) == {"xxh3_128", "crc32"}
        base, sizes = ffrecord.row_sizes(
            shard.columns, ffrecord.read_batch(shard, 0, shard.rows), Settings()
        )
        assert base + sizes.sum() == again.files[0].size


def test_a_folder_is_listed_in_string_order_with_hidden_files():
    stream = ffrecord.open_dataset(locate(str(GOLDEN / "multi_order" / "data")))
    assert list(stream.urls) == [".hid.ffr", "10.ffr", "9.ffr", "B.ffr", "a.ffr"]
    assert stream.sizes.tolist() == [28, 26, 25, 25, 25]


def test_a_folder_is_listed_without_subfolders(tmp_path):
    (tmp_path / "a.ffr").mkdir()
    for name in ("a.ffr/x.ffr", "b.ffr", "c.ffr.part"):
        (tmp_path / name).write_bytes(made([]))
    assert list(ffrecord.open_dataset(locate(str(tmp_path))).urls) == ["b.ffr"]
    (tmp_path / "b.ffr").unlink()
    with pytest.raises(MissingError) as caught:
        ffrecord.open_dataset(locate(str(tmp_path)))
    assert str(caught.value) == f"{tmp_path}: folder contains no .ffr files"


def test_an_old_file_without_a_checksum_is_read_and_reported():
    (chunk,) = ffrecord.open_dataset(locate(str(GOLDEN / "oldversion" / "data")))
    assert (
        ffrecord.unprotected(ffrecord.open_shard(chunk))
        == "the table has no checksum (written by an old version); only its structure was checked"
    )
    (chunk,) = ffrecord.open_dataset(locate(str(GOLDEN / "empties" / "data")))
    assert ffrecord.unprotected(ffrecord.open_shard(chunk)) == ""


# -- damage

WHEN_OPENED = {
    "aborted_writer": "table is empty, but 65 bytes of records follow it",
    "empty_file": "file is 0 bytes; an empty table needs 12",
    "flip_checksum": "checksum mismatch: CRC-32 of the table",
    "flip_header": "checksum mismatch: CRC-32 of the table",
    "flip_n": "checksum mismatch: CRC-32 of the table",
    "huge_n": "file is 12 bytes; it is too small for a table of 1099511627776 records",
    "negative_n": "file is 12 bytes; it is too small for a table of -3 records",
    "short": "file is 3 bytes; an empty table needs 12",
    "trunc_data": "record 5 starts at byte 118; the file ends at byte 113",
    "trunc_header": "file is 40 bytes; it is too small for a table of 6 records",
}
WHEN_READ = {
    "flip_data": (4, "checksum mismatch: CRC-32 of 33 bytes"),
    "trailing": (5, "checksum mismatch: CRC-32 of 4 bytes; the size of the file may have changed"),
}


def test_every_damaged_golden_file_is_tested():
    assert {
        path.stem for path in (GOLDEN / "bad").iterdir()
    } == WHEN_OPENED.keys() | WHEN_READ.keys()


@pytest.mark.parametrize("name", WHEN_OPENED)
def test_a_damaged_table_is_refused(name):
    at = locate(str(GOLDEN / "bad" / f"{name}.ffr"))
    with pytest.raises(UnfinishedError if name == "aborted_writer" else FormatError) as caught:
        ffrecord.open_shard(Chunk(at))
    assert str(caught.value) == f"{at}: {WHEN_OPENED[name]}"
    assert caught.value.hint == (
        "The writer was interrupted; pack the file again." if name == "aborted_writer" else DAMAGED
    )


@pytest.mark.parametrize("name", WHEN_READ)
def test_a_damaged_record_is_reported_with_its_row(name):
    shard = ffrecord.open_shard(Chunk(locate(str(GOLDEN / "bad" / f"{name}.ffr"))))
    row, message = WHEN_READ[name]
    (found,) = ffrecord.verify_shard(shard)
    assert (found.where, found.kind, found.message, found.hint) == (
        f"{shard.chunk.at}[{row}]",
        "integrity",
        message,
        CHANGED,
    )
    for read in (
        lambda: ffrecord.read_rows(shard, [0, row]),
        lambda: ffrecord_table.read_views(shard, [0, row]),
        lambda: ffrecord_table.read_copies(shard, [0, row]),
        lambda: ffrecord.read_batch(shard, 1, shard.rows),
    ):
        with pytest.raises(IntegrityError) as caught:
            read()
        assert (str(caught.value), caught.value.hint) == (f"{found.where}: {message}", CHANGED)
    assert (
        unchecked_rows_of(shard)[row]
        == ffrecord.read_batch(shard, row, row + 1, check=False).column(0)[0].as_py()
    )
    assert ffrecord.read_rows(shard, [0])[0]["data"] == unchecked_rows_of(shard)[0]


def test_every_flipped_bit_is_detected():
    whole = written([b"one", b"", b"three"])[1]
    for at in range(8 * len(whole)):
        data = bytearray(whole)
        data[at // 8] ^= 1 << at % 8
        try:
            found = list(ffrecord.verify_shard(ffrecord.open_shard(in_memory(data))))
        except FlareError:
            continue
        assert found, f"bit {at} of {8 * len(whole)}"


def test_every_truncated_or_extended_file_is_detected():
    whole = written([b"one", b"", b"three"])[1]
    for data in (
        *(whole[:size] for size in range(len(whole))),
        whole + b"\0",
        whole + whole,
        written([])[1] + b"\0",
    ):
        try:
            found = list(ffrecord.verify_shard(ffrecord.open_shard(in_memory(data))))
        except FlareError:
            continue
        assert found, len(data)


@pytest.mark.parametrize("head", [None, 0])
@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"starts": [36, 35]}, "record 0 starts at byte 36 but ends at byte 35"),
        ({"starts": [35, 39]}, "record 0 starts at byte 35, inside the table"),
        ({"starts": [36, 45]}, "record 1 starts at byte 45; the file ends at byte 44"),
        (
            {"starts": [1 << 62, 1 << 62]},
            f"record 1 starts at byte {1 << 62}; the file ends at byte 44",
        ),
        ({"starts": [36, -1]}, "record 0 starts at byte 36 but ends at byte -1"),
        ({"starts": [-(1 << 63), 40]}, f"record 0 starts at byte {-(1 << 63)}, inside the table"),
    ],
)
def test_offsets_outside_the_records_are_refused_even_with_a_valid_checksum(data, message, head):
    with pytest.raises(FormatError) as caught:
        ffrecord.open_shard(in_memory(made([b"abcd", b"efgh"], head=head, **data)))
    assert str(caught.value) == f"s.ffr: {message}"


def test_unused_bytes_after_the_table_are_reported():
    table = made([b"abc", b"de"], starts=[39, 42])[:36]
    shard = ffrecord.open_shard(in_memory(table + b"gap" + b"abcde"))
    assert rows_of(shard) == [b"abc", b"de"]
    assert [found.message for found in ffrecord.verify_shard(shard)] == [
        "3 unused bytes between the table and the first record"
    ]
    with pytest.raises(FormatError) as caught:
        ffrecord.open_shard(in_memory(made([]) + b"hidden"))
    assert str(caught.value) == "s.ffr: table has 0 records, but 6 bytes follow it"


def test_a_record_larger_than_a_step_is_hashed_in_pieces(monkeypatch):
    monkeypatch.setattr("flarecli.formats.ffrecord.format._STEP_BYTES", 16)
    data = bytearray(made([b"x" * 100, b"", b"y" * 16, b"z" * 17]))
    assert list(ffrecord.verify_shard(ffrecord.open_shard(in_memory(bytes(data))))) == []
    for place, row in ((12 + 12 * 4 + 50, 0), (len(data) - 1, 3)):
        bad = bytearray(data)
        bad[place] ^= 1
        assert [
            found.where
            for found in ffrecord.verify_shard(ffrecord.open_shard(in_memory(bytes(bad))))
        ] == [f"s.ffr[{row}]"]


def test_verify_checks_a_table_that_was_opened_without_a_check():
    data = bytearray(made([b"abc", b"de"]))
    data[0] ^= 1
    shard = ffrecord.open_shard(in_memory(data), check=False)
    assert rows_of(shard) == [b"abc", b"de"]
    assert [found.message for found in ffrecord.verify_shard(shard)] == [
        "checksum mismatch: CRC-32 of the table"
    ]


def test_a_listing_that_differs_from_the_file_is_refused():
    data = made([b"abc", b"de"])
    with pytest.raises(FormatError) as caught:
        ffrecord.open_shard(in_memory(data, rows=3))
    assert str(caught.value) == "s.ffr: contains 2 records; the playlist or index lists 3"
    with pytest.raises(IntegrityError) as caught:
        ffrecord.open_shard(in_memory(data, size=40))
    assert str(caught.value) == "s.ffr: file is 41 bytes; the listed size is 40"
    with pytest.raises(FormatError) as caught:
        ffrecord.open_shard(in_memory(data), (Column("a", "str"), Column("b", "str")))
    assert str(caught.value) == "s.ffr: the playlist lists 2 columns; ffrecord has one column"
    for rows in (-1, 1 << 60):
        with pytest.raises(FormatError):
            ffrecord.open_shard(in_memory(data, rows=rows))


def test_a_file_that_changed_since_it_was_opened_is_not_read(tmp_path):
    (tmp_path / "a.ffr").write_bytes(made([b"abc"]))
    shard = ffrecord.open_shard(Chunk(locate(str(tmp_path / "a.ffr"))))
    (tmp_path / "a.ffr").write_bytes(made([b"a"]))
    for read in (lambda: ffrecord.read_rows(shard, [0]), lambda: ffrecord.read_batch(shard, 0, 1)):
        with pytest.raises(IntegrityError) as caught:
            read()
        assert (
            str(caught.value)
            == f"{tmp_path}/a.ffr: file is 25 bytes; it was 27 bytes when it was opened"
        )


_HOSTILE = """
import resource, sys
sys.path[:0] = {path!r}
from flarecli.errors import FlareError
from flarecli.formats import find
from flarecli.model import Chunk
from flarecli.storage import locate
ffrecord = find("ffrecord")
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # of libraries, which reserve more than they use
resource.setrlimit(resource.RLIMIT_AS, (used + (250 << 20),) * 2)
for name in sys.argv[1:]:
    try:
        shard = ffrecord.open_shard(Chunk(locate(name).unmapped()))
        found = [one.message for one in ffrecord.verify_shard(shard)]
        print("found", *found[:1])
    except FlareError as error:
        print(error.message)
    except MemoryError:  # the file is as large as its table declares, so it is valid
        print("not enough memory")
"""


def test_hostile_tables_are_refused_in_little_memory(tmp_path):
    def sparse(name, rows, size):
        with open(tmp_path / name, "wb") as file:
            file.write(struct.pack("<Iq", 1, rows))
            file.truncate(size)
        return str(tmp_path / name)

    table = struct.pack("<qIq", 1, 0, 24)
    with open(tmp_path / "large.ffr", "wb") as file:
        file.write(struct.pack("<I", zlib.crc32(table)) + table)
        file.truncate(600 << 20)
    files = [
        sparse("a.ffr", 1 << 60, 100),
        sparse("b.ffr", (1 << 63) - 1, 1 << 20),
        sparse("c.ffr", 1 << 26, (12 << 26) + 12),
        sparse("d.ffr", 1 << 27, 1 << 40),
        sparse("e.ffr", -(1 << 63), 100),
        str(tmp_path / "large.ffr"),
    ]
    code = _HOSTILE.format(path=[str(GOLDEN.parents[1])])
    done = subprocess.run(
        [sys.executable, "-c", code, *files],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == [
        f"file is 100 bytes; it is too small for a table of {1 << 60} records",
        f"file is {1 << 20} bytes; it is too small for a table of {(1 << 63) - 1} records",
        "not enough memory",
        "not enough memory",
        f"file is 100 bytes; it is too small for a table of {-(1 << 63)} records",
        "found checksum mismatch: CRC-32 of 629145576 bytes; the size of the file may have changed",
    ]


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=120), st.integers(0, 4), st.booleans())
def test_any_bytes_are_read_or_refused(data, rows, is_old):
    """Arbitrary bytes follow a valid header, so that later checks are reached."""
    table = struct.pack("<q", rows) + data
    end = 8 + 12 * rows
    for whole in (data, struct.pack("<I", 0 if is_old else zlib.crc32(table[:end])) + table):
        try:
            shard = ffrecord.open_shard(in_memory(whole))
        except FormatError:
            continue
        unchecked = unchecked_rows_of(shard)
        assert sum(map(len, unchecked)) <= len(whole)
        assert (
            unchecked
            == ffrecord.read_batch(shard, 0, shard.rows, check=False).column(0).to_pylist()
        )
        found = [one for one in ffrecord.verify_shard(shard) if one.where.endswith("]")]
        assert len(found) == sum(
            zlib.crc32(one) != int(wanted)
            for one, wanted in zip(unchecked, shard.layout["sums"], strict=True)
        )


# -- written files


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.binary(max_size=64)), st.randoms(use_true_random=False))
def test_written_rows_are_read_back(records, random):
    chunk, data = written(records)
    assert data == made(records)
    shard = ffrecord.open_shard(chunk)
    assert rows_of(shard) == records
    order = [random.randrange(len(records)) for _ in range(2 * len(records))]
    assert [row["data"] for row in ffrecord.read_rows(shard, order)] == [records[i] for i in order]
    again = pickle.loads(pickle.dumps(shard))
    assert rows_of(again) == records
    assert again.layout["offsets"].tolist() == shard.layout["offsets"].tolist()


@pytest.mark.parametrize(
    ("encoding", "records"),
    [
        ("str", [b"one", "é😀".encode(), b""]),
        ("int", [struct.pack("<q", n) for n in (0, -1, 1 << 62)]),
        ("uint16", [struct.pack("<H", n) for n in (0, 1, 65535)]),
        ("jpeg", [b"\xff\xd8", b"", b"\xff"]),
        ("ndarray:uint8:2,2", [b"abcd", b"efgh", b"ijkl"]),
    ],
)
@pytest.mark.parametrize("views", [False, True])
def test_the_only_column_can_have_any_encoding(encoding, records, views, tmp_path):
    (tmp_path / "a.ffr").write_bytes(written(records, encoding)[1])
    columns = (encodings.column("it", encoding),)
    shard = ffrecord.open_shard(Chunk(locate(str(tmp_path / "a.ffr"))), columns)
    batch = ffrecord.read_batch(shard, 0, 3, views=views)
    batch.validate(full=True)
    assert batch.schema.equals(pa.schema([encodings.field(columns[0])]), check_metadata=True)
    assert stored(batch.column("it"), lookup(encoding)).to_pylist() == records
    assert ffrecord.read_rows(shard, [2, 0], ["it"]) == [{"it": records[2]}, {"it": records[0]}]
    assert ffrecord.read_batch(shard, 1, 1).num_rows == 0
    assert list(ffrecord.verify_shard(shard, values=True)) == []


def test_lists_are_written_in_a_single_value():
    assert ffrecord.arrange([Column("a", "jpeg[]")]) == (encodings.column("a", "list[jpeg]"),)
    assert ffrecord.arrange([Column("a", "str[]")]) == (encodings.column("a", "json"),)


def test_copies_can_be_modified(tmp_path):
    (tmp_path / "a.ffr").write_bytes(made([b"abc", b"", b"de"]))
    shard = ffrecord.open_shard(Chunk(locate(str(tmp_path / "a.ffr"))))
    one, _, two = ffrecord_table.read_copies(shard, [2, 1, 0])
    one[:] = b"XY"
    assert (bytes(one), bytes(two), ffrecord_table.read_copies(shard, [])) == (b"XY", b"abc", [])
    assert rows_of(shard) == [b"abc", b"", b"de"]


def test_other_columns_do_not_exist():
    shard = ffrecord.open_shard(written([b"a", b"b"])[0])
    assert ffrecord.read_rows(shard, [0, 1], []) == [{}, {}]
    assert ffrecord.read_batch(shard, 0, 2, []).num_rows == 2


def test_records_of_a_wrong_size_are_reported_with_their_row():
    chunk = written([b"12345678", b"1234567"])[0]
    shard = ffrecord.open_shard(chunk, (encodings.column("n", "int"),))
    with pytest.raises(FormatError) as caught:
        ffrecord.read_batch(shard, 0, 2)
    assert str(caught.value) == "00000.ffr[1]: expected 8 bytes for int, got 7"
    assert [found.where for found in ffrecord.verify_shard(shard, values=True)] == ["00000.ffr[1]"]
    assert list(ffrecord.verify_shard(shard)) == []
    shard = ffrecord.open_shard(written([b"fine", b"\xff"])[0], (encodings.column("t", "str"),))
    with pytest.raises(ValueFitError) as caught:
        ffrecord.read_batch(shard, 1, 2)
    assert str(caught.value) == "00000.ffr[1]: column 't': str is not UTF-8"


def test_every_record_that_is_not_utf8_is_a_finding():
    chunk = written([b"\xff", b"fine", b"\xfe", b"\xfd"])[0]
    shard = ffrecord.open_shard(chunk, (encodings.column("t", "str"),))
    found = [one.where for one in ffrecord.verify_shard(shard, values=True)]
    assert found == [f"00000.ffr[{row}]" for row in (0, 2, 3)]


def test_exactly_one_column_is_written():
    one = encodings.column("image", "jpeg")
    assert ffrecord.arrange([one]) == (one,)
    with pytest.raises(UsageError) as caught:
        ffrecord.arrange([one, encodings.column("label", "int")])
    assert (str(caught.value), caught.value.hint) == (
        "ffrecord has one column, got 2: image, label",
        "Select one column to pack with -c.",
    )
    with pytest.raises(UsageError) as caught:
        ffrecord.arrange([])
    assert str(caught.value) == "ffrecord has one column, got 0"


def test_invalid_rows_are_refused_before_anything_is_written():
    with pytest.raises(UsageError) as caught:
        written([b"a"], compression="zstd")
    assert str(caught.value) == "ffrecord files cannot be compressed"
    with pytest.raises(ValueFitError) as caught:
        written([b"a", None])
    assert str(caught.value) == "value is null; ffrecord cannot store nulls"


def test_file_names_keep_the_order_of_shards_as_strings():
    batch = pa.record_batch({"data": pa.array([b"x"], pa.large_binary())})
    numbers = [0, 9, 10, 99_999, 100_000, 100_001, 999_999, 1_000_000]
    names = [
        ffrecord.write_shard(
            Location(MemoryStore()), n, ffrecord_table.COLUMNS, [batch], Settings()
        )
        .files[0]
        .name
        for n in numbers
    ]
    assert names == sorted(names)
    assert names[3:5] == ["99999.ffr", "a100000.ffr"]
    assert (
        ffrecord.write_index(Location(MemoryStore()), [], ffrecord_table.COLUMNS, Settings()) == {}
    )
