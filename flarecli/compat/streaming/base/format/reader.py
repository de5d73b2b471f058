"""Reader of one shard, and Shards, the sequence of the Readers of an index."""

from __future__ import annotations

import os
import struct
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from json import JSONDecodeError
from typing import Any, NamedTuple

import numpy as np

from flarecli import encodings, formats
from flarecli.errors import FlareError, FormatError, RowsError, UnsafeError, UsageError
from flarecli.formats import INDEX, byte_ranges
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.index import Listed, read_shards
from flarecli.model import Chunk, File, Sample, Settings, Shard
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

__all__ = ["Array", "FileInfo", "Reader", "Shards", "read_index", "reader_from_json"]

MAX_OPEN_SHARDS = 128  # maximum number of readers kept per folder


class PicklesError(UnsafeError, ValueError):
    """A column contains pickles, which are not allowed."""


class CorruptIndexError(FormatError, JSONDecodeError):
    """An `index.json` is empty or not valid JSON."""

    def __init__(self, message: str, *, where: object = "", hint: str = "") -> None:
        JSONDecodeError.__init__(self, message, "", 0)
        self._set(message, where, hint)


class FileInfo(NamedTuple):
    """A file in the index.

    basename  name, relative to the folder of the index
    bytes     size in bytes
    hashes    hash name -> hex digest
    """

    basename: str
    bytes: int
    hashes: Mapping[str, str]


