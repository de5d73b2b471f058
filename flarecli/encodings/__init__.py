"""Encodings: how a value becomes bytes in a shard, by name, and back.

Three forms of one value: its stored bytes (rows, shards), an Arrow column (batches), a Python value (samples).
Unpickling is refused here, once for everything above.
"""

from __future__ import annotations

from flarecli.encodings.columns import encoding_of, field, stored, typed
from flarecli.encodings.holds import held, held_as
from flarecli.encodings.infer import infer
from flarecli.encodings.names import BINARY, TEXT, Encoding, column, lookup
from flarecli.encodings.names import register as encoding
from flarecli.encodings.natural import natural as natural_of
from flarecli.encodings.natural import plain
from flarecli.encodings.own import OWN, Own
from flarecli.encodings.pictures import split as pictures_of
from flarecli.encodings.recode import coerce
from flarecli.encodings.values import decode, encode

__all__ = [
    "BINARY",
    "OWN",
    "TEXT",
    "Encoding",
    "Own",
    "coerce",
    "column",
    "decode",
    "encode",
    "encoding",
    "encoding_of",
    "field",
    "held",
    "held_as",
    "infer",
    "lookup",
    "natural_of",
    "pictures_of",
    "plain",
    "stored",
    "typed",
]
