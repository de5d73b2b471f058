"""unpack: all bytes are written under checked names, no file is overwritten, and an interrupted
unpack is resumed.
"""

import csv
import io
import json
import os
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands
from flarecli.commands.unpacking import filenames as naming
from flarecli.commands.unpacking import target as outlets
from flarecli.errors import (
    BusyError,
    FormatError,
    MissingError,
    ReachError,
    UnfinishedError,
    UnsafeError,
    UsageError,
    ValueFitError,
)
from flarecli.formats.ffrecord import packed_folder
from flarecli.storage import Location
from flarecli.storage.local import LocalStore
from flarecli.write import Writer


def tree(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def dataset(folder: Path, columns: dict, rows: list[dict]) -> str:
    with Writer(str(folder), columns=columns) as writer:
        for row in rows:
            writer.write(row)
    return str(folder)


@pytest.mark.parametrize("kind", ["plain", "zipped"])
def test_every_image_becomes_a_file_named_by_its_key_and_other_columns_are_in_the_index(
    kind, request, tmp_path, samples
):
    to = tmp_path / "files"
    done = commands.unpack(str(request.getfixturevalue(kind)), str(to))
    files = tree(to)
    lines = [json.loads(line) for line in files.pop("index.jsonl").splitlines()]
    assert files == {f"{row['id']}.jpg": row["image"] for row in samples}
    assert lines == [
        {"id": row["id"], "image": f"{row['id']}.jpg", "text": row["text"]} for row in samples
    ]
    assert (done.files, done.rows, done.bytes, done.failed, done.index) == (
        35,
        35,
        35 * 504,
        0,
        f"{to}/index.jsonl",
    )


def test_rows_and_name_patterns_are_applied(plain, tmp_path, samples):
    done = commands.unpack(
        str(plain), str(tmp_path / "a"), rows="3:6", name="{row}/{text}.{ext}", index="none"
    )
    assert tree(tmp_path / "a") == {
        f"00000{i}/caption {i}.jpg": samples[i]["image"] for i in (3, 4, 5)
    }
    assert done.index is None
    commands.unpack(
        str(plain),
        str(tmp_path / "b"),
        where="id % 10 = 4",
        limit=2,
        name="{row:03d}.{ext}",
        columns=["image"],
    )
    assert sorted(tree(tmp_path / "b")) == ["004.jpg", "014.jpg", "index.jsonl"]


def test_without_a_key_rows_are_numbered(tmp_path):
    out = dataset(
        tmp_path / "d",
        {"x": "bytes", "n": "float64"},
        [{"x": b"%PDF-1", "n": float("nan")}, {"x": b"plain", "n": 0.5}],
    )
    commands.unpack(out, str(tmp_path / "f"))
    files = tree(tmp_path / "f")
    assert (
        files.pop("index.jsonl")
        == b'{"row": 0, "n": null, "x": "000000.pdf"}\n{"row": 1, "n": 0.5, "x": "000001.bin"}\n'
    )
    assert files == {"000000.pdf": b"%PDF-1", "000001.bin": b"plain"}


def test_several_files_of_a_row_have_the_name_of_their_column(tmp_path):
    out = dataset(
        tmp_path / "d",
        {"key": "str", "a": "bytes", "b": "pkl"},
        [{"key": "k/1", "a": b"x", "b": b"\x80\x04."}],
    )
    commands.unpack(out, str(tmp_path / "f"))
    assert sorted(tree(tmp_path / "f")) == ["index.jsonl", "k/1.a.bin", "k/1.b.pkl"]
    with pytest.raises(UsageError) as caught:
        commands.unpack(out, str(tmp_path / "g"), name="{key}.{ext}")
    assert str(caught.value) == "--name has the same result for the 2 files of a row"
    assert not (tmp_path / "g").exists()


def test_without_columns_of_bytes_texts_become_files(tmp_path):
    out = dataset(
        tmp_path / "d",
        {"id": "int", "words": "str", "more": "json"},
        [{"id": 1, "words": "one", "more": [1]}],
    )
    commands.unpack(out, str(tmp_path / "f"))
    assert tree(tmp_path / "f") == {
        "1.more.json": b"[1]",
        "1.words.txt": b"one",
        "index.jsonl": tree(tmp_path / "f")["index.jsonl"],
    }


def test_plain_files_are_unpacked_with_their_own_names(tmp_path):
    (tmp_path / "in" / "b").mkdir(parents=True)
    (tmp_path / "in" / "a.txt").write_bytes(b"one")
    (tmp_path / "in" / "b" / "c").write_bytes(b"")
    commands.unpack(str(tmp_path / "in"), str(tmp_path / "out"), index="none")
    assert tree(tmp_path / "out") == tree(tmp_path / "in")


def test_the_index_may_be_csv_or_parquet(plain, tmp_path, samples):
    expected = [
        {"id": row["id"], "image": f"{row['id']}.jpg", "text": row["text"]} for row in samples
    ]
    commands.unpack(str(plain), str(tmp_path / "c"), index="csv")
    with open(tmp_path / "c" / "index.csv", newline="") as file:
        assert list(csv.DictReader(file)) == [
            {name: str(value) for name, value in row.items()} for row in expected
        ]
    commands.unpack(str(plain), str(tmp_path / "p"), index="parquet")
    assert pq.read_table(tmp_path / "p" / "index.parquet").to_pylist() == expected


def test_a_tar_has_the_same_files_and_is_reproducible(plain, tmp_path):
    commands.unpack(str(plain), str(tmp_path / "f"))
    streams = [io.BytesIO(), io.BytesIO()]
    for stream in streams:
        done = commands.unpack(str(plain), "-", stream=stream)
        assert (done.files, done.index) == (35, None)
    assert (
        streams[0].getvalue() == streams[1].getvalue() and len(streams[0].getvalue()) % 10240 == 0
    )
    with tarfile.open(fileobj=io.BytesIO(streams[0].getvalue())) as tar:
        members = tar.getmembers()
        assert {one.name: tar.extractfile(one).read() for one in members} == tree(tmp_path / "f")
        assert {(one.mtime, one.uid, one.mode) for one in members} == {(0, 0, 0o644)}
        assert members[-1].name == "index.jsonl"


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (
            "../x",
            UnsafeError,
            "d/shard.00000.mds[1]: the name '../x.bin' points outside the folder",
        ),
        ("/etc/x", UnsafeError, "d/shard.00000.mds[1]: the name '/etc/x.bin' is not relative"),
        (
            "a\x1b[2J",
            UnsafeError,
            "d/shard.00000.mds[1]: the name 'a\\x1b[2J.bin' contains a control character",
        ),
        (
            "first",
            FormatError,
            "d/shard.00000.mds[1]: file name 'first.bin' is also the name of selected row 0",
        ),
        (
            "FIRST",
            FormatError,
            "d/shard.00000.mds[1]: file name 'FIRST.bin' is also the name of selected row 0",
        ),
        ("", ValueFitError, "d/shard.00000.mds[1]: column 'key' is empty, so the file has no name"),
        (
            ".flare/journal",
            FormatError,
            "d/shard.00000.mds[1]: file name '.flare/journal.bin' is reserved by flare",
        ),
    ],
)
def test_invalid_names_are_refused_before_the_first_file(
    tmp_path, in_tmp_path, key, error, message
):
    dataset(
        tmp_path / "d",
        {"key": "str", "x": "bytes"},
        [{"key": "first", "x": b"1"}, {"key": key, "x": b"2"}],
    )
    with pytest.raises(error) as caught:
        commands.unpack("d", "f")
    assert str(caught.value).replace("*", "bin") == message
    assert sorted(os.listdir(tmp_path)) == ["d"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (
            ["a", "b", "A.txt/c"],
            "d/shard.00000.mds[2]: file name 'A.txt/c.txt' is in a folder with the same name as the file of selected row 0",
        ),
        (
            ["a.txt/b/c", "a"],
            "d/shard.00000.mds[0]: file name 'a.txt/b/c.txt' is in a folder with the same name as the file of selected row 1",
        ),
    ],
)
def test_a_file_with_the_name_of_a_folder_is_refused_before_the_first_file(
    tmp_path, in_tmp_path, keys, message
):
    dataset(tmp_path / "d", {"key": "str", "x": "str"}, [{"key": key, "x": "1"} for key in keys])
    with pytest.raises(FormatError) as caught:
        commands.unpack("d", "f")
    assert str(caught.value) == message
    assert sorted(os.listdir(tmp_path)) == ["d"]


