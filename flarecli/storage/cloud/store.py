"""Objects in S3, GCS and Azure, through obstore's blocking calls; and conditional writes of small objects.

The first response pins the version of an object by its ETag. Later requests are conditional on it, so that versions are
never mixed. If an object changes before any of its data was returned, it is read again; otherwise that is an error. A
response that is shorter than requested is an error. Denied credentials end the run at once.
"""

from __future__ import annotations

import contextlib
import copy
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import replace
from functools import partial
from itertools import chain
from queue import Empty, Full, Queue
from typing import Any, NamedTuple, TypeAlias, TypeVar

from flarecli.errors import BusyError, FlareError, FormatError, MissingError, UsageError
from flarecli.hashes import Sums
from flarecli.prefetch import ordered_map, result_interruptibly, run_interruptibly, submit
from flarecli.redact import redact
from flarecli.storage.base import (
    MAX_READ_AHEAD,
    REQUEST_BYTES,
    Entry,
    Guard,
    Location,
    Part,
    Store,
    Written,
    resolve,
    short_read,
    split,
)
from flarecli.storage.cloud import errors
from flarecli.storage.cloud.client_pool import Clients, Outage, outage_of
from flarecli.storage.versions import ObjectPin, Pins

__all__ = ["ObjectStore", "Snapshot", "snapshot", "swap"]

T = TypeVar("T")
# Up to this number, ranges are requested one by one, each conditional on the version.
_MAX_SINGLE_RANGES = 8
_RANGES_PER_CALL = 256  # more ranges are requested by calls of the library for many ranges
_READ_BYTES = 4 << 20  # bytes per request when an object is read from start to end
_PAGE_OBJECTS = 1000  # objects per page of a listing
AHEAD = 4  # pieces in flight, of an upload and of `blocks`
_ABORT_S = 2.0  # time limit for aborting an upload


def _options(pin: ObjectPin | None, start: int, stop: int | None) -> dict[str, Any]:
    """Return the options of a request: version and range."""
    options: dict[str, Any] = {"if_match": pin.token} if pin and pin.token else {}
    if stop is not None:
        options["range"] = (start, stop)
    elif start:
        options["range"] = {"offset": start}
    return options


def parse_address(address: str) -> tuple[str, str, str]:
    """Parse `SCHEME://BUCKET/KEY`; the key is not decoded, and slashes at its end are dropped.

    raises  UsageError for an address without a bucket, or with user info, which belongs in the environment
    """
    scheme, _, rest = address.partition("://")
    bucket, _, key = rest.partition("/")
    if "@" in bucket:
        raise UsageError(
            "the address contains user info",
            where=f"{scheme}://…",
            hint="Set credentials in environment variables such as AWS_ACCESS_KEY_ID.",
        )
    if not bucket or not bucket.isprintable() or any(sign in bucket for sign in "?#%\\ :"):
        raise UsageError(
            "the address has no bucket",
            where=redact(address),
            hint=f"Write it like {scheme}://bucket/folder.",
        )
    return scheme.lower(), bucket, key.strip("/")


class NoConditionalWrites(UsageError):
    """The store does not support conditional writes."""


class AbortedError(Exception):
    """Raised in an upload if the iterator of its parts raises, so that the upload does not complete."""


UploadQueue: TypeAlias = "Queue[bytes | AbortedError | None]"


