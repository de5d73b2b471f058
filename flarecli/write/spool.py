"""The spool: downloads that are not in a durable shard yet. A resumed pack uses them.

    OUT/.flare/fetched.00000 …

A spool file contains a line of JSON, then data blocks whose sizes the line lists, then the xxh3_128
of the line and the data blocks in hexadecimal digits:

    {"kind": "rows", "first": …, "next": …, "source": …, "failures": […], "batches": [[[row, …],
    size], …]}
        the rows of the selection from `first` to `next` - 1, one Arrow IPC message per batch
    {"kind": "links", "links": [[row, column, digest of the address, is_page, size], …]}
        downloads of later rows; see `FetchedLink`

A download is saved at most twice: alone, and later with its row. A spool file is deleted when its
rows are in shards that the journal lists. A spool file is ignored if it is damaged, if the source
was changed, or if rows are missing before its first row. The links of its rows are then downloaded
again.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from flarecli.errors import FlareError, MissingError
from flarecli.formats import find
from flarecli.hashes import DEFAULT, Sums, digest
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH
from flarecli.write.failures import Failure

if TYPE_CHECKING:
    from flarecli.model import IntArray
    from flarecli.write.writer import Writer

__all__ = ["FetchedLink", "Spool", "address_digest"]

SAVE_S = 30.0  # minimum interval between two saves
_MAX_FAILURES = 8192  # failures are saved when this many are in memory
_NAME = re.compile(r"fetched\.(\d{5,9})", re.ASCII)
_HEX = 32  # number of hexadecimal digits of the checksum


def address_digest(address: str) -> str:
    """Return a digest to store in place of an address, because addresses may contain secrets."""
    return digest(address.encode("utf-8", "surrogatepass"))


@dataclass(frozen=True, slots=True)
class FetchedLink:
    """The downloaded file of a link.

    row      position of the row in the selection
    link     index of the link column among all link columns
    address  digest of the link's address
    data     downloaded bytes, or a buffer of these bytes
    is_page  True if the server declared the downloaded bytes as HTML
    """

    row: int
    link: int
    address: str
    data: Any
    is_page: bool = False


class Spool:
    """The spool of one Writer.

    kept       (row, link) -> download of an interrupted pack; the fetcher removes used downloads
    arrived    function that returns the downloads of the rows that the Writer has not received yet
    until      position in the selection; all rows before this position have failed or are in the
               Writer
    is_remote  True if a link is remote; without remote links, rows are saved only if many rows have
               failed
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        writer.keeps_rows = writer.failed.keeps_rows = True
        self._at = writer.target.at
        # number of each spool file -> position of its last row in the selection, plus 1
        self._files: dict[int, int] = {}
        self._number = 0
        self._next = self.until = writer.next  # rows before `_next` are in shards or spool files
        self._links: set[tuple[int, int]] = set()  # (row, link) of each download in a spool file
        self.kept: dict[tuple[int, int], FetchedLink] = {}
        self.arrived: Callable[[], Iterable[FetchedLink]] = tuple
        self.is_remote = False
        self._due = time.monotonic() + SAVE_S

    def _file(self, number: int) -> Location:
        return self._at / f"{SCRATCH}/fetched.{number:05d}"

    # -- reading

    def restore(self, links: int) -> int:
        """Read the spool files of an interrupted pack; return the number of restored rows.

        Spool files contain rows, and downloads of later rows. The rows are passed to the Writer,
        and `until` becomes the position after these rows. The downloads are added to `kept`. A
        later row counts as restored if all of its downloads are in `kept`.

        links  number of link columns
        """
        names: list[str] = []
        with contextlib.suppress(MissingError):
            names = [entry.name for entry in (self._at / SCRATCH).list()]
        numbers = sorted(int(match[1]) for name in names if (match := _NAME.fullmatch(name)))
        rows = 0
        for number in numbers:
            self._number = number + 1
            rows += self._restore_file(number)
        if numbers:
            self._writer.journal.is_kept = True
        self._next = self.until
        self._drop(numbers)
        return rows + self._complete_rows(self.until, links)

    def _restore_file(self, number: int) -> int:
        try:
            head, body = _parsed(memoryview(self._file(number).read()))
            if head["kind"] == "links":
                self._keep_links(number, list(_links(head["links"], body)))
                return 0
            first, stop = int(head["first"]), int(head["next"])
            batches = list(_batches(self._writer, head["batches"], body, first, stop))
            failures = [Failure(**one) for one in head["failures"]]
        except (FlareError, pa.ArrowException, ValueError, KeyError, TypeError, IndexError):
            return 0  # the file is damaged, or another version of flare wrote it
        if not (first <= self.until < stop and self._writer.journal.source_matches(head["source"])):
            return 0
        rows = 0
        for failure in failures:
            if failure.row >= self.until:
                self._writer.failed.add(failure)
        for batch, places in batches:
            start = int(np.searchsorted(places, self.until))
            if start < len(places):
                self._writer.write_typed(batch.slice(start), places[start:])
                rows += len(places) - start
        self.until = stop
        self._files[number] = self.until
        return rows

    def _keep_links(self, number: int, links: Sequence[FetchedLink]) -> None:
        self.kept.update({(one.row, one.link): one for one in links})
        self._links.update((one.row, one.link) for one in links)
        self._files[number] = max(one.row for one in links) + 1

    def _drop(self, numbers: Iterable[int]) -> None:
        """Delete the spool files with these numbers, except for files that are still needed."""
        for number in numbers:
            if number not in self._files:
                self._file(number).delete()

    # -- writing

    def save(self, now: bool = False) -> None:
        """Save the rows and downloads that are in no spool file and in no durable shard.

        If fewer than _MAX_FAILURES failures are in memory, nothing is saved in two cases: no link
        is remote, or `now` is False and the last save was less than SAVE_S seconds ago.
        """
        is_due = self.is_remote and (now or time.monotonic() >= self._due)
        has_many_failures = len(self._writer.failed.unrecorded) >= _MAX_FAILURES
        if not is_due and not has_many_failures:
            return
        self._next = max(self._next, self._writer.next)
        rows = [one for one in self._writer.unrecorded if one[1][0] >= self._next]
        if rows or has_many_failures:
            self._save_rows(rows)
        links = [
            one
            for one in self.arrived()
            if one.row >= self._next and (one.row, one.link) not in self._links
        ]
        if links:
            self._save_links(links)
        files = self._files
        self._files = {n: until for n, until in files.items() if until > self._writer.next}
        self._drop(files)
        self._due = time.monotonic() + SAVE_S

    def saved_rows(self, links: int) -> int:
        """Return the number of rows that are complete in spool files, but in no durable shard.

        A row is complete if all of its downloads are in spool files.

        links  number of link columns
        """
        first = self._writer.next
        places = [rows for _, rows in self._writer.unrecorded]
        written = sum(int(((first <= rows) & (rows < self._next)).sum()) for rows in places)
        return written + self._complete_rows(max(first, self._next), links)

    def _complete_rows(self, first: int, links: int) -> int:
        """Return the number of rows at or after `first` whose downloads are all in spool files.

        links  number of links per row
        """
        counts = Counter(row for row, _ in self._links if row >= first)
        return sum(count == links for count in counts.values())

    def _save_rows(self, rows: Sequence[tuple[pa.RecordBatch, IntArray]]) -> None:
        first, stop = self._next, int(rows[-1][1][-1]) + 1 if rows else self.until
        buffers = [batch.serialize() for batch, _ in rows]
        failures = [one for one in self._writer.failed.unrecorded if first <= one.row < stop]
        head = {
            "kind": "rows",
            "first": first,
            "next": stop,
            "source": self._writer.journal.source_state(),
            "failures": [asdict(one.redacted()) for one in failures],
            "batches": [
                [places.tolist(), data.size]
                for (_, places), data in zip(rows, buffers, strict=True)
            ],
        }
        self._write(head, buffers, stop)
        self._next = stop
        self._writer.failed.forget(stop)

    def _save_links(self, links: Sequence[FetchedLink]) -> None:
        entries = [[one.row, one.link, one.address, one.is_page, len(one.data)] for one in links]
        head = {"kind": "links", "links": entries}
        self._write(head, [one.data for one in links], max(one.row for one in links) + 1)
        self._links.update((one.row, one.link) for one in links)

    def _write(self, head: dict[str, Any], parts: Iterable[Any], until: int) -> None:
        self._writer.journal.is_kept = True
        self._file(self._number).write(_summed(head, parts))
        self._files[self._number] = until
        self._number += 1


