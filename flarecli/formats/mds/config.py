"""Read and write the config of a MosaicML Streaming shard.

The config is stored in the shard or its `.meta` file, and in `index.json`. Keys by format:

    mds             column_encodings column_names column_sizes compression format hashes size_limit
                    version
    json            columns compression format hashes newline size_limit version
    csv, tsv        column_encodings column_names compression format hashes newline size_limit
                    version
    xsv             the keys of csv, and separator

In the configs of JSON, CSV, TSV and XSV shards, the encodings are named `str`, `int` and `float`.
In flare, `int` and `float` are binary encodings, so the text encodings have other names, such as
`json_int` and `str_int`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from flarecli.encodings import column
from flarecli.errors import FormatError, IntegrityError, Place, UsageError
from flarecli.expansion import check_columns
from flarecli.formats.shard_files import parse_json
from flarecli.model import Columns, Settings

__all__ = [
    "SEPARATORS",
    "agreed",
    "columns_of",
    "config",
    "dumped",
    "parse_config",
    "size_limit",
    "text_of",
]

SEPARATORS = {"csv": ",", "tsv": "\t"}
_XSV = {"str": "str", "int": "str_int", "float": "str_float"}
_ENCODINGS = {
    "json": {"str": "json_str", "int": "json_int", "float": "json_float"},
    "csv": _XSV,
    "tsv": _XSV,
    "xsv": _XSV,
}
_NAMES_IN_CONFIG = {
    "json_str": "str",
    "json_json": "str",
    "json_int": "int",
    "json_float": "float",
    "str_int": "int",
    "str_float": "float",
}
_UNITS = {f"{unit}b": 1 << 10 * power for power, unit in enumerate("kmgtpezy", 1)}
_BYTES = r"(?a)\d+b?"


def dumped(value: Any, is_sorted: bool = True) -> bytes:
    """Return JSON as MosaicML Streaming writes it: ASCII, a space after each comma and colon."""
    return json.dumps(value, sort_keys=is_sorted).encode()


def config(form: str, columns: Columns, settings: Settings) -> dict[str, Any]:
    """Return the config of a shard, with the same keys as in MosaicML Streaming."""
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
        return out | {"columns": {one.name: _name_in_config(form, one.encoding) for one in columns}}
    return out | {
        "column_names": [one.name for one in columns],
        "column_encodings": [_name_in_config(form, one.encoding) for one in columns],
    }


def _name_in_config(form: str, encoding: str) -> str:
    return encoding if form == "mds" else _NAMES_IN_CONFIG.get(encoding, "str")


def parse_config(data: bytes, form: str, where: object) -> tuple[dict[str, Any], Columns]:
    """Parse a shard's config; return the config and its columns.

    raises  FormatError if the config is invalid, or declares a different format
    """
    value = parse_json(data, Place(where, item="config"))
    if not isinstance(value, dict):
        raise FormatError("config is not an object", where=where)
    if form != "mds" and value.get("format") != form:
        raise FormatError(
            f"config: expected format {form!r}, got {value.get('format')!r:.60}", where=where
        )
    return value, columns_of(value, form, Place(where, item="config"))


def columns_of(value: Mapping[str, Any], form: str, where: object) -> Columns:
    """Return the columns in a config. Raises FormatError if the columns are invalid."""
    if form == "json":
        pairs = value.get("columns")
        if not isinstance(pairs, dict):
            raise FormatError("`columns` is not an object", where=where)
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
            raise FormatError(f"{keys} must be lists of the same length", where=where)
        names, encodings = lists[0], lists[1]  # type: ignore[assignment]
        sizes = lists[2] if form == "mds" else None
    check_columns(len(names), where)
    if not all(isinstance(text, str) for text in (*names, *encodings)):
        raise FormatError("column name or encoding is not a string", where=where)
    if len(set(names)) != len(names):
        raise FormatError("duplicate column name", where=where)
    if any("\ud800" <= sign <= "\udfff" for name in names for sign in name):
        raise FormatError("column name is not UTF-8", where=where)
    return tuple(
        _column(form, name, encodings[i], sizes[i] if sizes else None, where)
        for i, name in enumerate(names)
    )


def _column(form: str, name: str, encoding: str, size: Any, where: object) -> Any:
    own_encoding = encoding
    if form != "mds":
        own_encoding = _ENCODINGS[form].get(encoding, "")
        if not own_encoding:
            raise FormatError(
                f"column {name!r:.60}: expected str, int or float, got {encoding!r:.60}",
                where=where,
                column=name,
            )
    try:
        one = column(name, own_encoding)
    except UsageError as error:
        raise FormatError(
            f"column {name!r:.60}: {error.message}", where=where, column=name
        ) from None
    if form == "mds" and (size != one.size or isinstance(size, bool)):
        raise FormatError(
            f"column {name!r:.60}: expected size {one.size} for {encoding}, got {size!r:.60}",
            where=where,
            column=name,
        )
    return one


def agreed(own: Columns, listed: Columns | None, form: str, where: object) -> Columns:
    """Return the columns of a shard: the listed columns, or the columns in the config.

    own     columns in the config
    listed  columns that an index lists; None if no index lists columns. Except in mds, a listed
            encoding may be more precise: for example, `json` for a `str` column
    raises  IntegrityError if the listed columns do not match the config
    """
    if listed is None:
        return own
    if own == listed:
        return listed  # the same object for all shards, to save memory
    if form != "mds":
        by_name = {one.name: one for one in listed}
        if len(by_name) == len(own) and all(
            one.name in by_name
            and _name_in_config(form, by_name[one.name].encoding)
            == _name_in_config(form, one.encoding)
            for one in own
        ):
            return tuple(by_name[one.name] for one in own)
    raise IntegrityError(
        "columns in the config differ from the columns in the index",
        where=where,
        hint="Check whether the config or the index was changed.",
    )


def text_of(value: Mapping[str, Any], key: str, where: object, empty: bool = False) -> str:
    """Return the value of `newline` or `separator` in a config.

    raises  FormatError if the value is not a string, or is empty and `empty` is False
    """
    text = value.get(key)
    if text == "" and not empty:
        raise FormatError(f"{key} is empty", where=where)
    if not isinstance(text, str):
        raise FormatError(f"{key}: expected a string, got {text!r:.60}", where=where)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise FormatError(f"{key} is not UTF-8", where=where) from None
    return text


def size_limit(value: Any, where: object) -> int | None:
    """Parse a `size_limit`: bytes, null, or text such as `1.5mb`, where `1kb` is 1024 bytes.

    return  size in bytes; None if there is no limit (null, 0 or empty text)
    raises  FormatError for any other value
    """
    if value is None or value == "":
        return None
    size = -1.0
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str):
        size = _parse_size(value.lower().strip())
    if not 0 <= size < 1 << 63:
        raise FormatError(f"expected a size, got {value!r:.60}", where=where)
    return int(size) or None


def _parse_size(text: str) -> float:
    try:
        for unit, step in _UNITS.items():
            if text.endswith(unit):
                return int(float(text.removesuffix(unit)) * step)
    except (ValueError, OverflowError):
        return -1
    return int(text.removesuffix("b")) if re.fullmatch(_BYTES, text) and len(text) < 40 else -1
