"""Worker processes that are started beside threads, receive pickles, and are killed."""

import copy
import hashlib
import importlib
import inspect
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading

import pytest

import flarecli as flare
from flarecli import errors, presets
from flarecli.cache import Cache
from flarecli.errors import FlareError, TransformError, UsageError
from flarecli.model import Chunk, Column, Cursor, File, Settings, Shard
from flarecli.read.dataset import Dataset
from flarecli.storage import Guard, Limits, locate

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from flarecli.torch import IterableDataset, MapDataset  # noqa: E402

ROWS = 120
STARTS = [
    one for one in ("fork", "spawn", "forkserver") if one in multiprocessing.get_all_start_methods()
]


def pack(path, **options):
    settings = Settings(shard_rows=10, **options)
    columns = {"n": "int", "body": "bytes"}
    with flare.Writer(str(path), columns=columns, settings=settings) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "body": bytes([n]) * (50 * n)})
    return str(path)


def digest(batches):
    """Return one SHA-256 over the rows of batches, in the order of their numbers."""
    rows = {}
    for batch in batches:
        rows |= zip(batch["n"].tolist(), batch["body"], strict=True)
    assert sorted(rows) == list(range(ROWS))
    return hashlib.sha256(b"".join(rows[n] for n in range(ROWS))).hexdigest()


WHOLE = hashlib.sha256(b"".join(bytes([n]) * (50 * n) for n in range(ROWS))).hexdigest()


def busy(data, pause_s):
    """Keep threads of this process reading until the returned function is called."""
    is_over = threading.Event()

    def read():
        while not is_over.is_set():
            for batch in flare.Loader(data, 16, workers=2):
                assert len(batch["body"])
                if is_over.wait(pause_s):
                    return

    threads = [threading.Thread(target=read, daemon=True) for _ in range(2)]
    for one in threads:
        one.start()

    def stop():
        is_over.set()
        for one in threads:
            one.join(60)
        assert not any(one.is_alive() for one in threads)

    return stop


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("processes") / "d")


@pytest.fixture(scope="module")
def compressed(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("processes") / "z", compression="zstd")


def served(web, folder):
    for name in os.listdir(folder):
        with open(os.path.join(folder, name), "rb") as file:
            web.file(f"/{name}", file.read(), '"1"')
    return web.url("/playlist.yaml")


@pytest.mark.parametrize(
    ("start", "kind", "workers"),
    [  # spawn and forkserver import torch in each worker
        ("fork", "mapped", 1),
        ("fork", "mapped", 8),
        ("fork", "compressed", 2),
        ("fork", "http", 2),
        ("spawn", "http", 1),
        ("forkserver", "compressed", 1),
    ],
)
def test_workers_started_beside_reading_threads_give_the_same_bytes(
    packed, compressed, web, kind, workers, start
):
    address = {"mapped": packed, "compressed": compressed}.get(kind) or served(web, packed)
    data = flare.open(address)
    assert data[0]["n"] == 0  # shards and connections are open
    # Only a fork copies locks that the readers hold.
    stop = busy(data, pause_s=0.002 if start == "fork" else 0.05)
    try:
        stream = IterableDataset(data, 16, seed=3)
        options = {"num_workers": workers, "multiprocessing_context": start, "timeout": 60}
        assert digest(DataLoader(stream, batch_size=None, **options)) == WHOLE
        rows = DataLoader(MapDataset(data), 16, shuffle=True, collate_fn=data.collate, **options)
        assert digest(rows) == WHOLE
    finally:
        stop()
    assert digest(flare.Loader(data, 16)) == WHOLE  # the connections of the parent still work


@pytest.fixture
def kill_self(tmp_path, monkeypatch):
    """Return a transform that kills its process at row 77, from a module that spawned processes can
    import.
    """
    body = "import os\n\n\ndef kill(sample):\n    if sample['n'] == 77:\n        os.kill(os.getpid(), 9)\n    return sample\n"
    (tmp_path / "killing_transform.py").write_text(body)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "killing_transform", raising=False)
    return importlib.import_module("killing_transform").kill


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_a_killed_dataloader_worker_is_reported(packed, kill_self, start):
    # Without a timeout torch checks every 5 s for ended workers; with fork it notices at once.
    options = {"num_workers": 1, "multiprocessing_context": start}
    data = flare.open(packed)
    stream = DataLoader(IterableDataset(data, 8, transform=kill_self), batch_size=None, **options)
    rows = DataLoader(MapDataset(data, kill_self), 8, collate_fn=data.collate, **options)
    for loader in (stream, rows) if start == "fork" else (stream,):
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
            list(loader)
    assert digest(flare.Loader(data, 16)) == WHOLE


