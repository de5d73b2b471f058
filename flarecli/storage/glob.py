"""What matches an address with wildcards in it, as the user typed it: on a disk and in a bucket by one set of rules (`wildcards`).

Files match, and folders; `**` at the end names files alone, and a slash at the end folders alone. On a disk the folders are looked
at one by one, a link to a folder is one for every sign but `**`; in a bucket all that lies below the last folder without a sign is listed.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from flarecli.braces import WILDCARDS, compile_pattern, split_pattern
from flarecli.errors import MissingError, ReachError, UsageError
from flarecli.names import is_url, local_path, scheme_of, whole_path
from flarecli.redact import redact
from flarecli.storage.base import MAX_LISTED, Guard
from flarecli.storage.locator import locate

__all__ = ["globbed"]


def globbed(address: str, guard: Guard | None = None) -> list[str]:
    """Find what matches an address with a sign in it; in bytewise order.

    raises  MissingError if nothing does, or no folder is there to look in; ReachError for a folder that cannot be listed;
            UsageError for no pattern, a bucket that would have to be found, or more than a million files to look at
    """
    is_path = not is_url(address) or scheme_of(address) == "file"
    try:
        head, parts = split_pattern(local_path(address) if is_path else address)
        found = (
            _of_disk(head, parts)
            if is_path
            else [f"{head}/{name}" for name in locate(head, guard).matching(parts, folders=True)]
        )
    except MissingError as error:
        if is_path:
            raise
        raise MissingError("nothing matches", where=redact(address), hint=error.hint) from None
    except UsageError as error:
        raise error.changed(address=error.address or redact(address)) from None
    if not found:
        raise MissingError("nothing matches", where=redact(address))
    return sorted(found, key=os.fsencode)


def _of_disk(head: str, parts: Sequence[str]) -> list[str]:
    """Go down part by part; what is there so far is a list of paths, as the user would type them."""
    whole_path(head)  # or nothing would match in a folder that is gone
    look = _Look()
    places: Iterable[str] = [head] if os.path.isdir(head or ".") else []
    for i, part in enumerate(parts):
        is_last = i == len(parts) - 1
        if part == "**":
            places = dict.fromkeys(
                path for place in places for path in look.below(place, folders=not is_last)
            )
        elif any(sign in part for sign in WILDCARDS):
            fits, is_kind = (
                compile_pattern([part]).fullmatch,
                os.path.lexists if is_last else os.path.isdir,
            )
            places = [
                path
                for place in places
                for name, path, _ in look.into(place)
                if fits(name) and is_kind(path)
            ]
        else:
            is_kind = os.path.lexists if is_last and part else os.path.isdir
            places = [
                path for path in (os.path.join(place, part) for place in places) if is_kind(path)
            ]
    return list(places)


class _Look:
    """Lists folders, and counts what it sees."""

    def __init__(self) -> None:
        self._seen = 0

    def into(self, folder: str) -> Iterator[tuple[str, str, bool]]:
        """Give name and path of each thing in a folder, and whether it is a folder itself and no link to one."""
        try:
            with os.scandir(folder or ".") as entries:
                for entry in entries:
                    self._seen += 1
                    if self._seen > MAX_LISTED:
                        raise UsageError(
                            f"more than {MAX_LISTED} files lie there",
                            hint="Name a folder further down.",
                        )
                    yield (
                        entry.name,
                        os.path.join(folder, entry.name),
                        entry.is_dir(follow_symlinks=False),
                    )
        except OSError as error:
            if isinstance(error, FileNotFoundError):
                return  # it went while we looked
            raise ReachError(
                os.strerror(error.errno or 0).lower(),
                where=folder or ".",
                hint="Name what to read without wildcards there.",
            ) from None

    def below(self, folder: str, folders: bool) -> Iterator[str]:
        """Give a folder and all below that are not hidden, or the files in all of these."""
        waiting = [folder]
        while waiting:
            place = waiting.pop()
            if folders:
                yield place
            for name, path, is_folder in self.into(place):
                if name.startswith("."):
                    continue
                if is_folder:
                    waiting.append(path)
                elif not folders and not os.path.isdir(path):
                    yield path
