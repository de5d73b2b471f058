"""Granular: files of three generations of the original, and written files that are read again."""

import hashlib
import json
import pickle
from pathlib import Path

import pyarrow as pa
import pytest

from flarecli.encodings import column, lookup, stored
from flarecli.errors import IntegrityError, UsageError, ValueFitError
from flarecli.formats import find
from flarecli.model import Chunk, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

granular = find("granular")
granular_refs = find("granular-refs")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "granular"
ALL = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.glob("*/*/meta.json"))
WRITTEN = {"new": granular, "old": granular_refs}


def meta(name):
    return json.loads((GOLDEN / name / "meta.json").read_text())


def expected(name):
    return [
        json.loads(line) for line in (GOLDEN / name / "expected.jsonl").read_text().splitlines()
    ]


def dataset(name, maps=True):
    folder = locate(str(GOLDEN / name / "data" / ("" if meta(name)["kind"] == "bag" else "ds")))
    return granular.open_dataset(folder if maps else folder.unmapped())


def summed(value):
    if isinstance(value, list):
        return [summed(one) for one in value]
    assert isinstance(value, bytes)
    return hashlib.sha256(value).hexdigest()


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_datasets_of_the_original_are_read(name, maps):
    stream = dataset(name, maps)
    rows = []
    for chunk in stream:
        shard = granular.open_shard(chunk, stream.columns)
        rows += granular.read_rows(shard, range(shard.rows))
        assert list(granular.verify_shard(shard, values=True)) == []
    assert [{key: summed(value) for key, value in row.items()} for row in rows] == [
        {key: field["sha256"] for key, field in one["fields"].items()} for one in expected(name)
    ]


@pytest.mark.parametrize("name", ALL)
def test_companions_of_a_single_shard_are_found(name):
    for chunk in dataset(name):
        alone = granular.open_shard(Chunk(chunk.at))
        assert alone.columns == granular.open_shard(chunk).columns
        assert [at.name for at in alone.chunk.companions] == [at.name for at in chunk.companions]
        assert granular.read_rows(alone, range(alone.rows)) == granular.read_rows(
            granular.open_shard(chunk), range(alone.rows)
        )


