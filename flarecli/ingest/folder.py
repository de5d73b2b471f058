"""Folder index: files with the same key form a row, and each extension is a column.

    a/000.jpg  a/000.txt  a/000.meta.json    row `a/000` with columns `jpg`, `txt`, `meta.json`

The key is the path up to the last dot of the file name, and the extension is the text after this
dot, in lower case. A compound extension such as `meta.json` starts with a letter, and most keys
with this extension must also have a file with a plain extension. Therefore, `IMG_2024.01.02.jpg`
has the key `IMG_2024.01.02`.

Every data file is part of a row. If a key has no file for a column, the value is null. A file whose
extension is not a column becomes a row that has the file name as its key and only null values.
`flare pack` reports both types of rows as failed. Hidden files, desktop files such as Thumbs.db,
and README and LICENSE files in a media folder are not data; `notes` lists how many were skipped.

Columns contain file names; a file is read when its row is needed. The folder is listed once to find
the columns and the number of rows, and again to read the rows. Compound extensions require an
additional listing, and so do README files that are data. A listing is never kept in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from flarecli.errors import FormatError, UsageError
from flarecli.formats.tables.base import Part
from flarecli.hashes import DEFAULT, Sums
from flarecli.media import is_media, kind_of
from flarecli.names import escape
from flarecli.storage import Entry, Location
from flarecli.suggest import choose
from flarecli.units import format_count

__all__ = ["Folder", "Group", "Rules", "data_among", "groups"]

_ROWS = 8192
_SYNONYMS = {"jpeg": "jpg", "jpg": "jpeg", "text": "txt"}
MAX_COLUMNS = 1000
MAX_COMBINATIONS = 10_000  # maximum number of distinct extension sets
MAX_COMPOUNDS = 10_000  # maximum number of compound extension candidates in memory
MAX_SHOWN = 5  # file names listed in a note
_DESKTOP = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
_DOCUMENTS = frozenset({"readme", "license", "licence"})
_DOCUMENT_SUFFIXES = frozenset(
    {"readme", "license", "licence", "md", "markdown", "rst", "txt", "html", "pdf"}
)
_HIDDEN, _SYSTEM, _DOCUMENT = "hidden file", "desktop file", "README or LICENSE file"


class Skipped:
    """For each reason, the number of skipped files and the first of their names."""

    def __init__(self) -> None:
        self.counts, self.names = Counter[str](), dict[str, list[str]]()

    def add(self, reason: str, name: str) -> None:
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
    with_documents  whether README and LICENSE files are data
    """

    compounds: frozenset[str] = frozenset()
    with_documents: bool = False


_FIRST_RULES = Rules()


class Group(NamedTuple):
    """The files of one key.

    A file without an extension, or with a name that is not UTF-8, becomes a group without files.

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
    folder, _, last = name.rpartition("/")
    if last.startswith(".") or folder.startswith(".") or "/." in folder:
        return _HIDDEN
    last = last.lower()
    if last in _DESKTOP:
        return _SYSTEM
    if with_documents or last.partition(".")[0] not in _DOCUMENTS:
        return ""
    return _DOCUMENT if last.rpartition(".")[2] in _DOCUMENT_SUFFIXES else ""


def groups(
    entries: Iterable[Entry],
    rules: Rules = _FIRST_RULES,
    skipped: Skipped | None = None,
    where: object = "",
) -> Iterator[Group]:
    """Group files by key. Entries are in bytewise order, so few groups are incomplete at a time.

    skipped  collector for files that are not data
    raises   FormatError for two files with the same key and extension
    """
    # Several groups may be incomplete: `a.d/x.jpg` is listed between `a.c` and `a.jpg`.
    open_groups: list[Group] = []
    for entry in entries:
        name = entry.name
        while open_groups and not name.startswith(f"{open_groups[-1].key}."):
            yield open_groups.pop()
        reason = _reason_to_skip(name, rules.with_documents)
        if reason:
            if skipped is not None:
                skipped.add(reason, name)
            continue
        key, extension = _split_name(name, rules.compounds)
        if not extension or not _is_text(name):
            yield Group(_shown(name), {})
            continue
        group = next((group for group in open_groups if group.key == key), None)
        if group is None:
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
    folder, slash, last = name.rpartition("/")
    parts = last.split(".")
    found: list[tuple[str, str]] = []
    if not parts[-1]:
        return found
    for at in range(len(parts) - 2, 0, -1):
        if not parts[at][:1].isalpha():
            break
        found.append((f"{folder}{slash}{'.'.join(parts[:at])}", ".".join(parts[at:])))
    return found[::-1]


class _Candidates:
    """Detector for compound extensions.

    Most keys with a compound extension must also have a file with a plain extension.
    """

    def __init__(self, where: object) -> None:
        self._where = where
        self._count, self._with_plain = Counter[str](), Counter[str]()
        # key -> its plain extensions and its compound extensions
        self._open: dict[str, tuple[list[str], list[str]]] = {}

    def add(self, name: str) -> None:
        """Count a name. Names must be added in bytewise order."""
        for key in [key for key in self._open if not name.startswith(f"{key}.")]:
            self._close(key)
        key, plain = _split_name(name, frozenset())
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
            # drop candidates without a plain extension; names like `A.B.jpg` add many candidates
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
        """Return the compound extensions. Call this after all names were added."""
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


def _is_media(extension: str) -> bool:
    return is_media(kind_of(f".{extension}"))


class _CheckedEntries:
    """An iterable of entries that computes a checksum of their names and sizes."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries, self._sums = entries, Sums([DEFAULT])

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self._sums.update(_line(entry))
            yield entry

    def checksum(self) -> str:
        """Return the checksum of the entries that were read so far."""
        return self._sums.hex()[DEFAULT]


