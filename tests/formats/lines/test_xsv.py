"""CSV, TSV and XSV shards compared with split, and damage of tables and lines."""

import pickle
import struct
import tracemalloc
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.encodings import lookup, stored
from flarecli.errors import FlareError, FormatError, MissingError, UsageError, ValueFitError
from flarecli.formats import find
from flarecli.formats.mds import format as mds_format
from flarecli.model import Chunk, File, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from flarecli.write import Writer
from tests.formats.lines.samples import batch_of, columns_of, shard_of, write_rows
from tests.properties import examples

json_shards = find("json")

TYPES = {"s": "json_str", "i": "json_int", "f": "json_float"}


XSV = {
    "column_names": ["a", "b"],
    "column_encodings": ["str", "int"],
    "format": "xsv",
    "newline": "\n",
    "separator": "||",
}


def xsv_shard(*lines, **config):
    config = {**XSV, **config}
    header = config["separator"].join(config["column_names"]) + config["newline"]
    lines = [line if isinstance(line, bytes) else line.encode() for line in (header, *lines)]
    return shard_of(
        find("xsv"),
        b"".join(lines),
        np.cumsum([len(lines[0]), *map(len, lines[1:])]).tolist(),
        config,
    )


ENDS = st.sampled_from(
    [
        (",", "\n"),
        ("||", "\n"),
        ("<>", "##\n"),
        ("→", "\u2029"),
        ("ab", "aba"),
        ("aa", "b"),
        (",", ",\n"),
        ("\t", "\r\n"),
    ]
)


@settings(max_examples=examples(150), deadline=None)
@given(
    st.lists(
        st.tuples(*[st.text(alphabet="ab,|<>#→é\n\t x", max_size=5)] * 3), min_size=1, max_size=10
    ),
    ENDS,
)
def test_written_lines_equal_a_split_or_are_refused(rows, ends):
    separator, newline = ends
    rows = [{"p": row[0].encode(), "q": row[1].encode(), "x": row[2].encode()} for row in rows]
    columns, how = (
        columns_of(find("xsv"), dict.fromkeys("pqx", "str")),
        Settings(separator=separator, newline=newline),
    )
    batch, store = batch_of(columns, rows), MemoryStore()
    lines = [separator.join(value.decode() for value in row.values()) + newline for row in rows]
    whole = [
        line.find(newline) == len(line) - len(newline)
        and line[: -len(newline)].split(separator) == [v.decode() for v in row.values()]
        for line, row in zip(lines, rows, strict=True)
    ]
    try:
        base, sizes = find("xsv").row_sizes(columns, batch, how)
    except ValueFitError as error:
        row = error.row
        assert error.message.startswith(("column '", "values joined by"))
        assert all(whole[:row])
        assert not whole[row]
        return
    assert all(whole)
    assert (base, sizes.tolist()) == (0, [len(line.encode()) for line in lines])
    chunk = find("xsv").write_shard(Location(store, ""), 0, columns, [batch], how)
    assert chunk.at.read().decode() == separator.join("pqx") + newline + "".join(lines)
    shard = pickle.loads(pickle.dumps(find("xsv").open_shard(chunk, columns)))
    assert find("xsv").read_rows(shard, range(len(rows))) == rows
    assert find("xsv").read_batch(shard, 0, len(rows)).equals(batch)
    assert list(find("xsv").verify_shard(shard, values=True)) == []


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.text(alphabet="ab|x1", max_size=8), min_size=1, max_size=8))
def test_lines_of_any_writer_are_split_at_separators(lines):
    shard = xsv_shard(*(line + "\n" for line in lines))
    wanted = [line.split("||") for line in lines]
    wrong = [row for row, parts in enumerate(wanted) if len(parts) != 2]
    if wrong:
        for do in (
            lambda: find("xsv").read_batch(shard, 0, len(lines)),
            lambda: find("xsv").read_rows(shard, range(len(lines))),
        ):
            with pytest.raises(FormatError) as caught:
                do()
            assert (
                str(caught.value)
                == f"shard.00000.xsv[{wrong[0]}]: expected 2 values in the line, got {len(wanted[wrong[0]])}"
            )
        assert [one.where for one in find("xsv").verify_shard(shard)] == [
            f"shard.00000.xsv[{row}]" for row in wrong
        ]
        return
    assert [
        [row["a"].decode(), row["b"].decode()]
        for row in find("xsv").read_rows(shard, range(len(lines)))
    ] == wanted
    assert [
        list(row.values()) for row in find("xsv").read_batch(shard, 0, len(lines)).to_pylist()
    ] == wanted


