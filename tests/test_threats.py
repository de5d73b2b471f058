"""Whole commands under hostile or unlucky conditions: colliding names, limits, hash seeds, order of
syncs.
"""

from __future__ import annotations

import json
import os
import resource
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import encodings, formats
from flarecli.__main__ import main
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.write import Writer
from tests.outputs import files_of

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


# For processes with a limit on the size of files: Python would truncate the bytecode of a module at
# the limit, and every later import of the module would fail.
NO_BYTECODE = {"PYTHONDONTWRITEBYTECODE": "1"}


def run(args, cwd, env=None, before=None):
    command = [sys.executable, "-m", "flarecli", *args]
    return subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        preexec_fn=before,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def links(tmp_path):
    """Write an index of 60 links to files in its folder."""
    (tmp_path / "files").mkdir()
    for i in range(60):
        (tmp_path / "files" / f"{i}.bin").write_bytes(bytes([i]) * (3000 + 7 * i))
    pq.write_table(
        pa.table(
            {"id": [f"k{i}" for i in range(60)], "url": [f"files/{i}.bin" for i in range(60)]}
        ),
        tmp_path / "index.parquet",
    )
    return tmp_path


@pytest.mark.parametrize(
    ("keys", "second"),
    [
        (["A", "a"], "a.*"),
        (["caf\u00e9", "cafe\u0301"], "cafe\u0301.*"),
        (["\u017fs", "ss"], "ss.*"),
    ],
)
def test_colliding_names_are_refused_before_the_first_file_is_written(
    tmp_path, capfd, keys, second
):
    with Writer(str(tmp_path / "d"), columns={"key": "str", "data": "bytes"}) as writer:
        for key in keys:
            writer.write({"key": key, "data": b"x"})
    assert main(["unpack", str(tmp_path / "d"), str(tmp_path / "out")]) == 4
    error = (
        f"{tmp_path}/d/shard.00000.mds[1]: file name '{second}' is also the name of selected row 0"
    )
    hint = "Use a different --name, such as '{row}.{ext}', or a different --key."
    assert capfd.readouterr().err == f"error: {error}\nhint: {hint}\n"
    assert not any(path.is_file() for path in (tmp_path / "out").rglob("*"))


@pytest.mark.parametrize(
    ("keys", "row", "said"),
    [
        (["a", "con"], 1, "'con' is a device name on Windows"),
        (["aux.txt"], 0, "'aux.txt' is a device name on Windows"),
        (["b", "x/NUL.tar.gz"], 1, "'x/NUL.tar.gz' is a device name on Windows"),
        (["Com1 ./x"], 0, "'Com1 ./x' is a device name on Windows"),
        (["x", "COM\u00b2.wav"], 1, "'COM\u00b2.wav' is a device name on Windows"),
        (["con", "aux"], 0, "'con' is a device name on Windows"),
        (["a", "b", "a."], 2, "'a.' is also the name of selected row 0"),
        (["A. .", "b", "a"], 2, "'a' is also the name of selected row 0"),
        (["x/a", "X /A"], 1, "'X /A' is also the name of selected row 0"),
        (
            ["a", "A./b"],
            1,
            "'A./b' is in a folder with the same name as the file of selected row 0",
        ),
        ([".FLARE"], 0, "'.FLARE' is reserved by flare"),
        (["Index.jsonl"], 0, "'Index.jsonl' is reserved by flare"),
    ],
)
@pytest.mark.parametrize("target", ["out", "-"])
def test_device_names_of_other_systems_are_refused(
    tmp_path, capfd, in_tmp_path, keys, row, said, target
):
    with Writer("d", columns={"key": "str", "data": "bytes"}) as writer:
        for key in keys:
            writer.write({"key": key, "data": b"x"})
    assert main(["unpack", "d", target, "--name", "{key}", "-q"]) == 4
    hint = "Use a different --name, such as '{row}.{ext}', or a different --key."
    out, err = capfd.readouterr()
    assert (out, err) == ("", f"error: d/shard.00000.mds[{row}]: file name {said}\nhint: {hint}\n")
    assert not any(path.is_file() for path in (tmp_path / "out").rglob("*"))
    assert main(["unpack", "d", "files", "--name", "{row}.{ext}", "-q"]) == 0
    assert len(list((tmp_path / "files").glob("*.bin"))) == len(keys)


