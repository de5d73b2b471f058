"""Cursors and states contain the checksum of their data, and every field is checked."""

import dataclasses
import json
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli.errors import FlareError, UsageError
from flarecli.model import Cursor, Settings, Stream
from flarecli.read.fingerprint import listing_checksum
from flarecli.storage import locate
from tests.properties import examples

ROWS = 40
OPEN = "Open the data with which the position was saved."
EARLIER = "the position was saved by an earlier version of flare, without a data checksum"


def pack(path, shift=0, rows=ROWS, columns=None, **options):
    options = {"settings": Settings(shard_rows=7, **options.pop("settings", {})), **options}
    with flare.Writer(str(path), columns=columns or {"n": "int"}, **options) as writer:
        for n in range(rows):
            writer.write({"n": n + shift})
    return flare.open(str(path))


def numbers(samples):
    return [sample["n"] for sample in samples]


def batches(loader):
    return [batch["n"].tolist() for batch in loader]


def refusal(call):
    with pytest.raises(UsageError) as caught:
        call()
    return str(caught.value), caught.value.hint


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("places") / "d")


@pytest.mark.parametrize("format", ["mds", "json", "ffrecord", "granular", "webdataset"])
@pytest.mark.parametrize("order", ["shuffle", "windows", "sequential"])
def test_a_cursor_is_refused_after_its_dataset_was_replaced(tmp_path, format, order):
    columns = {"n": "bytes"} if format in ("ffrecord", "webdataset") else {"n": "int"}

    def replaced(shift):
        with flare.Writer(
            str(tmp_path / "d"),
            columns=columns,
            format=format,
            overwrite=True,
            settings=Settings(shard_rows=7),
        ) as writer:
            for n in range(ROWS):
                value = n + shift
                writer.write({"n": value if columns["n"] == "int" else b"%03d" % value})
        return flare.open(str(tmp_path / "d"))

    old = replaced(0)
    run = old.run(3, order=order)
    next(run)
    cursor = run.cursor
    assert cursor.checksum == old.checksum and len(old.checksum) == 32
    new = replaced(100)
    message = f"the position was saved with data whose checksum is {old.checksum!r}; this data has checksum {new.checksum!r}"
    assert refusal(lambda: new.run(cursor=cursor)) == (message, OPEN)
    same = replaced(0)
    assert len(list(same.run(cursor=cursor))) == ROWS - 1


def test_a_loader_state_is_refused_after_its_dataset_was_replaced(tmp_path):
    loader = flare.Loader(pack(tmp_path / "d"), 4, seed=3)
    next(iter(loader))
    state = json.loads(json.dumps(loader.save()))
    before = loader.data.checksum
    new = pack(tmp_path / "d", 100, overwrite=True)
    message = f"the position was saved with data whose checksum is {before!r}; this data has checksum {new.checksum!r}"
    assert refusal(lambda: flare.Loader(new, 4).load(state)) == (message, OPEN)
    assert refusal(lambda: new.run(cursor=loader.cursor)) == (message, OPEN)


def test_a_cursor_of_a_mix_is_refused_by_another_mix(tmp_path):
    a, b = pack(tmp_path / "a"), pack(tmp_path / "b", 100)
    mixed = flare.mix({a: 0.5, b: 0.5})
    run = mixed.run(1)
    next(run)
    loader = flare.Loader(mixed, 4)
    loader.load(loader.save())
    assert len(list(flare.mix({a: 0.5, b: 0.5}).run(cursor=run.cursor))) == 2 * ROWS - 1
    other = pack(tmp_path / "b", 200, overwrite=True)
    for changed in (flare.mix({a: 0.5, other: 0.5}), flare.mix({a: 0.6, b: 0.4})):
        assert len(changed) == len(mixed)
        message = f"the position was saved with data whose checksum is {mixed.checksum!r}; this data has checksum {changed.checksum!r}"
        assert refusal(lambda changed=changed: changed.run(cursor=run.cursor)) == (message, OPEN)
        assert refusal(lambda changed=changed: flare.Loader(changed, 4).load(loader.save())) == (
            message,
            OPEN,
        )


def test_the_checksum_covers_selected_rows_but_not_columns_or_address(tmp_path):
    data = pack(tmp_path / "d")
    less, other = data.where("n < 20"), data.where("n >= 20")
    assert len(less) == len(other) and less.checksum != other.checksum
    cursor = less.run(1).cursor
    with pytest.raises(
        UsageError,
        match=r"^the position was saved with data whose checksum is '[0-9a-f]{32}'; this data",
    ):
        other.run(cursor=cursor)
    assert data.select(["n"]).decoded({"n": False}).checksum == data.checksum
    assert pickle.loads(pickle.dumps(data)).checksum == data.checksum
    (tmp_path / "d").rename(tmp_path / "moved")
    assert flare.open(str(tmp_path / "moved")).checksum == data.checksum


