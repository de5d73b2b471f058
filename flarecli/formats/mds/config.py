"""The config of a shard of MosaicML Streaming, which stands in the shard (or its `.meta`) and again in `index.json`: read and written.

    mds             column_encodings column_names column_sizes compression format hashes size_limit version
    json            columns compression format hashes newline size_limit version
    csv, tsv        column_encodings column_names compression format hashes newline size_limit version
    xsv             the same and separator

JSON and XSV shards know three encodings, `str`, `int` and `float`; here each has the name that says what its bytes are.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, NoReturn

from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError, Place, UsageError
from flarecli.expansion import check_columns
from flarecli.model import Columns, Settings

__all__ = [
    "SEPARATORS",
    "agreed",
    "columns_of",
    "config",
    "dumped",
    "own_columns",
    "parse",
    "parse_config",
    "size_limit",
    "text_of",
]

SEPARATORS = {"csv": ",", "tsv": "\t"}
_XSV = {"str": "str", "int": "str_int", "float": "str_float"}
_MEANT = {
    "json": {"str": "json_str", "int": "json_int", "float": "json_float"},
    "csv": _XSV,
    "tsv": _XSV,
    "xsv": _XSV,
}
_WORDS = {
    "json_str": "str",
    "json_json": "str",
    "json_int": "int",
    "json_float": "float",
    "str_int": "int",
    "str_float": "float",
}
_UNITS = {f"{unit}b": 1 << 10 * power for power, unit in enumerate("kmgtpezy", 1)}
_BYTES = r"(?a)\d+b?"
_SHORT, _FEW = 1 << 14, 16  # bytes of a config that is remembered, and how many are
_remembered: dict[tuple[str, bytes], Columns] = {}


def dumped(value: Any, is_sorted: bool = True) -> bytes:
    """Give JSON as the original writes it: sorted keys, ASCII, a space behind each comma and colon."""
    return json.dumps(value, sort_keys=is_sorted).encode()


def config(form: str, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Give the config of a shard, with exactly the keys that the original has."""
    out: dict[str, Any] = {
        "compression": settings.compression,
        "format": form,
        "hashes": sorted(settings.hashes),
        "size_limit": settings.shard_bytes,
        "version": 2,
    }
    if form == "mds":
        out["column_sizes"] = [one.size for one in columns]
    else:
        out["newline"] = settings.newline
    if form == "xsv":
        out["separator"] = settings.separator
    if form == "json":
        return out | {"columns": {one.name: _word(form, one.encoding) for one in columns}}
    return out | {
        "column_names": [one.name for one in columns],
        "column_encodings": [_word(form, one.encoding) for one in columns],
    }


def _word(form: str, encoding: str) -> str:
    return encoding if form == "mds" else _WORDS.get(encoding, "str")


def parse(data: bytes, where: object) -> Any:
    """Read JSON, strictly: one key once, no NaN, no depth that breaks the parser. Raises FormatError."""
    try:
        return json.loads(data.decode(), object_pairs_hook=_pairs, parse_constant=_not_json)
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=where) from None
    except RecursionError:
        raise FormatError("JSON nested too deep", where=where) from None
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}", where=where) from None


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in pairs:
        if key in out:
            raise ValueError(f"two keys are named {key!r:.60}")
        out[key] = value
    return out


def _not_json(word: str) -> NoReturn:
    raise ValueError(f"{word} is not JSON")


def parse_config(data: bytes, form: str, where: object) -> tuple[dict[str, Any], Columns]:
    """Read a shard's own config and its columns. Raises FormatError if it is none, or that of another format."""
    value = parse(data, Place(where, item="its config"))
    if not isinstance(value, dict):
        raise FormatError("its config is not an object", where=where)
    if form != "mds" and value.get("format") != form:
        raise FormatError(
            f"its config is of format {value.get('format')!r:.60}, not {form}", where=where
        )
    return value, columns_of(value, form, Place(where, item="its config"))


def own_columns(data: bytes, form: str, where: object) -> Columns:
    """Read the columns out of a shard's own config, as `parse_config` does; those of one dataset have the same config, which is read once."""
    columns = _remembered.get((form, data))
    if columns is None:
        columns = parse_config(data, form, where)[1]
        if len(data) <= _SHORT:
            if len(_remembered) >= _FEW:
                _remembered.clear()
            _remembered[form, data] = columns
    return columns


