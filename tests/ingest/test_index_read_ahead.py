"""Remote index files: read ahead, returned in order, with errors in order; little is read after an
early end.
"""

import threading
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli.errors import FormatError
from flarecli.ingest import open_index
from flarecli.ingest.index import MAX_CHUNK_BYTES, READ_AHEAD_FILES, NumberedBatch, read_ahead


def batch(number, size=1):
    return NumberedBatch(0, pa.record_batch({"n": pa.array([number] * size)}))


def numbers(turns):
    return [[one.column(0)[0].as_py() for _, one in found] for found in turns]


def test_files_are_returned_in_order_whichever_is_read_first():
    def slow(number):
        for i in range(5):
            time.sleep(0.002 * (7 - number))
            yield batch(10 * number + i)

    assert numbers(read_ahead(slow(n) for n in range(7))) == [
        [10 * n + i for i in range(5)] for n in range(7)
    ]
    assert numbers(read_ahead([])) == []


def test_the_next_files_are_read_while_one_is_processed():
    together = threading.Barrier(
        READ_AHEAD_FILES
    )  # all reads wait for each other, so sequential reads would never end

    def waits(number):
        if number < READ_AHEAD_FILES:
            yield batch(number)
            together.wait(60)
        yield batch(number)

    assert numbers(read_ahead(waits(n) for n in range(9))) == [
        [n, n] if n < READ_AHEAD_FILES else [n] for n in range(9)
    ]


def test_an_error_is_raised_after_the_rows_before_it():
    def breaks(number):
        yield batch(number)
        if number == 1:
            raise FormatError("cut", where="b")

    taken = []
    with pytest.raises(FormatError, match="^b: cut$"):
        for found in read_ahead(breaks(n) for n in range(3)):
            taken += [one.column(0)[0].as_py() for _, one in found]
    assert taken == [0]
    found = read_ahead(breaks(n) for n in range(3))
    assert numbers([next(found)]) == [[0]]
    second = next(found)
    assert next(second)[1].column(0)[0].as_py() == 1


def test_a_reader_of_one_batch_causes_no_further_reads(monkeypatch):
    read = []

    def endless(number):
        while True:
            read.append(number)
            yield batch(number, 1 << 17)

    turns = read_ahead(endless(n) for n in range(5))
    first = next(turns)
    next(first)
    time.sleep(0.05)
    assert read == [0]
    next(first)
    next(first)
    deadline = time.monotonic() + 60
    while set(read) != set(range(READ_AHEAD_FILES)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert set(read) == set(range(READ_AHEAD_FILES))
    time.sleep(0.1)
    count = len(read)
    assert count * (1 << 20) < 3 * READ_AHEAD_FILES * MAX_CHUNK_BYTES
    turns.close()
    time.sleep(0.05)
    assert len(read) <= count + READ_AHEAD_FILES


def test_a_remote_index_has_the_same_rows_as_a_local_one(web, tmp_path):
    names, urls = [], []
    for number in range(6):
        table = pa.table(
            {"id": range(1000 * number, 1000 * number + 900), "text": [f"t{i}" for i in range(900)]}
        )
        names.append(str(tmp_path / f"{number}.parquet"))
        pq.write_table(table, names[-1], row_group_size=100)
        urls.append(web.file(f"/{number}.parquet", Path(names[-1]).read_bytes(), f'"{number}"'))
    here = pa.Table.from_batches(open_index(names).batches(row="place"))
    index = open_index(urls)
    assert pa.Table.from_batches(index.batches(row="place")) == here
    some = pa.Table.from_batches(index.batches(["id"], "id >= 2850 AND id < 4010", "place"))
    assert some.num_rows == 1100  # pages of 12 of 54 row groups
    for id, place in zip(
        some.column("id").to_pylist(), some.column("place").to_pylist(), strict=True
    ):
        assert index.place(place) == (urls[id // 1000], id % 1000)
