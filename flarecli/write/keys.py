"""Detection of duplicate keys in bounded memory.

Each distinct key has a record: the 64-bit hash of the key, its first row, and the position of its
bytes in a log. A sorted run is a list of records in hash order. Each batch adds a small sorted run,
and small runs are merged into larger runs, as in a merge sort. Large runs and the log are in
temporary files. A Bloom filter with at least 2 bytes per key, but at most 1 GiB, recognizes almost
all new keys, so few keys are searched in the runs. Keys with equal hashes are compared byte by
byte.
"""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from flarecli.encodings import is_binary, is_text
from flarecli.errors import UsageError
from flarecli.hashes import mix64
from flarecli.model import IntArray
from flarecli.names import is_url
from flarecli.redact import redact, redact_text
from flarecli.storage import descriptors
from flarecli.storage.local import temporary_file_error

__all__ = ["Keys", "check_key_type", "erasable_bytes", "is_empty_key", "key_bytes", "key_text"]

_ZEROS = [b"0", b"0.0", b"-0", b"-0.0"]

Hashes = npt.NDArray[np.uint64]
Records = npt.NDArray[np.void]  # array of dtype _RECORD

_RECORD = np.dtype([("hash", "<u8"), ("row", "<i8"), ("start", "<i8"), ("length", "<i8")])
_PAGE_RECORDS = 128  # number of records in a page of a file: 4 KiB
_MEMORY_RECORDS = 1 << 17  # maximum number of records of a run in memory
_LOG_MEMORY_BYTES = 4 << 20  # maximum total size of the keys that are not in the log file yet
_FAN_IN = 8  # number of runs to merge into one run
_SEARCHED_KEYS = 1024  # maximum number of keys per search; a search reads a page per key
# log2 of the minimum and maximum number of words in the Bloom filter (8 KiB and 1 GiB)
_MIN_FILTER_BITS, _MAX_FILTER_BITS = 10, 27
_WORD_KEYS = 4  # maximum average number of keys per word of the Bloom filter
_HASH_BITS = 64


class _MemoryRun:
    """A sorted run in memory."""

    def __init__(self, records: Records) -> None:
        self.records = records
        self._hashes: Hashes = np.ascontiguousarray(records["hash"])

    def __len__(self) -> int:
        return len(self.records)

    def read(self, start: int, stop: int) -> Records:
        """Return the records in a range of positions."""
        return self.records[start:stop]

    def find(self, hashes: Hashes) -> tuple[IntArray, Records]:
        """Find all records whose hash is in `hashes`.

        return  two arrays of equal length: the index in `hashes`, and the record
        """
        queries, positions = _ranges(
            np.searchsorted(self._hashes, hashes, "left"),
            np.searchsorted(self._hashes, hashes, "right"),
        )
        return queries, self.records[positions]

    def close(self) -> None:
        """Do nothing, because a run in memory has no temporary file."""