@pytest.mark.parametrize(
    ("columns", "ends", "lines", "row", "values"),
    [
        (
            "ab",
            ("||", "\n"),
            ("x||y||z", "w"),
            0,
            3,
        ),  # the first row has the separators of two rows
        ("ab", ("||", "\n"), ("w", "x||y||z"), 0, 1),
        ("abc", ("||", "\n"), ("|||x",), 0, 2),  # two overlapping separators
        ("ab", (",", ",\n"), ("x",), 0, 1),  # the only separator is part of the newline
        ("ab", (",", ",\n"), ("x,y", "z"), 1, 1),
    ],
)
def test_overlapping_separators_do_not_replace_missing_ones(columns, ends, lines, row, values):
    separator, newline = ends
    how = {
        "column_names": list(columns),
        "column_encodings": ["str"] * len(columns),
        "separator": separator,
        "newline": newline,
    }
    shard = xsv_shard(*(line + newline for line in lines), **how)
    for do in (
        lambda: find("xsv").read_batch(shard, 0, len(lines)),
        lambda: find("xsv").read_rows(shard, range(len(lines))),
    ):
        with pytest.raises(FormatError) as caught:
            do()
        assert (
            str(caught.value)
            == f"shard.00000.xsv[{row}]: expected {len(columns)} values in the line, got {values}"
        )


def test_a_line_without_a_newline_is_reported_with_its_row():
    shard = xsv_shard("x||1\n", "y||2;", "z||3\n")
    for do in (
        lambda: find("xsv").read_batch(shard, 0, 3),
        lambda: find("xsv").read_rows(shard, [1]),
    ):
        with pytest.raises(FormatError) as caught:
            do()
        assert str(caught.value) == "shard.00000.xsv[1]: line does not end with '\\n'"


def test_lines_too_short_for_their_columns_are_refused_before_allocation():
    names = [str(i) for i in range(10_000)]
    shard = xsv_shard(*["\n"] * 1000, column_names=names, column_encodings=["str"] * len(names))
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            find("xsv").read_batch(shard, 0, 1000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value) == "shard.00000.xsv[0]: expected 10000 values in the line, got 1"


def test_text_that_is_not_utf8_is_reported_with_its_row():
    with pytest.raises(
        ValueFitError, match=r"^shard.00000.xsv\[1\]: column 'a': str is not UTF-8$"
    ):
        find("xsv").read_batch(xsv_shard("x||1\n", b"\xff||2\n"), 0, 2)


