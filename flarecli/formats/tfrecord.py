"""TFRecord: records with two checksums each; a record is a `tf.train.Example` or any bytes.

Little-endian, one record after another (source: TensorFlow's documentation of TFRecord):

    0        uint64  length of the data
    8        uint32  masked CRC-32C of the length
    12       bytes   data
    12+len   uint32  masked CRC-32C of the data

A masked CRC is the CRC-32C rotated right by 15 bits, plus 0xA282EAD8. A file may be compressed with
gzip (`.gz`).

An Example is a protocol buffer: a map from names to lists of bytes, floats or integers. In the wire
format:

    Example    1: Features          Feature    1: BytesList, 2: FloatList or 3: Int64List
    Features   1: entry, repeated   BytesList  1: bytes, repeated
    entry      1: name (text)       FloatList  1: float32, packed or repeated
               2: Feature           Int64List  1: varint, packed or repeated

A column with a list encoding (`int[]`) is stored as a list, any other column as a list of one
value. A missing feature is null. In a column that is not a list, an empty list is null too. 8-byte
numbers other than int64 are stored in a BytesList. If one of the first 1,024 records is not an
Example, or if a feature has different types in two of these records, the file has one column of
bytes, `record`.

The optional index `x.tfrecord.idx` has a line `OFFSET SIZE` for each record, as written by DALI and
the `tfrecord` package. Sizes include the length and the checksums. An index that does not match its
file is ignored.
"""

from __future__ import annotations

import itertools
import re
import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import google_crc32c
import numpy as np
import pyarrow as pa

from flarecli import compress, encodings
from flarecli.bisect import findings_of
from flarecli.encodings import column, lookup
from flarecli.errors import FormatError, IntegrityError, UnsafeError, UsageError
from flarecli.expansion import check_columns
from flarecli.formats import byte_ranges, shard_files
from flarecli.formats.base import (
    EACH,
    LISTED_PICTURES,
    Format,
    OriginalValue,
    Ranges,
    Span,
    Substitutes,
)
from flarecli.formats.shard_files import DAMAGED
from flarecli.model import (
    Chunk,
    Column,
    Columns,
    Finding,
    IntArray,
    Row,
    Settings,
    Shard,
    Stream,
)
from flarecli.storage import Location

__all__ = ["TFRecord"]

RECORD: Columns = (column("record", "bytes"),)
FRAME = 16  # bytes per record for its length and checksums
HEAD = struct.Struct("<QI")
SAMPLED_ROWS, SAMPLED_BYTES = 1024, 16 << 20  # limits for the records read to detect columns
MAX_INDEX_BYTES = 1 << 30  # sufficient for about 40 million records
STEP_ROWS, STEP_BYTES = 8192, 16 << 20  # limits for records that are verified together
_NAME = re.compile(r"\.tfrecords?(?:-\d+-of-\d+)?(?:\.gz)?$")
_INDEX_HINT = "Delete the index, or pack the dataset again."
_BYTES, _FLOATS, _INTS = 1, 2, 3  # field numbers in a Feature
_KINDS = {_BYTES: "bytes", _FLOATS: "floats", _INTS: "integers"}
_DEFAULTS = {_BYTES: "bytes", _FLOATS: "float32", _INTS: "int"}


