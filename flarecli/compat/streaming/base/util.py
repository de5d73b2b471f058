"""The functions of mosaicml-streaming's `streaming.base.util` that flare supports."""

from __future__ import annotations

import os
from collections.abc import Sequence

from flarecli import commands
from flarecli.errors import UsageError

__all__ = ["clean_stale_shared_memory", "merge_index"]


def clean_stale_shared_memory() -> None:
    """Do nothing, because flare uses no named shared memory."""


def merge_index(
    *args: str | os.PathLike[str] | Sequence[str],
    keep_local: bool = True,
    download_timeout: int = 60,
    out: str | os.PathLike[str] | None = None,
    index_file_urls: Sequence[str] | None = None,
) -> None:
    """Merge the indexes of several datasets below a folder into one `index.json` in this folder.

    Call `merge_index(out)` or `merge_index(index_file_urls, out)`.

    index_file_urls  the `index.json` of each dataset, in order; default: all indexes below `out`
    keep_local, download_timeout  ignored, because indexes are not copied
    raises           UsageError for a remote `out`; UnsafeError, MissingError, FormatError; see
                     `flarecli.merge_index`
    """
    arguments = list(args)
    if arguments and isinstance(arguments[0], list):
        index_file_urls = arguments.pop(0)  # type: ignore[assignment]
    if arguments and out is None:
        out = arguments.pop(0)  # type: ignore[assignment]
    if len(arguments) > 2 or not isinstance(out, str | os.PathLike):
        raise UsageError(
            "Invalid arguments to merge_index",
            hint="Pass a local folder, or a list of index files and the folder.",
        )
    commands.merge_index(out, index_file_urls)
