"""Store for S3, GCS and Azure. It uses the blocking calls of obstore.

The first response pins the version of an object by its ETag. Later requests are conditional on the
ETag, so that reads never mix two versions. If an object changes before any of its data has been
returned, the object is read again once. A later change is an error. A response that is shorter than
the requested range is an error. Invalid credentials end the run immediately.
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
    REQUEST_BYTES,
    Buffer,
    Entry,
    Guard,
    Location,
    Store,
    Written,
    prefetched,
    resolve,
    short_read,
)
from flarecli.storage.cloud import errors
from flarecli.storage.cloud.client_pool import Clients, Outage, outage_of
from flarecli.storage.versions import ObjectPin, Pins

__all__ = ["ObjectStore", "Snapshot", "snapshot", "swap"]

T = TypeVar("T")
# Up to _MAX_SINGLE_RANGES small ranges are read with one conditional request per range. A larger
# number of small ranges is read with `get_ranges`.
_MAX_SINGLE_RANGES = 8
_RANGES_PER_CALL = 256  # maximum number of ranges per call of `get_ranges`
_READ_BYTES = 4 << 20  # bytes per request of `blocks`
_PAGE_OBJECTS = 1000  # objects per page of a listing
AHEAD = 4  # maximum number of pieces in flight, in an upload and in `blocks`
_ABORT_S = 2.0  # time limit for aborting an upload


def _options(pin: ObjectPin | None, start: int, stop: int | None) -> dict[str, Any]:
    """Return the request options for a version and a range."""
    options: dict[str, Any] = {"if_match": pin.token} if pin and pin.token else {}
    if stop is not None:
        options["range"] = (start, stop)
    elif start:
        options["range"] = {"offset": start}
    return options


def parse_address(address: str) -> tuple[str, str, str]:
    """Parse `SCHEME://BUCKET/KEY` without decoding the key.

    Leading and trailing slashes of the key are removed.

    raises  UsageError for an address without a valid bucket name, or with user info
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
            "the address has no valid bucket name",
            where=redact(address),
            hint=f"Use an address such as {scheme}://bucket/folder.",
        )
    return scheme.lower(), bucket, key.strip("/")


class NoConditionalWrites(UsageError):
    """The store does not support conditional writes."""


class AbortedError(Exception):
    """The iterator over the parts of an upload raised an exception, which ends the upload."""


UploadQueue: TypeAlias = "Queue[bytes | AbortedError | None]"


