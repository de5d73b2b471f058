"""Convert batches to tensors, and pickle them efficiently between a DataLoader's processes."""

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

_MAX_INLINE_BYTES = 1 << 18  # larger tensors are sent through torch's shared memory
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
    """Return a batch with its numpy arrays as tensors, which share their memory.

    Use it as the `collate_fn` of a DataLoader: torch's default visits every item of every list.
    """
    if isinstance(batch, _Sent):
        return batch
    try:
        made = _with_tensors(batch)
    except AttributeError:
        hint = "Use it in a DataLoader of an IterableDataset, with batch_size=None."
        raise UsageError(
            f"expected a dict of columns, got {type(batch).__name__}", hint=hint
        ) from None
    return made if torch_data.get_worker_info() is None else _Sent(made)


def _with_tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: _tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }


def _tensor(array: Any) -> Any:
    """Return an array as a tensor; arrays of types that torch does not have stay arrays."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return array


# -- batches of a worker


class _Sent(dict[str, Any]):
    """A batch of a worker, which is unpickled as a plain dict.

    Torch creates a shared-memory file for each tensor, which is slower than copying a small one:
    small tensors are pickled. Lists of bytes go through the shared ring.
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
    """Return whether this is a small CPU tensor of a dtype that numpy has."""
    if (
        type(value) is not torch.Tensor
        or value.layout is not torch.strided
        or value.device.type != "cpu"
    ):
        return False
    return bool(
        value.nbytes <= _MAX_INLINE_BYTES and not value.requires_grad and value.dtype in _OF_NUMPY
    )


def _arrived(
    names: Sequence[str], batch: dict[str, Any], small: Sequence[str], place: Passed | None
) -> dict[str, Any]:
    made = (
        batch
        | {name: torch.from_numpy(batch[name]) for name in small}
        | (taken(place) if place else {})
    )
    return {name: made[name] for name in names}


ForkingPickler.register(_Sent, _sent)  # only between processes; `pickle` writes a plain dict
