"""sds's StreamingDataset, which fetches the files of samples when the samples are read.

The module does not load torch. If torch is loaded, StreamingDataset is an IterableDataset.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import GeneratorType
from typing import Any, NamedTuple

import numpy as np

from flarecli.compat import register
from flarecli.compat.epoch_counter import EpochCounter
from flarecli.compat.sds.rows import FetchedRow, Rows
from flarecli.errors import FlareError, RowsError, UsageError
from flarecli.formats.mds import config as mds_config
from flarecli.model import Sample
from flarecli.prefetch import OrderedQueue
from flarecli.read.epoch_order import Epoch

__all__ = ["IndexMetaData", "StreamingDataset", "ranks"]

KEY, KIND, USAGE = "__sample_key__", "__data_type__", "__worker_disk_usage__"
_MEDIA = ("image", "video", "audio", "text")
_TYPES = (*_MEDIA, *(f"{kind}_latent" for kind in _MEDIA))
_log = logging.getLogger("flarecli.sds")


class IndexMetaData(NamedTuple):
    """The number of samples in an index."""

    num_samples: int


class StreamingDataset:
    """Dataset of the rows of an index.

    A row of the index contains addresses of files. In the sample, the addresses are replaced by the
    paths of the fetched files.

    src                  address of an index (Parquet, CSV, JSON), a wildcard for several indexes,
                         a `.txt` file that lists indexes, or a folder of files
    dst                  folder for fetched files, with a subfolder per dataset
    name                 name of the subfolder; default: the file name of the index, up to its first
                         dot
    data_type            `image`, `video`, `audio` or `text`, with or without the suffix `_latent`;
                         added to each sample as `__data_type__`
    columns_to_download  columns of addresses, also called `columns_to_load`
    index_cols_to_keep   other columns in the samples; None means all columns
    index_col_name       column whose values name the files
    max_size             maximum number of rows
    sql_query            SELECT statement that selects rows from the table `dataframe`
    allow_missing_columns  allow indexes that lack some of the columns; missing values are null
    none_to_empty_str    replace nulls in samples with empty text
    num_downloading_workers  number of parallel transfers
    num_downloading_retries  maximum number of retries per file
    prefetch             number of rows whose files are fetched together in advance; the minimum is
                         twice `num_downloading_workers`
    shuffle_seed         seed of the epoch order; None keeps the order of the index, and -1 draws a
                         random seed
    cache_limit          maximum total bytes of files on this machine; None means unlimited; the
                         oldest files are removed first
    transforms           functions that convert a sample to one or several samples
    max_index_files_to_use  maximum number of indexes to read for a wildcard
    unaligned_worker_index  let every worker of every rank read all samples, in an order of its own
    infinite_iteration   start another epoch at the end of each epoch
    allow_private        allow addresses in private networks
    allow_host           hosts or networks to allow, as for `--allow-host`
    allow_local          allow local paths outside the folder of the index, `file://` and links
    resolution, num_random_access_retries, print_…, lazy_index_…, min_num_pending_tasks_thresh
                         ignored; accepted for compatibility
    failed               number of rows that were skipped because of an error; the log reports each
                         row
    raises               UsageError for invalid options; MissingError or FormatError for a missing
                         or invalid index; the first error of an epoch if all its rows failed
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
        # sds accepts an enum member or its value
        self.data_type = (
            None if data_type is None else str(getattr(data_type, "value", data_type)).lower()
        )
        if self.data_type is not None and self.data_type not in _TYPES:
            raise UsageError(
                f"data_type: expected one of {', '.join(_TYPES)}, got {self.data_type!r:.60}"
            )
        self.src = src
        self.name = name or os.path.basename(src.rstrip("/")).partition(".")[0] or "data"
        self.dst = os.path.join(dst, self.name)
        self._open_rows = partial(
            Rows,
            src,
            self.dst,
            columns_to_download or columns_to_load,
            index_col_name,
            jobs=num_downloading_workers,
            retries=num_downloading_retries,
            keep=index_cols_to_keep,
            limit=max_size,
            indexes=max_index_files_to_use,
            sql=sql_query,
            allow_missing=allow_missing_columns,
            allow_private=allow_private,
            allow_local=allow_local,
            allow_host=allow_host,
        )
        self.build_index()
        self.shuffle_seed = _random_seed() if shuffle_seed == -1 else shuffle_seed
        if self.shuffle_seed is not None and self.shuffle_seed < 0:
            raise UsageError(f"shuffle_seed: expected None or a number >= -1, got {shuffle_seed}")
        self.transforms, self.none_to_empty_str = list(transforms or ()), none_to_empty_str
        self.cache_limit = mds_config.size_limit(cache_limit, "cache_limit")
        self.unaligned_worker_index, self.infinite_iteration = (
            unaligned_worker_index,
            infinite_iteration,
        )
        self._block = max(prefetch, 2 * num_downloading_workers, 1)
        self._stored: deque[FetchedRow] = deque()
        self._refs: Counter[int] = Counter()  # row -> use count; files of these rows are kept
        self._used = self._yielded = self.failed = 0
        self._first_error: FlareError | None = None  # first error of this epoch in this process
        self._epoch_counter = EpochCounter()

    def build_index(self) -> None:
        """Read the index again, for example after the index has changed."""
        self._rows = self._open_rows()
        self.index_meta = IndexMetaData(len(self._rows))

    def __len__(self) -> int:
        return self.index_meta.num_samples

    @property
    def epoch_size(self) -> int:
        """Number of samples per epoch on all ranks."""
        return len(self)

    def __getitem__(self, idx: int) -> Any:
        """Fetch the files of one sample, and return the first result of the transforms.

        raises  RowsError (an IndexError) for a row outside the data; ReachError if a file cannot be
                fetched
        """
        if not -len(self) <= idx < len(self):
            raise RowsError(f"sample {idx} is out of range; there are {len(self)} samples")
        row = int(idx) % len(self)
        self._refs[row] += 1
        try:
            (fetched,) = self._rows.fetch([row])
        finally:
            self._release(row)
        if fetched.error is not None:
            raise fetched.error
        self._store(fetched, 1)
        return next(iter(self._samples(fetched)), None)

    def _samples(self, fetched: FetchedRow) -> Iterator[Any]:
        sample = {
            key: "" if value is None and self.none_to_empty_str else value
            for key, value in fetched.sample.items()
        }
        sample |= {
            KEY: sample[self._rows.key] if self._rows.key else fetched.row,
            KIND: self.data_type,
            USAGE: fetched.size,
        }
        try:
            yield from _transformed(sample, self.transforms)
        except Exception as error:
            error.add_note(f"raised by a transform of row {fetched.row} of {self.src}")
            raise

    def _store(self, fetched: FetchedRow, sharers: int) -> None:
        """Add the files of a returned sample to the cache; remove older files beyond the limit."""
        if self.cache_limit is None:
            return
        self._stored.append(fetched)
        self._refs[fetched.row] += 1
        self._used += fetched.size
        while self._used > self.cache_limit // sharers and len(self._stored) > 1:
            old = self._stored.popleft()
            self._used -= old.size
            if not self._release(old.row):
                for path in old.files.values():
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(path)

    def _release(self, row: int) -> int:
        """Decrease and return the use count of a row."""
        self._refs[row] -= 1
        return self._refs[row] or self._refs.pop(row)

    def __iter__(self) -> Iterator[Any]:
        self._yielded = 0
        return self._epochs(*self._epoch_counter.begin())

    def _epochs(self, epoch: int, step: int, worker: int, workers: int) -> Iterator[Any]:
        while len(self):
            self._yielded, self._first_error, failed = 0, None, self.failed
            yield from self._epoch(
                self._rows_of(epoch, step, worker, workers),
                workers * int(os.environ.get("LOCAL_WORLD_SIZE", 1)),
            )
            if self._yielded:
                has_samples = self._yielded > self.failed - failed
                sharing = workers if self.unaligned_worker_index else self._shares(step, workers)
                if (
                    self._epoch_counter.end(epoch, sharing, has_samples)
                    and self._first_error is not None
                ):
                    raise self._all_failed(epoch, self._first_error)
            has_rows = self._yielded or step  # at step 0, a worker without rows never gets a row
            if not self.infinite_iteration or not has_rows:
                return
            epoch, step = epoch + 1, 0
            if worker == 0:
                self._epoch_counter.advance(epoch)

    def _shares(self, step: int, workers: int) -> int:
        """Return the number of workers of this rank that have rows if an epoch starts at `step`."""
        return min(workers, -(-(len(self) - step) // ranks()[1]))

    def _all_failed(self, epoch: int, first: FlareError) -> FlareError:
        """Return the error for an epoch in which all rows failed; `first` is the first error."""
        return type(first)(
            f"all rows of epoch {epoch} failed; first error: {first}",
            where=self.src,
            hint=first.hint,
        )

    def _rows_of(self, epoch: int, step: int, worker: int, workers: int) -> Iterator[list[int]]:
        """Yield the row numbers of a worker, in lists. The files of a list are fetched together."""
        (rank, world), total, seed = ranks(), len(self), self.shuffle_seed or 0
        if self.unaligned_worker_index:
            seed, rank, world, worker, workers = seed + rank * workers + worker, 0, 1, 0, 1
        kind = "sequential" if self.shuffle_seed is None else "shuffle"
        order = Epoch(np.array([0, total]), seed, epoch, kind, 1)
        count = max(0, -(-(total - step) // world))
        for start in range(worker, count, workers * self._block):
            turns = np.arange(start, min(count, start + workers * self._block), workers)
            yield order.at((step + rank + turns * world) % total).tolist()

    def _epoch(self, blocks: Iterator[list[int]], sharers: int) -> Iterator[Any]:
        """Yield samples in order while the files of the next block are fetched."""
        in_flight: deque[int] = deque()
        queue = OrderedQueue(self._rows.fetch, workers=1)

        def fetched() -> Iterator[FetchedRow]:
            for rows in blocks:
                in_flight.extend(rows)
                self._refs.update(rows)  # the cache keeps the files of these rows
                queue.put(rows)
                if len(queue) == 2:  # the fetch of the next block has started
                    yield from next(queue.drain())
            for block in queue.drain():
                yield from block

        try:
            for row in fetched():
                self._yielded += 1
                if row.error is not None:
                    self.failed += 1
                    self._first_error = self._first_error or row.error
                    _log.warning("row %d of %s is skipped: %s", row.row, self.name, row.error)
                else:
                    yield from self._samples(row)
                    self._store(row, sharers)
                self._release(in_flight.popleft())
        finally:
            queue.close(wait=True)
            for number in in_flight:
                self._release(number)

    def state_dict(self) -> dict[str, int]:
        """Return the position in the epoch, from the number of samples that this process yielded.

        The workers of a DataLoader yield samples in other processes. A program with workers must
        therefore count the samples itself, and resume with `set_progress`.
        """
        epoch, step = self._epoch_counter.last()
        return {"epoch": epoch, "sample_in_epoch": step + self._yielded * ranks()[1]}

    @property
    def epoch(self) -> int:
        """The current epoch. Setting it does not change `sample_in_epoch`."""
        return self.state_dict()["epoch"]

    @epoch.setter
    def epoch(self, epoch: int) -> None:
        self.set_progress(epoch, self.sample_in_epoch)

    @property
    def sample_in_epoch(self) -> int:
        """Total number of samples of the epoch that all ranks together have yielded.

        Setting the number does not change `epoch`.
        """
        return self.state_dict()["sample_in_epoch"]

    @sample_in_epoch.setter
    def sample_in_epoch(self, sample: int) -> None:
        self.set_progress(self.epoch, sample)

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Resume at a saved position, on any number of ranks and workers."""
        self.set_progress(state_dict["epoch"], state_dict["sample_in_epoch"])

    def set_progress(self, epoch: int, sample_in_epoch: int | None = None) -> None:
        """Set the position at which the next iteration starts.

        sample_in_epoch  total number of samples of the epoch that all ranks together skip; None
                         means 0
        raises           UsageError for a position outside the epoch
        """
        step = sample_in_epoch or 0
        if epoch < 0 or not 0 <= step <= len(self) + ranks()[1]:
            raise UsageError(
                f"sample {step} of epoch {epoch} is out of range; there are {len(self)} samples"
            )
        self._yielded = 0
        self._epoch_counter.resume(epoch, step)


def ranks() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks."""
    return int(os.environ.get("RANK", 0)), max(1, int(os.environ.get("WORLD_SIZE", 1)))


def _random_seed() -> int:
    """Draw the same seed on all ranks. Raises UsageError if the ranks cannot communicate."""
    seed = [secrets.randbelow(1 << 31)]
    if ranks()[1] > 1:
        try:
            from torch import distributed

            has_group = distributed.is_available() and distributed.is_initialized()
        except ImportError:
            has_group = False
        if not has_group:
            raise UsageError(
                "shuffle_seed=-1 with several ranks requires torch.distributed",
                hint="Initialize torch.distributed first, or pass a seed.",
            )
        distributed.broadcast_object_list(seed)
    return seed[0]


def _transformed(sample: Any, transforms: Sequence[Callable[[Any], Any]]) -> Iterator[Any]:
    if not transforms:
        yield sample
        return
    result = transforms[0](sample)
    for item in result if isinstance(result, (list, tuple, GeneratorType)) else [result]:
        yield from _transformed(item, transforms[1:])
