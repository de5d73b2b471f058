"""Batches as tensors, and how a DataLoader's worker sends them to the process that takes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch.utils import data as torch_data

from flarecli.errors import UsageError
from flarecli.read import Passed, passed, taken

__all__ = ["tensors"]

_SMALL = 1 << 18  # bytes of a tensor
_OF_NUMPY = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
}
_OF_NUMPY |= {torch.complex64, torch.complex128}


def tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Give a batch with tensors in place of numpy arrays, over the same memory; one that has none but tensors as it is.

    As a DataLoader's `collate_fn` it spares what torch does by default: looking at each item of each list.
    """
    if isinstance(batch, _Sent):
        return batch
    try:
        made = _with_tensors(batch)
    except AttributeError:
        hint = "Give it to a DataLoader of an IterableDataset, with batch_size=None."
        raise UsageError(
            f"{type(batch).__name__} is no batch, a dict of columns is wanted", hint=hint
        ) from None
    return made if torch_data.get_worker_info() is None else _Sent(made)


def _with_tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def _tensor(array: Any) -> Any:
    """Give an array as a tensor; one of texts, dates and whatever else torch has no type for as it is."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return array


# -- what was made


class _Sent(dict[str, Any]):
    """A batch made by a worker; it arrives as a dict of the same values.

    Torch gives a file of shared memory to each tensor that crosses, which takes longer than copying a small one: those go with the rest.
    Lists of many bytes go through memory that both processes map.
    """

    def __copy__(self) -> _Sent:
        return _Sent(self)


def _sent(batch: _Sent) -> tuple[Any, ...]:
    small = {
        name: value.resolve_conj().resolve_neg().numpy()
        for name, value in batch.items()
        if _is_small(value)
    }
    pieces = {name: value for name, value in batch.items() if _is_bytes(value)}
    place = passed(pieces)
    left = {name: value for name, value in batch.items() if place is None or name not in pieces}
    return _arrived, (list(batch), left | small, list(small), place)


def _is_bytes(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(one) is bytes for one in value)


def _is_small(value: Any) -> bool:
    """Whether this is a small tensor that numpy has a type for."""
    if (
        type(value) is not torch.Tensor
        or value.layout is not torch.strided
        or value.device.type != "cpu"
    ):
        return False
    return bool(value.nbytes <= _SMALL and not value.requires_grad and value.dtype in _OF_NUMPY)


def _arrived(
    names: Sequence[str], batch: dict[str, Any], small: Sequence[str], place: Passed | None
) -> dict[str, Any]:
    made = (
        batch
        | {name: torch.from_numpy(batch[name]) for name in small}
        | (taken(place) if place else {})
    )
    return {name: made[name] for name in names}


ForkingPickler.register(_Sent, _sent)  # between processes alone; to a file it goes as any dict
