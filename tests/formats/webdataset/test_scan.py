"""Samples of tars and of streams: names, keys, limits, and every source of bytes."""

import bz2
import gzip
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import (
    FlareError,
    FormatError,
    UnsafeError,
    ValueFitError,
)
from flarecli.formats import byte_ranges
from flarecli.formats.webdataset import scan as webdataset_scan
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.scan import read_table
from flarecli.model import Chunk, Column
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from tests.formats.webdataset.samples import (
    GOLDEN,
    NAMES,
    expected,
    rows_of,
    summary,
    tar_of,
    webdataset,
)
from tests.properties import examples


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
        summary(
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
    assert [summary(row) for row in webdataset.read_rows(shard, range(7))] == expected("plain")
    assert list(webdataset.verify_shard(shard)) == []
    for cut in (len(data) // 2, len(data) - 1):
        with pytest.raises(FormatError):
            list(webdataset.scan_stream(iter([data[:cut]])))


def test_a_stream_of_many_batches_keeps_its_columns():
    blocks = [tar_of([(f"{i}.bin", b"x" * 1_000_000) for i in range(40)])]
    batches = list(webdataset.scan_stream(blocks))
    assert [batch.num_rows for batch in batches] == [17, 17, 6]
    late = tar_of([*((f"{i}.bin", b"x" * 1_000_000) for i in range(20)), ("z.txt", b"late")])
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


def test_a_member_of_a_stream_cannot_replace_the_key():
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([tar_of([("a.txt", b""), ("b.__KEY__", b"x")])]))
    assert str(caught.value) == "-[1]: the extension .__key__ is reserved for the key of a sample"


def test_errors_in_a_stream_have_the_row_across_batches(monkeypatch):
    monkeypatch.setattr(webdataset_scan, "MAX_BATCH_ROWS", 2)
    data = tar_of([(f"{i}.txt", b"\xff" if i == 4 else b"x") for i in range(6)])
    with pytest.raises(ValueFitError) as caught:
        list(webdataset.scan_stream([data]))
    assert str(caught.value) == "-[4]: column 'txt': str is not UTF-8"
    late = tar_of([(f"{i}.{'jpg' if i == 5 else 'txt'}", b"x") for i in range(6)])
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([late]))
    assert str(caught.value) == "-[5]: unexpected extension .jpg: the columns do not include it"
    name = b"5.\xff".decode(errors="surrogateescape")
    invalid = tar_of([*((f"{i}.txt", b"x") for i in range(5)), (name, b"x")])
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([invalid]))
    assert str(caught.value) == "-[5]: the extension b'\\xff' is not UTF-8"


def test_batches_of_a_stream_have_bounded_bytes(monkeypatch):
    monkeypatch.setattr(webdataset_scan, "MAX_BATCH_BYTES", 10)
    data = tar_of([(f"{i}.bin", b"x" * size) for i, size in enumerate([3, 3, 3, 40, 9, 0, 0])])
    assert [batch.num_rows for batch in webdataset.scan_stream([data])] == [3, 1, 1, 2]


def test_a_truncated_stream_is_reported():
    data = tar_of([("a.txt", b"x" * 700), ("b.txt", b"y")])[:4096]
    assert [batch.num_rows for batch in webdataset.scan_stream([data])] == [2]
    for cut in (1, 511, 512, 600, 1211, 1212, 1300, 1536, 2047, 2048, 2049, 2560):
        with pytest.raises(FormatError) as caught:
            list(webdataset.scan_stream([data[:cut]]))
        assert (
            caught.value.message
            == f"data ends at byte {cut}, {'without an end marker' if cut < 512 or cut in (1536, 2047, 2560) else 'inside a member'}"
        )


# -- keys and extensions


def test_names_are_split_as_webdataset_splits_them():
    data = tar_of(
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


@settings(max_examples=examples(500), deadline=None)
@given(st.text("a.b/_\n", max_size=12))
def test_names_are_split_by_the_rule_of_webdataset(name):
    found = re.fullmatch(
        r"((?:.*/|)[^.]+)[.]([^/]*)", name, re.DOTALL
    )  # webdataset's `base_plus_ext`, except for names that start with `__`
    wanted = found and tuple(part.encode() for part in found.groups())
    assert webdataset_scan.split(name.encode()) == (
        None if re.match(r"__[^/]*__(/|$)", name) else wanted
    )


_LONG = """
import sys
sys.path[:0] = {path!r}
from flarecli.formats.webdataset import scan
for name in (b"/" * 1_000_000, b"/" * 1_000_000 + b"a.b/.c", b"a/" * 500_000 + b".b", b"__" + b"_" * 1_000_000 + b"x", b"x" * 1_000_000):
    print(scan.split(name) is not None)
"""


def test_names_of_a_megabyte_are_split_in_linear_time():
    code = _LONG.format(path=[str(Path(__file__).parents[3])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["False", "False", "True", "False", "False"]


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
        rows_of(tar_of(files))
    assert str(caught.value) == said


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


def test_many_extensions_of_few_samples_allocate_no_memory():
    with pytest.raises(
        FormatError,
        match=r"^t\.tar: too many extensions: 1000 in 3000 samples, which contain only 3000 members$",
    ):
        rows_of(tar_of([(f"{i}.{i % 1000}", b"") for i in range(3000)]))


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


@settings(max_examples=examples(200), deadline=None)
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
    raw = bytearray(tar_of(sorted(dict(files).items()) if ordered else files, format))
    for _ in range(data.draw(st.integers(0, 2))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    table_of_every_source(bytes(raw))


def test_headers_inside_of_members_are_data():
    inner = tar_of([(f"{i}.txt", b"x" * i) for i in range(40)])
    outer = tar_of([("a.txt", b"1"), ("a.tar", inner), ("b.tar", inner), ("c.txt", b"2")])
    assert table_of_every_source(outer)[0] == ("txt", "tar")
    assert [row["__key__"] for row in rows_of(outer)] == [b"a", b"b", b"c"]


@pytest.mark.parametrize("length", [1, 99, 100])
def test_names_that_fill_their_field_are_read(length):
    table = table_of_every_source(
        tar_of(
            [("k" * (length - 4) + f"{i}.b" if length > 1 else str(i), b"") for i in range(9)],
            tarfile.USTAR_FORMAT,
        )
    )
    assert len(table[2]) == 9 * (length > 1)


def test_many_small_members_over_several_reads_are_found():
    data = tar_of(
        [(f"{i // 2:06}.{('cls', 'txt')[i % 2]}", b"x" * (i % 1500)) for i in range(3000)]
    )
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


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(odd_headers(), min_size=1, max_size=12), st.booleans())
def test_unusual_headers_are_read_or_refused_the_same_from_every_source(blocks, is_cut):
    table_of_every_source(b"".join(blocks) + (b"" if is_cut else tar.END))


@pytest.mark.parametrize("name", NAMES)
def test_every_source_finds_the_samples_of_the_original(name):
    data = (GOLDEN / name / "data" / "00000.tar").read_bytes()
    assert table_of_every_source(data) is not None