@pytest.mark.parametrize(
    ("form", "how", "values", "message"),
    [
        (
            find("csv"),
            Settings(),
            ("x,y", "z"),
            "row 1: column 'a': value contains the separator ','",
        ),
        (
            find("csv"),
            Settings(separator="|"),
            ("x", "y,"),
            "row 1: column 'b': value contains the separator ','",
        ),
        (
            find("tsv"),
            Settings(),
            ("x\ty", "z"),
            "row 1: column 'a': value contains the separator '\\t'",
        ),
        (
            find("csv"),
            Settings(newline="\r\n"),
            ("x\ny", "z\r\n"),
            "row 1: column 'b': value contains the newline '\\r\\n'",
        ),
        (
            find("xsv"),
            Settings(separator="||"),
            ("x|", "y"),
            "row 1: column 'a': followed by the separator '||', the value would end too early",
        ),
        (
            find("xsv"),
            Settings(separator=";", newline="x;b"),
            ("yx", "by"),
            "row 1: values joined by ';' contain the newline 'x;b'",
        ),
    ],
)
def test_a_value_that_a_line_cannot_store_is_reported_before_writing(form, how, values, message):
    columns = columns_of(form, {"a": "str", "b": "str"})
    batch = batch_of(
        columns,
        [
            {"a": b"1", "b": b"2"},
            dict(zip("ab", (value.encode() for value in values), strict=True)),
        ],
    )
    with pytest.raises(ValueFitError) as caught:
        form.row_sizes(columns, batch, how)
    assert str(caught.value) == message
    assert caught.value.hint == (
        "Use -f json or -f mds, which can store any text, or use -f xsv with another --separator "
        "or --newline."
    )


@pytest.mark.parametrize(
    ("names", "how", "message"),
    [
        (("a,b", "c"), Settings(), "column name 'a,b' contains the separator ','"),
        (("a\n",), Settings(), "column name 'a\\n' contains the newline '\\n'"),
        (("a",), Settings(newline=""), "xsv needs a newline"),
        (("a",), Settings(separator=""), "xsv needs a separator"),
        (
            ("a|", "b"),
            Settings(separator="||"),
            "the column names cannot be read back if the separator is '||' and the newline is '\\n'",
        ),
        (
            ("a", "b"),
            Settings(separator=";", newline="a;b"),
            "the column names cannot be read back if the separator is ';' and the newline is 'a;b'",
        ),
    ],
)
def test_names_and_settings_that_a_header_cannot_store_are_refused(names, how, message):
    columns = columns_of(find("xsv"), dict.fromkeys(names, "str"))
    batch = batch_of(columns, [dict.fromkeys(names, b"1")])
    with pytest.raises(UsageError) as caught:
        find("xsv").row_sizes(columns, batch, how)
    assert str(caught.value) == message


@pytest.mark.parametrize("form", ["json", "csv", "tsv", "xsv"])
def test_encodings_that_lines_cannot_store_are_refused(form):
    with pytest.raises(UsageError) as caught:
        find(form).arrange([encodings.column("a", "str"), encodings.column("b", "jpeg")])
    assert str(caught.value) == f"column 'b': {form} cannot store jpeg"
    with pytest.raises(UsageError, match="^duplicate column name 'a'$"):
        find(form).arrange([encodings.column("a", "str")] * 2)
    with pytest.raises(UsageError, match="^a shard needs at least one column(?m:$)"):
        find(form).arrange([])


def test_a_wrong_header_is_reported():
    data = b"a||c\nx||1\n"
    shard = shard_of(find("xsv"), data, [5, 10], XSV)
    (finding,) = find("xsv").verify_shard(shard)
    assert (finding.where, finding.message) == (
        "shard.00000.xsv",
        "expected the header b'a||b\\n', got b'a||c\\n'",
    )


# -- the .meta file


def meta_changed(chunk, change):
    store = MemoryStore({path: bytes(data) for path, data in chunk.at.store.files.items()})
    path = f"{chunk.at.path}.meta"
    data = bytearray(store.files[path])
    store.files[path] = bytes(change(data) or data)
    return Chunk(
        Location(store, chunk.at.path),
        None,
        (File(chunk.at.path), File(path)),
        chunk.format,
        (Location(store, path),),
    )


