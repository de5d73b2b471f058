"""pack of a folder, and of addresses on standard input: rows are selected by name, and only
selected files are read.
"""

import io
import json
import os
import random
import sys
import tarfile
from collections import defaultdict

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands, read
from flarecli.errors import MissingError, ReachError, UsageError
from flarecli.storage.local import LocalStore
from tests.commands.packing.note_collector import NoteCollector


def rows_of(out):
    data = read.Dataset(read.select_streams(result := read.resolve(str(out))), result)
    return [row for batch in data.scan() for row in batch.to_pylist()]


def body(name):
    """Return the content of a file: text, JSON, or bytes that start like a JPEG."""
    if name.endswith(".json"):
        return json.dumps({"name": name}).encode()
    return b"\xff\xd8\xff" * name.endswith(".jpg") + f"{name}!".encode()


def created(folder, names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body(name))
    return str(folder)


@pytest.fixture
def opened(monkeypatch):
    """Return the names of the files whose bytes are read."""
    names, complete = [], LocalStore.read_files

    def reading(store, paths, max_bytes, room):
        names.extend(path.rpartition("/")[2] for path in paths)
        return complete(store, paths, max_bytes, room)

    monkeypatch.setattr(LocalStore, "read_files", reading)
    return names


COLUMNS = {"jpg": "image", "txt": "text", "meta.json": "meta.json"}


def test_rows_of_a_folder_match_a_dictionary(tmp_path):
    chance = random.Random(5)
    names = [
        f"{part}/{i:03d}.{extension}"
        for part in ("a", "b", "b/c")
        for i in range(60)
        for extension in ("jpg", "txt", "meta.json")
        if extension == "jpg" or chance.random() > 0.05
    ]
    names += ["a/lonely.txt", "b/lonely.meta.json", "README"]
    collector = NoteCollector()
    done = commands.pack(
        created(tmp_path / "in", names), str(tmp_path / "out"), on_error="skip", progress=collector
    )
    groups = defaultdict(dict)
    for name in names:
        key, _, extension = name.rpartition("/")[2].partition(".")
        groups[f"{name.rpartition('/')[0]}/{key}"][extension] = name
    del groups["/README"]
    complete = {key: files for key, files in groups.items() if len(files) == 3}
    lacking = {
        key: sorted({"image", "text", "meta.json"} - {COLUMNS[one] for one in files})
        for key, files in groups.items()
        if len(files) < 3
    }
    assert [row["key"] for row in rows_of(tmp_path / "out")] == sorted(complete)
    for row in rows_of(tmp_path / "out"):
        files = complete[row["key"]]
        assert (row["image"], row["text"]) == (body(files["jpg"]), f"{files['txt']}!")
        assert json.loads(row["meta.json"]) == {"name": files["meta.json"]}
    assert (done.rows, done.failed, done.reasons) == (
        len(complete),
        len(lacking),
        {"incomplete": len(lacking)},
    )
    assert sorted(collector.failures) == sorted(
        (key, f"no {columns[0]} file for this key") for key, columns in lacking.items()
    )
    assert collector.notes == ["skipped 1 README or LICENSE file: README"]


def test_a_file_that_is_deleted_during_the_pack_is_a_failed_row(tmp_path, monkeypatch):
    folder = created(tmp_path / "in", [f"{i}.{kind}" for i in range(6) for kind in ("bin", "txt")])
    complete = LocalStore.read_files

    def reading(store, paths, max_bytes, room):
        return [
            MissingError("no such file or folder", where=store.show(path))
            if path == "3.txt"
            else value
            for path, value in zip(paths, complete(store, paths, max_bytes, room), strict=True)
        ]

    monkeypatch.setattr(LocalStore, "read_files", reading)
    done = commands.pack(folder, str(tmp_path / "out"), on_error="skip")
    assert (done.rows, done.failed, [row["key"] for row in rows_of(tmp_path / "out")]) == (
        5,
        1,
        ["0", "1", "2", "4", "5"],
    )
    (line,) = (tmp_path / "out/failed.jsonl").read_text().splitlines()
    output = {
        "file": "in",
        "row": 3,
        "key": "3",
        "column": "text",
        "kind": "missing",
        "reason": "3.txt: no such file or folder",
    }
    assert json.loads(line) == output
    with pytest.raises(ReachError) as caught:
        commands.pack(folder, str(tmp_path / "all"))
    assert str(caught.value) == f"{folder}[3]: 3: 3.txt: no such file or folder"
    assert (
        caught.value.hint == "Use --on-error skip to omit such rows and list them in failed.jsonl."
    )


def test_only_selected_files_are_read(tmp_path, opened):
    folder = created(
        tmp_path / "in", [f"{i:02d}.{kind}" for i in range(50) for kind in ("bin", "txt")]
    )
    commands.pack(folder, str(tmp_path / "one"), where="key like '%7'", limit=3)
    assert sorted(opened) == ["07.bin", "07.txt", "17.bin", "17.txt", "27.bin", "27.txt"]
    opened.clear()
    commands.pack(folder, str(tmp_path / "two"), where="text = '31.txt!'")
    assert sorted(opened) == sorted(["31.bin", *(f"{i:02d}.txt" for i in range(50))])
    assert rows_of(tmp_path / "two") == [{"bin": b"31.bin!", "key": "31", "text": "31.txt!"}]
    opened.clear()
    commands.pack(folder, str(tmp_path / "three"), limit=4, shuffle=1, columns=["text"])
    assert sorted(opened) == ["00.txt", "01.txt", "02.txt", "03.txt"]
    commands.pack(
        folder,
        str(tmp_path / "four"),
        where="SELECT key AS name, text AS caption FROM dataframe WHERE key > '47'",
    )
    assert [(row["name"], row["caption"]) for row in rows_of(tmp_path / "four")] == [
        ("48", b"48.txt!"),
        ("49", b"49.txt!"),
    ]


