"""Whole objects of a run: the number of requests, and objects in memory until the run has released
them.
"""

import gc
import random
import subprocess
import sys
import textwrap
import threading
import time
from functools import partial

import numpy as np
import pytest

import flarecli as flare
from flarecli.cache import BLOCK, Cache, CachedStore, directory, list_copies
from flarecli.cache import entry as entries
from flarecli.cache import store as cached
from flarecli.errors import FormatError, MissingError
from flarecli.model import Settings
from flarecli.read import shard_prefetch
from flarecli.read.batch import BatchMaker, BatchTask
from flarecli.storage import Store
from flarecli.storage.versions import ObjectPin

DATA = random.Random(5).randbytes(10 * BLOCK + 345)


SIZE, COUNT = 300_000, 12


BODIES = {f"{i:02}": random.Random(i).randbytes(SIZE) for i in range(COUNT)}


ROOM = 4 * (SIZE + 1000)


class Objects(Store):
    """A bucket in memory; `asked` lists the requests."""

    def __init__(self, **files):
        self.files, self.asked = files, []

    def show(self, path):
        return f"s3://b/{path}"

    def version(self, path):
        if path not in [one[1] for one in self.asked]:  # a response with data has the version
            self.asked.append(("head", path))
        if path not in self.files:
            raise MissingError("not found", where=self.show(path))
        etag, data = self.files[path]
        return etag, len(data)

    def views(self, path, start, stop):
        self.asked.append((start, path, stop))
        data = self.files[path][1] if path in self.files else b""
        if len(data) < stop:
            raise FormatError(
                f"ends at byte {len(data)}; expected at least {stop} bytes", where=self.show(path)
            )
        return [memoryview(data)[start:stop]]

    def read(self, path, start=0, stop=None):
        return b"".join(self.views(path, start, stop))

    def size(self, path):
        return self.version(path)[1]

    def write(self, path, parts, hashes=(), replace=True):
        raise NotImplementedError

    list = delete = write

    def requests(self):
        asked, self.asked = [one[:1] + one[2:] for one in self.asked], []
        return asked


@pytest.fixture
def opened(tmp_path, monkeypatch):
    """Return a function that opens a cache in front of a bucket, as a new process would."""
    monkeypatch.setattr(directory, "_folders", {})
    monkeypatch.setattr(cached, "_FETCH_BYTES", 8 * BLOCK)  # so that objects are requested twice

    def opened(bucket, limit=1_000_000_000):
        directory._folders.clear()
        return CachedStore(bucket, Cache(str(tmp_path / "cache"), limit))

    return opened


def test_an_object_that_was_never_kept_is_requested_once(opened):
    bucket = Objects(small=("one", DATA[:200_000]), large=("two", DATA))
    store = opened(bucket)
    assert store.keep("small", 200_000) and bytes(store.map("small")) == DATA[:200_000]
    assert bucket.requests() == [(0, 200_000)]
    assert store.keep("large", len(DATA)) and bytes(store.map("large")) == DATA
    assert bucket.requests() == [(0, 8 * BLOCK), (8 * BLOCK, len(DATA))]


def test_only_the_version_of_a_kept_object_is_requested(opened):
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


def test_data_without_a_version_is_not_fetched_for_the_cache(opened, tmp_path):
    bucket = Objects(a=("", DATA[:1000]), b=("", DATA[:1000]))
    store = opened(bucket)
    assert not store.keep("a", 1000)
    bucket.requests()
    assert not store.keep("b", 1000)
    assert bucket.requests() == [("head",)]
    assert list(list_copies(str(tmp_path / "cache"))) == []


def test_a_missing_object_is_reported(opened):
    with pytest.raises(MissingError, match="s3://b/a: not found"):
        opened(Objects()).keep("a", 1000)


@pytest.fixture
def bucket():
    return Objects(**{name: ("one", data) for name, data in BODIES.items()})


