"""tar: members one behind another, each a header of 512 bytes and its data, filled up with zeros to the next 512.

    0    100  name, ended by a NUL unless it fills the field      156    1  kind, below
    100    8  mode       108  8  uid       116  8  gid            157  100  name that a link points at
    124   12  size of the data                                    257    8  `ustar\\0` `00`; GNU: `ustar  \\0`; older: zeros
    136   12  time                                                265   64  names of user and group
    148    8  sum of the 512 bytes, these 8 taken for spaces      345  155  ustar only: what stands before the name and a `/`

Numbers are octal digits, ended by a NUL or a space; a size whose first bit is set is a big-endian number instead (base 256).
Kinds: `0`, `7` and NUL are files (NUL and a name that ends with `/`: a folder), `1` and `2` links, `3`, `4` and `6` devices and FIFOs,
`5` folders, `V` a volume's label. `L` and `K` hold the long name, or link, of the next member (GNU); `x` holds records of it, `g` of all that
follow (PAX): `LENGTH KEY=VALUE\\n`, of which `path` and `size` count here. Two blocks of zeros are the end; only zeros may follow.
Sources: POSIX.1-2017 pax, GNU tar 1.34 (tar.h), and what CPython's tarfile writes, byte for byte.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from flarecli.errors import FormatError, ValueFitError
from flarecli.model import IntArray
from flarecli.storage import Location

__all__ = [
    "BLOCK",
    "END",
    "LARGEST",
    "Blocks",
    "Mapped",
    "Ranges",
    "Seen",
    "Source",
    "check_size",
    "header",
    "headers",
    "members",
    "padded",
]

BLOCK = 512
END = bytes(2 * BLOCK)
_HEAD = struct.Struct("<100s24x12s12x8sc100x6s82x155s12x")  # name, size, sum, kind, magic, prefix
_FILES, _META = (b"0", b"\0", b"7"), (b"x", b"X", b"g", b"L", b"K")
_SKIPPED = {
    b"1": "hard link",
    b"2": "symbolic link",
    b"3": "device",
    b"4": "device",
    b"5": "folder",
    b"6": "FIFO",
    b"V": "label",
}
_META_LIMIT = 1 << 20  # bytes of one member's own records; a name takes a few hundred
LARGEST = 8**11 - 1  # what the field of a size holds
_ADLER = 65521  # the low word of adler32 is 1 + the sum of the bytes, modulo this: what Python has of a fast sum
_STEPS = (
    1 << 12,
    1 << 20,
)  # bytes that a pass over headers reads at once: between large members, and where they are small
_HINT = "It was damaged or cut short; fetch or pack it again."


class Source(Protocol):
    """Bytes to go through in order: `size` of all of them if that is known."""

    size: int | None

    def window(self, start: int, need: int) -> memoryview:
        """Give bytes from `start`, which never falls: `need` of them or more, fewer only at the end."""


class Mapped:
    """A file whose bytes are all there."""

    def __init__(self, view: memoryview) -> None:
        self.size: int | None = len(view)
        self.view = view

    def window(self, start: int, need: int) -> memoryview:
        return self.view[start:]


class Ranges:
    """A file that is read a range at a time: little of it where members are large."""

    def __init__(self, at: Location, size: int) -> None:
        self.size: int | None = size
        self._at, self._size, self._step, self._end = at, size, _STEPS[1], 0

    def window(self, start: int, need: int) -> memoryview:
        self._step = _STEPS[1] if start <= self._end else max(_STEPS[0], self._step // 4)
        self._end = min(self._size, start + max(need, self._step))
        return memoryview(self._at.read(start, self._end)) if start < self._end else memoryview(b"")


class Blocks:
    """A stream that cannot seek; blocks that end before the last `start` are forgotten. Its size is known when its end was reached."""

    def __init__(self, blocks: Iterable[bytes]) -> None:
        self.size: int | None = None
        self._blocks, self._data, self._base = iter(blocks), b"", 0

    def window(self, start: int, need: int) -> memoryview:
        while (
            self._base + len(self._data) <= start
            and (data := self._next(self._base + len(self._data))) is not None
        ):
            self._base, self._data = self._base + len(self._data), data
        begin = max(0, start - self._base)
        if len(self._data) - begin < need:
            parts = [self._data[begin:]]
            have = len(parts[0])
            while have < need and (data := self._next(start + have)) is not None:
                parts.append(data)
                have += len(data)
            self._base, self._data, begin = start, b"".join(parts), 0
        return memoryview(self._data)[
            begin:
        ]  # of a large block each of a thousand members is a view, not a copy of all that follows

    def _next(self, end: int) -> bytes | None:
        data = next(self._blocks, None)
        if data is None and self.size is None:
            self.size = end
        return data


@dataclass(slots=True)
class Seen:
    """What a pass saw besides files.

    skipped  members that are no files, by kind
    padding  the bytes where what fills a block up is not zeros; None: not looked at
    end      bytes from the end marker on
    """

    skipped: Counter[str] = field(default_factory=Counter)
    padding: list[int] | None = None
    end: int = 0


def padded(size: int) -> int:
    """Give a size rounded up to whole blocks; works on arrays too."""
    return (size + BLOCK - 1) & -BLOCK


def members(
    source: Source, where: object, seen: Seen | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Go through a tar once; give name, first byte and size of each file in it, in order: 1.4 µs each on a map.

    Each header's sum is checked, and each size held against the file, before anything is given or read.

    raises  FormatError naming the byte of a header that is none, a member cut short, a missing end, bytes behind it, a sparse file
    """
    seen = Seen() if seen is None else seen
    view, base, begin, pos, limit = memoryview(b""), 0, 0, 0, source.size
    own: dict[str, bytes] = {}  # what PAX and GNU say of the next member
    shared: dict[str, bytes] = {}  # what PAX says of all that follow
    while True:
        at = pos - base
        if at + BLOCK > len(view):
            view, base = source.window(begin, pos + BLOCK - begin), begin
            at = pos - base
            if at + BLOCK > len(view):
                raise _cut(source, base + len(view), pos, where)
        if begin < pos and seen.padding is not None and bytes(view[begin - base : at]).strip(b"\0"):
            seen.padding.append(begin)
        head = view[at : at + BLOCK]
        raw, digits, given, kind, magic, prefix = _HEAD.unpack(head)
        if not raw[0] and not bytes(head).strip(b"\0"):
            break
        total = _octal(given)
        if total is None or (
            ((zlib.adler32(head) & 0xFFFF) - (zlib.adler32(given) & 0xFFFF) + 256 - total) % _ADLER
            and not _is_signed_sum(head, total)
        ):
            raise FormatError(f"the header at byte {pos} fails its sum", where=where, hint=_HINT)
        size = _octal(digits)
        if size is None:
            size = _base_256(digits, where, pos)
        start = pos + BLOCK
        if kind not in _META and (own or shared):
            said, own = (
                {key: value for key, value in {**shared, **own}.items() if value},
                {},
            )  # an empty value takes back what was said before
            raw, prefix = said.get("path", raw), b"" if "path" in said else prefix
            size = _decimal(said["size"], where, pos) if "size" in said else size
        if limit is not None and start + size > limit:
            raise FormatError(
                f"the member at byte {pos} has {size} bytes, the file ends at byte {limit}",
                where=where,
                hint=_HINT,
            )
        begin = start + size
        pos = (begin + BLOCK - 1) & -BLOCK
        if kind in _META:
            if size > _META_LIMIT:
                raise FormatError(
                    f"the member at byte {start - BLOCK} has {size} bytes of records, {_META_LIMIT} is the most that is read",
                    where=where,
                )
            if begin - base > len(view):
                view, base = source.window(start, size), start
                if begin - base > len(view):
                    raise _cut(source, base + len(view), pos, where)
            _note(
                kind,
                bytes(view[start - base : begin - base]),
                own,
                shared,
                f"{where}: byte {start}",
            )
            continue
        name = raw.partition(b"\0")[0]
        if magic == b"ustar\0" and prefix and prefix[0]:
            name = prefix.partition(b"\0")[0] + b"/" + name
        if kind in _FILES and not (kind == b"\0" and name.endswith(b"/")):
            if not name:
                raise FormatError(f"the member at byte {start - BLOCK} has no name", where=where)
            yield name, start, size
        else:
            seen.skipped[_skipped(kind, size, where, start - BLOCK)] += 1
    if own:
        raise FormatError(f"the records before byte {pos} belong to no member", where=where)
    _check_end(source, view[at:], pos, where, seen)


