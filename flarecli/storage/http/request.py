"""HTTP requests and their outcomes.

A `Request` is for one object or a range of an object. A `BatchRequest` is for many whole objects.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flarecli.storage.base import Guard
from flarecli.storage.http.ip_guard import Permit, permit_for, redirect_permit
from flarecli.storage.http.response import Fault, Response
from flarecli.storage.http.url import Address
from flarecli.storage.versions import ObjectPin

__all__ = ["BatchRequest", "Page", "Request"]


class Request:
    """A request for an object or a range of an object, and its outcome once `done` is set.

    address     current address; a redirect changes the address
    original    address before any redirect
    guard       restrictions on private addresses
    start, stop requested range; a `stop` of None means the end of the object; if both are 0, only
                the size of the object is requested
    if_match    ETag that the object must have, or empty
    order       sequence number; the caller needs the data of requests with lower numbers first
    sink        function that receives the bytes in pieces; `data` then stays empty. Each piece
                increases `start`, so that a retry continues at the first missing byte
    unused      number of bytes that the sink has received and the caller has not used
    window      maximum value of `unused`
    version     version of the bytes that the sink has received; a retry must receive the same
                version

    requeued_at time at which the request was queued again after its start, or 0

    data        requested bytes, if the transfer succeeded
    response    head of the last response
    whole       bytes of the whole object, if the server ignored the range and the object is small
    total       size of the whole object in bytes, if known

    batch, index  the BatchRequest that contains this request, if any, and the position in it
    """

    def __init__(
        self,
        address: Address,
        deliver: Callable[[Request], object],
        guard: Guard,
        *,
        start: int = 0,
        stop: int | None = None,
        if_match: str = "",
        order: int = 0,
        sink: Callable[[bytes], object] | None = None,
        window: int = 0,
    ) -> None:
        self.address = self.original = address
        self.deliver, self.guard = deliver, guard
        self.start, self.stop, self.if_match, self.order = start, stop, if_match, order
        self.sink, self.window = sink, window
        self.attempts = self.hops = self.unused = self.index = 0
        self.deadline = self.requeued_at = 0.0
        self.cancelled = self.done = False
        self.data: bytes = b""
        self.response: Response | None = None
        self.version: ObjectPin | None = None
        self.fault: Fault | None = None
        self.whole: bytes | None = None
        self.total: int | None = None
        self.batch: BatchRequest | None = None

    @property
    def origin(self) -> str:
        """The origin of the current address."""
        return self.address.origin

    @property
    def permit(self) -> Permit:
        """The private addresses that a connection to the current address may reach."""
        if self.origin != self.original.origin:
            return redirect_permit(self.origin, self.guard)
        return permit_for(self.origin, self.guard)

    @property
    def is_range(self) -> bool:
        """True if less than the whole object is requested."""
        return self.start > 0 or self.stop is not None


class Page(NamedTuple):
    """The bytes of an object whose content type indicates a web page."""

    data: bytes


class BatchRequest:
    """A request for many whole objects. The position of an object is the same in all lists.

    urls, origins  URL and origin of each object; empty at a position without an object
    users     position -> user info, for the addresses that contain user info
    outcomes  list that receives the outcomes: bytes, a Page or a Fault; None until the outcome is
              known
    arrived   function that the engine's thread calls when the outcome of the object at position
              `awaited` is known
    guard     restrictions on private addresses
    first     sequence number of the object at position 0; the object at position i has the order
              number `first` + i
    obeys_robots_tag  whether an object fails if its X-Robots-Tag disallows the use of the object
    """

    cancelled = False

    def __init__(
        self,
        urls: Sequence[str],
        origins: Sequence[str],
        users: Mapping[int, str],
        outcomes: list[Any],
        arrived: Callable[[], object],
        guard: Guard,
        first: int = 0,
        obeys_robots_tag: bool = False,
    ) -> None:
        self.urls, self.origins, self.users = urls, origins, users
        self.outcomes, self.arrived = outcomes, arrived
        self.guard, self.first, self.obeys_robots_tag = guard, first, obeys_robots_tag
        self.awaited = -1

    def by_origin(self) -> Mapping[str, Sequence[int]]:
        """Return a dict from each origin to the positions of its objects, in ascending order."""
        positions: dict[str, list[int]] = {}
        for i, origin in enumerate(self.origins):
            if origin:
                positions.setdefault(origin, []).append(i)
        return positions

    def request(self, index: int) -> Request:
        """Return the request for the object at a position."""
        origin = self.origins[index]
        address = Address(self.urls[index], origin, self.users.get(index, ""))
        request = Request(address, _store_outcome, self.guard, order=self.first + index)
        request.batch, request.index = self, index
        return request

    def fail(self, fault: Fault) -> None:
        """Set the outcome of all unfinished objects to a fault."""
        self.outcomes[:] = [fault if one is None else one for one in self.outcomes]
        self.arrived()


def _store_outcome(request: Request) -> None:
    """Store the outcome of a finished request in its batch."""
    batch, index, response = request.batch, request.index, request.response
    if batch is None:
        return
    if request.fault is not None:
        batch.outcomes[index] = request.fault
    else:
        is_page = response is not None and response.is_page
        batch.outcomes[index] = Page(request.data) if is_page else request.data
        request.data = b""  # released here, because an idle handle keeps its last request
    if index == batch.awaited:
        batch.arrived()
