"""Encodings: how a value becomes bytes in a shard, by name, and back.

Three forms of one value: its stored bytes (rows, shards), an Arrow column (batches), a Python value (samples).
Unpickling is refused here, once for everything above. Each part is loaded when it is first asked for: names take no Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarecli.lazy import named

if TYPE_CHECKING:
    from flarecli.encodings.columns import (
        encoding_of,
        field,
        raw_values,
        stored,
        typed,
        value_sizes,
    )
    from flarecli.encodings.convert import coerce, plain, source_of
    from flarecli.encodings.convert import natural as natural_of
    from flarecli.encodings.infer import infer_encoding
    from flarecli.encodings.names import BINARY, TEXT, Encoding, column, lookup
    from flarecli.encodings.names import register as encoding
    from flarecli.encodings.pictures import split as pictures_of
    from flarecli.encodings.registry import OWN, Own
    from flarecli.encodings.values import decode, decoder, encode

__all__ = [
    "BINARY",
    "OWN",
    "TEXT",
    "Encoding",
    "Own",
    "coerce",
    "column",
    "decode",
    "decoder",
    "encode",
    "encoding",
    "encoding_of",
    "field",
    "infer_encoding",
    "lookup",
    "natural_of",
    "pictures_of",
    "plain",
    "source_of",
    "raw_values",
    "stored",
    "typed",
    "value_sizes",
]

_FILES = {
    "BINARY": "names",
    "OWN": "registry",
    "TEXT": "names",
    "Encoding": "names",
    "Own": "registry",
    "coerce": "convert",
    "column": "names",
    "decode": "values",
    "decoder": "values",
    "encode": "values",
    "encoding": "names:register",
    "encoding_of": "columns",
    "field": "columns",
    "infer_encoding": "infer",
    "lookup": "names",
    "natural_of": "convert:natural",
    "pictures_of": "pictures:split",
    "plain": "convert",
    "source_of": "convert",
    "raw_values": "columns",
    "stored": "columns",
    "typed": "columns",
    "value_sizes": "columns",
}


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _FILES, name)
    return found
