"""Plan of a pack: select rows (where, limit, shuffle, keys), fetch links, process media."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, cast

import numpy as np
import pyarrow as pa

from flarecli import encodings, read, sql
from flarecli.arguments import address_text, address_texts, name_list
from flarecli.commands.external_shuffle import shuffled
from flarecli.commands.options import PackOptions
from flarecli.commands.packing.media import (
    FileKeys,
    MediaColumn,
    MediaOptions,
    info_names,
    media_columns,
    processed,
)
from flarecli.commands.packing.nulls import NullValues
from flarecli.commands.packing.source import (
    RowRequest,
    Source,
    SourceOptions,
    StoredColumns,
    open_source,
)
from flarecli.commands.provenance import PLACE, Places
from flarecli.commands.row_order import first_rows, without_rows
from flarecli.errors import FormatError, UnsafeError, UsageError, format_place
from flarecli.formats import Format, find, with_option
from flarecli.ingest import Dialect, SourceChecksum
from flarecli.model import Settings, column_of
from flarecli.names import escape, shell_quoted
from flarecli.playlists import PLAYLIST
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits
from flarecli.units import format_list
from flarecli.write import Failure, Keys, Spool, fetch_links, is_empty_key, key_text, too_large
from flarecli.write.columns import check_names
from flarecli.write.erased import ErasedKeys

__all__ = [
    "DOTS_NOTE",
    "PackTask",
    "Plan",
    "Selection",
    "check_keys",
    "fetched",
    "key_values",
    "parse_link",
    "selected",
]

DOTS_NOTE = "dots in keys are stored as '_', because the extension starts at the first dot"
_ERASED, _ERASED_REASON = "erased", "a row with this key was erased from the dataset"
_NAME_OF = "name of the file in "  # prefix of internal columns that contain file names


@dataclass(frozen=True, slots=True)
class Selection:
    """A range of the selected rows.

    first, stop  range of positions in the selection, after where, limit and shuffle
    row          source row from which reading may start
    skipped      number of selected rows before this source row
    """

    first: int
    stop: int
    row: int = 0
    skipped: int = 0


@dataclass(frozen=True)
class PackTask:
    """The task to pack all rows or one part of the rows. A task can be pickled.

    media          media options, created once so that all parts process media in the same way
    rows           source rows of the part, as (start, stop); None: all rows
    selection      range of the selected rows to pack; None: all
    source_digest  checksum of the source; None: computed from the source
    encodings      column -> encoding; None: inferred from the first rows
    types          column -> Arrow type in the source, in source order; None: unknown
    object_name    name of the source in messages, if its rows were saved to a temporary file: class
                   name of a Python object, or address of the original source; otherwise empty
    object_columns columns of a flare dataset whose rows were saved to a temporary file; None for
                   any other source
    base_folder    base folder of relative addresses; None: the working folder
    existing       dataset to which the rows are appended, for the comparison of keys; None: no such
                   dataset, or the keys have already been compared
    existing_schema  Arrow schema of the dataset to which the rows are appended; None: a new dataset
    existing_extensions  column -> `Column.extension` in that dataset; None: a new dataset
    erased         keys of erased rows; a row with such a key fails
    head           other values to record in the journal, such as the version to change; a resumed
                   pack must have the same values
    null_columns   columns that the source lacks, to fill with nulls: column -> Arrow type
    casts          columns to cast to the type in the dataset: column -> this type
    """

    options: PackOptions
    media: MediaOptions
    rows: tuple[int, int] | None = None
    selection: Selection | None = None
    source_digest: str | None = None
    encodings: Mapping[str, str] | None = None
    types: Mapping[str, pa.DataType] | None = None
    object_name: str = ""
    object_columns: StoredColumns | None = None
    base_folder: str | None = None
    existing: read.Dataset | None = None
    existing_schema: pa.Schema | None = None
    existing_extensions: Mapping[str, str] | None = None
    erased: ErasedKeys = field(default_factory=ErasedKeys)
    head: Mapping[str, Any] = field(default_factory=dict)
    null_columns: Mapping[str, pa.DataType] = field(default_factory=dict)
    casts: Mapping[str, pa.DataType] = field(default_factory=dict)

    @cached_property
    def sources(self) -> list[str]:
        """Return the addresses of the source."""
        return address_texts(self.options.sources)

    @property
    def out(self) -> str:
        """Return the address of the target."""
        return address_text(self.options.out)

    @property
    def playlist(self) -> str:
        """Return the address of the playlist in the target."""
        return f"{self.out.rstrip('/')}/{PLAYLIST}"

    @property
    def format(self) -> Format:
        """Return the format of the shards."""
        return find(self.options.format)

    @property
    def key(self) -> str | None:
        """Return the column that identifies a row."""
        return self.options.key or None

    @cached_property
    def columns(self) -> list[str] | None:
        """Return the columns to pack; None: all."""
        return None if self.options.columns is None else name_list(self.options.columns)

    @property
    def encode(self) -> Mapping[str, str]:
        """Return the encodings that the user chose."""
        return self.options.encode or {}

    @cached_property
    def links(self) -> tuple[fetch_links.Link, ...]:
        """Return the link columns to fetch."""
        return tuple(parse_link(text, self.encode) for text in name_list(self.options.fetch))

    @cached_property
    def nulls(self) -> NullValues:
        """Return the values that replace nulls."""
        return NullValues.parse(self.options.null)

    @cached_property
    def dialect(self) -> Dialect:
        """Return the dialect of CSV files."""
        return Dialect.parse(self.options.csv)

    @cached_property
    def guard(self) -> Guard:
        """Return the access rules for addresses in the data."""
        return self.options.guard(self.sources)

    @cached_property
    def limits(self) -> Limits:
        """Return the limits for transfers."""
        return self.options.limits()

    @cached_property
    def settings(self) -> Settings:
        """Return the shard settings.

        raises  UsageError for an option that the format does not support
        """
        options, format = self.options, self.format
        if options.newline != "\n" and "newline" not in format.options:
            raise UsageError(
                f"--newline: {format.name} shards have no lines",
                hint=f"Omit --newline, or use one of these formats: {format_list(with_option('newline'))}.",
            )
        return Settings(
            options.compress or None,
            tuple(sorted(name_list(options.hash))),
            cast("int | None", options.shard_size) or None,
            options.shard_rows,
            options.newline,
            _separator(format, options.separator),
        )

    def open_source(self) -> Source:
        """Open the source. Raises the errors of `open_source`."""
        options = self.options
        return open_source(
            self.sources,
            SourceOptions(
                text=self._text_columns(),
                guard=self.guard,
                columns=self.columns,
                streams=name_list(options.streams),
                rows=options.rows,
                exact=options.where is None,
                allow_missing=options.allow_missing,
                null_separated=options.from0,
                folder_column=options.folder_column or "",
                dialect=self.dialect,
                kind=options.input,
                object_name=self.object_name,
                object_columns=self.object_columns,
                used=[*([self.key] if self.key else []), *(link.source for link in self.links)],
                where=options.where,
            ),
        )

    def _text_columns(self) -> set[str]:
        """Return the columns of a CSV file that are always read as text."""
        text = {link.source for link in self.links}
        if self.existing_schema is not None:  # the rows must have the types of the existing rows
            return text | {
                name for name, kind in (self.types or {}).items() if encodings.is_text(kind)
            }
        if self.key:
            text.add(self.key)
        return text | {
            name
            for name, encoding in self.encode.items()
            if not encoding.startswith(("int", "uint", "float"))
        }

    def recorded_options(self) -> dict[str, Any]:
        """Return the options that a resumed pack must repeat, except source, format and settings.

        These options determine the bytes of the output. Access limits are included only with
        --on-error skip, because a row that exceeds a limit is then skipped. With --on-error fail,
        such a row ends the pack, and the resumed pack may have other limits.
        """
        options = self.options
        access: dict[str, Any] = {
            "max_object": self.limits.max_bytes,
            "allow_private": self.guard.allow_private,
            "allow_local": self.guard.allow_local,
        }
        if self.guard.allow_hosts:
            access["allow_hosts"] = sorted(self.guard.allow_hosts)
        if options.ignore_robots_tag:
            access["ignore_robots_tag"] = True
        if options.user_agent:  # the User-Agent determines which X-Robots-Tag headers apply
            access["user_agent"] = options.user_agent
        streams, span = name_list(options.streams), self.selection
        return {
            "fetch": [[link.source, link.name] for link in self.links],
            "key": self.key,
            "columns": self.columns,
            "encode": dict(self.encode),
            "where": options.where,
            "limit": options.limit,
            "shuffle": options.shuffle,
            "on_error": options.on_error,
            "on_duplicate": options.on_duplicate,
            "allow_empty": options.allow_empty,
            "allow_missing": options.allow_missing,
            **({"folder_column": options.folder_column} if options.folder_column else {}),
            **({} if self.rows is None else {"rows": list(self.rows)}),
            **({} if span is None else {"selected": [span.first, span.stop]}),
            **self.media.recorded_options(),
            **(access if options.on_error == "skip" else {}),
            **({"null_separated": True} if options.from0 else {}),
            **({"input": options.input} if options.input else {}),
            **({"csv": list(options.csv)} if options.csv else {}),
            **({"null": sorted(options.null)} if options.null else {}),
            **({"streams": streams} if streams else {}),
            **({} if options.rows is None else {"spec": options.rows}),
        }


def _separator(format: Format, separator: str | None) -> str:
    if "separator" not in format.options:
        if separator is None:
            return ","
        raise UsageError(
            f"--separator: {format.name} shards have no separator",
            hint=f"Omit --separator, or use one of these formats: {format_list(with_option('separator'))}.",
        )
    if format.separator is not None:
        if separator in (None, format.separator):
            return format.separator
        raise UsageError(
            f"--separator: {format.name} uses {format.separator!r}, got {separator!r}",
            hint="Use -f xsv to choose a separator.",
        )
    if not separator:
        raise UsageError(
            f"{format.name} shards need a separator",
            hint="Add --separator, such as --separator ';'.",
        )
    return separator


class Plan:
    """A task whose options were checked against the columns of its source.

    names       columns to pack, in the order of the source or of `-c`
    links       links to fetch; a link is omitted if the column of its downloads is not packed
    duplicates  number of rows that were skipped because an earlier row has the same key
    has_dots_note  whether dots in keys were reported
    """

    def __init__(self, task: PackTask, source: Source, progress: Progress) -> None:
        self.task, self.source, self.progress = task, source, progress
        self.options, self.key = task.options, task.key
        first_row = task.selection.row if task.selection else 0
        self.start: int = task.rows[0] if task.rows else first_row
        self.stop: int | None = task.rows[1] if task.rows else None
        self.links = task.links
        self.duplicates = 0
        self.has_dots_note = False
        self.names = _checked_names(self)
        self.links = tuple(link for link in task.links if link.name in self.names)

    @cached_property
    def places(self) -> Places:
        """Return the source row numbers of the rows that are being packed."""
        return Places(self.source.place, start=self.start if self.is_run else None)

    @property
    def is_run(self) -> bool:
        """Return whether the packed rows are consecutive rows of the source."""
        drops_rows = self.options.where is not None or (
            self.key is not None and self.options.on_duplicate == "first"
        )
        return self.source.is_run and self.options.shuffle is None and not drops_rows

    @property
    def known_rows(self) -> int | None:
        """Return the number of rows to which the condition is applied; None if unknown."""
        known = self.source.rows
        if known is None:
            return None
        return max(0, min(known, known if self.stop is None else self.stop) - self.start)

    @property
    def row_name(self) -> str | None:
        """Return the output name of the column that identifies rows, or None.

        The result is None if the source has no such column, or if downloads replace the column.
        """
        key = self._source_key
        return None if key is None else self.task.format.key_column or key

    def is_file_key(self, key: str, name: str) -> bool:
        """Return whether `key` is the file name `name`, or `name` as the format stores it."""
        return key in (name, self.task.format.storable_keys(pa.array([name]))[0].as_py())

    @property
    def _source_key(self) -> str | None:
        """Return the source column that identifies rows; None if downloads replace the column."""
        key = self.key or (None if self.is_statement else self.source.key)
        return None if any(link.source == key for link in self.links) else key

    @property
    def is_statement(self) -> bool:
        """Return whether `where` is a SELECT statement, which may return any columns."""
        return self.options.where is not None and sql.is_statement(self.options.where)

    @cached_property
    def condition_files(self) -> list[str]:
        """Return the file columns whose contents the condition reads."""
        where = self.options.where
        if where is None or not self.source.files:
            return []
        names = sql.columns_of(where, self.source.schema.names)
        return [name for name in self.source.files if self.is_statement or name in names]

    @cached_property
    def extensions(self) -> dict[str, str]:
        """Return packed column -> `Column.extension`, for columns of unchanged file contents.

        If rows are appended to a dataset, the extensions of the dataset are returned, because it
        lists only one extension for each column.
        """
        if self.task.existing_extensions is not None:
            return dict(self.task.existing_extensions)
        if self.is_statement:
            return {}
        links = {link.name for link in self.links}
        texts = [one.name for one in self.source.schema if encodings.is_text(one.type)]
        known = {"", *texts} & {"", *self.names}
        return {
            name: extension
            for name, extension in self.source.extensions.items()
            if name in self.names and name not in links and column_of(extension) in known
        }

    def renamed(self, name: str) -> str:
        """Return the output name of a source column. Some formats rename the key column."""
        return self.row_name or name if name == self._source_key else name


def parse_link(text: str, encode: Mapping[str, str]) -> fetch_links.Link:
    """Parse `COLUMN` or `COLUMN:NAME`. Raises UsageError if either name is empty."""
    source, colon, name = text.partition(":")
    if not source or (colon and not name):
        raise UsageError(
            f"--fetch: expected COLUMN or COLUMN:NAME, got {text!r}",
            hint="Use COLUMN:NAME to store the downloaded bytes in column NAME (default: COLUMN).",
        )
    return fetch_links.Link(source, name or source, encode.get(name or source))


def _checked_names(plan: Plan) -> list[str]:
    """Check the options against the columns of the source; return the columns to pack."""
    schema, task = plan.source.schema, plan.task
    if PLACE in schema.names and (plan.options.where is not None or not plan.is_run):
        raise UsageError(
            f"column name {PLACE!r} is reserved for row numbers",
            hint="Rename the column in the source.",
        )
    if plan.options.where is not None:
        schema, _ = sql.select(schema, iter(()), plan.options.where)
    check_names(schema, [link.source for link in plan.links], "--fetch")
    check_names(schema, [plan.key] if plan.key else [], "--key")
    links = {link.source: link.name for link in plan.links}
    after = [plan.renamed(links.get(name, name)) for name in schema.names]
    counts = Counter(after)
    for name in after:
        if counts[name] > 1:
            raise UsageError(
                f"two columns would be named {name!r}",
                hint="Rename the fetched column: --fetch COLUMN:NAME.",
            )
    names = after if task.columns is None else [plan.renamed(name) for name in task.columns]
    if task.columns is not None and task.format.max_columns is None and not plan.is_statement:
        # also pack the columns that contain the extensions of the files in the selected columns
        known = task.existing_extensions
        known = plan.source.extensions if known is None else known
        extras = [column_of(known.get(name, "")) for name in task.columns]
        names += [name for name in extras if name and name in after and name not in names]
    if plan.options.folder_column:
        folder_column = plan.renamed(plan.options.folder_column)
        if folder_column in after and folder_column not in names:
            names.append(folder_column)
    key = task.format.key_column
    if key and plan.row_name in after and plan.row_name not in names:
        names = [key, *names]  # the format requires a key for each sample
    infos = [name for columns in _media(plan, names)[1].values() for name in columns.values()]
    known = pa.schema([pa.field(name, pa.null()) for name in (*after, *infos)])
    check_names(known, [plan.renamed(name) for name in task.encode], "--encode")
    filled = [plan.renamed(name) for name in task.nulls.values]
    if task.existing_schema is not None:  # the source may lack a column of the dataset
        filled = [name for name in filled if name not in task.existing_schema.names]
    check_names(known, filled, "--null")
    check_names(known, names, "--columns" if plan.options.add_column is None else "--add-column")
    for name, encoding in task.encode.items():
        if encodings.lookup(encoding).name == "pkl":
            as_json, as_bytes = shell_quoted(f"{name}=json"), shell_quoted(f"{name}=bytes")
            raise UnsafeError(
                f"column {name!r} would be packed as pkl; reading a pickle runs code",
                hint=f"Use --encode {as_json} or --encode {as_bytes}.",
            )
    return [*names, *(name for name in infos if name not in names)]


def _media(plan: Plan, names: Sequence[str]) -> tuple[list[MediaColumn], dict[str, dict[str, str]]]:
    """Return the file columns, and the names of their media info columns."""
    schema, options = plan.source.schema, plan.task.media
    if plan.is_statement:
        schema, _ = sql.select(schema, iter(()), plan.options.where or "")
    fetched_names = [link.name for link in plan.links]
    named = [*fetched_names, *(name for name in plan.source.files if name in names)]
    columns = media_columns(schema, names, named, plan.task.encode)
    if options.option is not None and not any(column.is_media for column in columns):
        raise UsageError(
            f"{options.option}: no column contains files",
            hint="Use --fetch to download the files that a column links to.",
        )
    if not options.info:
        return columns, {}
    replaced = {link.source for link in plan.links}
    used = [name for name in (*schema.names, *fetched_names) if name not in replaced]
    return columns, info_names(columns, used)


def check_keys(plan: Plan) -> None:
    """Raise FormatError for the first duplicate key in the selection.

    With --on-duplicate `first` or `keep`, duplicate keys are allowed. Different keys that the
    format stores as equal keys are always errors.
    """
    has_changed_keys = plan.row_name is not None and bool(plan.task.format.key_column)
    if has_changed_keys or (
        plan.key is not None and plan.options.on_duplicate in ("error", "replace")
    ):
        for _ in selected(plan, keys_only=True):
            pass


def selected(
    plan: Plan, skip: int = 0, checksum: SourceChecksum | None = None, keys_only: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the selected rows: apply where, limit and shuffle, then reject or skip duplicate keys.

    If the task packs only a range of the selected rows, only these rows are returned and checked.

    skip       number of selected rows to skip
    checksum   checksum to update with the source bytes that are read
    keys_only  read only the key column and the columns in the condition
    return     batches; an additional column PLACE contains the source row numbers, unless the rows
               are consecutive rows of the source, or a query created the rows
    """
    options, source = plan.options, plan.source
    names = _needed_columns(plan, keys_only)
    place = None if plan.is_run else PLACE
    # columns whose values are not used until their size has been compared with `--max-object`
    unused: list[str] = []
    if options.where is None:
        used = {plan.key, *(link.source for link in plan.links)}
        unused = [name for name in source.schema.names if name not in used]
    batches = source.batches(
        RowRequest(names, options.where, plan.start, plan.stop, place, checksum, unused)
    )
    if options.where is not None:
        schema = source.schema
        if names is not None:
            schema = pa.schema([schema.field(name) for name in names])
        if source.files:
            batches = _with_files(plan, batches, plan.condition_files, plan.is_statement)
            unread = set(source.files) - set(plan.condition_files)
            schema = pa.schema(
                [pa.field(one.name, pa.string()) if one.name in unread else one for one in schema]
            )
        _, batches = sql.select(schema, batches, options.where, hidden=PLACE)
    span = plan.task.selection
    if options.limit is not None:
        batches = first_rows(batches, options.limit - (span.skipped if span else 0))
    if options.shuffle is not None:
        batches = shuffled(batches, options.shuffle)
    if span is not None:
        batches = without_rows(batches, span.first - span.skipped)
        batches = first_rows(batches, span.stop - span.first)
    if plan.key is not None and options.on_duplicate != "keep":
        batches = _distinct(batches, plan)
    if plan.row_name and plan.task.format.key_column:
        batches = _storable_keys(batches, plan)
    for batch in without_rows(batches, skip):
        renamed = [plan.renamed(name) for name in batch.schema.names]
        yield batch if renamed == batch.schema.names else batch.rename_columns(renamed)