def masked_crc(data: bytes | memoryview) -> int:
    """Return the masked CRC-32C of `data`, as TFRecord stores it."""
    crc: int = google_crc32c.value(bytes(data))
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecord(Format):
    """Records with two CRC-32Cs each; `tf.train.Example` features as columns."""

    name = "tfrecord"
    has_shard_index = True
    suffixes = (".tfrecord", ".tfrecords", ".tfrecord.gz", ".tfrecords.gz")
    holds_null = True
    record_checksums = "crc32c"
    is_listed = True
    readers = "TensorFlow readers"
    substitutes: ClassVar[Substitutes] = {
        **dict.fromkeys(("int8", "int16", "int32", "uint8", "uint16", "uint32"), "int"),
        **dict.fromkeys(("int64", "varint", "json_int"), "int"),
        "float16": "float32",
        "json_float": "float64",
        "msgpack_float": "float64",
        "json_str": "str",
        "json_json": "json",
        **{listed: name for name, listed in LISTED_PICTURES.items()},
        "bytes[]": EACH,
        "ndarray[]": EACH,
        "*[]": EACH,
    }

    def original_value(self, encoding: str) -> OriginalValue:
        """Return the kind of value that TensorFlow returns for a feature with this encoding."""
        if encoding.endswith("[]") or encoding in ("int", "float32"):
            return super().original_value(encoding)
        if encoding == "json":
            return "JSON text"
        return "text" if lookup(encoding).is_text else "bytes"

    def sniff(self, name: str, head: bytes) -> bool:
        """Return whether the name is a TFRecord name, or the first checksum is valid.

        Examples of names are `x.tfrecord` and `x.tfrecord-00000-of-00010`.
        """
        if _NAME.search(name):
            return True
        return len(head) >= HEAD.size and HEAD.unpack_from(head)[1] == masked_crc(head[:8])

    def open_dataset(self, at: Location) -> Stream:
        """List the TFRecord files in a folder, sorted by name, and their index files.

        raises  MissingError if the folder itself contains no TFRecord files
        """
        return shard_files.list_shards(
            at, self.name, ".tfrecord", lambda name: self.sniff(name, b""), _index_name
        )

    def open_shard(self, chunk: Chunk, columns: Columns | None = None) -> Shard:
        """Locate the records. The index is used if it is valid; otherwise, the lengths are read.

        raises  FormatError for a record that extends past the end of the file, a row count that
                differs from the listed count, or listed columns that features cannot store;
                IntegrityError for a length whose checksum is wrong
        """
        starts = None
        if not byte_ranges.suffix(chunk):
            index = shard_files.read_optional(_index_of(chunk), MAX_INDEX_BYTES)
            starts = None if index is None else _parse_index(index, byte_ranges.stored_size(chunk))
        if starts is None:
            starts = _scan(chunk)
        rows = len(starts) - 1
        shard_files.check_row_count(chunk, rows, "records")
        shard = Shard(chunk, columns or (), rows, {"starts": starts, "is_raw": False})
        features = _sampled(shard)
        if columns is None:
            is_raw = not features
            columns = tuple(features.values()) if features else RECORD
        else:
            is_raw = features is None or (
                columns == RECORD and bool(features) and "record" not in features
            )
            self._check_listed(chunk, columns, is_raw)
        return Shard(chunk, columns, rows, {"starts": starts, "is_raw": is_raw})

    def _check_listed(self, chunk: Chunk, columns: Columns, is_raw: bool) -> None:
        for one in columns:
            if self.store_as(one.encoding) != one.encoding or (is_raw and one.encoding != "bytes"):
                raise FormatError(
                    f"the playlist lists column {one.name!r} with the encoding {one.encoding},"
                    f" which {'these records' if is_raw else 'a feature'} cannot store",
                    where=chunk.at,
                    column=one.name,
                )
        if is_raw and len(columns) != 1:
            raise IntegrityError(
                f"records that are not Examples have one column; the playlist lists {len(columns)}",
                where=chunk.at,
            )

    def read_rows(
        self,
        shard: Shard,
        rows: Sequence[int],
        columns: Sequence[str] | None = None,
        ranges: Ranges | None = None,
    ) -> list[Row]:
        """Read the stored values of rows in the requested order, after checking both checksums."""
        selected = byte_ranges.selected_columns(shard, columns)
        if ranges:
            shard_files.check_ranges(shard, ranges)
        out: list[Row] = []
        for row, data in zip(rows, _records(shard, rows), strict=True):
            values = _values(shard, row, data, selected)
            for name, (start, stop) in (ranges or {}).items():
                items = values.get(name)
                values |= {name: items[start:stop]} if isinstance(items, list) else {}
            out.append(values)
        return out

    def read_batch(
        self,
        shard: Shard,
        start: int,
        stop: int,
        columns: Sequence[str] | None = None,
        views: bool = False,
    ) -> pa.RecordBatch:
        """Read rows start..stop as typed columns; both checksums of each record are checked."""
        rows = self.read_rows(shard, range(start, stop), columns)
        return byte_ranges.typed_batch(
            shard,
            start,
            stop,
            columns,
            lambda one: pa.array([row[one.name] for row in rows], lookup(one.encoding).raw),
        )

    def row_span(self, shard: Shard, row: int, column: str | None = None) -> Span:
        """Return the byte range of a record, including its length and checksums."""
        starts = shard.layout["starts"]
        return shard.chunk.at, int(starts[row]), int(starts[row + 1])

    def row_sizes(
        self, columns: Columns, batch: pa.RecordBatch, settings: Settings
    ) -> tuple[int, IntArray]:
        """Return 0 (the size of an empty shard), and the size of each record: int64 [rows].

        The size of a record includes its length field and its checksums.
        """
        return 0, np.array([len(one) + FRAME for one in _examples(columns, batch)], np.int64)

    def write_shard(
        self,
        at: Location,
        number: int,
        columns: Columns,
        batches: Sequence[pa.RecordBatch],
        settings: Settings,
    ) -> Chunk:
        """Write rows as a file such as `00000.tfrecord`, with an index if the file is uncompressed.

        raises  UsageError for a compression other than gzip
        """
        compression, name = settings.compression, f"{number:05d}.tfrecord"
        if compression is not None and compress.suffix_of(compression) != "gz":
            raise UsageError(
                f"TensorFlow cannot read TFRecord files compressed with {compression}",
                hint="Use --compress gz, or omit --compress.",
            )
        records = [one for batch in batches for one in _examples(columns, batch)]
        ends = [0, *itertools.accumulate(len(one) + FRAME for one in records)]
        to, file = shard_files.write_file(at, name, _framed(records), ends[-1], settings)
        if compression is not None:
            return Chunk(to, len(records), (file,), self.name)
        lines = [f"{start} {stop - start}\n" for start, stop in itertools.pairwise(ends)]
        text = "".join(lines).encode()
        index_at, index = shard_files.write_file(at, _index_name(name), [text], len(text), settings)
        return Chunk(to, len(records), (file, index), self.name, (index_at,))

    def verify_shard(self, shard: Shard, values: bool = False) -> Iterator[Finding]:
        """Check both checksums of each record, the index and, with `values`, every value."""
        starts = shard.layout["starts"]
        if not byte_ranges.suffix(shard.chunk):
            at = _index_of(shard.chunk)
            index = shard_files.read_optional(at, MAX_INDEX_BYTES)
            if index is not None and _parse_index(index, int(starts[-1])) is None:
                yield Finding(
                    str(at),
                    "index",
                    "index does not match its file; flare locates the records by their lengths",
                    _INDEX_HINT,
                )

        def check(first: int, last: int) -> None:
            if values:
                self.read_batch(shard, first, last)
            else:
                _records(shard, range(first, last))

        yield from findings_of(byte_ranges.runs(starts, STEP_ROWS, STEP_BYTES), check)