def test_rows_whose_key_is_not_a_file_name_can_be_skipped_and_are_listed(tmp_path):
    keys = ["a", "", "b", "../c", "d\x1b"]
    out = dataset(
        tmp_path / "d", {"key": "str", "x": "bytes"}, [{"key": key, "x": b"1"} for key in keys]
    )
    done = commands.unpack(out, str(tmp_path / "f"), on_error="skip")
    assert (done.rows, done.files, done.failed, done.reasons) == (
        2,
        2,
        3,
        {"unsafe": 2, "value": 1},
    )
    again = commands.unpack(out, str(tmp_path / "f"), on_error="skip", resume=True)
    assert (again.failed, again.reasons) == (done.failed, done.reasons)
    files = tree(tmp_path / "f")
    assert sorted(files) == ["a.bin", "b.bin", "failed.jsonl", "index.jsonl"]
    failed = [json.loads(line) for line in files["failed.jsonl"].splitlines()]
    assert [
        (one["row"], one["key"], one["column"], one["kind"], one["reason"].replace("*", "bin"))
        for one in failed
    ] == [
        (1, "", "key", "value", "column 'key' is empty, so the file has no name"),
        (3, "../c", "key", "unsafe", "the name '../c.bin' points outside the folder"),
        (4, "d\x1b", "key", "unsafe", "the name 'd\\x1b.bin' contains a control character"),
    ]