def _needed_columns(plan: Plan, keys_only: bool) -> list[str] | None:
    """Return the source columns to read; None: all."""
    needed = {plan.key, plan.source.key}
    if plan.task.format.key_column:
        needed |= set(plan.source.files)  # columns that contain file names
    if not keys_only:
        if plan.task.columns is None:
            return None
        links = {link.name: link.source for link in plan.links}
        needed |= {links.get(name, name) for name in plan.task.columns} | set(links.values())
        needed |= {column_of(one) for one in plan.extensions.values()}
        needed.add(plan.options.folder_column or "")
    if plan.options.where is not None:
        needed |= set(sql.columns_of(plan.options.where, plan.source.schema.names))
    names = plan.source.schema.names
    return [name for name in names if name in needed] or names[:1]


def _with_files(
    plan: Plan, batches: Iterator[pa.RecordBatch], columns: Sequence[str], is_complete: bool
) -> Iterator[pa.RecordBatch]:
    """Replace file names with contents; raise the error of the first file that cannot be read.

    is_complete  whether a missing file is an error; otherwise, its content is null
    """
    if not plan.source.files or not columns:
        yield from batches
        return
    for batch, flaws in plan.source.filled(batches, columns):
        if flaws:
            raise flaws[0].error
        if is_complete:
            for row, (_, _, message) in _missing_files(
                plan, batch, columns, plan.source.key
            ).items():
                key = f"{key_text(batch.column(plan.source.key)[row])}: " if plan.source.key else ""
                raise FormatError(
                    f"{key}{message}",
                    where=plan.source.address,
                    hint="Add the missing file, or use a condition instead of a SELECT in --where.",
                )
        yield batch


