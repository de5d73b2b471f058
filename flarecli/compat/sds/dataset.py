"""sds's StreamingDataset: the files that an index names, fetched as they are wanted, by position or an epoch at a time.

torch takes it for one of its IterableDatasets as soon as torch is loaded, and it loads no torch itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np

from flarecli.compat import register
from flarecli.compat.sds.rows import Brought, Rows
from flarecli.compat.streaming.epochs import Clock
from flarecli.errors import FlareError, RowsError, UsageError
from flarecli.formats import mds_config
from flarecli.model import Sample
from flarecli.read.windows import Epoch
from flarecli.storage.workers import Workers

__all__ = ["IndexMetaData", "StreamingDataset", "ranks"]

KEY, KIND, USAGE = "__sample_key__", "__data_type__", "__worker_disk_usage__"
_KINDS = ("image", "video", "audio", "text")
_TYPES = (*_KINDS, *(f"{kind}_latent" for kind in _KINDS))
_log = logging.getLogger("flarecli.sds")


class IndexMetaData(NamedTuple):
    """Facts about an index: how many samples it has."""

    num_samples: int


class StreamingDataset:
    """Samples of an index: its columns, with the paths of the fetched files in place of their addresses.

    src                  an index (parquet, CSV, JSON), several by a wildcard, a list of them, or a folder of files; local or remote
    dst                  the folder that the files come to, in one of their own for each dataset
    data_type            image, video, audio, text, or one of those `_latent`; it comes with each sample
    columns_to_download  columns of addresses, also called `columns_to_load`
    index_col_name       the column that names a sample's files
    num_downloading_workers  transfers at a time
    shuffle_seed         what the order of an epoch depends on; None: the index's own; -1: drawn
    cache_limit          bytes of files that stay on this machine, the oldest go first; None: no limit
    transforms           functions of a sample, in turn, that give a sample or several
    max_index_files_to_use  how many of the indexes that a wildcard names
    unaligned_worker_index  every worker of every rank goes through all samples, each in an order of its own
    infinite_iteration   one epoch follows the other without end
    allow_private        the index may name private addresses
    allow_local          the index may name local paths outside its own folder, `file://` URLs and links
    resolution, num_random_access_retries, print_…, lazy_index_…, min_num_pending_tasks_thresh  taken, and of no use here
    failed               rows that an epoch has left out, each named in the log
    raises               UsageError, MissingError, FormatError; in an epoch, the error of its first row if every row failed
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> StreamingDataset:
        register(StreamingDataset, cls)
        return super().__new__(cls)

    def __init__(
        self,
        src: str,
        dst: str,
        data_type: Any = None,
        name: str | None = None,
        shuffle_seed: int | None = None,
        transforms: Sequence[Callable[[Sample], Any]] | None = None,
        columns_to_download: Sequence[str] | None = None,
        index_col_name: str = "index",
        num_downloading_workers: int = 4,
        prefetch: int = 10,
        num_downloading_retries: int = 3,
        none_to_empty_str: bool = True,
        cache_limit: int | str | None = "100mb",
        max_size: int | None = None,
        allow_missing_columns: bool = False,
        sql_query: str | None = None,
        index_cols_to_keep: Sequence[str] | None = None,
        columns_to_load: Sequence[str] | None = None,
        max_index_files_to_use: int | None = None,
        unaligned_worker_index: bool = False,
        infinite_iteration: bool = False,
        allow_private: bool = False,
        allow_local: bool = False,
        allow_host: str | Sequence[str] = (),
        resolution: Any = None,
        num_random_access_retries: int = 5,
        print_exceptions: bool = False,
        print_traceback: bool = False,
        lazy_index_chunk_size: int | None = None,
        lazy_index_num_threads: int = 3,
        lazy_index_prefetch_factor: int = 3,
        min_num_pending_tasks_thresh: int | None = None,
    ) -> None:
        self.data_type = (
            None if data_type is None else str(getattr(data_type, "value", data_type)).lower()
        )
        if self.data_type is not None and self.data_type not in _TYPES:
            raise UsageError(
                f"data_type is {self.data_type!r:.60}", hint=f"Choose one of {', '.join(_TYPES)}."
            )
        self.src, self.name = (
            src,
            name or os.path.basename(src.rstrip("/")).partition(".")[0] or "data",
        )
        self.dst = os.path.join(dst, self.name)
        self._open_rows = partial(
            Rows,
            src,
            self.dst,
            columns_to_download or columns_to_load,
            index_col_name,
            jobs=num_downloading_workers,
            retries=num_downloading_retries,
            kept=index_cols_to_keep,
            limit=max_size,
            indexes=max_index_files_to_use,
            sql=sql_query,
            allow_missing=allow_missing_columns,
            allow_private=allow_private,
            allow_local=allow_local,
            allow_host=allow_host,
        )
        self.build_index()
        self.shuffle_seed = _drawn() if shuffle_seed == -1 else shuffle_seed
        if self.shuffle_seed is not None and self.shuffle_seed < 0:
            raise UsageError(
                f"shuffle_seed is {shuffle_seed}", hint="Give None, -1, or a number from 0 on."
            )
        self.transforms, self.none_to_empty_str = list(transforms or ()), none_to_empty_str
        self.cache_limit = mds_config.size_limit(cache_limit, "cache_limit")
        self.unaligned_worker_index, self.infinite_iteration = (
            unaligned_worker_index,
            infinite_iteration,
        )
        self._block = max(prefetch, 2 * num_downloading_workers, 1)
        self._stored: deque[Brought] = deque()
        self._holds: Counter[int] = (
            Counter()
        )  # row -> how often it is among those, or on its way: as long its files stay
        self._used = self._given = self.failed = 0
        self._first_error: FlareError | None = None  # of this epoch, in this process
        self._clock = Clock()

    def build_index(self) -> None:
        """Read the index, as the constructor does; also when its files have changed."""
        self._rows = self._open_rows()
        self.index_meta = IndexMetaData(len(self._rows))

    def __len__(self) -> int:
        return self.index_meta.num_samples

    @property
    def epoch_size(self) -> int:
        """How many samples an epoch has, on all ranks."""
        return len(self)

    def __getitem__(self, idx: int) -> Any:
        """Give one sample, fetching its files first: what its transforms make of it; of several, the first.

        raises  RowsError (an IndexError) outside the data; ReachError if a file cannot be fetched: no other row is given in its place
        """
        if not -len(self) <= idx < len(self):
            raise RowsError(f"sample {idx} is outside the data, which has {len(self)}")
        row = int(idx) % len(self)
        self._holds[row] += 1
        try:
            (one,) = self._rows.bring([row])
        finally:
            self._let(row)
        if one.error is not None:
            raise one.error
        self._store(one, 1)
        return next(iter(self._samples(one)), None)

    def _samples(self, one: Brought) -> Iterator[Any]:
        sample = {
            key: "" if value is None and self.none_to_empty_str else value
            for key, value in one.sample.items()
        }
        sample |= {
            KEY: sample[self._rows.key] if self._rows.key else one.row,
            KIND: self.data_type,
            USAGE: one.size,
        }
        try:
            yield from _transformed(sample, self.transforms)
        except Exception as error:
            error.add_note(f"in a transform of row {one.row} of {self.src}")
            raise

    def _store(self, one: Brought, sharers: int) -> None:
        """Count the files of a sample that was given, and let go of older ones where the limit asks for it."""
        if self.cache_limit is None:
            return
        self._stored.append(one)
        self._holds[one.row] += 1
        self._used += one.size
        while self._used > self.cache_limit // sharers and len(self._stored) > 1:
            old = self._stored.popleft()
            self._used -= old.size
            if not self._let(old.row):
                for path in old.files.values():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)

    def _let(self, row: int) -> int:
        """Note that a row is held once less; give how often it still is."""
        self._holds[row] -= 1
        return self._holds[row] or self._holds.pop(row)

    def __iter__(self) -> Iterator[Any]:
        self._given = 0
        return self._epochs(*self._clock.begin())

    def _epochs(self, epoch: int, step: int, worker: int, workers: int) -> Iterator[Any]:
        while len(self):
            self._given, self._first_error, failed = 0, None, self.failed
            yield from self._epoch(
                self._rows_of(epoch, step, worker, workers),
                workers * int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            )
            if self._given:
                has_samples = self._given > self.failed - failed
                sharing = workers if self.unaligned_worker_index else self._shares(step, workers)
                if self._clock.end(epoch, sharing, has_samples) and self._first_error is not None:
                    raise self._all_failed(epoch, self._first_error)
            if not self.infinite_iteration:
                return
            epoch, step = epoch + 1, 0
            if worker == 0:
                self._clock.reach(epoch)

    def _shares(self, step: int, workers: int) -> int:
        """Return how many workers of this rank have at least one row of an epoch from a step on."""
        return min(workers, -(-(len(self) - step) // ranks()[1]))

    def _all_failed(self, epoch: int, first: FlareError) -> FlareError:
        """Return the error of an epoch in which every row failed, made from that of its first row."""
        error = type(first)(
            f"every row of epoch {epoch} failed; the first: {first}",
            where=self.src,
            hint=first.hint,
        )
        if first.hint:
            error.add_note(f"hint: {first.hint}")  # tracebacks, and torch's workers, show notes
        return error

    def _rows_of(self, epoch: int, step: int, worker: int, workers: int) -> Iterator[list[int]]:
        """Give the rows of a worker, a block after the other."""
        (rank, world), total, seed = ranks(), len(self), self.shuffle_seed or 0
        if self.unaligned_worker_index:
            seed, rank, world, worker, workers = seed + rank * workers + worker, 0, 1, 0, 1
        order = Epoch(
            np.array([0, total]),
            seed,
            epoch,
            "sequential" if self.shuffle_seed is None else "shuffle",
            1,
        )
        count = max(0, -(-(total - step) // world))
        for start in range(worker, count, workers * self._block):
            turns = np.arange(start, min(count, start + workers * self._block), workers)
            yield order.at((step + rank + turns * world) % total).tolist()

    def _epoch(self, blocks: Iterator[list[int]], sharers: int) -> Iterator[Any]:
        """Give samples in order while the files of the next ones are fetched."""
        under_way: deque[int] = deque()
        try:
            with Workers(1, "flare-sds") as pool:
                ahead = self._fetched(pool, blocks, under_way)
                while ahead is not None:
                    brought, ahead = ahead.result(), self._fetched(pool, blocks, under_way)
                    for one in brought:
                        self._given += 1
                        if one.error is not None:
                            self.failed += 1
                            self._first_error = self._first_error or one.error
                            _log.warning(
                                "row %d of %s is left out: %s", one.row, self.name, one.error
                            )
                        else:
                            yield from self._samples(one)
                            self._store(one, sharers)
                        self._let(under_way.popleft())
        finally:
            for row in under_way:
                self._let(row)

    def _fetched(
        self, pool: Workers, blocks: Iterator[list[int]], under_way: deque[int]
    ) -> Future[list[Brought]] | None:
        """Have the next rows brought; noted first, since what one of them has from before must not go in between."""
        rows = next(blocks, None)
        if rows is None:
            return None
        under_way.extend(rows)
        self._holds.update(rows)
        return pool.submit(self._rows.bring, rows)

    def state_dict(self) -> dict[str, int]:
        """Return the place in the epoch, by what this process has given; with workers of a DataLoader, use `set_progress`."""
        epoch, step = self._clock.last()
        return {"epoch": epoch, "sample_in_epoch": step + self._given * ranks()[1]}

    @property
    def epoch(self) -> int:
        """The epoch that runs, ran last, or was set; setting it keeps `sample_in_epoch`."""
        return self.state_dict()["epoch"]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_progress(epoch, self.sample_in_epoch)

    @property
    def sample_in_epoch(self) -> int:
        """Samples of that epoch that all ranks have given; setting it keeps `epoch`."""
        return self.state_dict()["sample_in_epoch"]

    @sample_in_epoch.setter
    def sample_in_epoch(self, sample: int) -> None:
        self.set_progress(self.epoch, sample)

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there with the next iteration, on any number of ranks and workers."""
        self.set_progress(state_dict["epoch"], state_dict["sample_in_epoch"])

    def set_progress(self, epoch: int, sample_in_epoch: int | None = None) -> None:
        """Say that the next iteration is that epoch, behind so many samples of all ranks. Raises UsageError outside the epoch."""
        step = sample_in_epoch or 0
        if epoch < 0 or not 0 <= step <= len(self) + ranks()[1]:
            raise UsageError(
                f"sample {step} of epoch {epoch} is outside the data, which has {len(self)}"
            )
        self._given = 0
        self._clock.resume(epoch, step)


def ranks() -> tuple[int, int]:
    """Return the rank of this process, and how many ranks there are."""
    return int(os.environ.get("RANK", 0)), max(1, int(os.environ.get("WORLD_SIZE", 1)))


def _drawn() -> int:
    """Draw a seed, the same on all ranks. Raises UsageError where they cannot tell each other."""
    seed = [secrets.randbelow(1 << 31)]
    if ranks()[1] > 1:
        together = getattr(sys.modules.get("torch"), "distributed", None)
        if together is None or not together.is_initialized():
            raise UsageError(
                "shuffle_seed is -1, and the ranks cannot agree on one",
                hint="Start torch.distributed first, or give a seed.",
            )
        together.broadcast_object_list(seed)
    return seed[0]


def _transformed(sample: Any, transforms: Sequence[Callable[[Any], Any]]) -> Iterator[Any]:
    if not transforms:
        yield sample
        return
    found = transforms[0](sample)
    for one in found if isinstance(found, (list, tuple, GeneratorType)) else [found]:
        yield from _transformed(one, transforms[1:])
