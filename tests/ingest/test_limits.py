"""Values, files and names at the limits of what is accepted."""

import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from flarecli.errors import FlareError, FormatError
from flarecli.formats.tables import decompress, text_records
from flarecli.formats.tables.decompress import TextFile
from flarecli.formats.tables.json import Json
from flarecli.formats.tables.schema_merge import common_type
from flarecli.ingest import folder, is_index, lists, open_folder, open_index
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore


def write_files(path, files) -> list[str]:
    for name, content in files.items():
        if isinstance(content, pa.Table):
            pq.write_table(content, path / name)
        else:
            (path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return [str(path / name) for name in files]


def rows_of(names) -> list[dict]:
    return [row for batch in open_index(names).batches() for row in batch.to_pylist()]


def error_of(path, act) -> tuple[str, str]:
    with pytest.raises(FlareError) as caught:
        act()
    return str(caught.value).replace(f"{path}/", ""), caught.value.hint


@pytest.mark.parametrize("value", ["9007199254740993", "-9007199254740993", "+00.5", "-01.5"])
def test_numbers_that_a_float_would_change_stay_text(tmp_path, value):
    assert rows_of(write_files(tmp_path, {"x.csv": f"v\n1.5\n{value}\n"})) == [
        {"v": "1.5"},
        {"v": value},
    ]


def test_blanks_in_a_header_belong_to_names_and_blank_lines_before_it_are_ignored(tmp_path):
    assert rows_of(write_files(tmp_path, {"x.csv": "\n" * 100 + " a ,b\t\n1,2\n"})) == [
        {" a ": 1, "b\t": 2}
    ]


def test_a_byte_order_mark_is_removed_only_at_the_start_of_a_file(tmp_path, monkeypatch):
    monkeypatch.setattr(
        decompress, "BLOCK_BYTES", 11
    )  # the second value starts with a byte order mark
    assert rows_of(write_files(tmp_path, {"x.csv": "\ufeffa\nxxxxx\n\ufeffy\n"})) == [
        {"a": "xxxxx"},
        {"a": "\ufeffy"},
    ]


def test_empty_text_stays_text_if_another_file_has_large_text(tmp_path):
    names = write_files(
        tmp_path,
        {
            "a.csv": "n,t\n1,\n2,x\n",
            "b.parquet": pa.table({"n": [3], "t": pa.array([None], pa.large_string())}),
        },
    )
    assert rows_of(names) == [{"n": 1, "t": ""}, {"n": 2, "t": "x"}, {"n": 3, "t": None}]


@pytest.mark.parametrize(
    ("name", "hint"),
    [("x.csv", "Check for an unclosed quote."), ("x.jsonl", "Write one row per line.")],
)
def test_a_record_slightly_above_the_limit_is_refused(tmp_path, monkeypatch, name, hint):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 100)
    monkeypatch.setattr(text_records, "MAX_RECORD_BYTES", 5000)
    names = write_files(tmp_path, {name: "x" * 6000})
    assert error_of(tmp_path, lambda: rows_of(names)) == (
        f"{name}: line 1: a record is longer than 5.0 kB",
        hint,
    )


def test_an_error_shows_the_start_of_a_long_value(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 8)
    names = write_files(tmp_path, {"x.csv": f"a,b\n1,2\n3,4\n{'x' * 41},5\n"})
    assert (
        error_of(tmp_path, lambda: rows_of(names))[0]
        == f"x.csv: line 4: column 'a' contains '{'x' * 39}…'; expected integers"
    )


# -- JSON


def json_part(data: str) -> Json:
    return Json(TextFile(Location(MemoryStore({"x": data.encode()}), "x")))


@pytest.mark.parametrize(
    "data",
    [
        '{"a": 1.5}\n{"a": -9007199254740993}',
        '{"a": {"b": 1.5}}\n{"a": {"b": -9007199254740993}}',
        '{"a": [{"b": [1.5, -9007199254740993]}]}',
    ],
)
def test_an_integer_that_a_float_would_change_is_reported_when_the_file_is_opened(data):
    with pytest.raises(FormatError) as caught:
        json_part(data)
    assert (
        caught.value.message
        == f"line {data.count(chr(10)) + 1}: column 'a' contains -9007199254740993, which float64 cannot represent"
    )


