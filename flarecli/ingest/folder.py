"""Folder index: files with the same key form a row, and the files of each kind are a column.

    a/000.jpg  a/000.txt  a/000.meta.json    row `a/000`: columns `image`, `text`, `meta.json`
    a/001.PNG  a/001.md   a/001.meta.json    row `a/001`

The key is the path up to the last dot of the file name, and the extension is the text after this
dot. A compound extension, such as `meta.json`, is recognized if it starts with a letter, and if
most keys with this extension also have a file with a plain extension. Therefore,
`IMG_2024.01.02.jpg` has the key `IMG_2024.01.02`.

Image files form the column `image`, and audio, video and text files form the columns `audio`,
`video` and `text`. If a key has two files of one of these categories, such as `a.jpg` and `a.png`,
each of their extensions is a separate column. Any other extension, in lower case, is a column. If
the extensions of the files in a column differ, even if only in letter case, an additional column
such as `image_extension` contains the extension of each row.

If the user selects columns, files of other columns are omitted. Otherwise, every data file is part
of a row. If a key has no file for a column, the value is null. A row without any values represents
a failure, such as a file whose extension is not a column, a metadata row without a file, or a key
that lacks a required metadata row (see `folder_metadata.py`). `flare pack` reports these rows as
failed. Hidden files, desktop files such as Thumbs.db, and README and LICENSE files in a media
folder are not data; `notes` contains the number of skipped files.

Columns contain file names; a file is read when its row is needed. A first listing determines the
columns and the number of rows. The folder is listed again to read the rows. If the checksums of the
two listings differ, the folder has changed, and an error is raised.
"""

from __future__ import annotations

import itertools
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from flarecli import sql
from flarecli.errors import FormatError, ReachError, UsageError
from flarecli.formats.tables.base import Part
from flarecli.hashes import DEFAULT, Sums
from flarecli.ingest.folder_metadata import FILE_NAME, Metadata, Rows, is_metadata
from flarecli.media import category_of, is_media, kind_of
from flarecli.model import Stream, column_of
from flarecli.names import escape, is_document, is_extension
from flarecli.storage import Entry, Location
from flarecli.storage.local import SCRATCH
from flarecli.suggest import choose
from flarecli.units import format_count

if TYPE_CHECKING:
    import sqlite3

__all__ = ["Folder", "FolderOptions", "Group", "data_among", "groups"]

_ROWS = 8192
_NOT_UTF8 = re.compile(r"\\x[89a-f][0-9a-f]")  # byte that `_shown` has escaped
_MEDIA = frozenset({"image", "audio", "video"})
_VERSION = b"columns of categories\n"  # part of the checksum; change it if the column rules change
MAX_COLUMNS = 1000
MAX_COMBINATIONS = 10_000  # maximum number of distinct extension sets
MAX_COMPOUNDS = 10_000  # maximum number of compound extension candidates in memory
MAX_SHOWN = 5  # maximum number of file names in a note
_DESKTOP = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
_HIDDEN, _SYSTEM, _DOCUMENT = "hidden file", "desktop file", "README or LICENSE file"
_METADATA = "metadata file"
_SCRATCH = f"{SCRATCH}/"


class Skipped:
    """For each reason to skip files: the number of skipped files, and some of their names.

    metadata  names of all skipped metadata files
    """

    def __init__(self) -> None:
        self.counts, self.names = Counter[str](), dict[str, list[str]]()
        self.metadata = list[str]()

    def add(self, reason: str, name: str) -> None:
        if reason == _METADATA:
            self.metadata.append(name)
        self.counts[reason] += 1
        names = self.names.setdefault(reason, [])
        if len(names) <= MAX_SHOWN:
            names.append(name)

    def notes(self) -> Iterator[str]:
        """Yield a note for each reason, with the number and names of the skipped files."""
        for reason, count in self.counts.items():
            yield f"skipped {format_count(count, reason)}: {_first_names(self.names[reason], count)}"


