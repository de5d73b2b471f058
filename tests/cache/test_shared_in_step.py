"""One cache, many readers: processes in step and threads at once have each object fetched once, by the count of an S3 server of this machine."""

import itertools
import os
import random
import re
import subprocess
import sys
import textwrap
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import flarecli as flare
from flarecli.cache import Cache, CacheWarning, directory, locks
from flarecli.cache.locks import Turns
from flarecli.model import Settings
from flarecli.storage import Guard, locate

ROWS, RANKS, BATCH = 1200, 4, 16
ENVIRONMENT = {
    "AWS_SKIP_SIGNATURE": "true",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}
RANK = f"""
    import sys
    import flarecli as flare

    cache, limit, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    data, order = flare.open("s3://b/d/playlist.yaml", cache=cache, cache_limit=limit), dict(order="windows", window=2)
    print(flush=True)
    sys.stdin.readline()
    for batch in flare.Loader(data, {BATCH}, rank=rank, ranks={RANKS}, drop_last=True, **order):
        sys.stdin.readline()
        print(*batch["n"].tolist(), flush=True)
"""


class Bucket:
    """Objects below /b/d of a server; `sent` counts the bytes that it sent of each."""

    def __init__(self, web, files):
        self.sent, self.asked = Counter(), Counter()
        for name, body in files.items():
            web.pages[f"/b/d/{name}"] = self.page(name, body)

    def page(self, name, body):
        def serve(handler, times):
            match = re.fullmatch(r"bytes=(\d+)-(\d*)", handler.headers.get("Range", ""))
            start, stop = (
                (int(match[1]), min(len(body), int(match[2] or len(body)) + 1))
                if match
                else (0, len(body))
            )
            more = {"Content_Range": f"bytes {start}-{stop - 1}/{len(body)}"} if match else {}
            self.asked[name] += 1
            self.sent[name] += (stop - start) * (handler.command != "HEAD")
            handler.answer(
                206 if match else 200,
                body[start:stop],
                ETag='"1"',
                Last_Modified="Sat, 01 Nov 2025 00:00:00 GMT",
                **more,
            )

        return serve


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    out, rng = tmp_path_factory.mktemp("in_step") / "d", random.Random(1)
    with flare.Writer(
        str(out), columns={"n": "int", "b": "bytes"}, settings=Settings(shard_bytes=100_000)
    ) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "b": rng.randbytes(6_000)})
    return {path.name: path.read_bytes() for path in out.iterdir()}


@pytest.fixture
def bucket(web, packed, monkeypatch):
    for name, value in {**ENVIRONMENT, "AWS_ENDPOINT_URL": web.url("")}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(directory, "_folders", {})
    return Bucket(web, packed)


def times(bucket, packed):
    """How often each shard was sent."""
    return {
        name: bucket.sent[name] / len(body)
        for name, body in packed.items()
        if name.endswith(".mds")
    }


def test_processes_in_step_have_each_shard_fetched_once(bucket, packed, tmp_path):
    limit = (
        sum(map(len, packed.values())) // 2
    )  # batches are made ahead: four of them, of 64 steps each, are 16 shards
    argv = [sys.executable, "-c", textwrap.dedent(RANK), str(tmp_path / "cache"), str(limit)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    ranks = [subprocess.Popen([*argv, str(rank)], **pipes) for rank in range(RANKS)]
    try:
        for one in ranks:
            one.stdout.readline()  # all use the folder before the first of them fetches,
        time.sleep(directory._ALONE_S)  # and none believes any more that it is alone
        for one in ranks:
            one.stdin.write("\n")
        rows = []
        for _ in range(ROWS // (RANKS * BATCH)):
            for one in ranks:
                one.stdin.write("\n")
            rows += [int(n) for one in ranks for n in one.stdout.readline().split()]
        assert [one.wait(60) for one in ranks] == [0] * RANKS
    finally:
        for one in ranks:
            one.kill()
            one.communicate()
    assert len(rows) == len(set(rows)) == ROWS // (RANKS * BATCH) * RANKS * BATCH
    assert {name: count for name, count in times(bucket, packed).items() if count != 1} == {}


def test_threads_of_a_process_have_each_shard_fetched_once(bucket, packed, tmp_path):
    data = flare.open("s3://b/d/playlist.yaml", cache=str(tmp_path / "cache"), cache_limit="1GB")
    bucket.sent.clear()
    edges = data.edges.tolist()
    runs = [*itertools.pairwise(edges)]
    with ThreadPoolExecutor(16) as threads:
        list(
            threads.map(
                lambda k: data.fetch(*runs[k % len(runs)]),
                sorted(range(4 * len(runs)), key=lambda k: (k % len(runs), k)),
            )
        )
    assert set(times(bucket, packed).values()) == {1.0}
    assert {bucket.asked[name] for name in packed if name.endswith(".mds")} == {1}
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda one: data.fetch(*one), 4 * runs))
        list(threads.map(lambda row: data[row]["n"], range(ROWS)))
    assert set(times(bucket, packed).values()) == {1.0}


