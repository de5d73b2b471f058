"""Comparison of the data that the ranks of a distributed run opened."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from flarecli.errors import UsageError
from flarecli.read import Mix, Rows, check_rows
from flarecli.units import format_count

__all__ = ["same_version"]

AnyRows = TypeVar("AnyRows", bound=Rows)
_MAX_NAMED = 4  # maximum number of versions, and of ranks per version, that an error names


def same_version(data: AnyRows, group: Any = None) -> AnyRows:
    """Return `data` if all ranks opened the same version; otherwise, raise an error on every rank.

    Every rank must call this function, like any collective operation of torch.distributed:

        data = same_version(flare.open("days"))

    The checksums of the data are compared. If torch.distributed is not initialized, nothing is
    compared. A rank outside the group compares nothing.

    data    a Dataset or a Mix
    group   process group of the ranks (default: all ranks)
    raises  UsageError on every rank if the checksums differ
    """
    check_rows(data)
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return data
    if distributed.get_rank(group) < 0:
        return data
    ranks = distributed.get_process_group_ranks(group or distributed.group.WORLD)
    parts = data.parts if isinstance(data, Mix) else (data,)
    pinned = ", ".join(part.pinned for part in parts if part.pinned)
    opened: list[Any] = [None] * len(ranks)
    distributed.all_gather_object(opened, (data.checksum, pinned), group=group)
    versions: dict[str, tuple[str, list[int]]] = {}  # checksum -> pinned address, ranks
    for rank, (checksum, address) in zip(ranks, opened, strict=True):
        versions.setdefault(checksum, (address, []))[1].append(rank)
    if len(versions) > 1:
        raise _difference(versions)
    return data


def _difference(versions: dict[str, tuple[str, list[int]]]) -> UsageError:
    """Return the error for different data.

    versions  checksum -> pinned address (empty if the data has no versions), and ranks
    """
    addresses = [address for address, _ in versions.values()]
    texts, hint = [], "Open the same streams and select the same rows on all ranks."
    if len(set(addresses)) == len(addresses):
        hint = f"Open {next(filter(None, addresses))} on all ranks."
        texts = [address or f"data with checksum {one!r}" for one, (address, _) in versions.items()]
    else:
        texts = [f"data with checksum {one!r}" for one in versions]
    named = [
        f"{_named(ranks)} opened {text}"
        for text, (_, ranks) in zip(texts, versions.values(), strict=True)
    ]
    others = len(named) - _MAX_NAMED
    more = [format_count(others, "more version")] if others > 0 else []
    return UsageError("; ".join(named[:_MAX_NAMED] + more), hint=hint)


def _named(ranks: list[int]) -> str:
    """Return `rank 2`, `ranks 0, 1` or, for many ranks, `ranks 0, 1, 2, 3 and 12 more`."""
    text = ", ".join(map(str, ranks[:_MAX_NAMED]))
    more = f" and {len(ranks) - _MAX_NAMED} more" if len(ranks) > _MAX_NAMED else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {text}{more}"
