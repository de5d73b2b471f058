"""Stream: a remote dataset and the local folder for verified copies of its shards."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from flarecli import compress
from flarecli.compat.streaming.base.format.reader import FileInfo, Reader, Shards, read_index
from flarecli.compat.streaming.base.registry_utils import Registry
from flarecli.errors import IntegrityError, MissingError, ReachError, UnsafeError, UsageError
from flarecli.formats import INDEX
from flarecli.hashes import Sums, digest
from flarecli.redact import redact
from flarecli.storage import Guard, Limits, Location, descriptors, locate

__all__ = ["Stream", "streams_registry"]


class NoIndexError(MissingError, RuntimeError):
    """A local folder has no index, and the stream has no `remote` that contains the index."""


class NoSamplesError(UsageError, RuntimeError):
    """A stream has no samples."""


class Weights(NamedTuple):
    """The number of samples of a stream in an epoch, expressed in three ways.

    proportion  share of the epoch's samples
    repeat      multiple of the stream's samples
    choose      number of samples
    """

    proportion: float | None
    repeat: float | None
    choose: int | None


class Stream:
    """One dataset of a StreamingDataset.

    remote                address of the dataset
    local                 folder for copies of the shards
    split                 subfolder of `remote` and `local`
    proportion, repeat, choose  number of samples in an epoch, see `Weights`; pass at most one; a
                          StreamingDataset computes the others
    download_retry, download_timeout  number of retries, and timeout in seconds
    validate_hash         name of a hash in the index; files in `local` are checked with this hash
    keep_zip              keep the compressed file next to the decompressed file
    raises                UsageError for invalid or contradictory options
    """

    def __init__(
        self,
        *,
        remote: str | None = None,
        local: str | None = None,
        split: str | None = None,
        proportion: float | None = None,
        repeat: float | None = None,
        choose: int | None = None,
        download_retry: int | None = None,
        download_timeout: float | None = None,
        validate_hash: str | None = None,
        keep_zip: bool | None = None,
    ) -> None:
        numbers = {
            "proportion": proportion,
            "repeat": repeat,
            "choose": choose,
            "download_retry": download_retry,
        }
        if sum(value is not None for value in (proportion, repeat, choose)) > 1:
            raise UsageError(
                "At most one of `proportion`, `repeat`, and `choose` may be specified; "
                "the others are derived"
            )
        for name, value in numbers.items():
            if value is not None and value < 0:
                raise UsageError(f"`{name}` must be non-negative, got {value}")
        if download_timeout is not None and download_timeout <= 0:
            raise UsageError(f"`download_timeout` must be positive, got {download_timeout}")
        if remote is None and local is None:
            raise UsageError("`remote` and/or `local` path must be provided")
        self.remote, self.split = remote, split or ""
        self._local, self.proportion, self.repeat, self.choose = local, proportion, repeat, choose
        self._given = self._derived = self._weights
        self.download_retry, self.download_timeout = download_retry, download_timeout
        self.validate_hash, self.keep_zip = validate_hash, keep_zip
        self._verified: set[str] = set()  # files that this process has checked

    @property
    def _weights(self) -> Weights:
        return Weights(self.proportion, self.repeat, self.choose)

    @property
    def given(self) -> Weights:
        """The weights that the user set, without the weights that a StreamingDataset computed."""
        return self._given if self._weights == self._derived else self._weights

    def derive(self, size: int, count: int, total: int) -> None:
        """Set `proportion`, `repeat` and `choose` for an epoch.

        size   number of samples in this stream
        count  number of samples of this stream in the epoch
        total  number of samples in the epoch
        """
        self._given = self.given
        self.proportion, self.repeat, self.choose = count / (total or 1), count / size, count
        self._derived = self._weights

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Set each option that was not passed to this stream to its value in `default`."""
        self.split = self.split or default.get("split") or ""
        for name in ("download_retry", "download_timeout", "validate_hash", "keep_zip"):
            if getattr(self, name) is None:
                setattr(self, name, default.get(name))

    @property
    def local(self) -> str:
        """Folder for the shards; by default a private temporary folder named after the address.

        Raises UnsafeError if the temporary folder belongs to another user.
        """
        if self._local is None:
            key = digest(f"{self.remote}\0{self.split or ''}".encode(), "sha256")[:24]
            # On Windows, each user has a temporary folder, so the name needs no user id.
            user = os.getuid() if hasattr(os, "getuid") else 0
            folder = os.path.join(tempfile.gettempdir(), f"flare-stream-{user}-{key}")
            os.makedirs(folder, 0o700, exist_ok=True)
            if os.path.islink(folder) or os.stat(folder).st_uid != user:
                raise UnsafeError(
                    "the folder belongs to another user",
                    where=folder,
                    hint="Pass a different `local`.",
                )
            self._local = folder
        return self._local

    @property
    def _guard(self) -> Guard:
        limits = Limits()
        if self.download_retry is not None:
            limits = replace(limits, retries=self.download_retry)
        if self.download_timeout is not None:
            limits = replace(limits, timeout_s=float(self.download_timeout))
        return Guard(limits=limits)

    @property
    def is_copied(self) -> bool:
        """True if the local files are copies of remote files, so that they may be removed."""
        return self.remote is not None and os.path.realpath(self.remote) != os.path.realpath(
            self.local
        )

    @property
    def safe_keep_zip(self) -> bool:
        """True if `keep_zip` is set, or if the files in the folder have no remote copy."""
        return bool(self.keep_zip) or not self.is_copied

    @property
    def folder(self) -> str:
        """The local folder of the split."""
        return os.path.join(self.local, self.split).rstrip("/")

    def open(self, allow_unsafe_types: bool) -> Shards:
        """Return the shards. Fetch the index first, if it is not in the folder.

        raises  NoIndexError if the folder has no index and `remote` is None; CorruptIndexError if
                the index is not valid JSON; NoSamplesError if the index lists no samples;
                UsageError if the index in the folder differs from the index in `remote`, or does
                not list `validate_hash`; UnsafeError for pickles that are not allowed
        """
        path = os.path.join(self.folder, INDEX)
        is_present = os.path.exists(path)
        if not is_present and self.remote is None:
            raise NoIndexError(
                f"No `remote` provided, but local file {INDEX} does not exist", where=self.folder
            )
        if self.is_copied:
            self._fetch_index(path, is_present)
        shards = Shards(
            self.local, self.split, read_index(self.local, self.split), allow_unsafe_types
        )
        if not shards.starts[-1]:
            raise NoSamplesError(
                f"Stream contains no samples: {INDEX} lists no samples", where=self.folder
            )
        first = shards[0]
        first.validate(allow_unsafe_types)
        if self.validate_hash and self.validate_hash not in first.hashes:
            raise UsageError(
                f"the index lists no {self.validate_hash} checksums",
                where=self.folder,
                hint=f"Set validate_hash to a listed hash ({', '.join(first.hashes) or 'none'}).",
            )
        return shards

    def _fetch_index(self, path: str, is_present: bool) -> None:
        """Fetch the index. If the folder already has an index, compare the two.

        If the remote dataset cannot be reached, the index in the folder is used.
        """
        at = self._remote_file(INDEX)
        try:
            data = at.read(0, at.size())
        except ReachError as error:
            if is_present:
                return
            if isinstance(error, MissingError):
                raise MissingError("No such file or directory", where=error.place) from None
            raise
        if not is_present:
            self._local_file(INDEX).write([data])
            return
        with open(path, "rb") as file:
            is_same = file.read(len(data) + 1) == data
        if not is_same:
            raise UsageError(
                f"Reused local directory: its {INDEX} differs from {redact(str(self.remote))}. "
                "Provide a different one.",
                where=self.folder,
                hint="If the remote dataset was replaced, remove the folder.",
            )

    def _local_file(self, name: str) -> Location:
        return locate(f"{self.folder}/") / name

    def _remote_file(self, name: str) -> Location:
        return locate(f"{str(self.remote).rstrip('/')}/", self._guard) / (
            f"{self.split}/{name}" if self.split else name
        )

    def is_present(self, shard: Reader) -> bool:
        """Return whether the shard can be read from the folder.

        The raw files must have the listed sizes. If `validate_hash` is set, this process must also
        have verified the files.
        """
        return all(
            self._has(raw) and (not self.validate_hash or raw.basename in self._verified)
            for raw, _ in shard.file_pairs
        )

    def _has(self, info: FileInfo) -> bool:
        """Return whether a file in the folder has the listed size."""
        try:
            return os.stat(os.path.join(self.folder, info.basename)).st_size == info.bytes
        except FileNotFoundError:
            return False

    def prepare(self, shard: Reader) -> None:
        """Write the raw files of a shard to the folder; fetch and decompress them if necessary.

        raises  IntegrityError if a file does not match the index; ReachError if `remote` cannot be
                read
        """
        for raw, zipped in shard.file_pairs:
            if self._is_intact(raw):
                continue
            if zipped is None:
                data = self._fetch(raw)
            else:
                stored = self._read_kept(zipped) or self._fetch(zipped)
                suffix = compress.suffix_of(shard.compression or zipped.basename.rpartition(".")[2])
                at = self._local_file(raw.basename)
                data = bytes(compress.decompress(suffix, [stored], raw.bytes, at))
                _check(raw, len(data), [data], raw.hashes, at)
                path = os.path.join(self.folder, zipped.basename)
                if not self.safe_keep_zip and os.path.exists(path):
                    os.unlink(path)
                elif self.safe_keep_zip and self.is_copied:
                    self._local_file(zipped.basename).write([stored])
            self._local_file(raw.basename).write([data])
            self._verified.add(raw.basename)

    def forget(self, shard: Reader) -> None:
        """Mark the files of a shard as not verified. The caller removes the files."""
        self._verified.difference_update(raw.basename for raw, _ in shard.file_pairs)

    def _is_intact(self, raw: FileInfo) -> bool:
        """Return whether the folder contains an undamaged raw file.

        raises  IntegrityError for a damaged file that has no remote copy
        """
        path = os.path.join(self.folder, raw.basename)
        if not os.path.exists(path):
            return False
        here = self._local_file(raw.basename)
        names = raw.hashes.keys() & {self.validate_hash}
        try:
            _check(raw, os.path.getsize(path), here.blocks() if names else (), names, here)
        except IntegrityError:
            if self.is_copied:
                return False
            raise
        self._verified.add(raw.basename)
        return True

    def _read_kept(self, zipped: FileInfo) -> bytes | None:
        """Return the bytes of a compressed file in the folder, or None if a fetch is needed."""
        here = self._local_file(zipped.basename)
        if not os.path.exists(os.path.join(self.folder, zipped.basename)):
            return None
        data = here.read()
        try:
            _check(zipped, len(data), [data], zipped.hashes, here)
        except IntegrityError:
            if self.is_copied:
                return None
            raise
        return data

    def _fetch(self, stored: FileInfo) -> bytes:
        """Read a file from `remote`, or from the folder if no remote copy exists.

        raises  IntegrityError if the size or a hash differs from the index
        """
        if not self.is_copied:
            at = self._local_file(stored.basename)
            data = at.read(0, at.size())  # raises an error if the file is missing
        else:
            at = self._remote_file(stored.basename)
            data = at.read(0, stored.bytes or at.size())
        _check(stored, len(data), [data], stored.hashes, at)
        return data

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Lock the folder, so that only one process at a time fetches shards into it."""
        folder = os.path.realpath(self.folder)
        fd = descriptors.open_lock(folder, os.path.join(folder, ".flare-lock"))
        try:
            descriptors.lock_or_fail(fd, self.folder, "Pass a `local` on a local disk.", wait=True)
            yield
        finally:
            os.close(fd)


def _check(
    info: FileInfo, size: int, blocks: Iterable[bytes], hashes: Iterable[str], where: Location
) -> None:
    """Check the size and the content of a file against the index.

    blocks  content of the file
    hashes  names of the hashes to check
    raises  IntegrityError for a difference
    """
    hint = "Download or pack the file again."
    if size != info.bytes:
        raise IntegrityError(
            f"file is {size} bytes; the index lists {info.bytes}", where=where, hint=hint
        )
    sums = Sums(hashes)
    for block in blocks:
        sums.update(block)
    for name in sums.differences(info.hashes):
        raise IntegrityError(
            f"{name} is {sums.hex()[name]}; the index lists {info.hashes[name]}",
            where=where,
            hint=hint,
        )


streams_registry = Registry()
streams_registry.register("stream", func=Stream)
