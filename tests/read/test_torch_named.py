"""Batches that a worker only names: the same values as ever, read by whoever takes them, or by whoever looks into them before. Needs torch."""

import copy
import pickle

import numpy as np
import pytest

import flarecli as flare
from flarecli.errors import FormatError, UsageError
from flarecli.model import Settings

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402
from torch.utils.data import IterableDataset as TorchIterable  # noqa: E402

from flarecli.torch import IterableDataset, sending, tensors  # noqa: E402

ROWS, COLUMNS = 120, {"body": "bytes", "n": "int", "text": "str"}


def samples():
    return [{"body": bytes([n]) * (n * 10), "n": n, "text": str(n)} for n in range(ROWS)]


def packed(path, **settings):
    with flare.Writer(
        str(path), columns=COLUMNS, settings=Settings(shard_rows=50, **settings)
    ) as writer:
        for sample in samples():
            writer.write(sample)
    return flare.open(str(path))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("named") / "d")


@pytest.fixture
def reads(monkeypatch):
    """The names of batches that were read here."""
    found, read = [], sending._read

    def _read(name, rows):
        found.append(name)
        return read(name, rows)

    monkeypatch.setattr(sending, "_read", _read)
    monkeypatch.setattr(_read, "__module__", sending.__name__)
    monkeypatch.setattr(_read, "__qualname__", "_read")
    return found


def plain(batches):
    return [
        {
            name: value.tolist() if isinstance(value, torch.Tensor) else value
            for name, value in batch.items()
        }
        for batch in batches
    ]


def from_workers(stream, **options):
    return list(
        DataLoader(stream, batch_size=None, num_workers=2, **({"collate_fn": tensors} | options))
    )


@pytest.mark.parametrize(
    "kind", ["all", "some columns", "some rows", "stored bytes", "ranks", "mix"]
)
def test_rows_in_memory_are_read_by_who_takes_them(data, reads, kind):
    chosen = {
        "some columns": data.select(["n", "body"]),
        "some rows": data.where("n % 3 = 1"),
        "stored bytes": data.decoded({"n": False}),
        "mix": flare.mix({data.where("n < 60"): 0.5, data.where("n >= 60"): 0.5}),
    }.get(kind, data)
    stream = IterableDataset(
        chosen, 16, seed=3, **({"rank": 1, "ranks": 2} if kind == "ranks" else {})
    )
    wanted = list(stream)
    for _ in range(2):
        batches = from_workers(stream)
        assert plain(batches) == plain(wanted) and {type(batch) for batch in batches} == {dict}
        assert [list(batch) for batch in batches] == [list(batch) for batch in wanted]
    assert reads == [stream._name] * 2 * len(wanted)


def double(sample):
    return sample | {"n": 2 * sample["n"]}


@pytest.mark.parametrize(
    "kind",
    ["compressed", "transform", "collate", "decode", "threads", "one by one", "looked at"],
)
def test_what_takes_more_than_a_copy_is_made_by_the_worker(
    data, tmp_path, reads, monkeypatch, kind
):
    own = {
        "transform": {"transform": double},
        "collate": {"collate": data.collate},
        "decode": {"decode": {"text": len}},
        "threads": {"threads": 1},
        "one by one": {"collated": False},
    }.get(kind, {})
    stream = IterableDataset(
        packed(tmp_path / "d", compression="zstd") if kind == "compressed" else data,
        16,
        seed=3,
        **own,
    )
    given = {
        "looked at": {"collate_fn": dict},
        "one by one": {"collate_fn": list},
        "collate": {"collate_fn": tensors},
    }.get(kind, {})
    batches = list(stream)
    if kind == "one by one":
        assert len(from_workers(stream, collate_fn=dict)) == len(batches)
    else:
        assert plain(from_workers(stream, **given)) == plain(map(tensors, batches))
    assert reads == []


class Inside(TorchIterable):
    """Makes its stream where it is read."""

    def __init__(self, data):
        self.data = data

    def __iter__(self):
        return iter(IterableDataset(self.data, 16, seed=3))


