"""MDS: files of the original, damage, and written files that are read again."""

import hashlib
import json
import pickle
import shutil
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli import encodings, read
from flarecli.encodings import lookup, stored
from flarecli.errors import FlareError, FormatError, IntegrityError, UnsafeError, UsageError
from flarecli.formats import find
from flarecli.model import Chunk, File, Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from flarecli.write import Writer
from tests.properties import examples

mds = find("mds")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "mds"
READABLE = sorted(p.name for p in GOLDEN.glob("mds_*"))


def expected(name):
    return [
        json.loads(line)["fields"]
        for line in (GOLDEN / name / "expected.jsonl").read_text().splitlines()
    ]


def all_rows(stream):
    for chunk in stream:
        shard = mds.open_shard(chunk, stream.columns)
        yield from mds.read_rows(shard, range(shard.rows))


@pytest.mark.parametrize("name", READABLE)
def test_datasets_of_the_original_are_read(name):
    rows = list(all_rows(mds.open_dataset(locate(str(GOLDEN / name / "data")))))
    wanted = expected(name)
    assert len(rows) == len(wanted)
    for row, fields in zip(rows, wanted, strict=True):
        assert {key: hashlib.sha256(data).hexdigest() for key, data in row.items()} == {
            key: field["sha256"] for key, field in fields.items()
        }


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("name", READABLE)
def test_batches_contain_the_same_bytes_as_rows(name, maps):
    at = locate(str(GOLDEN / name / "data"))
    for chunk in mds.open_dataset(at if maps else at.unmapped()):
        shard = mds.open_shard(chunk)
        rows = mds.read_rows(shard, range(shard.rows))
        for start, stop in {(0, shard.rows), (shard.rows // 3, shard.rows // 2)}:
            batch = mds.read_batch(shard, start, stop)
            assert batch.num_rows == stop - start
            for column in shard.columns:
                assert stored(batch.column(column.name), lookup(column.encoding)).to_pylist() == [
                    row[column.name] for row in rows[start:stop]
                ]
        assert list(mds.verify_shard(shard, values=True)) == []


@pytest.mark.parametrize(
    "name",
    [
        "mds_scalars",
        "mds_str_numbers",
        "mds_text_bytes",
        "mds_json",
        "mds_jpeg_png",
        "mds_ndarray_dynamic",
        "mds_ndarray_dtype",
        "mds_pil",
    ],
)
def test_values_decode_to_the_original_inputs(name):
    data = read.open(str(GOLDEN / name / "data"))
    checked = 0
    for sample, fields in zip(data, expected(name), strict=True):
        for key, value in sample.items():
            shown = fields[key].get("repr", "")
            if fields[key]["type"] in (
                "int",
                "str",
                "json",
                "bytes",
                "str_int",
                "str_decimal",
                "str_float",
                "int8",
                "uint8",
                "int64",
                "uint64",
            ):
                assert (
                    shown.startswith(("b", "{", "["))
                    or len(shown) > 60
                    or len(shown) > 30
                    or shown in (ascii(value), str(bool(value)))
                )
                checked += 1
            elif shown.startswith("image"):
                assert f"image {value.mode} {value.width}x{value.height}" == shown
                checked += 1
            elif hasattr(value, "dtype"):
                assert (
                    value.dtype.name in fields[key]["type"]
                    or value.dtype.name in shown
                    or fields[key]["type"].startswith("ndarray")
                )
                checked += 1
    assert checked


@pytest.mark.parametrize(
    "name",
    [
        "mds_comp_none",
        "mds_exact_fit",
        "mds_no_size_limit",
        "mds_size_limit_human",
        "mds_text_bytes",
        "mds_scalars",
        "mds_all_hashes",
        "mds_comp_zstd",
    ],
)
def test_rewritten_shards_have_the_bytes_of_the_original(name):
    at = locate(str(GOLDEN / name / "data"))
    index = json.loads((at / "index.json").read())
    first = index["shards"][0]
    to = Location(MemoryStore(), "")
    how = Settings(first["compression"], tuple(first["hashes"]), first["size_limit"])
    chunks, columns = [], ()
    for i, chunk in enumerate(mds.open_dataset(at)):
        shard = mds.open_shard(chunk)
        columns = shard.columns
        chunks.append(mds.write_shard(to, i, columns, [mds.read_batch(shard, 0, shard.rows)], how))
        if first["compression"] is None:
            assert chunks[-1].at.read() == chunk.at.read()
        assert chunks[-1].files[0].raw_hashes.items() >= chunk.files[0].raw_hashes.items()
    mds.write_index(to, chunks, columns, how)
    if first["compression"] is None:
        assert (to / "index.json").read() == (at / "index.json").read()
    else:
        again = json.loads((to / "index.json").read())
        for one, two in zip(again["shards"], index["shards"], strict=True):
            assert {**one, "zip_data": 0} == {**two, "zip_data": 0}
            assert one["zip_data"].keys() == two["zip_data"].keys()


def test_merged_datasets_are_read():
    for name in ("merged_root", "merged_root_zstd"):
        root = next(
            p
            for p in (GOLDEN / name / "data").rglob("index.json")
            if p.parent.parent.name in (name, "data") or p.parent.name == "data"
        )
        rows = list(all_rows(mds.open_dataset(locate(str(root.parent)))))
        assert len(rows) == len(expected(name))


# -- damage


@pytest.fixture
def shard_bytes():
    columns = (encodings.column("a", "str"), encodings.column("n", "int"))
    batch = pa.record_batch(
        {
            "a": pa.array(["one", "", "three" * 10], pa.large_string()),
            "n": pa.array([1, 2, 3], pa.int64()),
        }
    )
    store = MemoryStore()
    mds.write_shard(Location(store), 0, columns, [batch], Settings())
    return store.files["shard.00000.mds"]


def opened(data, rows=None, size=None):
    return mds.open_shard(
        Chunk(Location(MemoryStore({"s.mds": data}), "s.mds"), rows, (File("s.mds", size),))
    )


def test_a_shard_has_the_layout_of_the_documentation(shard_bytes):
    n, *starts = struct.unpack_from("<5I", shard_bytes)
    assert (n, starts[-1]) == (3, len(shard_bytes))
    assert json.loads(shard_bytes[20 : starts[0]])["column_names"] == ["a", "n"]
    assert shard_bytes[starts[0] : starts[1]] == struct.pack("<I3sq", 3, b"one", 1)


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, 4, "s.mds: sample 0 starts at byte {0}, inside the table"),
        (
            0,
            1 << 31,
            "s.mds: file is {size} bytes; its table of 2147483648 samples needs 8589934600",
        ),
        (
            0,
            0xFFFFFFFF,
            "s.mds: file is {size} bytes; its table of 4294967295 samples needs 17179869188",
        ),
        (4, 3, "s.mds: sample 0 starts at byte 3, inside the table"),
        (8, 1, "s.mds: sample 0 starts at byte {0} but ends at byte 1"),
        (16, 0xFFFFFFFF, "s.mds: file is {size} bytes; its offset table requires 4294967295"),
    ],
)
def test_a_forged_table_is_refused_before_anything_is_read(shard_bytes, at, value, message):
    starts = struct.unpack_from("<5I", shard_bytes)[1:]
    data = shard_bytes[:at] + struct.pack("<I", value) + shard_bytes[at + 4 :]
    with pytest.raises(FormatError) as caught:
        opened(data)
    if "inside the table" in message and at == 0:
        assert caught.value.exit_code == 4
    else:
        assert str(caught.value) == message.format(*starts, size=len(data))


