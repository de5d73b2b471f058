"""MDS shards built byte by byte: limits of tables, configs and samples."""

import gzip
import hashlib
import itertools
import json
import struct

import pyarrow as pa
import pytest
import xxhash

from flarecli import encodings
from flarecli.errors import FormatError, IntegrityError, MissingError
from flarecli.formats import find
from flarecli.formats.mds import format as mds_format
from flarecli.model import Chunk, File, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

mds = find("mds")

A, B, N = ("a", "bytes", None), ("b", "bytes", None), ("n", "int8", 1)


def config_of(*columns):
    return json.dumps(
        {
            f"column_{part}": list(one)
            for part, one in zip(
                ("names", "encodings", "sizes"), zip(*columns, strict=True), strict=True
            )
        }
    )


def laid(config, *samples):
    """Return a shard of a count, the start of each sample, a config and the samples."""
    starts = [*itertools.accumulate(map(len, samples), initial=8 + 4 * len(samples) + len(config))]
    return (
        struct.pack(f"<{len(starts) + 1}I", len(samples), *starts)
        + config.encode()
        + b"".join(samples)
    )


def opened(data, rows=None, columns=None):
    return mds.open_shard(
        Chunk(Location(MemoryStore({"s.mds": data}), "s.mds"), rows, (File("s.mds"),)), columns
    )


def message(do):
    with pytest.raises(FormatError) as caught:
        do()
    return str(caught.value)


def readings(shard, row):
    """Return every method to read a row: alone, in a batch, and checked without its values."""
    return (
        lambda: mds.read_rows(shard, [row]),
        lambda: mds.read_batch(shard, 0, shard.rows),
        lambda: raised(shard),
    )


def raised(shard):
    for finding in mds.verify_shard(shard):
        raise FormatError(finding.message, where=finding.where)


def test_a_shard_shorter_than_an_empty_table_is_reported_with_its_size():
    for size in range(8):
        assert (
            message(lambda size=size: opened(laid("{}")[:size]))
            == f"s.mds: file is {size} bytes; an empty table needs 8"
        )


def test_a_table_must_fit_the_file_exactly():
    data = laid("", *[b""] * 3)
    assert len(data) == 20
    assert (
        message(lambda: opened(data[:19]))
        == "s.mds: file is 19 bytes; its table of 3 samples needs 20"
    )
    assert (
        message(lambda: opened(data))
        == "s.mds: config: not valid JSON: Expecting value: line 1 column 1 (char 0)"
    )


def test_a_config_that_is_not_an_object_is_refused():
    assert message(lambda: opened(laid("[]"))) == "s.mds: config is not an object"


@pytest.mark.parametrize("rows", [None, 20_000])
@pytest.mark.parametrize("wide", [1, 300])
def test_a_table_and_a_config_longer_than_the_first_read_are_read_completely(tmp_path, rows, wide):
    columns = [(f"n{i:03d}", "int8", 1) for i in range(wide)]
    samples = [bytes([i % 251]) * wide for i in range(20_000)]
    (tmp_path / "s.mds").write_bytes(laid(config_of(*columns), *samples))
    for at in (locate(str(tmp_path / "s.mds")), locate(str(tmp_path / "s.mds")).unmapped()):
        shard = mds.open_shard(Chunk(at, rows))
        assert (shard.rows, len(shard.columns)) == (20_000, wide)
        for row in (0, 16_383, 19_999):
            assert list(mds.read_rows(shard, [row])[0].values()) == [bytes([row % 251])] * wide


def test_a_config_of_the_maximum_size_is_read(monkeypatch):
    data, size = laid(config_of(N), b"1"), len(config_of(N))
    monkeypatch.setattr("flarecli.formats.mds.format.MAX_CONFIG_BYTES", size)
    assert opened(data).rows == 1
    monkeypatch.setattr("flarecli.formats.mds.format.MAX_CONFIG_BYTES", size - 1)
    assert (
        message(lambda: opened(data)) == f"s.mds: config is {size} bytes; the maximum is {size - 1}"
    )


def sample(*fields, extra=b""):
    return struct.pack(f"<{len(fields)}I", *map(len, fields)) + b"".join(fields) + extra


