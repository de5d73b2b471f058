"""Runs of bytes: where they come from, what of them is kept, and as Arrow arrays, at the border of what the offset of a view reaches."""

import gzip

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import IntegrityError
from flarecli.formats import byte_ranges as spans
from flarecli.model import Chunk, File
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 40), st.booleans()), max_size=12),
    st.integers(1, 200),
)
def test_runs_are_cut_apart_where_a_view_would_not_reach(rows, limit):
    starts, lengths, end = [], [], 0
    for gap, length, is_there in rows:
        starts.append(
            end + gap if is_there else (starts[-1] if starts else 0)
        )  # one that is not there lies, empty, where the one before begins
        lengths.append(length if is_there else 0)
        end = end + gap + length if is_there else end
    data = np.frombuffer(bytes(i % 251 for i in range(end)), np.uint8)
    seen = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "VIEW_LIMIT", limit)
        real = spans.views
        patch.setattr(
            spans,
            "views",
            lambda some, *args: seen.append(len(some) if len(args[0]) else 0) or real(some, *args),
        )
        out = spans.ragged(data, np.array(starts, np.int64), np.array(lengths, np.int64))
    out.validate(full=True)
    assert out.type == pa.large_binary()
    assert out.to_pylist() == [
        data[a : a + n].tobytes() for a, n in zip(starts, lengths, strict=True)
    ]
    assert max(seen, default=0) < limit


@pytest.mark.parametrize("length", range(20))
def test_a_view_is_padded_with_zeros_and_ends_where_its_bytes_do(length):
    data = np.frombuffer(b"x" * 3 + b"y" * length + b"z" * 5, np.uint8)
    for some in (data, data[: 3 + length]):
        views = spans.views(some, np.array([3, 0, len(some)]), np.array([length, 3, 0]))
        views.validate(full=True)
        assert views.to_pylist() == [b"y" * length, b"xxx", b""]
        alone = spans.views(
            np.frombuffer(b"y" * length, np.uint8), np.array([0]), np.array([length])
        )
        assert (
            views.buffers()[1].to_pybytes()[:12] == alone.buffers()[1].to_pybytes()[:12]
        )  # of equal values all that is compared is equal


# -- where the bytes come from


def chunk_of(folder, data, size=None, name="x.bin", raw=None):
    (folder / name).write_bytes(data)
    return Chunk(locate(str(folder / name)), None, (File(name, size, {}, raw),))


def test_ranges_are_given_as_asked_whichever_lie_in_one_another(tmp_path):
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
            assert [bytes(part) for part in spans.read(Chunk(at, None, chunk.files), ranges)] == [
                data[a:b] for a, b in ranges
            ]


def test_a_gap_that_is_near_is_read_and_one_that_is_far_is_not(monkeypatch):
    asked, store = [], MemoryStore({"x": bytes(1 << 20)})
    monkeypatch.setattr(store, "map", lambda path: None)
    monkeypatch.setattr(store, "size", lambda path: 1 << 20)
    monkeypatch.setattr(
        store,
        "read_many",
        lambda path, ranges: asked.append(list(ranges)) or [bytes(b - a) for a, b in ranges],
    )
    for gap, wanted in (
        (1 << 16, [(0, 20 + (1 << 16))]),
        ((1 << 16) + 1, [(0, 10), (11 + (1 << 16), 21 + (1 << 16))]),
    ):
        spans.read(Chunk(Location(store, "x")), [(10 + gap, 20 + gap), (0, 10)])
        assert asked.pop() == wanted


def test_a_remote_store_is_asked_for_a_size_only_where_none_is_listed(monkeypatch):
    asked, store = [], MemoryStore({"x": b"123"})
    store.is_local = False
    monkeypatch.setattr(store, "size", lambda path: asked.append(path) or 3)
    assert spans.stored_size(Chunk(Location(store, "x"), None, (File("x", 7),))) == 7
    assert asked == []
    assert (
        spans.stored_size(Chunk(Location(store, "x")))
        == spans.stored_size(Chunk(Location(store, "x"), None, (File("x"),)))
        == 3
    )
    assert asked == ["x", "x"]


def test_another_size_than_listed_is_refused_by_every_way(tmp_path):
    longer = "The file was replaced after it was packed; fetch or pack it again."
    for size, hint in ((7, "It was cut short; fetch or pack it again."), (5, longer)):
        chunk = chunk_of(tmp_path, b"123456", size)
        for do in (
            spans.whole,
            spans.stored_size,
            lambda chunk: spans.whole(chunk_of(tmp_path, b"123456", chunk.files[0].size, "x.gz")),
        ):
            with pytest.raises(IntegrityError) as caught:
                do(chunk)
            assert caught.value.message == f"is 6 bytes, {size} are listed"
            assert caught.value.hint == hint
    assert bytes(spans.whole(chunk_of(tmp_path, b"123456", 6))) == b"123456"


def test_what_was_decompressed_is_held_to_what_is_listed_and_cannot_be_written_to(tmp_path):
    good = chunk_of(tmp_path, gzip.compress(b"123456"), None, "x.gz", 6)
    for view in (spans.whole(good), spans.whole(good)):
        assert (bytes(view), view.readonly) == (b"123456", True)
    with pytest.raises(IntegrityError, match="x2.gz: decompresses to more than 5 bytes$"):
        spans.whole(chunk_of(tmp_path, gzip.compress(b"123456"), None, "x2.gz", 5))


def test_of_decompressed_shards_those_that_were_asked_for_last_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(spans, "_cache", type(spans._cache)())
    monkeypatch.setattr(spans, "MAX_CACHED_BYTES", 20)
    chunks = [chunk_of(tmp_path, gzip.compress(bytes([i]) * 10), None, f"{i}.gz") for i in range(3)]
    for i in (0, 1, 0, 2):  # 1 has waited longest
        assert bytes(spans.whole(chunks[i])) == bytes([i]) * 10
    assert [at.name for at, _ in spans._cache.values()] == ["0.gz", "2.gz"]
    large = chunk_of(tmp_path, gzip.compress(bytes(100)), None, "large.gz")
    assert len(spans.whole(large)) == 100
    assert [at.name for at, _ in spans._cache.values()] == [
        "large.gz"
    ]  # larger than all that is kept, and kept alone