class ObjectStore(Store):
    """The objects of one bucket; the path of a Location is the key.

    Picklable, and usable after a fork: each process opens its own clients.
    """

    def __init__(self, scheme: str, bucket: str, guard: Guard) -> None:
        self.scheme, self.bucket, self.guard = scheme, bucket, guard
        self._pins = Pins(self.show)
        self._clients = Clients(self.home, guard.limits, guard.anonymous)
        self._known_outage: Outage | None = None
        self._creates = True  # False once the store has refused a conditional write

    def __reduce__(self) -> tuple[object, ...]:
        return ObjectStore, (self.scheme, self.bucket, self.guard)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ObjectStore) and (self.scheme, self.bucket, self.guard) == (
            other.scheme,
            other.bucket,
            other.guard,
        )

    def __hash__(self) -> int:
        return hash((self.scheme, self.bucket, self.guard))

    @classmethod
    def locate(cls, address: str, guard: Guard) -> Location:
        """Return the Location of an address that the user typed. Raises UsageError if it is invalid."""
        scheme, bucket, key = parse_address(address)
        return Location(cls(scheme, bucket, guard), key)

    @property
    def home(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}/"

    @property
    def origin(self) -> str:
        """The endpoint or account; empty for the default."""
        config = self._clients.source(0).config
        account = ""
        if self.scheme == "az":
            names = ("AZURE_STORAGE_ACCOUNT_NAME", "AZURE_STORAGE_ENDPOINT")
            account = " ".join(os.environ.get(name, "") for name in names)
        return str(config.get("endpoint") or config.get("base_url") or account)

    @property
    def _outage(self) -> Outage:
        if self._known_outage is None:
            self._known_outage = outage_of(f"{self.origin} {self.home}", self.guard.limits)
        return self._known_outage

    def close(self) -> None:
        self._pins.clear()
        self._clients.close()

    def show(self, path: str) -> str:
        return self.home + path

    def join(self, path: str, url: str) -> Location:
        """Resolve an address that data names; see `base.resolve`."""
        return resolve(self, self.home, path, url, self.guard)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the client in use: region, endpoint, and credentials that flare has read."""
        self._clients.current()
        return self._clients.tried[-1].config

    def _call(self, path: str, call: Callable[[Any, Any], T], once: bool = False) -> T:
        """Call the library with a client; convert its errors.

        once  the call consumes an iterator and cannot be repeated; the library retries by itself
        """
        began = time.monotonic()
        while True:
            library, client = self._clients.current()
            used = client
            if once and self._outage.was_reached:
                used = self._clients.outage_client(library)
            try:
                result = call(library, used)
                self._outage.responded()
                return result
            except BaseException as error:
                self._handle_error(error, client, path, None if once else began)

    def _handle_error(
        self, error: BaseException, client: Any, path: str, began: float | None
    ) -> None:
        """Return if the call should be repeated, with other credentials or after a wait; otherwise raise the error.

        began  when the call was made first, by the monotonic clock; None: it is not repeated during an outage
        """
        if isinstance(error, Exception):
            is_overload = errors.is_overload(error)
            if is_overload or errors.is_unreachable(error):
                if began is not None and self._outage.wait(began, is_overload):
                    return
            elif errors.has_response(error):
                self._outage.responded()
            if errors.is_denied(error) and self._clients.use_next_source(client):
                return
            raise self._converted(error, path) from None
        if type(error).__name__ != "PanicException":  # a Rust panic is not an Exception
            raise error
        raise errors.converted(RuntimeError("panic"), self.show(path), "", "") from None

    def _converted(self, error: Exception, path: str) -> FlareError:
        """Convert an error of the library."""
        tried = self._clients.tried
        endpoints = [
            redact(str(one.config["endpoint"])) for one in tried if "endpoint" in one.config
        ]
        names = " and ".join(source.name for source in tried)
        result = errors.converted(error, self.show(path), names, endpoints[0] if endpoints else "")
        if self.guard.anonymous and errors.is_denied(error):
            result.hint = errors.ANONYMOUS_HINT
        return result

    # -- reading

    def _check(self, path: str, etag: str | None, size: int, pin: ObjectPin | None) -> ObjectPin:
        """Return the pin, or the version of the response if there is none. Raises IntegrityError if they differ."""
        token = etag if etag and not etag.startswith("W/") else ""
        return self._pins.check(path, pin, ObjectPin(token, size))

    def _check_key(self, path: str) -> None:
        if not path:
            raise FormatError("is a bucket; expected an object", where=self.show(path))

    def _head(self, path: str, pin: ObjectPin | None = None) -> ObjectPin:
        """Request the version of an object. Raises IntegrityError if it differs from the pin."""
        self._check_key(path)
        meta = self._call(path, lambda library, client: library.head(client, path))
        return self._check(path, meta["e_tag"], meta["size"], pin)

    def _get(
        self, path: str, pin: ObjectPin | None, span: tuple[int, int | None]
    ) -> tuple[memoryview, ObjectPin]:
        """Read one range of the pinned version by one request; return the library's buffer and the pin.

        Small objects are bound by the interpreter lock, so this function does as little as possible.
        """
        self._check_key(path)
        start, stop = span
        is_whole = not start and stop is None
        options = None if is_whole and pin is None else _options(pin, start, stop)
        began = time.monotonic()
        while True:
            library, client = self._clients.current()
            try:
                result = library.get(client, path, options=options)
                data = memoryview(result.bytes())
                break
            except BaseException as error:
                if not isinstance(error, Exception) or not errors.is_past_end(error):
                    self._handle_error(error, client, path, began)
                    continue
            return self._empty_range(path, pin, start, stop)
        self._outage.responded()
        meta = result.meta
        size = meta["size"]
        pin = self._check(path, meta["e_tag"], size, pin)
        length = (size if stop is None else stop) - start
        if (not is_whole and result.range[0] != start) or len(data) != length:
            raise short_read(self.show(path), start, stop or size, len(data))
        return data, pin

    def _empty_range(
        self, path: str, pin: ObjectPin | None, start: int, stop: int | None
    ) -> tuple[memoryview, ObjectPin]:
        """Return the empty range at the end of an object. Raises FormatError for a range beyond it."""
        pin = pin or self._head(path)
        if start == pin.size and stop is None:
            return memoryview(b""), pin
        raise short_read(self.show(path), 0, max(start, stop or 0), pin.size)

    def size(self, path: str) -> int:
        return self.version(path)[1]

    def version(self, path: str) -> tuple[str, int]:
        pin = self._pins.get(path) or self._pins.pin(
            path, run_interruptibly(partial(self._head, path))
        )
        return pin.version, pin.size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return b"" if start == stop else b"".join(self.views(path, start, stop))

    def views(self, path: str, start: int, stop: int | None) -> list[memoryview]:
        """Read a range; return the buffers of the library in order, without copying."""
        pieces = [] if stop is None else split(start, stop)
        if len(pieces) > 1:
            return self._pins.read(path, lambda pin: self._get_many(path, pieces, pin))
        span = start, stop
        return [
            self._pins.read(
                path, lambda pin: run_interruptibly(partial(self._get, path, pin, span))
            )
        ]

    def read_each(self, paths: Sequence[str]) -> Iterator[memoryview]:
        """Read whole objects in their order, without copying."""
        limits, whole = self.guard.limits, (0, None)
        return ordered_map(
            lambda path: self._pins.read(path, lambda pin: self._get(path, pin, whole)),
            paths,
            workers=limits.jobs,
            max_items=MAX_READ_AHEAD,
            max_bytes=limits.ahead_bytes,
            weigh_result=len,
        )

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Part]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._get_many(path, pieces, pin))

    def _get_many(
        self, path: str, pieces: Sequence[tuple[int, int]], pin: ObjectPin | None = None
    ) -> tuple[list[memoryview], ObjectPin]:
        jobs = self.guard.limits.jobs
        largest = max(stop - start for start, stop in pieces)
        if len(pieces) <= _MAX_SINGLE_RANGES or largest > REQUEST_BYTES >> 3:
            done = list[memoryview]()
            if pin is None:  # the first responses, all of one version, pin it for the others
                first = [*ordered_map(partial(self._get, path, None), pieces[:AHEAD], workers=jobs)]
                pin = first[0][1]
                for data, seen in first:
                    pin = self._pins.check(path, pin, seen)
                    done.append(data)
            rest = ordered_map(partial(self._get, path, pin), pieces[len(done) :], workers=jobs)
            return done + [data for data, _ in rest], pin
        pin = pin or run_interruptibly(partial(self._head, path))
        groups = [pieces[i : i + _RANGES_PER_CALL] for i in range(0, len(pieces), _RANGES_PER_CALL)]
        # The library runs up to 10 requests at a time for each group.
        results = ordered_map(
            partial(self._get_group, path, pin), groups, workers=max(1, jobs // 10)
        )
        views = [view for group in results for view in group]
        # Calls for many ranges are not conditional, so the version is checked after them.
        run_interruptibly(partial(self._head, path, pin))
        return views, pin

    def _get_group(
        self, path: str, pin: ObjectPin, pieces: Sequence[tuple[int, int]]
    ) -> list[memoryview]:
        last = max(stop for _, stop in pieces)
        if last > pin.size:
            raise short_read(self.show(path), 0, last, pin.size)
        starts, stops = [start for start, _ in pieces], [stop for _, stop in pieces]
        buffers = self._call(
            path,
            lambda library, client: library.get_ranges(
                client, path, starts=starts, ends=stops, coalesce=0
            ),
        )
        views = [memoryview(buffer) for buffer in buffers]
        for view, (start, stop) in zip(views, pieces, strict=True):
            if len(view) != stop - start:
                raise short_read(self.show(path), start, stop, len(view))
        return views

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Read bytes 0..size in order, with read-ahead."""
        if size <= _READ_BYTES:
            yield self.read(path, 0, size)
            return

        def first_part(pin: ObjectPin | None) -> tuple[tuple[memoryview, ObjectPin], ObjectPin]:
            part = run_interruptibly(partial(self._get, path, pin, (0, _READ_BYTES)))
            return part, part[1]

        first, pin = self._pins.read(path, first_part)
        yield bytes(first)
        pieces = ((at, min(at + _READ_BYTES, size)) for at in range(_READ_BYTES, size, _READ_BYTES))
        jobs = min(AHEAD, self.guard.limits.jobs)
        parts = ordered_map(partial(self._get, path, pin), pieces, workers=jobs, max_items=jobs)
        for data, _ in parts:
            yield bytes(data)

    def list(self, path: str) -> Iterator[Entry]:
        top, first, last = f"{path}/" if path else "", None, None
        for meta in self._pages(path):
            key = meta["path"]
            if not key.startswith(top):
                raise FormatError(
                    "the listing of its folder contains an object outside it", where=self.show(path)
                )
            entry = Entry(key[len(top) :], meta["size"])
            if entry.name == first:  # the server ignores the position of the last page
                raise FormatError("the listing of its folder repeats", where=self.show(key))
            if last is None:
                first = entry.name
            elif last.size or not entry.name.startswith(
                f"{last.name}/"
            ):  # not the marker of a folder
                yield last
            last = entry
        if last is None:
            raise MissingError("not found", where=self.show(path))
        yield last

    def _pages(self, path: str) -> Iterator[Any]:
        """Yield the metadata of each object, in bytewise order of the keys."""

        def first(library: Any, client: Any) -> tuple[Any, Any]:
            stream = library.list(client, path or None, chunk_size=_PAGE_OBJECTS)
            return stream, next(stream, None)

        stream, page = run_interruptibly(lambda: self._call(path, first, once=True))
        while page is not None:
            yield from page
            page = run_interruptibly(
                lambda: self._call(path, lambda *_: next(stream, None), once=True)
            )

    # -- writing

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        if not path:
            raise UsageError("is a bucket; expected an object", where=self.show(path))
        sums = Sums(hashes)
        try:
            upload(
                parts,
                sums,
                partial(self._put_whole, path, replace),
                partial(self._put_pieces, path, replace),
            )
        finally:
            self._pins.drop(path)  # the object may exist although the response was lost
        return Written(sums.size, sums.hex())

    def _put_whole(self, path: str, replace: bool, data: bytes) -> None:
        """Write an object by one request; unless `replace`, only if it does not exist."""

        def put(library: Any, client: Any) -> None:
            if replace or not self._creates:
                library.put(client, path, data, use_multipart=False)
                return
            try:
                library.put(client, path, data, mode="create", use_multipart=False)
            except Exception as error:
                if not errors.is_unsupported(error):
                    raise
                self._creates = False
                self._refuse_existing(path)
                library.put(client, path, data, use_multipart=False)

        if not replace and not self._creates:
            self._refuse_existing(path)
        self._call(path, put)

    def _put_pieces(self, path: str, replace: bool, pieces: Iterator[bytes]) -> None:
        """Write a large object by a multipart upload, which an error aborts."""
        if not replace:  # not atomic: the library has no conditional multipart uploads
            self._refuse_existing(path)
        self._call(
            path,
            lambda library, client: library.put(
                client,
                path,
                pieces,
                use_multipart=True,
                chunk_size=REQUEST_BYTES,
                max_concurrency=AHEAD,
            ),
            once=True,
        )

    def _refuse_existing(self, path: str) -> None:
        try:
            self._call(path, lambda library, client: library.head(client, path))
        except MissingError:
            return
        raise UsageError("already exists", where=self.show(path))

    def read_current(self, path: str) -> tuple[bytes, dict[str, str]]:
        """Read a small object, without a pin, and its version, for `put_if`."""

        def get(library: Any, client: Any) -> tuple[bytes, dict[str, str]]:
            result = library.get(client, path)
            return bytes(result.bytes()), _version_of(result.meta)

        return run_interruptibly(lambda: self._call(path, get))

    def put_if(self, path: str, data: bytes, version: dict[str, str] | None) -> dict[str, str]:
        """Write a small object if its version is `version` (None: it does not exist); return the new version.

        raises  BusyError if the version differs; NoConditionalWrites if the store does not support them
        """

        def put(library: Any, client: Any) -> dict[str, str]:
            mode = "create" if version is None else version
            try:
                result = library.put(client, path, data, mode=mode, use_multipart=False)
            except Exception as error:
                is_deleted = version is not None and isinstance(error, FileNotFoundError)
                if errors.is_conflict(error) or is_deleted:
                    raise _another_writer(self.show(path)) from None
                if errors.is_unsupported(error):
                    raise NoConditionalWrites("conditional writes are not supported") from None
                raise
            return _version_of(result)

        if version == {}:
            raise NoConditionalWrites("objects have no versions", where=self.show(path))
        return run_interruptibly(lambda: self._call(path, put))

    def delete(self, path: str) -> None:
        def gone(library: Any, client: Any) -> None:
            try:
                library.delete(client, path)
            except FileNotFoundError:
                return

        run_interruptibly(lambda: self._call(path, gone))
        self._pins.drop(path)


