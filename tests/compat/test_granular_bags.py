"""Single bags: written, resumed after a crash, read from files and memory; encoded videos."""

import io
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest

from flarecli.compat import granular
from flarecli.compat.granular.bag import SharedBuffer
from flarecli.errors import FormatError, IntegrityError, UsageError, ValueFitError

RECORDS = [b"hello", b"", b"world" * 1000, b"x"]


@pytest.fixture
def bag(tmp_path):
    path = tmp_path / "a.bag"
    with granular.BagWriter(path) as writer:
        assert [writer.append(one) for one in RECORDS] == [0, 1, 2, 3]
        assert len(writer) == 4 and writer.size == sum(map(len, RECORDS)) + 32
    return path


def table(records):
    ends = np.cumsum([len(one) for one in records])
    return struct.pack(f"<{len(records)}Q", *ends.tolist())


def read(path):
    with granular.BagReader(path) as reader:
        return reader[range(len(reader))]


def test_bag_and_table_have_the_bytes_of_the_format(bag):
    assert bag.read_bytes() == b"".join(RECORDS)
    assert bag.with_suffix(".idx").read_bytes() == table(RECORDS)
    assert read(bag) == RECORDS
    assert granular.BagReader(bag).size == sum(map(len, RECORDS)) + 32


def test_pending_records_are_written_by_flush_and_close(tmp_path):
    path = tmp_path / "a.bag"
    with granular.BagWriter(str(path), str(tmp_path / "other.table")) as writer:
        writer.append(b"one", flush=False)
        assert len(writer) == 1 and path.read_bytes() == b""
        writer.flush()
        assert path.read_bytes() == b"one"
        writer.append(b"two", flush=False)
    assert path.read_bytes() == b"onetwo"
    assert (tmp_path / "other.table").read_bytes() == table([b"one", b"two"])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a.bag", "other.table"]
    assert granular.BagReader(path, tmp_path / "other.table")[1] == b"two"
    with pytest.raises(UsageError, match="the writer is closed"):
        writer.append(b"x")


@pytest.mark.parametrize("cut", range(len(b"2ndthird") + 1))
def test_a_write_that_stopped_at_any_byte_is_resumed(tmp_path, cut):
    path, more = tmp_path / "a.bag", [b"2nd", b"third"]
    with granular.BagWriter(path) as writer:
        writer.append(b"first")
    with path.open("ab") as file:
        file.write(b"".join(more)[:cut])
    with path.with_suffix(".idx").open("ab") as file:
        file.write(struct.pack("<Q", 8)[:5])  # an incomplete entry
    with granular.BagWriter(path) as writer:
        assert len(writer) == 1
        for one in more:
            writer.append(one)
    assert read(path) == [b"first", *more]
    assert path.read_bytes() == b"first2ndthird"


def test_bytes_of_another_record_after_the_last_one_are_kept_and_reported(tmp_path):
    path = tmp_path / "a.bag"
    with granular.BagWriter(path) as writer:
        writer.append(b"first")
    with path.open("ab") as file:
        file.write(b"other")
    writer = granular.BagWriter(path)
    writer.append(b"record", flush=False)
    with pytest.raises(IntegrityError) as caught:
        writer.flush()
    assert str(caught.value) == (
        f"{path}: cannot resume: the 5 bytes after the last record are from a partial write, "
        "and the new data does not match them"
    )
    assert path.read_bytes() == b"firstother" and read_table(path) == table([b"first"])
    with pytest.raises(KeyError), granular.BagWriter(path) as writer:
        writer.append(b"record", flush=False)
        raise KeyError  # the error of the block is raised


def read_table(path):
    return path.with_suffix(".idx").read_bytes()


def test_table_entries_of_missing_bytes_are_dropped(bag):
    with bag.open("r+b") as file:
        file.truncate(7)
    with granular.BagWriter(bag) as writer:
        assert len(writer) == 2
        writer.append(RECORDS[2])
    assert read(bag) == RECORDS[:3]


def test_a_table_with_decreasing_ends_is_rejected(bag):
    bag.with_suffix(".idx").write_bytes(struct.pack("<2Q", 5, 3))
    with pytest.raises(FormatError, match="record 1 starts at byte 5 but ends at byte 3"):
        granular.BagWriter(bag)
    assert bag.read_bytes() == b"".join(RECORDS)


