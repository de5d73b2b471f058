"""What a hostile or unlucky day brings to whole commands: names that collide, limits, seeds of hashes, what is synced when."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli.__main__ import main
from flarecli.model import Settings
from flarecli.write import Writer

_EVENTS = """
import os, sys
from flarecli.__main__ import main

told, files = [], {{}}


def watched(name, tell):
    real = getattr(os, name)

    def call(*args, **more):
        told.append(tell(*args))
        return real(*args, **more)

    setattr(os, name, call)


watched("fsync", lambda fd: ("sync", os.stat(fd).st_ino))
for name in ("rename", "replace", "link"):
    watched(name, lambda a, b, *_: ("name", os.path.basename(os.fspath(b))))
code = main({args!r})
for kind, what in told:
    print(kind, what)
sys.exit(code)
"""


def run(args, cwd, env=None, before=None):
    command = [sys.executable, "-m", "flarecli", *args]
    return subprocess.run(
        command, cwd=cwd, env={**os.environ, **(env or {})}, preexec_fn=before, capture_output=True, text=True, timeout=60, check=False
    )


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def links(tmp_path):
    """An index of 60 links to files beside it."""
    (tmp_path / "files").mkdir()
    for i in range(60):
        (tmp_path / "files" / f"{i}.bin").write_bytes(bytes([i]) * (3000 + 7 * i))
    pq.write_table(pa.table({"id": [f"k{i}" for i in range(60)], "url": [f"files/{i}.bin" for i in range(60)]}), tmp_path / "index.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "second"),
    [
        (["A", "a"], "a.*"),
        (["caf\u00e9", "cafe\u0301"], "cafe\u0301.*"),
        (["\u017fs", "ss"], "ss.*"),
    ],
)
def test_names_that_are_one_on_another_file_system_are_refused_before_the_first(tmp_path, capfd, keys, second):
    with Writer(str(tmp_path / "d"), columns={"key": "str", "data": "bytes"}) as writer:
        for key in keys:
            writer.write({"key": key, "data": b"x"})
    assert main(["unpack", str(tmp_path / "d"), str(tmp_path / "out")]) == 4
    error = f"{tmp_path}/d[1]: the name '{second}' is the same as that of row 0 of the selection"
    hint = "Give --name another pattern, such as '{row}.{ext}', or --key another column."
    assert capfd.readouterr().err == f"error: {error}\nhint: {hint}\n"
    assert not any(path.is_file() for path in (tmp_path / "out").rglob("*"))


def test_the_same_bytes_whatever_the_seed_of_hashes_and_the_number_of_jobs(links):
    for name, seed, jobs in (("a", "0", "1"), ("b", "1", "16"), ("c", "2", "3")):
        done = run(["pack", "index.parquet", name, "--fetch", "url:data", "--key", "id", "-j", jobs], links, {"PYTHONHASHSEED": seed})
        assert (done.returncode, done.stdout) == (0, f"{name}/playlist.yaml\n")
    assert tree(links / "a") == tree(links / "b") == tree(links / "c")


def test_a_file_that_may_not_grow_ends_a_pack_with_one_line_and_it_can_go_on(links):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    line = ["pack", "index.parquet", "out", "--fetch", "url:data"]
    done = run(line, links, before=limited)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith("error: out/shard.00000.mds: file too large\n")
    assert "Traceback" not in done.stderr
    assert not (links / "out" / "index.json").exists()
    assert not (links / "out" / "playlist.yaml").exists()
    assert run([*line, "--resume"], links).returncode == 0
    assert run(["pack", "index.parquet", "whole", "--fetch", "url:data"], links).returncode == 0
    assert tree(links / "out") == tree(links / "whole")


def test_a_pack_syncs_before_it_names_and_names_the_playlist_last(links):
    code = _EVENTS.format(args=["pack", "index.parquet", "out", "--fetch", "url:data", "-q"])
    done = subprocess.run([sys.executable, "-c", code], cwd=links, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    events = [tuple(line.split(" ", 1)) for line in done.stdout.splitlines()[1:]]
    named = [what for kind, what in events if kind == "name"]
    written = {path.name: path.stat().st_ino for path in (links / "out").iterdir()}
    assert [name for name in named if name in written][-1] == "playlist.yaml"
    assert set(written) <= set(named)
    for name, inode in written.items():
        assert ("sync", str(inode)) in events[: events.index(("name", name))], name
    assert ("sync", str((links / "out").stat().st_ino)) in events[events.index(("name", "playlist.yaml")) :]


def test_many_shards_need_few_open_files(tmp_path):
    with Writer(str(tmp_path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=1)) as writer:
        for i in range(300):
            writer.write({"n": i})

    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    assert run(["verify", "d"], tmp_path, before=limited).returncode == 0
    assert run(["cat", "d", "--shuffle", "1", "-q"], tmp_path, before=limited).stdout.count("\n") == 300


def test_importing_asks_nothing_of_the_network(tmp_path):
    code = "import socket\ndef no(*a, **k): raise RuntimeError('network')\nsocket.socket.connect = socket.getaddrinfo = no\n"
    code += "import flarecli, flarecli.verbs, flarecli.cli.app, flarecli.storage, flarecli.cache, flarecli.read, flarecli.write\n"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_index_changed_between_two_runs_is_refused(links):
    def index(last):
        urls = [f"files/{i}.bin" for i in range(59)] + [last]
        pq.write_table(pa.table({"url": urls}), links / "index.parquet")

    line = ["pack", "index.parquet", "out", "--fetch", "url:data", "--shard-rows", "10"]
    index("files/none.bin")
    assert run(line, links).returncode == 3
    index("files/59.bin")
    done = run([*line, "--resume"], links)
    assert (done.returncode, done.stdout) == (2, "")
    error = "out: the unfinished pack there was begun with another source, or with this one before it was changed"
    assert done.stderr.splitlines()[-2:] == [f"error: {error}", "hint: Give --overwrite to begin anew."]
    assert run([*line, "--overwrite"], links).returncode == 0
