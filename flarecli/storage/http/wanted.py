"""Many whole objects that are wanted in their order: addresses and outcomes in columns, and a `Request` only for what is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from flarecli.storage.http.request import Request
from flarecli.storage.http.response import Fault
from flarecli.storage.http.url import Address

__all__ = ["Page", "Wanted"]


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
