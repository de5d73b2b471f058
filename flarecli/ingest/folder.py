"""A folder as a table: files with the same key are a row, and each extension is a column.

    a/000.jpg  a/000.txt  a/000.meta.json    row `a/000` with columns `jpg`, `txt`, `meta.json`

The key is the path up to the last dot of the file name; the extension, in lower case, is the rest.
A compound extension such as `meta.json` starts with a letter, and most of its keys must have a file
with a plain extension too: `IMG_2024.01.02.jpg` has the key `IMG_2024.01.02`.

Every data file becomes part of a row. If a key lacks a column, it is null there; a file that fits
no column is a row of its own, with its name as key and only nulls. A pack reports both as failed
rows. Hidden files, files of desktops (Thumbs.db), and README and LICENSE files in a folder of media
are not data: they are counted in `notes`.

Columns contain file names; files are read when a row is needed. The folder is listed twice, first
for the columns and the number of rows, then for the rows; and once more for compound extensions,
and if README files are data. A listing is never held in memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from flarecli.errors import FormatError, UsageError
from flarecli.hashes import DEFAULT, Sums
from flarecli.ingest.base import Part
from flarecli.media import is_media, kind_of
from flarecli.names import escape
from flarecli.storage import Entry, Location
from flarecli.suggest import choose
from flarecli.units import format_count

__all__ = ["Folder", "Group", "Rules", "data_among", "groups"]

_ROWS = 8192
_MEANT = {"jpeg": "jpg", "jpg": "jpeg", "text": "txt"}
MAX_COLUMNS = 1000
MAX_MIXTURES = 10_000  # sets of extensions that a key may have
MAX_COMPOUNDS = 10_000  # candidates for compound extensions that are counted at once
SHOWN_NAMES = 5  # examples in a note
_DESKTOP = frozenset({"thumbs.db", "ehthumbs.db", "desktop.ini"})
_DOCUMENTS = frozenset({"readme", "license", "licence"})
_OF_DOCUMENTS = frozenset(
    {"readme", "license", "licence", "md", "markdown", "rst", "txt", "html", "pdf"}
)
_HIDDEN, _SYSTEM, _DOCUMENT = "hidden file", "desktop file", "README or LICENSE file"


class LeftOut:
    """Names of files that are left out: how many for each reason, and the first of them."""

    def __init__(self) -> None:
        self.counts, self.names = Counter[str](), dict[str, list[str]]()

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] += 1
        names = self.names.setdefault(reason, [])
        if len(names) <= SHOWN_NAMES:
            names.append(name)

    def notes(self) -> Iterator[str]:
        """Yield a line for each reason."""
        for reason, count in self.counts.items():
            yield f"skipped {format_count(count, reason)}: {_some(self.names[reason], count)}"


class Rules(NamedTuple):
    """How the file names of a folder are split.

    compounds       compound extensions
    with_documents  whether README and LICENSE files are data
    """

    compounds: frozenset[str] = frozenset()
    with_documents: bool = False


_FIRST_RULES = Rules()


class Group(NamedTuple):
    """The files of one key: extension -> name. Empty for a file without an extension or not in
    UTF-8.
    """

    key: str
    files: dict[str, str]


def data_among(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the names of data files among those that a wildcard matched, and a note for each other
    kind.

    Hidden files are kept, because only a wildcard with a dot matches them.
    """
    has_media = 2 * sum(is_media(kind_of(name)) for name in names) >= len(names)
    left_out, kept = LeftOut(), list[str]()
    for name in names:
        reason = _reason_to_skip(name.rpartition("/")[2].lstrip("."), not has_media)
        if reason:
            left_out.add(reason, name)
        else:
            kept.append(name)
    return kept, list(left_out.notes())


def _reason_to_skip(name: str, with_documents: bool = False) -> str:
    """Return why a file is not data: hidden, a desktop file, or a README; empty if it is data."""
    folder, _, last = name.rpartition("/")
    if last.startswith(".") or folder.startswith(".") or "/." in folder:
        return _HIDDEN
    last = last.lower()
    if last in _DESKTOP:
        return _SYSTEM
    if with_documents or last.partition(".")[0] not in _DOCUMENTS:
        return ""
    return _DOCUMENT if last.rpartition(".")[2] in _OF_DOCUMENTS else ""


def groups(
    entries: Iterable[Entry],
    rules: Rules = _FIRST_RULES,
    left_out: LeftOut | None = None,
    where: object = "",
) -> Iterator[Group]:
    """Group files by key; entries are in bytewise order, so few groups are open at a time.

    left_out  collects files that are not data
    raises    FormatError for two files with the same key and extension
    """
    open_groups: list[Group] = []  # `a.d/x.jpg` is listed between `a.c` and `a.jpg`
    for entry in entries:
        name = entry.name
        while open_groups and not name.startswith(f"{open_groups[-1].key}."):
            yield open_groups.pop()
        reason = _reason_to_skip(name, rules.with_documents)
        if reason:
            if left_out is not None:
                left_out.add(reason, name)
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
                hint="Rename one of them.",
            )
    while open_groups:
        yield open_groups.pop()


