"""Progress on a terminal and in a log: it advances with each row, updates the elapsed time, and
counts compression.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import sys
import termios
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli import commands
from flarecli.__main__ import main
from flarecli.cli.printer import Printer
from flarecli.cli.progress import ProgressBar, Sample, Snapshot, Task
from flarecli.model import Settings
from flarecli.progress import Progress
from flarecli.write import Writer

LIMIT_S = 20.0


class Terminal:
    """A pseudo-terminal. `text` is everything that was written to it."""

    def __init__(self) -> None:
        self.text = ""
        self._master, slave = os.openpty()
        termios.tcsetwinsize(slave, (24, 100))
        self.stream = os.fdopen(slave, "w", encoding="utf-8")
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # the stream was closed
            while data := os.read(self._master, 1 << 16):
                self.text += data.decode("utf-8", "replace")

    def wait_for(self, pattern: str, start: int = 0) -> re.Match[str]:
        """Wait until a pattern is on the terminal after the first `start` characters."""
        stop = time.monotonic() + LIMIT_S
        while (match := re.search(pattern, self.text[start:])) is None:
            assert time.monotonic() < stop, f"{pattern!r} is not in {self.text[start:]!r}"
            time.sleep(0.01)
        return match

    def run(self, *args: str) -> int:
        """Run a command line with this terminal as stderr, and return the exit code."""
        before, sys.stderr = sys.stderr, self.stream
        try:
            return main(list(args))
        finally:
            sys.stderr = before

    def close(self) -> None:
        self.stream.close()
        self._reader.join(LIMIT_S)
        os.close(self._master)


@pytest.fixture
def terminal():
    """Return a terminal that is 100 columns wide."""
    one = Terminal()
    yield one
    one.close()


class Steps:
    """An HTTP server that sends the response for /I only after `before[I]` has returned."""

    def __init__(self, before, missing=()) -> None:
        steps = self
        self.errors: list[BaseException] = []

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                number = int(self.path[1:])
                try:
                    before.get(number, lambda: None)()
                except BaseException as error:
                    steps.errors.append(error)
                self.send_response(404 if number in missing else 200)
                self.send_header("Content-Length", "1000")
                self.end_headers()
                self.wfile.write(bytes(1000))

            def log_message(self, *args: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.host = f"127.0.0.1:{self._server.server_port}"

    def __enter__(self):
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def index(self, folder, rows: int) -> str:
        path = str(folder / "index.parquet")
        urls = [f"http://{self.host}/{i}" for i in range(rows)]
        pq.write_table(pa.table({"u": urls}), path)
        return path


def test_the_bar_advances_with_each_row_and_its_clock_runs_without_rows(terminal, tmp_path):
    def ticks() -> None:
        start = len(terminal.text)
        first = terminal.wait_for(r"2/4 rows.*(\d\d:\d\d)<", start)[1]
        terminal.wait_for(rf"2/4 rows.*(?!{first})\d\d:\d\d<", start)

    before = {
        1: lambda: terminal.wait_for(r"pack:  22%\|[^|]*\| 1/4 rows, .*B/s, \d\d:\d\d<"),
        2: ticks,
        3: lambda: terminal.wait_for(r"3/4 rows, .*, 1 failed, "),
    }
    with Steps(before, missing=[2]) as server:
        index, out = server.index(tmp_path, 4), str(tmp_path / "out")
        options = ["--fetch", "u", "-j", "1", "--allow-host", server.host]
        code = terminal.run("pack", index, out, *options, "--on-error", "skip")
    assert server.errors == []
    assert code == 1
    assert re.search(r"\[2\]: http://\S+/2: 404 Not Found\r\n", terminal.text)


def test_rows_that_are_downloaded_before_an_earlier_slow_row_advance_the_bar(terminal, tmp_path):
    with Steps({0: lambda: terminal.wait_for(r"\| 7/8 rows, ")}) as server:
        index, out = server.index(tmp_path, 8), str(tmp_path / "out")
        options = ["--fetch", "u", "-j", "4", "--allow-host", server.host]
        code = terminal.run("pack", index, out, *options)
    assert (server.errors, code) == ([], 0)


def test_a_failed_row_is_reported_before_the_next_row_arrives(terminal, tmp_path):
    """The pack ends at once, although the batch of the failed row is not complete."""
    ended = threading.Event()
    with Steps({2: lambda: ended.wait(LIMIT_S)}, missing=[1]) as server:
        index, out = server.index(tmp_path, 4), str(tmp_path / "out")
        options = ["--fetch", "u", "-j", "2", "--allow-host", server.host]
        code = terminal.run("pack", index, out, *options)
        is_early = not ended.is_set()
        ended.set()
    assert (code, is_early) == (3, True)


class Recorder(Progress):
    """The tasks, and the counts that worker threads and the command report."""

    def __init__(self) -> None:
        self.tasks: list[tuple] = []
        self.rows = self.bytes = self.calls = 0
        self.shares: list[float] = []
        self._lock = threading.Lock()

    def start(self, task, rows, bytes=None, **options) -> None:
        self.tasks.append((task, rows, bytes))

    def advance(self, rows, bytes) -> None:
        with self._lock:
            self.rows, self.bytes, self.calls = self.rows + rows, self.bytes + bytes, self.calls + 1

    def written(self, rows) -> None:
        with self._lock:
            self.shares.append(rows)


def numbers(folder, rows=3000, size=1000) -> str:
    path = str(folder / "numbers.parquet")
    data = pa.array([i.to_bytes(4) * (size // 4) for i in range(rows)], pa.binary())
    pq.write_table(pa.table({"data": data}), path, row_group_size=500)
    return path


@pytest.mark.parametrize(
    ("format", "compress"),
    [
        ("mds", None),
        ("mds", "zstd:1"),
        ("mds", "gz:1"),
        ("mds", "bz2:1"),
        ("webdataset", None),
        ("tfrecord", "gz:1"),
        ("ffrecord", None),
        ("granular", None),
    ],
)
def test_a_shard_reports_its_rows_while_it_is_compressed_and_written(tmp_path, format, compress):
    progress, out = Recorder(), str(tmp_path / "out")
    options = {"format": format, "compress": compress, "shard_size": None}
    packed = flarecli.pack(numbers(tmp_path), out, progress=progress, **options)
    assert (packed.rows, progress.rows) == (3000, 3000)
    assert sum(progress.shares) == pytest.approx(3000)
    assert max(progress.shares) < 2000, "one shard, but not in one step"


@pytest.mark.parametrize("compress", ["br:1", "snappy"])
def test_a_compression_in_one_step_reports_the_rows_of_its_shard_at_the_end(tmp_path, compress):
    progress = Recorder()
    flarecli.pack(numbers(tmp_path), str(tmp_path / "out"), progress=progress, compress=compress)
    assert [one for one in progress.shares if one] == [pytest.approx(3000)]


class Interrupt(Recorder):
    """Interrupts the pack when 1500 rows have arrived."""

    def advance(self, rows, bytes) -> None:
        super().advance(rows, bytes)
        if self.rows >= 1500:
            raise KeyboardInterrupt


@pytest.mark.parametrize("is_resumed", [False, True])
def test_parts_report_the_rows_of_each_part_while_it_is_packed(tmp_path, is_resumed):
    index, out = numbers(tmp_path), str(tmp_path / "out")
    if is_resumed:
        with pytest.raises(KeyboardInterrupt):
            flarecli.pack(index, out, part_rows=1000, progress=Interrupt())
    progress = Recorder()
    flarecli.pack(index, out, part_rows=1000, progress=progress, resume=is_resumed)
    assert progress.tasks == [("pack", 3000, None)]
    assert progress.rows == 3000
    assert sum(progress.shares) == pytest.approx(3000)
    assert progress.calls > 3


@pytest.fixture
def dataset(tmp_path) -> str:
    with Writer(
        str(tmp_path / "set"), columns={"data": "bytes"}, settings=Settings(shard_bytes=None)
    ) as writer:
        writer.write_batch(pq.read_table(numbers(tmp_path, 3000, 5000)))
    return str(tmp_path / "set")


@pytest.mark.parametrize("options", [{}, {"decode": True}, {"duplicates": True}], ids=str)
def test_verify_reports_the_bytes_of_one_large_shard_while_it_is_read(dataset, options):
    progress = Recorder()
    result = flarecli.verify(dataset, progress=progress, jobs=1, **options)
    assert list(result) == []
    ((task, rows, size),) = progress.tasks
    assert (task, rows) == ("verify", 3000)
    assert size == os.path.getsize(f"{dataset}/shard.00000.mds") > 3000 * 5000
    assert (progress.rows, progress.bytes) == (result.rows, result.bytes - _list_bytes(dataset))
    assert progress.calls > 3 + 2, "more calls than files"


def _list_bytes(dataset) -> int:
    """Return the size of the playlist, which verify counts but progress does not."""
    return os.path.getsize(f"{dataset}/playlist.yaml")


def test_verify_of_a_sample_shows_the_total_rows_and_bytes_of_the_sample(tmp_path):
    out, progress = str(tmp_path / "out"), Recorder()
    flarecli.pack(numbers(tmp_path), out, shard_rows=100)
    assert list(flarecli.verify(out, progress=progress, sample=3)) == []
    ((_, rows, size),) = progress.tasks
    assert (rows, progress.rows) == (300, 300)
    assert 300 * 1000 < size < 310 * 1000


def test_unpack_reports_each_row(dataset, tmp_path):
    progress = Recorder()
    flarecli.unpack(dataset, str(tmp_path / "files"), progress=progress)
    assert progress.tasks == [("unpack", 3000, None)]
    assert (progress.rows, progress.bytes) == (3000, 3000 * 5000)
    assert progress.calls >= 3000


def test_cat_reports_the_rows_that_it_reads(dataset):
    progress = Recorder()
    list(flarecli.cat(dataset, progress=progress))
    assert (progress.tasks, progress.rows) == ([("cat", 3000, None)], 3000)
    progress = Recorder()
    list(flarecli.cat(dataset, progress=progress, where="false"))
    assert (progress.tasks, progress.rows) == ([("cat", 3000, None)], 3000)
    progress = Recorder()
    list(flarecli.cat(dataset, progress=progress, where="true", limit=1))
    assert progress.tasks == [("cat", None, None)]


def test_playlist_reports_files_then_the_bytes_that_it_hashes(tmp_path):
    out, progress = str(tmp_path / "out"), Recorder()
    flarecli.pack(numbers(tmp_path), out, shard_rows=1000)
    os.unlink(f"{out}/playlist.yaml")  # index.json has sizes and rows, but no xxh3_128
    size = sum(os.path.getsize(f"{out}/shard.0000{i}.mds") for i in range(3))
    flarecli.playlist(out, out=f"{out}/set.yaml", progress=progress)
    assert progress.tasks == [("playlist", 3, None), ("playlist", 3, size)]
    assert (progress.rows, progress.bytes) == (3 + 3, size)


def test_inspect_reports_shards_statistics_and_samples(tmp_path):
    out, progress = str(tmp_path / "out"), Recorder()
    flarecli.pack(numbers(tmp_path), out, shard_rows=1000)
    commands.inspect(out, progress=progress, stats=True, sample=5)
    assert [task for task in progress.tasks if task[1]] == [
        ("inspect", 3, None),
        ("inspect", 3000, None),
        ("inspect", 5, None),
    ]
    assert progress.rows == 3 + 3000 + 5


COMMANDS = {
    "pack": ("a", "out"),
    "unpack": ("a", "out"),
    "verify": ("a",),
    "playlist": ("a",),
    "inspect": ("a",),
    "cat": ("a",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_draws_its_progress_on_a_terminal_and_clears_it(
    terminal, command, monkeypatch
):
    def run(*args, progress, **options):
        progress.start(command, 10)
        progress.advance(4, 1000)
        terminal.wait_for(rf"{command}:  40%\|[^|]*\| 4/10 rows, .*B/s, 00:0")
        raise KeyboardInterrupt

    monkeypatch.setitem(vars(commands), command, run)
    assert terminal.run(command, *COMMANDS[command]) == 130
    terminal.wait_for("error: interrupted.*\n")
    bar, _, rest = terminal.text.rstrip().rpartition("\r")
    assert "4/10 rows" in bar
    assert "rows" not in rest, "the bar is cleared before the message"
    assert rest.startswith("error: interrupted")


@pytest.mark.parametrize("options", [["-q"], ["--json"]])
def test_quiet_and_json_draw_nothing(terminal, options, monkeypatch):
    def run(*args, progress, **more):
        progress.start("cat", 10)
        time.sleep(0.5)
        return iter(())

    monkeypatch.setitem(vars(commands), "cat", run)
    assert terminal.run("cat", "a", *options) == 0
    assert terminal.text == ""


def test_a_bar_is_removed_before_rows_are_printed_on_the_same_terminal(terminal, monkeypatch):
    def run(*args, progress, **options):
        progress.start("cat", 2)
        terminal.wait_for("cat:   0%")
        yield pa.record_batch({"n": [1]})
        time.sleep(0.5)
        progress.advance(1, 8)
        yield pa.record_batch({"n": [2]})

    monkeypatch.setitem(vars(commands), "cat", run)
    monkeypatch.setattr(sys, "stdout", terminal.stream)
    assert terminal.run("cat", "a") == 0
    terminal.wait_for(r'\{"n": 2\}')
    assert re.search(r'\r\{"n": 1\}\s*\{"n": 2\}\s*$', terminal.text)


# -- a log instead of a terminal


def log(printer, run, monkeypatch) -> list[str]:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    with ProgressBar(printer, "pack", line_s=0.05) as bar:
        run(bar, stream)
    monkeypatch.undo()
    return stream.getvalue().splitlines()


def wait_for_lines(stream, count: int) -> None:
    stop = time.monotonic() + LIMIT_S
    while stream.getvalue().count("\n") < count and time.monotonic() < stop:
        time.sleep(0.01)


def test_a_log_has_a_line_for_each_interval_without_rows(monkeypatch):
    def run(bar, stream):
        wait_for_lines(stream, 2)
        bar.start("pack", 10)
        bar.advance(4, 1000)
        bar.failed("k", "status 404")
        wait_for_lines(stream, 8)

    lines = log(Printer(), run, monkeypatch)
    assert lines[:2] == ["pack: 0 s so far"] * 2
    assert "k: status 404" in lines
    assert re.fullmatch(
        r"pack: 40%, 4 of 10 rows, [\d.]+ k?B/s, 1 failed, \d s so far, "
        r"(about \d+ s left|time left unknown)",
        lines[-1],
    )


@pytest.mark.parametrize("printer", [Printer(quiet=True), Printer(as_json=True)])
def test_a_quiet_log_gets_no_line(printer, monkeypatch):
    def run(bar, stream):
        bar.start("pack", 10)
        time.sleep(0.3)

    assert log(printer, run, monkeypatch) == []


def test_a_short_command_writes_no_line_to_a_log(flare):
    def tell(*args, progress, **options):
        progress.start("cat", 10)
        progress.advance(4, 1000)
        return iter(())

    assert flare("cat", "a", cat=tell).err == ""


START = Sample(0.0, 0, 0, 0.0)


def snapshot(now, before=START, failures=0, **facts) -> Snapshot:
    task = Task(**{"name": "pack", "rows": 100, "is_started": True, **facts})
    return Snapshot(task, failures, 200.0, before, now)


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (
            snapshot(Sample(20.0, 25, 5_000_000, 0.0)),
            "pack: 25%, 25 of 100 rows, 250.0 kB/s, 3 m so far, about 1 m left",
        ),
        (
            snapshot(Sample(20.0, 25, 0, 0.0), failures=1234),
            "pack: 25%, 25 of 100 rows, 1.2 rows/s, 1,234 failed, 3 m so far, about 1 m left",
        ),
        (  # rates are those of the last seconds
            snapshot(Sample(20.0, 50, 4_000_000, 0.0), Sample(10.0, 40, 3_000_000, 0.0)),
            "pack: 50%, 50 of 100 rows, 100.0 kB/s, 3 m so far, about 50 s left",
        ),
        (
            snapshot(Sample(20.0, 50, 4_000_000, 0.0), Sample(10.0, 50, 4_000_000, 0.0)),
            "pack: 50%, 50 of 100 rows, 0 B/s, 3 m so far, time left unknown",
        ),
        (
            snapshot(Sample(20.0, 1, 5_000_000, 0.0), rows=1),
            "pack: 100%, 1 of 1 row, 250.0 kB/s, 3 m so far, about 0 s left",
        ),
        (
            snapshot(Sample(20.0, 25, 5_000_000, 0.0), rows=None),
            "pack: 25 rows, 250.0 kB/s, 3 m so far",
        ),
        (
            snapshot(Sample(20.0, 0, 5_000_000, 0.0), bytes=20_000_000, name="verify"),
            "verify: 25%, 0 of 100 rows, 250.0 kB/s, 3 m so far, about 1 m left",
        ),
        (
            snapshot(Sample(20.0, 3, 0, 0.0), unit="file", rows=4, name="playlist"),
            "playlist: 75%, 3 of 4 files, 0.1 files/s, 3 m so far, about 6 s left",
        ),
        (snapshot(Sample(20.0, 0, 0, 0.0), is_started=False), "pack: 3 m so far"),
    ],
)
def test_a_line_has_counts_rate_failures_and_time_left(shown, line):
    assert shown.line() == line


@pytest.mark.parametrize(
    ("shown", "line"),
    [
        (  # no shard is written yet
            snapshot(Sample(10.0, 50, 10**6, 0.0), write_share=0.5),
            "pack: 25%, 50 of 100 rows, 100.0 kB/s, 3 m so far, about 10 s left",
        ),
        (  # compression is slower than the source
            snapshot(Sample(10.0, 50, 10**6, 10.0), write_share=0.5),
            "pack: 30%, 50 of 100 rows, 10 written, 100.0 kB/s, 3 m so far, about 1 m left",
        ),
        (  # all rows have arrived, and a shard is being compressed
            snapshot(
                Sample(30.0, 100, 10**6, 40.0), Sample(10.0, 100, 10**6, 20.0), write_share=0.5
            ),
            "pack: 70%, 100 of 100 rows, 40 written, 1.0 rows/s, 3 m so far, about 1 m left",
        ),
        (  # failed rows are not written
            snapshot(Sample(10.0, 100, 10**6, 90.0), write_share=0.5, failures=10),
            "pack: 100%, 100 of 100 rows, 9.0 rows/s, 10 failed, 3 m so far, about 0 s left",
        ),
    ],
)
def test_compression_counts_towards_the_percentage_and_the_time_left(shown, line):
    assert shown.line() == line
