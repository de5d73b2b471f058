"""Shards listed twice, as a shell does with `out/*`, are an error that names a shard and both
lists.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.compat.ffrecord import FileWriter
from flarecli.errors import UsageError
from flarecli.model import Settings
from flarecli.write import Writer

HINT = "hint: Pass only the folder or only its playlist.\n"


@pytest.fixture(autouse=True)
def two(tmp_path, in_tmp_path):
    """Create two datasets of two shards."""
    for name in ("d", "e"):
        with Writer(name, columns={"n": "int"}, settings=Settings(shard_rows=2)) as writer:
            for i in range(4):
                writer.write({"n": i})


@pytest.mark.parametrize(
    "command",
    [["cat"], ["inspect"], ["playlist"], ["unpack", "u"], ["pack", "o"]],
    ids=lambda one: one[0],
)
def test_all_files_of_a_packed_folder_are_an_error_that_names_both_lists(command, capfd):
    names = sorted(f"d/{name}" for name in os.listdir("d"))
    assert main([command[0], *names, *command[1:]]) == 2
    message = "error: d/shard.00000.mds: the shard is listed by d/index.json and by d/playlist.yaml, so it would be read twice\n"
    assert capfd.readouterr() == ("", message + HINT)
    assert sorted(os.listdir()) == ["d", "e"]


@pytest.mark.parametrize(
    "format", ["json", "csv", "ffrecord", "granular", "granular-refs", "webdataset"]
)
def test_repeated_shards_of_every_format_are_refused(format, tmp_path, capfd):
    column = {"ffrecord": "data", "webdataset": "txt"}.get(format, "n")
    with Writer(
        "x", format=format, columns={column: "bytes" if format == "ffrecord" else "str"}
    ) as writer:
        writer.write({column: b"a" if format == "ffrecord" else "a"})
    with pytest.raises(UsageError) as caught:
        flarecli.open([str(path) for path in sorted(Path("x").iterdir())])
    assert caught.value.message.endswith(", so it would be read twice")


def test_a_shard_and_its_list_are_refused(capfd):
    assert main(["cat", "d", "./d/shard.00001.mds"]) == 2
    message = "error: d/shard.00001.mds: the shard is listed by d/playlist.yaml and by d, so it would be read twice\n"
    assert capfd.readouterr() == ("", message + HINT)


def test_a_folder_without_a_list_and_its_shard_are_refused(capfd):
    for name in ("f/a.ffr", "f/b.ffr"):
        os.makedirs("f", exist_ok=True)
        with FileWriter(name, 1) as writer:
            writer.write_one(name.encode())
    for sources in (["f", "f/b.ffr"], ["f/b.ffr", "f"]):
        with pytest.raises(
            UsageError,
            match="^f/b.ffr: the shard is listed by f and by f, so it would be read twice(?m:$)",
        ):
            flarecli.open(sources)
    assert [row["data"] for row in flarecli.open(["f", "f"])] == [b"f/a.ffr", b"f/b.ffr"] * 2
    assert [row["data"] for row in flarecli.open(["f/b.ffr", "f/a.ffr", "f/b.ffr"])] == [
        b"f/b.ffr",
        b"f/a.ffr",
        b"f/b.ffr",
    ]


def test_the_same_address_given_twice_is_read_twice():
    assert (
        len(flarecli.open(["d", "d"]))
        == len(flarecli.open(["d", str(Path("d").absolute()), "d/playlist.yaml"])) * 2 // 3
        == 8
    )
    assert len(flarecli.open(["d", "e"])) == len(flarecli.open(["d/*.mds", "e/*.mds"])) == 8


def test_unselected_streams_may_share_shards():
    Path("p.yaml").write_text(
        "a:\n  content: [d/shard.00000.mds]\nb:\n  content: [d/shard.00001.mds]\n"
    )
    Path("q.yaml").write_text(
        "a:\n  content: [d/shard.00000.mds]\nb:\n  content: [e/shard.00001.mds]\n"
    )
    assert [row["n"] for row in flarecli.open(["p.yaml", "q.yaml"], streams=["b"])] == [2, 3, 2, 3]
    with pytest.raises(UsageError) as caught:
        flarecli.open(["p.yaml", "q.yaml"], streams=["a"])
    assert (
        str(caught.value)
        == "d/shard.00000.mds: the shard is listed by p.yaml and by q.yaml, so it would be read twice"
    )


def test_two_streams_of_a_playlist_may_list_the_same_shards(capfd):
    assert main(["playlist", "a=d", "b=d"]) == 0
    out = capfd.readouterr().out
    assert out.count("d/shard.00000.mds") == 2


def test_consecutive_shards_of_a_folder_share_a_playlist():
    (one,) = flarecli.read.resolve("d/shard.0000{0,1}.mds")
    assert (len(one.streams), list(one.streams[0].urls)) == (
        1,
        ["shard.00000.mds", "shard.00001.mds"],
    )
    assert (
        len(flarecli.read.resolve(["d/shard.00000.mds", "e/shard.00000.mds", "e/shard.00001.mds"]))
        == 2
    )
