"""Links: columns of addresses become columns of what lies there, fetched ahead and given in the order of the rows.

    batches -> slices of rows -> what they want, some slices ahead -> engine -> rows in their order -> Fetched

A row is whole or it failed: a broken answer, an error page or an empty body never becomes a value.
"""

from __future__ import annotations

import contextlib
import functools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import media
from flarecli.errors import CredentialsError, FlareError
from flarecli.model import IntArray
from flarecli.prefetch import get_interruptibly
from flarecli.progress import Progress
from flarecli.redact import redact, redact_text
from flarecli.storage import Guard, Limits, Location, bucket_note
from flarecli.storage.http.engine import Fault, Page
from flarecli.units import format_count, format_size
from flarecli.write.asking import Asker, Flaw, Found, Link, Slice
from flarecli.write.bodies import Bodies
from flarecli.write.failures import Failure
from flarecli.write.keys import key_text
from flarecli.write.link_files import LinkedFiles
from flarecli.write.link_texts import extension_in
from flarecli.write.spool import FetchedLink, Spool, address_digest

__all__ = ["Fetched", "Link", "fetch"]

_STEP = 1024  # rows of a slice
_HINTS = 3  # hints on addresses that are not allowed
_SPAN = 128  # rows that are taken at a time, where nothing is wrong with them
_AHEAD_ROWS = 4096  # rows whose links are asked for before they are needed
_BATCH_BYTES = (
    4 << 20
)  # fetched bytes of one output batch, about: each is there twice while it is made, and a shard keeps the last one whole
_LUMP_BYTES = 1 << 20  # room is given back to the engine in lumps: each time rings a bell
_LOOK_S = 1.0  # how often a long wait is interrupted to see whether the spool is due
_NAP_S = 0.003  # to be woken by one answer after another would cost too much: at first a later one is waited for, at most so long
_TEXTUAL = frozenset({"html", "xml", "json", "str"})  # kinds of which a page is no surprise
_MARKUP = frozenset(
    b"<\xef\t\n\v\f\r "
)  # what a page may begin with: else it need not be looked at further


@dataclass(frozen=True, slots=True)
class Fetched:
    """Some rows with the bytes of their links, in order.

    rows        int64 [rows of batch]: the place of each in the selection
    failures    rows left out, in order
    until       every row before this one is in this or an earlier Fetched, as a row or a failure
    extensions  column -> extension of its first row's link in lower case, empty if there is none
    names       column -> what each row's link is, as the index has it
    """

    batch: pa.RecordBatch
    rows: IntArray
    failures: Sequence[Failure]
    until: int
    extensions: Mapping[str, str]
    names: Mapping[str, Sequence[str]] = field(default_factory=dict)


_USED = Flaw("", "")  # stands where bytes were: they live as long as their batch, not as the slice


def fetch(
    batches: Iterable[pa.RecordBatch],
    links: Sequence[Link],
    *,
    key: str | None,
    at: Location,
    guard: Guard,
    limits: Limits,
    allow_empty: bool = False,
    first_row: int = 0,
    progress: Progress,
    spool: Spool | None = None,
) -> Iterator[Fetched]:
    """Fetch what links point at; each source column is replaced by the bytes, the others pass.

    at         folder of the index, where relative links start
    first_row  place of the first row in the selection
    spool      has what an earlier run fetched, and keeps what this one fetches
    return     batches in the order of the rows, whatever the order of arrival; closing it ends all transfers
    raises     UsageError for a column that holds no text
    """
    if not links:
        for batch in batches:
            yield Fetched(
                batch,
                np.arange(first_row, first_row + batch.num_rows),
                (),
                first_row + batch.num_rows,
                {},
            )
            first_row += batch.num_rows
        return
    fetcher = _Fetcher(links, key, at, guard, limits, allow_empty, spool)
    try:
        slices, ahead, rows = _slices(batches, first_row), fetcher.ahead, 0
        for batch, first in slices:
            ahead.append(fetcher.begin(batch, first))
            fetcher.note_remote()
            fetcher.note_buckets(progress)
            rows += batch.num_rows
            while rows > _AHEAD_ROWS:
                rows -= ahead[0].batch.num_rows
                yield from fetcher.finish()
        while ahead:
            yield from fetcher.finish()
        for note in fetcher.notes():
            progress.note(note)
        progress.note(fetcher.told(), verbose=True)
    finally:
        fetcher.close()