def _split_name(name: str, compounds: frozenset[str]) -> tuple[str, str]:
    """Split a name into key and extension: before the longest known compound, or at the last dot."""
    if compounds:
        for key, extension in _compounds(name):
            if extension.lower() in compounds:
                return key, extension
    folder, slash, last = name.rpartition("/")
    stem, _, extension = last.rpartition(".")
    return (f"{folder}{slash}{stem}", extension) if stem else (name, "")


def _compounds(name: str) -> list[tuple[str, str]]:
    """Return the possible splits of a name into a key and a compound extension.

    Each part of the extension but the last starts with a letter.
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
    """Finds compound extensions: those for which most keys have a file with a plain extension too."""

    def __init__(self, where: object) -> None:
        self._where = where
        self._count, self._with_plain = Counter[str](), Counter[str]()
        self._open: dict[
            str, tuple[list[str], list[str]]
        ] = {}  # key -> plain extensions, compound extensions

    def add(self, name: str) -> None:
        """Count a name; names must be added in bytewise order."""
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
            # Names such as `First.Last.jpg` make each last name a candidate.
            self._count = Counter(
                {name: count for name, count in self._count.items() if self._with_plain[name]}
            )
            self._with_plain = +self._with_plain
            if len(self._count) > MAX_COMPOUNDS:
                raise FormatError(
                    f"more than {MAX_COMPOUNDS} compound extensions",
                    where=self._where,
                    hint="Pack a smaller folder, or list its files in a table.",
                )

    def found(self) -> frozenset[str]:
        """Return the compound extensions, after all names were added."""
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
    """Return a name as a key; bytes that are not UTF-8 are escaped."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _is_media(extension: str) -> bool:
    return is_media(kind_of(f".{extension}"))


