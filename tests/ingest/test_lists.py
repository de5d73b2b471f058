"""Kinds of index files by name, and lists of index files."""

import pyarrow as pa
import pyarrow.feather
import pytest

from flarecli.errors import (
    UnsafeError,
)
from flarecli.ingest import is_index, open_index
from flarecli.storage import Guard
from tests.ingest.samples import error_of, rows_of, write_files


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


def test_a_list_is_read_in_its_order(tmp_path, web):
    web.file("/d/far.csv", b"n\n9\n")
    write_files(
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
            "l.txt: line 1: the address '../a.csv' points outside the folder",
            "Pass --allow-local if you trust this dataset.",
        ),
        ({"l.txt": "a.csv\nx/*.csv"}, "l.txt: line 2: nothing matches 'x/*.csv'", ""),
        (
            {"l.txt": "../*.csv"},
            "l.txt: line 1: the address '../*.csv' points outside the folder",
            "Pass --allow-local if you trust this dataset.",
        ),
        (
            {"l.txt": "http://h/*.csv"},
            "l.txt: line 1: files on a web server cannot be listed",
            "Pass the address of each file, or use braces such as {00000..00127}.",
        ),
        ({"l.txt": "[a-]x.csv\n[z-a].csv"}, "l.txt: line 1: nothing matches '[a-]x.csv'", ""),
        (
            {"l.txt": "{1..9999999}.csv"},
            "l.txt: line 1: {1..9999999} expands to more than 1048576 addresses",
            "",
        ),
        ({"l.txt": "pipe://x"}, "l.txt: line 1: pipe:// addresses are not allowed in data", ""),
        ({"l.txt": "\n# nothing\n"}, "l.txt: the list contains no addresses", ""),
        (
            {"l.txt": b"caf\xe9.csv"},
            "l.txt: line 1: byte 3 is not UTF-8",
            "Save the file as UTF-8 text.",
        ),
        (
            {f"{n}.txt": f"{n + 1}.txt" for n in range(9)} | {"l.txt": "0.txt"},
            "2.txt: line 1: lists are nested more than 4 levels deep",
            "",
        ),
    ],
)
def test_an_invalid_list_is_reported_with_its_line(tmp_path, files, message, hint):
    write_files(tmp_path, {"a.csv": "n\n1\n", **files})
    found, said = error_of(tmp_path, lambda: rows_of(open_index(str(tmp_path / "l.txt"))))
    assert found == message
    assert (
        hint in said
        or hint == "The file is listed in line 1 of x/m.txt. The file is listed in line 2 of l.txt."
    )


def test_wildcards_and_braces_in_lists_are_expanded(tmp_path):
    write_files(
        tmp_path,
        {
            f"l/shards/{name}.csv": f"n\n{n}\n"
            for n, name in enumerate(["b", "a10", "a2", "deep/x", ".hidden"])
        },
    )
    write_files(tmp_path, {"l/shards/[odd]*.csv": "n\n7\n", "l/shards/note.md": "x"})
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
        write_files(tmp_path, {"l/split_file_paths.txt": lines})
        assert [
            row["n"] for row in rows_of(open_index(str(tmp_path / "l/split_file_paths.txt")))
        ] == wanted, lines
