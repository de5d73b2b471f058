"""`flare drop --keys`: the keys in a file are compared with the values of the key column."""

import bz2
import gzip
import json
import os
import subprocess
import sys
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from hashlib import blake2b

import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli.__main__ import main
from flarecli.errors import FormatError, UsageError
from tests.outputs import state_of

NEW_YEAR = datetime(2020, 1, 1)
HOURS = [NEW_YEAR + timedelta(hours=i) for i in range(10)]
COLUMNS = {
    "id": pa.array(range(10), pa.int64()),
    "text": [f"k{i}" for i in range(10)],
    "float": [i / 2 for i in range(10)],
    "small": pa.array([i / 10 for i in range(10)], pa.float32()),
    "when": pa.array(HOURS, pa.timestamp("us")),
    "zoned": pa.array(HOURS, pa.timestamp("us", "Europe/Berlin")),
    "price": pa.array([Decimal(i) / 2 for i in range(10)], pa.decimal128(8, 1)),
    "day": [date(2020, 1, 1 + i) for i in range(10)],
    "bytes": [b"k%d" % i for i in range(10)],
    "time": [time(i) for i in range(10)],
    "nanos": pa.array([1000 * i for i in range(10)], pa.timestamp("ns")),
}


@pytest.fixture
def out(tmp_path):
    """A dataset of 10 rows; row i has the i-th value of each column."""
    pq.write_table(pa.table(COLUMNS), tmp_path / "source.parquet")
    flare.pack(tmp_path / "source.parquet", tmp_path / "out", format="parquet", shard_rows=4)
    return tmp_path / "out"


def removed(out, file, key):
    """Drop the keys in a file; return the numbers of the removed rows."""
    flare.drop(out, keys=file, key=key)
    left = {one["id"] for one in flare.open(str(out)).to_arrow().to_pylist()}
    return sorted(set(range(10)) - left)


def refused(out, file, key):
    """Return the error of a drop that changes nothing, without the folder of the file."""
    before = state_of(out)
    with pytest.raises(FormatError) as caught:
        flare.drop(out, keys=file, key=key, erase=True)
    assert state_of(out) == before and caught.value.exit_code == 4
    return str(caught.value).removeprefix(f"{file.parent}/")


