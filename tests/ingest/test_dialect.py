"""Dialects of CSV: the csv module writes them, and every value is read back."""

import codecs
import csv
import gzip
import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.formats.tables.csv import Delimited
from flarecli.formats.tables.decompress import TextFile
from flarecli.formats.tables.dialect import DELIMITERS, Recoded, detect_delimiter
from flarecli.ingest import Dialect, open_index
from flarecli.storage import locate
from tests.properties import examples

TEXT = st.text(st.sampled_from("aé \"'.-"), min_size=1, max_size=5)


def read(path, *settings):
    found = open_index(str(path), dialect=Dialect.parse(settings))
    return [row for batch in found.batches() for row in batch.to_pylist()]


def notes(path, *settings):
    return open_index(str(path), dialect=Dialect.parse(settings)).notes


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.lists(st.tuples(TEXT, TEXT, TEXT), min_size=1, max_size=5),
    kind=st.sampled_from(
        [
            *((one, "csv") for one in DELIMITERS),
            ("\t", "tsv"),
            ("\t", "tab"),
            ("\t", "txt"),
            ("|", "psv"),
        ]
    ),
    encoding=st.sampled_from(["utf-8", "utf-8-sig", "utf-16"]),
    newline=st.sampled_from(["\n", "\r\n"]),
)
def test_a_file_of_the_csv_module_is_read_without_options(
    tmp_path_factory, rows, kind, encoding, newline
):
    delimiter, suffix = kind
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, lineterminator=newline)
    writer.writerows([("one", "two", "three"), *rows])
    path = tmp_path_factory.mktemp("dialect") / f"x.{suffix}"
    path.write_bytes(text.getvalue().encode(encoding))
    assert [tuple(row.values()) for row in read(path)] == rows


@settings(max_examples=examples(100), deadline=None)
@given(
    rows=st.lists(st.tuples(TEXT, TEXT), min_size=1, max_size=5),
    delimiter=st.sampled_from([*DELIMITERS, " ", "#", ":"]),
    quote=st.sampled_from("\"'"),
    encoding=st.sampled_from(["latin-1", "cp1252", "utf-16-be", "utf-8"]),
)
def test_a_file_is_read_by_its_dialect(tmp_path_factory, rows, delimiter, quote, encoding):
    text = io.StringIO()
    writer = csv.writer(text, delimiter=delimiter, quotechar=quote, lineterminator="\n")
    writer.writerows(rows)
    path = tmp_path_factory.mktemp("dialect") / "x.csv"
    path.write_bytes(text.getvalue().encode(encoding))
    parsed = [
        f"delimiter={delimiter}",
        f"quote={quote}",
        f"encoding={encoding}",
        "header=no",
    ]
    found = read(path, *parsed)
    assert [tuple(row) for row in found] == [("column_0", "column_1")] * len(rows)
    assert [tuple(map(str, row.values())) for row in found] == rows


@settings(max_examples=examples(200), deadline=None)
@given(st.binary(max_size=200), st.sampled_from(["", '"', "'"]), st.sampled_from(["", *DELIMITERS]))
def test_any_bytes_have_a_delimiter_or_the_default(head, quote, default):
    assert detect_delimiter(head, quote, default) in (default, *DELIMITERS)