def _cut(source: Source, end: int, pos: int, where: object) -> FormatError:
    end = end if source.size is None else min(end, source.size)
    return FormatError(
        f"ends at byte {end}, {'inside a member' if end < pos else 'without an end marker'}",
        where=where,
        hint=_HINT,
    )


def _base_256(digits: bytes, where: object, pos: int) -> int:
    size = int.from_bytes(digits, "big") - (0x80 << 88)
    if not digits[0] & 0x80 or not 0 <= size < 1 << 63:
        raise FormatError(
            f"the size of the member at byte {pos} is {digits!r}", where=where, hint=_HINT
        )
    return size


def _octal(text: bytes) -> int | None:
    """Read digits that a NUL or spaces end, spaces before them allowed; None if they are none. An empty field is 0."""
    digits = text.partition(b"\0")[0]
    if not digits.isdigit():
        digits = digits.strip(b" ") or b"0"
        if not digits.isdigit():
            return None
    try:
        return int(digits, 8)
    except ValueError:
        return None


def _decimal(text: bytes, where: object, pos: int) -> int:
    if not text.isdigit() or len(text) > 18:
        raise FormatError(
            f"the size of the member at byte {pos} is {text[:40]!r}", where=where, hint=_HINT
        )
    return int(text)


def _is_signed_sum(head: memoryview, total: int) -> bool:
    """Tell whether the sum is one of signed bytes, as some old writers have it."""
    return (
        int(np.frombuffer(head, np.int8).sum())
        - int(np.frombuffer(head[148:156], np.int8).sum())
        + 256
        == total
    )


