"""WebDataset: files of the original, damage, and written files that are read again."""

import bz2
import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings, read
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UnsafeError,
    UsageError,
    ValueFitError,
)
from flarecli.formats import byte_ranges, find
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset import write as webdataset_write
from flarecli.formats.webdataset.columns import extension_of
from flarecli.formats.webdataset.scan import read_table
from flarecli.model import Chunk, Column, File, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

webdataset = find("webdataset")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "webdataset"
NAMES = ["plain", "deep", "pax", "gnu"]


def expected(name):
    return [
        json.loads(line) for line in (GOLDEN / name / "expected.jsonl").read_text().splitlines()
    ]


def shown(row):
    """Return a row as the fixtures list it, without missing members."""
    return {
        name: data.decode() if name == "__key__" else [len(data), hashlib.sha256(data).hexdigest()]
        for name, data in row.items()
        if data is not None
    }


def columns_of(**encoded):
    return webdataset.arrange(
        encodings.column(name, encoding) for name, encoding in encoded.items()
    )


def batch_of(columns, rows):
    """Return rows (tuples) as a typed batch of the columns."""
    arrays = [
        pa.array(values, encodings.lookup(one.encoding).arrow)
        for one, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(one) for one in columns])
    )


def written(columns, rows, number=0, **settings):
    at = Location(MemoryStore(), "")
    return webdataset.write_shard(
        at, number, columns, [batch_of(columns, rows)], Settings(**settings)
    )


def made(files, format=tarfile.PAX_FORMAT):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format) as archive:
        for name, data in files:
            one = tarfile.TarInfo(name)
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


def chunk_of(data, **beside):
    store = MemoryStore(
        {"t.tar": data, **{name.replace("_", "."): value for name, value in beside.items()}}
    )
    return Chunk(Location(store, "t.tar"))


def rows_of(data, columns=None):
    shard = webdataset.open_shard(chunk_of(data), columns)
    return webdataset.read_rows(shard, range(shard.rows))


# -- files of the original


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_datasets_of_the_original_are_read(name, maps):
    at = locate(str(GOLDEN / name / "data"))
    (chunk,) = webdataset.open_dataset(at if maps else at.unmapped())
    shard = webdataset.open_shard(chunk)
    rows = webdataset.read_rows(shard, range(shard.rows))
    assert [shown(row) for row in rows] == expected(name)
    order = [shard.rows - 1, 0, 0, 1]
    assert webdataset.read_rows(shard, order) == [rows[i] for i in order]
    for start, stop in ((0, shard.rows), (1, 2), (2, 2)):
        for views in (False, True):
            batch = webdataset.read_batch(shard, start, stop, views=views)
            batch = batch.cast(pa.schema([encodings.field(one) for one in shard.columns]))
            batch.validate(full=True)
            for one in shard.columns:
                assert batch.column(one.name).cast(pa.large_binary()).to_pylist() == [
                    row[one.name] for row in rows[start:stop]
                ]
    assert list(webdataset.verify_shard(shard, values=True)) == []


def test_columns_are_the_key_and_the_extensions_in_order_of_use():
    assert {
        one.name: one.encoding for one in read.open(str(GOLDEN / "plain" / "data")).columns
    } == {
        "__key__": "str",
        "cls": "str_int",
        "jpg": "jpeg",
        "json": "json",
        "txt": "str",
    }
    deep = {one.name: one.encoding for one in read.open(str(GOLDEN / "deep" / "data")).columns}
    assert deep == {
        "__key__": "str",
        "output.png": "png",
        "input.png": "png",
        "seg.npy": "bytes",
        "txt": "str",
    }


def test_a_missing_member_is_null():
    data = read.open(str(GOLDEN / "plain" / "data"))
    assert [row["txt"] is None for row in data.rows(range(7))] == [i % 3 == 2 for i in range(7)]
    assert next(data.scan(["txt"])).column("txt").null_count == 2


@pytest.mark.parametrize(
    "pack",
    [
        bytes,
        gzip.compress,
        zstandard.compress,
        bz2.compress,
        lambda data: gzip.compress(data[:5000]) + gzip.compress(data[5000:]),
    ],
)
@pytest.mark.parametrize("size", [1, 700, 1 << 20])
def test_a_stream_that_cannot_seek_is_read_in_order(pack, size):
    data = pack((GOLDEN / "plain" / "data" / "00000.tar").read_bytes())
    (batch,) = webdataset.scan_stream(data[i : i + size] for i in range(0, len(data), size))
    found = [
        shown(
            {
                name: value if value is None else value.encode() if type(value) is str else value
                for name, value in row.items()
            }
        )
        for row in batch.to_pylist()
    ]
    assert found == expected("plain")
    shard = webdataset.open_shard(Chunk(locate(str(GOLDEN / "plain" / "data")) / "00000.tar"))
    assert batch.equals(webdataset.read_batch(shard, 0, 7))