def test_members_of_a_tar_are_unpacked_with_their_own_names(tmp_path):
    table = pa.table(
        {
            "key": ["a", "b/c"],
            "raw.bin": [b"1", b"2"],
            "jpg": [b"\xff\xd8\xff1", b"\xff\xd8\xff2"],
            "mask.png": [b"\x89PNG\r\n\x1a\n", None],
            "txt": ["x", "y"],
        }
    )
    pq.write_table(table, tmp_path / "i.parquet")
    commands.pack(
        str(tmp_path / "i.parquet"), str(tmp_path / "tars"), format="webdataset", key="key"
    )
    commands.unpack(
        str(tmp_path / "tars"), str(tmp_path / "f"), columns=["raw.bin", "jpg", "mask.png"]
    )
    assert sorted(tree(tmp_path / "f")) == [
        "a.jpg",
        "a.mask.png",
        "a.raw.bin",
        "b/c.jpg",
        "b/c.raw.bin",
        "index.jsonl",
    ]


def test_a_file_may_not_have_the_name_of_a_folder_of_an_earlier_batch():
    schema = pa.schema([(naming.ROW, pa.int64()), ("key", pa.string()), ("x", pa.string())])
    taken = naming.UsedNames(naming.NamePattern(None, "key", schema, ["x"], 1), (), 1)
    taken.add(
        pa.record_batch([[0, 1, 2], ["a.txt/b", "a.txt/c", "a/b"], ["", "", ""]], schema=schema),
        "d[{}]".format,
    )
    taken.add(pa.record_batch([[3], ["a.txt/d"], [""]], schema=schema), "d[{}]".format)
    with pytest.raises(FormatError) as caught:
        taken.add(pa.record_batch([[4, 5], ["e", "a"], ["", ""]], schema=schema), "d[{}]".format)
    message = "d[5]: file name 'a.txt' is also the name of a folder with a file of another row"
    assert str(caught.value) == message


def test_a_file_with_the_name_of_the_index_is_refused(tmp_path):
    out = dataset(tmp_path / "d", {"key": "str", "x": "json"}, [{"key": "index", "x": 1}])
    with pytest.raises(FormatError, match="reserved by flare"):
        commands.unpack(out, str(tmp_path / "f"), name="{key}.jsonl")


