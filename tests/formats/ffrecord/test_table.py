"""FFRecord tables, steps of verify, and pickles that are almost lists of files."""

import pickle
import struct
import zlib

import numpy as np
import pyarrow as pa
import pytest

from flarecli import encodings
from flarecli.errors import FormatError, UnsafeError
from flarecli.formats import find
from flarecli.formats.ffrecord import packed_folder
from flarecli.formats.ffrecord import table as ffrecord_table
from flarecli.model import Chunk, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

ffrecord = find("ffrecord")

RECORDS = [b"one", b"", b"three", b"four"]


def made(records, starts=None, sums=None):
    """Return the bytes of a file; None: the valid value."""
    starts = (
        np.cumsum([12 + 12 * len(records), *map(len, records)])[: len(records)].tolist()
        if starts is None
        else starts
    )
    sums = [zlib.crc32(data) for data in records] if sums is None else sums
    table = struct.pack(f"<q{len(records)}I{len(records)}q", len(records), *sums, *starts)
    return struct.pack("<I", zlib.crc32(table)) + table + b"".join(records)


def opened(data, columns=None):
    return ffrecord.open_shard(Chunk(Location(MemoryStore({"s.ffr": data}), "s.ffr")), columns)


@pytest.mark.parametrize(("start", "rows"), [(0, 1), (1, 2), (2, 2), (3, 1), (1, 0)])
def test_a_slice_of_a_batch_is_written_alone(start, rows):
    batch = pa.record_batch({"data": pa.array(RECORDS, pa.large_binary())})
    store = MemoryStore()
    ffrecord.write_shard(
        Location(store),
        0,
        ffrecord_table.COLUMNS,
        [batch.slice(start, rows), batch.slice(0, 1)],
        Settings(),
    )
    assert bytes(store.files["00000.ffr"]) == made([*RECORDS[start : start + rows], b"one"])


def test_records_larger_than_a_write_block_are_written_completely(monkeypatch):
    monkeypatch.setattr("flarecli.formats.ffrecord.format._WRITE_BYTES", 4)
    store = MemoryStore()
    ffrecord.write_shard(
        Location(store),
        0,
        ffrecord_table.COLUMNS,
        [pa.record_batch({"data": pa.array(RECORDS, pa.large_binary())})],
        Settings(),
    )
    assert bytes(store.files["00000.ffr"]) == made(RECORDS)


@pytest.mark.parametrize("block", [8, 16, 36, 1000])
def test_a_table_of_many_blocks_is_read_completely(tmp_path, monkeypatch, block):
    monkeypatch.setattr(ffrecord_table, "_BLOCK_BYTES", block)
    monkeypatch.setattr(ffrecord_table, "_HEAD_BYTES", 12)
    records = [bytes([i]) * i for i in range(11)]
    (tmp_path / "a.ffr").write_bytes(made(records))
    shard = ffrecord.open_shard(Chunk(locate(str(tmp_path / "a.ffr"))))
    assert [row["data"] for row in ffrecord.read_rows(shard, range(11))] == records
    assert shard.layout["sums"].tolist() == [zlib.crc32(data) for data in records]


def test_an_offset_at_the_end_of_the_file_is_checked_with_the_next_one():
    with pytest.raises(FormatError) as caught:
        opened(made([b"abcd", b"efgh"], starts=[44, 40]))
    assert str(caught.value) == "s.ffr: record 0 starts at byte 44 but ends at byte 40"


