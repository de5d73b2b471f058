"""Written tars compared with tarfile, and keys, sizes and batches at their limits."""

import io
import mmap
import tarfile

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings
from flarecli.errors import (
    UnsafeError,
    ValueFitError,
)
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset import write as webdataset_write
from flarecli.model import Column, Settings
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.formats.webdataset.samples import (
    batch_of,
    columns_of,
    open_files,
    rows_of,
    webdataset,
    write_batches,
    write_rows,
)
from tests.properties import examples

COLUMNS = columns_of(__key__="str", jpg="jpeg", label="int", caption="str", meta="json")

keys = st.lists(
    st.text(st.characters(codec="utf-8", categories=["L", "N"]), min_size=1, max_size=40).flatmap(
        lambda text: st.integers(1, 4).map(lambda n: "/".join([text] * n))
    ),
    min_size=1,
    max_size=12,
    unique=True,
)


@settings(max_examples=examples(80), deadline=None)
@given(keys, st.data())
def test_written_samples_are_read_back_by_flare_and_tarfile(keys, data):
    row = st.tuples(
        st.none() | st.binary(max_size=1100),
        st.integers().map(str),
        st.none() | st.text(max_size=30),
        st.sampled_from(["1", "{}", '"é"']),
    )
    rows = [(key, *data.draw(row)) for key in keys]
    batch = batch_of(COLUMNS, rows)
    at, how = (
        Location(MemoryStore(), ""),
        Settings(data.draw(st.sampled_from([None, "zstd", "gz"]))),
    )
    base, sizes = webdataset.row_sizes(COLUMNS, batch, how)
    cut = data.draw(st.integers(0, len(rows)))
    chunk = webdataset.write_shard(at, 7, COLUMNS, [batch.slice(0, cut), batch.slice(cut)], how)
    raw = chunk.files[0].raw_size if how.compression else chunk.files[0].size
    assert base + sizes.sum() == raw
    for beside in (True, False):
        if not beside:
            del at.store.files[chunk.companions[0].path]
        shard = webdataset.open_shard(chunk, COLUMNS)
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
    chunk = write_rows(columns, rows)
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
        chunk = write_rows(columns, [("a",)] * 3, number)
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
        (["../b"], UnsafeError, "00000.tar[0]: the name '../b' points outside the folder"),
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
    chunk = write_rows(columns_of(__key__="str", t="str"), [(key, "x") for key in keys])
    assert [row["__key__"].decode() for row in rows_of(chunk.at.store.files["00000.tar"])] == keys


def test_a_row_without_members_is_refused():
    with pytest.raises(
        ValueFitError,
        match=r"^00000\.tar\[1\]: every column is null; a sample needs at least one member(?m:$)",
    ):
        write_rows(columns_of(t="str", b="bytes"), [("a", None), (None, None)])


def test_rows_of_many_small_members_are_joined_together():
    """Writing members one by one, or calling Arrow for each column and row, would take longer."""
    columns = webdataset.arrange([Column(f"c{i}", "str") for i in range(9000)])
    text = pa.array(["1"] * 8, encodings.TEXT)
    batch = pa.record_batch({column.name: text for column in columns})
    keys = pa.array([str(row) for row in range(8)], encodings.TEXT)
    joined, end = webdataset_write._parts(columns, [batch], [keys])
    assert len(joined) == 8 * 9000 * 2 * tar.BLOCK and end == tar.END


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


def test_a_shard_without_rows_is_written_and_read():
    columns = columns_of(__key__="str", t="str")
    for batches in ([], [batch_of(columns, [("a", "x")]).slice(0, 0)]):
        files = write_batches(columns, *batches)
        assert files["00000.tar"] == tar.END
        shard = open_files(files, columns)
        assert (
            shard.rows,
            webdataset.read_rows(shard, []),
            webdataset.read_batch(shard, 0, 0).num_rows,
        ) == (0, [], 0)
        assert list(webdataset.verify_shard(shard, values=True)) == []


def test_a_slice_of_a_batch_is_written_with_its_own_keys():
    columns = columns_of(__key__="str", t="str")
    batch = batch_of(columns, [("a", "0"), ("bb", "1"), ("ccc", None), ("dddd", "3")])
    files = write_batches(
        columns, batch.slice(1, 1), batch.slice(3, 1), batch.slice(0, 2).slice(0, 1)
    )
    assert files == write_batches(
        columns, batch_of(columns, [("bb", "1"), ("dddd", "3"), ("a", "0")])
    )
    assert list(webdataset.verify_shard(open_files(files), values=True)) == []
    with pytest.raises(ValueFitError) as caught:
        write_batches(columns, batch.slice(0, 2), batch.slice(1, 2))
    assert (
        str(caught.value)
        == "00000.tar[3]: every column is null; a sample needs at least one member"
    )


@pytest.mark.parametrize("length", [96, 97, 98, 255])
def test_keys_of_any_length_are_read_back_by_flare_and_tarfile(length):
    columns = columns_of(__key__="str", it="str")
    keys = ["k" * length, "b", "d" * 200 + "/" + "e" * length]
    files = write_batches(columns, batch_of(columns, [(key, key[:3]) for key in keys]))
    with tarfile.open(fileobj=io.BytesIO(files["00000.tar"])) as archive:
        assert archive.getnames() == [f"{key}.it.txt" for key in keys]
    assert list(webdataset.verify_shard(open_files(files), values=True)) == []


@pytest.mark.parametrize("part", [(0, 4), (1, 2), (3, 1), (2, 2)])
def test_a_slice_of_a_batch_is_written_like_a_whole_batch(part):
    columns, rows = (
        columns_of(__key__="str", t="str"),
        [("a", "0"), ("bb", "1"), ("ccc", "22"), ("dddd", "3")],
    )
    start, count = part
    files = write_batches(columns, batch_of(columns, rows).slice(start, count))
    assert files == write_batches(columns, batch_of(columns, rows[start : start + count]))
    assert list(webdataset.verify_shard(open_files(files), values=True)) == []


@pytest.mark.parametrize("length", [92, 93, 94, 95])
def test_names_of_100_and_101_bytes_are_written(length):
    columns, key = columns_of(__key__="str", it="str"), "k" * length
    files = write_batches(columns, batch_of(columns, [(key, "one"), ("b", "two")]))
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
    shard = open_files(
        write_batches(columns, batch_of(columns, [("a",), ("b",)]), batch_of(columns, [("c",)]))
    )
    assert [row["__key__"] for row in webdataset.read_rows(shard, range(3))] == [
        b"00000-0000000",
        b"00000-0000001",
        b"00000-0000002",
    ]


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
