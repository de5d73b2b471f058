"""Store that reads a remote store through a cache folder.

Ranges of an object are cached as blocks of BLOCK bytes, one file per block. An object that is read
to its end, or mapped after more than half of its blocks were used, is cached as one file, which
replaces the blocks. Each store requests the version of an object once; objects without a version
are not cached. Every copy is verified when a process first uses it. A damaged copy is replaced; a
copy that was damaged twice is not written again.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias, TypeVar

from flarecli.cache import directory
from flarecli.cache.entry import MAX_TRANSIENT_BYTES, CopyHasher, Entry, entry, name_prefix
from flarecli.errors import FormatError, IntegrityError
from flarecli.prefetch import ordered_map
from flarecli.storage import Buffer, Location, Store, Written, large_memory, short_read
from flarecli.storage import Entry as Listed
from flarecli.storage.versions import ObjectPin, Pins, changed

__all__ = ["BLOCK", "Cache", "CachedStore"]

T = TypeVar("T")
Piece: TypeAlias = "bytes | memoryview"
BLOCK = 1 << 20  # size of a block in bytes
_REQUEST_BYTES = 8 << 20  # maximum bytes per request for missing blocks
_FETCH_BYTES = 32 << 20  # bytes per step if a whole object is fetched
_JOBS = 8  # maximum number of parallel requests per read
# An object of at most limit / _WHOLE_SHARE bytes is cached as one file. A larger object that is
# used only once in a run is kept in memory. If there is not enough memory, such an object is cached
# as one file if it has at most limit / _TRANSIENT_SHARE bytes.
_WHOLE_SHARE, _TRANSIENT_SHARE = 4, 2
MAX_OBJECTS = 1 << 16  # maximum number of objects whose used blocks are recorded
# After an attempt to evict copies has failed because all copies are in use, the next attempt is
# made after this delay.
_FULL_S = 1.0


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache folder with a size limit in bytes, used as the `keeper` of a Guard.

    note  function that receives the warnings of this process; if None, they are issued as
          `CacheWarning`

    `close`, or the end of a `with` block, releases the memory maps and file handles of this
    process. The cached files remain in the folder.
    """

    folder: str
    limit: int = 10 * 10**9
    note: Callable[[str], object] | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return Cache, (self.folder, self.limit)

    def close(self) -> None:
        """Release the memory maps and file handles of this process.

        The cache can be used again.
        """
        directory.shared(self.folder, self.limit).close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def over(self, store: Store) -> Store:
        """Return a store that reads a remote store through this cache."""
        return (
            store if store.is_local or isinstance(store, CachedStore) else CachedStore(store, self)
        )


