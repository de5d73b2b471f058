"""The cache returns the right bytes for any content of its folder, never exceeds its limit, and
never raises an error of its own.
"""

import errno
import fcntl
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings
from itertools import pairwise

import pytest

import flarecli as flare
from flarecli.cache import BLOCK, Cache, CacheWarning, directory, list_copies, locks
from flarecli.cache.entry import entry
from flarecli.hashes import digest
from flarecli.storage import Guard, base, locate

DATA = random.Random(5).randbytes(5 * BLOCK + 12_345)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "cache"


@pytest.fixture(autouse=True)
def a_new_process(monkeypatch):
    monkeypatch.setattr(directory, "_warned", set())
    monkeypatch.setattr(directory, "_folders", {})


def opened(web, home, limit=100_000_000, path="/d"):
    """Open a folder on a web server, as a new process would."""
    directory._folders.clear()
    return locate(web.url(path), Guard(keeper=Cache(str(home), limit)))


def files(home):
    return sorted(
        path
        for path in home.rglob("*")
        if path.is_file() and path.name != "lock" and path.parent.name not in ("turns", "here")
    )


def used(home):
    return sum(path.stat().st_size for path in files(home))


def bodies(web):
    """Return the requests that fetched data; a request for a version has one byte."""
    return [
        headers["range"] for _, headers in web.requests if headers.get("range", "") != "bytes=0-0"
    ]


def test_fetched_data_is_not_fetched_again(web, home):
    web.file("/d/a", DATA, '"one"')
    assert (opened(web, home) / "a").read() == DATA
    web.requests.clear()
    at = opened(web, home) / "a"
    assert at.read(100, 300) == DATA[100:300]
    assert at.read() == DATA
    assert at.read_many([(0, 5), (2_000_000, 2_100_000)]) == [DATA[:5], DATA[2_000_000:2_100_000]]
    assert len(web.requests) == 1 and bodies(web) == []


def test_a_range_fetches_the_blocks_that_contain_it(web, home):
    web.file("/d/a", DATA, '"one"')
    at = opened(web, home) / "a"
    assert at.read(2 * BLOCK + 5, 2 * BLOCK + 10) == DATA[2 * BLOCK + 5 : 2 * BLOCK + 10]
    assert bodies(web) == [f"bytes={2 * BLOCK}-{3 * BLOCK - 1}"]
    assert at.map() is None
    assert [one.part for one in list_copies(str(home))] == [f"{2 * BLOCK}+{BLOCK}"]


def test_an_object_read_to_its_end_is_one_file_and_mapped(web, home):
    web.file("/d/a", DATA, '"one"')
    assert b"".join((opened(web, home) / "a").blocks()) == DATA
    assert [(one.part, one.address.rpartition("/")[2]) for one in list_copies(str(home))] == [
        ("whole", "a")
    ]
    web.requests.clear()
    assert bytes((opened(web, home) / "a").map()) == DATA
    assert bodies(web) == []
    assert (opened(web, home) / "a").unmapped().map() is None


def test_a_whole_object_is_fetched_by_one_request(web, home):
    web.file("/d/a", DATA, '"one"')
    at = opened(web, home) / "a"
    assert at.store.keep(at.path, len(DATA))
    assert bytes(at.map()) == DATA
    assert [headers["range"] for _, headers in web.requests] == [f"bytes=0-{len(DATA) - 1}"]


def test_a_large_object_is_fetched_by_several_requests(web, home, monkeypatch):
    monkeypatch.setattr(base, "REQUEST_BYTES", 2 * BLOCK)
    web.file("/d/a", DATA, '"one"')
    at = opened(web, home) / "a"
    assert at.store.keep(at.path, len(DATA))
    assert bytes(at.map()) == DATA
    edges = [0, 2 * BLOCK, 4 * BLOCK, len(DATA)]
    assert sorted(headers["range"] for _, headers in web.requests) == [
        f"bytes={a}-{b - 1}" for a, b in pairwise(edges)
    ]
    assert [headers.get("if-match") for _, headers in web.requests] == [None, '"one"', '"one"']


def test_an_object_whose_blocks_were_half_used_becomes_one_file(web, home):
    web.file("/d/a", DATA, '"one"')
    at = opened(web, home) / "a"
    at.read(0, 3 * BLOCK)
    assert len(files(home)) == 3
    assert bytes(at.map()) == DATA
    assert [one.part for one in list_copies(str(home))] == ["whole"]


