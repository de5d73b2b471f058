"""Links: columns of addresses become columns of what lies there, fetched ahead and given in the order of the rows.

    batches -> slices of rows -> requests, some slices ahead -> engine -> one row after another -> Fetched

A row is whole or it failed: a broken answer, an error page or an empty body never becomes a value. What a row may name
depends on where its index lies: a local index is the user's own, and its rows may name private addresses and files
beside it; what came over the network may only name what is public.
"""

from __future__ import annotations

import functools
import re
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from flarecli import media
from flarecli.errors import CredentialsError, FlareError, MissingError, ReachError, UnsafeError
from flarecli.model import IntArray
from flarecli.names import is_url, redact, redact_text
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits, Location
from flarecli.storage.addresses import Address, parse
from flarecli.storage.threads import wait_for
from flarecli.storage.transfers import Engine, Request
from flarecli.units import format_count, format_size
from flarecli.write.bodies import Bodies
from flarecli.write.failures import Failure
from flarecli.write.keys import key_text
from flarecli.write.link_texts import extension_in, texts_of

__all__ = ["Fetched", "Link", "fetch"]

_STEP = 1024  # rows of a slice
_AHEAD_ROWS = 4096  # rows whose links are asked for before they are needed
_BATCH_BYTES = 4 << 20  # fetched bytes of one output batch, about: each is there twice while it is made, and a shard keeps the last one whole
_LUMP_BYTES = 1 << 20  # room is given back to the engine in lumps: each time rings a bell
_OBJECTS = 16  # objects of buckets that are read at a time
_NAP_S = 0.003  # before a wait: the next few answers come meanwhile, else each of them would wake this thread
_TEXTUAL = frozenset({"html", "xml", "json", "str"})  # kinds of which a page is no surprise
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_WEB = re.compile(r" *https?:", re.IGNORECASE)
_MARKUP = frozenset(b"<\xef\t\n\v\f\r ")  # what a page may begin with: else it need not be looked at further


@dataclass(frozen=True, slots=True)
class Link:
    """A column of addresses, and the column that its bytes become; the encoding if it was given."""

    source: str
    name: str
    encoding: str | None = None


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


@dataclass(frozen=True, slots=True)
class _Flaw:
    """Why a link gives no value."""

    kind: str
    reason: str


_USED = _Flaw("", "")  # stands where bytes were: they live as long as their batch, not as the slice
_Read: TypeAlias = "Future[bytes | _Flaw | None]"
_Want: TypeAlias = "Request | Location | _Read | _Flaw"


