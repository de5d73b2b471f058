"""Ranges of rows of an index are slices of all rows."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.ingest import open_index
from tests.properties import examples

ROWS = 57


@pytest.fixture(scope="module")
def addresses(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Write three files of 20, 17 and 20 rows; row groups have 6 rows."""
    folder = tmp_path_factory.mktemp("places")
    table = pa.table({"id": range(ROWS), "text": [f"t{i}" for i in range(ROWS)]})
    pq.write_table(table[:20], folder / "a.parquet", row_group_size=6)
    pyarrow.csv.write_csv(table[20:37], folder / "b.csv")
    pq.write_table(table[37:], folder / "c.parquet", row_group_size=6)
    return [str(folder / name) for name in ("a.parquet", "b.csv", "c.parquet")]


@settings(max_examples=examples(80), deadline=None)
@given(start=st.integers(0, ROWS + 5), stop=st.integers(0, ROWS + 5) | st.none())
def test_rows_from_start_to_stop_are_a_slice_of_all_rows(
    addresses: list[str], start: int, stop: int | None
) -> None:
    index = open_index(addresses)
    batches = list(index.batches(["id"], row="place", start=start, stop=stop))
    ids = [value for batch in batches for value in batch.column("id").to_pylist()]
    places = [value for batch in batches for value in batch.column("place").to_pylist()]
    assert ids == list(range(ROWS))[start:stop]
    assert places == ids


@settings(max_examples=examples(40), deadline=None)
@given(start=st.integers(0, ROWS), stop=st.integers(0, ROWS), least=st.integers(0, ROWS))
def test_a_condition_skips_no_row_that_it_selects(
    addresses: list[str], start: int, stop: int, least: int
) -> None:
    index = open_index(addresses)
    ids = [
        value
        for batch in index.batches(["id"], f"id >= {least}", start=start, stop=stop)
        for value in batch.column("id").to_pylist()
    ]
    assert [one for one in ids if one >= least] == [
        one for one in range(ROWS)[start:stop] if one >= least
    ]


def test_row_groups_outside_are_not_read(addresses: list[str]) -> None:
    damaged = Path(addresses[0]).with_name("damaged.parquet")
    data = bytearray(Path(addresses[0]).read_bytes())
    group = pq.ParquetFile(addresses[0]).metadata.row_group(0)
    start = min(
        group.column(i).dictionary_page_offset or group.column(i).data_page_offset for i in range(2)
    )
    data[start : start + 40] = bytes(40)
    damaged.write_bytes(data)
    index = open_index(str(damaged))
    assert [
        value
        for batch in index.batches(["id"], start=6, stop=9)
        for value in batch.column("id").to_pylist()
    ] == [6, 7, 8]
