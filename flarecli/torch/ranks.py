"""The rank of a process and the world size; detects whether accelerate divides the rows.

Trainers initialize torch.distributed after the dataset is created, so ranks are looked up when a
loop starts. In a spawned DataLoader worker torch.distributed is not initialized; the worker
inherits the rank of its parent.

accelerate divides the rows of an IterableDataset in a prepared DataLoader among its processes: by
default process 0 reads all rows and sends each process its part (`DataLoaderDispatcher`); with
`dispatch_batches=False` each process reads all rows and keeps its part (`IterableDatasetShard`).
In both cases the dataset must yield all rows. Source: accelerate, src/accelerate/data_loader.py.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import NamedTuple

import torch
from torch.utils import data as torch_data

from flarecli.errors import UsageError

__all__ = ["Inherited", "Share", "inherited_share", "share_of"]

_MAX_RANKS = 1 << 31


class Share(NamedTuple):
    """A rank, and the number of ranks that share the rows."""

    rank: int
    ranks: int


class Inherited(NamedTuple):
    """The share or the error of a parent process, sent to a process that it spawned."""

    pid: int
    found: Share | UsageError


def share_of(
    dataset: object, rank: int | None, ranks: int | None, is_iterated: bool = False
) -> Share:
    """Return the share of the rows that a dataset yields in this process.

    rank, ranks  arguments of the user; None: from accelerate, torch.distributed or the environment
    is_iterated  a loop starts: if accelerate is in use, check which DataLoader runs it
    raises       UsageError for a rank outside the ranks, and if rows would be divided twice or not
                 at all
    """
    processes = _accelerate_processes()
    if processes > 1 and rank is None and ranks is None:
        if is_iterated and not _is_prepared(dataset):
            raise UsageError(
                f"accelerate runs {processes} processes, and did not prepare this DataLoader",
                hint="Pass it to accelerator.prepare, or pass the dataset "
                "rank=accelerator.process_index, ranks=accelerator.num_processes.",
            )
        return Share(0, 1)
    found = Share(0, 1) if rank is not None and ranks is not None else _launched()
    share = Share(found.rank if rank is None else rank, found.ranks if ranks is None else ranks)
    if not 0 <= share.rank < share.ranks < _MAX_RANKS:
        raise UsageError(
            f"rank {share.rank} of {share.ranks}: expected a rank below the number of ranks, "
            "and that below 2^31"
        )
    if share.ranks > 1 and processes > 1 and is_iterated and _is_prepared(dataset):
        raise UsageError(
            f"accelerate divides the rows of this DataLoader among {processes} processes, "
            f"and its dataset yields only those of rank {share.rank} of {share.ranks}",
            hint="Leave out rank and ranks, or do not pass the DataLoader to accelerator.prepare.",
        )
    return share


def inherited_share(inherited: Inherited | None) -> Share | None:
    """Return the share of the parent of this DataLoader worker; None in any other process.

    Raises the error of the parent, if it had one.
    """
    parent = multiprocessing.parent_process()
    if (
        inherited is None
        or torch_data.get_worker_info() is None
        or parent is None
        or parent.pid != inherited.pid  # forked from a spawned process
    ):
        return None
    if isinstance(inherited.found, UsageError):
        raise inherited.found
    return inherited.found


def _launched() -> Share:
    """Return the share of torch.distributed, or of the environment of a launcher like torchrun."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
    ranks = os.environ.get("WORLD_SIZE", "1")
    rank = os.environ.get("RANK", "0" if ranks == "1" else "")
    if not (rank.isdecimal() and ranks.isdecimal()):
        raise UsageError(
            f"RANK is {rank!r:.60} and WORLD_SIZE is {ranks!r:.60}: expected two numbers",
            hint="Pass the dataset rank=R, ranks=N, or initialize torch.distributed before the "
            "loop.",
        )
    return Share(int(rank), int(ranks))


def _accelerate_processes() -> int:
    """Return the number of processes that accelerate runs; 1 without an Accelerator."""
    if "accelerate.state" not in sys.modules:
        return 1
    from accelerate.state import PartialState, is_initialized

    return int(PartialState().num_processes) if is_initialized() else 1


def _is_prepared(dataset: object) -> bool:
    """Return whether the DataLoader that accelerate currently runs reads this dataset."""
    from accelerate.data_loader import IterableDatasetShard
    from accelerate.state import GradientState

    loader = GradientState().active_dataloader
    if loader is None:
        return False
    inside = loader.dataset
    return inside is dataset or (
        isinstance(inside, IterableDatasetShard) and inside.dataset is dataset
    )