def test_a_new_version_is_a_new_copy(web, home):
    web.file("/d/a", DATA, '"one"')
    assert (opened(web, home) / "a").read(0, 10) == DATA[:10]
    web.file("/d/a", DATA[::-1], '"two"')
    assert (opened(web, home) / "a").read() == DATA[::-1]


def test_objects_without_a_version_are_not_kept(web, home):
    web.file("/d/a", DATA)
    assert (opened(web, home) / "a").read() == DATA
    assert files(home) == []
    web.file("/d/b", DATA, 'W/"weak"')
    assert (opened(web, home) / "b").read() == DATA
    assert files(home) == []


def test_names_and_stored_addresses_contain_no_secrets_and_ignore_signatures(web, home):
    for signature in ("one", "two"):
        web.file("/d/a", b"x" * 1000, '"one"')
        address = web.url(f"/d/a?id=7&X-Amz-Signature={signature}secret", user="me:password")
        directory._folders.clear()
        assert locate(address, Guard(keeper=Cache(str(home)))).read() == b"x" * 1000
    assert len(files(home)) == 1
    everything = b"".join(path.read_bytes() + str(path).encode() for path in files(home))
    assert b"secret" not in everything and b"password" not in everything
    web.file("/d/a", b"y" * 1000, '"one"')
    directory._folders.clear()
    assert (
        locate(web.url("/d/a?id=8&X-Amz-Signature=one"), Guard(keeper=Cache(str(home)))).read()
        == b"y" * 1000
    )


@pytest.mark.parametrize(
    "one, other, is_same",
    [
        (
            "a?X-Amz-Signature=1&X-Amz-Date=1&versionId=7",
            "a?X-Amz-Signature=2&X-Amz-Date=2&versionId=7",
            True,
        ),
        ("a?X-Amz-Signature=1&versionId=7", "a?X-Amz-Signature=1&versionId=8", False),
        ("a?X-Goog-Signature=1&X-Goog-Date=1", "a?X-Goog-Signature=2&X-Goog-Date=2", True),
        (
            "a?AWSAccessKeyId=me&Signature=1&Expires=1",
            "a?AWSAccessKeyId=me&Signature=2&Expires=2",
            True,
        ),
        ("a?Policy=1&Signature=1&Key-Pair-Id=k", "a?Policy=2&Signature=2&Key-Pair-Id=k", True),
        ("a?sv=2022&sp=r&se=1&sig=1", "a?sv=2022&sp=r&se=2&sig=2", True),
        ("a?sv=2022&sig=1&snapshot=1", "a?sv=2022&sig=1&snapshot=2", False),
        ("a?sp=1", "a?sp=2", False),
        ("a?policy=old&expires=1", "a?policy=new&expires=1", False),
        ("a?signature=Haydn", "a?signature=Mozart", False),
    ],
)
def test_a_query_parameter_counts_unless_it_belongs_to_a_signature(one, other, is_same):
    names = {
        entry(f"https://host/{address}", "version", "whole", 10).name[:40]
        for address in (one, other)
    }
    assert (len(names) == 1) == is_same


def test_the_limit_holds_and_the_least_recently_used_copies_are_evicted(web, home):
    for i in range(20):
        web.file(f"/d/{i}", DATA[:50_000], f'"{i}"')
    at = opened(web, home, limit=300_000)
    for i in range(5):
        assert (at / str(i)).read() == DATA[:50_000]
    now = time.time()
    for one, idle in zip(list_copies(str(home)), (0, 0, 0, 0, 0), strict=False):
        path = next(path for path in files(home) if path.stat().st_size == one.size + idle)
        assert path.stat().st_mtime <= now + 1
    order = {}
    for path in files(home):  # 0 was used long ago, 1 recently, 2 in the future
        name = path.read_bytes().partition(b'"version": "\\"')[2][:1].decode()
        order[name] = path
    for name, age in (("0", 1000), ("1", 10), ("2", -100_000), ("3", 500), ("4", 400)):
        os.utime(order[name], (now - age, now - age))
    for i, gone in ((5, "2"), (6, "0"), (7, "3")):
        assert (at / str(i)).read() == DATA[:50_000]
        assert used(home) <= 300_000
        if i > 5:
            assert not order[gone].exists()
    assert order["1"].exists()
    for i in range(20):
        assert (at / str(i)).read() == DATA[:50_000]
        assert used(home) <= 300_000


def test_an_object_larger_than_the_limit_is_read_without_a_copy(web, home):
    web.file("/d/a", DATA[:900_000], '"one"')
    at = opened(web, home, limit=500_000) / "a"
    assert (
        at.read() == DATA[:900_000] and b"".join(at.blocks()) == DATA[:900_000] and at.map() is None
    )
    assert files(home) == []


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.unlink()
    path.write_bytes(data)


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