@pytest.mark.parametrize(
    ("wrong", "alone", "together"),
    [
        (
            sample(b"xy", b"", extra=b"!"),
            "sample has 11 bytes; its fields need 10",
            "sample has 11 bytes, which do not match its lengths",
        ),
        (
            sample(b"xy", b"z")[:-1],
            "sample has 10 bytes; its fields need 11",
            "sample has 10 bytes, which do not match its lengths",
        ),
        (
            b"\0" * 7,
            "sample has 7 bytes; its length fields need 8",
            "sample has 7 bytes, too few for its lengths",
        ),
        (
            b"",
            "sample has 0 bytes; its length fields need 8",
            "sample has 0 bytes, too few for its lengths",
        ),
        # read as signed, one length is -1, and the lengths add up
        (
            struct.pack("<II", 0xFFFFFFFF, 5) + b"1234",
            "sample has 12 bytes; its fields need 4294967308",
            "sample has 12 bytes, which do not match its lengths",
        ),
    ],
)
@pytest.mark.parametrize("place", [0, 1, 2])
@pytest.mark.parametrize("maps", [True, False])
def test_invalid_lengths_of_a_sample_are_refused_by_every_reader(
    tmp_path, wrong, alone, together, place, maps
):
    samples = [sample(b"one", b""), sample(b"", b"three")]
    samples.insert(place, wrong)
    (tmp_path / "s.mds").write_bytes(laid(config_of(A, B), *samples))
    at = locate(str(tmp_path / "s.mds"))
    shard = mds.open_shard(Chunk(at if maps else at.unmapped()))
    one, *more = readings(shard, place)
    assert message(one) == f"{tmp_path}/s.mds[{place}]: {alone}"
    for do in more:
        assert message(do) == f"{tmp_path}/s.mds[{place}]: {together}"
    assert mds.read_rows(shard, [(place + 1) % 3]) == [
        {"a": b"one", "b": b""} if (place + 1) % 3 == (place == 0) else {"a": b"", "b": b"three"}
    ]


def test_empty_samples_and_empty_values_are_read():
    shard = opened(laid(config_of(A, B), *[bytes(8)] * 3))
    assert mds.read_rows(shard, [2]) == [{"a": b"", "b": b""}]
    assert mds.read_batch(shard, 0, 3).to_pylist() == [{"a": b"", "b": b""}] * 3
    assert mds.read_batch(shard, 1, 1).num_rows == 0
    assert list(mds.verify_shard(shard, values=True)) == []


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ([("n", "int8", True)], "config: column 'n': expected size 1 for int8, got True"),
        ([("n", "int8", None)], "config: column 'n': expected size 1 for int8, got None"),
        ([("n", "bytes", 3)], "config: column 'n': expected size None for bytes, got 3"),
        ([(7, "bytes", None)], "config: column name or encoding is not a string"),
        ([("n", None, None)], "config: column name or encoding is not a string"),
        ([("a\ud800", "bytes", None)], "config: column name is not UTF-8"),
        ([("a\udfff", "bytes", None)], "config: column name is not UTF-8"),
        ([A, A], "config: duplicate column name"),
    ],
)
def test_invalid_columns_are_refused(columns, message):
    with pytest.raises(FormatError) as caught:
        opened(laid(config_of(*columns)))
    assert str(caught.value) == f"s.mds: {message}"


def test_unusual_column_names_are_accepted():
    names = ["", " ", "\n", "\x00", "a,b", 'a"', "a.b", "\u2028", "\U0001f642"]
    shard = opened(
        laid(config_of(*((name, "int8", 1) for name in names)), bytes(range(len(names))))
    )
    assert mds.read_rows(shard, [0]) == [{name: bytes([i]) for i, name in enumerate(names)}]
    assert mds.read_batch(shard, 0, 1).schema.names == names


def test_an_index_with_other_columns_than_the_shard_is_refused():
    data = laid(config_of(A, N), sample(b"x") + b"1")
    own = (encodings.column("a", "bytes"), encodings.column("n", "int8"))
    assert opened(data, columns=own).columns == own
    for listed in (own[:1], own[::-1], (*own, encodings.column("z", "int8"))):
        with pytest.raises(IntegrityError) as caught:
            opened(data, columns=listed)
        assert (
            str(caught.value) == "s.mds: columns in the config differ from the columns in the index"
        )


