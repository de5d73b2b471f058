"""Read samples from a tar stream that cannot seek, compressed or not, in one pass and in bounded
memory.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

from flarecli import compress, encodings
from flarecli.encodings import column, lookup
from flarecli.errors import FlareError, FormatError, ValueFitError
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import KEY, extensions_of, meant
from flarecli.formats.webdataset.scan import MAX_EXTENSIONS, split
from flarecli.lazy import pa
from flarecli.model import Columns
from flarecli.names import escape

__all__ = ["scan"]

MAX_BATCH_ROWS, MAX_BATCH_BYTES = 8192, 16 << 20  # a larger sample is a batch of its own
_MAGIC = {b"\x1f\x8b": "gz", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}


def scan(
    blocks: Iterable[bytes], columns: Columns | None = None, where: object = "-"
) -> Iterator[pa.RecordBatch]:
    """Yield the samples of a stream in order, as typed batches. Memory: one batch and its largest
    member.

    blocks   bytes of a tar, plain or compressed with gzip, bzip2 or zstd, in blocks of any length
    columns  columns of the samples; None: the key, and the extensions of the first batch
    raises   FormatError with row and byte for an invalid tar, a duplicate member of a sample, or an
             extension that the columns do not include
    """
    samples, held, size, first = _samples(tar.Blocks(_decompressed(blocks, where)), where), [], 0, 0
    for sample in samples:
        held.append(sample)
        size += sum(map(len, sample.values()))
        if len(held) >= MAX_BATCH_ROWS or size >= MAX_BATCH_BYTES:
            columns = columns or _columns(held)
            yield _batch(held, columns, first, where)
            first, held, size = first + len(held), [], 0
    if held:
        yield _batch(held, columns or _columns(held), first, where)


def _samples(source: tar.Blocks, where: object) -> Iterator[dict[str, bytes]]:
    """Yield a dict per sample: extension -> bytes; the key is the value of KEY."""
    sample: dict[str, bytes] = {}
    known: set[str] = set()
    row = 0
    try:
        for name, start, size in tar.members(source, where):
            parts = split(name)
            if parts is None:
                continue
            key, extension = parts[0], _text(parts[1])
            if sample and key != sample[KEY]:
                yield sample
                sample, row = {}, row + 1
            known.add(extension)
            if len(known) > MAX_EXTENSIONS:  # empty members do not count towards MAX_BATCH_BYTES
                raise FormatError(f"more than {MAX_EXTENSIONS} extensions")
            if extension in sample or extension == KEY:
                raise FormatError(
                    f"duplicate member {escape(name.decode('utf-8', 'replace'))!r}"
                    f" at byte {start - tar.BLOCK}"
                )
            data = source.window(start, size)
            if len(data) < size:
                raise FormatError(
                    f"ends at byte {start + len(data)}, inside a member",
                    hint="The file was cut short; fetch or pack it again.",
                )
            sample[KEY] = key
            sample[extension] = bytes(data[:size])
    except FlareError as error:
        raise error.changed(address=str(where), row=row) from None
    if sample:
        yield sample


def _text(extension: bytes) -> str:
    try:
        return extension.decode().lower()
    except UnicodeDecodeError:
        raise FormatError(f"the extension {extension[:40]!r} is not UTF-8") from None


def _columns(samples: list[dict[str, bytes]]) -> Columns:
    names = dict.fromkeys(name for sample in samples for name in sample if name != KEY)
    return (column(KEY, "str"), *(column(name, meant(name)) for name in names))


def _batch(
    samples: list[dict[str, bytes]], columns: Columns, first: int, where: object
) -> pa.RecordBatch:
    extensions = iter(extensions_of(columns, {name for sample in samples for name in sample}))
    names = [KEY if one.name == KEY else next(extensions) for one in columns]
    known, arrays = {KEY, *names}, []
    for row, sample in enumerate(samples):
        if not sample.keys() <= known:
            name = next(name for name in sample if name not in known)
            hint = (
                "Specify the columns, or read the tar from a file: then all headers are read first."
            )
            raise FormatError(
                f"unexpected extension .{name}: the columns do not include it",
                where=where,
                row=first + row,
                hint=hint,
            )
    for one, name in zip(columns, names, strict=True):
        raw = pa.array([sample.get(name) for sample in samples], encodings.BINARY)
        try:
            arrays.append(encodings.typed(raw, lookup(one.encoding)))
        except ValueFitError as error:
            raise error.at(where, first).of_column(one.name) from None
    return pa.RecordBatch.from_arrays(
        arrays, schema=pa.schema([encodings.field(one) for one in columns])
    )


def _decompressed(blocks: Iterable[bytes], where: object) -> Iterator[bytes]:
    """Decompress a stream in bounded steps; its first bytes tell the compression."""
    ahead = iter(blocks)
    head = b""
    while len(head) < 4 and (data := next(ahead, None)) is not None:
        head += data
    chained = itertools.chain([head], ahead)
    kind = next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), None)
    return map(bytes, compress.stream(kind, chained, where)) if kind else chained
