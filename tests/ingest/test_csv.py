"""CSV and TSV, compared with the csv module and the rules of pandas; then invalid tables."""

import csv
import io

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FormatError
from flarecli.formats.tables import decompress, text_records
from flarecli.formats.tables.decompress import TextFile
from flarecli.formats.tables.dialect import Dialect
from flarecli.formats.tables.text_records import pieces, records
from flarecli.ingest import open_index
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.ingest.samples import rows_of
from tests.properties import examples

QUOTES = 'Put the whole field in quotes, and double each quote inside it: "5"" pipe".'
UTF8 = "Save the file as UTF-8 text."
ENCODING = f"{UTF8} Otherwise, set its encoding, such as --csv encoding=latin-1."
HEADER = "Rename one of the columns, or use --csv header=no if the first line contains values."
FIELD = st.text(st.sampled_from('a1",\t \r\né\U0001f600'), max_size=6)


def index(tmp_path, data: bytes | str, name: str = "x.csv", **options):
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return open_index(str(path), **options)


def error_of(tmp_path, data: bytes | str, name: str = "x.csv") -> tuple[str, str]:
    with pytest.raises(FormatError) as caught:
        list(index(tmp_path, data, name).batches())
    return str(caught.value).removeprefix(f"{tmp_path}/"), caught.value.hint


def test_columns_of_numbers_are_numbers_and_other_columns_are_text(tmp_path):
    found = index(
        tmp_path, "id,url,score,ok,when\n1,http://h/a,0.5,true,2024-01-01\n-2,,1e3,False,\n,x,,,y\n"
    )
    assert {field.name: str(field.type) for field in found.schema} == {
        "id": "int64",
        "url": "string",
        "score": "double",
        "ok": "bool",
        "when": "string",
    }
    assert found.rows is None
    assert rows_of(found) == [
        {"id": 1, "url": "http://h/a", "score": 0.5, "ok": True, "when": "2024-01-01"},
        {"id": -2, "url": "", "score": 1000.0, "ok": False, "when": ""},
        {"id": None, "url": "x", "score": None, "ok": None, "when": "y"},
    ]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-9223372036854775808"], "int64"),
        (["1", "9223372036854775808"], "string"),
        (["1.5", "12345678901234567"], "string"),
        (["007"], "string"),
        (["00.5"], "string"),
        (["0.5", "-0.25", ".5", "1.", "1e5"], "double"),
        (["nan", "-inf", "1"], "double"),
        (["0x10"], "string"),
        (["-0"], "double"),
        (["+5"], "double"),
        (["1", "true"], "string"),
        (["true", "FALSE"], "bool"),
        (["NA", "1"], "string"),
        ([""], "string"),
        (["1_000"], "string"),
        ([" 1"], "string"),
        (["٣"], "string"),
    ],
)
def test_a_value_is_a_number_only_if_its_text_is_restored(tmp_path, values, kind):
    found = index(tmp_path, "v,x\n" + "".join(f"{value},x\n" for value in values))
    assert str(found.schema.field("v").type) == kind
    if kind == "string":
        assert [row["v"] for row in rows_of(found)] == values


def test_columns_requested_as_text_are_text(tmp_path):
    found = index(tmp_path, "id,n\n1,2\n", text=("id", "elsewhere"))
    assert rows_of(found) == [{"id": "1", "n": 2}]


def test_only_requested_columns_are_returned_in_the_requested_order(tmp_path):
    found = index(tmp_path, "a,b,c\n1,2,3\n")
    (batch,) = found.batches(["c", "a"])
    assert (batch.schema.names, batch.to_pylist()) == (["c", "a"], [{"c": 3, "a": 1}])


def test_tabs_separate_in_tsv_and_commas_do_not(tmp_path):
    assert rows_of(index(tmp_path, 'a\tb\nx,y\t"1\t2"\n', "x.tsv")) == [{"a": "x,y", "b": "1\t2"}]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_all_line_ends_and_a_byte_order_mark_are_accepted(tmp_path, end, mark):
    assert rows_of(index(tmp_path, f'{mark}"a",b{end}1,"x{end}y"{end}{end}2,z')) == [
        {"a": 1, "b": f"x{end}y"},
        {"a": 2, "b": "z"},
    ]


@settings(max_examples=examples(100), deadline=None)
@given(
    st.data(),
    st.integers(1, 4),
    st.sampled_from([",", "\t"]),
    st.sampled_from([("\r\n", csv.QUOTE_MINIMAL), ("\r\n", csv.QUOTE_ALL), ("\n", csv.QUOTE_ALL)]),
)
def test_rows_that_the_csv_module_writes_are_read_as_the_csv_module_reads_them(
    tmp_path_factory, data, columns, delimiter, style
):
    rows = data.draw(
        st.lists(st.lists(FIELD, min_size=columns, max_size=columns), min_size=1, max_size=6)
    )
    out = io.StringIO()
    names = [f"c{i}" for i in range(columns)]
    csv.writer(out, delimiter=delimiter, lineterminator=style[0], quoting=style[1]).writerows(
        [names, *rows]
    )
    found = index(
        tmp_path_factory.mktemp("csv"),
        out.getvalue(),
        "x.csv" if delimiter == "," else "x.tsv",
        text=names,
    )
    assert [list(row.values()) for row in rows_of(found)] == rows


