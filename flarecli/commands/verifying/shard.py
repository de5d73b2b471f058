"""Check of one file: size, checksums and structure, if possible in one pass over the bytes.

If a format supports sequential checks, a local shard is hashed during the check of its structure.
Any other shard of at most MAX_MEMORY_BYTES is read into memory, and is hashed and checked there. A
larger shard is read twice: in blocks to hash it, and again to check its structure.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING

from flarecli import compress, formats
from flarecli.commands.verifying.rows import hash_rows, read_keys
from flarecli.errors import (
    FlareError,
    MissingError,
    MissingLibraryError,
    ReachError,
    check_exhausted,
)
from flarecli.formats import byte_ranges
from flarecli.hashes import Sums, known
from flarecli.model import Chunk, Columns, File, Finding, Shard, finding_of
from flarecli.progress import count_bytes, counted
from flarecli.storage import Location
from flarecli.storage.local import LocalStore
from flarecli.storage.memory import MemoryStore
from flarecli.storage.single_pass import single_pass

if TYPE_CHECKING:
    from flarecli.lazy import pa
    from flarecli.media import Sandbox

__all__ = [
    "AGAIN",
    "MAX_MEMORY_BYTES",
    "Depth",
    "FileResult",
    "ListEntry",
    "check_chunk",
    "check_file",
]

AGAIN = "fetch or pack it again."  # last words of all hints about damage
MAX_MEMORY_BYTES = 256 << 20  # a larger shard is not read into memory
_MAX_FINDINGS = 10_000  # maximum number of findings per shard
_OBJECT_STORE = "the object store"
_CHANGED = f"The file was changed after it was packed; {AGAIN}"
_UNKNOWN = "Write the list again with known checksums: `flare playlist … --hash xxh3_128 -o FILE`."


@dataclass(frozen=True, slots=True)
class ListEntry:
    """The entry for one file in a list.

    by    address of the list
    rows  row count to compare with the row count of the shard; None if the entry has none, or if
          the main list (the list that determines which shards are checked) already has one
    """

    by: str
    file: File
    rows: int | None = None

    def hashes(self, raw: bool) -> Mapping[str, str]:
        """Return the checksums of the file, or of its decompressed bytes."""
        return self.file.raw_hashes if raw else self.file.hashes


@dataclass(frozen=True, slots=True)
class Depth:
    """Depth of a check.

    quick            check only sizes, and headers of local shards
    decoder          image decoder; if set, all values except pickles are also decoded
    max_value_bytes  a larger value is a finding, and is not decoded
    hash_rows        also hash each row, to find equal rows
    key              column whose values are compared with another stream; empty: none
    listed_sizes     address -> size in bytes, for every file below `listed_below`; None: the size
                     of each file is requested
    listed_below     address of the listed folder, with a final slash
    """

    quick: bool = False
    decoder: Sandbox | None = None
    hash_rows: bool = False
    key: str = ""
    listed_sizes: Mapping[str, int] | None = None
    listed_below: str = ""
    max_value_bytes: int = 0

    @property
    def needs_rows(self) -> bool:
        """Return whether rows must be read after the check of the structure."""
        return self.decoder is not None or self.hash_rows or bool(self.key)

    def size(self, at: Location) -> int:
        """Return the size of a file. Raises MissingError if it does not exist."""
        name = str(at)
        if self.listed_sizes is None or not name.startswith(self.listed_below):
            return at.size()
        if name not in self.listed_sizes:
            raise MissingError("no such file", where=name)
        return self.listed_sizes[name]


@dataclass(slots=True)
class FileResult:
    """Result of checking one file.

    rows, size    numbers of checked rows and bytes
    unprotected   notes about missing checksums
    row_hashes    hash of each row, 16 bytes per row; empty if not requested
    keys          key of each row: large_binary [rows]; None if not requested
    store_hashed  whether only the object store has a checksum of the file
    """

    findings: list[Finding] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    unprotected: list[str] = field(default_factory=list)
    row_hashes: bytes = b""
    keys: pa.Array | None = None
    store_hashed: bool = False


def check_file(at: Location, entries: Sequence[ListEntry], depth: Depth) -> FileResult:
    """Check the size and, unless `quick`, the checksums of a file that is not a shard."""
    result = FileResult()
    with _errors_as_findings(result, at, entries):
        result.size = depth.size(at)
        if not _check_size(at, entries, result) or depth.quick:
            return result
        entries = _with_store_checksums(at, entries, result)
        sums = Sums(_hash_names(at, entries, result))
        for block in at.blocks(result.size):
            sums.update(block)
            count_bytes(len(block))
        _compare(at, sums, entries, "", result)
    return result


def check_chunk(
    chunk: Chunk, entries: Sequence[ListEntry], columns: Columns | None, first: int, depth: Depth
) -> FileResult:
    """Check a shard against its list entries, and then check its structure.

    first  number of the shard's first row in the stream; -1: unknown
    """
    result, at = FileResult(), chunk.at
    with _errors_as_findings(result, at, entries):
        form = formats.find(chunk.format or "")
        result.size = depth.size(at)
        if not _check_size(at, entries, result):
            return result
        compression = "" if form.is_plain else byte_ranges.suffix(chunk)
        if depth.quick:
            # do not read the header if this requires a request or, for a compressed file, all bytes
            if compression or not at.is_local:
                result.rows = chunk.rows or 0
            else:
                _open(form, _of_size(chunk, None), columns, entries, result)
            return result
        entries = _with_store_checksums(at, entries, result)
        rows = f" (rows {first} to {first + chunk.rows - 1})" if first >= 0 and chunk.rows else ""
        if (
            form.checks_forward
            and isinstance(at.store, LocalStore)
            and not (compression or depth.needs_rows)
        ):
            _check_in_one_pass(form, chunk, entries, columns, rows, result)
            return result
        # If the rows are read after the hashing, the progress counts the bytes of the rows and not
        # the hashed bytes.
        with counted(_ignore) if depth.needs_rows else nullcontext():
            hashed = _hash_chunk(chunk, entries, compression, rows, result)
        if hashed is not None:
            shard = _open(form, hashed, columns, entries, result)
            result.findings += _check_structure(form, shard, depth, bool(result.findings))
            if depth.hash_rows and not result.findings:
                result.row_hashes = hash_rows(form, shard)
            if depth.key and not result.findings:
                result.keys = read_keys(form, shard, depth.key)
    return result


@contextmanager
def _errors_as_findings(
    result: FileResult, at: Location, entries: Sequence[ListEntry]
) -> Iterator[None]:
    """Convert an error in the block to a finding, except MissingLibraryError."""
    try:
        yield
    except MissingLibraryError:
        raise
    except FlareError as error:
        finding = finding_of(error, at)
        # the finding for a missing companion file is kept, because it already names that file
        if error.kind == "missing" and error.address in ("", str(at)):
            listed = f", {entries[0].by} lists it" if entries else ""
            finding = Finding(
                str(at), "missing", f"no such file{listed}", f"The file is missing; {AGAIN}"
            )
        if finding not in result.findings:
            result.findings.append(finding)
    except OSError as error:
        check_exhausted(error)
        reason = os.strerror(error.errno).lower() if error.errno else str(error)
        result.findings.append(Finding(str(at), ReachError.kind, reason))


def _ignore(size: int) -> None:
    """Ignore the bytes, so that progress does not count them."""


def _of_size(chunk: Chunk, size: int | None, at: Location | None = None) -> Chunk:
    """Return a copy of a chunk whose first file has the given size and no listed checksums."""
    file = File(chunk.files[0].name, size)
    return replace(chunk, at=at or chunk.at, files=(file, *chunk.files[1:]))


def _open(
    form: formats.Format,
    chunk: Chunk,
    columns: Columns | None,
    entries: Sequence[ListEntry],
    result: FileResult,
) -> Shard:
    """Open a shard, compare its number of rows with the lists, and note missing checksums.

    raises  FlareError if the shard is damaged or cannot be read
    """
    shard = form.open_shard(chunk, columns)
    result.rows = len(shard)
    for entry in entries:
        if entry.rows is not None and entry.rows != result.rows:
            message = f"lists {entry.rows} rows for {chunk.at}, which contains {result.rows}"
            hint = f"The list or the shard was changed; {AGAIN}"
            result.findings.append(Finding(entry.by, "listing", message, hint))
    if not any(entry.file.hashes for entry in entries) and (note := form.unprotected(shard)):
        result.unprotected.append(f"{chunk.at}: {note}")
    return shard


def _check_in_one_pass(
    form: formats.Format,
    chunk: Chunk,
    entries: Sequence[ListEntry],
    columns: Columns | None,
    rows: str,
    result: FileResult,
) -> None:
    """Hash a shard while its structure is checked. Findings about checksums are listed first."""
    at, structure = chunk.at, FileResult()
    sums = Sums(_hash_names(at, entries, result))
    with _errors_as_findings(structure, at, entries):
        with (
            single_pass(at, result.size, sums) as file,
            _errors_as_findings(structure, at, entries),
        ):
            opened = _of_size(chunk, result.size, file)
            shard = _open(form, opened, columns, entries, structure)
            structure.findings += _check_structure(form, shard, Depth(), False)
        _compare(at, sums, entries, rows, result)
    result.rows = structure.rows
    result.findings += structure.findings
    result.unprotected += structure.unprotected


def _check_structure(
    form: formats.Format, shard: Shard, depth: Depth, is_changed: bool
) -> list[Finding]:
    """Check the structure of a shard and, with a decoder, its values. Report each row only once.

    is_changed  whether a checksum differs; if so, the hints state that the file was changed
    """
    decoder = depth.decoder
    found = form.verify_shard(shard, decoder is not None)
    findings = _limited((_with_byte_range(one, shard) for one in found), shard)
    if decoder is not None:
        from flarecli.commands.verifying.decode import decode_values

        reported = {one.where for one in findings}
        values = (
            _with_byte_range(
                replace(one, hint=_CHANGED) if is_changed and one.kind != "large" else one, shard
            )
            for one in decode_values(
                form, shard, decoder, depth.max_value_bytes, is_typed=not findings
            )
        )
        findings += _limited((one for one in values if one.where not in reported), shard)
        findings.sort(key=lambda one: -1 if one.start is None else one.start)
    return findings


def _limited(found: Iterator[Finding], shard: Shard) -> list[Finding]:
    """Return the first _MAX_FINDINGS findings, and one finding in place of all later findings."""
    out = list(islice(found, _MAX_FINDINGS))
    following = next(found, None)
    if following is not None:
        message = f"only the first {_MAX_FINDINGS} findings of this shard are listed"
        out.append(Finding(str(shard.chunk.at), following.kind, message, following.hint))
    return out


def _with_byte_range(finding: Finding, shard: Shard) -> Finding:
    """Add to a finding the byte range of its row, and the address of the file with this range."""
    row = finding.row
    if (
        finding.start is not None
        or row is None
        or row >= shard.rows
        or finding.address != str(shard.chunk.at)
    ):
        return finding
    span = formats.facts(shard.chunk.format).row_span(shard, row, finding.column)
    if span is None:
        return finding
    at, start, stop = span
    return replace(finding, address=str(at), start=start, stop=stop)


def _check_size(at: Location, entries: Sequence[ListEntry], result: FileResult) -> bool:
    """Return whether the size matches all lists; add a finding if it does not."""
    size = result.size
    for entry in entries:
        listed = entry.file.size
        if listed is not None and listed != size:
            reason = "The file was cut short" if size < listed else "The file was replaced"
            message = f"file is {size} bytes, {entry.by} lists {listed}"
            start, stop = min(size, listed), max(size, listed)
            result.findings.append(
                Finding(str(at), "size", message, f"{reason}; {AGAIN}", start=start, stop=stop)
            )
            return False
    return True


def _with_store_checksums(
    at: Location, entries: Sequence[ListEntry], result: FileResult
) -> Sequence[ListEntry]:
    """Add an entry with the checksums from the object store, if flare can compute them."""
    if at.is_local:
        return entries
    from flarecli.storage.cloud.checksums import stored_checksums  # loads cloud libraries

    kept = stored_checksums(at)
    unknown = sorted(set(kept.hashes) - set(known()))
    reason = kept.unavailable
    if unknown and not reason:
        reason = f"{', '.join(unknown)} needs awscrt (pip install 'flarecli[s3sums]')"
    if reason:
        result.unprotected.append(f"checksums of {_OBJECT_STORE} were not compared: {reason}")
    hashes = {name: value for name, value in kept.hashes.items() if name not in unknown}
    if not hashes:
        return entries
    result.store_hashed = not any(entry.file.hashes for entry in entries)
    return [*entries, ListEntry(_OBJECT_STORE, File(at.name, hashes=hashes))]


def _hash_names(
    at: Location, entries: Sequence[ListEntry], result: FileResult, raw: bool = False
) -> list[str]:
    """Return the names of the hashes to compute; add a finding for each unknown name in a list."""
    listed: dict[str, str] = {}
    for entry in entries:
        listed |= dict.fromkeys(entry.hashes(raw), entry.by)
    for name in sorted(set(listed) - set(known())):
        message = f"{listed[name]} lists an unknown checksum {name!r:.60}"
        result.findings.append(Finding(str(at), "checksum", message, _UNKNOWN))
    return [name for name in listed if name in known()]


def _compare(
    at: Location,
    sums: Sums,
    entries: Sequence[ListEntry],
    rows: str,
    result: FileResult,
    raw: bool = False,
) -> bool:
    """Return whether all checksums match the lists; add a finding if a checksum differs.

    rows  row numbers of the shard as text, for the message
    raw   whether to compare the checksums of the decompressed bytes
    """
    failed = [
        (name, entry)
        for entry in entries
        for name in sums.differences(
            {name: value.lower() for name, value in entry.hashes(raw).items()}
        )
    ]
    if not failed:
        return True
    name, entry = failed[0]
    others = ", ".join(f"{name} of {entry.by}" for name, entry in failed[1:])
    message = f"checksum mismatch{' of the decompressed bytes' * raw}{rows}: {name} is {sums.hex()[name]}, {entry.by} lists {entry.hashes(raw)[name]:.128}"
    message += f"; also different: {others}" if others else ""
    result.findings.append(Finding(str(at), "checksum", message, _CHANGED, start=0, stop=sums.size))
    return False


def _hash_chunk(
    chunk: Chunk, entries: Sequence[ListEntry], compression: str, rows: str, result: FileResult
) -> Chunk | None:
    """Hash a shard, compare its checksums, and return the chunk for the structure check.

    The result is None if a checksum of a compressed shard differs. The structure of such a shard is
    not checked.
    """
    at, size = chunk.at, result.size
    sums = Sums(_hash_names(at, entries, result))
    # companion files that are not listed are searched for at the path of the shard
    needs_path = formats.facts(chunk.format).is_multi_file and not chunk.companions
    data: bytes | bytearray | memoryview
    if needs_path or (size > MAX_MEMORY_BYTES and not compression):
        for block in at.blocks(size):
            sums.update(block)
            count_bytes(len(block))
        _compare(at, sums, entries, rows, result)
        return _of_size(chunk, size)
    if compression:
        data = _decompress(chunk, size, entries, compression, sums)
        matches = _compare(at, sums, entries, rows, result)
        raw_sums = Sums(_hash_names(at, entries, result, raw=True))
        raw_sums.update(data)
        if not (_compare(at, raw_sums, entries, rows, result, raw=True) and matches):
            return None
    else:
        data = _read(at, size, sums)
        _compare(at, sums, entries, rows, result)
    return _of_size(chunk, len(data), Location(MemoryStore({"": data}, str(at))))


def _read(at: Location, size: int, sums: Sums) -> memoryview:
    """Read and hash a file. A local file is read in pieces into a buffer that the thread reuses."""
    if not isinstance(at.store, LocalStore):  # read the whole file in one request
        data = at.read(0, size)
        sums.update(data)
        count_bytes(len(data))
        return memoryview(data)
    with single_pass(at, size, sums) as file:
        return memoryview(file.read_many([(0, size)])[0]).toreadonly()


def _decompress(
    chunk: Chunk, size: int, entries: Sequence[ListEntry], compression: str, sums: Sums
) -> bytearray:
    """Read, hash and decompress a file. The listed decompressed size limits the result."""
    raw_size = next(
        (entry.file.raw_size for entry in entries if entry.file.raw_size is not None), None
    )

    def hashed() -> Iterator[bytes]:
        for block in chunk.at.blocks(size) if chunk.at.is_local else [chunk.at.read(0, size)]:
            sums.update(block)
            count_bytes(len(block))
            yield block

    blocks = hashed()
    try:
        return compress.decompress(compression, blocks, raw_size, chunk.at, size)
    finally:
        for _ in blocks:  # bytes after the compressed frame are part of the checksum
            pass