def test_a_folder_that_is_not_empty_is_refused_with_a_hint(plain, tmp_path):
    to = tmp_path / "f"
    to.mkdir()
    (to / "mine").write_text("mine")
    for options in ({}, {"overwrite": True}, {"resume": True}):
        with pytest.raises(UsageError) as caught:
            commands.unpack(str(plain), str(to), **options)
        assert str(caught.value) == f"{to}: output folder is not empty"
        hint = "Use --resume to continue an unfinished unpack, --overwrite to replace an unpacked folder, or specify another folder."
        replacing = "Specify another folder: --overwrite replaces only output of `flare unpack`."
        assert caught.value.hint == (replacing if "overwrite" in options else hint)
    assert tree(to) == {"mine": b"mine"}


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
def test_overwrite_replaces_only_an_unpacked_folder(plain, tmp_path, kind):
    to = tmp_path / "f"
    commands.unpack(str(plain), str(to), index=kind)
    (to / "mine").write_text("mine")
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(plain), str(to), overwrite=True, rows="0")
    assert str(caught.value) == f"{to}: contains another file 'mine': index.{kind} does not list it"
    (to / "mine").unlink()
    commands.unpack(str(plain), str(to), overwrite=True, rows="0")
    assert sorted(tree(to)) == ["0.jpg", "index.jsonl"]
    assert os.listdir(tmp_path) == ["f"]


def interrupt_after(monkeypatch, after: int) -> None:
    """Simulate a full disk at the file with number `after`."""
    put, count = outlets.Folder.write, iter(range(after))

    def failing(self, name, data):
        if next(count, None) is None:
            raise ReachError("the disk is full", where=name)
        put(self, name, data)

    monkeypatch.setattr(outlets.Folder, "write", failing)


@pytest.mark.parametrize("options", [{}, {"where": "id > 2"}, {"limit": 30}, {"rows": "::-1"}])
@pytest.mark.parametrize("after", [0, 5, 13, 24])
def test_an_interrupted_unpack_is_resumed_to_the_same_bytes(
    plain, tmp_path, monkeypatch, after, options
):
    complete, to = tmp_path / "whole", tmp_path / "f"
    commands.unpack(str(plain), str(complete), **options)
    with monkeypatch.context() as patch:
        interrupt_after(patch, after)
        with pytest.raises(ReachError):
            commands.unpack(str(plain), str(to), **options)
    if to.exists():
        with pytest.raises(UnfinishedError) as caught:
            commands.unpack(str(plain), str(to), **options)
        assert str(caught.value) == f"{to}: folder contains an unfinished unpack"
        with pytest.raises(UsageError, match="from a different source or with different options"):
            commands.unpack(str(plain), str(to), resume=True, name="{row}.x", **options)
    done = commands.unpack(str(plain), str(to), resume=True, **options)
    assert tree(to) == tree(complete)
    assert done.rows == len(tree(complete)) - 1
    assert (
        commands.unpack(str(plain), str(to), resume=True, **options).rows == done.rows
    )  # a finished unpack is not an error


def test_a_resume_keeps_only_files_with_their_sizes(plain, tmp_path, monkeypatch):
    complete, to = tmp_path / "whole", tmp_path / "f"
    commands.unpack(str(plain), str(complete))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 25)
        with pytest.raises(ReachError):
            commands.unpack(str(plain), str(to))
    (to / "3.jpg").write_bytes(b"")  # as after a power loss
    (to / "12.jpg").unlink()
    commands.unpack(str(plain), str(to), resume=True)
    assert tree(to) == tree(complete)