# -- records


def _scan(chunk: Chunk) -> IntArray:
    """Return the start of each record and the end of the last record: int64 [rows + 1].

    The checksum of each length is checked before the length is used.
    """
    source = byte_ranges.source_of(chunk)
    size, starts, at = source.size, [0], 0
    window, base = memoryview(b""), 0
    while at < size:
        if at + HEAD.size > base + len(window):
            window, base = source.window(at, HEAD.size), at
        if len(window) - (at - base) < HEAD.size:
            raise FormatError(
                f"file ends at byte {size}, inside the header of record {len(starts) - 1}",
                where=chunk.at,
                hint=DAMAGED,
            )
        at = _next(chunk, window[at - base :], at, size, len(starts) - 1)
        starts.append(at)
    return np.array(starts, np.int64)


def _next(chunk: Chunk, head: memoryview, at: int, size: int, row: int) -> int:
    """Check the header of a record, and return the start of the next record."""
    length, crc = HEAD.unpack_from(head)
    if crc != masked_crc(head[:8]):
        raise IntegrityError(
            f"checksum mismatch: CRC-32C of the length at byte {at}",
            where=chunk.at,
            row=row,
            hint=DAMAGED,
        )
    if length > size - at - FRAME:
        raise FormatError(
            f"record is {length} bytes; the file ends at byte {size}",
            where=chunk.at,
            row=row,
            hint=DAMAGED,
        )
    return at + FRAME + int(length)


def _records(shard: Shard, rows: Sequence[int]) -> list[memoryview]:
    """Return the data of the given records, without lengths and checksums.

    raises  FormatError with the row whose length differs from the index; IntegrityError with the
            row whose checksum is wrong
    """
    starts = shard.layout["starts"]
    out = []
    ranges = [(int(starts[row]), int(starts[row + 1])) for row in rows]
    for row, part in zip(rows, byte_ranges.read(shard.chunk, ranges), strict=True):
        record = memoryview(part)
        if len(record) < FRAME or _next(shard.chunk, record, 0, len(record), row) != len(record):
            raise FormatError(
                f"record length differs from the length in the index ({len(record)} bytes)",
                where=shard.chunk.at,
                row=row,
                hint=_INDEX_HINT,
            )
        data = record[12:-4]
        if int.from_bytes(record[-4:], "little") != masked_crc(data):
            raise IntegrityError(
                f"checksum mismatch: CRC-32C of {len(data)} bytes",
                where=shard.chunk.at,
                row=row,
                hint=DAMAGED,
            )
        out.append(data)
    return out


