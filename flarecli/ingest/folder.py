"""A folder as a table: files that share a key are a row, and each extension is a column.

    a/000.jpg  a/000.txt  a/000.meta.json    row `a/000` with columns `jpg`, `txt`, `meta.json`

The key is the path up to the first dot of the file's own name; the extension, in lower case, is the rest. Columns hold
the names of the files: what is in them is read when the row is needed. The folder is listed twice, first to find the
columns and to count, then for the rows, and neither listing is held.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pyarrow as pa

from flarecli.errors import FormatError, UsageError
from flarecli.guesses import choose
from flarecli.hashes import DEFAULT, Sums
from flarecli.media import is_medium, kind_of
from flarecli.names import escape
from flarecli.storage import Entry, Location
from flarecli.units import format_count

__all__ = ["Folder", "Group", "groups"]

_ROWS = 8192
_MEANT = {"jpeg": "jpg", "jpg": "jpeg", "text": "txt"}
_COLUMNS, _MIXTURES = 1000, 10_000  # kinds of files, and of rows by the kinds they have
_NAMES = 5  # of each kind of what is left out, named to the user


class LeftOut:
    """What is left out: how many of each reason, and the first names."""

    def __init__(self) -> None:
        self.counts, self.names = Counter[str](), dict[str, list[str]]()

    def add(self, reason: str, name: str) -> None:
        self.counts[reason] += 1
        names = self.names.setdefault(reason, [])
        if len(names) <= _NAMES:
            names.append(name)


class Group(NamedTuple):
    """The files of one key: extension -> name."""

    key: str
    files: dict[str, str]


def groups(
    entries: Iterable[Entry], left_out: LeftOut | None = None, where: object = ""
) -> Iterator[Group]:
    """Group files by key, one group after another; entries come in bytewise order, so few are held.

    left_out  takes files that belong to no group; what is hidden, by a dot before a name, is not even that
    raises    FormatError for two files of one key and extension
    """
    open_groups: list[
        Group
    ] = []  # `a.d/x.jpg` stands between `a.c` and `a.jpg`: a few lie in one another
    for entry in entries:
        while open_groups and not entry.name.startswith(f"{open_groups[-1].key}."):
            yield open_groups.pop()
        folder, _, name = entry.name.rpartition("/")
        if name.startswith(".") or folder.startswith(".") or "/." in folder:
            continue
        stem, dot, extension = name.partition(".")
        reason = (
            "no extension"
            if not (dot and extension)
            else ""
            if _is_text(entry.name)
            else "a name that is not UTF-8"
        )
        if reason:
            if left_out is not None:
                left_out.add(reason, entry.name)
            continue
        key = f"{folder}/{stem}" if folder else stem
        if not open_groups or open_groups[-1].key != key:
            open_groups.append(Group(key, {}))
        extension = extension.lower()
        other = open_groups[-1].files.setdefault(extension, entry.name)
        if other != entry.name:
            raise FormatError(
                f"{other} and {entry.name} are both {extension!r} of {key!r}",
                where=where,
                hint="Rename one of them.",
            )
    while open_groups:
        yield open_groups.pop()


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class _Heard:
    """Entries on their way, summed as they pass: names and sizes."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries, self.sums = entries, Sums([DEFAULT])

    def __iter__(self) -> Iterator[Entry]:
        for entry in self._entries:
            self.sums.update(_line(entry))
            yield entry


def _line(entry: Entry) -> bytes:
    return f"{entry.name}\0{entry.size}\n".encode("utf-8", "surrogateescape")


