"""Read-only store for files on web servers, through libcurl.

The status, Content-Range and length of each response are compared with the request. All later
requests for a file send its first strong ETag, so that reads never mix two versions. If a server
ignores ranges, small files are read completely and kept in memory for later ranges.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from queue import SimpleQueue
from urllib.parse import quote, urlsplit

from flarecli.errors import FormatError, IntegrityError, UsageError
from flarecli.names import is_url, scheme_of
from flarecli.prefetch import get_interruptibly
from flarecli.redact import redact
from flarecli.storage.base import (
    BUCKET_SCHEMES,
    Buffer,
    Entry,
    Guard,
    Location,
    Store,
    Written,
    file_address_error,
)
from flarecli.storage.http.engine import Request, shared, transfer_here
from flarecli.storage.http.transfer import short_fault
from flarecli.storage.http.url import Address, folder_of, join, parse
from flarecli.storage.versions import NO_PIN, ObjectPin, Pins

__all__ = ["HttpStore"]

_ONE_REQUEST_BYTES = 1 << 20  # `blocks` reads files up to this size with a single `read`
_WINDOW_BYTES = 8 << 20  # maximum bytes that `blocks` reads ahead of the caller
# Maximum total size of complete files in memory (for servers that ignore ranges); the newest file
# may exceed this limit.
_WHOLE_BYTES = 64 << 20
# Relative URLs in files with these suffixes are resolved against the redirect target of the file.
_LIST_SUFFIXES = (".yaml", ".yml", ".json")


class HttpStore(Store):
    """A store for files at http(s) addresses.

    The path of a Location is the complete address, with its user info and query. A store can be
    pickled, and used after a fork, because each process opens its own connections.

    moved  folder of a redirected playlist or index -> folder of the redirect target
    """

    def __init__(self, guard: Guard, moved: dict[str, str] | None = None) -> None:
        self.guard = guard
        self._limits = replace(guard.limits, max_bytes=sys.maxsize, per_host=None)
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
        """Return the Location for an address that the user typed. The address may be private.

        raises  UsageError for an invalid address
        """
        try:
            parsed = parse(address)
        except FormatError as error:
            raise UsageError(error.message, where=error.place) from None
        return Location(cls(replace(guard, named=guard.named | {parsed.origin})), _path(parsed))

    @classmethod
    def named_by_data(cls, url: str, guard: Guard) -> Location:
        """Return the Location for an address found in data.

        A private address is accepted only if the guard allows it.

        raises  FormatError for an invalid address; UnsafeError for a scheme other than http(s)
        """
        return Location(cls(guard), _path(parse(url)))

    def close(self) -> None:
        self._pins.clear()
        self._wholes = {}

    def show(self, path: str) -> str:
        return redact(path)

    def child(self, path: str, name: str) -> str:
        """Return the address of a name in a folder, without the query of the folder's address."""
        return f"{path.partition('?')[0].rstrip('/')}/{quote(name, safe='/!$&()*+,;=:@~', errors='surrogateescape')}"

    def join(self, path: str, url: str) -> Location:
        """Resolve a URL found in a file of the folder `path` (RFC 3986).

        If the file was redirected, the URL is relative to the redirect target. Buckets are read
        without credentials.

        raises  UnsafeError for `file://` and other schemes, unless the guard allows local paths
        """
        if url[:5].lower() == "file:":
            return self._local(path, url)
        scheme = scheme_of(url)
        is_other = is_url(url) and scheme not in ("http", "https")
        if scheme in BUCKET_SCHEMES or (is_other and self.guard.allow_local):
            return self.guard.locate(url, self.guard, is_remote=True)
        base = self._moved.get(path, path)
        return Location(self, _path(parse(join(f"{base.partition('?')[0].rstrip('/')}/", url))))

    def _local(self, path: str, url: str) -> Location:
        parts = urlsplit(url)
        if not self.guard.allow_local:
            raise file_address_error(self.show(path))
        if parts.netloc not in ("", "localhost"):
            raise UsageError("file:// with a remote host is not supported", where=self.show(path))
        return self.guard.locate(f"file://{parts.path}", self.guard)

    # -- reading

    def size(self, path: str) -> int:
        return self._sized_pin(path)[1]

    def version(self, path: str) -> tuple[str, int]:
        pin, size = self._sized_pin(path)
        return pin.version, size

    def _sized_pin(self, path: str) -> tuple[ObjectPin, int]:
        """Return the pinned version of a file, and the size of the file in bytes.

        If the size is unknown, both are requested from the server.
        """
        pin = self._pins.get(path)
        if pin is not None and pin.size >= 0:
            return pin, pin.size
        (request,), seen = self._fetch(path, [(0, 0)], pin)
        if request.total is None:
            raise FormatError(
                "the server does not send the size of the file", where=self.show(path)
            )
        return self._pin(path, seen, [request]), request.total

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if start and stop is None:  # a server would reject an empty range at the end of the file
            stop = self.size(path)
            if start > stop:
                raise short_fault(stop, start).raised(self.show(path))
        return b"" if start == stop else self.read_pieces(path, [(start, stop)])[0]

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Yield bytes 0..size in order, in blocks of any size, from a single request.

        A retry continues after the last received byte.
        """
        if path in self._wholes or size <= _ONE_REQUEST_BYTES:
            yield self.read(path, 0, size)
            return
        engine, arrived, unused = shared(self._limits), SimpleQueue[bytes | Request](), 0
        pin = self._pins.get(path)
        request = self._request(path, 0, size, pin, arrived.put, sink=arrived.put)
        engine.submit([request])
        try:
            while not isinstance(data := get_interruptibly(arrived), Request):
                unused += len(data)
                # `consumed` is not called for each block, because each call wakes the engine.
                if unused >= _WINDOW_BYTES // 8:
                    engine.consumed(request, unused)
                    unused = 0
                yield data
        finally:
            engine.cancel([request])
        self._pin(path, self._check(path, [request], pin), [request])

    def read_each(self, paths: Sequence[str]) -> Iterator[bytes]:
        """Yield the content of many files in order, with read-ahead.

        The number of prefetched files depends on their mean size. Requests are submitted in groups,
        and the caller is woken once for many finished requests.
        """
        jobs, ahead_bytes, engine = (
            self._limits.jobs,
            self._limits.ahead_bytes,
            shared(self._limits),
        )
        arrived = SimpleQueue[Request | None]()
        pending = deque[tuple[str, Request, ObjectPin | None]]()
        begun = ended = received = refill = 0

        def deliver(request: Request) -> None:  # called only on the engine's thread
            nonlocal ended, received
            ended += 1
            received += len(request.data)
            if _is_final(request):
                arrived.put(request)
            elif ended == begun or not ended % max(1, jobs // 2):
                arrived.put(None)

        try:
            for i in range(len(paths)):
                if i >= refill and begun < len(paths):
                    ahead = (
                        max(jobs, ahead_bytes * ended // max(1, received)) if ended else 2 * jobs
                    )
                    for path in paths[begun : i + ahead]:
                        pin = self._pins.get(path)
                        pending.append((path, self._request(path, 0, None, pin, deliver), pin))
                    new = islice(pending, begun - i, None)
                    begun = i + len(pending)
                    refill = begun - ahead // 2
                    engine.submit(request for _, request, _ in new)
                while not pending[0][1].done:
                    failed = get_interruptibly(arrived)
                    if failed is not None and failed.fault is not None:
                        path = next(path for path, request, _ in pending if request is failed)
                        raise failed.fault.raised(self.show(path))
                yield self._result(*pending.popleft())
        finally:
            engine.cancel([request for _, request, _ in pending])

    def _result(self, path: str, request: Request, pin: ObjectPin | None) -> bytes:
        """Return the data of a finished request.

        If the file changed before its version was pinned, read it again.
        """
        try:
            seen = self._check(path, [request], pin)
        except IntegrityError:
            if pin is not None or path in self._pins:
                raise
            return self.read(path)
        self._pin(path, seen, [request])
        return request.data

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int | None]]) -> list[bytes]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._ranges(path, pieces, pin))

    def _ranges(
        self, path: str, ranges: Sequence[tuple[int, int | None]], pin: ObjectPin | None
    ) -> tuple[list[bytes], ObjectPin]:
        requests: list[Request] = []
        whole = self._wholes.get(path) if pin is not None else None
        if len(ranges) > 1 and pin is None:
            # The first response shows whether the server supports ranges, and pins the version for
            # all other ranges.
            requests, pin = self._fetch(path, ranges[:1], None)
            whole = requests[0].whole
        done = [request.data for request in requests]
        rest = ranges[len(done) :]
        if whole is None:
            more, pin = self._fetch(path, rest, pin)
            requests += more
            done += [request.data for request in more]
        else:
            for start, stop in rest:
                if max(start, stop or 0) > len(whole):
                    raise short_fault(len(whole), max(start, stop or 0)).raised(self.show(path))
            done += [whole[start:stop] for start, stop in rest]
        pin = pin or NO_PIN
        if requests:
            self._pin(path, pin, requests)
        return done, pin

    def _fetch(
        self, path: str, ranges: Sequence[tuple[int, int | None]], pin: ObjectPin | None
    ) -> tuple[list[Request], ObjectPin]:
        """Fetch ranges of the pinned version in parallel; return the finished requests and the pin.

        raises  the error for the first request that failed
        """
        arrived = SimpleQueue[Request]()
        requests = [self._request(path, start, stop, pin, arrived.put) for start, stop in ranges]
        engine = shared(self._limits)
        if len(requests) != 1 or not transfer_here(requests[0], engine):
            engine.submit(requests)
        try:
            for _ in requests:
                get_interruptibly(arrived)
        except BaseException:  # such as KeyboardInterrupt
            engine.cancel(requests)
            raise
        return requests, self._check(path, requests, pin)

    def _request(
        self,
        path: str,
        start: int,
        stop: int | None,
        pin: ObjectPin | None,
        deliver: Callable[[Request], object],
        sink: Callable[[bytes], object] | None = None,
    ) -> Request:
        return Request(
            parse(path),
            deliver,
            self.guard,
            start=start,
            stop=stop,
            if_match=pin.token if pin else "",
            sink=sink,
            window=_WINDOW_BYTES,
        )

    def _check(self, path: str, requests: Sequence[Request], pin: ObjectPin | None) -> ObjectPin:
        """Check that all responses have the pinned version, and return the pin.

        Without a pin, the version of the first response becomes the pin.

        raises  the error for the first request that failed; IntegrityError for a different version
        """
        for request in requests:
            if request.fault is not None:
                raise request.fault.raised(self.show(path))
            response = request.response
            if response is None:
                continue
            pin = self._pins.check(path, pin, response.pin(request.total))
            is_list = path.partition("?")[0].endswith(_LIST_SUFFIXES)
            if is_list and request.address != request.original:
                self._moved[folder_of(path)] = folder_of(_path(request.address))
        return NO_PIN if pin is None else pin

    def _pin(self, path: str, seen: ObjectPin, requests: Sequence[Request]) -> ObjectPin:
        """Pin the version of data before the data is returned.

        raises  IntegrityError if another thread has pinned a different version
        """
        pin = self._pins.pin(path, seen)
        for request in requests:
            if request.whole is not None:
                self._keep_whole(path, request.whole)
        return pin

    def _keep_whole(self, path: str, whole: bytes) -> None:
        """Keep a complete file in memory, and drop the oldest files above the limit.

        The dict is replaced instead of locked, because a fork could copy a lock in its locked
        state.
        """
        kept = {**self._wholes, path: whole}
        while len(kept) > 1 and sum(map(len, kept.values())) > _WHOLE_BYTES:
            kept.pop(next(iter(kept)))
        self._wholes = kept

    # -- not supported

    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        raise UsageError(
            "an HTTP address is read-only", where=self.show(path), hint="Write to a local folder."
        )

    def list(self, path: str) -> Iterator[Entry]:
        raise UsageError(
            "files on a web server cannot be listed",
            where=self.show(path),
            hint="Pass the addresses of the files, or of a playlist or an index.json.",
        )

    def delete(self, path: str) -> None:
        raise UsageError("an HTTP address is read-only", where=self.show(path))


def _is_final(request: Request) -> bool:
    """Return whether a request failed for a reason other than a changed file."""
    return request.fault is not None and request.fault.error is not IntegrityError


def _path(address: Address) -> str:
    """Return the path of the Location for an address: the URL with user info."""
    if not address.user:
        return address.url
    scheme, rest = address.url.split("://", 1)
    return f"{scheme}://{address.user}@{rest}"
