"""Damaged and hostile Granular tables, refs and specs are refused before memory is allocated."""

import json
import random
import resource
import struct
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.encodings import column
from flarecli.errors import FlareError, FormatError, UnsafeError, ValueFitError
from flarecli.formats import find
from flarecli.formats.granular import bags
from flarecli.formats.granular import refs as bag_refs
from flarecli.formats.granular import spec as granular_spec
from flarecli.model import Chunk, Finding, Settings
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.properties import examples

granular = find("granular")
granular_refs = find("granular-refs")

COLUMNS = (column("n", "int"), column("t", "str"))
BATCH = pa.record_batch(
    {
        "n": pa.array([1, 2, 3], pa.int64()),
        "t": pa.array(["one", "two", "three"], pa.large_string()),
    }
)


def ends(*values):
    return struct.pack(f"<{len(values)}Q", *values)


def opened(files, main="spec.json", columns=None):
    return granular.open_shard(Chunk(Location(MemoryStore(dict(files)), main)), columns)


def new(**changes):
    to = Location(MemoryStore())
    granular.write_shard(to, 0, COLUMNS, [BATCH], Settings(shard_bytes=None))
    return to.store.files | {name.replace("_", "."): data for name, data in changes.items()}


def old(**changes):
    to = Location(MemoryStore())
    granular_refs.write_shard(to, 0, COLUMNS, [BATCH], Settings(shard_bytes=None))
    return to.store.files | {name.replace("_", "."): data for name, data in changes.items()}


DAMAGED = "The file was damaged or cut short; fetch or pack it again."


@pytest.mark.parametrize(
    "index, message",
    [
        (ends(3, 6, 11)[:-1], "t.idx: file is 23 bytes; expected a multiple of 8"),
        (ends(3, 2, 11), "t.idx: record 1 starts at byte 3 but ends at byte 2"),
        (ends(3, 6, 12), "t.bag: file is 11 bytes; its index needs 12"),
        (ends(3, 6, 10), "t.bag: 1 bytes follow the last record that the index lists"),
        (ends(3, 6, 1 << 60), f"t.bag: file is 11 bytes; its index needs {1 << 60}"),
        (ends(3, 6, 1 << 63), f"t.idx: record 2 starts at byte 6 but ends at byte {1 << 63}"),
        (
            ends(3, (1 << 64) - 1, 11),
            f"t.idx: record 1 starts at byte 3 but ends at byte {(1 << 64) - 1}",
        ),
        (ends(3, 11), "spec.json: column 't' has 2 records; column 'n' has 3"),
        (ends(3, 6, 11, 11), "spec.json: column 'n' has 3 records; column 't' has 4"),
        (b"", "t.bag: 11 bytes follow the last record that the index lists"),
    ],
)
def test_an_index_that_does_not_fit_its_bag_is_refused(index, message):
    with pytest.raises(FormatError) as caught:
        opened(new(t_idx=index))
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "data, message",
    [
        (b"abc", "x.bag: file is 3 bytes; expected at least 8"),
        (
            b"abc" + ends(4),
            "x.bag: file is 11 bytes; its table should start at byte 4",
        ),
        (b"abcd" + ends(4, 3), "x.bag: the table at byte 3 is 17 bytes; expected a multiple of 8"),
        (
            b"abc" + ends(1 << 60),
            f"x.bag: file is 11 bytes; its table should start at byte {1 << 60}",
        ),
        (b"abcdefgh" + ends(9, 2, 8), "x.bag: record 1 starts at byte 9 but ends at byte 2"),
        (b"abcdefgh" + ends(0, 9, 8), "x.bag: record 1 starts at byte 9 but ends at byte 8"),
        (
            b"abcdefgh" + ends(1 << 63, 8),
            f"x.bag: record 0 starts at byte 0 but ends at byte {1 << 63}",
        ),
        (
            b"\xff" * 64,
            f"x.bag: file is 64 bytes; its table should start at byte {(1 << 64) - 1}",
        ),
    ],
)
def test_a_bag_whose_table_does_not_fit_is_refused(data, message):
    with pytest.raises(FormatError) as caught:
        opened({"x.bag": data}, "x.bag")
    assert str(caught.value) == message
    assert caught.value.hint in ("", DAMAGED)


