"""A third-party format: records of MessagePack-like lengths, one file per shard, without private
names of flare.
"""

import struct
import zlib

import numpy as np
import pyarrow as pa

from flarecli import encodings
from flarecli.errors import FormatError, IntegrityError, MissingError, UsageError
from flarecli.formats import Format
from flarecli.hashes import DEFAULT
from flarecli.model import Chunk, File, Shard, Stream

HEAD = struct.Struct("<4sII")  # magic, rows, CRC-32 of everything else
MAGIC = b"TOY1"


class Toy(Format):
    """Values behind lengths, row by row; `TOY1` and a CRC-32 at the head."""

    name = "toy"
    suffixes = (".toy",)
    is_listed = True
    record_checksums = "crc32"

    def sniff(self, name, head):
        return name.endswith(self.suffixes) or head[:4] == MAGIC

    def open_dataset(self, at):
        names = sorted(one.name for one in at.list() if one.name.endswith(".toy"))
        if not names:
            raise MissingError("no .toy file is in it", where=at)
        return Stream("data", at, self.name, names)

    def open_shard(self, chunk, columns=None):
        data = chunk.at.read(0, chunk.at.size())
        if len(data) < HEAD.size or data[:4] != MAGIC:
            raise FormatError("not a toy file", where=chunk.at)
        _, rows, crc = HEAD.unpack_from(data)
        body = data[HEAD.size :]
        if crc != zlib.crc32(body, rows):
            raise IntegrityError("fails its CRC-32", where=chunk.at)
        if chunk.rows is not None and rows != chunk.rows:
            raise FormatError(
                f"contains {rows} rows; the playlist lists {chunk.rows}", where=chunk.at
            )
        values, place = [], 0
        while place < len(body):
            (size,) = struct.unpack_from("<I", body, place)
            values.append(body[place + 4 : place + 4 + size])
            place += 4 + size
        count = len(values) // rows if rows else 0
        own = columns or tuple(encodings.column(f"c{i}", "bytes") for i in range(count))
        return Shard(chunk, own, rows, {"values": values})

    def read_rows(self, shard, rows, columns=None, ranges=None):
        names = [one.name for one in shard.columns]
        values, width = shard.layout["values"], len(names)
        out = []
        for row in rows:
            one = dict(zip(names, values[row * width : (row + 1) * width], strict=True))
            out.append(one if columns is None else {name: one[name] for name in columns})
        return out

    def read_batch(self, shard, start, stop, columns=None, views=False):
        by_name = {one.name: one for one in shard.columns}
        names = list(by_name) if columns is None else list(columns)
        rows = self.read_rows(shard, range(start, stop), names)
        if not names:
            return pa.RecordBatch.from_struct_array(pa.array([{}] * len(rows), pa.struct([])))
        arrays = []
        for name in names:
            kind = encodings.lookup(by_name[name].encoding)
            arrays.append(encodings.typed(pa.array([row[name] for row in rows], kind.raw), kind))
        schema = pa.schema([encodings.field(by_name[name]) for name in names])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def arrange(self, columns):
        out = tuple(map(self.stored_column, columns))
        if not out:
            raise UsageError("no columns")
        return out

    def _rows(self, columns, batch):
        stored = [
            encodings.stored(batch.column(one.name), encodings.lookup(one.encoding)).to_pylist()
            for one in columns
        ]
        for values in zip(*stored, strict=True):
            yield b"".join(struct.pack("<I", len(one)) + one for one in values)

    def row_sizes(self, columns, batch, settings):
        return HEAD.size, np.array([len(one) for one in self._rows(columns, batch)], np.int64)

    def write_shard(self, at, number, columns, batches, settings):
        rows = [row for batch in batches for row in self._rows(columns, batch)]
        body = b"".join(rows)
        name = f"{number:05d}.toy"
        head = HEAD.pack(MAGIC, len(rows), zlib.crc32(body, len(rows)))
        written = (at / name).write([head, body], {DEFAULT, *settings.hashes})
        file = File(name, written.size, written.hashes)
        return Chunk(at / name, len(rows), (file,), self.name)

    def verify_shard(self, shard, values=False):
        if values:
            self.read_batch(shard, 0, shard.rows)
        return iter(())
