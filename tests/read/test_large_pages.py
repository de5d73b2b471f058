"""Large pages are advised for shards that are read completely, and only for those."""

import mmap
from pathlib import Path

import pytest

import flarecli as flare
from flarecli.formats import find
from flarecli.model import Settings
from flarecli.read import shard_prefetch
from flarecli.storage import mmap as ahead

mds = find("mds")

ROWS = 300


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
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the sizes of the maps for which large pages were advised, however small."""
    out: list[int] = []
    monkeypatch.setattr(shard_prefetch, "_MIN_LARGE_PAGE_BYTES", 0)
    monkeypatch.setattr(ahead, "use_large_pages", lambda view: out.append(len(view)))
    return out


def stored(folder: str) -> list[int]:
    return sorted(path.stat().st_size for path in Path(folder).glob("*.mds"))


@pytest.mark.parametrize("order", ["shuffle", "windows", "sequential"])
def test_an_epoch_advises_large_pages_once_per_shard(
    folder: str, asked: list[int], order: str
) -> None:
    data = flare.open(folder)
    seen = [n for batch in flare.Loader(data, 32, order=order) for n in batch["n"].tolist()]
    assert sorted(asked) == stored(folder) and len(asked) > 2
    assert sorted(seen) == list(range(ROWS))


def test_large_pages_are_advised_for_open_shards_too(folder: str, asked: list[int]) -> None:
    data = flare.open(folder)
    assert data[0]["n"] == 0 and not asked
    run = data.run(order="sequential")
    next(run)
    assert len(asked) == 1


def test_large_pages_are_advised_before_the_table_is_read(
    folder: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    open_shard, before = mds.open_shard, list[int]()
    monkeypatch.setattr(
        mds, "open_shard", lambda *given: before.append(len(asked)) or open_shard(*given)
    )
    list(flare.Loader(flare.open(folder), 32, workers=0))
    assert before == [1, 2, 3]


def test_single_rows_advise_no_large_pages(folder: str, asked: list[int]) -> None:
    data = flare.open(folder)
    assert len([data[n] for n in range(0, ROWS, 7)]) and data.to_arrow().num_rows == ROWS
    assert asked == []


def test_a_small_selection_advises_no_large_pages(folder: str, asked: list[int]) -> None:
    some = flare.open(folder).where("n < 100")
    assert sum(len(batch["n"]) for batch in flare.Loader(some, 32)) == 100
    assert asked == []


def test_many_ranks_advise_no_large_pages(folder: str, asked: list[int]) -> None:
    list(flare.Loader(flare.open(folder), 4, rank=3, ranks=9))
    assert asked == []
    list(flare.Loader(flare.open(folder), 4, rank=3, ranks=8))
    assert asked


def test_data_above_half_of_the_memory_gets_no_large_pages(
    folder: str, asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead, "_memory_bytes", lambda: 2 * sum(stored(folder)) - 1)
    list(flare.Loader(flare.open(folder)))
    assert asked == []
    monkeypatch.setattr(ahead, "_memory_bytes", lambda: 2 * sum(stored(folder)))
    list(flare.Loader(flare.open(folder)))
    assert sorted(asked) == stored(folder)


def test_a_mix_advises_the_bytes_of_all_its_datasets(folder: str, asked: list[int]) -> None:
    data = flare.open(folder)
    list(flare.Loader(flare.mix({data: 0.5, flare.open(folder): 0.5})))
    assert len(asked) >= len(stored(folder))


def test_a_map_with_large_pages_is_not_read_ahead_in_small_pages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(bytes(1 << 16))
    with (tmp_path / "file").open("rb") as file:
        view = memoryview(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
    ahead.use_large_pages(view)
    if view.obj not in ahead._in_large_pages:
        pytest.skip("this system has no large pages")
    monkeypatch.setattr(ahead, "_WILLNEED", -1)  # an invalid advice: using it would fail
    ahead.read_ahead(view, [(0, 5000)])
    ahead._in_large_pages.discard(view.obj)
    with pytest.raises(OSError):
        ahead.read_ahead(view, [(0, 5000)])
