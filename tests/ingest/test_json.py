"""JSON lines and arrays, compared with Python's json module; then invalid tables and the rows in
their errors.
"""

import json

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FormatError
from flarecli.formats.tables import decompress, text_records
from flarecli.formats.tables.decompress import TextFile
from flarecli.formats.tables.json import Json
from flarecli.formats.tables.text_records import json_array_pieces
from flarecli.ingest import open_index
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.properties import examples


def text(data: bytes | str) -> TextFile:
    return TextFile(
        Location(MemoryStore({"x": data if isinstance(data, bytes) else data.encode()}), "x")
    )


def rows_of(data: bytes | str, columns=None) -> list[dict]:
    return [row for batch in Json(text(data)).batches(columns) for row in batch.to_pylist()]


def error_of(data: bytes | str) -> str:
    with pytest.raises(FormatError) as caught:
        rows_of(data)
    return str(caught.value)


VALUES = {
    "number": st.none() | st.integers(-(2**63), 2**63 - 1),
    "big": st.integers(2**63, 2**64 - 1),
    "float": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "text": st.none()
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
    | st.just("2020-01-01")
    | st.just('"}],[{"\\'),
    "flag": st.none() | st.booleans(),
    "list": st.none() | st.lists(st.text(st.sampled_from('a"\\{}[],'), max_size=3), max_size=3),
    "nest": st.none()
    | st.fixed_dictionaries(
        {"x": st.integers(0, 9), "y": st.none() | st.lists(st.integers(0, 9), max_size=2)}
    ),
}


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=8),
    st.sampled_from([None, 0, 2]),
    st.booleans(),
    st.integers(20, 300),
)
def test_rows_are_the_same_as_those_of_pythons_json(rows, indent, ascii_only, block):
    lines = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\n" for row in rows)
    array = json.dumps(rows, indent=indent, ensure_ascii=ascii_only)
    # Arrow parses a number as a float only with a point
    assert rows_of(lines) == rows
    assert rows_of(array) == rows
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompress, "BLOCK_BYTES", block)
        found = [
            json.loads(line)
            for piece in json_array_pieces(text(array))
            for line in piece.data.split(b"\n")
        ]
    assert found == rows


def test_types_are_inferred_from_the_first_rows():
    found = Json(
        text(
            '{"a": 1, "b": 1.5, "c": "2020-01-01", "d": true, "e": [1], "f": {"g": "2020-01-01T00:00:00Z"}, "h": null}\n'
        )
    )
    assert {field.name: str(field.type) for field in found.schema} == {
        "a": "int64",
        "b": "double",
        "c": "string",
        "d": "bool",
        "e": "list<item: int64>",
        "f": "struct<g: string>",
        "h": "null",
    }
    assert found.rows is None


def test_only_requested_columns_are_returned_in_that_order():
    assert rows_of('{"a": 1, "b": 2, "c": 3}\n', ["c", "a"]) == [{"c": 3, "a": 1}]


