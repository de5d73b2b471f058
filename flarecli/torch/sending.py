"""Batches as tensors, and how they get from a DataLoader's worker to the process that takes them.

What a worker made is sent: small tensors with the rest, lists of many bytes through memory that both map. Rows that lie in memory in a mapped
file, and are nothing but copied, are only named: who takes the batch copies them from a map of its own, which is one copy in place of three.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any, TypeAlias

import numpy as np
import torch
from torch._utils import ExceptionWrapper
from torch.utils import data as torch_data

from flarecli.errors import UsageError
from flarecli.model import IntArray
from flarecli.read import Passed, Rows, expected, passed, taken

__all__ = ["Name", "Named", "called", "is_from_elsewhere", "tensors"]

Name: TypeAlias = "tuple[int, int]"  # of what batches are read from: the process in which it was made, and a number there

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
_sources: weakref.WeakValueDictionary[Name, Any] = weakref.WeakValueDictionary()
_numbers = itertools.count()


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


# -- what is only named


class Named(_Sent):
    """Rows that whoever takes the batch reads; if somebody looks into it before, they are read here and sent as any batch."""

    def __init__(self, name: Name, data: Rows, rows: IntArray) -> None:
        super().__init__()
        self._name, self._data, self._rows = name, data, rows
        self.is_read = False

    def read(self) -> None:
        """Read the rows here, unless they were."""
        if not self.is_read:
            self.is_read = True
            dict.update(self, _with_tensors(self._data.collated(self._rows)))

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self.items()),)


def _looking(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    def look(self: Named, *arguments: Any, **named: Any) -> Any:
        self.read()
        return method(self, *arguments, **named)

    look.__name__ = name
    return look


for _method in (
    *(
        "__contains__",
        "__delitem__",
        "__eq__",
        "__getitem__",
        "__ior__",
        "__iter__",
        "__len__",
        "__ne__",
        "__or__",
        "__repr__",
        "__reversed__",
    ),
    *(
        "__ror__",
        "__setitem__",
        "clear",
        "copy",
        "get",
        "items",
        "keys",
        "pop",
        "popitem",
        "setdefault",
        "update",
        "values",
    ),
):
    setattr(Named, _method, _looking(_method))


def _named(batch: Named) -> tuple[Any, ...]:
    return _sent(batch) if batch.is_read else (_read, (batch._name, batch._rows.tobytes()))


def _read(name: Name, rows: bytes) -> Any:
    """Read a batch that was named; what goes wrong is given as torch gives what goes wrong in a worker."""
    try:
        source = _sources.get(name)
        if source is None:
            raise UsageError(
                "the dataset of this batch is gone", hint="Keep it for as long as its DataLoader."
            )
        if not source.is_expected:
            source.is_expected = True
            expected(source.data, source.ranks)
        return _with_tensors(source.data.collated(np.frombuffer(rows, np.int64)))
    except Exception:
        return ExceptionWrapper(where="in reading what a DataLoader worker named")


def called(source: Any, name: Name | None = None) -> Name:
    """Name what batches are read from, its `data`; one that comes from another process keeps its name, if nothing here has that."""
    if name is None or name in _sources:
        name = os.getpid(), next(_numbers)
    _sources[name] = source
    return name


def is_from_elsewhere(name: Name) -> bool:
    """Whether the process in which this was named is another one, such as that which takes what a worker gives."""
    return name[0] != os.getpid()


ForkingPickler.register(_Sent, _sent)  # between processes alone; to a file it goes as any dict
ForkingPickler.register(Named, _named)