def test_compressed_files_of_the_original_are_read_as_streams():
    data = (GOLDEN / "gz" / "data" / "00000.tar.gz").read_bytes()
    (batch,) = webdataset.scan_stream(iter([data]))
    assert batch.num_rows == 7
    shard = webdataset.open_shard(
        next(iter(webdataset.open_dataset(locate(str(GOLDEN / "gz" / "data")))))
    )
    assert webdataset.read_batch(shard, 0, 7).equals(batch)
    assert [shown(row) for row in webdataset.read_rows(shard, range(7))] == expected("plain")
    assert list(webdataset.verify_shard(shard)) == []
    for cut in (len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError):
            list(webdataset.scan_stream(iter([data[:cut]])))


def test_a_stream_of_many_batches_keeps_its_columns():
    blocks = [made([(f"{i}.bin", b"x" * 1_000_000) for i in range(40)])]
    batches = list(webdataset.scan_stream(blocks))
    assert [batch.num_rows for batch in batches] == [17, 17, 6]
    late = made([*((f"{i}.bin", b"x" * 1_000_000) for i in range(20)), ("z.txt", b"late")])
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([late]))
    assert str(caught.value) == "-[20]: unexpected extension .txt: the columns do not include it"
    listed = (Column("__key__", "str"), Column("bin", "bytes"), Column("txt", "str"))
    assert sum(batch.num_rows for batch in webdataset.scan_stream([late], listed)) == 21


def test_a_sample_of_a_stream_has_a_bounded_number_of_members():
    empty = [tar.header(b"k.%d" % i, 0) for i in range(1025)]
    (batch,) = webdataset.scan_stream([*empty[:1024], tar.END])
    assert batch.num_columns == 1025
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([*empty, tar.END]))
    assert str(caught.value) == "-[0]: more than 1024 extensions"


# -- samples, keys and names


def test_names_are_split_as_webdataset_splits_them():
    data = made(
        [
            ("a/.h.jpg", b"0"),
            ("b.JPG", b"1"),
            ("b.x.TXT", b"2"),
            ("__m__/q.jpg", b"-"),
            ("__n__.jpg", b"3"),
            ("noext", b"-"),
            ("d.d/noext", b"-"),
            ("d.d/e.", b"4"),
            (".hidden", b"-"),
            ("./f..jpg", b"5"),
        ]
    )
    rows = [
        {name: value for name, value in row.items() if value is not None} for row in rows_of(data)
    ]
    assert rows == [
        {"__key__": b"a/", "h.jpg": b"0"},
        {"__key__": b"b", "jpg": b"1", "x.txt": b"2"},
        {"__key__": b"__n__", "jpg": b"3"},
        {"__key__": b"d.d/e", "": b"4"},
        {"__key__": b"./f", ".jpg": b"5"},
    ]


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        (
            [("a.jpg", b""), ("a.JPG", b"")],
            FormatError,
            "t.tar[0]: duplicate member 'a.JPG' at byte 512",
        ),
        (
            [("a.jpg", b""), ("b.jpg", b""), ("a.txt", b"")],
            FormatError,
            "t.tar[2]: duplicate key 'a', first used in row 0",
        ),
        (
            [("b.jpg", b""), ("a.__key__", b"")],
            FormatError,
            "t.tar[1]: the extension .__key__ is reserved for the key of a sample",
        ),
        (
            [("b.jpg", b""), (b"a\xff.jpg".decode(errors="surrogateescape"), b"")],
            UnsafeError,
            "t.tar[1]: the key is not UTF-8",
        ),
        (
            [(b"a.\xff".decode(errors="surrogateescape"), b"")],
            UnsafeError,
            "t.tar[0]: the extension b'\\xff' is not UTF-8",
        ),
        (
            [(f"a.{i}", b"") for i in range(1025)],
            FormatError,
            "t.tar[0]: more than 1024 extensions",
        ),
    ],
)
def test_members_that_are_not_valid_samples_are_refused(files, error, said):
    with pytest.raises(error) as caught:
        rows_of(made(files))
    assert str(caught.value) == said


def test_many_extensions_of_few_samples_allocate_no_memory():
    with pytest.raises(
        FormatError, match=r"^t\.tar: 1000 extensions in 3000 samples, most of which are missing$"
    ):
        rows_of(made([(f"{i}.{i % 1000}", b"") for i in range(3000)]))


