"""Lists of tables: recognize the names of index files, and expand lists.

A `.txt` file is a table if its first line contains a tab. It is also a table if a delimiter occurs
equally often in each of the first lines, unless the first line starts with `#` or ends with the
extension of a table. Any other `.txt` file is a list.

A list, such as `split_file_paths.txt`, has one address per line. Blank lines and lines that start
with `#` are ignored. Relative addresses are relative to the folder of the list. The access rules
for addresses in data apply to all addresses. A list may contain other lists, up to a depth of 4.
The files that match a wildcard are in bytewise order. A pattern with braces or wildcards is not
expanded if a file has exactly this name.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from flarecli.braces import WILDCARDS, expand_braces, split_pattern
from flarecli.errors import FlareError, FormatError, MissingError, UsageError
from flarecli.formats.tables.decompress import Blocks, TextFile
from flarecli.formats.tables.dialect import (
    DEFAULT,
    Dialect,
    decoded,
    detect_delimiter,
    first_bytes,
    first_line,
)
from flarecli.formats.tables.registry import is_table
from flarecli.formats.tables.text_records import pieces
from flarecli.names import is_url, scheme_of
from flarecli.redact import redact
from flarecli.storage import STDIN, Location

__all__ = ["ListedFile", "expand_lists", "is_index", "is_named_table", "text_lines"]

MAX_DEPTH = 4  # maximum depth of nested lists
MAX_FILES = 1 << 20  # maximum number of files in a list and its nested lists
_LIST = ".txt"


def is_index(address: str) -> bool:
    """Return whether an address is named like an index: a table, a list of tables, or `-`."""
    return address == STDIN or (not os.path.isdir(address) and _is_named_like_index(address))


def _is_named_like_index(address: str) -> bool:
    return is_named_table(address) or _name(address).endswith(_LIST)


def is_named_table(address: str) -> bool:
    """Return whether an address is named like a table; a `.txt` file is not."""
    return is_table(_name(address))


def _name(address: str) -> str:
    return address.partition("?")[0].rpartition("/")[2].lower()


# -- lists


class ListedFile(NamedTuple):
    """An index file, and the list and line that contain its address.

    named_by  the list; None if the user named the file
    """

    at: Location
    named_by: Location | None = None
    line: int = 0

    def __str__(self) -> str:
        return str(self.at)

    def with_source(self, error: FlareError) -> FlareError:
        """Return an error about this file, with the list and line added to its hint."""
        if self.named_by is None:
            return error
        hint = f"The file is listed in line {self.line} of {self.named_by}. {error.hint}"
        return error.changed(hint=hint.rstrip())


def expand_lists(
    file: ListedFile, dialect: Dialect = DEFAULT, parents: tuple[Location, ...] = ()
) -> Iterator[ListedFile]:
    """Yield the file, or if it is a list, all files in the list and in its nested lists.

    dialect  dialect of the file, if it is a table
    raises   FormatError with list and line for a list that is empty, nested too deeply, or contains
             itself; UnsafeError for an address that is not allowed in data
    """
    at = file.at
    if not at.name.lower().endswith(_LIST) or _has_rows(TextFile(at), dialect):
        yield file
        return
    if at in parents:
        raise FormatError(
            f"line {file.line}: the list {at} contains itself",
            where=file.named_by or at,
            hint="Remove the line.",
        )
    if len(parents) >= MAX_DEPTH:
        raise FormatError(
            f"line {file.line}: lists are nested more than {MAX_DEPTH} levels deep",
            where=file.named_by or at,
        )
    count = 0
    try:
        for listed in _listed_files(at):
            for expanded in expand_lists(listed, dialect, (*parents, at)):
                count += 1
                if count > MAX_FILES:
                    raise FormatError(f"the lists contain more than {MAX_FILES} files", where=at)
                yield expanded
    except FlareError as error:
        raise file.with_source(error) from None
    if not count:
        raise FormatError("the list contains no addresses", where=at)


def _has_rows(source: TextFile, dialect: Dialect) -> bool:
    """Return whether a text file is a table, and not a list of addresses."""
    _, head = decoded(source, first_bytes(source), dialect.encoding)
    line = first_line(head)
    if b"\t" in line:
        return True
    text = line.decode("utf-8", "replace")
    # the text after a question mark is checked too, because the question mark may be a wildcard
    if line.startswith(b"#") or any(map(_is_named_like_index, (text, text.rpartition("?")[2]))):
        return False
    if dialect.delimiter:
        return dialect.delimiter.encode() in line
    return bool(detect_delimiter(head, dialect.quote, "", strict=True))


def _listed_files(at: Location) -> Iterator[ListedFile]:
    for number, line in enumerate(text_lines(TextFile(at)), 1):
        address = line.strip()
        if not address or address.startswith("#"):
            continue
        while address.startswith("./"):
            address = address[2:].lstrip("/")
        try:
            for location in _expand_address(at.folder, address):
                yield ListedFile(location, at, number)
        except FlareError as error:
            message = f"line {number}: {error.message}"
            raise error.changed(message=message, address=str(at), row=None) from None


def text_lines(source: Blocks) -> Iterator[str]:
    """Yield the lines of a text file in UTF-8 or UTF-16, without newlines.

    raises  FormatError with the line for invalid text, a NUL, or a line of more than 64 MB
    """
    source, _ = decoded(source, first_bytes(source))
    for piece in pieces(source, ""):
        yield from map(bytes.decode, piece.data.splitlines())


def _expand_address(folder: Location, address: str) -> Iterator[Location]:
    """Yield the location that a line names, or all files that match the pattern in the line."""
    has_pattern = any(sign in address for sign in "{" + WILDCARDS)
    if not has_pattern or (
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
                "files on a web server cannot be listed",
                hint="Pass the address of each file, or use braces such as {00000..00127}.",
            )
        else:
            yield from _matching_files(folder, expanded)


def _matching_files(folder: Location, address: str) -> Iterator[Location]:
    head, parts = split_pattern(address)
    base = folder.join(head) if head else folder
    has_match = False
    with suppress(MissingError):  # the folder does not exist
        for name in base.matching(parts):
            has_match = True
            yield base / name
    if not has_match:
        raise MissingError(f"nothing matches {redact(address)!r}")
