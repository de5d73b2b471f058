"""A store in front of a remote store that reads fetched data from the cache folder.

Ranges of an object are kept as blocks of BLOCK bytes, one file each. An object that is read to its
end, or mapped after half of its blocks were used, is kept as one file, which replaces the blocks.
Each process requests the version of an object once; objects without a version are not kept. Every
copy is checked when a process first uses it; a damaged copy is fetched again, once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TypeAlias, TypeVar

from flarecli.cache import directory
from flarecli.cache.entry import Entry, Summing, entry, place_of
from flarecli.errors import FormatError, IntegrityError
from flarecli.prefetch import ordered_map
from flarecli.storage import Entry as Listed
from flarecli.storage import Location, Part, Store, Written
from flarecli.storage.versions import ObjectPin, Pins

__all__ = ["BLOCK", "Cache", "CachedStore"]

T = TypeVar("T")
Piece: TypeAlias = "bytes | memoryview"
BLOCK = 1 << 20  # bytes of a block
_RUN = 8 << 20  # maximum bytes per request
_AT_ONCE = 32 << 20  # bytes of a whole object that are requested at a time
_JOBS = 8  # parallel requests of one read
_WORTH = 1 << 16  # minimum size of a copy for which to wait while another process fetches it
_SHARE = 4  # objects above limit / _SHARE are kept as blocks; in memory if used once in a run, or
_PASSES = 2  # in the folder up to limit / _PASSES if memory is used up
MAX_OBJECTS = 1 << 16  # objects whose used blocks are recorded
_FULL_S = 1.0  # how long a folder is assumed to have no older copies


@dataclass(frozen=True, slots=True)
class Cache:
    """A cache folder with a size limit in bytes, used as the `keeper` of a Guard.

    note  receives the texts of warnings in this process; None: they are issued as `CacheWarning`

    Copies stay in the folder; `close`, or the end of a `with` block, releases the maps and handles
    of this process.
    """

    folder: str
    limit: int = 10 * 10**9
    note: Callable[[str], object] | None = field(default=None, compare=False, repr=False)

    def __reduce__(self) -> tuple[object, ...]:
        return Cache, (self.folder, self.limit)

    def close(self) -> None:
        """Release the maps and handles of this process; the cache can be used again."""
        directory.shared(self.folder, self.limit).close()

    def __enter__(self) -> Cache:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def over(self, store: Store) -> Store:
        """Return a remote store with the cache in front of it."""
        return (
            store if store.is_local or isinstance(store, CachedStore) else CachedStore(store, self)
        )


class CachedStore(Store):
    """A remote store that is read through a cache. Picklable, and usable after a fork."""

    keeps_copies = True

    def __init__(self, store: Store, cache: Cache, maps: bool = True) -> None:
        self.store, self.cache, self._maps, self.guard = store, cache, maps, store.guard
        self._folder = directory.shared(cache.folder, cache.limit)
        self._folder.note = cache.note or self._folder.note
        self._pins = Pins(store.show)
        self._tells = True  # False once an object without a version was found
        self._since = time.time()  # when the store was opened
        self._full = 0.0  # until when the folder is assumed to have no copies older than that
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

    # -- passed on to the store

    def show(self, path: str) -> str:
        return self.store.show(path)

    def child(self, path: str, name: str) -> str:
        return self.store.child(path, name)

    def join(self, path: str, url: str) -> Location:
        at = self.store.join(path, url)
        return replace(at, store=self if at.store == self.store else self.cache.over(at.store))

    def write(
        self, path: str, parts: Iterable[Part], hashes: Iterable[str] = (), replace: bool = True
    ) -> Written:
        self._pins.drop(path)
        return self.store.write(path, parts, hashes, replace)

    def delete(self, path: str) -> None:
        self._pins.drop(path)
        self.store.delete(path)

    def unmapped(self) -> CachedStore:
        """Give the same files, never mapped."""
        return CachedStore(self.store, self.cache, maps=False)

    @property
    def room(self) -> int:
        """Bytes that a run may have fetched ahead and not passed yet: less where other processes
        use the folder, and may lag behind this one.
        """
        return (
            max(self.cache.limit * 9 // 10, self._folder.views.most_passing)
            if self._folder.is_alone()
            else self.cache.limit // 2
        )

    # -- reading

    def version(self, path: str) -> tuple[str, int]:
        """Give what tells this version of a file from others, or empty, and its bytes.

        It is asked for once.
        """
        pin = self._pins.get(path)
        if pin is None:
            pin = self._pins.pin(path, ObjectPin(*self.store.version(path)))
            self._tells = self._tells and bool(pin.token)
        return pin.token, pin.size

    def size(self, path: str) -> int:
        pin = self._pins.get(path)
        return self.store.size(path) if pin is None else pin.size

    def read(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        return (
            b""
            if start == stop
            else self._of_one_version(path, lambda: self._ranges(path, [(start, stop)])[0])
        )

    def read_many(self, path: str, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        return self._of_one_version(path, lambda: self._ranges(path, ranges)) if ranges else []

    def _of_one_version(self, path: str, call: Callable[[], T]) -> T:
        """Read; what has changed since its version was asked for is begun again, unless something
        was given before.
        """
        fresh = path not in self._pins
        try:
            return call()
        except IntegrityError:
            self._pins.drop(path)
            if not fresh:
                raise
        return call()

    def _ranges(self, path: str, ranges: Sequence[tuple[int, int | None]]) -> list[bytes]:
        version, size = self.version(path)
        wanted = [(start, size if stop is None else stop) for start, stop in ranges]
        past = max(max(pair) for pair in wanted)
        if past > size:
            message = f"ends at byte {size}, {past} are needed"
            raise FormatError(
                message,
                where=self.show(path),
                hint="The file was cut short; fetch or pack it again.",
            )
        if not version or self._folder.fd < 0:
            return self.store.read_many(path, wanted)
        whole = self._folder.view(self._entry(path, "whole"))
        if whole is not None:
            return [bytes(whole[start:stop]) for start, stop in wanted]
        needed = sorted(
            {
                k
                for start, stop in wanted
                if start < stop
                for k in range(start // BLOCK, (stop - 1) // BLOCK + 1)
            }
        )
        if len(self._used) >= MAX_OBJECTS:
            self._used.clear()
        self._used.setdefault(path, set()).update(needed)
        blocks = self._blocks(path, needed)
        return [cut_blocks(blocks, BLOCK, start, stop) for start, stop in wanted]

    def _address(self, path: str) -> str:
        return path if "://" in path else self.store.show(path)

    def _entry(self, path: str, part: str, size: int | None = None) -> Entry:
        version, whole = self.version(path)
        address = self._address(path)
        origin = self.store.origin
        return entry(
            address,
            f"{version} {origin}" if origin else version,
            part,
            whole if size is None else size,
        )

    def _block(self, path: str, k: int) -> Entry:
        size = self.version(path)[1]
        bytes_here = min(BLOCK, size - k * BLOCK)
        return self._entry(
            path, f"{k * BLOCK}+{bytes_here}" if size > BLOCK else "whole", bytes_here
        )

    def _blocks(self, path: str, needed: Sequence[int]) -> dict[int, bytes | memoryview]:
        """Return blocks by number; missing ones are fetched, adjacent ones together, and kept."""
        found: dict[int, bytes | memoryview] = {}
        names = {k: self._block(path, k) for k in needed}
        for k, one in names.items():
            view = self._folder.view(one)
            if view is not None:
                found[k] = view
        missing = [k for k in needed if k not in found]
        if not missing:
            return found
        if len(missing) * BLOCK < _WORTH:
            return found | self._fetched(path, missing, names)
        with self._folder.turn(names[missing[0]].key):
            for k in list(missing):  # another process may have fetched it
                view = self._folder.view(names[k])
                if view is not None:
                    found[k] = view
                    missing.remove(k)
            return found | self._fetched(path, missing, names)

    def _fetched(
        self, path: str, missing: Sequence[int], names: dict[int, Entry]
    ) -> dict[int, bytes | memoryview]:
        runs: list[list[int]] = []
        for k in missing:
            if runs and k == runs[-1][-1] + 1 and len(runs[-1]) * BLOCK < _RUN:
                runs[-1].append(k)
            else:
                runs.append([k])
        known = _, size = self.version(path)
        parts = {k: self._folder.part(names[k]) for k in missing}
        try:
            spans = [(run[0] * BLOCK, min(size, (run[-1] + 1) * BLOCK)) for run in runs]
            data = [*ordered_map(lambda span: self.store.read(path, *span), spans, workers=_JOBS)]
            self._hold(path, known)
            out: dict[int, bytes | memoryview] = {}
            for run, read in zip(runs, data, strict=True):
                out.update(
                    (k, memoryview(read)[i * BLOCK : (i + 1) * BLOCK]) for i, k in enumerate(run)
                )
            # The first block is written last: until then others find it missing and wait.
            for k in reversed(missing):
                part = parts.pop(k)
                if part is not None:
                    write_copy(part, names[k], [out[k]])
            return out
        finally:
            for part in parts.values():
                if part is not None:
                    part.drop()

    def map(self, path: str) -> memoryview | None:
        """Map an object that is kept whole; fetch it if it is small or half of it was used."""
        if not self._maps:
            return None
        return self._of_one_version(path, lambda: self._mapped(path))

    def _mapped(self, path: str) -> memoryview | None:
        version, size = self.version(path)
        if not version or self._folder.fd < 0:
            return None
        one = self._entry(path, "whole")
        view = self._folder.view(one)
        if view is not None:
            return view
        if size <= BLOCK or 2 * len(self._used.get(path, ())) * BLOCK > size:
            return self._whole(path)
        return None

    def keep(self, path: str, listed: int | None = None, passing: bool = False) -> bool:
        """Fetch an object whole, so that it can be mapped; False if it cannot be kept.

        listed   its size according to a listing, or None; saves a request for the version of an
                 object that was never kept
        passing  the object is used once in a run, and `passed` is called afterwards. It is kept in
                 memory and evicts nothing, if no other process uses the folder and the folder is
                 small or full of copies that are in use
        """
        return self._of_one_version(path, lambda: self._whole(path, listed, passing) is not None)

    def passed(self, path: str) -> None:
        """Release an object that was kept with `passing`."""
        self._folder.views.passed(place_of(self._address(path)))

    def _whole(
        self, path: str, listed: int | None = None, passing: bool = False
    ) -> memoryview | None:
        place = place_of(self._address(path))
        # A copy in memory is of no use to other processes, so they need not wait for it.
        own = passing and time.monotonic() < self._full and self._folder.is_alone()
        with self._folder.turn(place, "w", lambda: self.version(path), own):
            head = self._head(path, place, listed, passing)
            version, size = self.version(path)
            if not version:
                return None
            one = self._entry(path, "whole")
            view = self._folder.view(one) if not head else None
            if view is not None:
                return view
            part, holds = self._place(place, one, passing)
            if part is None and not holds:
                return None
            numbers = range(-(-size // BLOCK))
            groups = [
                list(numbers[i : i + _AT_ONCE // BLOCK])
                for i in range(0, len(numbers), _AT_ONCE // BLOCK)
            ]
            if sum(map(len, head)) != min(size, _AT_ONCE):  # its size differs from the listing
                head = []
            came = chain(
                head,
                (piece for group in groups[bool(head) :] for piece in self._pieces(path, group)),
            )
            if part is None:
                return self._held(path, place, one, came)
            done = write_copy(part, one, came, at_hand=True)
        if done and size > BLOCK and not head:
            for k in numbers:
                self._folder.remove(self._block(path, k).name)
        return self._folder.view(one) if done else None

    def _place(self, place: str, one: Entry, passing: bool) -> tuple[directory.Part | None, bool]:
        """Reserve space for a whole copy: a part in the folder, or memory if the second result is
        True.
        """
        views = self._folder.views
        is_passed = passing and self._folder.is_alone()
        holds = is_passed and views.reserve(place, one.size)
        fits = (
            one.size <= BLOCK
            or one.size * (_PASSES if is_passed and not holds else _SHARE) <= self.cache.limit
        )
        part = None if not fits else self._part(one) if holds else self._folder.part(one)
        if holds and part is not None:
            views.passed(place)
        return part, holds and part is None

    def _held(
        self, path: str, place: str, one: Entry, came: Iterable[bytes | memoryview]
    ) -> memoryview:
        views = self._folder.views
        try:
            view = join_pieces(came, one.size, views.room, self.show(path))
        except BaseException:
            views.passed(place)
            raise
        views.hold(one.name, view)
        return view

    def _part(self, one: Entry) -> directory.Part | None:
        """Reserve space for a copy; evict only copies last used before this store was opened."""
        now = time.monotonic()
        part = self._folder.part(one, self._since) if now >= self._full else None
        if part is None and now >= self._full:
            self._full = now + _FULL_S
        return part

    def _head(self, path: str, place: str, listed: int | None, passing: bool) -> list[memoryview]:
        """Read the first _AT_ONCE bytes of an object that is not in the cache.

        The response includes the version. Return an empty list for other objects.
        """
        if not listed or path in self._pins or not self._tells:
            return []
        if listed * _SHARE > self.cache.limit and not (passing and self._folder.is_alone()):
            return []
        if self._folder.fd < 0 or self._folder.may_hold(place):
            return []
        with contextlib.suppress(FormatError):  # shorter than listed: reported when it is read
            return [memoryview(data) for data in self.store.views(path, 0, min(listed, _AT_ONCE))]
        return []

    def _pieces(self, path: str, group: Sequence[int]) -> list[bytes | memoryview]:
        """Return a group of adjacent blocks, from the cache if all of them are there."""
        kept = {k: self._folder.view(self._block(path, k)) for k in group}
        missing = [k for k in group if kept[k] is None]
        if not missing:
            return [view for view in kept.values() if view is not None]
        known = self.version(path)
        start, stop = group[0] * BLOCK, min(known[1], (group[-1] + 1) * BLOCK)
        pieces = [memoryview(data) for data in self.store.views(path, start, stop)]
        self._hold(path, known)
        return [*pieces]

    def _hold(self, path: str, known: tuple[str, int]) -> None:
        """Check that data is of the version that copies are named after.

        The store may have dropped its pin of the object and read a newer version.
        """
        if self.store.version(path) != known:
            raise IntegrityError(
                "changed while it was read", where=self.show(path), hint="Run the command again."
            )

    def blocks(self, path: str, size: int) -> Iterator[bytes]:
        """Read bytes 0..size in order; an object read to its end is kept whole."""
        fresh = path not in self._pins
        version, found = self.version(path)
        one = self._entry(path, "whole")
        if not version or found != size or self._folder.fd < 0:
            yield from self.store.blocks(path, size)
            return
        view = self._folder.view(one)
        if view is None and size <= BLOCK:
            yield self.read(path, 0, size)
            return
        if view is not None:
            yield from (bytes(view[at : at + BLOCK]) for at in range(0, size, BLOCK))
            return
        part = self._folder.part(one) if size * _SHARE <= self.cache.limit else None
        if part is None:
            yield from self.store.blocks(path, size)
            return
        sums, goes_on = Summing(one), True
        try:
            for data in self.store.blocks(path, size):
                sums.update(data)
                goes_on = goes_on and part.write(data)
                yield data
            self._hold(path, (version, found))
            if goes_on and sums.size == size and part.write(sums.end()):
                part.publish(one)
        except IntegrityError:
            self._pins.drop(path)
            if not fresh or sums.size:
                raise
            part.drop()
            yield from self.blocks(path, self.version(path)[1])
        finally:
            part.drop()

    def derived(
        self, path: str, kind: str, size: int, make: Callable[[], Iterable[bytes | memoryview]]
    ) -> memoryview | None:
        """Map data derived from an object, such as its decompressed bytes.

        kind    how it is derived, such as `zstd`
        size    bytes of the derived data
        make    returns the derived data; called if it is not in the cache
        return  None if it cannot be kept; `make` is not called then
        """
        if not self.version(path)[0] or size * _SHARE > self.cache.limit:
            return None
        one = self._entry(path, kind, size)
        view = self._folder.view(one)
        if view is not None:
            return view
        with self._folder.turn(one.key, "d"):
            view = self._folder.view(one)
            part = self._folder.part(one) if view is None else None
            if part is None:
                return view
            return self._folder.view(one) if write_copy(part, one, make(), at_hand=True) else None

    def list(self, path: str) -> Iterator[Listed]:
        return self.store.list(path)


def write_copy(
    part: directory.Part, one: Entry, pieces: Iterable[Piece], at_hand: bool = False
) -> bool:
    """Write and publish a copy; on an error or another size, remove it and return False."""
    sums = Summing(one)
    try:
        for piece in pieces:
            sums.update(piece)
            if sums.size > one.size or not part.write(piece):
                return False
        return sums.size == one.size and part.write(sums.end()) and part.publish(one, at_hand)
    finally:
        part.drop()


def join_pieces(
    pieces: Iterable[Piece], size: int, room: Callable[[int], memoryview], where: str
) -> memoryview:
    """Join pieces in memory; a single piece is not copied.

    room    returns a buffer of a size
    raises  FormatError if they are not `size` bytes
    """
    view, at = memoryview(b""), 0
    for piece in pieces:
        if len(piece) >= size:
            view = memoryview(piece)
        elif at + len(piece) <= size:
            view = view or room(size)
            view[at : at + len(piece)] = piece
        at += len(piece)
    if at != size:
        raise FormatError(f"ends at byte {at}, {size} are needed", where=where)
    return view.toreadonly()


def cut_blocks(blocks: dict[int, Piece], size: int, start: int, stop: int) -> bytes:
    """Join a range from numbered blocks of `size` bytes."""
    touched = range(start // size, -(-stop // size) if start < stop else 0)
    return b"".join(blocks[k][max(0, start - k * size) : stop - k * size] for k in touched)
