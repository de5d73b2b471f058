"""Objects in S3, GCS and Azure, through obstore's blocking calls.

The first response pins the version of an object by its ETag, and later requests are conditional on
it, so that versions are never mixed. If an object changes before any of its data was returned, it
is read again; otherwise that is an error. A response shorter than requested is an error. Denied
credentials end the run at once.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from flarecli.errors import BusyError, FormatError, MissingError, UsageError
from flarecli.hashes import Sums
from flarecli.prefetch import ordered_map, run_interruptibly
from flarecli.redact import redact
from flarecli.storage.base import (
    MAX_READ_AHEAD,
    Entry,
    Guard,
    Location,
    Part,
    Store,
    Written,
    short_read,
)
from flarecli.storage.cloud import errors
from flarecli.storage.cloud.address import parse_address, resolve
from flarecli.storage.cloud.client_pool import Clients
from flarecli.storage.cloud.multipart import AHEAD, upload
from flarecli.storage.cloud.outage import Outage, outage_of
from flarecli.storage.ranges import REQUEST_BYTES, split
from flarecli.storage.versions import ObjectPin, Pins

__all__ = ["ObjectStore", "Unconditional"]

T = TypeVar("T")
_FEW = 8  # up to this many ranges are requested one by one, each conditional on the version
_GROUP = 256  # ranges per call of the library, if there are more
_READ = 4 << 20  # bytes per request when an object is read from start to end
_PAGE = 1000  # objects per page of a listing


def _options(pin: ObjectPin | None, start: int, stop: int | None) -> dict[str, Any]:
    """Return the options of a request: version and range."""
    options: dict[str, Any] = {"if_match": pin.token} if pin and pin.token else {}
    if stop is not None:
        options["range"] = (start, stop)
    elif start:
        options["range"] = {"offset": start}
    return options


class Unconditional(UsageError):
    """The store does not support conditional writes."""


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
        """Return the Location of an address that the user typed.

        Raises UsageError without a bucket.
        """
        found = parse_address(address)
        return Location(cls(found.scheme, found.bucket, guard), found.key)

    @property
    def home(self) -> str:
        """The address of the bucket."""
        return f"{self.scheme}://{self.bucket}/"

    @property
    def origin(self) -> str:
        """The endpoint or account; empty for the default. Two services may have buckets of one
        name.
        """
        config = self._clients.way(0).config
        account = (
            f"{os.environ.get('AZURE_STORAGE_ACCOUNT_NAME', '')} {os.environ.get('AZURE_STORAGE_ENDPOINT', '')}"
            if self.scheme == "az"
            else ""
        )
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
        """Resolve an address that data names; see `cloud.address`."""
        return resolve(self, self.home, path, url, self.guard)

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the client in use: region, endpoint, and credentials that flare has read."""
        self._clients.current()
        return self._clients.tried[-1].config

    def _do(self, path: str, call: Callable[[Any, Any], T], once: bool = False) -> T:
        """Call the library with a client; translate its errors.

        once  the call consumes an iterator and cannot be repeated; the library retries by itself
        """
        began = time.monotonic()
        while True:
            library, client = self._clients.current()
            is_patient = once and self._outage.was_reached
            used = self._clients.patient(library) if is_patient else client
            try:
                done = call(library, used)
                self._outage.answered()
                return done
            except BaseException as error:
                self._go_on(error, client, path, None if once else began)

    def _go_on(self, error: BaseException, client: Any, path: str, began: float | None) -> None:
        """Return if the call should be repeated; otherwise raise an error of the library in the
        store's own words.

        It is repeated with other credentials, if there are any, and through an outage.

        began  when the call was made first; None if it cannot be repeated
        """
        if isinstance(error, Exception):
            is_overload = errors.is_overload(error)
            if is_overload or errors.is_unreachable(error):
                if began is not None and self._outage.wait(began, is_overload):
                    return
            elif errors.answered(error):
                self._outage.answered()
            if errors.is_denied(error) and self._clients.otherwise(client):
                return
            raise self.told(error, path) from None
        if type(error).__name__ != "PanicException":  # a Rust panic is no Exception
            raise error
        raise errors.translate(RuntimeError("panic"), self.show(path), "", "") from None

    def told(self, error: Exception, path: str) -> Exception:
        """Translate an error of the library."""
        tried = self._clients.tried
        endpoint = next(
            (redact(str(way.config["endpoint"])) for way in tried if "endpoint" in way.config), ""
        )
        words = " and ".join(way.words for way in tried)
        found = errors.translate(error, self.show(path), words, endpoint)
        if self.guard.anonymous and errors.is_denied(error):
            found.hint = errors.ANONYMOUS
        return found

    # -- reading

    def _check(self, path: str, etag: str | None, size: int, pin: ObjectPin | None) -> ObjectPin:
        """Return the pin after checking a response against it.

        Raises IntegrityError if it is of another version.
        """
        token = etag if etag and not etag.startswith("W/") else ""
        return self._pins.check(path, pin, ObjectPin(token, size))

    def _head(self, path: str, pin: ObjectPin | None = None) -> ObjectPin:
        """Request the version of an object. Raises IntegrityError if it is not the pinned one."""
        if not path:
            raise FormatError("a bucket where an object is needed", where=self.show(path))
        meta = self._do(path, lambda library, client: library.head(client, path))
        return self._check(path, meta["e_tag"], meta["size"], pin)

    def _got(
        self, path: str, pin: ObjectPin | None, wanted: tuple[int, int | None]
    ) -> tuple[memoryview, ObjectPin]:
        """Read one range of the pinned version by one request; return its buffer and the pin.

        Small objects are bound by the interpreter lock, so this function does as little as
        possible.
        """
        if not path:
            raise FormatError("a bucket where an object is needed", where=self.show(path))
        start, stop = wanted
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
                if not isinstance(error, Exception) or not errors.past_the_end(error):
                    self._go_on(error, client, path, began)
                    continue
            return self._nothing(path, pin, start, stop)
        self._outage.answered()
        meta = result.meta
        size = meta["size"]
        pin = self._check(path, meta["e_tag"], size, pin)
        if (not is_whole and result.range[0] != start) or len(data) != (
            size if stop is None else stop
        ) - start:
            raise short_read(self.show(path), start, stop or size, len(data))
        return data, pin

    def _nothing(
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
        """Read a range and return the buffers of the library, in order, without copying."""
        pieces = [] if stop is None else split(start, stop)
        if len(pieces) > 1:
            return self._pins.read(path, lambda pin: self._many(path, pieces, pin))
        return [
            self._pins.read(
                path, lambda pin: run_interruptibly(partial(self._got, path, pin, (start, stop)))
            )
        ]

    def read_each(self, paths: Sequence[str]) -> Iterator[memoryview]:
        """Read many whole objects, in order, without copying."""
        limits, whole = self.guard.limits, (0, None)
        return ordered_map(
            lambda path: self._pins.read(path, lambda pin: self._got(path, pin, whole)),
            paths,
            workers=limits.jobs,
            max_items=MAX_READ_AHEAD,
            max_bytes=limits.ahead_bytes,
            weigh_result=len,
        )

    def read_pieces(self, path: str, pieces: Sequence[tuple[int, int]]) -> Sequence[Part]:
        if not pieces:
            return []
        return self._pins.read(path, lambda pin: self._many(path, pieces, pin))

    def _many(
        self, path: str, pieces: Sequence[tuple[int, int]], pin: ObjectPin | None = None
    ) -> tuple[list[memoryview], ObjectPin]:
        jobs = self.guard.limits.jobs
        if len(pieces) <= _FEW or max(stop - start for start, stop in pieces) > REQUEST_BYTES >> 3:
            done = list[memoryview]()
            if pin is None:  # the first responses, all of one version, pin it for the others
                first = [*ordered_map(partial(self._got, path, None), pieces[:AHEAD], workers=jobs)]
                pin = first[0][1]
                for data, seen in first:
                    pin = self._pins.check(path, pin, seen)
                    done.append(data)
            rest = ordered_map(partial(self._got, path, pin), pieces[len(done) :], workers=jobs)
            return done + [data for data, _ in rest], pin
        pin = pin or run_interruptibly(partial(self._head, path))
        groups = [pieces[i : i + _GROUP] for i in range(0, len(pieces), _GROUP)]
        # The library runs up to 10 requests at a time for each group.
        found = [*ordered_map(partial(self._group, path, pin), groups, workers=max(1, jobs // 10))]
        run_interruptibly(
            partial(self._head, path, pin)
        )  # calls for many ranges are not conditional, so the version is checked after them
        return [data for group in found for data in group], pin

    def _group(
        self, path: str, pin: ObjectPin, pieces: Sequence[tuple[int, int]]
    ) -> list[memoryview]:
        past = next((piece for piece in pieces if piece[1] > pin.size), None)
        if past is not None:
            raise short_read(self.show(path), 0, past[1], pin.size)
        starts, stops = [start for start, _ in pieces], [stop for _, stop in pieces]
        found = self._do(
            path,
            lambda library, client: library.get_ranges(
                client, path, starts=starts, ends=stops, coalesce=0
            ),
        )
        data = [memoryview(one) for one in found]
        for one, (start, stop) in zip(data, pieces, strict=True):
            if len(one) != stop - start:
                raise short_read(self.show(path), start, stop, len(one))
        return data

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Read bytes 0..size in order, with read-ahead."""
        if size <= _READ:
            yield self.read(path, 0, size)
            return

        def begun(pin: ObjectPin | None) -> tuple[tuple[memoryview, ObjectPin], ObjectPin]:
            first = run_interruptibly(partial(self._got, path, pin, (0, _READ)))
            return first, first[1]

        first, pin = self._pins.read(path, begun)
        yield bytes(first)
        pieces = ((at, min(at + _READ, size)) for at in range(_READ, size, _READ))
        jobs = min(AHEAD, self.guard.limits.jobs)
        yield from (
            bytes(data)
            for data, _ in ordered_map(
                partial(self._got, path, pin), pieces, workers=jobs, max_items=jobs
            )
        )

    def list(self, path: str) -> Iterator[Entry]:
        top, first, last = f"{path}/" if path else "", None, None
        for meta in self._pages(path):
            if not meta["path"].startswith(top):
                raise FormatError(
                    "the listing of its folder names what lies elsewhere", where=self.show(path)
                )
            entry = Entry(meta["path"][len(top) :], meta["size"])
            if (
                entry.name == first
            ):  # a server that does not know where the page before ended would go on for ever
                raise FormatError(
                    "the listing of its folder begins again before it ends",
                    where=self.show(meta["path"]),
                )
            first = entry.name if last is None else first
            if last is not None and not (
                last.size == 0 and entry.name.startswith(f"{last.name}/")
            ):  # else a folder's own mark, not a file
                yield last
            last = entry
        if last is None:
            raise MissingError("nothing is there", where=self.show(path))
        yield last

    def _pages(self, path: str) -> Iterator[Any]:
        """Yield the metadata of each object, in bytewise order of the keys."""

        def first(library: Any, client: Any) -> tuple[Any, Any]:
            stream = library.list(client, path or None, chunk_size=_PAGE)
            return stream, next(stream, None)

        stream, page = run_interruptibly(lambda: self._do(path, first, once=True))
        while page is not None:
            yield from page
            page = run_interruptibly(
                lambda: self._do(path, lambda *_: next(stream, None), once=True)
            )

    # -- writing

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        if not path:
            raise UsageError("a bucket where an object is needed", where=self.show(path))
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
                if not errors.unsupported(error):
                    raise
                self._creates = False
                self._refuse_what_is_there(path)
                library.put(client, path, data, use_multipart=False)

        if not replace and not self._creates:
            self._refuse_what_is_there(path)
        self._do(path, put)

    def _put_pieces(self, path: str, replace: bool, pieces: Iterator[bytes]) -> None:
        """Write a large object by a multipart upload, which an error aborts."""
        if not replace:  # not atomic: the library has no conditional multipart uploads
            self._refuse_what_is_there(path)
        self._do(
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

    def _refuse_what_is_there(self, path: str) -> None:
        try:
            self._do(path, lambda library, client: library.head(client, path))
        except MissingError:
            return
        raise UsageError("something is there already", where=self.show(path))

    def current(self, path: str) -> tuple[bytes, dict[str, str]]:
        """Read a small object and its version, for `exchange`."""

        def get(library: Any, client: Any) -> tuple[bytes, dict[str, str]]:
            result = library.get(client, path)
            return bytes(result.bytes()), {
                name: result.meta[name] for name in ("e_tag", "version") if result.meta.get(name)
            }

        return run_interruptibly(lambda: self._do(path, get))

    def exchange(self, path: str, data: bytes, version: dict[str, str] | None) -> dict[str, str]:
        """Write a small object if its version is `version` (None: it does not exist); return the
        new one.

        raises  BusyError if the version differs; Unconditional without conditional writes
        """

        def put(library: Any, client: Any) -> dict[str, str]:
            try:
                result = library.put(
                    client,
                    path,
                    data,
                    mode="create" if version is None else version,
                    use_multipart=False,
                )
            except Exception as error:
                if errors.outrun(error) or (
                    version is not None and isinstance(error, FileNotFoundError)
                ):
                    raise BusyError(
                        "somebody else has written there", where=self.show(path)
                    ) from None
                if errors.unsupported(error):
                    raise Unconditional(
                        "it cannot write on condition", where=self.show(path)
                    ) from None
                raise
            return {name: result[name] for name in ("e_tag", "version") if result.get(name)}

        if version == {}:
            raise Unconditional("its versions have no names", where=self.show(path))
        return run_interruptibly(lambda: self._do(path, put))

    def delete(self, path: str) -> None:
        def gone(library: Any, client: Any) -> None:
            try:
                library.delete(client, path)
            except FileNotFoundError:
                return

        run_interruptibly(lambda: self._do(path, gone))
        self._pins.drop(path)
