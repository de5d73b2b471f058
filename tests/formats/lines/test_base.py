"""JSON and XSV shards built byte by byte: limits of tables, lines and columns."""

import json
import struct
import tracemalloc

import numpy as np
import pyarrow as pa
import pytest

from flarecli import encodings
from flarecli.errors import FlareError, FormatError, UsageError, ValueFitError
from flarecli.formats import byte_ranges, find
from flarecli.formats.lines import base as lines
from flarecli.formats.mds import format as mds_format
from flarecli.model import Chunk, File, Settings, Shard
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore

json_shards = find("json")


def opened(form, config, rows, starts=None, listed=None, files=()):
    """Return a shard of lines, after a header if there is one."""
    config = {"format": form, "newline": "\n", **config}
    names = config.get("column_names")
    header = (
        b""
        if names is None
        else ((config.get("separator") or ",").join(names) + config["newline"]).encode()
    )
    data = header + b"".join(rows)
    starts = np.cumsum([len(header), *map(len, rows)]).tolist() if starts is None else starts
    table = struct.pack(f"<I{len(starts)}I", len(starts) - 1, *starts) + json.dumps(config).encode()
    store = MemoryStore({f"s.{form}": data, f"s.{form}.meta": table})
    beside = (Location(store, f"s.{form}.meta"),) if files else ()
    return find(form).open_shard(Chunk(Location(store, f"s.{form}"), listed, files, form, beside))


def csv(*names):
    return {"column_names": list(names), "column_encodings": ["str"] * len(names)}


def refusal(do):
    with pytest.raises(FlareError) as caught:
        do()
    return str(caught.value)


def peak(do):
    tracemalloc.start()
    try:
        do()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "xsv"])
def test_only_file_names_of_the_original_are_recognized(form):
    for name in (f"shard.00000.{form}", f"a/b/shard.00000.{form}.gz", f"shard.7.{form}.zstd"):
        assert find(form).sniff(name, b"")
    for name in (
        f"table.{form}",
        f"shard.d/table.{form}",
        f"x.shard.00000.{form}",
        f"shard.00000.{form}.meta",
        f"shard.00000.{form}.xz",
    ):
        assert not find(form).sniff(name, b"")


# -- the table


@pytest.mark.parametrize(
    ("starts", "message"),
    [
        ([3, 4, 6], "s.csv.meta: expected the first line at byte 2 of the data, got 3"),
        ([1, 4, 6], "s.csv.meta: expected the first line at byte 2 of the data, got 1"),
        ([2, 7, 6], "s.csv.meta: line 1 starts at byte 7 but ends at byte 6"),
        ([2, 4, 5], "s.csv: file is 6 bytes; its offset table requires 5"),
        ([2, 4, 7], "s.csv: file is 6 bytes; its offset table requires 7"),
    ],
)
def test_a_table_that_does_not_fit_is_refused(starts, message):
    assert refusal(lambda: opened("csv", csv("a"), [b"1\n", b"2\n"], starts)) == message


def test_a_row_count_that_differs_from_the_listing_is_refused():
    assert opened("csv", csv("a"), [b"1\n", b"2\n"], listed=2).rows == 2
    assert (
        refusal(lambda: opened("csv", csv("a"), [b"1\n", b"2\n"], listed=3))
        == "s.csv.meta: contains 2 samples; the playlist or index lists 3"
    )


def test_a_table_must_fit_the_file_exactly():
    store = MemoryStore({"s.csv": b"", "s.csv.meta": struct.pack("<I3I", 2, 0, 0, 0)[:-1]})
    assert (
        refusal(lambda: find("csv").open_shard(Chunk(Location(store, "s.csv"))))
        == "s.csv.meta: file is 15 bytes; its table of 2 samples needs 16"
    )