class _FileRun:
    """A sorted run in a temporary file. `_fences` contains the first hash of each page."""

    def __init__(self, parts: Iterable[Records]) -> None:
        self._file = tempfile.TemporaryFile(prefix="flare-", buffering=0)  # noqa: SIM115 - closed by `close`
        self._count = 0
        fences = []
        try:
            for part in parts:
                _write(self._file, part.view(np.uint8))
                fence = part["hash"][-self._count % _PAGE_RECORDS :: _PAGE_RECORDS]
                fences.append(fence.copy())  # a view would keep all records of `part` in memory
                self._count += len(part)
        except BaseException:
            self.close()
            raise
        self._fences: Hashes = np.concatenate(fences)

    def __len__(self) -> int:
        return self._count

    def read(self, start: int, stop: int) -> Records:
        """Return the records in a range of positions. `stop` may exceed the number of records."""
        size = (stop - start) * _RECORD.itemsize
        data = descriptors.pread(self._file.fileno(), size, start * _RECORD.itemsize)
        return np.frombuffer(data, _RECORD)

    def find(self, hashes: Hashes) -> tuple[IntArray, Records]:
        """Find all records whose hash is in `hashes`.

        return  two arrays of equal length: the index in `hashes`, and the record
        """
        # If a page starts with a given hash, the previous page may end with the same hash.
        queries, pages = _ranges(
            np.maximum(np.searchsorted(self._fences, hashes, "left") - 1, 0),
            np.searchsorted(self._fences, hashes, "right"),
        )
        distinct, which = np.unique(pages, return_inverse=True)
        records = np.zeros((len(distinct), _PAGE_RECORDS), _RECORD)
        page_bytes = _PAGE_RECORDS * _RECORD.itemsize
        buffers: Any = records.view(np.uint8)
        for buffer, number in zip(buffers, distinct.tolist(), strict=True):
            descriptors.pread_into(self._file.fileno(), memoryview(buffer), number * page_bytes)
        is_equal = records["hash"][which] == hashes[queries][:, None]
        is_equal &= pages[:, None] * _PAGE_RECORDS + np.arange(_PAGE_RECORDS) < self._count
        at, position = np.nonzero(is_equal)
        return queries[at], records[which[at], position]

    def close(self) -> None:
        """Close and remove the temporary file."""
        self._file.close()


_Run = _MemoryRun | _FileRun


def _ranges(starts: IntArray, stops: IntArray) -> tuple[IntArray, IntArray]:
    """List the integers in several ranges; return (index of the range, integer) for each integer.

    starts, stops  int64 [ranges]; a range is empty if its start is at or above its stop
    """
    counts = np.maximum(stops - starts, 0)
    ranges = np.repeat(np.arange(len(counts)), counts)
    offsets = np.cumsum(counts) - counts
    return ranges, np.arange(len(ranges)) + (starts - offsets)[ranges]


def _write(file: IO[bytes], data: Any) -> None:
    view = memoryview(data)
    while len(view):
        view = view[file.write(view) :]


def _merged(runs: Sequence[_Run], step: int) -> Iterator[Records]:
    """Merge sorted runs: yield their records in hash order, in several arrays.

    step  number of records per read from a run
    """
    ends = [0] * len(runs)
    unmerged = [np.zeros(0, _RECORD)] * len(runs)
    while True:
        for i, run in enumerate(runs):
            if not len(unmerged[i]) and ends[i] < len(run):
                unmerged[i] = run.read(ends[i], ends[i] + step)
                ends[i] += len(unmerged[i])
        # `limits` contains the last hash that was read from each unfinished run. The unread records
        # of a run have this hash or a higher hash.
        limits = [
            one["hash"][-1]
            for one, end, run in zip(unmerged, ends, runs, strict=True)
            if end < len(run)
        ]
        counts = [
            np.searchsorted(one["hash"], min(limits), "right") if limits else len(one)
            for one in unmerged
        ]
        part = _joined([one[:count] for one, count in zip(unmerged, counts, strict=True)])
        if not len(part):
            return
        unmerged = [one[count:] for one, count in zip(unmerged, counts, strict=True)]
        yield part.take(np.argsort(part["hash"]))  # for records, `take` is faster than `[]`


def _joined(parts: Iterable[Records]) -> Records:
    """Concatenate records as bytes. Otherwise, numpy would copy field by field, which is slower."""
    raw = f"V{_RECORD.itemsize}"
    return np.concatenate([part.view(raw) for part in parts]).view(_RECORD)