@pytest.mark.parametrize(
    "row, message",
    [
        (b"\x92\x03\x01", "spec.json[1]: column 'n' refers to records 3 to 3; its bag contains 3"),
        (b"\x92\x01", "spec.json[1]: record numbers in refs.bag do not match the columns"),
        (b"\x92\x01\x01\x01", "spec.json[1]: record numbers in refs.bag do not match the columns"),
        (b"\x91\x01", "spec.json[1]: record numbers in refs.bag do not match the columns"),
        (b"\x92\x01\xcc", "spec.json[1]: record numbers in refs.bag do not match the columns"),
        (b"\x92\x01\xff", "spec.json[1]: record numbers in refs.bag do not match the columns"),
        (
            b"\x92\x01\x92\x00\x01",
            "spec.json[1]: record numbers in refs.bag do not match the columns",
        ),
        (
            b"\x92\xcf" + b"\x7f" + bytes(7) + b"\x01",
            f"spec.json[1]: column 'n' refers to records {0x7F << 56} to {0x7F << 56}; its bag contains 3",
        ),
        (
            b"\x92\xcf\x7f" + b"\xff" * 7 + b"\x01",
            f"spec.json[1]: column 'n' refers to records {(1 << 63) - 1} to {(1 << 63) - 1}; its bag contains 3",
        ),
        (
            b"\x92\xcf" + b"\xff" * 8 + b"\x01",
            "spec.json[1]: record numbers in refs.bag do not match the columns",
        ),
        (b"", "spec.json[1]: record numbers in refs.bag do not match the columns"),
    ],
)
def test_invalid_refs_are_refused_with_their_row(row, message):
    rows = [b"\x92\x00\x00", row, b"\x92\x02\x02"]
    body = b"".join(rows)
    shard = opened(old(refs_bag=body + ends(*np.cumsum([len(one) for one in rows]).tolist())))
    assert [finding.where + ": " + finding.message for finding in granular.verify_shard(shard)] == [
        message
    ]
    for read in (lambda: granular.read_rows(shard, [1]), lambda: granular.read_batch(shard, 0, 3)):
        with pytest.raises(FormatError) as caught:
            read()
        assert str(caught.value) == message
    assert granular.read_rows(shard, [2, 0])[1]["t"] == b"one"


def test_a_truncated_bag_of_numbers_is_detected_by_record_sizes():
    to = Location(MemoryStore())
    batch = pa.record_batch({"n": pa.array(range(4), pa.int64())})
    granular_refs.write_shard(to, 0, (column("n", "int"),), [batch], Settings(shard_bytes=None))
    files = dict(to.store.files)
    assert files["n.bag"] == struct.pack("<8Q", 0, 1, 2, 3, 8, 16, 24, 32)
    assert list(granular.verify_shard(opened(files))) == []
    files["n.bag"] = files["n.bag"][:40]  # 1, 2, 3 and 8 are also valid ends of four records
    wanted = Finding("n.bag", "format", "record 0 is 1 bytes; expected 8 for int", DAMAGED)
    assert list(granular.verify_shard(opened(files))) == [wanted]


def test_empty_refs_with_full_bags_are_refused():
    with pytest.raises(FormatError) as caught:
        opened(old(refs_bag=b""))
    assert str(caught.value) == "refs.bag: contains no rows, but column 'n' has 3 records"


def test_records_used_twice_are_refused():
    rows = [b"\x92\x00\x00", b"\x92\x01\x01", b"\x92\x01\x02"]
    shard = opened(old(refs_bag=b"".join(rows) + ends(3, 6, 9)))
    message = "column 'n' refers to records of an earlier row"
    assert [(finding.where, finding.message) for finding in granular.verify_shard(shard)] == [
        ("spec.json[2]", message)
    ]
    with pytest.raises(FormatError) as caught:
        granular.read_batch(shard, 0, 3)
    assert str(caught.value) == f"spec.json[2]: {message}"


def test_rows_that_use_more_than_a_bag_contains_are_refused():
    rows = [b"\x92\x00\x02", b"\x92\x01\x02", b"\x92\x02\x02"]
    shard = opened(old(refs_bag=b"".join(rows) + ends(3, 6, 9)))
    with pytest.raises(FormatError) as caught:
        granular.read_rows(shard, [2, 0, 1])
    assert str(caught.value) == "spec.json[2]: column 't' refers to records of an earlier row"
    assert [row["t"] for row in granular.read_rows(shard, [2] * 9)] == [b"three"] * 9