@pytest.mark.parametrize("rows", [0, 1])
@pytest.mark.parametrize("compression", [None, "gz", "snappy", "br"])
def test_a_shard_without_rows_is_written_and_read(rows, compression):
    columns = mds.arrange([encodings.column("a", "bytes"), encodings.column("n", "int")])
    batch = pa.record_batch(
        {"a": pa.array([b""] * rows, pa.large_binary()), "n": pa.array([0] * rows, pa.int64())}
    )
    for batches in ([batch], [batch.slice(0, 0), batch], [batch] if rows else []):
        chunk = mds.write_shard(Location(MemoryStore()), 0, columns, batches, Settings(compression))
        shard = mds.open_shard(chunk, columns)
        assert (shard.rows, chunk.rows) == (rows, rows)
        assert mds.read_batch(shard, 0, rows).num_rows == rows
        assert list(mds.verify_shard(shard, values=True)) == []


def test_a_shard_may_be_as_large_as_its_offsets_allow(monkeypatch):
    columns = mds.arrange([encodings.column("a", "bytes")])
    batch = pa.record_batch({"a": pa.array([b"x" * 100], pa.large_binary())})
    size = len(mds.write_shard(Location(MemoryStore()), 0, columns, [batch], Settings()).at.read())
    monkeypatch.setattr(mds_format, "MAX_SHARD_BYTES", size)
    assert (
        mds.write_shard(Location(MemoryStore()), 0, columns, [batch], Settings()).files[0].size
        == size
    )


@pytest.mark.parametrize("form", ["mds", "json"])
@pytest.mark.parametrize("compression", [None, "gz"])
def test_files_are_hashed_compressed_and_decompressed(form, compression):
    columns = find(form).arrange([encodings.column("a", "str")])
    batch = pa.record_batch({"a": pa.array(['"x"'], pa.large_string())})
    chunk = find(form).write_shard(
        Location(MemoryStore(), ""), 7, columns, [batch], Settings(compression, ("sha1", "md5"))
    )
    suffix = f".{compression}" if compression else ""
    assert [file.name for file in chunk.files] == [
        f"shard.00007.{form}{end}{suffix}" for end in ("", ".meta")
    ][: 1 + (form != "mds")]
    for at, file in zip((chunk.at, *chunk.companions), chunk.files, strict=True):
        data = at.read()
        raw = gzip.decompress(data) if compression else data
        assert (file.size, file.raw_size) == (len(data), len(raw) if compression else None)
        sums = ("sha1", "md5", "xxh3_128")
        assert dict(file.hashes) == {name: hashed(name, data) for name in sums}
        assert dict(file.raw_hashes) == (
            {name: hashed(name, raw) for name in sums} if compression else {}
        )


def hashed(name, data):
    return (
        xxhash.xxh3_128_hexdigest(data)
        if name == "xxh3_128"
        else hashlib.new(name, data).hexdigest()
    )


def test_the_compressed_shard_is_preferred_to_its_decompressed_copy(tmp_path):
    right, wrong = (laid(config_of(N), value) for value in (b"1", b"2"))
    listed = File("s.mds.gz", None, {"sha1": "zipped"}, len(right), {"sha1": "raw"})
    folders = {
        "both": {"s.mds.gz": gzip.compress(right), "s.mds": wrong},
        "one": {"s.mds": wrong},
        "longer": {"s.mds": wrong + b"!"},
    }
    for folder, files in folders.items():
        (tmp_path / folder).mkdir()
        for name, data in files.items():
            (tmp_path / folder / name).write_bytes(data)
    both, one, longer, none = (
        Chunk(locate(f"{tmp_path}/{name}/s.mds.gz"), 1, (listed,))
        for name in ("both", "one", "longer", "none")
    )
    shard = mds.open_shard(both)
    assert (mds.read_rows(shard, [0]), shard.chunk.files) == ([{"n": b"1"}], (listed,))
    shard = mds.open_shard(one)
    assert (mds.read_rows(shard, [0]), shard.chunk.files) == (
        [{"n": b"2"}],
        (File("s.mds", len(right), {"sha1": "raw"}),),
    )
    assert mds.read_rows(mds.open_shard(Chunk(one.at)), [0]) == [{"n": b"2"}]
    for chunk, kind, message in (
        (
            longer,
            IntegrityError,
            f"longer/s.mds: file is {len(wrong) + 1} bytes; the listed size is {len(wrong)}",
        ),
        (none, MissingError, "none/s.mds.gz: no such file or folder"),
    ):
        with pytest.raises(kind) as caught:
            mds.open_shard(chunk)
        assert str(caught.value) == f"{tmp_path}/{message}"
