"""Granular bags, tables and record numbers at their limits."""

import json
import struct

import msgpack
import numpy as np
import pyarrow as pa
import pytest

from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError, ValueFitError
from flarecli.formats import find
from flarecli.formats.granular import bags
from flarecli.formats.granular import read as granular_read
from flarecli.formats.granular import refs as bag_refs
from flarecli.formats.granular import spec as granular_spec
from flarecli.formats.granular.append import Appender
from flarecli.model import Chunk, Column, File, Finding, Settings
from flarecli.storage import Guard, Location, locate
from flarecli.storage.memory import MemoryStore

granular = find("granular")
granular_refs = find("granular-refs")

DAMAGED = "The file was damaged or cut short; fetch or pack it again."
TAKEN = "refers to records of an earlier row"


def ends(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def bag(*records):
    return b"".join(records) + ends(*np.cumsum([len(one) for one in records]).tolist())


def opened(files, main="spec.json", columns=None):
    return granular.open_shard(Chunk(Location(MemoryStore(dict(files)), main)), columns)


def by_refs(rows, records, kind="bytes[]"):
    """Return a dataset of one column whose rows are these MessagePack arrays."""
    return {
        "spec.json": json.dumps({"a": kind}).encode(),
        "a.bag": bag(*records),
        "refs.bag": bag(*rows),
    }


def where(found):
    return [(one.where, one.message) for one in found]


# -- record numbers of rows


def test_reused_records_are_detected_after_a_row_without_records(monkeypatch):
    monkeypatch.setattr("flarecli.formats.granular.format.MAX_STEP_ROWS", 1)
    rows = [b"\x91\x92\x00\x02", b"\x91\x90", b"\x91\x92\x00\x00", b"\x91\x92\x01\x01"]
    shard = opened(by_refs(rows, [b"one", b"two"]))
    assert where(granular.verify_shard(shard)) == [("spec.json[3]", f"column 'a' {TAKEN}")]
    monkeypatch.setattr("flarecli.formats.granular.format.MAX_STEP_ROWS", 4)
    assert where(granular.verify_shard(shard)) == [("spec.json[3]", f"column 'a' {TAKEN}")]


def test_verify_continues_after_invalid_rows(monkeypatch):
    monkeypatch.setattr("flarecli.formats.granular.format.MAX_STEP_ROWS", 2)
    shard = opened(
        by_refs(
            [b"\x91\x00", b"\x91\x05", b"\x91\x01", b"\x91\x07", b"\x91\x02"],
            [b"x", b"y", b"z"],
            "bytes",
        )
    )
    assert where(granular.verify_shard(shard)) == [
        ("spec.json[1]", "column 'a' refers to records 5 to 5; its bag contains 3"),
        ("spec.json[3]", "column 'a' refers to records 7 to 7; its bag contains 3"),
    ]


@pytest.mark.parametrize("values", [False, True])
def test_verify_reads_granular_rows_in_bounded_steps(monkeypatch, values):
    monkeypatch.setattr("flarecli.formats.granular.format.MAX_STEP_BYTES", 10)
    checked, batch = [], granular_read.batch
    monkeypatch.setattr(
        granular_read,
        "batch",
        lambda shard, start, stop, names: (
            checked.append((start, stop)) or batch(shard, start, stop, names)
        ),
    )
    shard = opened(
        {
            "spec.json": b'{"a": "bytes"}',
            "a.bag": b"x" * 36,
            "a.idx": ends(4, 8, 20, 20, 24, 28, 32, 36),
        }
    )
    assert list(granular.verify_shard(shard, values)) == []
    assert checked == ([(0, 2), (2, 3), (3, 5), (5, 6), (6, 8)] if values else [])


@pytest.mark.parametrize("start", [0, 1])
def test_errors_have_the_row_number_in_the_shard(start):
    shard = opened(
        by_refs(
            [b"\x91\x90", b"\x91\x92\x00\x01", b"\x91\x90", b"\x91\x92\x00\x01"], [b"one", b"two"]
        )
    )
    with pytest.raises(FormatError) as caught:
        granular.read_batch(shard, start, 4)
    assert str(caught.value) == f"spec.json[3]: column 'a' {TAKEN}"
    shard = opened(by_refs([b"\x91\x90", b"\x91\x90", b"\x91\x92\x01\x02"], [b"one", b"two"]))
    with pytest.raises(FormatError) as caught:
        granular.read_batch(shard, start, 3)
    assert (
        str(caught.value) == "spec.json[2]: column 'a' refers to records 1 to 2; its bag contains 2"
    )


def test_a_row_may_be_requested_twice():
    shard = opened(
        by_refs([b"\x91\x00", b"\x91\x01", b"\x91\x02"], [b"one", b"two", b"three"], "bytes")
    )
    assert [row["a"] for row in granular.read_rows(shard, [0, 1, 2, 2, 0])] == [
        b"one",
        b"two",
        b"three",
        b"three",
        b"one",
    ]


def test_rows_that_reuse_empty_records_are_refused():
    """A thousand empty records have a table of 8 KB; a thousand rows of all of them would be a
    million values.
    """
    rows = [b"\x91\x92\x01\xcd\x03\xe7"] * 1000
    shard = opened(by_refs(rows, [b"x", *[b""] * 999]))
    assert granular.read_rows(shard, [7]) == [{"a": [b""] * 999}]
    with pytest.raises(FormatError) as caught:
        granular.read_rows(shard, range(1000))
    assert str(caught.value) == f"spec.json[1]: column 'a' {TAKEN}"
    assert granular.read_rows(shard, range(3), ranges={"a": (0, 2)}) == [{"a": [b"", b""]}] * 3


# -- records of a wrong size


@pytest.mark.parametrize("wrong", [[0], [4], [5], [6], [9], [3, 4, 5, 9]])
def test_a_number_of_a_wrong_size_is_reported_in_every_step(monkeypatch, wrong):
    monkeypatch.setattr(granular_read, "_STEP_RECORDS", 5)
    sizes = [7 if row in wrong else 8 for row in range(10)]
    shard = opened(
        {
            "spec.json": b'{"n": "i64"}',
            "n.bag": bytes(sum(sizes)),
            "n.idx": ends(*np.cumsum(sizes).tolist()),
        }
    )
    assert list(granular.verify_shard(shard)) == [
        Finding("n.bag", "format", f"record {wrong[0]} is 7 bytes; expected 8 for int", DAMAGED)
    ]


def test_an_empty_record_in_a_list_is_reported_with_its_row():
    words = pa.array([[], ["a", "b"], [], ["c"], [""]], pa.large_list(pa.large_string()))
    for first, row in ((0, 4), (3, 1), (4, 0)):
        with pytest.raises(ValueFitError) as caught:
            granular_refs.row_sizes(
                (column("w", "str[]"),), pa.record_batch({"w": words.slice(first)}), Settings()
            )
        assert (
            str(caught.value)
            == f"row {row}: column 'w' has an empty record, which granular-refs cannot store"
        )
    words = pa.array([["a"], [], ["", "b"]], pa.large_list(pa.large_string()))
    with pytest.raises(ValueFitError) as caught:
        granular_refs.row_sizes((column("w", "str[]"),), pa.record_batch({"w": words}), Settings())
    assert caught.value.row == 2


# -- tables


@pytest.mark.parametrize("oldest", [False, True])
@pytest.mark.parametrize("head", [16, 24, 40, 10_000])
def test_a_table_longer_than_the_first_read_is_read_completely(tmp_path, monkeypatch, oldest, head):
    monkeypatch.setattr(bags, "_TAIL_BYTES", head)
    monkeypatch.setattr(bags, "_STEP_BYTES", 24)
    records = [bytes([65 + i]) * (i + 1) for i in range(20)]
    data = b"".join(records) + ends(
        *[0] * oldest, *np.cumsum([len(one) for one in records]).tolist()
    )
    (tmp_path / "x.bag").write_bytes(data)
    for at in (locate(str(tmp_path / "x.bag")), Location(MemoryStore({"x.bag": data}), "x.bag")):
        shard = granular.open_shard(Chunk(at))
        assert [row["record"] for row in granular.read_rows(shard, range(shard.rows))] == records


def test_a_single_bag_has_one_column():
    for names in ([], ["a", "b"]):
        with pytest.raises(IntegrityError) as caught:
            opened({"x.bag": bag(b"one")}, "x.bag", tuple(Column(name, "bytes") for name in names))
        assert (
            str(caught.value)
            == f"x.bag: the playlist lists {len(names)} columns; a bag has one column"
        )


def test_a_bag_truncated_after_opening_is_reported(tmp_path):
    (tmp_path / "x.bag").write_bytes(bag(b"one", b"two"))
    shard = granular.open_shard(Chunk(locate(str(tmp_path / "x.bag"))))
    (tmp_path / "x.bag").write_bytes(b"one")
    with pytest.raises(FormatError) as caught:
        granular.read_rows(shard, [1])
    assert str(caught.value) == f"{tmp_path}/x.bag: file is 3 bytes; its offset table requires 6"


@pytest.mark.parametrize("rows", [0, 1, 3, 7])
def test_record_numbers_packed_in_steps_equal_those_packed_at_once(monkeypatch, rows):
    taken = [
        (np.arange(100, 100 + rows), np.ones(rows, np.int64)),
        (np.arange(0, 200 * rows, 200), np.full(rows, 200)),
    ]
    whole = bag_refs.packed(taken, [False, True])
    monkeypatch.setattr(bag_refs, "_STEP_ROWS", 2)
    parts = bag_refs.packed(taken, [False, True])
    assert (b"".join(parts[0]), parts[1].tolist()) == (b"".join(whole[0]), whole[1].tolist())


def test_several_batches_are_written_to_one_bag():
    batches = [
        pa.record_batch({"t": pa.array([text, ""], pa.large_string())})
        for text in ("one", "three", "seven")
    ]
    to = Location(MemoryStore())
    granular.write_shard(to, 0, (column("t", "str"),), batches, Settings(shard_bytes=None))
    assert (to.store.files["t.bag"], to.store.files["t.idx"]) == (
        b"onethreeseven",
        ends(3, 3, 8, 8, 13, 13),
    )


@pytest.mark.parametrize("columns", [1, 15, 16, 255, 65_535, 65_536])
def test_a_row_with_any_number_of_columns_is_a_messagepack_array(columns):
    (part,), (end,) = bag_refs.packed([(np.array([7]), np.array([1]))] * columns, [False] * columns)
    assert msgpack.unpackb(part) == [7] * columns
    assert end == len(part)
    assert bag_refs.numbers_of_row(bytes(part), [False] * columns) == [(7, 1)] * columns


def test_a_shard_is_full_only_if_all_its_columns_are(tmp_path):
    """One column has three rows, the other two, and shards have two: the additional record is
    removed.
    """
    at, columns = locate(f"{tmp_path}/ds/"), (column("n", "int"), column("t", "str"))
    batch = pa.record_batch(
        {"n": pa.array([0, 1, 2], pa.int64()), "t": pa.array(["a", "b", "c"], pa.large_string())}
    )
    Appender(at, columns, shard_rows=3).append(batch)
    (tmp_path / "ds" / "000000" / "t.idx").write_bytes(ends(1, 2))
    (tmp_path / "ds" / "000000" / "t.bag").write_bytes(b"ab")
    Appender(at, columns, shard_rows=2, replay=False).append(batch.slice(2))
    shards = [granular.open_shard(chunk) for chunk in granular.open_dataset(at)]
    assert [
        granular.read_batch(shard, 0, shard.rows).column("t").to_pylist() for shard in shards
    ] == [["a", "b"], ["c"]]


# -- specs and folders


def test_a_spec_of_the_maximum_size_is_read(monkeypatch):
    files = {"spec.json": b'{"a": "bytes"}', "a.bag": b"", "a.idx": b""}
    monkeypatch.setattr(granular_spec, "MAX_SPEC_BYTES", len(files["spec.json"]))
    assert opened(files).rows == 0


def test_a_list_column_is_listed_as_a_list():
    files = by_refs([b"\x91\x90"], [b"x"])
    assert opened(files, columns=(column("a", "jpeg[]"),)).columns == (column("a", "jpeg[]"),)
    for listed in ("jpeg", "bytes"):
        with pytest.raises(IntegrityError) as caught:
            opened(files, columns=(column("a", listed),))
        assert str(caught.value) == (
            "spec.json: the columns differ from the columns in the playlist or in the first shard"
        )


def test_companions_of_a_shard_are_in_its_folder():
    files = {
        "ds/000003/spec.json": b'{"a": "bytes"}',
        "ds/000003/a.bag": b"x",
        "ds/000003/a.idx": ends(1),
        "ds/000003/x.bag": bag(b"y"),
    }
    at = Location(MemoryStore(files), "ds")
    shard = granular.open_shard(Chunk(at / "000003/spec.json", files=(File("000003/spec.json"),)))
    assert [file.name for file in shard.chunk.files] == [
        "000003/spec.json",
        "000003/a.bag",
        "000003/a.idx",
    ]
    assert granular.read_rows(shard, [0]) == [{"a": b"x"}]


@pytest.mark.parametrize(
    "settings",
    [Settings(shard_bytes=None, shard_rows=2), Settings(shard_bytes=100, shard_rows=None)],
)
def test_each_shard_has_its_own_folder_for_any_shard_size(settings):
    to = Location(MemoryStore())
    for number in (0, 1):
        granular.write_shard(
            to,
            number,
            (column("t", "str"),),
            [pa.record_batch({"t": pa.array(["a"], pa.large_string())})],
            settings,
        )
    assert sorted(to.store.files) == [
        f"{number}/{name}"
        for number in ("000000", "000001")
        for name in ("spec.json", "t.bag", "t.idx")
    ]


class Web(MemoryStore):
    """A store that cannot list its files, and returns the same page for every unknown name."""

    is_local = False

    def __init__(self, files, answer):
        super().__init__(files, "ds")
        self.answer, self.asked = answer, []

    def map(self, path):
        self.asked.append(path)
        if path == "spec.json" or not path.endswith("/spec.json"):
            return super().map(path)
        return memoryview(self.files.get(path, self.answer))


def test_a_server_with_a_page_for_every_name_is_refused_at_the_first_shard():
    store = Web({}, b"<html>")
    with pytest.raises(FormatError) as caught:
        granular.open_dataset(Location(store))
    assert (
        str(caught.value)
        == "ds/000000/spec.json: not valid JSON: Expecting value: line 1 column 1 (char 0)"
    )
    assert set(store.asked) == {"spec.json", "000000/spec.json"}


def test_the_number_of_probed_shards_is_bounded(monkeypatch):
    monkeypatch.setattr(granular_spec, "_MAX_PROBED_SHARDS", 3)
    with pytest.raises(FormatError) as caught:
        granular.open_dataset(Location(Web({}, b'{"a": "bytes"}')))
    assert (str(caught.value), caught.value.hint) == (
        "ds: more than 3 shards in a folder that cannot be listed",
        "Specify a playlist.",
    )


def test_the_maximum_number_of_probed_shards_is_accepted(web, monkeypatch):
    monkeypatch.setattr(granular_spec, "_MAX_PROBED_SHARDS", 3)
    for number in range(3):
        web.file(f"/ds/{number:06d}/spec.json", b'{"a": "bytes"}')
    stream = granular.open_dataset(locate(web.url("/ds/"), Guard(allow_private=True)))
    assert list(stream.urls) == [f"{number:06d}/spec.json" for number in range(3)]