def names(tmp_path):
    return sorted(one.address.rpartition("/")[2] for one in list_copies(str(tmp_path / "cache")))


def passes(store, times=1):
    """Read all objects one after another; return the number of correct ones."""
    right = 0
    for name, data in list(BODIES.items()) * times:
        time.sleep(0.01)  # file times are whole ticks of the system clock
        right += (
            store.keep(name, SIZE, passing=True)
            and bytes(store.map(name)) == data
            and store.read(name, 5, 9) == data[5:9]
        )
        store.passed(name)
    return right


def test_the_first_copies_stay_and_the_rest_is_fetched_once_per_run(opened, bucket, tmp_path):
    store = opened(bucket, ROOM)
    assert passes(store) == COUNT
    assert bucket.requests() == [(0, SIZE)] * COUNT
    assert names(tmp_path) == ["00", "01", "02", "03"]
    assert passes(store) == COUNT
    assert bucket.requests() == [(0, SIZE)] * (COUNT - 4)
    assert store._folder.open_copies._transient_bytes == 0


def test_copies_in_the_folder_use_no_transient_memory(opened, bucket):
    store = opened(bucket, ROOM)
    assert store.keep("00", SIZE, passing=True)
    assert store._folder.open_copies._transient_bytes == 0


def test_a_released_object_is_dropped(opened, bucket):
    store = opened(bucket, ROOM)
    passes(store)
    bucket.requests()
    assert bytes(store.map("07")) == BODIES["07"]  # a small object is fetched to be mapped
    assert bucket.requests() == [(0, SIZE)]


def test_older_copies_are_evicted_for_a_new_one(opened, bucket, tmp_path):
    passes(opened(bucket, ROOM))
    store = opened(bucket, ROOM)
    assert store.keep("09", SIZE, passing=True)
    store.passed("09")
    assert "09" in names(tmp_path) and len(names(tmp_path)) == 4


def test_objects_beyond_the_memory_limit_are_cached_in_the_folder(
    opened, bucket, tmp_path, monkeypatch
):
    monkeypatch.setattr(entries, "MAX_TRANSIENT_BYTES", SIZE + 10)
    store = opened(bucket, ROOM)
    for name in BODIES:
        assert store.keep(name, SIZE, passing=True)
        time.sleep(0.01)  # file times are whole ticks of the system clock
    assert store._folder.open_copies._transient_bytes == SIZE
    assert names(tmp_path) == ["08", "09", "10", "11"]


def test_if_other_processes_use_the_folder_every_object_is_cached_in_the_folder(
    opened, bucket, tmp_path, monkeypatch
):
    code = f"""
        import sys
        from flarecli.cache import directory
        assert directory.shared({str(tmp_path / "cache")!r}, {ROOM}).fd >= 0
        print(flush=True)
        sys.stdin.read()
    """
    other = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        other.stdout.readline()
        assert passes(opened(bucket, ROOM)) == COUNT
        assert names(tmp_path) == ["08", "09", "10", "11"]
    finally:
        other.communicate()
    assert (
        passes(opened(bucket, ROOM)) == COUNT
    )  # it has ended, and its presence file does not count
    assert list((tmp_path / "cache" / "flare-1" / "here").iterdir()) != []


def test_a_forked_child_counts_as_another_process(opened, bucket, tmp_path):
    store = opened(bucket, ROOM)
    assert store._folder.is_alone()
    code = "import sys; from flarecli.cache import directory; assert not directory.shared(sys.argv[1], int(sys.argv[2])).is_alone()"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "cache"), str(ROOM)], check=True)


def assert_nothing_held():
    """A transfer that was in flight at the end of a run ends by itself, and then keeps nothing."""
    (one,) = directory._folders.values()
    until = time.monotonic() + 60
    while one.open_copies._transient and time.monotonic() < until:
        time.sleep(0.01)
    assert one.open_copies._transient_bytes == 0 and not one.open_copies._transient