def test_a_config_of_the_maximum_size_is_read(monkeypatch):
    size = len(json.dumps({"format": "csv", "newline": "\n", **csv("a")}))
    files = (File("s.csv"), File("s.csv.meta", 8 + 4 + size))
    monkeypatch.setattr(mds_format, "MAX_CONFIG_BYTES", size)
    monkeypatch.setattr(lines, "MAX_CONFIG_BYTES", size)
    assert opened("csv", csv("a"), [b"1\n"], listed=1, files=files).rows == 1
    monkeypatch.setattr(mds_format, "MAX_CONFIG_BYTES", size - 1)
    assert (
        refusal(lambda: opened("csv", csv("a"), [b"1\n"]))
        == f"s.csv.meta: config is {size} bytes; the maximum is {size - 1}"
    )
    wanted = f"s.csv.meta: listed size is {12 + size} bytes, too large for a table of 0 samples"
    monkeypatch.setattr(lines, "MAX_CONFIG_BYTES", size + 3)
    assert refusal(lambda: opened("csv", csv("a"), [], listed=0, files=files)) == wanted


def test_a_config_without_columns_is_refused_by_csv():
    assert refusal(lambda: opened("csv", csv(), [])) == "s.csv.meta: config has no columns"


@pytest.mark.parametrize(
    ("starts", "runs"),
    [
        ([0], []),
        ([0, 9 << 20], [(0, 1)]),
        ([0, 3 << 20, 6 << 20, 9 << 20], [(0, 1), (1, 2), (2, 3)]),
        ([0, 2 << 20, 4 << 20, 6 << 20], [(0, 2), (2, 3)]),
        ([0, 2 << 20, (4 << 20) + 1, (6 << 20) + 1], [(0, 1), (1, 2), (2, 3)]),
        ([0] * 8193, [(0, 8192)]),
        ([0] * 8194, [(0, 8192), (8192, 8193)]),
    ],
)
def test_rows_are_checked_in_runs_of_at_most_four_megabytes_or_one_row(starts, runs):
    table = np.array(starts, np.uint32)
    shard = Shard(Chunk(Location(MemoryStore(), "x")), (), len(starts) - 1, {"starts": table})
    assert list(mds_format.runs_of_rows(shard)) == runs


# -- lines with separators


def ways(form, shard, row):
    """Return every method to read a row; the last one returns the first finding."""

    def checked():
        for one in find(form).verify_shard(shard):
            raise FormatError(one.message, where=one.where)

    return (
        lambda: find(form).read_rows(shard, [row]),
        lambda: find(form).read_batch(shard, 0, shard.rows),
        checked,
    )


@pytest.mark.parametrize("newline", ["\n\n", "\r\n", "|"])
@pytest.mark.parametrize("short", [b"", b"\n", b"x"])
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_line_shorter_than_its_newline_is_reported_with_its_row(newline, short, place):
    rows = [b"x" + newline.encode(), newline.encode()]
    rows.insert(place, short)
    for names in (["a"], ["a", "b"]):
        some = [row if row == short else b"," * (len(names) - 1) + row for row in rows]
        shard = opened("csv", {**csv(*names), "newline": newline}, some)
        for do in ways("csv", shard, place):
            assert refusal(do) == f"s.csv[{place}]: line does not end with {newline!r}"


@pytest.mark.parametrize("separator", ["|", "||", "a" * 32, "a" * 33, "ab" * 40])
def test_separators_may_have_any_length_and_overlap(separator):
    end = separator[:1]
    rows = [(f"{i}", "x" * (i % 3), "") for i in range(40)] + [
        ("", "", ""),
        ("y", f"{end}y", f"{end}z"),
    ][: 1 + (len(separator) > 1)]
    shard = opened(
        "xsv",
        {**csv("p", "q", "r"), "separator": separator},
        [(separator.join(row) + "\n").encode() for row in rows],
    )
    wanted = [dict(zip("pqr", (separator.join(row)).split(separator), strict=True)) for row in rows]
    assert [
        {name: value.decode() for name, value in row.items()}
        for row in find("xsv").read_rows(shard, range(len(rows)))
    ] == wanted
    assert find("xsv").read_batch(shard, 0, len(rows)).to_pylist() == wanted
    assert list(find("xsv").verify_shard(shard, values=True)) == []


