"""Base class of the writers. They write the same shards and `index.json` as mosaicml-streaming.

If the `with` block raises an error, flare writes no index, because an index marks a dataset as
complete. In this case, mosaicml-streaming writes an index.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from typing import Any

from flarecli import write
from flarecli.compat import Closeable
from flarecli.errors import UsageError
from flarecli.formats import INDEX
from flarecli.formats.mds import config as mds_config
from flarecli.model import Settings
from flarecli.names import is_url
from flarecli.storage import Location, locate

__all__ = ["LacksColumnError", "OccupiedError", "Writer"]


class OccupiedError(UsageError, FileExistsError):
    """The output folder is not empty."""


class LacksColumnError(UsageError, KeyError):
    """A sample has no value for a column."""


class Writer(Closeable):
    """Base class of the writers.

    columns     name -> encoding; other keys of a sample are ignored
    out         a folder or an address; (folder, address) writes the dataset to the folder and then
                copies the files to the address
    keep_local  if `out` is (folder, address), keep the files in the folder
    size_limit  bytes per shard: a number below 2**32, or text such as `67mb`; None means no limit
    compression  compression of the shards, such as `zstd` or `zstd:7`; None means no compression
    hashes      names of hashes to list in the index, in sorted order
    newline, separator  line end and separator of text formats; a format may have a fixed separator
    exist_ok    replace the dataset in `out`
    progress_bar, max_workers, retry  ignored; accepted for compatibility
    raises      UsageError (a ValueError) for invalid settings; OccupiedError (a FileExistsError)
                for a folder that is not empty
    """

    format = ""
    encodings: Mapping[str, str] | None = None  # the format's name -> flare's name

    def __init__(
        self,
        *,
        columns: Mapping[str, str],
        out: str | os.PathLike[str] | tuple[str, str],
        keep_local: bool = False,
        compression: str | None = None,
        hashes: Sequence[str] | None = None,
        size_limit: int | str | None = 1 << 26,
        exist_ok: bool = False,
        progress_bar: bool = False,
        max_workers: int | None = None,
        retry: int = 2,
        newline: str = "\n",
        separator: str = ",",
        **unknown: Any,
    ) -> None:
        if unknown:
            raise UsageError(f"Invalid Writer argument(s): {', '.join(sorted(unknown))}")
        self.hashes = list(hashes or ())
        if self.hashes != sorted(set(self.hashes)):
            raise UsageError(
                f"Hashes must be unique and in sorted order, got {', '.join(self.hashes)}"
            )
        self.columns = {name: self._encoding(name, columns[name]) for name in columns}
        local = out[0] if isinstance(out, tuple) else os.fspath(out)
        self.remote = out[1] if isinstance(out, tuple) else None
        self.local, self.keep_local = local, keep_local
        self.compression, self.newline, self.separator = compression or None, newline, separator
        self.size_limit = mds_config.size_limit(size_limit, "size_limit")
        if self.size_limit is not None and self.size_limit >= 1 << 32:
            raise UsageError(
                f"`size_limit` must be less than 2**32 bytes, got {self.size_limit}",
                hint="Lower size_limit; shards store sample offsets as uint32.",
            )
        self._settings = Settings(
            self.compression,
            tuple(self.hashes),
            self.size_limit,
            newline=newline,
            separator=separator,
        )
        is_full = not is_url(local) and os.path.isdir(local) and bool(os.listdir(local))
        if is_full and not exist_ok:
            raise OccupiedError(
                "Directory is not empty",
                where=local,
                hint="Choose another folder, or pass exist_ok=True to replace the dataset.",
            )
        self._writer = write.Writer(
            local,
            format=self.format,
            columns=self.columns,
            settings=self._settings,
            overwrite=is_full,
            playlist=False,
        )
        self._pickled = [name for name, encoding in self.columns.items() if encoding == "pkl"]

    def _encoding(self, column: str, name: str) -> str:
        """Return flare's name for the encoding of a column.

        raises  UsageError for an invalid encoding
        """
        if self.encodings is None:
            return name
        if name not in self.encodings:
            raise UsageError(
                f"column {column!r}: expected one of {', '.join(self.encodings)}, got {name!r:.60}",
                column=column,
            )
        return self.encodings[name]

    def get_config(self) -> dict[str, Any]:
        """Return the settings in each shard entry of `index.json`."""
        return mds_config.config(self.format, self._writer.columns or (), self._settings)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample.

        raises  LacksColumnError (a KeyError) for a missing column; ValueFitError (a ValueError)
                for a value that its encoding cannot store
        """
        missing = next((name for name in self.columns if name not in sample), None)
        if missing is not None:
            raise LacksColumnError(f"the sample has no column {missing!r:.60}", where=self.local)
        row = {name: sample[name] for name in self.columns}
        # `write.Writer` does not pickle values. Here, the caller has chosen `pkl` for its own data.
        for name in self._pickled:
            if not isinstance(row[name], bytes):
                row[name] = pickle.dumps(row[name])
        self._writer.write(row)

    def finish(self) -> None:
        """Write the last shard and the index, then copy the files to the address, if any."""
        self._writer.close()
        if self.remote is not None:
            _copy(locate(f"{self.local}/"), locate(f"{self.remote.rstrip('/')}/"), self.keep_local)

    def close(self) -> None:
        """Finish the dataset. If this fails, call `abort`, and raise the error."""
        try:
            self.finish()
        except BaseException:
            self.abort()
            raise

    def abort(self) -> None:
        """Stop without writing the last shard and the index."""
        self._writer.abandon()


def _copy(folder: Location, remote: Location, keep: bool) -> None:
    """Copy the files of a folder, the index last; if `keep` is False, remove them afterwards."""
    names = sorted((entry.name for entry in folder.list()), key=lambda name: (name == INDEX, name))
    for name in names:
        (remote / name).write((folder / name).blocks())
    if not keep:
        for name in names:
            (folder / name).delete()
