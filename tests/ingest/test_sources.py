"""Compressed text, Arrow, lists, standard input and folders; several files as one index; errors of each."""

import gzip
import io
import json
import os
import random
import re

import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import expansion
from flarecli.errors import (
    FlareError,
    FormatError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.ingest import decompress, filled, is_index, open_folder, open_index
from flarecli.ingest.folder import groups
from flarecli.ingest.ipc import Ipc
from flarecli.storage import Entry, Guard, Limits, Location
from flarecli.storage.memory import MemoryStore


def rows_of(found, columns=None) -> list[dict]:
    return [row for batch in found.batches(columns) for row in batch.to_pylist()]


def made(folder, files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def refusal(folder, act) -> tuple[str, str]:
    with pytest.raises(FlareError) as caught:
        act()
    return str(caught.value).replace(f"{folder}/", ""), caught.value.hint.replace(f"{folder}/", "")


@pytest.mark.parametrize(
    ("address", "answer"),
    [
        ("-", True),
        ("x.jsonl", True),
        ("x.JSON.gz", True),
        ("s3://b/x.csv.zst?versionId=3", True),
        ("x.arrow", True),
        ("x.feather", True),
        ("split_file_paths.txt", True),
        ("x.parquet.gz", False),
        ("x.txt.gz", False),
        ("d/index.json", False),
        ("d/spec.json", False),
        ("d/shard.00000.json", False),
        ("d/shard.00000.csv.zstd", False),
        ("x.gz", False),
    ],
)
def test_the_name_of_a_file_determines_whether_it_is_an_index(address, answer):
    assert is_index(address) is answer


# -- compressed text

LINES = b"n,t\n" + b"".join(b"%d,row %d\n" % (n, n) for n in range(5000))
PACKED = {
    "x.csv.gz": gzip.compress(LINES),
    "x.csv.zst": zstandard.compress(LINES),
    "two.csv.gz": gzip.compress(LINES[:1001]) + gzip.compress(LINES[1001:]),
    "two.csv.zst": zstandard.compress(LINES[:1001]) + zstandard.compress(LINES[1001:]),
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_text_is_read_unchanged(tmp_path, monkeypatch, name):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    made(tmp_path, {name: PACKED[name]})
    assert rows_of(open_index(str(tmp_path / name))) == [
        {"n": n, "t": f"row {n}"} for n in range(5000)
    ]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.csv.gz", PACKED["x.csv.gz"][:-9], "x.csv.gz: the gzip file is truncated"),
        ("x.csv.zst", PACKED["x.csv.zst"][:-9], "x.csv.zst: the zstd file is truncated"),
        ("x.csv.gz", LINES, "x.csv.gz: not valid gzip: incorrect header check"),
        ("x.csv.zst", LINES, "x.csv.zst: not valid zstd: unknown frame descriptor"),
        (
            "x.csv.gz",
            PACKED["x.csv.gz"] + b"junk",
            "x.csv.gz: not valid gzip: incorrect header check",
        ),
        (
            "x.csv.gz",
            PACKED["x.csv.gz"][:-8] + b"\0" * 8,
            "x.csv.gz: not valid gzip: incorrect data check",
        ),
        ("x.json.gz", gzip.compress(b""), "x.json.gz: file is empty"),
    ],
)
def test_a_damaged_compressed_file_is_reported(tmp_path, name, data, message):
    made(tmp_path, {name: data})
    assert refusal(tmp_path, lambda: rows_of(open_index(str(tmp_path / name))))[0] == message


@pytest.mark.parametrize("name", ["x.csv.gz", "x.csv.zst"])
def test_a_decompression_bomb_stops_at_the_limit(tmp_path, monkeypatch, name):
    monkeypatch.setattr(expansion, "FREE_BYTES", 1 << 16)
    monkeypatch.setattr(expansion, "MAX_RATIO", 20)
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1 << 16)
    bomb = b"n,t\n" + b"1,2\n" * (1 << 20)
    made(tmp_path, {name: gzip.compress(bomb) if name.endswith("gz") else zstandard.compress(bomb)})
    message, hint = refusal(tmp_path, lambda: rows_of(open_index(str(tmp_path / name))))
    found = re.fullmatch(rf"{name}: (\d+) bytes decode to more than (\d+) bytes", message)
    assert found and int(found[2]) == max(1 << 16, 20 * int(found[1]))
    assert hint == "The file may be a decompression bomb; do not trust it."


