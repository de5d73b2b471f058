"""Lists of indexes, such as `split_file_paths.txt`: one address per line, in order.

Blank lines and lines that start with `#` are ignored. Relative addresses start at the folder of the
list, and are checked like all addresses from data. A list may contain lists, up to a depth of 4,
but not itself. Braces and wildcards are expanded in bytewise order, unless a file has that exact
name.
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

__all__ = ["LIST", "ListedFile", "expand_lists"]

LIST = ".txt"
MAX_DEPTH = 4  # of nested lists
MAX_FILES = 1 << 20  # in all nested lists


class ListedFile(NamedTuple):
    """An index file, with the list and line that contain it; `by` is None if the user file it."""

    at: Location
    by: Location | None = None
    line: int = 0

    def with_source(self, error: FlareError) -> FlareError:
        """Return an error of this file with a hint that names the list."""
        if self.by is None:
            return error
        return error.changed(
            hint=f"It is listed in line {self.line} of {self.by}. {error.hint}".rstrip()
        )


def expand_lists(file: ListedFile, parents: tuple[Location, ...] = ()) -> Iterator[ListedFile]:
    """Yield the index files of an address: itself, or those of a list and the lists in it.

    raises  FormatError with list and line for a list that contains itself, is nested too deeply, or
            is empty; UnsafeError for an address that data must not name
    """
    at = file.at
    if not at.name.lower().endswith(LIST):
        yield file
        return
    if at in parents:
        raise FormatError(
            f"line {file.line}: the list {at} contains itself",
            where=file.by or at,
            hint="Remove that line.",
        )
    if len(parents) >= MAX_DEPTH:
        raise FormatError(
            f"line {file.line}: lists are nested more than {MAX_DEPTH} deep", where=file.by or at
        )
    count = 0
    try:
        for line in _lines(at):
            for found in expand_lists(line, (*parents, at)):
                count += 1
                if count > MAX_FILES:
                    raise FormatError(f"more than {MAX_FILES} files in lists", where=at)
                yield found
    except FlareError as error:
        raise file.with_source(error) from None
    if not count:
        raise FormatError("the list contains no addresses", where=at)


def _lines(at: Location) -> Iterator[ListedFile]:
    folder = at.folder
    for piece in pieces(Text(at), ""):
        for number, line in enumerate(piece.data.decode().split("\n"), piece.line):
            address = line.strip()
            if not address or address.startswith("#"):
                continue
            while address.startswith("./"):
                address = address[2:].lstrip("/")
            try:
                yield from (ListedFile(place, at, number) for place in _locations(folder, address))
            except FlareError as error:
                raise error.changed(
                    message=f"line {number}: {error.message}", address=str(at), row=None
                ) from None


def _locations(folder: Location, address: str) -> Iterator[Location]:
    """Yield the locations that a line names: itself, or all files that match."""
    if not any(sign in address for sign in "{" + WILDCARDS) or (
        not is_url(address) and folder.is_local and folder.join(address).exists()
    ):
        yield folder.join(address)
        return
    for expanded in expand_braces(address):
        is_web = scheme_of(str(folder.join(expanded))) in ("http", "https")
        if not any(sign in expanded for sign in ("*" if is_web else WILDCARDS)):
            yield folder.join(expanded)
        elif is_web:
            raise UsageError(
                "an http address cannot be listed",
                hint="Name the files, or use braces such as {00000..00127}.",
            )
        else:
            yield from _matching(folder, expanded)


def _matching(folder: Location, address: str) -> Iterator[Location]:
    head, parts = split_pattern(address)
    at, is_there = folder.join(head) if head else folder, False
    with suppress(MissingError):  # the folder does not exist
        for name in at.matching(parts):
            is_there = True
            yield at / name
    if not is_there:
        raise MissingError(f"nothing matches {redact(address)!r}")
