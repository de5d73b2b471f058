"""Names of unpacked files: a pattern filled from the row, checked before anything is written.

{key}     the value of the key column        {row}     the row's number, padded with zeros
{column}  the column that the file is of     {ext}     by the column's encoding, else by the bytes
          themselves
{…}       the value of any other column that is no file
"""

from __future__ import annotations

import re
import string
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from flarecli.encodings import encoding_of
from flarecli.errors import FlareError, FormatError, UnsafeError, UsageError, ValueFitError
from flarecli.media import extension_of, kind_of, sniff
from flarecli.model import IntArray
from flarecli.names import DEVICE, check_name, collision_key, name_fault
from flarecli.suggest import choose
from flarecli.write import Keys

__all__ = ["ADDRESS", "ROW", "Naming", "Taken", "Where", "guessed_key", "pieces"]

Where: TypeAlias = Callable[
    [int], object
]  # number of a row -> its address, which is made into a text when it is needed

ROW, ADDRESS = (
    "__flare_row__",
    "__flare_address__",
)  # columns that travel with a row and are no part of it
_KEYS = ("key", "__key__", "data_id", "id")
_FOLDERS = 1 << 62  # what folders are counted from, among the files' numbers
_UNKNOWN = "*"  # stands for an extension that only the bytes tell
_OTHERWISE = "Give --name another pattern, such as '{row}.{ext}', or --key another column."
_PADDING = re.compile(r"(?:0?[1-9][0-9]?)?d?")  # what may stand behind `row:`
_TEXTS = {
    "str": "txt",
    "json": "json",
    "str_int": "txt",
    "str_float": "txt",
    "str_decimal": "txt",
    "pkl": "pkl",
}


def guessed_key(schema: pa.Schema) -> str | None:
    """Return the column with a usual name of a key, if there is one."""
    return next(
        (name for name in _KEYS if name in schema.names and _is_plain(schema.field(name).type)),
        None,
    )


def _is_plain(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
    )


def pieces(array: pa.Array) -> list[memoryview | None]:
    """Return the bytes of each value of a binary or text column, as views; None for a null."""
    array = array.cast(pa.large_binary())
    offsets = memoryview(array.buffers()[1]).cast("q")[array.offset : array.offset + len(array) + 1]
    data = memoryview(array.buffers()[2] or b"")
    valid = array.is_valid().to_pylist() if array.null_count else [True] * len(array)
    return [
        data[start:stop] if is_valid else None
        for start, stop, is_valid in zip(offsets, offsets[1:], valid, strict=False)
    ]


def _check_pattern(pattern: str, filled: str) -> None:
    """Raise UsageError for a pattern that leaves the folder."""
    if reason := name_fault(filled):
        raise UsageError(
            f"--name {pattern!r}: it {reason}",
            hint="Write it like '{key}.{ext}' or 'a/{key}.{ext}'.",
        )


