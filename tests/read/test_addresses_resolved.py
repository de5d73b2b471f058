"""Globs and limits of addresses on the command line and in lists of indexes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from flarecli.__main__ import main
from flarecli.errors import UsageError
from flarecli.ingest import open_index
from flarecli.read import open as open_dataset
from flarecli.storage import locate
from flarecli.write import Writer


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (["*.csv"], ["a.csv"]),
        (["**", "*.csv"], ["a.csv", "x/b.csv", "x/y/c.csv"]),
        (["?", "b*"], ["x/b.csv"]),
    ],
)
def test_files_are_listed_in_bytewise_order(tmp_path, pattern, found):
    for name in ("x/y/c.csv", "x/b.csv", "a.csv", ".hidden.csv", "a.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("n\n1\n")
    assert list(locate(str(tmp_path)).matching(pattern)) == found
    (tmp_path / "l.txt").write_text("/".join(pattern))
    assert open_index([str(tmp_path / "l.txt")]).rows in (len(found), None)


def test_too_many_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.storage.base.MAX_LISTED", 2)
    for name in "abc":
        (tmp_path / f"{name}.csv").write_text("n\n1\n")
    with pytest.raises(UsageError) as caught:
        list(locate(str(tmp_path)).matching(["*"]))
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}: contains more than 2 files",
        "Name a folder further down.",
    )


def test_a_glob_in_a_bucket_name_is_refused_in_a_list(tmp_path):
    (tmp_path / "l.txt").write_text("s3://b*/x.csv")
    with pytest.raises(UsageError) as caught:
        open_index([str(tmp_path / "l.txt")])
    assert (
        str(caught.value)
        == f"{tmp_path}/l.txt: line 1: the name of a bucket cannot contain *, ? or ["
    )
    with pytest.raises(UsageError) as caught:
        open_dataset("s3://b*/x.mds")
    assert str(caught.value) == "s3://b*/x.mds: the name of a bucket cannot contain *, ? or ["


def test_the_query_of_a_signed_address_does_not_hide_its_format(tmp_path, web, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Writer("d", columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    url = web.file("/d/shard.00000.mds", Path("d/shard.00000.mds").read_bytes())
    shutil.rmtree("d")
    Path("p.yaml").write_text(f"s:\n  content: ['{url}?X-Amz-Signature=abc']\n")
    assert main(["cat", "p.yaml", "--allow-host", f"127.0.0.1:{web.port}"]) == 0
    assert capfd.readouterr() == ('{"n": 7}\n', "")


@pytest.mark.parametrize("verb", ["verify", "cat", "inspect", "playlist"])
@pytest.mark.parametrize("address", ["/", "//", "/.", "file:///"])
def test_the_root_folder_is_refused(capfd, verb, address):
    assert main([verb, address]) == 2
    out, err = capfd.readouterr()
    assert (out, err.split(": ", 2)[2]) == (
        "",
        "refusing to read the root folder as a dataset\nhint: Pass the folder of the dataset.\n",
    )
