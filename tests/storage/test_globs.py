"""One dialect of wildcards for the user's own addresses: on a disk, as `file://`, and in a bucket
the same names match.
"""

from __future__ import annotations

import os

import pytest

from flarecli import storage
from flarecli.cli import run
from flarecli.errors import MissingError, ReachError, UsageError
from flarecli.read import expand

FILES = (
    "a.mds",
    "b.mds",
    "c.txt",
    ".h.mds",
    "e/a.mds",
    "e/f/g.mds",
    "e/.i/j.mds",
    ".k/l.mds",
    "[1].mds",
    "x{1}.mds",
)
PATTERNS = {
    "*.mds": ["[1].mds", "a.mds", "b.mds", "x{1}.mds"],
    "?.mds": ["a.mds", "b.mds"],
    "[!a].mds": ["b.mds"],
    "[a-b].mds": ["a.mds", "b.mds"],
    "[[]1].mds": ["[1].mds"],
    "[1].mds": ["[1].mds"],
    "**/*.mds": ["[1].mds", "a.mds", "b.mds", "e/a.mds", "e/f/g.mds", "x{1}.mds"],
    "**/**/g.*": ["e/f/g.mds"],
    "**/a.mds": ["a.mds", "e/a.mds"],
    "*/a.*": ["e/a.mds"],
    "e/**": ["e/a.mds", "e/f/g.mds"],
    "e/*": ["e/a.mds", "e/f"],
    "e/*/": ["e/f/"],
    "**/f": ["e/f"],
    ".*.mds": [".h.mds"],
    ".*/*.mds": [".k/l.mds"],
    "e/.*/*": ["e/.i/j.mds"],
    "{b,a}.md[s]": ["b.mds", "a.mds"],
    "[[x]{1}.mds": ["x{1}.mds"],
    "A*": None,
    "*[": None,
    "a.mds/*": None,
}


@pytest.fixture
def folder(tmp_path):
    for name in FILES:
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_bytes(b"x")
    return str(tmp_path / "d")


@pytest.fixture
def bucket(s3):
    for name in FILES:
        (storage.locate(s3) / "d" / name).write([b"x"])
    return f"{s3}/d"


def _matches(base):
    found = {}
    for pattern in PATTERNS:
        try:
            found[pattern] = [one.removeprefix(f"{base}/") for one in expand(f"{base}/{pattern}")]
        except MissingError as error:
            assert error.message == "nothing matches"
            found[pattern] = None
    return found


def test_the_same_matches_on_a_disk_and_as_a_file_address(folder):
    assert _matches(folder) == PATTERNS
    assert _matches(f"file://{folder}") == {
        pattern: found and [f"{folder}/{name}" if pattern != "[1].mds" else name for name in found]
        for pattern, found in PATTERNS.items()
    }


def test_the_same_matches_in_a_bucket(bucket):
    assert _matches(bucket) == PATTERNS


def test_a_pattern_from_the_working_folder_gives_names_from_there(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert expand("?.mds") == ["a.mds", "b.mds"]
    assert expand("./?.mds") == ["./a.mds", "./b.mds"]
    assert expand("*/../a.m?s") == ["e/../a.mds"]
    assert expand("**/g.mds") == ["e/f/g.mds"]


def test_a_pattern_may_begin_right_below_the_root(tmp_path):
    assert expand(f"/{tmp_path.parts[1][:-1]}[{tmp_path.parts[1][-1]}]") == [
        f"/{tmp_path.parts[1]}"
    ]


def test_no_sign_stops_at_a_line_break(folder):
    broken = f"{folder}/line\nbreak.tar"
    open(broken, "wb").close()
    assert expand(f"{folder}/l*.tar") == [broken]


def test_links_are_the_users_own_but_no_way_for_two_stars(folder):
    os.symlink("e", f"{folder}/link")
    os.symlink(".", f"{folder}/ring")
    assert expand(f"{folder}/li*/a.mds") == [f"{folder}/link/a.mds"]
    assert expand(f"{folder}/**/a.mds") == [f"{folder}/a.mds", f"{folder}/e/a.mds"]


def test_a_folder_that_cannot_be_listed_is_an_error(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("flarecli.storage.glob.os.scandir", refuse)
    with pytest.raises(ReachError) as caught:
        expand(f"{folder}/*/a.mds")
    assert str(caught.value) == f"{folder}: permission denied"


def test_no_pattern_and_too_many_files_are_said(folder, monkeypatch):
    with pytest.raises(UsageError, match=r"invalid pattern '\*\[z-a\]'"):
        expand(f"{folder}/*[z-a]")
    monkeypatch.setattr("flarecli.storage.glob.MAX_LISTED", 3)
    with pytest.raises(UsageError) as caught:
        expand(f"{folder}/**/*.mds")
    assert str(caught.value) == f"{folder}/**/*.mds: more than 3 files lie there"


@pytest.mark.parametrize(
    "line",
    [
        "inspect .",
        "inspect x.mds",
        "verify *.mds",
        "cat x.mds",
        "pack x.csv {out}",
        "pack {csv} out",
        "unpack x.csv {out}",
        "playlist . -o {out}",
    ],
)
def test_a_working_folder_that_is_gone_is_said(line, tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    (tmp_path / "x.csv").write_text("a\n1\n")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    words = line.format(csv=tmp_path / "x.csv", out=tmp_path / "out").split()
    assert run(words) == 3
    where = next(word for word in words[1:] if not word.startswith("/"))
    place = {"*.mds": ".", "out": "out"}.get(where, where)
    assert capsys.readouterr().err == (
        f"error: {place}: the current folder was deleted or cannot be read\n"
        "hint: Change to an existing folder, or use an absolute path.\n"
    )


def test_paths_from_the_root_do_without_a_working_folder(tmp_path, monkeypatch, capsys):
    (tmp_path / "gone").mkdir()
    (tmp_path / "x.csv").write_text("a\n1\n2\n")
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert run(["pack", str(tmp_path / "x.csv"), str(tmp_path / "out"), "--limit", "1"]) == 0
    assert run(["cat", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.endswith('\n{"a": 1}\n')
    assert (
        run(["cat", str(tmp_path / "out"), "--where", "a > 0"]) == 3
    )  # DuckDB would end the process
    assert capsys.readouterr().err.startswith("error: .: the current folder was deleted")
