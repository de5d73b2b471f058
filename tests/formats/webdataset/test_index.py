"""WebDataset at its limits: long names, large members, damaged indexes and missing members."""

import io
import json
import mmap
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.errors import FormatError, IntegrityError, UnsafeError, ValueFitError
from flarecli.formats import byte_ranges, find
from flarecli.formats.webdataset import format as webdataset_format
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import scan as webdataset_scan
from flarecli.formats.webdataset import scan as webdataset_table
from flarecli.formats.webdataset import tar
from flarecli.model import Chunk, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

webdataset = find("webdataset")


def columns_of(**encoded):
    return webdataset.arrange(
        encodings.column(name, encoding) for name, encoding in encoded.items()
    )


def batch_of(columns, rows):
    arrays = [
        pa.array(values, encodings.lookup(one.encoding).arrow)
        for one, values in zip(columns, zip(*rows, strict=True), strict=True)
    ]
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(one) for one in columns])
    )


def written(columns, *batches, **settings):
    store = MemoryStore()
    webdataset.write_shard(Location(store), 0, columns, list(batches), Settings(**settings))
    return store.files


def opened(files, columns=None):
    return webdataset.open_shard(Chunk(Location(MemoryStore(dict(files)), "00000.tar")), columns)


def made(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in files:
            one = tarfile.TarInfo(name)
            one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


# -- names


@settings(max_examples=500, deadline=None)
@given(st.text("a.b/_\n", max_size=12))
def test_names_are_split_by_the_rule_of_webdataset(name):
    found = re.fullmatch(
        r"((?:.*/|)[^.]+)[.]([^/]*)", name, re.DOTALL
    )  # webdataset's `base_plus_ext`, except for names that start with `__`
    wanted = found and tuple(part.encode() for part in found.groups())
    assert webdataset_table.split(name.encode()) == (
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


def test_the_limit_of_an_extension_is_in_bytes():
    column = encodings.column("é" * 127, "bytes")
    assert webdataset.arrange([column]) == (column,)
    for name, size in (("é" * 128, 256), ("n" * 256, 256)):
        with pytest.raises(
            ValueError,
            match=f"^column '{name}': the extension is {size} bytes; at most 255 are allowed$",
        ):
            webdataset.arrange([encodings.column(name, "bytes")])


# -- limits of headers


def test_a_member_of_eight_gigabytes_is_refused(tmp_path):
    columns, size = columns_of(it="bytes"), 8**11
    with open(tmp_path / "holes", "wb") as file:
        file.truncate(size + 1)
    with open(tmp_path / "holes", "rb") as file:
        data = mmap.mmap(
            file.fileno(), size + 1, access=mmap.ACCESS_READ
        )  # none of its bytes is read

    def batch(*sizes):
        bounds = pa.py_buffer(np.cumsum([0, *sizes]))
        return pa.record_batch(
            {
                "it": pa.Array.from_buffers(
                    pa.large_binary(), len(sizes), [None, bounds, pa.py_buffer(data)]
                )
            }
        )

    assert webdataset.row_sizes(columns, batch(1, size - 1), Settings())[1].tolist() == [
        1024,
        512 + size,
    ]
    message = f"member is {size} bytes; a tar header allows {size - 1}"
    with pytest.raises(ValueFitError) as caught:
        webdataset.row_sizes(columns, batch(1, size), Settings())
    assert str(caught.value) == f"row 1: {message}"
    store = MemoryStore()
    with pytest.raises(ValueFitError) as caught:
        webdataset.write_shard(
            Location(store), 0, columns, [batch(1, 0), batch(1, size)], Settings()
        )
    assert (str(caught.value), store.files) == (f"00000.tar[3]: {message}", {})


# -- the index of a tar

COLUMNS = columns_of(__key__="str", b="bytes", t="str")
FILES = written(
    COLUMNS, batch_of(COLUMNS, [(f"k{i}", b"x" * i, None if i == 2 else "t") for i in range(4)])
)
INDEX = json.loads(FILES["00000.idx.json"])


def changed(name, row, value, place=None):
    """Return the changed array of an index in which one number differs."""
    array = np.frombuffer(webdataset_index.base64.b64decode(INDEX[name]), "<i8").copy()
    (array if place is None else array.reshape(2, 4)[place])[row] = value
    return {name: webdataset_index._packed(array)}


def index_with(**changes):
    body = {name: value for name, value in (INDEX | changes).items() if name != "xxh3_128"}
    data = json.dumps(body, sort_keys=True).encode()[:-1]
    return b'%s, "xxh3_128": "%s"}\n' % (data, webdataset_index._checksum(data))


def test_an_index_with_a_recomputed_checksum_is_unchanged():
    assert index_with() == FILES["00000.idx.json"]
    assert np.frombuffer(webdataset_index.base64.b64decode(INDEX["starts"]), "<i8").tolist() == [
        512,
        2048,
        4096,
        5120,
        1024,
        3072,
        -1,
        6144,
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "flare tar index 2"},
        {"rows": 4.0},
        {"rows": "4"},
        {"columns": ["b", 1]},
        changed("ends", 0, 0),
        changed("ends", 0, -1),
        changed("ends", 1, 2),
        changed("ends", 1, 7),
        changed("ends", 3, 7),
        changed("ends", 3, 9),
        changed("starts", 0, 0, place=0),
        changed("starts", 3, 6145, place=1),  # not at the start of a block
        changed("starts", 0, 512, place=1),  # no space for its header
        changed("starts", 3, 7168, place=1)
        | {"bytes": len(FILES["00000.tar"])}
        | changed("sizes", 3, 1025, place=1),
        changed("starts", 2, -1, place=0)
        | changed("sizes", 2, -1, place=0),  # a sample without members
        changed("starts", 2, -1, place=0),
        changed("sizes", 2, -1, place=0),
    ],
)
def test_an_index_with_one_invalid_field_is_not_used(changes):
    assert webdataset_index.parse(index_with(), len(FILES["00000.tar"])) is not None
    assert webdataset_index.parse(index_with(**changes), len(FILES["00000.tar"])) is None


