"""What the rows of an index point at, and asking for it: before any of it is waited for.

Rows of any index may name public addresses; private ones need an option. Rows of a local index may also name files in its
folder and buckets, which are read with the user's credentials.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

import pyarrow as pa

from flarecli.errors import FlareError, UnsafeError
from flarecli.names import is_url
from flarecli.redact import redact, redact_text
from flarecli.storage import Guard, Limits, Location, bucket_in
from flarecli.storage.http.engine import Engine, Fault, Page, Wanted
from flarecli.storage.http.url import Address, parse
from flarecli.write.link_texts import texts_of
from flarecli.write.spool import FetchedLink, address_digest

__all__ = ["Asker", "Flaw", "Found", "Link", "Slice"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_WEB = re.compile(r" *https?:", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Link:
    """A column of addresses, and the column that its bytes become; the encoding if it was given."""

    source: str
    name: str
    encoding: str | None = None


@dataclass(frozen=True, slots=True)
class Flaw:
    """Why a link gives no value."""

    kind: str
    reason: str
    hint: str = ""


Found: TypeAlias = (
    "bytes | FetchedLink | Page | Fault | Flaw | Location | Future[bytes | Flaw | None] | None"
)


@dataclass(frozen=True, slots=True)
class Slice:
    """Rows on their way.

    texts        of each link the addresses of all rows
    found        what became of them, row after row and in each row link after link; None: it is still on its way
    wanted       what is asked for over HTTP
    has_objects  whether any is an object of a bucket
    """

    batch: pa.RecordBatch
    first: int
    texts: Sequence[Sequence[str | None]]
    found: list[Found]
    wanted: Wanted
    has_objects: bool


class Asker:
    """Finds out what links point at, and asks for it; `arrived` is called when what is awaited is there.

    asked    links asked for over HTTP
    buckets  those that rows of a local index name; True for those already reported
    """

    def __init__(
        self,
        links: Sequence[Link],
        at: Location,
        guard: Guard,
        limits: Limits,
        arrived: Callable[[], object],
        kept: dict[tuple[int, int], FetchedLink] | None = None,
    ) -> None:
        self._kept = kept or {}
        self._links, self._at, self._guard, self._limits, self._arrived = (
            links,
            at,
            guard,
            limits,
            arrived,
        )
        self._named, self._is_local = at.store.guard.named | guard.named, at.is_local
        self.buckets: dict[str, bool] = {}
        self.engine: Engine | None = None
        self.asked = self._order = 0  # `_order`: of the next row's first link

    def begin(self, batch: pa.RecordBatch, first: int) -> Slice:
        """Ask for what the rows of a slice point at."""
        texts = [texts_of(batch, link.source) for link in self._links]
        flat = (
            texts[0]
            if len(texts) == 1
            else [text for row in zip(*texts, strict=True) for text in row]
        )
        found: list[Found] = [None] * len(flat)
        users: dict[int, str] = {}
        has_objects = False
        urls, origins = [""] * len(flat), [""] * len(flat)
        for place, text in enumerate(flat):
            target = self._target(text, self._links[place % len(self._links)])
            if not isinstance(target, Address):
                found[place] = target
                has_objects = has_objects or (isinstance(target, Location) and not target.is_local)
                continue
            urls[place], origins[place], user = target
            if user:
                users[place] = user
        if self._kept:
            for place in self._place_kept(flat, found, first):
                urls[place] = origins[place] = ""
        wanted = Wanted(
            urls,
            origins,
            users,
            found,
            self._arrived,
            first=self._order,
            named=self._named,
            private=self._guard.allow_private,
            hosts=self._guard.allow_hosts,
        )
        self._order += len(flat)
        asked = found.count(None)
        if asked:
            if self.engine is None:
                self.engine = Engine(self._limits, self._limits.ahead_bytes)
            self.engine.want(wanted)
            self.asked += asked
        return Slice(batch, first, texts, found, wanted, has_objects)

    def _place_kept(
        self, texts: Sequence[str | None], found: list[Found], first: int
    ) -> Iterator[int]:
        """Put what an earlier run fetched in its places, and yield those."""
        for place, text in enumerate(texts):
            row, link = divmod(place, len(self._links))
            kept = self._kept.pop((first + row, link), None)
            if kept is None or isinstance(found[place], Flaw) or not text:
                continue
            if kept.address == address_digest(text):
                found[place] = kept
                yield place

    def _target(self, text: str | None, link: Link) -> Address | Location | Flaw:
        if not text:
            return Flaw("null", f"{link.source} is {'null' if text is None else 'empty'}")
        try:
            if not text.isascii():
                text.encode()
            return self._place(text)
        except UnicodeEncodeError:
            return Flaw("value", f"{link.source} is not UTF-8")
        except FlareError as error:  # the folder of the index is not what is wrong
            return Flaw(
                error.kind,
                redact_text(
                    error.message
                    if error.address in ("", str(self._at))
                    else f"{redact(text)}: {error.message}"
                ),
                error.hint,
            )

    def _place(self, text: str) -> Address | Location:
        if text.startswith(("http://", "https://")) or _WEB.match(text):
            return parse(text)
        if (
            self._is_local
            and not is_url(text)
            and _SCHEME.match(text)
            and not text.lower().startswith("file:")
        ):
            raise UnsafeError(f"{text.partition(':')[0]}: is not an address that flare reads")
        found = self._at.join(text)
        if self._is_local and not found.is_local and (home := bucket_in(text)):
            self.buckets.setdefault(home, False)
        if (
            self._is_local or found.is_local or not _WEB.match(str(found))
        ):  # a key of a bucket may look like an address
            return found
        return parse(found.path)
