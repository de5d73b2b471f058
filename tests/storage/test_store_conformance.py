"""The contract of every store, tested on each: local disk, memory, HTTP (our server and nginx), S3,
Azure, GCS, fsspec, s3fs and the cache.
"""

import multiprocessing
import pickle
import random
import threading
import time

import pytest

import flarecli as flare
from flarecli.cache import Cache
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UnsafeError,
    UsageError,
)
from flarecli.hashes import digest
from flarecli.storage import Guard, Location, locate, read_each
from flarecli.storage.memory import MemoryStore

DATA = random.Random(4).randbytes(3_000_000)


READ_ONLY = ("http", "nginx", "cached http")


KINDS = (
    "local",
    "memory",
    "http",
    "nginx",
    "s3",
    "azure",
    "google",
    "fsspec memory",
    "s3fs",
    "cached s3",
    "cached http",
    "cached fsspec",
)


class Place:
    """A folder in a store: `at` is its Location; `put` writes a file, outside of the store if that
    is read-only.
    """

    def __init__(self, at, put=None):
        self.at = at
        self.put = put or (lambda name, data: (at / name).write([data]))

    def fresh(self, name):
        """Return the file as another process would open it."""
        return pickle.loads(pickle.dumps(self.at)) / name


@pytest.fixture(params=KINDS)
def place(request, tmp_path, monkeypatch):
    kind, guard = request.param, Guard()
    if kind.startswith("cached"):
        guard = Guard(keeper=Cache(str(tmp_path / "cache"), 50_000_000))
    if kind == "local":
        (tmp_path / "d").mkdir()
        return Place(locate(str(tmp_path / "d")))
    if kind == "memory":
        return Place(Location(MemoryStore(shown="m"), "d"))
    if kind in ("http", "cached http"):
        web = request.getfixturevalue("web")
        return Place(
            locate(web.url("/d"), guard),
            lambda name, data: web.file(f"/d/{name}", data, f'"{digest(data)}"'),
        )
    if kind == "nginx":
        folder, url = request.getfixturevalue("nginx")
        below = folder / f"d{time.monotonic_ns()}"

        def put(name, data):
            (below / name).parent.mkdir(parents=True, exist_ok=True)
            (below / name).write_bytes(data)

        return Place(locate(f"{url}/{below.name}"), put)
    if kind in ("fsspec memory", "cached fsspec"):
        return Place(locate(f"memory://d{time.monotonic_ns()}", guard))
    if kind == "s3fs":
        pytest.importorskip("s3fs")
        monkeypatch.setenv("FLARE_S3", "s3fs")
    return Place(
        locate(
            f"{request.getfixturevalue(kind if kind in ('azure', 'google') else 's3')}/some/d",
            guard,
        )
    )


@pytest.fixture
def writable(place, request):
    if request.node.callspec.params["place"] in READ_ONLY:
        pytest.skip("read only")
    return place


def message(error, call, *args):
    with pytest.raises(FlareError) as caught:
        call(*args)
    assert type(caught.value) is error, repr(caught.value)
    return str(caught.value)


def in_memory(place):
    """Skip stores in memory, which other processes do not have."""
    store = place.at.store
    return isinstance(store, MemoryStore) or str(place.at).startswith("memory:")


