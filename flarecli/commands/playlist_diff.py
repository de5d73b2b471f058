"""Comparison of two playlists.

Two chunks match if they have the same address, or the same path relative to their playlists.
Therefore, a copy of a dataset can be compared with the original.
"""

from __future__ import annotations

import os
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple, TypeAlias

from flarecli.model import File, Playlist, Stream
from flarecli.names import bare, local_path, scheme_of
from flarecli.read import resolve
from flarecli.redact import redact, without_user
from flarecli.storage import Guard, Location, with_reach
from flarecli.storage.local import LocalStore

__all__ = ["PlaylistDiff", "diff_playlists"]

_Facts: TypeAlias = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class PlaylistDiff:
    """Differences between two playlists.

    added    chunks that only the second playlist lists
    removed  chunks that only the first playlist lists
    changed  chunks that the playlists list with different columns, rows, bytes or checksums
    """

    added: tuple[str, ...]
    removed: tuple[str, ...]
    changed: tuple[str, ...]


class _Listed(NamedTuple):
    """A listed chunk.

    url       address as listed
    absolute  absolute address
    relative  path relative to the folder of the playlist; empty if outside this folder
    """

    stream: str
    url: str
    absolute: str
    relative: str
    facts: _Facts
    i: int


def diff_playlists(a: str, b: str, guard: Guard | None = None) -> PlaylistDiff:
    """Compare the lists at two addresses chunk by chunk, without opening chunks.

    return  chunks as `ADDRESS`, or as `STREAM: ADDRESS` if there are several streams, without
            secrets; removed chunks are in the order of `a`, all others in the order of `b`
    raises  the errors of `resolve`
    """
    guard = with_reach(guard or Guard(), sources=[a, b])
    old, new = (_listed(resolve([address], guard=guard)[0]) for address in (a, b))
    several = len({listed.stream for listed in chain(old, new)}) > 1
    pairs = _pairs(old, new)
    matched = set(pairs.values())

    def shown(listed: _Listed) -> str:
        return f"{listed.stream}: {redact(listed.url)}" if several else redact(listed.url)

    return PlaylistDiff(
        tuple(shown(listed) for k, listed in enumerate(new) if k not in pairs),
        tuple(shown(listed) for k, listed in enumerate(old) if k not in matched),
        tuple(
            shown(listed)
            for k, listed in enumerate(new)
            if k in pairs and _differ(old[pairs[k]], listed)
        ),
    )


def _listed(playlist: Playlist) -> list[_Listed]:
    out = []
    for stream in playlist.streams:
        facts, base = _facts(stream), _base(stream.at)
        for i, url in enumerate(stream.urls):
            absolute = _absolute(url, base)
            relative = absolute[len(base) :] if absolute.startswith(base) else ""
            out.append(_Listed(stream.name, url, absolute, relative, facts, i))
    return out


def _base(at: Location) -> str:
    """Return the base folder of relative addresses, with a final slash."""
    if isinstance(at.store, LocalStore):
        return os.path.join(os.path.realpath(os.path.join(at.store.root, at.path)), "")
    return str(at).rstrip("/") + "/"


def _absolute(url: str, base: str) -> str:
    """Return an absolute address without the user name."""
    if scheme_of(url) in ("", "file"):
        path = bare(local_path(url))
        return path if path.startswith("/") else base + path
    return without_user(url)


def _pairs(old: Sequence[_Listed], new: Sequence[_Listed]) -> dict[int, int]:
    """Match chunks by absolute address, then by relative path; a playlist may list a chunk twice.

    return  position in `new` -> position in `old`
    """
    pairs: dict[int, int] = {}
    for which in ("absolute", "relative"):
        matched = set(pairs.values())
        unmatched: dict[tuple[str, str], deque[int]] = defaultdict(deque)
        for k, listed in enumerate(old):
            if k not in matched:
                unmatched[listed.stream, getattr(listed, which)].append(k)
        for k, listed in enumerate(new):
            same = (
                unmatched.get((listed.stream, getattr(listed, which)))
                if k not in pairs and getattr(listed, which)
                else None
            )
            if same:
                pairs[k] = same.popleft()
    return pairs


def _facts(stream: Stream) -> _Facts:
    """Return the listed facts: name of the fact -> one value per chunk.

    A value of None or -1, or an empty value, means unknown.
    """
    counts = {"rows": stream.rows, "bytes": stream.sizes, "raw_bytes": stream.raw_sizes}
    same = {"format": stream.format, "columns": stream.columns}
    return {
        **{name: [value] * len(stream) for name, value in same.items() if value is not None},
        **{name: values.tolist() for name, values in counts.items() if values is not None},
        **stream.hashes,
        **({"parts": stream.parts} if any(stream.parts) else {}),
    }


def _differ(a: _Listed, b: _Listed) -> bool:
    """Return whether two entries for a chunk contradict each other.

    A fact that is missing in one of the entries is ignored.
    """
    one, i, two, j = a.facts, a.i, b.facts, b.i
    for name, values in one.items():
        if name not in two or values[i] == two[name][j]:
            continue
        if name == "parts":
            companions = {file.name: file for file in two[name][j]}
            if any(
                _contradicts(file, companions[file.name])
                for file in values[i]
                if file.name in companions
            ):
                return True
        elif not {values[i], two[name][j]} & {None, -1, ""}:
            return True
    return False


def _contradicts(one: File, two: File) -> bool:
    pairs: list[tuple[object, object]] = [(one.size, two.size), (one.raw_size, two.raw_size)]
    pairs += [(value, two.hashes[name]) for name, value in one.hashes.items() if name in two.hashes]
    return any(ours is not None and theirs is not None and ours != theirs for ours, theirs in pairs)