def test_names_of_columns_become_extensions_that_mean_their_encoding():
    wanted = {
        ("jpg", "jpeg"): "jpg",
        ("image.jpg", "jpeg"): "image.jpg",
        ("image", "jpeg"): "image.jpg",
        ("Image", "png"): "image.png",
        ("label", "str_int"): "label.cls",
        ("cls", "str_int"): "cls",
        ("caption", "str"): "caption.txt",
        ("txt", "str_int"): "txt.cls",
        ("score", "json_float"): "score.json",
        ("x.json", "json_float"): "x.json",
        ("data", "bytes"): "data",
        ("jpg", "bytes"): "jpg.bin",
        ("seg.npy", "bytes"): "seg.npy",
        ("a/b", "str"): "a%2fb.txt",
        ("t", "list[jpeg]"): "t.list_jpeg",
        ("t", "ndarray:float32:2,3"): "t.ndarray",
        ("__url__", "bytes"): "__url__.bin",
        ("x__", "bytes"): "x__.bin",
        ("", "str"): ".txt",
    }
    assert {
        (name, encoding): extension_of(encodings.column(name, encoding))
        for name, encoding in wanted
    } == wanted


def test_columns_are_arranged_with_encodings_that_a_member_stores():
    held = webdataset.arrange(
        [
            Column("n", "int", 8),
            Column("f", "float32", 4),
            Column("__key__", "str"),
            Column("j", "json"),
            Column("b", "bytes"),
        ]
    )
    assert [(one.name, one.encoding, one.size) for one in held] == [
        ("__key__", "str", None),
        ("n", "str_int", None),
        ("f", "json_float", None),
        ("j", "json", None),
        ("b", "bytes", None),
    ]
    assert webdataset.arrange(held) == held


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "a sample needs at least one column besides the key"),
        ([Column("__key__", "str")], "a sample needs at least one column besides the key"),
        ([Column("a", "str"), Column("a", "int")], "duplicate column name 'a'"),
        (
            [Column("__key__", "str"), Column("__key__", "int"), Column("a", "str")],
            "duplicate column name '__key__'",
        ),
        (
            [Column("a", "str"), Column("a.txt", "str")],
            "columns 'a' and 'a.txt' would have the same member name",
        ),
        (
            [Column("A", "bytes"), Column("a", "bytes")],
            "columns 'A' and 'a' would have the same member name",
        ),
        (
            [Column("é" * 128, "bytes")],
            f"column {'é' * 128!r}: the extension is 256 bytes; at most 255 are allowed",
        ),
    ],
)
def test_columns_that_a_tar_cannot_store_are_refused(columns, said):
    with pytest.raises(UsageError) as caught:
        webdataset.arrange(columns)
    assert str(caught.value) == said


# -- the same tar as a mapped file, in ranges and as a stream


def table_or_error(source):
    try:
        table = read_table(source, "t.tar")
    except FlareError as error:
        return error
    return [
        table.extensions,
        table.keys.tobytes(),
        *(getattr(table, name).tolist() for name in ("ends", "starts", "sizes")),
    ]


def table_of_every_source(data):
    """Return the samples of a tar, or None if it is invalid; each kind of source must agree."""
    mapped = table_or_error(byte_ranges.MappedSource(memoryview(data)))
    ranged = table_or_error(
        byte_ranges.RangeSource(Location(MemoryStore({"t.tar": data}), "t.tar"), len(data))
    )
    streamed = table_or_error(tar.Blocks(data[i : i + 700] for i in range(0, len(data), 700)))
    if isinstance(mapped, FlareError):
        assert (type(ranged), str(ranged)) == (type(mapped), str(mapped))
        assert isinstance(streamed, FlareError)
        return None
    assert mapped == ranged == streamed
    return mapped


parts = st.text("ab./_é", min_size=1, max_size=6)
members = st.lists(
    st.tuples(
        parts, st.sampled_from(["jpg", "JPG", "cls", "x" * 20, "a.b", ""]), st.binary(max_size=600)
    ),
    max_size=30,
)


@settings(max_examples=200, deadline=None)
@given(
    members,
    st.booleans(),
    st.sampled_from([tarfile.GNU_FORMAT, tarfile.PAX_FORMAT, tarfile.USTAR_FORMAT]),
    st.data(),
)
def test_a_damaged_tar_is_read_or_refused_the_same_from_every_source(files, ordered, format, data):
    files = [
        (f"{'k' * data.draw(st.sampled_from([1, 3, 110]))}{key}.{extension}", body)
        for key, extension, body in files
    ]
    format = (
        tarfile.GNU_FORMAT
        if format == tarfile.USTAR_FORMAT and any(len(name.encode()) > 99 for name, _ in files)
        else format
    )
    raw = bytearray(made(sorted(dict(files).items()) if ordered else files, format))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    table_of_every_source(bytes(raw))