def test_an_index_above_the_maximum_size_is_not_read(monkeypatch):
    index = FILES["00000.idx.json"]
    blind = FILES | {"00000.tar": bytes(len(FILES["00000.tar"]))}
    monkeypatch.setattr(webdataset_index, "_MAX_INDEX_BYTES", len(index))
    assert opened(blind, COLUMNS).rows == 4
    monkeypatch.setattr(webdataset_index, "_MAX_INDEX_BYTES", len(index) - 1)
    assert opened(blind).rows == 0


@pytest.mark.parametrize(
    ("name", "row", "value"), [("ends", 0, 1), ("starts", 3, 5120), ("keys", None, None)]
)
def test_verify_compares_every_part_of_an_index_with_the_tar(name, row, value):
    other = (
        changed(name, row, value, place=None)
        if row is not None
        else {"keys": webdataset_index._packed(np.frombuffer(b"k0k1k2k4", np.uint8))}
    )
    if name == "starts":
        other = {"columns": ["t.txt", "b"]}
    (found,) = webdataset.verify_shard(opened(FILES | {"00000.idx.json": index_with(**other)}))
    assert (found.where, found.kind, found.message) == (
        "00000.idx.json",
        "index",
        "the index lists other members than the tar contains",
    )


# -- rows and batches


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
    for name, data in written(
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
    """Two samples of a member of 200,001 bytes and one of 3, at bytes 512 and 201,216, 202,240 and 402,944."""
    files = [
        (f"{key}.{ext}", data)
        for key in "ab"
        for ext, data in (("bin", b"x" * 200_001), ("small.txt", b"one"))
    ]
    (tmp_path / "t.tar").write_bytes(made(files))
    shard = webdataset.open_shard(Chunk(locate(str(tmp_path / "t.tar")).unmapped()))
    store, asked = shard.chunk.at.store, []
    read_many = store.read_many
    store.read_many = lambda path, ranges: (
        asked.append([stop - start for start, stop in ranges]) or read_many(path, ranges)
    )
    batch = webdataset.read_batch(shard, 0, 2, columns)
    assert batch.column(-1).to_pylist() == [files[0][1] if columns == ["bin"] else "one"] * 2
    assert asked == reads


def test_a_shard_without_rows_is_written_and_read():
    columns = columns_of(__key__="str", t="str")
    for batches in ([], [batch_of(columns, [("a", "x")]).slice(0, 0)]):
        files = written(columns, *batches)
        assert files["00000.tar"] == tar.END
        shard = opened(files, columns)
        assert (
            shard.rows,
            webdataset.read_rows(shard, []),
            webdataset.read_batch(shard, 0, 0).num_rows,
        ) == (0, [], 0)
        assert list(webdataset.verify_shard(shard, values=True)) == []


def test_a_slice_of_a_batch_is_written_with_its_own_keys():
    columns = columns_of(__key__="str", t="str")
    batch = batch_of(columns, [("a", "0"), ("bb", "1"), ("ccc", None), ("dddd", "3")])
    files = written(columns, batch.slice(1, 1), batch.slice(3, 1), batch.slice(0, 2).slice(0, 1))
    assert files == written(columns, batch_of(columns, [("bb", "1"), ("dddd", "3"), ("a", "0")]))
    assert list(webdataset.verify_shard(opened(files), values=True)) == []
    with pytest.raises(ValueFitError) as caught:
        written(columns, batch.slice(0, 2), batch.slice(1, 2))
    assert (
        str(caught.value)
        == "00000.tar[3]: every column is null; a sample needs at least one member"
    )


@pytest.mark.parametrize("length", [96, 97, 98, 255])
def test_keys_of_any_length_are_read_back_by_flare_and_tarfile(length):
    columns = columns_of(__key__="str", it="str")
    keys = ["k" * length, "b", "d" * 200 + "/" + "e" * length]
    files = written(columns, batch_of(columns, [(key, key[:3]) for key in keys]))
    with tarfile.open(fileobj=io.BytesIO(files["00000.tar"])) as archive:
        assert archive.getnames() == [f"{key}.it.txt" for key in keys]
    assert list(webdataset.verify_shard(opened(files), values=True)) == []


@pytest.mark.parametrize("part", [(0, 4), (1, 2), (3, 1), (2, 2)])
def test_a_slice_of_a_batch_is_written_like_a_whole_batch(part):
    columns, rows = (
        columns_of(__key__="str", t="str"),
        [("a", "0"), ("bb", "1"), ("ccc", "22"), ("dddd", "3")],
    )
    start, count = part
    files = written(columns, batch_of(columns, rows).slice(start, count))
    assert files == written(columns, batch_of(columns, rows[start : start + count]))
    assert list(webdataset.verify_shard(opened(files), values=True)) == []


def test_a_column_uses_the_extension_of_its_encoding_if_both_exist():
    data = made([("k.a", b"bytes"), ("k.a.jpg", b"picture")])
    with pytest.raises(IntegrityError) as caught:
        opened({"00000.tar": data}, (encodings.column("a", "jpeg"),))
    assert (
        str(caught.value)
        == "00000.tar: members have the extension .a, but no such column is listed"
    )
    alone = opened({"00000.tar": made([("k.a", b"bytes")])}, (encodings.column("a", "jpeg"),))
    assert webdataset.read_rows(alone, [0]) == [{"a": b"bytes"}]


@pytest.mark.parametrize("length", [92, 93, 94, 95])
def test_names_of_100_and_101_bytes_are_written(length):
    columns, key = columns_of(__key__="str", it="str"), "k" * length
    files = written(columns, batch_of(columns, [(key, "one"), ("b", "two")]))
    with tarfile.open(fileobj=io.BytesIO(files["00000.tar"])) as archive:
        assert [(one.name, archive.extractfile(one).read()) for one in archive] == [
            (f"{key}.it.txt", b"one"),
            ("b.it.txt", b"two"),
        ]


def test_a_key_longer_than_a_file_name_is_refused():
    columns = columns_of(__key__="str", it="str")
    assert webdataset.row_sizes(columns, batch_of(columns, [("k" * 255, "x")]), Settings())[
        1
    ].tolist() == [2048]
    with pytest.raises(UnsafeError) as caught:
        webdataset.row_sizes(columns, batch_of(columns, [("a", "x"), ("k" * 256, "x")]), Settings())
    assert str(caught.value) == f"row 1: the name '{'k' * 77}…' has a part longer than 255 bytes"


def test_rows_without_keys_are_numbered_over_batches():
    columns = columns_of(t="str")
    shard = opened(
        written(columns, batch_of(columns, [("a",), ("b",)]), batch_of(columns, [("c",)]))
    )
    assert [row["__key__"] for row in webdataset.read_rows(shard, range(3))] == [
        b"00000-0000000",
        b"00000-0000001",
        b"00000-0000002",
    ]


def test_a_member_of_a_stream_cannot_replace_the_key():
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([made([("a.txt", b""), ("b.__KEY__", b"x")])]))
    assert str(caught.value) == "-[1]: the extension .__key__ is reserved for the key of a sample"