@pytest.mark.parametrize("wrong", ["text", 1, None, bytearray(b"x")], ids=repr)
def test_records_that_are_not_bytes_are_rejected(bag, wrong):
    with granular.BagWriter(bag) as writer, pytest.raises(ValueFitError, match="expected bytes"):
        writer.append(wrong)
    assert read(bag) == RECORDS


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview, SharedBuffer])
def test_bags_are_read_from_memory(bag, kind):
    data, ends = bag.read_bytes(), bag.with_suffix(".idx").read_bytes()
    reader = granular.BagReader(kind(data), kind(ends))
    assert reader[range(4)] == RECORDS and reader.size == len(data) + len(ends)
    single = granular.BagReader(kind(data + table(RECORDS)), single_file=True)
    assert single[range(4)] == RECORDS
    if kind is not memoryview:
        assert pickle.loads(pickle.dumps(reader))[2] == RECORDS[2]
    with pytest.raises(
        FormatError, match="bytes in memory/x.bag: file is 3 bytes; its index needs"
    ):
        granular.BagReader(kind(data[:3]), kind(ends))


def test_a_closed_buffer_cannot_be_read():
    buffer = SharedBuffer(b"abc")
    assert (buffer[1:], buffer.size, buffer.open().read()) == (b"bc", 3, b"abc")
    assert pickle.loads(pickle.dumps(buffer))[:] == b"abc"
    buffer.close()
    assert buffer.closed
    with pytest.raises(UsageError, match="the buffer is closed"):
        granular.BagReader(buffer)


def test_resuming_with_another_datapoint_is_a_record_mismatch(tmp_path):
    spec = {"foo": "utf8", "bar": "int"}
    for _ in range(2):
        with granular.ShardedDatasetWriter(tmp_path / "d", spec, granular.encoders) as writer:
            writer.append({"foo": "a", "bar": 1})
            assert writer.shardnum == 0
    with granular.BagWriter(tmp_path / "d" / "000000" / "foo.bag") as column:
        column.append(b"torn")
    with granular.ShardedDatasetWriter(tmp_path / "d", spec, granular.encoders) as writer:
        with pytest.raises(IntegrityError) as caught:
            writer.append({"foo": "new", "bar": 2})
        assert str(caught.value) == (
            f"{tmp_path}/d/000000/foo.bag[2]: Record mismatch: "
            "the stored record of an incomplete row differs from the new record"
        )
        assert caught.value.hint == "Append the datapoints whose write was interrupted."


def test_size_and_shard_number_count_only_the_shards_of_the_writer(tmp_path):
    total, numbers = 0, []
    for worker in range(3):
        with granular.ShardedDatasetWriter(
            tmp_path, {"i": "i64"}, granular.encoders, 2, shardstart=worker, shardstep=3
        ) as writer:
            for i in range(3):
                numbers.append(writer.shardnum)
                writer.append({"i": i})
            assert writer.size == 3 * 16
            total += writer.size
    assert numbers == [0, 0, 3, 1, 1, 4, 2, 2, 5]
    files = [one for one in tmp_path.rglob("*") if one.suffix in (".bag", ".idx")]
    assert total == sum(one.stat().st_size for one in files)


@pytest.mark.parametrize("kind", ["mp4", "webm"])
def test_frames_are_encoded_as_video_and_bytes_are_unchanged(tmp_path, kind):
    av = pytest.importorskip("av")
    frames = np.zeros((5, 32, 48, 3), np.uint8)
    frames[2:] = 255
    with granular.DatasetWriter(tmp_path, {"v": kind}, granular.encoders) as writer:
        writer.append({"v": frames})
        writer.append({"v": b"a file of the user's own"})
    stored = granular.DatasetReader(tmp_path, None)[0]["v"]
    with av.open(io.BytesIO(stored)) as container:
        assert container.streams.video[0].average_rate == 20
    found = granular.DatasetReader(tmp_path, granular.decoders)[0]["v"]
    assert found.shape == frames.shape and np.abs(found.astype(int) - frames).max() < 16
    assert granular.DatasetReader(tmp_path, None)[1]["v"] == b"a file of the user's own"


@pytest.mark.parametrize(
    "value",
    [np.zeros((5, 8, 8)), np.zeros((0, 8, 8, 3), np.uint8), np.zeros((8, 8, 3), np.uint8), "x"],
    ids=["float", "no frames", "one picture", "text"],
)
def test_invalid_frames_are_rejected_with_their_shape_and_dtype(value):
    got = np.asarray(value)
    with pytest.raises(ValueFitError) as caught:
        granular.encoders["mp4"](value)
    assert str(caught.value) == (
        "cannot encode as mp4: expected bytes or uint8 [frames, height, width, 3], "
        f"got {got.dtype} {list(got.shape)}"
    )


def test_a_reader_uses_the_given_table(tmp_path, bag):
    Path(tmp_path, "other.idx").write_bytes(struct.pack("<Q", 5006))
    assert (
        granular.BagReader(bag, str(tmp_path / "other.idx"))[0]
        == b"hello" + (b"world" * 1000) + b"x"
    )
