"""unpack: shards to files; of an index, its files downloaded.

rows -> where, limit -> links fetched ahead, in order -> names, checked -> files -> an index of the small columns
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from flarecli import __version__
from flarecli.arguments import address_text, address_texts, from_options, name_list
from flarecli.commands.options import UnpackOptions
from flarecli.commands.packing.plan import parse_link
from flarecli.commands.provenance import Places
from flarecli.commands.row_order import check_names
from flarecli.commands.unpacking.filenames import ADDRESS, ROW, Naming, Taken, guessed_key, pieces
from flarecli.commands.unpacking.index import plain
from flarecli.commands.unpacking.source import At, Origin, open_origin
from flarecli.commands.unpacking.target import Folder, Outlet, Tar, There
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.formats import facts
from flarecli.hashes import DEFAULT
from flarecli.model import IntArray
from flarecli.progress import Progress
from flarecli.storage import Guard
from flarecli.write import FAILED, Failure, fetch_links, within_limit
from flarecli.write.failures import error_of

__all__ = ["Unpacked", "unpack"]

_DIGITS = 6  # of a row's number in a name, at least
_FINISHED = "nothing to resume: it is finished"
_SKIP = "Give --on-error skip to leave such rows out and list them in failed.jsonl."


@dataclass(frozen=True, slots=True)
class Unpacked:
    """What an unpack did: files and bytes written or kept, rows they are of, rows that failed; `index` lists them."""

    files: int
    bytes: int
    rows: int
    failed: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    index: str | None = None
    resumed_rows: int = 0

    def as_json(self) -> dict[str, Any]:
        """Give the result as plain values, for --json."""
        return asdict(self)


class _Part(NamedTuple):
    """Rows to write, with the place of each in the selection, rows that failed, and the place up to which that is all."""

    batch: pa.RecordBatch
    places: IntArray
    failures: Sequence[Failure]
    until: int


@from_options(UnpackOptions)
def unpack(options: UnpackOptions) -> Unpacked:
    """Write the files of a dataset's rows, or download those that an index links to, and list them.

    Columns of bytes become files; those of numbers and text go to the index. If all columns are
    text, they become files. Names are checked before anything is written; of remote rows, before
    each batch is. `out` is a folder that is empty or does not exist, or `-`: a tar on `stream`
    (default: stdout). Errors are UsageError, ReachError, FormatError and UnsafeError, each with
    its exit code.
    """
    sources, out = address_texts(options.sources), address_text(options.out)
    guard, progress = options.guard(sources), options.progress or Progress()
    if out == "-" and (options.resume or options.overwrite):
        raise UsageError("a stream cannot be resumed or overwritten", hint="Name a folder.")
    columns = None if options.columns is None else name_list(options.columns)
    key, index = options.key, options.index
    wanted = [parse_link(one, {}) for one in name_list(options.fetch)]
    texts = {*([key] if key else []), *(link.source for link in wanted)}
    source = open_origin(
        sources,
        options.format,
        options.streams,
        options.rows,
        options.where,
        options.limit,
        guard,
        texts,
        progress,
    )
    work = _Work(source, wanted, columns, guard, progress, options)
    if out == "-":
        work.check_names()
        return work.run(Tar(options.stream or sys.stdout.buffer))
    head = {
        "verb": "unpack",
        "flare": __version__,
        "source": {"address": source.named.text, DEFAULT: source.sum()},
        "options": _recorded(options, columns),
    }
    folder = Folder(
        out, head, resume=options.resume, overwrite=options.overwrite, is_bare=index == "none"
    )
    if folder.is_bare:
        if wanted:
            hint = "Name another folder: without an index nothing tells whether all that the links point at is there."
            raise UsageError("the folder is not empty", where=folder.shown, hint=hint)
        work.check_names()
        done = work.run(There(folder.shown))
        progress.note(_FINISHED)
        return replace(done, resumed_rows=done.rows)
    if folder.is_done:
        there = folder.rows + folder.failed
        if source.rows is not None and source.rows != there:
            hint = "Give --overwrite to replace it, or name another folder."
            raise UsageError(
                f"a finished unpack of {there} rows is there, {source.rows} are asked for",
                where=folder.shown,
                hint=hint,
            )
        progress.note(_FINISHED)
        return Unpacked(
            folder.files,
            folder.bytes,
            folder.rows,
            folder.failed,
            index=folder.index,
            resumed_rows=folder.rows,
        )
    try:
        work.check_names()
    except BaseException:
        folder.abandon()
        raise
    return work.run(folder)


def _recorded(options: UnpackOptions, columns: Sequence[str] | None) -> dict[str, Any]:
    """Return the options that a resumed unpack must repeat."""
    return {
        "format": options.format,
        "streams": list(options.streams),
        "columns": columns,
        "rows": options.rows,
        "where": options.where,
        "limit": options.limit,
        "key": options.key,
        "fetch": list(options.fetch),
        "name": options.name,
        "index": options.index,
        "on_error": options.on_error,
    }


class _Work:
    """One unpack: what becomes files, what goes to the index, and how both are called."""

    def __init__(
        self,
        source: Origin,
        links: Sequence[fetch_links.Link],
        columns: Sequence[str] | None,
        guard: Guard,
        progress: Progress,
        options: UnpackOptions,
    ) -> None:
        self.source, self.links, self.on_error, self.index = (
            source,
            links,
            options.on_error,
            options.index,
        )
        self.guard, self.limits, self.progress = guard, options.limits(), progress
        key, pattern, index = options.key, options.name, options.index
        schema = source.schema
        check_names(schema.names, [*(link.source for link in links), *([key] if key else [])])
        renamed = {link.source: link.name for link in links}
        if key in renamed:
            raise UsageError(
                f"column {key!r} holds addresses, which --fetch takes: they name no files",
                hint="Give --key another column.",
                column=key,
            )
        after = [renamed.get(name, name) for name in schema.names]
        check_names(after, columns or ())
        wanted = after if columns is None else list(dict.fromkeys(columns))
        origin = dict(zip(after, schema.names, strict=True))
        binary = [
            name
            for name in wanted
            if name in renamed.values() or _is_bytes(schema.field(origin[name]).type)
        ]
        if key is None:
            key = facts(source.format).default_key or guessed_key(schema)
        self.files = binary or [
            name for name in wanted if name != key and _is_text(schema.field(origin[name]).type)
        ]
        if not self.files:
            hint = (
                "Name the column of links with --fetch."
                if source.format == "index"
                else "Name columns of bytes or text with -c."
            )
            if (
                source.format != "index"
                and key is not None
                and key in wanted
                and _is_text(schema.field(origin[key]).type)
            ):
                hint = f"Column {key!r} names the files: name other columns of bytes or text with -c, or another one with --key."
            raise UsageError("no column to write as files", where=source.address, hint=hint)
        self.key, self.places, self.where = key, Places(source.place, ROW), partial(At, source)
        digits = max(_DIGITS, len(str(max(0, (source.rows or 0) - 1))))
        is_files = pattern is None and facts(source.format).is_plain
        self.naming = Naming(
            "{name}" if is_files else pattern,
            key,
            pa.schema([one for one in schema if one.name not in renamed]),
            self.files,
            digits,
        )
        self.taken = Taken(self.naming, (".flare", FAILED, f"index.{index}"), len(self.files))
        small = [name for name in wanted if name not in self.files]
        self.small = [
            *([key] if key and key not in small and key not in self.files else []),
            *small,
        ]
        self.read = [
            name
            for name in schema.names
            if renamed.get(name, name) in {*self.files, *self.small, *self.naming.columns}
        ]
        fields = [
            pa.field(name, pa.string()) if name in self.files else schema.field(origin[name])
            for name in (*self.small, *self.files)
        ]
        self.fields = [
            *([] if key else [pa.field("row", pa.int64())]),
            *sorted(fields, key=lambda one: after.index(one.name)),
        ]

    def check_names(self) -> None:
        """Go through all names before the first file, where reading twice is cheap."""
        if self.source.rereads and not self.naming.is_unique:
            for batch in self.source.batches(self.naming.columns, 0):
                self.taken.add(self._nameable(batch, {}), self.where)

    def run(self, outlet: Outlet) -> Unpacked:
        """Write everything; what is written so far stays for a resume if that ends early."""
        self.progress.start("unpack", self.source.rows)
        resumed = outlet.rows
        try:
            with closing(self._parts(outlet.next)) as parts:
                for part in parts:
                    self._write(self._limited(part), outlet)
            if not outlet.next:
                raise FormatError("no rows to unpack", where=self.source.address)
            failed = dict(outlet.reasons)
            path = outlet.finish(self.index, self.fields)
        except BaseException:
            outlet.abandon()
            raise
        finally:
            self.progress.close()
        return Unpacked(
            outlet.files, outlet.bytes, outlet.rows, sum(failed.values()), failed, path, resumed
        )

    def _limited(self, part: _Part) -> _Part:
        most = self.limits.max_bytes
        batch, places, large = within_limit(part.batch, part.places, self.key, most)
        return _Part(batch, places, [*part.failures, *large], part.until) if large else part

    def _parts(self, skip: int) -> Generator[_Part, None, None]:
        batches = self.places.passed(self.source.batches(self.read, skip), skip, keep=True)
        if not self.links:
            for batch in batches:
                first, skip = skip, skip + batch.num_rows
                yield _Part(batch, np.arange(first, skip), (), skip)
            return
        fetched = fetch_links.fetch(
            (self._with_addresses(batch) for batch in batches),
            self.links,
            key=self.key,
            at=self.source.at,
            guard=self.guard,
            limits=self.limits,
            first_row=skip,
            progress=self.progress,
        )
        try:
            for one in fetched:
                yield _Part(one.batch, one.rows, one.failures, one.until)
        finally:
            fetched.close()  # type: ignore[attr-defined]

    def _with_addresses(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Keep each address beside what will be fetched from it: its ending may be all that tells what the bytes are."""
        for link in self.links:
            batch = batch.append_column(
                ADDRESS + link.name, batch.column(link.source).cast(pa.large_string())
            )
        return batch

    def _nameable(self, batch: pa.RecordBatch, flaws: dict[int, FlareError]) -> pa.RecordBatch:
        """Leave out the rows that no file can be named by, if such rows are to be skipped; `flaws` says which and why."""
        if self.on_error == "fail" or not batch.num_rows:
            return batch
        flaws |= self.naming.flaws(batch, self.where)
        return (
            batch.filter(pa.array([i not in flaws for i in range(batch.num_rows)]))
            if flaws
            else batch
        )

    def _write(self, part: _Part, outlet: Outlet) -> None:
        flaws: dict[int, FlareError] = {}
        batch = self._nameable(part.batch, flaws)
        unnamed = [
            Failure(
                int(part.places[i]),
                self._key_text(part.batch, i),
                self.key or "",
                one.kind,
                one.message,
            )
            for i, one in flaws.items()
        ]
        failures = [
            self.places.placed(one)
            for one in sorted([*part.failures, *unnamed], key=lambda one: one.row)
        ]
        self.places.forget(part.until)
        for failure in failures:
            if self.on_error == "fail":
                raise error_of(failure, self.source.address, _SKIP)
            self.progress.failed(failure.key or failure.where, failure.reason)
            outlet.fail(self.source.named.listed(failure))
        names = self.naming.names(batch, self.where) if batch.num_rows else []
        if batch.num_rows and not self.source.rereads and not self.naming.is_unique:
            self.taken.add(batch, self.where)
        noted = self._noted(batch)
        size = 0
        found = [
            (column, list(zip(own, pieces(batch.column(column)), strict=True)))
            for column, own in zip(self.files, names, strict=False)
        ]
        outlet.begin([name for _, files in found for name, data in files if data is not None])
        for column, files in found:
            for i, (name, data) in enumerate(files):
                noted[i]["values"][column] = None
                if data is not None:
                    outlet.put(name, data)
                    noted[i]["files"][column] = (name, len(data))
                    size += len(data)
        outlet.rows, outlet.files, outlet.bytes = (
            outlet.rows + len(noted),
            outlet.files + sum(len(one["files"]) for one in noted),
            outlet.bytes + size,
        )
        outlet.note(noted, part.until)
        self.progress.advance(batch.num_rows + len(failures), size)

    def _key_text(self, batch: pa.RecordBatch, i: int) -> str:
        value = (
            None
            if self.key is None or self.key not in batch.schema.names
            else batch.column(self.key)[i].as_py()
        )
        return "" if value is None else str(value)

    def _noted(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Give what the index will say of each row, without its files."""
        columns = [(name, batch.column(name).to_pylist()) for name in self.small]
        rows = batch.column(ROW).to_pylist() if batch.num_rows else []
        return [
            {
                "values": {
                    **({} if self.key else {"row": row}),
                    **{name: plain(values[i]) for name, values in columns},
                },
                "files": {},
            }
            for i, row in enumerate(rows)
        ]


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind)
        or pa.types.is_large_binary(kind)
        or pa.types.is_fixed_size_binary(kind)
    )


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))
