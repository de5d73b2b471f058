"""Prefetch of remote shards into a small cache: each shard is downloaded once per epoch, within the
limit.
"""

import random
import re
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import flarecli as flare
from flarecli.errors import FlareError
from flarecli.model import Cursor, Settings
from flarecli.read import shard_prefetch
from flarecli.read.shard_prefetch import Prefetch
from tests.pool import is_idle

ROWS = 1500


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    folder, rng = tmp_path_factory.mktemp("remote") / "d", random.Random(1)
    with flare.Writer(
        str(folder), columns={"n": "int", "b": "bytes"}, settings=Settings(shard_bytes=300_000)
    ) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "b": rng.randbytes(6_000)})
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def served(web, packed):
    for name, body in packed.items():
        web.file(f"/d/{name}", body, etag='"one"')
    return web


def fetched(web, sizes):
    """Return the requested bytes of each shard as a multiple of its size."""
    out = Counter()
    for path, headers in web.requests:
        name = path.rpartition("/")[2]
        if name.endswith(".mds"):
            match = re.match(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
            out[name] += int(match[2]) - int(match[1]) + 1 if match else sizes[name]
    return {name: count / sizes[name] for name, count in out.items()}


@pytest.mark.parametrize(("order", "workers"), [("windows", 2), ("windows", 0), ("sequential", 2)])
def test_each_shard_is_downloaded_once_per_epoch(served, packed, tmp_path, order, workers):
    sizes = {name: len(body) for name, body in packed.items()}
    limit = sum(sizes.values()) // 5
    data = flare.open(
        served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"), cache_limit=limit
    )
    served.requests.clear()
    seen = [
        n
        for batch in flare.Loader(data, 32, order=order, window=3, workers=workers)
        for n in batch["n"].tolist()
    ]
    assert sorted(seen) == list(range(ROWS))
    times = fetched(served, sizes)
    assert len(times) == sum(name.endswith(".mds") for name in sizes)
    assert max(times.values()) < 1.001  # one byte checks the version
    assert (
        sum(path.stat().st_size for path in (tmp_path / "cache").rglob("*") if path.is_file())
        <= limit
    )
    assert is_idle()


def read_a_mix(data):
    half = data.where(f"n < {ROWS // 2}"), data.where(f"n >= {ROWS // 2}")
    return [
        n
        for batch in flare.Loader(
            flare.mix(dict.fromkeys(half, 1.0)), 32, order="windows", window=2
        )
        for n in batch["n"].tolist()
    ]


def read_by_torch(data, workers):
    torch_data, flare_torch = (
        pytest.importorskip("torch.utils.data"),
        pytest.importorskip("flarecli.torch"),
    )
    stream = flare_torch.IterableDataset(data, 32, order="windows", window=3)
    return [
        n
        for batch in torch_data.DataLoader(stream, batch_size=None, num_workers=workers)
        for n in batch["n"].tolist()
    ]


@pytest.mark.parametrize(
    "read",
    [
        lambda data: [sample["n"] for sample in data.run(1, order="windows", window=3)],
        read_a_mix,
        lambda data: read_by_torch(data, 0),
        lambda data: read_by_torch(data, 2),
    ],
    ids=["run", "mix", "torch", "torch's workers"],
)
def test_every_reader_of_windows_prefetches(served, packed, tmp_path, read):
    sizes = {name: len(body) for name, body in packed.items()}
    data = flare.open(
        served.url("/d/playlist.yaml"),
        cache=str(tmp_path / "cache"),
        cache_limit=sum(sizes.values()) // 2,
    )
    served.requests.clear()
    for name, body in packed.items():
        (tmp_path / name).write_bytes(body)
    assert read(data) == read(flare.open(str(tmp_path / "playlist.yaml")))
    assert set(fetched(served, sizes)) == {name for name in sizes if name.endswith(".mds")}
    if read is not read_a_mix:  # its conditions have read parts of the shards
        assert max(fetched(served, sizes).values()) < 1.001
    assert is_idle()


def test_an_abandoned_run_ends_its_threads(served, tmp_path):
    run = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache")).run(
        order="windows", window=1
    )
    next(run)
    del run
    assert is_idle()