@pytest.mark.parametrize("start", STARTS)
def test_a_killed_worker_of_a_loader_is_reported_and_the_others_end(packed, kill_self, start):
    loader = flare.Loader(
        flare.open(packed), 8, transform=kill_self, processes=True, workers=2, start=start
    )
    with pytest.raises(TransformError) as caught:
        list(loader)
    message, _, rows = str(caught.value).partition(" rows ")
    assert message == "a worker process ended (exit code -9) during the batch of"
    assert len(rows.split(", ")) == 8 and "77" in rows.split(", ")
    assert caught.value.hint == "The process may have run out of memory."
    for process in multiprocessing.active_children():
        if process.name == "flare-loader":
            process.join(60)
    assert not [one for one in multiprocessing.active_children() if one.name == "flare-loader"]


def public_objects(packed, tmp_path):
    data = flare.open(packed)
    playlist = data.playlists[0]
    stream = playlist.streams[0]
    yield from (data, data.where("n > 5"), data.select(["n"]), data.decoded({"body": len}))
    yield flare.mix({data: 0.5, flare.open(packed): 0.5})
    yield flare.open(packed, cache=str(tmp_path / "cache"), cache_limit="1MB")
    yield from (data.run(3).cursor, Cursor(1, 2, 3, "shuffle"), Column("a", "int", 8))
    yield from (playlist, stream, stream.chunk(0), File("a", 3), Settings(), Guard(), Limits())
    yield from (stream.at, locate("http://127.0.0.1:1/a"), Cache(str(tmp_path / "c"), 1 << 20))
    yield flare.Finding("a", "kind", "what", "do", (1, 2))
    yield from flare.verify(packed)
    yield from (presets.image(8), presets.text(4))
    yield from (IterableDataset(data, 8), MapDataset(data, len))
    yield from (one("what", where="here", hint="Do.") for one in every_error())


def every_error():
    return [
        one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, FlareError)
    ]


def test_every_public_object_survives_a_pickle_and_a_copy(packed, tmp_path):
    for one in public_objects(packed, tmp_path):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            again = pickle.loads(pickle.dumps(one, protocol))
            assert type(again) is type(one)
            if isinstance(one, FlareError):
                assert (str(again), again.hint, again.where) == (str(one), one.hint, one.where)
            elif isinstance(one, (Dataset, flare.Mix)):
                assert again.checksum == one.checksum and again[7] == one[7]
            elif isinstance(one, IterableDataset):
                assert digest(again) == digest(one)
            elif not callable(one) and not isinstance(one, MapDataset):
                assert repr(again) == repr(one)
        assert type(copy.copy(one)) is type(one)
    shard = flare.open(packed)._table.series[0].shard(3)
    assert isinstance(shard, Shard) and isinstance(shard.chunk, Chunk)
    assert pickle.loads(pickle.dumps(shard)).rows == 10


def test_pickles_contain_no_handles_and_no_open_shards(packed):
    data = flare.open(packed)
    closed = len(pickle.dumps(data))
    list(data)
    assert len(pickle.dumps(data)) <= closed + 100  # open shards are not pickled


def test_objects_that_cannot_be_pickled_raise_an_error_with_a_hint(packed, tmp_path):
    data = flare.open(packed)
    run = data.run(1)
    next(run)
    loader = flare.Loader(data, 8)
    next(iter(loader))
    writer = flare.Writer(str(tmp_path / "out"), columns={"n": "int"})
    try:
        for one, hint in (
            (
                run,
                "Send the dataset and the cursor to the process, and call data.run(cursor=cursor) there.",
            ),
            (writer, "Open a separate Writer in each process, with a separate folder."),
        ):
            with pytest.raises(UsageError) as caught:
                pickle.dumps(one)
            kind = type(one).__name__
            assert str(caught.value) == f"a {kind} cannot be sent to another process"
            assert caught.value.hint == hint
    finally:
        writer.abandon()
    again = pickle.loads(pickle.dumps(loader))
    assert again.save() == loader.save()
    assert [one["n"].tolist() for one in again] == [one["n"].tolist() for one in loader]


MAIN = """
import sys
import flarecli as flare
from torch.utils.data import DataLoader
from flarecli.torch import IterableDataset

stream = IterableDataset(flare.open(sys.argv[1]), 16)
print(sum(len(b["n"]) for b in DataLoader(stream, batch_size=None, num_workers=1, multiprocessing_context="spawn")))
"""


def test_a_script_without_a_main_guard_ends_with_an_error(packed, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(MAIN)
    ran = subprocess.run(
        [sys.executable, str(script), packed], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1 and "bootstrapping phase" in ran.stderr
