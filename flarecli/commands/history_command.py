"""The `log` and `prune` commands: the versions of a dataset, and the removal of old versions."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from flarecli.arguments import address_text, from_options
from flarecli.commands.options import LogOptions, PruneOptions
from flarecli.errors import BusyError, MissingError, UsageError
from flarecli.model import Stream
from flarecli.playlists import PLAYLIST, version_name
from flarecli.read.resolve import without_version_index
from flarecli.storage import Location
from flarecli.write import CommitLock, check_can_pack, check_streams, removal, versions
from flarecli.write.versions import Version, open_for_change

__all__ = ["Pruned", "VersionInfo", "log", "prune"]


@dataclass(frozen=True, slots=True)
class VersionInfo:
    """A version of a dataset.

    number    version number; the first version has the number 1
    verb      the command that created the version
    rows      number of rows
    added     number of rows in the shards that the version added
    removed   number of rows in the shards that the version no longer lists
    checksum  xxh3_128 of the playlist
    pin       names of the pins, separated by commas; None without a pin
    """

    number: int
    verb: str
    rows: int
    added: int
    removed: int
    checksum: str
    pin: str | None = None

    def as_json(self) -> dict[str, Any]:
        """Return the version as plain values, for --json."""
        return asdict(self)


@dataclass(frozen=True)
class Restore(versions.Change):
    """The change that restores the list of shards of an earlier version."""

    at: Location
    version: Version
    verb: str = field(default="restore", init=False)
    fragments: tuple[str, ...] = field(default=(), init=False)
    source: Mapping[str, Any] | None = field(default=None, init=False)

    def apply(self, base: Version) -> tuple[Stream, ...]:
        if not self.version.at.exists():
            raise BusyError(
                f"another process has pruned version {self.version.number}", where=self.at
            )
        streams = tuple(map(without_version_index, self.version.streams))
        check_streams(self.at, streams, "The files of this version were deleted.")
        return streams


@from_options(LogOptions)
def log(options: LogOptions) -> tuple[VersionInfo, ...]:
    """Return the versions of a dataset, the oldest first.

    A pinned version is listed even if its numbered playlist was pruned. With `restore`, a version
    with the shards of an earlier version is created first. With `pin`, the newest playlist is then
    copied to `playlist.PIN.yaml`.

    raises  UsageError for an invalid pin name, for the name of a pin of another version, and for an
            unknown version
    """
    out = address_text(options.out)
    changes = options.restore is not None or options.pin is not None
    guard, known = options.guard([out]), dict[int, Version]()
    if changes:
        check_can_pack()
        # a dry run, because opening for changes fails if files of the newest version are missing
        at, base = open_for_change(out, guard, dry_run=True)
        known = _checked_versions(at)
        if options.restore is not None:
            _restore(at, base, options.restore)
    at, _ = open_for_change(out, guard, dry_run=not changes)
    if options.pin is not None:
        _pin(at, options.pin)
    pins = versions.pins(at)
    names: dict[str, list[str]] = {}
    for name, pinned in pins.items():
        names.setdefault(pinned.checksum, []).append(name)
    numbers = versions.numbers(at)
    new = (number for number in numbers if number not in known)
    numbered = [known[number] for number in numbers if number in known]
    numbered = [*numbered, *versions.read_versions(at, new)] or [versions.newest(at)]
    checksums = {one.checksum for one in numbered}
    pruned = {one.checksum: one for one in pins.values() if one.checksum not in checksums}
    found = sorted([*pruned.values(), *numbered], key=lambda one: one.number)
    return tuple(
        VersionInfo(
            one.number,
            str(one.header.get("verb", "pack")),
            one.rows,
            one.added,
            one.removed,
            one.checksum,
            ", ".join(names.get(one.checksum, [])) or None,
        )
        for one in found
    )


def _checked_versions(at: Location) -> dict[int, Version]:
    """Return the numbered versions, whose playlists never change: number -> version.

    All playlists are parsed, also those of pins, so that a damaged one is reported before a change.

    raises  the errors of `parse_version_list`
    """
    versions.pins(at)
    found = {one.number: one for one in versions.read_versions(at, versions.numbers(at))}
    for one in found.values():
        one.playlist  # noqa: B018 - parses the playlist
    return found


def _pin(at: Location, name: str) -> None:
    file = at / versions.pin_name(name)
    with CommitLock(at) as lock:
        data = versions.newest(at).data
        if not file.exists():
            lock.check()
            versions.create_once(file, data)
            try:
                lock.check()
            except BusyError:  # a prune may have deleted files that `data` lists
                file.delete()
                raise
        elif file.read() != data:
            raise UsageError(
                f"the pin {name!r} already exists, and pins another version",
                where=file,
                hint="Choose another name.",
            )


def _restore(at: Location, base: Version, number: int) -> None:
    if number == base.number:
        return
    version = _version(at, number)
    if _shards(version) != _shards(base):
        versions.commit(at, Restore(at, version), base)


def _version(at: Location, number: int) -> Version:
    """Read a version by its number. If the numbered playlist was pruned, read a pin of the version.

    raises  UsageError for an unknown version
    """
    with contextlib.suppress(MissingError):
        return versions.read_version(at, number)
    pinned = {one.number: one for one in versions.pins(at).values()}
    if number in pinned:
        return pinned[number]
    known = sorted({*(versions.numbers(at) or [1]), *pinned})
    hint = f"Choose one of the versions {known[0]} to {known[-1]}."
    if len(known) == 1:
        hint = f"The only version is {known[0]}."
    elif known[-1] - known[0] >= len(known):
        hint = "Choose a version that `flare log` lists."
    raise UsageError(f"no version {number}", where=at, hint=hint)


def _shards(version: Version) -> list[tuple[str, list[str]]]:
    return [(stream.name, list(stream.urls)) for stream in version.streams]


@dataclass(frozen=True, slots=True)
class Pruned:
    """The result of a prune.

    versions   numbers of the removed versions
    files      number of removed files
    bytes      total size of the removed files in bytes
    busy       names of the fragments that were kept because another process is writing them
    """

    versions: tuple[int, ...]
    files: int
    bytes: int
    dry_run: bool = False
    busy: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return the result as plain values, for --json."""
        return {**asdict(self), "versions": list(self.versions), "busy": list(self.busy)}


