"""The rank of this process, and the number of ranks.

Trainers create the dataset before they initialize torch.distributed. Therefore, the rank is read
when a loop starts. torch.distributed is not initialized in a spawned DataLoader worker. The worker
inherits the rank of its parent process.

If a DataLoader was prepared by accelerate, accelerate divides the rows among its processes. By
default, process 0 reads all rows and sends rows to the other processes (`DataLoaderDispatcher`).
With `dispatch_batches=False`, each process reads all rows and drops the rows of the other processes
(`IterableDatasetShard`). In both cases, the dataset must yield all rows. Source: accelerate,
src/accelerate/data_loader.py.
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
    """A rank, and the number of ranks among which the rows are divided."""

    rank: int
    ranks: int


class Inherited(NamedTuple):
    """The Share of the parent process, which a spawned process inherits.

    pid    process id of the parent
    share  the Share, or the UsageError that the parent raised instead
    """

    pid: int
    share: Share | UsageError


def share_of(
    dataset: object, rank: int | None, ranks: int | None, is_iterated: bool = False
) -> Share:
    """Return the rank whose rows a dataset yields in this process, and the number of ranks.

    rank, ranks  arguments of the dataset; None means that accelerate, torch.distributed or the
                 environment determines the value
    is_iterated  True at the start of a loop: check whether accelerate prepared the DataLoader
    raises       UsageError for an invalid rank; at the start of a loop, also if both accelerate and
                 the dataset divide the rows, or if neither divides them
    """
    processes = _accelerate_processes()
    if processes > 1 and rank is None and ranks is None:
        if is_iterated and not _is_prepared(dataset):
            raise UsageError(
                f"accelerate runs {processes} processes, but did not prepare this DataLoader",
                hint="Pass the DataLoader to accelerator.prepare, or create the dataset with "
                "rank=accelerator.process_index, ranks=accelerator.num_processes.",
            )
        return Share(0, 1)
    share = Share(0, 1) if rank is not None and ranks is not None else _launched_share()
    share = Share(share.rank if rank is None else rank, share.ranks if ranks is None else ranks)
    if not 0 <= share.rank < share.ranks < _MAX_RANKS:
        raise UsageError(
            f"rank {share.rank} of {share.ranks}: expected a rank below the number of ranks, "
            "and fewer than 2^31 ranks"
        )
    if share.ranks > 1 and processes > 1 and is_iterated and _is_prepared(dataset):
        raise UsageError(
            f"accelerate divides the rows of this DataLoader among {processes} processes, "
            f"but its dataset yields only the rows of rank {share.rank} of {share.ranks}",
            hint="Omit rank and ranks, or do not pass the DataLoader to accelerator.prepare.",
        )
    return share


def inherited_share(inherited: Inherited | None) -> Share | None:
    """Return the Share that a spawned DataLoader worker inherited; None in all other processes.

    raises  the UsageError of the parent process, if it could not determine its Share
    """
    parent = multiprocessing.parent_process()
    if (
        inherited is None
        or torch_data.get_worker_info() is None
        or parent is None
        or parent.pid != inherited.pid  # this process was forked from a spawned process
    ):
        return None
    if isinstance(inherited.share, UsageError):
        raise inherited.share
    return inherited.share


def _launched_share() -> Share:
    """Return the rank and number of ranks from torch.distributed, or from RANK and WORLD_SIZE."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return Share(torch.distributed.get_rank(), torch.distributed.get_world_size())
    ranks = os.environ.get("WORLD_SIZE", "1")
    rank = os.environ.get("RANK", "0" if ranks == "1" else "")
    if not (rank.isdecimal() and ranks.isdecimal()):
        raise UsageError(
            f"RANK and WORLD_SIZE: expected two numbers, got {rank!r:.60} and {ranks!r:.60}",
            hint="Create the dataset with rank=R, ranks=N, or initialize torch.distributed before "
            "the loop.",
        )
    return Share(int(rank), int(ranks))


def _accelerate_processes() -> int:
    """Return the number of processes of the library accelerate; 1 if accelerate is not in use."""
    if "accelerate.state" not in sys.modules:
        return 1
    from accelerate.state import PartialState, is_initialized

    return int(PartialState().num_processes) if is_initialized() else 1


def _is_prepared(dataset: object) -> bool:
    """Return whether the active DataLoader of accelerate reads this dataset."""
    from accelerate.data_loader import IterableDatasetShard
    from accelerate.state import GradientState

    loader = GradientState().active_dataloader
    if loader is None:
        return False
    inner = loader.dataset
    return inner is dataset or (
        isinstance(inner, IterableDatasetShard) and inner.dataset is dataset
    )
