"""The `unpack` command: write the rows of a dataset, or the downloads of a table, as files.

1. If the rows can be read twice, check all file names.
2. Read the rows in batches, and apply --where and --limit.
3. Download the linked files of several batches in parallel. The order of the rows does not change.
4. If the names were not checked in step 1, check the file names of each batch.
5. Write the files of each batch.
6. Write an index of the file names and the other columns.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from flarecli import __version__
from flarecli.arguments import address_text, address_texts, from_options, name_list
from flarecli.commands.options import UnpackOptions
from flarecli.commands.packing.plan import parse_link
from flarecli.commands.provenance import Places
from flarecli.commands.row_order import check_names
from flarecli.commands.unpacking.filenames import (
    ADDRESS,
    ROW,
    NamePattern,
    UsedNames,
    default_key,
)
from flarecli.commands.unpacking.index import plain
from flarecli.commands.unpacking.source import RowAddress, RowSource, open_source
from flarecli.commands.unpacking.target import FinishedFolder, Folder, Output, Tar
from flarecli.encodings import is_binary, is_text, raw_values
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.formats import facts
from flarecli.hashes import DEFAULT
from flarecli.model import column_of
from flarecli.progress import Progress
from flarecli.storage import Guard
from flarecli.write import (
    FAILED,
    Failure,
    address_column,
    drop_rows,
    fetch_links,
    key_text,
    too_large,
)
from flarecli.write.failures import error_of

__all__ = ["Unpacked", "unpack"]

_MIN_DIGITS = 6  # minimum number of digits of a row number in a file name
_FINISHED = "nothing to resume: the unpack is finished"


@dataclass(frozen=True, slots=True)
class Unpacked:
    """Result of an unpack.

    files, bytes  number and total size of the files, including files from an interrupted run
    rows          number of unpacked rows, including `resumed_rows` from an interrupted run
    failed        number of failed rows
    reasons       error kind -> number of failed rows
    index         path of the index; None if there is none
    """

    files: int
    bytes: int
    rows: int
    failed: int = 0
    reasons: Mapping[str, int] = field(default_factory=dict)
    index: str | None = None
    resumed_rows: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values, for --json."""
        return asdict(self)


