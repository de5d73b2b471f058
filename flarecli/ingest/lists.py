"""Lists of indexes, such as `split_file_paths.txt`: one address a line, in the order they are written.

Blank lines, and lines that begin with `#`, say nothing. Relative addresses start at the list; what a list may name is
what any data may name there. A list may name lists, a few deep, but none that leads back to itself. Braces and wildcards
in a line stand for what matches, in bytewise order; a name that is there is a name, whatever signs it holds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from flarecli.braces import WILDCARDS, expand_braces, split_pattern
from flarecli.errors import FlareError, FormatError, MissingError, UsageError
from flarecli.ingest.decompress import Text
from flarecli.ingest.text_records import pieces
from flarecli.names import is_url, scheme_of
from flarecli.redact import redact
from flarecli.storage import Location

__all__ = ["LIST", "Named", "listed"]

LIST = ".txt"
_DEEP = 4  # lists in lists
_MOST = 1 << 20  # addresses, in all of them


class Named(NamedTuple):
    """One index file, and what named it: the list and the line, None for what the user named."""

    at: Location
    by: Location | None = None
    line: int = 0

    def refusal(self, error: FlareError) -> FlareError:
        """Give an error of this file with the list that named it."""
        if self.by is None:
            return error
        return error.changed(hint=f"Line {self.line} of {self.by} names it. {error.hint}".rstrip())


def listed(named: Named, above: tuple[Location, ...] = ()) -> Iterator[Named]:
    """Give the index files that an address stands for: itself, or what a list names, and lists in it.

    raises  FormatError naming list and line for a list that leads back to itself, lies too deep, or names nothing;
            UnsafeError for an address that data may not name
    """
    at = named.at
    if not at.name.lower().endswith(LIST):
        yield named
        return
    if at in above:
        raise FormatError(
            f"line {named.line}: the list {at} leads back to itself",
            where=named.by or at,
            hint="Take that line out.",
        )
    if len(above) >= _DEEP:
        raise FormatError(
            f"line {named.line}: lists in lists, more than {_DEEP} deep", where=named.by or at
        )
    count = 0
    try:
        for one in _named(at):
            for found in listed(one, (*above, at)):
                count += 1
                if count > _MOST:
                    raise FormatError(f"names more than {_MOST} files", where=at)
                yield found
    except FlareError as error:
        raise named.refusal(error) from None
    if not count:
        raise FormatError("the list names nothing", where=at)


def _named(at: Location) -> Iterator[Named]:
    folder = at.folder
    for piece in pieces(Text(at), ""):
        for number, line in enumerate(piece.data.decode().split("\n"), piece.line):
            address = line.strip()
            if not address or address.startswith("#"):
                continue
            while address.startswith("./"):
                address = address[2:].lstrip("/")
            try:
                yield from (Named(place, at, number) for place in _places(folder, address))
            except FlareError as error:
                raise error.changed(
                    message=f"line {number}: {error.message}", address=str(at), row=None
                ) from None


def _places(folder: Location, address: str) -> Iterator[Location]:
    """Give what a line stands for: itself, or what matches."""
    if not any(sign in address for sign in "{" + WILDCARDS) or (
        not is_url(address) and folder.is_local and folder.join(address).exists()
    ):
        yield folder.join(address)
        return
    for one in expand_braces(address):
        is_web = scheme_of(str(folder.join(one))) in ("http", "https")
        if not any(sign in one for sign in ("*" if is_web else WILDCARDS)):
            yield folder.join(one)
        elif is_web:
            raise UsageError(
                "an http address cannot be listed",
                hint="Name the files, or use braces such as {00000..00127}.",
            )
        else:
            yield from _matching(folder, one)


def _matching(folder: Location, address: str) -> Iterator[Location]:
    head, parts = split_pattern(address)
    at, is_there = folder.join(head) if head else folder, False
    with suppress(MissingError):  # no such folder
        for name in at.matching(parts):
            is_there = True
            yield at / name
    if not is_there:
        raise MissingError(f"nothing matches {redact(address)!r}")
