"""JSON shards compared with Python's json module, and damage."""

import json
import pickle

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.errors import FormatError, IntegrityError, UsageError, ValueFitError
from flarecli.formats import byte_ranges, find
from flarecli.formats.lines import base as lines
from flarecli.formats.lines import json as json_module
from flarecli.model import Settings
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.formats.lines.samples import batch_of, columns_of, shard_of, write_rows
from tests.properties import examples

json_shards = find("json")

TYPES = {"s": "json_str", "i": "json_int", "f": "json_float"}


JSON = {"columns": {"a": "int", "s": "str"}, "format": "json", "newline": "\n"}


def json_shard(*lines, newline="\n", columns=None):
    lines = [line if isinstance(line, bytes) else line.encode() for line in lines]
    config = {**JSON, "newline": newline, "columns": columns or JSON["columns"]}
    return shard_of(json_shards, b"".join(lines), np.cumsum([0, *map(len, lines)]).tolist(), config)


VALUES = {
    "s": st.text(max_size=20).map(lambda text: json.dumps(text).encode()),
    "i": st.one_of(st.integers(), st.booleans()).map(lambda number: json.dumps(number).encode()),
    "f": st.floats().map(lambda number: json.dumps(number).encode()),
    ', "f': st.text(alphabet='\\", :f{}né', max_size=8).map(lambda text: json.dumps(text).encode()),
    'k"\\': st.text(alphabet='\\"u0', max_size=8).map(lambda text: json.dumps(text).encode()),
}
NAMES = {
    "s": "json_str",
    "i": "json_int",
    "f": "json_float",
    ', "f': "json_str",
    'k"\\': "json_str",
}


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.fixed_dictionaries(VALUES), min_size=1, max_size=12),
    st.sampled_from(["\n", "\r\n", "", " \t"]),
    st.sampled_from([None, "br", "snappy"]),
)
def test_written_lines_are_parsed_by_json(rows, newline, compression):
    chunk, columns = write_rows(json_shards, NAMES, rows, Settings(compression, newline=newline))
    shard = pickle.loads(pickle.dumps(json_shards.open_shard(chunk, columns)))
    assert json_shards.read_rows(shard, range(len(rows))) == [
        {name: row[name] for name in sorted(row)} for row in rows
    ]
    batch = json_shards.read_batch(shard, 0, len(rows))
    assert batch.equals(batch_of(columns, rows))
    assert list(json_shards.verify_shard(shard, values=True)) == []
    if compression is None:
        lines = [
            json.dumps({name: json.loads(data) for name, data in row.items()}, sort_keys=True)
            + newline
            for row in rows
        ]
        assert chunk.at.read().decode() == "".join(lines)


ANY_JSON = st.one_of(
    st.text(max_size=6), st.integers(), st.floats(allow_nan=False), st.booleans(), st.none()
)
STYLES = st.sampled_from(
    [
        {},
        {"separators": (",", ":")},
        {"indent": 1},
        {"ensure_ascii": False},
        {"separators": (" , ", " :\t")},
    ]
)


@settings(max_examples=examples(120), deadline=None)
@given(
    st.lists(
        st.tuples(st.fixed_dictionaries({"a": ANY_JSON, "s": ANY_JSON}), STYLES, st.booleans()),
        min_size=1,
        max_size=8,
    )
)
def test_lines_of_any_writer_are_split_as_json_parses_them(samples):
    """Rows and batches equal json.loads for any whitespace, key order and unescaped text."""
    lines = [
        json.dumps(dict(reversed(sample.items())) if turned else sample, **style) + "\n"
        for sample, style, turned in samples
    ]
    shard = json_shard(*lines)
    rows = json_shards.read_rows(shard, range(len(lines)))
    assert [{name: json.loads(data) for name, data in row.items()} for row in rows] == [
        sample for sample, _, _ in samples
    ]
    batch = json_shards.read_batch(shard, 0, len(lines))
    assert [
        {name: text.encode() for name, text in row.items()} for row in batch.to_pylist()
    ] == rows


PIECES = [
    '"',
    "\\",
    "a",
    "s",
    ": ",
    ", ",
    "{",
    "}",
    "1",
    "-",
    ".5",
    "e",
    "\n",
    "\\u00",
    "é",
    '{"a": 1, "s": "x"}',
    '"s": ',
    "null",
    "NaN",
    "[",
    "]",
    " ",
]