def test_the_windows_of_a_mix_follow_its_steps(packed, tmp_path):
    for name, body in packed.items():
        (tmp_path / name).write_bytes(body)
    data = flare.open(str(tmp_path))
    a, b = data.where("n < 400"), data.where("n >= 400")
    mix = flare.mix({a: 0.7, b: 0.3}, rows=3000)
    for epoch, begin in ((0, 0), (0, 1234), (3, 0), (7, 2999)):
        order = mix.order(5, epoch, "windows", 2)
        rows, windows = order.at(np.arange(order.rows)), list(order.windows(begin))
        assert [first for first, _, _ in windows] == sorted(first for first, _, _ in windows)
        for step, row in enumerate(rows[begin:].tolist(), begin):
            assert any(
                first <= step < stop and any(start <= row < end for start, end in spans)
                for first, stop, spans in windows
            )


@pytest.mark.parametrize(
    "near, window, least, most",
    [(0, 3, 3, 9), (4_000_000, 1, 12, 14)],
    ids=["the next two windows", "small windows further"],
)
def test_the_prefetched_bytes_are_bounded(
    served, packed, tmp_path, monkeypatch, near, window, least, most
):
    monkeypatch.setattr(shard_prefetch, "_MIN_AHEAD_BYTES", near)
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"))
    served.requests.clear()
    loop = iter(flare.Loader(data, 32, order="windows", window=window))
    next(loop)
    threading.Event().wait(0.5)
    assert least <= len(fetched(served, {name: len(body) for name, body in packed.items()})) <= most
    loop.close()


def test_a_thread_that_is_late_does_not_download_a_shard_of_an_ended_window(served, tmp_path):
    """The reader has downloaded, read and released the shard while the thread waited for it."""
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"))
    (series,) = data._table.series
    order = data.order(0, 0, "windows", 1)
    windows = list(order.windows(0))
    first = series.position(windows[0][2][0][0])
    with series._fetch_locks.setdefault(first, threading.Lock()):  # as the reader does
        prefetch = Prefetch(data, order, Cursor(0, 0, 0, "windows"), 1)
        while not prefetch._fetched:
            threading.Event().wait(0.01)
        served.requests.clear()
        prefetch.reached(windows[-1][1])
    prefetch.close()
    assert [path for path, _ in served.requests if path.endswith(f".{first:05}.mds")] == []
    assert is_idle()


def test_a_missing_shard_is_named(served, packed, tmp_path):
    name = sorted(name for name in packed if name.endswith(".mds"))[4]
    served.page(f"/d/{name}", b"", status=404)
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"))
    with pytest.raises(FlareError) as caught:
        list(flare.Loader(data, 32, order="windows"))
    assert Path(caught.value.where).name == name


def test_rows_of_a_local_list_of_links_are_not_gathered_ahead(served, packed, tmp_path):
    """Locating many rows at once would open shards that the first batches do not need."""
    lines = (
        packed["playlist.yaml"]
        .decode()
        .replace("shard.", served.url("/d/shard."))
        .splitlines(keepends=True)
    )
    (tmp_path / "links.yaml").write_text("".join(lines[:-1]))  # without the last line, its checksum
    data = flare.open(str(tmp_path / "links.yaml"), allow_host=f"127.0.0.1:{served.port}")
    edges = data._table.edges
    rows = {seed: data.order(seed, 0, "shuffle", 1).at(np.arange(16)) for seed in range(50)}
    seed = next(
        seed for seed, its in rows.items() if its.min() >= edges[1]
    )  # none of the first shard
    served.requests.clear()
    loop = iter(flare.Loader(data, 8, seed, workers=0))
    assert [next(loop)["n"].tolist() for _ in range(2)] == [
        rows[seed][:8].tolist(),
        rows[seed][8:].tolist(),
    ]
    shards = {int(path[-9:-4]) for path, _ in served.requests}
    assert shards == set((np.searchsorted(edges, rows[seed], "right") - 1).tolist())
    loop.close()


def test_the_end_of_a_shuffled_run_keeps_the_shards_that_another_run_prefetched(served, tmp_path):
    data = flare.open(served.url("/d/playlist.yaml"), cache=str(tmp_path / "cache"))
    (series,) = data._table.series
    with flare.Loader(data, 32, order="windows", window=3) as loader:
        loop = iter(loader)
        next(loop)
        prefetched = set(series._passing)
        assert prefetched
        run = data.run(order="shuffle")
        next(run)
        del run
        assert prefetched <= series._passing
        loop.close()
    assert not series._passing
    assert is_idle()
