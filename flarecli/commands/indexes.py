"""Write the `index.json` of MosaicML's formats: rebuild a lost one, or merge those of several
datasets.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from flarecli.arguments import Address, address_text, address_texts, checked
from flarecli.errors import UnfinishedError, UsageError
from flarecli.formats import DEFAULT, INDEX, find
from flarecli.names import is_url, local_path, shell_quoted
from flarecli.redact import redact
from flarecli.storage import Guard, Location, locate

__all__ = ["merge_index", "reindex"]

_BEGUN = (".flare/journal", ".flare/lock")


@checked
def reindex(folder: Address, *, replace: bool = False, allow_local: bool = False) -> str:
    """Rebuild the lost `index.json` of a folder of MDS, JSON, CSV, TSV or XSV shards; return its
    address.

    The bytes are those of the lost index if the original library or flare wrote the shards.

    replace      overwrite an existing index
    allow_local  follow symbolic links
    raises       MissingError, FormatError, UsageError: see `rebuild`; UnfinishedError for an
                 unfinished pack
    """
    at = _writable(folder, Guard(allow_local=allow_local))
    if any((at / name).exists() for name in _BEGUN):
        raise UnfinishedError(
            "an unfinished pack",
            where=at,
            hint="Run the same `flare pack` command again with --resume.",
        )
    find(DEFAULT).repair_index(at, replace)
    return str(at / INDEX)


@checked
def merge_index(
    root: Address, parts: Sequence[Address] | None = None, *, allow_local: bool = False
) -> str:
    """Write one `index.json` over the datasets below a folder; return its address. No shard is
    changed.

    parts        folders, or their `index.json`, in the order of the rows; None: all below the root,
                 in bytewise order
    allow_local  follow symbolic links
    raises       UnsafeError, MissingError, FormatError: see `merge`
    """
    guard = Guard(allow_local=allow_local)
    at = _writable(root, guard)
    find(DEFAULT).merge_indexes(
        at, None if parts is None else [locate(part, guard) for part in address_texts(parts)]
    )
    return str(at / INDEX)


def _writable(given: Address, guard: Guard) -> Location:
    folder = address_text(given)
    if is_url(folder) and not folder.startswith("file://"):
        raise UsageError("only local folders can be written", where=redact(folder))
    if os.path.isfile(local_path(folder)):
        raise UsageError(
            "expected a folder of shards, got a file",
            where=folder,
            hint=f"Name the folder: {shell_quoted(os.path.dirname(folder) or '.')}.",
        )
    return locate(folder, guard)
