"""Conversion of batches to tensors, and efficient transfer of batches from DataLoader workers.

Workers send columns of bytes through a ring buffer in shared memory, because a pipe transfers only
64 KB at a time. The shared memory is anonymous (memfd). The system therefore frees it when the
worker and the receiving process have ended, even if they were killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Mapping, Sequence
from itertools import chain
from multiprocessing import reduction
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data

from flarecli.errors import UsageError
from flarecli.storage import keep_freed
from flarecli.storage.descriptors import memory_file, pread

__all__ = ["tensors"]

_MAX_PICKLED_BYTES = 1 << 18  # limit per tensor; larger tensors are sent through shared memory
_HEADER_BYTES = mmap.PAGESIZE  # the header contains the number of bytes read so far (uint64)
_MIN_RING_BYTES = 1 << 16  # smaller batches are sent through the pipe
_MAX_RING_BYTES = 1 << 24  # maximum size of a worker's ring
_RING_BATCHES = 4  # size of a new ring, in multiples of the current batch
_MAX_BUFFERS = 1024  # maximum buffers per pwritev call (IOV_MAX)


def tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Convert the numpy arrays of a batch to tensors. A tensor shares the memory of its array.

    Pass this function as `collate_fn` to a DataLoader with `batch_size=None`. The default function
    of torch is slower, because it processes each item of each list.

    raises  UsageError if the batch is not a dict
    """
    if isinstance(batch, _Sent):
        return batch
    if not isinstance(batch, Mapping):
        raise UsageError(
            f"expected a dict of columns, got {type(batch).__name__}",
            hint="Use `tensors` as collate_fn of a DataLoader with batch_size=None.",
        )
    converted = {
        name: _tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }
    return converted if torch_data.get_worker_info() is None else _Sent(converted)


def _tensor(array: Any) -> Any:
    """Return an array as a tensor, or unchanged if torch does not support the dtype."""
    try:
        return torch.from_numpy(array)
    except (TypeError, ValueError):
        return array


# -- batches that a worker sends


class _Sent(dict[str, Any]):
    """A batch that a worker sends. The receiving process gets a plain dict.

    Small tensors are pickled as arrays, because torch would create a shared-memory file for each
    tensor. Lists of bytes are sent through the ring.
    """

    def __copy__(self) -> _Sent:
        return _Sent(self)


def _reduce(batch: _Sent) -> tuple[Any, ...]:
    """Return `_restore` and its arguments; see `object.__reduce__`."""
    arrays = {name: _small_array(value) for name, value in batch.items()}
    small = {name: array for name, array in arrays.items() if array is not None}
    position = write_ring({name: value for name, value in batch.items() if _is_bytes(value)})
    in_ring = () if position is None else position.sizes
    pickled = {name: value for name, value in batch.items() if name not in in_ring}
    return _restore, (list(batch), pickled | small, list(small), position)


def _is_bytes(value: Any) -> bool:
    return type(value) is list and bool(value) and all(type(item) is bytes for item in value)


def _small_array(value: Any) -> Any:
    """Return a small tensor as an array; None if the tensor is large or numpy cannot represent it.

    The result is also None for values that are not tensors.
    """
    if type(value) is not torch.Tensor:
        return None
    try:
        is_small = value.nbytes <= _MAX_PICKLED_BYTES
        return value.resolve_conj().resolve_neg().numpy() if is_small else None
    except (TypeError, RuntimeError):  # numpy does not support the dtype, the layout or the device
        return None


def _restore(
    names: Sequence[str], batch: dict[str, Any], small: Sequence[str], position: RingPosition | None
) -> dict[str, Any]:
    batch |= {name: torch.from_numpy(batch[name]) for name in small}
    batch |= read_ring(position) if position else {}
    return {name: batch[name] for name in names}


ForkingPickler.register(_Sent, _reduce)  # only ForkingPickler calls `_reduce`


# -- the ring


