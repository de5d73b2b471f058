"""After a signal, the message lists the work that a resume keeps and repeats; the requests and
files of the resume agree.
"""

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.commands.verifying.state import VerifyState
from tests.conftest import NumberedImages

ROWS = 40


@pytest.fixture
def server():
    images = NumberedImages(200_000, stuck=30)
    yield images
    images.close()


def interrupted(server, argv, sent):
    """Send SIGINT to a command when the server has sent this number of images; return its error."""
    with subprocess.Popen(
        [sys.executable, "-m", "flarecli", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        stop = time.monotonic() + 60
        while len(server.sent) < sent and process.poll() is None and time.monotonic() < stop:
            time.sleep(0.01)
        time.sleep(0.5)  # the command processes what it has received
        process.send_signal(signal.SIGINT)
        err = process.communicate(timeout=60)[1].decode()
    assert process.returncode == 130, err
    server.may_end.set()
    return err


def write_index(folder, server, rows=ROWS):
    host = f"127.0.0.1:{server.port}"
    lines = [f"{row},http://{host}/{row}" for row in range(rows)]
    (folder / "index.csv").write_text("id,url\n" + "\n".join(lines) + "\n")
    return str(folder / "index.csv"), ["--fetch", "url:data", "--allow-host", host]


def number_in(line, pattern):
    """Return the number that a pattern matches in a line, or 0."""
    match = re.search(pattern, line)
    return int(match[1]) if match else 0


@pytest.mark.parametrize(
    ("options", "start", "repeated"),
    [
        ([], "use --resume to continue", "reads the source and fetches the other links"),
        (
            ["--shuffle", "3", "--key", "id"],
            "use --resume to continue",
            "reads the source, shuffles the rows, checks the keys and fetches the other links",
        ),
        (
            ["--part", "1/1"],
            "run the same command again",
            "reads the source and fetches the other links",
        ),
        (
            ["--part-rows", "20"],
            "use --resume to continue",
            "reads the source and fetches the other links",
        ),
    ],
    ids=str,
)
def test_an_interrupted_pack_prints_what_a_resume_keeps_and_repeats(
    tmp_path, server, capfd, options, start, repeated
):
    in_parts = "--part" in options or "--part-rows" in options
    if in_parts:  # the first 32 rows are fetched to infer the columns
        server.stuck = 35
    index, fetch = write_index(tmp_path, server)
    out = tmp_path / "out"
    argv = ["pack", index, str(out), *fetch, "--shard-size", "500kB", *options, "-j", "40"]
    err = interrupted(server, argv, ROWS - 1 + 32 * in_parts)
    line = err.splitlines()[-1]
    assert line.startswith(f"error: interrupted; {start}: flare keeps "), err
    assert line.endswith(f", and {repeated} again")
    parts, rows = number_in(line, r"(\d+) of 2 parts"), number_in(line, r"(\d+) rows in")
    shards = number_in(line, r"rows in (\d+) shard")
    fetched = number_in(line, r"the downloads of (\d+) (?:more )?rows")
    assert parts * 20 + rows + fetched == ROWS - 1
    assert len(list(out.rglob("*.mds"))) == shards + parts * 10  # 2 of 20 rows per shard
    asked = len(server.requested)
    more = [] if "--part" in options else ["--resume"]
    capfd.readouterr()
    assert main([*argv, *more]) == 0
    if fetched and not in_parts:
        assert (
            f"an earlier run downloaded the files of {fetched} more rows\n"
            in capfd.readouterr().err
        )
    assert len(server.requested) - asked == ROWS - (parts * 20 + rows + fetched)
    assert len(flarecli.open(out / "00000" if "--part" in options else out)) == ROWS


def test_an_interrupted_pack_that_keeps_nothing_reports_this(tmp_path, server):
    server.stuck = 0
    index, fetch = write_index(tmp_path, server, rows=1)
    argv = ["pack", index, str(tmp_path / "out"), *fetch]
    with subprocess.Popen([sys.executable, "-m", "flarecli", *argv], stderr=subprocess.PIPE) as run:
        while not server.requested and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        err = run.communicate(timeout=60)[1].decode()
    assert err == "error: interrupted; nothing was kept: run the same command again\n"
    assert not (tmp_path / "out").exists()
    server.may_end.set()
    assert main([*argv, "-q"]) == 0


@pytest.mark.parametrize("options", [["--part", "1/2"], ["--part-rows", "20"]], ids=str)
def test_a_pack_in_parts_that_is_interrupted_before_the_first_part_keeps_nothing(
    tmp_path, server, options
):
    index, fetch = write_index(tmp_path, server)
    argv = ["pack", index, str(tmp_path / "out"), *fetch, *options, "-j", "40"]
    err = interrupted(server, argv, 31)
    assert err == "error: interrupted; nothing was kept: run the same command again\n"
    assert not (tmp_path / "out").exists()


def test_an_interrupted_dry_run_has_nothing_to_resume(tmp_path, server):
    server.stuck = 0
    index, fetch = write_index(tmp_path, server, rows=1)
    argv = ["pack", index, str(tmp_path / "out"), *fetch, "--dry-run", "--json"]
    with subprocess.Popen([sys.executable, "-m", "flarecli", *argv], stderr=subprocess.PIPE) as run:
        while not server.requested and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        err = run.communicate(timeout=60)[1]
    assert json.loads(err)["error"]["hint"] == ""


def test_an_interrupted_unpack_prints_what_a_resume_keeps_and_repeats(tmp_path, server):
    index, fetch = write_index(tmp_path, server)
    argv = ["unpack", index, str(tmp_path / "out"), *fetch, "--key", "id", "-j", "8"]
    err = interrupted(server, argv, 33)
    line = err.splitlines()[-1]
    kept = re.search(r"(\d+) files of (\d+) rows", line)
    assert kept, err
    assert line == (
        f"error: interrupted; use --resume to continue: flare keeps {kept[0]}, "
        "and reads the source and fetches the other links again"
    )
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*.jpg")}
    asked = len(server.requested)
    assert main([*argv, "--resume", "-q"]) == 0
    assert len(server.requested) - asked == ROWS - int(kept[2])
    unchanged = [path for path, time_ns in before.items() if path.stat().st_mtime_ns == time_ns]
    assert len(unchanged) >= int(kept[1]) > 0
    assert len(list((tmp_path / "out").glob("*.jpg"))) == ROWS


def test_an_interrupted_archive_has_nothing_to_resume(tmp_path, server):
    server.stuck = 0
    index, fetch = write_index(tmp_path, server, rows=1)
    argv = ["unpack", index, "-", *fetch]
    with subprocess.Popen(
        [sys.executable, "-m", "flarecli", *argv], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as run:
        while not server.requested and run.poll() is None:
            time.sleep(0.01)
        run.send_signal(signal.SIGINT)
        err = run.communicate(timeout=60)[1].decode()
    assert err == "error: interrupted\n"


@pytest.mark.parametrize("stop", [0, 3])
def test_an_interrupted_check_prints_what_the_state_file_keeps(
    tmp_path: Path, monkeypatch, capsys, stop
):
    rows = [{"n": i} for i in range(60)]
    out, state = tmp_path / "out", str(tmp_path / "state")
    flarecli.pack(rows, out, shard_rows=6)
    real, added = VerifyState.add, []

    def add(self, key, done):
        if len(added) == stop:
            signal.raise_signal(signal.SIGINT)
        real(self, key, done)
        added.append(key)

    with monkeypatch.context() as patch:
        patch.setattr(VerifyState, "add", add)
        assert main(["verify", str(out), "--state", state]) == 130
    assert capsys.readouterr().err == (
        f"error: interrupted; run the same command again: the state file keeps the results of {stop} files, "
        "and all other files are checked\n"
    )
    first = list(added)
    assert len(first) == stop
    stop = -1
    monkeypatch.setattr(VerifyState, "add", add)
    assert main(["verify", str(out), "--state", state]) == 0
    assert set(added[len(first) :]).isdisjoint(first)
    assert len(added) == 10
    assert not Path(state).exists()
    shutil.rmtree(out)
