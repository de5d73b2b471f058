"""Check one file: size, checksums, then structure, if possible in one pass over its bytes.

A local shard whose format checks it sequentially is hashed at the same time, a window at a time.
Other shards of bounded size are read into memory, hashed and checked there; larger ones are hashed
in blocks and read again as the structure requires.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from flarecli import compress, formats
from flarecli.commands.verifying.byte_ranges import placed
from flarecli.commands.verifying.hints import AGAIN
from flarecli.commands.verifying.rows import keys
from flarecli.errors import (
    FlareError,
    MissingError,
    MissingLibraryError,
    ReachError,
    check_exhausted,
)
from flarecli.formats import byte_ranges as spans
from flarecli.hashes import Sums, known
from flarecli.model import Chunk, Columns, File, Finding, Shard, finding_of
from flarecli.storage import Location
from flarecli.storage.local import LocalStore
from flarecli.storage.memory import MemoryStore
from flarecli.storage.single_pass import in_passing

if TYPE_CHECKING:
    from flarecli.media import Sandbox

__all__ = ["HELD", "Checked", "Claim", "Depth", "check_chunk", "check_file", "unread"]

_STORE = "the object store"
HELD = 256 << 20  # maximum bytes of a shard in memory
_UNKNOWN = (
    "Write the list again with sums that are known: `flare playlist … --hash xxh3_128 -o FILE`."
)
_CHANGED = f"It was changed after it was packed; {AGAIN}"
_MANY = 10_000  # maximum findings of one shard


@dataclass(frozen=True, slots=True)
class Claim:
    """The entry of a list for a file; `by` is the address of the list, `rows` a row count that the
    list in use lacks.
    """

    by: str
    file: File
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Depth:
    """Depth of a check.

    quick     check only sizes, and headers of local shards
    pictures  decoders of images: decode all values except pickles too
    contents  hash each row too, to find equal rows
    key       keep this column, to compare it with another stream; empty: none
    sizes     address -> bytes of every file below `below`, listed by the store; None: request each
              size
    """

    quick: bool = False
    pictures: Sandbox | None = None
    contents: bool = False
    key: str = ""
    sizes: Mapping[str, int] | None = None
    below: str = ""

    @property
    def needs_rows(self) -> bool:
        """Whether rows are read after the check of the structure."""
        return self.pictures is not None or self.contents or bool(self.key)

    def size(self, at: Location) -> int:
        """Return the size of a file. Raises MissingError if it does not exist."""
        name = str(at)
        if self.sizes is None or not name.startswith(self.below):
            return at.size()
        if name not in self.sizes:
            raise MissingError("no such file", where=name)
        return self.sizes[name]


@dataclass(slots=True)
class Checked:
    """Result of checking one file: checked `rows` and bytes (`size`); `unprotected` are notes about
    missing checksums.

    contents  16 bytes per row, if requested
    keys      large_binary [rows], if requested
    is_kept   the checksum kept by the store matches, and no list has one
    """

    findings: list[Finding] = field(default_factory=list)
    rows: int = 0
    size: int = 0
    unprotected: list[str] = field(default_factory=list)
    contents: bytes = b""
    keys: Any = None
    is_kept: bool = False


def unread(error: OSError, at: Location) -> Finding:
    """Return the finding for an OSError about a file or folder."""
    check_exhausted(error)
    what = os.strerror(error.errno).lower() if error.errno else str(error)
    return Finding(str(at), ReachError.kind, what)


def check_file(at: Location, claims: Sequence[Claim], depth: Depth) -> Checked:
    """Check a file that is not a shard, such as `index.json`: its size and, unless `quick`, its
    checksums.
    """
    out = Checked()
    try:
        size = out.size = depth.size(at)
        if not _fits(at, size, claims, out) or depth.quick:
            return out
        claims = _with_kept(at, claims, out)
        sums = Sums(_names(claims, at, out))
        for block in at.blocks(size):
            sums.update(block)
        _compare(at, sums, claims, "", out)
    except MissingLibraryError:
        raise
    except FlareError as error:
        out.findings.append(_named(error, at, claims))
    except OSError as error:
        out.findings.append(unread(error, at))
    return out


def check_chunk(
    chunk: Chunk, claims: Sequence[Claim], columns: Columns | None, first_row: int, depth: Depth
) -> Checked:
    """Check a shard against its list entries, then its structure.

    first_row  its first row in the stream; -1: not known
    """
    out, at = Checked(), chunk.at
    try:
        form = formats.find(chunk.format or "")
        size = out.size = depth.size(at)
        if not _fits(at, size, claims, out):
            return out
        # reading a header would need one more request per shard
        if depth.quick and not at.is_local:
            out.rows = chunk.rows or 0
            return out
        kind = "" if form.is_plain else spans.suffix(chunk)
        if depth.quick:
            if kind:
                out.rows = chunk.rows or 0  # the header is compressed too
            else:
                _open(
                    form,
                    replace(chunk, files=(File(chunk.files[0].name), *chunk.files[1:])),
                    columns,
                    claims,
                    out,
                )
            return out
        claims = _with_kept(at, claims, out)
        if (
            form.checks_forward
            and isinstance(at.store, LocalStore)
            and not (kind or depth.needs_rows)
        ):
            _once(form, chunk, size, claims, columns, first_row, out)
            return out
        held = _summed(chunk, size, claims, kind, first_row, out)
        if held is not None:
            shard = _open(form, held, columns, claims, out)
            out.findings += _structure(form, shard, depth.pictures, bool(out.findings))
            if depth.contents and not out.findings:
                from flarecli.commands.verifying.duplicates import contents

                out.contents = contents(form, shard)
            if depth.key and not out.findings:
                out.keys = keys(form, shard, depth.key)
    except MissingLibraryError:
        raise
    except FlareError as error:
        out.findings.append(_named(error, at, claims))
    except OSError as error:
        out.findings.append(unread(error, at))
    return out


def _open(
    form: formats.Format,
    held: Chunk,
    columns: Columns | None,
    claims: Sequence[Claim],
    out: Checked,
) -> Shard:
    """Open a shard, and note what of it has no checksums. Raises FlareError."""
    shard = form.open_shard(held, columns)
    out.rows = len(shard)
    for claim in claims:
        if claim.rows is not None and claim.rows != out.rows:
            out.findings.append(
                Finding(
                    claim.by,
                    "listing",
                    f"lists {claim.rows} rows for {held.at}, it holds {out.rows}",
                    f"One of the two was changed; {AGAIN}",
                )
            )
    if not any(claim.file.hashes for claim in claims) and (said := form.unprotected(shard)):
        out.unprotected.append(f"{held.at}: {said}")
    return shard


def _once(
    form: formats.Format,
    chunk: Chunk,
    size: int,
    claims: Sequence[Claim],
    columns: Columns | None,
    first_row: int,
    out: Checked,
) -> None:
    """Hash a shard while its structure is checked; findings about checksums are first. Raises
    MissingLibraryError.
    """
    at, found = chunk.at, list[Finding]()
    sums = Sums(_names(claims, at, out))
    try:
        with in_passing(at, size, sums) as file:
            try:
                shard = _open(
                    form,
                    replace(
                        chunk, at=file, files=(File(chunk.files[0].name, size), *chunk.files[1:])
                    ),
                    columns,
                    claims,
                    out,
                )
                found += _structure(form, shard, None, False)
            except MissingLibraryError:
                raise
            except FlareError as error:
                found.append(_named(error, at, claims))
    except MissingLibraryError:
        raise
    except FlareError as error:  # it could not be read completely
        found += [one for one in [_named(error, at, claims)] if one not in found]
    else:
        _compare(at, sums, claims, _rows(chunk, first_row), out)
    out.findings += found


def _structure(
    form: formats.Format, shard: Shard, pictures: Sandbox | None, is_changed: bool
) -> list[Finding]:
    """Check the structure of a shard and, if requested, its values; report a row once.
    `is_changed`: by its checksums.
    """
    found = [
        placed(one, shard) for one in islice(form.verify_shard(shard, pictures is not None), _MANY)
    ]
    if pictures is not None:
        from flarecli.commands.verifying.decode import decoded

        known = {one.where for one in found}
        values = (
            placed(replace(one, hint=_CHANGED) if is_changed else one, shard)
            for one in decoded(form, shard, pictures, not found)
        )
        found += islice((one for one in values if one.where not in known), _MANY)
        found.sort(key=lambda one: -1 if one.start is None else one.start)
    return found


def _named(error: FlareError, at: Location, claims: Sequence[Claim]) -> Finding:
    if error.kind == "missing" and error.address in ("", str(at)):  # not of a companion
        listed = f", {claims[0].by} lists it" if claims else ""
        return Finding(str(at), "missing", f"no such file{listed}", "It is gone; " + AGAIN)
    return finding_of(error, at)


def _fits(at: Location, size: int, claims: Sequence[Claim], out: Checked) -> bool:
    """Return whether the size matches the list; otherwise it is the only finding of the file."""
    for claim in claims:
        if claim.file.size is not None and claim.file.size != size:
            hint = (
                f"It was cut short; {AGAIN}"
                if size < claim.file.size
                else f"It is not the file that was listed; {AGAIN}"
            )
            out.findings.append(
                Finding(
                    str(at),
                    "size",
                    f"is {size} bytes, {claim.by} lists {claim.file.size}",
                    hint,
                    start=min(size, claim.file.size),
                    stop=max(size, claim.file.size),
                )
            )
            return False
    return True


def _with_kept(at: Location, claims: Sequence[Claim], out: Checked) -> Sequence[Claim]:
    """Add the checksums that the store keeps of an object, if they can be computed here."""
    if at.is_local:
        return claims
    from flarecli.storage.cloud.checksums import kept_sums  # loads the libraries of buckets

    kept = kept_sums(at)
    strange = sorted(set(kept.hashes) - set(known()))
    if kept.why_not:
        out.unprotected.append(f"sums kept by {_STORE} were not looked at: {kept.why_not}")
    elif strange:
        out.unprotected.append(
            f"sums kept by {_STORE} were not looked at: {', '.join(strange)} takes awscrt (pip install 'flarecli[s3sums]')"
        )
    hashes = {name: value for name, value in kept.hashes.items() if name not in strange}
    out.is_kept = bool(hashes) and not any(claim.file.hashes for claim in claims)
    return [*claims, Claim(_STORE, File(at.name, hashes=hashes))] if hashes else claims


def _names(claims: Sequence[Claim], at: Location, out: Checked, raw: bool = False) -> list[str]:
    """Return the hashes to compute; an unknown listed hash is a finding."""
    listed: dict[str, str] = {}
    for claim in claims:
        listed |= dict.fromkeys(_hashes(claim, raw), claim.by)
    for name in sorted(set(listed) - set(known())):
        out.findings.append(
            Finding(
                str(at),
                "checksum",
                f"{listed[name]} lists a sum {name!r:.60}, which is not known here",
                _UNKNOWN,
            )
        )
    return [name for name in listed if name in known()]


def _hashes(claim: Claim, raw: bool) -> Mapping[str, str]:
    return claim.file.raw_hashes if raw else claim.file.hashes


def _compare(
    at: Location, sums: Sums, claims: Sequence[Claim], rows: str, out: Checked, raw: bool = False
) -> bool:
    """Return whether all checksums match the list; add findings for others."""
    failed = [
        (name, claim)
        for claim in claims
        for name in sums.differences(
            {name: value.lower() for name, value in _hashes(claim, raw).items()}
        )
    ]
    if failed:
        what = f"{sums.size} bytes{' when decompressed' if raw else ''}{rows} fail {', '.join(f'{name} of {claim.by}' for name, claim in failed)}"
        name, claim = failed[0]
        seen = f"{name} is {sums.hex()[name]}, {_hashes(claim, raw)[name]:.128} is listed"
        out.findings.append(
            Finding(str(at), "checksum", f"{what}: {seen}", _CHANGED, start=0, stop=sums.size)
        )
    return not failed


def _summed(
    chunk: Chunk, size: int, claims: Sequence[Claim], kind: str, first_row: int, out: Checked
) -> Chunk | None:
    """Hash a shard; return it if its structure can be checked, else None."""
    at, rows = chunk.at, _rows(chunk, first_row)
    sums = Sums(_names(claims, at, out))
    data: bytes | bytearray | memoryview
    if kind and not _is_alone(chunk):
        data = _decompressed(chunk, size, claims, kind, sums)
        whole = _compare(at, sums, claims, rows, out)
        raw = Sums(_names(claims, at, out, raw=True))
        raw.update(data)
        if not (_compare(at, raw, claims, rows, out, raw=True) and whole):
            return None
    elif size > HELD or _is_alone(chunk):
        for block in at.blocks(size):
            sums.update(block)
        _compare(at, sums, claims, rows, out)
        return replace(chunk, files=(File(chunk.files[0].name, size), *chunk.files[1:]))
    else:
        data = _read(at, size, sums)
        _compare(at, sums, claims, rows, out)
    return replace(
        chunk,
        at=Location(MemoryStore({"": data}, str(at))),
        files=(File(chunk.files[0].name, len(data)), *chunk.files[1:]),
    )


def _is_alone(chunk: Chunk) -> bool:
    """Return whether the companions of a shard are not listed; they are then found by its path."""
    return formats.facts(chunk.format).is_multi_file and not chunk.beside


def _rows(chunk: Chunk, first_row: int) -> str:
    return (
        f" (rows {first_row} to {first_row + chunk.rows - 1})"
        if first_row >= 0 and chunk.rows
        else ""
    )


def _read(at: Location, size: int, sums: Sums) -> memoryview:
    """Read and hash a file; a local one in pieces, into a buffer that the thread reuses."""
    if not isinstance(at.store, LocalStore):  # a single request
        data = at.read(0, size)
        sums.update(data)
        return memoryview(data)
    with in_passing(at, size, sums) as file:
        return memoryview(file.read_many([(0, size)])[0]).toreadonly()


def _decompressed(
    chunk: Chunk, size: int, claims: Sequence[Claim], kind: str, sums: Sums
) -> bytearray:
    raw_size = next(
        (claim.file.raw_size for claim in claims if claim.file.raw_size is not None), None
    )

    def hashed() -> Iterator[bytes]:
        for block in chunk.at.blocks(size) if chunk.at.is_local else [chunk.at.read(0, size)]:
            sums.update(block)
            yield block

    blocks = hashed()
    try:
        return compress.decompress(kind, blocks, raw_size, chunk.at, size)
    finally:
        for _ in blocks:  # bytes after the compressed frame are part of the checksum
            pass