def test_headers_inside_of_members_are_data():
    inner = made([(f"{i}.txt", b"x" * i) for i in range(40)])
    outer = made([("a.txt", b"1"), ("a.tar", inner), ("b.tar", inner), ("c.txt", b"2")])
    assert table_of_every_source(outer)[0] == ("txt", "tar")
    assert [row["__key__"] for row in rows_of(outer)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("length", [1, 99, 100])
def test_names_that_fill_their_field_are_read(length):
    table = table_of_every_source(
        made(
            [("k" * (length - 4) + f"{i}.b" if length > 1 else str(i), b"") for i in range(9)],
            tarfile.USTAR_FORMAT,
        )
    )
    assert len(table[2]) == 9 * (length > 1)


def test_many_small_members_over_several_reads_are_found():
    data = made([(f"{i // 2:06}.{('cls', 'txt')[i % 2]}", b"x" * (i % 1500)) for i in range(3000)])
    assert len(data) > 2 << 20  # more than one read of a RangeSource
    assert len(table_of_every_source(data)[2]) == 1500


@st.composite
def odd_headers(draw):
    """A valid header with one unusual field, and its member."""
    name = draw(
        st.sampled_from(
            [
                b"a.t",
                b"a.u",
                b"b.t",
                b"b.T",
                b"c/d.t",
                b"c.d/e",
                b"__x__/f.t",
                b".t",
                b"n",
                b"g.0123456789abcdef",
                b"h." + b"x" * 98,
            ]
        )
    )
    size = draw(st.sampled_from([0, 1, 511, 512, 513]))
    block = bytearray(tar.header(name, size))
    odd = draw(st.sampled_from(["", "", "", "prefix", "digits", "spaces", "junk", "folder", "sum"]))
    if odd == "prefix":
        block[345:348] = b"p/q"
    elif odd == "digits":  # twelve digits without a terminator
        block[124:136] = b"%012o" % size
    elif odd == "spaces":
        block[124:136] = b"%11o " % size
    elif odd == "junk":
        block[99 : 99 + (len(name) < 99)] = b"!"
    elif odd == "folder" and not size:
        block[156:157] = b"5"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o%s" % (sum(block), b" \0" if odd == "sum" else b"\0 ")
    return bytes(block) + b"." * size + bytes(-size % 512)


@settings(max_examples=300, deadline=None)
@given(st.lists(odd_headers(), min_size=1, max_size=12), st.booleans())
def test_unusual_headers_are_read_or_refused_the_same_from_every_source(blocks, is_cut):
    table_of_every_source(b"".join(blocks) + (b"" if is_cut else tar.END))


@pytest.mark.parametrize("name", NAMES)
def test_every_source_finds_the_samples_of_the_original(name):
    data = (GOLDEN / name / "data" / "00000.tar").read_bytes()
    assert table_of_every_source(data) is not None


# -- written files

WANTED = columns_of(__key__="str", jpg="jpeg", label="int", caption="str", meta="json")
keys = st.lists(
    st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=40).flatmap(
        lambda text: st.integers(1, 4).map(lambda n: "/".join([text] * n))
    ),
    min_size=1,
    max_size=12,
    unique=True,
)


@settings(max_examples=80, deadline=None)
@given(keys, st.data())
def test_written_samples_are_read_back_by_flare_and_tarfile(keys, data):
    row = st.tuples(
        st.none() | st.binary(max_size=1100),
        st.integers().map(str),
        st.none() | st.text(max_size=30),
        st.sampled_from(["1", "{}", '"é"']),
    )
    rows = [(key, *data.draw(row)) for key in keys]
    batch = batch_of(WANTED, rows)
    at, how = (
        Location(MemoryStore(), ""),
        Settings(data.draw(st.sampled_from([None, "zstd", "gz"]))),
    )
    base, sizes = webdataset.row_sizes(WANTED, batch, how)
    cut = data.draw(st.integers(0, len(rows)))
    chunk = webdataset.write_shard(at, 7, WANTED, [batch.slice(0, cut), batch.slice(cut)], how)
    raw = chunk.files[0].raw_size if how.compression else chunk.files[0].size
    assert base + sizes.sum() == raw
    for beside in (True, False):
        if not beside:
            del at.store.files[chunk.beside[0].path]
        shard = webdataset.open_shard(chunk, WANTED)
        assert webdataset.read_batch(shard, 0, len(rows)).equals(batch)
        assert list(webdataset.verify_shard(shard, values=True)) == []
    if how.compression is None:
        with tarfile.open(fileobj=io.BytesIO(at.store.files["00007.tar"])) as archive:
            found = {one.name: archive.extractfile(one).read() for one in archive}
        names = ["jpg", "label.cls", "caption.txt", "meta.json"]
        assert found == {
            f"{key}.{name}": value if type(value) is bytes else value.encode()
            for key, *values in rows
            for name, value in zip(names, values, strict=True)
            if value is not None
        }


