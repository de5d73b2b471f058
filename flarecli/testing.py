"""Conformance tests for formats that other packages define.

    from flarecli.testing import FormatSuite

    class TestToy(FormatSuite):
        name = "toy"

pytest runs each test of the suite with the named format. The built-in formats pass the same tests.
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


# `assert` is not used, because `python -O` removes it, and pytest explains failed assertions only
# in test modules.
def _check(is_right: bool, message: str) -> None:
    if not is_right:
        raise AssertionError(message)


def _check_equal(found: Any, wanted: Any, what: str) -> None:
    """Raise AssertionError with both values unless they are equal."""
    _check(bool(found == wanted), f"{what}: expected {wanted!r:.1000}, got {found!r:.1000}")


def _check_reason(error: FlareError) -> None:
    _check(bool(str(error)), f"{type(error).__name__} has no message")


class FormatSuite:
    """Tests that every format must pass. A subclass sets the format.

    name      name of the format
    settings  settings that the format requires to write shards, such as a separator
    """

    name: ClassVar[str]
    settings: ClassVar[Settings] = Settings()

    # -- test data

    @property
    def format(self) -> formats.Format:
        """Return the format under test."""
        return formats.find(self.name)

    def columns(self) -> Columns:
        """Return text, bytes, integer and float columns that the format can store in one shard."""
        held = []
        for name, encoding in _ENCODINGS.items():
            one = encodings.column(name, encoding)
            if self.format.store_as(encoding) is not None:
                held.append(one)
        try:
            return self.format.arrange(held)
        except UsageError:  # the format stores a single column
            return self.format.arrange([encodings.column("b", "bytes")])

    def batch(self, columns: Columns, rows: Sequence[Mapping[str, Any]]) -> pa.RecordBatch:
        """Return rows as a typed batch with these columns."""
        arrays = []
        for one in columns:
            wanted = encodings.lookup(_ENCODINGS[one.name])
            values = pa.array([row[one.name] for row in rows], wanted.arrow)
            array, failures = encodings.coerce(values, encodings.lookup(one.encoding), wanted)
            _check_equal(failures, [], f"values of {one.name} that {one.encoding} cannot store")
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
        return self.write_batches(columns, batches), columns, batch

    def write_batches(self, columns: Columns, batches: Sequence[pa.RecordBatch]) -> Chunk:
        """Write batches as one shard in memory.

        `row_sizes` checks each batch first, as in the Writer.

        raises  the errors of `row_sizes` and `write_shard`
        """
        for batch in batches:
            self.format.row_sizes(columns, batch, self.settings)
        return self.format.write_shard(
            Location(MemoryStore(), ""), 0, columns, batches, self.settings
        )

    def opened(self, count: int) -> tuple[Shard, pa.RecordBatch]:
        """Write random rows as one shard and open it."""
        chunk, columns, batch = self.write(count)
        return self.format.open_shard(chunk, columns), batch

    @staticmethod
    def stored(batch: pa.RecordBatch) -> list[dict[str, Any]]:
        """Return the rows of a batch, with each value as the bytes of its encoding."""
        columns = {}
        for field in batch.schema:
            kind = encodings.lookup(encodings.encoding_of(field) or "bytes")
            columns[field.name] = encodings.stored(batch.column(field.name), kind).to_pylist()
        return [{name: columns[name][i] for name in columns} for i in range(batch.num_rows)]

    @staticmethod
    def changed(chunk: Chunk, path: str, data: bytes) -> Chunk:
        """Return a copy of a shard with one file replaced and without listed sizes."""
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
            _check_reason(error)
            return None
        return None if findings else [dict(row) for row in rows]

    # -- the tests

    def test_the_format_is_found_by_its_name_and_its_suffixes(self) -> None:
        _check(formats.is_known(self.name), f"no format is registered as {self.name!r}")
        _check_equal(self.format.name, self.name, "name of the format")
        for suffix in self.format.suffixes:
            found = formats.sniff(f"shard.00000{suffix}")
            _check_equal(found, self.name, f"format of the suffix {suffix!r}")

    def test_rows_are_read_in_any_order(self) -> None:
        shard, batch = self.opened(50)
        _check_equal(shard.rows, 50, "rows of the shard")
        order, wanted = [49, 0, 7, 7, 30, 31, 32, 1], self.stored(batch)
        found = self.format.read_rows(shard, order, batch.schema.names)
        _check_equal(found, [wanted[i] for i in order], f"rows {order}")
        _check_equal(self.format.read_rows(shard, []), [], "rows of an empty selection")

    def test_batches_equal_rows(self) -> None:
        shard, batch = self.opened(40)
        names, schema = batch.schema.names, batch.schema
        for start, stop in ((0, 40), (0, 0), (13, 14), (39, 40), (5, 31)):
            for views in (False, True):
                found = self.format.read_batch(shard, start, stop, names, views).cast(schema)
                found.validate(full=True)
                _check_equal(found, batch.slice(start, stop - start), f"batch {start}:{stop}")
            rows = self.format.read_rows(shard, range(start, stop), names)
            wanted = self.stored(batch.slice(start, stop - start))
            _check_equal(rows, wanted, f"rows {start}:{stop}")

    def test_selected_columns_are_read_in_the_order_asked(self) -> None:
        shard, batch = self.opened(5)
        own: list[str] = batch.schema.names
        for names in (own[-1:], own[::-1], own[:0]):
            found = self.format.read_batch(shard, 1, 4, names)
            _check_equal((found.schema.names, found.num_rows), (names, 3), "columns and rows")
            for one in names:
                _check_equal(found.column(one), batch.column(one).slice(1, 3), f"column {one!r}")

    def test_an_empty_shard_is_read(self) -> None:
        shard, _ = self.opened(0)
        _check_equal(shard.rows, 0, "rows of an empty shard")
        _check_equal(self.format.read_batch(shard, 0, 0).num_rows, 0, "rows of an empty batch")
        findings = list(self.format.verify_shard(shard, values=True))
        _check_equal(findings, [], "findings in an empty shard")

    def test_empty_values_are_read_back_or_refused(self) -> None:
        columns, row = self.columns(), {"a": "", "b": b"", "n": 0, "x": -0.0}
        batch = self.batch(columns, [row, row])
        try:
            chunk = self.write_batches(columns, [batch])
        except FlareError as error:
            _check_reason(error)
            return
        shard = self.format.open_shard(chunk, columns)
        found = self.format.read_batch(shard, 0, 2, batch.schema.names)
        _check_equal(found, batch, "rows of empty values")

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
        shard = self.format.open_shard(self.write_batches(columns, [batch]), columns)
        found = self.format.read_batch(shard, 0, 6, batch.schema.names)
        _check_equal(found, batch, "rows with nulls")
        nulls = [row[name] is None for row in self.format.read_rows(shard, range(6))]
        _check_equal(nulls, [i % 2 == 1 for i in range(6)], f"nulls of {name!r}")

    def test_a_shard_is_pickled(self) -> None:
        shard, batch = self.opened(9)
        again = pickle.loads(pickle.dumps(shard))
        names = batch.schema.names
        wanted = [self.stored(batch)[i] for i in (8, 2)]
        found = self.format.read_rows(again, [8, 2], names)
        _check_equal(found, wanted, "rows of a pickled shard")

    def test_equal_rows_make_equal_bytes(self) -> None:
        (first, *_), (second, *_) = self.write(30), self.write(30, parts=4)
        _check_equal(_files(second), _files(first), "files of the same rows in other batches")
        _check_equal(second.files, first.files, "listed files of the same rows in other batches")

    def test_listed_sizes_are_those_of_the_files(self) -> None:
        chunk, _, _ = self.write(30)
        files = _files(chunk)
        sizes = [len(files[at.path]) for at in (chunk.at, *chunk.companions)]
        _check_equal([one.size for one in chunk.files], sizes, "listed sizes of the files")

    def test_row_sizes_add_up_to_the_shard(self) -> None:
        chunk, columns, batch = self.write(30)
        base, sizes = self.format.row_sizes(columns, batch, self.settings)
        _check_equal(len(sizes), 30, "number of sizes")
        _check(bool((np.asarray(sizes) >= 0).all()), f"sizes of rows are negative: {sizes}")
        if self.format.sizes_are_exact:
            total = base + int(sizes.sum())
            _check_equal(total, sum(self.counted(chunk)), "sum of the sizes of rows")

    def counted(self, chunk: Chunk) -> list[int]:
        """Return the sizes of the files whose bytes `row_sizes` counts (default: the main file)."""
        return [chunk.files[0].size or 0]

    def test_an_intact_shard_has_no_findings(self) -> None:
        shard, _ = self.opened(30)
        for values in (False, True):
            findings = list(self.format.verify_shard(shard, values=values))
            _check_equal(findings, [], f"findings in an intact shard with values={values}")

    def test_a_truncated_file_is_never_read_as_complete(self) -> None:
        chunk, columns, batch = self.write(12)
        for path, data in _files(chunk).items():
            for length in {1, 3, 8, len(data) // 3, len(data) // 2, len(data) - 1} - {len(data)}:
                if 0 < length < len(data):
                    found = self.read(self.changed(chunk, path, data[:length]), columns)
                    if found is not None:
                        what = f"rows of {path} truncated to {length} bytes"
                        _check_equal(found, self.stored(batch), what)

    def test_a_flipped_bit_is_reported_where_records_have_checksums(self) -> None:
        if not self.format.record_checksums:
            return
        chunk, columns, _ = self.write(3)
        data = _files(chunk)[chunk.at.path]
        for place in range(0, len(data), max(1, len(data) // 100)):
            flipped = bytearray(data)
            flipped[place] ^= 1
            found = self.read(self.changed(chunk, chunk.at.path, bytes(flipped)), columns)
            _check(found is None, f"a flipped bit in byte {place} is not reported")

    def test_rows_are_converted_to_the_default_format_and_back(self) -> None:
        from flarecli import commands

        with tempfile.TemporaryDirectory() as folder:
            source, there, back = (f"{folder}/{name}" for name in ("source", "there", "back"))
            names = [one.name for one in self.columns()]
            self._pack(source, formats.DEFAULT, names)
            commands.pack([source], there, format=self.name, **self._options())
            _check_equal(list(commands.verify([there])), [], "findings in the converted dataset")
            commands.pack([there], back)
            found = _table(back, names)
            _check_equal(found, _table(source, names), "rows converted there and back")

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
    if not isinstance(store, MemoryStore):
        raise TypeError(f"expected a shard in memory, got {chunk.at}")
    return {path: bytes(data) for path, data in store.files.items()}


def _table(address: str, names: Sequence[str]) -> pa.Table:
    from flarecli import commands

    return pa.Table.from_batches(
        [batch.select(list(names)) for batch in commands.cat([address])]
    ).replace_schema_metadata()