def test_a_shard_truncated_anywhere_is_an_error(shard_bytes):
    for size in range(len(shard_bytes)):
        with pytest.raises(FormatError):
            opened(shard_bytes[:size])


def test_a_truncated_shard_is_reported_with_its_size(shard_bytes):
    with pytest.raises(FormatError) as caught:
        opened(shard_bytes[:-5])
    assert (
        str(caught.value)
        == f"s.mds: file is {len(shard_bytes) - 5} bytes; its offset table requires {len(shard_bytes)}"
    )
    with pytest.raises(IntegrityError) as caught:
        opened(shard_bytes[:-5], size=len(shard_bytes))
    assert (
        str(caught.value)
        == f"s.mds: file is {len(shard_bytes) - 5} bytes; the listed size is {len(shard_bytes)}"
    )
    assert caught.value.hint == "The file was cut short; fetch or pack it again."


def test_bytes_after_the_last_sample_are_damage(shard_bytes):
    with pytest.raises(FormatError, match="^s.mds: 7 bytes follow the last sample(?m:$)"):
        opened(shard_bytes + b"padding")


def test_a_sample_count_that_differs_from_the_listing_is_an_error(shard_bytes):
    with pytest.raises(
        FormatError, match="^s.mds: contains 3 samples; the playlist or index lists 4$"
    ):
        opened(shard_bytes, rows=4)


