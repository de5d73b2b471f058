"""TFRecord files of another implementation, test vectors of RFC 3720, and damage."""

import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import commands, encodings
from flarecli.encodings import column
from flarecli.errors import FlareError, FormatError, IntegrityError, UsageError
from flarecli.formats import find, sniff
from flarecli.formats.tfrecord import masked_crc
from flarecli.model import Chunk, File, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from tests.properties import examples

GOLDEN = Path(__file__).parents[2] / "fixtures" / "tfrecord" / "peer.tfrecord"
DAMAGED = "The file was damaged or cut short; fetch or pack it again."
tfrecord = find("tfrecord")


def peer_rows():
    """Return the rows that the `tfrecord` package 1.14.6 wrote to the golden file."""
    return [
        {
            "curve": np.linspace(0, i, 3).astype("f4").tolist(),
            "grid": (np.arange(i + 2) * -(7**i)).tolist(),
            "image": bytes(range(i * 3)),
            "label": i - 2,
            "score": i / 4,
            "tags": [b"a" * k for k in range(i)],
        }
        for i in range(5)
    ]


def shard_of(data, name="x.tfrecord", columns=None, index=None):
    files = {name: data} | ({f"{name}.idx": index} if index is not None else {})
    at = Location(MemoryStore(files), name)
    return tfrecord.open_shard(Chunk(at, None, (File(name),), "tfrecord"), columns)


def framed(data):
    length = struct.pack("<Q", len(data))
    return b"".join(
        (length, struct.pack("<I", masked_crc(length)), data, struct.pack("<I", masked_crc(data)))
    )


@pytest.mark.parametrize(
    ("data", "crc"),
    [
        (bytes(32), 0x8A9136AA),
        (b"\xff" * 32, 0x62A8AB43),
        (bytes(range(32)), 0x46DD794E),
        (bytes(range(31, -1, -1)), 0x113FDB5C),
    ],
)
def test_checksums_are_those_of_rfc_3720_masked(data, crc):
    assert masked_crc(data) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


@pytest.mark.parametrize("with_index", [True, False])
def test_a_file_of_another_implementation_is_read(with_index, tmp_path):
    path = tmp_path / "a.tfrecord"
    path.write_bytes(GOLDEN.read_bytes())
    if with_index:
        path.with_name("a.tfrecord.idx").write_bytes(Path(f"{GOLDEN}.idx").read_bytes())
    at = locate(str(path))
    shard = tfrecord.open_shard(Chunk(at, None, (File(at.name),), "tfrecord"))
    assert [(one.name, one.encoding) for one in shard.columns] == [
        ("curve", "float32[]"),
        ("grid", "int[]"),
        ("image", "bytes"),
        ("label", "int"),
        ("score", "float32"),
        ("tags", "bytes[]"),
    ]
    assert tfrecord.read_batch(shard, 0, 5).to_pylist() == peer_rows()
    assert list(tfrecord.verify_shard(shard, values=True)) == []
    (row,) = tfrecord.read_rows(shard, [3], ["label", "tags"])
    assert row == {"label": struct.pack("<q", 1), "tags": [b"", b"a", b"aa"]}


def test_the_index_is_that_of_another_implementation(tmp_path):
    golden = tfrecord.open_shard(Chunk(locate(str(GOLDEN)), None, (), "tfrecord"))
    batch, at = tfrecord.read_batch(golden, 0, 5), locate(f"{tmp_path}/")
    chunk = tfrecord.write_shard(at, 0, golden.columns, [batch], Settings())
    lines = [line.split() for line in (tmp_path / "00000.tfrecord.idx").read_text().splitlines()]
    sizes = [int(size) for _, size in lines]
    assert [int(start) for start, _ in lines] == [sum(sizes[:i]) for i in range(5)]
    assert sum(sizes) == (tmp_path / "00000.tfrecord").stat().st_size
    assert tfrecord.read_batch(tfrecord.open_shard(chunk), 0, 5).to_pylist() == peer_rows()


