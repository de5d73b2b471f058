"""Names of objects that hold braces or signs: what an address stands for is found out once, and what is found is a name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flarecli.__main__ import main
from flarecli.read import expand, resolve
from flarecli.storage import locate
from flarecli.write import Writer

NAMES = ["a[1].ffr", "a{1,2}.ffr", "{x,{1..3}}.ffr"]


@pytest.fixture
def objects(s3, tmp_path):
    """The address of a folder with a shard under each name, of one row that tells its number."""
    for number, name in enumerate(NAMES):
        with Writer(
            str(tmp_path / f"d{number}"), format="ffrecord", columns={"data": "bytes"}
        ) as writer:
            writer.write({"data": b"%d" % number})
        (shard,) = Path(tmp_path / f"d{number}").glob("*.ffr")
        (locate(f"{s3}/d/") / name).write([shard.read_bytes()])
    return f"{s3}/d"


def test_what_a_listing_found_in_a_bucket_is_not_expanded_again(objects, tmp_path, capfd):
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


def test_a_name_on_a_disk_is_a_name_whatever_signs_it_holds(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
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