def test_a_missing_member_of_a_row_is_null():
    assert rows_of('{"a": 1}\n\n \n{"b": 2}\n') == [{"a": 1, "b": None}, {"a": None, "b": 2}]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x: file is empty"),
        (b" \n\n", "x: table has no rows"),
        (b"[]", "x: table has no rows"),
        (b"\xef\xbb\xbf[ \n]", "x: table has no rows"),
        (b"{}\n{}", "x: table has no columns"),
        (b'{"a": 1, "a": 2}', "x: line 1: duplicate member 'a'"),
        (
            b'{"a": 1}\n{"a": "x"}',
            "x: line 2: column 'a' contains text; earlier rows contain a number",
        ),
        (
            b'{"a": [1]}\n{"a": [true]}',
            "x: line 2: column 'a[]' contains true or false; earlier rows contain a number",
        ),
        (
            b'{"a": {"b": 1}}\n{"a": {"b": []}}',
            "x: line 2: column 'a.b' contains a list; earlier rows contain a number",
        ),
        (
            b'{"a": [1, {"b": 2}]}\n{"a": []}',
            "x: line 1: column 'a[]' contains an object; earlier items contain a number",
        ),
        (b'{"a": 1}\nnull\n', "x: line 2: expected an object, got null"),
        (b'null\n{"a": 1}\n', "x: line 1: expected an object, got null"),
        (b"[null]", "x[0]: expected an object, got null"),
        (b'{"a": 1}\n[1]\n', "x: line 2: expected an object, got a list"),
        (b'[{"a": 1}, 7]', "x[1]: expected an object, got a number"),
        (b'{"a": 1} {"a": 2}\n', "x: line 1: not JSON: extra data at character 10"),
        (b'{"a": 1\n', "x: line 1: not JSON: expecting ',' delimiter at character 8"),
        (
            b'{\n"a": 1}\n',
            "x: line 1: not JSON: expecting property name enclosed in double quotes at character 2",
        ),
        (b'{"a": 01}', "x: line 1: not JSON: expecting ',' delimiter at character 8"),
        (b'{"a": "x\ty"}', "x: line 1: not JSON: invalid control character at character 9"),
        (b'{"a": 1}\n{"a": "\xff"}', "x: line 2: byte 16 is not UTF-8"),
        (b'{"a": "\xff"}', "x: line 1: byte 7 is not UTF-8"),
        (b'[{"a": 1}, {"a": "\xff"}]', "x[1]: byte 0xff is not UTF-8"),
        (b'{"a": "\0"}', "x: line 1: byte 7 is NUL"),
        (b'[{"a": "\0"}]', "x[0]: contains a NUL"),
        (
            b'{"a": 1.5}\n{"a": 12345678901234567890123}',
            "x: line 2: column 'a' contains 12345678901234567890123, which float64 cannot represent",
        ),
        (
            b'{"a": [1.5, 9007199254740993]}',
            "x: line 1: column 'a' contains 9007199254740993, which float64 cannot represent",
        ),
        (b'{"a": 1e400}', "x: line 1: cannot parse: number too big to be stored in double"),
        (b'{"a": "\\ud800"}', "x: line 1: cannot parse: the surrogate pair in string is invalid"),
        (b"hello", "x: line 1: not JSON: expecting value at character 1"),
        (b'[{"a": 1}', "x: the array is not terminated"),
        (b'[{"a": "]', "x: the array is not terminated"),
        (b'[{"a": 1}]x', "x: bytes follow the end of the array"),
        (b'[{"a": 1}}]', "x: bytes follow the end of the array"),
        (b'[{"a": 1},, {"a": 2}]', "x[1]: an item of the array is empty"),
        (b'[{"a": 1}, ]', "x[1]: an item of the array is empty"),
        (b'[, {"a": 1}]', "x[0]: an item of the array is empty"),
    ],
)
def test_an_invalid_table_is_reported_with_its_row(data, message):
    assert error_of(data) == message


@pytest.mark.parametrize(
    ("data", "hint"),
    [
        ('{\n  "data": [\n    {"a": 1}\n  ]\n}\n', True),
        ('{"a": 1}\n{"a":\n2}\n', True),
        ('{"a": 1} {"a": 2}\n', False),
        ("hello", False),
    ],
)
def test_an_object_on_several_lines_is_reported_with_the_layouts_that_are_read(data, hint):
    with pytest.raises(FormatError) as caught:
        rows_of(data)
    text = "Write each object on one line, or all objects in one array."
    assert caught.value.hint == (text if hint else "")


