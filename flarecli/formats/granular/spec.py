"""`spec.json` of a Granular dataset: what its columns are called and which type each has.

    {"bar": "utf8", "seq": "utf8[]"}     sorted by key, as json.dumps writes it, no newline

A key is also the name of a file, `KEY.bag`, so it is checked here before anything uses it. `TYPE[]` is a list, and only
in datasets with a refs.bag; a type that is not one of the library's own is the user's, and its bytes are carried.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from flarecli.encodings import column
from flarecli.errors import FlareError, FormatError, IntegrityError, UnsafeError, UsageError
from flarecli.expansion import check_columns
from flarecli.formats.base import Format
from flarecli.model import Column, Columns
from flarecli.names import check_name

__all__ = ["LIMIT", "SPEC", "agreed", "arranged", "parse", "spec_of", "text"]

SPEC = "spec.json"
LIMIT = 1 << 24  # bytes: some 500,000 columns
_ENCODINGS = {  # a type's name there -> here
    "bytes": "bytes",
    "utf8": "str",
    "i64": "int",
    "u64": "uint64",
    "int": "varint",
    "msgpack": "msgpack",
    "array": "array",
    "tree": "tree",
    "jpg": "jpeg",
    "png": "png",
    "mp4": "mp4",
    "webm": "webm",
}
_WORDS = {
    **{encoding: word for word, encoding in _ENCODINGS.items()},
    "int64": "i64",
    "msgpack_float": "msgpack",
    **dict.fromkeys(("json", "str_int", "str_float", "str_decimal"), "utf8"),
}


def parse(data: bytes, where: object) -> dict[str, str]:
    """Read a spec: column -> type, in its own order.

    raises  FormatError if it is not an object of texts, with one key twice, or without any; UnsafeError for a key that is no file's name
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_pairs)
    except UnicodeDecodeError as error:
        raise FormatError(f"not UTF-8 at byte {error.start}", where=where) from None
    except RecursionError:
        raise FormatError("JSON nested too deep", where=where) from None
    except ValueError as error:
        raise FormatError(f"not valid JSON: {error}", where=where) from None
    if not isinstance(value, dict) or not all(isinstance(kind, str) for kind in value.values()):
        raise FormatError("not an object of column names and types", where=where)
    if not value:
        raise FormatError("names no columns", where=where)
    check_columns(len(value), where)
    for key in value:
        _check_key(key, where)
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        seen: set[str] = set()
        name = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise ValueError(f"two keys are named {name!r:.60}")
    return out


def _check_key(key: str, where: object = "") -> None:
    check_name(f"{key}.bag" if key else "", where=where)
    if "/" in key or key.startswith(".") or any("\ud800" <= sign <= "\udfff" for sign in key):
        raise UnsafeError(
            f"the column {key!r:.60} cannot name a file here",
            where=where,
            hint="Rename it; nothing was read or written there.",
            column=key,
        )


def spec_of(spec: dict[str, str], lists: bool) -> Columns:
    """Give the columns that a spec names. `lists`: `TYPE[]` is a list here, not a type of that name."""
    return tuple(column(name, _encoding(kind, lists)) for name, kind in spec.items())


def _encoding(kind: str, lists: bool) -> str:
    if lists and kind.endswith("[]"):
        return f"{_ENCODINGS.get(kind.rstrip('[]'), 'bytes')}[]"
    return _ENCODINGS.get(kind, "bytes")


def agreed(own: Columns, listed: Columns, where: object) -> Columns:
    """Give the listed columns, which know more than a spec can say, if they are stored as it says.

    raises  IntegrityError if they are others
    """
    if len(own) != len(listed) or not all(map(_fits, own, listed)):
        raise IntegrityError(
            "its columns are others than the listed ones",
            where=where,
            hint="Find out which of the two was changed.",
        )
    return listed


def _fits(own: Column, listed: Column) -> bool:
    one, other = own.encoding.removesuffix("[]"), listed.encoding.removesuffix("[]")
    same = one in (other, "bytes") or _word(one) == _word(
        other
    )  # `bytes` says nothing: any encoding may be in them
    return (
        own.name == listed.name
        and own.encoding.endswith("[]") == listed.encoding.endswith("[]")
        and same
    )


def _word(encoding: str) -> str:
    """Name the type that stores the bytes of an encoding as they are: `bytes`, where no other does."""
    return f"{_word(encoding[:-2])}[]" if encoding.endswith("[]") else _WORDS.get(encoding, "bytes")


def text(columns: Columns) -> bytes:
    """Write a spec, exactly as the original does."""
    return json.dumps(
        {one.name: _word(one.encoding) for one in sorted(columns, key=lambda one: one.name)}
    ).encode()


def arranged(columns: Iterable[Column], form: Format, reserved: str = "") -> Columns:
    """Sort columns by name, by code point, each with an encoding that the format holds.

    reserved  a name that no column may have
    raises    UsageError for two of one name, none at all, or a name that cannot name a file
    """
    out = tuple(sorted((form.held(one) for one in columns), key=lambda one: one.name))
    if not out:
        raise UsageError(
            "a dataset without columns cannot be read back",
            hint="Name the columns to pack with -c.",
        )
    for i, one in enumerate(out):
        if i and out[i - 1].name == one.name:
            raise UsageError(f"two columns are named {one.name!r}")
        try:
            _check_key(one.name)
        except FlareError as error:
            raise UsageError(
                f"column {one.name!r}: {error.message}, and granular keeps each column in a file of its name",
                column=one.name,
            ) from None
        if one.name == reserved:
            raise UsageError(
                f"column {one.name!r} has the name of the format's own file",
                hint="Choose -f granular, or rename the column.",
                column=one.name,
            )
    return out