def _slices(batches: Iterable[pa.RecordBatch], first: int) -> Iterator[tuple[pa.RecordBatch, int]]:
    for batch in batches:
        for start in range(0, batch.num_rows, _STEP):
            part = batch.slice(start, _STEP)
            yield part, first
            first += part.num_rows


class _Fetcher:
    """Asks for what links point at, and makes values of what comes, on the caller's thread."""

    def __init__(
        self,
        links: Sequence[Link],
        key: str | None,
        at: Location,
        guard: Guard,
        limits: Limits,
        allow_empty: bool,
        spool: Spool | None,
    ) -> None:
        self._spool = spool
        self.ahead = deque[Slice]()
        self._rows: list[int] = []  # of the first slice, taken for the batch under way
        self._given = deque[Fetched]()  # to whoever packs them, and not packed yet
        if spool is not None:
            spool.arrived = self._arrived_links
        self._links, self._key, self._allow_empty = links, key, allow_empty
        self._textual = [
            (link.encoding or "").partition(":")[0] in ("str", "json") for link in links
        ]
        self._bodies = [Bodies(_BATCH_BYTES + _LUMP_BYTES) for _ in links]
        self._arrived = SimpleQueue[None]()
        arrived = functools.partial(self._arrived.put, None)
        kept = None if spool is None else spool.kept
        self._asker = Asker(links, at, guard, limits, arrived, kept)
        self._files = LinkedFiles(at, limits)
        self._hints: dict[str, None] = {}  # of rows that name what they may not, a few
        self.begin = self._asker.begin
        self._got = self._bytes = 0  # values that came, and their bytes
        self._freed, self._lump = (
            0,
            min(_LUMP_BYTES, limits.ahead_bytes // 8),
        )  # bytes taken over, not yet given back as room

    def note_buckets(self, progress: Progress) -> None:
        """Report the buckets that rows of a local index name, each once."""
        buckets = self._asker.buckets
        new = [home for home, is_reported in buckets.items() if not is_reported]
        if new:
            progress.note(bucket_note("the index", new))
            buckets.update(dict.fromkeys(new, True))

    def note_remote(self) -> None:
        """Tell the spool whether links lead over the network."""
        if self._spool is not None and (self._asker.asked or self.ahead[-1].has_objects):
            self._spool.is_remote = True

    def notes(self) -> Iterator[str]:
        """Yield notes on the transfers as a whole."""
        engine = self._asker.engine
        for hint in self._hints:
            yield f"rows failed because of a private address: {hint[:1].lower()}{hint[1:]}"
        if engine is not None and engine.spent:
            yield "so many requests met passing faults that later ones were not tried again"
        if engine is not None and engine.unproven:
            yield f"{format_count(engine.unproven, 'object')} came without a length: had one been cut short, nothing would show it"

    def told(self) -> str:
        """Say what came of all links."""
        far = f", {self._asker.asked} of them asked for over HTTP" if self._asker.asked else ""
        return f"fetched {format_count(self._got, 'link')}, {format_size(self._bytes)}{far}"

    def close(self) -> None:
        """End all transfers."""
        if self._asker.engine is not None:
            self._asker.engine.close()
        self._files.close()

    def finish(self) -> Iterator[Fetched]:
        """Wait for the rows of the first slice, one after another."""
        part = self.ahead[0]
        keys = part.batch.column(self._key) if self._key is not None else None
        kept = self._rows = []
        failures: list[Failure] = []
        row, before = 0, self._bytes
        while row < part.batch.num_rows:
            plain = self._take_plain(part, row, _BATCH_BYTES - (self._bytes - before))
            kept += range(row, row + plain)
            row += plain
            if not plain:
                flaw = self._take_row(part, row)
                if flaw is None:
                    kept.append(row)
                else:
                    name = "" if keys is None else key_text(keys[row])
                    failures.append(_failure(part.first + row, name, *flaw))
                row += 1
            if self._bytes - before >= _BATCH_BYTES:
                yield from self._give(self._fetched(part, kept, failures, row))
                kept, failures, before = self._rows, [], self._bytes
        last = self._fetched(part, kept, failures, row) if kept or failures else None
        self.ahead.popleft()
        if last is not None:
            yield from self._give(last)

    def _give(self, fetched: Fetched) -> Iterator[Fetched]:
        """Yield a batch, and remember it for the spool until its rows were handed on."""
        if self._spool is None:
            self._rows = []
            yield fetched
            return
        self._given.append(fetched)
        self._rows = []
        yield fetched
        while self._given and self._given[0].until <= self._spool.until:
            self._given.popleft()

    def _arrived_links(self) -> Iterator[FetchedLink]:
        """Yield what was fetched and is in no shard: given away, in the batch under way, or waiting for its row."""
        for given in self._given:
            for i, link in enumerate(self._links):
                column, names = given.batch.column(link.name), given.names[link.name]
                for at, row in enumerate(given.rows.tolist()):
                    address = address_digest(names[at])
                    yield FetchedLink(row, i, address, memoryview(column[at].as_buffer()))
        if not self.ahead:
            return
        part = self.ahead[0]
        for i, bodies in enumerate(self._bodies):
            for at, row in enumerate(self._rows[: bodies.rows]):
                address = address_digest(part.texts[i][row] or "")
                yield FetchedLink(part.first + row, i, address, bodies.peek(at))
        for part in self.ahead:
            for place, found in enumerate(part.found):
                row, i = divmod(place, len(self._links))
                data, is_page = _data_of(found)
                if data is not None:
                    address = address_digest(part.texts[i][row] or "")
                    yield FetchedLink(part.first + row, i, address, data, is_page)

    def _take_plain(self, part: Slice, row: int, most: int) -> int:
        """Take the next rows, as far as all that they name has come and shows no need of a look, about `most` bytes; say how many."""
        width, begin = len(self._links), row * len(self._links)
        found = part.found[begin : begin + _SPAN * width]
        count = size = 0
        for one in found:
            if type(one) is not bytes or not one or one[0] in _MARKUP or size >= most:
                break
            count += 1
            size += len(one)
        rows = count // width
        if rows:
            taken: Any = found[: rows * width]
            for i, bodies in enumerate(self._bodies):
                bodies.add(taken[i::width])
            part.found[begin : begin + len(taken)] = [_USED] * len(taken)
            self._count(len(taken), size if count == len(taken) else sum(map(len, taken)))
            if self._freed >= self._lump:
                self._release(part, begin + len(taken))
        return rows

    def _count(self, values: int, size: int) -> None:
        self._got, self._bytes, self._freed = (
            self._got + values,
            self._bytes + size,
            self._freed + size,
        )

    def _take_row(self, part: Slice, row: int) -> tuple[str, Flaw] | None:
        """Wait for what a row names and take it; else return the column and its flaw."""
        width = len(self._links)
        if part.has_objects:
            self._files.read_ahead(part.found, row * width, width)
        values: list[bytes] = []
        flaw: tuple[str, Flaw] | None = None
        for i, link in enumerate(self._links):
            value = self._value(part, row * width + i, part.texts[i][row] or "", self._textual[i])
            if isinstance(value, bytes):
                values.append(value)
            elif flaw is None:
                flaw = link.name, value
        if flaw is None:
            for bodies, value in zip(self._bodies, values, strict=True):
                bodies.add((value,))
        return flaw

    def _value(self, part: Slice, place: int, text: str, is_text: bool) -> bytes | Flaw:
        want = part.found[place]
        if want is None or self._freed >= self._lump:
            want = self._awaited(part, place)
        if isinstance(want, Flaw):
            return want
        part.found[place] = _USED
        if isinstance(want, Fault):
            if want.kind == "bug":
                raise RuntimeError(
                    want.message
                )  # no fault of the row's, which --on-error skip would leave out
            if want.kind == "unsafe" and want.hint and len(self._hints) < _HINTS:
                self._hints[want.hint] = None
            shown = redact(part.wanted.urls[place])
            return Flaw(want.kind, redact_text(f"{shown}: {want.message}"), want.hint)
        if isinstance(want, FetchedLink):
            body = bytes(want.data)
        elif isinstance(want, bytes | Page):
            body = want.data if isinstance(want, Page) else want
            self._freed += len(body)
        else:
            try:
                read = self._files.read(want, text)
            except CredentialsError:  # no fault of the row's: so would end all that follow
                raise
            except FlareError as error:
                told = redact_text(f"{redact(text)}: {error.message}")
                return Flaw(error.kind, told, error.hint)
            if isinstance(read, Flaw):
                return replace(read, reason=f"{redact(text)}: {read.reason}")
            body = read
        self._got, self._bytes = self._got + 1, self._bytes + len(body)
        is_page = isinstance(want, Page) or (isinstance(want, FetchedLink) and want.is_page)
        reason = self._unwanted(body, is_page, text, is_text)
        return body if reason is None else Flaw(reason[0], f"{redact(text)}: {reason[1]}")

    def _awaited(
        self, part: Slice, place: int
    ) -> bytes | FetchedLink | Page | Fault | Flaw | Location | Future[bytes | Flaw | None]:
        """Wait for what is needed now."""
        self._release(part, place)
        wanted, found = part.wanted, part.found[place]
        if found is None:
            wanted.awaited = min(place + _SPAN, len(part.found) - 1)
            with contextlib.suppress(Empty):
                self._arrived.get(timeout=_NAP_S)
            wanted.awaited = place  # set before what is found is looked at: the engine does it the other way round
            while (found := part.found[place]) is None:
                if self._spool is None:
                    get_interruptibly(self._arrived)
                else:
                    with contextlib.suppress(Empty):
                        self._arrived.get(timeout=_LOOK_S)
                    self._spool.save()
            wanted.awaited = -1
        return found

    def _release(self, part: Slice, place: int) -> None:
        """Give back the room that was freed, and say what is needed next."""
        if self._asker.engine is not None:
            self._asker.engine.release(self._freed, part.wanted.first + place)
            self._freed = 0

    def _unwanted(
        self, body: bytes, is_page: bool, text: str, is_text: bool
    ) -> tuple[str, str] | None:
        """Say what is wrong with bytes that came whole: nothing at all, or a page where none was asked for."""
        if not body:
            return None if self._allow_empty else ("empty", "no bytes at all")
        if (not is_page and body[0] not in _MARKUP) or is_text or media.kind_of(text) in _TEXTUAL:
            return None
        found = media.sniff(body[:512])
        if found in ("html", "xml") or (found is None and is_page):
            return (
                "media",
                f"{'an XML document' if found == 'xml' else 'a web page'}, not what was asked for",
            )
        return None

    def _fetched(
        self, part: Slice, kept: list[int], failures: list[Failure], until: int
    ) -> Fetched:
        is_run = bool(kept) and kept[-1] - kept[0] + 1 == len(kept)
        whole = (
            part.batch.slice(kept[0], len(kept))
            if is_run
            else part.batch.take(pa.array(kept, pa.int64()))
        )
        at = {link.source: i for i, link in enumerate(self._links)}
        fields, columns = [], []
        for old, column in zip(whole.schema, whole.columns, strict=True):
            i = at.get(old.name)
            fields.append(old if i is None else pa.field(self._links[i].name, pa.large_binary()))
            columns.append(column if i is None else self._bodies[i].take())
        first = {
            link.name: extension_in(part.texts[i][kept[0]] or "") if kept else ""
            for i, link in enumerate(self._links)
        }
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        names = {
            link.name: [part.texts[i][row] or "" for row in kept]
            for i, link in enumerate(self._links)
        }
        return Fetched(
            batch,
            part.first + np.array(kept, np.int64),
            tuple(failures),
            part.first + until,
            first,
            names,
        )


def _data_of(found: Found) -> tuple[bytes | None, bool]:
    """Return the bytes that were fetched for a link, and whether its server calls them a web page; None if there are none."""
    if isinstance(found, FetchedLink):
        return found.data, found.is_page
    if isinstance(found, Page):
        return found.data, True
    if isinstance(found, Future) and found.done() and not found.cancelled():
        found = None if found.exception() is not None else found.result()
    return (found if isinstance(found, bytes) else None), False


def _failure(row: int, key: str, column: str, flaw: Flaw) -> Failure:
    return Failure(row, key, column, flaw.kind, flaw.reason, hint=flaw.hint)
