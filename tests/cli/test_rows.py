"""`flare cat`: typed batches as JSON lines, CSV, TSV, tables, Arrow, Parquet and raw bytes; every
output can be parsed and is escaped.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import pickle
import re

import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.cli.printer import json_text, json_value
from flarecli.cli.rows import cell
from flarecli.names import escape


def batch(**columns):
    """Return a batch of columns, each (values, Arrow type, encoding)."""
    fields = [
        pa.field(name, kind, metadata={b"encoding": encoding.encode()})
        for name, (_, kind, encoding) in columns.items()
    ]
    return pa.record_batch(
        [pa.array(values, kind) for values, kind, _ in columns.values()], schema=pa.schema(fields)
    )


def cat(*batches):
    return lambda *args, **options: iter(batches)


SEPARATED = [("csv", ","), ("tsv", "\t")]
TEXT, BINARY = pa.large_string(), pa.large_binary()
SAMPLE = batch(
    id=(["a", "b"], TEXT, "str"),
    n=([1, 2**63], pa.uint64(), "uint64"),
    score=([0.1, float("nan")], pa.float64(), "float64"),
    image=([b"\xff\xd8", b""], BINARY, "jpeg"),
    object=([b"\x80\x04N.", b"x" * 1234], BINARY, "pkl"),
    meta=(['{"k": [1, NaN, 1e999]}', '"\\ud800\x7f"'], TEXT, "json"),
    digits=(["12345678901234567890", "-0"], TEXT, "str_int"),
)


def test_rows_are_json_lines(flare):
    ran = flare("cat", "x", cat=cat(SAMPLE))
    assert (ran.code, ran.err) == (0, "")
    one, two = ran.out.splitlines()
    assert json.loads(one) == {
        "id": "a",
        "n": 1,
        "score": 0.1,
        "image": {"bytes": 2, "sha256": hashlib.sha256(b"\xff\xd8").hexdigest()},
        "object": "<pickle, 4 B, not decoded>",
        "meta": {"k": [1, None, None]},
        "digits": 12345678901234567890,
    }
    assert json.loads(two)["n"] == 2**63
    assert json.loads(two)["score"] is None
    assert json.loads(two)["object"] == "<pickle, 1.2 kB, not decoded>"
    assert '"meta": "\\ud800\\u007f"' in two


def test_bytes_can_be_printed_as_base64(flare):
    row = json.loads(flare("cat", "x", "--bytes", "base64", cat=cat(SAMPLE)).out.splitlines()[0])
    assert (base64.b64decode(row["image"]), base64.b64decode(row["object"])) == (
        b"\xff\xd8",
        b"\x80\x04N.",
    )


def test_all_arrow_types_are_printed(flare):
    import datetime
    import decimal

    values = {
        "day": datetime.date(2024, 2, 29),
        "price": decimal.Decimal("1.10"),
        "deep": {"b": b"\0", "f": [math.inf]},
        "none": None,
        "yes": True,
    }
    ran = flare("cat", "x", cat=cat(pa.RecordBatch.from_pylist([values])))
    deep = {"b": {"bytes": 1, "sha256": hashlib.sha256(b"\0").hexdigest()}, "f": [None]}
    assert json.loads(ran.out) == {
        "day": "2024-02-29",
        "price": "1.10",
        "deep": deep,
        "none": None,
        "yes": True,
    }


def test_rows_without_columns_are_printed(flare):
    empty = pa.RecordBatch.from_struct_array(pa.array([{}, {}], pa.struct([])))
    assert flare("cat", "x", cat=cat(empty)).out == "{}\n{}\n"


@pytest.mark.parametrize("text", ["{oops", "", '{"a": 1} 2', "[" * 100_000])
def test_an_invalid_value_of_a_json_column_is_an_error(flare, text):
    ran = flare("cat", "x", cat=cat(batch(meta=([text], TEXT, "json"))))
    shown = "value is nested too deeply" if len(text) > 99 else f"invalid JSON: {text!r}"
    hint = "hint: Use --raw meta to print its bytes, or select other columns with -c.\n"
    assert (ran.code, ran.out, ran.err) == (
        4,
        "",
        f"error: column 'meta': {shown}\n{hint}",
    )


def test_json_within_json_and_messagepack_are_values(flare):
    tree = encodings.encode(
        encodings.lookup("tree"), {"a": [1, None, b"\xff"], "x": np.arange(3), "f": float("inf")}
    )
    rows = batch(
        text=(['"{\\"k\\": [1, NaN]}"', None], TEXT, "json_json"),
        pack=([b"\x92\x01\xc4\x02\x00\xff", None], BINARY, "msgpack"),
        tree=([tree, None], BINARY, "tree"),
        some=([[b"\x01", b"\xa1k"], []], pa.large_list(BINARY), "msgpack[]"),
    )
    one, two = map(
        json.loads, flare("cat", "x", "--bytes", "base64", cat=cat(rows)).out.splitlines()
    )
    assert one == {
        "text": {"k": [1, None]},
        "pack": [1, base64.b64encode(b"\x00\xff").decode()],
        "tree": {"a": [1, None, "/w=="], "x": [0, 1, 2], "f": None},
        "some": [1, "k"],
    }
    assert two == {"text": None, "pack": None, "tree": None, "some": []}
    ran = flare("cat", "x", cat=cat(batch(pack=([b"\xc1"], BINARY, "msgpack"))))
    hint = "hint: Use --raw pack to print its bytes, or select other columns with -c.\n"
    assert (ran.code, ran.out, ran.err) == (
        4,
        "",
        f"error: column 'pack': expected exactly one MessagePack value\n{hint}",
    )


def test_tensors_are_nested_lists(flare):
    kind = pa.fixed_shape_tensor(pa.float32(), (2, 2))
    storage = pa.array([[1, 2, 3, 4], None, [5, float("nan"), 7, 8]], kind.storage_type)
    tensors = pa.record_batch({"t": pa.ExtensionArray.from_storage(kind, storage)})
    lines = flare("cat", "x", cat=cat(tensors)).out.splitlines()
    assert [json.loads(line)["t"] for line in lines] == [
        [[1, 2], [3, 4]],
        None,
        [[5, None], [7, 8]],
    ]
    ran = flare("cat", "x", "--to", "tsv", cat=cat(tensors.slice(0, 1)))
    assert ran.out == "t\n[[1.0, 2.0], [3.0, 4.0]]\n"


def test_a_number_longer_than_python_reads_stays_text(flare):
    digits = "9" * 5000
    ran = flare("cat", "x", cat=cat(batch(meta=([f"[{digits}, 7]"], TEXT, "json"))))
    assert json.loads(ran.out) == {"meta": [digits, 7]}


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(st.characters()), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_printed_json_is_one_escaped_line_that_parses_to_the_same_value(value):
    text = json_text(json_value(value))
    assert json.loads(text) == value
    assert escape(text) == text


HOSTILE = "x\x1b]0;t\x07\x9b\u202e\r\n\ty,\"'[red]"


def test_control_characters_are_escaped_in_every_form_on_a_terminal(flare):
    rows = batch(**{"a\x1b[2J": ([HOSTILE], TEXT, "str")})
    lines = flare("cat", "x", cat=cat(rows)).out
    assert json.loads(lines) == {"a\x1b[2J": HOSTILE}
    outputs = [
        flare("cat", "x", "--to", form, terminal=form != "table", cat=cat(rows)).out
        for form in ("csv", "tsv", "table")
    ]
    outputs.append(
        re.sub(
            "\x1b\\[[0-9;]*m",
            "",
            flare("cat", "x", "--to", "table", terminal=True, cat=cat(rows)).out,
        )
    )  # colours of rich
    for text in (lines, *outputs):
        assert not any(
            (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 or c == "\u202e" for c in text
        )
    quoted = 'a\\x1b[2J\n"x\\x1b]0;t\\x07\\x9b\\u202e\\r\\n\\ty,""\'[red]"\n'
    assert outputs[0] == outputs[1] == quoted
    assert outputs[2] == "a\\x1b[2J\nx\\x1b]0;t\\x07\\x9b\\u202e\\r\\n\\ty,\"'[red]\n"
    assert "[red]" in outputs[3]


@pytest.mark.parametrize(("form", "header"), [("csv", "a,b"), ("tsv", "a\tb"), ("table", "a\tb")])
def test_a_result_without_rows_has_a_header(flare, form, header):
    rows = batch(a=([], TEXT, "str"), b=([], TEXT, "str"))
    assert flare("cat", "x", "--to", form, cat=cat(rows)).out == f"{header}\n"


def test_control_characters_in_csv_are_unchanged_in_a_pipe(flare):
    rows = batch(**{"a\x1b[2J": ([HOSTILE], TEXT, "str")})
    for form, delimiter in SEPARATED:
        text = flare("cat", "x", "--to", form, cat=cat(rows)).out
        assert list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter)) == [
            ["a\x1b[2J"],
            [HOSTILE],
        ]


VALUES = st.one_of(
    st.text(st.sampled_from("ab \t\r\n\\n\"',;|=+-@\x00\x1b\x85\u2028\ufeff\u202e#é"), max_size=6),
    st.text(max_size=5),
    st.sampled_from(
        ["", " ", "\t", "\n", "\\n", "\r", "\r\n", "NA", "null", "nan", "\ufeff", "1e5", "007"]
    ),
)


@pytest.mark.parametrize(("form", "delimiter"), SEPARATED)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    rows=st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=5),
    columns=st.sampled_from([1, 2]),
)
@example(rows=[("\n", "a"), ("\\n", "b")], columns=2)
@example(rows=[("", ""), (" ", "\t")], columns=1)
def test_csv_and_tsv_are_read_back_as_the_same_values(flare, form, delimiter, rows, columns):
    names = ["first", "second"][:columns]
    wanted = [list(row[:columns]) for row in rows]
    values = zip(*wanted, strict=True)
    made = batch(
        **{name: (list(column), TEXT, "str") for name, column in zip(names, values, strict=True)}
    )
    data = flare("cat", "x", "--to", form, cat=cat(made.slice(0, 1), made.slice(1))).data
    text = io.TextIOWrapper(io.BytesIO(data), encoding="utf-8", newline="")
    assert list(csv.reader(text, delimiter=delimiter)) == [names, *wanted]
    if b"\0" not in data:  # pandas before 3.1 ends a value at NUL
        frame = pandas.read_csv(io.BytesIO(data), sep=delimiter, dtype=str, keep_default_na=False)
        assert (list(frame.columns), frame.values.tolist()) == (names, wanted)


def test_nan_and_infinity_are_numbers_in_csv(flare):
    values = [float("nan"), float("inf"), float("-inf"), None, -0.0, 1e22]
    rows = batch(
        a=(values, pa.float64(), "float64"),
        b=(["NaN", "1e999", "-1e999", None, "-0.0", "1e22"], TEXT, "str_float"),
    )
    text = flare("cat", "x", "--to", "csv", cat=cat(rows)).out
    assert text.splitlines()[1:] == [
        "nan,nan",
        "inf,inf",
        "-inf,-inf",
        ",",
        "-0.0,-0.0",
        "1e+22,1e+22",
    ]


@pytest.mark.parametrize(("form", "delimiter"), SEPARATED)
def test_text_that_looks_like_a_formula_is_prefixed_with_csv_safe(flare, form, delimiter):
    texts = ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "＝1", "a=1", "", " =1", "'=1"]
    rows = batch(
        **{
            "=name": (texts, TEXT, "str"),
            "number": (list(range(-6, 6)), pa.int64(), "int"),
            "json": (['"=1"'] * 12, TEXT, "json"),
        }
    )
    text = flare("cat", "x", "--to", form, "--csv-safe", cat=cat(rows)).out
    found = list(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter))
    assert found[0] == ["'=name", "number", "json"]
    assert [row[0] for row in found[1:]] == [
        *("'" + one for one in texts[:8]),
        *texts[8:],
    ]
    assert [row[1] for row in found[1:]] == [str(i) for i in range(-6, 6)]
    assert {row[2] for row in found[1:]} == {"'=1"}
    plain = flare("cat", "x", "--to", form, cat=cat(rows)).out
    found = list(csv.reader(io.StringIO(plain, newline=""), delimiter=delimiter))
    assert [row[0] for row in found] == ["=name", *texts]


@pytest.mark.parametrize("form", ["jsonl", "table", "arrow", "parquet"])
def test_csv_safe_is_refused_for_other_forms(flare, form):
    ran = flare("cat", "x", "--to", form, "--csv-safe", cat=cat(SAMPLE))
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == "error: --csv-safe has an effect only on CSV and TSV\nhint: Add --to csv.\n"


def test_cells_of_csv_have_the_form_of_json_values(flare):
    ran = flare("cat", "x", "--to", "csv", cat=cat(SAMPLE, SAMPLE))
    header, first, *rest = list(csv.reader(io.StringIO(ran.out)))
    assert header == ["id", "n", "score", "image", "object", "meta", "digits"]
    assert first[:3] == ["a", "1", "0.1"]
    assert json.loads(first[3]) == {"bytes": 2, "sha256": hashlib.sha256(b"\xff\xd8").hexdigest()}
    assert first[4:] == [
        "<pickle, 4 B, not decoded>",
        '{"k": [1, null, null]}',
        "12345678901234567890",
    ]
    assert len(rest) == 3
    assert rest[0][2] == "nan"


def read(form, data):
    return (
        pa.ipc.open_stream(data).read_all() if form == "arrow" else pq.read_table(io.BytesIO(data))
    )


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_arrow_and_parquet_contain_the_batches_unchanged(flare, form):
    ran = flare("cat", "x", "--to", form, cat=cat(SAMPLE, SAMPLE))
    assert (ran.code, ran.err) == (0, "")
    table, wanted = read(form, ran.data), pa.Table.from_batches([SAMPLE, SAMPLE])
    assert repr(table["score"].to_pylist()) == "[0.1, nan, 0.1, nan]"
    assert table.drop_columns("score").equals(wanted.drop_columns("score"))
    assert table.schema.field("image").metadata == {b"encoding": b"jpeg"}


@pytest.mark.parametrize("form", ["arrow", "parquet"])
def test_an_empty_result_is_a_valid_stream(flare, form):
    ran = flare("cat", "x", "--to", form, cat=cat(SAMPLE.slice(0, 0)))
    table = read(form, ran.data)
    assert (table.num_rows, table.column_names) == (0, SAMPLE.schema.names)


@pytest.mark.parametrize(
    ("column", "wanted"),
    [
        ("id", b"ab"),
        ("n", np.array([1, 2**63], "<u8").tobytes()),
        ("image", b"\xff\xd8"),
        ("object", b"\x80\x04N." + b"x" * 1234),
        ("digits", b"12345678901234567890-0"),
    ],
)
def test_raw_prints_only_the_stored_bytes_of_one_column(flare, column, wanted):
    asked = {}

    def command(*args, **options):
        asked.update(options)
        return iter([SAMPLE.select(options["columns"])])

    assert flare("cat", "x", "--raw", column, cat=command).data == wanted
    assert asked["columns"] == [column]


@pytest.mark.parametrize(
    ("args", "what"),
    [
        (["--raw", "image"], "--raw image"),
        (["--to", "arrow"], "--to arrow"),
        (["--to", "parquet"], "--to parquet"),
    ],
)
def test_binary_output_to_a_terminal_is_refused_before_reading(flare, args, what):
    ran = flare("cat", "x", *args, terminal=True)
    assert (ran.code, ran.out) == (2, "")
    assert "is not printed to a terminal" in ran.err
    assert ran.err.replace("\x1b[31m", "").replace("\x1b[36m", "").replace("\x1b[0m", "") == (
        f"error: {what} is binary and is not printed to a terminal\nhint: Redirect the output to a file or a pipe.\n"
    )


class _Boom:
    def __reduce__(self):
        return (int, ("no number",))


def test_pickles_are_decoded_only_with_allow_pickle(flare):
    data = [pickle.dumps({"a": [1, float("nan")], 2: b"\xff"}), pickle.dumps(_Boom())]
    schema = pa.schema([pa.field("p", pa.large_binary(), metadata={"encoding": "pkl"})])
    sizes = [len(one) for one in data]
    first = pa.record_batch([pa.array(data[:1], pa.large_binary())], schema=schema)
    assert (
        flare("cat", "d", cat=lambda *_, **__: iter([first])).out
        == f'{{"p": "<pickle, {sizes[0]} B, not decoded>"}}\n'
    )
    sha = "a8100ae6aa1940d0b663bb31cd466142ebbdbd5187131b92d93818987832eb89"
    told = flare("cat", "d", "--allow-pickle", cat=lambda *_, **__: iter([first]))
    assert (told.code, told.out, told.err) == (
        0,
        f'{{"p": {{"a": [1, null], "2": {{"bytes": 1, "sha256": "{sha}"}}}}}}\n',
        "",
    )
    second = pa.record_batch([pa.array(data[1:], pa.large_binary())], schema=schema)
    told = flare("cat", "d", "--allow-pickle", cat=lambda *_, **__: iter([second]))
    error = f"cannot decode a pickle: not a valid pkl value ({sizes[1]} B)"
    assert (told.code, told.out, told.err) == (
        4,
        "",
        f"error: {error}\nhint: Omit --allow-pickle to print only the size of the pickle.\n",
    )


@pytest.mark.parametrize("width", [20, 80])
def test_a_table_wider_than_the_terminal_shows_all_columns(flare, width):
    rows = batch(**{f"c{i}": ([10 + i], pa.int64(), "int") for i in range(40)})
    told = flare(
        "cat",
        "x",
        "--to",
        "table",
        terminal=True,
        environment={"COLUMNS": str(width), "NO_COLOR": "1"},
        cat=cat(rows),
    ).out
    words = [word for word in told.split() if word.isalnum()]
    assert [word for word in words if word[0] == "c"] == [f"c{i}" for i in range(40)]
    assert [word for word in words if word[0] != "c"] == [str(10 + i) for i in range(40)]
    assert max(map(len, told.splitlines())) <= width


def test_a_table_has_rules_only_on_a_terminal(flare):
    rows = batch(id=(["a", "b"], TEXT, "str"), n=([1, 2], pa.int64(), "int"))
    assert flare("cat", "x", "--to", "table", cat=cat(rows)).out == "id\tn\na\t1\nb\t2\n"
    lines = flare("cat", "x", "--to", "table", terminal=True, cat=cat(rows)).out.splitlines()
    assert any("─" in line or "━" in line for line in lines)


@pytest.mark.parametrize(
    ("value", "text"),
    [(float("inf"), "inf"), (float("nan"), "nan"), (1.5, "1.5"), (None, ""), ("a\x1b", "a\\x1b")],
)
def test_a_cell_shows_nan_and_infinity(value, text):
    assert cell(value) == text
