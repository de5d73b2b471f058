"""Convert batches to tensors, and send them efficiently from a DataLoader's workers.

Columns of bytes go through a ring buffer in shared memory: a pipe carries 64 KB at a time, and each
write wakes a process. The memory is anonymous (memfd), so it is freed when both processes have
ended, even if they are killed.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from multiprocessing.reduction import DupFd, ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils import data as torch_data

from flarecli.errors import UsageError
from flarecli.read import keep_freed

__all__ = ["tensors"]

_MAX_INLINE_BYTES = 1 << 18  # larger tensors are sent through torch's shared memory
_NUMPY_DTYPES = {
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
}
_HEADER_BYTES = mmap.PAGESIZE  # before the ring: uint64, the number of bytes read so far
_MIN_BYTES = 1 << 16  # less goes through the pipe
_MAX_RING_BYTES = 1 << 24  # of each worker, until it ends
_RING_BATCHES = 4  # batches that fit into a ring
_MAX_PIECES = 1024  # of one pwritev call (IOV_MAX)


def tensors(batch: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch with its numpy arrays as tensors, which share their memory.

    Use it as the `collate_fn` of a DataLoader: torch's default visits every item of every list.
    """
    if isinstance(batch, _Sent):
        return batch
    if not isinstance(batch, Mapping):
        raise UsageError(
            f"expected a dict of columns, got {type(batch).__name__}",
            hint="Use it in a DataLoader of an IterableDataset, with batch_size=None.",
        )
    converted = {
        name: _tensor(value) if isinstance(value, np.ndarray) else value
        for name, value in batch.items()
    }
    return converted if torch_data.get_worker_info() is None else _Sent(converted)


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


def _reduced(batch: _Sent) -> tuple[Any, ...]:
    small = {
        name: value.resolve_conj().resolve_neg().numpy()
        for name, value in batch.items()
        if _is_small(value)
    }
    place = write_ring({name: value for name, value in batch.items() if _is_bytes(value)})
    in_ring = () if place is None else place.sizes
    pickled = {name: value for name, value in batch.items() if name not in in_ring}
    return _received, (list(batch), pickled | small, list(small), place)


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
        value.nbytes <= _MAX_INLINE_BYTES
        and not value.requires_grad
        and value.dtype in _NUMPY_DTYPES
    )


def _received(
    names: Sequence[str], batch: dict[str, Any], small: Sequence[str], place: RingPlace | None
) -> dict[str, Any]:
    batch |= {name: torch.from_numpy(batch[name]) for name in small}
    batch |= read_ring(place) if place else {}
    return {name: batch[name] for name in names}


ForkingPickler.register(_Sent, _reduced)  # only between processes; `pickle` writes a plain dict


# -- the ring


class RingPlace(NamedTuple):
    """The position of columns of bytes in a ring.

    ring    id of the ring
    size    bytes of the ring
    handle  file descriptor of the ring, when it is sent for the first time
    start   first byte, counted from the creation of the ring
    sizes   column -> bytes of each value
    """

    ring: bytes
    size: int
    handle: Any
    start: int
    sizes: dict[str, list[int]]


class _Ring:
    """The ring that this process writes; `end` counts all bytes written so far."""

    def __init__(self, size: int) -> None:
        self.fd = os.memfd_create("flare", os.MFD_CLOEXEC)
        self.process, self.size, self.end = os.getpid(), size, 0
        self.is_sent = False  # whether the parent has its file descriptor
        self.name = self.process.to_bytes(8, "little") + os.urandom(8)
        os.ftruncate(self.fd, _HEADER_BYTES + size)

    def __del__(self) -> None:
        with contextlib.suppress(AttributeError):  # memfd_create failed
            os.close(self.fd)

    def write(self, pieces: Sequence[bytes], total: int) -> int | None:
        """Write pieces one after another and return their start, or None if the ring is full."""
        start = self.end
        if start % self.size + total > self.size:  # start again at the beginning of the ring
            start = -(-start // self.size) * self.size
        free = int.from_bytes(os.pread(self.fd, 8, 0), "little")  # all bytes before it were read
        if free != self.end and start + total - free > self.size:
            return None
        at = first = _HEADER_BYTES + start % self.size
        for k in range(0, len(pieces), _MAX_PIECES):
            at += os.pwritev(self.fd, pieces[k : k + _MAX_PIECES], at)
        if at - first != total:  # out of memory
            return None
        self.end = start + total
        return start


_own: _Ring | None = None
_maps: dict[bytes, mmap.mmap] = {}


def write_ring(columns: Mapping[str, Sequence[bytes]]) -> RingPlace | None:
    """Write columns into the ring; return None if they must go through the pipe.

    Every result must reach one `read_ring` call, in order.
    """
    global _own
    sizes = {name: list(map(len, pieces)) for name, pieces in columns.items()}
    total = sum(map(sum, sizes.values()))
    if not _MIN_BYTES <= total <= _MAX_RING_BYTES or not hasattr(os, "memfd_create"):
        return None
    try:
        if (
            _own is None
            or _own.process != os.getpid()
            or (2 * total > _own.size and _own.size < _MAX_RING_BYTES)
        ):
            _own = _Ring(min(_MAX_RING_BYTES, _RING_BATCHES * total))
        start = _own.write(list(chain.from_iterable(columns.values())), total)
    except OSError:
        return None
    if start is None:
        return None
    handle, _own.is_sent = None if _own.is_sent else DupFd(_own.fd), True
    return RingPlace(_own.name, _own.size, handle, start, sizes)


def read_ring(place: RingPlace) -> dict[str, list[bytes]]:
    """Read columns out of the ring, and free their space."""
    map_ = _maps.get(place.ring) or _mapped(place)
    out = dict[str, list[bytes]]()
    at = first = _HEADER_BYTES + place.start % place.size
    for name, sizes in place.sizes.items():
        out[name] = pieces = []
        for size in sizes:
            pieces.append(map_[at : at + size])
            at += size
    map_[:8] = (place.start + at - first).to_bytes(8, "little")
    return out


def _mapped(place: RingPlace) -> mmap.mmap:
    keep_freed()
    for name in list(_maps):  # unmap the smaller ring of the worker, and rings of ended workers
        process = int.from_bytes(name[:8], "little")
        if name[:8] == place.ring[:8] or not os.path.exists(f"/proc/{process}"):
            del _maps[name]
    fd = place.handle.detach()
    try:
        map_ = _maps[place.ring] = mmap.mmap(fd, _HEADER_BYTES + place.size)
    finally:
        os.close(fd)
    return map_