@pytest.mark.parametrize("size", [0, 1, 300, 70_000, 3_000_000])
def test_a_file_is_read_whole_in_ranges_and_in_blocks(place, size):
    data = DATA[:size]
    place.put("a.bin", data)
    at = place.at / "a.bin"
    assert at.size() == size and at.exists()
    assert at.read() == data
    assert type(at.read()) is bytes
    assert b"".join(at.blocks()) == data
    assert at.read(size // 2) == data[size // 2 :]
    assert at.read(size // 3, size // 2) == data[size // 3 : size // 2]
    assert at.read(size) == at.read(size, size) == b""
    assert at.map() is None or bytes(at.map()) == data


def test_many_ranges_are_returned_in_their_order(place):
    place.put("a.bin", DATA)
    at, rng = place.at / "a.bin", random.Random(1)
    for count in (0, 1, 3, 300):
        starts = [rng.randrange(len(DATA)) for _ in range(count)]
        ranges = [
            (start, min(len(DATA), start + rng.choice((0, 1, 100, 5000)))) for start in starts
        ]
        assert at.read_many(ranges) == [DATA[start:stop] for start, stop in ranges]
    assert at.read_many([(0, len(DATA)), (5, 5), (2_999_990, 3_000_000), (0, 1)]) == [
        DATA,
        b"",
        DATA[-10:],
        DATA[:1],
    ]


def test_missing_capabilities_have_harmless_defaults(place):
    place.put("a.bin", DATA[:5000])
    at, store = place.at / "a.bin", place.at.store
    path = at.path
    assert b"".join(store.views(path, 10, 5000)) == DATA[10:5000]
    token, size = store.version(path)
    assert type(token) is str and size == 5000
    assert at.unmapped().read() == DATA[:5000]
    assert type(store.origin) is str and type(store.guard) is Guard and store.room >= 0
    if not store.keeps_copies:
        assert store.keep(path) is False and store.room == 0
        assert at.derived("raw", 1, lambda: [b"x"]) is None
    store.passed(path)
    at.forget()
    assert at.read(1, 3) == DATA[1:3]


def test_a_closed_store_can_be_used_again(place):
    place.put("a.bin", DATA[:5000])
    with place.at.store as store:
        assert (place.at / "a.bin").read() == DATA[:5000]
    assert store is place.at.store
    flare.close()
    assert (place.at / "a.bin").read(7, 9) == DATA[7:9]


def test_close_ranges_are_read_together(place, monkeypatch):
    if place.at.is_local or place.at.store.keeps_copies:
        pytest.skip("only remote stores plan requests")
    place.put("a.bin", DATA)
    asked, store = [], type(place.at.store)
    read_pieces = store.read_pieces

    def counted(self, path, pieces):
        asked.append(list(pieces))
        return read_pieces(self, path, pieces)

    monkeypatch.setattr(store, "read_pieces", counted)
    assert (place.at / "a.bin").read_many([(900_000, 900_010), (20, 30), (10, 15)]) == [
        DATA[900_000:900_010],
        DATA[20:30],
        DATA[10:15],
    ]
    assert asked == [[(10, 30), (900_000, 900_010)]]


def test_many_files_are_returned_in_their_order_or_fail(place):
    sizes = [0, 1, 5000, 300, 70_000, 1] * 4
    for i, size in enumerate(sizes):
        place.put(f"{i}.bin", DATA[i : i + size])
    asked = [*reversed(range(len(sizes))), 3]
    found = list(read_each([place.at / f"{i}.bin" for i in asked]))
    assert found == [DATA[i : i + sizes[i]] for i in asked] and {type(one) for one in found} <= {
        bytes,
        memoryview,
    }
    assert list(read_each([])) == [] and list(read_each([place.at / "2.bin"])) == [DATA[2:5002]]
    message(
        MissingError,
        lambda: list(read_each([place.at / name for name in ("1.bin", "nothing", "2.bin")])),
    )


def test_a_changed_file_among_many_is_not_mixed(place, request):
    if place.at.is_local or str(request.node.callspec.params["place"]).startswith("cached"):
        pytest.skip("a file is read through one handle, or as it was kept")
    for name in "abc":
        place.put(name, DATA[:9])
    at = place.fresh("a").folder
    (at / "b").read(0, 3)
    time.sleep(
        1.1 if "nginx" in request.node.name else 0
    )  # its versions are modification times in seconds
    place.put("b", DATA[9:18])
    assert (
        message(IntegrityError, lambda: list(read_each([at / name for name in "abc"])))
        == f"{at / 'b'}: changed while it was being read"
    )
    assert list(read_each([place.fresh(name) for name in "abc"])) == [
        DATA[:9],
        DATA[9:18],
        DATA[:9],
    ]


def test_a_read_past_the_end_reports_the_size(place):
    place.put("a.bin", DATA[:1000])
    for call in (
        lambda at: at.read(0, 1001),
        lambda at: at.read(1001),
        lambda at: at.read(990, 1001),
        lambda at: at.read_many([(0, 5), (900, 1001)]),
    ):
        assert (
            message(FormatError, call, place.at / "a.bin")
            == f"{place.at}/a.bin: ends at byte 1000; expected at least 1001 bytes"
        )
        assert message(
            FormatError, call, place.fresh("a.bin") if not in_memory(place) else place.at / "a.bin"
        ).endswith("expected at least 1001 bytes")


def test_a_missing_file_is_a_missing_error(place):
    place.put("a.bin", b"x")
    at = place.at / "b.bin"
    assert not at.exists()
    for call in (
        at.size,
        at.read,
        lambda: at.read(3, 5),
        lambda: at.read_many([(0, 1), (2, 3)]),
        lambda: b"".join(at.blocks()),
    ):
        assert message(MissingError, call).startswith(f"{at}: ")


def test_names_with_special_characters_are_literal(place):
    for name in ("a b", "a%20b", "a+b", "ä", "a=b&c", "sub/x.y.z", "a~", "{x}"):
        place.put(name, name.encode()) if not str(place.at).startswith(
            "http://127.0.0.1"
        ) or name in ("sub/x.y.z", "a~") else None
    for name in ("sub/x.y.z", "a~"):
        assert (place.at / name).read() == name.encode()
        assert (place.at / name).name == name.rpartition("/")[2]


@pytest.mark.parametrize(
    "name", ["../x", "/etc/passwd", "a/../../x", "a//b", "", "a\\b", "C:x", "~/x", "a\nb"]
)
def test_no_name_leaves_the_folder(place, name):
    message(UnsafeError, lambda: place.at / name)


@pytest.mark.parametrize(
    "url",
    [
        "../x",
        "file:///etc/passwd",
        "ftp://h/x",
        "memory://elsewhere/x",
        "s3://another/x",
        "zip://x",
        "a/../../x",
    ],
)
def test_data_cannot_name_files_elsewhere(place, url):
    if url.endswith("../x") and str(place.at).startswith("http"):
        return  # web addresses on the same server are allowed like all others
    if url.startswith("s3:"):
        return  # a bucket may be named: see test_buckets_named_by_data.py
    message(UnsafeError, place.at.join, url)


def test_data_names_files_beside_it(place):
    place.put("sub/x.bin", b"here")
    assert place.at.join("sub/x.bin").read() == b"here"
    assert place.at.join("sub/x.bin") == place.at / "sub/x.bin"
    assert (place.at / "sub/x.bin").folder == place.at / "sub"


def test_a_location_works_in_other_processes(place):
    place.put("a.bin", DATA)
    at = place.at / "a.bin"
    assert at.read(5, 50) == DATA[5:50]
    copy = pickle.loads(pickle.dumps(at))
    assert str(copy) == str(at)
    if not isinstance(place.at.store, MemoryStore):
        assert copy == at
        assert copy.read_many([(0, 1), (1000, 1100)]) == [DATA[:1], DATA[1000:1100]]
    methods = ["fork"] if in_memory(place) else ["fork", "spawn"]
    for method in methods:
        context = multiprocessing.get_context(method)
        with context.Pool(1) as pool:
            assert pool.apply_async(at.read_many, ([(7, 9), (100, 200)],)).get(30) == [
                DATA[7:9],
                DATA[100:200],
            ]
            assert digest(pool.apply_async(at.read).get(30)) == digest(DATA)
    assert at.read(5, 50) == DATA[5:50]


def test_many_threads_read_at_once(place):
    place.put("a.bin", DATA)
    at, wrong = place.at / "a.bin", []

    def read(seed):
        rng = random.Random(seed)
        for _ in range(10):
            start = rng.randrange(len(DATA) - 5000)
            if at.read(start, start + 5000) != DATA[start : start + 5000]:
                wrong.append(start)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_written_file_is_hashed_complete_and_listed(writable):
    at = writable.at / "sub/b.bin"
    written = at.write(
        [DATA[:10], memoryview(DATA)[10:5000], bytearray(DATA[5000:])], ["xxh3_128", "crc32"]
    )
    assert written == (len(DATA), {"xxh3_128": digest(DATA), "crc32": digest(DATA, "crc32")})
    for name in ("a", "c/1", "c", "ab", "é", "sub/a"):
        if name != "c":
            (writable.at / name).write([name.encode()])
    names = ["a", "ab", "c/1", "sub/a", "sub/b.bin", "é"]
    assert list(writable.at.list()) == [
        (name, 3_000_000 if name == "sub/b.bin" else len(name.encode())) for name in names
    ]
    assert [name for name, _ in (writable.at / "sub").list()] == ["a", "b.bin"]
    assert at.read() == DATA


def test_a_large_file_is_written_completely(writable):
    at, whole = writable.at / "large", DATA * 8
    assert at.write(
        (whole[i : i + 999_999] for i in range(0, len(whole), 999_999)), ["xxh3_64"]
    ) == (
        len(whole),
        {"xxh3_64": digest(whole, "xxh3_64")},
    )
    assert digest(b"".join(at.blocks())) == digest(whole)
    assert digest(at.read()) == digest(whole)


def test_a_failed_write_leaves_no_file(writable):
    def parts():
        for _ in range(7):
            yield DATA
        raise KeyError("boom")

    (writable.at / "other").write([b"x"])
    with pytest.raises(KeyError):
        (writable.at / "half").write(parts())
    assert not (writable.at / "half").exists()
    assert [name for name, _ in writable.at.list()] == ["other"]


@pytest.mark.parametrize("size", [10, 20_000_000])
def test_an_existing_file_is_replaced_only_if_allowed(writable, size):
    at = writable.at / "a"
    at.write([b"old"])
    assert message(UsageError, at.write, [bytes(size)], (), False) == f"{at}: already exists"
    assert at.read() == b"old"
    at.write([b"new!"])
    assert at.read() == b"new!"
    (writable.at / "b").write([b"first"], (), False)
    assert (writable.at / "b").read() == b"first"


def test_deleting_twice_is_no_error(writable):
    at = writable.at / "sub/a"
    at.write([b"x"])
    at.delete()
    at.delete()
    assert not at.exists()


def test_listing_an_empty_folder_is_a_missing_error(writable):
    message(MissingError, lambda: list((writable.at / "nothing").list()))


def test_versions_of_a_changing_object_are_not_mixed(place, request):
    if place.at.is_local:
        pytest.skip("local files are read through one handle")
    place.put("a.bin", DATA)
    at = place.fresh("a.bin")
    at.read(0, 10)
    time.sleep(
        1.1 if "nginx" in request.node.name else 0
    )  # its versions are modification times in seconds
    place.put("a.bin", DATA[::-1])
    for call in (
        lambda: at.read(20, 30),
        lambda: at.read_many([(0, 5), (400_000, 400_100)]),
        lambda: b"".join(at.blocks()),
    ):
        if at.map() is None and not str(request.node.callspec.params["place"]).startswith("cached"):
            assert message(IntegrityError, call) == f"{at}: changed while it was being read"
    assert place.fresh("a.bin").read() == DATA[::-1]


def test_several_files_are_read_up_to_a_number_of_bytes(place):
    bodies = {"a": b"1234", "sub/b": b"567", "sub/c": b"89", "sub/d": bytes(50)}
    for name, data in bodies.items():
        place.put(name, data)
    paths = [(place.at / name).path for name in ("a", "sub/b", "no", "sub/c", "sub/d")]
    first, second, missing, third, large = place.at.store.read_files(paths, 40, 6)
    assert (first, second, third) == (b"1234", 3, b"89")  # `sub/b` does not fit into 2 bytes
    assert isinstance(missing, MissingError)
    assert str(large) == f"{place.at / 'sub/d'}: object is 50 B; the maximum is 40 B"