class Folder:
    """The files below a folder, by key.

    columns  of those asked for, the one that most keys have is what makes a key a row; None: of all
    main     that column: files of keys without it are left out
    key      the name of the column of keys
    notes    what was left out, and which rows miss something
    raises   MissingError if there is no such folder; FormatError if there are no files to group; UsageError for a
             column that no file has
    """

    def __init__(self, at: Location, columns: Sequence[str] | None = None) -> None:
        self.at = at
        left_out = LeftOut()
        heard = _Heard(at.list())
        mixtures, named = Counter[frozenset[str]](), dict[frozenset[str], list[str]]()
        for group in groups(heard, left_out, at):
            mixture = frozenset(group.files)
            mixtures[mixture] += 1
            names = named.setdefault(mixture, [])
            if len(names) < _NAMES:
                names.append(group.key)
            if len(mixtures) > _MIXTURES:
                raise FormatError(
                    f"more than {_MIXTURES} kinds of rows",
                    where=at,
                    hint="Name the tables of the folder, or a smaller folder.",
                )
        self._sum = heard.sums.hex()[DEFAULT]
        if not mixtures:
            raise FormatError("no files with extensions", where=at)
        self.key = "key" if not any("key" in mixture for mixture in mixtures) else "__key__"
        self.main = _main(
            mixtures,
            at,
            None if columns is None else [name for name in columns if name != self.key],
        )
        found = sorted({name for mixture in mixtures if self.main in mixture for name in mixture})
        if len(found) > _COLUMNS:
            raise FormatError(
                f"more than {_COLUMNS} kinds of files",
                where=at,
                hint="Name the columns to pack with -c.",
            )
        self.extensions = [name for name in found if columns is None or name in columns]
        self.schema = pa.schema([(name, pa.string()) for name in (self.key, *self.extensions)])
        self.rows: int | None = sum(
            count for mixture, count in mixtures.items() if self.main in mixture
        )
        self.notes = tuple(_notes(self, mixtures, named, left_out))

    def blocks(self) -> Iterator[bytes]:
        """Give the listing that its sum is over: names and sizes."""
        return (_line(entry) for entry in self.at.list())

    def batches(self, columns: Sequence[str] | None) -> Iterator[pa.RecordBatch]:
        """Give keys and names of files, null where a key has none. Raises FormatError if the folder is no longer what it was."""
        schema = (
            self.schema
            if columns is None
            else pa.schema([self.schema.field(name) for name in columns])
        )
        heard, held = _Heard(self.at.list()), list[Group]()
        for group in groups(heard, where=self.at):
            if self.main in group.files:
                held.append(group)
            if len(held) == _ROWS:
                yield self._batch(held, schema)
                held = []
        if heard.sums.hex()[DEFAULT] != self._sum:
            raise FormatError(
                "the folder changed while it was read",
                where=self.at,
                hint="Run the command again when nothing writes there.",
            )
        if held:
            yield self._batch(held, schema)

    def _batch(self, held: list[Group], schema: pa.Schema) -> pa.RecordBatch:
        values = [
            [group.key if name == self.key else group.files.get(name) for group in held]
            for name in schema.names
        ]
        return pa.RecordBatch.from_arrays(
            [pa.array(one, pa.string()) for one in values], schema=schema
        )


def _main(mixtures: Counter[frozenset[str]], at: Location, asked: Sequence[str] | None) -> str:
    """Give the medium that most keys have, of those asked for, if half of them have it; else what most have, of equals the first by name."""
    counts = Counter[str]()
    for mixture, count in mixtures.items():
        for name in mixture:
            counts[name] += count
    for name in asked or ():
        if name not in counts:
            raise UsageError(
                f"no file is {name!r}",
                where=at,
                hint=choose(name, sorted(counts), "Choose from", _MEANT),
            )
    choice = list(asked) if asked else sorted(counts)
    half = mixtures.total() / 2
    return min(
        choice,
        key=lambda name: (
            not (is_medium(kind_of(f".{name}")) and counts[name] >= half),
            -counts[name],
            name,
        ),
    )


def _notes(
    folder: Folder,
    mixtures: Counter[frozenset[str]],
    named: dict[frozenset[str], list[str]],
    left_out: LeftOut,
) -> Iterator[str]:
    for reason, count in left_out.counts.items():
        yield f"left out {format_count(count, 'file')} with {reason}: {_some(left_out.names[reason], count)}"
    lacking = [mixture for mixture in mixtures if folder.main not in mixture]
    if lacking:
        count = sum(mixtures[mixture] for mixture in lacking)
        yield f"left out {format_count(count, 'key')} without {folder.main}: {_some([key for one in lacking for key in named[one]], count)}"
    for name in folder.extensions:
        lacking = [
            mixture for mixture in mixtures if folder.main in mixture and name not in mixture
        ]
        if lacking:
            count = sum(mixtures[mixture] for mixture in lacking)
            yield f"{format_count(count, 'row')} without {name}: {_some([key for one in lacking for key in named[one]], count)}"


def _some(names: Sequence[str], count: int) -> str:
    shown = ", ".join(escape(name) for name in sorted(names)[:_NAMES])
    return shown if count <= _NAMES else f"{shown}, …"
