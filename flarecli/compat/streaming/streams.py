"""A Stream: a remote dataset and the local folder that its shards are copied to, whole, checked, and by one process each."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from flarecli import compress
from flarecli.compat.streaming.local import Shards, listed
from flarecli.compat.streaming.reader import FileInfo, Reader
from flarecli.errors import IntegrityError, UnsafeError, UsageError
from flarecli.formats import INDEX
from flarecli.hashes import digest
from flarecli.storage import Guard, Limits, Location, locate
from flarecli.storage.flock import flock

__all__ = ["Stream"]


class Stream:
    """One dataset of a StreamingDataset.

    remote, local, split  where the dataset lies, where its shards are kept, and a folder below both
    proportion, repeat, choose  how much of it an epoch has: a share, a factor, a number of samples; one of them at most
    keep_zip              keep the compressed file beside what is made of it
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
        given = [one for one in (proportion, repeat, choose) if one is not None]
        if len(given) > 1 or any(one < 0 for one in given):
            raise UsageError(
                "at most one of proportion, repeat and choose may be given, and none below 0"
            )
        if remote is None and local is None:
            raise UsageError("neither remote nor local is given")
        self.remote, self.split = remote, split
        self._local, self.proportion, self.repeat, self.choose = local, proportion, repeat, choose
        self.download_retry, self.download_timeout = download_retry, download_timeout
        self.validate_hash, self.keep_zip = validate_hash, keep_zip

    def apply_default(self, default: Mapping[str, Any]) -> None:
        """Take what was not said of this stream: split, download_retry, download_timeout, validate_hash, keep_zip."""
        for name, value in default.items():
            if getattr(self, name) is None:
                setattr(self, name, value)

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
        return os.path.join(self.local, self.split or "").rstrip("/")

    def open(self, allow_unsafe_types: bool) -> Shards:
        """Fetch the index, where there is none yet, and give the shards.

        raises  UnsafeError for pickles that are not allowed; UsageError if the sum to check by is not listed
        """
        os.makedirs(self.folder, exist_ok=True)
        if self.is_copied and not os.path.exists(os.path.join(self.folder, INDEX)):
            at = self._there(INDEX)
            self._here(INDEX).write([at.read(0, at.size())])
        shards = Shards(self.local, self.split, listed(self.local, self.split), allow_unsafe_types)
        if not len(shards):
            raise UsageError("a dataset without shards", where=self.folder)
        first = shards[0]
        first.validate(allow_unsafe_types)
        if self.validate_hash and self.validate_hash not in first.hashes:
            raise UsageError(
                f"no {self.validate_hash} is listed",
                where=self.folder,
                hint=f"Listed are: {', '.join(first.hashes) or 'none'}.",
            )
        return shards

    def _here(self, name: str) -> Location:
        return locate(f"{self.folder}/") / name

    def _there(self, name: str) -> Location:
        return locate(f"{str(self.remote).rstrip('/')}/", self._guard) / (
            f"{self.split}/{name}" if self.split else name
        )

    def is_present(self, shard: Reader) -> bool:
        """Say whether the shard can be read from the folder."""
        return all(
            os.path.exists(os.path.join(self.folder, raw.basename)) for raw, _ in shard.file_pairs
        )

    def prepare(self, shard: Reader) -> None:
        """Bring a shard's raw files into the folder: fetched, checked, decompressed, each under its name only when it is whole.

        raises  IntegrityError for bytes that are not what the index lists; ReachError
        """
        for raw, zipped in shard.file_pairs:
            path = os.path.join(self.folder, raw.basename)
            if os.path.exists(path):
                continue
            stored = zipped or raw
            if zipped is not None and os.path.exists(os.path.join(self.folder, zipped.basename)):
                data = self._here(zipped.basename).read()
            elif self.is_copied:
                at = self._there(stored.basename)
                data = at.read(0, at.size() if not stored.bytes else stored.bytes)
            else:
                self._here(stored.basename).size()  # says what is missing
                continue
            _check(
                stored,
                data,
                self._there(stored.basename) if self.is_copied else self._here(stored.basename),
            )
            if zipped is not None:
                if self.safe_keep_zip and self.is_copied:
                    self._here(zipped.basename).write([data])
                suffix = compress.suffix_of(shard.compression or zipped.basename.rpartition(".")[2])
                data = bytes(
                    compress.decompress(suffix, [data], raw.bytes, self._here(raw.basename))
                )
                _check(raw, data, self._here(raw.basename))
            self._here(raw.basename).write([data])
            if (
                zipped is not None
                and not self.safe_keep_zip
                and os.path.exists(os.path.join(self.folder, zipped.basename))
            ):
                os.unlink(os.path.join(self.folder, zipped.basename))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for the processes that bring shards into the same folder, and keep them waiting."""
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