@settings(max_examples=examples(400), deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(PIECES), max_size=12).map("".join), min_size=1, max_size=4)
)
def test_the_fast_splitter_is_correct_or_defers_to_the_parser(parts):
    lines = ['{"a": 1, "s": "' + parts[0] + '"}\n', *(part + "\n" for part in parts[1:])]
    plan = json_module.planned(
        json_shards.arrange([encodings.column("a", "json_int"), encodings.column("s", "json_str")]),
        "\n",
    )
    data = "".join(lines).encode()
    starts = np.cumsum([0, *(len(line.encode()) for line in lines)])
    found = json_module.places(np.frombuffer(data, np.uint8), starts, plan)
    if found is None:
        return
    for row, line in enumerate(lines):
        cut = {name: data[at[row] : at[row] + size[row]] for name, (at, size) in found.items()}
        assert cut == json_module.parsed(line.encode())
        assert json_module.split(line.encode(), plan) == [cut["a"], cut["s"]]
        assert {
            name: json.loads(value, strict=True) for name, value in cut.items()
        }.keys() == json.loads(line).keys()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("", "not valid JSON: expected '{' at character 0"),
        ('{"a": 1, "s": "x"', "not valid JSON: expected '}' at character 17"),
        (
            '{"a": 1, "s": "x"} x',
            "not valid JSON: unexpected data after the object at character 19",
        ),
        ('{"a": 1, "a": 2, "s": ""}', "duplicate key 'a'"),
        ('{"a": 1}', "column 's' is missing"),
        ('{"a": 1, "s": "", "t": 1}', "column 't' is unknown"),
        ("{}", "column 'a' is missing"),
        ('["a"]', "not valid JSON: expected '{' at character 0"),
        ('{"a": 1, "s": "\x01"}', None),
        ('{"a": 01, "s": ""}', "not valid JSON: expected '}' at character 7"),
        ('{"a": ' + "[" * 100_000 + "}", "JSON is nested too deeply"),
        (b'{"a": 1, "s":"\xff"}', "not UTF-8 at byte 14"),
    ],
)
def test_an_invalid_line_is_reported_with_its_row(line, message):
    good = '{"a": 1, "s": "x"}\n'
    shard = json_shard(good, line, good)
    for do in (
        lambda: json_shards.read_batch(shard, 0, 3),
        *([lambda: json_shards.read_rows(shard, [0, 1])] if message else []),
    ):
        with pytest.raises(FormatError) as caught:
            do()
        assert str(caught.value).startswith("shard.00000.json[1]: ")
        assert message is None or caught.value.message == message
    assert [one.where for one in json_shards.verify_shard(shard)] == ["shard.00000.json[1]"]
    assert json_shards.read_rows(shard, [2, 0]) == [{"a": b"1", "s": b'"x"'}] * 2


def test_numbers_of_any_length_are_copied_unchanged():
    long = "1" * 10_000
    shard = json_shard(f'{{"a": {long}, "s": "x"}}\n', f'{{"s":"x" ,"a":  {long}}}\n')
    assert [row["a"].decode() for row in json_shards.read_rows(shard, [0, 1])] == [long, long]
    assert json_shards.read_batch(shard, 0, 2).column("a").to_pylist() == [long, long]


def test_values_of_another_type_are_reported_when_values_are_checked():
    shard = json_shard('{"a": "text", "s": "x"}\n', '{"a": 1, "s": 2}\n')
    assert list(json_shards.verify_shard(shard)) == []
    assert [(one.where, one.message) for one in json_shards.verify_shard(shard, values=True)] == [
        ("shard.00000.json[0]", "column 'a': not a valid json_int value"),
        ("shard.00000.json[1]", "column 's': not a valid json_str value"),
    ]


