"""Byte ranges of shards: sources, caching, and Arrow arrays up to the limit of views."""

import gzip
import threading

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flarecli as flare
from flarecli.errors import IntegrityError
from flarecli.formats import byte_ranges
from flarecli.model import Chunk, File
from flarecli.storage import Location, Store, locate
from flarecli.storage.memory import MemoryStore


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.booleans()), max_size=12),
    st.integers(1, 200),
)
def test_values_beyond_the_offset_of_a_view_are_copied(rows, limit):
    starts, lengths, end = [], [], 0
    for gap, length, is_there in rows:
        starts.append(
            end + gap if is_there else (starts[-1] if starts else 0)
        )  # a missing value is empty, at the start of the value before it
        lengths.append(length if is_there else 0)
        end = end + gap + length if is_there else end
    data = np.frombuffer(bytes(i % 251 for i in range(end)), np.uint8)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(byte_ranges, "VIEW_LIMIT", limit)
        real = byte_ranges.views
        patch.setattr(
            byte_ranges,
            "views",
            lambda some, *args: seen.append(len(some) if len(args[0]) else 0) or real(some, *args),
        )
        out = byte_ranges.ragged(data, np.array(starts, np.int64), np.array(lengths, np.int64))
    out.validate(full=True)
    assert out.type == pa.large_binary()
    assert out.to_pylist() == [
        data[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True)
    ]
    assert max(seen, default=0) < limit


@pytest.mark.parametrize("length", [4095, 4096])
def test_a_value_of_the_size_limit_of_a_view_is_not_copied_by_arrow(tmp_path, monkeypatch, length):
    """The size of a view is an int32: Arrow would read a size of 2 GiB as a negative number."""
    monkeypatch.setattr(byte_ranges, "VIEW_LIMIT", 4096)
    (tmp_path / "file").write_bytes(b"x" * (100 + length))
    memory = byte_ranges.ShardMemory.of(locate(str(tmp_path / "file")).map())
    lengths = np.zeros(64, np.uint32)
    lengths[5] = length
    starts = np.full(len(lengths), 100)
    found = byte_ranges.gathered([memory], np.zeros_like(starts), starts, lengths)
    assert isinstance(found, list) is (length == 4096)
    values = found if isinstance(found, list) else found.to_pylist()
    assert values == [b"x" * int(size) for size in lengths]


@pytest.mark.parametrize("length", range(20))
def test_views_of_short_values_are_padded_with_zeros(length):
    data = np.frombuffer(b"x" * 3 + b"y" * length + b"z" * 5, np.uint8)
    for some in (data, data[: 3 + length]):
        views = byte_ranges.views(some, np.array([3, 0, len(some)]), np.array([length, 3, 0]))
        views.validate(full=True)
        assert views.to_pylist() == [b"y" * length, b"xxx", b""]
        alone = byte_ranges.views(
            np.frombuffer(b"y" * length, np.uint8), np.array([0]), np.array([length])
        )
        assert (
            views.buffers()[1].to_pybytes()[:12] == alone.buffers()[1].to_pybytes()[:12]
        )  # the bytes that Arrow compares are equal too


# -- sources of bytes


def chunk_of(folder, data, size=None, name="x.bin", raw=None):
    (folder / name).write_bytes(data)
    return Chunk(locate(str(folder / name)), None, (File(name, size, {}, raw),))


def test_overlapping_ranges_are_returned_in_the_requested_order(tmp_path):
    data = bytes(i % 251 for i in range(300_000))
    chunk = chunk_of(tmp_path, data)
    far = [
        (0, 100),
        (10, 20),
        (5, 5),
        (0, 100),
        (250_000, 300_000),
        (50, 60),
        (299_999, 300_000),
        (300_000, 300_000),
        (90, 130),
    ]
    for at in (chunk.at, chunk.at.unmapped()):
        for ranges in (far, far[::-1], far[:2], far[1::-1], far[:1], []):
            assert [
                bytes(part) for part in byte_ranges.read(Chunk(at, None, chunk.files), ranges)
            ] == [data[a:b] for a, b in ranges]