def test_lists_without_checksums_differ_by_names_sizes_and_rows(tmp_path):
    for name, shift in (("a", 0), ("b", 1000)):  # numbers with more digits make larger shards
        pack(tmp_path / name, shift, format="json")
        (tmp_path / name / "playlist.yaml").unlink()
        index = json.loads((tmp_path / name / "index.json").read_text())
        for shard in index["shards"]:
            shard["hashes"] = {}
            for file in ("raw_data", "raw_meta"):
                if file in shard:
                    shard[file]["hashes"] = {}
        (tmp_path / name / "index.json").write_text(json.dumps(index))
    a, b = (flare.open(str(tmp_path / name)) for name in "ab")
    assert a.checksum != b.checksum
    shards = sorted(str(path) for path in (tmp_path / "a").glob("*.json") if "shard" in path.name)
    assert shards
    first, second = (flare.open(shard).checksum for shard in shards[:2])
    assert len({a.checksum, first, second}) == 3


def test_a_sequential_run_resumes_after_rows_were_appended(tmp_path):
    old = pack(tmp_path / "a", rows=14)
    run = old.run(order="sequential")
    first = [next(run)["n"] for _ in range(5)]
    pack(tmp_path / "b", 14, rows=10)
    grown = flare.open([str(tmp_path / "a"), str(tmp_path / "b")])
    assert grown.begins_with(old.checksum, 14) and not grown.begins_with(old.checksum, 7)
    assert first + numbers(grown.run(cursor=run.cursor)) == list(range(24))
    swapped = flare.open([str(tmp_path / "b"), str(tmp_path / "a")])
    assert refusal(lambda: swapped.run(cursor=run.cursor)) == (
        "the position was saved with data of 14 rows; this data has 24 rows",
        OPEN,
    )
    shuffled = old.run().cursor
    assert refusal(lambda: grown.run(cursor=shuffled)) == (
        "the position was saved with data of 14 rows; this data has 24 rows",
        OPEN,
    )


def test_a_cursor_of_an_earlier_version_is_refused_with_a_hint_that_accepts_it(data):
    loader = flare.Loader(data, 4, seed=3)
    next(iter(loader))
    state = loader.save()
    checksum = state.pop("checksum")
    hint = 'If the data is unchanged, add its checksum: state | {"checksum": data.checksum}.'
    assert refusal(lambda: flare.Loader(data, 4).load(state)) == (EARLIER, hint)
    flare.Loader(data, 4).load(state | {"checksum": data.checksum})
    old = Cursor(3, 0, 4, "shuffle", rows=ROWS, window=8)
    hint = "If the data has not changed, pass dataclasses.replace(cursor, checksum=data.checksum)."
    assert refusal(lambda: data.run(cursor=old)) == (EARLIER, hint)
    assert len(list(data.run(cursor=dataclasses.replace(old, checksum=checksum)))) == ROWS - 4
    assert len(list(data.run(cursor=Cursor(3, 0, 4, "shuffle")))) == ROWS - 4  # written by hand


def test_a_pickled_cursor_of_an_earlier_version_is_read():
    cursor = Cursor.__new__(Cursor)
    cursor.__setstate__([3, 0, 4, "shuffle", 40, 8])
    assert repr(cursor) == repr(Cursor(3, 0, 4, "shuffle", 40, 8)) and cursor.checksum is None


def test_the_checksum_of_a_listing_is_the_same_in_every_process(tmp_path):
    data = pack(tmp_path / "d")
    code = "import sys, flarecli; print(flarecli.open(sys.argv[1]).checksum)"
    ran = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "d")],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7", "PATH": ""},
    )
    assert ran.stdout.strip() == data.checksum
    stream = data.playlists[0].streams[0]
    rows = np.full(len(stream), 7)
    rows[-1] = 5
    assert listing_checksum([stream], data.columns, rows) != data.checksum  # of the joined streams


