"""The dialect of a CSV file: delimiter, header, quotes, nulls, decimal sign and encoding.

The user sets the dialect with `--csv KEY=VALUE`. If the encoding is not set, a file that begins
with a UTF-16 byte order mark is UTF-16, and every other file is UTF-8.

If the delimiter is not set, the file suffix determines it. In a `.csv` file, the delimiter may be a
semicolon, a tab or `|` instead of a comma. Detection checks the first records:

1. If the comma occurs equally often in all records, it is the delimiter.
2. Otherwise, a delimiter that occurs equally often in all records is used.
3. If there is none, and the header has no comma, a delimiter that occurs equally often in the
   header and in most records is used. The other records are later reported as errors.
4. Otherwise, the comma is the delimiter.

If several delimiters qualify in step 2 or 3, the delimiter that occurs most often in the header is
used.

Some spreadsheet programs write the delimiter in a line before the header, such as `sep=;`. This
line is not a row, and its delimiter is used.
"""

from __future__ import annotations

import codecs
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flarecli.arguments import check_pairs
from flarecli.errors import FormatError, UsageError
from flarecli.formats.tables.decompress import Blocks
from flarecli.formats.tables.text_records import BOM, records
from flarecli.names import escape
from flarecli.storage import Location
from flarecli.suggest import choose

__all__ = [
    "DEFAULT",
    "DELIMITERS",
    "Dialect",
    "decoded",
    "detect_delimiter",
    "detected",
    "first_bytes",
    "first_line",
    "without_quoted",
]