def put(at, value):
    return lambda data: data.__setitem__(slice(at, at + 4), struct.pack("<I", value))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            put(0, 0xFFFFFFFF),
            "shard.00000.csv.meta: file is {size} bytes; its table of 4294967295 samples needs 17179869188",
        ),
        (
            put(4, 0),
            "shard.00000.csv.meta: expected the first line at byte 2 of the data, got 0",
        ),
        (put(8, 99), "shard.00000.csv.meta: line 1 starts at byte 99 but ends at byte 6"),
        (put(12, 7), "shard.00000.csv: file is 6 bytes; its offset table requires 7"),
        (
            lambda data: data[:7],
            "shard.00000.csv.meta: file is 7 bytes; an empty table needs 8",
        ),
        (lambda data: data[:-1], None),
        (
            lambda data: data.replace(b'"csv"', b'"tsv"'),
            "shard.00000.csv.meta: config: expected format 'csv', got 'tsv'",
        ),
        (lambda data: data[:16] + b"[]", "shard.00000.csv.meta: config is not an object"),
        (lambda data: data.replace(b'["a"]', b"[   ]"), None),
    ],
)
def test_a_forged_table_is_refused(change, message):
    chunk, _ = write_rows(find("csv"), {"a": "str"}, [{"a": b"1"}, {"a": b"2"}])
    with pytest.raises(FormatError) as caught:
        find("csv").open_shard(meta_changed(chunk, change))
    if message:
        assert str(caught.value) == message.format(size=chunk.files[1].size)


def test_bytes_after_the_last_line_are_damage():
    for form in (find("xsv"), json_shards):
        config = (
            XSV
            if form is find("xsv")
            else {"columns": {"a": "int"}, "format": "json", "newline": "\n"}
        )
        lines = [b"a||b\n", b"x||1\n"] if form is find("xsv") else [b"", b'{"a": 1}\n']
        starts = np.cumsum([len(line) for line in lines]).tolist()
        assert shard_of(form, b"".join(lines), starts, config).rows == 1
        for size, rest in ((1, b"\n"), (5, b"x||1\n")):
            with pytest.raises(FormatError) as caught:
                shard_of(form, b"".join([*lines, rest]), starts, config)
            assert (
                str(caught.value)
                == f"shard.00000.{form.name}: file is {starts[-1] + size} bytes; its offset table requires {starts[-1]}"
            )


def test_a_meta_too_large_for_its_rows_is_refused_before_it_is_read(monkeypatch):
    most = 8 + 4 * 2 + (1 << 24)
    for raw_size, size in ((None, most + 1), (most + 1, 100)):
        meta = File("s.csv.meta", size, raw_size=raw_size)
        at = Location(MemoryStore({"s.csv": b""}), "s.csv")
        with pytest.raises(FormatError) as caught:
            find("csv").open_shard(
                Chunk(at, 2, (File("s.csv"), meta), "csv", (at.folder / "s.csv.meta",))
            )
        assert (
            str(caught.value)
            == f"s.csv.meta: listed size is {most + 1} bytes, too large for a table of 2 samples"
        )
    chunk, _ = write_rows(find("csv"), {"a": "str"}, [{"a": b"1"}])
    monkeypatch.setattr(mds_format, "MAX_CONFIG_BYTES", 10)
    with pytest.raises(
        FormatError, match=r"^shard.00000.csv.meta: config is \d+ bytes; the maximum is 10$"
    ):
        find("csv").open_shard(Chunk(chunk.at))


@pytest.mark.parametrize("form", ["mds", "json", "csv"])
def test_a_shard_has_the_size_of_its_table(form, monkeypatch):
    columns = find(form).arrange([encodings.column("a", "str")])
    batch = batch_of(columns, [{"a": b'"%s"' % (b"x" * 100)}, {"a": b'""'}])
    base, sizes = find(form).row_sizes(columns, batch, Settings())
    chunk = find(form).write_shard(Location(MemoryStore(), ""), 0, columns, [batch], Settings())
    size = len(chunk.at.read())
    monkeypatch.setattr(mds_format, "MAX_SHARD_BYTES", size - 1)
    store = MemoryStore()
    with pytest.raises(ValueFitError) as caught:
        find(form).write_shard(Location(store, ""), 0, columns, [batch], Settings())
    assert (
        str(caught.value)
        == f"{chunk.at.name}: shard would have {size} bytes; the maximum for {form} is {size - 1}"
    )
    assert store.files == {}
    monkeypatch.setattr(mds_format, "MAX_SHARD_BYTES", base + int(sizes[0]))
    find(form).row_sizes(columns, batch, Settings())
    monkeypatch.setattr(mds_format, "MAX_SHARD_BYTES", base + int(sizes[0]) - 1)
    with pytest.raises(
        ValueFitError,
        match=rf"^row 0: column 'a': row has {sizes[0]} bytes; a {form} shard has at most 4 GiB$",
    ):
        find(form).row_sizes(columns, batch, Settings())


