"""cat: which rows come, in which order, with which columns."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import verbs
from flarecli.errors import RowsError, UsageError
from flarecli.verbs import rows as rows_of


def ids(address, **options) -> list[int]:
    return [one for batch in verbs.cat(str(address), **options) for one in batch.column("id").to_pylist()]


@pytest.mark.parametrize("kind", ["plain", "zipped"])
def test_all_rows_come_whole_and_in_order(kind, request, samples):
    batches = list(verbs.cat(str(request.getfixturevalue(kind))))
    assert [row for batch in batches for row in batch.to_pylist()] == samples
    assert batches[0].schema.field("image").metadata == {b"encoding": b"jpeg"}


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"rows": "5"}, [5]),
        ({"rows": "8:12"}, [8, 9, 10, 11]),
        ({"rows": "-3:"}, [32, 33, 34]),
        ({"rows": "::10"}, [0, 10, 20, 30]),
        ({"rows": "3:0:-1"}, [3, 2, 1]),
        ({"rows": "33,1,4,1"}, [33, 1, 4, 1]),
        ({"rows": "30:,0:2"}, [30, 31, 32, 33, 34, 0, 1]),
        ({"head": 3}, [0, 1, 2]),
        ({"tail": 2}, [33, 34]),
        ({"head": 5, "tail": 2}, [3, 4]),
        ({"limit": 4, "head": 9}, [0, 1, 2, 3]),
        ({"limit": 0}, []),
        ({"rows": "10:20", "rank": (1, 4)}, [11, 15, 19]),
        ({"where": "id % 10 = 3"}, [3, 13, 23, 33]),
        ({"where": "id % 10 = 3", "limit": 3, "tail": 2}, [13, 23]),
        ({"where": "id > 30", "head": 2}, [31, 32]),
        ({"where": "false"}, []),
        ({"where": "SELECT id + 1 AS id FROM dataframe WHERE id < 2"}, [1, 2]),
    ],
)
def test_the_rows_asked_for_come(plain, options, wanted):
    assert ids(plain, **options) == wanted


def test_columns_come_in_the_order_asked_and_a_condition_may_use_others(plain):
    batches = list(verbs.cat(str(plain), columns=["text", "id"], rows="2"))
    assert [batch.to_pylist() for batch in batches] == [[{"text": "caption 2", "id": 2}]]
    batches = list(verbs.cat(str(plain), columns=["text"], where="ID = 3"))
    assert [batch.to_pylist() for batch in batches] == [[{"text": "caption 3"}]]


def test_no_rows_still_say_their_columns(plain):
    (batch,) = verbs.cat(str(plain), rows="0:0", columns=["id"])
    assert (batch.num_rows, batch.schema.names) == (0, ["id"])


def test_a_shuffle_is_an_order_of_all_rows_and_ranks_share_it(plain):
    whole = ids(plain, shuffle=7)
    assert sorted(whole) == list(range(35)) and whole != list(range(35))
    assert ids(plain, shuffle=7) == whole != ids(plain, shuffle=8)
    assert ids(plain, shuffle=7, epoch=1) != whole
    assert [ids(plain, shuffle=7, rank=(r, 3)) for r in range(3)] == [whole[r::3] for r in range(3)]
    assert sorted(ids(plain, rows="10:20", shuffle=1)) == list(range(10, 20))


def test_a_sample_is_so_many_rows_in_their_order_and_the_same_again(plain):
    some = ids(plain, sample=10)
    assert len(some) == 10 and some == sorted(set(some)) == ids(plain, sample=10)
    assert ids(plain, sample=10, seed=1) != some
    assert len(ids(plain, sample=0.2)) == 7
    assert ids(plain, sample=1.0) == ids(plain, sample=99) == list(range(35))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 400),
    st.one_of(st.none(), st.integers(0, 500), st.floats(0, 1)),
    st.one_of(st.none(), st.integers(0, 9)),
    st.integers(1, 5),
)
def test_ranks_together_give_every_chosen_row_once(total, sample, shuffle, ranks):
    whole = rows_of.ordered(total, None, sample, 3, shuffle)
    seen = Counter(row for r in range(ranks) for row in _all(rows_of.ordered(total, None, sample, 3, shuffle, rank=(r, ranks))))
    assert seen == Counter(_all(whole)) and set(seen.values()) <= {1}


def _all(order):
    return order.rows(0, len(order)).tolist()


def test_neighbours_are_scanned_and_the_rest_is_taken_in_small_blocks(plain, monkeypatch):
    monkeypatch.setattr(rows_of, "_TAKEN", 4)
    sizes = [batch.num_rows for batch in verbs.cat(str(plain), shuffle=1)]
    assert sizes == [4] * 8 + [3]
    assert ids(plain, rows="0:20,30") == [*range(20), 30]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"rows": "35"}, RowsError, "row 35 is outside the data, which has 35 rows"),
        ({"rows": "x"}, UsageError, "'x' names no rows"),
        ({"columns": ["nope"]}, UsageError, "no column 'nope'"),
        ({"columns": ["nope"], "where": "id > 1"}, UsageError, "no column 'nope'"),
        ({"head": -1}, UsageError, "head is -1, below 0"),
        ({"epoch": 1}, UsageError, "an epoch without a shuffle changes nothing"),
    ],
)
def test_wrong_wishes_are_refused_before_anything_is_read(plain, options, error, message):
    with pytest.raises(error) as caught:
        verbs.cat(str(plain), **options)
    assert str(caught.value) == message