class RingPosition(NamedTuple):
    """The position of byte columns in a ring.

    ring    id of the ring
    size    bytes of the ring
    handle  file descriptor of the ring; None if it was sent with an earlier batch
    start   number of bytes written to the ring before these columns, including skipped bytes
    sizes   column -> size of each value in bytes
    """

    ring: bytes
    size: int
    handle: Any
    start: int
    sizes: dict[str, list[int]]


class _Ring:
    """The ring to which this process writes.

    end  number of bytes written so far, including skipped bytes at the end of the ring
    """

    def __init__(self, size: int) -> None:
        self.fd = memory_file("flare")
        self.process, self.size, self.end = os.getpid(), size, 0
        self.is_sent = False  # True after the file descriptor was sent
        self.name = self.process.to_bytes(8, "little") + os.urandom(8)
        os.ftruncate(self.fd, _HEADER_BYTES + size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # `memory_file` failed
            os.close(self.fd)

    def write(self, values: Sequence[bytes], total: int) -> int | None:
        """Write values contiguously and return the start of the first value.

        Return None if the ring is full, if the system is out of memory, or on Windows.
        """
        if sys.platform == "win32":  # Windows has no memory files
            return None
        start = self.end
        if start % self.size + total > self.size:  # skip the rest of the ring
            start = -(-start // self.size) * self.size
        read = int.from_bytes(pread(self.fd, 8, 0), "little")  # number of bytes read so far
        if read != self.end and start + total - read > self.size:
            return None
        at = first = _HEADER_BYTES + start % self.size
        for k in range(0, len(values), _MAX_BUFFERS):
            at += os.pwritev(self.fd, values[k : k + _MAX_BUFFERS], at)
        if at - first != total:
            # `pwritev` wrote fewer bytes than requested, because the system is out of memory.
            return None
        self.end = start + total
        return start


_own_ring: _Ring | None = None
_maps: dict[bytes, mmap.mmap] = {}  # the rings that this process reads, by id


def write_ring(columns: Mapping[str, Sequence[bytes]]) -> RingPosition | None:
    """Write columns into the ring and return their position; None if the pipe must be used instead.

    The receiving process must pass each position to `read_ring` once, in the order of the writes.
    """
    global _own_ring
    sizes = {name: list(map(len, values)) for name, values in columns.items()}
    total = sum(map(sum, sizes.values()))
    if sys.platform == "win32" or not _MIN_RING_BYTES <= total <= _MAX_RING_BYTES:
        return None
    try:
        if (
            _own_ring is None
            or _own_ring.process != os.getpid()
            or (2 * total > _own_ring.size and _own_ring.size < _MAX_RING_BYTES)
        ):
            _own_ring = _Ring(min(_MAX_RING_BYTES, _RING_BATCHES * total))
        start = _own_ring.write(list(chain.from_iterable(columns.values())), total)
    except OSError:
        return None
    if start is None:
        return None
    handle, _own_ring.is_sent = None if _own_ring.is_sent else reduction.DupFd(_own_ring.fd), True
    return RingPosition(_own_ring.name, _own_ring.size, handle, start, sizes)


def read_ring(position: RingPosition) -> dict[str, list[bytes]]:
    """Return the columns at a position in a ring, and free their space in the ring."""
    map_ = _maps.get(position.ring) or _map_ring(position)
    out = dict[str, list[bytes]]()
    at = first = _HEADER_BYTES + position.start % position.size
    for name, sizes in position.sizes.items():
        out[name] = values = []
        for size in sizes:
            values.append(map_[at : at + size])
            at += size
    map_[:8] = (position.start + at - first).to_bytes(8, "little")
    return out


def _map_ring(position: RingPosition) -> mmap.mmap:
    keep_freed()
    for name in list(_maps):  # unmap older rings of the same worker, and rings of ended workers
        process = int.from_bytes(name[:8], "little")
        if name[:8] == position.ring[:8] or not os.path.exists(f"/proc/{process}"):
            del _maps[name]
    fd = position.handle.detach()
    try:
        map_ = _maps[position.ring] = mmap.mmap(fd, _HEADER_BYTES + position.size)
    finally:
        os.close(fd)
    return map_