def test_a_long_separator_is_not_searched_with_numpy(monkeypatch):
    """Searching `aaa…` in `aaa…` would compare all data once for each byte of the separator."""
    looked, real = [], lines.find_all
    monkeypatch.setattr(
        lines, "find_all", lambda data, text: looked.append(len(text)) or real(data, text)
    )
    long = "a" * 1000
    shard = opened(
        "xsv",
        {**csv("p", "q"), "separator": long},
        [b"a" * 20_000 + b"\n", b"x" + long.encode() + b"\n"],
    )
    for do in ways("xsv", shard, 0):
        assert refusal(do) == "s.xsv[0]: expected 2 values in the line, got 21"
    columns = find("xsv").arrange([encodings.column("p", "str"), encodings.column("q", "str")])
    batch = pa.record_batch(
        {
            "p": pa.array(["x", "y" * 3000], pa.large_string()),
            "q": pa.array(["", "b" * 10], pa.large_string()),
        }
    )
    for how in (Settings(separator=long), Settings(separator=";", newline=long)):
        assert find("xsv").row_sizes(columns, batch, how)[1].tolist() == [1002, 4011]
    bad = batch.set_column(0, "p", pa.array(["x", "y" + long + "y"], pa.large_string()))
    wanted = f"row 1: column 'p': value contains the separator {long!r}"
    assert refusal(lambda: find("xsv").row_sizes(columns, bad, Settings(separator=long))) == wanted
    assert refusal(
        lambda: find("xsv").row_sizes(columns, bad, Settings(newline=long))
    ) == wanted.replace("separator", "newline")
    assert max(looked) == 1


def test_a_line_of_separators_allocates_no_memory_for_values():
    shard = opened("csv", csv("a", "b"), [b"," * 4_000_000 + b"\n"])
    message = []
    assert (
        peak(lambda: message.append(refusal(lambda: find("csv").read_rows(shard, [0])))) < 20 << 20
    )
    assert message == ["s.csv[0]: expected 2 values in the line, got 4000001"]


# -- lines of JSON


def test_lines_shorter_than_their_column_names_allocate_no_memory():
    rows = [b""] * 2999 + [b'"' * 6000 + b"x" * 40_000]
    shard = opened("json", {"columns": {"k" * 30_000: "int"}, "newline": ""}, rows)
    found = []
    assert peak(lambda: found.extend(json_shards.verify_shard(shard))) < 64 << 20
    assert {(one.message) for one in found} == {"not valid JSON: expected '{' at character 0"}
    assert [one.where for one in found][:2] == ["s.json[0]", "s.json[1]"]


def test_an_object_without_columns_is_two_braces():
    shard = opened("json", {"columns": {}}, [b"{}\n", b" { }\n"])
    assert json_shards.read_rows(shard, [0, 1]) == [{}, {}]
    assert json_shards.read_batch(shard, 0, 2).num_rows == 2
    for line, message in (
        (b"}\n", "not valid JSON: expected '{' at character 0"),
        (b"{\n", "not valid JSON: expected a key at character 2"),
    ):
        shard = opened("json", {"columns": {}}, [b"{}\n", line])
        for do in ways("json", shard, 1):
            assert refusal(do) == f"s.json[1]: {message}"


def test_numbers_of_the_python_parser_are_accepted():
    values = [b"1", b"-0.5e+7", b"true", b"false", b"null", b"NaN", b"Infinity", b"-Infinity"]
    shard = opened(
        "json", {"columns": {"a": "float"}}, [b'{"a": %s}\n' % value for value in values]
    )
    assert [row["a"] for row in json_shards.read_rows(shard, range(len(values)))] == values
    assert list(json_shards.verify_shard(shard, values=True)) == []