@dataclass(frozen=True, slots=True)
class _Slice:
    """Rows on their way: their columns, and for each link what becomes of each row's address; whether any is an object of a bucket."""

    batch: pa.RecordBatch
    first: int
    texts: list[list[str | None]]
    wants: list[list[_Want]]
    has_objects: bool


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
) -> Iterator[Fetched]:
    """Fetch what links point at; each source column is replaced by the bytes, the others pass.

    at         folder of the index, where relative links start
    first_row  place of the first row in the selection
    return     batches in the order of the rows, whatever the order of arrival; closing it ends all transfers
    raises     UsageError for a column that holds no text
    """
    if not links:
        for batch in batches:
            yield Fetched(batch, np.arange(first_row, first_row + batch.num_rows), (), first_row + batch.num_rows, {})
            first_row += batch.num_rows
        return
    fetcher = _Fetcher(links, key, at, guard, limits, allow_empty)
    try:
        slices, ahead, rows = _slices(batches, first_row), deque[_Slice](), 0
        for batch, first in slices:
            ahead.append(fetcher.begin(batch, first))
            rows += batch.num_rows
            while rows > _AHEAD_ROWS:
                rows -= ahead[0].batch.num_rows
                yield from fetcher.finish(ahead.popleft())
        while ahead:
            yield from fetcher.finish(ahead.popleft())
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
    """Turns addresses into requests, and their answers into values, on the caller's thread."""

    def __init__(self, links: Sequence[Link], key: str | None, at: Location, guard: Guard, limits: Limits, allow_empty: bool) -> None:
        self._links, self._key, self._at, self._guard = links, key, at, guard
        self._limits, self._allow_empty, self._is_local = limits, allow_empty, at.is_local
        self._textual = [(link.encoding or "").partition(":")[0] in ("str", "json") for link in links]
        self._answered = self._deliver
        self._bodies = [Bodies(_BATCH_BYTES + _LUMP_BYTES) for _ in links]
        self._engine: Engine | None = None
        self._pool: ThreadPoolExecutor | None = None
        self._order = self._asked = 0  # of the next row's first link; links asked for over HTTP
        self._awaited: Request | None = None
        self._arrived = SimpleQueue[None]()
        self._got = self._bytes = 0  # values that came, and their bytes
        self._freed, self._lump = 0, min(_LUMP_BYTES, limits.ahead_bytes // 8)  # bytes taken over, not yet given back as room

    def notes(self) -> Iterator[str]:
        """Say what is worth knowing of the transfers as a whole."""
        if self._engine is not None and self._engine.spent:
            yield "so many requests met passing faults that later ones were not tried again"
        if self._engine is not None and self._engine.unproven:
            yield f"{format_count(self._engine.unproven, 'object')} came without a length: had one been cut short, nothing would show it"

    def told(self) -> str:
        """Say what came of all links."""
        far = f", {self._asked} of them asked for over HTTP" if self._asked else ""
        return f"fetched {format_count(self._got, 'link')}, {format_size(self._bytes)}{far}"

    def close(self) -> None:
        """End all transfers."""
        if self._engine is not None:
            self._engine.close()
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)

    # -- asking

    def begin(self, batch: pa.RecordBatch, first: int) -> _Slice:
        """Ask for what the rows of a slice point at."""
        texts = [texts_of(batch, link.source) for link in self._links]
        orders = [range(self._order + i, self._order + i + batch.num_rows * len(self._links), len(self._links)) for i in range(len(self._links))]
        self._order += batch.num_rows * len(self._links)
        wants = [
            [self._want(text, order, link) for text, order in zip(column, turn, strict=True)]
            for column, turn, link in zip(texts, orders, self._links, strict=True)
        ]
        requests = [want for row in zip(*wants, strict=True) for want in row if isinstance(want, Request)]
        if requests:
            if self._engine is None:
                self._engine = Engine(self._limits, self._limits.ahead_bytes)
            self._engine.submit(requests)
            self._asked += len(requests)
        has_objects = any(isinstance(want, Location) and not want.is_local for row in wants for want in row)
        return _Slice(batch, first, texts, wants, has_objects)

    def _want(self, text: str | None, order: int, link: Link) -> _Want:
        if not text:
            return _Flaw("null", f"{link.source} is {'null' if text is None else 'empty'}")
        try:
            if not text.isascii():
                text.encode()
            return self._place(text, order)
        except UnicodeEncodeError:
            return _Flaw("value", f"{link.source} is not UTF-8")
        except FlareError as error:  # the folder of the index is not what is wrong
            return _Flaw(error.kind, redact_text(error.message) if error.where == str(self._at) else _redacted(error))

    def _place(self, text: str, order: int) -> Request | Location:
        if text.startswith(("http://", "https://")) or _WEB.match(text):
            address = parse(text)
            return self._request(address, _only(address.origin) if self._is_local else self._named, order)
        if self._is_local and not is_url(text) and _SCHEME.match(text) and not text.lower().startswith("file:"):
            raise UnsafeError(f"{text.partition(':')[0]}: is not an address that flare reads")
        found = self._at.join(text)
        if found.is_local or not _WEB.match(str(found)):  # a key of a bucket may look like an address
            return found
        return self._request(parse(found.path), self._named, order)

    @property
    def _named(self) -> frozenset[str]:
        own: Guard = getattr(self._at.store, "guard", self._guard)
        return own.named

    def _request(self, address: Address, named: frozenset[str], order: int) -> Request:
        return Request(address, self._answered, named=named, private=self._guard.allow_private, order=order)

    # -- taking in

    def finish(self, part: _Slice) -> Iterator[Fetched]:
        """Wait for the rows of a slice, one after another."""
        keys = part.batch.column(self._key) if self._key is not None else None
        kept: list[int] = []
        failures: list[Failure] = []
        size = 0
        for row in range(part.batch.num_rows):
            if part.has_objects:
                self._read_ahead(part, row)
            values: list[bytes] = []
            flaw: tuple[Link, _Flaw] | None = None
            for i, link in enumerate(self._links):
                value = self._value(part, i, row)
                if isinstance(value, bytes):
                    values.append(value)
                elif flaw is None:
                    flaw = link, value
            if flaw is not None:
                name = "" if keys is None else key_text(keys[row])
                failures.append(Failure(part.first + row, name, flaw[0].name, flaw[1].kind, flaw[1].reason))
                continue
            kept.append(row)
            for bodies, value in zip(self._bodies, values, strict=True):
                bodies.add((value,))
                size += len(value)
            if size >= _BATCH_BYTES:
                yield self._fetched(part, kept, failures, row + 1)
                kept, failures, size = [], [], 0
        if kept or failures:
            yield self._fetched(part, kept, failures, part.batch.num_rows)

    def _fetched(self, part: _Slice, kept: list[int], failures: list[Failure], until: int) -> Fetched:
        is_run = bool(kept) and kept[-1] - kept[0] + 1 == len(kept)
        whole = part.batch.slice(kept[0], len(kept)) if is_run else part.batch.take(pa.array(kept, pa.int64()))
        at = {link.source: i for i, link in enumerate(self._links)}
        fields, columns = [], []
        for old, column in zip(whole.schema, whole.columns, strict=True):
            i = at.get(old.name)
            fields.append(old if i is None else pa.field(self._links[i].name, pa.large_binary()))
            columns.append(column if i is None else self._bodies[i].take())
        first = {link.name: extension_in(part.texts[i][kept[0]] or "") if kept else "" for i, link in enumerate(self._links)}
        batch = pa.RecordBatch.from_arrays(columns, schema=pa.schema(fields))
        names = {link.name: [part.texts[i][row] or "" for row in kept] for i, link in enumerate(self._links)}
        return Fetched(batch, part.first + np.array(kept, np.int64), tuple(failures), part.first + until, first, names)

    def _value(self, part: _Slice, i: int, row: int) -> bytes | _Flaw:
        want, text = part.wants[i][row], part.texts[i][row] or ""
        if isinstance(want, _Flaw):
            return want
        part.wants[i][row] = _USED
        is_page = False
        try:
            if isinstance(want, Request):
                body = self._answer(want)
                is_page = want.answer is not None and want.answer.page
            elif isinstance(want, Location):
                body = self._whole(want)
            else:
                body = self._object(want, text)
        except CredentialsError:  # no fault of the row's: so would end all that follow
            raise
        except FlareError as error:
            return _Flaw(error.kind, _redacted(error))
        if isinstance(body, _Flaw):
            return body
        self._got, self._bytes = self._got + 1, self._bytes + len(body)
        if body and not is_page and body[0] not in _MARKUP:
            return body
        reason = self._unwanted(body, is_page, text, self._textual[i])
        return body if reason is None else _Flaw(reason[0], f"{redact(text)}: {reason[1]}")

    def _read_ahead(self, part: _Slice, row: int) -> None:
        """Begin to read the objects of buckets that the next rows name."""
        for wants in part.wants:
            for at in range(row, min(row + max(1, _OBJECTS // len(self._links)), len(wants))):
                want = wants[at]
                if isinstance(want, Location) and not want.is_local:
                    self._pool = self._pool or ThreadPoolExecutor(_OBJECTS, "objects")
                    wants[at] = self._pool.submit(self._small, want)

    def _small(self, at: Location) -> bytes | _Flaw | None:
        """Read an object unless it is large: then its row reads it when it comes."""
        size = _size(at)
        return None if self._limits.ahead_bytes // _OBJECTS < size <= self._limits.max_bytes else self._whole(at, size)

    def _object(self, read: _Read, text: str) -> bytes | _Flaw:
        found = read.result()
        return self._whole(self._at.join(text)) if found is None else found

    def _whole(self, at: Location, size: int | None = None) -> bytes | _Flaw:
        size = _size(at) if size is None else size
        if size > self._limits.max_bytes:
            return _Flaw("large", f"{at}: larger than the limit of {self._limits.max_bytes} bytes")
        return at.read(0, size)

    def _answer(self, request: Request) -> bytes | _Flaw:
        """Wait for one answer, and take its bytes."""
        if not request.done or self._freed >= self._lump:
            self._wait(request)
        if request.fault is not None and request.fault.kind == "bug":
            raise RuntimeError(request.fault.message)  # no fault of the row's, which --on-error skip would leave out
        if request.fault is not None:
            return _Flaw(request.fault.kind, redact_text(f"{redact(request.asked.url)}: {request.fault.message}"))
        body, request.data = request.data, b""  # the slice remembers the request for a while
        self._freed += len(body)
        return body

    def _wait(self, request: Request) -> None:
        """Give back the room that was freed, and wait for the one answer that is needed now."""
        if self._engine is not None:
            self._engine.release(self._freed, request.order)
            self._freed = 0
        if request.done:
            return
        time.sleep(_NAP_S)
        self._awaited = request  # set before `done` is looked at: the engine does it the other way round
        while not request.done:
            wait_for(self._arrived)
        self._awaited = None

    def _deliver(self, request: Request) -> None:
        if request is self._awaited:
            self._arrived.put(None)

    def _unwanted(self, body: bytes, is_page: bool, text: str, is_text: bool) -> tuple[str, str] | None:
        """Say what is wrong with bytes that came whole: nothing at all, or a page where none was asked for."""
        if not body:
            return None if self._allow_empty else ("empty", "no bytes at all")
        if is_text or media.kind_of(text) in _TEXTUAL:
            return None
        found = media.sniff(body[:512])
        if found in ("html", "xml") or (found is None and is_page):
            return "media", f"{'an XML document' if found == 'xml' else 'a web page'}, not what was asked for"
        return None


@functools.lru_cache(maxsize=1024)
def _only(origin: str) -> frozenset[str]:
    return frozenset((origin,))


def _size(at: Location) -> int:
    """Give the bytes of a file or an object. Where that is refused, a byte of it is asked for: only such an answer says why."""
    try:
        return at.size()
    except MissingError:
        raise
    except ReachError:
        if not at.is_local:
            at.read(0, 1)
        raise


def _redacted(error: FlareError) -> str:
    return redact_text(str(error))