class ObjectStore(Store):
    """A store for the objects of one bucket; the path of a Location is the key.

    A store can be pickled, and used after a fork, because each process opens its own clients.
    """

    def __init__(self, scheme: str, bucket: str, guard: Guard) -> None:
        self.scheme, self.bucket, self.guard = scheme, bucket, guard
        self._pins = Pins(self.show)
        self._clients = Clients(self.home, guard.limits, guard.anonymous)
        self._known_outage: Outage | None = None
        self._creates = True  # False after the store has rejected a conditional write

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
        """Return the Location for an address that the user typed.

        Raises UsageError for an invalid address.
        """
        scheme, bucket, key = parse_address(address)
        return Location(cls(scheme, bucket, guard), key)

    @property
    def home(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}/"

    @property
    def origin(self) -> str:
        """The endpoint or account of the service; empty for the default service."""
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
        """Resolve an address found in data; see `base.resolve`."""
        return resolve(self, self.home, path, url, self.guard)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the current client: region, endpoint and credentials."""
        self._clients.current()
        return self._clients.tried[-1].config

    def _call(self, path: str, call: Callable[[Any, Any], T], once: bool = False) -> T:
        """Call the library with a client. Convert the errors of the library.

        once  True if the call must not be repeated because it consumes an iterator. During an
              outage, the library then retries single requests. Other calls are repeated
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
        """Raise the error, or return normally if the caller should repeat the call.

        A call is repeated with other credentials if access was denied, or after a delay during an
        outage.

        began  monotonic time of the first call; None for a call that must not be repeated during an
               outage
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
        if type(error).__name__ != "PanicException":  # a Rust panic raises a BaseException
            raise error
        raise errors.converted(RuntimeError("panic"), self.show(path), "", "") from None

    def _converted(self, error: Exception, path: str) -> FlareError:
        """Convert an exception of the library to a FlareError."""
        tried = self._clients.tried
        endpoints = [
            redact(str(one.config["endpoint"])) for one in tried if "endpoint" in one.config
        ]
        names = " and ".join(source.name for source in tried)
        result = errors.converted(error, self.show(path), names, endpoints[0] if endpoints else "")
        if self.guard.anonymous and errors.is_denied(error):
            return result.changed(hint=errors.ANONYMOUS_HINT)
        return result

    # -- reading

    def _check(self, path: str, etag: str | None, size: int, pin: ObjectPin | None) -> ObjectPin:
        """Return the pin, or the response's version if `pin` is None.

        Raises IntegrityError if the two differ.
        """
        token = etag if etag and not etag.startswith("W/") else ""
        return self._pins.check(path, pin, ObjectPin(token, size))

    def _check_key(self, path: str) -> None:
        if not path:
            raise FormatError("is a bucket; expected an object", where=self.show(path))

    def _head(self, path: str, pin: ObjectPin | None = None) -> ObjectPin:
        """Request the version of an object.

        Raises IntegrityError if the version differs from the pin.
        """
        self._check_key(path)
        meta = self._call(path, lambda library, client: library.head(client, path))
        return self._check(path, meta["e_tag"], meta["size"], pin)

    def _get(
        self, path: str, pin: ObjectPin | None, span: tuple[int, int | None]
    ) -> tuple[memoryview, ObjectPin]:
        """Read a range of the pinned version with one request.

        return  the buffer of the library, and the pin
        """
        self._check_key(path)
        start, stop = span
        options = _options(pin, start, stop) or None

        def get(library: Any, client: Any) -> tuple[Any, memoryview] | None:
            try:
                result = library.get(client, path, options=options)
                return result, memoryview(result.bytes())
            except Exception as error:
                if errors.is_past_end(error):
                    return None
                raise

        found = self._call(path, get)
        if found is None:  # the range starts at or after the end of the object
            pin = pin or self._head(path)
            if start == pin.size and stop is None:
                return memoryview(b""), pin
            raise short_read(self.show(path), 0, max(start, stop or 0), pin.size)
        result, data = found
        size = result.meta["size"]
        pin = self._check(path, result.meta["e_tag"], size, pin)
        length = (size if stop is None else stop) - start
        if result.range[0] != start or len(data) != length:
            raise short_read(self.show(path), start, stop or size, len(data))
        return data, pin

    def size(self, path: str) -> int:
        return self.version(path)[1]

    def version(self, path: str) -> tuple[str, int]:
        pin = self._pins.get(path) or self._pins.pin(
            path, run_interruptibly(partial(self._head, path))
        )
        return pin.version, pin.size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if start == stop:
            return b""
        if stop is not None:
            return b"".join(self.views(path, start, stop))
        to_end = start, None
        return bytes(
            self._pins.read(
                path, lambda pin: run_interruptibly(partial(self._get, path, pin, to_end))
            )
        )

    def read_each(self, paths: Sequence[str]) -> Iterator[memoryview]:
        """Yield the content of each object in order, without a copy."""
        whole = 0, None

        def read(path: str) -> memoryview:
            return self._pins.read(path, lambda pin: self._get(path, pin, whole))

        return prefetched(read, paths, self.guard.limits)

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Buffer]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._get_many(path, pieces, pin))

    def _get_many(
        self, path: str, pieces: Sequence[tuple[int, int]], pin: ObjectPin | None = None
    ) -> tuple[list[memoryview], ObjectPin]:
        if len(pieces) == 1:
            data, pin = run_interruptibly(partial(self._get, path, pin, pieces[0]))
            return [data], pin
        jobs = self.guard.limits.jobs
        largest = max(stop - start for start, stop in pieces)
        if len(pieces) <= _MAX_SINGLE_RANGES or largest > REQUEST_BYTES >> 3:
            done = list[memoryview]()
            if pin is None:  # the first responses must have the same version, which becomes the pin
                first = [*ordered_map(partial(self._get, path, None), pieces[:AHEAD], workers=jobs)]
                pin = first[0][1]
                for data, seen in first:
                    pin = self._pins.check(path, pin, seen)
                    done.append(data)
            rest = ordered_map(partial(self._get, path, pin), pieces[len(done) :], workers=jobs)
            return done + [data for data, _ in rest], pin
        pin = pin or run_interruptibly(partial(self._head, path))
        groups = [pieces[i : i + _RANGES_PER_CALL] for i in range(0, len(pieces), _RANGES_PER_CALL)]
        # Each group is one call of `get_ranges`, which runs up to 10 requests at a time.
        results = ordered_map(
            partial(self._get_group, path, pin), groups, workers=max(1, jobs // 10)
        )
        views = [view for group in results for view in group]
        # `get_ranges` is not conditional, so the version is checked after the calls.
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
        """Yield bytes 0..size in order, with read-ahead."""
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
                    "the listing of the folder contains an object outside the folder",
                    where=self.show(path),
                )
            entry = Entry(key[len(top) :], meta["size"])
            if entry.name == first:  # the server ignores the page token and repeats the first page
                raise FormatError("the listing contains this object twice", where=self.show(key))
            if last is None:
                first = entry.name
            # An empty object with the name of a folder is only the marker of the folder.
            elif last.size or not entry.name.startswith(f"{last.name}/"):
                yield last
            last = entry
        if last is None:
            raise MissingError("not found", where=self.show(path))
        yield last

    def names(self, path: str) -> Sequence[str]:
        top = f"{path}/" if path else ""
        found = run_interruptibly(
            lambda: self._call(
                path, lambda library, client: library.list_with_delimiter(client, path or None)
            )
        )
        keys = [*found["common_prefixes"], *(meta["path"] for meta in found["objects"])]
        names = {key[len(top) :].rstrip("/") for key in keys if key.startswith(top)} - {""}
        if not names:
            raise MissingError("not found", where=self.show(path))
        return sorted(names)

    def _pages(self, path: str) -> Iterator[Any]:
        """Yield the metadata of each object below a path, in bytewise order of the keys."""

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
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
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
            self._pins.drop(path)  # also after an error, because the write may have succeeded
        return Written(sums.size, sums.hex())

    def _put_whole(self, path: str, replace: bool, data: bytes) -> None:
        """Write an object with one request.

        Raises UsageError if the object exists and `replace` is False.
        """

        if not replace and self._creates:
            try:
                self.put_if(path, data, None)
                return
            except BusyError:
                raise _already_exists(self.show(path)) from None
            except NoConditionalWrites:
                self._creates = False
        if not replace:
            self._refuse_existing(path)
        self._call(
            path, lambda library, client: library.put(client, path, data, use_multipart=False)
        )

    def _put_pieces(self, path: str, replace: bool, pieces: Iterator[bytes]) -> None:
        """Write a large object with a multipart upload, which is aborted after an error."""
        if not replace:  # not atomic, because the library has no conditional multipart uploads
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
        raise _already_exists(self.show(path))

    def read_current(self, path: str) -> tuple[bytes, dict[str, str]]:
        """Read the current version of a small object, even if another version is pinned.

        return  bytes of the object; its version, which is an argument of `put_if`
        """

        def get(library: Any, client: Any) -> tuple[bytes, dict[str, str]]:
            result = library.get(client, path)
            return bytes(result.bytes()), _version_of(result.meta)

        return run_interruptibly(lambda: self._call(path, get))

    def put_if(self, path: str, data: bytes, version: dict[str, str] | None) -> dict[str, str]:
        """Write a small object if its current version is `version`; return the new version.

        version  expected version, or None if the object must not exist
        raises   BusyError if the version differs; NoConditionalWrites if the store has no
                 conditional writes
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
                    raise NoConditionalWrites("the store has no conditional writes") from None
                raise
            return _version_of(result)

        if version == {}:
            raise NoConditionalWrites("the store has no versions", where=self.show(path))
        return run_interruptibly(lambda: self._call(path, put))

    def create(self, path: str, data: bytes) -> None:
        try:
            self.put_if(path, data, None)
        except NoConditionalWrites as error:
            raise error.changed(
                address=self.show(path),
                hint="Use a store with conditional writes (If-None-Match), or a local folder.",
            ) from None
        finally:
            self._pins.drop(path)

    def delete(self, path: str) -> None:
        def gone(library: Any, client: Any) -> None:
            try:
                library.delete(client, path)
            except FileNotFoundError:
                return

        run_interruptibly(lambda: self._call(path, gone))
        self._pins.drop(path)