@pytest.mark.parametrize("size", [10, 70_000])
def test_large_members_are_written_as_small_ones_are(size):
    columns = columns_of(b="bytes", t="str")
    rows = [(bytes([i]) * (size + i), None if i % 2 else "t") for i in range(9)]
    chunk = written(columns, rows)
    with tarfile.open(fileobj=io.BytesIO(chunk.at.store.files["00000.tar"])) as archive:
        assert [(one.name, one.size, one.mode, one.mtime, one.uid, one.uname) for one in archive][
            :3
        ] == [
            ("00000-0000000.b", size, 0o444, 0, 0, ""),
            ("00000-0000000.t.txt", 1, 0o444, 0, 0, ""),
            ("00000-0000001.b", size + 1, 0o444, 0, 0, ""),
        ]
    shard = webdataset.open_shard(chunk, columns)
    assert webdataset.read_batch(shard, 0, 9).to_pylist() == [{"b": b, "t": t} for b, t in rows]
    assert chunk.files[0].size == len(chunk.at.store.files["00000.tar"])


def test_keys_are_unique_over_a_dataset_and_shards_are_named_in_order():
    columns = columns_of(t="str")
    keys = set()
    for number in (0, 1, 99_999, 100_000):
        chunk = written(columns, [("a",)] * 3, number)
        assert chunk.at.path == f"{number:05d}.tar"
        keys |= {
            row["__key__"] for row in webdataset.read_rows(webdataset.open_shard(chunk), range(3))
        }
    assert len(keys) == 12
    assert b"100000-0000002" in keys


@pytest.mark.parametrize(
    ("keys", "error", "said"),
    [
        (["a", None], ValueFitError, "00000.tar[1]: the key is null"),
        (
            ["a", "b.c"],
            ValueFitError,
            "00000.tar[1]: the last part of the key 'b.c' contains a dot, which would start the extension",
        ),
        (
            ["__a__/b"],
            ValueFitError,
            "00000.tar[0]: the key '__a__/b' is in a folder that webdataset ignores",
        ),
        (["../b"], UnsafeError, "00000.tar[0]: the name '../b' leaves the folder"),
        (["/b"], UnsafeError, "00000.tar[0]: the name '/b' is not relative"),
        (["b/"], UnsafeError, "00000.tar[0]: the name 'b/' has an empty part"),
        ([""], UnsafeError, "00000.tar[0]: the name '' is empty"),
        (["a\n"], UnsafeError, "00000.tar[0]: the name 'a\\n' contains a control character"),
        (["a\\b"], UnsafeError, "00000.tar[0]: the name 'a\\b' contains a backslash"),
    ],
)
def test_keys_that_would_be_read_differently_are_refused_before_writing(keys, error, said):
    columns, at = columns_of(__key__="str", t="str"), Location(MemoryStore(), "")
    with pytest.raises(error) as caught:
        webdataset.write_shard(
            at, 0, columns, [batch_of(columns, [(key, "x") for key in keys])], Settings()
        )
    assert str(caught.value) == said
    assert at.store.files == {}


def test_unusual_but_valid_keys_are_kept():
    keys = ["./a", "a.d/b", "é", "__a__", "x" * 255, "a" * 100 + "/b"]
    chunk = written(columns_of(__key__="str", t="str"), [(key, "x") for key in keys])
    assert [row["__key__"].decode() for row in rows_of(chunk.at.store.files["00000.tar"])] == keys


def test_a_row_without_members_is_refused():
    with pytest.raises(
        ValueFitError,
        match=r"^00000\.tar\[1\]: every column is null; a sample needs at least one member$",
    ):
        written(columns_of(t="str", b="bytes"), [("a", None), (None, None)])


# -- listings


def test_listed_columns_choose_names_and_must_include_all_members():
    data = made([("a.jpg", b"1"), ("a.label.cls", b"2"), ("b.jpg", b"3")])
    listed = (Column("label", "str_int"), Column("jpg", "jpeg"), Column("other", "str"))
    assert rows_of(data, listed) == [
        {"label": b"2", "jpg": b"1", "other": None},
        {"label": None, "jpg": b"3", "other": None},
    ]
    with pytest.raises(
        IntegrityError,
        match=r"^t\.tar: members have the extension \.jpg, but no such column is listed$",
    ):
        rows_of(data, listed[:1])
    with pytest.raises(
        FormatError, match=r"^t\.tar: column 'label' is listed as int, which a tar cannot store$"
    ):
        rows_of(data, (Column("label", "int", 8),))


