"""Tables: streams joined row by row, and row specifications."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import playlists, read
from flarecli.errors import RowsError, UsageError
from flarecli.model import Playlist
from flarecli.storage import locate
from tests.read.packed import ROWS, pack


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
        "stream 'labels' has 2 rows, but 'images' has 3",
        "Choose the streams to read with --stream.",
    )
    with pytest.raises(UsageError, match="^.*set.yaml: no stream 'masks'(?m:$)"):
        read.open(address, streams=["masks"])


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