@pytest.mark.parametrize(
    "value",
    [
        "2020-01-01",
        "2020-01-01 00:00:00",
        "2020-01-01T00:00:00.123",
        "2020-01-01T00:00:00.123456789Z",
    ],
)
def test_text_that_looks_like_a_time_stays_text(value):
    row = {"a": value, "b": [value], "c": {"d": value}, "e": [{"f": [value]}]}
    assert [
        one for batch in json_part(json.dumps(row)).batches(None) for one in batch.to_pylist()
    ] == [row]


def test_bytes_far_after_the_end_of_an_array_are_reported(monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 12)
    for behind in ("\\", " " * 50 + "x", "\n" * 30 + "]"):
        with pytest.raises(FormatError) as caught:
            list(json_part('[{"a": 1}, {"a": 2}]' + behind).batches(None))
        assert str(caught.value) == "x: bytes follow the end of the array"


# -- Arrow and compressed text


def test_invalid_utf8_in_arrow_is_reported_with_its_batch(tmp_path):
    bad = pa.record_batch({"t": pa.array([b"caf\xe9"]).view(pa.string())})
    with pa.ipc.new_file(str(tmp_path / "x.arrow"), bad.schema) as out:
        out.write_batch(pa.record_batch({"t": ["a"] * 20_000}))
        out.write_batch(bad)
    batches, taken = open_index(str(tmp_path / "x.arrow")).batches(), []
    with pytest.raises(FormatError) as caught:
        taken += (batch.num_rows for batch in batches)
    with pytest.raises(pa.ArrowInvalid) as said:
        bad.validate(full=True)
    assert str(caught.value) == f"{tmp_path}/x.arrow[20000]: invalid batch: {said.value}"
    assert taken in ([], [8192, 8192, 3616])


def test_small_files_may_expand_more_than_a_thousandfold(tmp_path):
    cell = "x" * (3 << 20)
    for suffix in (".zst", ".zstd"):
        packed = zstandard.compress(f"a\n{cell}\n".encode())
        assert len(packed) * 1000 < len(cell)
        assert rows_of(write_files(tmp_path, {f"x.csv{suffix}": packed})) == [{"a": cell}]


# -- lists, names, several files


def test_lists_may_have_comments_blank_lines_and_relative_addresses(tmp_path):
    (name,) = write_files(tmp_path, {"L.TXT": "#a.csv\n\t#\n././/a.csv \n.//{A,a}.csv\n\n"})
    write_files(tmp_path, {"a.csv": "n\n1\n", "A.csv": "n\n2\n"})
    assert [row["n"] for row in rows_of(name)] == [1, 2, 1]


def test_a_list_with_too_many_files_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(lists, "MAX_FILES", 3)
    names = write_files(
        tmp_path, {"l.txt": "m.txt\nm.txt\n", "m.txt": "a.csv\na.csv\n", "a.csv": "n\n1\n"}
    )
    assert (
        error_of(tmp_path, lambda: open_index(names[0]))[0]
        == "l.txt: the lists contain more than 3 files"
    )
    monkeypatch.setattr(lists, "MAX_FILES", 4)
    assert len(rows_of(names[0])) == 4


def test_names_of_datasets_and_folders_are_not_indexes(tmp_path):
    (tmp_path / "x.csv").mkdir()
    answers = {
        "x.csv": False,
        "y.csv": True,
        "shard.000001.json": False,
        "shard.0001.json": True,
        "index.json.gz": True,
    }
    assert {name: is_index(str(tmp_path / name)) for name in answers} == answers


def test_suffixes_in_capitals_select_the_same_reader(tmp_path):
    assert rows_of(
        write_files(
            tmp_path, {"A.CSV": "n\n1\n", "B.JSONL": '{"n": 2}', "C.PARQUET": pa.table({"n": [3]})}
        )
    ) == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_value_that_does_not_fit_is_reported_with_its_row_and_the_common_type(tmp_path):
    many = pa.table({"n": [0] * 9000 + [2**53 + 1]})
    names = write_files(
        tmp_path,
        {
            "a.parquet": many,
            "b.parquet": pa.table({"n": [0.5]}),
            "c.parquet": pa.table({"n": ["x"]}),
        },
    )
    assert (
        error_of(tmp_path, lambda: rows_of(names[:2]))[0]
        == "a.parquet[9000]: column 'n': value 9007199254740993 cannot be stored as double"
    )
    assert (
        error_of(tmp_path, lambda: rows_of(names))[0]
        == "c.parquet: columns differ from the columns of b.parquet: column 'n' is string instead of double"
    )