def test_rows_with_reserved_names_can_be_skipped(tmp_path, capfd, in_tmp_path):
    keys = ["a", "con", "../up", "Index.jsonl", ".flare", "b"]
    with Writer("d", columns={"key": "str", "data": "bytes"}) as writer:
        for key in keys:
            writer.write({"key": key, "data": key.encode()})
    assert main(["unpack", "d", "out", "--name", "{key}", "--on-error", "skip"]) == 1
    assert capfd.readouterr().err.splitlines()[:6] == [
        "con: file name 'con' is a device name on Windows",
        "../up: the name '../up' points outside the folder",
        "Index.jsonl: file name 'Index.jsonl' is reserved by flare",
        ".flare: file name '.flare' is reserved by flare",
        "3 rows failed: format",
        "1 row failed: unsafe",
    ]
    files = {path.name: path.read_text() for path in (tmp_path / "out").iterdir()}
    failed = [json.loads(line) for line in files.pop("failed.jsonl").splitlines()]
    assert [(one["row"], one["key"], one["kind"]) for one in failed] == [
        (1, "con", "format"),
        (2, "../up", "unsafe"),
        (3, "Index.jsonl", "format"),
        (4, ".flare", "format"),
    ]
    assert sorted(files) == ["a", "b", "index.jsonl"]
    assert main(["unpack", "d", "-", "--name", "{key}", "--on-error", "skip", "-q"]) == 1


def test_names_similar_to_devices_are_accepted(tmp_path, in_tmp_path):
    keys = ["console", "com", "com10", "auxiliary.txt", "x.con", "nul_", "lpt0", ".con", "10:20:30"]
    with Writer("d", columns={"key": "str", "data": "bytes"}) as writer:
        for key in keys:
            writer.write({"key": key, "data": key.encode()})
    assert main(["unpack", "d", "out", "--name", "{key}", "-q"]) == 0
    assert {
        path.name: path.read_bytes()
        for path in (tmp_path / "out").iterdir()
        if path.suffix != ".jsonl"
    } == {key: key.encode() for key in keys}


@pytest.mark.parametrize("suffix", [".mds", ".mds.zstd"])
def test_shards_are_read_in_the_order_of_the_index(tmp_path, in_tmp_path, capfd, suffix):
    numbers = [99_998, 99_999, 100_000, 100_001]
    with Writer(
        "d",
        columns={"n": "int"},
        settings=Settings(shard_rows=1, compression="zstd" if suffix.endswith("zstd") else None),
    ) as writer:
        for number in numbers:
            writer.write({"n": number})
    index = json.loads(Path("d/index.json").read_text())
    for one, number in zip(index["shards"], numbers, strict=True):
        for file in (one["raw_data"], *([one["zip_data"]] if one["zip_data"] else [])):
            ending = file["basename"].split(".", 2)[2]
            if Path("d", file["basename"]).exists():
                Path("d", file["basename"]).rename(Path("d", f"shard.{number:05d}.{ending}"))
            file["basename"] = f"shard.{number:05d}.{ending}"
    Path("d/index.json").write_text(json.dumps(index))
    Path("d/playlist.yaml").unlink()

    def rows(*args):
        assert main(["cat", *args]) == 0
        return [json.loads(line)["n"] for line in capfd.readouterr().out.splitlines()]

    assert rows("d") == rows("d/index.json") == numbers
    bytewise = [100_000, 100_001, 99_998, 99_999]
    assert rows(f"d/*{suffix}") == bytewise  # files that match a pattern are in bytewise order
    assert (
        main(["playlist", "d", "-o", "set.yaml", "-q"])
        == main(["playlist", f"d/*{suffix}", "-o", "other.yaml", "-q"])
        == 0
    )
    capfd.readouterr()
    assert (rows("set.yaml"), rows("other.yaml")) == (numbers, bytewise)