class Rules(NamedTuple):
    """Rules that split the file names of a folder into keys and extensions.

    compounds       compound extensions to recognize
    with_documents  whether README and LICENSE files are packed as rows, instead of being skipped
    tables          files that are named like metadata files, but are packed as rows
    """

    compounds: frozenset[str] = frozenset()
    with_documents: bool = False
    tables: frozenset[str] = frozenset()


_FIRST_RULES = Rules()


class Group(NamedTuple):
    """The files of one key.

    If a file has no extension, or its name is not UTF-8, the key is its name, and `files` is empty.

    files  extension -> file name
    """

    key: str
    files: dict[str, str]


def data_among(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the data files among the names that a wildcard matched, and notes on skipped files.

    Hidden files are kept, because only a pattern with a leading dot matches them.
    """
    has_media = 2 * sum(is_media(kind_of(name)) for name in names) >= len(names)
    skipped, kept = Skipped(), list[str]()
    for name in names:
        reason = _reason_to_skip(name.rpartition("/")[2].lstrip("."), not has_media)
        if reason:
            skipped.add(reason, name)
        else:
            kept.append(name)
    return kept, list(skipped.notes())


def _reason_to_skip(name: str, with_documents: bool = False) -> str:
    """Return the reason to skip a file that is not data, or an empty string for a data file."""
    if name.startswith(".") or "/." in name:
        return _HIDDEN
    last = name[name.rfind("/") + 1 :].lower()
    if last in _DESKTOP:
        return _SYSTEM
    return _DOCUMENT if not with_documents and is_document(last) else ""


def groups(
    entries: Iterable[Entry],
    rules: Rules = _FIRST_RULES,
    skipped: Skipped | None = None,
    where: object = "",
    candidates: CompoundExtensions | None = None,
) -> Iterator[Group]:
    """Group files by key.

    entries     files of a folder in bytewise order of their names, so that memory use is small
    skipped     receives the files that are not data; None: they are ignored
    candidates  receives the names of data files, to detect compound extensions; None if `rules`
                already contains compound extensions
    raises      FormatError for two files with the same key and extension
    """
    # Several groups may be incomplete at a time: the file `a.d/x.jpg` of the key `a.d/x` is listed
    # between the files `a.c` and `a.jpg` of the key `a`.
    open_groups: list[Group] = []
    for entry in entries:
        name = entry.name
        while open_groups and not name.startswith(f"{open_groups[-1].key}."):
            yield open_groups.pop()
        reason = _reason_to_skip(name, rules.with_documents)
        if not reason and is_metadata(name) and name not in rules.tables:
            reason = _METADATA
        if reason:
            if skipped is not None:
                skipped.add(reason, name)
            continue
        key, extension = _split_name(name, rules.compounds)
        if candidates is not None:
            candidates.add(name, key, extension)
        if not extension or not (name.isascii() or _is_text(name)):
            yield Group(_shown(name), {})
            continue
        for group in open_groups:
            if group.key == key:
                break
        else:
            group = Group(key, {})
            open_groups.append(group)
        other = group.files.setdefault(extension.lower(), name)
        if other != name:
            raise FormatError(
                f"{other} and {name} have the same key {key!r} and extension {extension.lower()!r}",
                where=where,
                hint="Rename one of the files.",
            )
    while open_groups:
        yield open_groups.pop()


def _split_name(name: str, compounds: frozenset[str]) -> tuple[str, str]:
    """Split a name into key and extension, at the longest compound extension or the last dot."""
    if compounds:
        for key, extension in _compounds(name):
            if extension.lower() in compounds:
                return key, extension
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.rpartition(".")
    return (f"{folder}{slash}{stem}", extension) if stem else (name, "")


def _compounds(name: str) -> list[tuple[str, str]]:
    """Return the possible splits of a name into a key and a compound extension.

    Each part of the extension, except the last, starts with a letter.
    """
    found: list[tuple[str, str]] = []
    if name.count(".") < 2:
        return found
    folder, slash, last = name.rpartition("/")
    parts = last.split(".")
    if not parts[-1]:
        return found
    for at in range(len(parts) - 2, 0, -1):
        if not parts[at][:1].isalpha():
            break
        found.append((f"{folder}{slash}{'.'.join(parts[:at])}", ".".join(parts[at:])))
    return found[::-1]


class CompoundExtensions:
    """Detector that finds the compound extensions in a folder, such as `meta.json`.

    A plain extension is the text after the last dot, such as `json`. A compound extension is
    recognized if most keys with this extension also have a file with a plain extension.
    """

    def __init__(self, where: object) -> None:
        self._where = where
        self._count, self._with_plain = Counter[str](), Counter[str]()
        # key -> its plain extensions and its compound extensions
        self._open: dict[str, tuple[list[str], list[str]]] = {}

    def add(self, name: str, key: str, plain: str) -> None:
        """Add the name of a data file. Names must be added in bytewise order.

        key    the name without its last extension
        plain  the last extension; empty if the name has no extension
        """
        for earlier in [one for one in self._open if not name.startswith(f"{one}.")]:
            self._close(earlier)
        if plain:
            self._open.setdefault(key, ([], []))[0].append(plain)
        for key, extension in _compounds(name):
            self._open.setdefault(key, ([], []))[1].append(extension.lower())

    def _close(self, key: str) -> None:
        plain, compounds = self._open.pop(key)
        for extension in compounds:
            self._count[extension] += 1
            self._with_plain[extension] += bool(plain)
        if len(self._count) > MAX_COMPOUNDS:
            # Names such as `A.B.jpg` can add many candidates for compound extensions (here
            # `b.jpg`). Keep only the candidates for which at least one key also has a file with a
            # plain extension, such as `A.txt`.
            self._count = Counter(
                {name: count for name, count in self._count.items() if self._with_plain[name]}
            )
            self._with_plain = +self._with_plain
            if len(self._count) > MAX_COMPOUNDS:
                raise FormatError(
                    f"more than {MAX_COMPOUNDS} compound extensions",
                    where=self._where,
                    hint="Pack a smaller folder, or list the files in a table.",
                )

    def found(self) -> frozenset[str]:
        """Return the compound extensions. Call this method after all names have been added."""
        for key in list(self._open):
            self._close(key)
        return frozenset(
            name for name, count in self._count.items() if 2 * self._with_plain[name] > count
        )


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _shown(name: str) -> str:
    """Return a file name as a key. Bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


class _CheckedEntries:
    """Iterate over the files in a folder, and compute a checksum of their names and sizes."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries, self._sums, self._lines = entries, Sums([DEFAULT]), list[str]()

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            if entry.name.startswith(_SCRATCH):
                continue
            self._lines.append(f"{entry.name}\0{entry.size}\n")
            if len(self._lines) >= _ROWS:
                self._update()
            yield entry

    def _update(self) -> None:
        self._sums.update("".join(self._lines).encode("utf-8", "surrogateescape"))
        self._lines.clear()

    def checksum(self) -> str:
        """Return the checksum of the files that have been yielded so far."""
        self._update()
        return self._sums.hex()[DEFAULT]


class _Survey:
    """Statistics about the files in a folder, from one listing.

    skipped       files that are not data, and all files that may be metadata files
    combinations  set of extensions -> number of keys with exactly these extensions
    names         set of extensions -> first keys with exactly these extensions
    spellings     extension -> its spelling in all file names; empty if its letter case differs
    checksum      checksum of the listing
    """

    def __init__(
        self,
        at: Location,
        listing: Iterable[Entry],
        rules: Rules,
        candidates: CompoundExtensions | None = None,
    ) -> None:
        self.at, self.skipped = at, Skipped()
        self.combinations = Counter[frozenset[str]]()
        self.names: dict[frozenset[str], list[str]] = {}
        self.spellings: dict[str, str] = {}
        entries = _CheckedEntries(listing)
        for group in groups(entries, rules, self.skipped, at, candidates):
            combination = frozenset(group.files)
            self.combinations[combination] += 1
            names = self.names.setdefault(combination, [])
            if len(names) <= MAX_SHOWN:
                names.append(group.key)
            if len(self.combinations) > MAX_COMBINATIONS:
                raise FormatError(
                    f"more than {MAX_COMBINATIONS} combinations of extensions",
                    where=at,
                    hint="Pack a smaller folder, or only the tables of the folder.",
                )
            for extension, name in group.files.items():
                spelling = name[len(group.key) + 1 :]
                if self.spellings.setdefault(extension, spelling) != spelling:
                    self.spellings[extension] = ""
        self.checksum = entries.checksum()


class _FileColumns:
    """The columns of files in a folder.

    of          extension -> column
    counts      column -> number of keys with a file for this column
    media       media columns that have a file for at least half of the keys
    extensions  column -> `Column.extension`
    notes       notes about file categories, such as `image`, that are split into several columns
    """

    def __init__(self, survey: _Survey, by_extension: bool) -> None:
        self.notes = list[str]()
        self.of = self._named(survey, by_extension)
        self.counts = Counter[str]()
        for combination, count in survey.combinations.items():
            self.counts.update(dict.fromkeys({self.of[one] for one in combination}, count))
        with_files = sum(survey.combinations.values()) - survey.combinations[frozenset()]
        self.media = {
            name
            for name, count in self.counts.items()
            if 2 * count >= with_files
            and (name in _MEDIA or category_of(name.rpartition(".")[2]) in _MEDIA)
        }
        spellings: dict[str, set[str]] = {}
        for extension, column in self.of.items():
            spellings.setdefault(column, set()).add(survey.spellings[extension])
        self.extensions = {
            column: next(iter(found))
            if len(found) == 1 and is_extension(*found)
            else f"{{{column}_extension}}"
            for column, found in spellings.items()
        }

    def _named(self, survey: _Survey, by_extension: bool) -> dict[str, str]:
        if by_extension:
            return {one: one for combination in survey.combinations for one in combination}
        separate = set[str]()
        for combination in survey.combinations:
            by_category: dict[str, list[str]] = {}
            for extension in combination:
                if (category := category_of(extension)) is not None:
                    by_category.setdefault(category, []).append(extension)
            for category, own in by_category.items():
                if len(own) > 1 and not separate.issuperset(own):
                    separate.update(own)
                    names = " and ".join(sorted(own))
                    key = escape(survey.names[combination][0])
                    self.notes.append(
                        f"{key} has {names} files, so {names} are separate columns, not {category}"
                    )
        return {
            extension: extension if extension in separate else category_of(extension) or extension
            for combination in survey.combinations
            for extension in combination
        }

    def of_files(self, files: dict[str, str]) -> dict[str, str]:
        """Convert a dict of extension -> file name to a dict of column -> file name."""
        return {self.of[extension]: name for extension, name in files.items()}

    def encodings(self) -> dict[str, str]:
        """Return column -> encoding, for columns whose encoding does not depend on the first row.

        The encoding of text files is `str`. The encoding of files of several types, such as jpeg
        and png, is `bytes`.
        """
        kinds: dict[str, set[str | None]] = {}
        for extension, column in self.of.items():
            kinds.setdefault(column, set()).add(
                "str" if category_of(extension) == "text" else kind_of(f".{extension}")
            )
        return {
            column: next(iter(found)) or "" if len(found) == 1 else "bytes"
            for column, found in kinds.items()
            if len(found) > 1 or found <= {"str", "json"}
        }


class FolderOptions(NamedTuple):
    """Options for reading a folder.

    columns        columns to read; None: all columns if incomplete rows are valid; otherwise, the
                   main column, and each column that has a file for at least half of the keys in the
                   main column
    folder_column  name of a column to add, which contains the first folder of each key; empty: none
    allow_missing  whether incomplete rows are valid, with nulls for missing files
    by_extension   True: each extension is a column; False: each category of files is a column
    used           other columns that the caller uses, such as the key
    where          condition on the rows; the columns in the condition are also used
    """

    columns: Sequence[str] | None = None
    folder_column: str = ""
    allow_missing: bool = False
    by_extension: bool = False
    used: Collection[str] = ()
    where: str | None = None


_NO_OPTIONS = FolderOptions()


class Folder(Part):
    """The files of a folder, grouped by key.

    listed      a stream with the files of the folder, if the caller has listed the folder
    files       the selected columns of files
    main        main column of files: the column with the most files, but a media column with files
                for at least half of the keys takes precedence
    key         name of the key column
    extensions  selected column of files -> `Column.extension`
    encodings   selected column of files -> encoding, unless the first row determines it
    notes       notes about skipped files, and about keys without a file for any requested column
    raises      MissingError if the folder does not exist; FormatError if it has no data files;
                UsageError for a column that does not exist
    """

    at: Location

    def __init__(
        self,
        at: Location,
        options: FolderOptions = _NO_OPTIONS,
        listed: Stream | None = None,
    ) -> None:
        self.at, self._options, self._listed = at, options, listed
        survey, columns = self._surveyed()
        if not columns.counts:
            notes = [*survey.skipped.notes(), *_no_extension(survey)]
            raise FormatError("no data file has an extension", where=at, hint=_sentence(notes))
        self._columns, self._checksum = columns, survey.checksum
        self.key = "key" if "key" not in columns.counts else "__key__"
        folder_column = options.folder_column
        self._check_other_columns()
        others = [*([folder_column] if folder_column else []), *self._metadata.schema.names]
        others += [column_of(one) for one in columns.extensions.values() if column_of(one)]
        requested = None
        if options.columns is not None:
            requested = [name for name in options.columns if name not in (self.key, *others)]
        self.main = self._main(survey, requested)
        self._has_requested = requested is not None
        self.files = sorted(set(self._chosen(survey) if requested is None else requested))
        if len(self.files) > MAX_COLUMNS:
            raise FormatError(
                f"more than {MAX_COLUMNS} extensions",
                where=at,
                hint="Use -c to select the columns to pack.",
            )
        self._main_columns = self.files or [self.main]
        self.extensions = {name: columns.extensions[name] for name in self.files}
        self.encodings = {
            name: encoding for name, encoding in columns.encodings().items() if name in self.files
        }
        # column of extensions, such as `image_extension` -> column of files, such as `image`
        self._extension_columns = {
            column_of(one): name for name, one in self.extensions.items() if column_of(one)
        }
        texts = [self.key, *self.files, *([folder_column] if folder_column else [])]
        self.schema = pa.schema(
            [
                *(pa.field(name, pa.string()) for name in texts),
                *self._metadata.schema,
                *(pa.field(name, pa.string()) for name in self._extension_columns),
            ]
        )
        self._problems = _Problems()
        self.rows = None
        self._is_described = self._uses_metadata()
        if not self._is_described:
            self.rows = sum(
                count * len(self._rows(Group("", dict.fromkeys(combination, ""))))
                for combination, count in survey.combinations.items()
            )
        self.notes = (
            *survey.skipped.notes(),
            *columns.notes,
            *self._keys_without_columns(survey),
        )

    def _listing(self) -> Iterator[Entry]:
        """Return the files in `listed` if their sizes are known; otherwise, list the folder."""
        if self._listed is None or self._listed.sizes is None:
            return self.at.list()
        return map(Entry, self._listed.urls, self._listed.sizes.tolist())

    def _surveyed(self) -> tuple[_Survey, _FileColumns]:
        """Return statistics about the files, and the columns of the files.

        The names are parsed with `_FIRST_RULES`, which skip documents (such as a README) and files
        that are named like metadata files. The listing is read again with other rules if some of
        these files must be packed as rows, or if there are compound extensions.
        """
        at, self._rules = self.at, _FIRST_RULES
        candidates = CompoundExtensions(at)
        survey = _Survey(at, self._listing(), self._rules, candidates)
        self._metadata = Metadata(at, survey.skipped.metadata)
        tables = frozenset(survey.skipped.metadata) - set(self._metadata.names)
        compounds = candidates.found()
        if compounds or tables:
            self._rules = Rules(compounds, tables=tables)
            survey = _Survey(at, self._listing(), self._rules)
        columns = _FileColumns(survey, self._options.by_extension)
        if survey.skipped.counts[_DOCUMENT] and not columns.media:
            self._rules = self._rules._replace(with_documents=True)
            survey = _Survey(at, self._listing(), self._rules)
            columns = _FileColumns(survey, self._options.by_extension)
        del survey.skipped.counts[_METADATA]
        return survey, columns

    def _uses_metadata(self) -> bool:
        """Return whether the options use a column of the metadata.

        If they do, the row of a key without metadata is reported as a failed row, unless incomplete
        rows are allowed.
        """
        if self._options.columns is None:
            return bool(self._metadata)
        where, names = self._options.where, self._metadata.schema.names
        used = {*self._options.columns, *self._options.used}
        used.update(() if where is None else sql.columns_of(where, names))
        return not used.isdisjoint(names)

    def _check_other_columns(self) -> None:
        """Raise an error if the columns of folders, metadata and extensions are not distinct."""
        own = {self.key, *self._columns.counts}
        own |= set(map(column_of, self._columns.extensions.values())) - {""}
        for name in self._metadata.schema.names:
            if name in own:
                raise FormatError(
                    f"column {name!r} has the same name as a column that is created from the files",
                    where=self.at / self._metadata.names[0],
                    hint="Rename the column in the metadata.",
                    column=name,
                )
        if self._options.folder_column in (*own, *self._metadata.schema.names):
            raise UsageError(
                f"--folder-column: column {self._options.folder_column!r} already exists",
                where=self.at,
                hint="Choose another name.",
            )

    def _chosen(self, survey: _Survey) -> list[str]:
        """Return the columns to read by default.

        These are the main column, and each column that has a file for at least half of the keys in
        the main column. If incomplete rows are allowed, all columns are returned.
        """
        if self._options.allow_missing:
            return list(self._columns.counts)
        with_main = Counter[str]()
        for combination, count in survey.combinations.items():
            names = {self._columns.of[one] for one in combination}
            if self.main in names:
                with_main.update(dict.fromkeys(names, count))
        return [name for name, count in with_main.items() if 2 * count >= with_main[self.main]]

    def _main(self, survey: _Survey, requested: Sequence[str] | None) -> str:
        """Return the main column: the requested column with the most files.

        If no columns were requested, all columns are compared. A media column with files for at
        least half of the keys takes precedence. If two columns have equally many files, the column
        whose name sorts first is returned.

        raises  UsageError if a requested column does not exist
        """
        counts, media = self._columns.counts, self._columns.media
        for name in requested or ():
            if name not in counts:
                column = self._columns.of.get(name.lower())
                raise UsageError(
                    f"no column {name!r}",
                    where=self.at,
                    hint=f"For .{name} files, use column {column!r}."
                    if column is not None
                    else choose(name, sorted(counts), "Choose from"),
                    column=name,
                )
        return min(
            requested or counts,
            key=lambda name: (name not in media, -counts[name], name),
        )

    def flaw(self, column: str, is_alone: bool, key: str) -> tuple[str, str] | None:
        """Return the error kind and message for a row that has no file for a column.

        is_alone  whether the row has no files at all
        return    kind and message; None if the options permit the missing file
        """
        if is_alone and (problem := self._problems.get(key)):
            return problem
        if not is_alone and self._options.allow_missing:
            return None
        if not is_alone or self._has_requested:
            return "incomplete", f"no {escape(column)} file for this key"
        if _NOT_UTF8.search(key):
            return "column", "the file name is not UTF-8"
        shown = ", ".join(escape(name) for name in self.files[:MAX_SHOWN])
        more = ", …" if len(self.files) > MAX_SHOWN else ""
        reason = f"no column for this file (columns: {shown}{more})"
        if key in self._rules.tables:
            reason += f"; a metadata file needs a column {FILE_NAME!r}"
        return "column", reason

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes that identify the folder, for a checksum of the source.

        These are the checksum of the listing and, if a column of the metadata is used, the contents
        of the metadata files.
        """
        yield _VERSION
        yield self._checksum.encode()
        if self._is_described:
            yield from self._metadata.blocks()

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield batches of keys, file names and metadata, with null for missing files.

        Raises FormatError if the folder changed after it was opened.
        """
        schema = self.selected(columns)
        requested = not set(schema.names).isdisjoint(self._metadata.schema.names)
        metadata = self._metadata.rows() if self._is_described or requested else None
        entries, rows = _CheckedEntries(self.at.list()), list[_Row]()
        for group in groups(entries, self._rules, where=self.at):
            if metadata is None:
                rows += self._rows(group)
            else:
                rows += self._described(group, metadata)
            if len(rows) >= _ROWS:
                yield self._batch(rows, schema, metadata)
                rows = []
        if entries.checksum() != self._checksum:
            raise FormatError(
                "the folder changed while it was being read",
                where=self.at,
                hint="Run the command again when no other process is writing to the folder.",
            )
        if metadata is not None:
            for place, kind, message in itertools.chain(metadata.problems, metadata.unused()):
                rows.append(self._failing(place, kind, message))
                if len(rows) >= _ROWS:
                    yield self._batch(rows, schema, metadata)
                    rows = []
        for start in range(0, len(rows), _ROWS):
            yield self._batch(rows[start : start + _ROWS], schema, metadata)

    def _rows(self, group: Group) -> list[_Row]:
        """Return the rows for a key.

        The first row contains the files of the key. It is omitted if the key has no file for any of
        `_main_columns`. If the user did not select columns, each file that belongs to none of the
        columns to read adds another row. This row contains only the file name, as its key, and is
        reported as failed.
        """
        files = self._columns.of_files(group.files)
        has_file = not files.keys().isdisjoint(self._main_columns)
        fits = [_Row(group.key, files)] if has_file else []
        needs_folder = self._options.folder_column and not self._options.allow_missing
        if fits and group.key and needs_folder and "/" not in group.key:
            message = f"not in a folder; column {self._options.folder_column!r} needs a folder name"
            fits = [self._failing(group.key, "incomplete", message)]
        if self._has_requested:
            return fits
        if not group.files:
            return [_Row(group.key, {})]
        return [
            *fits,
            *[_Row(name, {}) for column, name in files.items() if column not in self.files],
        ]

    def _described(self, group: Group, metadata: Rows) -> list[_Row]:
        """Return the rows for a key. The first row refers to the metadata row of the key."""
        found = metadata.take(list(group.files.values()) or [group.key])
        rows = self._rows(group)
        if not rows or not rows[0].files:
            return rows
        if len(found) > 1:
            places = " and ".join(metadata.place(row) for row in sorted(found))
            rows[0] = self._failing(
                group.key, "metadata", f"{places} describe files of the same key"
            )
        elif found:
            rows[0] = rows[0]._replace(metadata=found[0])
        elif not self._options.allow_missing:
            names = ", ".join(self._metadata.names[:MAX_SHOWN])
            rows[0] = self._failing(group.key, "incomplete", f"no row in {names} for this key")
        return rows

    def _failing(self, key: str, kind: str, message: str) -> _Row:
        """Return a row without files, and record its error, which `flaw` returns."""
        self._problems.add(key, kind, message)
        return _Row(key, {})

    def _batch(self, rows: list[_Row], schema: pa.Schema, metadata: Rows | None) -> pa.RecordBatch:
        arrays = list[pa.Array]()
        places = None
        for field in schema:
            name = field.name
            if name == self.key:
                arrays.append(pa.array([row.key for row in rows], pa.string()))
            elif name in self._columns.counts:
                arrays.append(pa.array([row.files.get(name) for row in rows], pa.string()))
            elif name in self._extension_columns:
                column = self._extension_columns[name]
                arrays.append(pa.array([row.extension(column) for row in rows], pa.string()))
            elif name == self._options.folder_column:
                arrays.append(pa.array([row.folder for row in rows], pa.string()))
            elif metadata is not None:
                if places is None:
                    places = pa.array([row.metadata for row in rows], pa.int64())
                arrays.append(metadata.table.column(name).take(places).combine_chunks())
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _keys_without_columns(self, survey: _Survey) -> Iterator[str]:
        """Yield a note about the skipped keys: keys without a file for any requested column."""
        columns = self._main_columns
        without_columns = [
            combination
            for combination in survey.combinations
            if {self._columns.of[one] for one in combination}.isdisjoint(columns)
        ]
        count = sum(survey.combinations[combination] for combination in without_columns)
        if self._has_requested and count:
            names = [key for combination in without_columns for key in survey.names[combination]]
            without = " or ".join(columns)
            yield f"skipped {format_count(count, 'key')} without {without}: {_first_names(names, count)}"


class _Problems:
    """Mapping of keys to error kinds and messages, in a temporary database.

    Because many keys may fail, SQLite keeps only a few megabytes in memory, and writes the other
    pages to a temporary file.
    """

    def __init__(self) -> None:
        self._database: sqlite3.Connection | None = None

    def add(self, key: str, kind: str, message: str) -> None:
        """Set the error of a key. Raises ReachError if the temporary file cannot be written."""
        database, values = self._open(), (_encoded(key), kind, _encoded(message))
        try:
            database.execute("INSERT OR REPLACE INTO problems VALUES (?, ?, ?)", values)
        except database.Error as error:
            raise ReachError(
                f"cannot write temporary files for the failed rows: {error}",
                where=tempfile.gettempdir(),
                hint="Set TMPDIR to a folder on a larger disk.",
            ) from None

    def get(self, key: str) -> tuple[str, str] | None:
        """Return the error kind and the message; None if the key has no error."""
        if self._database is None:
            return None
        query = "SELECT kind, message FROM problems WHERE key = ?"
        found = self._database.execute(query, (_encoded(key),)).fetchone()
        return None if found is None else (found[0], found[1].decode("utf-8", "surrogateescape"))

    def _open(self) -> sqlite3.Connection:
        if self._database is None:
            try:
                import sqlite3
            except ImportError:
                raise UsageError(
                    "this Python lacks the module sqlite3, which stores the errors of failed rows",
                    hint="Use a Python that was built with SQLite.",
                ) from None
            # An empty name creates an unnamed temporary file. Because transactions and the journal
            # are disabled, SQLite writes pages only if its cache is full.
            self._database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = OFF")
            self._database.execute(
                "CREATE TABLE problems (key BLOB PRIMARY KEY, kind TEXT, message BLOB) WITHOUT ROWID"
            )
        return self._database


def _encoded(text: str) -> bytes:
    """Return a text as bytes. The bytes of a file name that is not UTF-8 are unchanged."""
    return text.encode("utf-8", "surrogateescape")


class _Row(NamedTuple):
    """A row of the folder.

    files     column -> file name
    metadata  row number in the metadata; None if the key has no metadata row
    """

    key: str
    files: dict[str, str]
    metadata: int | None = None

    @property
    def folder(self) -> str | None:
        """Return the first folder in the key; None if the files are not in a folder."""
        folder, slash, _ = self.key.partition("/")
        return folder if slash and self.files else None

    def extension(self, column: str) -> str | None:
        """Return the extension of the file in a column, with the letter case of the file name."""
        name = self.files.get(column)
        return None if name is None else name[len(self.key) + 1 :]


def _no_extension(survey: _Survey) -> Iterator[str]:
    count = survey.combinations[frozenset()]
    if count:
        first = survey.names[frozenset()]
        fault = "without an extension"
        if any(map(_NOT_UTF8.search, first)):
            fault = "without an extension or with a name that is not UTF-8"
        yield f"{format_count(count, 'file')} {fault}: {_first_names(first, count)}"


def _sentence(notes: Sequence[str]) -> str:
    return f"Found {'; '.join(note.removeprefix('skipped ') for note in notes)}." if notes else ""


def _first_names(names: Sequence[str], count: int) -> str:
    shown = ", ".join(escape(name) for name in sorted(names)[:MAX_SHOWN])
    return shown if count <= MAX_SHOWN else f"{shown}, …"