# -- lists of shards

SHARD = {
    "url": "00000.tar",
    "nsamples": 3,
    "filesize": 2048,
    "md5sum": "0123456789ABCDEF0123456789ABCDEF",
}


def listed(shard=SHARD, **changes):
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [shard]} | changes
    data = json.dumps(index).encode()
    return webdataset_index.read_shards(
        Location(MemoryStore({"ds/shardindex.json": data}), "ds/shardindex.json")
    )


def test_a_shardindex_is_read():
    stream = listed()
    assert (list(stream.urls), list(stream.rows), list(stream.sizes)) == (
        ["00000.tar"],
        [3],
        [2048],
    )
    assert stream.hashes["md5"] == ["0123456789abcdef0123456789abcdef"]
    less = listed({"url": "00000.tar", "nsamples": (1 << 63) - 1})
    assert (list(less.rows), list(less.sizes), less.hashes) == ([(1 << 63) - 1], [-1], {})
    assert len(listed(shardlist=[])) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wids_version": True}, "unsupported wids_version True, expected 1"),
        ({"wids_version": "1"}, "unsupported wids_version '1', expected 1"),
        ({"wids_version": 2}, "unsupported wids_version 2, expected 1"),
        (
            {"__kind__": "wids-shard-index-v2"},
            "unsupported __kind__ 'wids-shard-index-v2', expected 'wids-shard-index-v1'",
        ),
        ({"__kind__": None}, "unsupported __kind__ None, expected 'wids-shard-index-v1'"),
        ({"shardlist": {}}, "shardlist is missing, or not a list"),
        ({"shard": "00000.tar"}, "shardlist[0]: url is missing, or not a string"),
        ({"shard": SHARD | {"url": ""}}, "shardlist[0]: url is missing, or not a string"),
        ({"shard": SHARD | {"url": 1}}, "shardlist[0]: url is missing, or not a string"),
        (
            {"shard": SHARD | {"nsamples": True}},
            "shardlist[0].nsamples: expected a count, got True",
        ),
        (
            {"shard": SHARD | {"nsamples": 1 << 63}},
            f"shardlist[0].nsamples: expected a count, got {1 << 63}",
        ),
        ({"shard": SHARD | {"nsamples": -1}}, "shardlist[0].nsamples: expected a count, got -1"),
        ({"shard": SHARD | {"nsamples": 3.0}}, "shardlist[0].nsamples: expected a count, got 3.0"),
        (
            {"shard": SHARD | {"filesize": None}},
            "shardlist[0].filesize: expected a count, got None",
        ),
        ({"shard": SHARD | {"md5sum": None}}, "shardlist[0]: md5sum is not a string"),
        (
            {"shard": {"url": "a", "nsamples": 1, "filesise": 2}},
            "shardlist[0]: unknown key 'filesise'; did you mean 'filesize'?",
        ),
    ],
)
def test_an_invalid_shardindex_is_refused(changes, message):
    with pytest.raises(FormatError) as caught:
        listed(**changes)
    assert str(caught.value) == f"ds/shardindex.json: {message}"
    assert caught.value.hint == "Fetch it again, or delete it: flare then lists the folder."