def test_a_journal_truncated_at_any_byte_is_resumed(plain, tmp_path, monkeypatch):
    complete = tmp_path / "whole"
    commands.unpack(str(plain), str(complete))
    for cut in (0, 5, 400, 1500, 2500):
        to = tmp_path / f"f{cut}"
        with monkeypatch.context() as patch:
            interrupt_after(patch, 25)
            with pytest.raises(ReachError):
                commands.unpack(str(plain), str(to))
        os.truncate(to / ".flare" / "journal", cut)
        commands.unpack(str(plain), str(to), resume=True)
        assert tree(to) == tree(complete)


def test_overwrite_starts_an_unfinished_unpack_again(plain, tmp_path, monkeypatch):
    to = tmp_path / "f"
    with monkeypatch.context() as patch:
        interrupt_after(patch, 15)
        with pytest.raises(ReachError):
            commands.unpack(str(plain), str(to))
    commands.unpack(str(plain), str(to), overwrite=True, rows="1", index="none")
    assert sorted(tree(to)) == ["1.jpg"]


def test_an_unfinished_unpack_is_refused_by_name(plain, tmp_path, monkeypatch):
    monkeypatch.setattr(outlets.Folder, "finish", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        commands.unpack(str(plain), str(tmp_path / "f"))
    with pytest.raises(UnfinishedError) as caught:
        commands.inspect(str(tmp_path / "f"))
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}/f: folder contains an unfinished unpack",
        "Run the same `flare unpack` command again with --resume.",
    )


def test_two_unpacks_into_one_folder_are_not_mixed(plain, tmp_path):
    to = tmp_path / "f"
    first = outlets.Folder(str(to), {"x": 1}, resume=False, overwrite=False)
    with pytest.raises(BusyError, match="another unpack is writing to this folder"):
        commands.unpack(str(plain), str(to), resume=True)
    first.abandon()
    assert not to.exists()


def test_damage_ends_the_unpack_and_names_the_row(out, tmp_path):
    path = out / "shard.00001.mds"
    data = bytearray(path.read_bytes())
    start = int.from_bytes(data[8:12], "little")
    data[start + 1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError) as caught:
        commands.unpack(str(out), str(tmp_path / "f"))
    assert caught.value.where == f"{path}[1]"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "{who}.{ext}"}, "--name contains the unknown column {who}"),
        ({"name": "{key"}, "--name '{key': expected '}' before end of string"),
        ({"name": "{row!r}.{ext}"}, "--name '{row!r}.{ext}': invalid format of {row}"),
        ({"name": "{row:x}.{ext}"}, "--name '{row:x}.{ext}': invalid format of {row}"),
        (
            {"name": "{row:0999999999d}.{ext}"},
            "--name '{row:0999999999d}.{ext}': invalid format of {row}",
        ),
        ({"name": "{key:9}.{ext}"}, "--name '{key:9}.{ext}': invalid format of {key}"),
        ({"key": "nope"}, "--key: no column 'nope'"),
        ({"columns": ["nope"]}, "--columns: no column 'nope'"),
        ({"columns": ["id"]}, "no column to write as files"),
        ({"index": "xml"}, "--index: expected jsonl, csv, parquet or none, got 'xml'"),
        ({"on_error": "stop"}, "--on-error: expected fail or skip, got 'stop'"),
    ],
)
def test_invalid_options_are_refused_before_the_folder_is_created(
    plain, tmp_path, options, message
):
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(plain), str(tmp_path / "f"), **options)
    assert caught.value.message == message
    assert os.listdir(tmp_path) == []


def test_an_index_without_fetch_is_refused(tmp_path):
    (tmp_path / "i.csv").write_text("id,url\n1,a\n")
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "i.csv"), str(tmp_path / "f"), columns=["id"])
    assert caught.value.hint == "Select the link column with --fetch."
    with pytest.raises(UsageError, match="rows of a table cannot be selected by number"):
        commands.unpack(str(tmp_path / "i.csv"), str(tmp_path / "f"), rows="1")


@pytest.mark.parametrize("name", ["set.json", "set.csv", "set.parquet", "set.txt"])
def test_a_dataset_in_a_folder_with_the_suffix_of_an_index_is_a_dataset(
    plain, tmp_path, name, samples
):
    folder = shutil.copytree(plain, tmp_path / name)
    assert commands.unpack(str(folder), str(tmp_path / "files")).rows == len(samples)
    assert commands.pack(str(folder), str(tmp_path / "again")).rows == len(samples)