@pytest.mark.parametrize("newline", ["|", "\u2028", "\n\x0b", "x"])
def test_a_newline_that_json_cannot_end_with_is_refused_before_anything_is_written(newline):
    columns = columns_of(json_shards, {"i": "json_int"})
    store, batch, how = MemoryStore(), batch_of(columns, [{"i": b"1"}]), Settings(newline=newline)
    for do in (
        lambda: json_shards.row_sizes(columns, batch, how),
        lambda: json_shards.write_shard(Location(store, ""), 0, columns, [batch], how),
    ):
        with pytest.raises(UsageError, match="^invalid newline: expected JSON whitespace, got "):
            do()
        assert store.files == {}


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("s", b"bare"),
        ("s", b'"open'),
        ("s", b'"a" "b"'),
        ("s", b'"\n"'),
        ("s", b'"\\x"'),
        ("s", b'"\\u12"'),
        ("s", b"1"),
        ("s", b""),
        ("i", b""),
        ("i", b" 1"),
        ("i", b'"1"'),
        ("i", b"1, 2"),
        ("i", b"01"),
        ("f", b"[1]"),
        ("f", b"{}"),
        ("f", b"1.}"),
    ],
)
def test_invalid_json_is_not_written(name, data):
    good = {"s": b'"x"', "i": b"1", "f": b"1.5"}
    kind = "string" if name == "s" else "number"
    columns = columns_of(json_shards, TYPES)
    batch = batch_of(columns, [good, {**good, name: data}])
    with pytest.raises(ValueFitError) as caught:
        json_shards.row_sizes(columns, batch, Settings())
    assert str(caught.value) == f"row 1: column {name!r}: expected a JSON {kind}, got {data!r}"


@pytest.mark.parametrize("value", ["", "a", 'é\n"\\\x01'])
def test_a_row_of_17_mb_is_written_as_json_dumps_writes_it(value):
    large = json.dumps("b" * (17 << 20) + value).encode()
    rows = [{"s": text, "i": b"1", "f": b"1.5"} for text in (b'"x"', large, b'"y"')]
    chunk, columns = write_rows(json_shards, TYPES, rows)
    expected = [json.dumps({"f": 1.5, "i": 1, "s": json.loads(row["s"])}) + "\n" for row in rows]
    assert chunk.at.read() == "".join(expected).encode()
    _, sizes = json_shards.row_sizes(columns, batch_of(columns, rows), Settings())
    assert sizes.tolist() == [len(line) for line in expected]


@pytest.mark.parametrize("end", [b"", b'\\"', b'\n"', b'" '])
def test_an_invalid_row_of_17_mb_is_not_written(end):
    data = b'"' + b"b" * (17 << 20) + end
    good = {"s": b'"x"', "i": b"1", "f": b"1.5"}
    columns = columns_of(json_shards, TYPES)
    batch = batch_of(columns, [good, {**good, "s": data}])
    with pytest.raises(ValueFitError) as caught:
        json_shards.row_sizes(columns, batch, Settings())
    expected = f"row 1: column 's': expected a JSON string, got {data[:60]!r}"
    assert str(caught.value) == expected


def test_a_listing_may_be_more_precise_but_not_contradict_the_shard():
    chunk, _ = write_rows(
        json_shards,
        {"j": "json", "s": "str"},
        [{"j": json.dumps('{"k": 1}').encode(), "s": b'"x"'}],
    )
    assert [one.encoding for one in json_shards.open_shard(chunk).columns] == [
        "json_str",
        "json_str",
    ]
    listed = (encodings.column("j", "json_json"), encodings.column("s", "json_str"))
    assert json_shards.open_shard(chunk, listed).columns == listed
    for other in (
        listed[:1],
        (listed[0], encodings.column("s", "json_int")),
        (listed[0], encodings.column("t", "json_str")),
    ):
        with pytest.raises(
            IntegrityError,
            match=r"^shard.00000.json.meta: columns in the config differ from the columns in the index(?m:$)",
        ):
            json_shards.open_shard(chunk, other)


def test_rows_of_many_columns_are_joined_together():
    """Calling Arrow for each column of each small piece would take longer than joining the text."""
    column = pa.array(["1"] * 40, pa.large_string())
    wide = pa.record_batch({str(i): column for i in range(9000)})
    assert [piece.num_rows for piece in lines.pieces(wide)] == [40]
    large = pa.record_batch({"a": pa.array(["x" * (1 << 18)] * 40, pa.large_string())})
    assert max(piece.num_rows for piece in lines.pieces(large)) == 3


def test_numbers_of_several_columns_are_found_in_batches_above_the_limit_of_views(monkeypatch):
    rows = [dict.fromkeys("abc", b"%d" % (7 * i)) for i in range(100)]
    chunk, columns = write_rows(json_shards, dict.fromkeys("abc", "int"), rows)
    shard = json_shards.open_shard(chunk, columns)
    expected = json_shards.read_batch(shard, 0, 100)
    monkeypatch.setattr(byte_ranges, "VIEW_LIMIT", 64)
    assert json_shards.read_batch(json_shards.open_shard(chunk, columns), 0, 100).equals(expected)