def upload(
    parts: Iterable[Part],
    sums: Sums,
    put_whole: Callable[[bytes], None],
    put_pieces: Callable[[Iterator[bytes]], None],
) -> None:
    """Write all parts and compute their checksums in the same pass.

    This thread iterates over the parts; one of the two functions is called once, on another thread, so that an
    interrupt aborts it.

    put_whole   writes at most REQUEST_BYTES bytes by one request
    put_pieces  writes pieces of REQUEST_BYTES bytes, the last one shorter; writes nothing if the iterator raises
    """
    pieces = _pieces(parts, sums)
    first, second = next(pieces, b""), next(pieces, None)
    if second is None:
        run_interruptibly(lambda: put_whole(first))
        return
    queue: UploadQueue = Queue(2)
    task = submit(lambda: put_pieces(_queued_pieces(queue)))
    try:
        for piece in chain((first, second), pieces, (None,)):
            if not _put(queue, piece, task):
                break
        result_interruptibly(task)
    except BaseException:
        _abort(queue)
        wait([task], _ABORT_S)  # the upload deletes the pieces that it has written
        raise


def _pieces(parts: Iterable[Part], sums: Sums) -> Iterator[bytes]:
    """Split parts of any size into pieces of REQUEST_BYTES bytes."""
    held = bytearray()
    for part in parts:
        view = memoryview(part).cast("B")
        sums.update(view)
        while len(held) + len(view) >= REQUEST_BYTES:
            missing = REQUEST_BYTES - len(held)
            held += view[:missing]
            view = view[missing:]
            yield bytes(held)
            held.clear()
        held += view
    if held:
        yield bytes(held)


