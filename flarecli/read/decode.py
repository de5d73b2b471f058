"""Decoding and collation of column values: numbers with numpy, other values one by one."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from flarecli import encodings
from flarecli.arguments import shown
from flarecli.encodings import BINARY, Encoding
from flarecli.errors import FlareError, UsageError, ValueFitError

__all__ = [
    "DecodeFailure",
    "DecodeRule",
    "Decoder",
    "arrow_dtype",
    "collate_samples",
    "has_arrow_values",
    "number_array",
    "stack_values",
]

# True (use the encoding's decoder), False (return stored bytes) or a function that decodes bytes
DecodeRule: TypeAlias = "Callable[[bytes], Any] | bool"


class DecodeFailure(Exception):
    """The error for an invalid value in a list of values; `index` is the value's position."""

    def __init__(self, index: int, error: FlareError) -> None:
        super().__init__(str(error))
        self.index, self.error = index, error

    def located(self, column: str, row: int) -> FlareError:
        """Return an error that also names a column and a row."""
        return self.error.changed(address="", row=row).of_column(column)


@dataclass(frozen=True, slots=True)
class Decoder:
    """A decoder for one column. It can be pickled if `rule` can be pickled.

    kind  Arrow type to which decoded values are converted, such as a timestamp type if the encoding
          is text; None if no conversion is needed
    """

    encoding: Encoding
    allow_pickle: bool = False
    rule: DecodeRule = True
    kind: Any = None

    @property
    def dtype(self) -> str | None:
        """Return the numpy dtype of a batch of decoded numbers; None for other values."""
        encoding = self.encoding
        if self.rule is not True or encoding.size is None or encoding.arrow.equals(BINARY):
            return None
        return "bool" if self.kind is not None else str(np.dtype(encoding.arrow.to_pandas_dtype()))

    @property
    def copies(self) -> bool:
        """Return whether decoding only copies bytes.

        This is the case for bytes, text, numbers, and arrays of fixed shape.
        """
        if self.rule is True:
            is_plain = self.encoding.name in ("bytes", "str") and self.kind is None
            return is_plain or self._has_fixed_shape
        return self.rule is False

    @property
    def _has_fixed_shape(self) -> bool:
        return self.encoding.size is not None and bool(
            self.encoding.shape or not self.encoding.arrow.equals(BINARY)
        )

    def values(self, data: Sequence[Any]) -> list[Any]:
        """Decode each item to a Python value; None remains None. Raises DecodeFailure."""
        data = data.tolist() if isinstance(data, np.ndarray) else data
        if self.rule is False:
            return list(data)
        if self.rule is True:
            array = self.array(data) if len(data) > 1 and not self.encoding.shape else None
            if array is not None:
                values: list[Any] = array.tolist()
                return values
            if self.encoding.name == "bytes":
                return list(data)
            if self.encoding.name == "str" and self.kind is None:
                # after an error, values are decoded one by one below, to find the invalid value
                with contextlib.suppress(UnicodeDecodeError, AttributeError):
                    return [value.decode() for value in data]
        return [self._value_at(value, index) for index, value in enumerate(data)]

    def value(self, data: Any) -> Any:
        """Decode one value; None remains None. Raises any error of the decoding function."""
        if data is None or self.rule is False:
            return data
        if self.rule is True:
            value = encodings.decode(self.encoding, data, self.allow_pickle)
            return value if self.kind is None else self._packed(value)
        return self.rule(data)

    def _packed(self, value: Any) -> Any:
        """Convert a decoded value to the type `kind`. Raises ValueFitError."""
        convert = encodings.packed_value(self.encoding, self.kind)
        try:
            return value if value is None or convert is None else convert(value)
        except ValueFitError:
            raise
        except (ArithmeticError, AttributeError, TypeError, ValueError):
            raise ValueFitError(f"not a valid {self.kind} value") from None

    def unpacker(self) -> Callable[[Any], tuple[Any, ...]] | None:
        """Return a function that decodes a number to a tuple of one item; None for other values."""
        is_plain = self.rule is True and not self.kind
        return encodings.unpacker(self.encoding) if is_plain else None

    def compiled(self) -> Callable[[Any], Any] | None:
        """Return a function that decodes a valid value; None if no decoding is needed."""
        if self.rule is False:
            return None
        if self.rule is True:
            decode = encodings.decoder(self.encoding, self.allow_pickle)
            convert = self.kind and encodings.packed_value(self.encoding, self.kind)
            if convert is None or decode is None:
                return decode
            return lambda data: convert(decode(data))
        return self.rule

    def _value_at(self, data: Any, index: int) -> Any:
        try:
            return self.value(data)
        except FlareError as error:
            raise DecodeFailure(index, error) from error.__cause__
        except Exception as error:
            message = f"{type(error).__name__}: {error}"
            raise DecodeFailure(index, ValueFitError(message)) from error

    def array(self, data: Sequence[Any]) -> Any:
        """Return numbers, or arrays of fixed shape, as one array [rows, …]; None for other values.

        data  list of bytes, which are copied, or a numpy array of dtype void, which is not copied
        """
        encoding, size = self.encoding, self.encoding.size
        if self.rule is not True or size is None or not self._has_fixed_shape:
            return None
        dtype = encoding.dtype or encoding.arrow.to_pandas_dtype()
        if isinstance(data, np.ndarray):
            array = data.view(dtype) if data.itemsize == size else None
        else:
            try:
                joined = bytearray().join(data)
            except TypeError:  # a null
                return None
            is_valid = len(joined) == size * len(data) and not set(map(len, data)) - {size}
            array = np.frombuffer(joined, dtype) if is_valid else None
        # If the size of a value is invalid, the caller decodes the values one by one to find this
        # value. For numbers, `kind` is set only if booleans were packed as integers.
        if array is not None and self.kind is not None:
            return array.astype(bool)
        return None if array is None else array.reshape(len(data), *encoding.shape)


