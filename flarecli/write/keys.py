"""Detection of duplicate keys. Each key uses 24 bytes: a 128-bit hash and its first row.

The hashes are kept in sorted runs of doubling length, which are merged as they grow, so a batch
needs only a few binary searches.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from flarecli.encodings import is_binary, is_text
from flarecli.model import IntArray
from flarecli.names import is_url
from flarecli.redact import redact, redact_text

__all__ = ["Keys", "is_empty_key", "key_text"]


class _Run:
    """Keys sorted by the first 64 bits of their hash."""

    def __init__(self, high: IntArray, low: IntArray, rows: IntArray) -> None:
        order = np.argsort(high, kind="stable")
        self.high, self.low, self.rows = high[order], low[order], rows[order]

    def find(self, high: IntArray, low: IntArray) -> IntArray:
        """Return the first row of each key, or -1 for an unknown key."""
        at: IntArray = np.searchsorted(self.high, high)
        out = np.full(len(high), -1, np.int64)
        live = at < len(self.high)
        while live.any():  # usually one iteration, because equal first halves are rare
            same = live & (self.high[np.minimum(at, len(self.high) - 1)] == high)
            hit = same & (self.low[np.minimum(at, len(self.high) - 1)] == low)
            out[hit] = self.rows[at[hit]]
            live = same & ~hit
            at = at + live
            live &= at < len(self.high)
        return out


def key_text(key: pa.Scalar) -> str:
    """Return a key as text for reports.

    Secrets in addresses are redacted, invalid UTF-8 is escaped, and a null is an empty string.
    """
    if not key.is_valid:
        return ""
    if pa.types.is_string(key.type) or pa.types.is_large_string(key.type):
        text = key.as_buffer().to_pybytes().decode("utf-8", "backslashreplace")
        return redact(text) if is_url(text) else redact_text(text)
    return redact_text(str(key.as_py()))


def is_empty_key(keys: pa.Array) -> npt.NDArray[np.bool_]:
    """Return whether each key is null or empty.

    return  bool [rows]
    """
    null = (
        keys.is_null().to_numpy(zero_copy_only=False)
        if keys.null_count
        else np.zeros(len(keys), bool)
    )
    plain = keys.dictionary_decode() if pa.types.is_dictionary(keys.type) else keys
    if is_text(plain.type) or is_binary(plain.type):
        null |= pc.equal(pc.binary_length(plain), 0).fill_null(True).to_numpy(zero_copy_only=False)
    return null


class Keys:
    """Index that finds each row whose key occurs in an earlier row."""

    def __init__(self) -> None:
        self._runs: list[_Run] = []

    def seen(self, keys: pa.Array, rows: int | IntArray) -> IntArray:
        """Add a batch of keys; return the first row with each key, or -1 for a new key.

        keys    text, bytes or numbers [rows]; a null is always new
        rows    int64 [rows]: the number of each row; an int is the number of the first row if the
                rows are consecutive
        return  int64 [rows]
        """
        if isinstance(rows, int):
            rows = np.arange(rows, rows + len(keys), dtype=np.int64)
        values = (
            keys.cast(pa.large_binary())
            if pa.types.is_string(keys.type) or pa.types.is_large_string(keys.type)
            else keys
        ).to_pylist()
        hashes = b"".join(
            xxhash.xxh3_128_digest(value if isinstance(value, bytes) else str(value).encode())
            for value in values
        )
        pairs = np.frombuffer(hashes, "<u8").reshape(-1, 2)
        high, low = pairs[:, 0].copy(), pairs[:, 1].copy()
        out = np.full(len(keys), -1, np.int64)
        for run in self._runs:
            earlier_rows = run.find(high, low)
            out = np.where(out < 0, earlier_rows, out)
        _, firsts, inverse = np.unique(pairs, axis=0, return_index=True, return_inverse=True)
        earlier = firsts[inverse.reshape(-1)]  # the first position of each key in the batch
        within = (out < 0) & (earlier < np.arange(len(keys)))
        out[within] = rows[earlier[within]]
        null = np.array([value is None for value in values], bool)
        out[null] = -1
        new = (out < 0) & ~null
        self._add(_Run(high[new], low[new], rows[new]))
        return out

    def _add(self, run: _Run) -> None:
        while self._runs and len(self._runs[-1].high) < 2 * len(run.high):
            last = self._runs.pop()
            run = _Run(
                *(
                    np.concatenate(pair)
                    for pair in ((last.high, run.high), (last.low, run.low), (last.rows, run.rows))
                )
            )
        if len(run.high):
            self._runs.append(run)
