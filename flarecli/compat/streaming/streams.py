"""A Stream: a remote dataset and the local folder that its shards are copied to, complete and checked."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

from flarecli import compress
from flarecli.compat.streaming.local import Shards, listed
from flarecli.compat.streaming.reader import FileInfo, Reader
from flarecli.compat.streaming.refusals import NoIndexError, NoSamplesError
from flarecli.errors import IntegrityError, MissingError, ReachError, UnsafeError, UsageError
from flarecli.formats import INDEX
from flarecli.hashes import Sums, digest
from flarecli.names import redact
from flarecli.storage import Guard, Limits, Location, locate
from flarecli.storage.flock import flock

__all__ = ["Stream", "Weights"]


class Weights(NamedTuple):
    """How much of a stream an epoch has: a share, a factor, or a number of samples."""

    proportion: float | None
    repeat: float | None
    choose: int | None


class Stream:
    """One dataset of a StreamingDataset.

    remote, local, split  where the dataset is, the folder its shards are copied to, and a subfolder of both
    proportion, repeat, choose  how much of it an epoch has: a share, a factor, a number of samples. At most one may be given;
                          a StreamingDataset sets all three to what its epoch has
    download_retry, download_timeout  attempts after the first, and seconds
    validate_hash         name of a listed hash; files that are in `local` already are checked by it, too
    keep_zip              keep the compressed file beside the decompressed one
    raises                UsageError
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
        given = {
            "proportion": proportion,
            "repeat": repeat,
            "choose": choose,
            "download_retry": download_retry,
        }
        if sum(one is not None for one in (proportion, repeat, choose)) > 1:
            raise UsageError(
                "At most one of `proportion`, `repeat`, and `choose` may be specified; "
                "the others are derived"
            )
        for name, value in given.items():
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
        self._verified: set[str] = set()  # names of kept files that this process has checked

    @property
    def _weights(self) -> Weights:
        return Weights(self.proportion, self.repeat, self.choose)

    @property
    def given(self) -> Weights:
        """What was asked for: not what a dataset derived from it, unless that was changed since."""
        return self._given if self._weights == self._derived else self._weights

    def derive(self, size: int, count: int, total: int) -> None:
        """Set proportion, repeat and choose for an epoch that has `count` samples of this stream, which has `size`, and `total` in all."""
        self._given = self.given
        self.proportion, self.repeat, self.choose = count / (total or 1), count / size, count
        self._derived = self._weights

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Set what this stream leaves open: split, download_retry, download_timeout, validate_hash, keep_zip."""
        self.split = self.split or default.get("split") or ""
        for name in ("download_retry", "download_timeout", "validate_hash", "keep_zip"):
            if getattr(self, name) is None:
                setattr(self, name, default.get(name))

    @property
    def local(self) -> str:
        """The folder that its shards are kept in; one of this user's among the temporary files, by its address, where none was given."""
        if self._local is None:
            key = digest(f"{self.remote}\0{self.split or ''}".encode(), "sha256")[:24]
            folder = os.path.join(tempfile.gettempdir(), f"flare-stream-{os.getuid()}-{key}")
            os.makedirs(folder, 0o700, exist_ok=True)
            if os.path.islink(folder) or os.stat(folder).st_uid != os.getuid():
                raise UnsafeError(
                    "is another user's", where=folder, hint="Give local=, a folder of your own."
                )
            self._local = folder
        return self._local

    @property
    def _guard(self) -> Guard:
        limits, retries, seconds = Limits(), self.download_retry, self.download_timeout
        limits = replace(limits, retries=limits.retries if retries is None else retries)
        return Guard(
            limits=replace(
                limits, timeout_s=limits.timeout_s if seconds is None else float(seconds)
            )
        )

    @property
    def is_copied(self) -> bool:
        """Whether there is another place that the local files come from, so that they may be removed."""
        return self.remote is not None and os.path.realpath(self.remote) != os.path.realpath(
            self.local
        )

    @property
    def safe_keep_zip(self) -> bool:
        """Whether compressed files stay: what has no other copy always does."""
        return bool(self.keep_zip) or not self.is_copied

    @property
    def folder(self) -> str:
        """The local folder of its split."""
        return os.path.join(self.local, self.split).rstrip("/")

    def open(self, allow_unsafe_types: bool) -> Shards:
        """Fetch the index if it is not in the folder, and return the shards.

        raises  NoIndexError without an index and a remote; CorruptIndexError; UsageError if the folder holds another dataset than `remote`,
                or if `validate_hash` is not listed; NoSamplesError; UnsafeError for pickles that are not allowed
        """
        os.makedirs(self.folder, exist_ok=True)
        path = os.path.join(self.folder, INDEX)
        is_kept = os.path.exists(path)
        if not is_kept and self.remote is None:
            raise NoIndexError(
                f"No `remote` provided, but local file {INDEX} does not exist", where=self.folder
            )
        if self.is_copied:
            self._bring_index(path, is_kept)
        shards = Shards(self.local, self.split, listed(self.local, self.split), allow_unsafe_types)
        if not shards.starts[-1]:
            raise NoSamplesError(
                f"Stream contains no samples: {INDEX} lists none", where=self.folder
            )
        first = shards[0]
        first.validate(allow_unsafe_types)
        if self.validate_hash and self.validate_hash not in first.hashes:
            raise UsageError(
                f"no {self.validate_hash} is listed",
                where=self.folder,
                hint=f"Listed are: {', '.join(first.hashes) or 'none'}.",
            )
        return shards

    def _bring_index(self, path: str, is_kept: bool) -> None:
        """Fetch the index; compare it with one that is in the folder, which may be of another dataset.

        A folder that has an index is used as it is while the remote cannot be reached.
        """
        at = self._there(INDEX)
        try:
            data = at.read(0, at.size())
        except ReachError as error:
            if is_kept:
                return
            if isinstance(error, MissingError):
                raise MissingError("No such file or directory", where=error.place) from None
            raise
        if not is_kept:
            self._here(INDEX).write([data])
            return
        with open(path, "rb") as file:
            is_same = file.read(len(data) + 1) == data
        if not is_same:
            raise UsageError(
                f"Reused local directory: its {INDEX} is not that of {redact(str(self.remote))}. "
                "Provide a different one.",
                where=self.folder,
                hint="If the remote dataset was replaced, remove the folder.",
            )

    def _here(self, name: str) -> Location:
        return locate(f"{self.folder}/") / name

    def _there(self, name: str) -> Location:
        return locate(f"{str(self.remote).rstrip('/')}/", self._guard) / (
            f"{self.split}/{name}" if self.split else name
        )

    def is_present(self, shard: Reader) -> bool:
        """Return whether the shard can be read from the folder: its files have the listed sizes, and were checked if `validate_hash` asks for it."""
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
        """Bring a shard's raw files into the folder: fetched, checked, decompressed. Each gets its name when it is complete.

        raises  IntegrityError for bytes that differ from the index; ReachError
        """
        for raw, zipped in shard.file_pairs:
            if self._keeps(raw):
                continue
            if zipped is None:
                data = self._fetched(raw)
            else:
                stored = self._kept(zipped) or self._fetched(zipped)
                suffix = compress.suffix_of(shard.compression or zipped.basename.rpartition(".")[2])
                at = self._here(raw.basename)
                data = bytes(compress.decompress(suffix, [stored], raw.bytes, at))
                _check(raw, data, at)
                path = os.path.join(self.folder, zipped.basename)
                if not self.safe_keep_zip and os.path.exists(path):
                    os.unlink(path)
                elif self.safe_keep_zip and self.is_copied:
                    self._here(zipped.basename).write([stored])
            self._here(raw.basename).write([data])
            self._verified.add(raw.basename)

    def forget(self, shard: Reader) -> None:
        """Check the shard's files again when they come back: they are about to leave the folder."""
        self._verified.difference_update(raw.basename for raw, _ in shard.file_pairs)

    def _keeps(self, raw: FileInfo) -> bool:
        """Return whether the folder has a raw file that is as listed. One that is damaged is fetched again if there is a remote.

        raises  IntegrityError for a damaged file without a remote
        """
        path = os.path.join(self.folder, raw.basename)
        if not os.path.exists(path):
            return False
        wanted = raw.hashes.get(self.validate_hash) if self.validate_hash else None
        here = self._here(raw.basename)
        fault = (
            "" if self._has(raw) else f"is {os.path.getsize(path)} bytes, {raw.bytes} are listed"
        )
        if not fault and wanted is not None:
            sums = Sums([str(self.validate_hash)])
            for block in here.blocks():
                sums.update(block)
            found = sums.hex()[str(self.validate_hash)]
            if found != wanted:
                fault = f"{self.validate_hash} is {found}, {wanted} is listed"
        if not fault:
            self._verified.add(raw.basename)
            return True
        if not self.is_copied:
            raise IntegrityError(fault, where=here, hint="Fetch or pack it again.")
        return False

    def _kept(self, zipped: FileInfo) -> bytes | None:
        """Return the bytes of a compressed file in the folder; None if there is none, or a damaged one and a remote to fetch it from."""
        here = self._here(zipped.basename)
        if not os.path.exists(os.path.join(self.folder, zipped.basename)):
            return None
        data = here.read()
        try:
            _check(zipped, data, here)
        except IntegrityError:
            if self.is_copied:
                return None
            raise
        return data

    def _fetched(self, stored: FileInfo) -> bytes:
        """Read a file from the remote and check it."""
        if not self.is_copied:
            at = self._here(stored.basename)
            data = at.read(0, at.size())  # raises, and names what is missing
        else:
            at = self._there(stored.basename)
            data = at.read(0, stored.bytes or at.size())
        _check(stored, data, at)
        return data

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Hold the folder's lock, so that one process at a time brings shards into it."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            hint = "Give a `local` on a local disk."
            flock(fd, fcntl.LOCK_EX, self.folder, hint)
            yield
        finally:
            os.close(fd)


def _check(info: FileInfo, data: bytes, where: object) -> None:
    hint = "Fetch or pack it again."
    if len(data) != info.bytes:
        raise IntegrityError(
            f"is {len(data)} bytes, {info.bytes} are listed", where=where, hint=hint
        )
    for name, wanted in info.hashes.items():
        if (found := digest(data, name)) != wanted:
            raise IntegrityError(f"{name} is {found}, {wanted} is listed", where=where, hint=hint)