def columns_of(value: Mapping[str, Any], form: str, what: object) -> Columns:
    """Read the columns out of a config. Raises FormatError."""
    if form == "json":
        pairs = value.get("columns")
        if not isinstance(pairs, dict):
            raise FormatError("columns is not an object", where=what)
        names, encodings = list(pairs), list(pairs.values())
        sizes = None
    else:
        lists = [
            value.get(f"column_{part}")
            for part in ("names", "encodings", "sizes")[: 3 if form == "mds" else 2]
        ]
        if (
            not all(isinstance(part, list) for part in lists)
            or len({len(part) for part in lists}) != 1  # type: ignore[arg-type]
        ):
            keys = (
                "column_names, column_encodings and column_sizes"
                if form == "mds"
                else "column_names and column_encodings"
            )
            raise FormatError(f"{keys} are not lists of one length", where=what)
        names, encodings = lists[0], lists[1]  # type: ignore[assignment]
        sizes = lists[2] if form == "mds" else None
    check_columns(len(names), what)
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        raise FormatError("a column's name or encoding is not text", where=what)
    if len(set(names)) != len(names):
        raise FormatError("two columns have one name", where=what)
    if any("\ud800" <= sign <= "\udfff" for name in names for sign in name):
        raise FormatError("a column's name is not UTF-8", where=what)
    return tuple(
        _column(form, name, encodings[i], sizes[i] if sizes else None, what)
        for i, name in enumerate(names)
    )


def _column(form: str, name: str, encoding: str, size: Any, what: object) -> Any:
    meant = encoding
    if form != "mds":
        meant = _MEANT[form].get(encoding, "")
        if not meant:
            raise FormatError(
                f"column {name!r:.60}: {encoding!r:.60} is none of str, int, float",
                where=what,
                column=name,
            )
    try:
        one = column(name, meant)
    except UsageError as error:
        raise FormatError(
            f"column {name!r:.60}: {error.message}", where=what, column=name
        ) from None
    if form == "mds" and (size != one.size or isinstance(size, bool)):
        raise FormatError(
            f"column {name!r:.60}: size {size!r:.60}, {encoding} has {one.size}",
            where=what,
            column=name,
        )
    return one


def agreed(own: Columns, listed: Columns | None, form: str, where: object) -> Columns:
    """Hold a shard's own columns against the listed ones, which may say more: that a `str` of JSON is JSON itself.

    raises  IntegrityError if they are not the same
    """
    if listed is None or own == listed:
        return own
    if form != "mds":
        said = {one.name: one for one in listed}
        if len(said) == len(own) and all(
            one.name in said and _word(form, said[one.name].encoding) == _word(form, one.encoding)
            for one in own
        ):
            return tuple(said[one.name] for one in own)
    raise IntegrityError(
        "its config names other columns than the index",
        where=where,
        hint="Find out which of the two was changed.",
    )


def text_of(value: Mapping[str, Any], key: str, where: object, empty: bool = False) -> str:
    """Read the `newline` or the `separator` of a config. Raises FormatError if it is no text, or empty."""
    text = value.get(key)
    if not isinstance(text, str) or not (text or empty):
        raise FormatError(f"its {key} is {text!r:.60}, not a text", where=where)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FormatError(f"its {key} is not UTF-8", where=where) from None
    return text


def size_limit(value: Any, where: object) -> int | None:
    """Read a `size_limit`: bytes, null, or a text as people write them there, where `1kb` is 1024 and `1.5mb` may be.

    return  None where there is no limit, which 0 means too
    raises  FormatError for anything else
    """
    if value is None or value == "":
        return None
    size = -1.0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        size = _human(value.lower().strip())
    if not 0 <= size < 1 << 63:
        raise FormatError(f"{value!r:.60} is not a size", where=where)
    return int(size) or None


def _human(text: str) -> float:
    try:
        for unit, step in _UNITS.items():
            if text.endswith(unit):
                return int(float(text.removesuffix(unit)) * step)
    except (ValueError, OverflowError):
        return -1
    return int(text.removesuffix("b")) if re.fullmatch(_BYTES, text) and len(text) < 40 else -1