def test_inferred_columns_can_be_used_as_a_listing():
    data = made(
        [
            ("a.x__", b"1"),
            ("a." + "very." * 30 + "bin", b"2"),
            ("a.b\\c", b"3"),
            ("a.__url__", b"4"),
        ]
    )
    shard = webdataset.open_shard(chunk_of(data))
    again = webdataset.open_shard(chunk_of(data), shard.columns)
    assert again.columns == shard.columns
    assert webdataset.read_rows(again, [0]) == webdataset.read_rows(shard, [0]) == rows_of(data)
    assert list(rows_of(data)[0].values()) == [b"a", b"1", b"2", b"3", b"4"]


def test_a_listed_row_count_is_compared():
    chunk = chunk_of(made([("a.jpg", b"1")]))
    with pytest.raises(FormatError, match=r"^t\.tar: contains 1 samples; 2 are listed$"):
        webdataset.open_shard(Chunk(chunk.at, 2))


def test_a_folder_is_listed_with_its_indexes():
    store = MemoryStore(
        dict.fromkeys(("b.tar", "a.tar", "a.idx.json", "sub/c.tar", "readme"), b"x")
    )
    stream = webdataset.open_dataset(Location(store, ""))
    assert stream.urls == ["a.tar", "b.tar"]
    assert stream.parts == [(File("a.idx.json", 1),), ()]
    with pytest.raises(MissingError, match=r"folder contains no \.tar file$"):
        webdataset.open_dataset(Location(MemoryStore({"x": b""}), ""))


def test_file_names_of_tars_are_recognized():
    assert all(
        webdataset.sniff(name, b"")
        for name in ("a.tar", "a.tar.zstd", "a.tar.zst", "a.tar.gz", "a.tgz", "a.tar.bz2")
    )
    assert not webdataset.sniff("a.idx.json", b"")
    assert [
        webdataset_index.name_of(name) for name in ("a.tar", "a.tar.gz", "a.tgz", "a.b.tar.zst")
    ] == ["a.idx.json"] * 3 + ["a.b.idx.json"]


def test_the_shardindex_equals_that_of_widsindex():
    columns = columns_of(t="str")
    chunk = written(columns, [("a",)], hashes=("md5",))
    at = chunk.at.folder
    (name, file), *_ = webdataset.write_index(
        at, [chunk], columns, Settings(hashes=("md5",))
    ).items()
    data = at.store.files["00000.tar"]
    assert (name, file.size) == ("shardindex.json", len(at.store.files[name]))
    assert json.loads(at.store.files[name]) == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "shardlist": [
            {
                "url": "00000.tar",
                "md5sum": hashlib.md5(data).hexdigest(),
                "nsamples": 1,
                "filesize": len(data),
            }
        ],
    }


# -- the index of a tar

SAMPLES = [(f"k{i}", b"x" * i, None if i == 2 else "t") for i in range(4)]
INDEXED = columns_of(__key__="str", b="bytes", t="str")


def opened(files):
    return webdataset.open_shard(Chunk(Location(MemoryStore(files), "00000.tar")), INDEXED)


def test_an_index_replaces_the_scan_of_headers():
    files = written(INDEXED, SAMPLES).at.store.files
    blind = {**files, "00000.tar": bytes(len(files["00000.tar"]))}  # a tar without members
    assert (
        opened(blind).layout["starts"].tolist()
        == opened({"00000.tar": files["00000.tar"]}).layout["starts"].tolist()
    )


def test_a_damaged_or_foreign_index_is_not_used_and_reported():
    files = written(INDEXED, SAMPLES).at.store.files
    index = files["00000.idx.json"]
    wanted = webdataset.read_rows(opened(files), range(4))
    others = written(INDEXED, SAMPLES[:3]).at.store.files["00000.idx.json"]
    for bad in (
        b"",
        b"{}",
        index[:-1],
        index + b" ",
        others,
        index.replace(b'"rows": 4', b'"rows": 5'),
    ):
        shard = opened({**files, "00000.idx.json": bad})
        assert webdataset.read_rows(shard, range(4)) == wanted
        (finding,) = webdataset.verify_shard(shard)
        assert (finding.where, finding.kind, finding.message) == (
            "00000.idx.json",
            "index",
            "not a valid index of this tar; the tar headers are read instead",
        )
    for byte in range(len(index)):
        assert (
            webdataset_index.parse(
                index[:byte] + bytes([index[byte] ^ 4]) + index[byte + 1 :], len(files["00000.tar"])
            )
            is None
        )


def resigned(index, **changes):
    body = {**json.loads(index), **changes}
    del body["xxh3_128"]
    data = json.dumps(body, sort_keys=True).encode()[:-1]
    return b'%s, "xxh3_128": "%s"}\n' % (data, webdataset_index._checksum(data))