def _missing_files(
    plan: Plan, batch: pa.RecordBatch, columns: Sequence[str], key: str | None
) -> dict[int, tuple[str, str, str]]:
    """Return the rows that lack a file: row -> (column, error kind, message).

    columns  columns of file names or file contents; a null marks a missing file
    key      column that contains the row keys; None if there is none
    """
    rows: dict[int, tuple[str, str, str]] = {}
    if plan.source.flaw is None or not any(batch.column(name).null_count for name in columns):
        return rows
    nulls = [batch.column(name).is_null().to_numpy(zero_copy_only=False) for name in columns]
    missing = np.array(nulls)  # bool [columns, rows]
    for row in np.flatnonzero(missing.any(axis=0)).tolist():
        column = columns[int(missing[:, row].argmax())].removeprefix(_NAME_OF)
        name = key_text(batch.column(key)[row]) if key in batch.schema.names else ""
        flaw = plan.source.flaw(column, bool(missing[:, row].all()), name)
        if flaw is not None:
            rows[row] = column, *flaw
    return rows


def _distinct(batches: Iterator[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Yield the rows. A row whose key occurs in an earlier row is an error or is skipped."""
    row = plan.start if plan.is_run else 0
    with Keys() as keys:
        before = _add_existing_keys(keys, plan)
        for batch in batches:
            column = batch.column(plan.key)
            has_places = PLACE in batch.schema.names
            rows = (
                batch.column(PLACE).to_numpy() if has_places else np.arange(row, row + len(column))
            )
            row += batch.num_rows
            compared = key_values(plan, plan.renamed(plan.key or ""), column)
            is_empty = is_empty_key(column) | is_empty_key(compared)
            earlier = np.where(is_empty, -1, keys.seen(compared, rows + before))
            again = np.flatnonzero(earlier >= 0)
            if len(again) and plan.options.on_duplicate != "first":
                first = int(again[0])
                if earlier[first] < before:
                    file, at = plan.source.place(int(rows[first]))
                    skip = "Use `--on-duplicate first` to skip rows with existing keys, or "
                    if plan.options.part_rows is not None:  # conflicts with `--on-duplicate first`
                        skip = "Use "
                    raise FormatError(
                        f"key {key_text(column[first])!r} is already in the dataset, "
                        f"in row {earlier[first]}",
                        where=file,
                        row=at,
                        hint=f"{skip}`--on-duplicate replace` to remove the existing rows.",
                    )
                earlier -= before
                raise _duplicate(
                    plan,
                    key_text(column[first]),
                    int(rows[first]),
                    int(earlier[first]),
                    has_places or plan.is_run,
                )
            plan.duplicates += len(again)
            yield batch.filter(pa.array(earlier < 0)) if len(again) else batch


def key_values(plan: Plan, name: str, values: pa.Array) -> pa.Array:
    """Return keys as the dataset to which the rows are appended stores them.

    Only values of one type can be compared. Keys that the dataset cannot store become null, or are
    an error. Without such a dataset, the keys are returned unchanged.

    name    name of the column in the dataset
    raises  FormatError for a key that does not fit the type
    """
    schema, format = plan.task.existing_schema, plan.task.format
    if schema is None or name not in schema.names:
        return values
    kind = schema.field(name).type
    if name == format.key_column:  # convert the keys as they are converted when they are stored
        values = encodings.coerce(values, encodings.lookup("str"))[0]
        return format.storable_keys(values)
    if values.type.equals(kind):
        return values
    try:
        return values.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise FormatError(
            f"a key of type {values.type} cannot be compared with the keys of the dataset, "
            f"which have the type {kind}",
            where=plan.source.address,
            hint=f"Convert column {name!r} to {kind}.",
            column=name,
        ) from None


def _add_existing_keys(keys: Keys, plan: Plan) -> int:
    """Add the keys of the existing dataset to `keys`, and return the number of its rows.

    The result is 0 if the pack does not append rows, or if the keys need no check.
    """
    data = plan.task.existing
    if data is None or plan.key is None or plan.options.on_duplicate == "replace":
        return 0
    row, name = 0, plan.renamed(plan.key)
    for batch in data.select([name]).batches():
        keys.seen(batch.column(0), np.arange(row, row + batch.num_rows))
        row += batch.num_rows
    return row


def _duplicate(plan: Plan, key: str, row: int, earlier: int, are_source_rows: bool) -> FormatError:
    """Return the error for a row that has the key of an earlier row.

    are_source_rows  whether the numbers are source row numbers; False if a query created the rows
    """
    (file, at), (earlier_file, earlier_at) = (
        plan.source.place(one) if are_source_rows else (plan.source.address, one)
        for one in (row, earlier)
    )
    place = format_place("" if earlier_file == file else earlier_file, earlier_at)
    options = plan.options
    hint = "Use `--on-duplicate first` to keep only the first row of each key, or `--on-duplicate keep` to keep all rows."
    if options.on_duplicate == "replace" or options.add_column is not None:
        hint = "Make the keys of the source unique."
    elif options.part_rows is not None:
        hint = "Make the keys unique, or use --on-duplicate keep."
    elif options.part is not None or options.join:
        hint = (
            "Make the keys unique, or pack all parts with --on-duplicate keep into another folder."
        )
    if earlier_file == file and row - earlier != at - earlier_at:
        # If the file is listed once, its rows are consecutive in the pack. The two rows with this
        # key are then equally far apart in the pack and in the file. Different distances show that
        # the file is listed more than once.
        place, hint = (
            f"{place} of the same file, which is listed more than once",
            f"List the file only once. {hint}",
        )
    message = f"key {key!r} was used in {place}"
    return FormatError(message, where=file, row=at, hint=hint)


def _storable_keys(batches: Iterator[pa.RecordBatch], plan: Plan) -> Iterator[pa.RecordBatch]:
    """Replace the dots in keys if the format splits names at the first dot, and report this once.

    raises  FormatError if two keys become equal
    """
    format, name, row = plan.task.format, plan.key or plan.source.key, 0
    with Keys() as originals, Keys() as stored:
        for batch in batches:
            at = batch.schema.get_field_index(name)
            keys = batch.column(at) if at >= 0 else None
            if keys is None or not encodings.is_text(keys.type):
                yield batch
                continue
            changed = format.storable_keys(keys)
            # rows without files will fail, so their keys are not stored
            files = [batch.column(one) for one in plan.source.files if one in batch.schema.names]
            used = np.ones(batch.num_rows, bool)
            if files:
                used = np.logical_or.reduce([one.is_valid().to_numpy(False) for one in files])
            rows = np.arange(row, row + batch.num_rows)[used]
            row += batch.num_rows
            before, after = keys.filter(pa.array(used)), changed.filter(pa.array(used))
            equal = (originals.seen(before, rows) < 0) & (stored.seen(after, rows) >= 0)
            if equal.any():
                first = int(np.flatnonzero(equal)[0])
                raise FormatError(
                    "two keys that differ only in '.' and '_' are both stored as "
                    f"{escape(after[first].as_py())!r:.80}",
                    where=plan.source.address,
                    hint="Rename one of the keys, or choose a format whose keys may contain dots.",
                )
            if changed is not keys:
                if not plan.has_dots_note:
                    plan.progress.note(DOTS_NOTE)
                plan.has_dots_note = True
                batch = batch.set_column(at, batch.schema.field(at), changed)
            yield batch


def fetched(
    plan: Plan,
    skip: int = 0,
    limit: int | None = None,
    spool: Spool | None = None,
    checksum: SourceChecksum | None = None,
) -> Generator[fetch_links.Fetched, None, None]:
    """Yield the selected rows from row `skip` on, with downloaded files and processed media.

    limit     maximum number of rows
    spool     storage for downloads, which a resumed pack reads
    checksum  checksum to update with the source bytes that are read
    """
    task, names = plan.task, plan.names
    rows = plan.places.passed(selected(plan, skip, checksum), skip)
    if limit is not None:
        rows = first_rows(rows, limit)
    files = [
        name
        for name in plan.source.files
        if name not in plan.condition_files and (task.columns is None or name in task.columns)
    ]
    if files and not plan.links:
        parts = _read_files(plan, rows, skip, files)
    else:
        parts = fetch_links.fetch(
            _with_files(plan, rows, files, is_complete=True),
            plan.links,
            key=plan.row_name or plan.key,
            at=plan.source.at,
            guard=task.guard,
            limits=task.limits,
            allow_empty=plan.options.allow_empty,
            ignore_robots_tag=plan.options.ignore_robots_tag,
            first_row=skip,
            progress=plan.progress,
            spool=spool,
            refused=partial(_refused, plan) if task.erased else None,
        )
    parts = _accepted(plan, parts)
    columns, infos = _media(plan, names)
    if task.media.is_noop:
        columns = [column for column in columns if column.has_names]
    if columns:
        jobs = task.limits.jobs
        keys = FileKeys(plan.row_name, plan.is_file_key)
        parts = processed(parts, columns, task.media, infos, keys, plan.progress, jobs)
    return _with_nulls(plan, parts)


def _accepted(
    plan: Plan, parts: Generator[fetch_links.Fetched, None, None]
) -> Generator[fetch_links.Fetched, None, None]:
    """Yield the rows. Rows with values above `--max-object` or with erased keys become failures."""
    limit = plan.task.limits.max_bytes
    with contextlib.closing(parts):
        for part in parts:
            part = part.without(too_large(part.batch, part.rows, plan.row_name, limit))
            yield _without_erased(plan, part) if plan.task.erased else part


def _without_erased(plan: Plan, part: fetch_links.Fetched) -> fetch_links.Fetched:
    """Convert each row with an erased key to a failure that does not contain the key."""
    found = _erased_rows(plan, part.batch, part.batch.schema.names)
    failures = {at: _erased(int(part.rows[at]), name) for at, name in found.items()}
    earlier = [
        _erased(one.row, one.column)
        if one.kind == _ERASED or plan.task.erased.contains_text(one.key)
        else one
        for one in part.failures
    ]
    return replace(part, failures=earlier).without(failures)


def _with_nulls(
    plan: Plan, parts: Generator[fetch_links.Fetched, None, None]
) -> Generator[fetch_links.Fetched, None, None]:
    """Yield the rows with the columns that the source lacks, and with nulls replaced.

    Nulls in the key column are errors, and are not replaced.
    """
    task = plan.task
    names = {*plan.names, *task.null_columns} - {plan.row_name}
    with contextlib.closing(parts):
        for part in parts:
            batch = part.batch
            for name, kind in task.null_columns.items():
                batch = batch.append_column(name, pa.nulls(batch.num_rows, kind))
            yield replace(part, batch=task.nulls.fill(batch, names))


def _refused(plan: Plan, batch: pa.RecordBatch) -> dict[int, fetch_links.LinkFailure]:
    """Return a failure for each row that must not be downloaded because it contains an erased key.

    Link columns are not compared, because the downloaded bytes replace their values. A key larger
    than `--max-object` is not detected, because the source may have replaced the key with NUL
    bytes. The row of this key fails after the download, because the key is too large.

    return  row -> failure
    """
    links = {link.source for link in plan.links}
    names = [name for name in batch.schema.names if name not in links]
    return {
        row: fetch_links.LinkFailure(_ERASED, _ERASED_REASON, column=name)
        for row, name in _erased_rows(plan, batch, names).items()
    }


def _erased_rows(plan: Plan, batch: pa.RecordBatch, names: Sequence[str]) -> dict[int, str]:
    """Find the rows of a batch that contain an erased key.

    names   columns to compare
    return  row -> name of the column that contains the erased key
    """
    found: dict[int, str] = {}
    for name, hashes in plan.task.erased.hashes.items():
        if name in names and hashes:
            keys = key_values(plan, name, batch.column(name))
            is_erased = plan.task.erased.contains(name, keys)
            found.update(dict.fromkeys(np.flatnonzero(is_erased).tolist(), name))
    return found


def _erased(row: int, column: str) -> Failure:
    return Failure(row, "", column, _ERASED, _ERASED_REASON)


def _read_files(
    plan: Plan, rows: Iterator[pa.RecordBatch], first: int, files: Sequence[str]
) -> Generator[fetch_links.Fetched, None, None]:
    """Read the files that the rows name. If a file cannot be read, its row becomes a failure."""
    read_already = [
        name
        for name in plan.condition_files
        if not plan.is_statement and (plan.task.columns is None or name in plan.task.columns)
    ]
    names_of = [_NAME_OF + name for name in files]

    def with_names() -> Iterator[pa.RecordBatch]:
        for batch in rows:
            for name, file in zip(names_of, files, strict=True):
                batch = batch.append_column(name, batch.column(file))
            yield batch

    for batch, flaws in plan.source.filled(with_names(), files):
        keys = batch.column(plan.row_name) if plan.row_name is not None else None
        failures: dict[int, Failure] = {}
        problems = list[tuple[int, str, str, str, str, str]]()
        for row, column, error in flaws:
            name = str(batch.column(_NAME_OF + column)[row])
            # in a list of files, the file name is the key
            is_key = keys is not None and plan.is_file_key(str(keys[row]), name)
            hint = error.hint if error.kind == "unsafe" else ""
            reason = error.message if is_key else f"{name}: {error.message}"
            problems.append((row, column, error.kind, reason, hint, name if is_key else ""))
        missing = _missing_files(plan, batch, [*names_of, *read_already], plan.row_name)
        problems += [(row, *missing[row], "", "") for row in missing]
        for row, column, kind, reason, hint, name in problems:
            key = "" if keys is None else key_text(keys[row])
            failure = Failure(first + row, key, column, kind, reason, hint=hint, name=name)
            failures.setdefault(row, failure)
        names = {
            file: [text or "" for text in batch.column(name).to_pylist()]
            for file, name in zip(files, names_of, strict=True)
        }
        stop = first + batch.num_rows
        kept = [name for name in batch.schema.names if not name.startswith(_NAME_OF)]
        part = fetch_links.Fetched(batch.select(kept), np.arange(first, stop), (), stop, {}, names)
        yield part.without(failures)
        first = stop