def test_a_config_above_the_maximum_size_is_not_read(shard_bytes, monkeypatch):
    monkeypatch.setattr("flarecli.formats.mds.format.MAX_CONFIG_BYTES", 10)
    with pytest.raises(FormatError, match=r"^s.mds: config is \d+ bytes; the maximum is 10$"):
        opened(shard_bytes)


def test_an_invalid_length_is_reported_with_its_row(shard_bytes):
    start = struct.unpack_from("<5I", shard_bytes)[2]
    data = shard_bytes[:start] + struct.pack("<I", 1 << 30) + shard_bytes[start + 4 :]
    shard = opened(data)
    with pytest.raises(
        FormatError, match=r"^s.mds\[1\]: sample has 12 bytes; its fields need 1073741836$"
    ):
        mds.read_rows(shard, [1])
    with pytest.raises(
        FormatError, match=r"^s.mds\[1\]: sample has 12 bytes, which do not match its lengths$"
    ):
        mds.read_batch(shard, 0, 3)
    (finding,) = mds.verify_shard(shard)
    assert (finding.where, finding.kind) == ("s.mds[1]", "format")


def test_rows_too_short_for_their_columns_are_refused_before_allocation():
    names = [str(i) for i in range(10_000)]
    config = json.dumps(
        {
            "column_names": names,
            "column_encodings": ["int8"] * len(names),
            "column_sizes": [1] * len(names),
        }
    ).encode()
    start = 8 + 4 * 1000 + len(config)
    shard = opened(struct.pack("<I", 1000) + struct.pack("<I", start) * 1001 + config)
    tracemalloc.start()
    try:
        with pytest.raises(FormatError) as caught:
            mds.read_batch(shard, 0, 1000)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
    assert str(caught.value) == "s.mds[0]: sample has 0 bytes, which do not match its lengths"


def test_invalid_utf8_is_reported_with_its_row(shard_bytes):
    start = struct.unpack_from("<5I", shard_bytes)[3]
    data = shard_bytes[: start + 4] + b"\xff" + shard_bytes[start + 5 :]
    with pytest.raises(FormatError) as caught:
        mds.read_batch(opened(data), 0, 3)
    assert str(caught.value) == "s.mds[2]: column 'a': str is not UTF-8"


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_any_damage_is_an_error_or_harmless(data):
    columns = (encodings.column("a", "str"), encodings.column("n", "int"))
    batch = pa.record_batch(
        {
            "a": pa.array(["one", "", "three"], pa.large_string()),
            "n": pa.array([1, 2, 3], pa.int64()),
        }
    )
    store = MemoryStore()
    mds.write_shard(Location(store), 0, columns, [batch], Settings())
    raw = bytearray(store.files["shard.00000.mds"])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        shard = opened(bytes(raw))
        mds.read_rows(shard, range(shard.rows))
        mds.read_batch(shard, 0, shard.rows)
    except FlareError:
        pass