def test_the_meta_file_is_found_by_name(tmp_path):
    for form, compression in (("json", None), ("csv", "gz"), ("tsv", "zstd")):
        with Writer(
            str(tmp_path / form), format=form, columns={"a": "str"}, settings=Settings(compression)
        ) as writer:
            writer.write({"a": "x"})
        name = f"shard.00000.{form}" + (f".{compression}" if compression else "")
        at = locate(str(tmp_path / form / name))
        shard = find(form).open_shard(Chunk(at))
        assert find(form).read_rows(shard, [0]) == [{"a": b'"x"' if form == "json" else b"x"}]
        meta = name.replace(f".{form}", f".{form}.meta")
        (tmp_path / form / meta).unlink()
        with pytest.raises(MissingError, match=rf"{form}/{meta}: "):
            find(form).open_shard(Chunk(locate(str(tmp_path / form / name))))


def test_a_row_larger_than_a_shard_is_reported_before_it_is_joined():
    columns = (encodings.column("a", "str"), encodings.column("big", "str"))
    data = pa.py_buffer(
        np.zeros((1 << 32) + (1 << 20), np.uint8)
    )  # uses no memory until it is read
    offsets = pa.py_buffer(np.array([0, 1 << 20, (1 << 32) + (1 << 20)], np.int64).tobytes())
    large = pa.Array.from_buffers(pa.large_string(), 2, [None, offsets, data])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(["x", "y"], pa.large_string()), large], names=["a", "big"]
    )
    for form, size in (("mds", 4294967309), ("csv", 4294967299)):
        with pytest.raises(ValueFitError) as caught:
            find(form).row_sizes(columns, batch, Settings(shard_bytes=None))
        assert (
            str(caught.value)
            == f"row 1: column 'big': row has {size} bytes; a {form} shard has at most 4 GiB"
        )


@settings(max_examples=examples(200), deadline=None)
@given(st.data())
def test_any_damage_is_an_error_or_harmless(data):
    form, names = data.draw(
        st.sampled_from([(json_shards, TYPES), (find("csv"), {"s": "str", "i": "str_int"})])
    )
    row = (
        {"s": b'"x\\n\\u00e9"', "i": b"12", "f": b"1.5"}
        if form is json_shards
        else {"s": "xé".encode(), "i": b"12"}
    )
    chunk, _ = write_rows(form, names, [row, {**row, "i": b"7"}, row])
    store = MemoryStore({path: bytearray(one) for path, one in chunk.at.store.files.items()})
    for _ in range(data.draw(st.integers(1, 4))):
        one = store.files[data.draw(st.sampled_from(sorted(store.files)))]
        one[data.draw(st.integers(0, len(one) - 1))] = data.draw(st.integers(0, 255))
    try:
        shard = form.open_shard(
            replace(chunk, at=Location(store, chunk.at.path), files=(), companions=())
        )
        list(form.verify_shard(shard, values=True))
        form.read_rows(shard, range(shard.rows))
        batch = form.read_batch(shard, 0, shard.rows)
        assert [stored(batch.column(one.name), lookup(one.encoding)) for one in shard.columns]
    except FlareError as error:
        assert str(error)