class RemoteStore(MemoryStore):
    """A store that is not local, and records what is requested from it."""

    is_local = False

    def __init__(self, files):
        super().__init__(files)
        self.sizes, self.ranges = [], []

    def map(self, path):
        return None

    def size(self, path):
        self.sizes.append(path)
        return len(self.files[path])

    def read_many(self, path, ranges):
        return Store.read_many(self, path, ranges)

    def read_pieces(self, path, pieces):
        self.ranges.append(list(pieces))
        return [self.files[path][start:stop] for start, stop in pieces]


def test_small_gaps_are_read_and_large_gaps_are_skipped():
    store = RemoteStore({"x": bytes(1 << 20)})
    for gap, wanted in (
        (1 << 16, [(0, 20 + (1 << 16))]),
        ((1 << 16) + 1, [(0, 10), (11 + (1 << 16), 21 + (1 << 16))]),
    ):
        byte_ranges.read(Chunk(Location(store, "x")), [(10 + gap, 20 + gap), (0, 10)])
        assert store.ranges.pop() == wanted


def test_a_remote_size_is_requested_only_if_it_is_not_listed():
    store = RemoteStore({"x": b"123"})
    assert byte_ranges.stored_size(Chunk(Location(store, "x"), None, (File("x", 7),))) == 7
    assert store.sizes == []
    assert (
        byte_ranges.stored_size(Chunk(Location(store, "x")))
        == byte_ranges.stored_size(Chunk(Location(store, "x"), None, (File("x"),)))
        == 3
    )
    assert store.sizes == ["x", "x"]


def test_a_size_that_differs_from_the_listing_is_refused_by_every_reader(tmp_path):
    longer = "The file was replaced after it was packed; fetch or pack it again."
    for size, hint in ((7, "The file was cut short; fetch or pack it again."), (5, longer)):
        chunk = chunk_of(tmp_path, b"123456", size)
        for do in (
            byte_ranges.whole,
            byte_ranges.stored_size,
            lambda chunk: byte_ranges.whole(
                chunk_of(tmp_path, b"123456", chunk.files[0].size, "x.gz")
            ),
        ):
            with pytest.raises(IntegrityError) as caught:
                do(chunk)
            assert caught.value.message == f"file is 6 bytes; the listed size is {size}"
            assert caught.value.hint == hint
    assert bytes(byte_ranges.whole(chunk_of(tmp_path, b"123456", 6))) == b"123456"


def test_decompressed_bytes_are_compared_with_the_listing_and_read_only(tmp_path):
    good = chunk_of(tmp_path, gzip.compress(b"123456"), None, "x.gz", 6)
    for view in (byte_ranges.whole(good), byte_ranges.whole(good)):
        assert (bytes(view), view.readonly) == (b"123456", True)
    with pytest.raises(IntegrityError, match="x2.gz: decompresses to more than 5 bytes(?m:$)"):
        byte_ranges.whole(chunk_of(tmp_path, gzip.compress(b"123456"), None, "x2.gz", 5))


def test_close_releases_decompressed_shards(tmp_path):
    byte_ranges.whole(chunk_of(tmp_path, gzip.compress(b"123456"), None, "x.gz"))
    assert byte_ranges._cache
    flare.close()
    assert not byte_ranges._cache


def test_close_waits_while_another_thread_uses_the_cache(tmp_path):
    byte_ranges.whole(chunk_of(tmp_path, gzip.compress(b"123456"), None, "x.gz"))
    closer = threading.Thread(target=flare.close)
    with byte_ranges._lock:
        closer.start()
        closer.join(0.1)  # without the lock, this is enough time to clear the cache
        assert byte_ranges._cache
    closer.join()
    assert not byte_ranges._cache


def test_the_most_recently_used_decompressed_shards_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(byte_ranges, "_cache", type(byte_ranges._cache)())
    monkeypatch.setattr(byte_ranges, "MAX_CACHED_BYTES", 20)
    chunks = [chunk_of(tmp_path, gzip.compress(bytes([i]) * 10), None, f"{i}.gz") for i in range(3)]
    for i in (0, 1, 0, 2):  # 1 is the least recently used
        assert bytes(byte_ranges.whole(chunks[i])) == bytes([i]) * 10
    assert [at.name for at, _ in byte_ranges._cache.values()] == ["0.gz", "2.gz"]
    large = chunk_of(tmp_path, gzip.compress(bytes(100)), None, "large.gz")
    assert len(byte_ranges.whole(large)) == 100
    assert [at.name for at, _ in byte_ranges._cache.values()] == [
        "large.gz"
    ]  # larger than the limit, so it is the only one