def test_a_range_after_the_last_row_is_empty(tmp_path):
    (name,) = write_files(tmp_path, {"a.parquet": pa.table({"n": [1, 2]})})
    assert list(open_index(name).batches(start=2)) == []


INT, TEXT = pa.int64(), pa.string()


@pytest.mark.parametrize(
    ("one", "two", "both"),
    [
        (pa.int8(), pa.uint8(), pa.int16()),
        (pa.uint32(), pa.int8(), INT),
        (pa.uint64(), pa.int8(), None),
        (pa.uint8(), pa.uint32(), pa.uint32()),
        (pa.float16(), pa.float32(), pa.float32()),
        (pa.float32(), pa.int8(), pa.float64()),
        (pa.decimal128(5, 2), pa.decimal128(9, 4), pa.decimal128(9, 4)),
        (pa.decimal128(9, 0), pa.decimal128(4, 4), pa.decimal128(13, 4)),
        (pa.decimal128(38, 0), pa.decimal128(38, 1), None),
        (pa.date32(), pa.date64(), pa.date64()),
        (pa.binary(2), pa.binary(3), pa.binary()),
        (pa.timestamp("s", "UTC"), pa.timestamp("ms", "UTC"), pa.timestamp("ms", "UTC")),
        (pa.timestamp("s", "UTC"), pa.timestamp("s"), None),
        (pa.list_(pa.int8()), pa.large_list(INT), pa.large_list(INT)),
        (pa.list_(INT), pa.list_(TEXT), None),
        (pa.map_(TEXT, pa.int8()), pa.map_(TEXT, INT), pa.map_(TEXT, INT)),
        (pa.struct([("a", INT)]), pa.struct([("b", INT)]), None),
        (pa.struct([("a", INT)]), pa.struct([("a", TEXT)]), None),
        (pa.struct([("a", pa.null())]), pa.struct([("a", TEXT)]), pa.struct([("a", TEXT)])),
        (TEXT, pa.binary(), None),
    ],
)
def test_common_types_do_not_depend_on_the_order_of_files(one, two, both):
    assert (common_type(one, two), common_type(two, one)) == (both, both)


# -- folders


def test_files_that_fit_no_column_are_rows_with_nulls(tmp_path):
    write_files(
        tmp_path,
        {f"{n}.jpg": "x" for n in range(6)}
        | {"plain\x1b[31m": "x"}
        | {f"{n}.txt": "x" for n in "abcdef"},
    )
    with open(os.fsencode(tmp_path) + b"/\xff.jpg", "wb"):
        pass
    found = open_folder(str(tmp_path))
    rows = [row for batch in found.batches() for row in batch.to_pylist()]
    assert (found.rows, found.notes) == (14, ())
    assert sorted(row["key"] for row in rows if row["image"] is None) == sorted(
        [*(f"{n}.txt" for n in "abcdef"), "plain\x1b[31m", "\\xff.jpg"]
    )
    chosen = open_folder(str(tmp_path), columns=["image"])
    assert (chosen.rows, chosen.notes) == (
        6,
        ("skipped 8 keys without image: \\xff.jpg, a, b, c, d, …",),
    )


def test_an_image_extension_is_the_main_one_if_half_of_the_keys_have_it(tmp_path):
    write_files(tmp_path, {"a.jpg": "x", "a.txt": "x", "b.txt": "x"})
    assert open_folder(str(tmp_path)).schema.names == ["key", "image", "text"]
    write_files(tmp_path, {"c.txt": "x"})
    assert open_folder(str(tmp_path)).schema.names == ["key", "text"]


def test_too_many_combinations_of_extensions_are_refused(tmp_path, monkeypatch):
    write_files(tmp_path, {"a.x": "x", "b.y": "x", "c.x": "x", "c.y": "x"})
    monkeypatch.setattr(folder, "MAX_COLUMNS", 1)
    assert error_of(tmp_path.parent, lambda: open_folder(str(tmp_path))) == (
        f"{tmp_path.name}: more than 1 extensions",
        "Use -c to select the columns to pack.",
    )
    monkeypatch.setattr(folder, "MAX_COMBINATIONS", 2)
    assert error_of(tmp_path.parent, lambda: open_folder(str(tmp_path))) == (
        f"{tmp_path.name}: more than 2 combinations of extensions",
        "Pack a smaller folder, or only the tables of the folder.",
    )