def _summed(head: dict[str, Any], parts: Iterable[Any]) -> Iterator[bytes | memoryview]:
    sums = Sums([DEFAULT])
    line = (json.dumps(head) + "\n").encode()
    for one in itertools.chain([line], parts):
        part: memoryview[int] = memoryview(one)
        sums.update(part)
        yield part
    yield sums.hex()[DEFAULT].encode()


def _parsed(data: memoryview) -> tuple[Any, memoryview]:
    """Return the parsed JSON line of a spool file, and the bytes of the data blocks.

    raises  ValueError for an invalid file
    """
    body, checksum = data[:-_HEX], bytes(data[-_HEX:])
    if len(data) < _HEX or digest(body).encode() != checksum:
        raise ValueError("checksum mismatch")
    end = bytes(body[: 1 << 26]).find(b"\n") + 1
    return json.loads(bytes(body[:end])), body[end:]


def _cut(entries: Iterable[Any], body: memoryview) -> Iterator[tuple[Any, bytes]]:
    at = 0
    for entry in entries:
        yield entry, bytes(body[at : at + entry[-1]])
        at += entry[-1]


def _links(entries: Iterable[Any], body: memoryview) -> Iterator[FetchedLink]:
    for (row, link, address, is_page, _), data in _cut(entries, body):
        yield FetchedLink(int(row), int(link), str(address), data, bool(is_page))


def _batches(
    writer: Writer, entries: Iterable[Any], body: memoryview, first: int, stop: int
) -> Iterator[tuple[pa.RecordBatch, IntArray]]:
    schema = writer.stored_schema
    for (places, _), data in _cut(entries, body):
        batch = pa.ipc.read_record_batch(pa.py_buffer(data), schema)
        batch.validate(full=True)
        rows = np.array(places, np.int64)
        if len(rows) != batch.num_rows or not ((first <= rows) & (rows < stop)).all():
            raise ValueError("the row numbers do not match the batch")
        if (rows[1:] <= rows[:-1]).any():
            raise ValueError("the row numbers do not increase")
        if not find(writer.format).holds_null and any(one.null_count for one in batch.columns):
            raise ValueError("a column contains nulls")
        first = int(rows[-1]) + 1 if len(rows) else first
        yield batch, rows