class _SummedEntries:
    """An iterable of entries that computes a checksum of their names and sizes."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries, self.sums = entries, Sums([DEFAULT])

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.sums.update(_line(entry))
            yield entry


def _line(entry: Entry) -> bytes:
    return f"{entry.name}\0{entry.size}\n".encode("utf-8", "surrogateescape")


class _Survey:
    """The result of one listing: the extensions of the keys, files that are not data, compound
    extensions.
    """

    def __init__(self, at: Location, rules: Rules) -> None:
        self.at, self.left_out = at, LeftOut()
        self.mixtures = Counter[frozenset[str]]()
        self.named: dict[frozenset[str], list[str]] = {}
        entries, candidates = _SummedEntries(at.list()), _Candidates(at)
        for group in groups(self._counted(entries, candidates), rules, self.left_out, at):
            mixture = frozenset(group.files)
            self.mixtures[mixture] += 1
            names = self.named.setdefault(mixture, [])
            if len(names) <= SHOWN_NAMES:
                names.append(group.key)
            if len(self.mixtures) > MAX_MIXTURES:
                raise FormatError(
                    f"more than {MAX_MIXTURES} combinations of extensions",
                    where=at,
                    hint="Pack a smaller folder, or the tables of the folder.",
                )
        self.counts = Counter[str]()
        for mixture, count in self.mixtures.items():
            for name in mixture:
                self.counts[name] += count
        self.sum = entries.sums.hex()[DEFAULT]
        half = sum(count for mixture, count in self.mixtures.items() if mixture) / 2
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

    columns     extensions to read; None: those that half of the keys with the main one have
    extensions  the columns that were chosen
    main        the extension that this choice is based on: a media file if half of the keys have
                one
    key         name of the column of keys
    notes       files that are not data, and keys without any of the columns asked for
    raises      MissingError if the folder does not exist; FormatError if it has no data files;
                UsageError for a column that no file has
    """

    at: Location

    def __init__(self, at: Location, columns: Sequence[str] | None = None) -> None:
        self.at = at
        rules = _FIRST_RULES
        survey = _Survey(at, rules)
        if survey.compounds:
            rules = Rules(survey.compounds)
            survey = _Survey(at, rules)
        if survey.left_out.counts[_DOCUMENT] and not survey.media:
            rules = Rules(rules.compounds, with_documents=True)
            survey = _Survey(at, rules)
        self._rules, self._sum, mixtures = rules, survey.sum, survey.mixtures
        if not survey.counts:
            found = [*survey.left_out.notes(), *_no_extension(survey)]
            raise FormatError("no data files with extensions", where=at, hint=_sentence(found))
        self.key = "key" if "key" not in survey.counts else "__key__"
        asked = None if columns is None else [name for name in columns if name != self.key]
        self.main = _main(survey, asked)
        self._is_asked = columns is not None
        with_main = Counter[str]()
        for mixture, count in mixtures.items():
            if self.main in mixture:
                with_main.update(dict.fromkeys(mixture, count))
        chosen = (
            [name for name, count in with_main.items() if 2 * count >= with_main[self.main]]
            if asked is None
            else asked
        )
        if len(chosen) > MAX_COLUMNS:
            raise FormatError(
                f"more than {MAX_COLUMNS} extensions",
                where=at,
                hint="Name the columns to pack with -c.",
            )
        self.extensions = sorted(set(chosen))
        self.schema = pa.schema([(name, pa.string()) for name in (self.key, *self.extensions)])
        self.rows = sum(
            count * len(self._rows(Group("", dict.fromkeys(mixture, ""))))
            for mixture, count in mixtures.items()
        )
        self.notes = (*survey.left_out.notes(), *self._not_asked(survey))

    def flaw(self, column: str, is_alone: bool) -> tuple[str, str]:
        """Return kind and message for a row that has no file for a column.

        is_alone  the row has no file for any column, because it stands for a file that fits none
        """
        if not is_alone or self._is_asked:
            return "incomplete", f"no {escape(column)} file for this key"
        shown = ", ".join(escape(name) for name in self.extensions[:SHOWN_NAMES])
        more = ", …" if len(self.extensions) > SHOWN_NAMES else ""
        return "column", f"no column for this file (columns: {shown}{more})"

    def blocks(self) -> Iterator[bytes]:
        """Yield the listing as bytes, for its checksum: names and sizes."""
        return (_line(entry) for entry in self.at.list())

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Yield keys and file names, null for missing files.

        Raises FormatError if the folder has changed.
        """
        schema = self.selected(columns)
        entries, held = _SummedEntries(self.at.list()), list[Group]()
        for group in groups(entries, self._rules, where=self.at):
            held += self._rows(group)
            if len(held) >= _ROWS:
                yield self._batch(held, schema)
                held = []
        if entries.sums.hex()[DEFAULT] != self._sum:
            raise FormatError(
                "the folder changed while it was read",
                where=self.at,
                hint="Run the command again when no other process writes the folder.",
            )
        if held:
            yield self._batch(held, schema)

    def _rows(self, group: Group) -> list[Group]:
        """Return the rows of a key: one for its columns, and one for each file that fits no column."""
        columns = self.extensions or [self.main]
        fits = [group] if any(name in group.files for name in columns) else []
        if self._is_asked:
            return fits
        if not group.files:
            return [group]
        return [
            *fits,
            *(Group(name, {}) for key, name in group.files.items() if key not in self.extensions),
        ]

    def _batch(self, held: list[Group], schema: pa.Schema) -> pa.RecordBatch:
        values = [
            [group.key if name == self.key else group.files.get(name) for group in held]
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(column, pa.string()) for column in values], schema=schema
        )

    def _not_asked(self, survey: _Survey) -> Iterator[str]:
        """Yield a note about keys that have none of the columns asked for."""
        columns = self.extensions or [self.main]
        lacking = [mixture for mixture in survey.mixtures if mixture.isdisjoint(columns)]
        count = sum(survey.mixtures[mixture] for mixture in lacking)
        if self._is_asked and count:
            names = [key for mixture in lacking for key in survey.named[mixture]]
            without = " or ".join(columns)
            yield f"left out {format_count(count, 'key')} without {without}: {_some(names, count)}"


def _main(survey: _Survey, asked: Sequence[str] | None) -> str:
    """Return the extension that most keys have, of those asked for; media files take precedence.

    A media extension counts if half of the keys have it. Ties are resolved by name.
    """
    for name in asked or ():
        if name not in survey.counts:
            raise UsageError(
                f"no file has the extension {name!r}",
                where=survey.at,
                hint=choose(name, sorted(survey.counts), "Choose from", _MEANT),
            )
    return min(
        asked or survey.counts,
        key=lambda name: (name not in survey.media, -survey.counts[name], name),
    )


def _no_extension(survey: _Survey) -> Iterator[str]:
    count = survey.mixtures[frozenset()]
    if count:
        names = _some(survey.named[frozenset()], count)
        yield f"{format_count(count, 'file')} without an extension: {names}"


def _sentence(found: Sequence[str]) -> str:
    return f"Found {'; '.join(note.removeprefix('skipped ') for note in found)}." if found else ""


def _some(names: Sequence[str], count: int) -> str:
    shown = ", ".join(escape(name) for name in sorted(names)[:SHOWN_NAMES])
    return shown if count <= SHOWN_NAMES else f"{shown}, …"