@settings(max_examples=examples(400), deadline=None)
@given(st.text(st.sampled_from('a",\n\r '), max_size=30), st.integers(1, 9))
def test_pieces_are_whole_records_and_misplaced_quotes_are_refused(content, block):
    """The expected result is from a state machine for RFC 4180 that reads one character at a
    time.
    """
    state, line, stray, opened, ends = "start", 1, None, 0, {0}
    for i, c in enumerate(content):
        line += i > 0 and (content[i - 1] == "\n" or (content[i - 1] == "\r" and c != "\n"))
        if state == "quoted":
            state = "closed" if c == '"' else "quoted"
        elif c in ",\n\r":
            state = "start"
            if c == "\n" or (c == "\r" and content[i + 1 : i + 2] != "\n"):
                ends.add(i + 1)
        elif c == '"' and state in ("start", "closed"):
            opened, state = (line if state == "start" else opened), "quoted"
        elif state == "closed" or c == '"':
            stray = line
            break
        else:
            state = "plain"
    wanted = f"line {opened}: unclosed quote" if state == "quoted" else None
    wanted = f"line {stray}: quote inside a field" if stray is not None else wanted
    found, caught = "", None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompress, "BLOCK_BYTES", block)
        try:
            for piece in pieces(TextFile(Location(MemoryStore({"x": content.encode()}), "x")), ","):
                before = found.replace("\r\n", "\n").replace("\r", "\n")
                assert (len(found) in ends, piece.line) == (True, 1 + before.count("\n"))
                found += piece.data.decode()
        except FormatError as error:
            caught = error.message
    assert caught == wanted
    assert caught or found == content


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(FIELD, st.booleans()), min_size=1, max_size=8))
def test_errors_name_the_line_where_a_record_starts(fields):
    content, starts, lines = "", [], 0
    for field, blank in fields:
        if blank:
            content, lines = content + "\n", lines + 1
        starts.append(lines)
        record = '"' + field.replace('"', '""') + '"\n'
        content, lines = content + record, lines + len(io.StringIO(record, newline="").readlines())
    assert [before for before, _, _ in records(content.encode())] == starts


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (b"", "file is empty", ""),
        (b"\n\n", "file has no header with column names", ""),
        (b"a,b\n", "table has no rows", ""),
        (b"a,b,a\n1,2,3\n", "duplicate column 'a'", HEADER),
        (b"sep=;\r\n", "file has no header with column names", ""),
        (
            b"sep=;\r\na;b\r\n1;2\r\n3\r\n",
            "line 4 has 1 field; the header has 2",
            "Quote fields that contain a separator or a newline.",
        ),
        (
            b"a,b,c\n1,2,3\n4,5\n",
            "line 3 has 2 fields; the header has 3",
            "Quote fields that contain a separator or a newline.",
        ),
        (
            b'a,b\n\n"x\ny",1\n\n2\n',
            "line 6 has 1 field; the header has 2",
            "Quote fields that contain a separator or a newline.",
        ),
        (
            b"# exported by a tool\nid,name\n1,a\n",
            "line 2 has 2 fields; the header has 1",
            "If the first line is a comment, remove it; otherwise, quote fields that contain a "
            "separator or a newline.",
        ),
        (b"a,b\n1,2\n3,caf\xe9\n", "line 3: byte 13 is not UTF-8", ENCODING),
        (b"\xfea,b\n1,2\n", "line 1: byte 0 is not UTF-8", ENCODING),
        (b"a,b\n1,2\0\n", "line 2: byte 7 is NUL", UTF8),
        (b"a,b\n1,caf\xc3", "line 2: byte 9 is not UTF-8", ENCODING),
        (b'a,b\n1,5" pipe\n', "line 2: quote inside a field", QUOTES),
        (b'a,b\n"x" ,1\n', "line 2: quote inside a field", QUOTES),
        (b'a,b\n1,"x\n2,y\n3,"z"\n', "line 4: quote inside a field", QUOTES),
        (b'a,b\n1,2\n1,"x\n2,y\n', "line 3: unclosed quote", QUOTES),
    ],
)
def test_an_invalid_table_is_reported_with_its_line(tmp_path, data, message, hint):
    assert error_of(tmp_path, data) == (f"x.csv: {message}", hint)


@pytest.mark.parametrize(
    ("data", "settings"),
    [
        (b"sep=;\r\nname;price\r\na,b;1,5\r\nc;2\r\n", ()),
        (b'\xef\xbb\xbf"SEP=;"\nname;price\n"a,b";1,5\nc;2\n', ()),
        (b"sep=\t\nname\tprice\na,b\t1,5\nc\t2\n", ()),
        (b"sep=|\rname|price\ra,b|1,5\rc|2\r", ()),
        (b"sep=\nname;price\na,b;1,5\nc;2\n", ()),
        (b"sep=,\nname;price\na,b;1,5\nc;2\n", ("delimiter=;",)),
        ("sep=;\r\nname;price\r\na,b;1,5\r\nc;2\r\n".encode("utf-16"), ()),
    ],
)
def test_a_first_line_with_the_delimiter_is_not_a_row(tmp_path, data, settings):
    found = index(tmp_path, data, dialect=Dialect.parse(settings))
    assert [row for batch in found.batches() for row in batch.to_pylist()] == [
        {"name": "a,b", "price": "1,5"},
        {"name": "c", "price": "2"},
    ]


