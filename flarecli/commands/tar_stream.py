"""Standard input as a dataset: a tar of samples, optionally compressed, with bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import IO

import pyarrow as pa

from flarecli import encodings
from flarecli.arguments import Addresses, address_texts
from flarecli.errors import FormatError, ReachError, UsageError, ValueFitError
from flarecli.formats import STREAMED, facts, find

__all__ = ["STDIN", "is_stdin", "samples"]

STDIN = "-"
# first bytes of compressed streams
_COMPRESSED_STARTS = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"BZh", b"\xfd7zXZ")
_READ_BYTES = 1 << 20  # at once


def is_stdin(sources: Addresses) -> bool:
    """Return whether the source is standard input.

    Raises UsageError if standard input is one of several sources.
    """
    named = address_texts(sources)
    if STDIN in named and len(named) > 1:
        raise UsageError(
            "standard input cannot be combined with other sources", hint="Use - alone."
        )
    return named == [STDIN]


def samples(
    format: str | None, stream: IO[bytes] | None = None, exact: bool = False
) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Return the schema and the batches of the samples on standard input.

    exact   whether numbers that are stored as text stay text
    raises  UsageError for a format that cannot be streamed; FormatError for an invalid or empty
            tar; ReachError if reading fails
    """
    from flarecli.ingest import standard_input  # loads the table readers, which `cat` rarely needs

    if format is not None and not facts(format).reads_streams:
        raise UsageError(
            f"standard input must be a tar archive, got format {format}",
            where=STDIN,
            hint="Save the input to a file, and read the file.",
        )
    blocks = _blocks(standard_input() if stream is None else stream)
    begin = next(blocks, b"")
    if (
        begin
        and not begin.startswith(_COMPRESSED_STARTS)
        and begin[257:262] not in (b"ustar", bytes(5))
    ):
        raise FormatError(
            "expected a tar archive on standard input",
            where=STDIN,
            hint="Save the input to a file, and read the file.",
        )
    batches = find(format or STREAMED).scan_stream(chain([begin], blocks), where=STDIN)
    batches = batches if exact else _plain(batches)
    first = next(batches, None)
    if first is None:
        raise FormatError("tar archive contains no samples", where=STDIN)
    return first.schema, chain([first], batches)


def _plain(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    first = 0
    for batch in batches:
        arrays, fields = [], []
        for field, array in zip(batch.schema, batch.columns, strict=True):
            try:
                array, encoding = encodings.plain(
                    array, encodings.lookup(encodings.encoding_of(field) or "bytes")
                )
            except ValueFitError as error:
                raise error.at(STDIN, first).of_column(field.name) from None
            arrays.append(array)
            fields.append(encodings.field(encodings.column(field.name, encoding.name)))
        first += batch.num_rows
        yield pa.RecordBatch.from_arrays(arrays, schema=pa.schema(fields))


def _blocks(stream: IO[bytes]) -> Iterator[bytes]:
    try:
        while data := stream.read(_READ_BYTES):
            yield data
    except OSError as error:
        raise ReachError(
            f"cannot read: {(error.strerror or str(error)).lower()}", where=STDIN
        ) from None