@pytest.mark.parametrize("name", ["mds", "json", "csv", "tsv", "xsv", "ffrecord", "webdataset"])
def test_the_hundred_thousandth_shard_has_a_unique_name(tmp_path, name):
    """The originals extend the number too.

    Readers of FFRecord list the folder, so names must stay in bytewise order.
    """
    module, at = formats.find(name), locate(str(tmp_path))
    batch = pa.record_batch({"data": pa.array(['"x"'], pa.large_string())})
    columns = module.arrange([encodings.column("data", "bytes" if name == "ffrecord" else "str")])
    batch = batch.cast(pa.schema([("data", pa.large_binary())])) if name == "ffrecord" else batch
    settings = Settings(separator={"xsv": "|", "tsv": "\t"}.get(name, ","))
    numbers = (0, 9_999, 99_999, 100_000, 100_001, 1_000_000)
    found = [
        module.write_shard(at, number, columns, [batch], settings).files[0].name
        for number in numbers
    ]
    assert len(set(found)) == len(found)
    if name == "ffrecord":
        assert sorted(found) == found


def test_fifos_and_devices_are_reported_without_waiting(tmp_path, capfd, in_tmp_path):
    Path("d").mkdir()
    Path("d/a.bin").write_bytes(b"a")
    os.mkfifo("d/f.bin")
    Path("d/l.bin").symlink_to("/dev/zero")
    Path("d/loop").symlink_to(".")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("d/s.bin")
        refused = "error: d/f.bin: not a regular file\nhint: Use a regular file instead.\n"
        for args in (
            ["inspect", "d"],
            ["cat", "d"],
            ["unpack", "d", "u"],
            ["unpack", "d", "-"],
            ["playlist", "d"],
        ):
            assert (main(args), capfd.readouterr().err) == (5, refused), args
        link = "is a symbolic link; its target may be outside the folder"
        assert main(["verify", "d"]) == 1
        assert [line for line in capfd.readouterr().out.splitlines() if line.startswith("d/")] == [
            "d/f.bin: not a regular file",
            f"d/l.bin: {link}",
            f"d/loop: {link}",
            "d/s.bin: not a regular file",
        ]
        assert main(["pack", "d", "out", "--on-error", "skip", "-q"]) == 1
        rows = [json.loads(line) for line in Path("out/failed.jsonl").read_text().splitlines()]
        assert [(row["key"], row["kind"], row["reason"]) for row in rows] == [
            ("f", "unsafe", "f.bin: not a regular file"),
            ("l", "unsafe", f"l.bin: {link}"),
            ("loop", "column", "no column for this file (columns: bin)"),
            ("s", "unsafe", "s.bin: not a regular file"),
        ]
        capfd.readouterr()
        assert main(["cat", "out"]) == 0
        assert json.loads(capfd.readouterr().out)["bin"]["bytes"] == 1


def test_a_playlist_above_the_maximum_size_is_not_read(tmp_path, capfd, in_tmp_path):
    with open("set.yaml", "wb") as file:
        file.truncate((1 << 30) + 1)
    for args in (
        ["cat", "set.yaml"],
        ["verify", "set.yaml"],
        ["unpack", "set.yaml", "out"],
        ["pack", "set.yaml", "out"],
        ["playlist", "--check", "set.yaml"],
    ):
        code = main(args)
        said = "set.yaml: file is 1073741825 bytes; the maximum is 1073741824"
        assert (said in "".join(capfd.readouterr()), code) == (
            True,
            1 if args[0] == "verify" else 4,
        ), args