def collate_samples(
    samples: Sequence[Mapping[str, Any]], dtypes: Mapping[str, str | None]
) -> dict[str, Any]:
    """Collate samples by column: column -> array or list.

    raises  UsageError if a sample is not a dict, or if samples have different columns
    """
    if not isinstance(samples, Sequence):
        raise UsageError(f"expected a list of samples, got {shown(samples)}")
    if not samples:
        return {}
    if not all(isinstance(sample, Mapping) for sample in samples):
        raise UsageError(
            "cannot collate a sample that is not a dict",
            hint="Pass collate=, a function that makes a batch from a list of samples.",
        )
    columns = samples[0].keys()
    for sample in samples:
        if differing := sample.keys() ^ columns:
            column = min(differing, key=str)
            raise UsageError(
                f"column {column!r} is missing in some samples",
                hint="Pass collate=, or return the same columns in every sample.",
                column=column,
            )
    return {
        name: stack_values([sample[name] for sample in samples], dtypes.get(name))
        for name in columns
    }


def stack_values(values: list[Any], dtype: str | None = None) -> Any:
    """Collate the values of one column.

    Numbers become an array; numpy arrays or torch tensors of one shape and dtype are stacked; other
    values remain a list.

    dtype  dtype for Python numbers; int64 or float64 is used if `dtype` cannot represent a number
    """
    first = values[0] if values else None
    torch = sys.modules.get("torch")  # a transform that returns tensors has imported torch
    for kind, stack in (
        (np.ndarray, np.stack),
        *(((torch.Tensor, torch.stack),) if torch is not None else ()),
    ):
        if isinstance(first, kind):
            is_uniform = all(
                isinstance(value, kind)
                and value.shape == first.shape
                and value.dtype == first.dtype
                for value in values
            )
            return stack(values) if is_uniform else values
    for kind, dtype_kinds, widest in (
        (bool, "b", "bool"),
        (int, "iu", "int64"),
        (float, "f", "float64"),
    ):
        if type(first) is kind and all(type(value) is kind for value in values):
            fits_kind = dtype is not None and np.dtype(dtype).kind in dtype_kinds
            return _number_array(values, [dtype, widest] if fits_kind else [widest])
    if isinstance(first, np.generic) and all(type(value) is type(first) for value in values):
        return np.array(values)
    return values


def _number_array(values: list[Any], dtypes: Sequence[str | None]) -> Any:
    """Return numbers as an array of the first dtype that can represent all of them.

    If there is no such dtype, return the list unchanged.
    """
    for dtype in dtypes:
        try:
            with np.errstate(over="raise"):
                return np.array(values, dtype)
        except (OverflowError, FloatingPointError):
            pass
    return values


# -- columns of tables


def has_arrow_values(field: pa.Field) -> bool:
    """Return whether the Arrow values of a column are converted to Python values directly.

    The result is False for tensors and for columns with an encoding such as `jpeg`. Their values
    are decoded from bytes.
    """
    is_tensor = isinstance(field.type, pa.FixedShapeTensorType)
    return encodings.encoding_of(field) is None and not is_tensor


def arrow_dtype(kind: pa.DataType) -> str | None:
    """Return the numpy dtype of an Arrow type; None if the type is not a number or a boolean."""
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    if is_number or pa.types.is_boolean(kind):
        return str(np.dtype(kind.to_pandas_dtype()))
    return None


def number_array(array: pa.Array) -> Any:
    """Return a column of numbers without nulls as a numpy array; None for any other column."""
    if arrow_dtype(array.type) is None or array.null_count:
        return None
    return np.array(array.to_numpy(zero_copy_only=False))