@pytest.mark.parametrize("text", ["\\u12", "\\u12g4", "\\u123", "\\", "\\v", "\\u", "\x1f", "\x00"])
@pytest.mark.parametrize("newline", ["\n", ""])
def test_an_invalid_escape_is_reported_with_its_row_even_at_the_end_of_the_data(text, newline):
    line = f'{{"a": "x"}}{newline}'.encode()
    bad = f'{{"a": "{text}"}}{newline}'.encode()
    for rows in ([line, bad], [bad, line], [line, bad[: bad.index(b'"}')]]):
        shard = opened("json", {"columns": {"a": "str"}, "newline": newline}, rows)
        row = rows.index(line) ^ 1
        assert refusal(lambda shard=shard: json_shards.read_batch(shard, 0, 2)).startswith(
            f"s.json[{row}]: not valid JSON: "
        )
        assert [one.where for one in json_shards.verify_shard(shard)] == [f"s.json[{row}]"]
        assert json_shards.read_rows(shard, [row ^ 1]) == [{"a": b'"x"'}]


@pytest.mark.parametrize(
    "text", ["\\u12aF", "\\u0000", '\\"', "\\\\", "\\/\\b\\f\\n\\r\\t", '\\\\\\"', "\x7f", "é"]
)
def test_an_escape_at_the_end_of_the_data_is_accepted(text):
    value = f'"{text}"'.encode()
    shard = opened("json", {"columns": {"a": "str"}, "newline": ""}, [b'{"a": %s}' % value] * 3)
    assert [row["a"] for row in json_shards.read_rows(shard, [0, 2])] == [value] * 2
    assert json_shards.read_batch(shard, 0, 3).column("a").to_pylist() == [value.decode()] * 3


# -- writing


def batch_of(*texts):
    return pa.record_batch({"a": pa.array(texts, pa.large_string())})


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "xsv", "mds"])
@pytest.mark.parametrize("compression", [None, "gz", "snappy", "br"])
def test_a_shard_without_rows_is_written_and_read(form, compression):
    columns = find(form).arrange([encodings.column("a", "str")])
    for batches in ([], [batch_of()], [batch_of(), batch_of()]):
        chunk = find(form).write_shard(
            Location(MemoryStore(), ""), 0, columns, batches, Settings(compression)
        )
        shard = find(form).open_shard(chunk, columns)
        assert (shard.rows, chunk.rows, find(form).read_rows(shard, [])) == (0, 0, [])
        assert find(form).read_batch(shard, 0, 0).num_rows == 0
        assert list(find(form).verify_shard(shard, values=True)) == []
    assert find(form).row_sizes(columns, batch_of(), Settings())[1].tolist() == []


@pytest.mark.parametrize("form", ["json", "csv"])
def test_an_invalid_value_is_reported_with_its_row(form):
    columns = find(form).arrange([encodings.column("a", "str")])
    bad = "," if form == "csv" else "bare"
    good = ['"x"'] * 9000
    for texts, row in (
        ([bad, '""'], 0),
        ([*good, '""', bad], 9001),
        ([*good, bad, bad], 9000),
        ([*good, *good, bad, *good, bad], 18_000),
    ):
        with pytest.raises(ValueFitError) as caught:
            find(form).row_sizes(columns, batch_of(*texts), Settings())
        assert caught.value.row == row
    with pytest.raises(ValueFitError) as caught:
        find(form).row_sizes(columns, batch_of(*good, bad).slice(1), Settings())
    assert caught.value.row == 8999


