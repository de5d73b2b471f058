"""Write the `index.json` of MosaicML's formats: rebuild a lost index, or merge several indexes."""

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

_UNFINISHED = (".flare/journal", ".flare/lock")


@checked
def reindex(folder: Address, *, replace: bool = False, allow_local: bool = False) -> str:
    """Rebuild the lost `index.json` of a folder of shards, and return its address.

    The shards may be MDS, JSON, CSV, TSV or XSV. The new index has the same bytes as the lost index
    if the original library or flare wrote the shards.

    replace      whether to overwrite an existing index
    allow_local  whether to follow symbolic links
    raises       UnfinishedError for an unfinished pack; the errors of `Format.repair_index`
    """
    at = _writable_folder(folder, Guard(allow_local=allow_local))
    if any((at / name).exists() for name in _UNFINISHED):
        raise UnfinishedError(
            "folder contains an unfinished pack",
            where=at,
            hint="Run the same `flare pack` command again with --resume.",
        )
    find(DEFAULT).repair_index(at, replace)
    return str(at / INDEX)


@checked
def merge_index(
    root: Address, parts: Sequence[Address] | None = None, *, allow_local: bool = False
) -> str:
    """Write one `index.json` for the datasets below a folder, and return its address.

    Shards are not changed.

    parts        dataset folders, or their `index.json` files, in row order; None: all datasets
                 below the root, in bytewise order
    allow_local  whether to follow symbolic links
    raises       the errors of `Format.merge_indexes`
    """
    guard = Guard(allow_local=allow_local)
    at = _writable_folder(root, guard)
    find(DEFAULT).merge_indexes(
        at, None if parts is None else [locate(part, guard) for part in address_texts(parts)]
    )
    return str(at / INDEX)


def _writable_folder(address: Address, guard: Guard) -> Location:
    folder = address_text(address)
    if is_url(folder) and not folder.startswith("file://"):
        raise UsageError("expected a local folder", where=redact(folder))
    if os.path.isfile(local_path(folder)):
        raise UsageError(
            "expected a folder of shards, got a file",
            where=folder,
            hint=f"Use the folder instead: {shell_quoted(os.path.dirname(folder) or '.')}.",
        )
    return locate(folder, guard)
