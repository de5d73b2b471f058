"""The bytes of a CSV or TSV, checked as they stream by: UTF-8, no NUL, and quotes as RFC 4180 has them.

A quote opens a field at its start and closes it at its end; inside it is doubled. So the quotes before any byte,
odd or even, say whether that byte is inside a quoted field, and one pass finds each quote that is out of place.
A parser that takes such a quote as it comes shifts columns and swallows rows without a word.
"""

from __future__ import annotations

import codecs
import io

import numpy as np

from flarecli.errors import FormatError
from flarecli.ingest.source import LocationFile
from flarecli.storage import Location

__all__ = ["CheckedText", "line_of"]

_QUOTE, _BOM = ord('"'), b"\xef\xbb\xbf"
_STRAY = 'Put the whole field in quotes, and double each quote inside it: "5"" pipe".'


class CheckedText(LocationFile):
    """A file that is read once, from start to end. Raises FormatError with the line for what is no text, or no table."""

    def __init__(self, at: Location, delimiter: str) -> None:
        super().__init__(at)
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._beside = np.zeros(256, bool)  # what a quote that opens or closes a field may stand next to
        self._beside[list(f'{delimiter}\r\n"'.encode())] = True
        self._seen, self._lines = 0, 1
        self._inside, self._last, self._opened = False, ord("\n"), 1  # the last byte, and the line of the last quote that opens

    def read(self, size: int | None = -1) -> bytes:
        start = self._position
        data = super().read(size)
        if start != self._seen:
            return data  # Arrow streams, and reads no byte twice
        self._seen = self._position
        self._check_text(data, start)
        self._check_quotes(data[3:] if start == 0 and data.startswith(_BOM) else data)
        self._lines += _breaks(data)
        if self._position >= self._size and self._inside:
            self._refuse(f"line {self._opened}: a quote is opened and never closed", _STRAY)
        return data

    def _check_text(self, data: bytes, start: int) -> None:
        pending = len(self._decoder.getstate()[0])
        try:
            self._decoder.decode(data, final=self._position >= self._size)
        except UnicodeDecodeError as error:
            at = error.start - pending
            self._refuse(f"line {self._line(data, at)}: byte {start + at} is not UTF-8", "Save it as UTF-8 text.")
        nul = data.find(b"\0")
        if nul >= 0:
            self._refuse(f"line {self._line(data, nul)}: byte {start + nul} is NUL", "Save it as UTF-8 text.")

    def _check_quotes(self, data: bytes) -> None:
        if not data:
            return
        raw = np.frombuffer(data, np.uint8)
        quotes = np.flatnonzero(raw == _QUOTE)
        opens = quotes[int(self._inside) :: 2]  # every other one, the first if we are outside
        closes = quotes[1 - int(self._inside) :: 2]
        before = np.where(opens > 0, raw[opens - 1], self._last)
        after = raw[np.minimum(closes + 1, len(raw) - 1)]  # a quote at the end stands next to itself; the next block looks again
        stray = np.concatenate([opens[~self._beside[before]], closes[~self._beside[after]]])
        if not self._inside and self._last == _QUOTE and not self._beside[raw[0]]:
            stray = np.array([0])
        if len(stray):
            self._refuse(f"line {self._line(data, int(stray.min()))}: a quote inside a field", _STRAY)
        if len(opens):
            self._opened = self._line(data, int(opens[-1]))
        self._inside ^= bool(len(quotes) % 2)
        self._last = data[-1]

    def _line(self, data: bytes, end: int) -> int:
        return self._lines + _breaks(data[: max(0, end)])

    def _refuse(self, what: str, hint: str) -> None:
        self.error = FormatError(what, where=self._at, hint=hint)
        raise self.error


def _breaks(data: bytes) -> int:
    """Count the ends of lines: LF, CR LF, or CR."""
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")


def line_of(at: Location, record: int) -> int:
    """Give the line that a record starts in; both count from 1, and lines with nothing in them are no records.

    Reads the file again up to there, so it is for messages only.
    """
    seen, inside, number = 0, False, 0
    for number, line in enumerate(io.TextIOWrapper(io.BufferedReader(LocationFile(at)), "utf-8-sig", "replace", newline=""), 1):
        if inside or line.strip("\r\n"):
            seen += not inside
            if seen == record:
                return number
            inside ^= bool(line.count('"') % 2)
    return number