DELIMITERS = (",", ";", "\t", "|")
_HEAD_BYTES, _HEAD_RECORDS = 1 << 16, 50  # limits for detecting the delimiter
_SEP_LINE = re.compile(rb'(?i)"?sep=([,;|\t]?)"?[ \t]*(?:\r?\n|\r)')
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
_NAMED = {"tab": "\t", "\\t": "\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}
_YES_OR_NO = {"yes": True, "no": False}
_KEYS = ("delimiter", "header", "quote", "null", "decimal", "encoding")


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """Syntax of a CSV file.

    delimiter   one ASCII character; empty: detect the delimiter
    has_header  whether the first record contains the column names; if not, the columns are named
                `column_0`, `column_1` and so on. None: detect. The first record then contains
                values, not names, if all its fields are numbers and at least two fields are equal
    quote       one ASCII character that encloses fields; empty: fields are not quoted
    nulls       values that mean null in any column; an empty field in a number column is always
                null
    decimal     decimal sign: `.` or `,`
    encoding    name of a Python codec; empty: detect the encoding
    """

    delimiter: str = ""
    has_header: bool | None = None
    quote: str = '"'
    nulls: tuple[str, ...] = ()
    decimal: str = "."
    encoding: str = ""

    @classmethod
    def parse(cls, settings: Sequence[str]) -> Dialect:
        """Parse settings such as `delimiter=;`. Raises UsageError for an invalid setting."""
        found = cls()
        check_pairs("--csv", settings, 'csv=["delimiter=;", "header=no"]')
        for text in settings:
            key, equals, value = text.partition("=")
            if not equals or key not in _KEYS:
                problem = (
                    f"unknown key {key!r:.60}"
                    if equals
                    else f"expected KEY=VALUE, got {text!r:.60}"
                )
                raise UsageError(
                    f"--csv: {problem}", hint=choose(key, _KEYS, "Choose from the keys")
                )
            found = found._with(key, value)
        if found.decimal == found.delimiter:
            raise UsageError(f"--csv: {found.decimal!r} is both the decimal sign and the delimiter")
        if found.quote and found.quote == found.delimiter:
            raise UsageError(f"--csv: {found.quote!r} is both the quote and the delimiter")
        return found

    def check_used(self, is_used: bool, where: object) -> None:
        """Raise UsageError if the user set a dialect that is not used.

        is_used  whether the source has a CSV or TSV file
        """
        if self != DEFAULT and not is_used:
            raise UsageError("--csv: the source has no CSV or TSV file", where=where)

    def _with(self, key: str, value: str) -> Dialect:
        if key == "null":
            return replace(self, nulls=(*self.nulls, value))
        if key == "encoding":
            return replace(self, encoding=_codec(value))
        if key == "header":
            return replace(self, has_header=_YES_OR_NO[_choice(key, value, tuple(_YES_OR_NO))])
        if key == "decimal":
            return replace(self, decimal=_choice(key, value, (".", ",")))
        if key == "quote" and value in ("no", ""):
            return replace(self, quote="")
        value = _NAMED.get(value, value)
        if len(value) != 1 or not value.isascii() or value in "\0\r\n":
            raise UsageError(f"--csv {key}: expected one ASCII character, got {value!r:.60}")
        return replace(self, quote=value) if key == "quote" else replace(self, delimiter=value)


DEFAULT = Dialect()


def _choice(key: str, value: str, choices: Sequence[str]) -> str:
    if value not in choices:
        raise UsageError(f"--csv {key}: expected {' or '.join(choices)}, got {value!r:.60}")
    return value


def _codec(name: str) -> str:
    try:
        codec = codecs.lookup(name)
        is_text = isinstance(codec.incrementaldecoder().decode(b"", final=True), str)
    except (LookupError, TypeError, ValueError):
        is_text = False
    if not is_text:
        raise UsageError(f"--csv encoding: unknown encoding {escape(name)[:60]!r}")
    return codec.name


# -- detection


def detected(source: Blocks, dialect: Dialect, delimiter: str) -> tuple[Blocks, Dialect, bytes]:
    """Return the file as UTF-8, its dialect with the delimiter set, and its `sep=` line.

    The `sep=` line is empty if the file has no such line, or if the user set `header=no`.

    delimiter  default delimiter for the file suffix
    raises     FormatError for an empty file
    """
    head = first_bytes(source)
    if not head:
        raise FormatError("file is empty", where=source)
    source, head = decoded(source, head, dialect.encoding)
    head = head.removeprefix(BOM)
    line = None if dialect.has_header is False else _SEP_LINE.match(head)
    sep_line = line[0] if line else b""
    if not dialect.delimiter:
        head = head[len(sep_line) :]
        found = delimiter
        if line and line[1]:
            found = line[1].decode()
        elif delimiter == DELIMITERS[0]:
            found = detect_delimiter(head, dialect.quote, delimiter)
        dialect = replace(dialect, delimiter=found)
    return source, dialect, sep_line


def decoded(source: Blocks, head: bytes, encoding: str = "") -> tuple[Blocks, bytes]:
    """Return a file and its first bytes, both converted to UTF-8.

    encoding  encoding of the file; empty: UTF-16 if the file has a UTF-16 byte order mark
    """
    encoding = encoding or _UTF16.get(head[:2], "")
    if not encoding:
        return source, head
    decoder = codecs.getincrementaldecoder(encoding)("replace")
    return Recoded(source, encoding), decoder.decode(head).encode("utf-8", "replace")


def first_bytes(source: Blocks) -> bytes:
    """Return the first bytes of a file, which determine its kind, encoding and delimiter."""
    return next(iter(source.blocks()), b"")[:_HEAD_BYTES]


def first_line(head: bytes) -> bytes:
    """Return the first line that is not empty, without surrounding white space.

    head  first bytes of the file
    """
    return head.removeprefix(BOM).lstrip(b"\r\n").partition(b"\n")[0].strip()


def detect_delimiter(head: bytes, quote: str, default: str, strict: bool = False) -> str:
    """Return the delimiter that occurs equally often in all records of `head`, or `default`.

    head    first bytes of a file
    strict  if false, and the header does not contain `default`, the delimiter need only occur
            equally often in most records
    """
    lines: list[bytes] = []
    for _, start, end in records(head, quote):
        if len(lines) == _HEAD_RECORDS or (end == len(head) == _HEAD_BYTES):
            break  # the last record may be incomplete
        lines.append(without_quoted(head[start:end], quote))
    counts = {one: [line.count(one.encode()) for line in lines] for one in DELIMITERS}
    in_header = [one for one in DELIMITERS if lines and counts[one][0]]
    fitting = [one for one in in_header if len(set(counts[one])) == 1]
    if not fitting and not strict and default not in in_header:
        common = {one: counts[one].count(counts[one][0]) for one in in_header}
        fitting = [one for one in in_header if 2 * common[one] > len(lines)]
    if default in fitting or not fitting:
        return default
    return max(fitting, key=lambda one: counts[one][0])


def without_quoted(record: bytes, quote: str) -> bytes:
    """Return a record without its quoted fields."""
    sign = re.escape(quote.encode())
    return re.sub(sign + b"[^" + sign + b"]*" + sign, b"", record) if quote else record


@dataclass(frozen=True, slots=True)
class Recoded:
    """A text file in an encoding other than UTF-8. Reading the file converts its text to UTF-8."""

    source: Blocks
    encoding: str

    def __str__(self) -> str:
        return str(self.source)

    @property
    def location(self) -> Location | None:
        return self.source.location

    def blocks(self) -> Iterator[bytes]:
        """Yield the text as UTF-8. Raises FormatError for bytes that are not in the encoding."""
        decoder, done = codecs.getincrementaldecoder(self.encoding)(), 0
        blocks = ((block, False) for block in self.source.blocks())
        for block, is_end in itertools.chain(blocks, [(b"", True)]):
            try:
                yield decoder.decode(block, is_end).encode()
            except UnicodeError as error:
                start = done + (error.start if isinstance(error, UnicodeDecodeError) else 0)
                raise FormatError(
                    f"invalid {self.encoding} near byte {start}",
                    where=self,
                    hint="Set another encoding with --csv, such as --csv encoding=latin-1.",
                ) from None
            done += len(block)