def test_a_playlist_that_lists_itself_is_an_error(tmp_path, capfd, in_tmp_path):
    for head in ("", "  headers: {format: mds}\n"):
        Path("set.yaml").write_text(f"one:\n{head}  content: [set.yaml, set.yaml]\n")
        for args in (
            ["cat", "set.yaml"],
            ["unpack", "set.yaml", "out"],
            ["inspect", "set.yaml", "--stats"],
            ["pack", "set.yaml", "out"],
        ):
            code = main(args)
            out, err = capfd.readouterr()
            assert (code, out, err.count("error: ")) == (4, "", 1), err
        assert main(["verify", "set.yaml"]) == 1
        assert "Traceback" not in "".join(capfd.readouterr())


def test_unpack_at_the_file_size_limit_ends_with_one_line_and_can_resume(links):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (3200, 3200))

    line = ["unpack", "index.parquet", "out", "--fetch", "url:data", "--key", "id"]
    done = run(line, links, NO_BYTECODE, before=limited)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith("error: out/k29.bin: file too large\n")
    assert "Traceback" not in done.stderr
    assert not (links / "out" / "index.jsonl").exists()
    assert run([*line, "--resume"], links).returncode == 0
    assert run([*line[:2], "whole", *line[3:]], links).returncode == 0
    assert files_of(links / "out") == files_of(links / "whole")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "args",
    [
        ["unpack", "d", "-"],
        ["cat", "d", "--raw", "data"],
        ["cat", "d", "--to", "parquet"],
        ["cat", "d", "--to", "csv"],
    ],
)
def test_a_full_disk_under_stdout_ends_unpack_and_cat(tmp_path, args):
    with Writer(str(tmp_path / "d"), columns={"key": "str", "data": "bytes"}) as writer:
        for i in range(300):
            writer.write({"key": str(i), "data": bytes(1000)})
    command = [sys.executable, "-m", "flarecli", *args]
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (3, "error: stdout: No space left on device\n")


def test_a_clock_that_stops_or_runs_backwards_changes_nothing(links, capfd, monkeypatch, web):
    monkeypatch.chdir(links)
    assert (
        main(
            [
                "pack",
                "index.parquet",
                "d",
                "--fetch",
                "url:data",
                "--key",
                "id",
                "--shard-size",
                "30K",
                "-q",
            ]
        )
        == 0
    )
    for path in (links / "d").iterdir():
        web.file(f"/d/{path.name}", path.read_bytes(), f'"{path.name}"')
    capfd.readouterr()
    assert main(["cat", "d", "--bytes", "base64"]) == 0
    wanted, began = capfd.readouterr().out, time.monotonic()
    for n, step in enumerate((-3600.0, 0.0, -1e8, 1e8)):
        now = [1.7e9]
        monkeypatch.setattr(
            time, "time", lambda now=now, step=step: now.append(now[-1] + step) or now[-1]
        )
        for _ in range(2):
            assert (
                main(
                    [
                        "cat",
                        web.url("/d/playlist.yaml"),
                        "--bytes",
                        "base64",
                        "--cache",
                        "kept",
                        "--cache-limit",
                        "100K",
                    ]
                )
                == 0
            )
            assert capfd.readouterr() == (wanted, "")
        assert main(["unpack", web.url("/d/"), f"out{n}", "--cache", "kept", "-q"]) == 0
        assert len(list((links / f"out{n}").glob("*.bin"))) == 60
        assert main(["pack", web.url("/d/"), f"d{n}", "-q"]) == 0
        capfd.readouterr()
    assert time.monotonic() - began < 60  # no wait uses this clock


@pytest.mark.parametrize("options", [[], ["-f", "granular", "--hash", "md5", "--hash", "xxh64"]])
def test_output_does_not_depend_on_the_hash_seed_and_the_number_of_jobs(links, options):
    pack = ["pack", "index.parquet", "--fetch", "url:data", "--key", "id", *options]
    for name, seed, jobs in (("a", "0", "1"), ("b", "1", "16"), ("c", "2", "3")):
        done = run([*pack, name, "-j", jobs], links, {"PYTHONHASHSEED": seed})
        assert (done.returncode, done.stdout) == (0, f"{name}/playlist.yaml\n")
    assert files_of(links / "a") == files_of(links / "b") == files_of(links / "c")