def written(path, data):
    """Write bytes or text."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


def table_of(path, key, values):
    pq.write_table(pa.table({key: values}), path)
    return path


LINES = b"1\n2\n"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("keys.txt", LINES),
        ("KEYS.TXT", LINES),
        ("keys", LINES),
        ("keys.txt", b"\xef\xbb\xbf" + LINES),
        ("keys.txt", LINES.decode().encode("utf-16")),
        ("keys.txt", b"\xfe\xff" + LINES.decode().encode("utf-16-be")),
        ("keys.txt", b"1\r\n\r\n2"),
        ("keys.txt", b"1\r2\r"),
        ("keys.txt.gz", gzip.compress(LINES)),
        ("keys.gz", gzip.compress(LINES)),
        ("keys.txt", gzip.compress(b"\xef\xbb\xbf" + LINES)),
        ("keys.txt.bz2", bz2.compress(LINES)),
        ("keys.csv.gz", gzip.compress(b"id\n" + LINES)),
        ("keys.csv", b"x,id\n,1\n,2\n,\n"),
        ("keys.jsonl", b'{"id": 1}\n{"id": 2}\n{"id": null}\n'),
    ],
)
def test_keys_are_read_from_any_encoding_and_compression(name, data, out, tmp_path, capsys):
    keys = written(tmp_path / name, data)
    assert main(["drop", str(out), "--keys", str(keys), "--key", "id", "-q"]) == 0
    assert [one["id"] for one in flare.open(str(out)).to_arrow(["id"]).to_pylist()] == [
        0,
        *range(3, 10),
    ]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("key", "lines", "rows"),
    [
        ("float", ["1.0", "1e0", "0.5"], [1, 2]),
        ("small", ["0.1", "0.20"], [1, 2]),
        ("price", ["0.50", "1", "15e-1"], [1, 2, 3]),
        ("when", ["2020-01-01 01:00:00", "2020-01-01T02:00:00.000", "2020-01-01"], [0, 1, 2]),
        ("zoned", ["2020-01-01T01:00:00Z", "2020-01-01 03:00:00+01:00"], [1, 2]),
        ("day", ["2020-01-02"], [1]),
        ("bytes", ["k1", "k2 "], [1]),
        ("text", ["k1", "K2", "k3 "], [1]),
        ("id", ["007"], [7]),
    ],
)
@pytest.mark.parametrize("kind", ["txt", "csv", "json"])
def test_text_is_converted_to_the_type_of_the_column(kind, key, lines, rows, out, tmp_path):
    data = {
        "txt": "\n".join(lines),
        "csv": "\n".join([key, *lines]),
        "json": json.dumps([{key: line} for line in lines]),
    }
    assert removed(out, written(tmp_path / f"keys.{kind}", data[kind]), key) == rows


@pytest.mark.parametrize(
    ("key", "values", "rows"),
    [
        ("id", pa.array([1, 2], pa.int8()), [1, 2]),
        ("id", [1.0, float("nan")], [1]),
        ("id", [Decimal("1.00")], [1]),
        ("id", pa.nulls(2), []),
        ("float", [1], [2]),
        ("float", [Decimal("1.50")], [3]),
        ("small", [0.1], [1]),
        ("price", pa.array([Decimal("0.50")], pa.decimal128(10, 2)), [1]),
        ("price", [0.5, 1.0], [1, 2]),
        ("price", [1], [2]),
        ("day", [datetime(2020, 1, 2)], [1]),
        ("text", pa.array(["k1", ""]).dictionary_encode(), [1]),
        ("text", [b"k1"], [1]),
        ("time", pa.array([time(1)], pa.time32("s")), [1]),
        *(
            (key, pa.array([HOURS[1]], pa.timestamp(unit, zone)), [1])
            for key in ("when", "zoned")
            for unit in ("s", "ms", "us", "ns")
            for zone in (None, "UTC", "Asia/Tokyo")
        ),
    ],
)
def test_typed_keys_are_converted_to_the_type_of_the_column(key, values, rows, out, tmp_path):
    assert removed(out, table_of(tmp_path / "keys.parquet", key, values), key) == rows


@pytest.mark.parametrize(
    ("key", "name", "data", "message"),
    [
        ("id", "k.txt", "1\n\nabc\nx\n", "k.txt:3: key 'abc'"),
        ("id", "k.txt", "1.0\n", "k.txt:1: key '1.0'"),
        ("id", "k.csv", "id\n1\n 2\n", "k.csv[1]: key ' 2'"),
        ("id", "k.json", '[{"id": "abc"}]', "k.json[0]: key 'abc'"),
        ("price", "k.txt", "0.55", "k.txt:1: key '0.55'"),
        ("when", "k.txt", "2020-01-01T01:00:00Z", "k.txt:1: key '2020-01-01T01:00:00Z'"),
        ("zoned", "k.txt", "2020-01-01 01:00:00", "k.txt:1: key '2020-01-01 01:00:00'"),
    ],
)
def test_a_text_that_the_column_cannot_contain_is_an_error(key, name, data, message, out, tmp_path):
    kind = pa.table(COLUMNS).schema.field(key).type
    expected = f"{message} does not fit column '{key}', which has the type {kind}"
    assert refused(out, written(tmp_path / name, data), key) == expected


@pytest.mark.parametrize(
    ("key", "values", "message"),
    [
        ("id", [1, 1.5], "k.parquet[1]: key '1.5' does not fit"),
        ("price", [0.55], "k.parquet[0]: key '0.55' does not fit"),
        ("float", [2**53 + 1], "k.parquet[0]: key '9007199254740993' does not fit"),
        ("day", [HOURS[1]], "k.parquet[0]: key '2020-01-01 01:00:00' does not fit"),
        (
            "when",
            pa.array([1], pa.timestamp("ns")),
            "k.parquet[0]: key '1970-01-01 00:00:00.000000001' does not fit",
        ),
        ("id", [True], "k.parquet: keys of type bool cannot be compared with"),
        ("when", [1], "k.parquet: keys of type int64 cannot be compared with"),
        ("id", [HOURS[0]], "k.parquet: keys of type timestamp[us] cannot be compared with"),
    ],
)
def test_a_value_that_the_column_cannot_contain_is_an_error(key, values, message, out, tmp_path):
    kind = pa.table(COLUMNS).schema.field(key).type
    expected = f"{message} column '{key}', which has the type {kind}"
    assert refused(out, table_of(tmp_path / "k.parquet", key, values), key) == expected


def test_a_file_that_is_not_text_is_an_error(out, tmp_path):
    keys = written(tmp_path / "keys.xlsx", b"PK\x03\x04\x00\x00")
    assert refused(out, keys, "id") == "keys.xlsx: line 1: byte 4 is NUL"


@pytest.mark.parametrize(
    ("lines", "options", "notes"),
    [
        ("1\n2\n", [], []),
        ("1\n2\n2\n77\n78\n78\n", [], ["2 of 4 keys match no row"]),
        ("1\n77\n", [], ["1 of 2 keys matches no row"]),
        ("77\n", [], ["no row matches"]),
        ("1\n77\n", ["--erase"], ["1 of 2 keys matches no row of the current version"]),
    ],
)
def test_the_number_of_keys_that_match_no_row_is_reported(
    lines, options, notes, out, tmp_path, capsys
):
    keys = written(tmp_path / "keys.txt", lines)
    assert main(["drop", str(out), "--keys", str(keys), "--key", "id", "-n", *options]) == 0
    found = capsys.readouterr().err.splitlines()
    assert [one for one in found if not one.startswith("the erasure would")] == notes


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("keys.txt", b""),
        ("keys.txt", b"\n\n"),
        ("keys.csv", b"id\n"),
        ("keys.csv.gz", gzip.compress(b"id\n")),
        ("keys.json", b"[]"),
        ("keys.jsonl", b""),
        ("keys.parquet", None),
        ("keys.feather", None),
    ],
)
def test_a_file_without_keys_matches_no_row(name, data, out, tmp_path, capsys):
    empty = pa.table({"id": pa.array([], pa.int64())})
    if data is not None:
        written(tmp_path / name, data)
    elif name.endswith(".parquet"):
        pq.write_table(empty, tmp_path / name)
    else:
        feather.write_feather(empty, tmp_path / name)
    before = state_of(out)
    assert main(["drop", str(out), "--keys", str(tmp_path / name), "--key", "id"]) == 0
    assert capsys.readouterr().err == "no row matches\n"
    assert state_of(out) == before


def test_a_table_without_the_key_column_is_an_error(out, tmp_path):
    keys = written(tmp_path / "keys.csv", "other\n1\n")
    with pytest.raises(UsageError) as caught:
        flare.drop(out, keys=keys, key="id")
    assert str(caught.value) == f"{keys}: --keys: no column 'id'"


@pytest.mark.parametrize("address", ["-", "/dev/stdin"])
def test_standard_input_contains_one_key_per_line(address, out):
    command = [sys.executable, "-m", "flarecli", "drop", str(out), "--erase"]
    done = subprocess.run(
        [*command, "--keys", address, "--key", "id"],
        input=gzip.compress(b"3\n4\n"),
        capture_output=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert len(flare.open(str(out))) == 8
    erased = json.loads((out / ".flare-erased").read_text())
    assert len(erased["columns"]["id"]) == 2


def test_a_fifo_contains_one_key_per_line(out, tmp_path):
    os.mkfifo(tmp_path / "keys.fifo")
    with subprocess.Popen(["sh", "-c", f"echo 3 > {tmp_path}/keys.fifo"]):
        assert removed(out, tmp_path / "keys.fifo", "id") == [3]


@pytest.mark.parametrize(
    ("key", "line", "again"),
    [
        ("float", "1e0", {"float": [1.0]}),
        ("when", "2020-01-01T01:00:00", {"when": pa.array([HOURS[1]], pa.timestamp("us"))}),
        ("price", "0.50", {"price": pa.array([Decimal("0.5")], pa.decimal128(8, 1))}),
        ("nanos", "1970-01-01 00:00:00.000001", {"nanos": pa.array([1000], pa.timestamp("ns"))}),
    ],
)
def test_an_erased_key_cannot_be_appended_however_the_file_writes_it(
    key, line, again, out, tmp_path
):
    keys = written(tmp_path / "keys.txt", line + "\n")
    assert flare.drop(out, keys=keys, key=key, erase=True).rows == 1
    row = {name: pa.table(COLUMNS)[name].slice(9, 1) for name in COLUMNS}
    pq.write_table(pa.table({**row, **again}), tmp_path / "more.parquet")
    with pytest.raises(FormatError, match="a row with this key was erased from the dataset"):
        flare.pack(tmp_path / "more.parquet", out, append=True)


def test_a_key_is_erased_from_failed_rows_that_list_its_text(tmp_path):
    out = tmp_path / "out"
    source = written(tmp_path / "a.csv", "id,text\n1.50,fine\n2.50," + "x" * 3000 + "\n")
    flare.pack(source, out, key="id", on_error="skip", max_object=2000, encode={"id": "float64"})
    (failed,) = out.rglob("failed.jsonl")
    assert json.loads(failed.read_text())["key"] == "2.50"
    keys = written(tmp_path / "keys.txt", "2.50\n")
    flare.drop(out, keys=keys, key="id", erase=True)
    assert [path for path in out.rglob("failed*.jsonl") if path.read_text()] == []


def test_keys_of_an_earlier_erasure_remain_erased(out, tmp_path):
    """The file was written by an earlier flare, which hashed the text of the keys."""
    one = blake2b(b"42", digest_size=16, key=bytes(32)).hexdigest()
    erased = {"key": "00" * 32, "columns": {"id": [one]}}
    written(out / ".flare-erased", json.dumps(erased))
    flare.drop(out, keys=written(tmp_path / "keys.txt", "3\n"), key="id", erase=True)
    found = json.loads((out / ".flare-erased").read_text())
    assert set(erased["columns"]["id"]) < set(found["columns"]["id"])
    row = {name: pa.table(COLUMNS)[name].slice(9, 1) for name in COLUMNS}
    for number in (3, 42):
        pq.write_table(pa.table({**row, "id": [number]}), tmp_path / "more.parquet")
        with pytest.raises(FormatError, match="a row with this key was erased"):
            flare.pack(tmp_path / "more.parquet", out, append=True)
