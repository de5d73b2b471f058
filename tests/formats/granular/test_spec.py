"""Folders of Granular shards, and their listed or unlisted companions."""

from pathlib import Path

import pyarrow as pa
import pytest

import flarecli
from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError
from flarecli.formats import find
from flarecli.model import Chunk, File, Settings
from flarecli.storage import Guard, Location, locate
from flarecli.storage.memory import MemoryStore

granular = find("granular")

COLUMNS = (column("n", "int"), column("t", "str"))


def some(rows=3, first=0):
    return pa.record_batch(
        {
            "n": pa.array(range(first, first + rows), pa.int64()),
            "t": pa.array([f"row {i}" for i in range(first, first + rows)], pa.large_string()),
        }
    )


def test_a_missing_shard_is_reported(tmp_path):
    to = locate(str(tmp_path))
    for number in (0, 1, 3):
        granular.write_shard(to, number, COLUMNS, [some()], Settings())
    with pytest.raises(FormatError) as caught:
        granular.open_dataset(to)
    assert caught.value.message == "shard 000002 is missing, but 000003 exists"


def test_other_entries_of_a_folder_are_ignored(tmp_path):
    to = locate(str(tmp_path))
    for number in range(11):
        granular.write_shard(to, number, COLUMNS, [some(2, 2 * number)], Settings())
    (tmp_path / ".DS_Store").write_bytes(b"x")
    (tmp_path / "README.md").write_bytes(b"x")
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "spec.json").write_bytes(b"{}")
    stream = granular.open_dataset(to)
    assert list(stream.urls) == [f"{number:06d}/spec.json" for number in range(11)]
    assert stream.rows.tolist() == [2] * 11
    assert [granular.read_rows(granular.open_shard(chunk), [1])[0]["t"] for chunk in stream] == [
        f"row {2 * i + 1}".encode() for i in range(11)
    ]


def test_a_missing_file_of_a_shard_is_reported(tmp_path):
    to = locate(str(tmp_path))
    granular.write_shard(to, 0, COLUMNS, [some()], Settings())
    (tmp_path / "000000" / "t.idx").unlink()
    with pytest.raises(FileNotFoundError) as caught:
        granular.open_dataset(to)
    assert str(caught.value) == f"{tmp_path}/000000/t.idx: no such file or folder"


def test_shards_over_http_are_found_and_read_by_ranges(tmp_path, web):
    to = locate(str(tmp_path))
    for number in (0, 1):
        granular.write_shard(to, number, COLUMNS, [some(4, 4 * number)], Settings())
    for path in tmp_path.rglob("*"):
        if path.is_file():
            web.file(f"/ds/{path.relative_to(tmp_path)}", path.read_bytes())
    stream = granular.open_dataset(locate(web.url("/ds/"), Guard(allow_private=True)))
    assert len(stream) == 2
    shards = [granular.open_shard(chunk, stream.columns) for chunk in stream]
    assert granular.read_rows(shards[1], [3, 0]) == [
        {"n": (7).to_bytes(8, "little"), "t": b"row 7"},
        {"n": (4).to_bytes(8, "little"), "t": b"row 4"},
    ]
    assert granular.read_batch(shards[0], 1, 3).to_pydict() == {
        "n": [1, 2],
        "t": ["row 1", "row 2"],
    }


def test_a_listing_must_contain_all_files_of_a_shard():
    to = Location(MemoryStore())
    chunk = granular.write_shard(to, 0, COLUMNS, [some()], Settings(shard_bytes=None))
    less = Chunk(chunk.at, None, chunk.files[:-1], chunk.format, chunk.companions[:-1])
    with pytest.raises(FormatError) as caught:
        granular.open_shard(less)
    assert str(caught.value) == "spec.json: the playlist does not list the file 't.idx'"
    with pytest.raises(FormatError) as caught:
        granular.open_shard(Chunk(chunk.at, 4, chunk.files, chunk.format, chunk.companions))
    assert str(caught.value) == "spec.json: contains 3 rows; the playlist or index lists 4"
    longer = (*chunk.files[:-1], File("t.idx", 32))
    with pytest.raises(IntegrityError) as caught:
        granular.open_shard(Chunk(chunk.at, None, longer, chunk.format, chunk.companions))
    assert str(caught.value) == "t.idx: file is 24 bytes; the listed size is 32"


def test_verify_decodes_every_value_of_a_list():
    fixture = (
        Path(__file__).parents[3] / "fixtures" / "granular" / "old" / "sequences" / "data" / "ds"
    )
    assert list(flarecli.verify(str(fixture), decode=True)) == []
