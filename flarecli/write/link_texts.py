"""What a column of addresses says, before any of it is followed."""

from __future__ import annotations

import re

import pyarrow as pa

from flarecli.errors import UsageError
from flarecli.names import is_url

__all__ = ["extension_in", "texts_of"]

_EXTENSION = re.compile(r"[a-z0-9]{1,12}")


def texts_of(batch: pa.RecordBatch, source: str) -> list[str | None]:
    """Give the texts of a column; what is no UTF-8 has surrogates in it.

    raises  UsageError for a column of anything else
    """
    column = batch.column(source)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if not (
        pa.types.is_string(column.type)
        or pa.types.is_large_string(column.type)
        or pa.types.is_string_view(column.type)
    ):
        if pa.types.is_null(column.type):
            return [None] * len(column)
        raise UsageError(
            f"column {source!r} holds {column.type}, not addresses",
            hint="Name a column of text with --fetch.",
            column=source,
        )
    try:
        texts: list[str | None] = column.to_pylist()
    except UnicodeDecodeError:  # parquet may claim text that is none: those rows alone fail
        texts = [
            one.as_buffer().to_pybytes().decode("utf-8", "surrogateescape")
            if one.is_valid
            else None
            for one in column
        ]
    return texts


def extension_in(text: str) -> str:
    """Give the extension that an address ends with, in lower case; empty if it has none."""
    path = text.partition("#")[0].partition("?")[0] if is_url(text) else text
    extension = path.rpartition("/")[2].rpartition(".")
    return (
        extension[2].lower() if extension[1] and _EXTENSION.fullmatch(extension[2].lower()) else ""
    )
