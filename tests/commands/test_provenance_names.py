"""No output depends on how the path of a source was typed."""

import json
import os

import pytest

from flarecli import commands, playlists
from flarecli.storage import locate
from tests.outputs import files_of

WAYS = ["{0}", "./{0}", "../{1}/{0}", "{2}/{0}", "{2}/./{0}", "file://{2}/{0}", "../link/{0}"]


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Create the base folder of relative paths: an index with a valid row and three failing
    rows.
    """
    folder = tmp_path / "source"
    (folder / "pictures").mkdir(parents=True)
    (folder / "pictures" / "good.jpg").write_bytes(b"\xff\xd8\xff\xe0 good")
    (folder / "pictures" / "large.jpg").write_bytes(bytes(3000))
    (folder / "pictures" / "linked.jpg").symlink_to("nowhere.jpg")
    names = ["good.jpg", "none.jpg", "large.jpg", "linked.jpg"]
    rows = [f"{name[:-4]},pictures/{name}\n" for name in names]
    (folder / "index.csv").write_text("key,file\n" + "".join(rows))
    (folder / "more.csv").write_text("key,file\nother,pictures/good.jpg\nlast,pictures/none.jpg\n")
    (tmp_path / "link").symlink_to("source")
    monkeypatch.chdir(folder)
    return folder


def outputs(source, name, do):
    """Return the output of `do` for each spelling of the name."""
    out = []
    for number, way in enumerate(WAYS):
        do(way.format(name, source.name, source), str(source.parent / f"out{number}"))
        out.append(files_of(source.parent / f"out{number}"))
    return out


def packed(address, out):
    commands.pack(address, out, fetch=["file:data"], key="key", on_error="skip", max_object=2000)


def test_a_pack_of_an_index_does_not_depend_on_the_typed_path(source):
    first, *others = outputs(source, "index.csv", packed)
    assert all(other == first for other in others)
    assert [json.loads(line) for line in first["failed.jsonl"].splitlines()] == [
        {"file": "index.csv", "row": row, "key": key, "column": "data", "kind": kind, "reason": why}
        for row, key, kind, why in [
            (1, "none", "missing", "pictures/none.jpg: no such file or folder"),
            (2, "large", "large", "pictures/large.jpg: larger than the limit of 2000 bytes"),
            (
                3,
                "linked",
                "unsafe",
                "pictures/linked.jpg: is a symbolic link; its target may be outside the folder",
            ),
        ]
    ]


def test_a_pack_of_a_folder_does_not_depend_on_the_typed_path(source):
    first, *others = outputs(
        source, "pictures", lambda address, out: commands.pack(address, out, on_error="skip")
    )
    assert all(other == first for other in others)
    assert json.loads(first["failed.jsonl"].splitlines()[0])["reason"] == (
        "linked.jpg: is a symbolic link; its target may be outside the folder"
    )


def test_a_conversion_does_not_depend_on_the_typed_path(source):
    commands.pack("index.csv", "dataset")
    first, *others = outputs(source, "dataset", commands.pack)
    assert all(other == first for other in others)


def test_an_unpacked_index_does_not_depend_on_the_typed_path(source):
    def unpacked(address, out):
        commands.unpack(address, out, fetch=["file"], key="key", on_error="skip")

    first, *others = outputs(source, "index.csv", unpacked)
    assert all(other == first for other in others)
    assert b'"file": "index.csv"' in first["failed.jsonl"]


def recorded_address(out):
    return (
        playlists.read(locate(str(out)) / "playlist.yaml").streams[0].headers["source"]["address"]
    )


def test_several_files_have_the_name_of_their_folder_and_failed_rows_that_of_their_file(source):
    ways = [
        ["index.csv", "more.csv"],
        ["../source/index.csv", f"{source}/more.csv"],
        [f"{source}/index.csv", "more.csv"],
        ["*.csv"],
        [f"{source}/*.csv"],
    ]
    result = []
    for number, addresses in enumerate(ways):
        out = source.parent / f"out{number}"
        packed(addresses, str(out))
        result.append(files_of(out))
    assert all(one == result[0] for one in result)
    assert recorded_address(source.parent / "out0") == "source"
    lines = [json.loads(line) for line in result[0]["failed.jsonl"].splitlines()]
    assert [line["file"] for line in lines] == ["index.csv"] * 3 + ["more.csv"]


def test_files_of_several_folders_are_named_relative_to_their_common_folder(source):
    (source / "deep").mkdir()
    (source / "deep" / "one.csv").write_text("key,file\na,none.jpg\n")
    packed(["more.csv", os.path.join("deep", "one.csv")], str(source.parent / "out"))
    lines = [
        json.loads(line) for line in files_of(source.parent / "out")["failed.jsonl"].splitlines()
    ]
    assert [line["file"] for line in lines] == ["more.csv", "deep/one.csv"]


def test_a_pack_is_resumed_under_another_path_to_the_same_bytes(source):
    packed("index.csv", str(source.parent / "whole"))
    unfinished = source.parent / "out"
    packed("index.csv", str(unfinished))
    packed_again = commands.pack(
        f"{source}/index.csv",
        str(unfinished),
        fetch=["file:data"],
        key="key",
        on_error="skip",
        max_object=2000,
        resume=True,
    )
    assert packed_again.rows == 1
    assert files_of(unfinished) == files_of(source.parent / "whole")
