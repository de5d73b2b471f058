"""The writers of mosaicml-streaming: the same shards and `index.json`, byte for byte.

Unlike the original, a block that raises leaves no index, which marks a dataset as complete.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from flarecli.compat.streaming.errors import LacksColumnError, OccupiedError
from flarecli.errors import UsageError
from flarecli.formats import INDEX
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.config import size_limit as parse_size_limit
from flarecli.model import Settings
from flarecli.names import is_url
from flarecli.storage import Location, locate
from flarecli.write import Writer

__all__ = ["CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter"]

_LINES = {"str": "str", "int": "str_int", "float": "str_float"}
_JSON = {"str": "json_str", "int": "json_int", "float": "json_float"}


class _Writer:
    """Base class of the writers.

    columns     name -> encoding; other keys of a sample are ignored
    out         a folder or an address; or (folder, address): copy the folder to the address
    keep_local  with (folder, address): keep the folder
    size_limit  bytes per shard: a number below 2**32, or text such as `67mb`; None: no limit
    exist_ok    replace the dataset in `out`
    progress_bar, max_workers, retry  accepted without effect
    raises      UsageError (a ValueError) for invalid settings; OccupiedError (a FileExistsError)
                for a folder that is not empty
    """

    format = ""
    _encodings: Mapping[str, str] | None = None  # names in this format -> flare's names

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
        wanted = list(hashes or ())
        if wanted != sorted(set(wanted)):
            raise UsageError(f"Hashes must be unique and in sorted order, got {', '.join(wanted)}")
        self.columns = {name: self._named(name, encoding) for name, encoding in columns.items()}
        local = out[0] if isinstance(out, tuple) else os.fspath(out)
        self.remote = out[1] if isinstance(out, tuple) else None
        self.local, self.keep_local = local, keep_local
        self.compression, self.hashes = compression or None, wanted
        self.size_limit = parse_size_limit(size_limit, "size_limit")
        if self.size_limit is not None and self.size_limit >= 1 << 32:
            raise UsageError(
                f"`size_limit` must be less than 2**32 bytes, got {self.size_limit}",
                hint="Shards store the offsets of samples as uint32.",
            )
        settings = Settings(
            self.compression, tuple(wanted), self.size_limit, newline=newline, separator=separator
        )
        is_full = not is_url(local) and os.path.isdir(local) and bool(os.listdir(local))
        if is_full and not exist_ok:
            raise OccupiedError(
                "Directory is not empty",
                where=local,
                hint="Choose another folder, or give exist_ok=True to replace the dataset.",
            )
        self._settings = settings
        self._writer = Writer(
            local,
            format=self.format,
            columns=self.columns,
            settings=settings,
            overwrite=is_full,
            playlist=False,
        )
        self._pickled = [name for name, encoding in self.columns.items() if encoding == "pkl"]

    def _named(self, name: str, encoding: str) -> str:
        if self._encodings is None:
            return encoding
        if encoding not in self._encodings:
            raise UsageError(
                f"column {name!r}: expected one of {', '.join(self._encodings)}, "
                f"got {encoding!r:.60}",
                column=name,
            )
        return self._encodings[encoding]

    def get_config(self) -> dict[str, Any]:
        """Return the settings that `index.json` has for every shard."""
        return mds_config.config(self.format, self._writer.columns or (), self._settings)

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample.

        raises  LacksColumnError (a KeyError) for a missing column; ValueFitError (a ValueError)
                for a value that does not fit its encoding
        """
        missing = next((name for name in self.columns if name not in sample), None)
        if missing is not None:
            raise LacksColumnError(f"the sample has no {missing!r:.60}", where=self.local)
        row = {name: sample[name] for name in self.columns}
        for name in self._pickled:  # encoding `pkl` was chosen; writing runs no code
            if not isinstance(row[name], bytes):
                row[name] = pickle.dumps(row[name])
        self._writer.write(row)

    def finish(self) -> None:
        """Write the last shard and the index, then copy the files to the address if given."""
        self._writer.close()
        if self.remote is not None:
            _copy(locate(f"{self.local}/"), locate(f"{self.remote.rstrip('/')}/"), self.keep_local)

    def __enter__(self) -> _Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self._writer.abandon()
            return
        try:
            self.finish()
        except BaseException:
            self._writer.abandon()
            raise


def _copy(here: Location, there: Location, keep: bool) -> None:
    """Copy a folder's files, the index last, then remove them from the folder unless `keep`."""
    names = sorted((entry.name for entry in here.list()), key=lambda name: (name == INDEX, name))
    for name in names:
        (there / name).write((here / name).blocks())
    if not keep:
        for name in names:
            (here / name).delete()


class MDSWriter(_Writer):
    """Write MDS shards."""

    format = "mds"


class JSONWriter(_Writer):
    """Write JSON shards of `str`, `int` and `float`."""

    format, _encodings = "json", _JSON

    def __init__(self, *, columns: Mapping[str, str], newline: str = "\n", **rest: Any) -> None:
        super().__init__(columns=columns, newline=newline, **rest)
        self.newline = newline


class XSVWriter(_Writer):
    """Write shards of lines with any separator, of `str`, `int` and `float`."""

    format, _encodings = "xsv", _LINES

    def __init__(
        self, *, columns: Mapping[str, str], separator: str, newline: str = "\n", **rest: Any
    ) -> None:
        super().__init__(columns=columns, separator=separator, newline=newline, **rest)
        self.newline, self.separator = newline, separator


class CSVWriter(XSVWriter):
    """Write CSV shards of `str`, `int` and `float`."""

    format = "csv"

    def __init__(self, *, columns: Mapping[str, str], newline: str = "\n", **rest: Any) -> None:
        super().__init__(columns=columns, separator=",", newline=newline, **rest)


class TSVWriter(XSVWriter):
    """Write TSV shards of `str`, `int` and `float`."""

    format = "tsv"

    def __init__(self, *, columns: Mapping[str, str], newline: str = "\n", **rest: Any) -> None:
        super().__init__(columns=columns, separator="\t", newline=newline, **rest)