@pytest.mark.parametrize("place", [*range(16), 140])
def test_a_flipped_bit_is_reported_with_its_row(place):
    data = bytearray(GOLDEN.read_bytes())
    data[place] ^= 1
    index = Path(f"{GOLDEN}.idx").read_bytes()
    with pytest.raises(FlareError) as caught:
        shard_of(bytes(data), index=index)
    assert isinstance(caught.value, (IntegrityError, FormatError))
    assert caught.value.row == 0


def test_a_flipped_bit_in_a_value_is_reported_by_verify_with_its_row():
    data = bytearray(GOLDEN.read_bytes())
    data[-10] ^= 1
    columns = tfrecord.open_shard(Chunk(locate(str(GOLDEN)), None, (), "tfrecord")).columns
    raw = Location(MemoryStore({"x.tfrecord": bytes(data)}), "x.tfrecord")
    with pytest.raises(IntegrityError) as caught:
        tfrecord.open_shard(Chunk(raw, None, (), "tfrecord"), columns)
    assert str(caught.value) == "x.tfrecord[4]: checksum mismatch: CRC-32C of 183 bytes"
    assert caught.value.hint == DAMAGED


def test_a_length_beyond_the_file_is_refused_before_anything_is_allocated():
    length = struct.pack("<Q", 2**63)
    data = length + struct.pack("<I", masked_crc(length)) + b"abcd"
    with pytest.raises(FormatError) as caught:
        shard_of(data)
    assert str(caught.value) == f"x.tfrecord[0]: record is {2**63} bytes; the file ends at byte 16"


def test_a_file_that_ends_inside_a_header_is_refused():
    with pytest.raises(FormatError) as caught:
        shard_of(framed(b"\n\0") + b"1234567")
    message = "x.tfrecord: file ends at byte 25, inside the header of record 1"
    assert str(caught.value) == message


@pytest.mark.parametrize(
    "index",
    [
        b"",
        b"0 18\n",
        b"0 18\n18 19\n",
        b"18 18\n0 18\n",
        b"0 18 18 18\n",
        b"x",
        b"0 99999999999999999999\n",
    ],
)
def test_an_index_that_does_not_fit_is_not_used_and_reported(index):
    shard = shard_of(framed(b"\n\0") * 2, index=index)
    assert shard.rows == 2
    assert [(one.kind, one.message) for one in tfrecord.verify_shard(shard)] == [
        ("index", "index does not match its file; flare locates the records by their lengths")
    ]


def test_records_that_are_not_examples_are_one_column_of_bytes():
    shard = shard_of(framed(b"\xff\xff") + framed(b"") + framed(b"hello"))
    assert [(one.name, one.encoding) for one in shard.columns] == [("record", "bytes")]
    assert tfrecord.read_batch(shard, 0, 3).to_pydict() == {"record": [b"\xff\xff", b"", b"hello"]}


@pytest.mark.parametrize(
    ("name", "head", "format"),
    [
        ("a.tfrecord", b"", "tfrecord"),
        ("mnist-train.tfrecord-00000-of-00010", b"", "tfrecord"),
        ("a.tfrecords.gz", b"", "tfrecord"),
        ("a.tfrecord.idx", b"", None),
        ("noname", framed(b"abc"), "tfrecord"),
        ("noname", framed(b"abc")[1:], None),
    ],
)
def test_files_are_recognized_by_name_or_by_their_first_bytes(name, head, format):
    assert sniff(name, head) == format


def test_a_feature_of_another_kind_is_reported_with_row_and_column():
    columns = (column("a", "int"),)
    at = Location(MemoryStore(), "")
    batches = [pa.record_batch([pa.array([1, 2])], schema=pa.schema([encodings.field(columns[0])]))]
    chunk = tfrecord.write_shard(at, 0, columns, batches, Settings())
    with pytest.raises(FormatError) as caught:
        shard = tfrecord.open_shard(chunk, (column("a", "float32"),))
        tfrecord.read_batch(shard, 0, 2)
    assert str(caught.value) == "00000.tfrecord[0]: column 'a': expected floats, got integers"
    assert (caught.value.row, caught.value.column) == (0, "a")


