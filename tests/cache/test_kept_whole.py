"""Objects that a run fetches whole: how often their server is asked, and what for."""

import random

import pytest

from flarecli.cache import BLOCK, Cache, CachedStore, folder, kept
from flarecli.errors import FormatError, MissingError

DATA = random.Random(5).randbytes(10 * BLOCK + 345)


class Objects:
    """A bucket in memory; `asked` is what was asked of it."""

    is_local = False
    guard = None

    def __init__(self, **files):
        self.files, self.asked = files, []

    def show(self, path):
        return f"s3://b/{path}"

    def version(self, path):
        if path not in [one[1] for one in self.asked]:  # an answer with bytes has told it
            self.asked.append(("head", path))
        if path not in self.files:
            raise MissingError("nothing is there", where=self.show(path))
        etag, data = self.files[path]
        return etag, len(data)

    def views(self, path, start, stop):
        self.asked.append((start, path, stop))
        data = self.files[path][1] if path in self.files else b""
        if len(data) < stop:
            raise FormatError(f"ends at byte {len(data)}, {stop} are needed", where=self.show(path))
        return [memoryview(data)[start:stop]]

    def read(self, path, start=0, stop=None):
        return b"".join(self.views(path, start, stop))

    def requests(self):
        asked, self.asked = [one[:1] + one[2:] for one in self.asked], []
        return asked


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """A cache before a bucket, as a new process would open it."""
    monkeypatch.setattr(folder, "_folders", {})

    def opened(bucket, limit=1_000_000_000):
        folder._folders.clear()
        return CachedStore(bucket, Cache(str(tmp_path / "cache"), limit))

    return opened


def test_what_was_never_kept_is_asked_for_once(opened):
    bucket = Objects(small=("one", DATA[:200_000]), large=("two", DATA))
    store = opened(bucket)
    assert store.keep("small", 200_000) and bytes(store.map("small")) == DATA[:200_000]
    assert bucket.requests() == [(0, 200_000)]
    assert store.keep("large", len(DATA)) and bytes(store.map("large")) == DATA
    assert bucket.requests() == [(0, 8 * BLOCK), (8 * BLOCK, len(DATA))]


def test_what_may_be_there_already_is_asked_for_its_version_alone(opened):
    bucket = Objects(a=("one", DATA))
    opened(bucket).keep("a", len(DATA))
    bucket.requests()
    store = opened(bucket)
    assert store.keep("a", len(DATA)) and bytes(store.map("a")) == DATA
    assert bucket.requests() == [("head",)]
    bucket.files["a"] = "two", DATA[::-1]
    store = opened(bucket)
    assert store.keep("a", len(DATA)) and bytes(store.map("a")) == DATA[::-1]
    assert bucket.requests() == [("head",), (0, 8 * BLOCK), (8 * BLOCK, len(DATA))]


@pytest.mark.parametrize("listed", [len(DATA) - 5, 300_000, 9 * BLOCK])
def test_an_object_larger_than_listed_is_kept_as_it_is(opened, listed):
    store = opened(Objects(a=("one", DATA)))
    assert store.keep("a", listed) and bytes(store.map("a")) == DATA


def test_an_object_shorter_than_listed_is_kept_as_it_is(opened):
    store = opened(Objects(a=("one", DATA[:5000])))
    assert store.keep("a", 9000) and bytes(store.map("a")) == DATA[:5000]


def test_a_store_without_versions_is_not_asked_for_bytes_that_nothing_keeps(opened, tmp_path):
    bucket = Objects(a=("", DATA[:1000]), b=("", DATA[:1000]))
    store = opened(bucket)
    assert not store.keep("a", 1000)
    bucket.requests()
    assert not store.keep("b", 1000)
    assert bucket.requests() == [("head",)]
    assert list(kept(str(tmp_path / "cache"))) == []


def test_one_that_is_missing_says_so(opened):
    with pytest.raises(MissingError, match="s3://b/a: nothing is there"):
        opened(Objects()).keep("a", 1000)