@from_options(PruneOptions)
def prune(options: PruneOptions) -> Pruned:
    """Remove old versions of a dataset, and the files that no remaining version lists.

    Pins, and the files that they list, are kept. The result also contains the numbers of removed
    versions that a pin keeps: `log` lists these versions, and can restore them. In a dry run,
    nothing is removed, and the result contains the versions and the number of files that a run
    without `dry_run` would remove.

    raises  UsageError without `keep`; FormatError if a playlist cannot be read, and IntegrityError
            if its last line is not the checksum of the lines above, before any file is removed
    """
    if options.keep is None:
        raise UsageError(
            "--keep is required", hint="Add the number of versions to keep, such as --keep 10."
        )
    out = address_text(options.out)
    at, _ = open_for_change(out, options.guard([out]), dry_run=options.dry_run)
    busy: list[str] = []
    with contextlib.nullcontext() if options.dry_run else CommitLock(at) as lock:
        found = versions.numbers(at)
        expired = found[: -options.keep]
        if not options.dry_run and found:
            versions.publish(at, versions.read_version(at, found[-1]))
        # a prune that is not a dry run has published the newest version
        unused = [PLAYLIST] if options.dry_run and found else []
        lists = [version_name(number) for number in expired]
        planned = removal.plan_removal(at, lists, unused)
        if lock is not None:
            busy = removal.remove(at, planned, lock)
    return Pruned(tuple(expired), len(planned.files), planned.bytes, options.dry_run, tuple(busy))
