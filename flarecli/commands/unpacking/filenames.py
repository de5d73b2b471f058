"""Names of unpacked files. Placeholders in a pattern are replaced with the values of a row.

{key}     the value of the key column
{row}     the row number, padded with zeros
{column}  the name of the column whose value the file contains
{ext}     the extension of the file from which the value was packed. If it is unknown, the extension
          is determined by the encoding of the column, by the first bytes of the value, or by the
          download address, in this order; otherwise, it is `bin`
{…}       the value of any other column that does not become a file

Each file name is checked before the file is written.
"""

from __future__ import annotations

import re
import string
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import pyarrow as pa

from flarecli.encodings import encoding_of, is_binary, is_text, raw_values
from flarecli.errors import FlareError, FormatError, UnsafeError, UsageError, ValueFitError
from flarecli.media import extension_of, kind_of, sniff
from flarecli.model import IntArray, column_of
from flarecli.names import (
    DEVICE,
    check_name,
    collision_key,
    escape,
    is_extension,
    name_fault,
    windows_fault,
)
from flarecli.suggest import choose
from flarecli.write import Keys

__all__ = ["ADDRESS", "ROW", "UsedNames", "NamePattern", "Where", "default_key"]

Where: TypeAlias = Callable[[int], object]  # row number -> address, formatted only when printed

# ROW: internal column of row numbers; ADDRESS: name prefix of internal columns of download
# addresses
ROW, ADDRESS = "__flare_row__", "__flare_address__"
_KEYS = ("key", "__key__", "data_id", "id")
_FIRST_FOLDER = 1 << 62  # smallest number of a folder; files have smaller numbers
_UNKNOWN = "*"  # placeholder for an extension that depends on the bytes
_RENAME_HINT = "Use a different --name, such as '{row}.{ext}', or a different --key."
_PADDING = re.compile(r"(?:0?[1-9][0-9]?)?d?")  # valid formats in `{row:…}`
_TEXTS = {
    "str": "txt",
    "json": "json",
    "str_int": "txt",
    "str_float": "txt",
    "str_decimal": "txt",
    "pkl": "pkl",
}


def default_key(schema: pa.Schema) -> str | None:
    """Return the name of a column of integers or text that is named like a key, such as `id`.

    The result is None if there is no such column.
    """
    for name in _KEYS:
        if name in schema.names:
            kind = schema.field(name).type
            if pa.types.is_integer(kind) or is_text(kind):
                return name
    return None