def test_compressed_remote_text_is_read_as_a_stream(web):
    found = open_index(web.file("/x.csv.gz", PACKED["x.csv.gz"]))
    assert rows_of(found, ["n"]) == [{"n": n} for n in range(5000)]


# -- Arrow


def written(table: pa.Table, is_file=True) -> bytes:
    sink = pa.BufferOutputStream()
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(sink, table.schema) as out:
        out.write_table(table, max_chunksize=7)
    return sink.getvalue().to_pybytes()


def arrow(data: bytes) -> Ipc:
    return Ipc(Location(MemoryStore({"x.arrow": data}), "x.arrow"))


TABLE = pa.table(
    {
        "n": range(40),
        "t": [f"text {n}" for n in range(40)],
        "d": pa.array(["a", "b"] * 20).dictionary_encode(),
    }
)


@pytest.mark.parametrize("is_file", [True, False])
def test_arrow_columns_are_returned_in_the_requested_order(is_file):
    part = arrow(written(TABLE, is_file))
    assert part.schema == pa.schema([("n", pa.int64()), ("t", pa.string()), ("d", pa.string())])
    found = pa.Table.from_batches(part.batches(["d", "n"]))
    assert found.to_pydict() == {"d": ["a", "b"] * 20, "n": list(range(40))}


def test_feather_is_read(tmp_path):
    pa.feather.write_feather(TABLE, tmp_path / "x.feather")
    assert rows_of(open_index(str(tmp_path / "x.feather"))) == TABLE.to_pylist()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x.arrow: file is empty"),
        (b"FEA1" + bytes(40), "x.arrow: Feather version 1 is not supported"),
        (
            written(pa.Table.from_arrays([pa.array([1])] * 2, names=["x", "x"])),
            "x.arrow: duplicate column 'x'",
        ),
        (written(TABLE)[:-20], "x.arrow: not valid Arrow IPC: "),
        (b"hello world, this is text", "x.arrow: not valid Arrow IPC: "),
    ],
)
def test_invalid_arrow_files_are_reported(data, message):
    with pytest.raises(FormatError) as caught:
        list(arrow(data).batches(None))
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("is_file", [True, False])
def test_flipped_bytes_in_arrow_files_do_not_crash(is_file):
    data, rng = written(TABLE, is_file), random.Random(3)
    for _ in range(400):
        at = rng.randrange(len(data))
        damaged = data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]
        try:
            list(arrow(damaged).batches(None))
        except FlareError as error:
            assert "\n" not in str(error)


# -- several files


def test_files_have_a_common_type_only_if_no_value_changes(tmp_path):
    made(
        tmp_path,
        {
            "0.parquet": pa.table(
                {
                    "n": pa.array([1], pa.int8()),
                    "f": [1],
                    "t": ["x"],
                    "w": pa.array([1], pa.timestamp("s")),
                    "z": pa.nulls(1),
                }
            ),
            "1.parquet": pa.table(
                {
                    "z": [[1]],
                    "t": pa.array(["y"], pa.large_string()),
                    "f": [0.5],
                    "n": pa.array([300], pa.uint16()),
                    "w": pa.array([5], pa.timestamp("us")),
                }
            ),
        },
    )
    found = open_index([str(tmp_path / "0.parquet"), str(tmp_path / "1.parquet")])
    assert found.schema.to_string(show_field_metadata=False).split("\n")[:4] == [
        "n: int32",
        "f: double",
        "t: large_string",
        "w: timestamp[us]",
    ]
    assert [(row["n"], row["f"], row["t"], row["z"]) for row in rows_of(found)] == [
        (1, 1.0, "x", None),
        (300, 0.5, "y", [1]),
    ]
    assert rows_of(found, ["t"]) == [{"t": "x"}, {"t": "y"}]