def upload(
    parts: Iterable[Buffer],
    sums: Sums,
    put_whole: Callable[[bytes], None],
    put_pieces: Callable[[Iterator[bytes]], None],
) -> None:
    """Write all parts and compute their checksums in the same pass.

    The calling thread iterates over the parts. A separate thread calls either `put_whole` or
    `put_pieces`, so that an interrupt can abort the call.

    put_whole   function that writes at most REQUEST_BYTES bytes with one request
    put_pieces  function that writes several pieces of REQUEST_BYTES bytes (the last piece may be
                shorter); if the iterator of the pieces raises an exception, the function must not
                write an object
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
        wait([task], _ABORT_S)  # the upload deletes the pieces that it wrote
        raise


def _pieces(parts: Iterable[Buffer], sums: Sums) -> Iterator[bytes]:
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
    """Put a piece in the queue of the upload; return False if the upload has ended."""
    while not upload.done():
        with contextlib.suppress(Full):
            queue.put(piece, timeout=0.2)
            return True
    return False


def _abort(queue: UploadQueue) -> None:
    """Make the upload raise AbortedError when it reads the next piece."""
    while True:
        try:
            queue.put_nowait(AbortedError())
            return
        except Full:
            with contextlib.suppress(Empty):  # the upload has just removed a piece
                queue.get_nowait()


def _queued_pieces(queue: UploadQueue) -> Iterator[bytes]:
    while (piece := queue.get()) is not None:
        if isinstance(piece, AbortedError):
            raise piece
        yield piece


def _version_of(meta: Mapping[str, Any]) -> dict[str, str]:
    return {name: meta[name] for name in ("e_tag", "version") if meta.get(name)}


def _already_exists(where: object) -> UsageError:
    return UsageError("already exists", where=where)


def _another_writer(where: object) -> BusyError:
    return BusyError("another process has changed this file", where=where)


class Snapshot(NamedTuple):
    """The bytes and the version of a small object.

    The version is empty if the store has no versions.
    """

    data: bytes
    version: Mapping[str, str] = {}


def snapshot(at: Location) -> Snapshot | None:
    """Read the current version of a small object, even if another version is pinned.

    return  None if the object does not exist
    """
    try:
        if isinstance(at.store, ObjectStore):
            return Snapshot(*at.store.read_current(at.path))
        return Snapshot(replace(at, store=copy.copy(at.store)).read())  # a copied store has no pins
    except MissingError:
        return None


def swap(at: Location, data: bytes, old: Snapshot | None) -> Snapshot:
    """Replace a small object, or create it if `old` is None.

    Most object stores compare the versions themselves (`If-Match`, `If-None-Match`). In a store
    without conditional writes, the object is read before and after the write. These reads may fail
    to detect that another process writes the object at the same time.

    old     the expected state of the object; None if the object must not exist
    raises  BusyError if the object differs from `old`
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
                return now  # an earlier attempt succeeded, but its response was lost
    now = snapshot(at)
    if (now and now.data) != (old and old.data):
        raise _another_writer(at)
    at.write([data])
    now = snapshot(at)
    if now is None or now.data != data:
        raise _another_writer(at)
    return now
