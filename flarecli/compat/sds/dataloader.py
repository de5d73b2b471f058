"""sds's MultiStreamDataLoader, which reads batches of several datasets. The module loads torch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
import torch.utils.data

from flarecli.compat.sds.dataset import ranks
from flarecli.errors import FormatError, UsageError

__all__ = ["Batch", "MultiStreamDataLoader", "ScheduleType", "Stream", "StreamOptions"]

_SEED_STEP, _RANK_STEP, _SEEDS = 1007, 1_000_003, 1 << 32  # the same constants as in sds
MAX_ROUND_BATCHES = 100_000  # maximum number of batches in one round of a schedule
_STRATEGIES = ("no_mixing", "mix_all", "custom")


class ScheduleType(Enum):
    """Order in which mixing groups provide batches.

    If one round has two batches of group a and three batches of group b, its order is

    consecutive              aabbb
    consecutive_interleaved  ababb
    random_order             a new permutation in each round
    fixed_random_order       the same permutation in each round

    `random` draws a group for each batch in proportion to the ratios.
    """

    RANDOM = "random"
    CONSECUTIVE = "consecutive"
    CONSECUTIVE_INTERLEAVED = "consecutive_interleaved"
    RANDOM_ORDER = "random_order"
    FIXED_RANDOM_ORDER = "fixed_random_order"

    @staticmethod
    def sample_iter_idx(
        schedule: ScheduleType,
        num_batches_yielded: int,
        counts: Mapping[int, int],
        ratios: Mapping[int, float],
        shuffle_seed: int | None,
    ) -> int:
        """Return the mixing group of the next batch.

        counts  group -> batches in one round
        ratios  group -> share, for RANDOM
        """
        seed = shuffle_seed or 0
        if schedule is ScheduleType.RANDOM:
            return _draw(num_batches_yielded + _SEED_STEP * seed, list(ratios), [*ratios.values()])
        number, place = divmod(num_batches_yielded, sum(counts.values()))
        if schedule is ScheduleType.RANDOM_ORDER:
            seed = number + _SEED_STEP * seed
        return _round(schedule, tuple(counts.items()), seed)[place]


@lru_cache(maxsize=16)
def _round(
    schedule: ScheduleType, counts: tuple[tuple[int, int], ...], seed: int
) -> tuple[int, ...]:
    """Return the mixing group of each batch in one round of the schedule.

    counts  (group, number of its batches in a round) of each mixing group
    """
    if schedule is ScheduleType.CONSECUTIVE_INTERLEAVED:
        turns = range(max(count for _, count in counts))
        return tuple(group for turn in turns for group, count in counts if turn < count)
    groups = [group for group, count in counts for _ in range(count)]
    if schedule is not ScheduleType.CONSECUTIVE:
        np.random.RandomState(seed % _SEEDS).shuffle(groups)
    return tuple(groups)


def _draw(seed: int, values: Sequence[int], weights: Sequence[float]) -> int:
    shares = np.array(weights, float)
    place = np.random.RandomState(seed % _SEEDS).choice(len(values), p=shares / shares.sum())
    return values[int(place)]


class Batch(dict[str, Any]):
    """A collated batch and the name of its stream.

    num_accum_rounds_left  number of following batches from the same stream, for
                           gradient accumulation
    """

    def __init__(
        self,
        raw_batch: Mapping[str, Any],
        stream_name: str | None = None,
        num_accum_rounds_left: int = 0,
        data_type: Any = None,
    ) -> None:
        if not isinstance(raw_batch, Mapping):
            raise FormatError(
                f"expected the batch to be a dict, got {type(raw_batch).__name__}",
                where="" if stream_name is None else f"stream {stream_name!r:.60}",
                hint="Use a collate_fn that returns a dict.",
            )
        super().__init__(raw_batch)
        self.stream_name, self.data_type = stream_name, data_type
        self.num_accum_rounds_left = num_accum_rounds_left


@dataclass(frozen=True)
class StreamOptions:
    """Options of one dataset in a mix.

    name              name of the stream, as in `Batch.stream_name`
    ratio             share of the batches; 0 means that the dataset is unused
    mixing_group_id   group of the dataset; for each batch, all ranks use the same group, and each
                      rank draws one dataset of this group
    dataloader_kwargs  additional arguments for torch's DataLoader
    is_main           True for the loader's `main_stream`
    batch_gpu         samples per batch on one rank
    batch_size        samples per optimizer step: batch_gpu * ranks * num_accum_rounds; if
                      batch_size and batch_gpu are None, samples are not batched
    num_accum_rounds  number of consecutive batches of this stream, for gradient accumulation
    """

    name: str
    ratio: float
    mixing_group_id: int
    dataloader_kwargs: dict[str, Any] = field(default_factory=dict)
    is_main: bool = False
    batch_size: int | None = None
    batch_gpu: int | None = None
    num_accum_rounds: int = 1

    @staticmethod
    def infer_batch_info(
        batch_size: int | None = None,
        batch_gpu: int | None = None,
        num_accum_rounds: int | None = None,
    ) -> tuple[int, int, int]:
        """Return batch_size, batch_gpu and num_accum_rounds; derive the missing values.

        raises  UsageError if no size is set, or if the sizes do not divide evenly
        """
        world = ranks()[1]
        if batch_size is None:
            if batch_gpu is None:
                raise UsageError("expected batch_size or batch_gpu")
            rounds = 1 if num_accum_rounds is None else num_accum_rounds
            return batch_gpu * world * rounds, batch_gpu, rounds
        each, rest = divmod(batch_size, world)
        if rest or (batch_gpu is not None and (batch_gpu < 1 or each % batch_gpu)):
            raise UsageError(
                f"a batch of {batch_size} samples cannot be divided into batches of "
                f"{'equal size' if batch_gpu is None else batch_gpu} on {world} ranks"
            )
        gpu = each if batch_gpu is None else batch_gpu
        return batch_size, gpu, each // gpu if gpu else 0

    @staticmethod
    def init_group(
        raw_stream_configs: Sequence[Mapping[str, Any]],
        drop_unused: bool = False,
        mixing_strategy: str = "no_mixing",
    ) -> list[StreamOptions]:
        """Return the options of each stream; scale the ratios so that their sum is 1.

        drop_unused      omit streams with ratio 0
        mixing_strategy  no_mixing: one group for each stream; mix_all: one group for all streams;
                         custom: the group is mixing_group_id
        raises           UsageError if only some streams have a ratio, for groups that contradict
                         the strategy, and for duplicate names
        """
        if mixing_strategy not in _STRATEGIES:
            raise UsageError(
                f"mixing_strategy: expected one of {', '.join(_STRATEGIES)}, "
                f"got {mixing_strategy!r:.60}"
            )
        groups = [config.get("mixing_group_id") for config in raw_stream_configs]
        _check_groups(groups, mixing_strategy)
        shares = _normalized([config.get("ratio") for config in raw_stream_configs])
        used = [i for i, share in enumerate(shares) if share > 0 or not drop_unused]
        options: list[StreamOptions] = []
        for number, i in enumerate(used):
            config = raw_stream_configs[i]
            name = str(config.get("name", f"stream_{number:03d}"))
            if any(name == other.name for other in options):
                raise UsageError(f"duplicate stream name {name!r:.60}")
            size, gpu, rounds = StreamOptions.infer_batch_info(
                config.get("batch_size"), config.get("batch_gpu"), config.get("num_accum_rounds")
            )
            group = {"custom": groups[i], "no_mixing": number, "mix_all": 0}[mixing_strategy]
            options.append(
                StreamOptions(
                    name=name,
                    ratio=shares[i],
                    mixing_group_id=0 if group is None else group,
                    dataloader_kwargs=dict(config.get("dataloader_kwargs", {})),
                    is_main=bool(config.get("is_main", False)),
                    batch_size=size,
                    batch_gpu=gpu,
                    num_accum_rounds=rounds,
                )
            )
        return options


def _check_groups(groups: Sequence[int | None], strategy: str) -> None:
    """Raise UsageError if the mixing groups contradict the strategy."""
    ids = [group for group in groups if group is not None]
    if strategy == "custom":
        is_wrong = len(ids) < len(groups)
        rule = "a mixing_group_id for each stream"
    elif strategy == "mix_all":
        is_wrong = bool(ids) and (len(ids) < len(groups) or len(set(ids)) > 1)
        rule = "no mixing_group_id, or the same for all streams"
    else:
        is_wrong = bool(ids) and len(set(groups)) < len(groups)
        rule = "no mixing_group_id, or a different one for each stream"
    if is_wrong:
        raise UsageError(f"mixing_strategy {strategy!r}: expected {rule}, got {list(groups)}")


def _normalized(ratios: Sequence[float | None]) -> list[float]:
    """Scale ratios so that their sum is 1; return equal ratios if no ratio is set."""
    numbers = [float(ratio) for ratio in ratios if ratio is not None]
    if not numbers:
        return [1.0 / len(ratios)] * len(ratios) if ratios else []
    if len(numbers) < len(ratios):
        raise UsageError("expected a ratio for every stream or for no stream")
    if not all(number >= 0 for number in numbers) or not 0 < sum(numbers) < math.inf:
        raise UsageError(f"ratios: expected numbers >= 0, at least one of them > 0, got {numbers}")
    return [number / sum(numbers) for number in numbers]


@dataclass
class Stream:
    """A dataset of the mix, its loader, and an endless iterator over the loader."""

    dataset: Any
    opts: StreamOptions
    iterator: Iterator[Any]
    dataloader: torch.utils.data.DataLoader[Any]


class MultiStreamDataLoader:
    """Endless iterator over batches of several datasets; each `Batch` is from one stream.

    datasets          StreamingDatasets
    stream_opts       options of each dataset; datasets with ratio 0 are unused
    num_workers       total number of processes, or a list with the number for each stream
    shuffle_seed      random seed of the schedule; None is the same as 0
    schedule          see `ScheduleType`
    counts_precision  number of decimals of the ratios that determine the schedule
    reweight_workers  True divides a total number of processes among the streams by ratio; False
                      divides it evenly, and is required for a list
    persistent_workers  keep the processes alive between epochs
    common_dataloader_kwargs  additional arguments for torch's DataLoader, for all datasets
    raises            UsageError for contradictory options
    """

    def __init__(
        self,
        datasets: Sequence[Any],
        stream_opts: Sequence[StreamOptions],
        num_workers: int | Sequence[int] = 0,
        shuffle_seed: int | None = 42,
        schedule: str = "fixed_random_order",
        counts_precision: int = 6,
        reweight_workers: bool = True,
        persistent_workers: bool = True,
        **common_dataloader_kwargs: Any,
    ) -> None:
        if len(datasets) != len(stream_opts):
            raise UsageError(
                "expected as many stream_opts as datasets, "
                f"got {len(stream_opts)} and {len(datasets)}"
            )
        if schedule not in [member.value for member in ScheduleType]:
            names = ", ".join(member.value for member in ScheduleType)
            raise UsageError(f"schedule: expected one of {names}, got {schedule!r:.60}")
        used = [i for i, opts in enumerate(stream_opts) if opts.ratio > 0]
        if not used:
            raise UsageError("no stream has a ratio above 0")
        counts = (
            _workers_of(num_workers, [stream_opts[i].ratio for i in used], reweight_workers)
            if isinstance(num_workers, int)
            else _workers_listed(num_workers, len(stream_opts), used, reweight_workers)
        )
        self.schedule, self.shuffle_seed = ScheduleType(schedule), shuffle_seed
        self.streams: list[Stream] = []
        for i, workers in zip(used, counts, strict=True):
            opts = stream_opts[i]
            kwargs = {**common_dataloader_kwargs, **opts.dataloader_kwargs}
            kwargs |= {"batch_size": _batch_size(opts), "num_workers": workers}
            kwargs.setdefault("persistent_workers", persistent_workers and workers > 0)
            loader: Any = torch.utils.data.DataLoader(datasets[i], **kwargs)
            self.streams.append(Stream(datasets[i], opts, _endless(loader, opts.name), loader))
        self._groups: dict[int, list[int]] = {}
        for i, stream in enumerate(self.streams):
            self._groups.setdefault(stream.opts.mixing_group_id, []).append(i)
        self._ratios = {
            group: sum(self.streams[i].opts.ratio for i in members)
            for group, members in self._groups.items()
        }
        lengths = _counts(list(self._ratios.values()), counts_precision)
        self._counts = dict(zip(self._ratios, lengths, strict=True))
        self.meta_iteration_size = sum(lengths)
        if (
            self.schedule is not ScheduleType.RANDOM
            and self.meta_iteration_size > MAX_ROUND_BATCHES
        ):
            raise UsageError(
                f"these ratios need a schedule of {self.meta_iteration_size} batches; "
                f"the maximum is {MAX_ROUND_BATCHES}",
                hint="Lower counts_precision, or use schedule='random'.",
            )
        self._yielded = 0

    @staticmethod
    def split_across_consumers(ratios: Sequence[float], total: int) -> list[int]:
        """Divide a number of workers in proportion to ratios whose sum is 1.

        Each stream with a ratio above 0 receives at least one worker if there are enough workers.
        Raises UsageError if the sum of the ratios is too small.
        """
        portions = [math.ceil(total * ratio) for ratio in ratios]
        if sum(portions) < total:
            raise UsageError(f"the ratios {list(ratios)} do not add up to 1")
        while sum(portions) > total:
            portions[portions.index(max(portions))] -= 1
        return portions

    @property
    def main_stream(self) -> Stream:
        """The stream with `is_main`; if no stream has it, the first one with the largest ratio."""
        return max(self.streams, key=lambda stream: (stream.opts.is_main, stream.opts.ratio))

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the datasets and the position in the schedule."""
        states = [stream.dataset.state_dict() for stream in self.streams]
        return {"stream_states": states, "num_batches_yielded": self._yielded}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resume from a state that this class or sds's class saved.

        raises  UsageError if the state has a different number of streams
        """
        states = state_dict.get("stream_states")
        if not isinstance(states, Sequence) or len(states) != len(self.streams):
            raise UsageError(
                f"stream_states: expected the states of {len(self.streams)} streams, "
                f"got {len(states) if isinstance(states, Sequence) else None}"
            )
        for stream, state in zip(self.streams, states, strict=True):
            stream.dataset.load_state_dict(state)
            stream.iterator = _endless(stream.dataloader, stream.opts.name)
        self._yielded = int(state_dict.get("num_batches_yielded", 0))

    def __iter__(self) -> Iterator[Batch]:
        while True:
            group = ScheduleType.sample_iter_idx(
                self.schedule, self._yielded, self._counts, self._ratios, self.shuffle_seed
            )
            seed = self._yielded + _SEED_STEP * (self.shuffle_seed or 0) + _RANK_STEP * ranks()[0]
            members = self._groups[group]
            ratios = [self.streams[i].opts.ratio for i in members]
            stream = self.streams[_draw(seed, members, ratios)]
            for left in reversed(range(stream.opts.num_accum_rounds)):
                raw = next(stream.iterator)
                if left == 0:
                    self._yielded += 1  # before the yield, so that a saved state counts this batch
                yield Batch(raw, stream.opts.name, left, stream.dataset.data_type)


def _endless(loader: Iterable[Any], name: str) -> Iterator[Any]:
    """Iterate over epochs indefinitely. Raises FormatError for an epoch without a batch."""
    while True:
        is_empty = True
        for batch in loader:
            is_empty = False
            yield batch
        if is_empty:
            raise FormatError(
                "the epoch has no batches",
                where=f"stream {name!r:.60}",
                hint="Check batch_size and drop_last.",
            )


def _batch_size(opts: StreamOptions) -> int | None:
    """Return the number of samples in a batch of one rank; None if samples are not batched.

    raises  UsageError if the number is 0, if `num_accum_rounds` is below 1, or if
            `dataloader_kwargs` contains a `batch_size` that differs from the number
    """
    size = opts.batch_gpu
    if size is None and opts.batch_size is not None:
        _, size, _ = StreamOptions.infer_batch_info(opts.batch_size)
    where = f"stream {opts.name!r:.60}"
    if size == 0 or opts.num_accum_rounds < 1:
        raise UsageError(
            "expected a batch size of at least 1, got 0"
            if size == 0
            else f"num_accum_rounds: expected at least 1, got {opts.num_accum_rounds}",
            where=where,
            hint="Pass ratio=0 to skip the stream.",
        )
    size_of_loader = opts.dataloader_kwargs.get("batch_size", size)
    if size_of_loader != size:
        raise UsageError(
            f"dataloader_kwargs: expected batch_size {size}, got {size_of_loader}", where=where
        )
    return size


def _workers_of(total: int, ratios: Sequence[float], reweight: bool) -> list[int]:
    """Divide workers among streams, by ratio or evenly."""
    if total == 0:
        return [0] * len(ratios)
    if total < len(ratios):
        raise UsageError(f"num_workers: expected 0 or at least {len(ratios)}, got {total}")
    return MultiStreamDataLoader.split_across_consumers(
        _normalized(ratios if reweight else [1.0] * len(ratios)), total
    )


def _workers_listed(
    workers: Sequence[int], streams: int, used: Sequence[int], reweight: bool
) -> list[int]:
    """Return the number of workers for each used stream."""
    if reweight:
        raise UsageError("a list of num_workers requires reweight_workers=False")
    if len(workers) != streams or min(workers) < 0:
        raise UsageError(f"num_workers: expected {streams} numbers >= 0, got {list(workers)!r:.80}")
    return [workers[i] for i in used]


def _counts(ratios: Sequence[float], precision: int) -> list[int]:
    """Return each group's number of batches in one round of the schedule.

    The number is the ratio of the group, divided by the smallest ratio and rounded.
    """
    shares = np.round(np.array(ratios), precision)
    if not (shares > 0).all():
        raise UsageError(
            f"ratios {list(ratios)}: a ratio rounds to 0 with {precision} decimals",
            hint="Increase counts_precision.",
        )
    return [max(1, round(float(share))) for share in shares / shares.min()]