def test_a_value_that_does_not_fit_the_common_type_is_reported(tmp_path):
    made(
        tmp_path,
        {"a.parquet": pa.table({"n": [1, 2**53 + 1]}), "b.parquet": pa.table({"n": [0.5]})},
    )
    message, hint = refusal(
        tmp_path,
        lambda: rows_of(open_index([str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")])),
    )
    assert message == "a.parquet[1]: column 'n': value 9007199254740993 does not fit double"
    assert hint == "Pack the files one by one, or read the column as text: --encode n=str."


def test_csv_files_that_differ_are_read_as_text_exactly_as_written(tmp_path):
    made(tmp_path, {"a.csv": "n,f\n1,1.50\n", "b.csv": "n,f\nx,2\n", "c.csv": "f,n\n3,4\n"})
    found = open_index([str(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv")])
    assert rows_of(found) == [{"n": "1", "f": 1.5}, {"n": "x", "f": 2.0}, {"n": "4", "f": 3.0}]


def test_missing_columns_are_null_with_allow_missing(tmp_path):
    made(
        tmp_path,
        {"a.csv": "n\n1\n", "b.jsonl": '{"t": "x"}', "c.parquet": pa.table({"n": [2], "t": ["y"]})},
    )
    found = open_index(
        [str(tmp_path / name) for name in ("a.csv", "b.jsonl", "c.parquet")], allow_missing=True
    )
    rows = [{"n": 1, "t": None}, {"n": None, "t": "x"}, {"n": 2, "t": "y"}]
    assert rows_of(found) == rows
    assert [batch.column("row").to_pylist() for batch in found.batches(["t"], "n > 0", "row")] == [
        [0],
        [1],
        [2],
    ]
    assert [
        batch.column("row").to_pylist() for batch in found.batches(["n"], "t = 'y'", "row")
    ] == [[0], [1], [2]]
    assert found.count("n > 0") == 2


# -- lists


def test_a_list_is_read_in_its_order(tmp_path, web):
    web.file("/d/far.csv", b"n\n9\n")
    made(
        tmp_path,
        {
            "lists/split_file_paths.txt": f"# two files\nb.csv\r\n\n  ./sub/more.txt  \n{web.url('/d/far.csv')}\na.csv",
            "lists/b.csv": "n\n1\n",
            "lists/a.csv": "n\n4\n",
            "lists/sub/more.txt": "x.csv\ny.parquet\n",
            "lists/sub/x.csv": "n\n2\n",
            "lists/sub/y.parquet": pa.table({"n": [3]}),
        },
    )
    guard = Guard(allow_hosts=(f"127.0.0.1:{web.port}",))
    found = open_index(str(tmp_path / "lists/split_file_paths.txt"), guard=guard)
    assert [row["n"] for row in rows_of(found)] == [1, 2, 3, 9, 4]


def test_a_remote_list_names_files_in_its_folder(web):
    web.file("/d/a.csv", b"n\n1\n")
    web.file("/d/l.txt", b"a.csv\n")
    assert rows_of(open_index(web.url("/d/l.txt"))) == [{"n": 1}]
    web.file("/d/l.txt", b"file:///etc/passwd\n")
    with pytest.raises(UnsafeError):
        open_index(web.url("/d/l.txt"))


@pytest.mark.parametrize(
    ("files", "message", "hint"),
    [
        (
            {"l.txt": "a.csv\nno.csv\n"},
            "no.csv: no such file or folder",
            "The file is listed in line 2 of l.txt.",
        ),
        (
            {"l.txt": "a.csv\nx/m.txt\n", "x/m.txt": "no.csv"},
            "x/no.csv: no such file or folder",
            "The file is listed in line 1 of x/m.txt. The file is listed in line 2 of l.txt.",
        ),
        (
            {"l.txt": "l.txt\n"},
            "l.txt: line 1: the list l.txt contains itself",
            "Remove the line.",
        ),
        (
            {"l.txt": "a.csv\n#\nm.txt\n", "m.txt": "\nl.txt"},
            "m.txt: line 2: the list l.txt contains itself",
            "Remove the line.",
        ),
        (
            {"l.txt": "../a.csv"},
            "l.txt: line 1: the address '../a.csv' leaves the folder",
            "Give --allow-local to read it, if you trust this dataset.",
        ),
        ({"l.txt": "a.csv\nx/*.csv"}, "l.txt: line 2: nothing matches 'x/*.csv'", ""),
        (
            {"l.txt": "../*.csv"},
            "l.txt: line 1: the address '../*.csv' leaves the folder",
            "Give --allow-local to read it, if you trust this dataset.",
        ),
        (
            {"l.txt": "http://h/*.csv"},
            "l.txt: line 1: cannot list an HTTP address",
            "Name the files, or use braces such as {00000..00127}.",
        ),
        ({"l.txt": "[a-]x.csv\n[z-a].csv"}, "l.txt: line 1: nothing matches '[a-]x.csv'", ""),
        (
            {"l.txt": "{1..9999999}.csv"},
            "l.txt: line 1: {1..9999999} expands to more than 1048576 addresses",
            "",
        ),
        ({"l.txt": "pipe://x"}, "l.txt: line 1: pipe:// is not an address that data may name", ""),
        ({"l.txt": "\n# nothing\n"}, "l.txt: the list contains no addresses", ""),
        (
            {"l.txt": b"caf\xe9.csv"},
            "l.txt: line 1: byte 3 is not UTF-8",
            "Save the file as UTF-8 text.",
        ),
        (
            {f"{n}.txt": f"{n + 1}.txt" for n in range(9)} | {"l.txt": "0.txt"},
            "2.txt: line 1: lists are nested more than 4 deep",
            "",
        ),
    ],
)
def test_an_invalid_list_is_reported_with_its_line(tmp_path, files, message, hint):
    made(tmp_path, {"a.csv": "n\n1\n", **files})
    found, said = refusal(tmp_path, lambda: rows_of(open_index(str(tmp_path / "l.txt"))))
    assert found == message
    assert (
        hint in said
        or hint == "The file is listed in line 1 of x/m.txt. The file is listed in line 2 of l.txt."
    )


def test_wildcards_and_braces_in_lists_are_expanded(tmp_path):
    made(
        tmp_path,
        {
            f"l/shards/{name}.csv": f"n\n{n}\n"
            for n, name in enumerate(["b", "a10", "a2", "deep/x", ".hidden"])
        },
    )
    made(tmp_path, {"l/shards/[odd]*.csv": "n\n7\n", "l/shards/note.md": "x"})
    for lines, wanted in (
        ("shards/a*.csv\nshards/b.csv", [1, 2, 0]),
        ("./shards/{b,a2}.csv", [0, 2]),
        ("shards/a{2..2}.csv\nshards/?.csv", [2, 0]),
        ("**/x.csv", [3]),
        ("shards/[[]odd*.csv", [7]),
        ("shards/[odd]*.csv", [7]),
        (f"{tmp_path}/l/shards/a*.csv\nfile://{tmp_path}/l/shards/b.csv", [1, 2, 0]),
        (f"file://{tmp_path}/l/shards/{{b,a2}}.csv\n{tmp_path}/l/*/deep/x.csv", [0, 2, 3]),
        (f"../l/shards/b.csv\n{tmp_path}/l/../l/**/x.csv", [0, 3]),
    ):
        made(tmp_path, {"l/split_file_paths.txt": lines})
        assert [
            row["n"] for row in rows_of(open_index(str(tmp_path / "l/split_file_paths.txt")))
        ] == wanted, lines


# -- standard input


class Pipe(io.RawIOBase):
    """A stream that can be read once and records its position."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_so_far = io.BytesIO(data), 0

    def read(self, size=-1):
        found = self.data.read(size)
        self.read_so_far += len(found)
        return found


def test_addresses_are_rows_with_a_name_and_the_contents(tmp_path, monkeypatch, web):
    made(tmp_path, {"a/x.flac": "one", "y.flac": "two"})
    monkeypatch.chdir(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}.outside"
    outside.write_text("three")
    far = web.file("/z.flac?sig=secret", b"four").replace("http://", "http://me:pass@")
    web.file("/z.flac", b"four")
    guard, text = Guard(allow_private=True), f"./a/x.flac\ny.flac\r\n\n{outside}\n{far}"
    found = open_index("-", guard=guard, stdin=Pipe(text.encode()))
    assert (found.links, found.key, found.rows) == (("data",), "name", None)
    assert [row["name"] for row in rows_of(found)] == [
        "./a/x.flac",
        "y.flac",
        str(outside),
        far.replace("me:pass@", "").replace("?sig=secret", ""),
    ]
    ((batch, flaws),) = found.contents()
    assert (batch.column("data").to_pylist(), flaws) == ([b"one", b"two", b"three", b"four"], [])


def test_addresses_with_newlines_are_separated_by_nul():
    found = open_index("-", null_separated=True, stdin=Pipe(b"a\nb.jpg\0{c}.jpg\0"))
    assert rows_of(found, ["name"]) == [{"name": "a\nb.jpg"}, {"name": "{c}.jpg"}]


@pytest.mark.parametrize("data", [b'\n {"n": 1}\n{"n": 2}\n', b' [{"n": 1}, {"n": 2}]'])
def test_json_at_standard_input_is_a_table(data):
    found = open_index("-", stdin=Pipe(data))
    assert found.links == ()
    assert rows_of(found) == rows_of(found) == [{"n": 1}, {"n": 2}]


def test_a_stream_is_read_on_demand_and_can_be_read_again(monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    data = b"".join(b'{"n": %d}\n' % n for n in range(5000))
    pipe = Pipe(data)
    found = open_index("-", stdin=pipe)
    next(found.batches())
    assert pipe.read_so_far <= 3000
    first, second = found.batches(), found.batches()
    mixed = [next(first), next(second), *first]
    assert sum(batch.num_rows for batch in mixed) - mixed[1].num_rows == 5000
    assert found.sum() == open_index("-", stdin=Pipe(data)).sum()
    assert found.count("n >= 4000") == 1000


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b" \n", {}, "-: standard input is empty"),
        (b"a.jpg\ncaf\xe9.jpg\n", {}, "-: line 2: byte 0xe9 is not UTF-8"),
        (b"a.jpg\0b.jpg\0", {}, "-: line 1: 'a.jpg\\\\x00b.jpg\\\\x00' contains a NUL"),
        (b"x" * 100_000, {}, "-: line 1: address is longer than 65536 bytes"),
        (
            b'{"n": 1}\n{"n": "x"}',
            {},
            "-: line 2: column 'n' contains text; earlier rows contain a number",
        ),
    ],
)
def test_invalid_standard_input_is_reported(data, options, message):
    with pytest.raises(FormatError) as caught:
        rows_of(open_index("-", stdin=Pipe(data), **options))
    assert str(caught.value) == message


def test_standard_input_cannot_be_combined_with_files():
    with pytest.raises(
        UsageError, match=r"^- \(standard input\) cannot be combined with other indexes$"
    ):
        open_index(["-", "x.csv"])


# -- folders

NAME = st.lists(
    st.text(st.sampled_from("ab.-"), min_size=1, max_size=4).filter(lambda part: part.strip(".")),
    min_size=1,
    max_size=3,
).map("/".join)


@settings(max_examples=200, deadline=None)
@given(st.sets(NAME, max_size=12))
def test_files_are_grouped_by_key(names):
    wanted: dict[str, dict[str, str]] = {}
    alone: list[str] = []
    for name in names:
        stem, _, extension = name.rpartition(".")
        if any(part.startswith(".") for part in name.split("/")):
            continue
        if not extension or "/" in extension or not stem:
            alone.append(name)
        else:
            wanted.setdefault(stem, {})[extension] = name
    found = list(groups(Entry(name, 1) for name in sorted(names, key=str.encode)))
    assert {group.key: group.files for group in found if group.files} == wanted
    assert sorted(group.key for group in found if not group.files) == sorted(alone)
    assert len(found) == len(wanted) + len(alone)


def pictures(count=3) -> dict[str, str]:
    return {
        f"{folder}/{n:03}.{kind}": f"{folder} {n} {kind}"
        for folder in "ab"
        for n in range(count)
        for kind in ("jpg", "txt", "meta.json")
    }


def test_files_with_the_same_key_are_one_row(tmp_path):
    made(tmp_path, pictures())
    found = open_folder(str(tmp_path))
    assert (found.schema.names, found.rows, found.links, found.key, found.notes) == (
        ["key", "jpg", "meta.json", "txt"],
        6,
        ("jpg", "meta.json", "txt"),
        "key",
        (),
    )
    ((batch, flaws),) = found.contents()
    assert flaws == []
    assert batch.schema.equals(filled(found.schema, found.links), check_metadata=True)
    assert batch.to_pylist() == [
        {
            "key": f"{folder}/{n:03}",
            **{kind: f"{folder} {n} {kind}".encode() for kind in ("jpg", "meta.json", "txt")},
        }
        for folder in "ab"
        for n in range(3)
    ]
    assert {
        name: (batch.schema.field(name).metadata or {}).get(b"encoding")
        for name in batch.schema.names
    } == {
        "key": None,
        "jpg": None,
        "meta.json": b"json",
        "txt": b"str",
    }


def test_only_requested_columns_determine_the_rows_and_are_read(tmp_path):
    made(tmp_path, {**pictures(2), "c/0.txt": "alone", "d/0.png": "other"})
    found = open_folder(str(tmp_path), columns=["txt", "key"])
    assert (found.schema.names, found.rows) == (["key", "txt"], 5)
    assert found.notes == ("skipped 1 key without txt: d/0",)


def test_keys_without_the_requested_columns_are_counted_and_named(tmp_path):
    files = {
        **pictures(4),
        "README": "x",
        ".hidden/x.jpg": "x",
        "a/.DS_Store": "x",
        "c.txt": "x",
        "d.txt": "x",
        "A.JPG": "x",
    }
    del files["b/002.txt"]
    made(tmp_path, files)
    found = open_folder(str(tmp_path))
    assert found.notes == (
        "skipped 2 hidden files: .hidden/x.jpg, a/.DS_Store",
        "skipped 1 README or LICENSE file: README",
    )
    assert [row["key"] for row in rows_of(found) if None in row.values()] == [
        "A",
        "b/002",
        "c",
        "d",
    ]
    assert rows_of(found)[0] == {"key": "A", "jpg": "A.JPG", "meta.json": None, "txt": None}


def test_a_file_that_cannot_be_read_is_a_flaw_of_its_row(tmp_path):
    made(tmp_path, pictures(2))
    (tmp_path / "a/001.jpg").unlink()
    os.symlink("/etc/passwd", tmp_path / "a/001.jpg")
    (tmp_path / "b/000.txt").write_bytes(bytes(1000))
    found = open_folder(str(tmp_path))
    ((batch, flaws),) = found.contents(limits=Limits(max_bytes=500))
    assert [(flaw.row, flaw.column, type(flaw.error)) for flaw in flaws] == [
        (1, "jpg", UnsafeError),
        (2, "txt", ReachError),
    ]
    assert str(flaws[1].error) == f"{tmp_path}/b/000.txt: object is 1.0 kB; the maximum is 500 B"
    assert [row["jpg"] is None for row in batch.to_pylist()] == [False, True, False, False]


@pytest.mark.parametrize(
    ("files", "columns", "message", "hint"),
    [
        (
            {"README": "x", "Thumbs.db": "x"},
            None,
            "d: no data files with extensions",
            "Found 1 desktop file: Thumbs.db; 1 file without an extension: README.",
        ),
        (
            {"a.jpg": "x", "a.JPG": "x"},
            None,
            "d: a.JPG and a.jpg have the same key 'a' and extension 'jpg'",
            "Rename one of the files.",
        ),
        (
            {"a.jpg": "x", "a.txt": "x"},
            ["png"],
            "d: no file has the extension 'png'",
            "Choose from jpg, txt.",
        ),
    ],
)
def test_a_folder_without_rows_is_reported(tmp_path, files, columns, message, hint):
    made(tmp_path / "d", files)
    assert refusal(tmp_path, lambda: open_folder(str(tmp_path / "d"), columns=columns)) == (
        message,
        hint,
    )


def test_a_folder_that_changes_while_it_is_read_is_an_error(tmp_path):
    made(tmp_path, pictures())
    found = open_folder(str(tmp_path))
    (tmp_path / "b/new.jpg").write_text("x")
    message, hint = refusal(tmp_path, lambda: rows_of(found))
    assert (message, hint) == (
        f"{tmp_path}: the folder changed while it was read",
        "Run the command again when no other process writes the folder.",
    )


def test_a_column_may_be_called_key(tmp_path):
    made(tmp_path, {"a.key": "1", "a.jpg": "2"})
    found = open_folder(str(tmp_path))
    assert (found.key, rows_of(found)) == (
        "__key__",
        [{"__key__": "a", "jpg": "a.jpg", "key": "a.key"}],
    )


def test_the_checksum_changes_with_the_folder(tmp_path):
    made(tmp_path, pictures())
    before = open_folder(str(tmp_path)).sum()
    assert open_folder(str(tmp_path)).sum() == before
    (tmp_path / "a/000.jpg").write_text("longer than it was")
    assert open_folder(str(tmp_path)).sum() != before


def test_files_are_read_in_order_with_bounded_read_ahead(tmp_path):
    rng = random.Random(7)
    files = {f"{n:04}.bin": rng.randbytes(rng.choice([0, 10, 100_000])) for n in range(300)}
    made(tmp_path, files)
    found = open_folder(str(tmp_path))
    for ahead in (1, 150_000, 1 << 30):
        batches = [batch for batch, _ in found.contents(limits=Limits(ahead_bytes=ahead, jobs=5))]
        assert [data for batch in batches for data in batch.column("bin").to_pylist()] == list(
            files.values()
        )
        assert max(batch.nbytes for batch in batches) < 5 << 20


def test_closing_early_ends_all_threads(tmp_path):
    made(tmp_path, {f"{n:04}.bin": bytes(10_000) for n in range(3000)})
    reading = open_folder(str(tmp_path)).contents(limits=Limits(ahead_bytes=20_000))
    next(reading)
    reading.close()


def test_missing_folders_and_addresses_that_cannot_be_listed_are_errors(tmp_path, web):
    with pytest.raises(MissingError):
        open_folder(str(tmp_path / "no") + "/")
    with pytest.raises(UsageError):
        open_folder(web.url("/d/"))


def test_local_files_in_json_are_allowed_by_the_guard(tmp_path):
    made(tmp_path, {"a.json": json.dumps([{"n": 1}]), "x/l.txt": "../a.json"})
    assert rows_of(open_index(str(tmp_path / "x/l.txt"), guard=Guard(allow_local=True))) == [
        {"n": 1}
    ]
