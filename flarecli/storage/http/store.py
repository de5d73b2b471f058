"""Files on the web, read only: whole ones and ranges of them, by libcurl.

A range is what was asked for or an error: the status, Content-Range and length of every answer are held against the
request. The first strong ETag of a file goes along with all later requests, so that no two versions are mixed. A server
that ignores ranges sends small files whole, and those are kept for a while.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from urllib.parse import quote, urlsplit

from flarecli.errors import FormatError, IntegrityError, UnsafeError, UsageError
from flarecli.names import scheme_of
from flarecli.prefetch import get_interruptibly
from flarecli.redact import redact
from flarecli.storage.base import (
    Entry,
    Guard,
    Location,
    Part,
    Store,
    Written,
)
from flarecli.storage.http.engine import Request, shared, transfer_here
from flarecli.storage.http.transfer import short
from flarecli.storage.http.url import Address, folder_of, join, parse
from flarecli.storage.ranges import split
from flarecli.storage.versions import NO_PIN, ObjectPin, Pins

__all__ = ["HttpStore"]

_BLOCK = 1 << 20  # a file up to this size is read at once
_WINDOW = 8 << 20  # bytes of a larger one that may be read before they are used
_KEPT = (
    64 << 20
)  # bytes of files from servers that ignore ranges; one larger than that is kept alone
_LISTING = (
    ".yaml",
    ".yml",
    ".json",
)  # files whose relative URLs start where they were found in the end
_ALLOW_LOCAL = "Give --allow-local to read it, if you trust this dataset."


class HttpStore(Store):
    """Files at http(s) addresses; the path of a Location is the address, with its user info and query.

    moved  folder -> folder where the listing in it was found after redirects

    Picklable, and right in forked processes: connections are opened anew.
    """

    def __init__(self, guard: Guard, moved: dict[str, str] | None = None) -> None:
        self.guard, self._limits = guard, replace(guard.limits, max_bytes=sys.maxsize)
        self._moved = dict(moved or {})
        self._pins = Pins(self.show)
        self._wholes: dict[str, bytes] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return HttpStore, (self.guard, self._moved)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HttpStore) and self.guard == other.guard

    def __hash__(self) -> int:
        return hash(self.guard)

    @classmethod
    def locate(cls, address: str, guard: Guard) -> Location:
        """Make a Location of an address that the user typed, which may be a private one.

        raises  UsageError if it is no address
        """
        try:
            found = parse(address)
        except FormatError as error:
            raise UsageError(error.message, where=error.place) from None
        return Location(cls(replace(guard, named=guard.named | {found.origin})), _written(found))

    @classmethod
    def named_by_data(cls, url: str, guard: Guard) -> Location:
        """Make a Location of an http(s) address that data names: a private one only if the guard allows it.

        raises  FormatError or UnsafeError for an invalid address
        """
        return Location(cls(guard), _written(parse(url)))

    def close(self) -> None:
        self._pins.clear()
        self._wholes = {}

    def show(self, path: str) -> str:
        """Give the address without its secrets."""
        return redact(path)

    def child(self, path: str, name: str) -> str:
        """Give the address of a checked name below a folder; the folder's query is not the file's."""
        return f"{path.partition('?')[0].rstrip('/')}/{quote(name, safe='/!$&()*+,;=:@~', errors='surrogateescape')}"

    def join(self, path: str, url: str) -> Location:
        """Resolve a URL out of a file in this folder (RFC 3986), from where that file was found after redirects.

        A bucket is read without credentials.

        raises  UnsafeError for another scheme, and for `file://` unless the guard allows it
        """
        if url[:5].lower() == "file:":
            return self._local(path, url)
        if scheme_of(url) in ("s3", "gs", "az"):
            return self.guard.locate(url, self.guard, is_remote=True)
        base = self._moved.get(path, path)
        return Location(self, _written(parse(join(f"{base.partition('?')[0].rstrip('/')}/", url))))

    def _local(self, path: str, url: str) -> Location:
        parts = urlsplit(url)
        if not self.guard.allow_local:
            raise UnsafeError(
                "file:// in what came over the network", where=self.show(path), hint=_ALLOW_LOCAL
            )
        if parts.netloc not in ("", "localhost"):
            raise UsageError("file:// names another machine", where=self.show(path))
        return self.guard.locate(f"file://{parts.path}", self.guard)

    # -- reading

    def size(self, path: str) -> int:
        return self._look(path)[1]

    def _look(self, path: str) -> tuple[ObjectPin, int]:
        """Give what is pin of a file, and its bytes: ask, if need be."""
        pin = self._pins.get(path)
        if pin is not None and pin.size >= 0:
            return pin, pin.size
        (request,), seen = self._ask(path, [(0, 0)], pin)
        if request.total is None:
            raise FormatError("the server does not say how large it is", where=self.show(path))
        return self._settle(path, seen, [request]), request.total

    def version(self, path: str) -> tuple[str, int]:
        """Give what tells this version of a file from others, or empty, and its bytes."""
        pin, size = self._look(path)
        return pin.version, size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if (
            start and stop is None
        ):  # nothing behind the last byte is nothing, and a server would call it an error
            stop = self.size(path)
            if start > stop:
                raise short(stop, start).raised(self.show(path))
        return b"" if start == stop else self.read_pieces(path, [(start, stop)])[0]

    def views(self, path: str, start: int, stop: int) -> list[memoryview]:
        """Read a range as `read` does, a large one as several side by side; give them in order and not copied."""
        return [memoryview(data) for data in self.read_pieces(path, split(start, stop))]

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Read bytes 0..size in order, in pieces of any size, by one request that goes on where it breaks off."""
        whole = self._wholes.get(path)
        if whole is not None or size <= _BLOCK:
            yield self.read(path, 0, size)
            return
        engine, arrived, unused = shared(self._limits), SimpleQueue[bytes | Request](), 0
        pin = self._pins.get(path)
        request = self._request(
            path, 0, size, pin.token if pin else "", arrived.put, sink=arrived.put
        )
        engine.submit([request])
        try:
            while not isinstance(data := get_interruptibly(arrived), Request):
                unused += len(data)
                if unused >= _WINDOW // 8:  # telling it each time would cost more than it holds
                    engine.used(request, unused)
                    unused = 0
                yield data
        finally:
            engine.cancel([request])
        self._settle(path, self._learn(path, [request], pin), [request])

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Read many whole files, in order, as many ahead as their mean size allows: the engine is woken, and wakes its caller, once for many."""
        jobs, most, engine = (
            self._limits.jobs,
            self._limits.ahead_bytes,
            shared(self._limits),
        )
        arrived, asked = (
            SimpleQueue[Request | None](),
            deque[tuple[str, Request, ObjectPin | None]](),
        )
        begun = ended = got = refill = 0

        def deliver(request: Request) -> None:  # on the engine's thread alone
            nonlocal ended, got
            ended += 1
            got += len(request.data)
            if _is_final(request):
                arrived.put(request)
            elif ended == begun or not ended % max(1, jobs // 2):
                arrived.put(None)

        try:
            for wanted in range(len(paths)):
                if wanted >= refill and begun < len(paths):
                    room = max(jobs, most * ended // max(1, got)) if ended else 2 * jobs
                    for path in paths[begun : wanted + room]:
                        pin = self._pins.get(path)
                        asked.append(
                            (
                                path,
                                self._request(path, 0, None, pin.token if pin else "", deliver),
                                pin,
                            )
                        )
                    fresh = islice(asked, begun - wanted, None)
                    begun = wanted + len(asked)
                    refill = begun - room // 2
                    engine.submit(request for _, request, _ in fresh)
                while not asked[0][1].done:
                    failed = get_interruptibly(arrived)
                    if failed is not None and failed.fault is not None:
                        raise failed.fault.raised(
                            next(self.show(path) for path, one, _ in asked if one is failed)
                        )
                yield self._taken(*asked.popleft())
        finally:
            engine.cancel([request for _, request, _ in asked])

    def _taken(self, path: str, request: Request, pin: ObjectPin | None) -> bytes:
        """Give one of many; what has changed since it was first looked at is an error, what was never looked at is read again."""
        try:
            seen = self._learn(path, [request], pin)
        except IntegrityError:
            if pin is not None or path in self._pins:
                raise
            return self.read(path)
        self._settle(path, seen, [request])
        return request.data

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int | None]]) -> list[bytes]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._pieces(path, pieces, pin))

    def _pieces(
        self, path: str, ranges: Sequence[tuple[int, int | None]], pin: ObjectPin | None
    ) -> tuple[list[bytes], ObjectPin]:
        asked: list[Request] = []
        whole = self._wholes.get(path) if pin is not None else None
        if (
            len(ranges) > 1 and pin is None
        ):  # the first answer says whether the others are worth asking for, and of which version they must be
            asked, pin = self._ask(path, ranges[:1], None)
            whole = asked[0].whole
        done = [request.data for request in asked]
        rest = ranges[len(done) :]
        if whole is None:
            more, pin = self._ask(path, rest, pin)
            asked, done = asked + more, done + [request.data for request in more]
        else:
            for start, stop in rest:
                if max(start, stop or 0) > len(whole):
                    raise short(len(whole), max(start, stop or 0)).raised(self.show(path))
            done += [whole[start:stop] for start, stop in rest]
        pin = pin or NO_PIN
        if asked:
            self._settle(path, pin, asked)
        return done, pin

    def _ask(
        self, path: str, ranges: Sequence[tuple[int, int | None]], pin: ObjectPin | None
    ) -> tuple[list[Request], ObjectPin]:
        """Fetch ranges side by side, all of them and of the pinned version, or an error. Return the pin by now, too."""
        arrived = SimpleQueue[Request]()
        requests = [
            self._request(path, start, stop, pin.token if pin else "", arrived.put)
            for start, stop in ranges
        ]
        engine = shared(self._limits)
        if len(requests) != 1 or not transfer_here(requests[0], engine):
            engine.submit(requests)
        try:
            for _ in requests:
                get_interruptibly(arrived)
        except BaseException:  # an interrupt
            engine.cancel(requests)
            raise
        return requests, self._learn(path, requests, pin)

    def _request(
        self,
        path: str,
        start: int,
        stop: int | None,
        etag: str,
        deliver: Callable[[Request], object],
        sink: Callable[[bytes], object] | None = None,
    ) -> Request:
        guard = self.guard
        return Request(
            parse(path),
            deliver,
            named=guard.named,
            private=guard.allow_private,
            hosts=guard.allow_hosts,
            start=start,
            stop=stop,
            if_match=etag,
            sink=sink,
            window=_WINDOW,
        )

    def _learn(self, path: str, requests: Sequence[Request], pin: ObjectPin | None) -> ObjectPin:
        """Hold the answers against what is pin of the file, and give that. Raises the first fault."""
        for request in requests:
            if request.fault is not None:
                raise request.fault.raised(self.show(path))
            answer = request.answer
            if answer is None:
                continue
            pin = self._pins.check(path, pin, answer.pin(request.total))
            if request.address != request.asked and path.partition("?")[0].endswith(_LISTING):
                self._moved[folder_of(path)] = folder_of(_written(request.address))
        return NO_PIN if pin is None else pin  # where nothing was asked

    def _settle(self, path: str, seen: ObjectPin, requests: Sequence[Request]) -> ObjectPin:
        """Say which version is given out, from now on to everybody. Raises IntegrityError if another thread was given another one meanwhile."""
        pin = self._pins.pin(path, seen)
        for request in requests:
            if request.whole is not None:
                self._keep(path, request.whole)
        return pin

    def _keep(self, path: str, whole: bytes) -> None:
        """Keep a file that had to be taken whole, in place of the oldest ones; no lock, which a fork could leave locked."""
        kept = {**self._wholes, path: whole}
        while len(kept) > 1 and sum(map(len, kept.values())) > _KEPT:
            kept.pop(next(iter(kept)))
        self._wholes = kept

    # -- what the web does not take

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        raise UsageError(
            "an http address is read only", where=self.show(path), hint="Name a folder to write to."
        )

    def list(self, path: str) -> Iterator[Entry]:
        raise UsageError(
            "an http address cannot be listed",
            where=self.show(path),
            hint="Name the files, a playlist or an index.json.",
        )

    def delete(self, path: str) -> None:
        raise UsageError("an http address is read only", where=self.show(path))


def _is_final(request: Request) -> bool:
    """Say whether a request has failed, and not for a file that changed."""
    return request.fault is not None and request.fault.error is not IntegrityError


def _written(address: Address) -> str:
    """Give an address as the path of a Location: with its user info."""
    if not address.user:
        return address.url
    scheme, rest = address.url.split("://", 1)
    return f"{scheme}://{address.user}@{rest}"