class Naming:
    """Names for the files of rows.

    pattern  None: `{key}.{ext}`, or `{row}.{ext}` without a key; with `{column}` between if a row
             has several files, and without `.{ext}` where the column is called like it: the member
             `a.jpg` of a tar comes back as `a.jpg`
    files    the columns that become files
    digits   of a row's number
    raises   UsageError if the pattern names what is not there
    """

    def __init__(
        self,
        pattern: str | None,
        key: str | None,
        schema: pa.Schema,
        files: Sequence[str],
        digits: int,
    ) -> None:
        first = "{row}" if key is None else "{key}"
        self.pattern = pattern or (
            f"{first}.{{column}}.{{ext}}" if len(files) > 1 else f"{first}.{{ext}}"
        )
        self._schema, self._files, self._digits = schema, tuple(files), digits
        try:
            parsed = list(string.Formatter().parse(self.pattern))
        except ValueError as error:
            raise UsageError(
                f"--name {self.pattern!r}: {error}", hint="Write it like '{key}.{ext}'."
            ) from None
        for _, field, spec, conversion in parsed:
            if conversion or (spec and (field != "row" or not _PADDING.fullmatch(spec))):
                hint = "Only {row:04d} does: how far it is padded."
                raise UsageError(
                    f"--name {self.pattern!r}: {{{field}}} takes nothing behind its name", hint=hint
                )
        self._shortens = pattern is None and len(files) > 1
        others = [
            name
            for name in schema.names
            if name not in files and name not in (ROW,) and not name.startswith(ADDRESS)
        ]
        for _, field, _, _ in parsed:
            if field == "key" and key is None and "key" not in others:
                raise UsageError(
                    "--name asks for {key}, and no column is the key", hint="Name it with --key."
                )
            if field is not None and field not in ("key", "row", "ext", "column", *others):
                raise UsageError(
                    f"--name asks for {{{field}}}",
                    hint=choose(field, ("key", "row", "ext", "column", *others), "Choose from"),
                )
        fields = [field for _, field, _, _ in parsed]
        _check_pattern(
            self.pattern, "".join(text + "x" * (field is not None) for text, field, _, _ in parsed)
        )
        if len(files) > 1 and "column" not in fields:
            raise UsageError(
                f"--name gives one name to {len(files)} files of a row",
                hint="Put {column} into it.",
            )
        self._parsed = [
            (text, key if field == "key" and key is not None else field, spec or "")
            for text, field, spec, _ in parsed
        ]
        used = [field for _, field, _ in self._parsed if field is not None]
        self.columns = tuple(
            dict.fromkeys(
                name for name in used if name in others and name not in ("row", "ext", "column")
            )
        )
        self.is_unique = "row" in used and set(used) <= {"row", "ext", "column"}

    def names(self, batch: pa.RecordBatch, where: Where, whole: bool = True) -> list[list[str]]:
        """Give the names of each row's files, checked: one list for each file column.

        whole   False before the bytes are known: what only they tell is left open
        raises  UnsafeError for a name that leaves the folder; ValueFitError for a null in it, both
                naming the row
        """
        rows = batch.column(ROW).to_pylist()
        values = {name: self._texts(batch, name, rows, where) for name in self.columns}
        out = []
        for file in self._files:
            fixed = _fixed(batch.schema if file in batch.schema.names else self._schema, file)
            extensions = (
                [fixed or _UNKNOWN] * len(rows) if fixed or not whole else _extensions(batch, file)
            )
            parts: list[Sequence[str]] = []
            for text, field, spec in self._parsed:
                parts.append([text] * len(rows))
                if field == "row":
                    parts.append([format(row, spec or f"0{self._digits}d") for row in rows])
                elif field is not None:
                    parts.append(
                        extensions
                        if field == "ext"
                        else [file] * len(rows)
                        if field == "column"
                        else values[field]
                    )
            filled = ["".join(row) for row in zip(*parts, strict=True)]
            if self._shortens:
                filled = [
                    name.removesuffix(f".{one}") if _says(file, one) else name
                    for name, one in zip(filled, extensions, strict=True)
                ]
            out.append(
                [check_name(name, where(row)) for name, row in zip(filled, rows, strict=True)]
            )
        return out

    def flaws(self, batch: pa.RecordBatch, where: Where) -> dict[int, FlareError]:
        """Find the rows that no file can be named by: position in the batch -> what `names` raises
        for it.
        """
        try:
            self.names(batch, where, whole=False)
        except (UnsafeError, ValueFitError):
            return {
                i: error
                for i in range(batch.num_rows)
                if (error := self._flaw(batch.slice(i, 1), where)) is not None
            }
        return {}

    def _flaw(self, row: pa.RecordBatch, where: Where) -> FlareError | None:
        try:
            self.names(row, where, whole=False)
        except (UnsafeError, ValueFitError) as error:
            return error
        return None

    @staticmethod
    def _texts(batch: pa.RecordBatch, name: str, rows: Sequence[int], where: Where) -> list[str]:
        values = batch.column(name).to_pylist()
        for value, row in zip(values, rows, strict=True):
            if value is None or value == "":
                raise ValueFitError(
                    f"{name} is {'null' if value is None else 'empty'}, and names a file",
                    where=where(row),
                )
        return [str(value) for value in values]


