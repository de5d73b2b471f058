"""Mixes: every block has the exact ratio, rows repeat only after all were read, and runs resume at
any step.
"""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli.errors import RowsError, UsageError
from flarecli.model import Settings
from tests.properties import examples


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mix")
    for name, rows in (("a", 300), ("b", 70), ("c", 9)):
        with flare.Writer(
            str(folder / name),
            columns={"n": "int", "of": "str", "w": "float32"},
            settings=Settings(shard_rows=20),
        ) as writer:
            for n in range(rows):
                writer.write({"n": n, "of": name, "w": 0.5})
    return [flare.open(str(folder / name)) for name in "abc"]


def keys(samples):
    return [(sample["of"], sample["n"]) for sample in samples]


def test_the_ratio_follows_the_weights_and_rows_repeat_only_after_all_were_read(parts):
    a, b, _ = parts
    both = flare.mix({a: 0.7, b: 0.3})
    seen = keys(sample for epoch in range(3) for sample in both.run(5, epoch))
    assert (len(both), len(seen)) == (370, 3 * 370)
    share = Counter(of for of, _ in seen)["a"] / len(seen)
    assert abs(share - 0.7) < 0.05
    for of, rows in (("a", 300), ("b", 70)):
        own = [n for name, n in seen if name == of]
        for start in range(0, len(own) - rows, rows):
            assert sorted(own[start : start + rows]) == list(range(rows))


def test_each_block_has_the_exact_share_of_each_dataset(parts):
    whole = flare.mix(dict(zip(parts, (7, 2.5, 0.5), strict=True)), rows=20_000)
    rows = whole.order(1, 0, "shuffle", 8).at(np.arange(20_000))
    for block in (rows[:10_000], rows[10_000:]):
        assert np.bincount(np.searchsorted([300, 370], block, "right")).tolist() == [
            7000,
            2500,
            500,
        ]
    assert flare.mix({parts[0]: 1e9, parts[1]: 1}).quotas.tolist() == [9999, 1]
    assert flare.mix(dict.fromkeys(parts, 1)).quotas.tolist() == [3334, 3333, 3333]


@settings(max_examples=examples(50), deadline=None)
@given(
    st.integers(0, 1 << 40),
    st.integers(0, 50),
    st.lists(st.tuples(st.integers(1, 5), st.integers(1, 60)), min_size=1, max_size=6),
)
def test_a_run_resumes_with_any_number_of_ranks(parts, seed, epoch, pieces):
    whole = flare.mix(dict(zip(parts, (0.6, 0.3, 0.1), strict=True)), rows=400)
    expected, seen, cursor = keys(whole.run(seed, epoch)), [], None
    for ranks, taken in pieces:
        runs = [
            whole.run(seed, epoch, rank=rank, ranks=ranks, cursor=cursor) for rank in range(ranks)
        ]
        for _ in range(taken):
            seen += keys(
                sample for run in runs for sample in [next(run, None)] if sample is not None
            )
        cursor = runs[0].cursor
    assert seen == expected[: len(seen)]
    assert keys(whole.run(cursor=cursor)) == expected[len(seen) :]


@pytest.mark.parametrize(
    "options", [{"workers": 0}, {"workers": 2}, {"workers": 1, "processes": True, "start": "fork"}]
)
def test_a_loader_reads_a_mix(parts, options):
    whole = flare.mix({parts[0]: 0.5, parts[2]: 0.5})
    batches = list(flare.Loader(whole, 32, seed=3, **options))
    assert [
        key for batch in batches for key in zip(batch["of"], batch["n"].tolist(), strict=True)
    ] == keys(whole.run(3))
    assert batches[0]["w"].dtype == np.float32
    transformed = list(
        flare.Loader(whole, 32, seed=3, transform=dict, decode={"of": len}, **options)
    )
    assert all((batch["of"] == 1).all() and batch["w"].dtype == np.float32 for batch in transformed)


def test_row_numbers_of_a_mix_count_the_concatenated_datasets(parts):
    whole = flare.mix({parts[0]: 1, parts[1]: 1})
    assert keys([whole[0], whole[300], *whole.__getitems__([369, 299])]) == [
        ("a", 0),
        ("b", 0),
        ("b", 69),
        ("a", 299),
    ]
    with pytest.raises(RowsError, match="^row is outside the mix, which has 370 rows$"):
        whole[370]


def test_invalid_mixes_are_refused(parts):
    a, b, _ = parts
    for weights, message in (
        ({}, "expected datasets, each with a weight above 0"),
        ({a: 0, b: 1}, "expected datasets, each with a weight above 0"),
        ({a: float("nan")}, "expected datasets, each with a weight above 0"),
        ({a: 1, b.where("n < 0"): 1}, "cannot mix an empty dataset"),
        ({a: 1, b.select(["n"]): 1}, "column 'of' is missing in some datasets"),
    ):
        with pytest.raises(UsageError) as caught:
            flare.mix(weights)
        assert str(caught.value) == message
    with pytest.raises(UsageError, match="^unknown order 'x'(?m:$)"):
        flare.mix({a: 1}).run(order="x")


def test_weights_with_an_infinite_sum_are_accepted(parts):
    a, b, _ = parts
    assert flare.mix({a: 1.5e308, b: 0.5e308}).quotas.tolist() == [7500, 2500]


@pytest.mark.parametrize(
    ("rows", "what"), [([True, False], "bool"), ([1.7], "float64"), ([slice(1, 2)], "object")]
)
def test_invalid_row_numbers_of_a_mix_are_refused(parts, rows, what):
    a, b, _ = parts
    with pytest.raises(UsageError, match=f"^expected row numbers, got values of type {what}(?m:$)"):
        flare.mix({a: 1, b: 1}).__getitems__(rows)


def test_an_empty_list_of_row_numbers_is_an_empty_batch(parts):
    empty = flare.mix({parts[0]: 1, parts[1]: 1}).collated([])
    assert {name: len(values) for name, values in empty.items()} == {"n": 0, "of": 0, "w": 0}
    assert (empty["n"].dtype, empty["w"].dtype) == (np.int64, np.float32)