class Array:
    """Samples by position: `data[i]`, `data[a:b]`, `data[[7, 3]]`, `len(data)`, iteration.

    A subclass defines `size` and `get_item`.
    """

    @property
    def size(self) -> int:
        """Number of samples in the array."""
        raise NotImplementedError

    def get_item(self, sample_id: int) -> Sample:
        """Return one sample by its position."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Any]:
        return map(self.get_item, range(self.size))

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, (int, np.integer)):
            row = int(at) + self.size if at < 0 else int(at)
            if not 0 <= row < self.size:
                raise RowsError(f"sample {int(at)} is out of range; there are {self.size} samples")
            return self.get_item(row)
        if isinstance(at, slice):
            return [self.get_item(row) for row in range(self.size)[at]]
        if isinstance(at, (list, np.ndarray)):
            return [self[index] for index in at]
        raise UsageError(
            f"expected an integer, a slice, or a list or array of integers, got {type(at).__name__}"
        )


class Reader(Array):
    """The samples of a shard, with the methods of mosaicml-streaming's Reader.

    dirname, split  folder and subfolder of the shard
    entry           the shard's entry in `index.json`
    allow_unsafe_types  True decodes `pkl` columns; a pickle can run code
    raises          FormatError if the entry is invalid; UnsafeError if the entry names a file
                    outside the folder
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        entry: Mapping[str, Any],
        allow_unsafe_types: bool = False,
    ) -> None:
        self.dirname, self.split = dirname, split or ""
        self._where = os.path.join(dirname, self.split)
        listed = Listed()
        listed.add(entry, self._where, frozenset())
        self.format, self.columns = listed.form, listed.columns or ()
        self.samples: int = listed.rows[0]
        self.compression: str | None = entry.get("compression") or None
        self.hashes: list[str] = list(entry.get("hashes") or ())
        self.size_limit = mds_config.size_limit(entry.get("size_limit"), self._where)
        self.file_pairs = [
            (
                FileInfo(**entry[f"raw_{what}"]),
                FileInfo(**entry[f"zip_{what}"]) if entry.get(f"zip_{what}") else None,
            )
            for what in (("data",) if self.format == "mds" else ("meta", "data"))
        ]
        self.allow_unsafe_types = allow_unsafe_types
        self._entry = dict(entry)
        self._shard: Shard | None = None
        self._decoders = [
            (column.name, encodings.lookup(column.encoding), _scalar(column.encoding))
            for column in self.columns
        ]
        self.column_names = [column.name for column in self.columns]
        self.column_encodings = [column.encoding for column in self.columns]
        self.column_sizes = [column.size for column in self.columns]
        self.newline: str = entry.get("newline", "\n")
        self.separator: str = entry.get("separator", mds_config.SEPARATORS.get(self.format, ","))

    def __reduce__(self) -> tuple[Any, ...]:
        return Reader, (self.dirname, self.split, self._entry, self.allow_unsafe_types)

    @property
    def size(self) -> int:
        """Number of samples in the shard."""
        return self.samples

    def validate(self, allow_unsafe_types: bool) -> None:
        """Set whether pickles are allowed.

        raises  PicklesError if a column contains pickles and pickles are not allowed
        """
        self.allow_unsafe_types = allow_unsafe_types
        for column in self.columns:
            if column.encoding == "pkl" and not allow_unsafe_types:
                raise PicklesError(
                    f"column {column.name!r} contains an unsafe type (pickles)",
                    where=self._where,
                    hint="Pass allow_unsafe_types=True if you trust the data.",
                    column=column.name,
                )

    # -- samples

    def get_item(self, idx: int) -> Sample:
        """Return one sample: column -> value.

        raises  RowsError (an IndexError) if there is no sample with the number `idx`
        """
        self._check(idx)
        (row,) = formats.find(self.format).read_rows(self._open(), [idx])
        return self._decoded(row)

    def get_sample_data(self, idx: int) -> bytes:
        """Return the stored bytes of one sample."""
        self._check(idx)
        shard = self._open()
        starts = shard.layout["starts"]
        return bytes(byte_ranges.read(shard.chunk, [(int(starts[idx]), int(starts[idx + 1]))])[0])

    def decode_sample(self, data: bytes) -> Sample:
        """Decode the stored bytes of one sample. Raises FormatError for invalid bytes."""
        settings = Settings(newline=self.newline, separator=self.separator)
        config = mds_config.dumped(mds_config.config(self.format, self.columns, settings))
        name, head = f"sample.{self.format}", b""
        files: dict[str, bytes | bytearray | memoryview] = {}
        if self.format == "mds":
            files[name] = (
                struct.pack("<III", 1, 12 + len(config), 12 + len(config) + len(data))
                + config
                + data
            )
        else:
            if self.format != "json":
                head = (self.separator.join(self.column_names) + self.newline).encode()
            files[name] = head + data
            files[f"{name}.meta"] = (
                struct.pack("<III", 1, len(head), len(head) + len(data)) + config
            )
        form = formats.find(self.format)
        shard = form.open_shard(Chunk(Location(MemoryStore(files), name)), self.columns)
        return self._decoded(form.read_rows(shard, [0])[0])

    def _check(self, row: int) -> None:
        if not 0 <= row < self.samples:
            raise RowsError(
                f"sample {row} is out of range; there are {self.samples} samples", where=self._where
            )

    def _decoded(self, row: Mapping[str, Any]) -> Sample:
        out = {}
        for name, encoding, scalar in self._decoders:
            try:
                value = encodings.decode(encoding, row[name], self.allow_unsafe_types)
            except FlareError as error:
                raise error.changed(address=str(self._where), row=None).of_column(name) from None
            out[name] = value if scalar is None else scalar(value)
        return out

    def _open(self) -> Shard:
        if self._shard is None:
            at = locate(f"{self._where.rstrip('/')}/")
            raws = [raw for raw, _ in self.file_pairs]
            if not all(os.path.exists(self._path(raw)) for raw in raws):
                # If no uncompressed file is specified, `Listed.add` lists the compressed files.
                raws = []
            listed = Listed()
            listed.add(self._entry, self._where, frozenset(raw.basename for raw in raws))
            chunk = listed.stream(at, File("index.json")).chunk(0)
            self._shard = formats.find(self.format).open_shard(chunk, self.columns)
        return self._shard

    def close(self) -> None:
        """Close the shard; the next sample opens it again."""
        self._shard = None

    # -- files

    def _path(self, info: FileInfo) -> str:
        return os.path.join(self.dirname, self.split, info.basename)

    def get_raw_size(self) -> int:
        """Return the total size in bytes of the uncompressed files, as listed in the index."""
        return sum(raw.bytes for raw, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """Return the total size in bytes of the compressed files, as listed in the index.

        The result is None unless each uncompressed file has a compressed file.
        """
        zips = [zipped.bytes for _, zipped in self.file_pairs if zipped is not None]
        return sum(zips) if len(zips) == len(self.file_pairs) else None

    def get_max_size(self) -> int:
        """Return the total size in bytes of all files of the shard, as listed in the index.

        Uncompressed and compressed files are counted.
        """
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:
        """Return the total size in bytes of the files that remain after `Stream.prepare`.

        The sizes are those in the index.
        """
        return self.get_max_size() if self.compression and keep_zip else self.get_raw_size()

    def evict(self) -> int:
        """Remove the files of the shard.

        return  total size in bytes of the removed files, as listed in the index
        """
        self.close()
        return sum(
            self._remove(info) for pair in self.file_pairs for info in pair if info is not None
        )

    def _remove(self, info: FileInfo) -> int:
        try:
            os.unlink(self._path(info))
        except FileNotFoundError:
            return 0
        return info.bytes

    def set_up_local(self, listing: set[str], safe_keep_zip: bool) -> int:
        """Remove files of the shard that are not needed.

        If a raw file is missing, all raw files are removed. The same applies to compressed files.

        listing        paths of the existing files, as `os.path.join(dirname, split, basename)`
        safe_keep_zip  True keeps compressed files, and removes raw files if a compressed file is
                       missing; False removes compressed files if all raw files exist
        return         total size in bytes of the remaining files, as listed in the index
        raises         UsageError for a shard that lists a compressed file but no compression
        """
        raws = [raw for raw, _ in self.file_pairs]
        zips = [zipped for _, zipped in self.file_pairs if zipped is not None]
        has_raw = all(self._path(info) in listing for info in raws)
        has_zip = len(zips) == len(raws) and all(self._path(info) in listing for info in zips)
        if has_zip and not self.compression:
            raise UsageError(
                "the shard lists a compressed file but no compression", where=self._where
            )
        keeps_raw = has_raw and (has_zip or not self.compression or not safe_keep_zip)
        keeps_zip = has_zip and (safe_keep_zip or not has_raw)
        size = 0
        for infos, is_kept in ((raws, keeps_raw), (zips, keeps_zip)):
            for info in infos:
                if is_kept:
                    size += info.bytes
                elif self._path(info) in listing:
                    self._remove(info)
        return size


def _scalar(encoding: str) -> Any:
    """Return the numpy scalar type to which mosaicml-streaming decodes values of an encoding.

    return  None if mosaicml-streaming decodes the values to another type
    """
    is_number = encoding.rstrip("0123456789") in ("int", "uint", "float") and encoding[-1].isdigit()
    return np.dtype(encoding).type if is_number else None


def reader_from_json(dirname: str, split: str | None, obj: Mapping[str, Any]) -> Reader:
    """Return the Reader for an `index.json` entry. Raises FormatError for versions other than 2."""
    if obj.get("version") != 2:
        raise FormatError(f"expected version 2, got {obj.get('version')!r:.60}", where=dirname)
    return Reader(dirname, split, obj)


class Shards(Sequence[Reader]):
    """Readers of the shards in an index, each created on first use.

    starts  number of the first sample of each shard, then the total number of samples
    """

    def __init__(
        self,
        dirname: str,
        split: str | None,
        entries: Sequence[Mapping[str, Any]],
        allow_unsafe_types: bool = False,
    ) -> None:
        @lru_cache(MAX_OPEN_SHARDS)
        def reader(i: int) -> Reader:
            return Reader(dirname, split, entries[i], allow_unsafe_types)

        self._args, self._entries = (dirname, split, entries, allow_unsafe_types), entries
        self._reader = reader
        self.starts = [0, *accumulate(int(entry["samples"]) for entry in entries)]

    def __reduce__(self) -> tuple[Any, ...]:
        return Shards, self._args

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, i: Any) -> Any:
        if isinstance(i, slice):
            return [self[k] for k in range(len(self))[i]]
        return self._reader(range(len(self))[i])

    def files(self, i: int) -> list[tuple[str, int]]:
        """Return the name and size of each file that the index lists for a shard.

        Compressed files are included.
        """
        entry = self._entries[i]
        infos = (entry.get(key) for key in ("raw_data", "raw_meta", "zip_data", "zip_meta"))
        return [(info["basename"], int(info["bytes"])) for info in infos if info]

    def find(self, sample: int) -> tuple[int, int]:
        """Return the shard that contains a sample, and the sample's position in the shard."""
        i = bisect_right(self.starts, sample) - 1
        return i, sample - self.starts[i]


def read_index(local: str, split: str | None) -> list[dict[str, Any]]:
    """Check the index of a folder and return its shard entries.

    raises  MissingError for a missing index; CorruptIndexError if the index is empty, is not valid
            JSON or has no list of shards; FormatError for an invalid entry
    """
    at = locate(f"{os.path.join(local, split or '').rstrip('/')}/") / INDEX
    try:
        shards, _ = read_shards(at)
    except FormatError as error:
        raise CorruptIndexError(
            f"Index file at {at.name} is empty or corrupted: {error.message}",
            where=error.place,
            hint=error.hint,
        ) from None
    for entry in shards:
        reader_from_json(local, split, entry)
    return shards