def test_a_resumed_pack_of_a_folder_reads_only_remaining_files(tmp_path, opened, monkeypatch):
    folder = created(tmp_path / "in", [f"{i:02d}.bin" for i in range(30)])
    commands.pack(folder, str(tmp_path / "whole"), shard_rows=5)
    complete = {path.name: path.read_bytes() for path in (tmp_path / "whole").iterdir()}
    reading = LocalStore.read_files

    def failing(store, paths, max_bytes, room):
        return [
            MissingError("no such file or folder", where=store.show(path))
            if path == "22.bin"
            else value
            for path, value in zip(paths, reading(store, paths, max_bytes, room), strict=True)
        ]

    with monkeypatch.context() as patch:
        patch.setattr(LocalStore, "read_files", failing)
        with pytest.raises(ReachError):
            commands.pack(folder, str(tmp_path / "out"), shard_rows=5)
    opened.clear()
    assert (
        commands.pack(folder, str(tmp_path / "out"), shard_rows=5, resume=True).resumed_rows == 20
    )
    assert min(name for name in opened if name.endswith(".bin")) == "20.bin"
    assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == complete


def members(folder):
    (name,) = [one for one in os.listdir(folder) if one.endswith(".tar")]
    with tarfile.open(f"{folder}/{name}") as tar:
        return {one.name: tar.extractfile(one).read() for one in tar}


def test_keys_are_the_sample_names_of_a_tar(tmp_path):
    folder = created(tmp_path / "in", ["a/000.jpg", "a/000.txt", "b/000.jpg", "b/000.txt"])
    commands.pack(folder, str(tmp_path / "one"), format="webdataset")
    assert members(tmp_path / "one") == {
        name: body(name) for name in ("a/000.jpg", "a/000.txt", "b/000.jpg", "b/000.txt")
    }
    pq.write_table(pa.table({"id": [7, 9], "text": ["x", "y"]}), tmp_path / "i.parquet")
    commands.pack(str(tmp_path / "i.parquet"), str(tmp_path / "two"), format="webdataset", key="id")
    assert members(tmp_path / "two") == {"7.text": b"x", "9.text": b"y"}
    commands.pack(
        str(tmp_path / "i.parquet"),
        str(tmp_path / "three"),
        format="webdataset",
        key="id",
        columns=["text"],
    )
    assert members(tmp_path / "three") == members(tmp_path / "two")
    assert [row["__key__"] for row in rows_of(tmp_path / "three")] == ["7", "9"]


def test_a_key_is_a_column_in_formats_without_sample_names(tmp_path):
    folder = created(tmp_path / "in", ["a/000.txt", "b/000.txt"])
    commands.pack(folder, str(tmp_path / "one"))
    assert rows_of(tmp_path / "one") == [
        {"key": "a/000", "text": "a/000.txt!"},
        {"key": "b/000", "text": "b/000.txt!"},
    ]


class Stdin:
    def __init__(self, data):
        self.buffer = io.BytesIO(data)


def test_a_missing_file_on_standard_input_is_a_failed_row(tmp_path, monkeypatch):
    folder = created(tmp_path / "in", ["x.bin", "y.bin"])
    lines = f"{folder}/x.bin\n{folder}/gone.bin\n{folder}/y.bin\n"
    monkeypatch.setattr(sys, "stdin", Stdin(lines.encode()))
    done = commands.pack("-", str(tmp_path / "out"), on_error="skip")
    assert (done.rows, done.failed) == (2, 1)
    assert [(row["name"], row["data"]) for row in rows_of(tmp_path / "out")] == [
        (f"{folder}/x.bin", b"x.bin!"),
        (f"{folder}/y.bin", b"y.bin!"),
    ]
    (line,) = (tmp_path / "out/failed.jsonl").read_text().splitlines()
    output = {
        "file": "-",
        "row": 1,
        "key": f"{folder}/gone.bin",
        "column": "data",
        "kind": "missing",
        "reason": f"{folder}/gone.bin: no such file or folder",
    }
    assert json.loads(line) == output


def test_a_folder_is_not_packed_into_itself(tmp_path, in_tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.txt").write_text("a")
    (tmp_path / "link").symlink_to("in")
    for source, out in (
        ("in", "in/out"),
        ("in/", f"{tmp_path}/in/deep/out/"),
        ("link", "in/out"),
        ("in", "link/out"),
        (f"file://{tmp_path}/in", "in/out"),
    ):
        for more in ({}, {"part_rows": 1}, {"dry_run": True}):
            with pytest.raises(UsageError) as caught:
                commands.pack(source, out, **more)
            assert str(caught.value) == f"{out}: the output folder is inside the folder to pack"
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a.txt", "in", "link"]
    assert commands.pack("in", "in2").rows == 1
