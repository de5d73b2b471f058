"""Link downloads: download linked files before their rows are needed; yield the rows in order.

    batches -> slices of rows -> requests for the next slices -> engine -> rows in order -> Fetched

A row fails if a response for one of its links is truncated, is a web page or has an empty body.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue

import numpy as np
import pyarrow as pa

from flarecli import media
from flarecli.errors import CredentialsError, FlareError, MissingError
from flarecli.ingest import binary_array
from flarecli.model import IntArray
from flarecli.names import is_url
from flarecli.progress import Progress
from flarecli.redact import redact, redact_text
from flarecli.storage import Guard, Limits, Location, bucket_note, keep_freed
from flarecli.storage.http.engine import BatchRequest, Engine, Fault, Page
from flarecli.storage.http.url import Address
from flarecli.units import format_count, format_size
from flarecli.write.failures import Failure, drop_rows
from flarecli.write.keys import key_text
from flarecli.write.link_targets import (
    Arrived,
    Link,
    LinkFailure,
    LinkResolver,
    ObjectReader,
    Outcome,
    address_texts,
    extension_of,
)
from flarecli.write.spool import FetchedLink, Spool, address_digest

__all__ = ["Fetched", "Link", "LinkFailure", "fetch"]

MAX_SLICE_ROWS = 1024
MAX_ROWS_AHEAD = 4096  # maximum number of rows whose links are requested in advance
# Hints for a missing link. They are omitted after any link was fetched, because the column then
# contains valid links.
_GONE_HINT = "Check whether the links still exist."
_NO_LINK_HINT = (
    "Check that --fetch names a column of URLs, or of paths relative to the folder of the source."
)
MAX_SHOWN_HINTS = 3  # maximum number of notes about private addresses
# Approximate downloaded bytes per output batch. During its conversion, a batch is in memory twice.
_BATCH_BYTES = 4 << 20
# minimum number of freed bytes to report to the engine, because each report wakes the engine
_RELEASE_BYTES = 1 << 20
CHECK_S = 0.2  # interval between progress reports while a link is awaited
# The first wait for a link ends after _FIRST_WAIT_S seconds, or earlier: when a later link, at a
# distance of _FIRST_WAIT_LINKS positions, has been downloaded. It would be slower to end the wait
# after every download.
_FIRST_WAIT_S, _FIRST_WAIT_LINKS = 0.003, 128
# kinds of files that are accepted even if they look like a web page
_TEXT_KINDS = frozenset({"html", "xml", "json", "str"})
_MARKUP_STARTS = frozenset(b"<\xef\t\n\v\f\r ")  # first bytes of a body that may be a web page


@dataclass(frozen=True, slots=True)
class Fetched:
    """A batch in which the linked bytes have replaced the links.

    rows        int64 [rows of batch]: the position of each row in the selection
    failures    failed rows, in row order
    until       position in the selection: this and earlier Fetched objects contain all rows before
                this position, as data or as failures
    extensions  column -> file extension in the link of the first row, in lower case; empty if that
                link has no extension
    names       column -> link of each row, as written in the index
    """

    batch: pa.RecordBatch
    rows: IntArray
    failures: Sequence[Failure]
    until: int
    extensions: Mapping[str, str]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def without(self, failures: Mapping[int, Failure]) -> Fetched:
        """Return a copy that lists more failures, and whose batch omits the failed rows.

        failures  row of the batch -> failure
        """
        if not failures:
            return self
        batch, rows = drop_rows(self.batch, self.rows, failures)
        kept = np.flatnonzero(np.isin(self.rows, rows)).tolist()
        return replace(
            self,
            batch=batch,
            rows=rows,
            failures=sorted([*self.failures, *failures.values()], key=lambda one: one.row),
            names={name: [values[row] for row in kept] for name, values in self.names.items()},
        )


_CONSUMED = LinkFailure("", "")  # replaces downloads that were added to the columns


def fetch(
    batches: Iterable[pa.RecordBatch],
    links: Sequence[Link],
    *,
    key: str | None,
    at: Location,
    guard: Guard,
    limits: Limits,
    allow_empty: bool = False,
    ignore_robots_tag: bool = False,
    first_row: int = 0,
    progress: Progress,
    spool: Spool | None = None,
    refused: Callable[[pa.RecordBatch], Mapping[int, LinkFailure]] | None = None,
) -> Generator[Fetched, None, None]:
    """Download the linked files of each batch; yield batches with the bytes in place of the links.

    Rows keep their order. To stop all transfers, close the iterator.

    at         folder of the index; relative links are relative to this folder
    first_row  position of the first row of `batches` in the selection
    spool      contains the downloads of an interrupted pack, and saves the downloads of this pack
    ignore_robots_tag  True: also download objects whose X-Robots-Tag disallows their use
    refused    function that returns the rows of a batch whose linked files must not be downloaded:
               row -> failure; None: download the files of all rows
    raises     UsageError if a link column is not text
    """
    keep_freed()  # without this call, the buffer of each batch would cause page faults
    if not links:
        for batch in batches:
            next_row = first_row + batch.num_rows
            yield Fetched(batch, np.arange(first_row, next_row), (), next_row, {})
            first_row = next_row
        return
    fetcher = _Fetcher(
        links, key, at, guard, limits, allow_empty, ignore_robots_tag, spool, refused, progress
    )
    try:
        rows = 0
        for batch, first in _slices(batches, first_row):
            fetcher.start(batch, first)
            fetcher.report_buckets(progress)
            rows += batch.num_rows
            while rows > MAX_ROWS_AHEAD:
                rows -= fetcher.slices[0].batch.num_rows
                yield from fetcher.finish()
        while fetcher.slices:
            yield from fetcher.finish()
        for note in fetcher.notes():
            progress.note(note)
        progress.note(fetcher.summary(), verbose=True)
    finally:
        fetcher.close()


def _slices(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    for batch in batches:
        for start in range(0, batch.num_rows, MAX_SLICE_ROWS):
            part = batch.slice(start, MAX_SLICE_ROWS)
            yield part, first
            first += part.num_rows


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows whose links have been requested.

    first        position of the batch's first row in the selection
    texts        one list for each link column: the links of all rows
    outcomes     outcome of each link, row by row; None until the outcome is known
    request      the request that was passed to the engine
    has_objects  True if a link names an object of a bucket
    """

    batch: pa.RecordBatch
    first: int
    texts: Sequence[Sequence[str | None]]
    outcomes: list[Outcome]
    request: BatchRequest
    has_objects: bool