def link(path):
    path.unlink()
    path.symlink_to("/etc/passwd")


def as_directory(path):
    path.unlink()
    path.mkdir()


def swap(path):
    other = next(one for one in files(path.parent) if one != path)
    os.replace(other, path)


@pytest.mark.parametrize("damage", [flip, cut, zero, link, as_directory, swap])
def test_a_damaged_copy_is_fetched_again_once(web, home, damage):
    web.file("/d/a", DATA[:70_000], '"one"')
    web.file("/d/b", DATA[7:70_007], '"one"')
    for name in "ab":
        (opened(web, home) / name).read()
    damage(next(path for path in files(home) if DATA[:70_000] in path.read_bytes()))
    web.requests.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CacheWarning)
        assert (opened(web, home) / "a").read() == DATA[:70_000]
    assert len(bodies(web)) == 1
    if damage is not as_directory:
        web.requests.clear()
        assert (opened(web, home) / "a").read() == DATA[:70_000]
        assert bodies(web) == []


def test_an_evicted_copy_stays_readable_for_its_readers(web, home):
    web.file("/d/a", DATA, '"one"')
    at = opened(web, home) / "a"
    b"".join(at.blocks())
    view = at.map()
    for path in files(home):
        path.unlink()
    assert bytes(view) == DATA
    time.sleep(1.1)
    assert at.read(5, 10) == DATA[5:10]


def test_files_of_ended_processes_are_removed(web, home):
    at = opened(web, home, limit=300_000)
    web.file("/d/a", DATA[:50_000], '"one"')
    (at / "a").read()
    child = multiprocessing.get_context("fork").Process(target=lambda: None)
    child.start()
    child.join()
    for end in ("part", "room"):
        (home / directory.LAYOUT / f"{'0' * 40}.{locks.host()}.{child.pid}.0.{end}").write_bytes(
            bytes(120_000)
        )
    strange = home / directory.LAYOUT / "notes.txt"
    strange.write_bytes(bytes(10_000))
    web.file("/d/b", DATA[:200_000], '"one"')
    assert (at / "b").read() == DATA[:200_000]
    assert sorted(path.suffix for path in files(home)) == ["", "", ".txt"]


def test_files_that_are_not_copies_are_removed(web, home):
    at = opened(web, home, limit=300_000)
    web.file("/d/a", DATA[:50_000], '"one"')
    assert (at / "a").read() == DATA[:50_000]
    (mine,) = files(home)
    planted = [home / directory.LAYOUT / f"{sign * 40}-{1000:x}" for sign in "cdef"]
    planted[0].write_bytes(bytes(400_000))  # larger than in its name: it would fill the folder
    planted[1].mkdir()
    planted[2].symlink_to("/etc/passwd")
    planted[3].write_bytes(bytes(999))
    web.file("/d/b", DATA[:200_000], '"one"')
    assert (at / "b").read() == DATA[:200_000]
    assert (
        mine.exists()
        and len(files(home)) == 2
        and not any(os.path.lexists(path) for path in planted)
    )