def test_verify_reads_in_bounded_steps(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.formats.ffrecord.format._STEP_BYTES", 16)
    (tmp_path / "s.ffr").write_bytes(made([b"x" * 6] * 9 + [b"y" * 40, b"", b"z" * 16]))
    at = locate(str(tmp_path / "s.ffr")).unmapped()
    shard, reads, read_many = ffrecord.open_shard(Chunk(at)), [], at.store.read_many
    at.store.read_many = lambda path, ranges: (
        reads.extend(stop - start for start, stop in ranges) or read_many(path, ranges)
    )
    assert list(ffrecord.verify_shard(shard)) == []
    assert reads[:-1] == [
        12,
        12,
        12,
        12,
        6,
        16,
        16,
        8,
        16,
    ]  # the last read checks for a list of files


def test_a_record_with_a_wrong_checksum_is_reported_once():
    shard = opened(
        made([b"fine", b"\xff"], sums=[zlib.crc32(b"fine"), 1]), (encodings.column("t", "str"),)
    )
    assert [(found.where, found.kind) for found in ffrecord.verify_shard(shard, values=True)] == [
        ("s.ffr[1]", "integrity")
    ]


def test_a_number_of_a_wrong_size_is_reported_with_its_row_in_the_file():
    shard = opened(made([b"12345678", b"12345678", b"1234567"]), (encodings.column("n", "int"),))
    with pytest.raises(FormatError) as caught:
        ffrecord.read_batch(shard, 1, 3)
    assert str(caught.value) == "s.ffr[2]: expected 8 bytes for int, got 7"


# -- lists of files


def listed(pickled, files=1):
    return opened(made([b"x"] * files + [packed_folder.MAGIC + pickled]))


CLASS = b"ccollections\nOrderedDict\n"
ROOT = CLASS + b")R"


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (CLASS + b"()R.", "36: the stack of the pickle is empty"),  # the class is below the mark
        (ROOT + b"X\1\0\0\0a(K\0s.", "45: the stack of the pickle is empty"),
        (ROOT + b"(X\1\0\0\0as.", "43: the stack of the pickle is empty"),
    ],
)
def test_pickle_opcodes_cannot_use_objects_below_a_mark(pickled, message):
    with pytest.raises(FormatError) as caught:
        packed_folder.directory(listed(pickled))
    assert str(caught.value) == f"s.ffr[1]: invalid list of files at byte {message}"


@pytest.mark.parametrize("call", [CLASS + CLASS + b"R.", CLASS + b"X\1\0\0\0aR.", CLASS + b"K\0R."])
def test_a_pickle_may_create_a_folder_object_only_without_arguments(call):
    with pytest.raises(UnsafeError) as caught:
        packed_folder.directory(listed(call))
    assert str(caught.value) == f"s.ffr[1]: the pickle calls an object at byte {9 + len(call) - 2}"


@pytest.mark.parametrize(
    ("number", "code"),
    [(-1, b"\x8a\1\xff"), (-(1 << 40), b"\x8a\6\0\0\0\0\0\xff"), (1 << 40, b"\x8a\6\0\0\0\0\0\1")],
)
def test_long_integers_of_a_pickle_are_signed(number, code):
    assert pickle.loads(b"\x80\2" + code + b".") == number
    with pytest.raises(FormatError) as caught:
        packed_folder.directory(listed(ROOT + b"X\1\0\0\0a" + code + b"s."))
    assert (
        str(caught.value)
        == f"s.ffr[1]: invalid record number {number} for 'a': the folder has 1 records"
    )


def test_a_list_of_the_maximum_size_is_read(monkeypatch):
    pickled = ROOT + b"X\1\0\0\0aK\0s."
    monkeypatch.setattr(packed_folder, "_MAX_LIST_BYTES", len(packed_folder.MAGIC + pickled))
    assert packed_folder.directory(listed(pickled)) == {"a": 0}


@pytest.mark.parametrize("last", [b"", b"piouhjgb", b"piouhjgbx"])
def test_a_last_record_without_the_whole_magic_is_not_a_list(last):
    shard = opened(made([packed_folder.MAGIC, last]))
    assert not packed_folder.is_packed(shard)
    with pytest.raises(FormatError) as caught:
        packed_folder.directory(shard)
    assert str(caught.value) == "s.ffr: last record is not a list of files"


def test_a_list_without_other_records_has_no_names():
    with pytest.raises(FormatError) as caught:
        packed_folder.directory(listed(ROOT + b"X\1\0\0\0aK\0s.", files=0))
    assert (
        str(caught.value) == "s.ffr[0]: invalid record number 0 for 'a': the folder has 0 records"
    )
    assert packed_folder.directory(listed(ROOT + b".", files=0)) == {}
