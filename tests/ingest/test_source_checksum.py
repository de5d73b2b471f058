"""The checksum of source files up to the last row that was read, compared with xxhash over their
bytes.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.ingest import SourceChecksum, open_index
from flarecli.storage import locate
from tests.properties import examples

CONTENTS = [bytes(range(256)) * 5, b"", b"last" * 100]
ALL = b"".join(CONTENTS)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    for number, data in enumerate(CONTENTS):
        (folder / f"{number}.bin").write_bytes(data)
    return [locate(f"{folder}/{number}.bin") for number in range(len(CONTENTS))]


def checksum_of(data):
    return xxhash.xxh3_128_hexdigest(data)


def test_the_state_covers_all_bytes_up_to_the_last_row(files):
    checksum = SourceChecksum(files, "")
    assert checksum.state() == [0, checksum_of(b"")]
    checksum.advance(0, 300)
    checksum.advance(0, 100)
    assert checksum.state() == [300, checksum_of(ALL[:300])]
    checksum.advance(2, 8)
    assert checksum.state() == [len(CONTENTS[0]) + 8, checksum_of(CONTENTS[0] + b"lastlast")]
    assert checksum.total() == checksum_of(ALL)


def test_bytes_that_were_appended_to_a_file_are_not_part_of_the_next_one(files):
    checksum = SourceChecksum(files, "")
    checksum.advance(0, len(CONTENTS[0]) + 50)
    assert checksum.state() == [len(CONTENTS[0]), checksum_of(CONTENTS[0])]


def test_only_a_state_of_the_same_bytes_matches(files):
    state = [1300, checksum_of(ALL[:1300])]
    assert SourceChecksum(files, "").matches(state)
    assert SourceChecksum(files, "").matches([0, checksum_of(b"")])
    for invalid in (
        None,
        [],
        [1299, state[1]],
        [len(ALL) + 1, state[1]],
        [-1, state[1]],
        ["1300", state[1]],
        [1300, None],
        [1300],
        {"a": 1},
    ):
        assert not SourceChecksum(files, "").matches(invalid)
    resumed = SourceChecksum(files, "")
    assert resumed.matches(state)
    resumed.advance(0, 20)
    assert resumed.state() == state
    assert resumed.total() == checksum_of(ALL)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1500)), max_size=12))
def test_any_order_of_reads_gives_the_checksum_of_a_prefix(files, reads):
    checksum, starts, end = SourceChecksum(files, ""), [0, 1280, 1280], 0
    for number, stop in reads:
        checksum.advance(number, stop)
        end = max(end, starts[number] + min(stop, len(CONTENTS[number])))
        assert checksum.state() == [end, checksum_of(ALL[:end])]


@pytest.mark.parametrize("columns", [["id"], ["text"], None])
def test_the_state_covers_the_row_groups_of_all_rows_that_were_read(tmp_path, columns):
    table = pa.table({"id": range(100), "text": [f"text {n}" for n in range(100)]})
    names = [str(tmp_path / f"{number}.parquet") for number in range(2)]
    for name in names:
        pq.write_table(table, name, row_group_size=30)
    data = b"".join(Path(name).read_bytes() for name in names)
    index = open_index(names)
    checksum = index.source_checksum()
    rows = 0
    for batch in index.batches(columns, checksum=checksum):
        rows += batch.num_rows
        size, digest = checksum.state()
        assert digest == checksum_of(data[:size])
        number, row = divmod(rows - 1, 100)
        group = pq.ParquetFile(names[number]).metadata.row_group(row // 30)
        stops = [
            (column.dictionary_page_offset or column.data_page_offset)
            + column.total_compressed_size
            for column in (group.column(i) for i in range(2))
        ]
        assert size >= number * (len(data) // 2) + max(stops)
    assert rows == 200
    assert checksum.total() == index.sum() == checksum_of(data)


def test_only_local_parquet_files_have_a_checksum_to_update(tmp_path):
    (tmp_path / "x.csv").write_text("n\n1\n")
    assert open_index(str(tmp_path / "x.csv")).source_checksum() is None