def test_an_index_with_a_valid_checksum_is_compared_with_the_size_of_the_tar():
    files = written(INDEXED, SAMPLES).at.store.files
    index, size = files["00000.idx.json"], len(files["00000.tar"])
    table = webdataset_index.parse(resigned(index), size)
    assert table.rows == 4

    def bad(**changes):
        return webdataset_index.parse(resigned(index, **changes), size) is None

    def packed(values):
        return webdataset_index._packed(np.ascontiguousarray(values))

    for row, value in (
        (0, 0),
        (0, 513),
        (0, -5),
        (0, size + 512),
        (1, int(table.starts[0, 0])),
        (0, 1 << 62),
    ):
        starts = table.starts.copy()
        starts[0, row] = value
        assert bad(starts=packed(starts))
    for value in (-1, size, 1 << 62, (1 << 63) - 1):
        sizes = table.sizes.copy()
        sizes[0, 0] = value
        assert bad(sizes=packed(sizes))
    assert bad(starts=packed(table.starts[:1]))
    assert bad(rows=1 << 60)
    assert bad(rows=-1)
    assert bad(columns=["b", "b"])
    assert bad(columns=["b", "__key__"])
    assert bad(columns="bt")
    assert bad(bytes=size + 1)
    assert bad(keys="?")
    assert bad(ends=packed(table.ends[::-1]))
    assert bad(
        starts=packed(table.starts[:, ::-1]), sizes=packed(table.sizes[:, ::-1])
    )  # rows of a batch would be past the end
    assert bad(keys=packed(np.frombuffer(b"k0k1k2k\xff", np.uint8)))
    assert bad(
        keys=packed(np.frombuffer("k0\u00e9k2k3".encode(), np.uint8)),
        ends=packed(np.array([2, 3, 6, 8])),
    )  # a key ends within a character
    swapped = resigned(index, sizes=packed(np.where(table.sizes > 1, table.sizes - 1, table.sizes)))
    (finding,) = webdataset.verify_shard(opened({**files, "00000.idx.json": swapped}))
    assert (finding.kind, finding.message) == (
        "index",
        "the index lists other members than the tar contains",
    )


def test_a_duplicate_member_is_refused_with_its_byte():
    for names in (
        ["a.t", "b.t", "c.t", "d.t", "d.t", "e.t"],
        ["a.t", "b.t", "b.u", "b.v", "b.T", "e.t"],
    ):
        data = b"".join(tar.header(name.encode(), 0) for name in names) + tar.END
        with pytest.raises(
            FormatError, match=f"^x\\[[13]\\]: duplicate member '{names[4]}' at byte 2048$"
        ):
            read_table(byte_ranges.MappedSource(memoryview(data)), "x")


# -- damage


def test_invalid_text_is_reported_with_row_and_column():
    shard = webdataset.open_shard(
        chunk_of(made([("a.txt", b"a"), ("b.jpg", b""), ("c.txt", b"\xff")]))
    )
    for views in (False, True):
        with pytest.raises(ValueFitError) as caught:
            webdataset.read_batch(shard, 0, 3, views=views)
        assert str(caught.value) == "t.tar[2]: column 'txt': str is not UTF-8"
    assert [(one.where, one.kind) for one in webdataset.verify_shard(shard, values=True)] == [
        ("t.tar[2]", "value")
    ]


def test_damage_is_reported_with_row_and_byte():
    data = bytearray(made([("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")]))
    data[2048] ^= 1
    with pytest.raises(FormatError) as caught:
        rows_of(bytes(data))
    assert str(caught.value) == "t.tar[1]: header checksum mismatch at byte 2048"


