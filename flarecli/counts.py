"""Integers in a row, one for each shard or row: looked up and added without numpy, which takes longer to load than most of them to use."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable
from typing import Any

from flarecli.arrow import np

__all__ = ["Counts", "first_fall", "words"]

_FEW = 1 << 14  # that a loop in Python looks through in less time than numpy takes to be loaded


_INT64 = "l" if array("l").itemsize == 8 else "q"  # as numpy calls it


class Counts(array):  # type: ignore[type-arg]
    """An int64 array of numpy's, [n], which is one as soon as more is wanted of it than its integers, their sum or the least of them."""

    def __new__(cls, values: Iterable[int] = ()) -> Counts:
        return super().__new__(cls, _INT64, values)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__array__(), name)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        return np.array(np.frombuffer(self, np.int64), dtype, copy=copy)

    def __getitem__(self, at: Any) -> Any:
        return super().__getitem__(at) if isinstance(at, int) else self.__array__()[at]

    def __reduce_ex__(self, protocol: Any) -> Any:
        # Below protocol 3 an array passes its type code too, which __new__ does not take.
        return super().__reduce_ex__(protocol) if protocol > 2 else (Counts, (self.tolist(),))

    def __deepcopy__(self, memo: Any = None) -> Counts:
        return Counts(self)

    __copy__ = __deepcopy__

    def sum(self) -> Any:
        """Add them up."""
        return sum(self)

    def min(self) -> Any:
        """Give the least. Raises ValueError where there is none."""
        return min(self)


def _as_numpy(name: str) -> Any:
    def made(self: Counts, *args: Any) -> Any:
        return getattr(self.__array__(), name)(*args)

    return made


for _name in ("add", "radd", "sub", "rsub", "mul", "rmul", "lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Counts, f"__{_name}__", _as_numpy(f"__{_name}__"))


def words(data: Any, start: int, count: int) -> memoryview:
    """Give `count` little-endian uint32 of some bytes as integers, over these bytes, as numpy takes them too: uint32 [count]."""
    part = memoryview(data)[start : start + 4 * count]
    if sys.byteorder == "little":
        return part.cast("B").cast("I")
    turned = array("I", bytes(part))
    turned.byteswap()
    return memoryview(turned)


def first_fall(values: memoryview) -> int | None:
    """Give the first position behind which a lower integer stands than at it; None if they never fall."""
    if len(values) <= _FEW and "numpy" not in sys.modules:
        rising = values.tolist()
        return (
            None
            if rising == sorted(rising)
            else next(i for i in range(len(rising) - 1) if rising[i] > rising[i + 1])
        )
    table = np.asarray(values)
    falls = table[1:] < table[:-1]
    return int(np.argmax(falls)) if falls.any() else None
