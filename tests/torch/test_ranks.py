"""The rank of a process and the number of ranks, from arguments and from the environment."""

import pytest

import flarecli as flare
from flarecli.errors import UsageError
from flarecli.model import Settings

pytest.importorskip("torch")

from flarecli.torch import IterableDataset

ROWS = 103


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("ranks") / "d"
    with flare.Writer(str(path), columns={"n": "int"}, settings=Settings(shard_rows=10)) as writer:
        for n in range(ROWS):
            writer.write({"n": n})
    return flare.open(str(path))


def numbers(batches):
    return [batch["n"].tolist() for batch in batches]


def test_ranks_are_read_from_the_environment(data, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    rows = [sample["n"] for sample in data.run(0, rank=1, ranks=3)]
    expected = [rows[start : start + 4] for start in range(0, len(rows), 4)]
    assert numbers(IterableDataset(data, 4)) == expected


def test_rank_or_ranks_may_be_given_alone(data, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("RANK", "2")
    for given, same in (
        ({"rank": 1}, {"rank": 1, "ranks": 3}),
        ({"ranks": 4}, {"rank": 2, "ranks": 4}),
        ({}, {"rank": 2, "ranks": 3}),
    ):
        assert numbers(IterableDataset(data, 8, **given)) == numbers(
            IterableDataset(data, 8, **same)
        )
    monkeypatch.setenv("RANK", "one")
    wrong = "^RANK and WORLD_SIZE: expected two numbers, got 'one' and '3'(?m:$)"
    with pytest.raises(UsageError, match=wrong):
        len(IterableDataset(data))
    monkeypatch.delenv("RANK")  # Lightning's environment before torch.distributed is initialized
    stream = IterableDataset(data)
    with pytest.raises(
        UsageError, match="^RANK and WORLD_SIZE: expected two numbers, got '' and '3'(?m:$)"
    ):
        next(iter(stream))
