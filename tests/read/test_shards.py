"""Open shards: large pages for shards that are read completely, and the limit of file handles."""

import os
import re
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pyarrow as pa
import pytest

import flarecli as flare
from flarecli import read
from flarecli.formats import byte_ranges, find
from flarecli.model import Settings
from flarecli.read import shard_prefetch, shards
from flarecli.storage import files_limit, locate
from flarecli.storage import mmap as ahead
from flarecli.write import Writer

mds = find("mds")

ROWS = 300
MAPS_KEEP_HANDLES = sys.version_info < (3, 13)


@pytest.fixture
def folder(tmp_path: Path) -> str:
    with flare.Writer(
        str(tmp_path / "data"),
        columns={"n": "int", "body": "bytes"},
        settings=Settings(shard_rows=100),
    ) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "body": bytes([n % 256]) * 2000})
    return str(tmp_path / "data")


@pytest.fixture
def advised(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the maps for which large pages were advised, however small."""
    out: list[int] = []
    monkeypatch.setattr(shard_prefetch, "_MIN_LARGE_PAGE_BYTES", 0)
    monkeypatch.setattr(ahead, "use_large_pages", lambda view: out.append(len(view)))
    return out


def stored(folder: str) -> list[int]:
    return sorted(path.stat().st_size for path in Path(folder).glob("*.mds"))


@pytest.mark.parametrize("order", ["shuffle", "windows", "sequential"])
def test_an_epoch_advises_large_pages_once_per_shard(
    folder: str, advised: list[int], order: str
) -> None:
    data = flare.open(folder)
    seen = [n for batch in flare.Loader(data, 32, order=order) for n in batch["n"].tolist()]
    assert sorted(advised) == stored(folder) and len(advised) > 2
    assert sorted(seen) == list(range(ROWS))


def test_large_pages_are_advised_for_open_shards_too(folder: str, advised: list[int]) -> None:
    data = flare.open(folder)
    assert data[0]["n"] == 0 and not advised
    run = data.run(order="sequential")
    next(run)
    assert len(advised) == 1


def test_large_pages_are_advised_before_the_table_is_read(
    folder: str, advised: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_shard, before = mds.open_shard, list[int]()
    monkeypatch.setattr(
        mds, "open_shard", lambda *given: before.append(len(advised)) or open_shard(*given)
    )
    list(flare.Loader(flare.open(folder), 32, workers=0))
    assert before == [1, 2, 3]


def test_single_rows_advise_no_large_pages(folder: str, advised: list[int]) -> None:
    data = flare.open(folder)
    assert len([data[n] for n in range(0, ROWS, 7)]) and data.to_arrow().num_rows == ROWS
    assert advised == []


def test_a_small_selection_advises_no_large_pages(folder: str, advised: list[int]) -> None:
    some = flare.open(folder).where("n < 100")
    assert sum(len(batch["n"]) for batch in flare.Loader(some, 32)) == 100
    assert advised == []


def test_many_ranks_advise_no_large_pages(folder: str, advised: list[int]) -> None:
    list(flare.Loader(flare.open(folder), 4, rank=3, ranks=9))
    assert advised == []
    list(flare.Loader(flare.open(folder), 4, rank=3, ranks=8))
    assert advised


def test_data_above_half_of_the_memory_gets_no_large_pages(
    folder: str, advised: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_memory_bytes", lambda: 2 * sum(stored(folder)) - 1)
    list(flare.Loader(flare.open(folder)))
    assert advised == []
    monkeypatch.setattr(ahead, "_memory_bytes", lambda: 2 * sum(stored(folder)))
    list(flare.Loader(flare.open(folder)))
    assert sorted(advised) == stored(folder)


def test_a_mix_advises_large_pages_for_its_datasets(folder: str, advised: list[int]) -> None:
    data = flare.open(folder)
    list(flare.Loader(flare.mix({data: 0.5, flare.open(folder): 0.5})))
    assert len(advised) >= len(stored(folder))


def test_a_map_with_large_pages_is_not_read_ahead_in_small_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    with (tmp_path / "file").open("rb") as file:
        view = memoryview(ahead.map_file(file.fileno(), 1 << 16))
    ahead.use_large_pages(view)
    if not view.obj.in_large_pages:
        pytest.skip("this system has no large pages")
    monkeypatch.setattr(ahead, "_WILLNEED", -1)  # an invalid advice: using it would fail
    ahead.read_ahead(view, [(0, 5000)])
    view.obj.in_large_pages = False
    with pytest.raises(OSError):
        ahead.read_ahead(view, [(0, 5000)])


PROGRAM = """
    import os, resource, sys
    import flarecli as flare

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    datas = [flare.open(path) for path in sys.argv[1:] for _ in range(8)]
    for data in datas:
        for order, workers in (("shuffle", 2), ("windows", 0), ("sequential", 2)):
            batches = flare.Loader(data, 64, order=order, workers=workers)
            assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(len(data)))
        assert sum(len(batch) for batch in data.batches(100)) == len(data)
    print(len(os.listdir("/proc/self/fd")) < 40)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = []
    for format, count in (("mds", 200), ("granular", 40)):
        path = str(tmp_path_factory.mktemp("many") / format)
        with flare.Writer(
            path, columns={"n": "int", "t": "str"}, format=format, settings=Settings(shard_rows=5)
        ) as writer:
            for n in range(5 * count):
                writer.write({"n": n, "t": "x" * n})
        out.append(path)
    return out