@pytest.mark.parametrize("form", ["mds", "webdataset"])
def test_output_does_not_depend_on_locale_time_zone_and_umask(links, form):
    for name, mask, env in (
        ("a", 0o022, {"LC_ALL": "C.UTF-8", "TZ": "UTC"}),
        ("b", 0o077, {"LC_ALL": "POSIX", "TZ": "Asia/Tokyo", "PYTHONIOENCODING": "latin-1"}),
    ):
        done = run(
            ["pack", "index.parquet", name, "--fetch", "url:data", "--key", "id", "-f", form],
            links,
            env,
            before=lambda mask=mask: os.umask(mask),
        )
        assert (done.returncode, done.stdout) == (0, f"{name}/playlist.yaml\n")
    assert files_of(links / "a") == files_of(links / "b")
    assert stat.S_IMODE((links / "b" / "playlist.yaml").stat().st_mode) == 0o600


def test_pack_at_the_file_size_limit_ends_with_one_line_and_can_resume(links):
    def limited():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    line = ["pack", "index.parquet", "out", "--fetch", "url:data"]
    done = run(line, links, NO_BYTECODE, before=limited)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.endswith("error: out/shard.00000.mds: file too large\n")
    assert "Traceback" not in done.stderr
    assert not (links / "out" / "index.json").exists()
    assert not (links / "out" / "playlist.yaml").exists()
    assert run([*line, "--resume"], links).returncode == 0
    assert run(["pack", "index.parquet", "whole", "--fetch", "url:data"], links).returncode == 0
    assert files_of(links / "out") == files_of(links / "whole")


def test_a_pack_syncs_files_before_renaming_and_writes_the_playlist_last(links):
    code = _EVENTS.format(args=["pack", "index.parquet", "out", "--fetch", "url:data", "-q"])
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=links,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    events = [tuple(line.split(" ", 1)) for line in done.stdout.splitlines()[1:]]
    named = [what for kind, what in events if kind == "name"]
    written = {path.name: path.stat().st_ino for path in (links / "out").iterdir()}
    assert [name for name in named if name in written][-1] == "playlist.yaml"
    assert set(written) <= set(named)
    for name, inode in written.items():
        assert ("sync", str(inode)) in events[: events.index(("name", name))], name
    assert ("sync", str((links / "out").stat().st_ino)) in events[
        events.index(("name", "playlist.yaml")) :
    ]


def test_many_shards_need_few_open_files(tmp_path):
    with Writer(
        str(tmp_path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=1)
    ) as writer:
        for i in range(300):
            writer.write({"n": i})

    def limited():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    assert run(["verify", "d"], tmp_path, before=limited).returncode == 0
    assert (
        run(["cat", "d", "--shuffle", "1", "-q"], tmp_path, before=limited).stdout.count("\n")
        == 300
    )


def test_importing_makes_no_network_request(tmp_path):
    code = "import socket\ndef no(*a, **k): raise RuntimeError('network')\nsocket.socket.connect = socket.getaddrinfo = no\n"
    code += "import importlib, pkgutil, flarecli\n"
    code += "from flarecli.errors import MissingLibraryError\n"
    code += "for one in pkgutil.walk_packages(flarecli.__path__, 'flarecli.', lambda name: None):\n"
    code += "    try: importlib.import_module(one.name)\n"
    code += "    except MissingLibraryError: pass\n"
    code += "    except ModuleNotFoundError as error: assert error.name == 'torch', error\n"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
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
    error = (
        "out: the unfinished pack was started with another source, or before the source was changed"
    )
    assert done.stderr.splitlines()[-2:] == [
        f"error: {error}",
        "hint: Use --overwrite to start again.",
    ]
    assert run([*line, "--overwrite"], links).returncode == 0
