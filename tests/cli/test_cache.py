"""--cache and --cache-limit on the command line: downloads, notes, and the list of copies."""

from __future__ import annotations

import json
import os
import re

import pytest

import flarecli
from flarecli.units import format_size

ROWS = '{"id": "a", "n": 1}\n{"id": "b", "n": 2}\n'


@pytest.fixture
def dataset(web, tmp_path):
    """Serve an MDS dataset of two rows over HTTP, and return the address of its playlist."""
    (tmp_path / "rows.jsonl").write_text(ROWS)
    flarecli.pack(str(tmp_path / "rows.jsonl"), str(tmp_path / "set"))
    for path in (tmp_path / "set").iterdir():
        web.file(f"/set/{path.name}", path.read_bytes(), f'"{path.name}"')
    return web.url("/set/playlist.yaml")


def fetched(web):
    """Return the requests that downloaded data, not only a version."""
    found = [path for path, headers in web.requests if headers.get("range") != "bytes=0-0"]
    web.requests.clear()
    return found


def test_cat_reads_downloaded_files_from_the_cache(flare_forked, web, dataset, tmp_path):
    home = str(tmp_path / "kept")
    ran = flare_forked(["cat", dataset, "--cache", home])
    assert (ran.code, ran.out, ran.err) == (0, ROWS, "")
    assert fetched(web) == ["/set/playlist.yaml", "/set/shard.00000.mds"]
    ran = flare_forked(["cat", dataset], env={"FLARE_CACHE": home})
    assert (ran.code, ran.out, ran.err) == (0, ROWS, "")
    assert fetched(web) == []


@pytest.mark.parametrize(
    "command",
    [
        ["inspect", "SET", "--stats"],
        ["unpack", "SET", "OUT", "-q", "--key", "n", "-c", "id"],
        ["playlist", "SET", "--hash", "sha1"],
        ["pack", "SET", "OUT", "-q"],
    ],
    ids=lambda command: command[0],
)
def test_every_command_that_reads_uses_the_cache(flare_forked, web, dataset, tmp_path, command):
    outs = []
    for turn in ("first", "second"):
        args = [{"SET": dataset, "OUT": str(tmp_path / turn)}.get(arg, arg) for arg in command]
        ran = flare_forked([*args, "--cache", str(tmp_path / "kept")])
        assert (ran.code, ran.err) == (0, "")
        outs.append(ran.out.replace(turn, "OUT"))
        assert bool(fetched(web)) == (turn == "first")
    assert outs[0] == outs[1]


def test_verify_does_not_use_the_cache(flare_forked, web, dataset, tmp_path):
    ran = flare_forked(["verify", dataset], env={"FLARE_CACHE": str(tmp_path / "kept")})
    assert (ran.code, os.path.exists(tmp_path / "kept")) == (0, False)
    ran = flare_forked(["verify", dataset, "--cache", str(tmp_path / "kept")])
    assert (ran.code, ran.err) == (
        2,
        "error: no such option: --cache\nhint: Run `flare verify --help`.\n",
    )


def test_inspect_lists_the_copies_in_a_cache(flare_forked, dataset, tmp_path):
    home = str(tmp_path / "kept")
    flare_forked(["cat", dataset, "--cache", home, "--cache-limit", "5MB"])
    fetched_bytes = {
        name: os.path.getsize(tmp_path / "set" / name)
        for name in ("playlist.yaml", "shard.00000.mds")
    }
    files = [
        path.stat().st_size for path in (tmp_path / "kept" / "flare-1").iterdir() if path.is_file()
    ]
    on_disk = sorted(size for size in files if size > min(fetched_bytes.values()))
    sizes = dict(
        zip(
            sorted(fetched_bytes, key=fetched_bytes.__getitem__, reverse=True),
            reversed(on_disk),
            strict=True,
        )
    )
    total, base = sum(sizes.values()), dataset.removesuffix("playlist.yaml")
    ran = flare_forked(["inspect", "--cache", home])
    rows = "".join(f"{base}{name}\twhole\t{size}\t0 s\n" for name, size in sizes.items())
    assert (ran.code, ran.err) == (0, "")
    assert (
        re.sub(r"\d+ s\n", "0 s\n", ran.out)
        == f"{home}: 2 copies, {format_size(total)}\n\naddress\tpart\tbytes\tunused for\n{rows}"
    )
    assert (
        flare_forked(["inspect", "-q"], env={"FLARE_CACHE": home}).out
        == f"{home}: 2 copies, {format_size(total)}\n"
    )
    found = json.loads(flare_forked(["inspect", "--cache", home, "--json"]).out)
    assert all(copy.pop("idle_s") >= 0 for copy in found["copies"])
    copies = [
        {"address": base + name, "part": "whole", "bytes": size} for name, size in sizes.items()
    ]
    assert found == {"cache": home, "bytes": total, "copies": copies}


def test_inspect_reports_a_missing_cache_and_missing_arguments(flare_forked, tmp_path):
    ran = flare_forked(["inspect", "--cache", str(tmp_path / "none")])
    assert (ran.code, ran.out, ran.err) == (0, f"{tmp_path}/none: 0 copies, 0 B\n", "")
    (tmp_path / "file").touch()
    ran = flare_forked(["inspect", "--cache", str(tmp_path / "file")])
    hint = "hint: Pass a folder that was used with --cache.\n"
    assert (ran.code, ran.out, ran.err) == (
        3,
        "",
        f"error: {tmp_path}/file: Not a directory\n{hint}",
    )
    ran = flare_forked(["inspect"])
    hint = "hint: Specify a dataset, or a cache with --cache.\n"
    assert (ran.code, ran.out, ran.err) == (2, "", f"error: missing argument 'SOURCE...'\n{hint}")


def test_a_cache_that_cannot_be_used_is_reported_in_one_note(flare_forked, dataset, tmp_path):
    (tmp_path / "file").touch()
    ran = flare_forked(
        ["cat", dataset, "--cache", str(tmp_path / "file")], env={"PYTHONWARNINGS": "error"}
    )
    assert (ran.code, ran.out) == (0, ROWS)
    assert ran.err == f"the cache in {tmp_path}/file is not used: file exists\n"
    ran = flare_forked(["cat", dataset, "-q", "--cache", str(tmp_path / "file")])
    assert (ran.code, ran.out, ran.err) == (0, ROWS, "")


def test_relative_links_of_a_cached_index_are_relative_to_its_address(flare_forked, web, tmp_path):
    web.file("/i/index.jsonl", b'{"u": "a.bin"}\n', '"1"')
    web.file("/i/a.bin", b"bytes", '"2"')
    ran = flare_forked(
        [
            "pack",
            web.url("/i/index.jsonl"),
            str(tmp_path / "out"),
            "--fetch",
            "u:data",
            "--cache",
            str(tmp_path / "kept"),
            "-q",
        ]
    )
    assert (ran.code, ran.err) == (0, "")
    assert [row["data"] for row in flarecli.open(str(tmp_path / "out"))] == [b"bytes"]


def test_a_dataset_opened_with_a_cache_is_downloaded_once(web, dataset, tmp_path):
    home = str(tmp_path / "kept")
    assert [row["n"] for row in flarecli.open(dataset, cache=home, cache_limit="5MB")] == [1, 2]
    assert fetched(web) != []
    assert [row["n"] for row in flarecli.open(dataset, cache=home, cache_limit=5_000_000)] == [1, 2]
    assert fetched(web) == []
