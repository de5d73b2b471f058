"""Progress of a command on stderr: a bar on a terminal; elsewhere, one line a minute.

A thread prints the progress, so the elapsed time is updated even while no row is received.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

from flarecli.cli.printer import Printer
from flarecli.progress import Progress
from flarecli.units import format_count, format_size, format_time

__all__ = ["ProgressBar", "Sample", "Snapshot", "Task"]

MAX_FAILURES = 20  # maximum number of failed rows and of reasons to print
LINE_S = 60.0  # interval between two lines, if stderr is not a terminal
_DRAW_S = 0.2  # interval between two updates of the bar
_WINDOW_S = 30.0  # time over which rates are averaged; the whole task if it is shorter


class Task(NamedTuple):
    """The task that a command is working on; see `Progress.start`.

    is_started  False until `Progress.start` is called
    """

    name: str
    rows: int | None = None
    bytes: int | None = None
    unit: str = "row"
    write_share: float = 0.0
    is_started: bool = False


class Sample(NamedTuple):
    """Counts of rows and bytes at one moment."""

    time: float
    rows: int
    bytes: int
    written: float


class ProgressBar(Progress):
    """Progress on stderr while a `with` block runs: a bar or lines, and the first failures.

    Nothing is printed if output is quiet or JSON.

    task     name of the task; `start` replaces it
    line_s   seconds between two lines, if stderr is not a terminal
    """

    def __init__(self, printer: Printer, task: str, line_s: float = LINE_S) -> None:
        self._printer, self._task, self._line_s = printer, Task(task), line_s
        self._begin = time.monotonic()
        self._stream = sys.stderr
        self._is_terminal = self._stream is not None and self._stream.isatty()
        self._counting, self._printing = threading.Lock(), threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self._bar: Any = None
        self._failures = 0
        self._reset(0)

    def _reset(self, done: int) -> None:
        self._rows, self._bytes, self._written = done, 0, float(done)
        self._samples = deque([self._sample()])

    def _sample(self) -> Sample:
        return Sample(time.monotonic(), self._rows, self._bytes, self._written)

    def __enter__(self) -> Self:
        if not (self._printer.quiet or self._printer.as_json or self._stream is None):
            self._thread = threading.Thread(target=self._run, name="flare-progress", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # no thread can be started, so no progress is printed
                self._thread = None
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    def end(self) -> None:
        """Remove the bar, and print no further progress."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._printing:
            if self._bar is not None:
                self._bar.close()
                self._bar = None

    # -- callbacks

    def start(
        self,
        task: str,
        rows: int | None,
        bytes: int | None = None,
        *,
        done: int = 0,
        unit: str = "row",
        write_share: float = 0.0,
    ) -> None:
        with self._counting:
            self._reset(done)
            self._task = Task(task, rows, bytes, unit, write_share, is_started=True)

    def advance(self, rows: int, bytes: int) -> None:
        with self._counting:
            self._rows += rows
            self._bytes += bytes

    def written(self, rows: float) -> None:
        with self._counting:
            self._written += rows

    def failed(self, key: str, reason: str, rows: int = 1) -> None:
        """Count failed rows, and print the first MAX_FAILURES keys with their reasons."""
        is_shown = self._failures < MAX_FAILURES
        with self._counting:
            self._failures += rows
        if is_shown:
            self.note(f"{key}: {reason}")

    def note(self, text: str, verbose: bool = False) -> None:
        """Print a note above the bar."""
        with self.hidden():
            self._printer.note(text, verbose)

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Clear the bar, and do not draw it while the `with` block prints other output."""
        with self._printing:
            if self._bar is not None:
                self._bar.clear()
            yield

    # -- the thread

    def _run(self) -> None:
        interval_s = _DRAW_S if self._is_terminal else self._line_s
        while not self._ended.wait(interval_s):
            with self._counting:
                now = self._sample()
                samples = self._samples
                # keep one sample that is at least _WINDOW_S old; the average rate starts there
                while len(samples) > 1 and samples[1].time <= now.time - _WINDOW_S:
                    samples.popleft()
                elapsed_s = now.time - self._begin
                snapshot = Snapshot(self._task, self._failures, elapsed_s, samples[0], now)
                samples.append(now)
            with self._printing:
                if self._ended.is_set():
                    return
                if not self._is_terminal:
                    self._printer.note(snapshot.line())
                    continue
                try:
                    self._draw(snapshot)
                except (OSError, ValueError):  # the terminal is closed
                    return

    def _draw(self, snapshot: Snapshot) -> None:
        from tqdm import tqdm

        fraction, left_s = snapshot.fraction, snapshot.left_s
        name, elapsed = snapshot.task.name, tqdm.format_interval(snapshot.elapsed_s)
        if not snapshot.task.is_started:
            layout = f"{name}: {elapsed}{{bar}}"
        elif fraction is None:
            layout = f"{name}: {snapshot.counts('/')}, {elapsed}{{bar}}"
        else:
            left = "?" if left_s is None else tqdm.format_interval(left_s)
            percent = f"{int(100 * fraction):3d}%"
            layout = f"{name}: {percent}|{{bar}}| {snapshot.counts('/')}, {elapsed}<{left}"
        if self._bar is None:
            self._bar = tqdm(
                total=1, file=self._stream, leave=False, dynamic_ncols=True, bar_format=layout
            )
        self._bar.bar_format, self._bar.n = layout, fraction or 0.0
        self._bar.refresh()

    # -- results

    def print_failures(self, reasons: Mapping[str, int]) -> None:
        """Print how many rows failed for each reason, the most frequent reason first."""
        by_count = sorted(reasons.items(), key=lambda item: (-item[1], item[0]))
        for reason, count in by_count[:MAX_FAILURES]:
            self._printer.note(f"{format_count(count, 'row')} failed: {reason}")

    def print_summary(self, text: str, size: int | None = None) -> None:
        """Print `text` and the elapsed time on one line, and the rate if bytes were processed.

        size  number of bytes for the rate; None: the number of processed bytes
        """
        seconds = max(1e-3, time.monotonic() - self._begin)
        rate = int((self._bytes if size is None else size) / seconds) if self._bytes else 0
        shown = f" ({format_size(rate)}/s)" if rate else ""
        self._printer.note(f"{text} in {seconds:.1f} s{shown}")


class Snapshot(NamedTuple):
    """Values that the progress bar or a progress line displays.

    elapsed_s  seconds since the command started
    before     earlier counts, from which the rates are computed
    now        current counts
    """

    task: Task
    failures: int
    elapsed_s: float
    before: Sample
    now: Sample

    @property
    def fraction(self) -> float | None:
        """Return the finished share of the work, from 0 to 1; None if the total is unknown."""
        if self.task.bytes:
            return min(1.0, self.now.bytes / self.task.bytes)
        if not self.task.rows:
            return None
        share = min(1.0, self.now.rows / self.task.rows)
        written = min(share, self.now.written / max(1, self._to_write))
        return share + (written - share) * self.task.write_share

    @property
    def _has_all_rows(self) -> bool:
        return self.task.rows is not None and self.now.rows >= self.task.rows

    @property
    def _to_write(self) -> int:
        return (self.task.rows or 0) - self.failures

    @property
    def left_s(self) -> float | None:
        """Return the estimated seconds to the end of the task; None if unknown."""
        if self.task.bytes:
            return self._seconds(self.task.bytes, self.before.bytes, self.now.bytes)
        arrival = self._seconds(self.task.rows or 0, self.before.rows, self.now.rows)
        if not self.task.write_share:
            return arrival
        writing = self._seconds(self._to_write, self.before.written, self.now.written)
        if self._has_all_rows:
            return writing
        # before the first shard is written, the remaining writing time cannot be estimated
        return arrival if arrival is None or writing is None else max(arrival, writing)

    def _seconds(self, total: float, before: float, now: float) -> float | None:
        """Return the seconds until a count reaches its total; None if the count does not grow."""
        if now >= total:
            return 0.0
        rate = self._rate(before, now)
        return (total - now) / rate if rate > 0 else None

    def _rate(self, before: float, now: float) -> float:
        return (now - before) / max(1e-3, self.now.time - self.before.time)

    def counts(self, between: str) -> str:
        """Return the counts and the rate; `between` separates a count from its total."""
        now, unit = self.now, f"{self.task.unit}s"
        parts = [format_count(now.rows, self.task.unit)]
        if self.task.rows:
            parts = [f"{now.rows:,}{between}{format_count(self.task.rows, self.task.unit)}"]
        written = min(round(now.written), now.rows)
        is_shown = written > 0 or self._has_all_rows
        if self.task.write_share and is_shown and written < now.rows - self.failures:
            parts.append(f"{written:,} written")
        if self.task.write_share and self._has_all_rows:
            rate = self._rate(self.before.written, now.written)
            parts.append(f"{rate:,.1f} {unit}/s")
        elif now.bytes:
            parts.append(f"{format_size(int(self._rate(self.before.bytes, now.bytes)))}/s")
        else:
            parts.append(f"{self._rate(self.before.rows, now.rows):,.1f} {unit}/s")
        if self.failures:
            parts.append(f"{self.failures:,} failed")
        return ", ".join(parts)

    def line(self) -> str:
        """Return the progress as one line of a log."""
        elapsed = f"{format_time(self.elapsed_s)} so far"
        if not self.task.is_started:
            return f"{self.task.name}: {elapsed}"
        parts = [self.counts(" of "), elapsed]
        fraction, left = self.fraction, self.left_s
        if fraction is not None:
            parts.insert(0, f"{int(100 * fraction)}%")
            parts.append("time left unknown" if left is None else f"about {format_time(left)} left")
        return f"{self.task.name}: {', '.join(parts)}"
