"""Dataset writing: download linked files, write rows as shards, and record shards in a journal."""

from __future__ import annotations

from flarecli.write.failures import FAILED, Failure, drop_rows, error_of, too_large
from flarecli.write.folder_target import FolderTarget, bucket_of, check_target, claim
from flarecli.write.journal import Journal
from flarecli.write.keys import (
    Keys,
    check_key_type,
    erasable_bytes,
    is_empty_key,
    key_bytes,
    key_text,
)
from flarecli.write.link_targets import address_column
from flarecli.write.spool import Spool
from flarecli.write.target import (
    Contents,
    Target,
    changed_error,
    check_can_pack,
    check_streams,
)
from flarecli.write.versions import CommitLock
from flarecli.write.writer import SHARD_LIMIT, Writer

__all__ = [
    "FAILED",
    "CommitLock",
    "Contents",
    "Failure",
    "FolderTarget",
    "Journal",
    "Keys",
    "SHARD_LIMIT",
    "Spool",
    "Target",
    "Writer",
    "address_column",
    "bucket_of",
    "changed_error",
    "check_can_pack",
    "check_streams",
    "check_target",
    "claim",
    "drop_rows",
    "error_of",
    "check_key_type",
    "erasable_bytes",
    "is_empty_key",
    "key_bytes",
    "key_text",
    "too_large",
]
