"""Datasets and loaders close their files, and open them again on use."""

import os

import pytest

import flarecli as flare
from flarecli.model import Settings
from tests.pool import is_idle

ROWS = 30


@pytest.fixture
def data(tmp_path):
    folder = str(tmp_path / "d")
    with flare.Writer(folder, columns={"n": "int"}, settings=Settings(shard_rows=10)) as writer:
        for n in range(ROWS):
            writer.write({"n": n})
    return flare.open(folder)


def mapped(data):
    """Return the number of shards of a dataset that this process maps."""
    folder = os.path.dirname(str(data.playlists[0].at))
    with open("/proc/self/maps") as lines:
        return len({line.split()[-1] for line in lines if f"{folder}/" in line})


@pytest.mark.skipif(not os.path.exists("/proc/self/maps"), reason="needs Linux")
def test_a_closed_dataset_maps_no_file_until_it_is_read_again(data):
    with data:
        assert [data[n]["n"] for n in range(ROWS)] == list(range(ROWS))
        assert mapped(data) == 3
    assert mapped(data) == 0
    assert data[7]["n"] == 7
    assert mapped(data) == 1
    flare.close()
    assert mapped(data) == 0
    with flare.mix({data: 1.0}) as mix:
        assert mix[8]["n"] == 8
    assert mapped(data) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_closed_loader_ends_its_loop_and_resumes_in_the_next(data, workers):
    with flare.Loader(data, 5, workers=workers, order="sequential", transform=dict) as loader:
        loop = iter(loader)
        assert next(loop)["n"].tolist() == [0, 1, 2, 3, 4]
    assert list(loop) == []
    assert is_idle()
    assert [batch["n"][0] for batch in loader] == [5, 10, 15, 20, 25]