@from_options(UnpackOptions)
def unpack(options: UnpackOptions) -> Unpacked:
    """Write the values of a dataset, or the downloads of a table, as files, and write an index.

    Byte columns, and columns that were packed from files, become files. If there are no such
    columns, the text columns except the key become files. All other columns are written to the
    index. All file names are checked before the first file is written; for remote rows, the file
    names of each batch are checked before this batch is written. `out` is a folder that is empty or
    does not exist, or `-` for a tar archive on `stream` (default: stdout). Raises UsageError,
    ReachError, FormatError or UnsafeError, each of which has an exit code.
    """
    sources, out = address_texts(options.sources), address_text(options.out)
    guard, progress = options.guard(sources), options.progress or Progress()
    if out == "-" and (options.resume or options.overwrite):
        raise UsageError("a stream cannot be resumed or overwritten", hint="Specify a folder.")
    columns = None if options.columns is None else name_list(options.columns)
    links = [parse_link(one, {}) for one in name_list(options.fetch)]
    text_columns = {link.source for link in links} | ({options.key} if options.key else set())
    source = open_source(options, sources, guard, text_columns, progress)
    work = _Unpacking(source, links, columns, guard, progress, options)
    if out == "-":
        work.check_names()
        return work.run(Tar(options.stream or sys.stdout.buffer))
    head = {
        "verb": "unpack",
        "flare": __version__,
        "source": {"address": source.named.text, DEFAULT: source.checksum()},
        "options": _recorded(options, columns),
    }
    folder = Folder(
        out,
        head,
        resume=options.resume,
        overwrite=options.overwrite,
        without_index=options.index == "none",
    )
    if folder.has_only_files:
        if links:
            hint = "Specify another folder: without an index, flare cannot check that all downloads are complete."
            raise UsageError("output folder is not empty", where=folder.shown, hint=hint)
        work.check_names()
        result = work.run(FinishedFolder(folder.shown))
        progress.note(_FINISHED)
        return replace(result, resumed_rows=result.rows)
    if folder.is_done:
        rows = folder.rows + folder.failed.total()
        if source.rows is not None and source.rows != rows:
            raise UsageError(
                f"folder contains the complete output of {rows} rows, but {source.rows} rows are selected",
                where=folder.shown,
                hint="Use --overwrite to replace the output, or specify another folder.",
            )
        progress.note(_FINISHED)
        return Unpacked(
            folder.files,
            folder.bytes,
            folder.rows,
            folder.failed.total(),
            dict(sorted(folder.failed.items())),
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
    """Return the options that must be the same in a resumed unpack."""
    names = ("format", "rows", "where", "limit", "key", "name", "index", "on_error")
    return {
        **{name: getattr(options, name) for name in names},
        "streams": list(options.streams),
        "columns": columns,
        "fetch": list(options.fetch),
    }


class _Unpacking:
    """State of one unpack: the columns that become files, the index columns, and the file names."""

    def __init__(
        self,
        source: RowSource,
        links: Sequence[fetch_links.Link],
        columns: Sequence[str] | None,
        guard: Guard,
        progress: Progress,
        options: UnpackOptions,
    ) -> None:
        self.source, self.links, self.guard, self.progress = source, links, guard, progress
        self.on_error, self.index, self.limits = options.on_error, options.index, options.limits()
        self.ignore_robots_tag = options.ignore_robots_tag
        schema, form, key = source.schema, facts(source.format), options.key
        check_names(schema.names, [link.source for link in links], "--fetch")
        check_names(schema.names, [key] if key else [], "--key")
        renamed = {link.source: link.name for link in links}
        if key in renamed:
            raise UsageError(
                f"column {key!r} contains the addresses for --fetch, so it cannot be the key",
                hint="Use a different --key.",
                column=key,
            )
        columns_after = [renamed.get(name, name) for name in schema.names]
        for name in renamed.values():
            if columns_after.count(name) > 1:
                raise UsageError(
                    f"two columns would be named {name!r}",
                    hint="Rename the fetched column: --fetch COLUMN:NAME.",
                )
        check_names(columns_after, columns or (), "--columns")
        chosen = columns_after if columns is None else list(dict.fromkeys(columns))
        extensions = {name: one for name, one in source.extensions.items() if name not in renamed}
        # columns of file extensions are omitted, because the file names contain the extensions
        if columns is None:
            parts_of_names = {name for one in extensions.values() if (name := column_of(one))}
            chosen = [name for name in chosen if name not in parts_of_names]
        types = dict(zip(columns_after, schema.types, strict=True))
        if key is None:
            key = form.default_key or default_key(schema)
        self.key = key
        texts = [name for name in chosen if is_text(types[name])]
        self.files = [
            name
            for name in chosen
            if name in renamed.values() or name in extensions or is_binary(types[name])
        ] or [name for name in texts if name != key]
        if not self.files or self.files == [key]:
            hint = "Select byte or text columns with -c."
            if not any(is_text(one) or is_binary(one) for one in types.values()):
                hint = "Use `flare cat SOURCE --to csv` to write the rows as text."
            elif source.format == "index":
                hint = "Select the link column with --fetch."
            elif key in chosen:
                hint = f"Column {key!r} is the key. Select other byte or text columns with -c, or another key with --key."
            raise UsageError("no column to write as files", where=source.address, hint=hint)
        self.places, self.where = Places(source.place, ROW), partial(RowAddress, source)
        self.pattern = NamePattern(
            "{name}" if options.name is None and form.is_plain else options.name,
            key,
            pa.schema([one for one in schema if one.name not in renamed]),
            self.files,
            max(_MIN_DIGITS, len(str(max(0, (source.rows or 0) - 1)))),
            extensions,
        )
        reserved = (".flare", FAILED, f"index.{self.index}")
        self.used_names = UsedNames(self.pattern, reserved, len(self.files))
        self.index_columns = [name for name in chosen if name not in self.files]
        if key and key not in self.index_columns and key not in self.files:
            self.index_columns.insert(0, key)
        needed = {*self.files, *self.index_columns, *self.pattern.columns}
        self.read = [name for name in schema.names if renamed.get(name, name) in needed]
        self.index_fields = [
            pa.field(name, pa.string() if name in self.files else types[name])
            for name in columns_after
            if name in self.files or name in self.index_columns
        ]
        if not key:
            self.index_fields.insert(0, pa.field("row", pa.int64()))

    def check_names(self) -> None:
        """Check all names before the first file is written, if the source can be read twice."""
        if self.source.rereads and not self.pattern.is_unique:
            try:
                for batch in self.source.batches(self.pattern.columns, 0):
                    if errors := self._invalid_names(batch):
                        batch, _ = drop_rows(batch, np.arange(batch.num_rows), errors)
                    self.used_names.add(batch, self.where)
            except BaseException:
                self.used_names.close()
                raise

    def run(self, output: Output) -> Unpacked:
        """Write all rows. After an error, the written files are kept for a resumed unpack."""
        self.progress.start("unpack", self.source.rows, done=output.next)
        resumed = output.rows
        try:
            with closing(self._parts(output.next)) as parts:
                for part in parts:
                    self._write(part, output)
            if not output.next:
                raise FormatError("no rows to unpack", where=self.source.address)
            reasons = dict(output.reasons)
            path = output.finish(self.index, self.index_fields)
        except BaseException as error:
            output.abandon()
            if isinstance(error, KeyboardInterrupt):
                raise KeyboardInterrupt(output.resume_hint(bool(self.links))) from None
            raise
        finally:
            self.used_names.close()
            self.progress.close()
        failed = sum(reasons.values())
        return Unpacked(output.files, output.bytes, output.rows, failed, reasons, path, resumed)

    def _parts(self, skip: int) -> Generator[fetch_links.Fetched, None, None]:
        """Yield the selected rows from row `skip` on, with downloads in place of their links."""
        batches = self.places.passed(self.source.batches(self.read, skip), skip, keep=True)
        return fetch_links.fetch(
            (self._with_addresses(batch) for batch in batches),
            self.links,
            key=self.key,
            at=self.source.at,
            guard=self.guard,
            limits=self.limits,
            ignore_robots_tag=self.ignore_robots_tag,
            first_row=skip,
            progress=self.progress,
        )

    def _with_addresses(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Add a column of addresses for each link column; an address may determine `{ext}`."""
        for link in self.links:
            addresses = address_column(batch, link.source).cast(pa.large_string())
            batch = batch.append_column(ADDRESS + link.name, addresses)
        return batch

    def _invalid_names(self, batch: pa.RecordBatch) -> dict[int, FlareError]:
        """Return the error for each row without valid file names: position in the batch -> error.

        The result is empty with `--on-error fail`; the first invalid name is then an error.
        """
        if self.on_error == "fail" or not batch.num_rows:
            return {}
        return self.used_names.invalid_rows(batch, self.where)

    def _write(self, part: fetch_links.Fetched, output: Output) -> None:
        """Write the files of some rows, and record the failed rows."""
        part = part.without(too_large(part.batch, part.rows, self.key, self.limits.max_bytes))
        keys = part.batch.column(self.key) if self.key in part.batch.schema.names else None
        unnamed = {}
        for i, error in self._invalid_names(part.batch).items():
            key = "" if keys is None else key_text(keys[i])
            at = int(part.rows[i])
            unnamed[i] = Failure(at, key, self.key or "", error.kind, error.message)
        part = part.without(unnamed)
        batch = part.batch
        placed = [self.places.placed(failure) for failure in part.failures]
        self.places.forget(part.until)
        for failure in placed:
            if self.on_error == "fail":
                raise error_of(failure, self.source.address)
            self.progress.failed(failure.key or failure.where, failure.reason)
            output.add_failure(self.source.named.listed(failure))
        names = self.pattern.names(batch, self.where) if batch.num_rows else []
        if batch.num_rows and not self.source.rereads and not self.pattern.is_unique:
            self.used_names.add(batch, self.where)
        index_rows = self._index_rows(batch)
        columns = [
            (column, list(zip(own, raw_values(batch.column(column)), strict=True)))
            for column, own in zip(self.files, names, strict=False)  # an empty batch has no names
        ]
        output.start_batch(
            [name for _, values in columns for name, data in values if data is not None]
        )
        size = 0
        for i, (column, values) in enumerate(columns, 1):
            for row, (name, data) in zip(index_rows, values, strict=True):
                row["values"][column] = None
                if data is not None:
                    output.write(name, data)
                    row["files"][column] = (name, len(data))
                    size += len(data)
                if not self.links:  # rows with links are counted when the downloads end
                    self.progress.advance(int(i == len(columns)), len(data or b""))
        output.rows += len(index_rows)
        output.files += sum(len(row["files"]) for row in index_rows)
        output.bytes += size
        output.finish_batch(index_rows, part.until)
        if not self.links:
            self.progress.advance(len(placed), 0)

    def _index_rows(self, batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the index entry for each row, without the file names."""
        rows: list[dict[str, Any]] = [{"values": {}, "files": {}} for _ in range(batch.num_rows)]
        columns = [(name, name) for name in self.index_columns]
        if not self.key:
            columns.insert(0, ("row", ROW))
        for name, column in columns if rows else ():
            for row, value in zip(rows, batch.column(column).to_pylist(), strict=True):
                row["values"][name] = plain(value)
        return rows