def _framed(records: Iterable[bytes]) -> Iterator[bytes]:
    """Yield records with their lengths and checksums."""
    for data in records:
        length = len(data).to_bytes(8, "little")
        head, tail = masked_crc(length), masked_crc(data)
        yield b"".join((length, head.to_bytes(4, "little"), data, tail.to_bytes(4, "little")))


# -- the index


def _index_name(name: str) -> str:
    return f"{name}.idx"


def _index_of(chunk: Chunk) -> Location | None:
    """Return the location of a file's index: the listed index, or a file such as `x.tfrecord.idx`.

    The result is None if the name of the index is invalid, for example longer than 255 bytes.
    """
    if chunk.companions:
        return chunk.companions[0]
    try:
        return chunk.at.folder / _index_name(chunk.at.name)
    except UnsafeError:
        return None


def _parse_index(data: bytes, size: int) -> IntArray | None:
    """Return the start of each record and the end of the last record; None for an invalid index."""
    if not re.fullmatch(rb"(?:[0-9]{1,18} [0-9]{1,18}\r?\n)*(?:[0-9]{1,18} [0-9]{1,18})?", data):
        return None
    numbers = np.array(data.split(), np.int64).reshape(-1, 2)
    ends = numbers.sum(1)
    starts: IntArray = np.concatenate((numbers[:, 0], [size]))
    fits = bool((numbers[:, 1] >= FRAME).all()) and (starts[1:] == ends).all() and starts[0] == 0
    return starts if fits else None


# -- Examples


class _Feature(NamedTuple):
    """A feature of an Example.

    kind    value type, as a key of `_KINDS`; 0 for a feature without a list
    values  stored values
    """

    kind: int
    values: list[bytes]


def _sampled(shard: Shard) -> dict[str, Column] | None:
    """Return the columns that are inferred from the first records: name -> column.

    The result is None if one of these records is not an Example, or if a feature has different
    types in two of them.
    """
    kinds: dict[str, int] = {}
    lists: set[str] = set()
    starts, rows = shard.layout["starts"], min(shard.rows, SAMPLED_ROWS)
    while rows > 1 and int(starts[rows]) > SAMPLED_BYTES:
        rows //= 2
    for data in _records(shard, range(rows)):
        try:
            features = _parse(data)
        except ValueError:
            return None
        for name, feature in features.items():
            if kinds.setdefault(name, feature.kind) != feature.kind:
                return None
            if len(feature.values) > 1:
                lists.add(name)
        check_columns(len(kinds), shard.chunk.at)
    return {
        name: column(name, _DEFAULTS[kind] + "[]" * (name in lists))
        for name, kind in sorted(kinds.items())
    }


def _values(shard: Shard, row: int, data: memoryview, columns: Columns) -> Row:
    """Return the stored values of one record: column name -> value."""
    if shard.layout["is_raw"]:
        return {one.name: bytes(data) for one in columns}
    try:
        features = _parse(data)
    except ValueError as error:
        raise FormatError(f"not a valid Example: {error}", where=shard.chunk.at, row=row) from None
    names = shard.memo.get("names") or shard.memo.setdefault(
        "names", {one.name for one in shard.columns}
    )
    if not features.keys() <= names:
        name = min(features.keys() - names)
        raise FormatError(
            f"feature {name!r:.60} is not listed as a column",
            where=shard.chunk.at,
            row=row,
            hint="Add the feature to the columns in the playlist; to read fewer columns, use -c.",
        )
    return {one.name: _value(shard, row, one, features.get(one.name)) for one in columns}


def _value(shard: Shard, row: int, one: Column, feature: _Feature | None) -> Any:
    if feature is None or not feature.kind:
        return None
    kind = _kind_of(one.encoding)
    if feature.kind != kind:
        raise FormatError(
            f"column {one.name!r:.60}: expected {_KINDS[kind]}, got {_KINDS[feature.kind]}",
            where=shard.chunk.at,
            row=row,
            column=one.name,
        )
    if one.encoding.endswith("[]"):
        return feature.values
    if len(feature.values) > 1:
        raise FormatError(
            f"column {one.name!r:.60}: expected one value, got {len(feature.values)}",
            where=shard.chunk.at,
            row=row,
            column=one.name,
            hint=f"List the column as {one.encoding}[] in the playlist.",
        )
    return feature.values[0] if feature.values else None