# -- verify


def test_values_are_checked_in_steps_of_bounded_bytes(monkeypatch):
    monkeypatch.setattr(webdataset_format, "_MAX_STEP_BYTES", 10)
    sizes = [4, 4, 4, 30, 0, 10, 1]
    shard = opened({"00000.tar": made([(f"{i}.bin", b"x" * n) for i, n in enumerate(sizes)])})
    runs = []
    monkeypatch.setattr(
        type(webdataset), "read_batch", lambda self, shard, *run: runs.append(run), raising=True
    )
    assert list(webdataset.verify_shard(shard, values=True)) == []
    assert runs == [(0, 2), (2, 3), (3, 4), (4, 6), (6, 7)]


def test_an_end_marker_of_incomplete_blocks_is_reported():
    data = made([("a.txt", b"one")])[:1024]
    for zeros, said in ((1024, None), (512, "512"), (1025, "1025"), (1023, "1023"), (10_240, None)):
        found = [
            one.message
            for one in webdataset.verify_shard(opened({"00000.tar": data + bytes(zeros)}))
        ]
        assert found == (
            [f"the end marker is {said} bytes, expected whole blocks and at least 1024"]
            if said
            else []
        )


# -- streams


def test_errors_in_a_stream_have_the_row_across_batches(monkeypatch):
    monkeypatch.setattr(webdataset_scan, "MAX_BATCH_ROWS", 2)
    data = made([(f"{i}.txt", b"\xff" if i == 4 else b"x") for i in range(6)])
    with pytest.raises(ValueFitError) as caught:
        list(webdataset.scan_stream([data]))
    assert str(caught.value) == "-[4]: column 'txt': str is not UTF-8"
    late = made([(f"{i}.{'jpg' if i == 5 else 'txt'}", b"x") for i in range(6)])
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([late]))
    assert str(caught.value) == "-[5]: unexpected extension .jpg: the columns do not include it"
    name = b"5.\xff".decode(errors="surrogateescape")
    invalid = made([*((f"{i}.txt", b"x") for i in range(5)), (name, b"x")])
    with pytest.raises(FormatError) as caught:
        list(webdataset.scan_stream([invalid]))
    assert str(caught.value) == "-[5]: the extension b'\\xff' is not UTF-8"