def test_a_first_line_with_the_delimiter_is_a_row_of_a_table_without_header(tmp_path):
    found = index(tmp_path, b"sep=;\n1;2\n", dialect=Dialect.parse(["header=no", "delimiter=|"]))
    assert [row for batch in found.batches() for row in batch.to_pylist()] == [
        {"column_0": "sep=;"},
        {"column_0": "1;2"},
    ]


def test_rows_and_lines_in_errors_are_correct_after_the_first_block(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 4096)
    monkeypatch.setattr(text_records, "MAX_RECORD_BYTES", 5000)
    rows = b"".join(b"%d,%d.5,text\n" % (n, n) for n in range(10_000))
    head = b"id,score,note\n"
    for damage, message, hint in [
        (
            b"7,1.5\n",
            "line 10002 has 2 fields; the header has 3",
            "Quote fields that contain a separator or a newline.",
        ),
        (
            b"x,1.5,y\n",
            "line 10002: column 'id' contains 'x'; expected integers",
            "Use --encode id=str to read the column as text.",
        ),
        (
            b"007,1.5,y\n",
            "line 10002: column 'id' contains '007'; expected integers",
            "Use --encode id=str to read the column as text.",
        ),
        (
            b"7,fast,y\n",
            "line 10002: column 'score' contains 'fast'; expected numbers",
            "Use --encode score=str to read the column as text.",
        ),
        (b'7,1,"y\n', "line 10002: unclosed quote", QUOTES),
        (b"7,1,\xff\n", f"line 10002: byte {len(head + rows) + 4} is not UTF-8", ENCODING),
        (
            b"7,1," + b"y" * 20000 + b"\n",
            "line 10002: a record is longer than 5.0 kB",
            "Check for an unclosed quote.",
        ),
    ]:
        assert error_of(tmp_path, head + rows + damage + b"8,1.5,z\n") == (
            f"x.csv: {message}",
            hint,
        )


def test_a_record_larger_than_a_block_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    rows = [{"a": "x" * size, "b": "y\n" * size} for size in (1, 5000, 3, 700)]
    assert (
        rows_of(index(tmp_path, "a,b\n" + "".join(f'{row["a"]},"{row["b"]}"\n' for row in rows)))
        == rows
    )


def test_a_piece_is_read_only_when_its_rows_are_requested(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 10_000)
    found = index(tmp_path, "n\n" + "".join(f"{n}\n" for n in range(100_000)))
    batches = found.batches()
    next(batches)
    (tmp_path / "x.csv").write_text("n\n")
    with pytest.raises(FormatError) as caught:
        list(batches)
    assert str(caught.value) == f"{tmp_path}/x.csv: ends at byte 2; expected at least 12500 bytes"


def test_all_blocks_are_read_in_batches_of_bounded_length(tmp_path, monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1 << 17)
    data = "id,text\n" + "".join(f'{n},"a\n{n}"\n' for n in range(30_000))
    batches = list(index(tmp_path, data).batches())
    assert max(batch.num_rows for batch in batches) <= 8192
    assert [row for batch in batches for row in batch.to_pylist()] == [
        {"id": n, "text": f"a\n{n}"} for n in range(30_000)
    ]


@pytest.mark.parametrize("name", ["x.csv", "x.tsv"])
def test_cells_of_200_kilobytes_are_read_completely(tmp_path, name):
    cells = ["x" * 200_000, "é" * 100_000, 'say ""twice""\n' * 15_000, "last"]
    separator = "," if name == "x.csv" else "\t"
    data = f"id{separator}text\n" + "".join(
        f'{n}{separator}"{cell}"\n' for n, cell in enumerate(cells)
    )
    assert rows_of(index(tmp_path, data, name)) == [
        {"id": n, "text": cell.replace('""', '"')} for n, cell in enumerate(cells)
    ]


def test_a_header_of_more_than_a_megabyte_is_read(tmp_path):
    names = [f"{n:04000}" for n in range(300)]
    (row,) = rows_of(index(tmp_path, ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n"))
    assert row == dict.fromkeys(names, 1)


def test_a_block_whose_line_ends_are_all_quoted_is_processed_quickly():
    """One record has a million line ends; searching backwards for each of them would take
    minutes.
    """
    data = b"a\n" + b'"\n",' * 1_000_000
    quotes = np.flatnonzero(np.frombuffer(data, np.uint8) == ord('"'))
    assert text_records._end_of_records(data, quotes) == 2
    assert text_records._end_of_records(data[2:], quotes - 2) == 0
    assert text_records._end_of_records(data.replace(b"\n", b"\r"), quotes) == 2