def test_verify_detects_records_used_twice_in_different_steps(monkeypatch):
    monkeypatch.setattr("flarecli.formats.granular.format.MAX_STEP_ROWS", 1)
    rows = [b"\x92\x00\x00", b"\x92\x01\x01", b"\x92\x01\x02"]
    shard = opened(old(refs_bag=b"".join(rows) + ends(3, 6, 9)))
    assert [finding.where for finding in granular.verify_shard(shard)] == ["spec.json[2]"]


@pytest.mark.parametrize(
    "data, message",
    [
        (b"", "not valid JSON: Expecting value: line 1 column 1 (char 0)"),
        (b"[]", "expected an object that maps column names to types"),
        (b'{"a": 1}', "expected an object that maps column names to types"),
        (b"{}", "contains no columns"),
        (b'{"a": "utf8", "a": "int"}', "not valid JSON: duplicate key 'a'"),
        (b'{"\xff": "utf8"}', "not UTF-8 at byte 2"),
        (b"[" * 100_000, "JSON is nested too deeply"),
    ],
)
def test_an_invalid_spec_is_refused(data, message):
    with pytest.raises(FormatError) as caught:
        opened({"spec.json": data})
    assert str(caught.value) == f"spec.json: {message}"


@pytest.mark.parametrize(
    "key",
    [
        "../secret",
        "/etc/passwd",
        "a/b",
        ".hidden",
        "",
        "a\\b",
        "C:x",
        "~x",
        "a\nb",
        "x" * 252,
        "\ud800",
    ],
)
def test_a_key_that_is_not_a_plain_file_name_is_refused(key):
    with pytest.raises(UnsafeError):
        opened({"spec.json": json.dumps({key: "utf8"}).encode()})


def test_a_spec_above_the_maximum_size_is_not_read(monkeypatch):
    monkeypatch.setattr(granular_spec, "MAX_SPEC_BYTES", 10)
    with pytest.raises(FormatError) as caught:
        opened(new())
    assert str(caught.value) == "spec.json: file is 25 bytes; the maximum is 10"


def test_an_invalid_record_is_reported_with_row_and_column():
    shard = opened(new(n_idx=ends(8, 15, 24)))
    with pytest.raises(ValueFitError) as caught:
        granular.read_batch(shard, 0, 3)
    assert str(caught.value) == "spec.json[1]: column 'n': expected 8 bytes for int, got 7"
    shard = opened(new(t_bag=b"one\xfft\xffthree"))
    with pytest.raises(ValueFitError) as caught:
        granular.read_batch(shard, 0, 3)
    assert str(caught.value) == "spec.json[1]: column 't': str is not UTF-8"
    assert granular.read_batch(shard, 2, 3).column("t").to_pylist() == ["three"]
    assert [finding.where for finding in granular.verify_shard(shard, values=True)] == [
        "spec.json[1]"
    ]
    assert list(granular.verify_shard(shard)) == []


def test_an_invalid_value_in_a_list_is_reported_with_the_row_of_the_list():
    columns = (column("w", "str[]"),)
    to = Location(MemoryStore())
    words = pa.array([["a", "b"], [], ["c", "d"]], pa.large_list(pa.large_string()))
    granular_refs.write_shard(
        to, 0, columns, [pa.record_batch({"w": words})], Settings(shard_bytes=None)
    )
    files = to.store.files
    shard = opened(files | {"w.bag": b"abc\xff" + files["w.bag"][4:]})
    with pytest.raises(ValueFitError) as caught:
        granular.read_batch(shard, 0, 3)
    assert str(caught.value) == "spec.json[2]: column 'w': str is not UTF-8"


@pytest.mark.parametrize("make", [new, old])
def test_any_damage_is_an_error_or_a_valid_row(make):
    files = make()
    for name, data in files.items():
        changed = [data[:cut] for cut in range(len(data))] + [
            bytes(byte ^ (1 << bit) if i == at else byte for i, byte in enumerate(data))
            for at in range(len(data))
            for bit in range(8)
        ]
        for one in changed:
            try:
                shard = opened(files | {name: one})
                granular.read_rows(shard, range(shard.rows))
                for finding in granular.verify_shard(shard, values=True):
                    assert finding.message
                granular.read_batch(shard, 0, shard.rows)
            except FlareError as error:
                assert error.where


# -- parsers


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(st.binary(max_size=12), max_size=20), st.booleans())
def test_tables_of_every_version_locate_their_records(records, with_zero):
    body = b"".join(records)
    table = np.cumsum([len(one) for one in records]).tolist()
    if with_zero or (records and records[0] == b""):
        files, main = {"x.bag": body + ends(0, *table)}, "x.bag"
    else:
        files, main = {"x.bag": body + ends(*table)}, "x.bag"
    for one in (files, {"x.bag": body, "x.idx": ends(*table)}):
        shard = opened(one, main)
        assert [row["record"] for row in granular.read_rows(shard, range(shard.rows))] == records
        assert granular.read_batch(shard, 0, len(records)).column("record").to_pylist() == records


