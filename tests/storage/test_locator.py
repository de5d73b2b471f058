"""Addresses that the user types: patterns, names with wildcards, and invalid addresses."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest

from flarecli import storage
from flarecli.__main__ import main
from flarecli.cache import Cache
from flarecli.cli import run
from flarecli.errors import FlareError, FormatError, MissingError, ReachError, UsageError
from flarecli.read import expand, resolve
from flarecli.storage import Guard, locate
from flarecli.storage.http import url as addresses
from flarecli.write import Writer

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
            assert error.message == "no matches found"
            found[pattern] = None
    return found


def test_a_path_and_a_file_url_match_the_same_files(folder):
    assert _matches(folder) == PATTERNS
    assert _matches(f"file://{folder}") == {
        pattern: found and [f"{folder}/{name}" if pattern != "[1].mds" else name for name in found]
        for pattern, found in PATTERNS.items()
    }


def test_a_pattern_matches_the_same_names_in_a_bucket(bucket):
    assert _matches(bucket) == PATTERNS


def test_a_relative_pattern_returns_relative_paths(folder, monkeypatch):
    monkeypatch.chdir(folder)
    assert expand("?.mds") == ["a.mds", "b.mds"]
    assert expand("./?.mds") == ["./a.mds", "./b.mds"]
    assert expand("*/../a.m?s") == ["e/../a.mds"]
    assert expand("**/g.mds") == ["e/f/g.mds"]


def test_a_pattern_may_start_directly_below_the_root(tmp_path):
    assert expand(f"/{tmp_path.parts[1][:-1]}[{tmp_path.parts[1][-1]}]") == [
        f"/{tmp_path.parts[1]}"
    ]


def test_wildcards_match_line_breaks(folder):
    broken = f"{folder}/line\nbreak.tar"
    open(broken, "wb").close()
    assert expand(f"{folder}/l*.tar") == [broken]


def test_links_are_followed_except_by_two_stars(folder):
    os.symlink("e", f"{folder}/link")
    os.symlink(".", f"{folder}/ring")
    assert expand(f"{folder}/li*/a.mds") == [f"{folder}/link/a.mds"]
    assert expand(f"{folder}/**/a.mds") == [f"{folder}/a.mds", f"{folder}/e/a.mds"]


def test_a_folder_that_cannot_be_listed_raises_an_error(folder, monkeypatch):
    def refuse(path):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr("flarecli.storage.locator.os.scandir", refuse)
    with pytest.raises(ReachError) as caught:
        expand(f"{folder}/*/a.mds")
    assert str(caught.value) == f"{folder}: permission denied"


def test_invalid_patterns_and_too_many_files_are_reported(folder, monkeypatch):
    with pytest.raises(UsageError, match=r"invalid pattern '\*\[z-a\]'"):
        expand(f"{folder}/*[z-a]")
    monkeypatch.setattr("flarecli.storage.locator.MAX_LISTED", 3)
    with pytest.raises(UsageError) as caught:
        expand(f"{folder}/**/*.mds")
    assert str(caught.value) == f"{folder}/**/*.mds: contains more than 3 files"


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
def test_a_deleted_working_folder_is_reported(line, tmp_path, monkeypatch, capsys):
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


def test_absolute_paths_need_no_working_folder(tmp_path, monkeypatch, capsys):
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


NAMES = ["a[1].ffr", "a{1,2}.ffr", "{x,{1..3}}.ffr"]


@pytest.fixture
def objects(s3, tmp_path):
    """The address of a folder with a shard for each name; the only row of a shard is its number."""
    for number, name in enumerate(NAMES):
        with Writer(
            str(tmp_path / f"d{number}"), format="ffrecord", columns={"data": "bytes"}
        ) as writer:
            writer.write({"data": b"%d" % number})
        (shard,) = Path(tmp_path / f"d{number}").glob("*.ffr")
        (locate(f"{s3}/d/") / name).write([shard.read_bytes()])
    return f"{s3}/d"


def test_names_from_a_listing_are_not_expanded_again(objects, tmp_path, capfd):
    every = f"{objects}/*.ffr"
    assert expand(every) == [f"{objects}/{name}" for name in NAMES]
    assert [one.streams[0].urls for one in resolve(every)] == [NAMES]
    for found in (resolve(expand(every), expanded=True), resolve(every)):
        assert [str(chunk.at) for one in found for chunk in one.streams[0]] == [
            f"{objects}/{name}" for name in NAMES
        ]
    assert main(["verify", every, "--json"]) == 0
    *_, last = capfd.readouterr().out.splitlines()
    assert (json.loads(last)["shards"], json.loads(last)["rows"]) == (3, 3)
    assert main(["cat", every, "--raw", "data"]) == 0
    assert capfd.readouterr().out == "012"
    assert main(["pack", every, str(tmp_path / "out"), "-q"]) == 0
    assert main(["unpack", every, str(tmp_path / "files"), "-q"]) == 0
    capfd.readouterr()
    assert main(["cat", str(tmp_path / "out"), "--raw", "data"]) == 0
    assert capfd.readouterr().out == "012"
    assert sorted(
        file.read_bytes()
        for file in (tmp_path / "files").rglob("*")
        if file.stem.isdigit() or file.suffix == ".bin"
    ) == [b"0", b"1", b"2"]


def test_a_local_name_with_wildcards_is_taken_literally(tmp_path, in_tmp_path, capfd):
    for name in ("a{1,2}.csv", "a1.csv", "a2.csv", "b[1].csv"):
        Path(name).write_text(f"n\n{len(name)}\n")
    assert main(["pack", "a{1,2}.csv", "b[1].csv", "out", "-q"]) == 0
    capfd.readouterr()
    assert main(["cat", "out", "-c", "n"]) == 0
    assert capfd.readouterr().out == '{"n": 10}\n{"n": 8}\n'
    Path("a{1,2}.csv").unlink()
    assert main(["pack", "a{1,2}.csv", "out2", "-q"]) == 0
    capfd.readouterr()
    assert main(["cat", "out2", "-c", "n"]) == 0
    assert capfd.readouterr().out == '{"n": 6}\n{"n": 6}\n'


DATA = bytes(range(256)) * 40


@pytest.mark.parametrize("reference", ["//[", "//[::1", "//]", "//a]/x", "//[1"])
def test_a_redirect_to_an_invalid_address_fails_alone(web, reference):
    web.pages["/a"] = lambda handler, times: handler.answer(302, b"", Location=reference)
    other = web.file("/b", DATA)
    with pytest.raises(FormatError) as caught:
        locate(web.url("/a")).read()
    assert caught.value.message == f"redirects to {reference}: the address has no valid host"
    assert locate(other).read() == DATA  # other redirects are still followed


@pytest.mark.parametrize("reference", ["//[", "//[::1", "//]", "//\u2100/x", "//a\u2100b/"])
def test_a_reference_without_a_host_is_refused(reference):
    with pytest.raises(FormatError) as caught:
        addresses.join("http://h/a/", reference)
    assert str(caught.value) == f"{reference}: the address has no valid host"


@pytest.mark.parametrize(
    "address", ["http://[", "http://[x", "https://\u2100/", "http://a\u2100b/"]
)
def test_invalid_addresses_in_a_local_index_are_failed_rows(tmp_path, address):
    with pytest.raises(FlareError) as caught:
        locate(f"{tmp_path}/").join(address)
    assert caught.value.message == "the address has no valid host"


def test_file_urls_of_this_machine_are_paths(tmp_path):
    (tmp_path / "a b").write_bytes(DATA)
    top = locate(f"{tmp_path}/", Guard(allow_local=True))
    for address in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        assert top.join(address).read() == locate(address).read() == DATA


@pytest.mark.parametrize("address", ["a\0b", "file:///a%00b"])
def test_a_path_with_a_nul_byte_is_refused(tmp_path, address):
    with pytest.raises(FormatError) as caught:
        locate(f"{tmp_path}/", Guard(allow_local=True)).join(address)
    assert str(caught.value) == f"{tmp_path}: the address contains a control character"
    with pytest.raises((UsageError, FormatError)):
        locate(address)


def test_special_characters_in_a_password_are_literal(web, tmp_path):
    web.file("/a", DATA, '"one"')
    at = locate(web.url("/a", user="me:p[w"), Guard(keeper=Cache(str(tmp_path / "cache"))))
    assert at.read() == DATA
    assert web.requests[-1][1]["authorization"] == "Basic bWU6cFt3"


def test_the_repr_of_a_location_shows_no_secrets():
    at = locate("http://me:hunter2@127.0.0.1:1/x?X-Amz-Signature=abc")
    assert repr(at) == "Location('http://127.0.0.1:1/x')"
    assert pickle.loads(pickle.dumps(at)) == at
