"""What stored text and integers say, as the Arrow types that other tools know: 7, not the text `7`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from flarecli.encodings import texts
from flarecli.encodings.columns import each_item
from flarecli.encodings.names import Encoding, lookup
from flarecli.errors import ValueFitError

__all__ = ["natural", "plain"]

_PLAIN = {
    "varint": "int",
    "msgpack_float": "float64",
    "str_int": "int",
    "json_int": "int",
    "str_float": "float64",
    "json_float": "float64",
    "json_str": "str",
    "json_json": "json",
}


def plain(array: pa.Array, encoding: Encoding) -> tuple[pa.Array, Encoding]:
    """Give a typed column in its natural Arrow form, and the encoding whose type that is.

    Text of integers becomes int64, text of floats float64, text inside JSON its own; what is natural already stays as it is. Nulls stay.

    array   of the encoding's own type
    raises  ValueFitError naming the first row that its natural type cannot hold: no number, or more than 64 bits
    """
    out, wanted, failed = natural(array, encoding)
    if failed:
        raise ValueFitError(
            f"a value of {encoding.name} is no {wanted.name}, or too large for one",
            row=failed[0],
        )
    return out, wanted


def natural(array: pa.Array, encoding: Encoding) -> tuple[pa.Array, Encoding, list[int]]:
    """Do the same, with null for what does not fit; give the rows of those, in order. Of a list the first one is raised."""
    if encoding.item is not None:
        item = encoding.item
        wanted = _PLAIN.get(item.name)
        if wanted is None:
            return array, encoding, []
        return each_item(array, lambda values: plain(values, item)[0]), lookup(f"{wanted}[]"), []
    name = _PLAIN.get(encoding.name)
    if name is None:
        return array, encoding, []
    if not encoding.is_text:
        return array, lookup(name), []
    array = (
        array if array.type.equals(encoding.arrow) else array.cast(encoding.arrow)
    )  # views are not for Arrow's kernels
    if name == "int":
        out, failed = texts.ints(array, _json_int if encoding.name == "json_int" else int)
    elif name == "float64":
        out, failed = texts.floats(array, _json_float if encoding.name == "json_float" else float)
    else:
        out, failed = texts.unescaped(array)
    return out, lookup(name), failed


def _json(kind: type | tuple[type, ...], convert: Callable[[Any], Any]) -> Callable[[str], Any]:
    def parse(text: str) -> Any:
        value = json.loads(text)
        if not isinstance(value, kind):
            raise ValueError
        return convert(value)

    return parse


_json_int, _json_float = _json(int, int), _json((float, int), float)