def _kind_of(encoding: str) -> int:
    return {"int": _INTS, "float32": _FLOATS}.get(encoding.removesuffix("[]"), _BYTES)


def _parse(data: memoryview) -> dict[str, _Feature]:
    """Parse an Example. Raises ValueError for invalid data."""
    raw = bytes(data)
    out: dict[str, _Feature] = {}
    for start, stop in _items(raw, 0, len(raw)):
        for first, last in _items(raw, start, stop):
            name, feature = "", _Feature(0, [])
            for part, low, high in _fields(raw, first, last):
                if part == 1:
                    name = raw[low:high].decode()
                elif part == 2:
                    feature = _parse_feature(raw, low, high)
            out[name] = feature
    return out


def _parse_feature(raw: bytes, start: int, stop: int) -> _Feature:
    kind, values = 0, list[bytes]()
    for field, first, last in _fields(raw, start, stop):
        if field not in _KINDS:
            raise ValueError(f"unknown feature type {field}")
        if kind != field:
            # If a feature has several lists of different types, the last list is used.
            kind, values = field, []
        if field == _BYTES:
            values += [raw[low:high] for low, high in _items(raw, first, last)]
        elif field == _FLOATS:
            for low, high in _items(raw, first, last, 5):
                if (high - low) % 4:
                    raise ValueError(f"float list is {high - low} bytes, not a multiple of 4")
                values += [raw[at : at + 4] for at in range(low, high, 4)]
        else:
            for low, high in _items(raw, first, last, 0):
                while low < high:
                    number, low = _varint(raw, low, high)
                    values.append(number.to_bytes(8, "little"))
    return _Feature(kind, values)


def _items(raw: bytes, at: int, end: int, plain: int = 2) -> Iterator[tuple[int, int]]:
    """Yield (start, stop) of each field 1 of a message; see `_fields`."""
    return ((start, stop) for number, start, stop in _fields(raw, at, end, plain) if number == 1)


def _fields(raw: bytes, at: int, end: int, plain: int = 2) -> Iterator[tuple[int, int, int]]:
    """Yield (field number, start, stop) for fields of a protocol buffer message.

    Fields are skipped if their wire type is neither 2 (bytes) nor `plain`.

    plain   wire type of numbers that are not packed
    raises  ValueError for a field that extends past the end of its message, for an unsupported wire
            type, or if field 1 would be skipped
    """
    while at < end:
        tag, at = _varint(raw, at, end)
        wire = tag & 7
        start = at
        if wire == 2:
            length, start = _varint(raw, at, end)
            at = start + length
        elif wire == 0:
            _, at = _varint(raw, at, end)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(f"unsupported wire type {wire}")
        if at > end or not tag >> 3:
            raise ValueError("invalid field")
        if wire in (2, plain):
            yield tag >> 3, start, at
        elif tag >> 3 == 1:
            raise ValueError(f"unexpected wire type {wire} for field 1")


def _varint(raw: bytes, at: int, end: int) -> tuple[int, int]:
    number = shift = 0
    while at < end and shift < 70:
        byte = raw[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("incomplete number")


# -- writing


def _examples(columns: Columns, batch: pa.RecordBatch) -> Iterator[bytes]:
    """Yield each row as a serialized Example; null values are omitted."""
    stored = [
        encodings.stored(batch.column(one.name), lookup(one.encoding)).to_pylist()
        for one in columns
    ]
    keys = [_field(1, one.name.encode()) for one in columns]
    kinds = [_kind_of(one.encoding) for one in columns]
    for values in zip(*stored, strict=True):
        entries = []
        for key, kind, value in zip(keys, kinds, values, strict=True):
            if value is not None:
                items = value if isinstance(value, list) else [value]
                feature = _field(2, _field(kind, _list(kind, items)))
                entries.append(_field(1, key + feature))
        yield _field(1, b"".join(entries))


def _list(kind: int, items: Sequence[bytes]) -> bytes:
    if kind == _BYTES:
        return b"".join(_field(1, one) for one in items)
    if not items:
        return b""
    if kind == _FLOATS:
        return _field(1, b"".join(items))
    return _field(1, b"".join(_number(int.from_bytes(one, "little")) for one in items))


def _field(number: int, data: bytes) -> bytes:
    return b"".join((bytes([number << 3 | 2]), _number(len(data)), data))


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
