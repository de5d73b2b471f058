"""One shard as mosaicml-streaming shows it: its files, their sizes by the index, its samples, and what of it lies in the folder."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from flarecli import encodings, formats
from flarecli.compat.streaming.refusals import PicklesError
from flarecli.errors import FlareError, FormatError, RowsError, UsageError
from flarecli.formats import mds_config, spans
from flarecli.formats.mds_index import Listed
from flarecli.model import File, Sample, Settings, Shard
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

__all__ = ["FileInfo", "Reader", "items", "reader_from_json"]


class FileInfo(NamedTuple):
    """One file as the index lists it: name below the folder, bytes, hash name -> hex."""

    basename: str
    bytes: int
    hashes: Mapping[str, str]


def items(at: Any, size: int, get: Any) -> Any:
    """Give what `[at]` means: an item for an integer, a list for a slice, lists of lists for lists and arrays of integers."""
    if isinstance(at, (int, np.integer)):
        row = int(at) + size if at < 0 else int(at)
        if not 0 <= row < size:
            raise RowsError(f"sample {int(at)} is outside the data, which has {size}")
        return get(row)
    if isinstance(at, slice):
        return [get(row) for row in range(size)[at]]
    if isinstance(at, (list, np.ndarray)):
        return [items(one, size, get) for one in at]
    raise UsageError(
        f"{type(at).__name__} is no index",
        hint="Give an integer, a slice, or a list or array of integers.",
    )


class Reader:
    """A shard: `len`, `[i]`, `[a:b]`, iteration, and the verbs of the original.

    dirname, split  where it lies
    entry           what `index.json` says of it
    raises          FormatError if that is broken; UnsafeError if a name in it leaves the folder
    """

    def __init__(self, dirname: str, split: str | None, entry: Mapping[str, Any]) -> None:
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
        self.allow_unsafe_types = False
        self._entry = dict(entry)
        self._shard: Shard | None = None
        self._decoders = [
            (one.name, encodings.lookup(one.encoding), _scalar(one.encoding))
            for one in self.columns
        ]
        self.column_names = [one.name for one in self.columns]
        self.column_encodings = [one.encoding for one in self.columns]
        self.column_sizes = [one.size for one in self.columns]
        self.newline: str = entry.get("newline", "\n")
        self.separator: str = entry.get("separator", mds_config.SEPARATORS.get(self.format, ","))

    def __reduce__(self) -> tuple[Any, ...]:
        return _again, (self.dirname, self.split, self._entry, self.allow_unsafe_types)

    @property
    def size(self) -> int:
        """How many samples it has."""
        return self.samples

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: Any) -> Any:
        return items(at, self.samples, self.get_item)

    def __iter__(self) -> Iterator[Sample]:
        return map(self.get_item, range(self.samples))

    def validate(self, allow_unsafe_types: bool) -> None:
        """Refuse a shard with pickles unless they are allowed. Raises PicklesError (an UnsafeError and a ValueError)."""
        self.allow_unsafe_types = allow_unsafe_types
        for one in self.columns:
            if one.encoding == "pkl" and not allow_unsafe_types:
                raise PicklesError(
                    f"column {one.name!r} contains an unsafe type: pickles",
                    where=self._where,
                    hint="Give allow_unsafe_types=True if you trust them.",
                    column=one.name,
                )

    # -- samples

    def get_item(self, idx: int) -> Sample:
        """Give one sample: column -> value. Raises RowsError (an IndexError) outside the shard."""
        return self.get_items([idx])[0]

    def get_items(self, rows: Sequence[int]) -> list[Sample]:
        """Give samples in the order asked; near ones share a read."""
        for row in rows:
            self._check(row)
        shard = self._opened()
        return [self._decoded(row) for row in formats.find(self.format).read_rows(shard, rows)]

    def get_sample_data(self, idx: int) -> bytes:
        """Give the bytes of one sample as they lie in the shard."""
        self._check(idx)
        shard = self._opened()
        starts = shard.layout["starts"]
        return bytes(spans.read(shard.chunk, [(int(starts[idx]), int(starts[idx + 1]))])[0])

    def decode_sample(self, data: bytes) -> Sample:
        """Give the sample of such bytes. Raises FormatError for bytes that are none."""
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
        one = formats.find(self.format)
        shard = one.open_shard(spans.of(Location(MemoryStore(files), name)), self.columns)
        return self._decoded(one.read_rows(shard, [0])[0])

    def _check(self, row: int) -> None:
        if not 0 <= row < self.samples:
            raise RowsError(
                f"sample {row} is outside the shard, which has {self.samples}", where=self._where
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

    def _opened(self) -> Shard:
        if self._shard is None:
            at = locate(f"{self._where.rstrip('/')}/")
            listed, there = (
                Listed(),
                frozenset(
                    raw.basename for raw, _ in self.file_pairs if os.path.exists(self._path(raw))
                ),
            )
            listed.add(
                self._entry,
                self._where,
                there if len(there) == len(self.file_pairs) else frozenset(),
            )  # raw files are read first
            chunk = listed.stream(at, File("index.json")).chunk(0)
            self._shard = formats.find(self.format).open_shard(chunk, self.columns)
        return self._shard

    def close(self) -> None:
        """Forget the opened shard; the next sample opens it again."""
        self._shard = None

    # -- files

    def _path(self, info: FileInfo) -> str:
        return os.path.join(self.dirname, self.split, info.basename)

    def get_raw_size(self) -> int:
        """Bytes of its files when they are not compressed, by the index."""
        return sum(raw.bytes for raw, _ in self.file_pairs)

    def get_zip_size(self) -> int | None:
        """Bytes of its compressed files, by the index; None if there are none."""
        return (
            None
            if any(zipped is None for _, zipped in self.file_pairs)
            else sum(zipped.bytes for _, zipped in self.file_pairs if zipped)
        )

    def get_max_size(self) -> int:
        """Bytes of both."""
        return self.get_raw_size() + (self.get_zip_size() or 0)

    def get_persistent_size(self, keep_zip: bool) -> int:
        """Bytes that stay in the folder when the shard is in use."""
        return self.get_max_size() if self.compression and keep_zip else self.get_raw_size()

    def evict(self) -> int:
        """Remove its files from the folder; give what the index says they took."""
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
        """Remove what is left of it in part, and its compressed files where they are not to be kept; give the bytes that it takes.

        listing        paths of the files there, as `os.path.join(dirname, split, basename)`
        safe_keep_zip  a compressed file is kept beside what was made of it; the raw file alone is then not enough
        return         bytes by the index; 0: not there
        raises         UsageError for a shard that lists a compressed file and no compression
        """
        raws = [raw for raw, _ in self.file_pairs]
        zips = [zipped for _, zipped in self.file_pairs if zipped is not None]
        has_raw = all(self._path(info) in listing for info in raws)
        has_zip = len(zips) == len(raws) and all(self._path(info) in listing for info in zips)
        if has_zip and not self.compression:
            raise UsageError(
                "the shard lists a compressed file and no compression", where=self._where
            )
        if has_raw and self.compression and safe_keep_zip and not has_zip:
            has_raw = False
        if has_raw and has_zip and not safe_keep_zip:
            has_zip = False
        size = 0
        for infos, is_there in ((raws, has_raw), (zips, has_zip)):
            for info in infos:
                if is_there:
                    size += info.bytes
                elif self._path(info) in listing:
                    self._remove(info)
        return size


def _again(dirname: str, split: str, entry: Mapping[str, Any], allow: bool) -> Reader:
    found = Reader(dirname, split, entry)
    found.allow_unsafe_types = allow
    return found


def _scalar(encoding: str) -> Any:
    """Give numpy's type for the encodings that the original decodes to its scalars."""
    is_number = encoding.rstrip("0123456789") in ("int", "uint", "float") and encoding[-1].isdigit()
    return np.dtype(encoding).type if is_number else None


def reader_from_json(dirname: str, split: str | None, obj: Mapping[str, Any]) -> Reader:
    """Make the Reader of a shard that an `index.json` lists. Raises FormatError for another version than 2."""
    if obj.get("version") != 2:
        raise FormatError(f"version {obj.get('version')!r:.60}, 2 is wanted", where=dirname)
    return Reader(dirname, split, obj)