def test_unknown_fields_in_a_list_are_ignored():
    numbers = b"\x08\x07" + b"\x10\x09"  # field 1 is 7; field 2, which Int64List lacks, is 9
    entry = b"\x0a\x01n" + b"\x12\x06" + b"\x1a\x04" + numbers
    shard = shard_of(framed(b"\x0a\x0d" + b"\x0a\x0b" + entry))
    assert tfrecord.read_batch(shard, 0, 1).to_pylist() == [{"n": 7}]


def test_other_compressions_than_gzip_are_refused():
    with pytest.raises(UsageError, match="^TensorFlow cannot read TFRecord files"):
        tfrecord.write_shard(Location(MemoryStore(), ""), 0, (), [], Settings("zstd"))


INTS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(width=32, allow_nan=False)
KINDS = {
    "int": INTS,
    "float32": FLOATS,
    "str": st.text(max_size=5),
    "bytes": st.binary(max_size=200),
    "int[]": st.lists(INTS, max_size=4),
    "float32[]": st.lists(FLOATS, max_size=4),
    "float64": st.floats(allow_nan=False),
    "bytes[]": st.lists(st.binary(max_size=4), max_size=4),
}


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), st.sampled_from([None, "gz"]))
def test_values_and_nulls_are_read_back(data, compression):
    columns = tuple(column(f"c{i}", name) for i, name in enumerate(KINDS))
    rows = data.draw(st.integers(0, 4))
    values = [
        data.draw(st.lists(st.none() | KINDS[one.encoding], min_size=rows, max_size=rows))
        for one in columns
    ]
    schema = pa.schema([encodings.field(one) for one in columns])
    batch = pa.record_batch(
        [pa.array(one, kind) for one, kind in zip(values, schema.types, strict=True)], schema
    )
    at = Location(MemoryStore(), "")
    chunk = tfrecord.write_shard(at, 0, columns, [batch], Settings(compression))
    shard = tfrecord.open_shard(chunk, columns)
    assert tfrecord.read_batch(shard, 0, rows).equals(batch)
    assert list(tfrecord.verify_shard(shard, values=True)) == []
    base, sizes = tfrecord.row_sizes(columns, batch, Settings())
    assert base + int(sizes.sum()) == int(shard.layout["starts"][-1])


@pytest.mark.parametrize("kind", ["tfrecord", "webdataset"])
def test_a_file_is_read_without_an_index_if_the_name_of_the_index_would_be_too_long(tmp_path, kind):
    (tmp_path / "a.csv").write_text("n,t\n1,one\n")
    commands.pack([str(tmp_path / "a.csv")], str(tmp_path / "out"), format=kind)
    suffix = {"tfrecord": ".tfrecord", "webdataset": ".tar"}[kind]
    renamed = tmp_path / ("x" * (255 - len(suffix)) + suffix)
    (tmp_path / "out" / f"00000{suffix}").rename(renamed)
    (row,) = [row for batch in commands.cat([str(renamed)]) for row in batch.to_pylist()]
    assert "1" in map(str, row.values())
    assert [one for one in commands.verify([str(renamed)]) if one.kind != "unprotected"] == []


def test_a_dataset_is_packed_verified_and_converted(tmp_path):
    source = tmp_path / "a.csv"
    source.write_text("n,t,x\n1,one,1.5\n-2,two,1e300\n")
    commands.pack([str(source)], str(tmp_path / "out"), format="tfrecord")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "00000.tfrecord",
        "00000.tfrecord.idx",
        "playlist.yaml",
    ]
    assert list(commands.verify([str(tmp_path / "out")])) == []
    commands.pack([str(tmp_path / "out")], str(tmp_path / "mds"), format="mds")
    rows = [row for batch in commands.cat([str(tmp_path / "mds")]) for row in batch.to_pylist()]
    assert rows == [{"n": 1, "t": "one", "x": 1.5}, {"n": -2, "t": "two", "x": 1e300}]
