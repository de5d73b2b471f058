"""Encodings: named ways to store the values of a column as bytes.

A value has three forms: stored bytes (in rows and shards), an Arrow value (in batches) and a Python
value (in samples). This package contains all code that decodes or refuses pickles. Each module of
this package is imported on first use, so `lookup` does not import Arrow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flarecli.lazy import named

if TYPE_CHECKING:
    from flarecli.encodings.arrow_types import (
        is_restorable,
        parse_type,
        restore,
        type_header,
        wide_dictionary,
        without_dictionaries,
        without_variants,
    )
    from flarecli.encodings.columns import (
        decoded_dictionary,
        encoding_of,
        field,
        is_binary,
        is_text,
        is_utf8,
        raw_values,
        stored,
        typed,
        value_sizes,
        value_type,
        with_children,
    )
    from flarecli.encodings.convert import coerce, plain, source_of
    from flarecli.encodings.convert import natural as natural_of
    from flarecli.encodings.images import split as split_images
    from flarecli.encodings.infer import infer_encoding
    from flarecli.encodings.names import (
        BINARY,
        CUSTOM,
        TEXT,
        CustomEncoding,
        Encoding,
        column,
        lookup,
    )
    from flarecli.encodings.names import register as encoding
    from flarecli.encodings.packed_values import packed_value, python_values
    from flarecli.encodings.values import decode, decoder, encode, unpacker

__all__ = [
    "BINARY",
    "CUSTOM",
    "TEXT",
    "Encoding",
    "CustomEncoding",
    "coerce",
    "column",
    "decode",
    "decoded_dictionary",
    "decoder",
    "encode",
    "encoding",
    "encoding_of",
    "field",
    "infer_encoding",
    "is_binary",
    "is_restorable",
    "is_text",
    "is_utf8",
    "lookup",
    "natural_of",
    "split_images",
    "packed_value",
    "parse_type",
    "plain",
    "python_values",
    "restore",
    "source_of",
    "raw_values",
    "stored",
    "type_header",
    "typed",
    "unpacker",
    "value_sizes",
    "value_type",
    "wide_dictionary",
    "with_children",
    "without_dictionaries",
    "without_variants",
]

_MODULES = {
    "BINARY": "names",
    "CUSTOM": "names",
    "TEXT": "names",
    "Encoding": "names",
    "CustomEncoding": "names",
    "coerce": "convert",
    "column": "names",
    "decode": "values",
    "decoded_dictionary": "columns",
    "decoder": "values",
    "encode": "values",
    "encoding": "names:register",
    "encoding_of": "columns",
    "field": "columns",
    "infer_encoding": "infer",
    "is_binary": "columns",
    "is_restorable": "arrow_types",
    "is_text": "columns",
    "is_utf8": "columns",
    "lookup": "names",
    "natural_of": "convert:natural",
    "split_images": "images:split",
    "packed_value": "packed_values",
    "parse_type": "arrow_types",
    "plain": "convert",
    "python_values": "packed_values",
    "restore": "arrow_types",
    "source_of": "convert",
    "raw_values": "columns",
    "stored": "columns",
    "type_header": "arrow_types",
    "typed": "columns",
    "unpacker": "values",
    "value_sizes": "columns",
    "value_type": "columns",
    "wide_dictionary": "arrow_types",
    "with_children": "columns",
    "without_dictionaries": "arrow_types",
    "without_variants": "arrow_types",
}


def __getattr__(name: str) -> Any:
    found = globals()[name] = named(__name__, _MODULES, name)
    return found
