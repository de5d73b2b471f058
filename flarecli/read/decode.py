"""Stored bytes to values, a column of many rows at a time: numbers by numpy, everything else one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flarecli import encodings
from flarecli.arguments import shown
from flarecli.encodings import BINARY, Encoding
from flarecli.errors import FlareError, UsageError, ValueFitError

__all__ = ["Decoder", "How", "NotDecoded", "collated", "stacked"]

How: TypeAlias = "Callable[[bytes], Any] | bool"  # of a column: a function from its stored bytes, True as its encoding says, False not at all


class NotDecoded(Exception):
    """The value at a position cannot be decoded."""

    def __init__(self, at: int, error: FlareError) -> None:
        super().__init__(str(error))
        self.at, self.error = at, error

    def named(self, column: str, row: int) -> FlareError:
        """Say it of a column of a row."""
        return self.error.changed(address="", row=row).of_column(column)


@dataclass(frozen=True, slots=True)
class Decoder:
    """What makes values of one column's stored bytes. Picklable if `how` is."""

    encoding: Encoding
    allow_pickle: bool = False
    how: How = True

    @property
    def dtype(self) -> str | None:
        """The numpy dtype of a batch of its values, where they are numbers; else None."""
        kind = self.encoding
        return (
            None
            if self.how is not True or kind.size is None or kind.arrow.equals(BINARY)
            else np.dtype(kind.arrow.to_pandas_dtype()).name
        )

    @property
    def copies(self) -> bool:
        """Whether its values are little but copies of what is stored: bytes, text, numbers, arrays of one shape."""
        kind = self.encoding
        return self.how is False or (
            self.how is True and (kind.name in ("bytes", "str") or self._is_stacked)
        )

    @property
    def _is_stacked(self) -> bool:
        return self.encoding.size is not None and bool(
            self.encoding.shape or not self.encoding.arrow.equals(BINARY)
        )

    def values(self, data: Sequence[Any]) -> list[Any]:
        """Give the Python value of each; None stays None. Raises NotDecoded."""
        data = data.tolist() if isinstance(data, np.ndarray) else data
        if self.how is False:
            return list(data)
        if self.how is True:
            array = self.array(data) if len(data) > 1 and not self.encoding.shape else None
            if array is not None:
                values: list[Any] = array.tolist()
                return values
            if self.encoding.name == "bytes":
                return list(data)
            if self.encoding.name == "str":
                try:
                    return [one.decode() for one in data]
                except (UnicodeDecodeError, AttributeError):  # one by one, which says which it is
                    pass
        return [self._value(one, at) for at, one in enumerate(data)]

    def value(self, data: Any) -> Any:
        """Give one Python value; None stays None. Raises what decoding it raises."""
        if data is None or self.how is False:
            return data
        return (
            encodings.decode(self.encoding, data, self.allow_pickle)
            if self.how is True
            else self.how(data)
        )

    def compiled(self) -> Callable[[Any], Any] | None:
        """Return a function that decodes a valid value; None if values are the stored bytes."""
        if self.how is False:
            return None
        if self.how is True:
            return encodings.decoder(self.encoding, self.allow_pickle)
        return self.how

    def _value(self, data: Any, at: int) -> Any:
        try:
            return self.value(data)
        except FlareError as error:
            raise NotDecoded(at, error) from error.__cause__
        except Exception as error:
            raise NotDecoded(at, ValueFitError(f"{type(error).__name__}: {error}")) from error

    def array(self, data: Sequence[Any]) -> Any:
        """Give numbers, or arrays of the one shape that the encoding names, as one array [rows, …] that owns its bytes; None of anything else.

        data  bytes of each, or voids in one array, over whose memory the values then lie
        """
        kind, size = self.encoding, self.encoding.size
        if self.how is not True or size is None or not self._is_stacked:
            return None
        if isinstance(data, np.ndarray):
            if data.itemsize != size:
                return None
            return data.view(kind.dtype or kind.arrow.to_pandas_dtype()).reshape(
                len(data), *kind.shape
            )
        try:
            joined = bytearray().join(data)
        except TypeError:  # a null
            return None
        if len(joined) != size * len(data) or set(map(len, data)) - {size}:
            return None  # one by one, which says which it is
        return np.frombuffer(joined, kind.dtype or kind.arrow.to_pandas_dtype()).reshape(
            len(data), *kind.shape
        )


def collated(
    samples: Sequence[Mapping[str, Any]], dtypes: Mapping[str, str | None]
) -> dict[str, Any]:
    """Collate samples by column. Raises UsageError if they are no dicts of the same columns."""
    if not isinstance(samples, Sequence):
        raise UsageError(f"{shown(samples)} is no list of samples")
    if not samples:
        return {}
    if not all(isinstance(one, Mapping) for one in samples):
        raise UsageError(
            "a sample is no dict, so it makes no batch",
            hint="Give collate=, which makes a batch of a list of samples.",
        )
    first = samples[0].keys()
    if any(one.keys() != first for one in samples):
        other = next(one.keys() ^ first for one in samples if one.keys() != first)
        raise UsageError(
            f"column {min(other, key=str)!r} is in one sample and not in another",
            hint="Give collate=, or the same columns in each.",
            column=min(other, key=str),
        )
    return {name: stacked([one[name] for one in samples], dtypes.get(name)) for name in first}


def stacked(values: list[Any], dtype: str | None = None) -> Any:
    """Collate one column: numbers as an array, arrays of one shape and dtype as one with an axis more; else the list itself.

    dtype  what Python's numbers become, if they fit; int64 and float64 else
    """
    first = values[0] if values else None
    if isinstance(first, np.ndarray):
        if all(
            isinstance(one, np.ndarray) and one.shape == first.shape and one.dtype == first.dtype
            for one in values
        ):
            return np.stack(values)
        return values
    for kind, letters, widest in (
        (bool, "b", "bool"),
        (int, "iu", "int64"),
        (float, "f", "float64"),
    ):
        if type(first) is kind and all(type(one) is kind for one in values):
            return _fitted(
                values, [dtype, widest] if dtype and np.dtype(dtype).kind in letters else [widest]
            )
    if isinstance(first, np.generic) and all(type(one) is type(first) for one in values):
        return np.array(values)
    return values


def _fitted(values: list[Any], dtypes: Sequence[str]) -> Any:
    """Give numbers as an array of the first dtype that can hold them; as they are, if none can."""
    for dtype in dtypes:
        try:
            with np.errstate(over="raise"):
                return np.array(values, dtype)
        except (OverflowError, FloatingPointError):
            pass
    return values