def test_a_missing_source_is_an_error_and_no_folder_is_created(tmp_path):
    with pytest.raises(MissingError):
        commands.unpack(str(tmp_path / "none"), str(tmp_path / "f"))
    assert os.listdir(tmp_path) == []


def test_a_packed_folder_is_unpacked_unchanged(tmp_path):
    tree = {"b.txt": b"b", "a/x.txt": b"ax", "a/z/y": b"", "é.txt": bytes(9)}
    packed_folder.write_folder(Location(LocalStore(str(tmp_path), None)), "packed.ffr", tree)
    unpacked = commands.unpack(str(tmp_path / "packed.ffr"), str(tmp_path / "out"), index="none")
    assert unpacked.files == len(tree)
    assert {name: (tmp_path / "out" / name).read_bytes() for name in tree} == tree


def test_names_that_are_equal_on_some_file_system_are_refused(tmp_path):
    golden = Path(__file__).parents[3] / "fixtures" / "ffrecord" / "packed" / "data"
    with pytest.raises(FormatError) as caught:
        commands.unpack(str(golden), str(tmp_path / "out"))
    assert str(caught.value) == f"{golden}[7]: file name 'b.txt' is also the name of selected row 3"
    assert commands.unpack(str(golden), str(tmp_path / "out"), name="{row}.{ext}").files == 11


def test_a_key_column_that_should_become_a_file_is_refused_with_a_hint(tmp_path):
    with Writer(str(tmp_path / "d"), columns={"id": "str", "n": "int"}) as writer:
        writer.write({"id": "a", "n": 1})
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "d"), str(tmp_path / "out"), columns=["id"])
    assert (
        caught.value.hint
        == "Column 'id' is the key. Select other byte or text columns with -c, or another key with --key."
    )
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "d"), str(tmp_path / "out"), columns=["n"])
    assert caught.value.hint == "Select byte or text columns with -c."


def test_rows_of_numbers_are_refused_with_the_command_that_writes_them(tmp_path):
    (tmp_path / "x.csv").write_text("id,n\n1,2.5\n")
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "x.csv"), str(tmp_path / "out"))
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}/x.csv: no column to write as files",
        "Use `flare cat SOURCE --to csv` to write the rows as text.",
    )


def test_a_column_without_a_name_contains_no_file_extensions(tmp_path):
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/a.txt").write_bytes(b"text")
    (tmp_path / "x.csv").write_text(",file\n7,photos/a.txt\n")
    commands.pack(str(tmp_path / "x.csv"), str(tmp_path / "d"), fetch=["file"])
    commands.unpack(str(tmp_path / "d"), str(tmp_path / "out"))
    assert (tmp_path / "out/000000.bin").read_bytes() == b"text"
    (line,) = (tmp_path / "out/index.jsonl").read_text().splitlines()
    assert json.loads(line) == {"row": 0, "": 7, "file": "000000.bin"}
    (tmp_path / "x.csv").write_text("n,\n1,\n")
    commands.pack(str(tmp_path / "x.csv"), str(tmp_path / "d"), overwrite=True)
    commands.unpack(str(tmp_path / "d"), str(tmp_path / "out"), overwrite=True)
    assert (tmp_path / "out/000000.txt").read_bytes() == b""


def test_a_key_of_bytes_that_should_become_a_file_is_refused(tmp_path):
    pq.write_table(pa.table({"k": pa.array([b"a", b"b"])}), tmp_path / "x.parquet")
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "x.parquet"), str(tmp_path / "out"), key="k")
    assert caught.value.message == "no column to write as files"


def test_a_fetched_column_with_the_name_of_another_is_refused(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"data")
    (tmp_path / "i.csv").write_text("blob,url\nx,a.bin\n")
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "i.csv"), str(tmp_path / "out"), fetch=["url:blob"])
    assert str(caught.value) == "two columns would be named 'blob'"
