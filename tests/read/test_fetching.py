"""Remote data by windows through a cache much smaller than it: shards come ahead, each once an epoch, and the cache stays within its limit."""

import random
import re
import threading
from collections import Counter
from pathlib import Path

import pytest

import flarecli as flare
from flarecli.errors import FlareError
from flarecli.model import Settings

ROWS = 1500


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("remote") / "d", random.Random(1)
    with flare.Writer(str(folder), columns={"n": "int", "b": "bytes"}, settings=Settings(shard_bytes=300_000)) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "b": rng.randbytes(6_000)})
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def served(web, packed):
    for name, body in packed.items():
        web.file(f"/d/{name}", body, etag='"one"')
    return web


def fetched(web, sizes):
    """Bytes of each shard that were asked for, as a multiple of its size."""
    out = Counter()
    for path, headers in web.requests:
        name = path.rpartition("/")[2]
        if name.endswith(".mds"):
            match = re.match(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
            out[name] += int(match[2]) - int(match[1]) + 1 if match else sizes[name]
    return {name: count / sizes[name] for name, count in out.items()}


@pytest.mark.parametrize(("order", "workers"), [("windows", 2), ("windows", 0), ("sequential", 2)])
def test_each_shard_is_fetched_once_in_an_epoch(served, packed, tmp_path, order, workers):
    sizes = {name: len(body) for name, body in packed.items()}
    limit = sum(sizes.values()) // 5
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"), cache_limit=limit)
    served.requests.clear()
    seen = [n for batch in flare.Loader(data, 32, order=order, window=3, workers=workers) for n in batch["n"].tolist()]
    assert sorted(seen) == list(range(ROWS))
    times = fetched(served, sizes)
    assert len(times) == sum(name.endswith(".mds") for name in sizes)
    assert max(times.values()) < 1.001  # a byte or two tell the version
    assert sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file()) <= limit
    assert not [thread for thread in threading.enumerate() if thread.name == "flare-loader"]


def test_only_the_next_window_is_fetched_ahead(served, packed, tmp_path):
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"))
    served.requests.clear()
    loop = iter(flare.Loader(data, 32, order="windows", window=3))
    next(loop)
    threading.Event().wait(0.5)
    assert 3 <= len(fetched(served, {name: len(body) for name, body in packed.items()})) <= 6
    loop.close()


def test_a_shard_that_is_gone_is_named(served, packed, tmp_path):
    name = sorted(name for name in packed if name.endswith(".mds"))[4]
    served.page(f"/d/{name}", b"", status=404)
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"))
    with pytest.raises(FlareError) as caught:
        list(flare.Loader(data, 32, order="windows"))
    assert Path(caught.value.where).name == name