def test_a_delimiter_that_occurs_once_in_each_record_wins(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('name;price, EUR\n"a;b";1\nc;2\n')
    assert read(path) == [{"name": "a;b", "price, EUR": 1}, {"name": "c", "price, EUR": 2}]


def test_a_ragged_record_is_an_error_of_the_delimiter_by_suffix(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a,b\n1,2\n3\n")
    with pytest.raises(FormatError) as caught:
        read(path)
    assert caught.value.message == "line 3 has 1 field; the header has 2"


def test_fields_are_not_quoted_with_quote_no(tmp_path):
    path = tmp_path / "x.tsv"
    path.write_text('height\tname\n5" 3\tx"y\n')
    assert read(path, "quote=no") == [{"height": '5" 3', "name": 'x"y'}]


def test_nulls_are_null_in_every_column(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,t,f\n1,NA,1.5\nNA,x,-\n,,2\n")
    assert read(path, "null=NA", "null=-") == [
        {"n": 1, "t": None, "f": 1.5},
        {"n": None, "t": "x", "f": None},
        {"n": None, "t": "", "f": 2.0},
    ]


def test_null_texts_of_other_programs_are_null_or_named_in_a_note(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("n,b,t,only\n1,true,NA,NA\nNA,None,x,NA\n#N/A,,NA,NA\n")
    assert [row["n"] for row in read(path)] == ["1", "NA", "#N/A"]
    assert notes(path) == (
        "column 'n' contains 'NA' and '#N/A', and is read as text; "
        "use --csv null=NA --csv 'null=#N/A' to read them as null",
        "column 'b' contains 'None', and is read as text; use --csv null=None to read it as null",
    )
    assert notes(path, "null=NA", "null=#N/A", "null=None") == ()
    assert read(path, "null=NA", "null=#N/A", "null=None") == [
        {"n": 1, "b": True, "t": None, "only": None},
        {"n": None, "b": None, "t": "x", "only": None},
        {"n": None, "b": None, "t": None, "only": None},
    ]


def test_a_space_at_the_end_of_a_name_is_named_in_a_note(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a, b,c d\n1, 2,3\n")
    assert read(path) == [{"a": 1, " b": " 2", "c d": 3}]
    assert notes(path) == ("the name of column ' b' begins or ends with a space",)


def test_decimal_commas_are_numbers_or_named_in_a_note(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a;b;c\n1,5;1;\n-0,25;2;\n;3;\n")
    assert [row["a"] for row in read(path)] == ["1,5", "-0,25", ""]
    assert notes(path) == (
        "column 'a' has numbers with decimal commas, which are read as text; "
        "use --csv decimal=, to read them as numbers",
    )
    assert [row["a"] for row in read(path, "decimal=,")] == [1.5, -0.25, None]
    assert notes(path, "decimal=,") == ()


def test_a_number_with_a_point_is_text_where_the_decimal_sign_is_a_comma(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a;b\n1.234,5;1\n2,5;2\n")
    assert [row["a"] for row in read(path, "decimal=,")] == ["1.234,5", "2,5"]


def test_a_text_file_is_a_table_or_a_list(tmp_path):
    (tmp_path / "table.csv").write_text("a\n1\n")
    (tmp_path / "list.txt").write_text("table.csv\ntable.csv\n")
    (tmp_path / "table.txt").write_text("a\tb\n1\t2\n")
    assert read(tmp_path / "list.txt") == [{"a": 1}, {"a": 1}]
    assert read(tmp_path / "table.txt") == [{"a": 1, "b": 2}]


@pytest.mark.parametrize("line", ["./a,b.csv", "a,b.csv", "{a,c},b.csv", "a,?.csv"])
def test_a_list_of_addresses_with_commas_is_a_list(tmp_path, line):
    for name in ("a,b.csv", "c,b.csv"):
        (tmp_path / name).write_text("a\n1\n")
    (tmp_path / "list.txt").write_text(f"{line}\n{line}\n")
    assert {tuple(row) for row in read(tmp_path / "list.txt")} == {("a",)}


@pytest.mark.parametrize("suffix", ["tsv", "tab", "psv"])
def test_one_column_with_commas_is_one_column(tmp_path, suffix):
    path = tmp_path / f"x.{suffix}"
    path.write_text("note, long\nhello, world\n")
    assert read(path) == [{"note, long": "hello, world"}]


def test_bytes_of_another_encoding_name_the_option(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("a,b\n1,é\n".encode("latin-1"))
    with pytest.raises(FormatError) as caught:
        read(path)
    assert "--csv encoding=latin-1" in caught.value.hint
    assert read(path, "encoding=latin-1") == [{"a": 1, "b": "é"}]
    path.write_bytes(codecs.BOM_UTF16_LE + "a,b\n".encode("utf-16-le") + b"\x00\xd8,\x00")
    with pytest.raises(FormatError) as caught:
        read(path)
    assert caught.value.message == "invalid utf-16-le near byte 10"


def test_the_lines_of_errors_count_in_a_file_without_header(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("1,2\n3,4\n5\n")
    with pytest.raises(FormatError) as caught:
        read(path, "header=no")
    assert caught.value.message == "line 3 has 1 field; the first line has 2"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("delimiter", "--csv: expected KEY=VALUE, got 'delimiter'"),
        ("delimeter=;", "--csv: unknown key 'delimeter'"),
        ("delimiter=ab", "--csv delimiter: expected one ASCII character, got 'ab'"),
        ("delimiter=é", "--csv delimiter: expected one ASCII character, got 'é'"),
        ("delimiter=\n", r"--csv delimiter: expected one ASCII character, got '\n'"),
        ("quote=ab", "--csv quote: expected one ASCII character, got 'ab'"),
        ("header=maybe", "--csv header: expected yes or no, got 'maybe'"),
        ("decimal=;", "--csv decimal: expected . or ,, got ';'"),
        ("encoding=klingon", "--csv encoding: unknown encoding 'klingon'"),
        ("encoding=rot13", "--csv encoding: unknown encoding 'rot13'"),
        ("encoding=zlib", "--csv encoding: unknown encoding 'zlib'"),
    ],
)
def test_an_invalid_setting_is_refused(setting, message):
    with pytest.raises(UsageError) as caught:
        Dialect.parse([setting])
    assert caught.value.message == message


def test_a_decimal_sign_cannot_be_the_delimiter():
    with pytest.raises(UsageError) as caught:
        Dialect.parse(["delimiter=,", "decimal=,"])
    assert caught.value.message == "--csv: ',' is both the decimal sign and the delimiter"


def test_a_dialect_without_a_csv_file_is_refused(tmp_path):
    path = tmp_path / "x.jsonl"
    path.write_text('{"a": 1}\n')
    with pytest.raises(FlareError) as caught:
        read(path, "header=no")
    assert caught.value.message == "--csv: the source has no CSV or TSV file"


@pytest.mark.parametrize("values", [["1,000", "2,000"], ["-12,345", "999,999"]])
def test_thousands_separators_are_not_decimal_commas(tmp_path, values):
    path = tmp_path / "x.csv"
    path.write_text("a;b\n" + "".join(f"{value};1\n" for value in values))
    assert notes(path) == ()


def test_numbers_with_leading_zeros_stay_text_without_a_note_about_the_decimal_sign(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("a;b\n01,5;1\n02,5;2\n")
    assert notes(path, "decimal=,") == ()


def test_a_compressed_text_file_is_not_a_table(tmp_path):
    path = tmp_path / "x.txt.gz"
    path.write_bytes(gzip.compress(b"a.parquet\nb.parquet\n"))
    with pytest.raises(UsageError) as caught:
        open_index(str(path))
    assert caught.value.message == "unknown table suffix"


def test_the_quote_cannot_be_the_delimiter():
    with pytest.raises(UsageError) as caught:
        Dialect.parse(['delimiter="'])
    assert caught.value.message == "--csv: '\"' is both the quote and the delimiter"


def test_a_dialect_of_standard_input_without_csv_is_refused():
    with pytest.raises(UsageError) as caught:
        open_index("-", stdin=io.BytesIO(b'{"a": 1}\n'), dialect=Dialect.parse(["header=no"]))
    assert caught.value.message == "--csv: the source has no CSV or TSV file"


@pytest.mark.parametrize("kind", ["folder", "dataset"])
def test_a_dialect_of_a_folder_or_a_dataset_is_refused(tmp_path, kind):
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    flarecli.pack(tmp_path / "x.jsonl", tmp_path / "dataset")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "a.jpg").write_bytes(b"\xff\xd8\xff")
    with pytest.raises(UsageError) as caught:
        flarecli.pack(tmp_path / kind, tmp_path / "out", csv=["header=no"])
    assert caught.value.message == "--csv: the source has no CSV or TSV file"


def test_a_file_is_opened_once_for_detection_header_and_types(tmp_path):
    class Counted(TextFile):
        passes = 0

        def blocks(self):
            Counted.passes += 1
            return super().blocks()

    (tmp_path / "x.csv").write_text("a;b\n1;2\n")
    Delimited(Counted(locate(str(tmp_path / "x.csv"))), ",", ())
    assert Counted.passes == 3


@pytest.mark.parametrize("line", ["0,0,5", "1.5,-2,1.5", "7,7"])
def test_a_first_line_of_numbers_that_occur_twice_contains_values(tmp_path, line):
    path = tmp_path / "x.csv"
    path.write_text(f"{line}\n{line}\n")
    (one, two) = read(path)
    values = [float(value) for value in line.split(",")]
    assert one == two == {f"column_{i}": value for i, value in enumerate(values)}
    assert notes(path) == (
        f"{path}: the first line contains numbers, not names; "
        f"the columns are column_0 to column_{len(values) - 1}",
    )
    with pytest.raises(FormatError, match="duplicate column"):
        read(path, "header=yes")


@pytest.mark.parametrize("line", ["2019,2020", "a,a", "1,,", "1,1,x", "1e5,1e5"])
def test_any_other_first_line_contains_names(tmp_path, line):
    path = tmp_path / "x.csv"
    path.write_text(f"{line}\n{line}\n")
    if line == "2019,2020":
        assert read(path) == [{"2019": 2019, "2020": 2020}]
        return
    with pytest.raises(FormatError, match="duplicate column|has no name|empty"):
        read(path)


def test_an_empty_block_does_not_end_a_text():
    class Halves:
        location = None

        def blocks(self):
            data = "aé".encode("utf-16-le")
            yield from (data[:3], b"", data[3:])

    assert b"".join(Recoded(Halves(), "utf-16-le").blocks()).decode() == "aé"
