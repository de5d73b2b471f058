"""Requests: one object or range, or many whole objects in columns; and what became of each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flarecli.storage.http.ip_guard import Permit, permit_for, redirect_permit
from flarecli.storage.http.response import Answer, Fault
from flarecli.storage.http.url import Address
from flarecli.storage.versions import ObjectPin

__all__ = ["Page", "Request", "Wanted"]


class Request:
    """An object or a range of one, wanted; and after `done`, what became of it.

    address     what to ask for; a redirect changes it, `asked` stays
    named       origins that the user typed: they may be private
    private     whether every address may be private
    hosts       hosts and networks that the user allowed, as in `Guard.allow_hosts`
    start,stop  the range wanted; stop None: to the end; both 0: only the size of the object
    if_match    the ETag it must have, or empty
    order       the smallest is served first, and is never paused
    sink        gets the bytes piece by piece instead of `data`, never more than `window` of them that are not used yet;
                `start` moves along, so that another try goes on where the last one broke off
    of          the version that the sink got its first bytes of: another attempt must bring the same one

    data        the bytes wanted, when there is no fault
    answer      the last answer's head
    whole       the whole object, when the server ignored the range and it is small
    total       bytes of the whole object, if known

    wanted,place  the many that it was made for, if it was, and which of them it is
    """

    __slots__ = (
        "_asked",
        "answer",
        "attempts",
        "cancelled",
        "data",
        "deadline",
        "deliver",
        "done",
        "fault",
        "hops",
        "hosts",
        "if_match",
        "named",
        "of",
        "order",
        "origin",
        "place",
        "private",
        "sink",
        "start",
        "stop",
        "total",
        "unused",
        "url",
        "user",
        "wanted",
        "whole",
        "window",
    )

    def __init__(
        self,
        address: Address,
        deliver: Callable[[Request], object],
        *,
        named: frozenset[str] = frozenset(),
        private: bool = False,
        hosts: tuple[str, ...] = (),
        start: int = 0,
        stop: int | None = None,
        if_match: str = "",
        order: int = 0,
        sink: Callable[[bytes], object] | None = None,
        window: int = 0,
    ) -> None:
        self.url, self.origin, self.user = address
        self.deliver, self.named, self.private, self.hosts = deliver, named, private, hosts
        self.start, self.stop, self.if_match, self.order = start, stop, if_match, order
        self.sink, self.window = sink, window
        self.attempts = self.hops = self.unused = 0
        self.deadline = 0.0
        self.cancelled = self.done = False
        self.data: bytes = b""
        self._asked: Address | None = None
        self.answer: Answer | None = None
        self.of: ObjectPin | None = None
        self.fault: Fault | None = None
        self.whole: bytes | None = None
        self.total: int | None = None
        self.wanted: Wanted | None = None
        self.place = 0

    @property
    def address(self) -> Address:
        """The address as it is now: redirects change it. Its parts are the request's own, since one thing is cheaper than two."""
        return Address(self.url, self.origin, self.user)

    @address.setter
    def address(self, address: Address) -> None:
        if self._asked is None:
            self._asked = self.address
        self.url, self.origin, self.user = address

    @property
    def asked(self) -> Address:
        """The address that was asked for."""
        return self._asked or self.address

    @property
    def permit(self) -> Permit:
        """The private addresses that a connection for the address as it is now may reach."""
        if self._asked is not None and self.origin != self._asked.origin:
            return redirect_permit(self.origin, self.private)
        return permit_for(self.origin, self.named, self.private, self.hosts)

    @property
    def ranged(self) -> bool:
        """Whether less than the whole object is wanted."""
        return self.start > 0 or self.stop is not None


class Page(NamedTuple):
    """The bytes of an object that its server calls a web page."""

    data: bytes


class Wanted:
    """Whole objects: where each lies, and in the same places what became of it.

    urls, origins, users  as in an Address; an empty URL where nothing is asked for, and user info only where there is any
    first    the order of the first place; each next one's is one more
    named    origins that the user typed: they may be private
    private  whether every address may be private
    hosts    hosts and networks that the user allowed, as in `Guard.allow_hosts`
    found    bytes, a Page or a Fault; None: not yet. Where nothing is asked for the caller may keep what he wants

    awaited  a place; `arrived` is called, on the engine's thread, when something is found for it
    """

    cancelled = False

    def __init__(
        self,
        urls: Sequence[str],
        origins: Sequence[str],
        users: Mapping[int, str],
        found: list[Any],
        arrived: Callable[[], object],
        *,
        first: int = 0,
        named: frozenset[str] = frozenset(),
        private: bool = False,
        hosts: tuple[str, ...] = (),
    ) -> None:
        self.urls, self.origins, self.users, self.found, self.arrived = (
            urls,
            origins,
            users,
            found,
            arrived,
        )
        self.first, self.named, self.private, self.hosts = first, named, private, hosts
        self.awaited = -1

    def by_origin(self) -> Mapping[str, Sequence[int]]:
        """Give the places of each server's objects, in order."""
        if self.origins and self.origins[0] and len(set(self.origins)) == 1:
            return {self.origins[0]: range(len(self.origins))}
        places: dict[str, list[int]] = {}
        for place, origin in enumerate(self.origins):
            if origin in places:
                places[origin].append(place)
            elif origin:
                places[origin] = [place]
        return places

    def request(self, place: int) -> Request:
        """Make the request for an object."""
        origin = self.origins[place]
        address = Address(self.urls[place], origin, self.users.get(place, ""))
        made = Request(
            address,
            _keep,
            named=self.named,
            private=self.private,
            hosts=self.hosts,
            order=self.first + place,
        )
        made.wanted, made.place = self, place
        return made

    def fail(self, fault: Fault) -> None:
        """Nothing more will come: say so in every place that waits."""
        self.found[:] = [fault if one is None else one for one in self.found]
        self.arrived()


def _keep(request: Request) -> None:
    """Put what became of an object into its place."""
    wanted, place, answer = request.wanted, request.place, request.answer
    if wanted is None:
        return
    if request.fault is not None:
        wanted.found[place] = request.fault
    else:
        wanted.found[place] = (
            Page(request.data) if answer is not None and answer.page else request.data
        )
        request.data = b""  # an idle handle holds its last request
    if place == wanted.awaited:
        wanted.arrived()
