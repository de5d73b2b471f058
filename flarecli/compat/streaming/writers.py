"""The writers of mosaicml-streaming: samples in, shards and `index.json` out, the same bytes.

Beside the index lies flare's playlist, which the original does not look at. The one thing on purpose: when the block is left by an
exception, no index is written, since one would say that the dataset is whole.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any

from flarecli.compat.streaming.refusals import LacksColumnError, OccupiedError
from flarecli.errors import UsageError
from flarecli.formats.mds_config import size_limit as parse_size_limit
from flarecli.model import Settings
from flarecli.names import is_url
from flarecli.storage import Location, locate
from flarecli.write import Writer

__all__ = ["CSVWriter", "JSONWriter", "MDSWriter", "TSVWriter", "XSVWriter"]

_LINES = {"str": "str", "int": "str_int", "float": "str_float"}
_JSON = {"str": "json_str", "int": "json_int", "float": "json_float"}


class _Writer:
    """What the five have in common.

    columns     name -> encoding; samples may have more keys, which are left out
    out         a folder or an address; or (folder, address): written here, and copied there at the end
    keep_local  of (folder, address): keep the folder
    size_limit  bytes of a shard, as a number or as `67mb`; None: no limit
    exist_ok    replace a dataset that lies in `out`
    progress_bar, max_workers, retry  taken, and of no use here
    raises      UsageError (a ValueError) for settings that make no sense; OccupiedError (a FileExistsError) for a folder that is not empty
    """

    format = ""
    _encodings: Mapping[str, str] | None = None  # what the words of this format are called here

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
    ) -> None:
        wanted = list(hashes or ())
        if wanted != sorted(set(wanted)):
            raise UsageError(
                f"hashes are {', '.join(wanted)}", hint="Name each once, in sorted order."
            )
        self.columns = {name: self._named(name, encoding) for name, encoding in columns.items()}
        local = out[0] if isinstance(out, tuple) else os.fspath(out)
        self.remote = out[1] if isinstance(out, tuple) else None
        self.local, self.keep_local = local, keep_local
        self.compression, self.hashes, self.size_limit = (
            compression or None,
            wanted,
            parse_size_limit(size_limit, "size_limit"),
        )
        settings = Settings(
            self.compression, tuple(wanted), self.size_limit, newline=newline, separator=separator
        )
        is_full = not is_url(local) and os.path.isdir(local) and bool(os.listdir(local))
        if is_full and not exist_ok:
            raise OccupiedError(
                "the folder is not empty",
                where=local,
                hint="Choose another, or give exist_ok=True to replace the dataset in it.",
            )
        self._writer = Writer(
            local, format=self.format, columns=self.columns, settings=settings, overwrite=is_full
        )
        self._pickled = [name for name, encoding in self.columns.items() if encoding == "pkl"]

    def _named(self, name: str, encoding: str) -> str:
        if self._encodings is None:
            return encoding
        if encoding not in self._encodings:
            raise UsageError(
                f"column {name!r}: {encoding!r:.60} is none of {', '.join(self._encodings)}"
            )
        return self._encodings[encoding]

    def write(self, sample: Mapping[str, Any]) -> None:
        """Write one sample.

        raises  LacksColumnError (a KeyError) for a missing column; ValueFitError (a ValueError) for a value that its encoding cannot hold
        """
        missing = next((name for name in self.columns if name not in sample), None)
        if missing is not None:
            raise LacksColumnError(f"the sample has no {missing!r:.60}", where=self.local)
        row = {name: sample[name] for name in self.columns}
        for name in self._pickled:  # the column's name says so, and to write a pickle runs nothing
            if not isinstance(row[name], bytes):
                row[name] = pickle.dumps(row[name])
        self._writer.write(row)

    def finish(self) -> None:
        """Write what is left, the index, and, where that is wanted, all of it to the other address."""
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
    """Copy a folder's files, the index and the playlist last, and then let go of them here."""
    names = sorted(
        (entry.name for entry in here.list()),
        key=lambda name: (name == "index.json", name == "playlist.yaml", name),
    )
    for name in names:
        (there / name).write((here / name).blocks())
    if not keep:
        for name in names:
            (here / name).delete()


class MDSWriter(_Writer):
    """Write MDS shards."""

    format = "mds"


class JSONWriter(_Writer):
    """Write JSON shards, of `str`, `int` and `float`."""

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
    """Write CSV shards, of `str`, `int` and `float`."""

    format = "csv"

    def __init__(self, *, columns: Mapping[str, str], newline: str = "\n", **rest: Any) -> None:
        super().__init__(columns=columns, separator=",", newline=newline, **rest)


class TSVWriter(XSVWriter):
    """Write TSV shards, of `str`, `int` and `float`."""

    format = "tsv"

    def __init__(self, *, columns: Mapping[str, str], newline: str = "\n", **rest: Any) -> None:
        super().__init__(columns=columns, separator="\t", newline=newline, **rest)