def test_a_stream_that_only_a_worker_has_names_nothing(data, reads):
    assert plain(from_workers(Inside(data))) == plain(IterableDataset(data, 16, seed=3))
    assert reads == []


def named(data, rows=(3, 1, 2)):
    return sending.Named((0, 0), data, np.array(rows, np.int64))


@pytest.mark.parametrize(
    "look",
    [
        dict,
        list,
        len,
        copy.copy,
        lambda batch: {**batch},
        lambda batch: batch | {"more": 1},
        lambda batch: {"more": 1} | batch,
        lambda batch: (lambda **named: named)(**batch),
        lambda batch: ("n" in batch, "other" in batch),
        lambda batch: (batch["text"], batch.get("other"), batch.setdefault("text")),
        lambda batch: [
            list(batch.keys()),
            list(batch.items())[2],
            list(batch.values())[2],
            list(reversed(batch)),
        ],
        lambda batch: (batch.pop("text"), len(batch)),
        lambda batch: (batch.update(other=1), sorted(batch)),
        lambda batch: [batch.__setitem__("n", 1), batch.__delitem__("body"), dict(batch)],
        lambda batch: repr(batch),
        lambda batch: (batch == dict(batch), batch != {}, batch == {}),
        lambda batch: pickle.loads(pickle.dumps(batch)),
        lambda batch: copy.deepcopy(batch),
        lambda batch: [batch.__ior__({"n": 1}), dict(batch)],
        lambda batch: (batch.clear(), dict(batch)),
        lambda batch: batch.popitem(),
        lambda batch: batch.copy(),
    ],
)
def test_who_looks_into_one_sees_a_batch(data, look):
    batch = sending._with_tensors(data.collated([3, 1, 2]))
    assert str(look(named(data))) == str(look(batch))
    kept = named(data)
    assert tensors(kept) is kept and not kept.is_read


def test_a_damaged_row_is_named_and_the_loop_goes_on(tmp_path):
    packed(tmp_path / "d")
    shard = tmp_path / "d" / "shard.00001.mds"
    body = bytearray(shard.read_bytes())
    at = int.from_bytes(body[4 + 4 * 7 : 8 + 4 * 7], "little")
    body[at : at + 4] = (1 << 20).to_bytes(4, "little")
    shard.write_bytes(body)
    stream = IterableDataset(flare.open(str(tmp_path / "d")), 10, order="sequential")
    loop, given = iter(DataLoader(stream, batch_size=None, collate_fn=tensors, num_workers=2)), 0
    with pytest.raises(
        FormatError,
        match=r"(?s)^Caught FormatError in reading what a DataLoader worker named.*\.mds\[7\]: its fields take 1048",
    ):
        for _ in loop:
            given += 1
    assert given == 5 and [batch["n"][0].item() for batch in loop] == [60, 70, 80, 90, 100, 110]


@pytest.mark.parametrize("taken", [1, 5])
def test_a_stateful_loader_goes_on_exactly_with_batches_that_are_named(data, reads, taken):
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader

    def loader():
        return stateful(
            IterableDataset(data, 16, seed=6), batch_size=None, num_workers=2, collate_fn=tensors
        )

    first = loader()
    seen = [batch for _, batch in zip(range(taken), first, strict=False)]
    state = first.state_dict()
    del first
    other = loader()
    other.load_state_dict(state)
    assert plain(seen + list(other)) == plain(IterableDataset(data, 16, seed=6)) and reads


def test_a_stream_that_is_gone_is_said(data):
    wrong = sending._read((-1, 0), b"")
    with pytest.raises(UsageError, match="the dataset of this batch is gone"):
        wrong.reraise()


def test_copies_of_a_stream_have_names_of_their_own(data):
    stream = IterableDataset(data, 16)
    others = [copy.copy(stream), copy.deepcopy(stream), pickle.loads(pickle.dumps(stream))]
    assert len({one._name for one in [stream, *others]}) == 4
    stream.set_epoch(3)
    assert [int(one._epoch[0]) for one in others] == [0, 0, 0]
    told = stream._name, np.array([5], np.int64).tobytes()
    del others
    assert sending._read(*told)["text"] == ["5"]
