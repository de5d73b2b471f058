"""A resumed pack does not repeat downloads, and its bytes are those of an uninterrupted pack."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from flarecli.__main__ import main
from tests.conftest import NumberedImages
from tests.outputs import files_of

ROWS, STUCK = 60, 40  # the object of row STUCK is sent only after an event
FETCHED = {row for row in range(ROWS) if row % 9 != 8 and row != STUCK}
OPTIONS = ["--fetch", "url:data", "--key", "id", "--on-error", "skip", "-q", "--retries", "0"]
SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]


def answer(row):
    """Every ninth image is missing; of some images, the content type is unknown or wrong."""
    content_type = ("text/html" if row % 5 == 1 else "image/jpeg") if row % 7 else None
    return 404 if row % 9 == 8 else 200, content_type


@pytest.fixture(scope="module")
def running():
    images = NumberedImages(150_000, answer, STUCK)
    yield images
    images.close()


@pytest.fixture
def server(running):
    running.may_end.clear()
    running.requested.clear()
    running.sent.clear()
    return running


@pytest.fixture
def index(tmp_path, server):
    path = tmp_path / "index.csv"
    rows = [f"k{row},http://127.0.0.1:{server.port}/{row}\n" for row in range(ROWS)]
    path.write_text("id,url\n" + "".join(rows))
    return path


def argv(index, out, server, *more):
    host = f"127.0.0.1:{server.port}"
    return ["pack", str(index), str(out), *OPTIONS, "--allow-host", host, *more]


SOON = """
import sys
from flarecli.write import fetch_links, spool
fetch_links.CHECK_S = 0.05
spool.SAVE_S = 0.0
from flarecli.__main__ import entry
entry()
"""


def thread_states(pid):
    """Return the state letters of the threads of a process; S: waiting."""
    states = []
    for stat in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # the thread has ended
            states.append(stat.read_text().rpartition(")")[2].split()[0])
    return set(states)


def wait_until(is_reached, packing):
    """Wait until a condition is true ten times in a row, or the process has ended."""
    end, times = time.monotonic() + 120, 0
    while times < 10 and packing.poll() is None:
        assert time.monotonic() < end
        times = times + 1 if is_reached() else 0
        time.sleep(0.02)


def rows_on_disk(out):
    """Return the rows in shards and in the spool, which a resumed pack need not download."""
    rows = set()
    for line in (out / ".flare" / "journal").read_bytes().splitlines():
        rows.update(range(json.loads(line).get("next", 0)))
    for path in (out / ".flare").glob("fetched.*"):
        with contextlib.suppress(
            ValueError, FileNotFoundError
        ):  # the file is being written or renamed
            entry = json.loads(path.read_bytes().partition(b"\n")[0])
            if entry["kind"] == "rows":
                rows.update(range(entry["first"], entry["next"]))
            else:
                rows.update(link[0] for link in entry["links"])
    return rows


def run_until_signal(arguments, server, number, saves_soon=False):
    """Start a pack, wait until it has all objects except STUCK, and send a signal.

    With `saves_soon`, wait until they are saved; otherwise until all threads wait for STUCK.
    """
    program = ["-c", SOON] if saves_soon else ["-m", "flarecli"]
    out = Path(arguments[2])
    with subprocess.Popen(
        [sys.executable, *program, *arguments], stderr=subprocess.PIPE, text=True
    ) as packing:

        def is_fetched():
            if len(server.sent) < ROWS - 1:
                return False
            if saves_soon:
                return rows_on_disk(out) >= FETCHED
            return thread_states(packing.pid) == {"S"}

        wait_until(is_fetched, packing)
        packing.send_signal(number)
        _, stderr = packing.communicate()
    return packing.returncode, stderr


def fetched_again(server):
    """Return the rows that were requested twice, except failed rows and STUCK."""
    return [
        row
        for row, count in sorted(Counter(server.requested).items())
        if count > 1 and row in FETCHED
    ]


CUTS = [["--shard-size", "1MB"], ["--shard-rows", "1000"], ["--shard-size", "1MB", "-z", "zstd"]]


@pytest.fixture
def uninterrupted(index, tmp_path, server, packed_cache):
    """Pack without interruption, once for all tests with the same options."""

    def packed(*more):
        if more not in packed_cache:
            server.may_end.set()
            assert main(argv(index, tmp_path / "whole", server, *more)) == 1
            packed_cache[more] = files_of(tmp_path / "whole")
        return packed_cache[more]

    return packed


@pytest.fixture(scope="module")
def packed_cache():
    return {}


@pytest.mark.parametrize(
    ("number", "code", "cut"),
    [*((*one, CUTS[0]) for one in SIGNALS), *((*SIGNALS[0], cut) for cut in CUTS[1:])],
)
def test_a_stopped_pack_is_resumed_without_repeated_downloads(
    tmp_path, index, server, uninterrupted, number, code, cut
):
    result = run_until_signal(argv(index, tmp_path / "out", server, *cut), server, number)
    assert result[0] == code
    kinds = {path.read_bytes()[:16] for path in (tmp_path / "out" / ".flare").glob("fetched.*")}
    assert kinds == {b'{"kind": "rows",', b'{"kind": "links"'}
    assert not [one for one in files_of(tmp_path / "out") if one.endswith(".part")]
    server.may_end.set()
    assert main(argv(index, tmp_path / "out", server, "--resume", *cut)) == 1
    assert fetched_again(server) == []
    assert files_of(tmp_path / "out") == uninterrupted(*cut)


@pytest.mark.parametrize(("cut", "form"), [(CUTS[0], "webdataset"), (CUTS[1], "mds")])
def test_a_resume_after_a_kill_does_not_repeat_saved_downloads(
    tmp_path, index, server, uninterrupted, cut, form
):
    """The spool is written at intervals, also while the pack waits for an object."""
    more = [*cut, "-f", form]
    arguments = argv(index, tmp_path / "out", server, *more)
    assert (
        run_until_signal(arguments, server, signal.SIGKILL, saves_soon=True)[0] == -signal.SIGKILL
    )
    server.may_end.set()
    assert main([*arguments, "--resume"]) == 1
    assert fetched_again(server) == []
    assert files_of(tmp_path / "out") == uninterrupted(*more)


def test_a_pack_can_be_stopped_and_resumed_many_times(tmp_path, index, server, uninterrupted):
    arguments = argv(index, tmp_path / "out", server, "--shard-size", "1MB")
    for number, code in SIGNALS:
        assert run_until_signal([*arguments, "--resume"], server, number)[0] == code
    server.may_end.set()
    assert main([*arguments, "--resume"]) == 1
    assert fetched_again(server) == []
    assert files_of(tmp_path / "out") == uninterrupted("--shard-size", "1MB")


def flipped(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


def emptied(path):
    os.truncate(path, 0)


@pytest.mark.parametrize("damage", [flipped, truncated, emptied])
def test_downloads_in_a_damaged_spool_file_are_repeated(
    tmp_path, index, server, uninterrupted, damage
):
    arguments = argv(index, tmp_path / "out", server, "--shard-rows", "1000")
    run_until_signal(arguments, server, signal.SIGINT)
    spooled = sorted((tmp_path / "out" / ".flare").glob("fetched.*"))
    assert spooled
    for path in spooled:
        damage(path)
    server.may_end.set()
    assert main([*arguments, "--resume"]) == 1
    assert len(fetched_again(server)) > 40
    assert files_of(tmp_path / "out") == uninterrupted("--shard-rows", "1000")


def test_addresses_of_fetched_links_are_not_stored(tmp_path, index, server):
    text = index.read_text()
    for row in (8, ROWS - 1):  # a failed row, and a row that waits
        text = text.replace(f"/{row}\n", f"/{row}?token=secret\n")
    index.write_text(text)
    run_until_signal(argv(index, tmp_path / "out", server), server, signal.SIGINT)
    kept = files_of(tmp_path / "out" / ".flare")
    assert any(name.startswith("fetched.") for name in kept)
    assert not [name for name, data in kept.items() if b"secret" in data]


def test_a_changed_index_is_refused_even_without_a_finished_shard(tmp_path, index, server, capsys):
    arguments = argv(index, tmp_path / "out", server, "--shard-rows", "1000")
    run_until_signal(arguments, server, signal.SIGINT)
    text = index.read_text()
    index.write_text(text.replace(f"/{ROWS - 1}\n", "/03\n"))
    server.may_end.set()
    assert main([*arguments, "--resume"]) == 2
    assert capsys.readouterr().err.splitlines()[0] == (
        f"error: {tmp_path}/out: the unfinished pack was started with another source, or "
        "before the source was changed"
    )


def test_a_finished_pack_has_no_spool_and_local_files_are_not_spooled(tmp_path, index, server):
    server.may_end.set()
    out = tmp_path / "out"
    arguments = argv(index, out, server)
    subprocess.run([sys.executable, "-c", SOON, *arguments], check=False)
    assert not (out / ".flare").exists()
    (tmp_path / "a.bin").write_bytes(b"abc")
    (tmp_path / "local.csv").write_text("id,url\n" + "k,a.bin\n" * 2)
    subprocess.run(
        [sys.executable, "-c", SOON, *argv(tmp_path / "local.csv", tmp_path / "two", server)],
        check=False,
    )
    assert not (tmp_path / "two").exists()