@pytest.mark.parametrize("most", [1000, 7])
def test_a_run_releases_all_transient_memory(web, tmp_path, monkeypatch, most):
    monkeypatch.setattr(directory, "_folders", {})
    rng = random.Random(1)
    with flare.Writer(
        str(tmp_path / "d"),
        columns={"n": "int", "b": "bytes"},
        settings=Settings(shard_bytes=100_000),
    ) as writer:
        for n in range(500):
            writer.write({"n": n, "b": rng.randbytes(6_000)})
    bodies = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()}
    for name, body in bodies.items():
        web.file(f"/d/{name}", body, etag='"one"')
    limit = sum(map(len, bodies.values())) // 5
    data = flare.open(web.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"), cache_limit=limit)
    rows = []
    loop = iter(flare.Loader(data, 16, order="windows", window=2))
    for _, batch in zip(range(most), loop, strict=False):
        rows += batch["n"].tolist()
    loop.close()
    assert len(rows) == len(set(rows)) == min(500, most * 16)
    assert_nothing_held()
    assert (
        sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
        <= limit
    )


LARGE = 3 * BLOCK + 77


GREAT = {f"{i}": random.Random(i).randbytes(LARGE) for i in range(4)}


@pytest.fixture
def great():
    return Objects(**{name: ("one", data) for name, data in GREAT.items()})


@pytest.mark.parametrize("limit", [LARGE // 2, LARGE + 1000, 3 * LARGE])
def test_a_large_object_is_in_memory_until_it_is_released(opened, great, tmp_path, limit):
    store = opened(great, limit)
    for name, data in GREAT.items():
        assert store.keep(name, LARGE, passing=True)
        assert bytes(store.map(name)) == data
        assert store._folder.open_copies._transient_bytes == LARGE
        store.passed(name)
    assert great.requests() == [(0, LARGE)] * 4
    assert names(tmp_path) == [] and store._folder.open_copies._transient_bytes == 0


def test_a_large_object_is_not_kept_whole(opened, great, tmp_path):
    store = opened(great, 3 * LARGE)
    assert not store.keep("0", LARGE)
    assert store.read("0", 5, 9) == GREAT["0"][5:9]
    assert great.requests() == [("head",), (0, BLOCK)]
    assert store._folder.open_copies._transient_bytes == 0


def test_if_other_processes_use_the_folder_a_large_object_is_not_fetched(
    opened, great, monkeypatch
):
    store = opened(great, 3 * LARGE)
    monkeypatch.setattr(store._folder, "is_alone", lambda: False)
    assert not store.keep("0", LARGE, passing=True)
    assert great.requests() == [("head",)]


@pytest.mark.parametrize(("limit", "is_kept"), [(2 * LARGE - 1, False), (2 * LARGE, True)])
def test_without_memory_a_large_object_up_to_half_the_limit_is_cached_in_the_folder(
    opened, great, tmp_path, monkeypatch, limit, is_kept
):
    monkeypatch.setattr(entries, "MAX_TRANSIENT_BYTES", LARGE - 1)
    store = opened(great, limit)
    assert store.keep("0", LARGE, passing=True) is is_kept
    assert names(tmp_path) == ["0"] * is_kept and store._folder.open_copies._transient_bytes == 0


def test_a_large_object_that_cannot_be_fetched_uses_no_memory(opened, great):
    store = opened(great, 3 * LARGE)
    great.files["0"] = "one", GREAT["0"][: 2 * BLOCK]
    store._pins.pin("0", ObjectPin("one", LARGE))  # the first response of the server
    with pytest.raises(
        FormatError, match=f"s3://b/0: ends at byte {2 * BLOCK}; expected at least {LARGE} bytes"
    ):
        store.keep("0", LARGE, passing=True)
    assert store._folder.open_copies._transient_bytes == 0


def in_groups(monkeypatch):
    """Fetch a large object by several requests, so that its parts are joined."""
    monkeypatch.setattr(cached, "_FETCH_BYTES", BLOCK)


def test_an_object_of_several_requests_is_joined_in_memory(opened, great, monkeypatch):
    in_groups(monkeypatch)
    store = opened(great, 3 * LARGE)
    assert store.keep("0", LARGE, passing=True)
    view = store.map("0")
    assert bytes(view) == GREAT["0"] and view.readonly
    store.passed("0")
    assert store.keep("1", LARGE, passing=True)
    assert bytes(view) == GREAT["0"]  # a view of a released object remains valid


@pytest.fixture
def shards(web, tmp_path, monkeypatch):
    """Large shards on a server: their bytes by name, and the dataset behind a cache for two of
    them.
    """
    monkeypatch.setattr(directory, "_folders", {})
    rng = random.Random(1)
    with flare.Writer(
        str(tmp_path / "d"),
        columns={"n": "int", "b": "bytes"},
        settings=Settings(shard_bytes=LARGE),
    ) as writer:
        for n in range(200):
            writer.write({"n": n, "b": rng.randbytes(100_000)})
    bodies = {path.name: path.read_bytes() for path in (tmp_path / "d").iterdir()}
    for name, body in bodies.items():
        web.file(f"/d/{name}", body, etag='"one"')
    data = flare.open(
        web.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"), cache_limit=2 * LARGE
    )
    web.requests.clear()
    return {name: len(body) for name, body in bodies.items() if name.endswith(".mds")}, data


@pytest.mark.parametrize("order", ["windows", "sequential"])
def test_a_run_over_large_shards_fetches_each_once(web, shards, order):
    sizes, data = shards
    rows = [
        n for batch in flare.Loader(data, 16, order=order, window=2) for n in batch["n"].tolist()
    ]
    assert sorted(rows) == list(range(200))
    asked = dict.fromkeys(sizes, 0)
    for path, headers in web.requests:
        name = path.rpartition("/")[2]
        if (
            name in asked and headers.get("range", "bytes=0-0") != "bytes=0-0"
        ):  # which requests the version
            start, _, last = headers["range"].removeprefix("bytes=").partition("-")
            asked[name] += int(last) + 1 - int(start)
    assert asked == sizes
    assert_nothing_held()


def streamed(data, **options):
    pytest.importorskip("torch")
    from flarecli.torch import IterableDataset

    return IterableDataset(data, 16, **options)


@pytest.mark.parametrize("begin", [partial(flare.Loader, batch=16), flare.Dataset.run, streamed])
def test_prefetched_objects_are_released_when_a_run_ends(shards, monkeypatch, begin):
    monkeypatch.setattr(
        shard_prefetch, "_MIN_AHEAD_BYTES", 0
    )  # so that some shards are not fetched
    _, data = shards
    loop = iter(begin(data, order="windows", window=1))
    next(loop)
    data.shards.fetch_rows(np.arange(200), passing=True)  # like threads that prefetch batches
    (one,) = directory._folders.values()
    assert one.open_copies._transient_bytes > LARGE
    del loop
    gc.collect()
    assert_nothing_held()


def test_objects_fetched_while_a_run_ends_are_released(shards, monkeypatch):
    _, data = shards
    (series,) = data._table.series
    work = BatchMaker(data, (), None, 0, 0, fetches=True)
    store, fetch = type(series.chunk(0).at.store), threading.Event()
    keep = store.keep
    monkeypatch.setattr(
        store, "keep", lambda self, *given: (began.set(), fetch.wait(20), keep(self, *given))[2]
    )
    for rows in ([0], [150]):  # the run ends while it is in flight
        began = threading.Event()
        made = threading.Thread(target=work, args=(BatchTask(np.array(rows), False),))
        made.start()
        assert began.wait(60)
        if rows == [0]:
            work.close()
        fetch.set()
        made.join()
        assert_nothing_held()
