"""Functions that claim the target of a pack: a local folder, or a folder in a bucket."""

from __future__ import annotations

from dataclasses import replace

from flarecli.arguments import Address, address_text
from flarecli.errors import UsageError
from flarecli.names import is_url, scheme_of
from flarecli.redact import redact
from flarecli.storage import Guard, Location, locate
from flarecli.write.folder_target import FolderTarget
from flarecli.write.target import Target, check_dataset

__all__ = ["bucket_of", "claim"]


def claim(
    out: Address, *, resume: bool = False, overwrite: bool = False, guard: Guard | None = None
) -> Target:
    """Claim a folder, on a disk or in a bucket, for a pack.

    raises  UsageError if `out` cannot be written to; the errors of `Target`; for a finished
            dataset, also the errors of `check_files`
    """
    out = address_text(out)
    at = bucket_of(out, guard)
    target: Target
    if at is None:
        target = FolderTarget(out, resume=resume, overwrite=overwrite)
    else:
        # imported late, because the imported module loads a bucket client
        from flarecli.write.bucket_target import BucketTarget

        target = BucketTarget(at, resume=resume, overwrite=overwrite)
    if target.is_done:
        check_dataset(target.at)
    return target


def bucket_of(out: str, guard: Guard | None = None) -> Location | None:
    """Return the location of a target in a bucket; None for a local folder.

    raises  UsageError if `out` cannot be written to
    """
    if not is_url(out) or scheme_of(out) == "file":
        return None
    if scheme_of(out) in ("http", "https"):
        raise UsageError(
            "cannot write to a web server",
            where=redact(out),
            hint="Name a folder, or a bucket such as s3://bucket/folder.",
        )
    return locate(out, replace(guard or Guard(), keeper=None))
