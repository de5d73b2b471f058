"""One cache and many readers: synchronized processes and concurrent threads fetch each object once,
counted by an S3 server.
"""

import itertools
import os
import random
import re
import subprocess
import sys
import textwrap
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

import flarecli as flare
from flarecli.cache import Cache, directory, locks
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
    """Objects below /b/d of a server; `sent` counts the bytes sent of each."""

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
    """Return how often each shard was sent."""
    return {
        name: bucket.sent[name] / len(body)
        for name, body in packed.items()
        if name.endswith(".mds")
    }


def test_synchronized_processes_fetch_each_shard_once(bucket, packed, tmp_path):
    limit = sum(map(len, packed.values())) // 2  # four prefetched batches of 64 steps are 16 shards
    argv = [sys.executable, "-c", textwrap.dedent(RANK), str(tmp_path / "cache"), str(limit)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "bufsize": 1}
    ranks = [subprocess.Popen([*argv, str(rank)], **pipes) for rank in range(RANKS)]
    try:
        for one in ranks:
            one.stdout.readline()  # all processes use the folder before the first one fetches,
        time.sleep(locks._ALONE_S)  # and none of them counts as the only one
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


def test_threads_of_a_process_fetch_each_shard_once(bucket, packed, tmp_path):
    data = flare.open("s3://b/d/playlist.yaml", cache=str(tmp_path / "cache"), cache_limit="1GB")
    bucket.sent.clear()
    edges = data.edges.tolist()
    runs = [*itertools.pairwise(edges)]
    with ThreadPoolExecutor(16) as threads:
        list(
            threads.map(
                lambda k: data.shards.fetch(*runs[k % len(runs)], lambda: True),
                sorted(range(4 * len(runs)), key=lambda k: (k % len(runs), k)),
            )
        )
    assert set(times(bucket, packed).values()) == {1.0}
    assert {bucket.asked[name] for name in packed if name.endswith(".mds")} == {1}
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda one: data.shards.fetch(*one, lambda: True), 4 * runs))
        list(threads.map(lambda row: data[row]["n"], range(ROWS)))
    assert set(times(bucket, packed).values()) == {1.0}


def test_stores_of_a_process_fetch_each_object_once(bucket, packed, tmp_path):
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


def test_concurrent_listings_are_complete(tmp_path, monkeypatch):
    """Duplicated file descriptors share the position in a listing, so each listing would miss the
    entries that the other listing returned.
    """
    one = directory.Folder(str(tmp_path), 10**9)
    assert one.fd >= 0
    monkeypatch.setattr(
        one, "is_alone", lambda: False
    )  # otherwise a listing is reused for a moment
    prefixes = [f"{k:012x}" for k in range(100)]
    for prefix in prefixes:
        (tmp_path / directory.LAYOUT / f"{prefix}{'0' * 28}-10").touch()
    with ThreadPoolExecutor(8) as threads:
        seen = list(threads.map(lambda k: one.may_have(prefixes[k % 100]), range(4000)))
    assert seen == [True] * 4000
