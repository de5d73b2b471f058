"""What each format holds: one table, which says for every encoding and every format what is written in its place.

`docs/formats.md` prints the table, and a test keeps the two equal.
"""

from __future__ import annotations

from collections.abc import Sequence

from flarecli.encodings.names import column, lookup
from flarecli.encodings.own import OWN
from flarecli.errors import UsageError
from flarecli.model import Column

__all__ = ["FORMATS", "KEPT", "REFUSED", "TABLE", "held", "held_as"]

KEPT, REFUSED = "=", "-"
EACH = "X[]"  # a list stays a list: of what X becomes there
FORMATS = (
    "mds",
    "json",
    "csv tsv xsv",
    "ffrecord",
    "granular",
    "granular-refs",
    "webdataset files",
)
TABLE = (  # encodings; what each of FORMATS holds in their place
    ("bytes pil jpeg_array jpegarray pkl", "=", "-", "-", "=", "=", "=", "="),
    ("jpeg png", "=", "-", "-", "=", "=", "=", "="),
    ("mp4 webm", "bytes", "-", "-", "=", "=", "=", "="),
    ("list[jpeg]", "=", "-", "-", "=", "=", "jpeg[]", "="),
    ("list[png]", "=", "-", "-", "=", "=", "png[]", "="),
    ("list[pil]", "=", "-", "-", "=", "=", "pil[]", "="),
    ("str", "=", "json_str", "=", "=", "=", "=", "="),
    ("json", "=", "json_json", "=", "=", "=", "=", "="),
    ("str_decimal", "=", "json_str", "=", "=", "=", "=", "="),
    ("str_int", "=", "json_int", "=", "=", "=", "=", "="),
    ("str_float", "=", "json_float", "=", "=", "=", "=", "json_float"),
    ("int int64 uint64", "=", "json_int", "str_int", "=", "=", "=", "str_int"),
    (
        "int8 int16 int32 uint8 uint16 uint32",
        "=",
        "json_int",
        "str_int",
        "=",
        "int",
        "int",
        "str_int",
    ),
    ("varint", "int", "json_int", "str_int", "=", "=", "=", "str_int"),
    (
        "float16 float32 float64",
        "=",
        "json_float",
        "str_float",
        "=",
        "msgpack_float",
        "msgpack_float",
        "json_float",
    ),
    ("msgpack_float", "float64", "json_float", "str_float", "=", "=", "=", "json_float"),
    ("ndarray", "=", "json_json", "json", "=", "array", "array", "="),
    ("array", "ndarray", "json_json", "json", "=", "=", "=", "="),
    ("msgpack tree", "json", "json_json", "json", "=", "=", "=", "="),
    ("json_str", "str", "=", "str", "str", "str", "str", "str"),
    ("json_json", "json", "=", "json", "json", "json", "json", "json"),
    ("json_int", "int", "=", "str_int", "int", "int", "int", "str_int"),
    ("json_float", "float64", "=", "str_float", "float64", "msgpack_float", "msgpack_float", "="),
    ("jpeg[]", "list[jpeg]", "-", "-", "list[jpeg]", "list[jpeg]", "=", "list[jpeg]"),
    ("png[]", "list[png]", "-", "-", "list[png]", "list[png]", "=", "list[png]"),
    ("pil[]", "list[pil]", "-", "-", "list[pil]", "list[pil]", "=", "list[pil]"),
    ("bytes[] and other lists of bytes", "-", "-", "-", "msgpack", "msgpack", EACH, "msgpack"),
    ("ndarray[] array[]", "json", "json_json", "json", "tree", "tree", EACH, "json"),
    ("all other lists", "json", "json_json", "json", "json", "msgpack", EACH, "json"),
)
_ROWS = {
    name: row for names, *row in reversed(TABLE) for name in names.split()
}  # the first row that names it counts
_AT = {name: i for i, names in enumerate(FORMATS) for name in names.split()}
_OF_BYTES = ("bytes", "jpeg_array", "jpegarray", "pkl", "mp4", "webm", "list")
_BYTES, _OTHER = TABLE[-3][1:], TABLE[-1][1:]


def held_as(encoding: str, format: str) -> str:
    """Say which encoding a format holds in place of another: the same, where it holds that.

    raises  UsageError for an unknown encoding or format, and where the format cannot hold it
    """
    lookup(encoding)
    if format not in _AT:
        raise UsageError(f"unknown format {format!r:.60}", hint=f"Choose one of {', '.join(_AT)}.")
    instead = _row(encoding)[_AT[format]]
    if instead == REFUSED:
        raise UsageError(
            f"{format} cannot hold {encoding}",
            hint="Choose another --format, or the columns to pack with -c.",
        )
    if instead == EACH:
        item = held_as(encoding[:-2], format)
        return encoding if item.endswith("[]") else f"{item}[]"
    return encoding if instead == KEPT else instead


def _row(encoding: str) -> Sequence[str]:
    plain = (
        encoding.partition(":")[0] + "[]" * encoding.endswith("[]")
        if encoding.startswith("ndarray:")
        else encoding
    )
    if plain in _ROWS:
        return _ROWS[plain]
    if plain in OWN:  # bytes, as far as a format can tell
        return _ROWS["bytes"]
    item = plain.removesuffix("[]")
    return _BYTES if item in OWN or item.partition("[")[0] in _OF_BYTES else _OTHER


def held(one: Column, format: str) -> Column:
    """Give a column as a format holds it. Raises UsageError naming the column if it cannot."""
    try:
        instead = held_as(one.encoding, format)
    except UsageError as error:
        raise error.of_column(one.name) from None
    return one if instead == one.encoding else column(one.name, instead)