class NamePattern:
    """Pattern that determines the file names of each row.

    The default pattern is `{key}.{ext}`, or `{row}.{ext}` without a key. If a row has several
    files, the default pattern contains `{column}` before `.{ext}`, except for columns that were
    packed from files. If the column name equals or ends in the extension, `.{ext}` is omitted: a
    file of the column `jpg` is named `a.jpg` (the name in the original tar), and not `a.jpg.jpg`.

    pattern  pattern with placeholders; None: the default pattern
    files    the columns that become files
    digits   minimum number of digits of a row number
    extensions  column -> `Column.extension`, for columns that were packed from files
    raises   UsageError for an invalid pattern, or for an unknown column in the pattern
    """

    def __init__(
        self,
        pattern: str | None,
        key: str | None,
        schema: pa.Schema,
        files: Sequence[str],
        digits: int,
        extensions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._extensions = {name: one for name, one in extensions.items() if name in files}
        first = "{row}" if key is None else "{key}"
        self.pattern = pattern or (
            f"{first}.{{column}}.{{ext}}" if len(files) > 1 else f"{first}.{{ext}}"
        )
        self._schema, self._files, self._digits = schema, tuple(files), digits
        try:
            parsed = list(string.Formatter().parse(self.pattern))
        except ValueError as error:
            raise UsageError(
                f"--name {self.pattern!r}: {error}", hint="Use a pattern like '{key}.{ext}'."
            ) from None
        for _, field, spec, conversion in parsed:
            if conversion or (spec and (field != "row" or not _PADDING.fullmatch(spec))):
                hint = "Only {row} may have a format: the number of digits, such as {row:04d}."
                raise UsageError(
                    f"--name {self.pattern!r}: invalid format of {{{field}}}", hint=hint
                )
        self._shortens = pattern is None and len(files) > 1
        others = [
            name
            for name in schema.names
            if name not in files and name not in (ROW,) and not name.startswith(ADDRESS)
        ]
        for _, field, _, _ in parsed:
            if field == "key" and key is None and "key" not in others:
                hint = "Specify the key column with --key."
                raise UsageError("--name contains {key}, but there is no key column", hint=hint)
            if field is not None and field not in ("key", "row", "ext", "column", *others):
                raise UsageError(
                    f"--name contains the unknown column {{{field}}}",
                    hint=choose(field, ("key", "row", "ext", "column", *others), "Choose from"),
                )
        fields = [field for _, field, _, _ in parsed]
        example = "".join(text + "x" * (field is not None) for text, field, _, _ in parsed)
        if reason := name_fault(example):
            hint = "Use a pattern like '{key}.{ext}' or 'a/{key}.{ext}'."
            raise UsageError(f"--name {self.pattern!r}: the file name {reason}", hint=hint)
        if len(files) > 1 and "column" not in fields and len(self._extensions) < len(files):
            message = f"--name has the same result for the {len(files)} files of a row"
            raise UsageError(message, hint="Add {column} to the pattern.")
        self._parsed = [
            (text, key if field == "key" and key is not None else field, spec or "")
            for text, field, spec, _ in parsed
        ]
        # the pattern without `{column}` is for columns that were packed from files
        self._short = [
            (text, field, spec) for text, field, spec in self._parsed if field != "column"
        ]
        used = [field for _, field, _ in self._parsed if field is not None]
        if "ext" in used:
            used += [name for one in self._extensions.values() if (name := column_of(one))]
        self.columns = tuple(
            dict.fromkeys(
                name for name in used if name in others and name not in ("row", "ext", "column")
            )
        )
        self.is_unique = "row" in used and set(used) <= {"row", "ext", "column"}

    def names(self, batch: pa.RecordBatch, where: Where, whole: bool = True) -> list[list[str]]:
        """Return the checked file names: for each file column, a list with one name per row.

        whole   whether the batch contains the bytes of the files; if not, `*` is used in place of
                an extension that depends on the bytes
        raises  UnsafeError for a name outside the folder; ValueFitError if a value in a name is
                null or empty. Both errors contain the row
        """
        rows = batch.column(ROW).to_pylist()
        values = {name: self._texts(batch, name, rows, where) for name in self.columns}
        out = []
        for file in self._files:
            is_packed_file = file in self._extensions
            extensions = self._extensions_of(batch, file, rows, where, whole)
            parts: list[Sequence[str]] = []
            shortens = self._shortens and is_packed_file
            for text, field, spec in self._short if shortens else self._parsed:
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
            if self._shortens and not is_packed_file:
                filled = [
                    name.removesuffix(f".{one}") if _is_extension(file, one) else name
                    for name, one in zip(filled, extensions, strict=True)
                ]
            out.append(
                [check_name(name, where(row)) for name, row in zip(filled, rows, strict=True)]
            )
        return out

    def _extensions_of(
        self, batch: pa.RecordBatch, file: str, rows: Sequence[int], where: Where, whole: bool
    ) -> list[str]:
        """Return the file extension for each value of a column; `whole` is described in `names`."""
        packed = self._extensions.get(file, "")
        if packed and not column_of(packed):
            return [packed] * len(rows)
        fixed = _fixed(batch.schema if file in batch.schema.names else self._schema, file)
        if fixed or not whole:
            extensions = [fixed or _UNKNOWN] * len(rows)
        else:
            extensions = _extensions(batch, file)
        if not packed or column_of(packed) not in batch.schema.names:
            return extensions
        values = batch.column(column_of(packed)).to_pylist()
        for value, row in zip(values, rows, strict=True):
            if value is not None and not (isinstance(value, str) and is_extension(value)):
                shown = escape(str(value))
                raise UnsafeError(
                    f"{shown!r:.80} is not a file extension",
                    where=where(row),
                    column=column_of(packed),
                )
        return [value or one for value, one in zip(values, extensions, strict=True)]

    def invalid_rows(self, batch: pa.RecordBatch, where: Where) -> dict[int, FlareError]:
        """Return the rows without valid file names: position in the batch -> error from `names`."""
        errors: dict[int, FlareError] = {}
        try:
            self.names(batch, where, whole=False)
        except (UnsafeError, ValueFitError) as error:
            if batch.num_rows == 1:
                return {0: error}
            for i in range(batch.num_rows):
                if error_of_row := self.invalid_rows(batch.slice(i, 1), where):
                    errors[i] = error_of_row[0]
        return errors

    @staticmethod
    def _texts(batch: pa.RecordBatch, name: str, rows: Sequence[int], where: Where) -> list[str]:
        values = batch.column(name).to_pylist()
        for value, row in zip(values, rows, strict=True):
            if value is None or value == "":
                raise ValueFitError(
                    f"column {name!r} is {'null' if value is None else 'empty'}, so the file has no name",
                    where=where(row),
                    hint=_RENAME_HINT,
                )
        return [str(value) for value in values]


def _fixed(schema: pa.Schema, name: str) -> str | None:
    """Return the extension for the encoding of a column; None if it depends on the values."""
    if name not in schema.names:
        return None
    field = schema.field(name)
    encoding = encoding_of(field) or ("" if is_binary(field.type) else "str")
    return _TEXTS.get(encoding) or (extension_of(encoding) if encoding in ("jpeg", "png") else None)


def _is_extension(column: str, extension: str) -> bool:
    """Return whether a column name ends in an extension that is equivalent to `extension`.

    For the extension `jpg`, examples are the names `jpeg` and `image.jpg`.
    """
    own = column.rpartition(".")[2].lower()
    kind = kind_of(f"x.{own}")
    return extension in (own, kind and extension_of(kind))


def _extensions(batch: pa.RecordBatch, name: str) -> list[str]:
    """Return the extension of each value, from its first bytes or else from its address."""
    addresses: Iterable[Any] = [None] * batch.num_rows
    if ADDRESS + name in batch.schema.names:
        addresses = batch.column(ADDRESS + name).to_pylist()
    out = []
    for data, address in zip(raw_values(batch.column(name)), addresses, strict=True):
        kind = sniff(bytes(data[:512])) if data is not None else None
        kind = kind or (kind_of(address) if address else None)
        out.append((extension_of(kind) if kind else None) or "bin")
    return out


class UsedNames:
    """Registry of file names. A name must differ from all other names and from all folder names.

    The comparison ignores letter case, Unicode form, trailing dots, and extensions that depend on
    the bytes, so that names are distinct on every file system. Device names are invalid.

    reserved  names that no file may have
    """

    def __init__(self, pattern: NamePattern, reserved: Iterable[str], files: int) -> None:
        self._pattern, self._files, self._keys, self._count = pattern, files, Keys(), 0
        self._reserved = {collision_key(name) for name in reserved}

    def close(self) -> None:
        """Remove temporary files."""
        self._keys.close()

    def add(self, batch: pa.RecordBatch, where: Where) -> None:
        """Add the file names of a batch.

        Raises FormatError for the first row with an invalid name, or with the name of an earlier
        file or folder.
        """
        columns = self._pattern.names(batch, where, whole=False)
        names = [name for row in zip(*columns, strict=True) for name in row]
        keys = [collision_key(name) for name in names]
        used = self._keys.seen(pa.array(keys, pa.large_string()), self._count)
        self._count += len(names)
        self._refuse_folders(batch, where, names, keys, used)
        for i, (name, key) in enumerate(zip(names, keys, strict=True)):
            reason = self._fault(name, key)
            if not reason and used[i] >= 0:
                reason = f"also the name of selected row {int(used[i]) // self._files}"
            if reason:
                row = batch.column(ROW)[i // self._files].as_py()
                raise _name_error(name, reason, where(row))

    def invalid_rows(self, batch: pa.RecordBatch, where: Where) -> dict[int, FlareError]:
        """Return the rows without valid file names: position in the batch -> error.

        Names that are invalid because of the names of other rows are not included.
        """
        errors = self._pattern.invalid_rows(batch, where)
        valid = [i for i in range(batch.num_rows) if i not in errors]
        named = batch.take(pa.array(valid, pa.int64())) if errors else batch
        for names in self._pattern.names(named, where, whole=False) if valid else ():
            for i, name in zip(valid, names, strict=True):
                if reason := self._fault(name, collision_key(name)):
                    row = batch.column(ROW)[i].as_py()
                    errors.setdefault(i, _name_error(name, reason, where(row)))
        return errors

    def _fault(self, name: str, key: str) -> str:
        """Return the reason why a file name is invalid; empty if the name is valid.

        key  result of `collision_key` for the name
        """
        if DEVICE in key:
            return "a device name on Windows"
        if sys.platform == "win32" and any(map(windows_fault, name.split("/"))):
            return "not a valid name on Windows"
        return "reserved by flare" if key.partition("/")[0] in self._reserved else ""

    def _refuse_folders(
        self,
        batch: pa.RecordBatch,
        where: Where,
        names: Sequence[str],
        keys: Sequence[str],
        used: IntArray,
    ) -> None:
        """Raise FormatError if a file name is also the name of a folder that contains a file."""
        below: list[tuple[int, str]] = []
        for i, key in enumerate(keys):
            parts = key.split("/")
            below += [(i, "/".join(parts[:depth])) for depth in range(1, len(parts))]
        firsts = self._keys.seen(
            pa.array([folder for _, folder in below], pa.large_string()), _FIRST_FOLDER
        ).tolist()
        wrong = [
            (i, "is also the name of a folder with a file of another row")
            for i, first in enumerate(used.tolist())
            if first >= _FIRST_FOLDER
        ]
        for (i, _), first in zip(below, firsts, strict=True):
            if 0 <= first < _FIRST_FOLDER:
                wrong.append(
                    (
                        i,
                        f"is in a folder with the same name as the file of selected row {first // self._files}",
                    )
                )
        if wrong:
            at, what = min(wrong)
            row = batch.column(ROW)[at // self._files].as_py()
            raise FormatError(
                f"file name {names[at]!r} {what}", where=where(row), hint=_RENAME_HINT
            )


def _name_error(name: str, reason: str, where: object) -> FormatError:
    return FormatError(f"file name {name!r} is {reason}", where=where, hint=_RENAME_HINT)
