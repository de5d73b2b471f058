"""Datasets: rows by position, batches, several sources, joined streams, and resolution of
addresses.
"""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import playlists, read
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    RowsError,
    UnfinishedError,
    UnsafeError,
    UsageError,
)
from flarecli.model import Playlist, Settings
from flarecli.storage import Location, locate
from flarecli.write import Writer

GOLDEN = Path(__file__).parents[2] / "fixtures" / "mds"


def pack(path, rows, columns=None, shard_bytes=2000):
    with Writer(
        str(path),
        columns=columns or {"n": "int", "t": "str"},
        settings=Settings(shard_bytes=shard_bytes),
    ) as writer:
        for row in rows:
            writer.write(row)
    return str(path)


ROWS = [{"n": i, "t": "x" * (i % 40)} for i in range(200)]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    return pack(tmp_path_factory.mktemp("d") / "out", ROWS)


@pytest.mark.parametrize("maps", [True, False])
def test_rows_by_position(out, maps):
    data = read.open(out, maps=maps)
    assert len(data) == 200
    assert data[7] == ROWS[7]
    assert data[-1] == ROWS[-1]
    assert data[np.int64(3)] == ROWS[3]
    assert data[190:] == ROWS[190:]
    assert data[::-50] == ROWS[::-50]
    assert data[[150, 3, 3, -2]] == [ROWS[150], ROWS[3], ROWS[3], ROWS[-2]]
    assert data[[]] == []
    assert list(data) == ROWS
    assert data.rows([150, 3], ["t"]) == [
        {"t": ROWS[150]["t"].encode()},
        {"t": ROWS[3]["t"].encode()},
    ]


@pytest.mark.parametrize("row", [200, -201])
def test_rows_outside_the_data_are_an_index_error(out, row):
    with pytest.raises(IndexError) as caught:
        read.open(out)[row]
    assert str(caught.value) == f"row {row} is outside the data, which has 200 rows"
    assert isinstance(caught.value, RowsError)


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        (1.0, "expected a list of row numbers, got float"),
        (None, "expected a list of row numbers, got NoneType"),
        (np.array(1.5), "expected row numbers, got values of type float64"),
        (np.True_, "expected row numbers, got values of type bool"),
        ([True], "expected row numbers, got values of type bool"),
        ([True, False], "expected row numbers, got values of type bool"),
        ([[7, 3], [1, 2]], "expected a list of row numbers, got list"),
        ([[7, 3], [1]], "expected a list of row numbers, got list"),
        (
            np.array([2**64 - 1], np.uint64),
            "row 18446744073709551615 is above the limit of 2^63 - 1",
        ),
        (np.array([3, 2**63], np.uint64), "row 9223372036854775808 is above the limit of 2^63 - 1"),
    ],
)
def test_invalid_row_numbers_are_refused(out, wanted, message):
    with pytest.raises(UsageError) as caught:
        read.open(out)[wanted]
    assert str(caught.value) == message


def test_a_numpy_integer_selects_one_row(out):
    data = read.open(out)
    assert data[np.array(3)] == ROWS[3]
    assert data[np.array([3], np.uint64)] == [ROWS[3]]
    assert data[range(3, 400)[:2]] == ROWS[3:5]
    assert data[5:1] == data[np.zeros(0)] == []


@pytest.mark.parametrize(
    ("start", "stop", "size", "message"),
    [
        (-1, None, 8, "start: expected at least 0, got -1"),
        (0, -1, 8, "stop: expected at least 0, got -1"),
        (0, None, 0, "size: expected at least 1, got 0"),
    ],
)
def test_batches_of_invalid_ranges_are_refused(out, start, stop, size, message):
    data = read.open(out)
    for read_batches in (
        lambda: data.scan(None, start, stop, size),
        lambda: data.batches(size, None, start, stop),
    ):
        with pytest.raises(UsageError) as caught:
            read_batches()
        assert str(caught.value) == message


def test_a_condition_can_use_any_column(tmp_path):
    name = "row number"
    data = read.open(pack(tmp_path / "d", [{name: 9 - i} for i in range(10)], {name: "int"}))
    assert [row[name] for row in data.where(f'"{name}" > 6')] == [9, 8, 7]


def test_an_unknown_column_is_an_error_that_lists_the_columns(out):
    with pytest.raises(UsageError) as caught:
        read.open(out).rows([0], ["x"])
    assert (str(caught.value), caught.value.hint) == ("no column 'x'", "Choose from n, t.")