def test_verify_reports_skipped_members():
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        for name, kind in (
            ("a.jpg", tarfile.REGTYPE),
            ("d", tarfile.DIRTYPE),
            ("b.jpg", tarfile.SYMTYPE),
            ("../c.jpg", tarfile.REGTYPE),
        ):
            one = tarfile.TarInfo(name)
            one.type, one.linkname, one.size = (
                kind,
                "/etc/passwd" if kind == tarfile.SYMTYPE else "",
                3 if kind == tarfile.REGTYPE else 0,
            )
            archive.addfile(one, io.BytesIO(b"abc"))
    data = bytearray(out.getvalue()[: 6 * 512 + 512])
    data[600] = 1
    shard = webdataset.open_shard(chunk_of(bytes(data)))
    assert [(one.where, one.kind, one.message) for one in webdataset.verify_shard(shard)] == [
        ("t.tar", "format", "the padding from byte 515 is not zeros"),
        ("t.tar", "format", "the end marker is 512 bytes, expected whole blocks and at least 1024"),
        ("t.tar", "skipped", "skipped members of kind symbolic link: 1"),
        ("t.tar[1]", "unsafe", "the name '../c' leaves the folder"),
    ]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_damage_of_a_tar_is_an_error_or_a_value(data):
    raw = bytearray(
        (GOLDEN / data.draw(st.sampled_from(NAMES)) / "data" / "00000.tar").read_bytes()
    )
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(raw) // 512 - 1)) * 512 + data.draw(st.integers(0, 511))
        raw[at] = data.draw(st.integers(0, 255))
        if data.draw(st.booleans()):  # the checksum does not detect the damage
            start = at - at % 512
            raw[start + 148 : start + 156] = b" " * 8
            raw[start + 148 : start + 156] = b"%06o\0 " % sum(raw[start : start + 512])
    try:
        shard = webdataset.open_shard(chunk_of(bytes(raw)))
        webdataset.read_rows(shard, range(shard.rows))
        list(webdataset.verify_shard(shard, values=True))
        webdataset.read_batch(shard, 0, shard.rows)
    except FlareError as error:
        assert str(error)
    try:
        list(webdataset.scan_stream([bytes(raw)]))
    except FlareError as error:
        assert str(error)


HOSTILE = """
import resource, sys
from flarecli.formats import find
webdataset = find("webdataset")
from flarecli.errors import FlareError
from flarecli.model import Chunk
from flarecli.storage import locate
at = locate(sys.argv[1])
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # memory of libraries, before data is read
resource.setrlimit(resource.RLIMIT_AS, (used + (512 << 20), used + (512 << 20)))
for chunk in webdataset.open_dataset(at if sys.argv[2] == "maps" else at.unmapped()):
    try:
        shard = webdataset.open_shard(chunk)
        webdataset.read_rows(shard, range(min(shard.rows, 10)))
        print(chunk.at.name, shard.rows)
    except FlareError as error:
        print(chunk.at.name, error.message)
    except MemoryError:  # the file is as large as its headers declare, so it is valid
        print(chunk.at.name, "not enough memory")
    try:
        rows = sum(batch.num_rows for batch in webdataset.scan_stream(chunk.at.blocks()))
        print(chunk.at.name, rows)
    except FlareError as error:
        print(chunk.at.name, error.message)
    except MemoryError:  # the file is as large as its headers declare, so it is valid
        print(chunk.at.name, "not enough memory")
"""


@pytest.mark.parametrize("maps", ["maps", "reads"])
def test_hostile_headers_are_refused_before_anything_is_allocated(tmp_path, maps):
    def head(name, field, kind=b"0"):
        block = bytearray(tar.header(name, 0))
        block[124:136], block[156:157] = field, kind
        block[148:156] = b" " * 8
        block[148:156] = b"%06o\0 " % sum(block)
        return bytes(block)

    big = b"\x80" + (1 << 60).to_bytes(11, "big")
    files = {
        "huge": head(b"a.bin", big),
        "name": head(b"././@LongLink", b"00000000000\0", b"L") + head(b"n", big, b"L"),
        "records": head(b"p", b"77777777777\0", b"x"),
        "zeros": bytes(64 << 20),
        "bomb": tar.header(b"a.bin", 1 << 32) + bytes(1 << 20),
    }
    for name, data in files.items():
        (tmp_path / f"{name}.tar").write_bytes(data)
    with (tmp_path / "sparse.tar").open("wb") as out:  # a sparse file of this size
        out.write(tar.header(b"a.bin", 1 << 31))
        out.truncate((1 << 31) + 2048)
    ran = subprocess.run(
        [sys.executable, "-c", HOSTILE, str(tmp_path), maps],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.stderr == ""
    assert len(ran.stdout.splitlines()) == 2 * 6
    assert (
        "huge.tar the member at byte 0 is 1152921504606846976 bytes; the file ends at byte 512"
        in ran.stdout
    )
    assert "zeros.tar 0" in ran.stdout


def test_rows_of_many_small_members_are_joined_together():
    """Writing members one by one, or calling Arrow for each column and row, would take longer."""
    columns = webdataset.arrange([Column(f"c{i}", "str") for i in range(9000)])
    text = pa.array(["1"] * 8, encodings.TEXT)
    batch = pa.record_batch({column.name: text for column in columns})
    keys = pa.array([str(row) for row in range(8)], encodings.TEXT)
    joined, end = webdataset_write._parts(columns, [batch], [keys])
    assert len(joined) == 8 * 9000 * 2 * tar.BLOCK and end == tar.END


def test_arranging_columns_compares_each_name_a_few_times():
    class Name(str):
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    webdataset.arrange([Column(Name(f"c{i}"), "str") for i in range(1000)])
    assert Name.compared < 10_000