def bytes_of(array, encoding):
    if encoding.endswith("[]"):
        return [stored(pa.array(one.values), lookup(encoding[:-2])).to_pylist() for one in array]
    return stored(array, lookup(encoding)).to_pylist()


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_batches_contain_the_same_records_as_rows(name, maps):
    for chunk in dataset(name, maps):
        shard = granular.open_shard(chunk)
        rows = granular.read_rows(shard, range(shard.rows))
        for start, stop in {(0, shard.rows), (shard.rows // 3, shard.rows // 2)}:
            batch = granular.read_batch(shard, start, stop)
            batch.validate(full=True)
            assert batch.num_rows == stop - start
            assert batch.schema.names == [one.name for one in shard.columns]
            for one in shard.columns:
                if name.startswith("v1") and one.encoding.startswith("varint"):
                    continue  # the original stores 0 as no bytes, flare as one byte
                assert bytes_of(batch.column(one.name), one.encoding) == [
                    row[one.name] for row in rows[start:stop]
                ]


@pytest.mark.parametrize("name", ["old/sequences", "v1/sequences"])
def test_a_range_of_a_list_equals_a_slice(name):
    (chunk,) = dataset(name)
    shard = granular.open_shard(chunk)
    rows = granular.read_rows(shard, range(shard.rows))
    for start, stop in ((0, 1), (1, 3), (0, 0), (2, 1000), (900, 1000)):
        ranges = {one.name: (start, stop) for one in shard.columns if one.encoding.endswith("[]")}
        found = granular.read_rows(shard, range(shard.rows), ranges=ranges)
        assert found == [
            {key: value[start:stop] if key in ranges else value for key, value in row.items()}
            for row in rows
        ]


def test_a_range_of_a_column_without_lists_is_refused():
    (chunk,) = dataset("old/sequences")
    shard = granular.open_shard(chunk)
    for ranges, message in (
        ({"title": (0, 1)}, "column 'title' is not a list; only lists support ranges"),
        ({"words": (3, 2)}, "invalid range 3:2 for column 'words'"),
        ({"words": (-1, 2)}, "invalid range -1:2 for column 'words'"),
    ):
        with pytest.raises(UsageError) as caught:
            granular.read_rows(shard, [0], ranges=ranges)
        assert caught.value.message == message


def test_a_range_of_a_list_costs_one_read_of_its_records():
    (chunk,) = dataset("old/sequences", maps=False)
    shard = granular.open_shard(chunk)
    rows = granular.read_rows(shard, range(shard.rows))
    row = max(range(shard.rows), key=lambda i: len(rows[i]["words"]))
    reads = []
    at = next(at for at in shard.chunk.companions if at.name == "words.bag")
    read_many = at.store.read_many
    at.store.read_many = lambda path, ranges: (
        [reads.append((path, *one)) for one in ranges] and read_many(path, ranges)
    )
    assert granular.read_rows(shard, [row], ["words"], {"words": (1, 3)}) == [
        {"words": rows[row]["words"][1:3]}
    ]
    size = sum(map(len, rows[row]["words"][1:3]))
    assert [stop - start for path, start, stop in reads if path == "words.bag"] == [size]


def test_rows_and_columns_have_the_requested_order():
    for name in ("new/rows300", "old/rows300"):
        (chunk,) = dataset(name)
        shard = granular.open_shard(chunk)
        rows = granular.read_rows(shard, range(300))
        assert granular.read_rows(shard, [299, 0, 7, 7], ["s", "n"]) == [
            {"s": rows[i]["s"], "n": rows[i]["n"]} for i in (299, 0, 7, 7)
        ]
        assert list(granular.read_rows(shard, [3], ["s", "n"])[0]) == ["s", "n"]
        assert granular.read_batch(shard, 5, 9, ["s"]).schema.names == ["s"]
        assert granular.read_batch(shard, 5, 9, []).num_rows == 4
        assert granular.read_rows(shard, [1, 2], []) == [{}, {}]


def test_unused_records_are_skipped():
    (chunk,) = dataset("old/orphan")
    shard = granular.open_shard(chunk)
    assert len(shard.layout["a"]) - 1 == 3
    assert granular.read_batch(shard, 0, 2).column("a").to_pylist() == [
        row["a"].decode() for row in granular.read_rows(shard, [0, 1])
    ]


def test_a_pickled_shard_can_be_read():
    for name in ("new/rows300", "old/sequences", "old/bag_many_v1"):
        (chunk,) = dataset(name)
        shard = granular.open_shard(chunk)
        again = pickle.loads(pickle.dumps(shard))
        assert again.columns == shard.columns
        assert granular.read_rows(again, range(shard.rows)) == granular.read_rows(
            shard, range(shard.rows)
        )
        assert granular.read_batch(again, 1, 4).equals(granular.read_batch(shard, 1, 4))


def test_listed_encodings_are_used_if_they_fit_the_spec():
    (chunk,) = dataset("new/rows300")
    listed = (column("n", "uint64"), column("s", "json"))
    assert granular.open_shard(chunk, listed).columns == listed
    for wrong in (
        (column("n", "uint64"),),
        (column("n", "uint64"), column("t", "str")),
        (column("n", "int"), column("s", "str")),
    ):
        with pytest.raises(IntegrityError) as caught:
            granular.open_shard(chunk, wrong)
        assert caught.value.message == (
            "the columns differ from the columns in the playlist or in the first shard"
        )
    (chunk,) = dataset("old/bag_many_v2")
    assert granular.open_shard(chunk, (column("picture", "jpeg"),)).columns == (
        column("picture", "jpeg"),
    )


# -- writing


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ALL
        if name.split("/")[0] in WRITTEN
        and meta(name)["kind"] != "bag"
        and not name.endswith("orphan")
    ],
)
def test_rewritten_shards_have_the_bytes_of_the_original(name):
    form, source = WRITTEN[name.split("/")[0]], GOLDEN / name / "data" / "ds"
    settings = (
        Settings(shard_bytes=1 << 26)
        if meta(name)["kind"] == "sharded"
        else Settings(shard_bytes=None)
    )
    to, columns = Location(MemoryStore()), ()
    for number, chunk in enumerate(dataset(name)):
        shard = granular.open_shard(chunk)
        columns = form.arrange(shard.columns)
        assert columns == shard.columns
        batches = [
            granular.read_batch(shard, 0, shard.rows // 2),
            granular.read_batch(shard, shard.rows // 2, shard.rows),
        ]
        written = form.write_shard(to, number, columns, batches, settings)
        assert written.rows == shard.rows
        assert [file.name for file in written.files] == [file.name for file in chunk.files]
        assert {file.name: file.size for file in written.files} == {
            file.name: len(to.store.files[file.name]) for file in written.files
        }
    assert form.write_index(to, [], columns, settings) == {}
    there = {
        str(path.relative_to(source)): path.read_bytes()
        for path in source.rglob("*")
        if path.is_file()
    }
    assert {path: bytes(data) for path, data in to.store.files.items()} == there


COLUMNS = (column("n", "int"), column("t", "str"))


def some(rows=3, first=0):
    return pa.record_batch(
        {
            "n": pa.array(range(first, first + rows), pa.int64()),
            "t": pa.array([f"row {i}" for i in range(first, first + rows)], pa.large_string()),
        }
    )


@pytest.mark.parametrize("form", [granular, granular_refs])
def test_the_spec_is_written_last(form):
    class Store(MemoryStore):
        def write(self, path, *rest):
            order.append(path)
            return super().write(path, *rest)

    order = []
    form.write_shard(Location(Store()), 2, COLUMNS, [some()], Settings())
    assert order[-1] == "000002/spec.json"
    assert len(order) == len(set(order)) > 3


@pytest.mark.parametrize("form", [granular, granular_refs])
def test_an_empty_shard_is_written_and_read(form):
    to = Location(MemoryStore())
    shard = form.open_shard(form.write_shard(to, 0, COLUMNS, [], Settings(shard_bytes=None)))
    assert shard.rows == 0
    assert form.read_batch(shard, 0, 0).schema.names == ["n", "t"]
    assert form.read_rows(shard, []) == []


def test_an_empty_record_is_refused_by_granular_refs():
    batches = [
        some(),
        pa.record_batch(
            {"n": pa.array([3, 4], pa.int64()), "t": pa.array(["x", ""], pa.large_string())}
        ),
    ]
    to = Location(MemoryStore())
    with pytest.raises(ValueFitError) as caught:
        granular_refs.write_shard(to, 0, COLUMNS, batches, Settings())
    assert (
        str(caught.value)
        == "row 4: column 't' has an empty record, which granular-refs cannot store"
    )
    assert to.store.files == {}
    with pytest.raises(ValueFitError) as caught:
        granular_refs.row_sizes(COLUMNS, batches[1], Settings())
    assert (
        str(caught.value)
        == "row 1: column 't' has an empty record, which granular-refs cannot store"
    )
    words = pa.record_batch(
        {"w": pa.array([["a"], [], ["b", ""]], pa.large_list(pa.large_string()))}
    )
    with pytest.raises(ValueFitError) as caught:
        granular_refs.write_shard(to, 0, (column("w", "str[]"),), [words], Settings())
    assert (
        str(caught.value)
        == "row 2: column 'w' has an empty record, which granular-refs cannot store"
    )
    shard = granular.open_shard(granular.write_shard(to, 0, COLUMNS, batches, Settings()))
    assert granular.read_rows(shard, [4])[0]["t"] == b""


def test_a_null_is_refused():
    batch = pa.record_batch(
        {"n": pa.array([3, None], pa.int64()), "t": pa.array(["x", "y"], pa.large_string())}
    )
    for form in (granular, granular_refs):
        with pytest.raises(ValueFitError) as caught:
            form.write_shard(Location(MemoryStore()), 0, COLUMNS, [some(), batch], Settings())
        assert str(caught.value) == "row 4: column 'n' is null; granular cannot store nulls"


def test_lists_are_kept_in_granular_refs_and_count_towards_row_sizes():
    columns = granular_refs.arrange(
        [column("w", "str[]"), column("n", "int32[]"), column("id", "int")]
    )
    assert [(one.name, one.encoding) for one in columns] == [
        ("id", "int"),
        ("n", "int[]"),
        ("w", "str[]"),
    ]
    words = [["a", "bc"], [], ["def"], ["x"] * 300]
    batch = pa.record_batch(
        {
            "id": pa.array(range(4), pa.int64()),
            "n": pa.array([[], [], [1, 2], []], pa.large_list(pa.int64())),
            "w": pa.array(words, pa.large_list(pa.large_string())),
        }
    )
    to = Location(MemoryStore())
    shard = granular_refs.open_shard(
        granular_refs.write_shard(
            to, 0, columns, [batch.slice(0, 1), batch.slice(1, 3)], Settings()
        )
    )
    assert granular_refs.read_batch(shard, 0, 4).column("w").to_pylist() == words
    assert granular_refs.read_rows(shard, [2, 1]) == [
        {
            "id": (2).to_bytes(8, "little"),
            "n": [(1).to_bytes(8, "little"), (2).to_bytes(8, "little")],
            "w": [b"def"],
        },
        {"id": (1).to_bytes(8, "little"), "n": [], "w": []},
    ]
    base, sizes = granular_refs.row_sizes(columns, batch.slice(1), Settings())
    assert base == len(to.store.files["000000/spec.json"])
    numbers = 8 + 3 + 5 + 11 + 11
    assert sizes.tolist() == [16 + numbers, 16 + 32 + 11 + numbers, 16 + 300 * 9 + numbers]


def test_row_sizes_are_the_bytes_that_rows_add():
    to = Location(MemoryStore())
    granular.write_shard(to, 0, COLUMNS, [some(10)], Settings())
    base, sizes = granular.row_sizes(COLUMNS, some(10), Settings())
    assert base + sizes.sum() == sum(map(len, to.store.files.values()))


@pytest.mark.parametrize(
    "given, new, refs",
    [
        ("int", "int", "int"),
        ("int64", "int64", "int64"),
        ("uint64", "uint64", "uint64"),
        ("int8", "int", "int"),
        ("uint32", "int", "int"),
        ("float64", "msgpack_float", "msgpack_float"),
        ("float16", "msgpack_float", "msgpack_float"),
        ("json", "json", "json"),
        ("str_int", "str_int", "str_int"),
        ("str", "str", "str"),
        ("jpeg", "jpeg", "jpeg"),
        ("pkl", "pkl", "pkl"),
        ("ndarray:float32:2,3", "array", "array"),
        ("json_str", "str", "str"),
        ("list[jpeg]", "list[jpeg]", "jpeg[]"),
        ("jpeg[]", "list[jpeg]", "jpeg[]"),
        ("varint", "varint", "varint"),
        ("str[]", "msgpack", "str[]"),
        ("float32[]", "msgpack", "msgpack_float[]"),
    ],
)
def test_columns_get_encodings_that_the_format_stores(given, new, refs):
    assert granular.arrange([column("a", given)]) == (column("a", new),)
    assert granular_refs.arrange([column("a", given)]) == (column("a", refs),)


@pytest.mark.parametrize(
    "names, message",
    [
        ([], "a dataset needs at least one column"),
        (["a", "a"], "duplicate column name 'a'"),
        (
            ["a/b"],
            "column 'a/b' is not a valid file name; granular stores each column in a file named after the column",
        ),
        (
            [".a"],
            "column '.a' is not a valid file name; granular stores each column in a file named after the column",
        ),
        (
            ["../a"],
            "column '../a': the name '../a.bag' points outside the folder; granular stores each column in a file named after the column",
        ),
        (
            [""],
            "column '': the name '' is empty; granular stores each column in a file named after the column",
        ),
        (
            ["x" * 252],
            f"column {'x' * 252!r}: the name '{'x' * 77}…' has a part longer than 255 bytes; granular stores each column in a file named after the column",
        ),
    ],
)
def test_column_names_that_are_invalid_file_names_are_refused(names, message):
    for form in (granular, granular_refs):
        with pytest.raises(UsageError) as caught:
            form.arrange([column(name, "str") for name in names])
        assert caught.value.message == message


def test_the_column_name_refs_is_refused_by_granular_refs():
    with pytest.raises(UsageError) as caught:
        granular_refs.arrange([column("refs", "str")])
    assert caught.value.message == "the column name 'refs' is reserved"
    columns = granular.arrange([column("refs", "str")])
    to = Location(MemoryStore())
    chunk = granular.write_shard(
        to, 0, columns, [pa.record_batch({"refs": pa.array(["a"], pa.large_string())})], Settings()
    )
    for one in (chunk, Chunk(chunk.at)):
        assert granular.read_rows(granular.open_shard(one), [0]) == [{"refs": b"a"}]


def test_unsupported_settings_are_refused():
    with pytest.raises(UsageError) as caught:
        granular.write_shard(
            Location(MemoryStore()), 0, COLUMNS, [some()], Settings(compression="zstd")
        )
    assert caught.value.message == "granular shards cannot be compressed"
    with pytest.raises(UsageError) as caught:
        granular.write_shard(
            Location(MemoryStore(), "ds"), 1, COLUMNS, [some()], Settings(shard_bytes=None)
        )
    assert str(caught.value) == "ds: the rows do not fit in one shard"