def _put(queue: UploadQueue, piece: bytes | None, upload: Future[None]) -> bool:
    """Put a piece on the queue of the upload; return False if the upload has ended."""
    while not upload.done():
        with contextlib.suppress(Full):
            queue.put(piece, timeout=0.2)
            return True
    return False


def _abort(queue: UploadQueue) -> None:
    """Make the upload raise when it takes the next piece."""
    while True:
        try:
            queue.put_nowait(AbortedError())
            return
        except Full:
            with contextlib.suppress(Empty):  # the upload has just taken a piece
                queue.get_nowait()


def _queued_pieces(queue: UploadQueue) -> Iterator[bytes]:
    while (piece := queue.get()) is not None:
        if isinstance(piece, AbortedError):
            raise piece
        yield piece


def _version_of(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


def _another_writer(where: object) -> BusyError:
    return BusyError("another process has written there", where=where)


class Snapshot(NamedTuple):
    """A small object as it was read: its bytes and its version; an empty version if the store has none."""

    data: bytes
    version: Mapping[str, str] = {}


def snapshot(at: Location) -> Snapshot | None:
    """Read a small object as it is now, without a pin; None if it does not exist."""
    try:
        if isinstance(at.store, ObjectStore):
            return Snapshot(*at.store.read_current(at.path))
        return Snapshot(replace(at, store=copy.copy(at.store)).read())  # a copy has no pins
    except MissingError:
        return None


def swap(at: Location, data: bytes, old: Snapshot | None) -> Snapshot:
    """Replace a small object, or create it (`old` None). Raises BusyError if it is not `old` any more.

    Object stores check that (`If-Match`, `If-None-Match`). In a store without conditional writes, the object is read
    before and after: two processes may both succeed, until they read it the next time.
    """
    if isinstance(at.store, ObjectStore):
        with contextlib.suppress(NoConditionalWrites):
            try:
                version = None if old is None else dict(old.version)
                return Snapshot(data, at.store.put_if(at.path, data, version))
            except BusyError:
                now = snapshot(at)
                if now is None or now.data != data:
                    raise
                return now  # an earlier attempt succeeded, and its response was lost
    now = snapshot(at)
    if (now and now.data) != (old and old.data):
        raise _another_writer(at)
    at.write([data])
    now = snapshot(at)
    if now is None or now.data != data:
        raise _another_writer(at)
    return now