def test_a_living_process_keeps_its_part(web, home):
    (home / directory.LAYOUT).mkdir(parents=True, mode=0o700)
    part = home / directory.LAYOUT / f"{'0' * 40}.{'f' * 8}.1.0.part"
    part.write_bytes(bytes(1000))
    os.utime(part, (0, 0))
    with open(part, "rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        web.file("/d/a", DATA[:1000], '"one"')
        (opened(web, home) / "a").read()
        assert part.exists()
    web.file("/d/b", DATA[:1000], '"one"')
    (opened(web, home) / "b").read()
    assert not part.exists()


def one_warning(call):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
        call()
    return [str(one.message) for one in said if one.category is CacheWarning]


def read_all(web, home, names="abc"):
    at = opened(web, home)
    for name in names:
        web.file(f"/d/{name}", DATA[:90_000], f'"{name}"')
        assert (at / name).read() == DATA[:90_000]


def test_a_full_disk_causes_one_warning(web, home, monkeypatch):
    def full(fd, start, size):
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    assert one_warning(lambda: read_all(web, home)) == [
        f"the cache in {home} is not used: the disk is full"
    ]
    assert files(home) == []


def test_a_disk_that_fills_up_leaves_no_copy(web, home, monkeypatch):
    def full(fd, data, at):
        raise OSError(errno.ENOSPC, "no")

    monkeypatch.setattr(os, "pwrite", full)
    assert one_warning(lambda: read_all(web, home)) == [
        f"the cache in {home} is not used: the disk is full"
    ]
    web.file("/d/big", DATA, '"one"')
    assert b"".join((opened(web, home) / "big").blocks()) == DATA
    assert files(home) == []


def test_a_folder_that_cannot_be_created_causes_one_warning(web, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    where = tmp_path / "file" / "cache"
    assert one_warning(lambda: read_all(web, where)) == [
        f"the cache in {where} is not used: not a directory"
    ]


def test_a_folder_that_others_may_write_to_is_not_used(web, home):
    (home / directory.LAYOUT).mkdir(parents=True)
    (home / directory.LAYOUT).chmod(0o777)
    expected = f"the cache in {home} is not used: the folder belongs to another user, or other users have write access"
    assert one_warning(lambda: read_all(web, home)) == [expected]
    assert files(home) == []


def test_a_folder_that_was_removed_is_created_again(web, home):
    import shutil

    at = opened(web, home)
    for name in "abcd":
        web.file(f"/d/{name}", DATA[:90_000], f'"{name}"')
        assert (at / name).read() == DATA[:90_000]
        assert len(files(home)) == 1
        shutil.rmtree(home, ignore_errors=True)
    assert files(home) == []
    assert (at / "a").read() == DATA[:90_000]


@pytest.mark.parametrize("flock", ["always", "never"])
def test_reading_works_without_locks(web, home, monkeypatch, flock):
    def broken(fd, what):
        if flock == "never":
            raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", broken)
    read_all(web, home)
    web.requests.clear()
    read_all(web, home)
    assert bodies(web) == []


def test_threads_that_read_the_same_data_fetch_it_once(web, home):
    web.file("/d/a", DATA, '"one"')
    at, answers = opened(web, home) / "a", []
    at.size()
    threads = [
        threading.Thread(target=lambda: answers.append(at.read(0, 3 * BLOCK))) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [DATA[: 3 * BLOCK]] * 6
    assert len(bodies(web)) == 1


def test_space_for_many_small_copies_is_reserved_together(web, home, monkeypatch):
    monkeypatch.setattr(directory, "MANY_COPIES", 8)
    at, looks = opened(web, home, limit=400_000), []
    look = directory.Folder._scan
    monkeypatch.setattr(directory.Folder, "_scan", lambda self: looks.append(1) or look(self))
    for i in range(300):
        web.file(f"/d/{i}", DATA[i : i + 1000], f'"{i}"')
        assert (at / str(i)).read() == DATA[i : i + 1000]
        assert used(home) <= 400_000
    assert 20 < len(looks) < 150
    child = multiprocessing.get_context("fork").Process(target=lambda: (at / "299").read())
    child.start()
    child.join()
    assert child.exitcode == 0


def test_a_cached_location_can_be_pickled(web, home):
    web.file("/d/a", DATA, '"one"')
    at = opened(web, home) / "a"
    assert pickle.loads(pickle.dumps(at)) == at
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.apply_async(at.read_many, ([(0, 10), (2_000_000, 2_000_010)],)).get(30) == [
                DATA[:10],
                DATA[2_000_000:2_000_010],
            ]
    web.requests.clear()
    assert at.read(0, 10) == DATA[:10]
    assert bodies(web) == []


def test_derived_data_is_cached(web, home):
    web.file("/d/a.gz", b"small", '"one"')
    made = []

    def make():
        made.append(1)
        yield DATA[:400_000]
        yield memoryview(DATA)[400_000:800_000]

    for _ in range(2):
        at = opened(web, home) / "a.gz"
        assert bytes(at.derived("gz", 800_000, make)) == DATA[:800_000]
    assert made == [1]
    assert [(one.part, one.size > 800_000) for one in list_copies(str(home))] == [("gz", True)]
    assert at.derived("other", 5, lambda: [b"four"]) is None
    assert locate(web.url("/d/a.gz")).derived("gz", 800_000, make) is None
    assert at.derived("other", 5, lambda: [b"sixsix"]) is None
    assert len(files(home)) == 1


def test_only_remote_files_are_kept(tmp_path, web, home):
    guard = Guard(keeper=Cache(str(home)), allow_hosts=("127.0.0.0/8",))
    (tmp_path / "here").write_bytes(b"local")
    (tmp_path / "list").mkdir()
    assert locate(str(tmp_path / "here"), guard).read() == b"local"
    assert files(tmp_path / "list") == [] and not home.exists()
    web.file("/d/a", b"remote", '"one"')
    assert locate(str(tmp_path), guard).join(web.url("/d/a")).read() == b"remote"
    assert locate(web.url("/d"), guard).join("a").read() == b"remote"
    assert len(files(home)) == 1


FEW_HANDLES = """
    import os, resource, sys
    from flarecli.cache import Cache
    from flarecli.storage import Guard, locate
    from flarecli.storage.http import store as http

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    guard, views = Guard(keeper=Cache(sys.argv[2])), []
    for times in range(2):
        for i in range(200):
            at = locate(f"{sys.argv[1]}/{i}", guard)  # a store of its own, as each dataset has
            assert at.read() == bytes([i]) * (100_000 if i % 2 else 1000)
    print(len(os.listdir("/proc/self/fd")) < 40)
"""


def test_many_open_copies_need_few_handles(web, home):
    for i in range(200):
        web.file(f"/d/{i}", bytes([i]) * (100_000 if i % 2 else 1000), '"one"')
    program = [sys.executable, "-c", textwrap.dedent(FEW_HANDLES), web.url("/d"), str(home)]
    ran = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    assert (ran.stdout, ran.stderr) == ("True\n", "")
    assert len(files(home)) == 200


def test_a_copy_that_is_damaged_twice_is_not_written_again(web, home):
    web.file("/d/a", DATA[:70_000], '"one"')
    at = opened(web, home) / "a"
    for times in range(3):
        assert at.read() == DATA[:70_000]
        assert len(files(home)) == (times < 2)
        for path in files(home):
            flip(path)
        directory.shared(str(home), 100_000_000).open_copies.__init__(
            lambda name: True
        )  # as if it had been opened long ago
    web.requests.clear()
    assert at.read() == DATA[:70_000]
    assert len(bodies(web)) == 1


def storm(at, seed, count):
    rng = random.Random(seed)
    for _ in range(count):
        i = rng.randrange(30)
        if digest((at / str(i)).read()) != digest(DATA[i : i + 60_000 + i]):
            os._exit(9)


def test_killed_processes_leave_a_correct_cache_within_its_limit(web, home):
    for i in range(30):
        web.file(f"/d/{i}", DATA[i : i + 60_000 + i], f'"{i}"')
    at, context, rng, peak = (
        opened(web, home, limit=400_000),
        multiprocessing.get_context("fork"),
        random.Random(1),
        0,
    )
    running = [context.Process(target=storm, args=(at, seed, 1000)) for seed in range(4)]
    for process in running:
        process.start()
    until, seed = time.monotonic() + 3, 4
    while time.monotonic() < until:
        for _ in range(40):
            try:
                peak = max(peak, used(home))
            except FileNotFoundError:
                continue
        victim = rng.randrange(4)
        if running[victim].is_alive():
            os.kill(running[victim].pid, signal.SIGKILL)
        running[victim].join()
        assert running[victim].exitcode in (0, -9)
        running[victim] = context.Process(target=storm, args=(at, seed, 1000))
        running[victim].start()
        seed += 1
    for process in running:
        process.kill()
        process.join()
        assert process.exitcode in (0, -9)
    assert peak <= 400_000 + 61_000  # a listing during a rename may contain a copy twice
    storm(at, 99, 100)
    assert used(home) <= 400_000


def test_buckets_of_one_name_at_two_services_have_separate_copies(
    web, other_web, home, monkeypatch
):
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    for server, data in ((web, b"one"), (other_web, b"two")):
        server.pages["/bucket/a"] = lambda handler, times, data=data: handler.answer(
            206 if "Range" in handler.headers else 200,
            data,
            ETag='"same"',
            Last_Modified="Wed, 21 Oct 2015 07:28:00 GMT",
            Content_Range="bytes 0-2/3" if "Range" in handler.headers else None,
        )
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url(""))
        directory._folders.clear()
        assert locate("s3://bucket/a", Guard(keeper=Cache(str(home)))).read() == data
    assert len(files(home)) == 2


def handles():
    return {
        os.path.realpath(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    }


def test_a_cache_is_closed_at_the_end_of_a_with_block_and_opens_again(web, tmp_path):
    home = tmp_path / "cache"
    with Cache(str(home)) as cache:
        at = locate(web.file("/a", bytes(300_000), '"one"'), Guard(keeper=cache))
        assert at.read() == bytes(300_000)
        assert any(name.startswith(str(home)) for name in handles())
    assert not any(name.startswith(str(home)) for name in handles())
    assert [one.size for one in list_copies(str(home))] != []
    assert at.read(5, 10) == bytes(5)
    flare.close()
    assert not any(name.startswith(str(home)) for name in handles())
    assert at.read(7, 9) == bytes(2)