@pytest.mark.parametrize("form", ["json", "csv", "mds"])
def test_a_null_does_not_remove_its_line(form):
    columns = find(form).arrange([encodings.column("a", "str")])
    batch = batch_of('"x"', '"y"', None, None)
    with pytest.raises(ValueFitError) as caught:
        find(form).row_sizes(columns, batch, Settings())
        find(form).write_shard(Location(MemoryStore(), ""), 0, columns, [batch], Settings())
    assert str(caught.value) == (
        "column 'a' is null; mds cannot store nulls"
        if form == "mds"
        else "row 2: column 'a' is null; lines cannot store nulls"
    )


@pytest.mark.parametrize("form", ["json", "csv", "mds"])
def test_the_first_row_too_large_for_a_shard_is_reported(form, monkeypatch):
    columns = find(form).arrange([encodings.column("a", "str")])
    batch = batch_of('""', f'"{"x" * 500}"', f'"{"x" * 900}"')
    base, sizes = find(form).row_sizes(columns, batch, Settings())
    monkeypatch.setattr(mds_format, "MAX_SHARD_BYTES", base + int(sizes[1]) - 1)
    wanted = f"row 1: column 'a': row has {sizes[1]} bytes; a {form} shard has at most 4 GiB"
    assert refusal(lambda: find(form).row_sizes(columns, batch, Settings())) == wanted


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_shard_may_be_as_large_as_its_offsets_allow(form, monkeypatch):
    columns = find(form).arrange([encodings.column("a", "str")])
    size = (
        find(form)
        .write_shard(Location(MemoryStore(), ""), 0, columns, [batch_of('"x"')], Settings())
        .files[0]
        .size
    )
    monkeypatch.setattr(mds_format, "MAX_SHARD_BYTES", size)
    assert (
        find(form)
        .write_shard(Location(MemoryStore(), ""), 0, columns, [batch_of('"x"')], Settings())
        .files[0]
        .size
        == size
    )


def test_csv_and_tsv_ignore_the_separator_setting():
    for form, separator in (("csv", ","), ("tsv", "\t")):
        columns = find(form).arrange([encodings.column("a", "str"), encodings.column("b", "str")])
        batch = pa.record_batch(
            {"a": pa.array(["1"], pa.large_string()), "b": pa.array(["2"], pa.large_string())}
        )
        chunk = find(form).write_shard(
            Location(MemoryStore(), ""), 0, columns, [batch], Settings(separator="||")
        )
        assert chunk.at.read() == f"a{separator}b\n1{separator}2\n".encode()
    with pytest.raises(UsageError, match=r"^column name 'a,b' contains the separator ','(?m:$)"):
        find("csv").row_sizes(
            (encodings.column("a,b", "str"),), batch_of("x"), Settings(separator="|")
        )


# -- views


def test_views_of_text_are_checked_and_limited_to_2_gib(
    monkeypatch,
):
    shard = opened("csv", csv("a"), [b"1\n", b"\xff\n", b"2\n"])
    assert (
        find("csv").read_batch(shard, 2, 3, views=True).schema.field("a").type == pa.string_view()
    )
    assert (
        refusal(lambda: find("csv").read_batch(shard, 0, 3, views=True))
        == "s.csv[1]: column 'a': str is not UTF-8"
    )
    monkeypatch.setattr(byte_ranges, "VIEW_LIMIT", 2)
    assert (
        find("csv").read_batch(shard, 2, 3, views=True).schema.field("a").type == pa.large_string()
    )


# -- messages and memory


def test_messages_with_long_names_and_newlines_are_short():
    long = "n" * 100_000
    shard = opened("csv", {**csv("a"), "newline": long}, [b"x"])
    assert (
        refusal(lambda: find("csv").read_rows(shard, [0]))
        == f"s.csv[0]: line does not end with '{'n' * 59}"
    )
    shard = opened("csv", csv(long), [b"\xff\n"])
    assert (
        refusal(lambda: find("csv").read_batch(shard, 0, 1))
        == f"s.csv[0]: column '{'n' * 59}: str is not UTF-8"
    )
    shard = opened("json", {"columns": {long: "str"}}, [b'{"%s": 1}\n' % long.encode()])
    (finding,) = json_shards.verify_shard(shard, values=True)
    assert (finding.where, finding.message) == (
        "s.json[0]",
        f"column '{'n' * 59}: not a valid json_str value",
    )