def test_stores_of_a_process_have_each_object_fetched_once(bucket, packed, tmp_path):
    guard, names = Guard(keeper=Cache(str(tmp_path / "cache"), 10**9)), sorted(packed)
    places = [locate("s3://b/d", guard) for _ in range(8)]
    with ThreadPoolExecutor(16) as threads:
        kept = list(
            threads.map(
                lambda k: places[k % 8].store.keep(
                    f"d/{names[k // 8]}", len(packed[names[k // 8]])
                ),
                range(8 * len(names)),
            )
        )
    assert all(kept)
    assert set(times(bucket, packed).values()) == {1.0}


def test_listings_at_once_all_see_what_is_there(tmp_path, monkeypatch):
    """Handles that are duplicates of one have one place in a listing: what one was given another would miss."""
    one = directory.Folder(str(tmp_path), 10**9)
    assert one.fd >= 0
    monkeypatch.setattr(one, "is_alone", lambda: False)  # else one listing is believed for a moment
    keys = [f"{k:040x}-10" for k in range(100)]
    for key in keys:
        (tmp_path / directory.LAYOUT / key).touch()
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda k: one.may_hold(keys[k % 100][:40]), range(4000)))
    assert seen == [True] * 4000


def test_who_waits_for_a_turn_does_something_meanwhile(tmp_path):
    here, other, done = os.open(tmp_path, os.O_RDONLY), Turns(), []
    with (
        Turns().turn(here, "ab", "w", 5),
        other.turn(here, "ab", "w", 0.01, lambda: done.append("asked")),
    ):
        pass
    with (
        other.turn(here, "ab", "w", 5, lambda: done.append("free")),
        Turns().turn(here, "ac", "w", 5, lambda: done.append("another key")),
    ):
        pass
    os.close(here)
    assert done == ["asked"]
    assert [path.stat().st_size for path in (tmp_path / "turns").iterdir()] == [0, 0]


HOLDER = """
    import os, sys
    from flarecli.cache.locks import Turns

    here = os.open(sys.argv[1], os.O_RDONLY)
    with Turns().turn(here, "ab", "b", 5):
        print(flush=True)
        sys.stdin.readline()
"""


def test_a_long_wait_for_another_process_names_it(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "NOTICE_AFTER_S", 0.02)
    monkeypatch.setattr(directory, "_OTHERS_S", 0.2)
    one = directory.Folder(str(tmp_path), 10**6)
    assert one.fd >= 0
    script = [sys.executable, "-c", textwrap.dedent(HOLDER), one.path]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        with pytest.warns(CacheWarning) as told, one.turn("ab"):
            pass
        child.communicate(b"\n")
    who = f"process {child.pid}" if Path("/proc/locks").exists() else "another process"
    assert [str(one.message) for one in told] == [
        f"the cache in {tmp_path}: waiting for {who}, which fetches the same file"
    ]


def test_a_child_keeps_no_turn_of_its_parent(tmp_path):
    here, began, over = os.open(tmp_path, os.O_RDONLY), threading.Event(), threading.Event()

    def take():
        with Turns().turn(here, "ab", "w", 5):
            began.set()
            over.wait(10)

    thread = threading.Thread(target=take)
    thread.start()
    began.wait(10)
    stays, ends = os.pipe()
    ready, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.write(tells, b".")
        os.read(stays, 1)
        os._exit(0)
    os.read(ready, 1)
    over.set()
    thread.join()
    waited = []
    with Turns().turn(here, "ab", "w", 5, lambda: waited.append(True)):
        pass
    for fd in (stays, ends, ready, tells, here):
        os.close(fd)
    assert os.waitpid(child, 0)[1] == 0
    assert waited == []
