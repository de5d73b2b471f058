"""Decode the stored bytes of a column: numbers with numpy, other values one at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from flarecli import encodings
from flarecli.arguments import shown
from flarecli.encodings import BINARY, Encoding
from flarecli.errors import FlareError, UsageError, ValueFitError

__all__ = ["Decoder", "How", "NotDecoded", "collated", "stacked"]

# How to decode a column: a function of the stored bytes, True: by its encoding, False: not at all
How: TypeAlias = "Callable[[bytes], Any] | bool"


class NotDecoded(Exception):
    """The value at position `at` cannot be decoded."""

    def __init__(self, at: int, error: FlareError) -> None:
        super().__init__(str(error))
        self.at, self.error = at, error

    def named(self, column: str, row: int) -> FlareError:
        """Return the error with its column and row."""
        return self.error.changed(address="", row=row).of_column(column)


@dataclass(frozen=True, slots=True)
class Decoder:
    """Decode one column. Picklable if `how` is."""

    encoding: Encoding
    allow_pickle: bool = False
    how: How = True

    @property
    def dtype(self) -> str | None:
        """The numpy dtype of a batch of its values if they are numbers, else None."""
        kind = self.encoding
        if self.how is not True or kind.size is None or kind.arrow.equals(BINARY):
            return None
        return str(np.dtype(kind.arrow.to_pandas_dtype()))

    @property
    def copies(self) -> bool:
        """Whether decoding only copies bytes: bytes, text, numbers, arrays of one shape."""
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
        """Return the Python value of each; None stays None. Raises NotDecoded."""
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
                # in case of an error, decoding one value at a time reports the position
                with contextlib.suppress(UnicodeDecodeError, AttributeError):
                    return [one.decode() for one in data]
        return [self._value(one, at) for at, one in enumerate(data)]

    def value(self, data: Any) -> Any:
        """Return one Python value; None stays None. Raises the errors of its decoder."""
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
        """Return numbers, or arrays of one shape, as one array [rows, …]; None for other values.

        data  bytes of each value: the array owns a copy; or an array of voids: the array is a view
        """
        kind, size = self.encoding, self.encoding.size
        if self.how is not True or size is None or not self._is_stacked:
            return None
        dtype = kind.dtype or kind.arrow.to_pandas_dtype()
        if isinstance(data, np.ndarray):
            array = data.view(dtype) if data.itemsize == size else None
        else:
            try:
                joined = bytearray().join(data)
            except TypeError:  # a null
                return None
            is_valid = len(joined) == size * len(data) and not set(map(len, data)) - {size}
            array = np.frombuffer(joined, dtype) if is_valid else None
        # for invalid sizes, decoding one value at a time reports the position
        return None if array is None else array.reshape(len(data), *kind.shape)


def collated(
    samples: Sequence[Mapping[str, Any]], dtypes: Mapping[str, str | None]
) -> dict[str, Any]:
    """Collate samples by column. Raises UsageError unless all are dicts of the same columns."""
    if not isinstance(samples, Sequence):
        raise UsageError(f"expected a list of samples, got {shown(samples)}")
    if not samples:
        return {}
    if not all(isinstance(one, Mapping) for one in samples):
        raise UsageError(
            "cannot collate a sample that is not a dict",
            hint="Pass collate=, a function that makes a batch of a list of samples.",
        )
    first = samples[0].keys()
    if any(one.keys() != first for one in samples):
        other = next(one.keys() ^ first for one in samples if one.keys() != first)
        raise UsageError(
            f"column {min(other, key=str)!r} is missing in some samples",
            hint="Pass collate=, or return the same columns in every sample.",
            column=min(other, key=str),
        )
    return {name: stacked([one[name] for one in samples], dtypes.get(name)) for name in first}


def stacked(values: list[Any], dtype: str | None = None) -> Any:
    """Collate one column.

    Numbers become an array; arrays of one shape and dtype are stacked; other values stay a list.

    dtype  of Python numbers, if all fit; otherwise int64 or float64
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
    """Return numbers as an array of the first dtype that can hold them, else the list."""
    for dtype in dtypes:
        try:
            with np.errstate(over="raise"):
                return np.array(values, dtype)
        except (OverflowError, FloatingPointError):
            pass
    return values
