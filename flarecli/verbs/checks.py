"""What verify does to one file: size, sums, then structure, in one pass over its bytes.

A shard of bounded size is read once into memory, hashed there and its structure checked there; a larger one is
hashed block by block and then read again where its structure needs it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

from flarecli import compress, encodings, formats
from flarecli.encodings import Encoding
from flarecli.errors import FlareError, MissingError, MissingLibraryError, UnsafeError
from flarecli.formats import spans
from flarecli.hashes import Sums, known
from flarecli.model import Chunk, Columns, File, Finding, Shard
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from flarecli.verbs.duplicates import contents

__all__ = ["HELD", "Checked", "Claim", "Depth", "check_chunk", "check_file", "finding"]

_OWN = threading.local()
HELD = 256 << 20  # bytes of a shard that are held in memory at once
_MANY = 10_000  # findings of one shard that are kept
_ROWS = 64  # rows decoded at once
_PIXELS = 1 << 27  # a picture of more is not decoded: 17 kB can hold 400 MB


@dataclass(frozen=True, slots=True)
class Claim:
    """What one listing says of a file; `by` is the address of the listing."""

    by: str
    file: File


@dataclass(frozen=True, slots=True)
class Depth:
    """How closely to look.

    quick     sizes, and headers of local shards
    decode    also decode every value, except pickles
    contents  also sum up each row, to find equal ones
    sizes     address -> bytes of every file below `below`, as the store lists them; None: ask for each file
    """

    quick: bool = False
    decode: bool = False
    contents: bool = False
    sizes: Mapping[str, int] | None = None
    below: str = ""

    def size(self, at: Location) -> int:
        """Give the size of a file. Raises MissingError if there is none."""
        name = str(at)
        if self.sizes is None or not name.startswith(self.below):
            return at.size()
        if name not in self.sizes:
            raise MissingError("no such file", where=name)
        return self.sizes[name]


@dataclass(slots=True)
class Checked:
    """What checking one file came to; `rows` and `size` are what was looked at, `unprotected` what of it carries no sum.

    contents  16 bytes a row, if they were asked for
    """

    findings: list[Finding] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    unprotected: list[str] = field(default_factory=list)
    contents: bytes = b""


def finding(error: FlareError, where: object = "") -> Finding:
    """Turn an error into a finding."""
    return Finding(error.where or str(where), error.kind, error.message, error.hint)


def check_file(at: Location, claims: Sequence[Claim], depth: Depth) -> Checked:
    """Check a file that is no shard, such as `index.json`: its size, and its sums unless `quick`."""
    out = Checked()
    try:
        size = out.size = depth.size(at)
        if not _fits(at, size, claims, out) or depth.quick:
            return out
        sums = Sums(_names(claims, at, out))
        for block in at.blocks(size):
            sums.update(block)
        _compare(at, sums, claims, "", out)
    except MissingLibraryError:
        raise
    except FlareError as error:
        out.findings.append(_named(error, at, claims))
    return out


def check_chunk(chunk: Chunk, claims: Sequence[Claim], columns: Columns | None, first_row: int, depth: Depth) -> Checked:
    """Check one shard against what is listed, then against its own structure.

    first_row  the row of the stream at which it begins; -1: not known
    """
    out, at = Checked(), chunk.at
    try:
        form = formats.find(chunk.format or "")
        size = out.size = depth.size(at)
        if not _fits(at, size, claims, out):
            return out
        if depth.quick and not at.is_local:  # a header is one more request for each shard
            out.rows = chunk.rows or 0
            return out
        kind = spans.suffix(chunk) if form.SUFFIXES else ""
        if not depth.quick:
            held = _summed(chunk, size, claims, kind, first_row, out)
        elif kind:
            out.rows = chunk.rows or 0
            return out  # its header is inside the frame
        else:
            held = replace(chunk, files=(File(chunk.files[0].name), *chunk.files[1:]))
        if held is not None:
            shard = form.open_shard(held, columns)
            out.rows = len(shard)
            own = getattr(form, "unprotected", None)  # of a format with sums of its own, what those leave out
            if own is not None and not any(claim.file.hashes for claim in claims) and (said := own(shard)):
                out.unprotected.append(f"{at}: {said}")
            if not depth.quick:
                out.findings += islice(form.verify_shard(shard, depth.decode), _MANY)
            if depth.decode and not out.findings:
                out.findings += islice(_decoded(form, shard), _MANY)
            if depth.contents and not out.findings:
                out.contents = contents(form, shard)
    except MissingLibraryError:
        raise
    except FlareError as error:
        out.findings.append(_named(error, at, claims))
    return out


def _named(error: FlareError, at: Location, claims: Sequence[Claim]) -> Finding:
    if error.kind == "missing":
        listed = f", {claims[0].by} lists it" if claims else ""
        return Finding(str(at), "missing", f"no such file{listed}", "Fetch it, or pack again.")
    return finding(error, at)


def _fits(at: Location, size: int, claims: Sequence[Claim], out: Checked) -> bool:
    """Compare the size with what is listed: another size is one finding, and the rest of the file then says nothing."""
    for claim in claims:
        if claim.file.size is not None and claim.file.size != size:
            hint = (
                "It was cut short; fetch or pack it again."
                if size < claim.file.size
                else "It is not the file that was listed; fetch or pack it again."
            )
            out.findings.append(Finding(str(at), "size", f"is {size} bytes, {claim.by} lists {claim.file.size}", hint))
            return False
    return True


def _names(claims: Sequence[Claim], at: Location, out: Checked, raw: bool = False) -> list[str]:
    """Name the hashes to compute; a listed one that nobody knows is a finding."""
    listed: dict[str, str] = {}
    for claim in claims:
        listed |= dict.fromkeys(_hashes(claim, raw), claim.by)
    for name in sorted(set(listed) - set(known())):
        out.findings.append(Finding(str(at), "checksum", f"{listed[name]} lists a sum {name!r:.60}, which is not known here"))
    return [name for name in listed if name in known()]


def _hashes(claim: Claim, raw: bool) -> Mapping[str, str]:
    return claim.file.raw_hashes if raw else claim.file.hashes


def _compare(at: Location, sums: Sums, claims: Sequence[Claim], rows: str, out: Checked, raw: bool = False) -> bool:
    """Compare sums with what is listed; give whether all are right."""
    failed = [
        f"{name} of {claim.by}" for claim in claims for name in sums.differences({name: value.lower() for name, value in _hashes(claim, raw).items()})
    ]
    if failed:
        what = f"{sums.size} bytes{' when decompressed' if raw else ''}{rows}"
        out.findings.append(
            Finding(str(at), "checksum", f"{what} fail {', '.join(failed)}", "It was changed after it was packed; fetch or pack it again.")
        )
    return not failed


def _summed(chunk: Chunk, size: int, claims: Sequence[Claim], kind: str, first_row: int, out: Checked) -> Chunk | None:
    """Hash a shard; give it back where its structure can be read, or None when there is no sense in that."""
    at = chunk.at
    rows = f" (rows {first_row} to {first_row + chunk.rows - 1})" if first_row >= 0 and chunk.rows else ""
    sums = Sums(_names(claims, at, out))
    data: bytes | bytearray | memoryview
    is_alone = chunk.format in formats.BESIDE and not chunk.beside  # what lies beside it is found from where it is
    if kind and not is_alone:
        data = _decompressed(chunk, size, claims, kind, sums)
        whole = _compare(at, sums, claims, rows, out)
        raw = Sums(_names(claims, at, out, raw=True))
        raw.update(data)
        if not (_compare(at, raw, claims, rows, out, raw=True) and whole):
            return None
    elif size > HELD or is_alone:
        for block in at.blocks(size):
            sums.update(block)
        _compare(at, sums, claims, rows, out)
        return replace(chunk, files=(File(chunk.files[0].name, size), *chunk.files[1:]))
    else:
        data = _read(at, size, sums)
        _compare(at, sums, claims, rows, out)
    return replace(chunk, at=Location(MemoryStore({"": data}, str(at))), files=(File(chunk.files[0].name, len(data)), *chunk.files[1:]))


def _read(at: Location, size: int, sums: Sums) -> memoryview:
    """Read a file and sum it; a local one piece by piece while it is in the cache, into memory that this thread's next file takes again.

    Memory never touched before costs more than reading and summing what goes there: 64 MB of it for each shard took half of the time.
    """
    if not at.is_local:  # one request for all of it
        data = at.read(0, size)
        sums.update(data)
        return memoryview(data)
    room = getattr(_OWN, "room", None)
    if room is None or len(room) < size:
        room = _OWN.room = bytearray(size)
    view, start = memoryview(room)[:size], 0
    for block in at.blocks(size):
        sums.update(block)
        view[start : start + len(block)] = block
        start += len(block)
    return view.toreadonly()


def _decompressed(chunk: Chunk, size: int, claims: Sequence[Claim], kind: str, sums: Sums) -> bytearray:
    raw_size = next((claim.file.raw_size for claim in claims if claim.file.raw_size is not None), None)

    def hashed() -> Iterator[bytes]:
        for block in chunk.at.blocks(size) if chunk.at.is_local else [chunk.at.read(0, size)]:
            sums.update(block)
            yield block

    blocks = hashed()
    try:
        return compress.decompress(kind, blocks, raw_size, chunk.at)
    finally:
        for _ in blocks:  # what the decompressor left unread belongs to the sums too
            pass


def _decoded(form: formats.Format, shard: Shard) -> Iterator[Finding]:
    """Decode every value but pickles, pictures with their pixels."""
    kinds = {column.name: encodings.lookup(column.encoding) for column in shard.columns if column.encoding not in ("pkl", "pkl[]")}
    for start in range(0, shard.rows, _ROWS):
        rows = range(start, min(start + _ROWS, shard.rows))
        for i, row in zip(rows, form.read_rows(shard, rows, list(kinds)), strict=True):
            for name, data in row.items():
                parts = data if isinstance(data, list) else [] if data is None else [data]  # None: a sample of a tar lacks it
                for reason in filter(None, (_why_not(kinds[name].item or kinds[name], part) for part in parts)):
                    yield Finding(f"{shard.chunk.at}[{i}]", "value", f"column {name!r}: {reason}", "The value was damaged before it was packed.")


def _why_not(encoding: Encoding, data: bytes) -> str:
    try:
        value = encodings.decode(encoding, data)
        for picture in value if isinstance(value, list) else [value]:
            if hasattr(picture, "load"):
                width, height = picture.size
                if width * height > _PIXELS:
                    raise UnsafeError(f"a picture of {width} x {height} pixels, {_PIXELS} are decoded at most")
                picture.load()
    except FlareError as error:
        return error.message
    except Exception as error:  # a decoder's own word on damaged pixels
        return f"not {encoding.name}: {str(error)[:80]}"
    return ""