@pytest.mark.parametrize("size", [1, 7, 64, 1000])
def test_batches_have_the_given_size_and_all_rows_in_order(out, size):
    batches = list(read.open(out).batches(size))
    assert [batch.num_rows for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert [row for batch in batches for row in batch.to_pylist()] == ROWS
    assert [
        row["n"]
        for batch in read.open(out).batches(size, ["n"], 13, 57)
        for row in batch.to_pylist()
    ] == list(range(13, 57))


def test_a_batch_of_take_equals_the_rows(out):
    batch = read.open(out).take([9, 0, 199], ["t", "n"])
    assert batch.schema.names == ["t", "n"]
    assert batch.to_pylist() == [{"t": ROWS[i]["t"], "n": i} for i in (9, 0, 199)]


def test_datasets_can_be_pickled(out):
    data = read.open(out)
    data[0]
    assert pickle.loads(pickle.dumps(data))[5] == ROWS[5]


def test_several_sources_are_concatenated(out, tmp_path):
    more = pack(tmp_path / "more", ROWS[:10])
    data = read.open([out, f"{more}/playlist.yaml"])
    assert len(data) == 210
    assert data[[205, 5]] == [ROWS[5], ROWS[5]]
    shards = read.open(f"{out}/shard.0000[01].mds")
    assert list(shards) == ROWS[: len(shards)]
    assert len(read.open(out + "/shard.{00000..00001}.mds")) == len(shards)


def test_sources_with_other_columns_are_refused(out, tmp_path):
    other = pack(tmp_path / "other", [{"z": 1}], {"z": "int"})
    with pytest.raises(UsageError) as caught:
        read.open([out, other])
    assert (
        str(caught.value)
        == f"{other}: the columns of stream 'data' differ from those of the previous stream"
    )
    assert (
        caught.value.hint
        == "Read the streams separately, or pack them again with the same columns."
    )


def joined(tmp_path, left, right):
    streams = []
    for name, rows, columns in (("images", left, {"n": "int"}), ("labels", right, {"t": "str"})):
        (stream,) = read.resolve(pack(tmp_path / name, rows, columns, 700))[0].streams
        streams.append(
            type(stream)(
                name,
                stream.at,
                stream.format,
                [f"{name}/{url}" for url in stream.urls],
                stream.columns,
                stream.rows,
                stream.sizes,
            )
        )
    playlists.write(locate(str(tmp_path)) / "set.yaml", Playlist(tuple(streams)))
    return f"{tmp_path}/set.yaml"


def test_streams_of_equal_length_join_by_column(tmp_path):
    address = joined(tmp_path, [{"n": r["n"]} for r in ROWS], [{"t": r["t"]} for r in ROWS])
    data = read.open(address)
    assert [column.name for column in data.columns] == ["n", "t"]
    assert data[[199, 4]] == [ROWS[199], ROWS[4]]
    assert [row for batch in data.batches(33) for row in batch.to_pylist()] == ROWS
    assert read.open(address, streams=["labels"])[3] == {"t": ROWS[3]["t"]}


def test_streams_of_other_lengths_do_not_join(tmp_path):
    address = joined(tmp_path, [{"n": 1}] * 3, [{"t": ""}] * 2)
    with pytest.raises(UsageError) as caught:
        read.open(address)
    assert (str(caught.value), caught.value.hint) == (
        "stream 'labels' has 2 rows, 'images' has 3",
        "Choose the streams to read with --stream.",
    )
    with pytest.raises(UsageError, match="^.*set.yaml: no stream 'masks'$"):
        read.open(address, streams=["masks"])


# -- resolution


def test_a_damaged_playlist_is_an_error_even_with_a_valid_index(out, tmp_path):
    shutil.copytree(out, tmp_path / "d")
    (tmp_path / "d" / "playlist.yaml").write_text("data: [\n")
    with pytest.raises(FormatError) as caught:
        read.open(str(tmp_path / "d"))
    assert (
        str(caught.value)
        == f"{tmp_path}/d/playlist.yaml:2:1: not valid YAML: did not find expected node content"
    )


def test_an_index_is_read_without_a_playlist(out, tmp_path):
    shutil.copytree(out, tmp_path / "d")
    (tmp_path / "d" / "playlist.yaml").unlink()
    assert list(read.open(str(tmp_path / "d"))) == ROWS
    assert list(read.open(str(tmp_path / "d" / "index.json"))) == ROWS


def test_shards_without_an_index_are_not_read_as_plain_files(out, tmp_path):
    shutil.copytree(out, tmp_path / "d")
    for name in ("playlist.yaml", "index.json"):
        (tmp_path / "d" / name).unlink()
    with pytest.raises(FormatError, match=r"/d: found \d+ shards, but no index.json$"):
        read.open(str(tmp_path / "d"))
    with pytest.raises(FormatError) as caught:
        read.open(str(GOLDEN / "splits_mds" / "data"))
    assert caught.value.hint.startswith("Pass one of the datasets in it: ")


@pytest.mark.parametrize("name", ["journal", "lock"])
def test_an_unfinished_pack_is_refused(out, tmp_path, name):
    shutil.copytree(out, tmp_path / "d")
    (tmp_path / "d" / ".flare").mkdir()
    (tmp_path / "d" / ".flare" / name).write_text("{}\n")
    for address in ("d", "d/playlist.yaml"):
        with pytest.raises(UnfinishedError):
            read.open(str(tmp_path / address))


def test_a_pack_killed_before_its_first_journal_entry_is_not_read_as_a_folder_of_files(tmp_path):
    (tmp_path / "d" / ".flare").mkdir(parents=True)
    with pytest.raises(MissingError):
        read.open(str(tmp_path / "d"))
    (tmp_path / "d" / ".flare" / "lock").write_text("{}")
    with pytest.raises(UnfinishedError):
        read.open(str(tmp_path / "d"))


@pytest.mark.parametrize("address", ["nowhere", "nowhere/x.mds", "nowhere/playlist.yaml", "*.mds"])
def test_a_missing_address_is_an_error(tmp_path, address):
    with pytest.raises(MissingError) as caught:
        read.open(str(tmp_path / address))
    assert caught.value.exit_code == 3


def test_a_playlist_with_paths_outside_its_folder_is_refused_unless_allowed(out, tmp_path):
    (stream,) = read.resolve(out)[0].streams
    (tmp_path / "sub").mkdir()
    away = type(stream)(
        "data",
        stream.at,
        "mds",
        [f"{out}/{url}" for url in stream.urls],
        stream.columns,
        stream.rows,
        stream.sizes,
    )
    playlists.write(locate(str(tmp_path / "sub")) / "p.yaml", Playlist((away,)))
    with pytest.raises(UnsafeError) as caught:
        read.open(str(tmp_path / "sub" / "p.yaml"))[0]
    assert caught.value.exit_code == 5
    assert caught.value.hint == "Give --allow-local to read it, if you trust this dataset."
    assert read.open(str(tmp_path / "sub" / "p.yaml"), allow_local=True)[7] == ROWS[7]


def test_braces_and_globs_expand_in_order(tmp_path):
    for name in ("b", "a", "B", "é"):
        (tmp_path / f"{name}.x").write_text("")
    assert [p.rpartition("/")[2] for p in read.expand(f"{tmp_path}/*.x")] == [
        "B.x",
        "a.x",
        "b.x",
        "é.x",
    ]
    assert read.expand("s-{08..11}-{a,b}") == [
        f"s-{n}-{c}" for n in ("08", "09", "10", "11") for c in "ab"
    ]
    assert read.expand("x{3..1}") == ["x3", "x2", "x1"]
    assert read.expand("plain{}") == ["plain{}"]
    with pytest.raises(UsageError, match="expands to more than 1048576 addresses$"):
        read.expand("{0..99999999999}")


# -- row specifications


@given(
    st.integers(1, 50), st.integers(-60, 60), st.integers(-60, 60), st.sampled_from([1, 2, 7, -1])
)
def test_row_specifications_equal_slices(rows, start, stop, step):
    assert [i for part in read.parse_rows(f"{start}:{stop}:{step}", rows) for i in part] == list(
        range(rows)
    )[start:stop:step]
    assert [i for part in read.parse_rows(f":,{-1}, {rows - 1}:", rows) for i in part] == [
        *range(rows),
        rows - 1,
        rows - 1,
    ]


@pytest.mark.parametrize("spec", ["", "x", "1:2:3:4", "1,,2", "::0", "1.5"])
def test_invalid_row_specifications_are_refused(spec):
    with pytest.raises(UsageError):
        read.parse_rows(spec, 10)


@pytest.mark.parametrize(("row", "rows"), [(0, 0), (5, 5), (-6, 5), (-1, 0)])
def test_a_single_row_outside_the_data_is_refused(row, rows):
    with pytest.raises(RowsError, match=f"^row {row} is outside the data, which has {rows} rows$"):
        read.parse_rows(f"0:,{row}", rows)
    assert rows == 0 or [one[0] for one in read.parse_rows(f"{rows - 1},{-rows}", rows)] == [
        rows - 1,
        0,
    ]


@given(st.integers(1, 3000), st.integers(0, 1 << 70), st.integers(0, 100))
def test_a_shuffle_is_a_permutation(rows, seed, epoch):
    assert sorted(read.positions(np.arange(rows), rows, seed, epoch).tolist()) == list(range(rows))


def test_a_shuffle_depends_on_seed_and_epoch_and_stores_no_table():
    steps = np.arange(1000)
    one = read.positions(steps, 10**12, 1)
    assert (one == read.positions(steps[::-1], 10**12, 1)[::-1]).all()
    assert (
        len(
            {
                tuple(read.positions(steps, 10**12, seed, epoch))
                for seed in (1, 2)
                for epoch in (0, 1)
            }
        )
        == 4
    )
    assert abs(one.mean() / 10**12 - 0.5) < 0.05
    with pytest.raises(RowsError, match="^step outside 0 to 9$"):
        read.positions(np.array([10]), 10, 0)


@given(st.binary(max_size=64))
def test_any_file_is_a_dataset_or_an_error(data):
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "x.mds").write_bytes(data)
        try:
            read.open(f"{folder}/x.mds")
        except FlareError:
            pass