@settings(max_examples=examples(300), deadline=None)
@given(st.binary(max_size=80))
def test_arbitrary_bytes_are_a_bag_or_a_format_error(data):
    try:
        starts = bags.single(Chunk(Location(MemoryStore({"x.bag": data}), "x.bag")))
    except FormatError:
        return
    assert starts[0] == 0
    assert (np.diff(starts) >= 0).all()
    assert starts[-1] <= len(data)


NUMBERS = st.one_of(
    st.integers(0, 300),
    st.integers(0, 1 << 17),
    st.sampled_from([127, 128, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, 1 << 62]),
)


@st.composite
def refs(draw):
    lists = draw(st.lists(st.booleans(), min_size=1, max_size=20))
    rows = draw(st.integers(0, 6))
    counts = [
        [draw(st.sampled_from([0, 1, 2, 200, 70000])) if is_list else 1 for _ in range(rows)]
        for is_list in lists
    ]
    firsts = [[draw(NUMBERS) if count else 0 for count in column] for column in counts]
    return lists, [
        (np.array(first, np.int64), np.array(count, np.int64))
        for first, count in zip(firsts, counts, strict=True)
    ]


def by_msgpack(number):
    if number < 128:
        return bytes([number])
    width = next(width for width in (1, 2, 4, 8) if number < 1 << 8 * width)
    return bytes([{1: 0xCC, 2: 0xCD, 4: 0xCE, 8: 0xCF}[width]]) + number.to_bytes(width, "big")


@settings(max_examples=examples(200), deadline=None)
@given(refs())
def test_refs_are_packed_as_messagepack_and_read_back_in_both_ways(given_refs):
    lists, taken = given_refs
    rows = len(taken[0][0])
    parts, stops = bag_refs.packed(taken, lists)
    data = b"".join(parts)
    head = (
        bytes([0x90 | len(lists)]) if len(lists) < 16 else b"\xdc" + len(lists).to_bytes(2, "big")
    )
    wanted = []
    for row in range(rows):
        one = head
        for (first, count), is_list in zip(taken, lists, strict=True):
            number, many = by_msgpack(int(first[row])), by_msgpack(int(count[row]))
            one += (b"\x90" if not count[row] else b"\x92" + number + many) if is_list else number
        wanted.append(one)
    assert data == b"".join(wanted)
    assert stops.tolist() == np.cumsum([len(one) for one in wanted]).tolist()
    for one, row in zip(wanted, range(rows), strict=True):
        assert bag_refs.numbers_of_row(one, lists) == [
            (int(first[row]), int(count[row])) for first, count in taken
        ]
    found = bag_refs.numbers(
        np.frombuffer(data, np.uint8), np.concatenate(([0], stops)).astype(np.int64), lists, "x", 0
    )
    for (first, count), (wanted_first, wanted_count) in zip(found, taken, strict=True):
        assert first.tolist() == wanted_first.tolist()
        assert count.tolist() == wanted_count.tolist()


@settings(max_examples=examples(300), deadline=None)
@given(
    st.lists(
        st.one_of(
            st.binary(max_size=8),
            st.lists(
                st.sampled_from(list(b"\x92\x90\x00\x05\xcc\xcd\xce\xcf\xff")), max_size=12
            ).map(bytes),
        ),
        max_size=5,
    ),
    st.lists(st.booleans(), min_size=1, max_size=3),
)
def test_both_readers_of_refs_agree_on_any_bytes(rows, lists):
    starts = np.concatenate(([0], np.cumsum([len(one) for one in rows]))).astype(np.int64)
    data = np.frombuffer(b"".join(rows), np.uint8)
    for i, one in enumerate(rows):
        try:
            alone = bag_refs.numbers_of_row(one, lists)
        except ValueError:
            alone = None
        if alone is not None and any(max(pair) >= 1 << 63 for pair in alone):
            alone = None  # no bag has so many records: the caller raises
        try:
            low, high = int(starts[i]), int(starts[i + 1])
            found = bag_refs.numbers(data[low:high], np.array([0, high - low]), lists, "x", i)
        except FormatError as error:
            assert error.where == f"x[{i}]"
            assert alone is None
            continue
        assert [(int(first[0]), int(count[0])) for first, count in found] == alone
    try:
        bag_refs.numbers(data, starts, lists, "x", 0)
    except FormatError:
        pass


