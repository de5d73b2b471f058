"""Standard input and FIFOs: kinds that the content determines, `--input`, and invalid streams."""

import bz2
import contextlib
import gzip
import io
import json
import os
import pickle
import pty
import sys
import tarfile
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.formats.tables import decompress
from flarecli.ingest import open_index
from flarecli.ingest.stdin import open_streams, sniff
from flarecli.storage import Guard
from flarecli.write.journal import Journal
from tests.ingest.samples import rows_of, write_files

TABLE = pa.table({"id": [1, 2, 3], "name": ["x", "y;z", "ä"]})
CSV = b"id,name\n1,x\n2,y;z\n3,\xc3\xa4\n"
JSONL = b'{"id": 1, "name": "x"}\n{"id": 2, "name": "y;z"}\n{"id": 3, "name": "\xc3\xa4"}\n'


class Pipe(io.RawIOBase):
    """A stream that can be read once and records its position."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_so_far = io.BytesIO(data), 0

    def read(self, size=-1):
        found = self.data.read(size)
        self.read_so_far += len(found)
        return found


@contextlib.contextmanager
def streamed(data, path=None):
    """Yield the name of a pipe (or of a FIFO at `path`) into which a thread writes."""
    if path is None:
        reader, writer = os.pipe()
    else:
        os.mkfifo(path)
        reader = writer = None

    def write():
        with (
            contextlib.suppress(BrokenPipeError),
            open(path if writer is None else writer, "wb") as file,
        ):
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield f"/dev/fd/{reader}" if path is None else str(path)
    finally:
        if reader is not None:
            os.close(reader)
        thread.join()


def arrow(open_writer=pa.ipc.new_stream):
    sink = pa.BufferOutputStream()
    with open_writer(sink, TABLE.schema) as writer:
        writer.write_table(TABLE)
    return sink.getvalue().to_pybytes()


def parquet():
    sink = pa.BufferOutputStream()
    pq.write_table(TABLE, sink)
    return sink.getvalue().to_pybytes()


def tar(members=(("a/1.cls", b"7"), ("a/1.txt", b"one"), ("a/2.cls", b"8"), ("a/2.txt", b"two"))):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            out.addfile(info, io.BytesIO(data))
    return file.getvalue()


def packed(source, out, **options):
    flarecli.pack(source, out, **options)
    return [dict(row) for row in flarecli.open(str(out))]


CONTENTS = {
    "x.csv": CSV,
    "bom.csv": b"\xef\xbb\xbf" + CSV,
    "semicolon.csv": b"id;name\n1;x\n2;y,z\n",
    "pipe.csv": b"id|name\n1|x\n2|y\n",
    "utf16.csv": "id;name\n1;ä\n".encode("utf-16"),
    "x.tsv": b"id\tname\n1\tx, y\n2\ty\n",
    "semicolon.txt": b"id;name\n1;x\n2;y\n",
    "comma.txt": b"id,name\n1,x\n2,y\n",
    "tab.txt": b"id\tname\n1\tx, y\n",
    "x.csv.gz": gzip.compress(CSV),
    "x.csv.bz2": bz2.compress(CSV),
    "x.csv.zst": zstandard.compress(CSV),
    "x.jsonl": JSONL,
    "utf16.jsonl": JSONL.decode().encode("utf-16"),
    "x.json": b'\n [{"id": 1}, {"id": 2}]',
    "x.jsonl.gz": gzip.compress(JSONL),
    "stream.arrow": arrow(),
    "file.arrow": arrow(pa.ipc.new_file),
    "x.parquet": parquet(),
    "x.tar": tar(),
    "x.tgz": gzip.compress(tar()),
}


@pytest.mark.parametrize("name", CONTENTS)
def test_a_stream_has_the_rows_of_a_file_with_the_same_content(tmp_path, name):
    (tmp_path / name).write_bytes(CONTENTS[name])
    rows = packed(tmp_path / name, tmp_path / "one")
    assert rows
    with streamed(CONTENTS[name]) as pipe:
        assert packed(pipe, tmp_path / "two") == rows
    shards = [(tmp_path / out / "shard.00000.mds").read_bytes() for out in ("one", "two")]
    assert shards[0] == shards[1]


def test_the_output_does_not_depend_on_the_name_of_the_stream(tmp_path):
    for out in ("one", "two"):
        with contextlib.ExitStack() as stack:
            names = [stack.enter_context(streamed(CSV)) for _ in range(1 + (out == "two"))]
            flarecli.pack(names[-1], tmp_path / out)
    playlists = [(tmp_path / out / "playlist.yaml").read_bytes() for out in ("one", "two")]
    assert playlists[0] == playlists[1]
    assert b"/dev/fd" not in playlists[0]


def test_a_compressed_parquet_or_arrow_stream_is_decompressed(tmp_path):
    for data in (gzip.compress(parquet()), zstandard.compress(arrow())):
        with streamed(data) as pipe:
            rows = packed(pipe, tmp_path / "out", overwrite=True)
        assert rows == TABLE.to_pylist()


# -- lists


def test_addresses_are_rows_with_a_name_and_the_contents(tmp_path, in_tmp_path, web):
    write_files(tmp_path, {"a/x.flac": "one", "y.flac": "two"})
    outside = tmp_path.parent / f"{tmp_path.name}.outside"
    outside.write_text("three")
    far = web.file("/z.flac?sig=secret", b"four").replace("http://", "http://me:pass@")
    web.file("/z.flac", b"four")
    guard, text = Guard(allow_private=True), f"./a/x.flac\ny.flac\r\n\n{outside}\n{far}"
    found = open_index("-", guard=guard, stdin=Pipe(text.encode()))
    assert (found.links, found.key, found.rows) == (("data",), "name", None)
    assert [row["name"] for row in rows_of(found)] == [
        "./a/x.flac",
        "y.flac",
        str(outside),
        far.replace("me:pass@", "").replace("?sig=secret", ""),
    ]
    ((batch, flaws),) = found.filled(found.batches(), found.links)
    assert (batch.column("data").to_pylist(), flaws) == ([b"one", b"two", b"three", b"four"], [])


def test_local_files_and_urls_in_a_long_list_keep_their_order(tmp_path, in_tmp_path, web):
    write_files(tmp_path, {f"{row}.bin": f"{row}" for row in range(1500) if row != 9})
    names = [f"{row}.bin" for row in range(1500)]
    wanted = [None if row == 9 else f"{row}".encode() for row in range(1500)]
    for row in (700, 1499):
        names[row], wanted[row] = web.file(f"/{row}", b"remote"), b"remote"
    guard = Guard(allow_private=True)
    found = open_index("-", guard=guard, stdin=Pipe("\n".join(names).encode()))
    values, failed = [], []
    for batch, flaws in found.filled(found.batches(), found.links):
        failed += [len(values) + flaw.row for flaw in flaws]
        values += batch.column("data").to_pylist()
    assert (values, failed) == (wanted, [9])


def test_addresses_with_newlines_are_separated_by_nul():
    found = open_index("-", null_separated=True, stdin=Pipe(b"a\nb.jpg\0{c}.jpg\0"))
    assert rows_of(found, ["name"]) == [{"name": "a\nb.jpg"}, {"name": "{c}.jpg"}]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"http://h/a,b.jpg\nhttp://h/c,d.jpg\n", "lines"),
        (b"http://h/a.jpg\tone\n", "csv"),
        (b"http://h/a.jpg|one\n", "csv"),
        (b"url,caption\nhttp://h/a.jpg,one\n", "csv"),
        (b"[x].jpg\n", "lines"),
        (b"[\n", "jsonl"),
        (b"there.jpg\ngone.jpg\n", "lines"),
        (b"there.jpg\ngone.jpg\ngone.jpg\n", None),
        (b"gone.jpg\nthere.jpg\n", None),
        ("\ufeffthere.jpg\r\n".encode(), "lines"),
        ("there.jpg\r\n".encode("utf-16"), "lines"),
        (b"a,b;c\n1,2;3\n", "csv"),
        (b'"a,b"\n1\n', None),
        (b"caf\xe9;b\n", "csv"),
        (b"a\x01,b\n", None),
        (b"\xff\xff\xff\xff", "arrow"),
        (tar()[:512], "tar"),
        (tar().replace(b"ustar\x0000", bytes(8)), None),
        (bytes(10240), "tar"),
        (bytes(1 << 16), None),
    ],
)
def test_the_first_bytes_determine_the_kind(tmp_path, in_tmp_path, data, kind):
    write_files(tmp_path, {"there.jpg": "", "[x].jpg": ""})
    (spool,) = open_streams(["-"], Pipe(data))
    if kind is None:
        with pytest.raises(FormatError):
            sniff(spool)
    else:
        assert sniff(spool) == kind


def test_a_v7_header_is_recognized_by_its_checksum():
    block = bytearray(tar([("a.txt", b"1")])[:512])
    block[257:265] = bytes(8)
    total = sum(block[:148]) + 8 * 32 + sum(block[156:])
    block[148:156] = b"%06o\0 " % total
    (spool,) = open_streams(["-"], Pipe(bytes(block) + bytes(512)))
    assert sniff(spool) == "tar"


# -- any bytes

TEXTS = st.text(st.sampled_from('ab1,;|\t\n\r"{}[]:/. \0é'), max_size=60).map(str.encode)
HEADS = st.sampled_from(
    [b"", b"PAR1", b"ARROW1\0\0", b"\xff" * 4, b"\x1f\x8b\x08", b"BZh9", b"\xff\xfe", b"[", b"{"]
)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=80) | TEXTS, HEADS, st.sampled_from([None, "csv", "tsv", "lines"]))
def test_any_bytes_are_rows_or_an_error(data, head, kind):
    with contextlib.suppress(FlareError):
        for batch in open_index("-", stdin=Pipe(head + data), kind=kind).batches():
            batch.validate(full=True)


@settings(max_examples=150, deadline=None)
@given(
    data=TEXTS.map(lambda text: b"k,n\n" + text.replace(b"\0", b"")) | TEXTS,
    suffix=st.sampled_from(["csv", "jsonl"]),
)
def test_any_text_is_read_like_a_named_file(tmp_path_factory, data, suffix):
    path = tmp_path_factory.mktemp("named") / f"x.{suffix}"
    path.write_bytes(data)

    def outcome(source, **options):
        try:
            return rows_of(open_index(source, **options))
        except FlareError as error:
            return error.message, error.exit_code

    (spool,) = open_streams(["-"], Pipe(data)) if data.strip() else (None,)
    try:
        kind = spool and sniff(spool)
    except FormatError:
        return
    if kind == suffix:
        assert outcome([spool]) == outcome(str(path))


# -- --input


@pytest.mark.parametrize(
    ("kind", "data", "rows"),
    [
        ("csv", b"n\n1\n2\n", [{"n": 1}, {"n": 2}]),
        ("csv", gzip.compress(b"n\n1\n"), [{"n": 1}]),
        ("csv", b'{"a";b\n1;2\n', None),
        ("tsv", b"a, b\n1, 2\n", [{"a, b": "1, 2"}]),
        ("jsonl", b'{"n": 1}\n', [{"n": 1}]),
        ("arrow", arrow(), TABLE.to_pylist()),
        ("parquet", parquet(), TABLE.to_pylist()),
        (
            "tar",
            tar([("a.bin", b"1"), ("b.bin", b"2")]),
            [{"__key__": "a", "bin": b"1"}, {"__key__": "b", "bin": b"2"}],
        ),
        ("files", b"n\n1\n", [{"name": "data.dat", "data": b"n\n1\n"}]),
    ],
)
def test_input_names_the_kind_of_files_and_streams(tmp_path, kind, data, rows):
    (tmp_path / "data.dat").write_bytes(data)
    options = {"format": "webdataset"} if kind == "tar" else {}
    if rows is None:
        with pytest.raises(FormatError):
            packed(tmp_path / "data.dat", tmp_path / "one", input=kind)
        return
    found = packed(tmp_path / "data.dat", tmp_path / "one", input=kind, **options)
    assert found == rows
    with streamed(data) as pipe:
        found = packed(pipe, tmp_path / "two", input=kind, **options)
    assert found == ([{**rows[0], "name": "stdin"}] if kind == "files" else rows)


def test_input_applies_to_every_source(tmp_path, web):
    (tmp_path / "a.dat").write_bytes(b"n\n1\n")
    remote = web.file("/b", b"n\n2\n") + "?id=7"
    with streamed(b"n\n3\n") as pipe:
        rows = packed([tmp_path / "a.dat", remote, pipe], tmp_path / "out", input="csv")
    assert rows == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_a_table_is_packed_as_one_row_with_input_files(tmp_path):
    for name in ("a.csv", "b.parquet"):
        (tmp_path / name).write_bytes(b"n\n1\n")
    sources = [tmp_path / "a.csv", tmp_path / "b.parquet"]
    assert packed(sources, tmp_path / "out", input="files") == [
        {"name": "a.csv", "data": b"n\n1\n"},
        {"name": "b.parquet", "data": b"n\n1\n"},
    ]


def test_a_list_of_addresses_in_a_file_is_relative_to_its_folder(tmp_path):
    write_files(tmp_path, {"in/a.bin": "one", "in/list.lst": "a.bin\n", "b.bin": "two"})
    assert packed(tmp_path / "in/list.lst", tmp_path / "out", input="lines") == [
        {"name": "a.bin", "data": b"one"}
    ]
    (tmp_path / "in/list.lst").write_text("../b.bin\n")
    with pytest.raises(UnsafeError) as caught:
        flarecli.pack(tmp_path / "in/list.lst", tmp_path / "two", input="lines")
    assert caught.value.hint == (
        "Pass --allow-local if you trust this dataset, or --on-error skip to omit such rows."
    )
    rows = packed(tmp_path / "in/list.lst", tmp_path / "two", input="lines", allow_local=True)
    assert rows == [{"name": "../b.bin", "data": b"two"}]


def test_streams_and_files_are_concatenated(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"n,t\n1,a\n")
    with streamed(b'{"t": "b", "n": 2}\n') as one, streamed(b"n;t\n3;c\n") as two:
        rows = packed([tmp_path / "x.csv", one, two], tmp_path / "out")
    assert rows == [{"n": 1, "t": "a"}, {"n": 2, "t": "b"}, {"n": 3, "t": "c"}]


def test_streams_of_tar_archives_are_concatenated(tmp_path):
    with streamed(tar([("a.bin", b"1")])) as one, streamed(tar([("b.bin", b"2")])) as two:
        rows = packed([one, two], tmp_path / "out", format="webdataset")
    assert [row["__key__"] for row in rows] == ["a", "b"]


# -- reading and resuming


def test_a_stream_is_read_on_demand_and_can_be_read_again(monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    data = b"".join(b'{"n": %d}\n' % n for n in range(5000))
    pipe = Pipe(data)
    found = open_index("-", stdin=pipe)
    next(found.batches())
    assert pipe.read_so_far <= 3000
    first, second = found.batches(), found.batches()
    mixed = [next(first), next(second), *first]
    assert sum(batch.num_rows for batch in mixed) - mixed[1].num_rows == 5000
    assert found.sum() == open_index("-", stdin=Pipe(data)).sum()
    assert found.count("n >= 4000") == 1000


@pytest.mark.parametrize("data", [CSV, JSONL, arrow(), parquet(), tar()])
def test_a_pack_is_resumed_if_the_same_bytes_come_again(tmp_path, data):
    with streamed(data) as pipe:
        flarecli.pack(pipe, tmp_path / "out")
    with streamed(data) as pipe:
        done = flarecli.pack(pipe, tmp_path / "out", resume=True)
    assert done.resumed_rows == done.rows > 0
    changed = {CSV: CSV + b"4,z\n", JSONL: JSONL + JSONL, tar(): tar([("a.txt", b"x")])}
    with streamed(changed.get(data, CSV)) as pipe, pytest.raises(UsageError) as caught:
        flarecli.pack(pipe, tmp_path / "out", resume=True)
    assert caught.value.message == (
        "the folder contains a dataset from a different source or with different options"
    )


@pytest.mark.parametrize("kind", ["csv", "parquet", "tar"])
def test_an_interrupted_pack_of_a_stream_is_resumed_to_the_same_bytes(tmp_path, monkeypatch, kind):
    data = {"csv": CSV, "parquet": parquet(), "tar": tar()}[kind]
    with streamed(data) as pipe:
        flarecli.pack(pipe, tmp_path / "whole", shard_rows=1)
    record = Journal.record_shard

    def interrupt(self, *args):
        record(self, *args)
        raise KeyboardInterrupt

    with (
        monkeypatch.context() as patch,
        streamed(data) as pipe,
        pytest.raises(KeyboardInterrupt),
    ):
        patch.setattr(Journal, "record_shard", interrupt)
        flarecli.pack(pipe, tmp_path / "out", shard_rows=1)
    other = tar([("z.txt", b"z")]) if kind == "tar" else CSV + b"4,z\n"
    with streamed(other) as pipe, pytest.raises(UsageError) as caught:
        flarecli.pack(pipe, tmp_path / "out", shard_rows=1, resume=True)
    assert caught.value.message.startswith("the unfinished pack was started with ")
    with streamed(data) as pipe:
        done = flarecli.pack(pipe, tmp_path / "out", shard_rows=1, resume=True)
    assert done.resumed_rows == 1
    names = sorted(path.name for path in (tmp_path / "whole").iterdir())
    assert names == sorted(path.name for path in (tmp_path / "out").iterdir())
    for name in names:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_resumed_pack_needs_the_same_input_option(tmp_path):
    (tmp_path / "x.dat").write_bytes(b"a;b\n1;2\n")
    flarecli.pack(tmp_path / "x.dat", tmp_path / "out", input="csv")
    with pytest.raises(UsageError):
        flarecli.pack(tmp_path / "x.dat", tmp_path / "out", input="tsv", resume=True)


# -- FIFOs


def test_a_typed_fifo_is_read_and_a_fifo_that_data_names_is_not(tmp_path, in_tmp_path):
    with streamed(CSV, "pipe.csv") as pipe:
        assert packed(pipe, "out") == TABLE.to_pylist()
    os.symlink("pipe.csv", "link")
    with streamed_again(CSV, "pipe.csv"):
        assert packed("link", "two") == TABLE.to_pylist()
    (tmp_path / "list.txt").write_text("pipe.csv\n")
    for source in ("list.txt", "*.csv"):
        with pytest.raises(UnsafeError) as caught:
            flarecli.pack(source, "three")
        assert caught.value.message in ("not a regular file", "line 1: not a regular file")
    with streamed(b"pipe.csv\n") as pipe, pytest.raises(UnsafeError) as caught:
        flarecli.pack(pipe, "three")
    assert "not a regular file" in caught.value.message


@contextlib.contextmanager
def streamed_again(data, path):
    def write():
        with open(path, "wb") as file:
            file.write(data)

    thread = threading.Thread(target=write)
    thread.start()
    yield
    thread.join()


# -- invalid streams


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b" \n", {}, "-: standard input is empty"),
        (b"", {}, "-: standard input is empty"),
        (gzip.compress(b""), {}, "-: standard input is empty"),
        (b"a.jpg\ncaf\xe9.jpg\n", {"kind": "lines"}, "-: line 2: byte 0xe9 is not UTF-8"),
        (
            b"/dev/null\0b.jpg\0",
            {},
            "-: line 1: '/dev/null\\\\x00b.jpg\\\\x00' contains a NUL",
        ),
        (b"x" * 100_000, {"kind": "lines"}, "-: line 1: address is longer than 65536 bytes"),
        (
            b'{"n": 1}\n{"n": "x"}',
            {},
            "-: line 2: column 'n' contains text; earlier rows contain a number",
        ),
        (b"a,b\n1,2\n3\n", {}, "-: line 3 has 1 field; the header has 2"),
        (b"a;b\n1;2\n3;4\n5\n", {}, "-: line 4 has 1 field; the header has 2"),
        (gzip.compress(CSV)[:-9], {}, "-: the gz file is truncated"),
        (parquet()[:-1], {}, "-: truncated parquet file: it does not end with PAR1"),
        (b"a,b\n", {}, "-: table has no rows"),
        (
            b",".join(b"c%d" % n for n in range(10_001)) + b"\n1\n",
            {},
            "-: 10001 columns; the maximum is 10000",
        ),
    ],
)
def test_invalid_standard_input_is_reported(data, options, message):
    with pytest.raises(FormatError) as caught:
        rows_of(open_index("-", stdin=Pipe(data), **options))
    assert str(caught.value) == message


EXPECTED = (
    "expected an Arrow stream, parquet, JSON lines, CSV or TSV with a header, a tar, "
    "or a list of URLs or existing paths"
)


@pytest.mark.parametrize(
    ("data", "message", "hint"),
    [
        (
            b"hello\nworld\n",
            f"unknown kind of stream; {EXPECTED}",
            "Set the kind of the stream with --input, such as csv for a table with one column, "
            "or lines for a list of addresses.",
        ),
        (
            b"fLaC\0\0",
            f"the stream contains flac; {EXPECTED}",
            "Set the kind of the stream with --input; use --input files to read the stream as one row.",
        ),
        (
            b"\x7fELF\1\1",
            f"unknown kind of stream; {EXPECTED}",
            "Set the kind of the stream with --input; use --input files to read the stream as one row.",
        ),
        (
            b"\xfd7zXZ\0\0",
            "the stream is compressed with xz",
            "Decompress the stream with `xz -dc`.",
        ),
    ],
)
def test_an_unknown_stream_names_what_was_expected(tmp_path, data, message, hint):
    with streamed(data) as pipe, pytest.raises(FormatError) as caught:
        flarecli.pack(pipe, tmp_path / "out")
    error = caught.value
    assert (error.message, error.hint, error.exit_code, error.where) == (message, hint, 4, pipe)
    assert not (tmp_path / "out").exists()


class Endless(io.RawIOBase):
    """A stream that repeats bytes without end."""

    def __init__(self, data):
        self.data, self.read_so_far = data, 0

    def read(self, size=-1):
        self.read_so_far += size
        return (self.data * (size // len(self.data) + 1))[:size]


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"x", None, f"-: unknown kind of stream; {EXPECTED}"),
        (b"\n", None, "-: standard input is empty"),
        (bytes(1), None, f"-: unknown kind of stream; {EXPECTED}"),
        (b"x", "lines", "-: line 1: address is longer than 65536 bytes"),
        (b"x", "csv", "-: line 1: a record is longer than 8.0 MB"),
        (b"[", "jsonl", "-[0]: a row is longer than 8.0 MB"),
    ],
)
def test_an_endless_line_ends_after_a_bounded_number_of_bytes(monkeypatch, data, kind, message):
    monkeypatch.setattr("flarecli.formats.tables.text_records.MAX_RECORD_BYTES", 8_000_000)
    stream = Endless(data)
    with pytest.raises(FormatError) as caught:
        rows_of(open_index("-", stdin=stream, kind=kind))
    assert str(caught.value) == message
    assert stream.read_so_far <= 20 << 20


def test_a_decompression_bomb_is_refused(monkeypatch):
    monkeypatch.setattr("flarecli.expansion.FREE_BYTES", 1 << 20)
    data = gzip.compress(b"n,m\n" + b"1,2\n" * (1 << 22))
    with pytest.raises(IntegrityError) as caught:
        rows_of(open_index("-", stdin=Pipe(data)))
    assert caught.value.message.startswith("decompresses to more than ")


def test_a_stream_is_named_once():
    with pytest.raises(UsageError) as caught:
        open_streams(["-", "/dev/stdin"], Pipe(CSV))
    assert (str(caught.value), caught.value.hint) == (
        "-: a stream can be read only once",
        "Pass the stream only once.",
    )


def test_a_stream_is_not_sent_to_another_process():
    (spool,) = open_streams(["-"], Pipe(CSV))
    with pytest.raises(UsageError) as caught:
        pickle.dumps(spool.location)
    assert str(caught.value) == "-: a stream cannot be sent to another process"


def test_a_list_of_addresses_is_the_only_source(tmp_path):
    (tmp_path / "x.csv").write_bytes(CSV)
    with pytest.raises(UsageError) as caught:
        open_index(["-", str(tmp_path / "x.csv")], stdin=Pipe(b"/dev/null\n"))
    assert (str(caught.value), caught.value.hint) == (
        "-: a list of addresses cannot be combined with other sources",
        "Pack the list alone, or set one kind for all sources with --input.",
    )


def test_a_tar_cannot_be_combined_with_a_table(tmp_path):
    with (
        streamed(tar()) as one,
        streamed(CSV) as two,
        pytest.raises(UsageError) as caught,
    ):
        flarecli.pack([one, two], tmp_path / "out")
    assert caught.value.message == "the sources are of different kinds"


def test_a_terminal_is_not_read(monkeypatch):
    _, terminal = pty.openpty()
    with open(terminal, "rb", buffering=0) as file:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(file)))
        with pytest.raises(UsageError) as caught:
            open_index("-")
    assert (str(caught.value), caught.value.hint, caught.value.exit_code) == (
        "-: standard input is a terminal; expected data from a pipe or a file",
        "Pipe data into flare, such as `cat rows.csv | flare pack - out`, or specify a file.",
        2,
    )


def test_nul_separated_addresses_are_a_list(tmp_path):
    with pytest.raises(UsageError) as caught:
        flarecli.pack("-", tmp_path / "out", from0=True, input="csv")
    assert str(caught.value) == "-0 needs a list of addresses (--input lines), got --input csv"
    write_files(tmp_path, {"in/a.bin": "one", "in/l.txt": "a.bin\0"})
    for source in (tmp_path / "in/l.txt", tmp_path / "in"):
        with pytest.raises(UsageError) as caught:
            flarecli.pack(source, tmp_path / "out", from0=True)
        assert (str(caught.value), caught.value.hint) == (
            f"{source}: -0 needs a list of addresses on stdin, or a source with --input lines",
            "Use --input lines -0 if the source is a list of addresses; otherwise omit -0.",
        )
    rows = packed(tmp_path / "in/l.txt", tmp_path / "out", from0=True, input="lines")
    assert rows == [{"name": "a.bin", "data": b"one"}]


def test_the_kind_of_a_python_object_cannot_be_named(tmp_path):
    with pytest.raises(UsageError) as caught:
        flarecli.pack(TABLE, tmp_path / "out", input="csv")
    assert str(caught.value) == "--input cannot be used with a Python object"


def test_a_dialect_applies_to_streams_and_to_text_files(tmp_path, in_tmp_path):
    (tmp_path / "x.txt").write_bytes(b"a#b\n1#2\n")
    for source in ("x.txt", None):
        with streamed(b"a#b\n1#2\n") as pipe:
            rows = packed(source or pipe, "out", csv=["delimiter=#"], overwrite=True)
        assert rows == [{"a": 1, "b": 2}]
    with streamed("a\nç\n".encode("cp1252")) as pipe:
        assert packed(pipe, "three", csv=["encoding=cp1252"]) == [{"a": "ç"}]


def test_a_list_of_tables_in_utf16_is_a_list(tmp_path):
    (tmp_path / "x.csv").write_bytes(CSV)
    (tmp_path / "list.txt").write_text("x.csv\nx.csv\n", encoding="utf-16")
    assert rows_of(open_index(str(tmp_path / "list.txt"))) == 2 * TABLE.to_pylist()


def test_failed_rows_of_a_stream_are_listed_under_one_name(tmp_path):
    with streamed(b'{"id": 1, "name": null}\n{"id": 2, "name": "x"}\n') as pipe:
        flarecli.pack(pipe, tmp_path / "out", on_error="skip")
    (line,) = (tmp_path / "out/failed.jsonl").read_text().splitlines()
    assert (json.loads(line)["file"], json.loads(line)["row"]) == ("-", 0)


def test_a_stream_that_was_read_without_a_copy_is_not_read_again():
    data = bytes(range(256)) * (1 << 15)
    (stream,) = open_streams(["-"], io.BytesIO(data))
    assert b"".join(stream.drain()) == data
    with pytest.raises(ReachError) as caught:
        list(stream.blocks())
    assert str(caught.value) == "-: the stream was already read, and can be read only once"


def test_only_the_first_block_of_a_stream_has_4_mb():
    data = bytes(range(256)) * (7 << 12)  # 7 MiB
    (spool,) = open_streams(["-"], io.BytesIO(data))
    blocks = list(spool.blocks())
    assert [len(block) >> 20 for block in blocks] == [4, 1, 1, 1]
    assert b"".join(blocks) == b"".join(spool.blocks()) == data
