"""tar: a sequence of members, each with a header and data in blocks of 512 bytes.

      0  100  name, NUL-terminated unless it fills the field
    100    8  mode
    108    8  uid
    116    8  gid
    124   12  size of the data
    136   12  time
    148    8  checksum: the sum of the 512 bytes, with spaces in place of these 8 bytes
    156    1  kind, see below
    157  100  target of a link
    257    8  `ustar\\0` `00`; GNU: `ustar  \\0`; older: zeros
    265   64  names of user and group
    345  155  ustar only: prefix of the name, before a `/`

Numbers are octal digits, followed by a NUL or a space. A size whose first bit is set is a binary
big-endian number (base 256). Two blocks of zeros mark the end; only zeros may follow. Kinds:

    0 7 NUL  file (NUL and a name that ends with `/`: folder)
    1 2      links
    3 4 6    devices and FIFOs
    5        folder
    V        volume label
    L K      GNU: long name (L) or long link target (K) of the next member
    x g      PAX records, `LENGTH KEY=VALUE\\n`, for the next member (x) or all following members
             (g); flare uses the keys `path` and `size`

Sources: POSIX.1-2017 pax, GNU tar 1.34 (tar.h), and the output of CPython's tarfile.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from flarecli.errors import FormatError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.shard_files import DAMAGED
from flarecli.lazy import np
from flarecli.model import ByteArray, IntArray

__all__ = [
    "BLOCK",
    "END",
    "MAX_MEMBER_BYTES",
    "Blocks",
    "Seen",
    "check_size",
    "header",
    "headers",
    "members",
    "padded",
]

BLOCK = 512
END = bytes(2 * BLOCK)
# Fields of a header: name, size, checksum, kind, magic, prefix.
_HEAD = struct.Struct("<100s24x12s12x8sc100x6s82x155s12x")
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
_MAX_META_BYTES = 1 << 20  # maximum size of a PAX or GNU header; most have a few hundred bytes
MAX_MEMBER_BYTES = 8**11 - 1  # the largest octal number that the size field can store
# The low 16 bits of adler32 are (1 + the sum of the bytes) modulo this number. adler32 is a fast
# way to compute the sum of bytes.
_ADLER = 65521
_CHECKED_BYTES = 1 << 20  # bytes per step of the check that only zeros follow the end marker


class Blocks:
    """A source for `members` that reads a stream without seeking.

    `window` drops the blocks before `start`. `size` is None until the stream has ended.
    """

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
        return memoryview(self._data)[begin:]  # a view avoids a copy of every member in a block

    def _next(self, end: int) -> bytes | None:
        data = next(self._blocks, None)
        if data is None and self.size is None:
            self.size = end
        return data


@dataclass(slots=True)
class Seen:
    """Facts about a tar that a scan collects in addition to the files in the tar.

    skipped  member type -> number of skipped members, which are not files
    padding  offsets of padding with non-zero bytes; None if padding is not checked
    end      size of the end marker and of the zeros after it
    """

    skipped: Counter[str] = field(default_factory=Counter)
    padding: list[int] | None = None
    end: int = 0


_Size = TypeVar("_Size", int, IntArray)


def padded(size: _Size) -> _Size:
    """Return a size, or an array of sizes, rounded up to whole blocks."""
    return (size + BLOCK - 1) & -BLOCK


def members(
    source: byte_ranges.Source, where: object, seen: Seen | None = None
) -> Iterator[tuple[bytes, int, int]]:
    """Yield the name, data offset and size of each file in a tar, in order, in one pass.

    The checksum of each header is verified, and each size is compared with the size of the tar.

    raises  FormatError with the offset of an invalid header, an incomplete member, a missing end
            marker, data after the end marker, or a sparse file
    """
    seen = Seen() if seen is None else seen
    view, base, begin, pos, limit = memoryview(b""), 0, 0, 0, source.size
    own: dict[str, bytes] = {}  # PAX and GNU fields that apply to the next member
    shared: dict[str, bytes] = {}  # PAX fields that apply to all following members
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
        raw, digits, checksum, kind, magic, prefix = _HEAD.unpack(head)
        if not raw[0] and not bytes(head).strip(b"\0"):
            break
        total = _octal(checksum)
        if total is None or (
            ((zlib.adler32(head) & 0xFFFF) - (zlib.adler32(checksum) & 0xFFFF) + 256 - total)
            % _ADLER
            and not _is_signed_sum(head, total)
        ):
            raise FormatError(f"header checksum mismatch at byte {pos}", where=where, hint=DAMAGED)
        size = _octal(digits)
        if size is None:
            size = _base_256(digits, where, pos)
        start = pos + BLOCK
        if kind not in _META and (own or shared):
            fields, own = (
                {key: value for key, value in {**shared, **own}.items() if value},
                {},
            )  # an empty value cancels the field, even if a `g` header set it
            raw, prefix = fields.get("path", raw), b"" if "path" in fields else prefix
            size = _decimal(fields["size"], where, pos) if "size" in fields else size
        if limit is not None and start + size > limit:
            raise FormatError(
                f"the member at byte {pos} is {size} bytes; the file ends at byte {limit}",
                where=where,
                hint=DAMAGED,
            )
        begin = start + size
        pos = (begin + BLOCK - 1) & -BLOCK
        if kind in _META:
            if size > _MAX_META_BYTES:
                raise FormatError(
                    f"the PAX or GNU header at byte {start - BLOCK} is {size} bytes;"
                    f" the maximum is {_MAX_META_BYTES}",
                    where=where,
                )
            if begin - base > len(view):
                view, base = source.window(start, size), start
                if begin - base > len(view):
                    raise _cut(source, base + len(view), pos, where)
            _read_meta(
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
        raise FormatError(f"no member follows the PAX or GNU header before byte {pos}", where=where)
    _check_end(source, view[at:], pos, where, seen)


def _cut(source: byte_ranges.Source, end: int, pos: int, where: object) -> FormatError:
    end = end if source.size is None else min(end, source.size)
    message = (
        f"data ends at byte {end}, inside a member"
        if end < pos
        else f"data ends at byte {end}, without an end marker"
    )
    return FormatError(message, where=where, hint=DAMAGED)


def _base_256(digits: bytes, where: object, pos: int) -> int:
    size = int.from_bytes(digits, "big") - (0x80 << 88)
    if not digits[0] & 0x80 or not 0 <= size < 1 << 63:
        raise FormatError(
            f"invalid size of the member at byte {pos}: {digits!r}", where=where, hint=DAMAGED
        )
    return size


def _octal(text: bytes) -> int | None:
    """Parse octal digits that may have spaces around them and a NUL at the end.

    return  0 for an empty field; None for invalid digits
    """
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
            f"invalid size of the member at byte {pos}: {text[:40]!r}", where=where, hint=DAMAGED
        )
    return int(text)


def _is_signed_sum(head: memoryview, total: int) -> bool:
    """Return whether the checksum is a sum of signed bytes, as some old writers store it."""
    return (
        int(np.frombuffer(head, np.int8).sum())
        - int(np.frombuffer(head[148:156], np.int8).sum())
        + 256
        == total
    )


def _read_meta(
    kind: bytes, data: bytes, own: dict[str, bytes], shared: dict[str, bytes], where: str
) -> None:
    """Parse a header of type `x`, `g`, `L` or `K`, and add its fields to `own` or `shared`."""
    if kind == b"L":
        own["path"] = data.partition(b"\0")[0]
    if kind in (b"L", b"K"):
        return
    for key, value in _records(data, where):
        if key.startswith(b"GNU.sparse."):
            raise FormatError(
                "sparse files are not supported",
                where=where,
                hint="Create the tar again without --sparse.",
            )
        if key in (b"path", b"size"):
            if b"\0" in value:
                raise FormatError(f"the PAX field {key.decode()} contains a NUL", where=where)
            (shared if kind == b"g" else own)[key.decode()] = value


def _records(data: bytes, where: str) -> Iterator[tuple[bytes, bytes]]:
    """Yield the key and value of each PAX record, `LENGTH KEY=VALUE\\n`.

    LENGTH is the size of the complete record, including the digits of LENGTH.
    """
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
            raise FormatError(f"invalid PAX record at byte {at}", where=where, hint=DAMAGED)
        yield key, value
        at += length


def _skipped(kind: bytes, size: int, where: object, pos: int) -> str:
    """Return the name of a member type that is skipped.

    raises  FormatError for a sparse file, an unknown type, or data in a skipped member other than a
            label
    """
    if kind == b"\0":
        kind = b"5"
    if kind == b"S":
        raise FormatError(
            f"the member at byte {pos} is a sparse file",
            where=where,
            hint="Create the tar again without --sparse.",
        )
    if kind not in _SKIPPED:
        raise FormatError(f"unsupported type {kind!r} of the member at byte {pos}", where=where)
    if size and kind != b"V":
        raise FormatError(
            f"the {_SKIPPED[kind]} at byte {pos} has {size} bytes of data; expected 0", where=where
        )
    return _SKIPPED[kind]


def _check_end(
    source: byte_ranges.Source, rest: memoryview, pos: int, where: object, seen: Seen
) -> None:
    """Check that only zeros follow the end marker. Raises FormatError for other data."""
    while len(rest):
        for at in range(0, len(rest), _CHECKED_BYTES):
            part = bytes(rest[at : at + _CHECKED_BYTES])
            if part.strip(b"\0"):
                byte = pos + at + len(part) - len(part.lstrip(b"\0"))
                hint = (
                    "Split concatenated tar files, and read each of them."
                    if not byte % BLOCK
                    else DAMAGED
                )
                raise FormatError(
                    f"unexpected data after the end marker, from byte {byte}",
                    where=where,
                    hint=hint,
                )
        seen.end += len(rest)
        pos += len(rest)
        rest = (
            source.window(pos, 1) if source.size is None or pos < source.size else memoryview(b"")
        )


def check_size(size: int, where: object = "") -> None:
    """Raise ValueFitError for a size of 8 GiB or more, which does not fit in the header field."""
    if size > MAX_MEMBER_BYTES:
        raise ValueFitError(
            f"member is {size} bytes; a tar header allows {MAX_MEMBER_BYTES}",
            where=where,
        )


def header(name: bytes, size: int) -> bytes:
    """Return the header of a file.

    A header is one block. If ustar cannot store the name, a PAX record precedes the block, and the
    result has at least three blocks. The header is reproducible: the mode is 0444; time, uid and
    gid are 0; user and group have no names.

    raises  ValueFitError for a file of 8 GiB or more
    """
    check_size(size)
    if name.isascii():
        if len(name) <= 100:
            return _block(name, size)
        cut = name.find(b"/", max(1, len(name) - 101))
        if 0 < cut <= 155 and cut + 1 < len(name):
            return _block(name[cut + 1 :], size, prefix=name[:cut])
    length = len(name) + 7  # ` path=` and the newline; the digits of the length are added below
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


_TEMPLATE = _block(b"", 0)
_BASE_CHECKSUM = sum(_TEMPLATE) - sum(_TEMPLATE[148:156]) + 256


def headers(names: ByteArray, sizes: IntArray) -> ByteArray:
    """Return the headers of many files with names of at most 100 bytes; see `header`.

    names   uint8 [n, 100], ASCII, padded with NULs
    sizes   int64 [n], each below 8 GiB
    return  uint8 [n, 512]
    """
    out = np.empty((len(names), BLOCK), np.uint8)
    out[:] = np.frombuffer(_TEMPLATE, np.uint8)
    out[:, :100] = names
    digits = ((sizes[:, None] >> np.arange(30, -1, -3)) & 7).astype(np.uint8)
    out[:, 124:135] += digits
    totals = names.sum(1, dtype=np.int64) + digits.sum(1, dtype=np.int64) + _BASE_CHECKSUM
    out[:, 148:154] = ((totals[:, None] >> np.arange(15, -1, -3)) & 7) + ord("0")
    return out