@pytest.mark.parametrize(
    ("edit", "message", "code"),
    [
        (
            lambda i: i["shards"][0]["raw_data"].update(basename="../x.mds"),
            "index.json: shards[0].raw_data: the name '../x.mds' points outside the folder",
            5,
        ),
        (
            lambda i: i["shards"][0]["raw_data"].update(basename="/etc/x"),
            "index.json: shards[0].raw_data: the name '/etc/x' is not relative",
            5,
        ),
        (
            lambda i: i["shards"][0]["raw_data"].update(bytes=-1),
            "index.json: shards[0].raw_data.bytes: expected a count, got -1",
            4,
        ),
        (
            lambda i: i["shards"][0]["raw_data"].update(bytes=True),
            "index.json: shards[0].raw_data.bytes: expected a count, got True",
            4,
        ),
        (
            lambda i: i["shards"][0].update(samples=1 << 60),
            "index.json: shards[0]: 1098 bytes are too few for 1152921504606846976 samples",
            4,
        ),
        (
            lambda i: i["shards"][0].update(format="nope"),
            "index.json: shards[0]: unknown format 'nope'; expected mds, json, csv, tsv, xsv",
            4,
        ),
        (lambda i: i.update(version=3), "index.json: expected version 2, got 3", 4),
        (
            lambda i: i["shards"][0].update(version=1),
            "index.json: shards[0]: expected version 2, got 1",
            4,
        ),
        (
            lambda i: i["shards"][0].update(version=True),
            "index.json: shards[0]: expected version 2, got True",
            4,
        ),
        (lambda i: i.update(shards={}), "index.json: expected an object with a list `shards`", 4),
        (lambda i: i.update(shards=[None]), "index.json: shards[0]: entry is not an object", 4),
        (
            lambda i: i["shards"][0]["column_encodings"].__setitem__(0, "pickle"),
            "index.json: shards[0]: column 'float16': unknown encoding 'pickle'",
            4,
        ),
        (
            lambda i: i["shards"][0]["column_sizes"].__setitem__(0, 3),
            "index.json: shards[0]: column 'float16': expected size 2 for float16, got 3",
            4,
        ),
        (
            lambda i: i["shards"][0]["column_names"].__setitem__(1, "float16"),
            "index.json: shards[0]: duplicate column name",
            4,
        ),
        (
            lambda i: i["shards"][0]["column_names"].pop(),
            "index.json: shards[0]: column_names, column_encodings and column_sizes must be lists of the same length",
            4,
        ),
        (
            lambda i: i["shards"][0].update(raw_data=None),
            "index.json: shards[0].raw_data: basename is missing",
            4,
        ),
    ],
)
def test_a_forged_index_is_refused(edit, message, code, tmp_path):
    shutil.copytree(GOLDEN / "mds_scalars" / "data", tmp_path / "d")
    index = json.loads((tmp_path / "d" / "index.json").read_text())
    edit(index)
    (tmp_path / "d" / "index.json").write_text(json.dumps(index))
    if message is None:
        mds.open_dataset(locate(str(tmp_path / "d")))
        return
    with pytest.raises(FlareError) as caught:
        mds.open_dataset(locate(str(tmp_path / "d")))
    assert str(caught.value) == f"{tmp_path}/d/{message}"
    assert caught.value.exit_code == code


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file is empty"),
        ("[" * 100_000 + "]" * 100_000, "JSON is nested too deeply"),
        (
            '{"shards": [], "shards": [], "version": 2}',
            "not valid JSON: duplicate key 'shards'",
        ),
        pytest.param(
            json.dumps(dict.fromkeys(range(100_000)))[:-1] + ', "99999": 0}',
            "not valid JSON: duplicate key '99999'",
            id="many keys",
        ),
        ('{"shards": NaN}', "not valid JSON: NaN is not allowed"),
        ("[]", "expected an object with a list `shards`"),
    ],
)
def test_an_invalid_index_is_refused(text, message):
    at = Location(MemoryStore({"index.json": text.encode()}), "")
    with pytest.raises(FormatError) as caught:
        mds.open_dataset(at)
    assert str(caught.value) == f"index.json: {message}"


def test_an_index_that_disagrees_with_its_shard_is_an_error(tmp_path):
    shutil.copytree(GOLDEN / "mds_scalars" / "data", tmp_path / "d")
    text = (tmp_path / "d" / "index.json").read_text()
    (tmp_path / "d" / "index.json").write_text(
        text.replace('"float16"', '"gloat16"', 2).replace('"gloat16"', '"float16"', 1)
    )
    with pytest.raises(
        IntegrityError, match="columns in the config differ from the columns in the index(?m:$)"
    ):
        read.open(str(tmp_path / "d"))[0]


def test_a_pickle_is_copied_and_not_decoded():
    data = read.open(str(GOLDEN / "mds_pkl" / "data"))
    assert (
        hashlib.sha256(data.rows([0])[0]["p"]).hexdigest() == expected("mds_pkl")[0]["p"]["sha256"]
    )
    with pytest.raises(UnsafeError) as caught:
        data[0]
    assert str(caught.value) == "row 0: column 'p': refusing to decode a pickle (21 B)"
    assert (
        caught.value.hint
        == "Reading a pickle runs code. Pass allow_pickle=True if you trust its source."
    )
    assert read.open(str(GOLDEN / "mds_pkl" / "data"), allow_pickle=True)[0] == {"p": {"a": 1}}


# -- written files