def test_only_checksums_that_later_shards_add_are_omitted_from_the_checksum_of_the_first_shards():
    """The checksums of complete lists are those of earlier versions of flare."""

    def checksum(shards, **more):
        stream = Stream(
            "train",
            locate("train"),
            "mds",
            ["a", "b", "c"],
            rows=np.array([1, 2, 3]),
            sizes=np.array([4, 5, 6]),
            hashes={"xxh3_128": ["x", "y", "z"], **more},
        )
        return listing_checksum([stream], (), np.array([1, 2, 3][:shards]))

    assert checksum(3) == "38f0aa9123dc3b774993f13c0921631c"
    assert checksum(3, md5=["", "", ""]) == "22ff88cabd2af03d445d22b96f99717c"
    assert checksum(3, md5=["", "", "m"]) == "03e4f560c0bf98e7098f33a3f2b8a656"
    assert checksum(2) == checksum(2, md5=["", "", "m"]) == "cedb316d8c854ac831b1d6a1331963cb"
    assert checksum(2, md5=["", "", ""]) == "941ddbf8db040e97cbea9c2a7d55162b"


HUGE = st.sampled_from([1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, 1 << 64, 1 << 128, 10**5000])
INTEGERS = st.one_of(st.integers(-3, 60), HUGE, HUGE.map(lambda n: -n))
ANY = st.one_of(
    INTEGERS, st.none(), st.booleans(), st.floats(), st.text(max_size=5), st.lists(st.integers())
)


@settings(deadline=None, max_examples=examples(150))
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "seed",
                "epoch",
                "step",
                "order",
                "window",
                "rows",
                "ranks",
                "skip",
                "checksum",
                "more",
            ]
        ),
        ANY,
        max_size=3,
    )
)
def test_a_loader_refuses_a_state_or_yields_exactly_the_remaining_rows(data, change):
    loader = flare.Loader(data, 4, workers=0)
    before = loader.save()
    state = before | change
    try:
        loader.load(state)
    except FlareError as error:
        assert isinstance(error, UsageError) and len(str(error)) < 200
        assert loader.save() == before
        return
    assert set(state) == set(before)
    assert 0 <= state["step"] <= ROWS and state["skip"] == 0 < state["ranks"]
    expected = numbers(data.run(state["seed"], state["epoch"], state["order"]))[state["step"] :]
    assert [n for batch in batches(loader) for n in batch] == expected


@settings(deadline=None, max_examples=examples(150))
@given(
    st.builds(
        Cursor,
        ANY,
        ANY,
        ANY,
        st.one_of(st.sampled_from(["shuffle", "windows", "sequential"]), ANY),
        st.one_of(st.just(ROWS), ANY),
        ANY,
        ANY,
    ),
    INTEGERS,
    INTEGERS,
)
def test_a_run_refuses_a_cursor_or_yields_exactly_the_remaining_rows(data, cursor, rank, ranks):
    try:
        run = data.run(cursor=cursor, rank=rank, ranks=ranks)
    except FlareError as error:
        assert isinstance(error, UsageError) and len(str(error)) < 200
        return
    assert 0 <= rank < ranks and 0 <= cursor.step <= ROWS and cursor.rows in (None, ROWS)
    window = 8 if cursor.window is None else cursor.window
    whole = numbers(data.run(cursor.seed, cursor.epoch, cursor.order, window=window))
    assert numbers(run) == whole[cursor.step + rank :: ranks]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"skip": 5},
            "the state was saved after 5 samples of one row, but this loader has no transform, so each row is one sample",
        ),
        ({"skip": -1}, "skip: expected at least 0, got -1"),
        ({"ranks": 0}, "ranks: expected at least 1, got 0"),
        ({"epoch": 1 << 63}, f"epoch: expected less than 2^63, got {1 << 63}"),
        ({"checksum": "0" * 32}, "the position was saved with data whose checksum is"),
        ({"checksum": None}, "expected a state that a Loader saved"),
        ({"step": 10**5000}, "expected a state that a Loader saved"),
    ],
)
def test_a_state_with_invalid_values_is_refused_and_changes_nothing(data, change, message):
    loader = flare.Loader(data, 4, seed=4)
    before = loader.save()
    assert refusal(lambda: loader.load(before | change))[0].startswith(message)
    assert loader.save() == before


def two(sample):
    return [sample, sample]


def test_a_state_after_the_last_sample_of_a_row_is_refused(data):
    loader = flare.Loader(data, 3, workers=0, transform=two)
    batch = next(iter(loader))
    state = loader.save()
    assert (state["step"], state["skip"], len(batch["n"])) == (1, 1, 3)
    changed = flare.Loader(data, 3, workers=0, transform=dict)
    changed.load(state)
    message, _ = refusal(lambda: next(iter(changed)))
    row = numbers(data.run())[1]
    assert message == f"the state was saved after 1 samples of row {row}, which now has 1 samples"
    at_end = state | {"step": ROWS}
    assert refusal(lambda: flare.Loader(data, 3, transform=two).load(at_end))[0] == (
        f"the state was saved after 1 samples of one row, but there is no row at step {ROWS}, the end of the epoch"
    )