def _note(
    kind: bytes, data: bytes, own: dict[str, bytes], shared: dict[str, bytes], where: str
) -> None:
    """Take in what a member of kind `x`, `g`, `L` or `K` says."""
    if kind == b"L":
        own["path"] = data.partition(b"\0")[0]
    if kind in (b"L", b"K"):
        return
    for key, value in _records(data, where):
        if key.startswith(b"GNU.sparse."):
            raise FormatError(
                "a sparse file", where=where, hint="Make the tar again without --sparse."
            )
        if key in (b"path", b"size"):
            if b"\0" in value:
                raise FormatError(f"the {key.decode()} in its records holds a NUL", where=where)
            (shared if kind == b"g" else own)[key.decode()] = value


def _records(data: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Take PAX records apart: `LENGTH KEY=VALUE\\n`, the length that of the whole record."""
    at = 0
    while at < len(data):
        digits = data[at : at + 20].partition(b" ")[0]
        length = int(digits) if digits.isdigit() else 0
        record = data[at + len(digits) + 1 : at + length]
        key, equals, value = record[:-1].partition(b"=")
        if (
            length <= len(digits) + 1
            or at + length > len(data)
            or not equals
            or record[-1:] != b"\n"
        ):
            raise FormatError(f"byte {at} of its records begins none", where=where, hint=_HINT)
        yield key, value
        at += length


def _skipped(kind: bytes, size: int, where: object, pos: int) -> str:
    """Name a kind of member that is passed over; refuse what cannot be, or what would hide data."""
    if kind == b"\0":
        kind = b"5"
    if kind == b"S":
        raise FormatError(
            f"the member at byte {pos} is a sparse file",
            where=where,
            hint="Make the tar again without --sparse.",
        )
    if kind not in _SKIPPED:
        raise FormatError(
            f"the member at byte {pos} is of kind {kind!r}, which is not read", where=where
        )
    if size and kind != b"V":
        raise FormatError(
            f"the {_SKIPPED[kind]} at byte {pos} has {size} bytes of data", where=where
        )
    return _SKIPPED[kind]


def _check_end(source: Source, rest: memoryview, pos: int, where: object, seen: Seen) -> None:
    """Hold what follows the end marker against zeros, to the last byte."""
    while len(rest):
        for at in range(0, len(rest), _STEPS[1]):
            part = bytes(rest[at : at + _STEPS[1]])
            if part.strip(b"\0"):
                byte = pos + at + len(part) - len(part.lstrip(b"\0"))
                hint = (
                    "Two tars that were put behind one another are to be named one by one."
                    if not byte % BLOCK
                    else _HINT
                )
                raise FormatError(f"bytes follow its end, from byte {byte}", where=where, hint=hint)
        seen.end += len(rest)
        pos += len(rest)
        rest = (
            source.window(pos, 1) if source.size is None or pos < source.size else memoryview(b"")
        )


def check_size(size: int, where: object = "") -> None:
    """Refuse a size that the field of a header does not hold. Raises ValueFitError for 8 GiB or more."""
    if size > LARGEST:
        raise ValueFitError(
            f"a member of {size} bytes, {LARGEST} is the most that a tar header says", where=where
        )


def header(name: bytes, size: int) -> bytes:
    """Give the blocks that stand before a file's data: one if ustar holds the name, three or more with a PAX record of it.

    Nothing in it tells when, where or by whom it was written: mode 0444, time, uid and gid 0, no names.

    raises  ValueFitError for 8 GiB or more
    """
    check_size(size)
    if name.isascii():
        if len(name) <= 100:
            return _block(name, size)
        cut = name.find(b"/", max(1, len(name) - 101))
        if 0 < cut <= 155 and cut + 1 < len(name):
            return _block(name[cut + 1 :], size, prefix=name[:cut])
    length = (
        len(name) + 7
    )  # ` path=` and the newline; then the digits of the length, which count themselves
    digits = next(width for width in range(1, 9) if len(str(length + width)) == width)
    record = b"%d path=%s\n" % (length + digits, name)
    short = name.decode("utf-8", "replace").encode("ascii", "replace")[:100]
    return (
        _block(b"././@PaxHeader", len(record), b"x", mode=0)
        + record.ljust(padded(len(record)), b"\0")
        + _block(short, size)
    )


def _block(
    name: bytes, size: int, kind: bytes = b"0", mode: int = 0o444, prefix: bytes = b""
) -> bytes:
    block = bytearray(BLOCK)
    block[: len(name)] = name
    block[100:157] = b"%07o\0%07o\0%07o\0%011o\0%011o\0        %s" % (mode, 0, 0, size, 0, kind)
    block[257:265] = b"ustar" + bytes(1) + b"00"
    block[345 : 345 + len(prefix)] = prefix
    block[148:155] = b"%06o\0" % sum(block)
    return bytes(block)


_TEMPLATE = np.frombuffer(_block(b"", 0), np.uint8)
_BASE = int(_TEMPLATE.sum()) - int(_TEMPLATE[148:156].sum()) + 256


def headers(names: IntArray, sizes: IntArray) -> IntArray:
    """Give the headers of many files whose names ustar holds, as `header` does one by one.

    names   uint8 [n, 100], ASCII, filled up with NULs
    sizes   int64 [n], each below 8 GiB
    return  uint8 [n, 512]
    """
    out = np.empty((len(names), BLOCK), np.uint8)
    out[:] = _TEMPLATE
    out[:, :100] = names
    digits = ((sizes[:, None] >> np.arange(30, -1, -3)) & 7).astype(np.uint8)
    out[:, 124:135] += digits
    totals = names.sum(1, dtype=np.int64) + digits.sum(1, dtype=np.int64) + _BASE
    out[:, 148:154] = ((totals[:, None] >> np.arange(15, -1, -3)) & 7) + ord("0")
    return out