def test_rows_and_lines_in_errors_are_correct_after_the_first_block(monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    rows = [{"n": n, "t": "x" * (n % 50)} for n in range(500)]
    lines = [json.dumps(row) for row in rows]
    assert rows_of("\n".join(lines)) == rows
    assert rows_of(f"[{','.join(lines)}]") == rows
    for bad, said in [
        ('{"n": "x", "t": ""}', "column 'n' contains text; earlier rows contain a number"),
        ('{"n": 1.5, "t": ""}', "column 'n' contains 1.5; expected int64"),
        (
            '{"n": 18446744073709551615, "t": ""}',
            "column 'n' contains 18446744073709551615; expected int64",
        ),
        ('{"n": 1, "u": 2}', "column 'u' is not in earlier rows"),
        ("{", "not JSON: expecting property name enclosed in double quotes at character 2"),
    ]:
        assert error_of("\n".join([*lines[:400], bad, *lines[401:]])) == f"x: line 401: {said}"
        if bad != "{":
            assert error_of(f"[{','.join([*lines[:400], bad, *lines[401:]])}]") == f"x[400]: {said}"


def test_a_row_above_the_maximum_length_is_refused(monkeypatch):
    monkeypatch.setattr("flarecli.formats.tables.text_records.MAX_RECORD_BYTES", 5000)
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    row = '{"a": "' + "x" * 9000 + '"}'
    assert error_of(row) == "x: line 1: a record is longer than 5.0 kB"
    assert error_of(f"[{row}]") == "x[0]: a row is longer than 5.0 kB"


@pytest.mark.parametrize("block", range(1, 24))
def test_an_empty_item_is_reported_wherever_a_block_ends(monkeypatch, block):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", block)
    for array, row in (
        ('[{"a": 1},,{"a": 2}]', 1),
        ('[,{"a": 1}]', 0),
        ('[{"a": 1}, {"a": "\\\\\\"]"},  ]', 2),
    ):
        with pytest.raises(FormatError) as caught:
            list(json_array_pieces(text(array)))
        assert str(caught.value) == f"x[{row}]: an item of the array is empty"


def test_a_large_row_is_scanned_only_once(monkeypatch):
    looked = []
    quotes = text_records._find_quotes
    monkeypatch.setattr(
        text_records, "_find_quotes", lambda raw: looked.append(len(raw)) or quotes(raw)
    )
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    array = "[" + "[" * 100_000
    with pytest.raises(FormatError):
        list(json_array_pieces(text(array)))
    assert sum(looked) == len(array) - 1
    looked.clear()
    assert text_records.first_deep_line(b'{"a": 1}\n{"a": ' + b'["' * 3_000_000, 64) == 1
    assert max(looked) <= 1 << 20


def test_an_integer_of_any_length_is_an_error_of_the_data():
    for digits in (30, 400, 5000):
        told = "7" * digits if digits < 40 else "7" * 39 + "…"
        assert (
            error_of(f'{{"a": 1.5}}\n{{"a": {"7" * digits}}}')
            == f"x: line 2: column 'a' contains {told}, which float64 cannot represent"
        )
        assert (
            error_of(f'{{"a": "t"}}\n{{"a": {"7" * digits}}}')
            == "x: line 2: column 'a' contains a number; earlier rows contain text"
        )
        assert (
            error_of(f'[{{"a": {"7" * digits}}}]')
            == f"x[0]: column 'a' contains {told}, which float64 cannot represent"
        )
    assert rows_of(f'{{"a": 1.5}}\n{{"a": 1{"0" * 22}}}') == [{"a": 1.5}, {"a": 1e22}]


def test_deep_nesting_is_an_error_not_a_crash():
    assert (
        error_of('{"a": 1}\n{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")
        == "x: line 2: nested more than 64 levels deep"
    )
    assert (
        error_of('[{"a": 1}, {"a": ' + '{"b": ' * 100 + "1" + "}" * 101 + "]")
        == "x[1]: nested more than 64 levels deep"
    )
    assert error_of("[" * 100_000) == "x: the array is not terminated"
    assert rows_of(json.dumps({"a": "[{" * 200, "b": [[1]] * 100})) == [
        {"a": "[{" * 200, "b": [[1]] * 100}
    ]


def test_the_first_byte_distinguishes_arrays_from_lines(tmp_path):
    (tmp_path / "lines.json").write_text('{"a": 1}\n{"a": 2}\n')
    (tmp_path / "array.jsonl").write_text('[{"a": 3}]')
    found = open_index([str(tmp_path / "lines.json"), str(tmp_path / "array.jsonl")])
    assert pa.Table.from_batches(found.batches()).to_pydict() == {"a": [1, 2, 3]}


def test_ambiguous_types_follow_those_of_the_other_files(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"n": 1, "t": null}\n')
    (tmp_path / "b.jsonl").write_text('{"n": 1.5, "t": ["x"]}\n')
    found = open_index([str(tmp_path / "a.jsonl"), str(tmp_path / "b.jsonl")])
    assert pa.Table.from_batches(found.batches()).to_pylist() == [
        {"n": 1.0, "t": None},
        {"n": 1.5, "t": ["x"]},
    ]


@pytest.mark.parametrize("is_array", [True, False])
def test_values_of_200_kilobytes_are_read_completely(is_array):
    rows = [
        {"id": n, "text": cell}
        for n, cell in enumerate(["x" * 200_000, "é" * 100_000, 'say "x",\n' * 25_000, "last"])
    ]
    assert (
        rows_of(json.dumps(rows) if is_array else "\n".join(json.dumps(row) for row in rows))
        == rows
    )