def test_batches_of_a_stream_have_bounded_bytes(monkeypatch):
    monkeypatch.setattr(webdataset_scan, "MAX_BATCH_BYTES", 10)
    data = made([(f"{i}.bin", b"x" * size) for i, size in enumerate([3, 3, 3, 40, 9, 0, 0])])
    assert [batch.num_rows for batch in webdataset.scan_stream([data])] == [3, 1, 1, 2]


def test_a_truncated_stream_is_reported():
    data = made([("a.txt", b"x" * 700), ("b.txt", b"y")])[:4096]
    assert [batch.num_rows for batch in webdataset.scan_stream([data])] == [2]
    for cut in (1, 511, 512, 600, 1211, 1212, 1300, 1536, 2047, 2048, 2049, 2560):
        with pytest.raises(FormatError) as caught:
            list(webdataset.scan_stream([data[:cut]]))
        assert (
            caught.value.message
            == f"ends at byte {cut}, {'without an end marker' if cut < 512 or cut in (1536, 2047, 2560) else 'inside a member'}"
        )


@pytest.mark.parametrize("rows", [1, 7])
def test_few_rows_of_many_columns_have_the_bytes_of_tarfile(rows):
    """Members of a few wide rows are built together; tarfile reads the same names and bytes."""
    names = [f"c{i:03}" for i in range(200)]
    columns = webdataset.arrange([encodings.column(name, "bytes") for name in names])
    values = {
        name: [None if (i + row) % 5 == 1 else b"%d" % i * row for row in range(rows)]
        for i, name in enumerate(names)
    }
    arrays = [pa.array(values[name], pa.large_binary()) for name in names]
    schema = pa.schema([encodings.field(one) for one in columns])
    store = MemoryStore()
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    chunk = webdataset.write_shard(Location(store), 0, columns, [batch], Settings())
    with tarfile.open(fileobj=io.BytesIO(chunk.at.read())) as tar:
        members = {one.name: tar.extractfile(one).read() for one in tar.getmembers()}
    assert members == {
        f"00000-{row:07}.{name}": values[name][row]
        for row in range(rows)
        for name in names
        if values[name][row] is not None
    }
    assert list(webdataset.verify_shard(webdataset.open_shard(chunk), values=True)) == []