class _Log:
    """The bytes of all keys. The last keys are in memory, and all others in a temporary file."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None
        self._written = 0
        self._tail = bytearray()

    def append(self, data: bytes) -> int:
        """Append bytes; return the position of the first byte."""
        start = self._written + len(self._tail)
        self._tail += data
        if len(self._tail) > _LOG_MEMORY_BYTES:
            if self._file is None:
                self._file = tempfile.TemporaryFile(prefix="flare-", buffering=0)  # noqa: SIM115 - closed by `close`
            _write(self._file, self._tail)
            self._written += len(self._tail)
            self._tail = bytearray()
        return start

    def read(self, start: int, length: int) -> bytes:
        """Return the bytes of one key."""
        if start >= self._written or self._file is None:
            begin = start - self._written
            return bytes(self._tail[begin : begin + length])
        return descriptors.pread(self._file.fileno(), length, start)

    def close(self) -> None:
        """Close and remove the temporary file."""
        if self._file is not None:
            self._file.close()


class _BloomFilter:
    """Bloom filter: approximate set of hashes.

    Each hash sets up to six bits of one 64-bit word (Putze, Sanders, Singler: "Cache-, Hash- and
    Space-Efficient Bloom Filters", 2007).

    bits  log2 of the number of words
    """

    def __init__(self, bits: int) -> None:
        self._shift = np.uint64(_HASH_BITS - bits)
        self._words = np.zeros(1 << bits, np.uint64)

    def add(self, hashes: Hashes) -> None:
        """Add sorted hashes."""
        if not len(hashes):
            return
        words = hashes >> self._shift
        firsts = np.flatnonzero(np.concatenate([[True], words[1:] != words[:-1]]))
        self._words[words[firsts]] |= np.bitwise_or.reduceat(_word_bits(hashes), firsts)

    def contains(self, hashes: Hashes) -> npt.NDArray[np.bool_]:
        """Return whether each hash may have been added: bool [hashes].

        The result is True for all added hashes, and for a small share of all other hashes.
        """
        bits = _word_bits(hashes)
        found: npt.NDArray[np.bool_] = self._words[hashes >> self._shift] & bits == bits
        return found


def _word_bits(hashes: Hashes) -> Hashes:
    one, mask = np.uint64(1), np.uint64(63)
    bits = one << (hashes & mask)
    for shift in range(6, 36, 6):
        bits |= one << ((hashes >> np.uint64(shift)) & mask)
    return bits


def key_text(key: pa.Scalar) -> str:
    """Return a key as text for messages and `failed.jsonl`.

    Secrets in URLs are redacted, invalid UTF-8 is escaped, and a null becomes empty text.
    """
    if not key.is_valid:
        return ""
    if pa.types.is_string(key.type) or pa.types.is_large_string(key.type):
        text = key.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
        return redact(text) if is_url(text) else redact_text(text)
    try:
        return redact_text(str(key.as_py()))
    except ValueError:  # for example, a timestamp with nanoseconds, if pandas is not installed
        return redact_text(key.cast(pa.large_string()).as_py())


def key_bytes(keys: pa.Array) -> pa.Array:
    """Convert keys to large_binary [rows], so that keys of different types can be compared.

    Text is UTF-8, and numbers are decimal text.
    """
    if pa.types.is_dictionary(keys.type):
        keys = keys.dictionary_decode()
    if not is_binary(keys.type):
        keys = keys.cast(pa.large_string())
    return keys.cast(pa.large_binary())


def erasable_bytes(keys: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the `key_bytes` of keys, for a comparison with erased keys: large_binary [rows].

    kind  type of the key column; if it is a floating-point type, -0.0 and 0.0 become the same key
    """
    found = key_bytes(keys)
    if not pa.types.is_floating(kind):
        return found
    is_zero = pc.is_in(found, value_set=pa.array(_ZEROS, pa.large_binary()))
    return pc.if_else(is_zero, pa.scalar(b"0", pa.large_binary()), found)


def check_key_type(name: str, kind: pa.DataType, where: object = "") -> None:
    """Raise UsageError if a column of the given type cannot be a key.

    where  address of the column's file; empty: unknown
    """
    try:
        key_bytes(pa.nulls(0, kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UsageError(
            f"column {name!r} cannot be a key: expected text, numbers or bytes",
            where=where,
            column=name,
        ) from None


def is_empty_key(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Return whether each key is null, empty or NaN: bool [rows]."""
    null = (
        keys.is_null().to_numpy(zero_copy_only=False)
        if keys.null_count
        else np.zeros(len(keys), bool)
    )
    plain = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    if is_text(plain.type) or is_binary(plain.type):
        null |= pc.equal(pc.binary_length(plain), 0).fill_null(True).to_numpy(zero_copy_only=False)
    if pa.types.is_floating(plain.type):
        null |= pc.is_nan(plain).fill_null(True).to_numpy(zero_copy_only=False)
    return null


class Keys:
    """Index of all keys so far. It finds rows whose key occurs in an earlier row.

    `close` removes the temporary files. They have no file names, so none remains after a crash.
    """

    def __init__(self) -> None:
        # list of the runs in each tier; a run in tier k contains the keys of _FAN_IN**k batches
        self._tiers: list[list[_Run]] = []
        self._log = _Log()
        self._count, self._filter_bits = 0, _MIN_FILTER_BITS
        self._filter = _BloomFilter(self._filter_bits)

    def __enter__(self) -> Keys:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Remove the temporary files."""
        for run in self._runs():
            run.close()
        self._log.close()

    def seen(self, keys: pa.Array, rows: int | IntArray) -> IntArray:
        """Add a batch of keys; return the first row with each key, or -1 for a new key.

        keys    text, bytes or numbers [rows], of the same type in all batches; a null is always new
        rows    int64 [rows]: the number of each row; for consecutive rows, the number of the first
                row as an int
        return  int64 [rows]
        raises  ReachError if the temporary files cannot be read or written
        """
        if isinstance(rows, int):
            rows = np.arange(rows, rows + len(keys), dtype=np.int64)
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        out = np.full(len(keys), -1, np.int64)
        at = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        hashes, values = _hashed(keys)
        order = np.argsort(hashes)
        if len(order) and (np.diff(hashes[order]) == 0).any():
            order = np.argsort(hashes, kind="stable")  # slower; keeps equal hashes in row order
        hashes, at = hashes[order], at[order]
        values = None if values is None else values[order]
        firsts = _first_positions(hashes, values)
        distinct = np.flatnonzero(firsts == np.arange(len(firsts)))
        earlier = np.full(len(hashes), -1, np.int64)
        try:
            earlier[distinct] = self._find(
                hashes[distinct], None if values is None else values[distinct]
            )
            new = distinct[earlier[distinct] < 0]
            self._add(hashes[new], rows[at[new]], None if values is None else values[new])
        except OSError as error:
            raise temporary_file_error(error, "the keys") from None
        within = np.where(firsts < np.arange(len(firsts)), rows[at[firsts]], -1)
        out[at] = np.where(earlier[firsts] >= 0, earlier[firsts], within)
        return out

    def find(self, keys: pa.Array) -> IntArray:
        """Return the first row with each key, or -1 for an unknown key or a null: int64 [rows].

        keys    keys to find [rows], of the same type as the keys in `seen`; they are not added
        raises  ReachError if the temporary files cannot be read
        """
        if pa.types.is_dictionary(keys.type):
            keys = keys.dictionary_decode()
        out = np.full(len(keys), -1, np.int64)
        at = np.flatnonzero(keys.is_valid().to_numpy(zero_copy_only=False))
        hashes, values = _hashed(keys)
        try:
            out[at] = self._find(hashes, values)
        except OSError as error:
            raise temporary_file_error(error, "the keys") from None
        return out

    def _runs(self) -> list[_Run]:
        """Return the runs of all tiers, the highest tier first."""
        return list(itertools.chain.from_iterable(reversed(self._tiers)))

    def _find(self, hashes: Hashes, values: npt.NDArray[np.object_] | None) -> IntArray:
        """Return the first row of each key, or -1 for an unknown key: int64 [keys].

        values  bytes of the keys; None if equal hashes imply equal keys
        """
        rows = np.full(len(hashes), -1, np.int64)
        known = np.flatnonzero(self._filter.contains(hashes))
        parts = [known[i : i + _SEARCHED_KEYS] for i in range(0, len(known), _SEARCHED_KEYS)]
        for part, run in itertools.product(parts, self._runs()):
            unknown = part[rows[part] < 0]
            queries, records = run.find(hashes[unknown])
            queries = unknown[queries]
            if values is not None:
                is_equal = [
                    length == len(value) and self._log.read(start, length) == value
                    for value, start, length in zip(
                        values[queries],
                        records["start"].tolist(),
                        records["length"].tolist(),
                        strict=True,
                    )
                ]
                queries, records = queries[is_equal], records[is_equal]
            rows[queries] = records["row"]
        return rows

    def _add(self, hashes: Hashes, rows: IntArray, values: npt.NDArray[np.object_] | None) -> None:
        """Add new keys. The arrays have one item per key, and are sorted by hash."""
        if not len(hashes):
            return
        records = np.zeros(len(hashes), _RECORD)
        records["hash"], records["row"] = hashes, rows
        if values is not None:
            lengths = np.fromiter(map(len, values), np.int64, len(values))
            start = self._log.append(b"".join(values))
            records["start"], records["length"] = start + np.cumsum(lengths) - lengths, lengths
        self._add_run(_new_run([records], len(records)))
        self._count += len(records)
        bits = self._filter_bits
        while self._count > _WORD_KEYS << bits and bits < _MAX_FILTER_BITS:
            bits += 1
        if bits == self._filter_bits:
            self._filter.add(hashes)
            return
        del self._filter  # frees its memory before the next filter is allocated
        self._filter_bits, self._filter = bits, _BloomFilter(bits)
        for run in self._runs():
            for begin in range(0, len(run), _MEMORY_RECORDS):
                part = run.read(begin, begin + _MEMORY_RECORDS)
                self._filter.add(np.ascontiguousarray(part["hash"]))

    def _add_run(self, run: _Run) -> None:
        """Add a run to the first tier. Merge a full tier into one run of the next tier."""
        for tier in self._tiers:
            tier.append(run)
            if len(tier) < _FAN_IN:
                return
            size = sum(map(len, tier))
            step = size if size <= _MEMORY_RECORDS else -(-_MEMORY_RECORDS // _FAN_IN)
            run = _new_run(_merged(tier, step), size)
            for one in tier:
                one.close()
            tier.clear()
        self._tiers.append([run])


def _new_run(parts: Iterable[Records], size: int) -> _Run:
    """Return a sorted run with `size` records: in memory if it is small, otherwise in a file."""
    if size > _MEMORY_RECORDS:
        return _FileRun(parts)
    return _MemoryRun(_joined(parts))


def _hashed(keys: pa.Array) -> tuple[Hashes, npt.NDArray[np.object_] | None]:
    """Return the hashes and the bytes of all keys that are not null.

    For integers, the bytes are None, because different integers have different hashes.
    """
    if pa.types.is_integer(keys.type):
        return mix64(keys.drop_null().to_numpy().astype(np.uint64)), None
    if is_text(keys.type) or is_binary(keys.type):
        values = keys.cast(pa.large_binary()).drop_null().to_numpy(zero_copy_only=False)
    else:
        texts = [str(value).encode() for value in keys.to_pylist() if value is not None]
        values = np.empty(len(texts), object)
        values[:] = texts
    return np.fromiter(map(xxhash.xxh3_64_intdigest, values), np.uint64, len(values)), values


def _first_positions(hashes: Hashes, values: npt.NDArray[np.object_] | None) -> IntArray:
    """Return, for each key, the position of the first equal key: int64 [keys].

    hashes  sorted hashes of the keys; keys with equal hashes are in row order
    values  bytes of the keys; None if equal hashes imply equal keys
    """
    firsts = np.arange(len(hashes))
    is_repeated = np.zeros(len(hashes), bool)
    is_repeated[1:] = hashes[1:] == hashes[:-1]
    is_repeated[:-1] |= is_repeated[1:]
    repeated = np.flatnonzero(is_repeated)
    if len(repeated):
        names = (hashes if values is None else values)[repeated].tolist()
        first: dict[Any, int] = {}
        firsts[repeated] = [
            first.setdefault(name, at) for name, at in zip(names, repeated.tolist(), strict=True)
        ]
    return firsts
