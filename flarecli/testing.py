"""A conformance suite for the formats of other packages.

    from flarecli.testing import FormatSuite

    class TestToy(FormatSuite):
        name = "toy"

pytest runs each test of the suite on the format of that name. The built-in formats pass the same
suite.
"""

from __future__ import annotations

import pickle
import random
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from flarecli import encodings, formats
from flarecli.errors import FlareError, UsageError
from flarecli.model import Chunk, Column, Columns, File, Settings, Shard
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore

__all__ = ["FormatSuite"]

_ENCODINGS = {"a": "str", "b": "bytes", "n": "int", "x": "float64"}


class FormatSuite:
    """Tests that every format must pass; a subclass sets the format.

    name      the format
    settings  the pack settings that it needs, such as a separator
    """

    name: ClassVar[str]
    settings: ClassVar[Settings] = Settings()

    # -- test data

    @property
    def format(self) -> formats.Format:
        """The format under test."""
        return formats.find(self.name)

    def columns(self) -> Columns:
        """Return columns of text, bytes, integers and floats that the format can store together."""
        held = []
        for name, encoding in _ENCODINGS.items():
            one = encodings.column(name, encoding)
            if self.format.store_as(encoding) is not None:
                held.append(one)
        try:
            return self.format.arrange(held)
        except UsageError:  # a format of one column
            return self.format.arrange([encodings.column("b", "bytes")])

    def batch(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return rows as a typed batch of the given columns."""
        arrays = []
        for one in columns:
            wanted = encodings.lookup(_ENCODINGS[one.name])
            values = pa.array([row[one.name] for row in rows], wanted.arrow)
            array, failures = encodings.coerce(values, encodings.lookup(one.encoding), wanted)
            assert failures == [], failures
            arrays.append(array)
        schema = pa.schema([encodings.field(one) for one in columns])
        return pa.RecordBatch.from_arrays(arrays, schema=schema)

    def rows(self, count: int) -> list[dict[str, Any]]:
        """Return reproducible random rows."""
        rng = random.Random(count)
        return [
            {
                "a": "".join(rng.choice("aé漢\U0001f642 x") for _ in range(rng.randrange(1, 30))),
                "b": rng.randbytes(rng.randrange(1, 200)),
                "n": rng.randrange(-(2**63), 2**63),
                "x": rng.uniform(-1e9, 1e9),
            }
            for _ in range(count)
        ]

    def write(self, count: int, parts: int = 1) -> tuple[Chunk, Columns, pa.RecordBatch]:
        """Write random rows, in `parts` batches, as one shard in memory."""
        columns = self.columns()
        batch = self.batch(columns, self.rows(count))
        step = max(1, -(-count // parts))
        batches = [batch.slice(start, step) for start in range(0, count, step)] or [batch]
        at = Location(MemoryStore(), "")
        return self.format.write_shard(at, 0, columns, batches, self.settings), columns, batch

    def opened(self, count: int) -> tuple[Shard, pa.RecordBatch]:
        """Write random rows as one shard and open it."""
        chunk, columns, batch = self.write(count)
        return self.format.open_shard(chunk, columns), batch

    @staticmethod
    def stored(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the rows of a batch as stored bytes."""
        columns = {}
        for field in batch.schema:
            kind = encodings.lookup(encodings.encoding_of(field) or "bytes")
            columns[field.name] = encodings.stored(batch.column(field.name), kind).to_pylist()
        return [{name: columns[name][i] for name in columns} for i in range(batch.num_rows)]

    @staticmethod
    def changed(chunk: Chunk, path: str, data: bytes) -> Chunk:
        """Return a shard with one file replaced and no listed sizes."""
        store = MemoryStore({**_files(chunk), path: data})
        return replace(
            chunk,
            at=Location(store, chunk.at.path),
            rows=None,
            files=tuple(File(one.name) for one in chunk.files),
            companions=tuple(Location(store, one.path) for one in chunk.companions),
        )

    def read(self, chunk: Chunk, columns: Columns) -> list[dict[str, Any]] | None:
        """Read and verify a shard; return its rows, or None if damage was reported."""
        try:
            shard = self.format.open_shard(chunk, columns)
            rows = self.format.read_rows(shard, range(shard.rows), [one.name for one in columns])
            self.format.read_batch(shard, 0, shard.rows)
            findings = list(self.format.verify_shard(shard, values=True))
        except FlareError as error:
            assert str(error)
            return None
        return None if findings else [dict(row) for row in rows]

    # -- the tests

    def test_the_format_is_found_by_its_name_and_its_suffixes(self) -> None:
        assert formats.is_known(self.name)
        assert self.format.name == self.name
        for suffix in self.format.suffixes:
            assert formats.sniff(f"shard.00000{suffix}") == self.name

    def test_rows_are_read_in_any_order(self) -> None:
        shard, batch = self.opened(50)
        assert shard.rows == 50
        order, wanted = [49, 0, 7, 7, 30, 31, 32, 1], self.stored(batch)
        found = self.format.read_rows(shard, order, batch.schema.names)
        assert found == [wanted[i] for i in order]
        assert self.format.read_rows(shard, []) == []

    def test_batches_equal_rows(self) -> None:
        shard, batch = self.opened(40)
        names, schema = batch.schema.names, batch.schema
        for start, stop in ((0, 40), (0, 0), (13, 14), (39, 40), (5, 31)):
            for views in (False, True):
                found = self.format.read_batch(shard, start, stop, names, views).cast(schema)
                found.validate(full=True)
                assert found.equals(batch.slice(start, stop - start))
            rows = self.format.read_rows(shard, range(start, stop), names)
            assert rows == self.stored(batch.slice(start, stop - start))

    def test_selected_columns_are_read_in_the_order_asked(self) -> None:
        shard, batch = self.opened(5)
        own: list[str] = batch.schema.names
        for names in (own[-1:], own[::-1], own[:0]):
            found = self.format.read_batch(shard, 1, 4, names)
            assert (found.schema.names, found.num_rows) == (names, 3)
            assert all(found.column(one).equals(batch.column(one).slice(1, 3)) for one in names)

    def test_an_empty_shard_is_read(self) -> None:
        shard, _ = self.opened(0)
        assert shard.rows == 0
        assert self.format.read_batch(shard, 0, 0).num_rows == 0
        assert list(self.format.verify_shard(shard, values=True)) == []

    def test_empty_values_are_read_back_or_refused(self) -> None:
        columns, row = self.columns(), {"a": "", "b": b"", "n": 0, "x": -0.0}
        batch, at = self.batch(columns, [row, row]), Location(MemoryStore(), "")
        try:
            chunk = self.format.write_shard(at, 0, columns, [batch], self.settings)
        except FlareError as error:
            assert str(error)
            return
        shard = self.format.open_shard(chunk, columns)
        assert self.format.read_batch(shard, 0, 2, batch.schema.names).equals(batch)

    def test_nulls_are_read_back_where_the_format_declares_them(self) -> None:
        columns = self.columns()
        if not self.format.holds_null or len(columns) < 2:
            return
        rows = self.rows(6)
        full = self.batch(columns, rows)
        name = next(one for one in reversed(full.schema.names) if one != self.format.key_column)
        place = full.schema.get_field_index(name)
        mask = pa.array([i % 2 == 0 for i in range(6)])
        values = pa.compute.if_else(
            mask, full.column(name), pa.scalar(None, full.column(name).type)
        )
        batch = full.set_column(place, full.schema.field(place), values)
        at = Location(MemoryStore(), "")
        chunk = self.format.write_shard(at, 0, columns, [batch], self.settings)
        shard = self.format.open_shard(chunk, columns)
        assert self.format.read_batch(shard, 0, 6, batch.schema.names).equals(batch)
        assert [row[name] is None for row in self.format.read_rows(shard, range(6))] == [
            i % 2 == 1 for i in range(6)
        ]

    def test_a_shard_is_pickled(self) -> None:
        shard, batch = self.opened(9)
        again = pickle.loads(pickle.dumps(shard))
        names = batch.schema.names
        assert self.format.read_rows(again, [8, 2], names) == [
            self.stored(batch)[i] for i in (8, 2)
        ]

    def test_equal_rows_make_equal_bytes(self) -> None:
        (first, *_), (second, *_) = self.write(30), self.write(30, parts=4)
        assert _files(first) == _files(second)
        assert first.files == second.files

    def test_listed_sizes_are_those_of_the_files(self) -> None:
        chunk, _, _ = self.write(30)
        files = _files(chunk)
        assert [one.size for one in chunk.files] == [
            len(files[at.path]) for at in (chunk.at, *chunk.companions)
        ]

    def test_row_sizes_add_up_to_the_shard(self) -> None:
        chunk, columns, batch = self.write(30)
        base, sizes = self.format.row_sizes(columns, batch, self.settings)
        assert len(sizes) == 30
        assert bool((np.asarray(sizes) >= 0).all())
        if self.format.sizes_are_exact:
            assert base + int(sizes.sum()) == sum(self.counted(chunk))

    def counted(self, chunk: Chunk) -> list[int]:
        """Return the sizes of the files that `row_sizes` counts (default: the main file)."""
        return [chunk.files[0].size or 0]

    def test_an_intact_shard_has_no_findings(self) -> None:
        shard, _ = self.opened(30)
        assert list(self.format.verify_shard(shard)) == []
        assert list(self.format.verify_shard(shard, values=True)) == []

    def test_a_truncated_file_is_never_read_as_complete(self) -> None:
        chunk, columns, batch = self.write(12)
        for path, data in _files(chunk).items():
            for length in {1, 3, 8, len(data) // 3, len(data) // 2, len(data) - 1} - {len(data)}:
                if 0 < length < len(data):
                    found = self.read(self.changed(chunk, path, data[:length]), columns)
                    assert found is None or found == self.stored(batch), f"{path}: {length} bytes"

    def test_a_flipped_bit_is_reported_where_records_have_checksums(self) -> None:
        if not self.format.record_checksums:
            return
        chunk, columns, _ = self.write(3)
        data = _files(chunk)[chunk.at.path]
        for place in range(0, len(data), max(1, len(data) // 100)):
            flipped = bytearray(data)
            flipped[place] ^= 1
            found = self.read(self.changed(chunk, chunk.at.path, bytes(flipped)), columns)
            assert found is None, f"byte {place}"

    def test_rows_are_converted_to_the_default_format_and_back(self) -> None:
        from flarecli import commands

        with tempfile.TemporaryDirectory() as folder:
            source, there, back = (f"{folder}/{name}" for name in ("source", "there", "back"))
            names = [one.name for one in self.columns()]
            self._pack(source, formats.DEFAULT, names)
            commands.pack([source], there, format=self.name, **self._options())
            assert list(commands.verify([there])) == []
            commands.pack([there], back)
            assert _table(back, names).equals(_table(source, names))

    def _pack(self, out: str, format: str, names: Sequence[str]) -> None:
        from flarecli.write import Writer

        columns = [Column(name, _ENCODINGS[name], None) for name in names]
        with Writer(out, format=format, columns={one.name: one.encoding for one in columns}) as to:
            for row in self.rows(20):
                to.write({name: row[name] for name in names})

    def _options(self) -> dict[str, Any]:
        return {"separator": self.settings.separator} if "separator" in self.format.options else {}


def _files(chunk: Chunk) -> dict[str, bytes]:
    store = chunk.at.store
    assert isinstance(store, MemoryStore)
    return {path: bytes(data) for path, data in store.files.items()}


def _table(address: str, names: Sequence[str]) -> pa.Table:
    from flarecli import commands

    return pa.Table.from_batches(
        [batch.select(list(names)) for batch in commands.cat([address])]
    ).replace_schema_metadata()