def _line(entry: Entry) -> bytes:
    return f"{entry.name}\0{entry.size}\n".encode("utf-8", "surrogateescape")


class _Survey:
    """Statistics about the files in a folder, from one listing.

    skipped       files that are not data
    combinations  set of extensions -> number of keys with exactly these extensions
    names         set of extensions -> first keys with exactly these extensions
    counts        extension -> number of keys
    checksum      checksum of the listing
    media         media extensions that at least half of the keys have
    compounds     compound extensions
    """

    def __init__(self, at: Location, rules: Rules) -> None:
        self.at, self.skipped = at, Skipped()
        self.combinations = Counter[frozenset[str]]()
        self.names: dict[frozenset[str], list[str]] = {}
        entries, candidates = _CheckedEntries(at.list()), _Candidates(at)
        for group in groups(self._counted(entries, candidates), rules, self.skipped, at):
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
        self.counts = Counter[str]()
        for combination, count in self.combinations.items():
            for name in combination:
                self.counts[name] += count
        self.checksum = entries.checksum()
        half = sum(count for combination, count in self.combinations.items() if combination) / 2
        self.media = [
            name for name, count in self.counts.items() if _is_media(name) and count >= half
        ]
        self.compounds = candidates.found()

    @staticmethod
    def _counted(entries: Iterable[Entry], candidates: _Candidates) -> Iterator[Entry]:
        for entry in entries:
            if not _reason_to_skip(entry.name):
                candidates.add(entry.name)
            yield entry