class CachedStore(Store):
    """A remote store that is read through a cache. It can be pickled, and used after a fork."""

    keeps_copies = True

    def __init__(self, store: Store, cache: Cache, maps: bool = True) -> None:
        self.store, self.cache, self._maps, self.guard = store, cache, maps, store.guard
        self._folder = directory.shared(cache.folder, cache.limit)
        self._folder.note = cache.note or self._folder.note
        self._pins = Pins(store.show)
        self._has_versions = True  # False once an object without a version has been found
        self._since = time.time()  # time at which this store was opened
        self._full_until = 0.0  # before this time, `_unused_part` returns None
        self._used: dict[str, set[int]] = {}

    def __reduce__(self) -> tuple[object, ...]:
        return CachedStore, (self.store, self.cache, self._maps)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CachedStore) and (self.store, self.cache) == (
            other.store,
            other.cache,
        )

    def __hash__(self) -> int:
        return hash((self.store, self.cache))

    def close(self) -> None:
        self._pins.clear()
        self._used.clear()
        self.store.close()

    # -- delegated to the remote store

    def show(self, path: str) -> str:
        return self.store.show(path)

    def child(self, path: str, name: str) -> str:
        return self.store.child(path, name)

    def join(self, path: str, url: str) -> Location:
        at = self.store.join(path, url)
        return replace(at, store=self if at.store == self.store else self.cache.over(at.store))

    def write(
        self, path: str, parts: Iterable[Buffer], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        self._pins.drop(path)
        return self.store.write(path, parts, hashes, replace)

    def create(self, path: str, data: bytes) -> None:
        self._pins.drop(path)
        self.store.create(path, data)

    def delete(self, path: str) -> None:
        self._pins.drop(path)
        self.store.delete(path)

    def unmapped(self) -> CachedStore:
        return CachedStore(self.store, self.cache, maps=False)

    @property
    def room(self) -> int:
        """The maximum number of bytes to prefetch; smaller if other processes use the folder."""
        if self._folder.is_alone():
            return max(self.cache.limit * 9 // 10, MAX_TRANSIENT_BYTES)
        return self.cache.limit // 2

    # -- reading

    def version(self, path: str) -> tuple[str, int]:
        """Return the version and the size of an object. Both are requested once per store."""
        pin = self._pins.get(path)
        if pin is None:
            pin = self._pins.pin(path, ObjectPin(*self.store.version(path)))
            self._has_versions = self._has_versions and bool(pin.token)
        return pin.token, pin.size

    def size(self, path: str) -> int:
        pin = self._pins.get(path)
        return self.store.size(path) if pin is None else pin.size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        if start == stop:
            return b""
        return self._retry_if_changed(path, lambda: self._ranges(path, [(start, stop)])[0])

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._retry_if_changed(path, lambda: self._ranges(path, ranges)) if ranges else []

    def _retry_if_changed(self, path: str, call: Callable[[], T]) -> T:
        """Return the result of `call`. If the object has changed, drop its pinned version.

        If `call` itself pinned the version, `call` is run once more. Otherwise, the IntegrityError
        is raised.
        """
        is_new = path not in self._pins
        try:
            return call()
        except IntegrityError:
            self._pins.drop(path)
            if not is_new:
                raise
        return call()

    def _ranges(self, path: str, ranges: Sequence[tuple[int, int | None]]) -> list[bytes]:
        version, size = self.version(path)
        spans = [(start, size if stop is None else stop) for start, stop in ranges]
        last = max(max(span) for span in spans)
        if last > size:
            raise short_read(self.show(path), 0, last, size)
        if not version or self._folder.fd < 0:
            return self.store.read_many(path, spans)
        whole = self._folder.view(self._entry(path, "whole"))
        if whole is not None:
            return [bytes(whole[start:stop]) for start, stop in spans]
        needed = sorted({k for start, stop in spans for k in _block_numbers(start, stop)})
        if len(self._used) >= MAX_OBJECTS:
            self._used.clear()
        self._used.setdefault(path, set()).update(needed)
        blocks = self._blocks(path, needed)
        return [cut_blocks(blocks, start, stop) for start, stop in spans]

    def _address(self, path: str) -> str:
        return path if "://" in path else self.store.show(path)

    def _entry(self, path: str, part: str, size: int | None = None) -> Entry:
        version, object_size = self.version(path)
        origin = self.store.origin
        return entry(
            self._address(path),
            f"{version} {origin}" if origin else version,
            part,
            object_size if size is None else size,
        )

    def _block(self, path: str, k: int) -> Entry:
        size = self.version(path)[1]
        bytes_here = min(BLOCK, size - k * BLOCK)
        return self._entry(
            path, f"{k * BLOCK}+{bytes_here}" if size > BLOCK else "whole", bytes_here
        )

    def _blocks(self, path: str, needed: Sequence[int]) -> dict[int, Piece]:
        """Return a dict from block number to block. Fetch and cache the missing blocks."""
        entries = {k: self._block(path, k) for k in needed}
        blocks = self._kept_blocks(entries)
        missing = [k for k in needed if k not in blocks]
        if not missing:
            return blocks
        with self._folder.turn(entries[missing[0]].key):
            # Another process may have fetched some of the blocks in the meantime.
            blocks |= self._kept_blocks({k: entries[k] for k in missing})
            missing = [k for k in needed if k not in blocks]
            return blocks | self._fetch_blocks(path, missing, entries)

    def _kept_blocks(self, entries: dict[int, Entry]) -> dict[int, Piece]:
        views = {k: self._folder.view(identity) for k, identity in entries.items()}
        return {k: view for k, view in views.items() if view is not None}

    def _fetch_blocks(
        self, path: str, missing: Sequence[int], entries: dict[int, Entry]
    ) -> dict[int, Piece]:
        """Fetch and cache blocks, with a single request for adjacent blocks."""
        runs: list[list[int]] = []
        for k in missing:
            if runs and k == runs[-1][-1] + 1 and len(runs[-1]) * BLOCK < _REQUEST_BYTES:
                runs[-1].append(k)
            else:
                runs.append([k])
        known = _, size = self.version(path)
        parts = {k: self._folder.part(entries[k]) for k in missing}
        try:
            spans = [(run[0] * BLOCK, min(size, (run[-1] + 1) * BLOCK)) for run in runs]
            data = [*ordered_map(lambda span: self.store.read(path, *span), spans, workers=_JOBS)]
            self._check_version(path, known)
            blocks: dict[int, Piece] = {}
            for run, read in zip(runs, data, strict=True):
                for i, k in enumerate(run):
                    blocks[k] = memoryview(read)[i * BLOCK : (i + 1) * BLOCK]
            # The first block is written last, so that other processes find it missing and wait for
            # all blocks.
            for k in reversed(missing):
                part = parts.pop(k)
                if part is not None:
                    write_copy(part, entries[k], [blocks[k]])
            return blocks
        finally:
            for part in parts.values():
                if part is not None:
                    part.drop()

    def map(self, path: str) -> memoryview | None:
        """Map an object that is cached as one file, or return None.

        The whole object is first fetched if it is small, or if more than half of its blocks were
        used.
        """
        if not self._maps:
            return None
        return self._retry_if_changed(path, lambda: self._mapped(path))

    def _mapped(self, path: str) -> memoryview | None:
        version, size = self.version(path)
        if not version or self._folder.fd < 0:
            return None
        view = self._folder.view(self._entry(path, "whole"))
        if view is not None:
            return view
        if size <= BLOCK or 2 * len(self._used.get(path, ())) * BLOCK > size:
            return self._whole(path)
        return None

    def keep(self, path: str, listed: int | None = None, passing: bool = False) -> bool:
        """Fetch a whole object so that it can be mapped; return False if it cannot be cached.

        listed   size of the object in bytes according to a listing, or None. If the size is listed
                 and no copy is cached, the object is fetched without first requesting its version.
        passing  whether the object is used only once in a run. The caller must call `passed` after
                 the use. The object is kept in memory if it is too large for the folder, or if it
                 would evict copies in use. If other processes use the folder, the object is never
                 kept in memory.
        """
        return self._retry_if_changed(path, lambda: self._whole(path, listed, passing) is not None)

    def passed(self, path: str) -> None:
        """Release an object that was fetched by `keep(passing=True)`."""
        self._folder.open_copies.release(name_prefix(self._address(path)))

    def _whole(
        self, path: str, listed: int | None = None, passing: bool = False
    ) -> memoryview | None:
        prefix = name_prefix(self._address(path))
        # An object that this process keeps in memory needs no lock between processes, because no
        # other process can use the object.
        own = passing and time.monotonic() < self._full_until and self._folder.is_alone()
        with self._folder.turn(prefix, "w", lambda: self.version(path), own):
            first = self._first_pieces(path, prefix, listed, passing)
            version, size = self.version(path)
            if not version:
                return None
            identity = self._entry(path, "whole")
            view = None if first else self._folder.view(identity)
            if view is not None:
                return view
            part, is_transient = self._reserve(prefix, identity, passing)
            if part is None and not is_transient:
                return None
            if sum(map(len, first)) != min(size, _FETCH_BYTES):  # the listed size was wrong
                first = []
            numbers = range(-(-size // BLOCK))
            step = _FETCH_BYTES // BLOCK
            start = step if first else 0
            groups = [numbers[i : i + step] for i in range(start, len(numbers), step)]
            pieces = chain(
                first, (piece for group in groups for piece in self._pieces(path, group))
            )
            if part is None:
                return self._in_memory(path, prefix, identity, pieces)
            is_kept = write_copy(part, identity, pieces, open_now=True)
        if is_kept and size > BLOCK and not first:
            for k in numbers:
                self._folder.remove(self._block(path, k).name)
        return self._folder.view(identity) if is_kept else None

    def _reserve(
        self, prefix: str, identity: Entry, passing: bool
    ) -> tuple[directory.PartialFile | None, bool]:
        """Reserve space for a whole copy.

        return  the new `.part` file or None, and whether memory was reserved instead
        """
        copies, limit = self._folder.open_copies, self.cache.limit
        is_once = passing and self._folder.is_alone()
        in_memory = is_once and copies.reserve(prefix, identity.size)
        share = _TRANSIENT_SHARE if is_once and not in_memory else _WHOLE_SHARE
        part = None
        if identity.size <= BLOCK or identity.size * share <= limit:
            part = self._unused_part(identity) if in_memory else self._folder.part(identity)
        if in_memory and part is not None:
            copies.release(prefix)
        return part, in_memory and part is None

    def _in_memory(
        self, path: str, prefix: str, identity: Entry, pieces: Iterable[Piece]
    ) -> memoryview:
        """Read an object into memory, where it remains until `passed` is called."""
        copies = self._folder.open_copies
        try:
            view = join_pieces(pieces, identity.size, self.show(path))
        except BaseException:
            copies.release(prefix)
            raise
        copies.put_transient(identity.name, view)
        return view

    def _unused_part(self, identity: Entry) -> directory.PartialFile | None:
        """Reserve space for a copy; return None if the copy cannot be cached.

        Evict only copies that have not been used since this store was opened. After a failed call,
        all calls in the next _FULL_S seconds also return None.
        """
        now = time.monotonic()
        if now < self._full_until:
            return None
        part = self._folder.part(identity, self._since)
        if part is None:
            self._full_until = now + _FULL_S
        return part

    def _first_pieces(
        self, path: str, prefix: str, listed: int | None, passing: bool
    ) -> list[memoryview]:
        """Read the first _FETCH_BYTES of an uncached object without requesting its version first.

        return  the pieces; an empty list if this is not possible, for example because the version
                is already known, or because the cache folder may contain a copy of the object
        """
        if not listed or path in self._pins or not self._has_versions:
            return []
        is_large = listed * _WHOLE_SHARE > self.cache.limit
        if is_large and not (passing and self._folder.is_alone()):
            return []
        if self._folder.fd < 0 or self._folder.may_have(prefix):
            return []
        with contextlib.suppress(FormatError):  # a later read reports an object that is too short
            views = self.store.views(path, 0, min(listed, _FETCH_BYTES))
            return [memoryview(data) for data in views]
        return []

    def _pieces(self, path: str, group: Sequence[int]) -> list[Piece]:
        """Return the data of adjacent blocks. If any block is not cached, fetch all of them."""
        kept = self._kept_blocks({k: self._block(path, k) for k in group})
        if len(kept) == len(group):
            return [*kept.values()]
        known = self.version(path)
        start, stop = group[0] * BLOCK, min(known[1], (group[-1] + 1) * BLOCK)
        pieces = [memoryview(data) for data in self.store.views(path, start, stop)]
        self._check_version(path, known)
        return [*pieces]

    def _check_version(self, path: str, known: tuple[str, int]) -> None:
        """Raise IntegrityError if the remote store has read another version of the object.

        The remote store may drop the pinned version of an object and read a newer version.

        known  version and size that were known before the read
        """
        if self.store.version(path) != known:
            raise changed(self.show(path))

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Yield bytes 0..size in order; an object that is read to its end is cached as one file."""
        is_new = path not in self._pins
        version, actual_size = self.version(path)
        if not version or actual_size != size or self._folder.fd < 0:
            yield from self.store.blocks(path, size)
            return
        identity = self._entry(path, "whole")
        view = self._folder.view(identity)
        if view is not None:
            yield from (bytes(view[at : at + BLOCK]) for at in range(0, size, BLOCK))
            return
        if size <= BLOCK:
            yield self.read(path, 0, size)
            return
        part = self._folder.part(identity) if size * _WHOLE_SHARE <= self.cache.limit else None
        if part is None:
            yield from self.store.blocks(path, size)
            return
        hasher, is_writable = CopyHasher(identity), True
        try:
            for data in self.store.blocks(path, size):
                hasher.update(data)
                is_writable = is_writable and part.write(data)
                yield data
            self._check_version(path, (version, actual_size))
            if is_writable and hasher.size == size and part.write(hasher.end()):
                part.publish(identity)
        except IntegrityError:
            self._pins.drop(path)
            if not is_new or hasher.size:
                raise
            part.drop()
            yield from self.blocks(path, self.version(path)[1])
        finally:
            part.drop()

    def derived(
        self, path: str, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        if not self.version(path)[0] or size * _WHOLE_SHARE > self.cache.limit:
            return None
        identity = self._entry(path, kind, size)
        view = self._folder.view(identity)
        if view is not None:
            return view
        with self._folder.turn(identity.key, "d"):
            view = self._folder.view(identity)
            part = self._folder.part(identity) if view is None else None
            if part is None:
                return view
            is_kept = write_copy(part, identity, make(), open_now=True)
            return self._folder.view(identity) if is_kept else None

    def list(self, path: str) -> Iterator[Listed]:
        return self.store.list(path)


def write_copy(
    part: directory.PartialFile, identity: Entry, pieces: Iterable[Piece], open_now: bool = False
) -> bool:
    """Write and publish a copy.

    return  False after an error, or if the size is wrong; the copy is then removed
    """
    hasher = CopyHasher(identity)
    try:
        for piece in pieces:
            hasher.update(piece)
            if hasher.size > identity.size or not part.write(piece):
                return False
        if hasher.size != identity.size or not part.write(hasher.end()):
            return False
        return part.publish(identity, open_now)
    finally:
        part.drop()


def join_pieces(pieces: Iterable[Piece], size: int, where: str) -> memoryview:
    """Join pieces in memory. A single piece is returned without copying.

    raises  FormatError if the total size of the pieces is not `size` bytes
    """
    view, at = memoryview(b""), 0
    for piece in pieces:
        if len(piece) >= size:
            view = memoryview(piece)
        elif at + len(piece) <= size:
            view = view or memoryview(large_memory(size))
            view[at : at + len(piece)] = piece
        at += len(piece)
    if at != size:
        raise short_read(where, 0, size, at)
    return view.toreadonly()


def _block_numbers(start: int, stop: int) -> range:
    """Return the numbers of the blocks that contain a range."""
    return range(start // BLOCK, -(-stop // BLOCK) if start < stop else 0)


def cut_blocks(blocks: dict[int, Piece], start: int, stop: int) -> bytes:
    """Return a range of an object from its numbered blocks."""
    return b"".join(
        blocks[k][max(0, start - k * BLOCK) : stop - k * BLOCK] for k in _block_numbers(start, stop)
    )