def test_locations_of_a_dataset_are_below_it(out):
    (stream,) = read.resolve(out)[0].streams
    assert all(isinstance(chunk.at, Location) and str(chunk.at).startswith(out) for chunk in stream)


def test_a_batch_over_several_shards_is_in_the_requested_order(tmp_path):
    data = read.open(
        pack(tmp_path / "out", [{"n": n, "t": str(n) * 5} for n in range(200)], shard_bytes=3000)
    )
    assert len(data.edges) > 2
    for count in (1, 5, 64, 200):
        rows = np.random.default_rng(count).integers(-200, 200, count)
        batch = data.collated(rows)
        assert batch["n"].tolist() == (rows % 200).tolist()
        assert batch["t"] == [str(n) * 5 for n in rows % 200]
        assert data.select(["t"]).collated(rows) == {"t": batch["t"]}
        assert (
            data.where("n % 2 = 0").collated(rows // 2)["n"].tolist()
            == (rows // 2 % 100 * 2).tolist()
        )


def test_thousands_of_streams_differ_by_the_names_of_their_shards(tmp_path):
    (tmp_path / "playlist.yaml").write_text(
        "".join(f"s{i}:\n  content: [{i}.{'mds' if i % 2 else 'ffr'}]\n" for i in range(3000))
    )
    (found,) = read.resolve(str(tmp_path))
    assert [stream.format for stream in found][:3] == ["ffrecord", "mds", "ffrecord"]
    (tmp_path / "playlist.yaml").write_text("a:\n  content: [a.mds]\nb:\n  content: [b.txt]\n")
    with pytest.raises(FormatError, match="stream 'b' lists no format$"):
        read.resolve(str(tmp_path))


def test_the_listed_bytes_of_a_chunk_are_those_of_its_own_list(tmp_path, monkeypatch):
    rows = [{"n": i, "t": "x" * i} for i in range(20)]
    with Writer(
        str(tmp_path / "d"),
        format="granular",
        columns={"n": "int", "t": "str"},
        settings=Settings(shard_rows=5),
    ) as writer:
        for row in rows:
            writer.write(row)
    data = read.open(str(tmp_path / "d"))
    series, wanted = data._table.series[0], data.playlists[0].streams[0].stored.tolist()
    monkeypatch.setattr(
        "flarecli.model.Stream.stored",
        property(lambda self: pytest.fail("all chunks were added up")),
    )
    assert [series.weight(i) for i in range(4)] == wanted
    assert data.shards.weight(4, 6) == sum(wanted[:2])