def test_epochs_over_many_shards_need_few_handles(folders):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *folders],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_mapped_files_are_limited_to_a_share_of_the_handles_if_maps_keep_handles(monkeypatch):
    for handles, files in (
        (16, 8),
        (64, 16),
        (1024, 256),
        (1 << 20, 1024),
        (resource.RLIM_INFINITY, 1024),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, handles=handles: (handles, handles))
        assert files_limit(1024) == (files if MAPS_KEEP_HANDLES else 1024)


def test_shards_that_were_closed_do_not_count_as_open(tmp_path):
    """Each pass opens 200 shards, fewer than the limit; a pass closes no shard of its own."""
    rows, out = 200, str(tmp_path / "d")
    with flare.Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=1)) as writer:
        for n in range(rows):
            writer.write({"n": n})
    data = flare.open(out)
    for _ in range(4):
        data.close()
        assert [data[n]["n"] for n in range(rows)] == list(range(rows))
    maps = Path("/proc/self/maps").read_text()
    assert len(set(re.findall(f"{out}/shard.+mds", maps))) == rows


@pytest.mark.parametrize(
    ("form", "options", "row_bytes"),
    [("mds", {}, 0), ("mds", {"compress": "zstd"}, 4), ("granular", {}, 2 * 8), ("json", {}, 0)],
)
def test_the_memory_of_open_shards_is_limited(tmp_path, monkeypatch, form, options, row_bytes):
    """The tables of a shard count unless they are in a mapped file."""
    table, rows = pa.table({"n": range(900), "t": ["x"] * 900}), 90
    flare.pack(table, tmp_path / "d", format=form, shard_rows=rows, **options)
    data = flare.open(str(tmp_path / "d"))
    size = shards._SHARD_BYTES + row_bytes * (rows + 1)
    flare.close()
    assert data[0] == {"n": 0, "t": "x"}
    assert shards._open_shards.bytes == size
    monkeypatch.setattr(shards, "_MAX_OPEN_BYTES", 3 * size)
    assert [sample["n"] for sample in data] == list(range(900))
    assert shards._open_shards.bytes == 3 * size
    assert sorted(data._table.series[0]._open) == [7, 8, 9]


def test_a_mapped_file_keeps_no_handle_if_python_allows_it(tmp_path):
    (tmp_path / "file").write_bytes(b"data")
    before = set(os.listdir("/proc/self/fd"))
    view = locate(str(tmp_path / "file")).map()
    assert bytes(view) == b"data"
    assert len(set(os.listdir("/proc/self/fd")) - before) == MAPS_KEEP_HANDLES


def test_the_listed_bytes_of_a_chunk_are_read_without_adding_up_others(tmp_path, monkeypatch):
    rows = [{"n": i, "t": "x" * i} for i in range(20)]
    with flare.Writer(
        str(tmp_path / "d"),
        format="granular",
        columns={"n": "int", "t": "str"},
        settings=Settings(shard_rows=5),
    ) as writer:
        for row in rows:
            writer.write(row)
    data = flare.open(str(tmp_path / "d"))
    series, expected = data._table.series[0], data.playlists[0].streams[0].stored.tolist()
    monkeypatch.setattr(
        "flarecli.model.Stream.stored",
        property(lambda self: pytest.fail("the bytes of all chunks were added up")),
    )
    assert [series.weight(i) for i in range(4)] == expected
    assert data.shards.weight(4, 6) == sum(expected[:2])


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_a_forked_child_reads_while_a_thread_of_the_parent_holds_the_locks(tmp_path, compression):
    with Writer(
        str(tmp_path / "out"), columns={"n": "int"}, settings=Settings(compression=compression)
    ) as writer:
        writer.write({"n": 7})
    data = read.open(str(tmp_path / "out"))
    with byte_ranges._lock:  # as if another thread were reading at the fork
        child = os.fork()
        if not child:
            try:
                os._exit(0 if data[0] == {"n": 7} else 1)
            finally:
                os._exit(2)
    deadline = time.monotonic() + 30
    while not (ended := os.waitpid(child, os.WNOHANG))[0] and time.monotonic() < deadline:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert ended == (child, 0)