@pytest.mark.parametrize("form", ["mds", "json", "csv"])
@pytest.mark.parametrize("compression", [None, "gz"])
def test_readers_do_not_keep_a_decompressed_shard(form, compression):
    columns = find(form).arrange([encodings.column("a", "str")])
    chunk = find(form).write_shard(
        Location(MemoryStore(), ""), 0, columns, [batch_of('"x"', '"y"')], Settings(compression)
    )
    shard = find(form).open_shard(chunk, columns)
    for rows in ([0], [1, 0]):
        find(form).read_rows(shard, rows)
    kept = [
        value
        for value in shard.memo.values()
        if isinstance(value, memoryview) or getattr(value, "view", None) is not None
    ]
    assert len(kept) == (compression is None)
    assert shard.layout["starts"].flags.owndata == (
        compression is not None
    )  # a copy if the shard is not kept in memory


@pytest.mark.parametrize("form", ["mds", "json", "csv"])
def test_a_shard_may_be_a_view_of_a_larger_buffer(form):
    columns = find(form).arrange([encodings.column("a", "str"), encodings.column("b", "str")])
    batch = pa.record_batch(
        {
            "a": pa.array(['"one"', '""'], pa.large_string()),
            "b": pa.array(['"x"', '"yz"'], pa.large_string()),
        }
    )
    chunk = find(form).write_shard(Location(MemoryStore(), ""), 0, columns, [batch], Settings())
    store = MemoryStore(
        {
            path: memoryview(b"before" + data + b"behind")[6:-6]
            for path, data in chunk.at.store.files.items()
        }
    )
    shard = find(form).open_shard(Chunk(Location(store, chunk.at.path)))
    assert find(form).read_rows(shard, [1, 0]) == [
        {"a": b'""', "b": b'"yz"'},
        {"a": b'"one"', "b": b'"x"'},
    ]
    assert find(form).read_rows(shard, [1]) == [{"a": b'""', "b": b'"yz"'}]
    assert find(form).read_batch(shard, 0, 2).to_pylist() == batch.to_pylist()


def test_lines_have_the_column_order_of_the_config():
    shard = opened("csv", csv("b", "c", "a"), [b"1,2,3\n", b",,\n", b"4,,5\n"])
    assert find("csv").read_rows(shard, [0, 2], ["a", "b"]) == [
        {"a": b"3", "b": b"1"},
        {"a": b"5", "b": b"4"},
    ]
    assert find("csv").read_batch(shard, 0, 3).to_pydict() == {
        "b": ["1", "", "4"],
        "c": ["2", "", ""],
        "a": ["3", "", "5"],
    }
    assert list(find("csv").verify_shard(shard, values=True)) == []
    shard = opened(
        "json",
        {"columns": {"b": "int", "a": "str"}},
        [b'{"a": "x", "b": 1}\n', b'{"b": 2, "a": "y"}\n'],
    )
    assert json_shards.read_rows(shard, [0, 1], ["b"]) == [{"b": b"1"}, {"b": b"2"}]
    assert (
        json_shards.read_batch(shard, 0, 1).to_pydict()
        == json_shards.read_batch(shard, 0, 2).slice(0, 1).to_pydict()
        == {"b": ["1"], "a": ['"x"']}
    )