class _Fetcher:
    """Fetcher that requests links in advance, and collects the downloaded bytes as columns."""

    def __init__(
        self,
        links: Sequence[Link],
        key: str | None,
        at: Location,
        guard: Guard,
        limits: Limits,
        allow_empty: bool,
        ignore_robots_tag: bool,
        spool: Spool | None,
        refused: Callable[[pa.RecordBatch], Mapping[int, LinkFailure]] | None,
        progress: Progress,
    ) -> None:
        self._progress = progress
        self._finished_rows = 0  # number of rows in slices that were removed from `slices`
        self._reported_rows = self._reported_bytes = 0  # rows and bytes reported to `progress`
        self._links, self._key, self._allow_empty = links, key, allow_empty
        self._refused = refused
        self._obeys_robots_tag, self._robots_hint = not ignore_robots_tag, ""
        self._guard, self._limits, self._spool = guard, limits, spool
        self._may_be_page = [
            (link.encoding or "").partition(":")[0] in ("str", "json") for link in links
        ]
        self._resolver = LinkResolver(at, guard)
        self._objects = ObjectReader(at, limits)
        self._engine: Engine | None = None
        # the engine puts None into this queue when an awaited download ends
        self._arrived = SimpleQueue[None]()
        self.slices = deque[_Slice]()
        # The numbers of the rows in the first slice that are in no batch yet. For each link column,
        # the bytes that were downloaded for these rows.
        self._taken_rows: list[int] = []
        self._values: list[list[bytes]] = [[] for _ in links]
        self._yielded = deque[Fetched]()  # batches that may not have reached the Writer yet
        self._saved: dict[tuple[int, int], FetchedLink] = {}
        if spool is not None:
            spool.arrived, self._saved = self._fetched_links, spool.kept
        self._hints: dict[str, None] = {}  # distinct hints about private addresses, in order
        self._next_order = 0  # number of links in all slices so far
        self._requested = self._fetched = self._fetched_bytes = 0
        self._freed_bytes = 0  # freed bytes that have not been reported to the engine yet
        self._release_bytes = min(_RELEASE_BYTES, limits.ahead_bytes // 8)

    # -- requests

    def start(self, batch: pa.RecordBatch, first: int) -> None:
        """Request the links in a batch, and append the batch to `slices`.

        first  position of the batch's first row in the selection
        """
        texts = [address_texts(batch, link.source) for link in self._links]
        flat = (
            texts[0]
            if len(texts) == 1
            else [text for row in zip(*texts, strict=True) for text in row]
        )
        outcomes: list[Outcome] = [None] * len(flat)
        users: dict[int, str] = {}
        has_objects = False
        urls, origins = [""] * len(flat), [""] * len(flat)
        for i, text in enumerate(flat):
            target = self._resolver.resolve(text, self._links[i % len(self._links)].source)
            if isinstance(target, Address):
                urls[i], origins[i], user = target
                if user:
                    users[i] = user
            else:
                outcomes[i] = target
                has_objects |= isinstance(target, Location) and not target.is_local
        if self._refused is not None:
            width = len(self._links)
            for row, failure in self._refused(batch).items():
                for i in range(row * width, (row + 1) * width):
                    outcomes[i], urls[i], origins[i] = failure, "", ""
        if self._saved:
            for i in self._use_saved(flat, outcomes, first):
                urls[i] = origins[i] = ""
        request = BatchRequest(
            urls,
            origins,
            users,
            outcomes,
            functools.partial(self._arrived.put, None),
            replace(self._guard, named=self._resolver.named_origins),
            first=self._next_order,
            obeys_robots_tag=self._obeys_robots_tag,
        )
        self._next_order += len(flat)
        if requested := outcomes.count(None):
            if self._engine is None:
                self._engine = Engine(self._limits, self._limits.ahead_bytes)
            self._engine.submit_batch(request)
            self._requested += requested
        self.slices.append(_Slice(batch, first, texts, outcomes, request, has_objects))
        if self._spool is not None and (self._requested or has_objects):
            self._spool.is_remote = True

    def _use_saved(
        self, texts: Sequence[str | None], outcomes: list[Outcome], first: int
    ) -> Iterator[int]:
        """Set the outcomes of links that an interrupted pack downloaded; yield their positions."""
        for i, text in enumerate(texts):
            row, link = divmod(i, len(self._links))
            saved = self._saved.pop((first + row, link), None)
            if saved is None or isinstance(outcomes[i], LinkFailure) or not text:
                continue
            if saved.address == address_digest(text):
                outcomes[i] = saved
                yield i

    # -- reports

    def report_buckets(self, progress: Progress) -> None:
        """Report the buckets to which a local index refers, except buckets reported earlier."""
        buckets = self._resolver.buckets
        new = [bucket for bucket, is_reported in buckets.items() if not is_reported]
        if new:
            progress.note(bucket_note("the table", new))
            buckets.update(dict.fromkeys(new, True))

    def notes(self) -> Iterator[str]:
        """Yield notes that apply to all transfers."""
        for hint in self._hints:
            yield f"rows failed because of a private address: {hint[:1].lower()}{hint[1:]}"
        if hint := self._robots_hint:
            yield f"rows failed because of X-Robots-Tag: {hint[:1].lower()}{hint[1:].removesuffix('.')}"
        if self._engine is not None and self._engine.budget_exhausted:
            yield "the retry budget was used up: later transient errors were not retried"
        if self._engine is not None and self._engine.without_length:
            count = format_count(self._engine.without_length, "object")
            yield f"{count} without a length: flare cannot detect whether the objects are truncated"

    def summary(self) -> str:
        """Return a line with the number of fetched links and their size."""
        web = f", {self._requested} of them over HTTP" if self._requested else ""
        count, size = format_count(self._fetched, "link"), format_size(self._fetched_bytes)
        return f"fetched {count}, {size}{web}"

    def close(self) -> None:
        """Stop all transfers."""
        if self._engine is not None:
            self._engine.close()
        self._objects.close()

    # -- rows

    def finish(self) -> Iterator[Fetched]:
        """Wait for the links of the first slice, and yield its rows in batches."""
        part = self.slices[0]
        keys = part.batch.column(self._key) if self._key is not None else None
        failures: list[Failure] = []
        width, bytes_before = len(self._links), self._fetched_bytes
        for row in range(part.batch.num_rows):
            failed = self._take_row(part, row)
            stop = row + 1
            if failed is not None:
                key = "" if keys is None else key_text(keys[row])
                failures.append(_failure(part.first + row, key, *failed))
            self._report(self._finished_rows + stop, self._fetched_bytes)
            # yield failures before this method waits for the links of the next row
            is_due = bool(failures) and None in part.outcomes[stop * width : (stop + 1) * width]
            is_full = self._fetched_bytes - bytes_before >= _BATCH_BYTES
            if is_due or is_full or stop == part.batch.num_rows:
                yield from self._yield(self._batch(part, failures, stop))
                failures, bytes_before = [], self._fetched_bytes
        self._finished_rows += self.slices.popleft().batch.num_rows

    def _yield(self, fetched: Fetched) -> Iterator[Fetched]:
        """Yield a batch. With a spool, keep the batch until the Writer has received its rows.

        The spool can then save the downloads of the batch, if the pack is interrupted.
        """
        spool = self._spool
        if spool is not None:
            self._yielded.append(fetched)
        self._taken_rows, self._values = [], [[] for _ in self._links]
        yield fetched
        while spool is not None and self._yielded and self._yielded[0].until <= spool.until:
            self._yielded.popleft()

    def _fetched_links(self) -> Iterator[FetchedLink]:
        """Yield the downloads of all rows that the Writer may not have received yet."""
        for fetched in self._yielded:
            for i, link in enumerate(self._links):
                column, names = fetched.batch.column(link.name), fetched.names[link.name]
                for at, row in enumerate(fetched.rows.tolist()):
                    address = address_digest(names[at])
                    yield FetchedLink(row, i, address, memoryview(column[at].as_buffer()))
        if not self.slices:
            return
        part = self.slices[0]
        for i, values in enumerate(self._values):
            # after an interrupt, `values` may contain one more item than `_taken_rows`
            for row, value in zip(self._taken_rows, values, strict=False):
                address = address_digest(part.texts[i][row] or "")
                yield FetchedLink(part.first + row, i, address, value)
        for part in self.slices:
            for place, outcome in enumerate(part.outcomes):
                row, i = divmod(place, len(self._links))
                data, is_page = _fetched_bytes(outcome)
                if data is not None:
                    address = address_digest(part.texts[i][row] or "")
                    yield FetchedLink(part.first + row, i, address, data, is_page)

    def _take_row(self, part: _Slice, row: int) -> tuple[str, LinkFailure] | None:
        """Wait for the links of a row, and add their bytes to the columns.

        If a link has failed, add nothing, and return (column, failure).
        """
        width = len(self._links)
        values: list[bytes] = []
        failed: tuple[str, LinkFailure] | None = None
        for i, link in enumerate(self._links):
            if part.has_objects:
                self._objects.read_ahead(part.outcomes, row * width + i)
            text = part.texts[i][row] or ""
            value = self._value(part, row * width + i, text, self._may_be_page[i])
            if isinstance(value, bytes):
                values.append(value)
            elif failed is None:
                failed = value.column or link.name, value
        if failed is None:
            for taken, value in zip(self._values, values, strict=True):
                taken.append(value)
            self._taken_rows.append(row)
        # If the run is interrupted, the spool saves the downloads in `_values` and in `outcomes`.
        # The bytes are removed from `outcomes` last, so that no interrupt can lose a download.
        part.outcomes[row * width : (row + 1) * width] = [_CONSUMED] * width
        return failed

    def _value(self, part: _Slice, place: int, text: str, may_be_page: bool) -> bytes | LinkFailure:
        outcome = part.outcomes[place]
        if outcome is None or self._freed_bytes >= self._release_bytes:
            outcome = self._await(part, place)
        if isinstance(outcome, LinkFailure):
            return outcome
        if isinstance(outcome, Fault):
            if outcome.kind == "bug":
                raise RuntimeError(outcome.message)  # a bug must not be recorded as a failed row
            if outcome.kind == "unsafe" and outcome.hint and len(self._hints) < MAX_SHOWN_HINTS:
                self._hints[outcome.hint] = None
            if outcome.kind == "robots":
                self._robots_hint = outcome.hint
            message = f"{redact(part.request.urls[place])}: {outcome.message}"
            is_first = outcome.kind == "missing" and not self._fetched
            hint = outcome.hint or (_GONE_HINT if is_first else "")
            return LinkFailure(outcome.kind, redact_text(message), hint)
        if isinstance(outcome, FetchedLink):
            body = bytes(outcome.data)
        elif isinstance(outcome, bytes | Page):
            body = outcome.data if isinstance(outcome, Page) else outcome
            self._freed_bytes += len(body)
        else:
            try:
                data = self._objects.read(outcome, text)
            except CredentialsError:  # all other reads from the bucket would fail too
                raise
            except FlareError as error:
                message = f"{redact(text)}: {error.message}"
                is_missing = isinstance(error, MissingError) and not is_url(text)
                hint = _NO_LINK_HINT if is_missing and not self._fetched else error.hint
                return LinkFailure(error.kind, redact_text(message), hint)
            if isinstance(data, LinkFailure):
                return replace(data, reason=f"{redact(text)}: {data.reason}")
            body = data
        self._fetched += 1
        self._fetched_bytes += len(body)
        is_page = isinstance(outcome, Page) or (
            isinstance(outcome, FetchedLink) and outcome.is_page
        )
        failure = self._check_body(body, is_page, text, may_be_page)
        return failure or body

    def _await(self, part: _Slice, place: int) -> Arrived:
        """Wait for a link and return its outcome."""
        self._release(part, place)
        request, outcome = part.request, part.outcomes[place]
        if outcome is None:
            request.awaited = min(place + _FIRST_WAIT_LINKS, len(part.outcomes) - 1)
            with contextlib.suppress(Empty):
                self._arrived.get(timeout=_FIRST_WAIT_S)
            # The engine writes the outcome before it reads `awaited`. This method writes `awaited`
            # before it reads the outcome. Therefore, either this method reads the outcome, or the
            # engine reads `awaited` and wakes this thread.
            request.awaited = place
            while (outcome := part.outcomes[place]) is None:
                with contextlib.suppress(Empty):
                    self._arrived.get(timeout=CHECK_S)
                if self._spool is not None:
                    self._spool.save()
                self._report_arrived()
            request.awaited = -1
        return outcome

    def _report_arrived(self) -> None:
        """Report all rows whose downloads have ended, including rows after an awaited row."""
        width, rows, size = len(self._links), self._finished_rows, self._fetched_bytes
        for part in self.slices:
            waiting = set[int]()
            for place, outcome in enumerate(part.outcomes):
                if outcome is None or type(outcome) in (Future, Location):
                    waiting.add(place // width)
                elif type(outcome) is bytes:
                    size += len(outcome)
            rows += part.batch.num_rows - len(waiting)
        self._report(rows, size)

    def _report(self, rows: int, size: int) -> None:
        """Report to `progress` how many rows and bytes were added since the last report.

        rows, size  totals since the start: the number of rows whose downloads have ended, and the
                    size of these downloads in bytes
        """
        more_rows, more_bytes = rows - self._reported_rows, size - self._reported_bytes
        if more_rows > 0 or more_bytes > 0:
            self._reported_rows = max(rows, self._reported_rows)
            self._reported_bytes = max(size, self._reported_bytes)
            self._progress.advance(max(0, more_rows), max(0, more_bytes))

    def _release(self, part: _Slice, place: int) -> None:
        """Report to the engine how many bytes were freed, and which link is needed next."""
        if self._engine is not None:
            self._engine.release(self._freed_bytes, part.request.first + place)
            self._freed_bytes = 0

    def _check_body(
        self, body: bytes, is_page: bool, text: str, may_be_page: bool
    ) -> LinkFailure | None:
        """Return a failure for an empty body or an unexpected web page; otherwise None."""
        if not body:
            reason = f"{redact(text)}: no data (0 bytes)"
            return None if self._allow_empty else LinkFailure("empty", reason)
        if not is_page and body[0] not in _MARKUP_STARTS:
            return None
        if may_be_page or media.kind_of(text) in _TEXT_KINDS:
            return None
        kind = media.sniff(body[:512])
        if kind in ("html", "xml") or (kind is None and is_page):
            page = "an XML document" if kind == "xml" else "a web page"
            return LinkFailure("media", f"{redact(text)}: got {page}")
        return None

    def _batch(self, part: _Slice, failures: list[Failure], until: int) -> Fetched:
        """Return the rows in `_taken_rows` as a batch, with the failures.

        until  position in the slice; all rows before this position have been processed
        """
        taken = self._taken_rows
        batch = part.batch.take(pa.array(taken, pa.int64()))
        for link, values in zip(self._links, self._values, strict=True):
            place = part.batch.schema.get_field_index(link.source)
            column = pa.field(link.name, pa.large_binary())
            batch = batch.set_column(place, column, binary_array(values))
        extensions = {
            link.name: extension_of(part.texts[i][taken[0]] or "") if taken else ""
            for i, link in enumerate(self._links)
        }
        names = {
            link.name: [part.texts[i][row] or "" for row in taken]
            for i, link in enumerate(self._links)
        }
        return Fetched(
            batch,
            part.first + np.array(taken, np.int64),
            tuple(failures),
            part.first + until,
            extensions,
            names,
        )


def _fetched_bytes(outcome: Outcome) -> tuple[bytes | None, bool]:
    """Return the downloaded bytes, and whether the server declared them as HTML.

    The bytes are None if the download has failed or is not complete.
    """
    if isinstance(outcome, FetchedLink):
        return outcome.data, outcome.is_page
    if isinstance(outcome, Page):
        return outcome.data, True
    if isinstance(outcome, Future) and outcome.done() and not outcome.cancelled():
        outcome = None if outcome.exception() is not None else outcome.result()
    return (outcome if isinstance(outcome, bytes) else None), False


def _failure(row: int, key: str, column: str, failure: LinkFailure) -> Failure:
    return Failure(row, key, column, failure.kind, failure.reason, hint=failure.hint)