COLUMNS = {"s": "str", "b": "bytes", "i": "int", "u": "uint8", "f": "float32", "j": "json"}


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "s": st.text(max_size=30),
                "b": st.binary(max_size=30),
                "i": st.integers(-(1 << 63), (1 << 63) - 1),
                "u": st.integers(0, 255),
                "f": st.floats(width=32, allow_nan=False),
                "j": st.none()
                | st.integers()
                | st.text(max_size=10)
                | st.lists(st.booleans(), max_size=3),
            }
        ),
        min_size=1,
        max_size=30,
    ),
    st.sampled_from([None, "zstd"]),
)
def test_written_rows_are_read_back(samples, compression):
    columns = mds.arrange(encodings.column(name, encoding) for name, encoding in COLUMNS.items())
    raw = {
        c.name: [encodings.encode(lookup(c.encoding), sample[c.name]) for sample in samples]
        for c in columns
    }
    arrays = [
        encodings.typed(pa.array(raw[c.name], pa.large_binary()), lookup(c.encoding))
        for c in columns
    ]
    batch = pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(c) for c in columns])
    )
    how = Settings(compression)
    base, sizes = mds.row_sizes(columns, batch, how)
    chunk = mds.write_shard(Location(MemoryStore()), 0, columns, [batch], how)
    assert base + sizes.sum() == (chunk.files[0].raw_size if compression else chunk.files[0].size)
    shard = pickle.loads(pickle.dumps(mds.open_shard(chunk)))
    order = list(np.random.default_rng(0).permutation(len(samples)))
    for row, i in zip(mds.read_rows(shard, order), order, strict=True):
        assert {
            name: encodings.decode(lookup(COLUMNS[name]), data) for name, data in row.items()
        } == samples[i]
    assert mds.read_batch(shard, 0, len(samples)).equals(batch)


def test_columns_are_sorted_by_code_point_and_have_unique_names():
    names = [
        c.name for c in mds.arrange(encodings.column(name, "int") for name in ("é", "a", "B", "z"))
    ]
    assert names == ["B", "a", "z", "é"]
    with pytest.raises(UsageError, match="^duplicate column name 'a'$"):
        mds.arrange([encodings.column("a", "int"), encodings.column("a", "str")])
    with pytest.raises(UsageError, match="^a shard needs at least one column(?m:$)"):
        mds.arrange([])


def test_a_dataset_replaced_by_another_of_the_same_sizes_is_read_again(tmp_path):
    values = [
        bytes(np.random.default_rng(seed).integers(0, 256, 1000, np.uint8)) for seed in (1, 2)
    ]
    for i, value in enumerate(values):
        with Writer(
            str(tmp_path / "out"),
            columns={"b": "bytes"},
            settings=Settings("zstd"),
            overwrite=i > 0,
        ) as writer:
            writer.write({"b": value})
        assert read.open(str(tmp_path / "out"))[0]["b"] == value


def shard_of(columns, rows, config=None):
    """Return the bytes of a shard."""
    own = {
        "column_encodings": list(columns.values()),
        "column_names": list(columns),
        "column_sizes": [{"int": 8, "uint8": 1}.get(one) for one in columns.values()],
    }
    head = json.dumps(own if config is None else config).encode()
    starts, at = [], 8 + 4 * len(rows) + len(head)
    for row in rows:
        starts.append(at)
        at += len(row)
    data = struct.pack(f"<{len(rows) + 2}I", len(rows), *starts, at) + head + b"".join(rows)
    at = Location(MemoryStore({"a.mds": data}), "a.mds")
    return mds.open_shard(Chunk(at, len(rows), (), "mds"))


@given(
    st.lists(st.binary(max_size=14), min_size=1, max_size=5),
    st.sampled_from([{"a": "bytes"}, {"a": "int"}, {"a": "uint8", "b": "bytes", "c": "str"}]),
)
def test_rows_whose_lengths_do_not_match_their_size_are_reported(rows, columns):
    shard = shard_of(columns, rows)
    lengths = struct.Struct(f"<{sum(one not in ('int', 'uint8') for one in columns.values())}I")
    fixed = lengths.size + sum({"int": 8, "uint8": 1}.get(one, 0) for one in columns.values())
    fits = [
        len(row) >= lengths.size and fixed + sum(lengths.unpack_from(row)) == len(row)
        for row in rows
    ]
    wrong = [finding.row for finding in mds.verify_shard(shard)]
    assert wrong == [i for i, one in enumerate(fits) if not one]


@given(st.binary(max_size=6), st.integers(-2, 2))
def test_lengths_that_differ_by_little_are_refused(data, more):
    shard = shard_of(
        {"a": "bytes", "b": "int"},
        [struct.pack("<I", max(0, len(data) + more)) + data + bytes(8)] * 2,
    )
    fits = max(0, len(data) + more) == len(data)
    assert [finding.row for finding in mds.verify_shard(shard)] == ([] if fits else [0, 1])


def test_rows_of_one_byte_columns_are_stored_row_by_row(tmp_path):
    table = pa.table({"a": pa.array([1, 2, 3], pa.uint8()), "b": pa.array([4, 5, 6], pa.uint8())})
    flare.pack(table, tmp_path / "out")
    assert (tmp_path / "out/shard.00000.mds").read_bytes().endswith(bytes([1, 4, 2, 5, 3, 6]))