class Folder(Part):
    """The files of a folder, grouped by key.

    columns     extensions to read; None: extensions that at least half of the keys with the main
                extension have
    extensions  the selected columns
    main        main extension: the most frequent one, or a media extension that at least half
                of the keys have
    key         name of the key column
    notes       notes on skipped files, and on keys without any of the requested columns
    raises      MissingError if the folder does not exist; FormatError if it has no data files;
                UsageError if no file has a requested extension
    """

    at: Location

    def __init__(self, at: Location, columns: Sequence[str] | None = None) -> None:
        self.at = at
        rules = _FIRST_RULES
        survey = _Survey(at, rules)
        if survey.compounds:
            rules = Rules(survey.compounds)
            survey = _Survey(at, rules)
        if survey.skipped.counts[_DOCUMENT] and not survey.media:
            rules = Rules(rules.compounds, with_documents=True)
            survey = _Survey(at, rules)
        self._rules, self._checksum, combinations = rules, survey.checksum, survey.combinations
        if not survey.counts:
            notes = [*survey.skipped.notes(), *_no_extension(survey)]
            raise FormatError("no data files with extensions", where=at, hint=_sentence(notes))
        self.key = "key" if "key" not in survey.counts else "__key__"
        requested = None if columns is None else [name for name in columns if name != self.key]
        self.main = _main(survey, requested)
        self._has_requested = columns is not None
        with_main = Counter[str]()
        for combination, count in combinations.items():
            if self.main in combination:
                with_main.update(dict.fromkeys(combination, count))
        chosen = (
            [name for name, count in with_main.items() if 2 * count >= with_main[self.main]]
            if requested is None
            else requested
        )
        if len(chosen) > MAX_COLUMNS:
            raise FormatError(
                f"more than {MAX_COLUMNS} extensions",
                where=at,
                hint="Use -c to select the columns to pack.",
            )
        self.extensions = sorted(set(chosen))
        self.schema = pa.schema([(name, pa.string()) for name in (self.key, *self.extensions)])
        self.rows = sum(
            count * len(self._rows(Group("", dict.fromkeys(combination, ""))))
            for combination, count in combinations.items()
        )
        self.notes = (*survey.skipped.notes(), *self._keys_without_columns(survey))

    def flaw(self, column: str, is_alone: bool) -> tuple[str, str]:
        """Return the error kind and message for a row that has no file for a column.

        is_alone  whether the row contains only a file whose extension is not a column
        """
        if not is_alone or self._has_requested:
            return "incomplete", f"no {escape(column)} file for this key"
        shown = ", ".join(escape(name) for name in self.extensions[:MAX_SHOWN])
        more = ", …" if len(self.extensions) > MAX_SHOWN else ""
        return "column", f"no column for this file (columns: {shown}{more})"

    def blocks(self) -> Iterator[bytes]:
        """Yield the names and sizes of the files as bytes, for the checksum."""
        return (_line(entry) for entry in self.at.list())

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield batches of keys and file names, with null for missing files.

        Raises FormatError if the folder changed after it was opened.
        """
        schema = self.selected(columns)
        entries, rows = _CheckedEntries(self.at.list()), list[Group]()
        for group in groups(entries, self._rules, where=self.at):
            rows += self._rows(group)
            if len(rows) >= _ROWS:
                yield self._batch(rows, schema)
                rows = []
        if entries.checksum() != self._checksum:
            raise FormatError(
                "the folder changed while it was being read",
                where=self.at,
                hint="Run the command again when no other process is writing to the folder.",
            )
        if rows:
            yield self._batch(rows, schema)

    def _rows(self, group: Group) -> list[Group]:
        """Return the rows for a key: a row for the columns, and a row for each unmatched file."""
        columns = self.extensions or [self.main]
        fits = [group] if any(name in group.files for name in columns) else []
        if self._has_requested:
            return fits
        if not group.files:
            return [group]
        return [
            *fits,
            *(Group(name, {}) for key, name in group.files.items() if key not in self.extensions),
        ]

    def _batch(self, rows: list[Group], schema: pa.Schema) -> pa.RecordBatch:
        values = [
            [group.key if name == self.key else group.files.get(name) for group in rows]
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, pa.string()) for column in values], schema=schema
        )

    def _keys_without_columns(self, survey: _Survey) -> Iterator[str]:
        """Yield a note if keys without any of the requested columns were skipped."""
        columns = self.extensions or [self.main]
        without_columns = [
            combination for combination in survey.combinations if combination.isdisjoint(columns)
        ]
        count = sum(survey.combinations[combination] for combination in without_columns)
        if self._has_requested and count:
            names = [key for combination in without_columns for key in survey.names[combination]]
            without = " or ".join(columns)
            yield f"skipped {format_count(count, 'key')} without {without}: {_first_names(names, count)}"


def _main(survey: _Survey, requested: Sequence[str] | None) -> str:
    """Return the most frequent extension, among the requested extensions or among all.

    A media extension that at least half of the keys have takes precedence. Names break ties.
    """
    for name in requested or ():
        if name not in survey.counts:
            raise UsageError(
                f"no file has the extension {name!r}",
                where=survey.at,
                hint=choose(name, sorted(survey.counts), "Choose from", _SYNONYMS),
            )
    return min(
        requested or survey.counts,
        key=lambda name: (name not in survey.media, -survey.counts[name], name),
    )


def _no_extension(survey: _Survey) -> Iterator[str]:
    count = survey.combinations[frozenset()]
    if count:
        names = _first_names(survey.names[frozenset()], count)
        yield f"{format_count(count, 'file')} without an extension: {names}"


def _sentence(notes: Sequence[str]) -> str:
    return f"Found {'; '.join(note.removeprefix('skipped ') for note in notes)}." if notes else ""


def _first_names(names: Sequence[str], count: int) -> str:
    shown = ", ".join(escape(name) for name in sorted(names)[:MAX_SHOWN])
    return shown if count <= MAX_SHOWN else f"{shown}, …"
