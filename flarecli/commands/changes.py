"""Open a dataset to change it."""

from __future__ import annotations

import contextlib

from flarecli.errors import BusyError
from flarecli.storage import Guard, Location, locate
from flarecli.storage.local import SCRATCH
from flarecli.write import CommitLock, bucket_of, claim, versions
from flarecli.write.versions import Version

__all__ = ["open_for_change"]


def open_for_change(out: str, guard: Guard, dry_run: bool = False) -> tuple[Location, Version]:
    """Return the folder of a dataset, and its newest version.

    If the process that created this version was killed after the commit, its last steps are
    completed first, unless `dry_run` is set: then nothing is written.

    raises  UsageError if the folder cannot be written to, or contains no dataset with a playlist
    """
    at = bucket_of(out, guard) or locate(out, guard).unmapped()
    base = versions.newest(at)
    if dry_run:
        return at, base
    if not versions.is_published(at, base) or versions.partial_files(at):
        with CommitLock(at):
            for name in versions.partial_files(at):
                (at / name).delete()
            base = versions.newest(at)
            versions.publish(at, base)
    for name in base.fragments:
        if (at / f"{name}/{SCRATCH}/journal").exists():
            with contextlib.suppress(
                BusyError
            ):  # the process that committed it is about to finish it
                target = claim(f"{out.rstrip('/')}/{name}", resume=True, guard=guard)
                if not target.is_done:
                    target.finish()
    return at, base