@settings(max_examples=examples(200), deadline=None)
@given(
    st.one_of(
        st.binary(max_size=40),
        st.dictionaries(st.text(max_size=8), st.text(max_size=8), max_size=4).map(
            lambda one: json.dumps(one).encode()
        ),
    )
)
def test_arbitrary_bytes_are_a_spec_or_refused_with_a_reason(data):
    try:
        spec = granular_spec.parse(data, "spec.json")
    except (FormatError, UnsafeError) as error:
        assert error.where.startswith("spec.json")
        return
    assert [one.name for one in granular_spec.spec_of(spec, lists=True)] == list(spec)


# -- memory


HOSTILE = """
import sys
import numpy as np
from flarecli.errors import FlareError
from flarecli.formats import find
from flarecli.model import Chunk
from flarecli.storage import locate
granular = find("granular")
for path in sys.argv[1:]:
    try:
        shard = granular.open_shard(Chunk(locate(path)))
        list(granular.verify_shard(shard, values=True))
        granular.read_rows(shard, range(min(shard.rows, 3)))
        granular.read_batch(shard, 0, min(shard.rows, 100000))
        print("opened")
    except FlareError as error:
        print(error)
    except MemoryError:  # the file is as large as its table declares, so it is valid
        print(path, "not enough memory")
"""


def test_hostile_tables_are_refused_in_little_memory(tmp_path):
    """Each file declares more data than fits into the 512 MB of address space of the process."""
    chance = random.Random(3)
    (tmp_path / "count.bag").write_bytes(b"x" * 8 + ends(1 << 60))
    (tmp_path / "far.bag").write_bytes(b"x")
    (tmp_path / "far.idx").write_bytes(ends(1 << 60))
    (tmp_path / "noise.bag").write_bytes(chance.randbytes(1 << 16))
    folder = tmp_path / "refs"
    folder.mkdir()
    rows = 20_000
    (folder / "spec.json").write_text('{"a": "bytes[]"}')
    (folder / "a.bag").write_bytes(b"y" * (1 << 20) + ends(*range(1 << 10, (1 << 20) + 1, 1 << 10)))
    body = b"\x91\x92\x00\xcd\x04\x00"  # every row uses all 1024 records
    (folder / "refs.bag").write_bytes(
        body * rows + ends(*range(len(body), len(body) * rows + 1, len(body)))
    )
    sparse = tmp_path / "sparse.bag"
    with sparse.open(
        "wb"
    ) as file:  # an 8 GB file of zeros is a bag of a thousand million empty records
        file.truncate(8 << 30)
    names = ["count.bag", "far.bag", "noise.bag", "sparse.bag", "refs/spec.json"]
    limit = 512 << 20
    ran = subprocess.run(
        [sys.executable, "-c", HOSTILE, *(str(tmp_path / name) for name in names)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)),
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout.splitlines()[0].endswith(
        f"file is 16 bytes; its table should start at byte {1 << 60}"
    )
    assert ran.stdout.splitlines()[1].endswith(
        f"far.bag: file is 1 bytes; its index needs {1 << 60}"
    )
    assert "noise.bag: file is" in ran.stdout.splitlines()[2]
    assert ran.stdout.splitlines()[3].endswith("sparse.bag not enough memory")
    assert ran.stdout.splitlines()[4].endswith(
        "refs/spec.json[1]: column 'a' refers to records of an earlier row"
    )


@pytest.mark.parametrize("damaged", [0, 1, 4])
def test_large_values_are_found_beside_a_row_with_damaged_record_numbers(damaged):
    texts = ["a" * (5000 if row in (2, 5) else 3) for row in range(6)]
    batch = pa.record_batch({"n": pa.array(range(6)), "t": pa.array(texts, pa.large_string())})
    to = Location(MemoryStore())
    granular_refs.write_shard(to, 0, COLUMNS, [batch], Settings(shard_bytes=None))
    files = dict(to.store.files)
    data = bytearray(files["refs.bag"])
    data[3 * damaged] = 0xC1  # no MessagePack value begins with this byte; a row takes 3 bytes
    shard = opened({**files, "refs.bag": bytes(data)})
    found = [(one.row, one.column, one.size) for one in granular.large_values(shard, 1000)]
    assert found == [(2, "t", 5000), (5, "t", 5000)]