def _fixed(schema: pa.Schema, name: str) -> str | None:
    """Give the extension that the encoding of a column fixes; None where the bytes decide."""
    if name not in schema.names:
        return None
    field = schema.field(name)
    encoding = encoding_of(field) or (
        "" if pa.types.is_large_binary(field.type) or pa.types.is_binary(field.type) else "str"
    )
    return _TEXTS.get(encoding) or (extension_of(encoding) if encoding in ("jpeg", "png") else None)


def _says(column: str, extension: str) -> bool:
    """Say whether a column is called like the extension of its files, or another one of the same
    kind (`jpeg`, `image.jpg`).
    """
    own = column.rpartition(".")[2].lower()
    kind = kind_of(f"x.{own}")
    return extension in (own, kind and extension_of(kind))


def _extensions(batch: pa.RecordBatch, name: str) -> list[str]:
    """Tell what each value is by its first bytes, else by the address it came from."""
    addresses: Iterable[Any] = [None] * batch.num_rows
    if ADDRESS + name in batch.schema.names:
        addresses = batch.column(ADDRESS + name).to_pylist()
    out = []
    for data, address in zip(pieces(batch.column(name)), addresses, strict=True):
        kind = sniff(bytes(data[:512])) if data is not None else None
        kind = kind or (kind_of(address) if address else None)
        out.append((extension_of(kind) if kind else None) or "bin")
    return out


class Taken:
    """Tells when two files would have one name, or a file that of a folder, on any file system.

    Letter case, Unicode form and trailing dots do not count, and names of devices are nobody's. An
    extension that only the bytes tell is left open.
    """

    def __init__(self, naming: Naming, reserved: Iterable[str], files: int) -> None:
        self._naming, self._files, self._keys, self._rows = naming, files, Keys(), 0
        self._reserved = {collision_key(name) for name in reserved}

    def add(self, batch: pa.RecordBatch, where: Where) -> None:
        """Take in the names of a batch of rows.

        Raises FormatError naming the row whose name is taken.
        """
        columns = self._naming.names(batch, where, whole=False)
        names = [name for row in zip(*columns, strict=True) for name in row]
        keys = [collision_key(name) for name in names]
        used = self._keys.seen(pa.array(keys, pa.large_string()), self._rows)
        self._rows += len(names)
        self._refuse_folders(batch, where, names, keys, used)
        for i, (name, key) in enumerate(zip(names, keys, strict=True)):
            is_device = DEVICE in key
            if used[i] >= 0 or is_device or key.partition("/")[0] in self._reserved:
                row = batch.column(ROW)[i // self._files].as_py()
                whose = "that of a device on Windows" if is_device else "taken by flare itself"
                if used[i] >= 0 and not is_device:
                    whose = (
                        f"the same as that of row {int(used[i]) // self._files} of the selection"
                    )
                raise FormatError(
                    f"the name {name!r} is {whose}", where=where(row), hint=_OTHERWISE
                )

    def _refuse_folders(
        self,
        batch: pa.RecordBatch,
        where: Where,
        names: Sequence[str],
        keys: Sequence[str],
        used: IntArray,
    ) -> None:
        """Raise FormatError for a file with the name of a folder that another one lies in,
        whichever comes first.
        """
        below: list[tuple[int, str]] = []
        for i, key in enumerate(keys):
            parts = key.split("/")
            below += [(i, "/".join(parts[:depth])) for depth in range(1, len(parts))]
        firsts = self._keys.seen(
            pa.array([folder for _, folder in below], pa.large_string()), _FOLDERS
        ).tolist()
        wrong = [
            (i, "is that of a folder which another row lies in")
            for i, first in enumerate(used.tolist())
            if first >= _FOLDERS
        ]
        for (i, _), first in zip(below, firsts, strict=True):
            if 0 <= first < _FOLDERS:
                wrong.append(
                    (
                        i,
                        f"lies in a folder with the name of row {first // self._files} of the selection",
                    )
                )
        if wrong:
            at, what = min(wrong)
            row = batch.column(ROW)[at // self._files].as_py()
            raise FormatError(f"the name {names[at]!r} {what}", where=where(row), hint=_OTHERWISE)