@pytest.mark.parametrize(
    "line",
    [
        b'{"a": 1, "b": 2}x\n',
        b'{"a": 1, "b": 2}\n\n',
        b'{"a": "", "b": 2}\n',
        b'{"a": , "b": 2}\n',
        b'{"a": 1, "b": }\n',
    ],
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_line_with_bytes_outside_its_object_is_refused(line, place):
    rows = [b'{"a": 1, "b": 2}\n']
    rows.insert(place, line)
    shard = opened("json", {"columns": {"a": "int", "b": "int"}}, rows)
    if line == b'{"a": 1, "b": 2}\n\n':  # whitespace around an object is valid
        assert json_shards.read_batch(shard, 0, 2).to_pydict() == {"a": ["1", "1"], "b": ["2", "2"]}
    elif b'""' in line:
        assert json_shards.read_rows(shard, [place]) == [{"a": b'""', "b": b"2"}]
        assert [one.message for one in json_shards.verify_shard(shard, values=True)] == [
            "column 'a': not a valid json_int value"
        ]
    else:
        for do in ways("json", shard, place):
            assert refusal(do).startswith(f"s.json[{place}]: not valid JSON: ")


def test_errors_have_row_numbers_of_the_shard_for_any_start_of_a_batch():
    shard = opened("csv", csv("a"), [b"1\n", b"2\n", b"\xff\n", b"3\n"])
    for start in (0, 1, 2):
        for views in (False, True):
            said = refusal(
                lambda start=start, views=views: find("csv").read_batch(
                    shard, start, 4, views=views
                )
            )
            assert said == "s.csv[2]: column 'a': str is not UTF-8"
    shard = opened("csv", csv("a", "b"), [b"1,\n", b"2,\n", b"\n", b"3,\n"])
    for start in (0, 1, 2):
        assert (
            refusal(lambda start=start: find("csv").read_batch(shard, start, 4))
            == "s.csv[2]: expected 2 values in the line, got 1"
        )
    shard = opened(
        "json", {"columns": {"a": "int"}}, [b'{"a": 1}\n', b'{"a": 2}\n', b"[]\n", b'{"a": 3}\n']
    )
    for start in (0, 1, 2):
        assert (
            refusal(lambda start=start: json_shards.read_batch(shard, start, 4))
            == "s.json[2]: not valid JSON: expected '{' at character 0"
        )


@pytest.mark.parametrize("newline", ["", "\n"])
@pytest.mark.parametrize("place", [0, 1])
def test_bytes_between_two_objects_are_reported(newline, place):
    good = f'{{"a": "x"}}{newline}'.encode()
    rows = [good, good]
    rows[place] += b"zz"
    shard = opened("json", {"columns": {"a": "str"}, "newline": newline}, rows)
    at = len(good)  # whitespace is valid here
    for do in ways("json", shard, place):
        assert (
            refusal(do)
            == f"s.json[{place}]: not valid JSON: unexpected data after the object at character {at}"
        )


def test_text_in_a_number_column_is_not_split_as_a_number():
    rows = [b'{"a": "", "s": 5}\n', b'{"a": 1, "s": "x"}\n']
    for some in (rows, rows[::-1]):
        shard = opened(
            "json", {"columns": {"a": "int", "s": "str"}}, some
        )  # the expected number of quotes
        wanted = [{"a": '""', "s": "5"}, {"a": "1", "s": '"x"'}]
        assert json_shards.read_batch(shard, 0, 2).to_pylist() == (
            wanted if some is rows else wanted[::-1]
        )


def test_text_starts_at_the_start_of_its_value():
    shard = opened("json", {"columns": {"a": "str"}}, [b'{"a": "x"}\n', b'{"a": 1"x"}\n'])
    for do in ways("json", shard, 1):
        assert refusal(do) == "s.json[1]: not valid JSON: expected '}' at character 7"


def test_the_bytes_after_a_text_are_not_read_past_the_data():
    line = b'{"a": "%s"' % (b"x" * 30)
    shard = opened(
        "json",
        {"columns": {"a": "str", "b": "str"}, "newline": ""},
        [b'{"a": "", "b": ""}', line + b'""""'],
    )
    for do in ways("json", shard, 1):
        assert refusal(do) == f"s.json[1]: not valid JSON: expected '}}' at character {len(line)}"
