"""WebDataset: files of the original, listings, batches, verify and damage."""

import io
import subprocess
import sys
import tarfile

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings, read
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    ValueFitError,
)
from flarecli.formats import byte_ranges
from flarecli.formats.webdataset import format as webdataset_format
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.model import Chunk, File
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from tests.formats.webdataset.samples import (
    GOLDEN,
    NAMES,
    batch_of,
    chunk_of,
    columns_of,
    expected,
    open_files,
    rows_of,
    summary,
    tar_of,
    webdataset,
    write_batches,
)
from tests.properties import examples


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_datasets_of_the_original_are_read(name, maps):
    at = locate(str(GOLDEN / name / "data"))
    (chunk,) = webdataset.open_dataset(at if maps else at.unmapped())
    shard = webdataset.open_shard(chunk)
    rows = webdataset.read_rows(shard, range(shard.rows))
    assert [summary(row) for row in rows] == expected(name)
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


def test_a_listed_row_count_is_compared():
    chunk = chunk_of(tar_of([("a.jpg", b"1")]))
    with pytest.raises(
        FormatError, match=r"^t\.tar: contains 1 samples; the playlist or index lists 2$"
    ):
        webdataset.open_shard(Chunk(chunk.at, 2))


def test_a_folder_is_listed_with_its_indexes():
    store = MemoryStore(
        dict.fromkeys(("b.tar", "a.tar", "a.idx.json", "sub/c.tar", "readme"), b"x")
    )
    stream = webdataset.open_dataset(Location(store, ""))
    assert stream.urls == ["a.tar", "b.tar"]
    assert stream.parts == [(File("a.idx.json", 1),), ()]
    with pytest.raises(MissingError, match=r"folder contains no \.tar files$"):
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


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("limit", [1 << 31, 3000, 40])
def test_missing_members_are_null_in_any_slice(tmp_path, monkeypatch, maps, limit):
    monkeypatch.setattr(byte_ranges, "VIEW_LIMIT", limit)
    columns = columns_of(__key__="str", b="bytes", t="str")
    rows = [
        (
            f"{i:03}",
            None if i % 3 else bytes([i]) * (i * 7 % 40),
            f"text {i}" * (i % 5) if i % 3 or i % 2 else None,
        )
        for i in range(40)
    ]
    for name, data in write_batches(
        columns, batch_of(columns, rows[:15]), batch_of(columns, rows[15:])
    ).items():
        (tmp_path / name).write_bytes(data)
    at = locate(str(tmp_path / "00000.tar"))
    shard = webdataset.open_shard(Chunk(at if maps else at.unmapped()), columns)
    for start, stop in ((0, 40), (1, 3), (15, 16), (13, 29), (40, 40), (0, 0)):
        for views in (False, True):
            for chosen in (None, ["t"], ["b", "__key__"], []):
                names = ["__key__", "b", "t"] if chosen is None else chosen
                batch = webdataset.read_batch(shard, start, stop, chosen, views=views)
                batch.validate(full=True)
                assert batch.num_rows == stop - start
                assert batch.to_pylist() == [
                    {name: row[["__key__", "b", "t"].index(name)] for name in names}
                    for row in rows[start:stop]
                ]
    wanted = [
        {"__key__": key.encode(), "b": b, "t": t if t is None else t.encode()} for key, b, t in rows
    ]
    assert webdataset.read_rows(shard, [39, 0, 0, 17]) == [
        wanted[39],
        wanted[0],
        wanted[0],
        wanted[17],
    ]


@pytest.mark.parametrize(
    ("columns", "reads"), [(None, [[402_435]]), (["small.txt"], [[3, 3]]), (["bin"], [[401_729]])]
)
def test_a_batch_is_one_read_if_most_bytes_are_needed_else_one_per_member(tmp_path, columns, reads):
    """Two samples of a member of 200,001 bytes and one of 3, at bytes 512 and 201,216, 202,240 and
    402,944.
    """
    files = [
        (f"{key}.{ext}", data)
        for key in "ab"
        for ext, data in (("bin", b"x" * 200_001), ("small.txt", b"one"))
    ]
    (tmp_path / "t.tar").write_bytes(tar_of(files))
    shard = webdataset.open_shard(Chunk(locate(str(tmp_path / "t.tar")).unmapped()))
    store, asked = shard.chunk.at.store, []
    read_many = store.read_many
    store.read_many = lambda path, ranges: (
        asked.append([stop - start for start, stop in ranges]) or read_many(path, ranges)
    )
    batch = webdataset.read_batch(shard, 0, 2, columns)
    assert batch.column(-1).to_pylist() == [files[0][1] if columns == ["bin"] else "one"] * 2
    assert asked == reads


# -- verify


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
        ("t.tar", "format", "the padding at byte 515 contains non-zero bytes"),
        (
            "t.tar",
            "format",
            "the end marker is 512 bytes; expected a multiple of 512 bytes, at least 1024",
        ),
        ("t.tar", "skipped", "skipped members of type symbolic link: 1"),
        ("t.tar[1]", "unsafe", "the name '../c' points outside the folder"),
    ]


def test_values_are_checked_in_steps_of_bounded_bytes(monkeypatch):
    monkeypatch.setattr(webdataset_format, "_MAX_STEP_BYTES", 10)
    sizes = [4, 4, 4, 30, 0, 10, 1]
    shard = open_files({"00000.tar": tar_of([(f"{i}.bin", b"x" * n) for i, n in enumerate(sizes)])})
    runs = []
    monkeypatch.setattr(
        type(webdataset), "read_batch", lambda self, shard, *run: runs.append(run), raising=True
    )
    assert list(webdataset.verify_shard(shard, values=True)) == []
    assert runs == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]


def test_an_end_marker_of_incomplete_blocks_is_reported():
    data = tar_of([("a.txt", b"one")])[:1024]
    for zeros, said in ((1024, None), (512, "512"), (1025, "1025"), (1023, "1023"), (10_240, None)):
        found = [
            one.message
            for one in webdataset.verify_shard(open_files({"00000.tar": data + bytes(zeros)}))
        ]
        assert found == (
            [f"the end marker is {said} bytes; expected a multiple of 512 bytes, at least 1024"]
            if said
            else []
        )


# -- damage


def test_invalid_text_is_reported_with_row_and_column():
    shard = webdataset.open_shard(
        chunk_of(tar_of([("a.txt", b"a"), ("b.jpg", b""), ("c.txt", b"\xff")]))
    )
    for views in (False, True):
        with pytest.raises(ValueFitError) as caught:
            webdataset.read_batch(shard, 0, 3, views=views)
        assert str(caught.value) == "t.tar[2]: column 'txt': str is not UTF-8"
    assert [(one.where, one.kind) for one in webdataset.verify_shard(shard, values=True)] == [
        ("t.tar[2]", "value")
    ]


def test_damage_is_reported_with_row_and_byte():
    data = bytearray(tar_of([("a.txt", b"1"), ("b.txt", b"2"), ("c.txt", b"3")]))
    data[2048] ^= 1
    with pytest.raises(FormatError) as caught:
        rows_of(bytes(data))
    assert str(caught.value) == "t.tar[1]: header checksum mismatch at byte 2048"


@settings(max_examples=examples(150), deadline=None)
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
